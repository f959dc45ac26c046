# SPDX-License-Identifier: Apache-2.0
"""Instructions that unpack int4 values, stored two to a byte, to vectors of int8, with their
semantics and C text.

    nibbles_int8_x32(w[i:16], -8)    # 32 integers, the first of two in the lower half of a byte, each less 8
    picked_float32_x16(table, w)     # table[w[k] % 16], which is one instruction of AVX-512

The stored 4 bits are the value minus the smallest value of its range of 16.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_c_vector_instruction, fill_template
from aotc.tir.int8_dot_products import INT8_DTYPES
from aotc.tir.processor_features import CVariant

#: The instruction that takes floats from a table.
TABLE_LOOKUP_INSTRUCTION: Final = "picked_float32_x16"
#: Numbers that 4 bits tell apart.
INT4_VALUE_COUNT: Final = 16
#: Lengths of vectors of bytes.
BYTE_VECTOR_LENGTHS: Final = (4, 8, 16, 32, 64)
#: By the length of vectors: the required feature, and gcc's builtin for bytes that become numbers of 16 bits.  It makes
#: `__builtin_convertvector` of two halves.
_WIDENING_BUILTIN_OF_LANES: Final = {
    32: ("avx2", "pmovzxbw256((bytes)v)"),
    64: ("avx512bw", "pmovzxbw512_mask((bytes)v, (halves){0}, 4294967295u)"),
}
_PORTABLE_WIDEN_C: Final = "  const pairs wide = __builtin_convertvector(v, pairs);\n"
_BUILTIN_WIDEN_C: Final = """\
  typedef char bytes __attribute__((__vector_size__(HALF), __unused__));
  typedef short halves __attribute__((__vector_size__(SIZE), __unused__));
  const pairs wide = (pairs)__builtin_ia32_CALL;
"""
_UNPACK_C: Final = """\
/* Integers of 4 bits as bytes, each plus the least. */
__attribute__((__unused__)) $inline aotc_DTYPExSIZE aotc_NAME(aotc_uint8xHALF v, DTYPE_t least) {
  typedef uint16_t pairs __attribute__((__vector_size__(SIZE), __unused__));
VARIANT#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return (aotc_DTYPExSIZE)((wide << 8 | wide >> 4) & 0x0f0f) + least;
#else
  return (aotc_DTYPExSIZE)((wide << 4 | wide) & 0x0f0f) + least;
#endif
}
"""
_TABLE_LOOKUP_C: Final = """\
/* The numbers of a table at some places, of which the lowest 4 bits count. */
__attribute__((__unused__)) $inline aotc_float32x16 aotc_NAME(aotc_float32x16 table, aotc_uint32x16 at) {
VARIANT}
"""
_TABLE_LOOKUP_VARIANTS: Final = (
    CVariant(
        """\
  typedef int places __attribute__((__vector_size__(64), __unused__));
#if defined(__clang__)
  return __builtin_ia32_permvarsf512(table, (places)at);
#else
  return __builtin_shuffle(table, (places)at);
#endif
""",
        requires=("avx512f",),
    ),
    CVariant("""\
  aotc_float32x16 y = table;
  for (int k = 0; k < 16; ++k)
    y[k] = table[at[k] & 15];
  return y;
"""),
)


def byte_widening_variants(lanes: int) -> tuple[CVariant, ...]:
    """Return the variants of the C lines that widen the bytes v to a vector of `lanes` int16."""
    portable = CVariant(_PORTABLE_WIDEN_C)
    if lanes not in _WIDENING_BUILTIN_OF_LANES:
        return (portable,)
    feature, builtin = _WIDENING_BUILTIN_OF_LANES[lanes]
    text = fill_template(_BUILTIN_WIDEN_C, CALL=builtin, SIZE=lanes, HALF=lanes // 2)
    return CVariant(text, (feature,), compiler="!defined(__clang__)"), portable


def int4_unpack_instruction_name_or_empty(dtype: str, lanes: int) -> str:
    """Return the name of the instruction that unpacks to `lanes` values of a dtype; "" if there is
    none.
    """
    return f"nibbles_{dtype}_x{lanes}" if lanes in BYTE_VECTOR_LENGTHS else ""


def int4_variant_of_kernel_name(kernel_name: str) -> str:
    """Return the name of the micro-kernel variant whose second operand is packed int4 and whose
    last is its minimum.
    """
    return f"{kernel_name}_of_nibbles"


def pack_int4(values: Any, minimum: int) -> Any:
    """Pack values between `minimum` and `minimum + 15` two to a byte; an odd count is padded by
    `minimum`.
    """
    offsets = (np.ravel(values).astype(np.int16) - minimum).astype(np.uint8)
    offsets = np.pad(offsets, (0, offsets.size % 2))
    return offsets[::2] | offsets[1::2] << 4


def unpack_int4(dtype: str, packed: Any, minimum: Any) -> Any:
    """Unpack int4 values: the inverse of `pack_int4`."""
    pairs = np.stack((packed & 15, packed >> 4), axis=-1)
    return pairs.reshape(-1).astype(dtype) + minimum


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the instructions for int8, uint8 and all vector lengths."""
    for dtype, lanes in product(INT8_DTYPES, BYTE_VECTOR_LENGTHS):
        name, arg_types = int4_unpack_instruction_name_or_empty(dtype, lanes), (f"uint8x{lanes // 2}", dtype)
        words = {"DTYPE": dtype, "SIZE": lanes, "HALF": lanes // 2}
        yield define_c_vector_instruction(
            name,
            arg_types,
            f"{dtype}x{lanes}",
            partial(unpack_int4, dtype),
            _UNPACK_C,
            byte_widening_variants(lanes),
            **words,
        )
    table = "float32x16"
    yield define_c_vector_instruction(
        TABLE_LOOKUP_INSTRUCTION,
        (table, "uint32x16"),
        table,
        lambda x, at: x[at % INT4_VALUE_COUNT],
        _TABLE_LOOKUP_C,
        _TABLE_LOOKUP_VARIANTS,
    )
