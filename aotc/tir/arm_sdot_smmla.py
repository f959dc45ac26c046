# SPDX-License-Identifier: Apache-2.0
"""Dot-product instructions that use several groups of four bytes of one vector: SDOT by element and
SMMLA (Arm).

    dot4_int8_int8_lane2(acc, words, w)      # acc[k] + the sum of the products of words[2] and w[4 * k : 4 * k + 4]
    mmla_int8_int8(acc, y, x)                # acc + y @ x.T, of matrices of 2 x 8 bytes, row after row

Around the second stand rearrangements: `pair` brings two rows of data together, `zip0` and `zip1`
turn groups of four outputs into rows of two, `half0` and `half1` bring the sums of four outputs
together.  (Arm Architecture Reference Manual, SDOT by element, SMMLA.)
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_c_vector_instruction
from aotc.tir.int8_dot_products import BYTES_PER_DOT, INT8_DTYPES, dot_numpy_reference
from aotc.tir.processor_features import CVariant

#: Groups of a vector, and numbers of int32.
WORDS_PER_VECTOR: Final = 4
#: How instructions begin that multiply these types of data and weights.
_MATMUL_PREFIX_OF_DTYPES: Final = {("int8", "int8"): "s", ("uint8", "uint8"): "u", ("uint8", "int8"): "us"}
_DOT_LANE_PREFIX_OF_DTYPES: Final = {("int8", "int8"): "s", ("uint8", "uint8"): "u"}
_DOT_LANE_C: Final = """\
/* Sums of four products of DATA, of one of four groups, by WEIGHTS, added to numbers. */
__attribute__((__unused__)) $inline aotc_int32x4
aotc_NAME(aotc_int32x4 acc, aotc_int32x4 words, aotc_WEIGHTSx16 w) {
VARIANT  return acc;
}
"""
_DOT_LANE_VARIANTS: Final = (
    CVariant(
        '  __asm__("KINDdot %0.4s, %1.16b, %2.4b[LANE]" : "+w"(acc) : "w"(w), "w"(words));\n', requires=("dotprod",)
    ),
    CVariant("""\
  const aotc_DATAx16 y = (aotc_DATAx16)words;
  for (int k = 0; k < 16; ++k)
    acc[k / 4] = (int32_t)((uint32_t)acc[k / 4] + (uint32_t)(y[4 * LANE + k % 4] * w[k]));
"""),
)
_MATMUL_2X8_C: Final = """\
/* Two rows of eight DATA times two of WEIGHTS, added to numbers. */
__attribute__((__unused__)) $inline aotc_int32x4
aotc_NAME(aotc_int32x4 acc, aotc_DATAx16 y, aotc_WEIGHTSx16 x) {
VARIANT  return acc;
}
"""
_MATMUL_2X8_VARIANTS: Final = (
    CVariant('  __asm__("KINDmmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(y), "w"(x));\n', requires=("i8mm",)),
    CVariant("""\
  for (int k = 0; k < 32; ++k)
    acc[k / 8] = (int32_t)((uint32_t)acc[k / 8] + (uint32_t)(y[k / 16 * 8 + k % 8] * x[k / 8 % 2 * 8 + k % 8]));
