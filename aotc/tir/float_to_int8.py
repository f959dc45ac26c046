# SPDX-License-Identifier: Apache-2.0
"""Instructions that round four float vectors to one int8 vector, with their semantics and C text.

    quantize_uint8_x16(a, b, c, d, z)    # the elements of a, b, c, d rounded to int8, one by one

Processors narrow int32 to int8 in two saturating steps of half the width; the zero point is added
between them.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_c_vector_instruction
from aotc.tir.int8_dot_products import BYTES_PER_DOT, INT32_VECTOR_LENGTHS
from aotc.tir.processor_features import CVariant

#: Types of the result, with the last step and the least number.
_PACK_BUILTIN_AND_MINIMUM: Final = {"int8": ("packsswb", -128), "uint8": ("packuswb", 0)}
#: By the lanes of the floats: the required feature, and the ends of gcc's names for vectors of floats and of integers.
_X86_FEATURE_AND_SUFFIXES: Final = {
    4: ("x86_64", "", "128"),
    8: ("avx2", "256", "256"),
    16: ("avx512bw", "512_mask", "512_mask"),
}
#: The words of results of steps within 16 bytes in their order.
_PACKED_WORD_ORDER: Final = {8: "0, 4, 1, 5, 2, 6, 3, 7", 16: ", ".join(str(4 * (k % 4) + k // 4) for k in range(16))}
_QUANTIZE_C: Final = """\
/* Numbers rounded to even integers, plus what zero is, saturated. */
__attribute__((__unused__)) $inline aotc_DTYPExSIZE
aotc_NAME(VECTOR x0, VECTOR x1, VECTOR x2, VECTOR x3, VECTOR zero) {
  typedef char bytes __attribute__((__vector_size__(SIZE), __unused__));
  typedef short halves __attribute__((__vector_size__(SIZE), __unused__));
  typedef int words __attribute__((__vector_size__(SIZE), __unused__));
VARIANT}
"""
_QUANTIZE_BY_GCC_BUILTINS_C: Final = """\
  const VECTOR none = {0}, most = none + 1073741824.0f;
  const halves z = ZERO;
  const halves low = FIRST;
  const halves high = SECOND;
  return (aotc_DTYPExSIZE)RESULT;
"""
_PORTABLE_QUANTIZE_C: Final = """\
  const VECTOR least = LOW - zero, last = least + 255.0f;
PARTS  const halves low = __builtin_shufflevector((halves)w0, (halves)w1, EVEN2);
  const halves high = __builtin_shufflevector((halves)w2, (halves)w3, EVEN2);
  return (aotc_DTYPExSIZE)__builtin_shufflevector((bytes)low, (bytes)high, EVEN1);
"""
_CLAMP_STEP_C: Final = """\
  const words aK = (words)(xK > least);
  const VECTOR bK = (VECTOR)(((words)xK & aK) | ((words)least & ~aK));
  const words cK = (words)(bK < last);
  const words wK = (words)((VECTOR)(((words)bK & cK) | ((words)last & ~cK)) + 12582912.0f + zero);
"""
#: The builtins of clang give the other number where one is NaN, as the instructions of RISC-V do.
_RISCV_CLAMP_STEP_C: Final = """\
  const VECTOR bK = __builtin_elementwise_min(__builtin_elementwise_max(xK, least), last);
  const words wK = (words)(bK + 12582912.0f + zero);
