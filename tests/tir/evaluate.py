# SPDX-License-Identifier: Apache-2.0
"""Evaluates tensor expressions directly from their definition, on whole arrays, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.tir import te
from aotc.tir.expr import Binary, Call, Cast, Const, Element, Expr, Select, Unary, Var
from aotc.tir.schedule.stages.reduction_loops import identity_of_combiner
from aotc.tir.tensor_graph import tensors_in_topological_order

BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "floordiv": np.floor_divide,
    "floormod": np.mod, "min": np.minimum, "max": np.maximum, "and": np.logical_and, "or": np.logical_or,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNARY = {"exp": np.exp, "abs": np.abs, "sqrt": np.sqrt, "tanh": np.tanh}
COMBINE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def evaluate(outputs: Sequence[te.Tensor], inputs: dict[te.Tensor, np.ndarray]) -> list[np.ndarray]:
    """The outputs, given the arrays of the placeholders."""
    values = dict(inputs)
    with np.errstate(all="ignore"):
        for tensor in tensors_in_topological_order(outputs):
            if tensor not in values:
                values[tensor] = _tensor(tensor, values)
    return [values[t] for t in outputs]


def _tensor(tensor: te.Tensor, values: dict[te.Tensor, np.ndarray]) -> np.ndarray:
    match tensor:
        case te.View():
            return values[tensor.source].reshape(tensor.shape)
        case te.Compute():
            result = _expr(tensor.body, _grid(tensor.axes), values)
            return np.broadcast_to(result, tensor.shape).astype(tensor.dtype.numpy)
        case te.Reduce():
            return _reduce(tensor, values)
        case te.Contraction():
            return _contraction(tensor, values)
        case _:
            raise TypeError(f"cannot evaluate {tensor.name}")


def _grid(axes: Sequence[te.Axis]) -> dict[Var, Any]:
    grids = np.ix_(*(np.arange(extent) for _, extent in axes)) if axes else ()
    return {var: grid for (var, _), grid in zip(axes, grids, strict=True)}


def _reduce(tensor: te.Reduce, values: dict[te.Tensor, np.ndarray]) -> np.ndarray:
    axes = (*tensor.axes, *tensor.reduce_axes)
    shape = tuple(n for _, n in axes)
    neutral = np.asarray(identity_of_combiner(tensor.combiner, tensor.dtype).value).astype(tensor.dtype.numpy)  # type: ignore[union-attr]
    body = np.broadcast_to(_expr(tensor.body, _grid(axes), values), shape)
    if tensor.guard is not None:
        body = np.where(_expr(tensor.guard, _grid(axes), values), body, neutral)
    reduced = COMBINE[tensor.combiner].reduce(
        body, axis=tuple(range(len(tensor.axes), len(axes))), initial=neutral, dtype=tensor.dtype.numpy
    )
    return np.asarray(reduced).reshape(tensor.shape)


def _contraction(c: te.Contraction, values: dict[te.Tensor, np.ndarray]) -> np.ndarray:
    axes = (*c.axes, *c.reduce_axes)
    shape = tuple(n for _, n in axes)
    grid = _grid(axes)
    index = [np.broadcast_to(_expr(i, grid, values), shape) for i in c.a_index]
    inside = np.ones(shape, bool)
    for i, n in zip(index, c.a.shape, strict=True):
        inside &= (i >= 0) & (i < n)
    a = values[c.a][tuple(np.where(inside, i, 0) for i in index)].astype(c.dtype.numpy)
    b = values[c.b][tuple(np.broadcast_to(_expr(i, grid, values), shape) for i in c.b_index)].astype(c.dtype.numpy)
    product = np.where(inside, a * b, 0).astype(c.dtype.numpy)
    return product.sum(axis=tuple(range(len(c.axes), len(axes))), dtype=c.dtype.numpy).reshape(c.shape)


def _expr(expr: Expr, grid: dict[Var, Any], values: dict[te.Tensor, np.ndarray]) -> Any:
    def sub(e: Expr) -> Any:
        return _expr(e, grid, values)

    match expr:
        case Var():
            return grid[expr]
        case Const():
            return np.asarray(expr.value).astype(expr.dtype.numpy)
        case Binary():
            return BINARY[expr.op](sub(expr.a), sub(expr.b))
        case Unary():
            return np.negative(sub(expr.a)) if expr.op == "neg" else np.logical_not(sub(expr.a))
        case Cast():
            return np.asarray(sub(expr.a)).astype(expr.dtype.numpy)
        case Select():
            return np.where(sub(expr.cond), sub(expr.a), sub(expr.b))
        case Call():
            return UNARY[expr.name](*map(sub, expr.args))
        case Element():
            array = values[expr.tensor]
            if array.size == 0:
                return np.zeros((), array.dtype)
            index = [np.clip(sub(i), 0, n - 1) for i, n in zip(expr.indices, array.shape, strict=True)]
            return array[tuple(index)]
        case _:
            raise TypeError(f"not in a tensor expression: {expr}")
