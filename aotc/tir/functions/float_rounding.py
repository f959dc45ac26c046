# SPDX-License-Identifier: Apache-2.0
"""Exact rounding of floats to integral values, for vectors on processors that have rounding
instructions for scalars only.

Adding 2^23 to a float below 2^23 (2^52 for float64) rounds it to an integral value, as the sum has
no fraction bits.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select

_MIN_INTEGRAL_MAGNITUDE: Final = {DType("float32"): 2.0**23, DType("float64"): 2.0**52}


def _round_nonnegative_to_even(a: Expr) -> Expr:
    """Return the integral value nearest to a >= 0, ties to even."""
    whole = _MIN_INTEGRAL_MAGNITUDE[a.dtype]
    return select(a < whole, (a + whole) - whole, a)


def round_even(x: Expr) -> Expr:
    return call("copysign", _round_nonnegative_to_even(call("abs", x)), x)


def floor(x: Expr) -> Expr:
    r = round_even(x)
    return call("copysign", select(r > x, r - 1.0, r), x)


def ceil(x: Expr) -> Expr:
    r = round_even(x)
    return call("copysign", select(r < x, r + 1.0, r), x)


def _truncate_nonnegative(a: Expr) -> Expr:
    r = _round_nonnegative_to_even(a)
    return select(r > a, r - 1.0, r)


def trunc(x: Expr) -> Expr:
    return call("copysign", _truncate_nonnegative(call("abs", x)), x)


def round_away(x: Expr) -> Expr:
    a = call("abs", x)
    t = _truncate_nonnegative(a)
    return call("copysign", select(a - t >= as_expr(0.5, x), t + 1.0, t), x)


def _round_add_zero_point_and_saturate(dtype: str, least: int, x: Expr, zero: Expr) -> Expr:
    """Return round(x) + zero clamped to the int8 or uint8 range that starts at `least`.

    The clamped value plus 1.5 * 2^23, where the last bit has weight 1, has the result in its low
    byte.
    """
    low = call("above", x, least - zero)
    inside = call("below", low, (least + 255) - zero)
    return cast(bitcast((inside + 12582912.0) + zero, "int32"), dtype)


QUANTIZE_FUNCTIONS: Final = {
    f"quantize_{dtype}": partial(_round_add_zero_point_and_saturate, dtype, least)
    for dtype, least in (("int8", -128), ("uint8", 0))
}
