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

from aotc.ir import (
    Attrs,
    AxisMap,
    Dim,
    PrecisionTreatment,
    TensorType,
    Type,
    Types,
    declare_arguments,
    product_of_dims,
    require,
    require_static_shape,
)
from aotc.relay.op.gather import (
    check_indices_fit_except_along,
    checked_index_tuple_length,
    convert_index_to_int64,
    normalize_negative_index,
    require_integer_tensor,
)
from aotc.relay.op.opdef import Array, OpDef, Sample, Samples, Scalar
from aotc.relay.op.operator_definition import (
    may_be_equal_dims,
    normalize_axis,
    replace_item,
    require_known_name,
    require_same_dtype,
    require_tensor_type,
    to_numpy_computable_dtype,
)
from aotc.relay.op.operator_test_inputs import ANY_DTYPE_KIND, NUMBER_KIND, exact_sample, random_array, sample_accuracy
from aotc.tir import BOOL, INDEX, Block, Buffer, Const, Declare, If, Load, Stmt, Store, Tensor, Var, binary, forall, te
from aotc.tir.stmt import loop_nest

#: For each reduction, the tir operation that combines an update with the present value; ""
#: overwrites it.
SCATTER_REDUCTIONS: Final = {"update": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}
_UFUNC_BY_REDUCTION: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


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


def _require_scatter_types(types: Types, reduction: str) -> tuple[TensorType, TensorType, TensorType]:
    data, indices, updates = (
        require_tensor_type(types[0], "data"),
        require_integer_tensor(types[1]),
        require_tensor_type(types[2], "updates"),
    )
    require_known_name("scatter.reduction", "reduction", reduction, SCATTER_REDUCTIONS)
    require_same_dtype(data, updates)
    fits = reduction == "update" or not data.dtype.is_bool
    require("dtype", fits, lambda: f"reduction {reduction!r} of bool")
    return data, indices, updates


def _copy_with_updates_at_flat_positions(
    data: Array, flat_positions: Array, is_valid: Array, updates: Array, reduction: str
) -> Array:
    """Return a copy of `data` with `updates` written to the flat positions `flat_positions` for
    which `is_valid` is True.
    """
    result: Array = data.reshape(-1).copy()
    at, values = flat_positions[is_valid], updates[is_valid]
    if reduction == "update":
        result[at] = values
        return np.reshape(result, data.shape)
    work = to_numpy_computable_dtype(result)
    _UFUNC_BY_REDUCTION[reduction].at(work, at, values.astype(work.dtype))
    return np.reshape(work.astype(data.dtype), data.shape)


def _compute_scatter_loops(
    name: str,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    reduction: str,
    locate_update: Callable[[Sequence[Var], Buffer], tuple[Scalar, Scalar, Scalar]],
    grid: Sequence[Dim],
    elements_per_update: Dim,
) -> Tensor:
    """Return a tensor program that copies the data, then applies the updates in order.

    locate_update          (position in the grid of updates, index buffer) -> (True if the target exists,
                           offset of its first element, offset of the update's first element)
    elements_per_update    number of contiguous elements that each update writes
    """
    op = SCATTER_REDUCTIONS[reduction]

    def build_scatter_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        source, where, changes = inputs
        (out,) = outputs
        i, j, at = Var("i"), Var("j"), Var("at")
        axes = [(Var(f"u{k}"), extent) for k, extent in enumerate(grid)]
        inside, target, change = locate_update([v for v, _ in axes], where)
        value: Scalar = Load(changes, change + j)
        if op:
            value = binary(op, Load(out, at + j), value)
        write = forall(j, elements_per_update, Store(out, at + j, value))
        body = If(inside, Block((Declare(at, target), write)))
        copy = forall(i, data.live_size, Store(out, i, Load(source, i)))
        return Block((copy, loop_nest(axes, body)))

    tensors, kinds = (data, indices, updates), [(data.shape, data.dtype)]
    return te.extern(name, kinds, tensors, build_scatter_loops, takes_sizes=True)[0]


