# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of sequence and optional operators.

A sequence is a tuple of tensors, so its length and the types of its elements are known when the model
is compiled. Positions may be known only as the model runs: where all elements have one type, or where the
position is a size, such as an input of the model. An
optional value that is present is the value itself; one that is absent is a tuple that holds an empty
tuple, which no sequence is.

    OPS["SequenceAt"](sequence, position)       # one element of a sequence
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from onnx import GraphProto

from aotc.ir import (
    AotcError,
    Dim,
    TupleType,
    equality_of_dims,
    is_static,
    product_of_dims,
    require,
    require_static_shape,
    sign_bit_of_dim,
    sum_of_dims,
)
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import run_time_sequences
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.onnx.node import (
    OnnxNode,
    SizeInput,
    Table,
    TensorList,
    sequence_elements,
    table_by_function_name,
)
from aotc.relay.frontend.onnx.run_time_values import ABSENT_TYPE
from aotc.relay.frontend.run_time_sequences import RunTimeSequence, layout_of
from aotc.relay.frontend.run_time_slices import largest_of_dims
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.size_operands import OperandBounds, define_size, follows_from_found_sizes, operand_bounds
from aotc.relay.frontend.size_values import size_values
from aotc.relay.frontend.tail_recursion import row_of
from aotc.relay.graph_api import Expr, Tuple, compile_time_elements, tensor_type_of, type_of


def _known_position(position: Expr | None, default: int, count: int, valid_positions_past_end: int = 0) -> int | None:
    """Return a position in a sequence of `count` elements, counted from 0; None if it is known at run
    time only.

    position                    None for `default`
    valid_positions_past_end    1 where the position after the last element is valid, too

    Raises AotcError (code "onnx-sequence") if it is out of range.
    """
    known = default
    if position is not None:
        elements = compile_time_elements(position)
        if elements is None:
            return None
        known = int(g.require_single_element(elements, "a position in a sequence"))
    fits = -count <= known < count + valid_positions_past_end
    require("onnx-sequence", fits, f"index {known} is out of range for a sequence of {count} elements")
    return known + count if known < 0 else known


def _stacked(items: Sequence[Expr]) -> Expr:
    """Return the elements of a sequence as rows of one tensor; elements of different shapes are padded to the largest
    extent of each axis. Raises AotcError (code "onnx-sequence") if their ranks or data types differ.
    """
    if _are_of_one_type(items):
        return g.stack(items, 0)
    types = list(dict.fromkeys(str(type_of(item)) for item in items))
    text = (
        f"a position that is known at run time only needs elements of one type and rank, found {', '.join(types[:4])}"
    )
    require("onnx-sequence", len({(g.dtype(item), g.rank(item)) for item in items}) == 1, text)
    room = [max(extents) for extents in zip(*map(g.shape, items), strict=True)]
    padded = (g.pad(item, [(0, most - d) for most, d in zip(room, g.shape(item), strict=True)]) for item in items)
    return g.stack(list(padded), 0)


