# SPDX-License-Identifier: Apache-2.0
"""STRIDED_SLICE of TFLite: basic indexing as in numpy, with the kinds of index items encoded as bit
masks.

Input: the tensor and the items of the index. Output: the slice.

    index = SliceIndex([0, 1], [0, 3], [1, 1], ellipsis=0b01)
    apply_slice_index(x, index)             # x[..., 1:3]

Bit k of a mask refers to item k. If several masks have the bit of an item, an ellipsis takes
precedence over a new axis, and a new axis over an integer (`shrink`), as in the kernels of TFLite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from aotc.ir import Dim, frozen, is_static, require, require_static_shape, same_dim
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.run_time_slices import counted_slice_of_axis, slice_in_known_steps
from aotc.relay.frontend.size_conditions import require_at_least

_ELLIPSIS: Final = "ellipsis"
_NEW_AXIS: Final = "new axis"
_INTEGER: Final = "integer"
_RANGE: Final = "range"
#: A position behind the end of every axis.
_FARTHEST: Final = (1 << 63) - 1


@frozen
class SliceIndex:
    """The items of a STRIDED_SLICE index.

    begin, end, strides            one integer per item; begin and end may be known at run time only
    open_begin, open_end           bit masks of ranges that start or stop at the end of the axis
    ellipsis, new_axis, shrink     bit masks of items that are an ellipsis, a new axis or an integer
                                   (`begin`)
    offset                         True if `end` is relative to the start of the range
    """

    begin: Sequence[Dim]
    end: Sequence[Dim]
    strides: Sequence[int]
    open_begin: int = 0
    open_end: int = 0
    ellipsis: int = 0
    new_axis: int = 0
    shrink: int = 0
    offset: bool = False

    def slice_index_item_kinds(self) -> list[str]:
        """Return the kind of each index item: ellipsis, new axis, integer or range."""
        masks = ((self.ellipsis, _ELLIPSIS), (self.new_axis, _NEW_AXIS), (self.shrink, _INTEGER))
        return [next((kind for mask, kind in masks if mask >> k & 1), _RANGE) for k in range(len(self.begin))]

    def slice_of_index_item(self, item: int, kind: str, extent: Dim) -> AxisSlice:
        """Return the part of an axis of extent `extent` that an integer or range item selects.

        Raises AotcError for an index out of range and for combinations that TensorFlow and LiteRT
        treat differently.
        """
        begin, end, step = self.begin[item], self.end[item], self.strides[item]
        if kind == _INTEGER:
            return self._single_position(item, extent)
        first = (0 if step > 0 else _FARTHEST) if self.open_begin >> item & 1 else begin
        if self.offset and not self.open_end >> item & 1:
            numbers = (begin, end, extent)
            text = "a slice with an offset of sizes that are known at run time only is not supported"
            require("graph-dynamic", is_static(numbers), text)
            begin, end, size = require_static_shape(numbers)
            start = 0 if self.open_begin >> item & 1 else begin + size if begin < 0 else begin
            # LiteRT reads beyond the memory of the tensor here
            inside = 0 <= start <= start + end <= size and step > 0
            text = f"a slice of {end} elements from {begin} by {step} (offset) leaves an axis of {size}"
            require("graph-shape", inside, text)
            return AxisSlice(start, start + end, step)
        last = (_FARTHEST if step > 0 else -_FARTHEST) if self.open_end >> item & 1 else end
        return AxisSlice(first, last, step)

    def _single_position(self, item: int, extent: Dim) -> AxisSlice:
        """Return the slice of the one element that an integer item selects."""
        begin, step = self.begin[item], self.strides[item]
        text = f"the integer {begin} of a slice is known at run time only, which is not supported"
        require("graph-dynamic", isinstance(begin, int), text)
        assert isinstance(begin, int)
        place = begin + extent if begin < 0 else begin
        text = f"index {begin} is out of range for {extent} elements"
        require_at_least("graph-index", extent, begin + 1 if begin >= 0 else -begin, text)
        # TensorFlow ignores the bit in begin_mask, LiteRT ignores the integer; TensorFlow
        # refuses strides below 1
        clear = step > 0 and (same_dim(place, 0) or not self.open_begin >> item & 1)
        text = f"item {item} of a slice is the integer {begin} with the stride {step} or with its bit in begin_mask"
        require("tflite-options", clear, text)
        return AxisSlice(place, place + 1, 1)


@frozen
class AxisSlice:
    """A slice of an axis, from `start` to `stop` as numpy takes it."""

    start: Dim
    stop: Dim
    step: int

    def is_whole(self, extent: Dim) -> bool:
        """Return True if the slice is known to select the whole axis."""
        if isinstance(extent, int) and isinstance(self.start, int) and isinstance(self.stop, int):
            return range(*slice(self.start, self.stop, self.step).indices(extent)) == range(extent)
        return (self.start, self.step) == (0, 1) and (
            same_dim(self.stop, extent) or (isinstance(self.stop, int) and self.stop >= _FARTHEST)
        )


def apply_slice_index(x: Expr, index: SliceIndex) -> Expr:
    """Return the part of `x` that an index selects; axes after the last item are included whole.

    Raises AotcError (code "graph-shape" or "graph-index") for an index that does not fit the shape.
    """
    shape, kinds = g.dims(x), index.slice_index_item_kinds()
    counts = {len(index.begin), len(index.end), len(index.strides)}
    named = sum(kind in (_INTEGER, _RANGE) for kind in kinds)
    fits = len(counts) == 1 and 0 not in index.strides and named <= len(shape)
    text = f"a slice {list(index.begin)}, {list(index.end)}, {list(index.strides)} does not fit {shape}"
    require("graph-shape", fits, text)
    require("graph-shape", kinds.count(_ELLIPSIS) <= 1, "a slice has more than one ellipsis")
    parts = list(_axis_kinds_and_slices(index, kinds, shape))
    of_axes = [part for kind, part in parts if kind != _NEW_AXIS]
    y = _slice_axes(x, [(k, part) for k, part in enumerate(of_axes) if not part.is_whole(shape[k])])
    y = g.squeeze(y, [k for k, kind in enumerate(kind for kind, _ in parts if kind != _NEW_AXIS) if kind == _INTEGER])
    left = [kind for kind, _ in parts if kind != _INTEGER]
    return g.unsqueeze(y, [k for k, kind in enumerate(left) if kind == _NEW_AXIS])


def _axis_kinds_and_slices(
    index: SliceIndex, kinds: Sequence[str], shape: Sequence[Dim]
) -> Iterator[tuple[str, AxisSlice]]:
    """Yield for each axis of the tensor, and for each new axis, the kind of its index item and the
    selected part, in order.
    """
    axis, whole = 0, AxisSlice(0, _FARTHEST, 1)
    count = len(shape) - sum(kind in (_INTEGER, _RANGE) for kind in kinds)
    for item, kind in enumerate(kinds):
        if kind == _NEW_AXIS:
            yield kind, whole
        elif kind == _ELLIPSIS:
            yield from ((_RANGE, whole) for _ in range(count))
            axis += count
        else:
            yield kind, index.slice_of_index_item(item, kind, shape[axis])
            axis += 1
    yield from ((_RANGE, whole) for _ in shape[axis:])


def _slice_axes(x: Expr, parts: Sequence[tuple[int, AxisSlice]]) -> Expr:
    """Slice `x` along some axes.

    Axes whose extent, start and stop are known at compile time are sliced first, by one static slice; the others then
    by one slice whose positions a run computes.

    parts    pairs of an axis and its slice
    """
    dims = g.dims(x)
    known = [(k, p) for k, p in parts if is_static((dims[k], p.start, p.stop))]
    if known:
        y = slice_in_known_steps(
            x,
            [p.start for _, p in known],
            [p.stop for _, p in known],
            [k for k, _ in known],
            [p.step for _, p in known],
        )
    else:
        y = x
    others = dict(part for part in parts if part not in known)
    if not others:
        return y
    rows: list[tuple[Dim, Dim, Dim]] = []
    for k, d in enumerate(g.dims(y)):
        part = others.get(k)
        if part is None:
            rows.append((0, d, 1))
        elif same_dim(part.stop - part.start, 1) and part.step == 1 and not isinstance(part.start, int):
            rows.append((part.start, 1, 1))  # an integer counted from the end, which is known to be inside
        else:
            rows.append(counted_slice_of_axis(part.start, part.stop, part.step, d))
    return g.counted_slice(y, *zip(*rows, strict=True))
