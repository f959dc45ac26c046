# SPDX-License-Identifier: Apache-2.0
"""Dot-product instructions that add two bfloat16 products to float32 (x86, Arm): semantics and C
text.

    pair = word_uint16(bits of x[i:2])           # two neighboring bfloat16 as the bits of an int32
    dot2_bfloat16_x16(acc, pair, bits of w[32])  # acc[k] + pair[1] * w[2 * k + 1] + pair[0] * w[2 * k]

Operands hold the bits of bfloat16 numbers, two in each lane of 32 bits. The semantics are those of
VDPBF16PS (AVX512-BF16) in Intel's Software Developer's Manual, volume 2: the product of the upper
halves is added first, then that of the lower halves, each by a fused multiply-add that rounds to
nearest, ties to even. Subnormal operands and sums count as zeros of their sign; a sum is subnormal
if its magnitude is below 2^-126 after it was rounded to 24 bits with an unbounded exponent. NaN
results have any payload.

    dot2_bfloat16_bfdot_x4(acc, pair, bits of w[8])  # acc[k] + (pair[0] * w[2 * k] + pair[1] * w[2 * k + 1])

These are the semantics of BFDOT in Arm's Architecture Reference Manual, without the extended
behavior of FPCR.EBF: both products and both sums are rounded to odd (truncated, with the last bit set
if bits were lost), and numbers below 2^-126 count as zeros of their sign before they are rounded.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from aotc.tir.instruction_definition import Instruction, define_c_vector_instruction
from aotc.tir.processor_features import CVariant

#: Products in a sum.
BFLOAT16_PER_DOT: Final = 2
#: Name of Arm's BFDOT.
BFDOT_INSTRUCTION: Final = "dot2_bfloat16_bfdot_x4"
#: Numbers of float32 in a vector of AVX-512.
FLOAT32_VECTOR_LENGTHS: Final = (4, 8, 16)
#: Exact sums of smaller magnitude are below 2^-126 when they are rounded to 24 bits.
_MIN_MAGNITUDE_ROUNDED_TO_NORMAL: Final = 2.0**-126 - 2.0**-151

#: Bits of a float64 significand beyond those of float32.
_BITS_BEYOND_FLOAT32: Final = (1 << 29) - 1

_PAIR_C: Final = """\
/* Two numbers of 16 bits as the bits of one of 32 bits. */
__attribute__((__unused__)) $inline int32_t aotc_NAME(aotc_uint16x2 pair) {
  int32_t word;
  __builtin_memcpy(&word, &pair, sizeof word);
  return word;
}
"""
_DOT_C: Final = """\
/* Adds two products of bfloat16 to each number. */
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


_BFDOT_VARIANTS: Final = (
    CVariant('  __asm__("bfdot %0.4s, %1.8h, %2.8h" : "+w"(acc) : "w"(y), "w"(x));\n', requires=("bf16",)),
    CVariant("""\
  for (int k = 0; k < LANES; ++k) {
    /* the float32 numbers of a sum and four factors; subnormal ones become zeros */
    const uint32_t words[5] = {
        ((union { float number; uint32_t bits; }){acc[k]}).bits,
        (uint32_t)y[k] << 16, (uint32_t)x[2 * k] << 16,
        (uint32_t)y[k] & 0xffff0000u, (uint32_t)x[2 * k + 1] << 16,
    };
    double f[5];
    for (int i = 0; i < 5; ++i) {
      const uint32_t kept = words[i] & 0x7f800000u ? 0xffffffffu : 0x80000000u;
      f[i] = (double)((union { uint32_t bits; float number; }){words[i] & kept}).number;
    }
    /* the sum, two products, their sum, and the whole sum; all but the first are rounded to odd */
    double v[5] = {f[0], f[1] * f[2], f[3] * f[4], 0, 0};
    for (int i = 0; i < 4; ++i) {
      const double a = v[i < 2 ? i + 1 : 3 - i], b = i < 2 ? -0.0 : v[i], sum = a + b, part = sum - a;
      const double error = (a - (sum - part)) + (b - part);
      union { double number; int64_t bits; } odd = {sum};
      if (sum - sum == 0) {
        odd.bits -= error != 0 && (error > 0) != (sum > 0);
        odd.bits = (odd.bits & ~0x1fffffffLL) | (int64_t)(error != 0 || (odd.bits & 0x1fffffffLL)) << 29;
        const double size = odd.number < 0 ? -odd.number : odd.number;
        odd.number *= size < 0x1p-126 ? 0.0 : size < 0x1p128 ? 1.0 : 0x1p1000;
      }
      v[i + 1] = odd.number;
    }
    acc[k] = (float)v[4];
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


def _round_to_odd_float32(exact: Any, is_inexact: Any) -> Any:
    """Round float64 numbers to odd float32 numbers, as float64: truncate them, and set the last bit if
    bits were lost; numbers below 2^-126 become zeros of their sign.

    is_inexact   True where `exact` is itself rounded to odd, with bits lost
    """
    bits = exact.view(np.int64)
    is_lost = is_inexact | (bits & _BITS_BEYOND_FLOAT32 != 0)
    odd = ((bits & ~_BITS_BEYOND_FLOAT32) | (is_lost * (_BITS_BEYOND_FLOAT32 + 1))).view(np.float64)
    odd = np.where(np.isfinite(exact), odd, exact)
    odd = np.where(np.abs(odd) >= 2.0**128, np.copysign(np.inf, odd), odd)
    return np.where(np.abs(odd) < 2.0**-126, np.copysign(0.0, odd), odd)


def _sum_rounded_to_odd_float32(a: Any, b: Any) -> Any:
    """Return the sums of float32 numbers, given and returned as float64, rounded to odd float32."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    is_inexact = np.isfinite(total) & (error != 0)
    is_rounded_away = is_inexact & ((error > 0) != (total > 0))
    return _round_to_odd_float32((bits - is_rounded_away).view(np.float64), is_inexact)


def bfdot_numpy_reference(acc: Any, words: Any, values: Any) -> Any:
    """Compute the sums of two bfloat16 products in numpy: the reference semantics of BFDOT."""
    left = np.ascontiguousarray(words).view(np.uint16).reshape(-1, BFLOAT16_PER_DOT)
    right = np.ascontiguousarray(values).reshape(-1, BFLOAT16_PER_DOT)
    x, y = ((bits.astype(np.uint32) << np.uint32(16)).view(np.float32) for bits in (left, right))
    with np.errstate(all="ignore"):
        x, y, total = (_flush_subnormal_float32(v).astype(np.float64) for v in (x, y, acc))
        products = _round_to_odd_float32(x * y, np.zeros(x.shape, np.bool_))
        pair = _sum_rounded_to_odd_float32(products[:, 0].copy(), products[:, 1].copy())
        return _sum_rounded_to_odd_float32(total, pair).astype(np.float32)


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
    yield define_c_vector_instruction(
        BFDOT_INSTRUCTION,
        ("float32x4", "int32x4", "uint16x8"),
        "",
        bfdot_numpy_reference,
        _DOT_C,
        variants=_BFDOT_VARIANTS,
        LANES=4,
        PAIRED=8,
    )
