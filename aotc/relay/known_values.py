# SPDX-License-Identifier: Apache-2.0
"""What is known of the values of expressions at compile time."""

from typing import Any

import numpy as np

from aotc.ir import TensorType
from aotc.relay.expr import Constant, Expr


def known_data(expr: Expr) -> np.ndarray[Any, Any] | None:
    """The elements of a tensor that are known at compile time: a constant's, or none where there are none.

    A tensor of a static shape without elements has one value, whoever computes it; None for all other expressions.
    """
    if isinstance(expr, Constant):
        return expr.data
    ty = expr.checked_type
    if isinstance(ty, TensorType) and ty.is_static and 0 in ty.shape:
        return np.zeros(ty.static_shape, ty.dtype.numpy)
    return None
