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
    add_double_doubles,
    bits_to_float64,
    divide_double_doubles,
    exact_square,
    float64_to_bits,
    multiply_double_doubles,
    negate_double_double,
    select_double_double,
    sqrt_double_double,
    two_sum,
)
from aotc.tir.functions.double_float32 import FloatPair, evaluate_polynomial_by_horner, fast_two_sum
from aotc.tir.functions.float64_functions import (
    INFINITY,
    LN2_HIGH,
    LN2_LOW,
    MAX_FLOAT64,
    NAN,
    PI_PAIR,
    clamp_keeping_nan,
    log_as_pair,
    split_mantissa_and_exponent,
    twice_atanh,
)

#: Bound below which functions with odd Taylor series equal their argument.
_MAX_LINEAR_ARGUMENT: Final = 2.0**-28


def _pair_with_zero_tail(x: Expr) -> FloatPair:
    return x, as_expr(0.0, x)


def _angle_of_first_quadrant_point(y: FloatPair, x: FloatPair) -> FloatPair:
    """Return the angle of the point (x, y) with nonnegative coordinates, as a pair.

    With v the smaller coordinate divided by the larger one: atan(v) = atan(c) + atan((v - c) / (1 +
    c v)), where c is 0, 1/2 or 1.
    """
    steep = y[0] > x[0]
    a, b = select_double_double(steep, x, y), select_double_double(steep, y, x)
    v = a[0] / b[0]
    low, middle = v < 0.25, v < 0.7
    c = select(low, as_expr(0.0, v), select(middle, as_expr(0.5, v), 1.0))
    n = add_double_doubles(a, (-(c * b[0]), -(c * b[1])))
    t, rest = divide_double_doubles(n, add_double_doubles(b, (c * a[0], c * a[1])))
    z = t * t
    p = evaluate_polynomial_by_horner(z, "0.034399491042145534 -0.050684248854245495 "
"0.05865695346997432 -0.06665776216662413"
                  " 0.07692277204799888 -0.09090908427582096 0.1111111110229893 -0.14285714285648668"
                  " 0.1999999999999977 -0.3333333333333333")  # fmt: skip
    angles = ((0.0, 0.0), (0.4636476090008061, 2.2698777452961687e-17), (PI_PAIR[0] / 4, PI_PAIR[1] / 4))
    base = [
        select(low, as_expr(low_angle, v), select(middle, as_expr(two, v), three))
        for low_angle, two, three in zip(*angles, strict=True)
    ]
    r = add_double_doubles((base[0], base[1]), fast_two_sum(t, rest + (t * z) * p))
    return select_double_double(steep, add_double_doubles(negate_double_double(r), (PI_PAIR[0] / 2, PI_PAIR[1] / 2)), r)


def _pi_minus_angle_if(condition: Expr, angle: FloatPair) -> Expr:
    """Return pi - r if a condition holds, else r, rounded to one float64."""
    head, tail = select_double_double(condition, add_double_doubles(negate_double_double(angle), PI_PAIR), angle)
    return head + tail


def atan(x: Expr) -> Expr:
    a = call("abs", x)
    head, tail = _angle_of_first_quadrant_point(
        _pair_with_zero_tail(clamp_keeping_nan(a, 0.0, 2.0**70)), _pair_with_zero_tail(as_expr(1.0, x))
    )
    return call("copysign", select(a < _MAX_LINEAR_ARGUMENT, a, head + tail), x)


def atan2(y: Expr, x: Expr) -> Expr:
    # both are scaled to a range in which sums are finite and products are exact
    ay, ax = call("abs", y), call("abs", x)
    infinite = (ay > MAX_FLOAT64) | (ax > MAX_FLOAT64)
    unit = as_expr(1.0, x)
    py, px = (select(infinite, select(c > MAX_FLOAT64, unit, 0.0), c) for c in (ay, ax))
    most = select(py > px, py, px)
    scale = select(most > 2.0**900, as_expr(2.0**-60, x), select(most < 2.0**-700, as_expr(2.0**300, x), 1.0))
    q = py / px
    px = select(most.equal(0.0), unit, px * scale)
    left = (float64_to_bits(x) >> 63).not_equal(0)
    value = _pi_minus_angle_if(
        left, _angle_of_first_quadrant_point(_pair_with_zero_tail(py * scale), _pair_with_zero_tail(px))
    )
    value = select((q < _MAX_LINEAR_ARGUMENT) & (left.equal(False)), q, value)
    return select(x.equal(x) & y.equal(y), call("copysign", value, y), NAN)