def _validity_and_normalized_index(index: Any, extent: int) -> tuple[Any, Any]:
    """Return a condition that is True for valid indices, and the indices with negative ones counted
    from the end.
    """
    at = normalize_negative_index(index, extent)
    return (at >= 0) & (at < extent), at


# --- scatter_elements


def _infer_scatter_elements_type(a: ScatterElementsAttrs, types: Types) -> Type:
    data, indices, updates = _require_scatter_types(types, a.reduction)
    check_indices_fit_except_along(normalize_axis(a.axis, data.rank), data, indices, "scatter")
    same = indices.rank == updates.rank and all(map(may_be_equal_dims, indices.shape, updates.shape))
    require("scatter.updates", same, lambda: f"indices {indices} and updates {updates} have different shapes")
    return data


def _scatter_elements_reference(a: ScatterElementsAttrs, data: Array, indices: Array, updates: Array) -> Array:
    tuples = np.indices(indices.shape)
    tuples[normalize_axis(a.axis, data.ndim)] = convert_index_to_int64(indices)
    return _scatter_nd_reference(ScatterNDAttrs(mode=a.reduction), data, tuples, updates)


def _scatter_elements_axis_map(a: ScatterElementsAttrs, types: Types) -> AxisMap:
    data, indices = require_tensor_type(types[0]), require_tensor_type(types[1])
    axis = normalize_axis(a.axis, data.rank)
    row = tuple(k if k != axis and data.shape[k] == indices.shape[k] else None for k in range(data.rank))
    return AxisMap((row, row, row))


