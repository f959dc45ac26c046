# SPDX-License-Identifier: Apache-2.0
"""Properties of an operator's operands that are known at compile time: static types, extents and
the elements of constants.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Array, DType, Op, TensorType
from aotc.relay.expr import Call, Constant, Expr

#: Operators that leave values unchanged, in addition to operators whose `is_data_movement` flag is set.
_VALUE_PRESERVING_OPS: Final = (
    "copy",
    "cast",
    "broadcast_to_like",
    "reshape_like",
    "annotation.stop_fusion",
    "nn.dropout",
)


def static_tensor_type_or_none(expr: Expr) -> TensorType | None:
    """Return the type of an expression that is a tensor of static shape, else None."""
    ty = expr.checked_type
    return ty if isinstance(ty, TensorType) and ty.is_static else None


def is_tensor_of_requested_number_kind(expr: Expr, *, integer: bool) -> bool:
    """Return True if an expression is a tensor of integers (`integer` True) or of floats (False);
    bool is neither.
    """
    ty = static_tensor_type_or_none(expr)
    return ty is not None and (ty.dtype.is_integer if integer else ty.dtype.is_float)


def has_bool_or_unknown_type(expr: Expr) -> bool:
    ty = static_tensor_type_or_none(expr)
    return ty is None or ty.dtype.is_bool


def axis_extent_or_zero(expr: Expr, axis: int | None) -> int:
    """Return the extent of an axis (None: the number of elements); 0 if it is not known."""
    ty = static_tensor_type_or_none(expr)
    if ty is None:
        return 0
    return ty.numel if axis is None else int(ty.static_shape[axis])


def constant_elements_in_any_order_or_none(expr: Expr) -> Array | None:
    """Return the elements of a constant, also through data movement and casts; None for others and
    for empty ones.
    """
    while (
        isinstance(expr, Call)
        and isinstance(expr.op, Op)
        and (expr.op.is_data_movement or expr.op.name in _VALUE_PRESERVING_OPS)
    ):
        expr = expr.args[0]
    return expr.data if isinstance(expr, Constant) and expr.data.size else None


def constant_min_and_max(expr: Expr) -> tuple[float, float] | None:
    """Return the smallest and the largest element of a numeric constant; None if it is not
    constant, or has NaN.
    """
    data = constant_elements_in_any_order_or_none(expr)
    if data is None or DType.from_numpy(data).is_bool:
        return None
    wide = data.astype(np.float64)
    return None if np.isnan(wide).any() else (float(wide.min()), float(wide.max()))