def _sqrt_of_1_minus_square(a: Expr) -> FloatPair:
    """Return sqrt(1 - a^2) as a sum of two floats; NaN for a > 1."""
    return sqrt_double_double(multiply_double_doubles(two_sum(as_expr(1.0, a), a), two_sum(as_expr(1.0, a), -a)))


def asin(x: Expr) -> Expr:
    a = call("abs", x)
    head, tail = _angle_of_first_quadrant_point(_pair_with_zero_tail(a), _sqrt_of_1_minus_square(a))
    return call("copysign", select(a < _MAX_LINEAR_ARGUMENT, a, head + tail), x)


def acos(x: Expr) -> Expr:
    a = call("abs", x)
    return _pi_minus_angle_if(
        x < 0.0, _angle_of_first_quadrant_point(_sqrt_of_1_minus_square(a), _pair_with_zero_tail(a))
    )


def asinh(x: Expr) -> Expr:
    # log(a + sqrt(a^2 + 1)), or log(2 a)
    a = call("abs", x)
    large = a > 2.0**60
    short = select(large, as_expr(1.0, x), a)
    sum_ = add_double_doubles(
        sqrt_double_double(add_double_doubles(exact_square(short), (1.0, 0.0))), _pair_with_zero_tail(short)
    )
    head, tail = log_as_pair(
        *select_double_double(large, _pair_with_zero_tail(a), sum_), select(large, as_expr(1.0, x), 0.0)
    )
    value = select(a < _MAX_LINEAR_ARGUMENT, a, head + tail)
    return call("copysign", select(a <= MAX_FLOAT64, value, a), x)


def acosh(x: Expr) -> Expr:
    # log(x + sqrt((x - 1) (x + 1))), or log(2 x)
    large = x > 2.0**60
    short = clamp_keeping_nan(x, 1.0, 2.0**60)
    sum_ = add_double_doubles(
        _pair_with_zero_tail(short),
        sqrt_double_double(multiply_double_doubles(two_sum(short, -1.0), two_sum(short, 1.0))),
    )
    head, tail = log_as_pair(
        *select_double_double(large, _pair_with_zero_tail(x), sum_), select(large, as_expr(1.0, x), 0.0)
    )
    return select(x >= 1.0, select(x > MAX_FLOAT64, x, head + tail), NAN)


def atanh(x: Expr) -> Expr:
    # log((1 + a) / (1 - a)) / 2; the quotient is reduced to a range from sqrt(1/2) to sqrt(2)
    # times 2^e
    size = call("abs", x)
    a = clamp_keeping_nan(size, 0.0, 1.0 - 2.0**-53)
    above, below = two_sum(as_expr(1.0, x), a), two_sum(as_expr(1.0, x), -a)
    _, e = split_mantissa_and_exponent(above[0] / below[0])
    scale = -bits_to_float64(float64_to_bits(e + (2.0**52 + 1023)) << 52)
    less = below[0] * scale, below[1] * scale
    w = twice_atanh(
        divide_double_doubles(add_double_doubles(above, less), add_double_doubles(above, negate_double_double(less)))
    )
    head, tail = add_double_doubles((e * LN2_HIGH, e * LN2_LOW), w)
    value = select(a < _MAX_LINEAR_ARGUMENT, a, (head + tail) * 0.5)
    value = select(size < 1.0, value, select(size.equal(1.0), INFINITY, NAN))
    return call("copysign", value, x)


def cbrt(x: Expr) -> Expr:
    # a third of the exponent, a polynomial with 26 correct bits, and one Halley iteration, as in
    # FreeBSD's library
    size = call("abs", x)
    tiny = size < 2.2250738585072014e-308
    a = select(tiny, size * 2.0**54, size)
    third = ((float64_to_bits(a) >> 32) * 0xAAAAAAAB) >> 33
    t = bits_to_float64((third + 715094163) << 32)
    p = evaluate_polynomial_by_horner((t * t) * (t / a), "-0.12111166624152629 0.7518498937517875 "
"-1.969190776675169 2.8298001502463284"
                                  " -2.487202355844976 1.9958547639864892")  # fmt: skip
    t = bits_to_float64((float64_to_bits(t * p) + 0x4000000) & 0xFFFFFFFFF8000000)
    s = a / (t * t)
    t = t + t * ((s - t) / (t + t + s))
    value = t * select(tiny, as_expr(2.0**-18, x), 1.0)
    return call("copysign", select((size > 0.0) & (size <= MAX_FLOAT64), value, size), x)
