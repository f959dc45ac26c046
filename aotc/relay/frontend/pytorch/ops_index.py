# SPDX-License-Identifier: Apache-2.0
"""Converters of indexing: elements read and written by positions
that are tensors.

OPS["embedding"](weight=w, indices=i)   # take(w, i, axis=0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from aotc.ir import AotcError, require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.pytorch import values as tv
from aotc.relay.frontend.pytorch.values import Table, Value
from aotc.relay.frontend.shapes import from_start, take
from aotc.relay.op.rules import broadcast_shape


def _gather(x: Expr, dim: Axis, index: Expr) -> Expr:
    """Only the other axes may be longer than those of the index:
    what no position reaches is cut off.
    """
    wanted = tv.shape(index)
    axes = [k for k, n in enumerate(wanted) if k != dim and n < tv.size(x, k)]
    reached = g.cut(x, [0] * len(axes), [wanted[k] for k in axes], axes) if axes else x
    return g.op("gather", reached, index, axis=dim)


def _take_along_dim(x: Expr, indices: Expr, dim: int | None = None) -> Expr:
    if dim is None:
        return g.op("gather", g.reshape(x, (-1,)), g.reshape(indices, (-1,)), axis=0)
    axis = tv.axis(dim, x)
    one = [tuple(1 if k == axis else d for k, d in enumerate(tv.shape(t))) for t in (x, indices)]
    common = [tv.int_of(d) for d in broadcast_shape(*one)]
    data, index = (
        g.broadcast(t, [tv.size(t, k) if k == axis else n for k, n in enumerate(common)]) for t in (x, indices)
    )
    return g.op("gather", data, index, axis=axis)


def _scatter(x: Expr, dim: Axis, index: Expr, src: Value = None, value: Value = None, reduce: Value = None) -> Expr:
    modes = {None: "update", "add": "add", "multiply": "mul"}
    require("torch-op", reduce in modes, f"scatter with reduce={reduce!r} is not supported")
    return _scattered(x, dim, index, src if src is not None else value, modes[reduce])


def _scattered(x: Expr, axis: int, index: Expr, source: Value, mode: str) -> Expr:
    wanted, dtype = tv.shape(index), g.dtype(x)
    if tv.is_tensor(source) and g.rank(source):
        update = g.cut(g.cast(source, dtype), [0] * len(wanted), wanted, range(len(wanted)))
    else:
        update = g.broadcast(tv.as_tensor(source, dtype), wanted)
    return g.op("scatter_elements", x, index, update, axis=axis, reduction=mode)


def _scatter_reduce(x: Expr, dim: Axis, index: Expr, src: Expr, reduce: str, include_self: bool = True) -> Expr:
    modes = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    text = f"scatter_reduce {reduce!r} with include_self={include_self} is not supported"
    require("torch-op", reduce in modes and bool(include_self), text)
    return _scattered(x, dim, index, src, modes[reduce])


# --- x[i, :, j]


def _positions(x: Expr, indices: Sequence[Value]) -> tuple[list[int], list[Expr]]:
    """The axes that are indexed and their positions, which may be
    negative; constant masks become positions.
    """
    found: list[Expr | None] = []
    for index in indices:
        if index is None or not (g.dtype(index).is_bool or g.dtype(index) == "uint8"):
            found.append(None if index is None else g.cast(index, "int64"))
            continue
        if not isinstance(index, Constant):
            hint = "torch.where with three arguments has a result whose shape is known"
            raise AotcError("torch-dynamic", "indexing by a mask that is computed at run time", hint=hint)
        found += [g.constant(places, "int64") for places in np.nonzero(index.data)]
    given = {axis: places for axis, places in enumerate(found) if places is not None}
    return list(given), list(given.values())


def _joined(places: Sequence[Expr]) -> tuple[Expr, tuple[int, ...]]:
    """Positions for several axes as (axes, *shape), broadcast to
    one shape.
    """
    common: tuple[int, ...] = ()
    for place in places:
        common = tuple(tv.int_of(d) for d in broadcast_shape(common, g.dims(place)))
    return g.concat([g.unsqueeze(g.broadcast(p, common), [0]) for p in places], 0), common


def _front(axes: Sequence[int], rank: int) -> list[int]:
    return [*axes, *(k for k in range(rank) if k not in axes)]


def _place_of(axes: Sequence[int]) -> int:
    """Where the indexed axes go: to the first of them where they
    lie side by side, else to the front.
    """
    return axes[0] if list(axes) == list(range(axes[0], axes[0] + len(axes))) else 0


def _index(x: Expr, indices: Sequence[Value]) -> Expr:
    axes, places = _positions(x, indices)
    if not axes:
        return x
    if len(axes) == 1:
        return take(x, from_start(places[0], tv.size(x, axes[0])), axes[0])
    index, common = _joined(places)
    data = g.transpose(x, _front(axes, g.rank(x)))
    y = g.op("gather_nd", data, index)
    start, n = _place_of(axes), len(common)
    order = [*range(n, n + start), *range(n), *range(n + start, g.rank(y))]
    return g.transpose(y, order)


def _index_put(x: Expr, indices: Sequence[Value], values: Value, accumulate: bool = False) -> Expr:
    dtype = g.dtype(x)
    if len(indices) == 1 and tv.is_tensor(indices[0]) and g.dtype(indices[0]).is_bool and _one(values):
        mask = g.reshape(indices[0], (*tv.shape(indices[0]), *[1] * (g.rank(x) - g.rank(indices[0]))))
        scalar = g.reshape(tv.as_tensor(values, dtype), ())
        return g.op("where", mask, g.add(x, scalar) if accumulate else scalar, x)
    axes, places = _positions(x, indices)
    index, common = _joined(places)
    order = _front(axes, g.rank(x))
    data = g.transpose(x, order)
    rest = tv.shape(data)[len(axes) :]
    start, n = _place_of(axes), len(common)
    target = (*rest[:start], *common, *rest[start:])
    update = g.broadcast(tv.as_tensor(values, dtype), target)
    update = g.transpose(update, [*range(start, start + n), *range(start), *range(start + n, len(target))])
    y = g.op("scatter_nd", data, index, update, mode="add" if accumulate else "update")
    return g.transpose(y, [order.index(k) for k in range(g.rank(x))])


def _one(values: Value) -> bool:
    return not tv.is_tensor(values) or math.prod(tv.shape(values)) == 1


# --- writing parts


def _slice_scatter(x: Expr, src: Expr, dim: Axis = 0, start: Value = None, end: Value = None, step: Value = 1) -> Expr:
    first, last = (None if v is None else tv.int_of(v) for v in (start, end))
    taken: range = range(tv.size(x, dim))[slice(first, last, tv.int_of(step))]
    wanted = [len(taken) if k == dim else n for k, n in enumerate(tv.shape(x))]
    update = g.broadcast(g.cast(src, g.dtype(x)), wanted)
    if len(taken) == tv.size(x, dim):
        return update
    row = tv.row(g.constant(list(taken), "int64"), dim, g.rank(x))
    return g.op("scatter_elements", x, g.broadcast(row, wanted), update, axis=dim, reduction="update")


def _select_scatter(x: Expr, src: Expr, dim: Axis, index: Value) -> Expr:
    place = tv.int_of(index)
    place += tv.size(x, dim) if place < 0 else 0
    wanted = [n for k, n in enumerate(tv.shape(x)) if k != dim]
    return _slice_scatter(x, g.unsqueeze(g.broadcast(src, wanted), [dim]), dim, place, place + 1)


def _copy(x: Expr, src: Value) -> Expr:
    return g.broadcast(tv.as_tensor(src, g.dtype(x)), tv.shape(x))


def _along(accumulate: bool, x: Expr, dim: Axis, index: Expr, source: Expr) -> Expr:
    return _index_put(x, [*[None] * dim, g.reshape(index, (-1,))], source, accumulate)


# --- masks


def _one_hot(x: Expr, num_classes: int = -1) -> Expr:
    if num_classes < 0:
        raise AotcError("torch-dynamic", "one_hot needs num_classes: the shape would depend on the values")
    hit = g.binary("equal", g.unsqueeze(x, [g.rank(x)]), g.iota(num_classes, g.dtype(x)))
    return g.cast(hit, "int64")


def _diagonal(x: Expr, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Expr:
    """The diagonal of two axes as a new last axis: elements at a
    fixed distance of the flattened matrix.
    """
    rank = g.rank(x)
    axes = [tv.axis_in(dim1, rank), tv.axis_in(dim2, rank)]
    kept = [k for k in range(rank) if k not in axes]
    y = g.transpose(x, [*kept, *axes])
    *lead, rows, columns = tv.shape(y)
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    first = max(offset, 0) - min(offset, 0) * columns
    places = g.constant(first + np.arange(count) * (columns + 1), "int64")
    return take(g.reshape(y, (*lead, rows * columns)), places, len(lead))


def _bucket(x: Expr, boundaries: Expr, right: bool = False) -> Expr:
    """How many boundaries lie below (or at) each value."""
    hit = g.binary("greater_equal" if right else "greater", g.unsqueeze(x, [g.rank(x)]), boundaries)
    return g.cast(g.op("sum", g.cast(hit, "int64"), axis=(g.rank(x),), keepdims=False), "int64")


OPS: Table = {
    **tv.named(_copy, _diagonal, _gather, _one_hot, _scatter, _scatter_reduce, _select_scatter),
    **tv.named(_slice_scatter, _take_along_dim),
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _index_put),
    "bucketize": _bucket,
    "embedding": lambda weight, indices: take(weight, indices, 0),
    "index_add": partial(_along, True),
    "index_copy": partial(_along, False),
    "index_fill": lambda x, dim, index, value: _index_put(x, [*[None] * tv.axis(dim, x), index], value),
    "index_select": lambda x, dim, index: take(x, g.reshape(index, (-1,)), tv.axis(dim, x)),
    "scatter_add": lambda x, dim, index, src: _scattered(x, tv.axis(dim, x), index, src, "add"),
    "take": lambda x, index: _index(g.reshape(x, (-1,)), [index]),
    "tril": lambda x, diagonal=0: g.op("trilu", x, g.constant(diagonal, "int64"), upper=False),
    "triu": lambda x, diagonal=0: g.op("trilu", x, g.constant(diagonal, "int64"), upper=True),
}
