# SPDX-License-Identifier: Apache-2.0
"""Converters that pick and place elements by index.

ONNX indices may be negative: constant ones are resolved here, others when the model runs.

    OPS["Gather"](node)                     # take(x, indices, axis)
"""

from __future__ import annotations

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.shapes import checked_indices, from_start, take


def _gather(node: Node) -> Expr:
    x, indices = node[0], node[1]
    axis = node.axis(x)
    return take(x, from_start(indices, g.dim(x, axis)), axis)


def _gather_elements(node: Node) -> Expr:
    x = node[0]
    axis = node.axis(x)
    return g.op("gather", x, checked_indices(node[1], g.dim(x, axis)), axis=axis)


def _index_first(indices: Expr, sizes: tuple[int, ...]) -> Expr:
    """Index tuples (along the last axis) checked against `sizes` and moved to the first axis."""
    rank = g.rank(indices)
    return g.transpose(checked_indices(indices, sizes), (rank - 1, *range(rank - 1)))


def _gather_nd(node: Node) -> Expr:
    x, indices, batch = node[0], node[1], node.integer("batch_dims")
    depth = g.dim(indices, -1, "the indices")
    sizes = g.shape(x)[batch : batch + depth]
    if len(sizes) != depth:
        raise AotcError("onnx-index", f"index tuples of {depth} numbers do not fit {g.dims(x)}")
    return g.op("gather_nd", x, _index_first(indices, sizes), batch_dims=batch)


_REDUCTIONS = ("none", "add", "mul", "min", "max")


def _mode(node: Node) -> str:
    reduction = node.text("reduction", "none")
    if reduction not in _REDUCTIONS:
        raise AotcError("onnx-scatter", f"unknown reduction {reduction!r}")
    return "update" if reduction == "none" else reduction


def _scatter_elements(node: Node) -> Expr:
    x = node[0]
    axis = node.axis(x)
    indices = checked_indices(node[1], g.dim(x, axis))
    return g.op("scatter_elements", x, indices, node[2], axis=axis, reduction=_mode(node))


def _scatter_nd(node: Node) -> Expr:
    x, indices = node[0], node[1]
    sizes = g.shape(x)[: g.dim(indices, -1, "the indices")]
    return g.op("scatter_nd", x, _index_first(indices, sizes), node[2], mode=_mode(node))


def _one_hot(node: Node) -> Expr:
    """A comparison with 0, 1, ..., depth - 1; indices outside give no `on` at all."""
    indices, values = node[0], node[2]
    depth = node.const_int(1, "the depth")
    if depth < 0:
        raise AotcError("onnx-onehot", f"the depth is {depth}")
    rank = g.rank(indices) + 1
    axis = g.axis(node.integer("axis", -1), rank)
    if g.dtype(indices) == "uint64":  # what no depth reaches must not become negative
        indices = g.binary("minimum", indices, depth)
    index = g.cast(indices, "int64")
    index = g.where(g.less(index, 0), g.add(index, depth), index)
    positions = g.reshape(g.iota(depth), [depth if k == axis else 1 for k in range(rank)])
    hit = g.binary("equal", g.unsqueeze(index, [axis]), positions)
    off, on = (take(values, g.constant(k, "int64"), 0) for k in (0, 1))
    return g.where(hit, on, off)


def _compress(node: Node) -> Expr:
    """With a constant condition the chosen positions are known."""
    x, condition = node[0], node.needed(node.const(1, "the condition"), "the condition")
    positions = g.constant(np.flatnonzero(condition.reshape(-1)), "int64")
    if "axis" not in node.attrs:
        return take(g.reshape(x, (-1,)), positions, 0)
    return take(x, positions, node.axis(x))


def _non_zero(node: Node) -> Expr:
    value = node.needed(node.const(0, "the input"), "its input")
    return g.constant(np.stack(np.nonzero(np.atleast_1d(value))), "int64")


def _tensor_scatter(node: Node) -> Expr:
    """The update is written along `axis` from a position per batch item on, wrapping round if circular."""
    past, update, start = node[0], node[1], node.optional(2)
    shape, new = g.shape(past), g.shape(update)
    axis = g.axis(node.integer("axis", -2), len(shape))
    if len(shape) != len(new):
        raise AotcError("onnx-rank", f"an update of shape {new} does not fit a cache of shape {shape}")
    step = g.reshape(g.iota(new[axis]), [new[axis] if k == axis else 1 for k in range(len(new))])
    index: Expr = step
    circular = node.text("mode", "linear") == "circular"
    if start is not None:
        first = g.cast(g.reshape(start, (shape[0], *(1,) * (len(new) - 1))), "int64")
        index = g.add(g.binary("floor_mod", first, shape[axis]) if circular else first, step)
    if circular:
        index = g.binary("floor_mod", index, shape[axis])
    index = g.op("broadcast_to", index, shape=new)
    return g.op("scatter_elements", past, index, update, axis=axis, reduction="update")


def _array_feature(node: Node) -> Expr:
    x, indices = node[0], g.reshape(node[1], (-1,))
    picked = take(x, indices, g.rank(x) - 1)
    return g.reshape(picked, (1, -1)) if g.rank(x) == 1 else picked


OPS: Table = {
    "Compress": _compress,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}
ML_OPS: Table = {
    "ArrayFeatureExtractor": _array_feature,
    "Binarizer": lambda node: g.cast(g.binary("greater", node[0], node.number("threshold")), g.dtype(node[0])),
}
