# SPDX-License-Identifier: Apache-2.0
"""Reductions that are no single operator.

log_sum_exp(x, (1,), False)             # log(sum(exp(x - max(x)))) + max(x)
"""

from __future__ import annotations

from typing import TypeAlias

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g

Axes: TypeAlias = "tuple[int, ...]"


def is_empty(x: Expr, axes: Axes) -> bool:
    """Whether each result is a reduction of no elements."""
    return any(g.dims(x)[a] == 0 for a in axes)


def result_of_nothing(x: Expr, axes: Axes, keepdims: bool, value: g.Number) -> Expr:
    """What a reduction of nothing gives."""
    kept = [1 if k in axes else d for k, d in enumerate(g.dims(x)) if keepdims or k not in axes]
    return g.filled(value, [d for d in kept if isinstance(d, int)], g.dtype(x))


def log_sum_exp(x: Expr, axes: Axes, keepdims: bool) -> Expr:
    """log(sum(exp(x))), shifted by the maximum so that it does not overflow."""
    if is_empty(x, axes):
        return result_of_nothing(x, axes, keepdims, float("-inf"))
    top = g.reduce("max", x, axes, True)
    top = g.where(g.op("isfinite", top), top, 0.0)
    result = g.add(g.op("log", g.reduce("sum", g.op("exp", g.sub(x, top)), axes, True)), top)
    return result if keepdims else g.op("squeeze", result, axis=axes)