"""),
)
_JOIN_ROWS_C: Final = """\
/* Two rows of bytes. */
__attribute__((__unused__)) $inline aotc_DATAx16 aotc_NAME(aotc_DATAx8 a, aotc_DATAx8 b) {
  typedef int64_t rows __attribute__((__vector_size__(16), __unused__));
  return (aotc_DATAx16)(rows){(int64_t)a, (int64_t)b};
}
"""
_INTERLEAVE_WORDS_C: Final = """\
/* Interleaved words of two vectors. */
__attribute__((__unused__)) $inline aotc_DATAx16 aotc_NAME(aotc_DATAx16 a, aotc_DATAx16 b) {
  return (aotc_DATAx16)__builtin_shufflevector((aotc_int32x4)a, (aotc_int32x4)b, PLACES);
}
"""
_JOIN_HALVES_C: Final = """\
/* Halves of two vectors. */
__attribute__((__unused__)) $inline aotc_int32x4 aotc_NAME(aotc_int32x4 a, aotc_int32x4 b) {
  return __builtin_shufflevector(a, b, PLACES);
}
"""


def dot_by_lane_instruction_name_or_empty(data_dtype: str, weight_dtype: str, lane: int) -> str:
    """Return the name of the instruction that multiplies weights with group `lane` (0 to 3) of four
    bytes of the data vector, such as dot4_int8_int8_lane2; "" if there is none for these types.
    """
    return (
        f"dot4_{data_dtype}_{weight_dtype}_lane{lane}"
        if (data_dtype, weight_dtype) in _DOT_LANE_PREFIX_OF_DTYPES
        else ""
    )


def matmul_instruction_name_or_empty(data_dtype: str, weight_dtype: str) -> str:
    """Return the name of the matrix multiplication instruction; "" if there is none for these
    types.
    """
    return f"mmla_{data_dtype}_{weight_dtype}" if (data_dtype, weight_dtype) in _MATMUL_PREFIX_OF_DTYPES else ""


def _dot_by_lane_numpy_reference(lane: int, data_dtype: str, acc: Any, words: Any, values: Any) -> Any:
    return dot_numpy_reference(data_dtype, acc, np.repeat(words[lane : lane + 1], len(acc)), values)


def _matmul_2x8_numpy_reference(acc: Any, y: Any, x: Any) -> Any:
    left, right = (values.reshape(2, 2 * BYTES_PER_DOT).astype(np.int32) for values in (y, x))
    return acc + (left @ right.T).reshape(-1)


def _join_rows_numpy_reference(a: Any, b: Any) -> Any:
    return np.concatenate((a, b))


def _interleave_words_numpy_reference(half: int, a: Any, b: Any) -> Any:
    words = [np.ascontiguousarray(v).view(np.int32)[2 * half : 2 * half + 2] for v in (a, b)]
    return np.stack(words, axis=1).reshape(-1).view(a.dtype)


def _join_halves_numpy_reference(half: int, a: Any, b: Any) -> Any:
    return np.concatenate((a[2 * half : 2 * half + 2], b[2 * half : 2 * half + 2]))


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the instructions for all operand types that have one."""
    for ((data, weights), kind), k in product(_DOT_LANE_PREFIX_OF_DTYPES.items(), range(WORDS_PER_VECTOR)):
        name, arg_types = (
            dot_by_lane_instruction_name_or_empty(data, weights, k),
            ("int32x4", "int32x4", f"{weights}x16"),
        )
        words = {"DATA": data, "WEIGHTS": weights, "KIND": kind, "LANE": k}
        yield define_c_vector_instruction(
            name,
            arg_types,
            "",
            partial(_dot_by_lane_numpy_reference, k, data),
            _DOT_LANE_C,
            _DOT_LANE_VARIANTS,
            **words,
        )
    for (data, weights), kind in _MATMUL_PREFIX_OF_DTYPES.items():
        arg_types = ("int32x4", f"{data}x16", f"{weights}x16")
        words = {"DATA": data, "WEIGHTS": weights, "KIND": kind}
        yield define_c_vector_instruction(
            matmul_instruction_name_or_empty(data, weights),
            arg_types,
            "",
            _matmul_2x8_numpy_reference,
            _MATMUL_2X8_C,
            _MATMUL_2X8_VARIANTS,
            **words,
        )
    for data in INT8_DTYPES:
        two = (f"{data}x16",) * 2
        yield define_c_vector_instruction(
            f"pair_{data}", (f"{data}x8",) * 2, f"{data}x16", _join_rows_numpy_reference, _JOIN_ROWS_C, DATA=data
        )
        for k, places in enumerate(("0, 4, 1, 5", "2, 6, 3, 7")):
            yield define_c_vector_instruction(
                f"zip{k}_{data}",
                two,
                "",
                partial(_interleave_words_numpy_reference, k),
                _INTERLEAVE_WORDS_C,
                DATA=data,
                PLACES=places,
            )
    for k, places in enumerate(("0, 1, 4, 5", "2, 3, 6, 7")):
        yield define_c_vector_instruction(
            f"half{k}", ("int32x4",) * 2, "", partial(_join_halves_numpy_reference, k), _JOIN_HALVES_C, PLACES=places
        )
