# SPDX-License-Identifier: Apache-2.0
"""Sine, cosine and tangent of float32 for every argument, computed in float32 and integers.

The polynomials approximate the remainders of sin(r) = r + r^3 p(r^2) and cos(r) = 1 - r^2/2 + r^4
p(r^2).
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select
from aotc.tir.functions.double_float32 import (
    FLOAT32_SIGN_BIT,
    MAX_FLOAT32,
    NAN,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    exact_float32_product,
    fast_two_sum,
    float32_to_bits,
    truncate_float32_to_12_mantissa_bits,
)


def _reduce_angle_magnitude_by_half_pi(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (q, r, rest) such that |x| is q * pi/2 + r + rest.

    Payne and Hanek's reduction (1983) with 96 bits of 2/pi, starting at the first bit whose product
    with m * 2^e is no multiple of 4. The product has two bits for the quadrant and 62 fraction
    bits, which three floats represent exactly. For |x| < 1 no reduction is needed.
    """
    a = float32_to_bits(x) & 0x7FFFFFFF
    e, m = (a >> 23) - 127, (a & 0x007FFFFF) | 0x00800000
    s = e & 31
    r = as_expr(31, s) - s
    small, far, beyond = a < 0x3F800000, (e & 64).not_equal(0), (e & 32).not_equal(0)
    near = (0x00000051, 0x7CC1B727, 0x220A94FE, 0x13ABE8FA, 0x9A6EE06D)
    later = (0x220A94FE, 0x13ABE8FA, 0x9A6EE06D, 0xB14ACC9E, 0x21C820FF)
    words = [select(far, as_expr(two, a), near_word) for near_word, two in zip(near, later, strict=True)]
    digits = [select(beyond, words[k + 1], words[k]) for k in range(4)]
    w0, w1, w2 = ((digits[k] << s) | ((digits[k + 1] >> 1) >> r) for k in range(3))
    long = cast(m, "uint64")
    fraction = long * cast(w1, "uint64") + (long * cast(w2, "uint64") >> 32)
    high, low = cast(fraction >> 32, "uint32") + m * w0, cast(fraction, "uint32")
    parts = (high << 2) & 0xFFFFFF00, ((high & 0x3F) << 18) | (low >> 14), low & 0x3FFF
    first, second, third = (cast(bitcast(part, "int32"), "float32") for part in parts)
    scaled_angle, missing = fast_two_sum(first, second * 2.0**-16)
    missing = missing + third * 2.0**-30
    # times pi / 2^33
    upper = truncate_float32_to_12_mantissa_bits(scaled_angle)
    lower = scaled_angle - upper
    value, rest = fast_two_sum(upper * 3.6561687e-10, upper * 1.126497e-13 + (lower + missing) * 3.6572953e-10)
    quarter = select(small, as_expr(0, a), (high + 0x20000000) >> 30)
    return quarter, select(small, bits_to_float32(a), value), select(small, as_expr(0.0, x), rest)


def _sine_shifted_by_quarter_turns(x: Expr, quarters: int, sign: Expr) -> Expr:
    quadrant, r, rest = _reduce_angle_magnitude_by_half_pi(x)
    q = quadrant + quarters
    odd = (q & 1).not_equal(0)
    s = r * r
    cos_head, half = fast_two_sum(as_expr(1.0, x), s * -0.5)
    rows = ((-2.7427785e-7, 2.7263575e-6), (2.4805804e-5, -1.9842391e-4), (-1.3888936e-3, 8.3333543e-3),
            (4.1666668e-2, -1.6666667e-1))  # fmt: skip
    p, *rest_terms = (select(odd, as_expr(a, r), b) for a, b in rows)
    for c in rest_terms:
        p = p * s + c
    value = select(odd, cos_head, r) + (select(odd, half - r * rest, rest) + (select(odd, s, r) * s) * p)
    return select(call("abs", x) <= MAX_FLOAT32, bits_to_float32(float32_to_bits(value) ^ ((q & 2) << 30) ^ sign), NAN)


def sin(x: Expr) -> Expr:
    return _sine_shifted_by_quarter_turns(x, 0, float32_to_bits(x) & FLOAT32_SIGN_BIT)


def cos(x: Expr) -> Expr:
    return _sine_shifted_by_quarter_turns(x, 1, as_expr(0, float32_to_bits(x)))


def tan(x: Expr) -> Expr:
    # the quotient of two pairs, sine and cosine, with a correction for the rounding errors
    q, r, rest = _reduce_angle_magnitude_by_half_pi(x)
    s, s_low = exact_float32_product(r, r)
    cos_head, half = fast_two_sum(as_expr(1.0, x), s * -0.5)
    sine = fast_two_sum(
        r,
        rest * cos_head
        + (r * s) * evaluate_polynomial_by_horner(s, "2.7263575e-6 -1.9842391e-4 8.3333543e-3 -1.6666667e-1"),
    )
    cosine = fast_two_sum(
        cos_head,
        half
        - (s_low * 0.5 + r * rest)
        + (s * s) * evaluate_polynomial_by_horner(s, "2.4201612e-5 -1.3884697e-3 4.1666575e-2"),
    )
    odd = (q & 1).not_equal(0)
    (n, above), (d, below) = (
        (select(odd, b, a), select(odd, d, c)) for a, c, b, d in ((*sine, *cosine), (*cosine, *sine))
    )
    quotient = n / d
    p, error = exact_float32_product(quotient, d)
    value = quotient + ((((n - p) - error) + above) - quotient * below) / d
    value = bits_to_float32(float32_to_bits(value) ^ (float32_to_bits(x) & FLOAT32_SIGN_BIT) ^ ((q & 1) << 31))
    return select(call("abs", x) <= MAX_FLOAT32, value, NAN)
