# SPDX-License-Identifier: Apache-2.0
"""Sequences of tensors whose length is known at run time only, as tensors with a slot for each element.

A sequence has slots for as many elements as there may be, and the number of those that exist. Elements may differ in
their extents: a slot has room for the largest one, is filled with zeros behind an element, and the extents of each
element are kept beside it.

    xs = sequence_of([x, y], Layout.of_types([type_of(x), type_of(y)]), 4)      # room for four elements
    xs = insert(xs, z)                                                          # [x, y, z]
    element(xs, position)                                                       # its extents are sizes that a run finds
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aotc.ir import Dim, DType, SymDim, TensorType, largest_size, require, same_dim
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import cut_to_found_sizes, elements_at_nonzero, found_rows, with_required_range
from aotc.relay.frontend.size_operands import follows_from_found_sizes, unbounded_size_error
from aotc.relay.frontend.tail_recursion import row_of
from aotc.relay.graph_api import Expr, Tuple, TupleGetItem, tensor_type_of

#: Extent of an axis that an element does not have.
NO_AXIS: Final = -1


@dataclass(frozen=True, slots=True)
class Layout:
    """What the elements of a sequence have in common.

    room         extents of a slot
    varying      axes along which an element may be smaller than its slot
    lowest_rank  elements may lack axes from this one on
    """

    dtype: DType
    room: tuple[Dim, ...]
    varying: frozenset[int]
    lowest_rank: int

    @property
    def rank(self) -> int:
        """The number of axes of a slot."""
        return len(self.room)

    @staticmethod
    def of_type(ty: TensorType) -> Layout:
        """Return the layout of a sequence with one element. Raises AotcError (code "graph-operand-bound") for a shape
        without a bound.
        """
        varying = frozenset(k for k, dim in enumerate(ty.shape) if follows_from_found_sizes(dim))
        room = tuple(_most(dim) if k in varying else dim for k, dim in enumerate(ty.shape))
        return Layout(ty.dtype, room, varying, ty.rank)

    def joined(self, other: Layout) -> Layout:
        """Return the layout of sequences with elements of both layouts. Raises AotcError (code "graph-sequence") if
        their element types differ.
        """
        text = f"the elements of a sequence have one element type, found {self.dtype} and {other.dtype}"
        require("graph-sequence", self.dtype == other.dtype, text)
        low, high = sorted((self, other), key=lambda layout: layout.rank)
        varying = self.varying | other.varying | set(range(low.rank, high.rank))
        varying |= {k for k in range(low.rank) if not same_dim(low.room[k], high.room[k])}
        rooms = [[layout.room[k] for layout in (low, high) if k < layout.rank] for k in range(high.rank)]
        room = tuple(max(map(_most, dims)) if k in varying else dims[0] for k, dims in enumerate(rooms))
        return Layout(self.dtype, room, frozenset(varying), min(low.lowest_rank, high.lowest_rank))


def layout_of(types: Iterable[TensorType]) -> Layout | None:
    """Return the layout of a sequence with elements of some types; None if there are none."""
    result: Layout | None = None
    for ty in types:
        result = Layout.of_type(ty) if result is None else result.joined(Layout.of_type(ty))
    return result


def _most(dim: Dim) -> int:
    if isinstance(dim, SymDim) and dim.upper is None:
        raise unbounded_size_error(dim)
    return largest_size(dim)


@dataclass(frozen=True, slots=True)
class RunTimeSequence:
    """A sequence whose length is known at run time only, or an optional value.

    rows         tensor of shape (capacity, *layout.room): the elements, and zeros
    count        int64 scalar, the number of elements
    shapes       int64[capacity, rank], the extents of the elements, NO_AXIS for axes that an element lacks; None if
                 no axis varies
    present      bool scalar for an optional sequence: False if it is absent; None for what is not optional
    is_tensor    True for an optional tensor, which has one element if it is present
    is_growing   True if room is added for each element that is inserted; else a run ends when there is none left
    """

    layout: Layout
    rows: Expr
    count: Expr
    shapes: Expr | None
    present: Expr | None = None
    is_tensor: bool = False
    is_growing: bool = True

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return g.dim(self.rows, 0)

    @property
    def fields(self) -> list[Expr]:
        """The tensors of the sequence."""
        return [x for x in (self.count, self.rows, self.shapes, self.present) if x is not None]

    def with_fields(self, fields: Sequence[Expr]) -> RunTimeSequence:
        """Return a sequence of the same layout with other tensors."""
        rest = iter(fields)
        count, rows = next(rest), next(rest)
        shapes = next(rest) if self.shapes is not None else None
        present = next(rest) if self.present is not None else None
        return replace(self, count=count, rows=rows, shapes=shapes, present=present)

    def as_tuple(self) -> Tuple:
        """Return the tensors as one expression."""
        return Tuple(self.fields)

    def of_tuple(self, whole: Expr) -> RunTimeSequence:
        """Return a sequence of the same layout whose tensors are the fields of an expression."""
        return self.with_fields([TupleGetItem(whole, k) for k in range(len(self.fields))])


def sequence_of(items: Sequence[Expr], layout: Layout, capacity: int, count: Expr | None = None) -> RunTimeSequence:
    """Return the sequence of some elements, with a number of slots.

    count    int64 scalar, how many of the elements there are; None for all
    """
    capacity = max(capacity, len(items), 1)
    pairs = [_slot(item, layout) for item in items]
    number = g.constant(len(items), "int64") if count is None else count
    if not pairs:
        return _empty(layout, capacity)
    rows = g.stack([row for row, _ in pairs], 0)
    shapes = g.stack([extents for _, extents in pairs], 0) if layout.varying else None
    return _with_capacity(RunTimeSequence(layout, rows, number, shapes), capacity)


def _empty(layout: Layout, capacity: int) -> RunTimeSequence:
    rows = g.filled(0, (capacity, *layout.room), str(layout.dtype))
    shapes = g.filled(0, (capacity, layout.rank), "int64") if layout.varying else None
    return RunTimeSequence(layout, rows, g.constant(0, "int64"), shapes)


def _slot(item: Expr, layout: Layout) -> tuple[Expr, Expr]:
    """Return an element with zeros behind it that fill a slot, and its extents as int64[rank]. A run ends if there is
    no room for it.
    """
    dims, missing = g.dims(item), layout.rank - g.rank(item)
    extents = [*map(g.size_as_tensor, dims), *[g.constant(NO_AXIS, "int64")] * missing]
    shape = g.stack([g.reshape(e, ()) for e in extents], 0) if extents else g.filled(0, (0,), "int64")
    padded = g.reshape(item, (*dims, *[1] * missing)) if missing else item
    for axis in sorted(layout.varying):
        if _most(g.dims(padded)[axis]) > _most(layout.room[axis]):
            padded = _with_required_room(padded, extents[axis], _most(layout.room[axis]))
    return _fitted(padded, layout, 0), shape


def _with_required_room(x: Expr, extent: Expr, room: int) -> Expr:
    text = f"an extent of an element of a sequence, or of a value that a loop carries, is at most {room}"
    return with_required_range(x, g.reshape(extent, ()), NO_AXIS, room, text)


def _fitted(x: Expr, layout: Layout, first: int) -> Expr:
    """Return a tensor whose axes from `first` on are as large as a slot: with zeros at their ends, or cut."""
    dims = g.dims(x)
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * len(dims)
    ends: dict[int, int] = {}
    for axis in sorted(layout.varying):
        dim, room = dims[first + axis], _most(layout.room[axis])
        widths[first + axis] = (0, max(room, _most(dim)) - dim)
        if _most(dim) > room:
            ends[first + axis] = room
    if any(after != 0 for _, after in widths):
        x = g.pad(x, widths)
    return g.strided_slice(x, [0] * len(ends), list(ends.values()), list(ends)) if ends else x


def with_layout(sequence: RunTimeSequence, layout: Layout, capacity: int) -> RunTimeSequence:
    """Return a sequence with slots of a layout that its own layout has been joined to, and at least as many as it
    has.
    """
    own = sequence.layout
    if own != layout:
        rows, missing = sequence.rows, layout.rank - own.rank
        shapes = sequence.shapes if sequence.shapes is not None else _equal_shapes(sequence)
        if missing:
            rows = g.reshape(rows, (*g.dims(rows), *[1] * missing))
            shapes = g.pad(shapes, [(0, 0), (0, missing)], value=NO_AXIS)
        for axis in sorted(layout.varying & set(range(own.rank))):
            if _most(own.room[axis]) > _most(layout.room[axis]):
                rows = _with_required_room(rows, _largest_extent(sequence, shapes, axis), _most(layout.room[axis]))
        rows = _fitted(rows, layout, 1)
        sequence = replace(sequence, layout=layout, rows=rows, shapes=shapes if layout.varying else None)
    return _with_capacity(sequence, capacity)


def _largest_extent(sequence: RunTimeSequence, shapes: Expr, axis: int) -> Expr:
    extents = g.squeeze(g.strided_slice(shapes, [axis], [axis + 1], [1]), [1])
    is_element = g.less(g.iota(sequence.capacity), sequence.count)
    return g.call_op("max", g.where(is_element, extents, 0))


def _equal_shapes(sequence: RunTimeSequence) -> Expr:
    """Return the extents of slots that elements fill."""
    rank = sequence.layout.rank
    if not rank:
        return g.filled(0, (sequence.capacity, 0), "int64")
    extents = g.stack([g.reshape(g.size_as_tensor(d), ()) for d in sequence.layout.room], 0)
    return g.broadcast_to(g.reshape(extents, (1, rank)), (sequence.capacity, rank))


def _with_capacity(sequence: RunTimeSequence, capacity: int) -> RunTimeSequence:
    more = capacity - sequence.capacity
    if more <= 0:
        return sequence
    rows = g.pad(sequence.rows, [(0, more), *[(0, 0)] * sequence.layout.rank])
    shapes = None if sequence.shapes is None else g.pad(sequence.shapes, [(0, more), (0, 0)])
    return replace(sequence, rows=rows, shapes=shapes)


# --- operators on sequences


def _place(position: Expr, sequence: RunTimeSequence, positions_past_end: int = 0) -> Expr:
    """Return a position, counted from the end if it is negative, as an int64 scalar counted from the start. A run
    ends if it is out of range.
    """
    given = g.cast(g.reshape(position, ()), "int64")
    place = g.where(g.less(given, 0), g.add(given, sequence.count), given)
    fits = g.logical_and(g.less_equal(0, place), g.less(place, g.add(sequence.count, positions_past_end)))
    return with_required_range(place, fits, 1, 1, "a position in a sequence is one of its elements")


def element(sequence: RunTimeSequence, position: Expr) -> Expr:
    """Return the element at a position, an integer scalar, which may count from the end. Raises AotcError (code
    "graph-sequence") for elements that differ in rank.
    """
    return _element_at(sequence, _place(position, sequence))


def _element_at(sequence: RunTimeSequence, place: Expr) -> Expr:
    _require_one_rank(sequence)
    row = row_of(sequence.rows, place, 0)
    if sequence.shapes is None:
        return row
    return _cut(row, row_of(sequence.shapes, place, 0), sequence.layout.varying)


def _cut(padded: Expr, extents: Expr, varying: Iterable[int]) -> Expr:
    """Return the beginning of a tensor, of which int64[rank] states the extents of the varying axes."""
    return cut_to_found_sizes(padded, {k: g.strided_slice(extents, [k], [k + 1], [0]) for k in sorted(varying)})


def _require_one_rank(sequence: RunTimeSequence) -> None:
    layout = sequence.layout
    text = f"an element of this sequence has {layout.lowest_rank} to {layout.rank} axes, which a run decides"
    hint = "a tensor of a compiled model has one rank; reshape the elements before they enter the sequence"
    require("graph-sequence", layout.lowest_rank == layout.rank, text, hint=hint)


def insert(sequence: RunTimeSequence, item: Expr, position: Expr | None = None) -> RunTimeSequence:
    """Return a sequence with one more element, at the end or at a position, which may count from the end."""
    layout = sequence.layout.joined(Layout.of_type(tensor_type_of(item)))
    wider = with_layout(sequence, layout, sequence.capacity + sequence.is_growing)
    capacity, count = wider.capacity, wider.count
    if not sequence.is_growing:
        text = f"a sequence with {capacity} slots has room for another element"
        count = with_required_range(count, count, 0, capacity - 1, text)
    place = count
    rows, shapes = wider.rows, wider.shapes
    if position is not None:
        place = _place(position, replace(wider, count=count), 1)
        slots = g.iota(capacity)
        source = g.maximum(g.where(g.less(place, slots), g.sub(slots, 1), slots), 0)
        rows = g.call_op("take", rows, source, axis=0)
        shapes = None if shapes is None else g.call_op("take", shapes, source, axis=0)
    row, extents = _slot(item, layout)
    rows = _with_row(rows, row, place)
    shapes = None if shapes is None else _with_row(shapes, extents, place)
    return replace(wider, rows=rows, shapes=shapes, count=g.add(count, 1), present=None)


def _with_row(rows: Expr, row: Expr, place: Expr) -> Expr:
    return g.call_op("scatter_nd", rows, g.reshape(place, (1, 1)), g.unsqueeze(row, [0]), mode="update")


def erase(sequence: RunTimeSequence, position: Expr | None = None) -> RunTimeSequence:
    """Return a sequence without its last element, or without the one at a position."""
    place = _place(g.constant(-1, "int64") if position is None else position, sequence)
    count = g.sub(g.call_op("after", sequence.count, place), 1)
    slots = g.iota(sequence.capacity)
    moved = g.minimum(g.add(slots, 1), sequence.capacity - 1)
    source = g.where(g.less(slots, place), slots, moved)
    rows = g.call_op("take", sequence.rows, source, axis=0)
    shapes = None if sequence.shapes is None else g.call_op("take", sequence.shapes, source, axis=0)
    return replace(sequence, rows=rows, shapes=shapes, count=count, present=None)


def length(sequence: RunTimeSequence) -> Expr:
    """Return the number of elements, an int64 scalar, which is a size that a run finds."""
    (numbers,) = found_rows(sequence.count, g.iota(sequence.capacity))
    return g.reshape(g.extent(numbers, 0), ())


def stacked(sequence: RunTimeSequence, axis: int) -> Expr:
    """Return the elements along a new axis; a run ends if there are none, or if their shapes differ."""
    _require_one_rank(sequence)
    axis = g.normalize_axis(axis, sequence.layout.rank + 1)
    rows, extents = _nonempty_rows(sequence, frozenset())
    (rows,) = found_rows(sequence.count, rows)
    if extents is not None:
        rows = _cut_rows(rows, extents, sequence.layout.varying)
    return g.transpose(rows, [*range(1, axis + 1), 0, *range(axis + 1, g.rank(rows))]) if axis else rows


def joined(sequence: RunTimeSequence, axis: int) -> Expr:
    """Return the elements, concatenated along an axis; a run ends if there are none, or if other extents differ."""
    _require_one_rank(sequence)
    layout = sequence.layout
    axis = g.normalize_axis(axis, layout.rank)
    rows, extents = _nonempty_rows(sequence, frozenset({axis}))
    order = [0, axis + 1, *(k + 1 for k in range(layout.rank) if k != axis)]
    moved = g.transpose(rows, order)
    capacity, room, *others = g.dims(moved)
    slots = g.reshape(g.iota(sequence.capacity), (sequence.capacity, 1))
    flags = g.less(slots, sequence.count)
    places = g.reshape(g.positions_up_to(room), (1, room))
    if sequence.shapes is not None:
        sizes = g.strided_slice(sequence.shapes, [axis], [axis + 1], [1])
        flags = g.logical_and(flags, g.less(places, sizes))
    else:
        flags = g.logical_and(flags, g.less_equal(0, places))
    total: Dim = capacity * room
    found = elements_at_nonzero(g.reshape(moved, (total, *others)), g.reshape(flags, (total,)), 0)
    back = [*range(1, axis + 1), 0, *range(axis + 1, layout.rank)]
    result = g.transpose(found, back)
    return result if extents is None else _cut(result, extents, layout.varying - {axis})


def _cut_rows(rows: Expr, extents: Expr, varying: Iterable[int]) -> Expr:
    return cut_to_found_sizes(rows, {k + 1: g.strided_slice(extents, [k], [k + 1], [0]) for k in sorted(varying)})


def _nonempty_rows(sequence: RunTimeSequence, free: frozenset[int]) -> tuple[Expr, Expr | None]:
    """Return the slots, and the extents of the first element, in a run in which there is an element, and in which all
    elements agree in the extents of the axes that are not free.
    """
    text = "a sequence that is concatenated has an element"
    rows = with_required_range(sequence.rows, g.less(0, sequence.count), 1, 1, text)
    axes = sorted(sequence.layout.varying - free)
    if sequence.shapes is None or not axes:
        return rows, None
    first = row_of(sequence.shapes, g.constant(0, "int64"), 0)
    agree = g.call_op("equal", sequence.shapes, g.reshape(first, (1, sequence.layout.rank)))
    agree = g.call_op("take", agree, g.constant(axes, "int64"), axis=1)
    behind = g.less_equal(sequence.count, g.reshape(g.iota(sequence.capacity), (sequence.capacity, 1)))
    flags = g.reshape(g.logical_or(agree, behind), (sequence.capacity * len(axes),))
    all_agree = g.call_op("all", flags)
    text = "the elements of a sequence that is concatenated have equal extents"
    return with_required_range(rows, all_agree, 1, 1, text), first


def split(x: Expr, sizes: Expr, axis: int, *, capacity: int) -> RunTimeSequence:
    """Return the parts of a tensor along an axis.

    sizes      int64 scalar for parts of this size, of which the last one may be smaller, or int64[n] with the size of
               each part. A run ends if it is not positive, or if the sizes do not add up to the extent.
    capacity   the largest number of parts
    """
    extent = g.dims(x)[axis]
    most = _most(extent)
    size_of_axis = g.reshape(g.size_as_tensor(extent), ())
    if g.rank(sizes):
        starts, lengths, count, sizes = _parts_of_sizes(sizes, size_of_axis)
    else:
        starts, lengths, count = _parts_of_equal_size(sizes, size_of_axis, capacity)
    slots = g.dim(lengths, 0)
    moved = g.transpose(x, [axis, *(k for k in range(g.rank(x)) if k != axis)])
    # a row of zeros follows, which the slots have behind an element
    moved = g.pad(moved, [(0, most - extent + 1), *[(0, 0)] * (g.rank(x) - 1)])
    inner = g.reshape(g.iota(most), (1, most))
    column = (slots, 1)
    source = g.where(g.less(inner, g.reshape(lengths, column)), g.add(g.reshape(starts, column), inner), most)
    taken = g.call_op("take", moved, source, axis=0)
    rows = g.transpose(taken, [0, *range(2, axis + 2), 1, *range(axis + 2, g.rank(x) + 1)])
    others = [g.broadcast_to(g.reshape(g.size_as_tensor(d), (1,)), (slots,)) for d in g.dims(x)]
    shapes = g.stack([lengths if k == axis else other for k, other in enumerate(others)], 1)
    ty = tensor_type_of(x)
    layout = Layout.of_type(TensorType(tuple(most if k == axis else d for k, d in enumerate(ty.shape)), ty.dtype))
    layout = replace(layout, varying=layout.varying | {axis})
    return RunTimeSequence(layout, _fitted(rows, layout, 1), count, shapes)


def _parts_of_equal_size(size: Expr, extent: Expr, capacity: int) -> tuple[Expr, Expr, Expr]:
    """Return the start and the length of each part, and the number of parts; `size` is an integer of one element."""
    part = g.cast(g.reshape(size, ()), "int64")
    text = "a size of parts is at least 1"
    part = with_required_range(part, g.less(0, part), 1, 1, text)
    part = g.minimum(part, g.maximum(extent, 1))
    starts = g.minimum(g.mul(g.iota(max(capacity, 1)), part), extent)
    lengths = g.minimum(g.sub(extent, starts), part)
    count = g.call_op("floor_divide", g.sub(g.add(extent, part), 1), part)
    return starts, lengths, count


def _parts_of_sizes(sizes: Expr, extent: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the start and the length of each part, the number of parts, and the sizes; all are in order."""
    (number,) = g.dims(sizes)
    lengths = g.cast(sizes, "int64")
    room = _most(number)
    if not isinstance(number, int):
        lengths = g.pad(lengths, [(0, room - number)])
    total = g.call_op("sum", lengths)
    is_possible = g.logical_and(g.call_op("all", g.less_equal(0, lengths)), g.call_op("equal", total, extent))
    lengths = with_required_range(lengths, is_possible, 1, 1, "the sizes of parts add up to the extent of the axis")
    ends = g.call_op("cumsum", lengths, axis=0)
    return g.sub(ends, lengths), lengths, g.reshape(g.size_as_tensor(number), ()), lengths


