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

from aotc.ir import frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g

_ELLIPSIS: Final = "ellipsis"
_NEW_AXIS: Final = "new axis"
_INTEGER: Final = "integer"
_RANGE: Final = "range"


@frozen
class SliceIndex:
    """The items of a STRIDED_SLICE index.

    begin, end, strides            one integer per item
    open_begin, open_end           bit masks of ranges that start or stop at the end of the axis
    ellipsis, new_axis, shrink     bit masks of items that are an ellipsis, a new axis or an integer
                                   (`begin`)
    offset                         True if `end` is relative to the start of the range
    """

    begin: Sequence[int]
    end: Sequence[int]
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

    def range_selected_by_index_item(self, item: int, kind: str, extent: int) -> range:
        """Return the range of elements of an axis of extent `extent` that an integer or range item
        selects.

        Raises AotcError for an index out of range and for combinations that TensorFlow and LiteRT
        treat differently.
        """
        begin, end, step = self.begin[item], self.end[item], self.strides[item]
        if kind == _INTEGER:
            place = begin + extent if begin < 0 else begin
            require("graph-index", 0 <= place < extent, f"index {begin} is out of range for {extent} elements")
            # TensorFlow ignores the bit in begin_mask, LiteRT ignores the integer; TensorFlow
            # refuses strides below 1
            clear = step > 0 and (place == 0 or not self.open_begin >> item & 1)
            text = f"item {item} of a slice is the integer {begin} with the stride {step} or with its bit in begin_mask"
            require("tflite-options", clear, text)
            return range(place, place + 1)
        first = None if self.open_begin >> item & 1 else begin
        last = None if self.open_end >> item & 1 else end
        if self.offset and last is not None:
            start = 0 if first is None else begin + extent if begin < 0 else begin
            # LiteRT reads beyond the memory of the tensor here
            inside = 0 <= start <= start + end <= extent and step > 0
            text = f"a slice of {end} elements from {begin} by {step} (offset) leaves an axis of {extent}"
            require("graph-shape", inside, text)
            last = start + end
        return range(*slice(first, last, step).indices(extent))


def apply_slice_index(x: Expr, index: SliceIndex) -> Expr:
    """Return the part of `x` that an index selects; axes after the last item are included whole.

    Raises AotcError (code "graph-shape" or "graph-index") for an index that does not fit the shape.
    """
    shape, kinds = g.shape(x), index.slice_index_item_kinds()
    counts = {len(index.begin), len(index.end), len(index.strides)}
    named = sum(kind in (_INTEGER, _RANGE) for kind in kinds)
    fits = len(counts) == 1 and 0 not in index.strides and named <= len(shape)
    text = f"a slice {list(index.begin)}, {list(index.end)}, {list(index.strides)} does not fit {shape}"
    require("graph-shape", fits, text)
    require("graph-shape", kinds.count(_ELLIPSIS) <= 1, "a slice has more than one ellipsis")
    kind_ranges = list(_axis_kinds_and_ranges(index, kinds, shape))
    parts = [(k, part) for k, (_, part) in enumerate(p for p in kind_ranges if p[0] != _NEW_AXIS)]
    cuts = [(k, part) for k, part in parts if part != range(shape[k])]
    y = _slice_axes(x, cuts) if cuts else x
    y = g.squeeze(
        y, [k for k, kind in enumerate(kind for kind, _ in kind_ranges if kind != _NEW_AXIS) if kind == _INTEGER]
    )
    left = [kind for kind, _ in kind_ranges if kind != _INTEGER]
    return g.unsqueeze(y, [k for k, kind in enumerate(left) if kind == _NEW_AXIS])


def _axis_kinds_and_ranges(
    index: SliceIndex, kinds: Sequence[str], shape: tuple[int, ...]
) -> Iterator[tuple[str, range]]:
    """Yield for each axis of the tensor, and for each new axis, the kind of its index item and the
    selected range, in order.
    """
    axis = 0
    whole = len(shape) - sum(kind in (_INTEGER, _RANGE) for kind in kinds)
    for item, kind in enumerate(kinds):
        if kind == _NEW_AXIS:
            yield kind, range(1)
        elif kind == _ELLIPSIS:
            for size in shape[axis : axis + whole]:
                yield _RANGE, range(size)
            axis += whole
        else:
            yield kind, index.range_selected_by_index_item(item, kind, shape[axis])
            axis += 1
    for size in shape[axis:]:
        yield _RANGE, range(size)


def _slice_axes(x: Expr, axis_ranges: Sequence[tuple[int, range]]) -> Expr:
    """Slice axes of `x` by the given (axis, range) pairs."""
    begin = [part.start if part else 0 for _, part in axis_ranges]
    # -size - 1 is the stop of a descending range that includes element 0
    end = [part.stop if part.stop >= 0 else -g.dim(x, k) - 1 for k, part in axis_ranges]
    end = [last if part else 0 for last, (_, part) in zip(end, axis_ranges, strict=True)]
    steps = [part.step if part else 1 for _, part in axis_ranges]
    return g.strided_slice(x, begin, end, [k for k, _ in axis_ranges], steps)
