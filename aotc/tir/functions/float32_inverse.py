# SPDX-License-Identifier: Apache-2.0
"""Inverse trigonometric functions and the cube root of float32.

A result is a constant plus two parts, the first of which is exact, so that only the last sum is
rounded.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, call, maximum, minimum, select
from aotc.tir.functions.double_float32 import LARGEST, SIGN, Pair, bits, head, horner, number, product, summed

#: pi/2 rounded to float32, and the rounding error.
QUARTER: Final = 1.57079637
MISSING: Final = -4.37113883e-8


def _turned(quarters: Expr, value: Expr, rest: Expr, sign: Expr) -> Expr:
    """Return quarters * pi/2 + value + rest, or quarters * pi/2 - value - rest; `sign` is the sign
    bit of the parts.
    """
    high, low = summed(quarters * QUARTER, number(bits(value) ^ sign))
    return high + (low + (quarters * MISSING + number(bits(rest) ^ sign)))


def _arc(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (far, value, rest): asin(|x|) is value + rest, or pi/2 minus this sum if `far`.

    For |x| > 1/2 (`far`), the sum is 2 asin(sqrt((1 - |x|) / 2)).
    """
    a = call("abs", x)
    far = a > 0.5
    z = select(far, (as_expr(1.0, a) - a) * 0.5, a * a)
    p = z * horner(z, "3.7696462e-2 1.4314964e-2 3.1839084e-2 4.4513375e-2 7.5005218e-2 1.666666e-1")
    root = call("sqrt", z)
    first = head(root)
    rest = (z - first * first) / maximum(root + first, 1e-30) + root * p
    return far, select(far, first + first, a), select(far, rest + rest, a * p)


def asin(x: Expr) -> Expr:
    far, value, rest = _arc(x)
    quarters = select(far, as_expr(1.0, x), 0.0)
    return call("copysign", _turned(quarters, value, rest, select(far, as_expr(SIGN, bits(x)), 0)), x)


def acos(x: Expr) -> Expr:
    far, value, rest = _arc(x)
    sign = bits(x) & SIGN
    quarters = select(far, select(x < 0.0, as_expr(2.0, x), 0.0), 1.0)
    return _turned(quarters, value, rest, select(far, sign, sign ^ SIGN))


def _quotient(n: Expr, d: Expr, scale: Expr) -> Pair:
    """Return (q, rest) such that atan(n / d) is q + rest, for 0 <= n <= d.

    `scale` brings d into a range in which products do not lose digits by underflow.
    """
    q, below = n / d, d * scale
    p, error = product(q, below)
    lost = select(q > 1e-4, ((n * scale - p) - error) / below, 0.0)
    s = q * q
    p = horner(s, "1.1345221e-3 -7.4253632e-3 2.2777617e-2 -4.4983257e-2 6.763649e-2 -8.8214621e-2 1.1061233e-1"
                  " -1.4280343e-1 1.9999716e-1 -3.3333328e-1")  # fmt: skip
    return q, (q * s) * p + lost * (s * -0.5 + 1.0)


def atan(x: Expr) -> Expr:
    a = call("abs", x)
    far = a > 1.0
    value, rest = _quotient(minimum(a, 1.0), select(far, minimum(a, 1e20), 1.0), as_expr(1.0, x))
    quarters = select(far, as_expr(1.0, x), 0.0)
    return call("copysign", _turned(quarters, value, rest, select(far, as_expr(SIGN, bits(x)), 0)), x)


def atan2(y: Expr, x: Expr) -> Expr:
    a, b = call("abs", y), call("abs", x)
    n, d = minimum(a, b), maximum(a, b)
    infinite = d > LARGEST
    n = select(infinite, select(n > LARGEST, as_expr(1.0, x), 0.0), n)
    d = select(infinite | n.equal(0.0), 1.0, d)
    value, rest = _quotient(n, d, select(d < 1.0, as_expr(2.0**96, x), 1.0))
    steep, behind = a > b, bits(x) & SIGN
    quarters = select(steep, as_expr(1.0, x), select(behind.equal(0), as_expr(0.0, x), 2.0))
    sign = select(steep, behind ^ SIGN, behind)
    return call("copysign", _turned(quarters, value, rest, sign), y)


def cbrt(x: Expr) -> Expr:
    # t has 8 bits and approximates the root of m < 8: t^3 and the difference r = m - t^3 are
    # exact, and m = t^3 (1 + r / t^3)
    a = call("abs", x)
    tiny = a < 1.17549435e-38
    u = bits(select(tiny, a * 16777216.0, a))
    e = (u >> 23) + 2
    third = (e * 171) >> 9
    over = e - third * 3
    fraction = u & 0x007FFFFF
    guess = horner(number(fraction | 0x3F800000), "2.3104927e-2 -1.629695e-1 5.8711404e-1 5.5282354e-1")
    guess = guess * select(over.equal(0), 1.0, select(over.equal(1), as_expr(1.25992105, x), 1.58740105))
    t = number((bits(guess) + 0x8000) & 0xFFFF0000)
    cube = (t * t) * t
    d = (number(fraction | ((over + 127) << 23)) - cube) / cube
    root = (t * d) * horner(d, "6.1728396e-2 -1.1111111e-1 3.3333334e-1") + t
    root = root * number((third + 84) << 23) * select(tiny, as_expr(0.00390625, x), 1.0)
    return call("copysign", select(a.equal(0.0) | ~(a <= LARGEST), a, root), x)
