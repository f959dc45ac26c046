# SPDX-License-Identifier: Apache-2.0
"""Inverse trigonometric functions and the cube root of float32.

A result is a constant plus two parts, the first of which is exact, so that only the last sum is
rounded.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, call, maximum, minimum, select
from aotc.tir.functions.double_float32 import (
    FLOAT32_SIGN_BIT,
    MAX_FLOAT32,
    FloatPair,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    exact_float32_product,
    fast_two_sum,
    float32_to_bits,
    truncate_float32_to_12_mantissa_bits,
)

#: pi/2 rounded to float32, and the rounding error.
HALF_PI: Final = 1.57079637
HALF_PI_ROUNDING_ERROR: Final = -4.37113883e-8


def _add_multiple_of_half_pi(quarters: Expr, value: Expr, rest: Expr, sign: Expr) -> Expr:
    """Return quarters * pi/2 + value + rest, or quarters * pi/2 - value - rest; `sign` is the sign
    bit of the parts.
    """
    high, low = fast_two_sum(quarters * HALF_PI, bits_to_float32(float32_to_bits(value) ^ sign))
    return high + (low + (quarters * HALF_PI_ROUNDING_ERROR + bits_to_float32(float32_to_bits(rest) ^ sign)))


def _asin_of_magnitude_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (far, value, rest): asin(|x|) is value + rest, or pi/2 minus this sum if `far`.

    For |x| > 1/2 (`far`), the sum is 2 asin(sqrt((1 - |x|) / 2)).
    """
    a = call("abs", x)
    far = a > 0.5
    z = select(far, (as_expr(1.0, a) - a) * 0.5, a * a)
    p = z * evaluate_polynomial_by_horner(
        z, "3.7696462e-2 1.4314964e-2 3.1839084e-2 4.4513375e-2 7.5005218e-2 1.666666e-1"
    )
    root = call("sqrt", z)
    first = truncate_float32_to_12_mantissa_bits(root)
    rest = (z - first * first) / maximum(root + first, 1e-30) + root * p
    return far, select(far, first + first, a), select(far, rest + rest, a * p)


def asin(x: Expr) -> Expr:
    far, value, rest = _asin_of_magnitude_parts(x)
    quarters = select(far, as_expr(1.0, x), 0.0)
    return call(
        "copysign",
        _add_multiple_of_half_pi(quarters, value, rest, select(far, as_expr(FLOAT32_SIGN_BIT, float32_to_bits(x)), 0)),
        x,
    )


def acos(x: Expr) -> Expr:
    far, value, rest = _asin_of_magnitude_parts(x)
    sign = float32_to_bits(x) & FLOAT32_SIGN_BIT
    quarters = select(far, select(x < 0.0, as_expr(2.0, x), 0.0), 1.0)
    return _add_multiple_of_half_pi(quarters, value, rest, select(far, sign, sign ^ FLOAT32_SIGN_BIT))


def _atan_of_quotient(n: Expr, d: Expr, scale: Expr) -> FloatPair:
    """Return (q, rest) such that atan(n / d) is q + rest, for 0 <= n <= d.

    `scale` brings d into a range in which products do not lose digits by underflow.
    """
    q, below = n / d, d * scale
    p, error = exact_float32_product(q, below)
    q_low = select(q > 1e-4, ((n * scale - p) - error) / below, 0.0)
    s = q * q
    p = evaluate_polynomial_by_horner(s, "1.1345221e-3 -7.4253632e-3 2.2777617e-2 -4.4983257e-2 "
"6.763649e-2 -8.8214621e-2 1.1061233e-1"
                  " -1.4280343e-1 1.9999716e-1 -3.3333328e-1")  # fmt: skip
    return q, (q * s) * p + q_low * (s * -0.5 + 1.0)


def atan(x: Expr) -> Expr:
    a = call("abs", x)
    far = a > 1.0
    value, rest = _atan_of_quotient(minimum(a, 1.0), select(far, minimum(a, 1e20), 1.0), as_expr(1.0, x))
    quarters = select(far, as_expr(1.0, x), 0.0)
    return call(
        "copysign",
        _add_multiple_of_half_pi(quarters, value, rest, select(far, as_expr(FLOAT32_SIGN_BIT, float32_to_bits(x)), 0)),
        x,
    )


def atan2(y: Expr, x: Expr) -> Expr:
    a, b = call("abs", y), call("abs", x)
    n, d = minimum(a, b), maximum(a, b)
    infinite = d > MAX_FLOAT32
    n = select(infinite, select(n > MAX_FLOAT32, as_expr(1.0, x), 0.0), n)
    d = select(infinite | n.equal(0.0), 1.0, d)
    value, rest = _atan_of_quotient(n, d, select(d < 1.0, as_expr(2.0**96, x), 1.0))
    steep, x_sign = a > b, float32_to_bits(x) & FLOAT32_SIGN_BIT
    quarters = select(steep, as_expr(1.0, x), select(x_sign.equal(0), as_expr(0.0, x), 2.0))
    sign = select(steep, x_sign ^ FLOAT32_SIGN_BIT, x_sign)
    return call("copysign", _add_multiple_of_half_pi(quarters, value, rest, sign), y)


def cbrt(x: Expr) -> Expr:
    # t has 8 bits and approximates the root of m < 8: t^3 and the difference r = m - t^3 are
    # exact, and m = t^3 (1 + r / t^3)
    a = call("abs", x)
    tiny = a < 1.17549435e-38
    u = float32_to_bits(select(tiny, a * 16777216.0, a))
    e = (u >> 23) + 2
    third = (e * 171) >> 9
    over = e - third * 3
    fraction = u & 0x007FFFFF
    guess = evaluate_polynomial_by_horner(
        bits_to_float32(fraction | 0x3F800000), "2.3104927e-2 -1.629695e-1 5.8711404e-1 5.5282354e-1"
    )
    guess = guess * select(over.equal(0), 1.0, select(over.equal(1), as_expr(1.25992105, x), 1.58740105))
    t = bits_to_float32((float32_to_bits(guess) + 0x8000) & 0xFFFF0000)
    cube = (t * t) * t
    d = (bits_to_float32(fraction | ((over + 127) << 23)) - cube) / cube
    root = (t * d) * evaluate_polynomial_by_horner(d, "6.1728396e-2 -1.1111111e-1 3.3333334e-1") + t
    root = root * bits_to_float32((third + 84) << 23) * select(tiny, as_expr(0.00390625, x), 1.0)
    return call("copysign", select(a.equal(0.0) | ~(a <= MAX_FLOAT32), a, root), x)
