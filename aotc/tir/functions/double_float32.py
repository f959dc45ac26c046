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

Pair: TypeAlias = tuple[Expr, Expr]
SINGLE: Final = DType("float32")
INFINITY: Final = Const(float("inf"), SINGLE)
NAN: Final = Const(float("nan"), SINGLE)
LARGEST: Final = 3.40282347e38
SIGN: Final = 0x80000000


def bits(x: Expr) -> Expr:
    return bitcast(x, "uint32")


def number(u: Expr) -> Expr:
    return bitcast(u, "float32")


def horner(x: Expr, coefficients: str) -> Expr:
    """Return a polynomial in x by Horner's scheme; `coefficients` begin with the highest power."""
    first, *others = (float(c) for c in coefficients.split())
    value: Expr = as_expr(first, x)
    for c in others:
        value = value * x + c
    return value


def head(x: Expr) -> Expr:
    """Return x truncated to its upper 12 bits; the remainder x - head(x) has 12 more bits."""
    return number(bits(x) & 0xFFFFF000)


def summed(a: Expr, b: Expr) -> Pair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


def any_sum(a: Expr, b: Expr) -> Pair:
    """Return a + b exactly as a pair (rounded sum, rounding error), for operands of any magnitude
    (Knuth).
    """
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def product(a: Expr, b: Expr) -> Pair:
    """Return a * b exactly as a pair (rounded product, rounding error)."""
    p, x, y = a * b, head(a), head(b)
    u, v = a - x, b - y
    return p, ((x * y - p) + x * v + u * y) + u * v
