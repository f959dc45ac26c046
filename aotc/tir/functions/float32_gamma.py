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
    INFINITY,
    LARGEST,
    NAN,
    SIGN,
    Pair,
    any_sum,
    bits,
    horner,
    number,
    product,
    summed,
)
from aotc.tir.functions.float32_functions import scaled
from aotc.tir.functions.float32_power import log2_pair, power_of_2

#: Bound from which on z - 1/2 rounds to z, and adding numbers below 100 has no effect.
FAR: Final = 16777216.0
#: Bound up to which gamma(x) rounds to 1 / x.
SMALL: Final = 7e-9


def _quotient(n: Pair, d: Pair) -> Pair:
    q = n[0] / d[0]
    p, error = product(q, d[0])
    return q, (((n[0] - p) - error) + (n[1] - q * d[1])) / d[0]


def _stirling(z: Expr, near: Expr) -> Pair:
    """Return log2(gamma(z)), or log2(gamma(z + 2)) if `near`, as a pair; divided by 256 for z >
    `FAR`.
    """
    y = select(near, z + 2.0, z)
    log, low = log2_pair(y)
    log, rest = summed(log, as_expr(-1.44269502, y))  # less log2(e)
    factor = select(y > FAR, y * 0.00390625, y - 0.5)
    w, error = product(factor, log)
    w, lost = any_sum(w, select(y > FAR, as_expr(0.0, y), 0.60440052))
    s = as_expr(1.0, y) / y
    series = s * horner(s * s, "2.8816654e-4 -4.9371691e-4 7.8390911e-4 -2.7773681e-3 8.3333328e-2")
    # the rounding error of y times the derivative
    moved = select(near, (z - (y - 2.0)) * (z * 0.6 + 0.63), 0.0)
    return w, lost + ((error + factor * (rest + (low - 1.925963e-8))) + (series * 1.44269504 + (moved + 2.8735342e-8)))


def _factor(below: Expr, z: Expr, near: Expr, r: Expr) -> Pair:
    """Return the factor by which gamma(y) or its inverse is multiplied, without its sign; infinite
    for r = 0.
    """
    # |sin(pi z)| = sin(pi r) = pi r (1 - r^2 (...))
    s, s_low = product(r, r)
    p = horner(s, "2.2146916e-3 -2.610443e-2 1.9074535e-1 -8.1174201e-1 1.6449341")
    less, rest = product(s, p)
    one, lost = summed(as_expr(1.0, s), -less)
    lost = lost - (rest + s_low * p)
    wave, error = product(r, one)
    u, u_low = any_sum(z, as_expr(1.0, z))
    u, u_low = select(near, u, 1.0), select(near, u_low, 0.0)
    d, d_low = select(below, wave, u), select(below, error + r * lost, u_low)
    times = select(below, select(near, as_expr(1.0, z), z), select(near, z, 1.0))
    high, rest = product(d, times)
    return _quotient((select(below, u, 1.0), select(below, u_low, 0.0)), (high, rest + d_low * times))


def tgamma(x: Expr) -> Expr:
    a = call("abs", x)
    z, near, below = minimum(a, 60.0), a < 2.0, x < 0.0
    whole, flip = call("round_even", a), bits(x) & SIGN
    r = a - whole
    (w, low), (q, q_low) = _stirling(z, near), _factor(below, z, near, call("abs", r))
    w = number(bits(w) ^ flip)
    (high, rest), t = power_of_2(w, number(bits(low) ^ flip))
    p, error = product(high, q)
    value = scaled(p + (error + (high * q_low + rest * q)), t)
    # the sine has the sign of r, negated after an odd number of half periods
    half = whole * 0.5
    odd = select(call("round_even", half).equal(half), as_expr(SIGN, flip), 0)
    value = number(bits(value) ^ (select(below, odd ^ bits(r), 0) & SIGN))
    value = select(a < SMALL, as_expr(1.0, x) / x, value)
    return select(below & ~(call("abs", r) > 0.0), NAN, value)


def _around_zeros(x: Expr) -> Expr:
    """Return (x - 1) (x - 2) p(x), which approximates log(gamma(x)) for x from 0.82 to 2.26."""
    u = x - 1.0
    v = u - 1.0
    p, error = product(u, v)
    t = x - 1.5
    factor = t * horner(t, "-6.293903e-4 1.2845454e-3 -1.1588184e-3 1.5757523e-3 -3.1724263e-3 5.5386322e-3"
                           " -9.4382865e-3 1.6786145e-2 -3.1307202e-2 6.2911883e-2 -1.4595993e-1")  # fmt: skip
    c, low = summed(as_expr(0.483128935, x), factor)
    y, rest = product(p, c)
    return y + (rest + (p * (low + 1.1935846e-8) + (error + u * (u - (v + 1.0))) * c)) + 0.0  # not -0


def lgamma(x: Expr) -> Expr:
    a = call("abs", x)
    near, below, small = a < 2.0, x < 0.0, a < SMALL
    r = a - call("round_even", a)
    (w, low), (q, q_low) = _stirling(a, near), _factor(below, a, near, call("abs", r))
    flip = bits(x) & SIGN
    w, low = select(small, as_expr(0.0, x), number(bits(w) ^ flip)), number(bits(low) ^ flip)
    log, log_low = log2_pair(select(small, a, q))
    total, rest = any_sum(w, select(small, -log, log))
    rest = rest + select(small, 0.0, log_low + (low + (q_low / q) * 1.44269504))
    p, error = product(total, as_expr(0.693147182, x))
    value = (p + (error + (total * -1.904654e-9 + rest * 0.693147182))) * select(a > FAR, as_expr(256.0, x), 1.0)
    value = select((x > 0.82) & (x < 2.26), _around_zeros(x), value)
    return select(a > LARGEST, a, select(a.equal(0.0) | (below & r.equal(0.0)), INFINITY, value))