"""


def quantize_instruction_name(dtype: str, lanes: int) -> str:
    """Return the name of the instruction that takes vectors of `lanes` floats."""
    return f"quantize_{dtype}_x{lanes}"


def quantize_numpy_reference(dtype: str, values: Any, zero_point: Any) -> Any:
    """Round numbers to int8 or uint8 in numpy: the reference semantics."""
    low = _PACK_BUILTIN_AND_MINIMUM[dtype][1]
    whole = np.rint(np.asarray(values, np.float64)) + zero_point
    return np.clip(np.where(np.isnan(whole), low, whole), low, low + 255).astype(dtype)


def _make_numpy_quantize_of_vectors(dtype: str) -> Any:
    return lambda *values: quantize_numpy_reference(dtype, np.stack(values[:-1]), values[-1]).reshape(-1)


def _quantize_text_substitutions(dtype: str, lanes: int) -> dict[str, str]:
    """Return the words to substitute in the text of a function."""
    size = BYTES_PER_DOT * lanes
    last, low = _PACK_BUILTIN_AND_MINIMUM[dtype]
    _, floats, whole = _X86_FEATURE_AND_SUFFIXES[lanes]

    def builtin_call_text(builtin: str, width: str, *values: str, mask: str = "") -> str:
        return f"__builtin_ia32_{builtin}{width}({', '.join(values)}{mask if lanes == 16 else ''})"

    def float_to_int32_text(x: str) -> str:
        return builtin_call_text("cvtps2dq", floats, x, mask=", (words){0}, -1, 4")

    def clamp_pack_and_add_zero_point_text(a: str, b: str) -> str:
        least = [builtin_call_text("minps", floats, "most", x, mask=f", {x}, -1, 4") for x in (a, b)]
        packed = builtin_call_text(
            "packssdw", whole, *map(float_to_int32_text, least), mask=", (halves){0}, 4294967295u"
        )
        return builtin_call_text("paddsw", whole, packed, "z", mask=", (halves){0}, 4294967295u")

    zero = builtin_call_text(
        "packssdw", whole, float_to_int32_text("zero"), float_to_int32_text("zero"), mask=", (halves){0}, 4294967295u"
    )
    result = builtin_call_text(last, whole, "low", "high", mask=", (bytes){0}, 0xffffffffffffffffu")
    if lanes in _PACKED_WORD_ORDER:
        order = f"(words){{{_PACKED_WORD_ORDER[lanes]}}}"
        result = builtin_call_text("permvarsi", whole, f"(words){result}", order, mask=", (words){0}, 65535")
    return {
        "ZERO": zero,
        "FIRST": clamp_pack_and_add_zero_point_text("x0", "x1"),
        "SECOND": clamp_pack_and_add_zero_point_text("x2", "x3"),
        "RESULT": result,
        "RISCV_STEPS": "".join(_RISCV_CLAMP_STEP_C.replace("K", str(k)) for k in range(BYTES_PER_DOT)),
        "PARTS": "".join(_CLAMP_STEP_C.replace("K", str(k)) for k in range(BYTES_PER_DOT)),
        "LOW": f"{float(low)}f",
        "EVEN2": ", ".join(str(2 * k) for k in range(size // 2)),
        "EVEN1": ", ".join(str(2 * k) for k in range(size)),
        "DTYPE": dtype,
        "SIZE": str(size),
        "VECTOR": f"aotc_float32x{lanes}",
    }


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the instructions for int8, uint8 and all vector lengths."""
    for dtype, lanes in product(_PACK_BUILTIN_AND_MINIMUM, INT32_VECTOR_LENGTHS):
        arg_types, gives = (f"float32x{lanes}",) * (BYTES_PER_DOT + 1), f"{dtype}x{BYTES_PER_DOT * lanes}"
        name, meaning = quantize_instruction_name(dtype, lanes), _make_numpy_quantize_of_vectors(dtype)
        builtins = CVariant(
            _QUANTIZE_BY_GCC_BUILTINS_C, (_X86_FEATURE_AND_SUFFIXES[lanes][0],), compiler="!defined(__clang__)"
        )
        riscv = CVariant(_PORTABLE_QUANTIZE_C.replace("PARTS", "RISCV_STEPS"), ("v",), compiler="defined(__clang__)")
        variants = builtins, riscv, CVariant(_PORTABLE_QUANTIZE_C)
        yield define_c_vector_instruction(
            name, arg_types, gives, meaning, _QUANTIZE_C, variants, **_quantize_text_substitutions(dtype, lanes)
        )
