# SPDX-License-Identifier: Apache-2.0
"""Functions of the bits of integers, those of fewer than 8 bits as bytes, and products that are shifted back."""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, bitcast, cast, maximum, minimum


def _bits(x: Expr) -> Expr:
    if x.dtype.bits < 8:
        x = cast(x, "int8" if x.dtype.is_signed else "uint8")
    return bitcast(x, f"uint{x.dtype.bits}")


def _ones(u: Expr) -> Expr:
    """Sums of neighboring bits, then of pairs of them and so on (Warren, "Hacker's Delight", 2002)."""
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


def saturate_int8(x: Expr) -> Expr:
    return cast(minimum(maximum(x, -128), 127), "int8")


def saturate_uint8(x: Expr) -> Expr:
    return cast(minimum(maximum(x, 0), 255), "uint8")


def _shifted(v: Expr, shift: Expr) -> Expr:
    """v / 2^(shift + 1), halves up: a half is added after all bits but one are gone, so that nothing overflows."""
    return ((v >> shift) + 1) >> 1


def scale_once(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    # the sum of a product and a half has no carry from the lower word, where the half is a multiple of 2^32
    product = cast(x, "int64") * cast(multiplier, "int64")
    return _shifted(cast(product >> 32, "int32"), shift)


def scale_twice(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    product = cast(x, "int64") * cast(multiplier, "int64")
    v = cast((product + (1 << 30)) >> 31, "int32")
    return _shifted(v + (v >> 31), shift)