def _are_of_one_type(items: Sequence[Expr]) -> bool:
    return len({str(type_of(item)) for item in items}) <= 1


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a sequence that is known at run time only, counted from 0.

    position    int64 scalar
    size        the position as a size; None if it is none
    """

    position: Expr
    size: Dim | None

    def is_behind(self, element: int) -> Dim:
        """Return 1 if the position is behind an element, else 0."""
        assert self.size is not None
        return sign_bit_of_dim(element - self.size)

    def is_at(self, element: int) -> Dim:
        """Return 1 if the position is that of an element, else 0."""
        assert self.size is not None
        return equality_of_dims(self.size, element)


def _place(position: Expr, items: Sequence[Expr], most: int, count: int) -> _Place:
    """Return a position that is known at run time only.

    items    what is at one of these positions: if the types differ, the position must be a size
    most     the largest position; negative ones count from the end of `count` elements

    Raises AotcError (code "onnx-sequence") for elements of different types at a position that is no size.
    """
    at = g.cast(g.reshape(position, ()), "int64")
    if _are_of_one_type(items):
        text = f"a position in a sequence of {count} elements is {-count} to {most}"
        at = with_required_range(at, at, -count, most, text)
        return _Place(_from_start(at, count), None)
    from_start = _from_start(at, count)
    with operand_bounds(OperandBounds(-count, most)):
        values = size_values(position)
    if values is None:
        types = list(dict.fromkeys(str(type_of(item)) for item in items))
        text = "a position that a run computes needs elements of one type"
        raise AotcError("onnx-sequence", f"{text}, found {', '.join(types[:4])}")
    value = g.require_single_element(values, "a position in a sequence")
    text = f"a position in a sequence of {count} elements is {value}"
    require_at_least("onnx-sequence", value, -count, text)
    require_at_least("onnx-sequence", most, value, text)
    return _Place(from_start, define_size(value + product_of_dims((count, sign_bit_of_dim(value))), 0, most))


def _from_start(position: Expr, count: int) -> Expr:
    """Return a position that counts from the end of `count` elements if it is negative, counted from the start."""
    return g.where(g.less(position, 0), g.add(position, count), position)


def _element(rows: Expr, row: Expr, candidates: Sequence[tuple[Callable[[], Dim], Expr]]) -> Expr:
    """Return a row of stacked elements, without the padding.

    candidates    the elements that it may be, with functions that return 1 for the one that it is, and 0 for others
    """
    padded = row_of(rows, row, 0)
    items = [item for _, item in candidates]
    if all(type_of(item) == type_of(padded) for item in items):
        return padded
    flags = [is_chosen() for is_chosen, _ in candidates]
    extents = [
        define_size(sum_of_dims(map(product_of_dims, zip(flags, sizes, strict=True))), 0, max(sizes))
        for sizes in zip(*map(g.shape, items), strict=True)
    ]
    return g.counted_slice(padded, [0] * len(extents), extents, [1] * len(extents))


def _as_slots(items: Sequence[Expr], position: Expr | None) -> RunTimeSequence | None:
    """Return the elements of a sequence as slots if they differ in type and a run computes the position, or finds
    their extents; else None.
    """
    if position is None or compile_time_elements(position) is not None or _are_of_one_type(items):
        return None
    with operand_bounds(OperandBounds(-len(items), len(items))):
        values = size_values(position)
    extents = [dim for item in items for dim in g.dims(item)]
    sizes = [] if values is None else list(values.reshape(-1))
    if values is not None and is_static(extents) and not any(map(follows_from_found_sizes, sizes)):
        return None
    layout = layout_of(map(tensor_type_of, items))
    return None if layout is None else run_time_sequences.sequence_of(items, layout, len(items))


def _sequence_at(items: TensorList, position: Expr) -> Expr:
    known = _known_position(position, 0, len(items))
    if known is not None:
        return items[known]
    if (slots := _as_slots(items, position)) is not None:
        return run_time_sequences.element(slots, position)
    rows, place = _stacked(items), _place(position, items, len(items) - 1, len(items))
    return _element(rows, place.position, [(partial(place.is_at, k), item) for k, item in enumerate(items)])


def _sequence_insert(
    items: TensorList, item: Expr, position: Expr | None = None, *, node: OnnxNode | None = None
) -> Expr:
    count = len(items)
    slots = None if node is None else _as_slots([*items, item], position)
    if slots is not None and node is not None and items:
        before = run_time_sequences.erase(slots)
        return node.sequences.expression(run_time_sequences.insert(before, item, position))
    known = _known_position(position, count, count, valid_positions_past_end=1)
    if known is not None or position is None:
        return Tuple([*items[:known], item, *items[known:]])
    rows, place = _stacked([*items, item]), _place(position, [*items, item], count, count)
    elements: list[Expr] = []
    for k in range(count + 1):
        candidates = [(partial(place.is_at, k), item)]
        candidates += [(partial(place.is_behind, k), items[k])] if k < count else []
        candidates += [(partial(_not, partial(place.is_behind, k - 1)), items[k - 1])] if k else []
        elements.append(_element(rows, _row_after_insertion(place.position, k, count), candidates))
    return Tuple(elements)


def _not(flag: Callable[[], Dim]) -> Dim:
    return 1 - flag()


def _row_after_insertion(position: Expr, element: int, count: int) -> Expr:
    """Return which of `count` elements, or the new one behind them, is at `element` once the new one is
    inserted at a position.
    """
    moved = g.where(g.equal(position, g.constant(element, "int64")), count, g.constant(element - 1, "int64"))
    return g.where(g.less(g.constant(element, "int64"), position), g.constant(element, "int64"), moved)


def _sequence_erase(items: TensorList, position: Expr | None = None, *, node: OnnxNode | None = None) -> Expr:
    count = len(items)
    slots = None if node is None else _as_slots(items, position)
    if slots is not None and node is not None:
        return node.sequences.expression(run_time_sequences.erase(slots, position))
    known = _known_position(position, count - 1, count)
    if known is not None or position is None:
        return Tuple([item for k, item in enumerate(items) if k != known])
    rows, place = _stacked(items), _place(position, items, count - 1, count)
    elements: list[Expr] = []
    for k in range(count - 1):
        row = g.where(g.less(g.constant(k, "int64"), place.position), g.constant(k, "int64"), k + 1)
        is_before = partial(place.is_behind, k)
        elements.append(_element(rows, row, [(is_before, items[k]), (partial(_not, is_before), items[k + 1])]))
    return Tuple(elements)


def _sequence_map(items: TensorList, *others: Expr, body: GraphProto, node: OnnxNode) -> list[Expr]:
    """Convert SequenceMap: the body computes the elements of the resulting sequences from one element of
    each given sequence, and from tensors.
    """
    is_sequence = [isinstance(type_of(other), TupleType) for other in others]
    lengths = {len(sequence_elements(x)) for x, given in zip(others, is_sequence, strict=True) if given}
    text = f"the sequences of SequenceMap have {sorted({len(items), *lengths})} elements"
    require("onnx-sequence", lengths <= {len(items)}, text)
    rows = [
        node.subgraph(
            body, [x, *(sequence_elements(o)[k] if s else o for o, s in zip(others, is_sequence, strict=True))]
        )
        for k, x in enumerate(items)
    ]
    return [Tuple(column) for column in zip(*rows, strict=True)] if rows else [Tuple(()) for _ in body.output]


def _sequence_length(items: TensorList) -> Expr:
    return g.constant(len(items), "int64")


def _concat_from_sequence(items: TensorList, *, axis: int, new_axis: int = 0) -> Expr:
    require("onnx-sequence", bool(items), "an empty sequence cannot be concatenated")
    if new_axis:
        return g.stack(items, g.normalize_axis(axis, g.rank(items[0]) + 1))
    return g.concat(items, g.normalize_axis(axis, g.rank(items[0])))


def _split_to_sequence(
    x: Expr, split: SizeInput | None = None, *, axis: Axis = 0, keepdims: int = 1, node: OnnxNode
) -> Expr:
    extent = g.dims(x)[axis]
    if split is None:
        sizes: Sequence[Dim] = g.equal_part_sizes(g.dim(x, axis), 1)
        parts = g.split(x, sizes, axis)
        return Tuple([g.squeeze(p, [axis]) for p in parts] if keepdims != 1 else parts)
    is_integer = g.dtype(node[1]).is_integer and g.rank(node[1]) <= 1
    text = f"`split` of SplitToSequence is an integer or a list of integers, got {type_of(node[1])}"
    require("onnx-sequence", is_integer, text)
    is_list = g.rank(node[1]) > 0
    most = largest_of_dims((extent,))
    known = compile_time_elements(node[1])
    if known is None and (not is_list or split.is_computed(0, most)):
        capacity = g.dim(node[1], 0) if is_list else max(most or 0, 1)
        text = f"nothing bounds the extent {extent} of an axis that SplitToSequence splits"
        require("onnx-sequence", most is not None, text)
        return node.sequences.expression(run_time_sequences.split(x, node[1], axis, capacity=capacity))
    given = split.within(0 if is_list else 1, most)
    if is_list:
        g.check_unroll_count(len(given), "a split")
        sizes = given
    else:
        sizes = g.equal_part_sizes(g.dim(x, axis), *require_static_shape(given))
    text = f"parts {sizes[:16]} do not add up to {extent} elements"
    require_equal_dims("onnx-split", sum_of_dims(sizes), extent, text)
    return Tuple(g.split(x, sizes, axis))


# --- optional values


def is_absent(value: Expr) -> bool:
    """Return True for an optional value that is absent."""
    return type_of(value) == ABSENT_TYPE


def _optional(value: Expr | None = None, **_: object) -> Expr:
    return Tuple([Tuple(())]) if value is None else value


def _optional_get_element(value: Expr) -> Expr:
    require("onnx-sequence", not is_absent(value), "OptionalGetElement of an optional value that is absent")
    return value


def _optional_has_element(value: Expr | None = None) -> Expr:
    return g.constant(value is not None and not is_absent(value))


OPS: Table = {
    **table_by_function_name(_concat_from_sequence, _sequence_at, _sequence_erase, _sequence_insert),
    **table_by_function_name(_sequence_length, _sequence_map, _split_to_sequence),
    **table_by_function_name(_optional, _optional_get_element, _optional_has_element),
    "SequenceConstruct": lambda *items: Tuple(items),
    "SequenceEmpty": lambda: Tuple(()),
}
