# SPDX-License-Identifier: Apache-2.0
"""Exponential and hyperbolic functions of float32.

The argument is reduced to y = n ln 2 + r, where n is read from the low bits of a sum; the rounding
error of r is included in the result.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, call, maximum, minimum, select
from aotc.tir.functions.double_float32 import (
    bits_to_float32,
    evaluate_polynomial_by_horner,
    fast_two_sum,
    float32_to_bits,
)
from aotc.tir.functions.float32_functions import ROUND_TO_INTEGER_SHIFTER, multiply_by_power_of_2_in_low_bits


def _reduce_exp_argument(y: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (t, r, d) such that exp(y) is 2^n (1 + r + d), with d < r^2 and n in the low bits of
    t.
    """
    t = y * 1.44269504 + ROUND_TO_INTEGER_SHIFTER
    n = t - ROUND_TO_INTEGER_SHIFTER
    a, b = y - n * 0.693359375, n * 2.12194440e-4
    r = a + b
    p = evaluate_polynomial_by_horner(r, "1.9764414e-4 1.3932381e-3 8.3335433e-3 4.1666493e-2 1.6666666e-1 0.5")
    return t, r, (p * r) * r + ((a - r) + b)


def _power_of_2_from_low_bits(t: Expr, added_exponent: int) -> Expr:
    """Return 2^(k + n) as float32, where k is the integer in the low bits of the float t."""
    return bits_to_float32((float32_to_bits(t) - 0x4B400000 + (127 + added_exponent)) << 23)


def exp2(x: Expr) -> Expr:
    y = minimum(maximum(x, -152.0), 129.0)
    t = y + ROUND_TO_INTEGER_SHIFTER
    r = y - (t - ROUND_TO_INTEGER_SHIFTER)
    p = evaluate_polynomial_by_horner(r, "1.546288e-4 1.3390984e-3 9.6180625e-3 5.5503596e-2 2.4022651e-1 6.9314718e-1")
    return multiply_by_power_of_2_in_low_bits(p * r + 1.0, t)


def expm1(x: Expr) -> Expr:
    # 2 ((2^n - 1) / 2 + 2^(n-1) (r + d)), as 2^128 is not representable
    t, r, d = _reduce_exp_argument(minimum(maximum(x, -20.0), 89.0))
    half = _power_of_2_from_low_bits(t, -1)
    whole, part = fast_two_sum(half, as_expr(-0.5, x))
    high, low = fast_two_sum(whole, half * r)
    value = high + (low + (part + half * d))
    return select(call("abs", x) < 2.98023224e-8, x, value + value)


def _quarter_of_exp_and_inverse(a: Expr) -> tuple[Expr, Expr, Expr]:
    """Return (high, low, inverse): exp(a) / 4 as a pair, and exp(-a) / 4, for a >= 0; finite for a
    < 89.5.
    """
    t, r, d = _reduce_exp_argument(minimum(a, 89.5))
    scale = _power_of_2_from_low_bits(t, -2)
    high, low = fast_two_sum(as_expr(1.0, r), r)
    rest = low + d
    return scale * high, scale * rest, as_expr(0.0625, a) / (scale * (high + rest))


def sinh(x: Expr) -> Expr:
    a = call("abs", x)
    s = x * x
    high, low, inverse = _quarter_of_exp_and_inverse(a)
    value = high - (inverse - low)
    p = evaluate_polynomial_by_horner(s, "2.7822132e-6 1.9842896e-4 8.3333105e-3 1.6666667e-1")
    return select(a < 1.0, (p * s) * x + x, call("copysign", value + value, x))


def cosh(x: Expr) -> Expr:
    high, low, inverse = _quarter_of_exp_and_inverse(call("abs", x))
    value = high + (inverse + low)
    return value + value
