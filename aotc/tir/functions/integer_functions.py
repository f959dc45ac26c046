# SPDX-License-Identifier: Apache-2.0
"""Integer functions: population count, leading zeros, saturation, fixed-point multiplication with
rounding shifts, and requantization.

Integers of fewer than 8 bits are processed as bytes.
"""

from __future__ import annotations

from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, maximum, minimum


def _to_unsigned_bits(x: Expr) -> Expr:
    if x.dtype.bits < 8:
        x = cast(x, "int8" if x.dtype.is_signed else "uint8")
    return bitcast(x, f"uint{x.dtype.bits}")


def _count_one_bits(u: Expr) -> Expr:
    """Return the population count by adding neighboring bits, pairs, and so on (Warren, "Hacker's
    Delight", 2002).
    """
    every = (1 << u.dtype.bits) - 1
    u = u - ((u >> 1) & (every // 3))
    u = (u & (every // 5)) + ((u >> 2) & (every // 5))
    u = (u + (u >> 4)) & (every // 17)
    step = 8
    while step < u.dtype.bits:
        u, step = u + (u >> step), 2 * step
    return u & 0x7F


def popcount(x: Expr) -> Expr:
    return cast(_count_one_bits(_to_unsigned_bits(x)), x.dtype)


def clz(x: Expr) -> Expr:
    # all bits below the first one are set
    u = _to_unsigned_bits(x)
    step = 1
    while step < u.dtype.bits:
        u, step = u | (u >> step), 2 * step
    return cast(as_expr(u.dtype.bits, u) - _count_one_bits(u), x.dtype)


def saturate_int8(x: Expr) -> Expr:
    return cast(minimum(maximum(x, -128), 127), "int8")


def saturate_uint8(x: Expr) -> Expr:
    return cast(minimum(maximum(x, 0), 255), "uint8")


def _rounded_shift_right_by_shift_plus_1(v: Expr, shift: Expr) -> Expr:
    """Return v / 2^(shift + 1) rounded half up.

    The half is added after all fraction bits but one have been shifted out, so that the sum cannot
    overflow.
    """
    return ((v >> shift) + 1) >> 1


def scale_once(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    # adding the half causes no carry from the lower 32 bits, as the half is a multiple of 2^32
    product = cast(x, "int64") * cast(multiplier, "int64")
    return _rounded_shift_right_by_shift_plus_1(cast(product >> 32, "int32"), shift)


def scale_twice(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    product = cast(x, "int64") * cast(multiplier, "int64")
    v = cast((product + (1 << 30)) >> 31, "int32")
    return _rounded_shift_right_by_shift_plus_1(v + (v >> 31), shift)


def requantize(
    scale: str, x: Expr, bias: Expr, multiplier: Expr, shift: Expr, zero_point: Expr, low: Expr, high: Expr
) -> Expr:
    """Return an int32 sum with its bias, scaled by the function `scale` and clamped, as int8."""
    value = call("saturate_int8", call(scale, x + bias, multiplier, shift) + zero_point)
    return minimum(maximum(value, cast(low, "int8")), cast(high, "int8"))