# --- tensors whose shape changes


def fields_of_tensor(x: Expr, layout: Layout) -> list[Expr]:
    """Return a tensor with the room of a layout, and its extents as int64[rank]. A run ends if there is no room."""
    return list(_slot(x, layout))


def tensor_of_fields(fields: Sequence[Expr], layout: Layout) -> Expr:
    """Return the tensor of `fields_of_tensor`; its varying extents are sizes that a run finds."""
    padded, extents = fields
    return _cut(padded, extents, layout.varying)


def rows_of_fields(rows: Expr, extents: Expr, layout: Layout) -> Expr:
    """Return rows of tensors with room of a layout, which all have the same extents, int64[rank]."""
    return _cut_rows(rows, extents, layout.varying)


# --- optional values


def require_present(value: RunTimeSequence) -> RunTimeSequence | Expr:
    """Return the value of an optional one; a run in which it is absent ends."""
    text = "an optional value whose value is read is present"
    if value.is_tensor:
        fits = g.less(0, value.count)
        return _element_at(value, with_required_range(g.constant(0, "int64"), fits, 1, 1, text))
    if value.present is None:
        return value
    return replace(value, count=with_required_range(value.count, value.present, 1, 1, text), present=None)


def is_present(value: RunTimeSequence) -> Expr:
    """Return whether an optional value is present, a bool scalar."""
    if value.is_tensor:
        return g.less(0, value.count)
    return g.constant(True) if value.present is None else value.present


def tensors_of_output(value: RunTimeSequence) -> list[tuple[str, Expr]]:
    """Return the tensors that are outputs of a model for a sequence, with what is appended to the name of the output:
    the elements, their extents if these vary, and whether it is present if it is optional.
    """
    rows = found_rows(value.count, value.rows, *([] if value.shapes is None else [value.shapes]))
    names = ["", ".shapes"]
    outputs = list(zip(names, rows, strict=False))
    return outputs if value.present is None else [*outputs, (".present", value.present)]
