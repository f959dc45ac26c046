# SPDX-License-Identifier: Apache-2.0
"""Operators that write updates to positions given by an index tensor: scatter_elements, scatter_nd.

scatter_elements(data, indices, updates, axis=0)      # copy of data; out[indices[i, j], j] = updates[i, j]
scatter_nd(data, indices, updates, mode="add")

Updates are applied in row-major order, so the last of several updates of a position wins. Negative
indices count from the end; updates at out-of-range indices are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, product
from math import prod
from typing import Any, Final

import numpy as np

from aotc.ir import Attrs, AxisMap, Precision, TensorType, Type, Types, args, require
from aotc.relay.op.gather import as_index, counted, integer_tensor, same_but, tuple_length
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    axis_of,
    carried,
    may_equal,
    replaced,
    require_known,
    require_same_dtype,
    tensor,
)
from aotc.relay.op.sample_arguments import ANY, NUMBER, accuracy, exact, random_array
from aotc.tir import BOOL, INDEX, Block, Buffer, Const, Declare, If, Load, Stmt, Store, Tensor, Var, binary, forall, te
from aotc.tir.stmt import loops

#: For each reduction, the tir operation that combines an update with the present value; ""
#: overwrites it.
REDUCTIONS: Final = {"update": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}
_UFUNC: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


class ScatterElementsAttrs(Attrs):
    """A copy of `data` with updates[i, j, ...] written to position indices[i, j, ...] along `axis`.

    reduction  "update" overwrites; "add", "mul", "min", "max" combine the update with the present value
    """

    axis: int = 0
    reduction: str = "update"


class ScatterNDAttrs(Attrs):
    """A copy of `data` with slices written at index tuples, whose elements lie along the *first*
    axis of `indices`.

    out[indices[0, y...], indices[1, y...], ..., x...] = updates[y..., x...]

    `mode` is the reduction of scatter_elements.
    """

    mode: str = "update"


def _check(types: Types, reduction: str) -> tuple[TensorType, TensorType, TensorType]:
    data, indices, updates = tensor(types[0], "data"), integer_tensor(types[1]), tensor(types[2], "updates")
    require_known("scatter.reduction", "reduction", reduction, REDUCTIONS)
    require_same_dtype(data, updates)
    fits = reduction == "update" or not data.dtype.is_bool
    require("dtype", fits, lambda: f"reduction {reduction!r} of bool")
    return data, indices, updates


def _apply(data: Array, places: Array, inside: Array, updates: Array, reduction: str) -> Array:
    """Return a copy of `data` with `updates` written to the flat positions `places` for which
    `inside` is True.
    """
    result: Array = data.reshape(-1).copy()
    at, values = places[inside], updates[inside]
    if reduction == "update":
        result[at] = values
        return np.reshape(result, data.shape)
    work = carried(result)
    _UFUNC[reduction].at(work, at, values.astype(work.dtype))
    return np.reshape(work.astype(data.dtype), data.shape)


def _program(
    name: str,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    reduction: str,
    place: Callable[[Sequence[Var], Buffer], tuple[Scalar, Scalar, Scalar]],
    run: int,
) -> Tensor:
    """Return a tensor program that copies the data, then applies the updates in order.

    place  (position in the grid of updates, index buffer) -> (True if the target exists, offset of its
           first element, offset of the update's first element)
    run    number of contiguous elements that each update writes
    """
    grid = updates.shape if run == 1 else (updates.size // max(run, 1),)
    op = REDUCTIONS[reduction]

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        source, where, changes = inputs
        (out,) = outputs
        i, j, at = Var("i"), Var("j"), Var("at")
        axes = [(Var(f"u{k}"), extent) for k, extent in enumerate(grid)]
        inside, target, change = place([v for v, _ in axes], where)
        value: Scalar = Load(changes, change + j)
        if op:
            value = binary(op, Load(out, at + j), value)
        write = forall(j, run, Store(out, at + j, value))
        body = If(inside, Block((Declare(at, target), write)))
        copy = forall(i, data.size, Store(out, i, Load(source, i)))
        return Block((copy, loops(axes, body)))

    return te.extern(name, [(data.shape, data.dtype)], (data, indices, updates), build)[0]


def _wrapped(index: Any, extent: int) -> tuple[Any, Any]:
    """Return a condition that is True for valid indices, and the indices with negative ones counted
    from the end.
    """
    at = counted(index, extent)
    return (at >= 0) & (at < extent), at


# --- scatter_elements


def _elements_infer(a: ScatterElementsAttrs, types: Types) -> Type:
    data, indices, updates = _check(types, a.reduction)
    same_but(axis_of(a.axis, data.rank), data, indices, "scatter")
    same = indices.rank == updates.rank and all(map(may_equal, indices.shape, updates.shape))
    require("scatter.updates", same, lambda: f"indices {indices} and updates {updates} have different shapes")
    return data


def _elements_reference(a: ScatterElementsAttrs, data: Array, indices: Array, updates: Array) -> Array:
    tuples = np.indices(indices.shape)
    tuples[axis_of(a.axis, data.ndim)] = as_index(indices)
    return _nd_reference(ScatterNDAttrs(mode=a.reduction), data, tuples, updates)


def _elements_axes(a: ScatterElementsAttrs, types: Types) -> AxisMap:
    data, indices = tensor(types[0]), tensor(types[1])
    axis = axis_of(a.axis, data.rank)
    row = tuple(k if k != axis and data.shape[k] == indices.shape[k] else None for k in range(data.rank))
    return AxisMap((row, row, row))


def _elements_compute(a: ScatterElementsAttrs, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = axis_of(a.axis, data.rank)
    extent = data.shape[axis]

    def place(u: Sequence[Var], where: Buffer) -> tuple[Scalar, Scalar, Scalar]:
        own = te.flat_index(indices.shape, u)
        inside, at = _wrapped(Load(where, own), extent)
        return inside, te.flat_index(data.shape, replaced(list(u), axis, at)), own

    return _program("scatter", data, indices, updates, a.reduction, place, 1)


def _places(shape: Sequence[int], extent: int, dtype: str) -> Array:
    """Return random indices, with duplicates, negative and out-of-range ones."""
    return np.random.default_rng(3).integers(-extent - 1, extent + 1, tuple(shape)).astype(dtype)


def _elements_samples() -> Samples:
    cases: Any = (
        ((3, 5), (3, 2), 1), ((3, 5), (2, 5), 0), ((2, 3, 4), (2, 2, 9), -1), ((5,), (9,), 0), ((3, 5), (0, 5), 0),
        ((0, 5), (0, 2), 1),
    )  # fmt: skip
    for (shape, places, axis), (reduction, dtype) in product(cases, zip(REDUCTIONS, cycle(("int64", "int32")))):
        args = (random_array(shape), _places(places, shape[axis], dtype), random_array(places, seed=1))
        yield Sample(args=args, attrs=ScatterElementsAttrs(axis=axis, reduction=reduction))
    for dtype, reduction in product(NUMBER.examples, REDUCTIONS):
        args = (random_array((4, 2), dtype), _places((5, 2), 4, "int64"), random_array((5, 2), dtype, 1))
        yield Sample(args=args, attrs=ScatterElementsAttrs(reduction=reduction), accuracy=accuracy(dtype))


scatter_elements = OpDef(
    name="scatter_elements",
    attrs=ScatterElementsAttrs,
    args=args("data", "indices", "updates"),
    infer=_elements_infer,
    reference=_elements_reference,
    axes=_elements_axes,
    compute=_elements_compute,
    precision=Precision.FOLLOW,
    samples=_elements_samples,
)


# --- scatter_nd


def _nd_infer(a: ScatterNDAttrs, types: Types) -> Type:
    data, indices, updates = _check(types, a.mode)
    expected = (*indices.shape[1:], *data.shape[tuple_length("scatter_nd", data, indices) :])
    same = len(expected) == updates.rank and all(map(may_equal, expected, updates.shape))
    require("scatter_nd.updates", same, lambda: f"updates must be {TensorType(expected, data.dtype)}, got {updates}")
    return data


def _nd_reference(a: ScatterNDAttrs, data: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[0]
    run = prod(data.shape[depth:])
    tuples = indices.reshape(depth, prod(indices.shape[1:]))
    inside = np.ones(tuples.shape[1], np.bool_)
    flat = np.zeros(tuples.shape[1], np.int64)
    for m in range(depth):
        exists, at = _wrapped(tuples[m], data.shape[m])
        inside &= exists
        flat = flat * data.shape[m] + at
    places = flat[:, None] * run + np.arange(run)
    mask = np.broadcast_to(inside[:, None], places.shape)
    return _apply(data, places, mask, updates.reshape(places.shape), a.mode)


def _nd_axes(_: ScatterNDAttrs, types: Types) -> AxisMap:
    rank, (depth, *grid) = tensor(types[0]).rank, tensor(types[1]).shape
    assert isinstance(depth, int)
    none = (None,) * depth
    rows = (*none, *range(depth, rank)), (None,) * rank, (*none, *range(len(grid), len(grid) + rank - depth))
    return AxisMap(rows)


def _nd_compute(a: ScatterNDAttrs, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth, count = indices.shape[0], prod(indices.shape[1:])
    run = prod(data.shape[depth:])
    flat_updates = te.view(updates, (updates.size,)) if run == 1 else updates

    def place(u: Sequence[Var], where: Buffer) -> tuple[Scalar, Scalar, Scalar]:
        (n,) = u
        inside: Scalar = Const(True, BOOL)
        flat: Scalar = Const(0, INDEX)
        for m in range(depth):
            exists, at = _wrapped(Load(where, n + m * count), data.shape[m])
            inside, flat = inside & exists, flat * data.shape[m] + at
        return inside, flat * run, n * run

    return _program("scatter_nd", data, indices, flat_updates, a.mode, place, run)


def _nd_samples() -> Samples:
    cases: Any = (
        ((4, 4), (2, 3)), ((4, 3), (1, 5)), ((4, 4, 2), (2, 2, 2)), ((4,), (1, 9)), ((4, 3), (1, 0)), ((2, 3), (0, 2)),
        ((4, 4), (2,)),
    )  # fmt: skip
    for (shape, places), (mode, dtype) in product(cases, zip(REDUCTIONS, cycle(("int64", "int32")))):
        updates = random_array((*places[1:], *shape[places[0] :]), seed=1)
        args = (random_array(shape), _places(places, 4, dtype), updates)
        yield Sample(args=args, attrs=ScatterNDAttrs(mode=mode))
    for dtype in ANY.examples:
        data = random_array((4, 2), "int8").astype(dtype if dtype != "bfloat16" else "float32")
        yield exact(ScatterNDAttrs(), data, _places((1, 2), 4, "int64"), data[:2].copy())


scatter_nd = OpDef(
    name="scatter_nd",
    attrs=ScatterNDAttrs,
    args=args("data", "indices", "updates"),
    infer=_nd_infer,
    reference=_nd_reference,
    axes=_nd_axes,
    compute=_nd_compute,
    precision=Precision.FOLLOW,
    samples=_nd_samples,
)
