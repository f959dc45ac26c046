# SPDX-License-Identifier: Apache-2.0
"""Converters of control flow and of sequences.

A branch whose condition is known is taken; a loop whose trip count and condition are known is
unrolled. A sequence is a tuple of tensors; positions in it must be known.

    OPS["If"](node)                         # the outputs of one branch
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto

from aotc.ir import AotcError, TupleType
from aotc.relay.expr import Constant, Expr, If, Tuple, TupleGetItem, type_of
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.node import Node, Table, of_input
from aotc.relay.frontend.shapes import element


def _if(node: Node) -> Sequence[Expr]:
    condition = node[0]
    if isinstance(condition, Constant):
        taken = "then_branch" if g.only(condition.data, "the condition of If") else "else_branch"
        return node.host.subgraph(node.graph(taken), [])
    yes, no = (node.host.subgraph(node.graph(name), []) for name in ("then_branch", "else_branch"))
    if len(yes) != len(no):
        raise AotcError("onnx-if", f"the branches of If give {len(yes)} and {len(no)} outputs")
    types = [(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    if any(a != b for a, b in types):
        text = "; ".join(f"{a} and {b}" for a, b in types if a != b)
        raise AotcError("onnx-if", f"the branches of If give different types: {text}")
    scalar = g.reshape(condition, ())
    if len(yes) == 1:
        return [If(scalar, yes[0], no[0])]
    both = If(scalar, Tuple(yes), Tuple(no))
    return [TupleGetItem(both, k) for k in range(len(yes))]


def _loop(node: Node) -> list[Expr]:
    """Unrolled: the iteration number is a constant, and so must be the condition after each iteration."""
    limit, condition = node.const_ints(0, "the trip count"), node.const(1, "the condition")
    trips = limit[0] if limit else None
    going = condition is None or bool(g.only(condition, "the condition of Loop"))
    body = node.graph("body")
    state = [node[k] for k in range(2, len(node.inputs))]
    rows: list[list[Expr]] = []
    while going and (trips is None or len(rows) < trips):
        g.check_unrolled(len(rows) + 1 if trips is None or condition is not None else trips, "a loop")
        given = [g.constant(len(rows), "int64"), g.constant(True), *state]
        flag, *values = _body_outputs(node, body, given, 1 + len(state))
        state, scanned = values[: len(state)], values[len(state) :]
        rows.append(scanned)
        if condition is None:
            continue
        if not isinstance(flag, Constant):
            raise AotcError("onnx-loop", "the condition of the loop depends on run-time values")
        going = bool(g.only(flag.data, "the condition of Loop"))
    count = len(body.output) - 1 - len(state)
    if count and not rows:
        raise AotcError("onnx-loop", "a loop that never runs has no outputs to stack")
    return [*state, *(g.stack([row[k] for row in rows], 0) for k in range(count))]


def _scan(node: Node) -> list[Expr]:
    """Unrolled over the scanned axes."""
    if node.since < 9:
        raise AotcError("onnx-op", "Scan of operator set 8 is not supported")
    inputs, body = node.all_inputs(), node.graph("body")
    scanned = node.integer("num_scan_inputs")
    if not 1 <= scanned <= len(inputs):
        raise AotcError("onnx-attribute", f"num_scan_inputs of Scan is {scanned}, it has {len(inputs)} inputs")
    state, sources = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
    given = _per_value(node, "scan_input_axes", scanned)
    axes = [g.axis(a, g.rank(x)) for a, x in zip(given, sources, strict=True)]
    backwards = _per_value(node, "scan_input_directions", scanned)
    trips = g.dim(sources[0], axes[0])
    if trips < 1:
        raise AotcError("onnx-loop", f"a scan of {trips} iterations is not supported")
    g.check_unrolled(trips, "a scan")
    rows: list[list[Expr]] = []
    for t in range(trips):
        elements = [
            element(x, axis, trips - 1 - t if back else t)
            for x, axis, back in zip(sources, axes, backwards, strict=True)
        ]
        values = _body_outputs(node, body, [*state, *elements], len(state))
        state = values[: len(state)]
        rows.append(values[len(state) :])
    count = len(rows[0])
    out_axes = _per_value(node, "scan_output_axes", count)
    prepend = _per_value(node, "scan_output_directions", count)
    results = []
    for k in range(count):
        parts = [row[k] for row in rows]
        axis = g.axis(out_axes[k], g.rank(parts[0]) + 1)
        results.append(g.stack(list(reversed(parts)) if prepend[k] else parts, axis))
    return [*state, *results]


def _per_value(node: Node, name: str, count: int) -> list[int]:
    """An attribute that has one number for each of `count` values, all 0 where it is left out."""
    given = node.ints(name) or [0] * count
    if len(given) != count:
        raise AotcError("onnx-attribute", f"attribute {name!r} must have {count} elements, it has {len(given)}")
    return given


def _body_outputs(node: Node, body: GraphProto, inputs: Sequence[Expr], least: int) -> list[Expr]:
    """The outputs of a body, `least` or more."""
    outputs = node.host.subgraph(body, inputs)
    if len(outputs) < least:
        raise AotcError("onnx-loop", f"the body of {node.op_type} gives {len(outputs)} outputs, not {least} or more")
    return outputs


# --- sequences


def _fields(x: Expr) -> list[Expr]:
    ty = type_of(x)
    if not isinstance(ty, TupleType):
        raise AotcError("onnx-sequence", "a sequence is expected here")
    return [g.field(x, k) for k in range(len(ty.fields))]


def _position(node: Node, index: int, count: int, extra: int = 0) -> int:
    """A constant position in a sequence of `count` elements."""
    given = node.const_int(index, "the position")
    if not -count <= given < count + extra:
        raise AotcError("onnx-sequence", f"position {given} is outside a sequence of {count} elements")
    return given + count if given < 0 else given


def _sequence_at(node: Node) -> Expr:
    items = _fields(node[0])
    return items[_position(node, 1, len(items))]


def _sequence_insert(node: Node) -> Expr:
    items = _fields(node[0])
    place = len(items) if node.optional(2) is None else _position(node, 2, len(items), extra=1)
    return Tuple([*items[:place], node[1], *items[place:]])


def _sequence_erase(node: Node) -> Expr:
    items = _fields(node[0])
    place = len(items) - 1 if node.optional(1) is None else _position(node, 1, len(items))
    return Tuple([*items[:place], *items[place + 1 :]])


def _concat_from_sequence(node: Node) -> Expr:
    items = _fields(node[0])
    if not items:
        raise AotcError("onnx-sequence", "an empty sequence cannot be joined")
    if node.integer("new_axis"):
        return g.stack(items, g.axis(node.integer("axis"), g.rank(items[0]) + 1))
    return g.concat(items, g.axis(node.integer("axis"), g.rank(items[0])))


def _split_to_sequence(node: Node) -> Expr:
    x = node[0]
    axis = node.axis(x)
    size, given = g.dim(x, axis), node.const(1, "`split`")
    if given is None or given.ndim == 0:
        sizes = g.equal_parts(size, 1 if given is None else int(given))
    else:
        g.check_unrolled(given.size, "a split")
        sizes = [int(v) for v in given.reshape(-1)]
    if sum(sizes) != size:
        raise AotcError("onnx-split", f"parts {sizes[:16]} do not make up {size} elements")
    parts = g.split(x, sizes, axis)
    if given is None and node.integer("keepdims", 1) != 1:
        parts = [g.squeeze(p, [axis]) for p in parts]
    return Tuple(parts)


OPS: Table = {
    "ConcatFromSequence": _concat_from_sequence,
    "If": _if,
    "Loop": _loop,
    "OptionalGetElement": of_input(lambda x: x),
    "OptionalHasElement": lambda node: g.constant(node.optional(0) is not None),
    "Scan": _scan,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": lambda node: Tuple(node.all_inputs()),
    "SequenceEmpty": lambda _: Tuple(()),
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": lambda node: g.constant(len(_fields(node[0])), "int64"),
    "SplitToSequence": _split_to_sequence,
}
