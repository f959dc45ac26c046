# SPDX-License-Identifier: Apache-2.0
"""Double-double arithmetic: numbers of about 106 bits as unevaluated sums of two float64.

The second number is at most half a unit in the last place of the first. Sums follow Knuth and
Dekker, products Dekker (1971): operands are split after their upper 26 bits, so that products of
the halves are exact and the result does not change if a product and a sum are contracted to a fused
multiply-add.

    p, e = product(x, y)        # x * y is p + e, p being rounded
"""

from __future__ import annotations

import struct
from typing import Final

from aotc.tir.expr import Const, Expr, as_expr, bitcast, call, select
from aotc.tir.functions.double_float32 import Pair, summed

#: 1.5 * 2^52: the low bits of its sum with a number are the number rounded to an integer.
SHIFTER: Final = 6755399441055744.0
SHIFTER_BITS: Final = 0x4338000000000000
#: Bits of 2^52: combined with a smaller integer in the low bits, they represent 2^52 plus the
#: integer.
UNIT_BITS: Final = 0x4330000000000000
_UPPER: Final = 0xFFFFFFFFF8000000


def bits(x: Expr) -> Expr:
    return bitcast(x, "uint64")


def number(u: Expr) -> Expr:
    return bitcast(u, "float64")


def two_sum(a: Expr, b: Expr | float) -> Pair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for operands of any magnitude."""
    second = as_expr(b, a)
    s = a + second
    v = s - a
    return s, (a - (s - v)) + (second - v)


def halves(x: Expr) -> Pair:
    """Split a float64 x into a pair: the number formed by its upper 26 bits, and the remainder."""
    if isinstance(x, Const):
        (whole,) = struct.unpack("<Q", struct.pack("<d", x.value))
        (high,) = struct.unpack("<d", struct.pack("<Q", whole & _UPPER))
        return as_expr(high, x), as_expr(x.value - high, x)
    upper = number(bits(x) & _UPPER)
    return upper, x - upper


def product(a: Expr, b: Expr | float) -> Pair:
    """Return a * b exactly as a pair (rounded product, rounding error)."""
    second = as_expr(b, a)
    p = a * second
    (ah, al), (bh, bl) = halves(a), halves(second)
    return p, (((ah * bh - p) + ah * bl) + al * bh) + al * bl


def square(a: Expr) -> Pair:
    p = a * a
    head, tail = halves(a)
    return p, ((head * head - p) + (head + head) * tail) + tail * tail


def times(a: Pair, b: Pair | tuple[float, float]) -> Pair:
    """Return the product of two double-double numbers (pairs of float64); `b` may be a pair of
    Python floats.
    """
    p, e = product(a[0], b[0])
    return summed(p, e + (a[0] * b[1] + a[1] * b[0]))


def plus(a: Pair, b: Pair | tuple[float, float]) -> Pair:
    """Return the sum of two double-double numbers (pairs of float64); `b` may be a pair of Python
    floats.
    """
    s, e = two_sum(a[0], b[0])
    return summed(s, e + (a[1] + b[1]))


def quotient(a: Pair, b: Pair) -> Pair:
    """Return the quotient a / b of two double-double numbers (pairs of float64)."""
    q = a[0] / b[0]
    p, e = product(q, b[0])
    return summed(q, (((a[0] - p) - e) + (a[1] - q * b[1])) / b[0])


def root(a: Pair) -> Pair:
    """Return the square root of a nonnegative double-double number (pair of float64)."""
    r = call("sqrt", a[0])
    p, e = square(r)
    return r, (((a[0] - p) - e) + a[1]) / select(r.equal(0.0), as_expr(1.0, r), r + r)


def negative(a: Pair) -> Pair:
    return -a[0], -a[1]


def chosen(condition: Expr, a: Pair, b: Pair) -> Pair:
    return select(condition, a[0], b[0]), select(condition, a[1], b[1])
