# SPDX-License-Identifier: Apache-2.0
"""Nodes of random models that make a sequence whose length a run decides, change it and read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper

from tests.fuzz.mutate_bytes import odds, pick

if TYPE_CHECKING:
    from tests.fuzz.control_flow import Graph, Value

Made = tuple[str, bool]
"""The name of a sequence, and whether its elements have one shape."""


def add_run_time_sequence(g: Graph) -> None:
    """Add a sequence of matrices of few columns, and results that are read of it."""
    x = g.any("f", lambda v: len(v.shape) == 2 and all(isinstance(d, int) and 1 <= d <= 8 for d in v.shape))
    if x is None:
        return
    name, is_uniform = pick(g.rng, (_collected, _collected, _parts, _chosen))(g, x)
    name, is_uniform = _inserted(g, name, x, is_uniform, at_end=True)  # there is an element
    for _ in range(int(g.rng.integers(0, 3))):
        if odds(g.rng, 0.6):
            name, is_uniform = _inserted(g, name, x, is_uniform, at_end=odds(g.rng, 0.4))
        else:
            name = _with_one_more_erased(g, name, x)
    _read(g, name, x, is_uniform)


def _node(g: Graph, op: str, inputs: list[str], prefix: str = "q", **attributes: Any) -> str:
    name = g.name(prefix)
    g.nodes.append(helper.make_node(op, inputs, [name], **attributes))
    return name


def _constant(g: Graph, value: Any) -> str:
    return g.constant(np.asarray(value)).name


def _sequence_info(name: str, rank: int) -> Any:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, [None] * rank)


def _collected(g: Graph, x: Value) -> Made:
    """A loop inserts an element in each iteration: of the shape of x, or the first rows of x."""
    trips = g.input("trips0", "i", ()).name if odds(g.rng, 0.7) else _constant(g, 11)
    empty = _node(g, "SequenceEmpty", [], dtype=TensorProto.FLOAT)
    is_uniform = odds(g.rng, 0.4)
    number, going, before = g.name("i"), g.name("go"), g.name("q")
    with g.inner() as nodes:
        item = _node(g, "Sin", [x.name])
        if not is_uniform:
            first = _node(g, "Reshape", [number, _constant(g, [1])])
            least = _constant(g, [int(g.rng.integers(0, 2))])
            start = _constant(g, [0]) if odds(g.rng, 0.6) else first
            item = _node(g, "Slice", [item, start, _node(g, "Add", [first, least]), _constant(g, [0])])
        at = [_constant(g, 0)] if odds(g.rng, 0.2) else []
        after = _node(g, "SequenceInsert", [before, item, *at])
        goes_on = _node(g, "Identity", [going]) if odds(g.rng, 0.7) else _node(
            g, "Less", [number, _constant(g, int(g.rng.integers(0, 6)))])  # fmt: skip
        body = helper.make_graph(
            list(nodes), g.name("g"),
            [helper.make_tensor_value_info(number, TensorProto.INT64, []),
             helper.make_tensor_value_info(going, TensorProto.BOOL, []), _sequence_info(before, 2)],
            [helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []), _sequence_info(after, 2)],
        )  # fmt: skip
    start = _constant(g, True)
    return _node(g, "Loop", [trips, start, empty], body=body), is_uniform


def _parts(g: Graph, x: Value) -> Made:
    """Parts of x of a size that is an input, along an axis."""
    size = _node(g, "Add", [g.input("k", "i", ()).name, _constant(g, 1)])
    return _node(g, "SplitToSequence", [x.name, size], axis=int(g.rng.integers(-2, 1))), False


def _chosen(g: Graph, x: Value) -> Made:
    """A branch gives some copies of x, the other one others."""
    graphs = []
    for _ in range(2):
        with g.inner() as nodes:
            items = [_node(g, pick(g.rng, ("Sin", "Neg", "Cos")), [x.name]) for _ in range(int(g.rng.integers(1, 4)))]
            made = _node(g, "SequenceConstruct", items)
            graphs.append(helper.make_graph(list(nodes), g.name("g"), [], [_sequence_info(made, 2)]))
    return _node(g, "If", [g.condition().name], then_branch=graphs[0], else_branch=graphs[1]), True


def _position(g: Graph, name: str) -> str:
    """A position of an element: there is one."""
    length = _node(g, "SequenceLength", [name])
    place = _node(g, "Mod", [g.like_of_integers(()).name, length])
    return place if odds(g.rng, 0.7) else _node(g, "Sub", [place, length])


def _inserted(g: Graph, name: str, x: Value, is_uniform: bool, *, at_end: bool) -> Made:
    item = _node(g, "Cos", [x.name])
    if odds(g.rng, 0.3):
        item, is_uniform = _node(g, "Concat", [item, x.name], axis=0), False
    return _node(g, "SequenceInsert", [name, item, *([] if at_end else [_position(g, name)])]), is_uniform


def _with_one_more_erased(g: Graph, name: str, x: Value) -> str:
    more = _node(g, "SequenceInsert", [name, x.name])
    return _node(g, "SequenceErase", [more, *([_position(g, more)] if odds(g.rng, 0.7) else [])])


def _read(g: Graph, name: str, x: Value, is_uniform: bool) -> None:
    from tests.fuzz.control_flow import Value

    rows, _ = x.shape
    g.add("SequenceLength", [name], Value(g.name(), "i", ()))
    if is_uniform:
        match int(g.rng.integers(3)):
            case 0:
                g.result("SequenceAt", [name, _position(g, name)], "f", x.shape)
            case 1:
                g.result("ConcatFromSequence", [name], "f", (g.name("d"), *x.shape), axis=0, new_axis=1)
            case 2:
                g.result("ConcatFromSequence", [name], "f", (rows, g.name("d")), axis=1)
        return
    element = _node(g, "SequenceAt", [name, _position(g, name)])
    g.scope.append(Value(_node(g, "Shape", [element], "v"), "i", (2,)))
    # an element may have no rows: its sum is 0
    g.scope.append(Value(_node(g, "ReduceSum", [element], "v", keepdims=0), "f", ()))
