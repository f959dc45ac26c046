# SPDX-License-Identifier: Apache-2.0
"""Inverse trigonometric and hyperbolic functions and the cube root of float64.

Signs are copied last: for vectors of 64 bytes, clang 19 miscompiles a select between x and a number
with the sign of x. Results are computed as pairs (`aotc.tir.functions.double_double`) and rounded
once.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, call, select
from aotc.tir.functions.double_double import (
    bits,
    chosen,
    negative,
    number,
    plus,
    quotient,
    root,
    square,
    times,
    two_sum,
)
from aotc.tir.functions.double_float32 import Pair, horner, summed
from aotc.tir.functions.float64_functions import (
    INFINITY,
    LARGEST,
    LN2_HIGH,
    LN2_LOW,
    NAN,
    PI,
    clamped,
    natural,
    split,
    twice_area_tangent,
)

#: Bound below which functions with odd Taylor series equal their argument.
_SMALL: Final = 2.0**-28


def _pair(x: Expr) -> Pair:
    return x, as_expr(0.0, x)


def _angle(y: Pair, x: Pair) -> Pair:
    """Return the angle of the point (x, y) with nonnegative coordinates, as a pair.

    With v the smaller coordinate divided by the larger one: atan(v) = atan(c) + atan((v - c) / (1 +
    c v)), where c is 0, 1/2 or 1.
    """
    steep = y[0] > x[0]
    a, b = chosen(steep, x, y), chosen(steep, y, x)
    v = a[0] / b[0]
    low, middle = v < 0.25, v < 0.7
    c = select(low, as_expr(0.0, v), select(middle, as_expr(0.5, v), 1.0))
    n = plus(a, (-(c * b[0]), -(c * b[1])))
    t, rest = quotient(n, plus(b, (c * a[0], c * a[1])))
    z = t * t
    p = horner(z, "0.034399491042145534 -0.050684248854245495 0.05865695346997432 -0.06665776216662413"
                  " 0.07692277204799888 -0.09090908427582096 0.1111111110229893 -0.14285714285648668"
                  " 0.1999999999999977 -0.3333333333333333")  # fmt: skip
    angles = ((0.0, 0.0), (0.4636476090008061, 2.2698777452961687e-17), (PI[0] / 4, PI[1] / 4))
    base = [
        select(low, as_expr(one, v), select(middle, as_expr(two, v), three))
        for one, two, three in zip(*angles, strict=True)
    ]
    r = plus((base[0], base[1]), summed(t, rest + (t * z) * p))
    return chosen(steep, plus(negative(r), (PI[0] / 2, PI[1] / 2)), r)


def _turned(condition: Expr, r: Pair) -> Expr:
    """Return pi - r if a condition holds, else r, rounded to one float64."""
    head, tail = chosen(condition, plus(negative(r), PI), r)
    return head + tail


def atan(x: Expr) -> Expr:
    a = call("abs", x)
    head, tail = _angle(_pair(clamped(a, 0.0, 2.0**70)), _pair(as_expr(1.0, x)))
    return call("copysign", select(a < _SMALL, a, head + tail), x)


def atan2(y: Expr, x: Expr) -> Expr:
    # both are scaled to a range in which sums are finite and products are exact
    ay, ax = call("abs", y), call("abs", x)
    infinite = (ay > LARGEST) | (ax > LARGEST)
    one = as_expr(1.0, x)
    py, px = (select(infinite, select(c > LARGEST, one, 0.0), c) for c in (ay, ax))
    most = select(py > px, py, px)
    scale = select(most > 2.0**900, as_expr(2.0**-60, x), select(most < 2.0**-700, as_expr(2.0**300, x), 1.0))
    q = py / px
    px = select(most.equal(0.0), one, px * scale)
    left = (bits(x) >> 63).not_equal(0)
    value = _turned(left, _angle(_pair(py * scale), _pair(px)))
    value = select((q < _SMALL) & (left.equal(False)), q, value)
    return select(x.equal(x) & y.equal(y), call("copysign", value, y), NAN)


def _leg(a: Expr) -> Pair:
    """Return sqrt(1 - a^2) as a sum of two floats; NaN for a > 1."""
    return root(times(two_sum(as_expr(1.0, a), a), two_sum(as_expr(1.0, a), -a)))


def asin(x: Expr) -> Expr:
    a = call("abs", x)
    head, tail = _angle(_pair(a), _leg(a))
    return call("copysign", select(a < _SMALL, a, head + tail), x)


def acos(x: Expr) -> Expr:
    a = call("abs", x)
    return _turned(x < 0.0, _angle(_leg(a), _pair(a)))


def asinh(x: Expr) -> Expr:
    # log(a + sqrt(a^2 + 1)), or log(2 a)
    a = call("abs", x)
    large = a > 2.0**60
    short = select(large, as_expr(1.0, x), a)
    sum_ = plus(root(plus(square(short), (1.0, 0.0))), _pair(short))
    head, tail = natural(*chosen(large, _pair(a), sum_), select(large, as_expr(1.0, x), 0.0))
    value = select(a < _SMALL, a, head + tail)
    return call("copysign", select(a <= LARGEST, value, a), x)


def acosh(x: Expr) -> Expr:
    # log(x + sqrt((x - 1) (x + 1))), or log(2 x)
    large = x > 2.0**60
    short = clamped(x, 1.0, 2.0**60)
    sum_ = plus(_pair(short), root(times(two_sum(short, -1.0), two_sum(short, 1.0))))
    head, tail = natural(*chosen(large, _pair(x), sum_), select(large, as_expr(1.0, x), 0.0))
    return select(x >= 1.0, select(x > LARGEST, x, head + tail), NAN)


def atanh(x: Expr) -> Expr:
    # log((1 + a) / (1 - a)) / 2; the quotient is reduced to a range from sqrt(1/2) to sqrt(2)
    # times 2^e
    size = call("abs", x)
    a = clamped(size, 0.0, 1.0 - 2.0**-53)
    above, below = two_sum(as_expr(1.0, x), a), two_sum(as_expr(1.0, x), -a)
    _, e = split(above[0] / below[0])
    scale = -number(bits(e + (2.0**52 + 1023)) << 52)
    less = below[0] * scale, below[1] * scale
    w = twice_area_tangent(quotient(plus(above, less), plus(above, negative(less))))
    head, tail = plus((e * LN2_HIGH, e * LN2_LOW), w)
    value = select(a < _SMALL, a, (head + tail) * 0.5)
    value = select(size < 1.0, value, select(size.equal(1.0), INFINITY, NAN))
    return call("copysign", value, x)


def cbrt(x: Expr) -> Expr:
    # a third of the exponent, a polynomial with 26 correct bits, and one Halley iteration, as in
    # FreeBSD's library
    size = call("abs", x)
    tiny = size < 2.2250738585072014e-308
    a = select(tiny, size * 2.0**54, size)
    third = ((bits(a) >> 32) * 0xAAAAAAAB) >> 33
    t = number((third + 715094163) << 32)
    p = horner((t * t) * (t / a), "-0.12111166624152629 0.7518498937517875 -1.969190776675169 2.8298001502463284"
                                  " -2.487202355844976 1.9958547639864892")  # fmt: skip
    t = number((bits(t * p) + 0x4000000) & 0xFFFFFFFFF8000000)
    s = a / (t * t)
    t = t + t * ((s - t) / (t + t + s))
    value = t * select(tiny, as_expr(2.0**-18, x), 1.0)
    return call("copysign", select((size > 0.0) & (size <= LARGEST), value, size), x)
