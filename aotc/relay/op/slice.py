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
from typing import Any

import numpy as np

from aotc.ir import Arg, AxisMap, Dim, OpPattern, Quantized, SymDim, TensorType, Type, Types, args, require
from aotc.ir.attrs import NO_ATTRS, Attrs, param
from aotc.relay.expr import Constant
from aotc.relay.op.gather import as_index, counted, integer_tensor
from aotc.relay.op.opdef import Array, Index, OpDef, Samples, Scalar, each_element, of_formula
from aotc.relay.op.operator_definition import (
    choose,
    exact,
    greater,
    ints,
    lesser,
    number,
    random_array,
    replaced,
    samples_of,
)
from aotc.relay.op.type_rules import all_but_axis, axis_of, require_dtype, require_same_dtype, row_but, tensor
from aotc.tir import Tensor

# --- strided_slice


def _steps(strides: Any, given: Mapping[str, Any]) -> tuple[int, ...]:
    return (1,) * len(ints(given["begin"])) if strides is None else ints(strides)


class StridedSliceAttrs(Attrs):
    """data[begin:end:stride] along each of `axes` (None: the leading axes), as Python slices.

    slice_mode  "end", or "size": `end` then has the extents (-1: all remaining elements) and strides are ignored
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...] = param(given=None, takes=_steps)
    slice_mode: str = "end"
    axes: tuple[int, ...] | None = param(given=None)


def _cuts(a: StridedSliceAttrs, rank: int) -> dict[int, slice]:
    """Return the slice of each listed axis, without axes that size mode leaves whole."""
    count = len(a.begin)
    require("slice.mode", a.slice_mode in ("end", "size"), f"slice mode {a.slice_mode!r} is unknown")
    alike = len(a.end) == count and len(a.strides) in (1, count)
    require("slice.count", alike, lambda: f"{count} begins, {len(a.end)} ends, {len(a.strides)} strides")
    axes = range(count) if a.axes is None else [axis_of(k, rank) for k in a.axes]
    fits = len(axes) == count <= rank and len(set(axes)) == count
    require("slice.axes", fits, lambda: f"{count} slices do not fit the axes {list(axes)} of rank {rank}")
    strides = a.strides * count if len(a.strides) == 1 else a.strides
    require(
        "slice.stride", 0 not in strides, "a stride of 0", hint="use 1 or greater, or a negative stride to go backwards"
    )
    if a.slice_mode == "end":
        return {k: slice(*bounds) for k, *bounds in zip(axes, a.begin, a.end, strides, strict=True)}
    sized = zip(axes, a.begin, a.end, strict=True)
    return {k: slice(b, None if size < 0 else b + size, 1) for k, b, size in sized if b or size >= 0}


def _cut_dim(d: Dim, cut: slice) -> Dim:
    if isinstance(d, int):
        return len(range(*cut.indices(d)))
    whole = (cut.start, cut.step) == (0, 1) and (cut.stop is None or cut.stop >= np.iinfo(np.int32).max)
    return d if whole else SymDim(upper=d.upper)


def _slice_infer(a: StridedSliceAttrs, types: Types) -> Type:
    data = tensor(types[0])
    cuts = _cuts(a, data.rank)
    return TensorType((_cut_dim(d, cuts[k]) if k in cuts else d for k, d in enumerate(data.shape)), data.dtype)


def _slice_reference(a: StridedSliceAttrs, data: Array) -> Array:
    cuts = _cuts(a, data.ndim)
    return data[tuple(cuts.get(k, slice(None)) for k in range(data.ndim))]


def _slice_axes(a: StridedSliceAttrs, types: Types) -> AxisMap:
    rank = tensor(types[0]).rank
    return AxisMap((row_but(list(_cuts(a, rank)), rank),))


def _slice_moved(a: StridedSliceAttrs, types: Types, now: Callable[[int], int]) -> Attrs:
    axes = range(len(a.begin)) if a.axes is None else (k % tensor(types[0]).rank for k in a.axes)
    return a.replace(axes=tuple(map(now, axes)))


def _slice_element(a: StridedSliceAttrs, i: Index, data: Tensor) -> Scalar:
    cuts = _cuts(a, data.rank)
    ranges = (range(*cuts[k].indices(d)) if k in cuts else range(d) for k, d in enumerate(data.shape))
    return data[tuple(k * r.step + r.start for k, r in zip(i, ranges, strict=True))]


_BIG = 2**31 - 1


strided_slice = OpDef(
    name="strided_slice",
    attrs=StridedSliceAttrs,
    order="data begin end strides axes slice_mode",
    infer=_slice_infer,
    reference=_slice_reference,
    pattern=OpPattern.INJECTIVE,
    axes=_slice_axes,
    moved=_slice_moved,
    compute=each_element("slice", _slice_infer, _slice_element),
    samples=samples_of(StridedSliceAttrs, "begin end strides axes slice_mode", (
        ((4, 6), (1, 2), (3, 6), (1, 1), None), ((4, 6), (3, -1), (-5, -7), (-1, -2), None),
        ((4, 6), (-2,), (_BIG,), (1,), (-1,)), ((4, 6), (0, 0), (_BIG, _BIG), (1,), None),
        ((4, 6, 2), (1, 5), (3, 0), (1, -3), (0, 1)), ((4,), (3,), (1,), (1,), None), ((), (), (), (1,), None),
        ((0, 3), (0, 1), (2, 3), (1, 1), None), ((4, 6), (1, 2), (2, -1), (1,), None, "size"),
    )),
)  # fmt: skip


# --- strided_set


def _slot(i: Any, extent: int, begin: Any, end: Any, stride: Any) -> tuple[Any, Any]:
    """Return a condition that is True for positions `i` inside a slice of an axis, and their index
    in the slice.

    A stride of 0 counts as 1.
    """
    stride = choose(stride >= 0, greater(stride, 1), stride)
    up = stride > 0
    low, high = choose(up, 0, -1), choose(up, extent, extent - 1)
    first = choose(up, low, high) if begin is None else counted(begin, extent)
    last = choose(up, high, low) if end is None else counted(end, extent)
    first, last = (lesser(greater(x, low), high) for x in (first, last))
    at, rest = (i - first) // stride, (i - first) % stride
    return (rest >= 0) & (rest <= 0) & (at >= 0) & choose(up, i < last, i > last), at


def _set_element(_: Any, i: Index, data: Any, v: Any, *bounds: Any) -> Any:
    if not data.shape:
        return v[()]
    inside, where = [], []
    for k, extent in enumerate(data.shape):
        begin, end, stride = (as_index(x[(k,)]) if k < x.shape[0] else None for x in bounds)
        within, at = _slot(i[k], extent, begin, end, i[k] * 0 + 1 if stride is None else stride)
        inside.append(within & (at < v.shape[k]))
        where.append(lesser(greater(at, 0), v.shape[k] - 1))
    return choose(reduce(and_, inside), v[tuple(where)], data[i])


def _set_infer(_: Any, types: Types) -> Type:
    data, v, *bounds = map(tensor, types)
    require_same_dtype(data, v)
    require("strided_set.rank", data.rank == v.rank, lambda: f"ranks of {data} and {v} differ")
    for bound in map(integer_tensor, bounds, ("begin", "end", "strides")):
        fits = bound.rank == 1 and isinstance(bound.shape[0], int) and bound.shape[0] <= data.rank
        require("slice.count", fits, f"{bound} has an index that is not an axis of {data}")
    require("strided_set.empty", 0 not in v.shape, lambda: f"there are no values in {v}")
    return data


def _bound(value: Any, _: Any) -> Any:
    """Convert integers to a constant vector and None to a stride of 1; leave expressions unchanged."""
    if value is not None and not isinstance(value, Sequence):
        return value
    numbers = [1] if value is None else value
    fits = all(isinstance(v, Integral) for v in numbers)
    require("indices", fits, f"bounds must be integers, got {value}")
    return Constant(np.array(numbers, np.int64))


def _set_samples() -> Samples:
    for begin, end, strides, shape in (
        ((0, 0), (4, -8), (1, -1), (3, 1)),
        ((1, 1), (9, 4), (2, 1), (1, 3)),
        ((-1,), (0,), (-1,), (2, 4)),
        ((1,), (2, 2), (1,), (1, 2)),
        ((0, 3), (3, -9), (1, -2), (3, 2)),
        ((0,), (3,), (0,), (2, 4)),
    ):  # fmt: skip
        bounds = (np.array(b, np.int32) for b in (begin, end, strides))
        yield exact(NO_ATTRS, random_array((3, 4)), random_array(shape, seed=1), *bounds)


strided_set = OpDef(
    name="strided_set",
    doc="A copy of `data` in which the slice data[begin:end:strides] is `v`; what `v` is too small for stays.",
    args=args(
        "data",
        "v",
        *(Arg(name, "Sequence[int] | Expr", takes=_bound) for name in ("begin", "end")),
        Arg("strides", "Sequence[int] | Expr | None", None, _bound),
    ),
    infer=_set_infer,
    reference=of_formula(_set_infer, _set_element),
    pattern=OpPattern.INJECTIVE,
    axes=lambda _, types: AxisMap(((None,) * tensor(types[0]).rank,)),
    element=_set_element,
    samples=_set_samples,
)


# --- reverse


class ReverseAttrs(Attrs):
    """`data` in reverse order along an axis."""

    axis: int


def _reverse_infer(a: ReverseAttrs, types: Types) -> Type:
    axis_of(a.axis, tensor(types[0]).rank)
    return types[0]


def _reverse_element(a: ReverseAttrs, i: Index, data: Tensor) -> Scalar:
    axis = axis_of(a.axis, data.rank)
    return data[replaced(i, axis, data.shape[axis] - 1 - i[axis])]


reverse = OpDef(
    name="reverse",
    attrs=ReverseAttrs,
    infer=_reverse_infer,
    reference=lambda a, x: np.flip(x, a.axis),
    pattern=OpPattern.INJECTIVE,
    axes=all_but_axis,
    element=_reverse_element,
    samples=samples_of(ReverseAttrs, "axis", (((2, 3), 1), ((2, 3), 0), ((2, 1, 3), -2), ((4,), 0), ((0, 2), 0))),
)


# --- reverse_sequence


class ReverseSequenceAttrs(Attrs):
    """The first seq_lengths[b] elements of each batch item b in reverse order, followed by its
    other elements unchanged.
    """

    seq_axis: int = 1
    batch_axis: int = 0


def _sequence_axes(a: ReverseSequenceAttrs, rank: int) -> tuple[int, int]:
    sequence, batch = axis_of(a.seq_axis, rank), axis_of(a.batch_axis, rank)
    require("reverse_sequence.axes", sequence != batch, "the sequence axis and the batch axis are identical")
    return sequence, batch


def _sequence_infer(a: ReverseSequenceAttrs, types: Types) -> Type:
    data, lengths = tensor(types[0], "data"), tensor(types[1], "lengths")
    _, batch = _sequence_axes(a, data.rank)
    fits = lengths.shape == (data.shape[batch],) and lengths.dtype.is_integer
    require("reverse_sequence.lengths", fits, lambda: f"one integer length per batch expected, got {lengths}")
    return data


def _sequence_axis_map(a: ReverseSequenceAttrs, types: Types) -> AxisMap:
    rank = tensor(types[0]).rank
    sequence, batch = _sequence_axes(a, rank)
    return AxisMap((row_but([sequence], rank), tuple(0 if k == batch else None for k in range(rank))))


def _sequence_element(a: ReverseSequenceAttrs, i: Index, data: Any, lengths: Any) -> Any:
    sequence, batch = _sequence_axes(a, len(data.shape))
    at, length = i[sequence], lesser(as_index(lengths[(i[batch],)]), data.shape[sequence])
    return data[replaced(i, sequence, choose(at < length, length - 1 - at, at))]


def _sequence_samples() -> Samples:
    cases: Any = (((3, 4), 1, 0), ((4, 3, 2), 0, 1), ((2, 3, 4), -1, 1), ((0, 2), 1, 0))
    for (shape, sequence, batch), dtype in product(cases, ("int32", "int64")):
        lengths = np.array([2, 0, 9, 1, 3][: shape[batch]], dtype)
        yield exact(ReverseSequenceAttrs(seq_axis=sequence, batch_axis=batch), random_array(shape), lengths)


reverse_sequence = OpDef(
    name="reverse_sequence",
    attrs=ReverseSequenceAttrs,
    args=args("data", "seq_lengths"),
    infer=_sequence_infer,
    reference=of_formula(_sequence_infer, _sequence_element),
    pattern=OpPattern.INJECTIVE,
    axes=_sequence_axis_map,
    element=_sequence_element,
    quantized=Quantized.PASS,
    samples=_sequence_samples,
)


# --- trilu


class TriluAttrs(Attrs):
    """The upper (or lower) triangle of each matrix, bounded by diagonal k, with zeros elsewhere."""

    upper: bool = True


def _trilu_infer(a: TriluAttrs, types: Types) -> Type:
    data, k = tensor(types[0], "data"), tensor(types[1], "k")
    require("trilu.rank", data.rank >= 2, lambda: f"a matrix or a batch of them expected, got {data}")
    require_dtype(data.dtype, data.dtype.has_zero)
    require("trilu.k", k.rank == 0 and k.dtype.is_integer, f"k must be an integer scalar, got {k}")
    return data


def _trilu_element(a: TriluAttrs, i: Index, data: Any, k: Any) -> Any:
    diagonal, offset = i[-1] - i[-2], as_index(k[()])
    kept = diagonal >= offset if a.upper else diagonal <= offset
    return choose(kept, data[i], 0)


def _trilu_samples() -> Samples:
    for shape, k, upper in (
        ((3, 4), 0, True), ((3, 4), 1, False), ((2, 4, 3), -1, True), ((2, 2), 9, True), ((1, 3), -9, False),
        ((0, 3), 0, True),
    ):  # fmt: skip
        yield exact(TriluAttrs(upper=upper), random_array(shape), np.array(k, np.int64))
    yield exact(TriluAttrs(), random_array((3, 3), "bool"), np.array(0, np.int32))


trilu = OpDef(
    name="trilu",
    attrs=TriluAttrs,
    args=args("data", Arg("k", "Expr | int", given=0, takes=number(lambda _: "int32"))),
    infer=_trilu_infer,
    reference=of_formula(_trilu_infer, _trilu_element),
    pattern=OpPattern.ELEMWISE,
    axes=lambda _, types: AxisMap(((*range(tensor(types[0]).rank - 2), None, None),)),
    element=_trilu_element,
    samples=_trilu_samples,
)
