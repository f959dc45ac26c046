# SPDX-License-Identifier: Apache-2.0
"""Double-double arithmetic: numbers of about 106 bits as unevaluated sums of two float64.

The second number is at most half a unit in the last place of the first. Sums follow Knuth and
Dekker, products Dekker (1971): operands are split after their upper 26 bits, so that products of
the halves are exact and the result does not change if a product and a sum are contracted to a fused
multiply-add.

    p, e = exact_product(x, y)  # x * y is p + e, p being rounded
"""

from __future__ import annotations

import struct
from typing import Final

from aotc.tir.expr import Const, Expr, as_expr, bitcast, call, select
from aotc.tir.functions.double_float32 import FloatPair, fast_two_sum

#: 1.5 * 2^52: the low bits of its sum with a number are the number rounded to an integer.
ROUND_TO_INTEGER_SHIFTER: Final = 6755399441055744.0
ROUND_TO_INTEGER_SHIFTER_BITS: Final = 0x4338000000000000
#: Bits of 2^52: combined with a smaller integer in the low bits, they represent 2^52 plus the
#: integer.
TWO_POW_52_BITS: Final = 0x4330000000000000
_UPPER_26_BITS_MASK: Final = 0xFFFFFFFFF8000000


def float64_to_bits(x: Expr) -> Expr:
    return bitcast(x, "uint64")


def bits_to_float64(u: Expr) -> Expr:
    return bitcast(u, "float64")


def two_sum(a: Expr, b: Expr | float) -> FloatPair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for operands of any magnitude."""
    second = as_expr(b, a)
    s = a + second
    v = s - a
    return s, (a - (s - v)) + (second - v)


def split_float64_at_26_significant_bits(x: Expr) -> FloatPair:
    """Split a float64 x into a pair: the number formed by its upper 26 bits, and the remainder."""
    if isinstance(x, Const):
        (whole,) = struct.unpack("<Q", struct.pack("<d", x.value))
        (high,) = struct.unpack("<d", struct.pack("<Q", whole & _UPPER_26_BITS_MASK))
        return as_expr(high, x), as_expr(x.value - high, x)
    upper = bits_to_float64(float64_to_bits(x) & _UPPER_26_BITS_MASK)
    return upper, x - upper


def exact_product(a: Expr, b: Expr | float) -> FloatPair:
    """Return a * b exactly as a pair (rounded product, rounding error)."""
    second = as_expr(b, a)
    p = a * second
    (ah, al), (bh, bl) = split_float64_at_26_significant_bits(a), split_float64_at_26_significant_bits(second)
    return p, (((ah * bh - p) + ah * bl) + al * bh) + al * bl


def exact_square(a: Expr) -> FloatPair:
    p = a * a
    head, tail = split_float64_at_26_significant_bits(a)
    return p, ((head * head - p) + (head + head) * tail) + tail * tail


def multiply_double_doubles(a: FloatPair, b: FloatPair | tuple[float, float]) -> FloatPair:
    """Return the product of two double-double numbers (pairs of float64); `b` may be a pair of
    Python floats.
    """
    p, e = exact_product(a[0], b[0])
    return fast_two_sum(p, e + (a[0] * b[1] + a[1] * b[0]))


def add_double_doubles(a: FloatPair, b: FloatPair | tuple[float, float]) -> FloatPair:
    """Return the sum of two double-double numbers (pairs of float64); `b` may be a pair of Python
    floats.
    """
    s, e = two_sum(a[0], b[0])
    return fast_two_sum(s, e + (a[1] + b[1]))


def divide_double_doubles(a: FloatPair, b: FloatPair) -> FloatPair:
    """Return the quotient a / b of two double-double numbers (pairs of float64)."""
    q = a[0] / b[0]
    p, e = exact_product(q, b[0])
    return fast_two_sum(q, (((a[0] - p) - e) + (a[1] - q * b[1])) / b[0])


def sqrt_double_double(a: FloatPair) -> FloatPair:
    """Return the square root of a nonnegative double-double number (pair of float64)."""
    r = call("sqrt", a[0])
    p, e = exact_square(r)
    return r, (((a[0] - p) - e) + a[1]) / select(r.equal(0.0), as_expr(1.0, r), r + r)


def negate_double_double(a: FloatPair) -> FloatPair:
    return -a[0], -a[1]


def select_double_double(condition: Expr, a: FloatPair, b: FloatPair) -> FloatPair:
    return select(condition, a[0], b[0]), select(condition, a[1], b[1])
