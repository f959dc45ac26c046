# SPDX-License-Identifier: Apache-2.0
"""Functions of the bits of integers, those of fewer than 8 bits as bytes."""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, bitcast, cast


def _bits(x: Expr) -> Expr:
    if x.dtype.bits < 8:
        x = cast(x, "int8" if x.dtype.is_signed else "uint8")
    return bitcast(x, f"uint{x.dtype.bits}")


def _ones(u: Expr) -> Expr:
    """Sums of neighbouring bits, then of pairs of them and so on (Warren, "Hacker's Delight", 2002)."""
    every = (1 << u.dtype.bits) - 1
    u = u - ((u >> 1) & (every // 3))
    u = (u & (every // 5)) + ((u >> 2) & (every // 5))
    u = (u + (u >> 4)) & (every // 17)
    step = 8
    while step < u.dtype.bits:
        u, step = u + (u >> step), 2 * step
    return u & 0x7F


def popcount(x: Expr) -> Expr:
    return cast(_ones(_bits(x)), x.dtype)


def clz(x: Expr) -> Expr:
    # all bits below the first one are set
    u = _bits(x)
    step = 1
    while step < u.dtype.bits:
        u, step = u | (u >> step), 2 * step
    return cast(as_expr(u.dtype.bits, u) - _ones(u), x.dtype)
