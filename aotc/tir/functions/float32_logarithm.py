# SPDX-License-Identifier: Apache-2.0
"""Logarithms and inverse hyperbolic functions of float32.

log2 and log10 split log(m) and the constant factor into parts whose products are exact, as Sun's
fdlibm does. log1p and the functions based on it add the rounding error of the argument as a
correction.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select
from aotc.tir.functions.double_float32 import (
    INFINITY,
    MAX_FLOAT32,
    NAN,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    exact_float32_product,
    fast_two_sum,
    float32_to_bits,
    truncate_float32_to_12_mantissa_bits,
)
from aotc.tir.functions.float32_functions import add_log_special_cases, split_mantissa_and_exponent


def _log1p_minus_quadratic_terms(f: Expr, f_squared: Expr) -> Expr:
    """Return log(1 + f) - f + s/2, where s = f^2, for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
    p = evaluate_polynomial_by_horner(f, "6.7491897e-2 -1.1670025e-1 1.1883537e-1 -1.240624e-1 "
"1.422036e-1 -1.6667989e-1 2.0002072e-1"
                  " -2.5000009e-1 3.3333313e-1")  # fmt: skip
    return (p * f) * f_squared


def _log_times_factor(x: Expr, factor: tuple[float, float, float], exponent: tuple[float, float] | None) -> Expr:
    """Return log(x) * factor[0].

    `factor[0]` is the sum of factor[1], which has 12 bits, and factor[2]; `exponent` is factor[0] *
    log(2) as a sum of two parts, None if that is 1.
    """
    m, e = split_mantissa_and_exponent(x)
    f = m - 1.0
    s = f * f
    half = s * 0.5
    high = truncate_float32_to_12_mantissa_bits(f - half)
    low = ((f - high) - half) + _log1p_minus_quadratic_terms(f, s)
    whole, part = (e, 0.0) if exponent is None else (e * exponent[0], e * exponent[1])
    total, error = fast_two_sum(whole, high * factor[1])
    return add_log_special_cases(x, total + (error + (part + (low * factor[0] + high * factor[2]))))


def log2(x: Expr) -> Expr:
    return _log_times_factor(x, (1.44269504, 1.44287109375, -1.76052861e-4), None)


def log10(x: Expr) -> Expr:
    return _log_times_factor(x, (0.434294482, 0.434326171875, -3.16899712e-5), (0.301025390625, 4.60503907e-6))


def _log1p_of_pair(w: Expr, low: Expr, twice: Expr | None = None) -> Expr:
    """Return log(1 + w + low), or log(2 + 2 w) if `twice`, which is for large w; low is much
    smaller than w.
    """
    u = w + 1.0
    b = float32_to_bits(u) - 0x3F3504F3
    e = cast(bitcast(b, "int32") >> 23, "float32")
    near = e.equal(0.0)
    f = select(near, w, bits_to_float32((b & 0x007FFFFF) + 0x3F3504F3) - 1.0)
    error = select(w >= 1.0, as_expr(1.0, w) - (u - w), w - (u - 1.0))
    c = select(near, low, error + low) / u
    s = f * f
    e = e if twice is None else select(twice, e + 1.0, e)
    total, rest = fast_two_sum(e * 0.693359375, f)
    return total + (rest + ((_log1p_minus_quadratic_terms(f, s) - s * 0.5) + (c + e * -2.12194440e-4)))


def log1p(x: Expr) -> Expr:
    y = _log1p_of_pair(x, as_expr(0.0, x))
    y = select(x.equal(0.0) | (x > MAX_FLOAT32), x, y)
    return select(x > -1.0, y, select(x.equal(-1.0), -INFINITY, NAN))


def asinh(x: Expr) -> Expr:
    # log1p(a + a^2 / (1 + sqrt(1 + a^2))); for large a, where this is log(2 a), log(2 + 2 (a - 1))
    a = call("abs", x)
    far = a > 16384.0
    s = select(far, as_expr(0.0, a), a * a)
    w, low = fast_two_sum(a, s / (call("sqrt", s + 1.0) + 1.0))
    y = _log1p_of_pair(select(far, a - 1.0, w), select(far, as_expr(0.0, a), low), far)
    return call("copysign", select(a.equal(0.0) | ~(a <= MAX_FLOAT32), a, y), x)


def acosh(x: Expr) -> Expr:
    # log1p(t + sqrt(t (x + 1))), t = x - 1; for large x, where this is log(2 x), log(2 + 2 t)
    far = x > 16384.0
    t = x - 1.0
    d = select(far, as_expr(2.0, x), x + 1.0)
    p, q = exact_float32_product(select(far, as_expr(0.0, x), t), d)
    root = call("sqrt", p)
    square, rest = exact_float32_product(root, root)
    c = (((p - square) - rest) + (q + t * (x - (d - 1.0)))) / (root + root)
    w, low = fast_two_sum(root, t)
    w, low = select(far | t.equal(0.0), t, w), select(far | t.equal(0.0), as_expr(0.0, x), low + c)
    y = _log1p_of_pair(w, low, far)
    return select(x > MAX_FLOAT32, x, select(x >= 1.0, y, NAN))


def atanh(x: Expr) -> Expr:
    # log1p(2a / (1 - a)) / 2, corrected for the rounding errors of the difference and the quotient
    a = call("abs", x)
    d = as_expr(1.0, a) - a
    q = (a + a) / d
    p, rest = exact_float32_product(q, d)
    low = ((((a + a) - p) - rest) - q * ((as_expr(1.0, a) - d) - a)) / d
    y = call("copysign", _log1p_of_pair(q, low) * 0.5, x)
    y = select(a < 1e-4, (x * x) * (x * 0.333333343) + x, y)
    return select(a < 1.0, y, select(a.equal(1.0), call("copysign", INFINITY, x), NAN))
