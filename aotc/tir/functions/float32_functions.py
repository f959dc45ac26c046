# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of float32: exp, log, tanh, erf and rsqrt.

`ULP` of `aotc.tir.functions.elementary_function_table` bounds their errors. Infinities, NaN and
subnormal results are as in C99 Annex F. Polynomials are Lawson-weighted least-squares fits on
Chebyshev nodes.
"""

from __future__ import annotations

from typing import Final

from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, maximum, minimum, select
from aotc.tir.functions.double_float32 import (
    INFINITY,
    MAX_FLOAT32,
    NAN,
    bits_to_float32,
    evaluate_polynomial_by_horner,
    float32_to_bits,
)

#: 1.5 * 2^23: the low bits of its sum with a number are the number rounded to an integer, without a
#: conversion instruction, which would trap for NaN.
ROUND_TO_INTEGER_SHIFTER: Final = 12582912.0


#: Least argument of exp, below the range of float32: n is -254, and both factors 2^(n/2) are encoded as 0. Zero is
#: then a product without underflow, for which x86 processors of Intel take more than a hundred cycles.
LEAST_EXPONENT: Final = -176.0


def _exp_mantissa_and_exponent(y: Expr) -> tuple[Expr, Expr]:
    """Return (p, t) such that exp(y) is p * 2^n, where n is the integer in the low bits of the
    float t.
    """
    t = y * 1.44269504 + ROUND_TO_INTEGER_SHIFTER
    n = t - ROUND_TO_INTEGER_SHIFTER
    r = (y - n * 0.693359375) + n * 2.12194440e-4
    p = evaluate_polynomial_by_horner(r, "1.3950489e-3 8.36889e-3 4.1666206e-2 1.6666518e-1 0.5")
    return ((p * r) * r + r) + 1.0, t


def multiply_by_power_of_2_in_low_bits(p: Expr, t: Expr) -> Expr:
    """Return p * 2^n by two multiplications, as n, the low bits of t, may exceed the exponent range
    of normal numbers.
    """
    k = float32_to_bits(t) - 0x4B400000 + 256
    half = k >> 1
    return (p * bits_to_float32((half - 1) << 23)) * bits_to_float32((k - half - 1) << 23)


def exp(x: Expr) -> Expr:
    return multiply_by_power_of_2_in_low_bits(*_exp_mantissa_and_exponent(minimum(maximum(x, LEAST_EXPONENT), 89.0)))


def exp_without_subnormals(y: Expr) -> Expr:
    """Return exp(y) for -87 <= y <= 88, where the result is a normal number."""
    p, t = _exp_mantissa_and_exponent(y)
    return p * bits_to_float32((float32_to_bits(t) - 0x4B400000 + 127) << 23)


def split_mantissa_and_exponent(x: Expr) -> tuple[Expr, Expr]:
    """Return (m, e) such that x > 0 equals m * 2^e, with m in [sqrt(1/2), sqrt(2))."""
    tiny = x < 1.17549435e-38
    u = float32_to_bits(select(tiny, x * 8388608.0, x)) - 0x3F3504F3
    e = cast(bitcast(u, "int32") >> 23, "float32") - select(tiny, as_expr(23.0, x), 0.0)
    return bits_to_float32((u & 0x007FFFFF) + 0x3F3504F3), e


def log(x: Expr) -> Expr:
    # log(m) = f - f^2/2 + f^3 p(f), f = m - 1
    m, e = split_mantissa_and_exponent(x)
    f = m - 1.0
    s = f * f
    p = evaluate_polynomial_by_horner(f, "6.9153681e-2 -1.1789808e-1 1.1872976e-1 -1.2384348e-1 "
"1.4218658e-1 -1.6669251e-1 2.0002227e-1"
                   " -2.4999987e-1 3.333331e-1")  # fmt: skip
    p = (p * f) * s + e * -2.12194440e-4
    return add_log_special_cases(x, (f + (p - s * 0.5)) + e * 0.693359375)


def add_log_special_cases(x: Expr, finite_log: Expr) -> Expr:
    """Return a logarithm of x with its special cases; `finite_log` is the result for finite x > 0."""
    finite_log = select(x > MAX_FLOAT32, x, finite_log)
    finite_log = select(x.equal(0.0), -INFINITY, finite_log)
    return select(x >= 0.0, finite_log, NAN)


def tanh(x: Expr) -> Expr:
    a = call("abs", x)
    s = x * x
    c = minimum(a, 10.0)
    big = as_expr(1.0, x) - as_expr(2.0, x) / (exp_without_subnormals(c + c) + 1.0)
    p = evaluate_polynomial_by_horner(s, "-5.5286246e-3 2.0483306e-2 -5.3692963e-2 1.333090e-1 -3.3333263e-1")
    return call("copysign", select(a < 0.65, (p * s) * x + x, big), x)


def erf(x: Expr) -> Expr:
    # |x| < 1: x * p(x^2); else 1 - exp(-q(|x|)), which is 1 from 4 on
    a = call("abs", x)
    c = minimum(a, 4.0)
    s = c * c
    p = evaluate_polynomial_by_horner(
        s, "7.889119e-5 -8.020841e-4 5.1895352e-3 -2.6854444e-2 1.12836003e-1 -3.7612626e-1 1.1283791"
    )
    q = evaluate_polynomial_by_horner(c, "2.168685e-5 -4.4133636e-4 4.204562e-3 -2.5208257e-2 "
"1.08418576e-1 6.332199e-1 1.1295785"
                   " -1.8804023e-4")  # fmt: skip
    return select(c < 1.0, p * x, call("copysign", as_expr(1.0, x) - exp_without_subnormals(-q), x))


def rsqrt(x: Expr) -> Expr:
    return as_expr(1.0, x) / call("sqrt", x)
