# SPDX-License-Identifier: Apache-2.0
"""Concatenation, stacking, splitting and repetition of tensors.

concatenate((x, y), axis=1)
split(x, 2, axis=0)                    # a tuple of two
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from aotc.ir import (
    Attrs,
    Dim,
    Shape,
    SymDim,
    TensorType,
    TupleType,
    Type,
    assume_at_least,
    assume_equal_dims,
    indexdiv,
    product_of_dims,
    require_static_shape,
    sum_of_dims,
)
from aotc.ir.op import Arg, AxisMap, OpPattern, QuantizationTreatment, Types, declare_arguments, require
from aotc.relay.expr import Expr, Tuple, tensor_type_of, tuple_item
from aotc.relay.op import shape as views
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Scalar,
    exact_samples_from_rows,
    replace_item,
    require_tensor_fields,
)
from aotc.relay.op.shape import multiply_dim
from aotc.relay.op.type_rules import (
    axis_map_excluding_axis_attribute,
    axis_map_excluding_axis_attribute_or_flat,
    normalize_axis,
    require_known_name,
    require_same_dtype,
    require_tensor_type,
)
from aotc.tir import Block, Buffer, Load, Stmt, Store, Tensor, Var, forall, select, te

#: Largest number of tensors that are concatenated by a selection per element instead of a copy per
#: tensor.
_MAX_SELECTED_CONCAT_TENSORS = 16


def sequence_to_tuple_expr(data: Any, _: Any) -> Any:
    """Convert a sequence of expressions to a Tuple; leave a single expression unchanged."""
    return Tuple(data) if isinstance(data, Sequence) else data


_TENSOR_SEQUENCE_ARGS = declare_arguments(Arg("data", "Sequence[Expr] | Expr", takes=sequence_to_tuple_expr))


def _require_equal_rank_and_dtype(types: Sequence[TensorType], op_name: str) -> TensorType:
    """Return the first of `types`; raise AotcError unless there is one and all have equal rank and
    dtype.
    """
    require(f"{op_name}.empty", len(types) > 0, "no tensors to join")
    first = types[0]
    for other in types[1:]:
        require(f"{op_name}.rank", other.rank == first.rank, f"ranks of {first} and {other} differ")
        require_same_dtype(first, other)
    return first


def _require_common_dim(dims: Sequence[Dim], op_name: str) -> Dim:
    """Return the dimension that all `dims` must equal, a static one if there is any; raise
    AotcError if they differ.
    """
    known = {d for d in dims if isinstance(d, int)}
    require(f"{op_name}.shape", len(known) <= 1, lambda: f"dimensions {', '.join(map(str, dims))} should be equal")
    common = known.pop() if known else dims[0]
    for dim in dims:
        assume_equal_dims(dim, common)
    return common


# --- concatenate


class ConcatenateAttrs(Attrs):
    """Tensors concatenated along an existing axis."""

    axis: int = 0


def _infer_concatenate_type(a: ConcatenateAttrs, types: Types) -> Type:
    fields = require_tensor_fields(types[0], "data")
    first = _require_equal_rank_and_dtype(fields, "concatenate")
    axis = normalize_axis(a.axis, first.rank)
    columns = list(zip(*(t.shape for t in fields), strict=True))
    shape = [sum_of_dims(c) if k == axis else _require_common_dim(c, "concatenate") for k, c in enumerate(columns)]
    return TensorType(shape, first.dtype)


def _read_concatenated_element_by_bisection(
    starts: Sequence[int], element_readers: Sequence[Callable[[Scalar], Scalar]], index: Scalar
) -> Scalar:
    """Return the part that `index` falls into (part k begins at starts[k]), selected by bisection."""
    if len(element_readers) == 1:
        return element_readers[0](index - starts[0])
    half = len(element_readers) // 2
    low = _read_concatenated_element_by_bisection(starts[:half], element_readers[:half], index)
    high = _read_concatenated_element_by_bisection(starts[half:], element_readers[half:], index)
    return select(index < starts[half], low, high)


def _element_reader_along_axis(x: Tensor, axis: int, indices: Sequence[Scalar]) -> Callable[[Scalar], Scalar]:
    return lambda index: x[replace_item(indices, axis, index)]


def _concatenate_by_copy_loops(tensors: Sequence[Tensor], axis: int, shape: Sequence[int]) -> Tensor:
    """Return a concatenation that copies each tensor in contiguous runs."""
    outer = prod(shape[:axis])
    runs = [t.size // max(outer, 1) for t in tensors]
    row = sum(runs)

    def build_copy_loops(inputs: Sequence[Buffer], outputs: Sequence[Buffer], _: Sequence[Buffer]) -> Stmt:
        copies: list[Stmt] = []
        for source, run, start in zip(inputs, runs, accumulate(runs, initial=0), strict=False):
            o, j = Var("o"), Var("j")
            copy = Store(outputs[0], o * row + (j + start), Load(source, o * run + j))
            copies.append(forall(o, outer, forall(j, run, copy)))
        return Block(copies)

    return te.extern("concatenate", [(shape, tensors[0].dtype)], tensors, build_copy_loops)[0]


def _compute_concatenate(a: ConcatenateAttrs, data: Sequence[Tensor]) -> Tensor:
    axis = normalize_axis(a.axis, data[0].rank)
    tensors = [t for t in data if t.shape[axis] != 0] or [data[0]]
    first = tensors[0]
    starts = list(accumulate((t.shape[axis] for t in tensors), initial=0))
    shape = replace_item(first.shape, axis, starts[-1])
    if len(tensors) > _MAX_SELECTED_CONCAT_TENSORS:
        return _concatenate_by_copy_loops(tensors, axis, shape)

    def select_concatenated_element(*i: Scalar) -> Scalar:
        return _read_concatenated_element_by_bisection(
            starts[:-1], [_element_reader_along_axis(t, axis, i) for t in tensors], i[axis]
        )

    return te.compute(shape, select_concatenated_element, "concatenate")


concatenate = OpDef(
    name="concatenate",
    attrs=ConcatenateAttrs,
    args=_TENSOR_SEQUENCE_ARGS,
    infer=_infer_concatenate_type,
    reference=lambda a, data: np.concatenate(data, axis=a.axis),
    pattern=OpPattern.INJECTIVE,
    axes=axis_map_excluding_axis_attribute,
    compute=_compute_concatenate,
    quantized=QuantizationTreatment.RESCALE,
    samples=exact_samples_from_rows(ConcatenateAttrs, "axis", (
        (((2, 3), (2, 1), (2, 2)), 1), (((2, 3), (1, 3)), 0), (((2, 3, 2), (2, 1, 2)), -2), (((4,),), 0),
        (((2,), (0,), (3,)), 0), (((0, 2), (0, 3)), 1), (((2, 1),) * 20, 1),
    )),
)  # fmt: skip


# --- stack


class StackAttrs(Attrs):
    """Tensors of equal shape stacked along a new axis."""

    axis: int = 0


def _infer_stack_type(a: StackAttrs, types: Types) -> Type:
    fields = require_tensor_fields(types[0], "data")
    first = _require_equal_rank_and_dtype(fields, "stack")
    axis = normalize_axis(a.axis, first.rank + 1)
    shape = [_require_common_dim(c, "stack") for c in zip(*(t.shape for t in fields), strict=True)]
    return TensorType((*shape[:axis], len(fields), *shape[axis:]), first.dtype)


def _stack_axis_map(a: StackAttrs, types: Types) -> AxisMap:
    rank = require_tensor_fields(types[0])[0].rank
    axis = normalize_axis(a.axis, rank + 1)
    return AxisMap(((*range(axis), None, *range(axis, rank)),))


def _expand_stack(a: StackAttrs, data: Expr) -> Expr:
    assert isinstance(data.checked_type, TupleType)
    parts = [tuple_item(data, k) for k in range(len(data.checked_type.fields))]
    axis = normalize_axis(a.axis, tensor_type_of(parts[0]).rank + 1)
    return concatenate([views.expand_dims(part, axis) for part in parts], axis)


stack = OpDef(
    name="stack",
    attrs=StackAttrs,
    args=_TENSOR_SEQUENCE_ARGS,
    infer=_infer_stack_type,
    reference=lambda a, data: np.stack(data, axis=a.axis),
    pattern=OpPattern.INJECTIVE,
    axes=_stack_axis_map,
    quantized=QuantizationTreatment.RESCALE,
    expand=_expand_stack,
    samples=exact_samples_from_rows(StackAttrs, "axis", (
        (((3,),) * 2, 1), (((2, 3),) * 3, 1), (((2, 3),) * 2, 0), (((2, 3),) * 2, -1), (((),) * 2, 0), (((4,),), 0),
        (((0, 2),) * 2, 0),
    )),
)  # fmt: skip


# --- meshgrid


class MeshgridAttrs(Attrs):
    """Coordinate grids: each vector (or scalar) along its own axis, repeated along the axes of the
    other vectors.

    indexing  "ij", or "xy" to exchange the first two axes
    """

    indexing: str = "ij"


def _meshgrid_shape_and_axes(a: MeshgridAttrs, types: Types) -> tuple[TensorType, Shape, list[int]]:
    """Return the type of the first vector, the shape of each result, and the result axis of each
    vector.
    """
    require_known_name("meshgrid.indexing", "indexing", a.indexing, ("ij", "xy"))
    fields = require_tensor_fields(types[0], "data")
    require("meshgrid.empty", len(fields) > 0, "there are no vectors")
    for other in fields:
        require("meshgrid.rank", other.rank <= 1, lambda: f"data must be vectors and scalars, got {types[0]}")
        require_same_dtype(fields[0], other)
    axes = [*range(len(fields))]
    if a.indexing == "xy":
        axes[:2] = axes[1::-1]
    lengths: Shape = tuple(t.shape[0] if t.rank else 1 for t in fields)
    return fields[0], tuple(lengths[k] for k in axes), axes


def _infer_meshgrid_type(a: MeshgridAttrs, types: Types) -> Type:
    first, shape, axes = _meshgrid_shape_and_axes(a, types)
    return TupleType([TensorType(shape, first.dtype)] * len(axes))


def _expand_meshgrid(a: MeshgridAttrs, data: Expr) -> Expr:
    assert data.checked_type is not None
    _, shape, axes = _meshgrid_shape_and_axes(a, (data.checked_type,))
    wide = require_static_shape(shape)
    parts = ((tuple_item(data, k), replace_item((1,) * len(wide), axis, wide[axis])) for k, axis in enumerate(axes))
    return Tuple(
        [views.broadcast_to(views.reshape(x, axis_shape, allowzero=0 in axis_shape), wide) for x, axis_shape in parts]
    )


meshgrid = OpDef(
    name="meshgrid",
    attrs=MeshgridAttrs,
    args=_TENSOR_SEQUENCE_ARGS,
    infer=_infer_meshgrid_type,
    reference=lambda a, data: tuple(np.meshgrid(*data, indexing=a.indexing)),
    pattern=OpPattern.BROADCAST,
    expand=_expand_meshgrid,
    samples=exact_samples_from_rows(MeshgridAttrs, "indexing", (
        (((3,), (2,)), "ij"), (((3,), (1,), (2,)), "xy"), (((2,), ()), "ij"), (((4,),), "xy"), (((2,), (0,)), "ij"),
    )),
)  # fmt: skip


# --- split


class SplitAttrs(Attrs):
    """A tuple of parts of the data along `axis`.

    An integer `indices_or_sections` is the number of equal parts. A tuple lists the start of each
    part except the first, which starts at 0.
    """

    indices_or_sections: int | tuple[int, ...]
    axis: int = 0


def split_part_bounds(a: SplitAttrs, extent: int) -> list[tuple[int, int]]:
    """Return the begin and the end of each part; raise AotcError if the extent cannot be split so."""
    where = a.indices_or_sections
    if isinstance(where, int):
        require(
            "split.sections", where > 0 and extent % where == 0, f"{extent} cannot be split into {where} equal parts"
        )
        where = tuple(k * (extent // where) for k in range(1, where))
    edges = (0, *where, extent)
    ordered = list(edges) == sorted(edges)
    require("split.indices", ordered, f"split points {where} are not ascending within {extent}")
    return list(pairwise(edges))


def _split_part_extents(a: SplitAttrs, extent: Dim) -> list[Dim]:
    if isinstance(extent, int):
        return [stop - start for start, stop in split_part_bounds(a, extent)]
    where = a.indices_or_sections
    if isinstance(where, int):
        require("split.sections", where > 0, f"cannot split into {where} parts")
        part = indexdiv(extent, where)
        assume_equal_dims(extent, product_of_dims((part, where)))
        return [part] * where
    assume_at_least(extent, where[-1] if where else 0)
    known = split_part_bounds(a, where[-1] if where else 0)[:-1]
    return [*(stop - start for start, stop in known), extent - (where[-1] if where else 0)]


def _infer_split_type(a: SplitAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    axis = normalize_axis(a.axis, data.rank)
    extents = _split_part_extents(a, data.shape[axis])
    return TupleType(TensorType(replace_item(data.shape, axis, e), data.dtype) for e in extents)


def _split_reference(a: SplitAttrs, data: Array) -> tuple[Array, ...]:
    axis = normalize_axis(a.axis, data.ndim)
    return tuple(np.split(data, [start for start, _ in split_part_bounds(a, data.shape[axis])[1:]], axis))


def _compute_split(a: SplitAttrs, data: Tensor) -> tuple[Tensor, ...]:
    axis = normalize_axis(a.axis, data.rank)

    def slice_along_split_axis(start: Dim, extent: Dim) -> Tensor:
        shape = replace_item(data.shape, axis, extent)
        return te.compute(shape, lambda *i: data[replace_item(i, axis, i[axis] + start)], "split")

    extents = _split_part_extents(a, data.shape[axis])
    starts = accumulate(extents, initial=0)
    return tuple(slice_along_split_axis(start, extent) for start, extent in zip(starts, extents, strict=False))


split = OpDef(
    name="split",
    attrs=SplitAttrs,
    infer=_infer_split_type,
    reference=_split_reference,
    pattern=OpPattern.INJECTIVE,
    axes=axis_map_excluding_axis_attribute,
    compute=_compute_split,
    samples=exact_samples_from_rows(
        SplitAttrs,
        "indices_or_sections axis",
        (((2, 6), 3, 1), ((2, 6), (1, 4), -1), ((4, 3), 2), ((4,), 1), ((4,), ()), ((4,), (0, 4)), ((0, 4), 2, 1)),
    ),
)


# --- tile, repeat


class TileAttrs(Attrs):
    """The whole tensor repeated `reps` times along its axes, as in numpy.tile."""

    reps: tuple[int | SymDim, ...]


def _pad_tile_shape_and_reps(a: TileAttrs, shape: Shape) -> tuple[Shape, Shape]:
    """Return the data's shape and the repetitions, padded with leading ones to a common length."""
    require("tile.reps", all(isinstance(r, SymDim) or r >= 0 for r in a.reps), f"negative repetitions in {a.reps}")
    rank = max(len(shape), len(a.reps))
    return (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(a.reps)) + a.reps


