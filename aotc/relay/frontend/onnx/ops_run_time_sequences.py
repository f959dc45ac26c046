# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators on sequences and optional values whose length a run decides, such as sequences that a
loop makes.

    OPS["SequenceAt"](position, node=node)      # an element; node.sequences knows the sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from onnx import GraphProto, ValueInfoProto, helper

from aotc.ir import TupleType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import run_time_sequences
from aotc.relay.frontend.found_sizes import with_required_range
from aotc.relay.frontend.onnx import ops_loops
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_values import ABSENT_TYPE
from aotc.relay.frontend.run_time_sequences import RunTimeSequence
from aotc.relay.graph_api import Expr, type_of


def _sequence(node: OnnxNode) -> RunTimeSequence:
    """Return the first input, a sequence. Raises AotcError (code "onnx-sequence") for an optional value."""
    sequence = node.sequences.of(node[0])
    is_sequence = sequence is not None and not sequence.is_tensor and sequence.present is None
    text = f"{node.op_type} takes a sequence, but its input is not one that is present in each run"
    require("onnx-sequence", is_sequence, text, hint="read an optional value by OptionalGetElement first")
    assert sequence is not None
    return sequence


def _sequence_at(_: Expr, position: Expr, *, node: OnnxNode) -> Expr:
    return run_time_sequences.element(_sequence(node), position)


def _sequence_insert(_: Expr, item: Expr, position: Expr | None = None, *, node: OnnxNode) -> Expr:
    text = "a string cannot be an element of a sequence whose length a run decides"
    require("onnx-dtype", not node.string_inputs, text)
    require("onnx-sequence", not isinstance(type_of(item), TupleType), "the elements of a sequence must be tensors")
    return node.sequences.expression(run_time_sequences.insert(_sequence(node), item, position))


def _sequence_erase(_: Expr, position: Expr | None = None, *, node: OnnxNode) -> Expr:
    return node.sequences.expression(run_time_sequences.erase(_sequence(node), position))


def _sequence_length(_: Expr, *, node: OnnxNode) -> Expr:
    return run_time_sequences.length(_sequence(node))


def _sequence_map(first: Expr, *others: Expr, body: GraphProto, node: OnnxNode) -> list[Expr]:
    """Convert SequenceMap to a Loop over the positions, whose body reads an element of each sequence."""
    values = [first, *others]
    is_sequence = [isinstance(type_of(x), TupleType) for x in values]
    names = [f"sequence_map_input{k}" for k in range(len(values))]
    collected = [f"sequence_map_output{k}" for k in range(len(body.output))]
    reads = [
        helper.make_node("SequenceAt", [name, "sequence_map_position"], [formal.name])
        if is_read
        else helper.make_node("Identity", [name], [formal.name])
        for name, is_read, formal in zip(names, is_sequence, body.input, strict=True)
    ]
    inserts = [
        helper.make_node("SequenceInsert", [f"{name}_before", value.name], [f"{name}_after"])
        for name, value in zip(collected, body.output, strict=True)
    ]
    going = helper.make_node("Identity", ["sequence_map_goes_on"], ["sequence_map_going"])
    given = ["sequence_map_position", "sequence_map_goes_on", *(f"{name}_before" for name in collected)]
    results = ["sequence_map_going", *(f"{name}_after" for name in collected)]
    loop = helper.make_graph(
        [*reads, *body.node, *inserts, going], "body", list(map(_named, given)), list(map(_named, results)),
        initializer=list(body.initializer),
    )  # fmt: skip
    lengths = [
        helper.make_node("SequenceLength", [name], [f"{name}_length"])
        for name, given in zip(names, is_sequence, strict=True)
        if given
    ]
    empty = [helper.make_node("SequenceEmpty", [], [f"{name}_none"]) for name in collected]
    start = [f"{names[0]}_length", "", *(f"{name}_none" for name in collected)]
    graph = helper.make_graph(
        [*lengths, *empty, helper.make_node("Loop", start, collected, body=loop)],
        "map",
        list(map(_named, names)),
        list(map(_named, [*collected, *(node.output[0] for node in lengths)])),
    )
    outputs = node.subgraph(graph, values)
    number, *further = outputs[len(collected) :]
    return [_with_equal_lengths(x, number, further, node) for x in outputs[: len(collected)]]


def _with_equal_lengths(value: Expr, number: Expr, others: Sequence[Expr], node: OnnxNode) -> Expr:
    """Return a sequence, in a run in which the numbers of elements of other sequences are `number`."""
    sequence = node.sequences.of(value)
    if not others or sequence is None:
        return value
    text = "the sequences of SequenceMap have equally many elements"
    is_equal = g.logical_and(*(g.equal(number, other) for other in others))
    return node.sequences.expression(replace(sequence, count=with_required_range(sequence.count, is_equal, 1, 1, text)))


def _named(name: str) -> ValueInfoProto:
    return ValueInfoProto(name=name)


def _concat_from_sequence(_: Expr, *, axis: int, new_axis: int = 0, node: OnnxNode) -> Expr:
    sequence = _sequence(node)
    return run_time_sequences.stacked(sequence, axis) if new_axis else run_time_sequences.joined(sequence, axis)


def _identity(value: Expr) -> Expr:
    return value


def _optional(value: Expr, **_: object) -> Expr:
    return value


def _optional_get_element(value: Expr, *, node: OnnxNode) -> Expr:
    known = node.sequences.of(value)
    assert known is not None
    present = run_time_sequences.require_present(known)
    return node.sequences.expression(present) if isinstance(present, RunTimeSequence) else present


def _optional_has_element(value: Expr | None = None, *, node: OnnxNode) -> Expr:
    known = node.sequences.of(value)
    if known is None:
        return g.constant(value is not None and type_of(value) != ABSENT_TYPE)
    return run_time_sequences.is_present(known)


#: Converters of operators some of whose inputs are sequences of run-time length, or optional values that a run chooses.
OPS: Final[Table] = {
    **table_by_function_name(_concat_from_sequence, _sequence_at, _sequence_erase, _sequence_insert),
    **table_by_function_name(_sequence_length, _sequence_map, _identity),
    **table_by_function_name(_optional, _optional_get_element, _optional_has_element),
    "Loop": ops_loops.OPS["Loop"],
}
