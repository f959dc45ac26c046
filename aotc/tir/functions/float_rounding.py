# SPDX-License-Identifier: Apache-2.0
"""Rounding of floats to integral values, exact: what vectors use where processors have instructions for one number.

A float below 2^23 (2^52 in double) loses its fraction in the sum with that number, which has none.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir.expr import Expr, as_expr, bitcast, call, cast, select

_WHOLE: Final = {DType("float32"): 2.0**23, DType("float64"): 2.0**52}


def _nearest(a: Expr) -> Expr:
    """The nearest integral value of a >= 0, the even one of two."""
    whole = _WHOLE[a.dtype]
    return select(a < whole, (a + whole) - whole, a)


def round_even(x: Expr) -> Expr:
    return call("copysign", _nearest(call("abs", x)), x)


def floor(x: Expr) -> Expr:
    r = round_even(x)
    return call("copysign", select(r > x, r - 1.0, r), x)


def ceil(x: Expr) -> Expr:
    r = round_even(x)
    return call("copysign", select(r < x, r + 1.0, r), x)


def _truncated(a: Expr) -> Expr:
    r = _nearest(a)
    return select(r > a, r - 1.0, r)


def trunc(x: Expr) -> Expr:
    return call("copysign", _truncated(call("abs", x)), x)


def round_away(x: Expr) -> Expr:
    a = call("abs", x)
    t = _truncated(a)
    return call("copysign", select(a - t >= as_expr(0.5, x), t + 1.0, t), x)


def _quantized(dtype: str, least: int, x: Expr, zero: Expr) -> Expr:
    """The low byte of a sum with 1.5 * 2^23, whose last digit is 1."""
    low = call("above", x, least - zero)
    inside = call("below", low, (least + 255) - zero)
    return cast(bitcast((inside + 12582912.0) + zero, "int32"), dtype)


QUANTIZE: Final = {
    f"quantize_{dtype}": partial(_quantized, dtype, least) for dtype, least in (("int8", -128), ("uint8", 0))
}
