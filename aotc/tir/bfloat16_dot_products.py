# SPDX-License-Identifier: Apache-2.0
"""Dot-product instructions that add two bfloat16 products to float32 (x86): semantics and C text.

    pair = word_uint16(bits of x[i:2])           # two neighboring bfloat16 as the bits of an int32
    dot2_bfloat16_x16(acc, pair, bits of w[32])  # acc[k] + pair[1] * w[2 * k + 1] + pair[0] * w[2 * k]

Operands hold the bits of bfloat16 numbers, two in each lane of 32 bits. The semantics are those of
VDPBF16PS (AVX512-BF16) in Intel's Software Developer's Manual, volume 2: the product of the upper
halves is added first, then that of the lower halves, each by a fused multiply-add that rounds to
nearest, ties to even. Subnormal operands and sums count as zeros of their sign; a sum is subnormal
if its magnitude is below 2^-126 after it was rounded to 24 bits with an unbounded exponent. NaN
results have any payload.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_c_vector_instruction
from aotc.tir.processor_features import CVariant

#: Products in a sum.
BFLOAT16_PER_DOT: Final = 2
#: Numbers of float32 in a vector.
FLOAT32_VECTOR_LENGTHS: Final = (4, 8, 16)
#: Exact sums of smaller magnitude are below 2^-126 when they are rounded to 24 bits.
_MIN_MAGNITUDE_ROUNDED_TO_NORMAL: Final = 2.0**-126 - 2.0**-151

_PAIR_C: Final = """\
/* Two numbers of 16 bits as the bits of one of 32 bits. */
__attribute__((__unused__)) $inline int32_t aotc_NAME(aotc_uint16x2 pair) {
  int32_t word;
  __builtin_memcpy(&word, &pair, sizeof word);
  return word;
}
"""
_DOT_C: Final = """\
/* Adds two products of bfloat16, that of the upper halves first, to each number. */
__attribute__((__unused__)) $inline aotc_float32xLANES
aotc_NAME(aotc_float32xLANES acc, aotc_int32xLANES y, aotc_uint16xPAIRED x) {
VARIANT  return acc;
}
"""
_DOT_VARIANTS: Final = (
    CVariant('  __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(y), "v"(x));\n', requires=("avx512_bf16", "avx512vl")),
    CVariant("""\
  for (int k = 0; k < PAIRED; ++k) {
    /* the float32 numbers of a sum and two factors; subnormal ones become zeros */
    const uint32_t words[3] = {
        ((union { float number; uint32_t bits; }){acc[k / 2]}).bits,
        (uint32_t)y[k / 2] << (k % 2 ? 16 : 0) & 0xffff0000u,
        (uint32_t)x[k ^ 1] << 16,
    };
    double operands[3];
    for (int i = 0; i < 3; ++i) {
      const uint32_t kept = words[i] & 0x7f800000u ? 0xffffffffu : 0x80000000u;
      operands[i] = (double)((union { uint32_t bits; float number; }){words[i] & kept}).number;
    }
    /* the sum rounded to odd: rounding it again to float32 gives the float32 number nearest to it */
    const double c = operands[0], p = operands[1] * operands[2], sum = c + p, part = sum - p;
    const double error = (p - (sum - part)) + (c - part);
    union { double number; int64_t bits; } odd = {sum};
    if (sum - sum == 0 && error != 0 && odd.bits % 2 == 0)
      odd.bits += (error > 0) == (sum > 0) ? 1 : -1;
    const double size = odd.number < 0 ? -odd.number : odd.number;
    acc[k / 2] = size < MIN_NORMAL ? (odd.bits < 0 ? -0.0f : 0.0f) : (float)odd.number;
  }
"""),
)


def _pair_numpy_reference(values: Any) -> Any:
    return np.ascontiguousarray(values).view(np.int32)[0]


def _flush_subnormal_float32(values: Any) -> Any:
    """Return float32 numbers with zeros of their sign in place of subnormal ones."""
    tiny = np.abs(values) < np.finfo(np.float32).smallest_normal
    return np.where(tiny, np.copysign(np.float32(0), values), values)


def _fused_multiply_add_without_subnormals(acc: Any, a: Any, b: Any) -> Any:
    """Compute acc + a * b of bfloat16 numbers (as float32), rounded once to float32, where subnormal
    numbers count as zeros.

    Products are exact in float64, and the float64 sum is rounded to odd, so that rounding it again
    is exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    c, x, y = (_flush_subnormal_float32(operand).astype(np.float64) for operand in (acc, a, b))
    product = x * y
    total = c + product
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(np.int64)
    is_moved = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
    odd = (bits + is_moved * np.where((error > 0) == (total > 0), 1, -1)).view(np.float64)
    is_subnormal = np.abs(odd) < _MIN_MAGNITUDE_ROUNDED_TO_NORMAL
    return np.where(is_subnormal, np.copysign(0.0, odd), odd).astype(np.float32)


def dot_numpy_reference(acc: Any, words: Any, values: Any) -> Any:
    """Compute the sums of two bfloat16 products in numpy: the reference semantics of VDPBF16PS."""
    left = np.ascontiguousarray(words).view(np.uint16).reshape(-1, BFLOAT16_PER_DOT)
    right = np.ascontiguousarray(values).reshape(-1, BFLOAT16_PER_DOT)
    x, y = ((bits.astype(np.uint32) << np.uint32(16)).view(np.float32) for bits in (left, right))
    with np.errstate(all="ignore"):
        for k in reversed(range(BFLOAT16_PER_DOT)):
            acc = _fused_multiply_add_without_subnormals(acc, x[:, k], y[:, k])
    return acc


def instruction_definitions() -> Iterator[Instruction]:
    """Yield the instructions for all vector lengths."""
    yield define_c_vector_instruction("word_uint16", ("uint16x2",), "int32x1", _pair_numpy_reference, _PAIR_C)
    for lanes in FLOAT32_VECTOR_LENGTHS:
        paired = BFLOAT16_PER_DOT * lanes
        yield define_c_vector_instruction(
            f"dot2_bfloat16_x{lanes}",
            (f"float32x{lanes}", f"int32x{lanes}", f"uint16x{paired}"),
            "",
            dot_numpy_reference,
            _DOT_C,
            _DOT_VARIANTS,
            LANES=lanes,
            PAIRED=paired,
            MIN_NORMAL="0x1.ffffffp-127",
        )