def _infer_tile_type(a: TileAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    return TensorType(
        (product_of_dims((d, r)) for d, r in zip(*_pad_tile_shape_and_reps(a, data.shape), strict=True)), data.dtype
    )


def _tile_axis_map(a: TileAttrs, types: Types) -> AxisMap:
    shape, reps = _pad_tile_shape_and_reps(a, require_tensor_type(types[0]).shape)
    skip = len(shape) - require_tensor_type(types[0]).rank
    return AxisMap((tuple(k - skip if r == 1 and k >= skip else None for k, r in enumerate(reps)),))


def _compute_tile(a: TileAttrs, data: Tensor) -> Tensor:
    """Compute over axes in (repetition, element) pairs, so that no remainders are needed."""
    shape, reps = _pad_tile_shape_and_reps(a, data.shape)
    extents = te.extents_of(shape)
    skip = len(extents) - data.rank
    pairs = [n for pair in zip(reps, extents, strict=True) for n in pair]
    repeated = te.compute(pairs, lambda *i: data[i[1 + 2 * skip :: 2]], "tile")
    return te.view(repeated, [r * d for r, d in zip(reps, extents, strict=True)], "tile")


tile = OpDef(
    name="tile",
    attrs=TileAttrs,
    infer=_infer_tile_type,
    reference=lambda a, x: np.tile(x, a.reps),
    pattern=OpPattern.BROADCAST,
    axes=_tile_axis_map,
    compute=_compute_tile,
    samples=exact_samples_from_rows(TileAttrs, "reps", (
        ((2, 3), (2, 2)), ((2, 3), (3,)), ((2,), (2, 1, 3)), ((), (2,)), ((2,), (0,)), ((2, 1), (1, 1)),
        ((0, 2), (2, 2)), ((2,), ()),
    )),
)  # fmt: skip


class RepeatAttrs(Attrs):
    """Each element repeated `repeats` times along an axis, as in numpy.repeat; an axis of None
    flattens first.
    """

    repeats: int
    axis: int | None = None


def _infer_repeat_type(a: RepeatAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    require("repeat.count", a.repeats >= 0, f"repeats must not be negative, got {a.repeats}")
    shape = (product_of_dims(data.shape),) if a.axis is None else data.shape
    axis = normalize_axis(a.axis or 0, len(shape))
    return TensorType(replace_item(shape, axis, multiply_dim(shape[axis], a.repeats)), data.dtype)


def _compute_repeat(a: RepeatAttrs, data: Tensor) -> Tensor:
    data = data if a.axis is not None else te.view(data, (data.size,))
    axis = normalize_axis(a.axis or 0, data.rank)
    pairs = (*data.shape[: axis + 1], a.repeats, *data.shape[axis + 1 :])
    repeated = te.compute(pairs, lambda *i: data[i[: axis + 1] + i[axis + 2 :]], "repeat")
    return te.view(repeated, replace_item(data.shape, axis, data.shape[axis] * a.repeats), "repeat")


repeat = OpDef(
    name="repeat",
    attrs=RepeatAttrs,
    infer=_infer_repeat_type,
    reference=lambda a, x: np.repeat(x, a.repeats, a.axis),
    pattern=OpPattern.BROADCAST,
    axes=axis_map_excluding_axis_attribute_or_flat,
    compute=_compute_repeat,
    samples=exact_samples_from_rows(
        RepeatAttrs,
        "repeats axis",
        (((2, 3), 2, 1), ((2, 3), 3, 0), ((2, 3), 2), ((), 2), ((2, 1), 1, -1), ((0, 2), 2, 0)),
    ),
)
