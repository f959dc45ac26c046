# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators on sequences of strings, and on optional tensors of strings.

A sequence of strings is a tuple of slots (`aotc.ir.string_slots`) of one size; see `ops_sequences`.

    STRING_OPS["SequenceAt"](sequence, position)       # Strings(...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx import ops_sequences
from aotc.relay.frontend.onnx.node import Converted, KnownArray, OnnxNode, Strings, Table, TensorList
from aotc.relay.frontend.string_slots import slot_size, with_slot_size
from aotc.relay.graph_api import Tuple

_OPS: Final = ops_sequences.OPS


def _same_size(items: Sequence[Expr]) -> list[Expr]:
    """Return strings in slots of one size."""
    size = max(map(slot_size, items), default=1)
    return [with_slot_size(item, size) for item in items]


def _as_strings(converter: Callable[..., Converted]) -> Callable[..., Strings]:
    def convert(*inputs: object, **attributes: object) -> Strings:
        result = converter(*inputs, **attributes)
        assert not isinstance(result, (Strings, Sequence))
        return Strings(result)

    return convert


_AT: Final = _as_strings(_OPS["SequenceAt"])
_INSERT: Final = _as_strings(_OPS["SequenceInsert"])
_ERASE: Final = _as_strings(_OPS["SequenceErase"])


def _sequence_construct(*items: Expr) -> Converted:
    return Strings(Tuple(_same_size(items)))


def _sequence_at(items: TensorList, position: Expr) -> Converted:
    return _AT(items, position)


def _sequence_erase(items: TensorList, position: Expr | None = None) -> Converted:
    return _ERASE(items, position)


def _sequence_insert(items: TensorList, item: Expr, position: Expr | None = None, *, node: OnnxNode) -> Converted:
    text = "SequenceInsert of a string and a sequence needs both to be of strings"
    require("onnx-dtype", 1 in node.string_inputs and (not items or 0 in node.string_inputs), text)
    *rows, last = _same_size([*items, item])
    return _INSERT(rows, last, position)


def _concat_from_sequence(items: TensorList, *, axis: int, new_axis: int = 0) -> Converted:
    require("onnx-sequence", bool(items), "an empty sequence cannot be concatenated")
    rank = g.rank(items[0]) - 1
    if new_axis:
        return Strings(g.stack(items, g.normalize_axis(axis, rank + 1)))
    return Strings(g.concat(items, g.normalize_axis(axis, rank)))


def _split_to_sequence(x: Expr, split: KnownArray | None = None, *, axis: int = 0, keepdims: int = 1) -> Converted:
    place = g.normalize_axis(axis, g.rank(x) - 1)
    return _as_strings(_OPS["SplitToSequence"])(x, split, axis=place, keepdims=keepdims)


def _optional(value: Expr) -> Converted:
    return Strings(value)


STRING_OPS: Table = {
    "ConcatFromSequence": _concat_from_sequence,
    "Optional": _optional,
    "OptionalGetElement": _optional,
    "OptionalHasElement": _OPS["OptionalHasElement"],
    "SequenceAt": _sequence_at,
    "SequenceConstruct": _sequence_construct,
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": _OPS["SequenceLength"],
    "SplitToSequence": _split_to_sequence,
}