def _compute_scatter_elements(a: ScatterElementsAttrs, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = normalize_axis(a.axis, data.rank)
    extent = data.shape[axis]

    def locate_update(update_index: Sequence[Var], index_buffer: Buffer) -> tuple[Scalar, Scalar, Scalar]:
        flat_position = te.flat_index(indices.shape, update_index)
        inside, at = _validity_and_normalized_index(Load(index_buffer, flat_position), extent)
        return inside, te.flat_index(data.shape, replace_item(list(update_index), axis, at)), flat_position

    return _compute_scatter_loops("scatter", data, indices, updates, a.reduction, locate_update, updates.shape, 1)


def _random_duplicate_and_invalid_indices(shape: Sequence[int], extent: int, dtype: str) -> Array:
    """Return random indices, with duplicates, negative and out-of-range ones."""
    return np.random.default_rng(3).integers(-extent - 1, extent + 1, tuple(shape)).astype(dtype)


def _scatter_elements_test_samples() -> Samples:
    cases: Any = (
        ((3, 5), (3, 2), 1), ((3, 5), (2, 5), 0), ((2, 3, 4), (2, 2, 9), -1), ((5,), (9,), 0), ((3, 5), (0, 5), 0),
        ((0, 5), (0, 2), 1),
    )  # fmt: skip
    for (shape, places, axis), (reduction, dtype) in product(cases, zip(SCATTER_REDUCTIONS, cycle(("int64", "int32")))):
        args = (
            random_array(shape),
            _random_duplicate_and_invalid_indices(places, shape[axis], dtype),
            random_array(places, seed=1),
        )
        yield Sample(args=args, attrs=ScatterElementsAttrs(axis=axis, reduction=reduction))
    for dtype, reduction in product(NUMBER_KIND.examples, SCATTER_REDUCTIONS):
        args = (
            random_array((4, 2), dtype),
            _random_duplicate_and_invalid_indices((5, 2), 4, "int64"),
            random_array((5, 2), dtype, 1),
        )
        yield Sample(args=args, attrs=ScatterElementsAttrs(reduction=reduction), accuracy=sample_accuracy(dtype))


scatter_elements = OpDef(
    name="scatter_elements",
    attrs=ScatterElementsAttrs,
    args=declare_arguments("data", "indices", "updates"),
    infer=_infer_scatter_elements_type,
    reference=_scatter_elements_reference,
    axes=_scatter_elements_axis_map,
    compute=_compute_scatter_elements,
    precision=PrecisionTreatment.FOLLOW,
    samples=_scatter_elements_test_samples,
)


# --- scatter_nd


def _infer_scatter_nd_type(a: ScatterNDAttrs, types: Types) -> Type:
    data, indices, updates = _require_scatter_types(types, a.mode)
    expected = (*indices.shape[1:], *data.shape[checked_index_tuple_length("scatter_nd", data, indices) :])
    same = len(expected) == updates.rank and all(map(may_be_equal_dims, expected, updates.shape))
    require("scatter_nd.updates", same, lambda: f"updates must be {TensorType(expected, data.dtype)}, got {updates}")
    return data


def _scatter_nd_reference(a: ScatterNDAttrs, data: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[0]
    run = prod(data.shape[depth:])
    tuples = indices.reshape(depth, prod(indices.shape[1:]))
    inside = np.ones(tuples.shape[1], np.bool_)
    flat = np.zeros(tuples.shape[1], np.int64)
    for m in range(depth):
        exists, at = _validity_and_normalized_index(tuples[m], data.shape[m])
        inside &= exists
        flat = flat * data.shape[m] + at
    places = flat[:, None] * run + np.arange(run)
    mask = np.broadcast_to(inside[:, None], places.shape)
    return _copy_with_updates_at_flat_positions(data, places, mask, updates.reshape(places.shape), a.mode)


def _scatter_nd_axis_map(_: ScatterNDAttrs, types: Types) -> AxisMap:
    rank, (depth, *grid) = require_tensor_type(types[0]).rank, require_tensor_type(types[1]).shape
    assert isinstance(depth, int)
    none = (None,) * depth
    rows = (*none, *range(depth, rank)), (None,) * rank, (*none, *range(len(grid), len(grid) + rank - depth))
    return AxisMap(rows)


def _compute_scatter_nd(a: ScatterNDAttrs, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    (depth,) = require_static_shape(indices.shape[:1])
    count, run = product_of_dims(indices.shape[1:]), product_of_dims(data.shape[depth:])

    def locate_scatter_nd_update(update_index: Sequence[Var], index_buffer: Buffer) -> tuple[Scalar, Scalar, Scalar]:
        (n,) = update_index
        inside: Scalar = Const(True, BOOL)
        flat: Scalar = Const(0, INDEX)
        for m in range(depth):
            exists, at = _validity_and_normalized_index(Load(index_buffer, n + m * count), data.shape[m])
            inside, flat = inside & exists, flat * data.shape[m] + at
        return inside, flat * run, n * run

    grid = (count if 0 not in data.shape[depth:] else 0,)
    return _compute_scatter_loops("scatter_nd", data, indices, updates, a.mode, locate_scatter_nd_update, grid, run)


def _scatter_nd_test_samples() -> Samples:
    cases: Any = (
        ((4, 4), (2, 3)), ((4, 3), (1, 5)), ((4, 4, 2), (2, 2, 2)), ((4,), (1, 9)), ((4, 3), (1, 0)), ((2, 3), (0, 2)),
        ((4, 4), (2,)),
    )  # fmt: skip
    for (shape, places), (mode, dtype) in product(cases, zip(SCATTER_REDUCTIONS, cycle(("int64", "int32")))):
        updates = random_array((*places[1:], *shape[places[0] :]), seed=1)
        args = (random_array(shape), _random_duplicate_and_invalid_indices(places, 4, dtype), updates)
        yield Sample(args=args, attrs=ScatterNDAttrs(mode=mode))
    for dtype in ANY_DTYPE_KIND.examples:
        data = random_array((4, 2), "int8").astype(dtype if dtype != "bfloat16" else "float32")
        yield exact_sample(
            ScatterNDAttrs(), data, _random_duplicate_and_invalid_indices((1, 2), 4, "int64"), data[:2].copy()
        )


scatter_nd = OpDef(
    name="scatter_nd",
    attrs=ScatterNDAttrs,
    args=declare_arguments("data", "indices", "updates"),
    infer=_infer_scatter_nd_type,
    reference=_scatter_nd_reference,
    axes=_scatter_nd_axis_map,
    compute=_compute_scatter_nd,
    precision=PrecisionTreatment.FOLLOW,
    samples=_scatter_nd_test_samples,
)
