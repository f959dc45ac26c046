# SPDX-License-Identifier: Apache-2.0
"""Pairs of float32: unevaluated sums of a float and a small correction, which represent about twice
the precision.

Results described as exact are exact with and without fused multiply-adds, because products have
factors of 12 bits (Dekker, "A floating-point technique for extending the available precision",
1971).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from aotc.ir.dtype import DType
from aotc.tir.expr import Const, Expr, as_expr, bitcast

FloatPair: TypeAlias = tuple[Expr, Expr]
FLOAT32: Final = DType("float32")
INFINITY: Final = Const(float("inf"), FLOAT32)
NAN: Final = Const(float("nan"), FLOAT32)
MAX_FLOAT32: Final = 3.40282347e38
FLOAT32_SIGN_BIT: Final = 0x80000000


def float32_to_bits(x: Expr) -> Expr:
    return bitcast(x, "uint32")


def bits_to_float32(u: Expr) -> Expr:
    return bitcast(u, "float32")


def evaluate_polynomial_by_horner(x: Expr, coefficients: str) -> Expr:
    """Return a polynomial in x by Horner's scheme; `coefficients` begin with the highest power."""
    first, *rest = (float(c) for c in coefficients.split())
    value: Expr = as_expr(first, x)
    for c in rest:
        value = value * x + c
    return value


def truncate_float32_to_12_mantissa_bits(x: Expr) -> Expr:
    """Return x truncated to its upper 12 bits; the remainder, x minus the result, has 12 more
    bits.
    """
    return bits_to_float32(float32_to_bits(x) & 0xFFFFF000)


def fast_two_sum(a: Expr, b: Expr) -> FloatPair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


def exact_sum_any_magnitude(a: Expr, b: Expr) -> FloatPair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for operands of any magnitude
    (Knuth).
    """
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def exact_float32_product(a: Expr, b: Expr) -> FloatPair:
    """Return a * b exactly as a pair (rounded product, rounding error)."""
    p, x, y = a * b, truncate_float32_to_12_mantissa_bits(a), truncate_float32_to_12_mantissa_bits(b)
    u, v = a - x, b - y
    return p, ((x * y - p) + x * v + u * y) + u * v
