# SPDX-License-Identifier: Apache-2.0
"""Values of expressions that are known at compile time."""

from typing import Any

import numpy as np

from aotc.ir import TensorType
from aotc.relay.expr import Constant, Expr


def compile_time_elements(expr: Expr) -> np.ndarray[Any, Any] | None:
    """Return the elements of a tensor known at compile time; None if they are not known.

    They are known for a constant, and for a tensor of static shape without elements, which has one
    value only.
    """
    if isinstance(expr, Constant):
        return expr.data
    ty = expr.checked_type
    if isinstance(ty, TensorType) and ty.is_static and 0 in ty.shape:
        return np.zeros(ty.static_shape, ty.dtype.numpy)
    return None
