# SPDX-License-Identifier: Apache-2.0
"""Powers of float32, computed as 2^(y log2 |x|); the logarithm and its product with y are pairs of
floats.

log2(m) uses the series of the inverse hyperbolic tangent of q = (m - 1) / (m + 1), as Sun's fdlibm
does.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, call, maximum, minimum, select
from aotc.tir.functions.double_float32 import (
    FLOAT32_SIGN_BIT,
    INFINITY,
    MAX_FLOAT32,
    NAN,
    FloatPair,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    exact_float32_product,
    fast_two_sum,
    float32_to_bits,
    truncate_float32_to_12_mantissa_bits,
)
from aotc.tir.functions.float32_functions import (
    ROUND_TO_INTEGER_SHIFTER,
    multiply_by_power_of_2_in_low_bits,
    split_mantissa_and_exponent,
)


def log2_as_pair(x: Expr) -> FloatPair:
    """Return log2(x) for finite x > 0 as a sum of two floats with about 36 correct bits."""
    m, e = split_mantissa_and_exponent(x)
    f, d = m - 1.0, m + 1.0
    q = f / d
    p, error = exact_float32_product(q, d)
    q_low = (((f - p) - error) - q * (m - (d - 1.0))) / d
    # log2(m) = q (c1 + c3 z + z^2 (...)), z = q^2
    z, z_low = exact_float32_product(q, q)
    z_low = z_low + (q + q) * q_low
    c, c_low = fast_two_sum(
        as_expr(0.9617967009544373, x), z * evaluate_polynomial_by_horner(z, "3.378208e-1 4.1184992e-1 5.7708019e-1")
    )
    u, u_low = exact_float32_product(z, c)
    u_low = u_low + (z * (c_low - 7.0284618e-9) + z_low * c)
    v, v_low = fast_two_sum(as_expr(2.885390043258667, x), u)
    w, w_low = exact_float32_product(q, v)
    w_low = w_low + (q * (v_low + (u_low + 3.851926e-8)) + q_low * v)
    total, rest = fast_two_sum(e, w)
    return fast_two_sum(total, rest + w_low)


def exp2_of_pair(w: Expr, low: Expr) -> tuple[FloatPair, Expr]:
    """Return (p, t) such that 2^(w + low) is p * 2^n, with p near 1 and n in the low bits of t;
    clamp w to [-180, 130].
    """
    y = minimum(maximum(w, -180.0), 130.0)
    t = y + ROUND_TO_INTEGER_SHIFTER
    whole = y - (t - ROUND_TO_INTEGER_SHIFTER)
    r = whole + low
    r_low = low - (r - whole)
    first = truncate_float32_to_12_mantissa_bits(r)  # times 12 bits of log(2), which is exact
    head, rest = fast_two_sum(as_expr(1.0, r), first * 0.693115234375)
    p = evaluate_polynomial_by_horner(r, "1.546288e-4 1.3390984e-3 9.6180625e-3 5.5503596e-2 2.4022651e-1")
    return (head, rest + (first * 3.1946183e-5 + (((r - first) + r_low) * 0.69314718 + (r * r) * p))), t


def pow(x: Expr, y: Expr) -> Expr:
    # y is clamped to even numbers beyond which the result is 0, 1 or infinity
    a = call("abs", x)
    c = minimum(maximum(y, -(2.0**33)), 2.0**33)
    half, whole = c * 0.5, call("round_even", c)
    even = call("round_even", half)
    odd = select(whole.equal(c) & even.not_equal(half), as_expr(FLOAT32_SIGN_BIT, float32_to_bits(x)), 0)
    edge = a.equal(0.0) | (a > MAX_FLOAT32)
    log, low = log2_as_pair(a)
    w, error = exact_float32_product(c, log)
    w = select(edge, select(a.equal(0.0), -c, c) * INFINITY, w)
    (high, rest), t = exp2_of_pair(w, select(edge, as_expr(0.0, x), error + c * low))
    f = select(
        w > 129.0, INFINITY, select(w < -151.0, as_expr(0.0, w), multiply_by_power_of_2_in_low_bits(high + rest, t))
    )
    f = bits_to_float32(float32_to_bits(f) | (float32_to_bits(x) & odd))
    f = select((x < 0.0) & whole.not_equal(c) & (a <= MAX_FLOAT32), NAN, f)
    f = select(x.not_equal(x), x, select(y.not_equal(y), y, f))
    return select(y.equal(0.0) | x.equal(1.0), as_expr(1.0, x), f)
