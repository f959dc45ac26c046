# SPDX-License-Identifier: Apache-2.0
"""Converters that pick and place elements by index.

ONNX indices may be negative: constant ones are resolved here, others when the model runs.

    OPS["Gather"](x, indices, axis=1)       # take(x, indices, axis)
"""

from __future__ import annotations

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.onnx.node import Int, Known, Table
from aotc.relay.frontend.shapes import checked_indices, from_start, take


def _gather(x: Expr, indices: Expr, *, axis: Axis = 0) -> Expr:
    return take(x, from_start(indices, g.dim(x, axis)), axis)


def _gather_elements(x: Expr, indices: Expr, *, axis: Axis = 0) -> Expr:
    return g.op("gather", x, checked_indices(indices, g.dim(x, axis)), axis=axis)


def _index_first(indices: Expr, sizes: tuple[int, ...]) -> Expr:
    """Index tuples (along the last axis) checked against `sizes` and moved
    to the first axis.
    """
    rank = g.rank(indices)
    return g.transpose(checked_indices(indices, sizes), (rank - 1, *range(rank - 1)))


def _gather_nd(x: Expr, indices: Expr, *, batch_dims: int = 0) -> Expr:
    depth = g.dim(indices, -1, "the indices")
    sizes = g.shape(x)[batch_dims : batch_dims + depth]
    require("onnx-index", len(sizes) == depth, f"index tuples of {depth} numbers do not fit {g.dims(x)}")
    return g.op("gather_nd", x, _index_first(indices, sizes), batch_dims=batch_dims)


def _mode(reduction: str) -> str:
    require("onnx-scatter", reduction in ("none", "add", "mul", "min", "max"), f"unknown reduction {reduction!r}")
    return "update" if reduction == "none" else reduction


def _scatter_elements(x: Expr, indices: Expr, updates: Expr, *, axis: Axis = 0, reduction: str = "none") -> Expr:
    places = checked_indices(indices, g.dim(x, axis))
    return g.op("scatter_elements", x, places, updates, axis=axis, reduction=_mode(reduction))


def _scatter_nd(x: Expr, indices: Expr, updates: Expr, *, reduction: str = "none") -> Expr:
    sizes = g.shape(x)[: g.dim(indices, -1, "the indices")]
    return g.op("scatter_nd", x, _index_first(indices, sizes), updates, mode=_mode(reduction))


def _one_hot(indices: Expr, depth: Int, values: Expr, *, axis: int = -1) -> Expr:
    """A comparison with 0, 1, ..., depth - 1; indices outside give no `on`
    at all.
    """
    require("onnx-onehot", depth >= 0, f"the depth is {depth}")
    rank = g.rank(indices) + 1
    place = g.axis(axis, rank)
    if g.dtype(indices) == "uint64":  # what no depth reaches must not become negative
        indices = g.minimum(indices, depth)
    index = g.cast(indices, "int64")
    index = g.where(g.less(index, 0), g.add(index, depth), index)
    positions = g.along(g.iota(depth), place, rank)
    off, on = (take(values, g.constant(k, "int64"), 0) for k in (0, 1))
    return g.where(g.equal(g.unsqueeze(index, [place]), positions), on, off)


def _compress(x: Expr, condition: Known, *, axis: int | None = None) -> Expr:
    """The converter of Compress, whose condition is constant: the chosen positions are known."""
    positions = g.constant(np.flatnonzero(condition.reshape(-1)), "int64")
    if axis is None:
        return take(g.reshape(x, (-1,)), positions, 0)
    return take(x, positions, g.axis(axis, g.rank(x)))


def _non_zero(x: Known) -> Expr:
    return g.constant(np.stack(np.nonzero(np.atleast_1d(x))), "int64")


def _tensor_scatter(past: Expr, update: Expr, start: Expr | None = None, *, axis: Axis = -2, mode: str) -> Expr:
    """The update is written along `axis` from a position per batch item on,
    wrapping round if circular.
    """
    shape, new = g.shape(past), g.shape(update)
    fits = len(shape) == len(new)
    require("onnx-rank", fits, f"an update of shape {new} does not fit a cache of shape {shape}")
    index = step = g.along(g.iota(new[axis]), axis, len(new))
    circular = mode == "circular"
    if start is not None:
        first = g.cast(g.reshape(start, (shape[0], *(1,) * (len(new) - 1))), "int64")
        index = g.add(g.floor_mod(first, shape[axis]) if circular else first, step)
    if circular:
        index = g.floor_mod(index, shape[axis])
    index = g.op("broadcast_to", index, shape=new)
    return g.op("scatter_elements", past, index, update, axis=axis, reduction="update")


def _array_feature(x: Expr, indices: Expr) -> Expr:
    picked = take(x, g.reshape(indices, (-1,)), g.rank(x) - 1)
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
    "Binarizer": lambda x, *, threshold: g.cast(g.greater(x, threshold), g.dtype(x)),
}
