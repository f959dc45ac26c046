# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators that combine values at positions which are tensors: scatter with
its reductions, and sums of embeddings.

OPS["scatter_reduce"](x, 0, index, source, reduce="mean", include_self=False)
OPS["_embedding_bag"](weight=w, indices=i, offsets=o)   # sums of rows of w
"""

import math
from functools import partial
from typing import Final

import numpy as np

from aotc.ir import AotcError, require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis, OptionalExpr
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue

#: For each name of a reduction in PyTorch, the name in the attribute of scatter_elements.
_SCATTER_REDUCTIONS: Final = {
    None: "update", "add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min",
    "mean": "add",
}  # fmt: skip


def _scatter(
    x: Expr, dim: Axis, index: Expr, source: TorchValue, /, reduce: str | None = None, include_self: bool = True
) -> Expr:
    """Convert scatter: write values at positions of an axis, or combine them by a reduction with the
    elements there and, with `include_self`, with the element of x.
    """
    require("torch-op", reduce in _SCATTER_REDUCTIONS, f"scatter with reduce={reduce!r} is not supported")
    if not g.rank(x):
        vector = partial(g.reshape, sizes=(1,))
        value = vector(source) if tv.is_tensor(source) else source
        return g.reshape(_scatter(vector(x), 0, vector(index), value, reduce, include_self), ())
    index_shape, dtype = tv.static_dims(index), g.dtype(x)
    if tv.is_tensor(source) and g.rank(source):
        update = g.strided_slice(g.cast(source, dtype), [0] * len(index_shape), index_shape, range(len(index_shape)))
    else:
        update = g.broadcast_to(tv.to_tensor_expr_of_dtype(source, dtype), index_shape)
    write = partial(g.call_op, "scatter_elements", axis=dim)
    name = _SCATTER_REDUCTIONS[reduce]
    if reduce is None or reduce in ("add", "multiply"):
        return write(x, index, update, reduction=name)
    start = x
    if not include_self:
        start = write(x, index, g.broadcast_to(_neutral_element(name, x), index_shape), reduction="update")
    result = write(start, index, update, reduction=name)
    if reduce != "mean":
        return result
    ones = g.broadcast_to(g.constant(1, dtype), index_shape)
    count = write(g.full(1 if include_self else 0, tv.static_dims(x), dtype), index, ones, reduction="add")
    count = g.maximum(count, g.constant(1, dtype))
    return g.div(result, count) if dtype.is_float else g.call_op("floor_divide", result, count)


def _neutral_element(reduction: str, x: Expr) -> Constant:
    """Return the number that a reduction of scatter_elements does not change."""
    dtype = g.dtype(x)
    if reduction in ("add", "mul"):
        return g.constant(0 if reduction == "add" else 1, dtype)
    sign = -1 if reduction == "max" else 1
    if dtype.is_float:
        return g.constant(sign * math.inf, dtype)
    limits = np.iinfo(dtype.numpy)
    return g.constant(limits.max if sign > 0 else limits.min, dtype)


def _index_reduce(x: Expr, dim: Axis, index: Expr, source: Expr, reduce: str, include_self: bool = True, /) -> Expr:
    """Convert index_reduce: scatter with one position for all elements of a slice."""
    places = g.reshape_along_axis(g.flatten(index), dim, g.rank(source))
    return _scatter(x, dim, g.broadcast_to(places, tv.static_dims(source)), source, reduce, include_self)


def _masked_scatter(x: Expr, mask: Expr, source: Expr) -> Expr:
    """Convert masked_scatter: the elements of x where the mask holds become those of `source`, in
    order.
    """
    flags = g.broadcast_to(g.cast(mask, "bool"), tv.static_dims(x))
    numbers = g.call_op("cumsum", g.cast(g.flatten(flags), "int64"), axis=0, dtype="int64")
    values = g.call_op("take", g.flatten(source), g.sub(numbers, 1), axis=0, mode="clip")
    return g.where(flags, g.reshape(g.cast(values, g.dtype(x)), tv.static_dims(x)), x)


# --- sums of embeddings

_BAG_MODES: Final = ("sum", "mean", "max")
_BAG_NUMBERS_SUBJECT: Final = "the positions and sizes of embedding_bag"


def _embedding_bag(
    weight: Expr,
    indices: Expr,
    offsets: Expr,
    mode: int = 0,
    per_sample_weights: OptionalExpr = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    **_: TorchValue,
) -> Expr:
    """Convert embedding_bag: the sum, mean or maximum of the rows of `weight` in each bag of indices;
    bag b begins at position offsets[b]. Rows with the index `padding_idx` do not count.
    """
    require("torch-argument", mode in range(len(_BAG_MODES)), f"the mode {mode} of embedding_bag is not known")
    count, dtype = tv.static_dim(indices, 0), str(g.dtype(weight))
    starts = g.cast(offsets, "int64")
    if include_last_offset:
        starts = g.strided_slice(starts, [0], [tv.static_dim(offsets, 0) - 1], [0])
    rows = g.call_op("take", weight, indices, axis=0, mode="clip")
    counts: Expr = g.full(1, (count, 1), dtype)
    if padding_idx >= 0:
        counts = g.cast(g.unsqueeze(g.not_equal(indices, padding_idx), [1]), dtype)
    if per_sample_weights is not None:
        rows = g.mul(rows, g.unsqueeze(per_sample_weights, [1]))
    if _BAG_MODES[mode] == "max":
        rows = g.where(g.greater(counts, 0.0), rows, -math.inf)
    elif padding_idx >= 0:
        rows = g.where(g.greater(counts, 0.0), rows, 0.0)
    total = _combine_bags(rows, starts, "max" if _BAG_MODES[mode] == "max" else "add")
    sizes = _combine_bags(counts, starts, "add")
    if _BAG_MODES[mode] == "mean":
        total = g.div(total, g.maximum(sizes, 1.0))
    elif _BAG_MODES[mode] == "max":
        total = g.where(g.greater(sizes, 0.0), total, 0.0)
    return total


def _embedding_bag_with_optional_padding(weight: Expr, padding_idx: int | None = None, **arguments: TorchValue) -> Expr:
    """Convert the form of embedding_bag whose `padding_idx` is None or counts from the end if it is
    negative.
    """
    padding = -1 if padding_idx is None else padding_idx % tv.static_dim(weight, 0)
    return _embedding_bag(weight, padding_idx=padding, **arguments)


def _combine_bags(rows: Expr, starts: Expr, reduction: str) -> Expr:
    """Combine the rows (count, width) of each bag; `starts` are the positions at which bags begin."""
    (count, width), bags = tv.static_dims(rows), tv.static_dim(starts, 0)
    if isinstance(starts, Constant) and bags and count % bags == 0:
        size = count // bags
        if size and np.array_equal(starts.data, np.arange(bags) * size):
            bag_rows = g.reshape(rows, (bags, size, width))
            return g.call_reduction("sum" if reduction == "add" else reduction, bag_rows, (1,), False)
    if isinstance(starts, Constant) and np.any(np.diff(starts.data) < 0):
        raise AotcError("torch-argument", "the offsets of embedding_bag do not ascend")
    start = g.full(0 if reduction == "add" else -math.inf, (bags, width), str(g.dtype(rows)))
    bag = g.sub(g.call_op("searchsorted", starts, g.iota(count), right=True, dtype="int64"), 1)
    places = g.broadcast_to(g.unsqueeze(bag, [1]), (count, width))
    return g.call_op("scatter_elements", start, places, rows, axis=0, reduction=reduction)


OPS: Table = {
    **dict.fromkeys(("scatter", "scatter_reduce"), _scatter),
    **dict.fromkeys(
        ("embedding_bag", "_embedding_bag_forward_only"),
        tv.append_uncomputed_results(_embedding_bag, _BAG_NUMBERS_SUBJECT, 3),
    ),
    "embedding_bag.padding_idx": tv.append_uncomputed_results(
        _embedding_bag_with_optional_padding, _BAG_NUMBERS_SUBJECT, 3
    ),
    "index_reduce": _index_reduce,
    "masked_scatter": _masked_scatter,
    "scatter_add": partial(_scatter, reduce="add"),
}
