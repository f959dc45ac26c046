# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of sequence and optional operators.

A sequence is a tuple of tensors, so its length and the types of its elements are known when the model
is compiled. Positions may be known only as the model runs where all elements have one type. An
optional value that is present is the value itself; one that is absent is a tuple that holds an empty
tuple, which no sequence is.

    OPS["SequenceAt"](sequence, position)       # one element of a sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onnx import GraphProto

from aotc.ir import TupleType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.onnx.node import (
    KnownArray,
    OnnxNode,
    Table,
    TensorList,
    sequence_elements,
    table_by_function_name,
)
from aotc.relay.frontend.tail_recursion import row_of
from aotc.relay.graph_api import Expr, Tuple, compile_time_elements, type_of

_ABSENT_TYPE: Final = TupleType((TupleType(()),))


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
    """Return the elements of a sequence as rows of one tensor. Raises AotcError (code "onnx-sequence")
    if their types differ.
    """
    types = list(dict.fromkeys(str(type_of(item)) for item in items))
    text = f"a position that is known at run time only needs elements of one type, found {', '.join(types[:4])}"
    require("onnx-sequence", len(types) == 1, text)
    return g.stack(items, 0)


def _position_from_start(position: Expr, count: int) -> Expr:
    """Return a position as an int64 scalar, with negative ones counted from the end."""
    at = g.cast(g.reshape(position, ()), "int64")
    return g.where(g.less(at, 0), g.add(at, count), at)


def _sequence_at(items: TensorList, position: Expr) -> Expr:
    known = _known_position(position, 0, len(items))
    if known is not None:
        return items[known]
    return row_of(_stacked(items), _position_from_start(position, len(items)), 0)


def _sequence_insert(items: TensorList, item: Expr, position: Expr | None = None) -> Expr:
    count = len(items)
    known = _known_position(position, count, count, valid_positions_past_end=1)
    if known is not None or position is None:
        return Tuple([*items[:known], item, *items[known:]])
    rows, at = _stacked([*items, item]), _position_from_start(position, count)
    return Tuple([row_of(rows, _row_after_insertion(at, k, count), 0) for k in range(count + 1)])


def _row_after_insertion(position: Expr, element: int, count: int) -> Expr:
    """Return which of `count` elements, or the new one behind them, is at `element` once the new one is
    inserted at a position.
    """
    moved = g.where(g.call_op("equal", position, g.constant(element, "int64")), count, g.constant(element - 1, "int64"))
    return g.where(g.less(g.constant(element, "int64"), position), g.constant(element, "int64"), moved)


def _sequence_erase(items: TensorList, position: Expr | None = None) -> Expr:
    count = len(items)
    known = _known_position(position, count - 1, count)
    if known is not None or position is None:
        return Tuple([item for k, item in enumerate(items) if k != known])
    rows, at = _stacked(items), _position_from_start(position, count)
    kept = (g.where(g.less(g.constant(k, "int64"), at), g.constant(k, "int64"), k + 1) for k in range(count - 1))
    return Tuple([row_of(rows, row, 0) for row in kept])


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


def _split_to_sequence(x: Expr, split: KnownArray | None = None, *, axis: Axis = 0, keepdims: int = 1) -> Expr:
    size = g.dim(x, axis)
    if split is None or split.ndim == 0:
        sizes = g.equal_part_sizes(size, 1 if split is None else int(split))
    else:
        g.check_unroll_count(split.size, "a split")
        sizes = [int(v) for v in split.reshape(-1)]
    require("onnx-split", sum(sizes) == size, f"parts {sizes[:16]} do not add up to {size} elements")
    parts = g.split(x, sizes, axis)
    return Tuple([g.squeeze(p, [axis]) for p in parts] if split is None and keepdims != 1 else parts)


# --- optional values


def is_absent(value: Expr) -> bool:
    """Return True for an optional value that is absent."""
    return type_of(value) == _ABSENT_TYPE


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
