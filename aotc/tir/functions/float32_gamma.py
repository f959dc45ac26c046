# SPDX-License-Identifier: Apache-2.0
"""Gamma function of float32 and its logarithm.

log2 of gamma(y), y >= 2, is computed by Stirling's series as a pair of floats. With z = |x|, y is
z, or z + 2 if z < 2. gamma(x) is gamma(y), or 1 / gamma(y) for x < 0 (Euler's reflection), times a
correction factor.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, call, minimum, select
from aotc.tir.functions.double_float32 import (
    FLOAT32_SIGN_BIT,
    INFINITY,
    MAX_FLOAT32,
    NAN,
    FloatPair,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    exact_float32_product,
    exact_sum_any_magnitude,
    fast_two_sum,
    float32_to_bits,
)
from aotc.tir.functions.float32_functions import multiply_by_power_of_2_in_low_bits
from aotc.tir.functions.float32_power import exp2_of_pair, log2_as_pair

#: Bound from which on z - 1/2 rounds to z, and adding numbers below 100 has no effect.
MIN_LARGE_ARGUMENT: Final = 16777216.0
#: Bound up to which gamma(x) rounds to 1 / x.
MAX_RECIPROCAL_ARGUMENT: Final = 7e-9


def _divide_pairs(n: FloatPair, d: FloatPair) -> FloatPair:
    q = n[0] / d[0]
    p, error = exact_float32_product(q, d[0])
    return q, (((n[0] - p) - error) + (n[1] - q * d[1])) / d[0]


def _log2_gamma_by_stirling(z: Expr, below_2: Expr) -> FloatPair:
    """Return log2(gamma(z)), or log2(gamma(z + 2)) if `below_2`, as a pair; divided by 256 for z >
    `MIN_LARGE_ARGUMENT`.
    """
    y = select(below_2, z + 2.0, z)
    log, low = log2_as_pair(y)
    log, rest = fast_two_sum(log, as_expr(-1.44269502, y))  # less log2(e)
    factor = select(y > MIN_LARGE_ARGUMENT, y * 0.00390625, y - 0.5)
    w, error = exact_float32_product(factor, log)
    w, w_low = exact_sum_any_magnitude(w, select(y > MIN_LARGE_ARGUMENT, as_expr(0.0, y), 0.60440052))
    s = as_expr(1.0, y) / y
    series = s * evaluate_polynomial_by_horner(
        s * s, "2.8816654e-4 -4.9371691e-4 7.8390911e-4 -2.7773681e-3 8.3333328e-2"
    )
    # the rounding error of y times the derivative
    correction = select(below_2, (z - (y - 2.0)) * (z * 0.6 + 0.63), 0.0)
    return w, w_low + (
        (error + factor * (rest + (low - 1.925963e-8))) + (series * 1.44269504 + (correction + 2.8735342e-8))
    )


def _gamma_shift_and_reflection_factor(
    is_negative: Expr, z: Expr, below_2: Expr, distance_from_integer: Expr
) -> FloatPair:
    """Return the factor by which gamma(y) or its inverse is multiplied, without its sign; infinite
    for r = 0.
    """
    # |sin(pi z)| = sin(pi r) = pi r (1 - r^2 (...))
    s, s_low = exact_float32_product(distance_from_integer, distance_from_integer)
    p = evaluate_polynomial_by_horner(s, "2.2146916e-3 -2.610443e-2 1.9074535e-1 -8.1174201e-1 1.6449341")
    less, rest = exact_float32_product(s, p)
    sinc, sinc_low = fast_two_sum(as_expr(1.0, s), -less)
    sinc_low = sinc_low - (rest + s_low * p)
    wave, error = exact_float32_product(distance_from_integer, sinc)
    u, u_low = exact_sum_any_magnitude(z, as_expr(1.0, z))
    u, u_low = select(below_2, u, 1.0), select(below_2, u_low, 0.0)
    d, d_low = select(is_negative, wave, u), select(is_negative, error + distance_from_integer * sinc_low, u_low)
    times = select(is_negative, select(below_2, as_expr(1.0, z), z), select(below_2, z, 1.0))
    high, rest = exact_float32_product(d, times)
    return _divide_pairs((select(is_negative, u, 1.0), select(is_negative, u_low, 0.0)), (high, rest + d_low * times))


def tgamma(x: Expr) -> Expr:
    a = call("abs", x)
    z, near, below = minimum(a, 60.0), a < 2.0, x < 0.0
    whole, flip = call("round_even", a), float32_to_bits(x) & FLOAT32_SIGN_BIT
    r = a - whole
    (w, low), (q, q_low) = (
        _log2_gamma_by_stirling(z, near),
        _gamma_shift_and_reflection_factor(below, z, near, call("abs", r)),
    )
    w = bits_to_float32(float32_to_bits(w) ^ flip)
    (high, rest), t = exp2_of_pair(w, bits_to_float32(float32_to_bits(low) ^ flip))
    p, error = exact_float32_product(high, q)
    value = multiply_by_power_of_2_in_low_bits(p + (error + (high * q_low + rest * q)), t)
    # the sine has the sign of r, negated after an odd number of half periods
    half = whole * 0.5
    odd = select(call("round_even", half).equal(half), as_expr(FLOAT32_SIGN_BIT, flip), 0)
    value = bits_to_float32(float32_to_bits(value) ^ (select(below, odd ^ float32_to_bits(r), 0) & FLOAT32_SIGN_BIT))
    value = select(a < MAX_RECIPROCAL_ARGUMENT, as_expr(1.0, x) / x, value)
    return select(below & ~(call("abs", r) > 0.0), NAN, value)


def _log_gamma_near_1_and_2(x: Expr) -> Expr:
    """Return (x - 1) (x - 2) p(x), which approximates log(gamma(x)) for x from 0.82 to 2.26."""
    u = x - 1.0
    v = u - 1.0
    p, error = exact_float32_product(u, v)
    t = x - 1.5
    factor = t * evaluate_polynomial_by_horner(t, "-6.293903e-4 1.2845454e-3 -1.1588184e-3 "
"1.5757523e-3 -3.1724263e-3 5.5386322e-3"
                           " -9.4382865e-3 1.6786145e-2 -3.1307202e-2 6.2911883e-2 -1.4595993e-1")  # fmt: skip
    c, low = fast_two_sum(as_expr(0.483128935, x), factor)
    y, rest = exact_float32_product(p, c)
    return y + (rest + (p * (low + 1.1935846e-8) + (error + u * (u - (v + 1.0))) * c)) + 0.0  # not -0


def lgamma(x: Expr) -> Expr:
    a = call("abs", x)
    near, below, small = a < 2.0, x < 0.0, a < MAX_RECIPROCAL_ARGUMENT
    r = a - call("round_even", a)
    (w, low), (q, q_low) = (
        _log2_gamma_by_stirling(a, near),
        _gamma_shift_and_reflection_factor(below, a, near, call("abs", r)),
    )
    flip = float32_to_bits(x) & FLOAT32_SIGN_BIT
    w, low = (
        select(small, as_expr(0.0, x), bits_to_float32(float32_to_bits(w) ^ flip)),
        bits_to_float32(float32_to_bits(low) ^ flip),
    )
    log, log_low = log2_as_pair(select(small, a, q))
    total, rest = exact_sum_any_magnitude(w, select(small, -log, log))
    rest = rest + select(small, 0.0, log_low + (low + (q_low / q) * 1.44269504))
    p, error = exact_float32_product(total, as_expr(0.693147182, x))
    value = (p + (error + (total * -1.904654e-9 + rest * 0.693147182))) * select(
        a > MIN_LARGE_ARGUMENT, as_expr(256.0, x), 1.0
    )
    value = select((x > 0.82) & (x < 2.26), _log_gamma_near_1_and_2(x), value)
    return select(a > MAX_FLOAT32, a, select(a.equal(0.0) | (below & r.equal(0.0)), INFINITY, value))
