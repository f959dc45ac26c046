# SPDX-License-Identifier: Apache-2.0
"""Operators that select elements by static bounds or by position: strided_slice, reverse, trilu
etc.

strided_slice(x, begin=(0, 1), end=(2, 5), strides=(1, 2))
reverse(x, axis=1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product
from numbers import Integral
from operator import and_
from typing import Any, TypeAlias

import numpy as np

from aotc.ir import (
    Arg,
    AxisMap,
    Dim,
    OpPattern,
    QuantizationTreatment,
    SymDim,
    TensorType,
    Type,
    Types,
    assume_at_least,
    declare_arguments,
    frozen,
    interval_of_dim,
    is_static,
    maximum_of_dims,
    minimum_of_dims,
    require,
    require_static_shape,
)
from aotc.ir.attrs import NO_ATTRS, Attrs, attribute_field
from aotc.relay.expr import Constant
from aotc.relay.op.gather import convert_index_to_int64, normalize_negative_index, require_integer_tensor
from aotc.relay.op.opdef import (
    Array,
    Index,
    OpDef,
    Samples,
    Scalar,
    compute_from_element_function,
    reference_from_element_function,
)
from aotc.relay.op.operator_definition import (
    choose,
    exact_sample,
    exact_samples_from_rows,
    greater,
    lesser,
    number_to_constant_converter,
    random_array,
    replace_item,
    to_int_tuple,
)
from aotc.relay.op.type_rules import (
    axis_map_excluding_axis_attribute,
    axis_map_row_without_axes,
    normalize_axis,
    require_dtype,
    require_same_dtype,
    require_tensor_type,
)
from aotc.tir import Tensor, as_expr, maximum, minimum

# --- strided_slice


def _strides_or_ones(strides: Any, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    begin = arguments["begin"]
    count = len(begin) if isinstance(begin, Sequence) else len(to_int_tuple(begin))
    if strides is None:
        return (1,) * count
    has_dims = isinstance(strides, Sequence) and any(isinstance(s, SymDim) for s in strides)
    return tuple(strides) if has_dims else to_int_tuple(strides)


class StridedSliceAttrs(Attrs):
    """data[begin:end:stride] along each of `axes` (None: the leading axes), as Python slices.

    slice_mode  "end"; "size": `end` then has the extents (-1: all remaining elements) and strides are ignored;
                or "count": `end` then has the numbers of elements from `begin` on, in steps of `strides`, all of
                which may be known at run time only: whoever builds the call states that they fit
    """

    begin: tuple[int | SymDim, ...]
    end: tuple[int | SymDim, ...]
    strides: tuple[int | SymDim, ...] = attribute_field(parameter_default=None, convert=_strides_or_ones)
    slice_mode: str = "end"
    axes: tuple[int, ...] | None = attribute_field(parameter_default=None)


@frozen
class _CountedSlice:
    """The `count` elements of an axis from `start` on, in steps of `step`."""

    start: Dim
    count: Dim
    step: Dim


AxisSlice: TypeAlias = "slice | _CountedSlice"


def _slices_by_axis(a: StridedSliceAttrs, rank: int) -> dict[int, AxisSlice]:
    """Return the slice of each listed axis, without axes that size mode leaves whole."""
    count = len(a.begin)
    require("slice.mode", a.slice_mode in ("end", "size", "count"), f"slice mode {a.slice_mode!r} is unknown")
    alike = len(a.end) == count and len(a.strides) in (1, count)
    require("slice.count", alike, lambda: f"{count} begins, {len(a.end)} ends, {len(a.strides)} strides")
    axes = range(count) if a.axes is None else [normalize_axis(k, rank) for k in a.axes]
    fits = len(axes) == count <= rank and len(set(axes)) == count
    require("slice.axes", fits, lambda: f"{count} slices do not fit the axes {list(axes)} of rank {rank}")
    strides = a.strides * count if len(a.strides) == 1 else a.strides
    require(
        "slice.stride", 0 not in strides, "a stride of 0", hint="use 1 or greater, or a negative stride to go backwards"
    )
    if a.slice_mode == "count":
        return {k: _CountedSlice(*bounds) for k, *bounds in zip(axes, a.begin, a.end, strides, strict=True)}
    require("slice.stride", is_static(strides), "steps that are known at run time only need the mode 'count'")
    if a.slice_mode == "end":
        return {k: slice(*bounds) for k, *bounds in zip(axes, a.begin, a.end, strides, strict=True)}
    sized = zip(axes, a.begin, a.end, strict=True)
    known = [(k, int(b), int(size)) for k, b, size in sized if isinstance(b, int) and isinstance(size, int)]
    text = "in the mode 'size', begin and end must be known when the model is compiled"
    require("slice.mode", len(known) == count, text)
    return {k: slice(b, None if size < 0 else b + size, 1) for k, b, size in known if b or size >= 0}


def _extent_of_slice(extent: Dim, axis_slice: AxisSlice) -> Dim:
    if isinstance(axis_slice, _CountedSlice):
        _require_counted_slice_fits(extent, axis_slice)
        return axis_slice.count
    if _is_static_slice(extent, axis_slice):
        return len(range(*axis_slice.indices(extent)))  # type: ignore[arg-type]
    step = 1 if axis_slice.step is None else int(axis_slice.step)
    first, last = _bounds_of_slice(extent, axis_slice, step)
    if step < 0:
        count = minimum_of_dims((first - last, extent - 1 - last))
    else:
        # positions below 0 count as 0
        count = last - first if interval_of_dim(first)[0] >= 0 else minimum_of_dims((last - first, last))
    return (maximum_of_dims((count, 0)) + (abs(step) - 1)) // abs(step)


def _require_counted_slice_fits(extent: Dim, chosen: _CountedSlice) -> None:
    if isinstance(chosen.count, int) and isinstance(chosen.start, int) and isinstance(chosen.step, int):
        require("slice.count", chosen.count >= 0, f"a slice of {chosen.count} elements")
        ends = (chosen.start, chosen.start + chosen.step * (chosen.count - 1))
        fits = not chosen.count or not isinstance(extent, int) or (min(ends) >= 0 and max(ends) < extent)
        require("slice.count", fits, lambda: f"elements {ends[0]} to {ends[1]} of an axis of {extent}")


def _is_static_slice(extent: Dim, axis_slice: slice) -> bool:
    return not any(isinstance(v, SymDim) for v in (extent, axis_slice.start, axis_slice.stop))


def _bounds_of_slice(extent: Dim, axis_slice: slice, step: int) -> tuple[Dim, Dim]:
    """Return the first position of a slice of an axis, not clipped yet, and the position that ends it."""
    if step > 0:
        first = 0 if axis_slice.start is None else _position_from_start(axis_slice.start, extent)
        ends_later = axis_slice.stop is None or interval_of_dim(axis_slice.stop)[0] >= np.iinfo(np.int32).max
        last = extent if ends_later else minimum_of_dims((extent, _position_from_start(axis_slice.stop, extent)))
        return first, last
    first = extent - 1 if axis_slice.start is None else _position_from_start(axis_slice.start, extent)
    last = -1 if axis_slice.stop is None else maximum_of_dims((_position_from_start(axis_slice.stop, extent), -1))
    return first, last


def _position_from_start(position: Dim, extent: Dim) -> Dim:
    """Return a position in an axis that counts from its end if it is negative, counted from its start."""
    least, most = interval_of_dim(position)
    if most < 0:
        return extent + position
    if least >= 0:
        return position
    is_negative = maximum_of_dims((0, minimum_of_dims((1, 0 - position))))  # 1 if it is, else 0
    return position + extent * is_negative


def _infer_strided_slice_type(a: StridedSliceAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    cuts = _slices_by_axis(a, data.rank)
    return TensorType((_extent_of_slice(d, cuts[k]) if k in cuts else d for k, d in enumerate(data.shape)), data.dtype)


def _strided_slice_reference(a: StridedSliceAttrs, data: Array) -> Array:
    for k, cut in _slices_by_axis(a, data.ndim).items():
        if isinstance(cut, _CountedSlice):
            start, count, step = require_static_shape((cut.start, cut.count, cut.step))
            data = data.take(start + step * np.arange(count), k)
        else:
            data = data[(slice(None),) * k + (cut,)]
    return data


def _strided_slice_axis_map(a: StridedSliceAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    return AxisMap((axis_map_row_without_axes(list(_slices_by_axis(a, rank)), rank),))


def _slice_attrs_after_permutation(a: StridedSliceAttrs, types: Types, new_axis_of: Callable[[int], int]) -> Attrs:
    axes = range(len(a.begin)) if a.axes is None else (k % require_tensor_type(types[0]).rank for k in a.axes)
    return a.replace(axes=tuple(map(new_axis_of, axes)))


def _strided_slice_element(a: StridedSliceAttrs, i: Index, data: Tensor) -> Scalar:
    cuts = _slices_by_axis(a, data.rank)
    positions: list[Scalar] = []
    for k, extent in enumerate(data.shape):
        cut = cuts.get(k, slice(None))
        if isinstance(cut, _CountedSlice):
            # a position outside of the axis is never computed, which only a run's sizes show
            at = as_expr(cut.step) * i[k] + as_expr(cut.start)
            positions.append(maximum(minimum(at, as_expr(extent) - 1), 0))
        else:
            first, step = _first_and_step_of_slice(extent, cut)
            positions.append(i[k] * step + first)
    return data[tuple(positions)]


def _first_and_step_of_slice(extent: Dim, axis_slice: slice) -> tuple[Dim, int]:
    """Return the first position of a slice of an axis, and the distance between its positions."""
    if _is_static_slice(extent, axis_slice):
        found = range(*axis_slice.indices(extent))  # type: ignore[arg-type]
        return found.start, found.step
    step = 1 if axis_slice.step is None else int(axis_slice.step)
    first, _ = _bounds_of_slice(extent, axis_slice, step)
    return (maximum_of_dims((first, 0)) if step > 0 else minimum_of_dims((first, extent - 1))), step


_END_OF_AXIS = 2**31 - 1


strided_slice = OpDef(
    name="strided_slice",
    attrs=StridedSliceAttrs,
    order="data begin end strides axes slice_mode",
    infer=_infer_strided_slice_type,
    reference=_strided_slice_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_strided_slice_axis_map,
    moved=_slice_attrs_after_permutation,
    compute=compute_from_element_function("slice", _infer_strided_slice_type, _strided_slice_element),
    samples=exact_samples_from_rows(StridedSliceAttrs, "begin end strides axes slice_mode", (
        ((4, 6), (1, 2), (3, 6), (1, 1), None), ((4, 6), (3, -1), (-5, -7), (-1, -2), None),
        ((4, 6), (-2,), (_END_OF_AXIS,), (1,), (-1,)), ((4, 6), (0, 0), (_END_OF_AXIS, _END_OF_AXIS), (1,), None),
        ((4, 6, 2), (1, 5), (3, 0), (1, -3), (0, 1)), ((4,), (3,), (1,), (1,), None), ((), (), (), (1,), None),
        ((0, 3), (0, 1), (2, 3), (1, 1), None), ((4, 6), (1, 2), (2, -1), (1,), None, "size"),
        ((4, 6), (1, 5), (3, 2), (1, -3), None, "count"), ((4, 6), (0,), (0,), (-1,), (1,), "count"),
    )),
)  # fmt: skip


# --- strided_set


def _is_in_slice_and_slice_index(position: Any, extent: int, begin: Any, end: Any, stride: Any) -> tuple[Any, Any]:
    """Return a condition that is True for positions `position` inside a slice of an axis, and their
    index in the slice.

    A stride of 0 counts as 1.
    """
    stride = choose(stride >= 0, greater(stride, 1), stride)
    up = stride > 0
    low, high = choose(up, 0, -1), choose(up, extent, extent - 1)
    first = choose(up, low, high) if begin is None else normalize_negative_index(begin, extent)
    last = choose(up, high, low) if end is None else normalize_negative_index(end, extent)
    first, last = (lesser(greater(x, low), high) for x in (first, last))
    at, rest = (position - first) // stride, (position - first) % stride
    return (rest >= 0) & (rest <= 0) & (at >= 0) & choose(up, position < last, position > last), at


def _strided_set_element(_: Any, i: Index, data: Any, values: Any, *bounds: Any) -> Any:
    if not data.shape:
        return values[()]
    inside, where = [], []
    for k, extent in enumerate(data.shape):
        begin, end, stride = (convert_index_to_int64(x[(k,)]) if k < x.shape[0] else None for x in bounds)
        within, at = _is_in_slice_and_slice_index(i[k], extent, begin, end, i[k] * 0 + 1 if stride is None else stride)
        inside.append(within & (at < values.shape[k]))
        where.append(lesser(greater(at, 0), values.shape[k] - 1))
    return choose(reduce(and_, inside), values[tuple(where)], data[i])


def _infer_strided_set_type(_: Any, types: Types) -> Type:
    data, v, *bounds = map(require_tensor_type, types)
    require_same_dtype(data, v)
    require("strided_set.rank", data.rank == v.rank, lambda: f"ranks of {data} and {v} differ")
    for bound in map(require_integer_tensor, bounds, ("begin", "end", "strides")):
        fits = bound.rank == 1 and isinstance(bound.shape[0], int) and bound.shape[0] <= data.rank
        text = f"begin, end and strides must be vectors of at most {data.rank} numbers, one per axis of {data}"
        require("slice.count", fits, f"{text}, got {bound}")
    require("strided_set.empty", 0 not in v.shape, lambda: f"there are no values in {v}")
    for extent in v.shape:
        assume_at_least(extent, 1)
    return data


def _slice_bounds_to_constant(value: Any, _: Any) -> Any:
    """Convert integers to a constant vector and None to a stride of 1; leave expressions unchanged."""
    if value is not None and not isinstance(value, Sequence):
        return value
    numbers = [1] if value is None else value
    fits = all(isinstance(v, Integral) for v in numbers)
    require("indices", fits, f"slice bounds must be integers, got {value}")
    return Constant(np.array(numbers, np.int64))


def _strided_set_test_samples() -> Samples:
    for begin, end, strides, shape in (
        ((0, 0), (4, -8), (1, -1), (3, 1)),
        ((1, 1), (9, 4), (2, 1), (1, 3)),
        ((-1,), (0,), (-1,), (2, 4)),
        ((1,), (2, 2), (1,), (1, 2)),
        ((0, 3), (3, -9), (1, -2), (3, 2)),
        ((0,), (3,), (0,), (2, 4)),
    ):  # fmt: skip
        bounds = (np.array(b, np.int32) for b in (begin, end, strides))
        yield exact_sample(NO_ATTRS, random_array((3, 4)), random_array(shape, seed=1), *bounds)


strided_set = OpDef(
    name="strided_set",
    doc="A copy of `data` in which the slice data[begin:end:strides] is `v`; what `v` is too small for stays.",
    args=declare_arguments(
        "data",
        "v",
        *(Arg(name, "Sequence[int] | Expr", takes=_slice_bounds_to_constant) for name in ("begin", "end")),
        Arg("strides", "Sequence[int] | Expr | None", None, _slice_bounds_to_constant),
    ),
    infer=_infer_strided_set_type,
    reference=reference_from_element_function(_infer_strided_set_type, _strided_set_element),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None,) * require_tensor_type(types[0]).rank,)),
    element=_strided_set_element,
    samples=_strided_set_test_samples,
)


# --- reverse


class ReverseAttrs(Attrs):
    """`data` in reverse order along an axis."""

    axis: int


def _infer_reverse_type(a: ReverseAttrs, types: Types) -> Type:
    normalize_axis(a.axis, require_tensor_type(types[0]).rank)
    return types[0]


def _reverse_element(a: ReverseAttrs, i: Index, data: Tensor) -> Scalar:
    axis = normalize_axis(a.axis, data.rank)
    return data[replace_item(i, axis, data.shape[axis] - 1 - i[axis])]


reverse = OpDef(
    name="reverse",
    attrs=ReverseAttrs,
    infer=_infer_reverse_type,
    reference=lambda a, x: np.flip(x, a.axis),
    pattern=OpPattern.INJECTIVE,
    axes=axis_map_excluding_axis_attribute,
    element=_reverse_element,
    samples=exact_samples_from_rows(
        ReverseAttrs, "axis", (((2, 3), 1), ((2, 3), 0), ((2, 1, 3), -2), ((4,), 0), ((0, 2), 0))
    ),
)


# --- reverse_sequence


class ReverseSequenceAttrs(Attrs):
    """The first seq_lengths[b] elements of each batch item b in reverse order, followed by its
    other elements unchanged.
    """

    seq_axis: int = 1
    batch_axis: int = 0


def _sequence_and_batch_axis(a: ReverseSequenceAttrs, rank: int) -> tuple[int, int]:
    sequence, batch = normalize_axis(a.seq_axis, rank), normalize_axis(a.batch_axis, rank)
    require("reverse_sequence.axes", sequence != batch, "the sequence axis and the batch axis are identical")
    return sequence, batch


def _infer_reverse_sequence_type(a: ReverseSequenceAttrs, types: Types) -> Type:
    data, lengths = require_tensor_type(types[0], "data"), require_tensor_type(types[1], "lengths")
    _, batch = _sequence_and_batch_axis(a, data.rank)
    fits = lengths.shape == (data.shape[batch],) and lengths.dtype.is_integer
    require("reverse_sequence.lengths", fits, lambda: f"one integer length per batch expected, got {lengths}")
    return data


def _reverse_sequence_axis_map(a: ReverseSequenceAttrs, types: Types) -> AxisMap:
    rank = require_tensor_type(types[0]).rank
    sequence, batch = _sequence_and_batch_axis(a, rank)
    return AxisMap((axis_map_row_without_axes([sequence], rank), tuple(0 if k == batch else None for k in range(rank))))


def _reverse_sequence_element(a: ReverseSequenceAttrs, i: Index, data: Any, lengths: Any) -> Any:
    sequence, batch = _sequence_and_batch_axis(a, len(data.shape))
    at, length = i[sequence], lesser(convert_index_to_int64(lengths[(i[batch],)]), data.shape[sequence])
    return data[replace_item(i, sequence, choose(at < length, length - 1 - at, at))]


def _reverse_sequence_test_samples() -> Samples:
    cases: Any = (((3, 4), 1, 0), ((4, 3, 2), 0, 1), ((2, 3, 4), -1, 1), ((0, 2), 1, 0))
    for (shape, sequence, batch), dtype in product(cases, ("int32", "int64")):
        lengths = np.array([2, 0, 9, 1, 3][: shape[batch]], dtype)
        yield exact_sample(ReverseSequenceAttrs(seq_axis=sequence, batch_axis=batch), random_array(shape), lengths)


reverse_sequence = OpDef(
    name="reverse_sequence",
    attrs=ReverseSequenceAttrs,
    args=declare_arguments("data", "seq_lengths"),
    infer=_infer_reverse_sequence_type,
    reference=reference_from_element_function(_infer_reverse_sequence_type, _reverse_sequence_element),
    pattern=OpPattern.INJECTIVE,
    axes=_reverse_sequence_axis_map,
    element=_reverse_sequence_element,
    quantized=QuantizationTreatment.PASS,
    samples=_reverse_sequence_test_samples,
)


# --- trilu


class TriluAttrs(Attrs):
    """The upper (or lower) triangle of each matrix, bounded by diagonal k, with zeros elsewhere."""

    upper: bool = True


def _infer_trilu_type(a: TriluAttrs, types: Types) -> Type:
    data, k = require_tensor_type(types[0], "data"), require_tensor_type(types[1], "k")
    require("trilu.rank", data.rank >= 2, lambda: f"a matrix or a batch of them expected, got {data}")
    require_dtype(data.dtype, data.dtype.can_represent_zero)
    require(
        "trilu.k", k.rank == 0 and k.dtype.is_integer, f"the number k of a diagonal must be an integer scalar, got {k}"
    )
    return data


def _trilu_element(a: TriluAttrs, i: Index, data: Any, diagonal_offset: Any) -> Any:
    diagonal, offset = i[-1] - i[-2], convert_index_to_int64(diagonal_offset[()])
    in_triangle = diagonal >= offset if a.upper else diagonal <= offset
    return choose(in_triangle, data[i], 0)


def _trilu_test_samples() -> Samples:
    for shape, k, upper in (
        ((3, 4), 0, True), ((3, 4), 1, False), ((2, 4, 3), -1, True), ((2, 2), 9, True), ((1, 3), -9, False),
        ((0, 3), 0, True),
    ):  # fmt: skip
        yield exact_sample(TriluAttrs(upper=upper), random_array(shape), np.array(k, np.int64))
    yield exact_sample(TriluAttrs(), random_array((3, 3), "bool"), np.array(0, np.int32))


trilu = OpDef(
    name="trilu",
    attrs=TriluAttrs,
    args=declare_arguments(
        "data", Arg("k", "Expr | int", given=0, takes=number_to_constant_converter(lambda _: "int32"))
    ),
    infer=_infer_trilu_type,
    reference=reference_from_element_function(_infer_trilu_type, _trilu_element),
    pattern=OpPattern.ELEMWISE,
    axes=lambda _, types: AxisMap(((*range(require_tensor_type(types[0]).rank - 2), None, None),)),
    element=_trilu_element,
    samples=_trilu_test_samples,
)
