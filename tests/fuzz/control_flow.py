# SPDX-License-Identifier: Apache-2.0
"""Random ONNX models of branches, loops, scans and sequences, nested in one another, against ONNX Runtime.

files = make(seed)     # a model, the inputs of several runs, and how it is to be compiled

Decisions and positions follow from integers and from inputs, so that rounding does not change them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.fuzz.case import Files
from tests.fuzz.execute import targets
from tests.fuzz.mutate_bytes import odds, pick
from tests.fuzz.onnx_graphs import names_read
from tests.fuzz.run_time_sequences import add_run_time_sequence

Array = np.ndarray[Any, Any]
Generator = np.random.Generator
Shape = tuple["int | str", ...]
RUNS, MOST, MOST_TRIPS, DEPTH = 4, 6, 9, 3
"""Runs of a model, the largest value of its size `n`, of its trip counts, and how deep control flow is nested."""
TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
UNARY = ("Tanh", "Sin", "Cos", "Neg", "Abs", "Relu", "Identity", "Softmax")


@dataclass(frozen=True)
class Value:
    """A tensor, or a sequence of `count` tensors; extents that are known at run time only have names."""

    name: str
    kind: str
    shape: Shape
    count: int | None = None

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    def is_like(self, other: Value) -> bool:
        return (self.kind, self.shape, self.count) == (other.kind, other.shape, other.count)

    def info(self, name: str = "", is_shaped: bool = True) -> onnx.ValueInfoProto:
        shape = [d if isinstance(d, int) else None for d in self.shape] if is_shaped or not self.shape else None
        if self.count is not None:
            made = helper.make_tensor_sequence_value_info(name or self.name, TYPES[self.kind], shape)
        else:
            made = helper.make_tensor_value_info(name or self.name, TYPES[self.kind], shape)
        return made


@dataclass
class Graph:
    """A model under construction.

    scope    values that nodes may read, those of enclosing graphs first
    nodes    those of the innermost graph
    inputs   of the model
    """

    rng: Generator
    scope: list[Value] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    count: int = 0

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def input(self, name: str, kind: str, shape: Shape) -> Value:
        """An input of the model, which is made when it is first asked for."""
        known = next((v for v in self.inputs if v.name == name), None)
        if known is None:
            known = Value(name, kind, shape)
            self.inputs.append(known)
        return known

    def add(self, op: str, inputs: Sequence[Value | str], *results: Value, **attributes: Any) -> Value:
        names = [v if isinstance(v, str) else v.name for v in inputs]
        self.nodes.append(helper.make_node(op, names, [r.name for r in results], **attributes))
        self.scope += results
        return results[0]

    def result(self, op: str, inputs: Sequence[Value | str], kind: str, shape: Shape, **attributes: Any) -> Value:
        return self.add(op, inputs, Value(self.name(), kind, shape), **attributes)

    def constant(self, array: Any) -> Value:
        array = np.asarray(array)
        kind = {"f": "f", "i": "i", "b": "b"}[array.dtype.kind]
        array = array.astype(np.float32) if kind == "f" else array
        value = Value(self.name("c"), kind, array.shape)
        self.nodes.append(helper.make_node("Constant", [], [value.name], value=numpy_helper.from_array(array)))
        return value

    def values(self, kind: str, is_suited: Callable[[Value], bool] = lambda _: True) -> list[Value]:
        """The values in scope of a kind that are suited; those that came last are there more than once."""
        found = [v for v in self.scope if v.kind == kind and v.count is None and is_suited(v)]
        return found + 3 * found[-4:]

    def any(self, kind: str, is_suited: Callable[[Value], bool] = lambda _: True) -> Value | None:
        found = self.values(kind, is_suited)
        return pick(self.rng, found) if found else None

    def like(self, value: Value) -> Value:
        """A value of the type of another one: one in scope, or a new one."""
        if value.count is not None:
            found = [v for v in self.scope if v.is_like(value)]
            return pick(self.rng, found)
        known = self.any(value.kind, value.is_like)
        if known is not None and odds(self.rng, 0.5):
            return known
        if value.kind == "f":
            if known is not None:
                other = self.any("f", lambda v: not v.shape or v.is_like(value)) or known
                both = self.result("Add", [known, other], "f", value.shape)
                return self.result(pick(self.rng, ("Tanh", "Sin", "Cos")), [both], "f", value.shape)
            made = self.constant(self.rng.normal(0, 0.7, value.shape))
            scalar = self.any("f", lambda v: v.shape == ())
            return made if scalar is None else self.result("Mul", [made, scalar], "f", value.shape)
        if value.kind == "b" and known is not None and odds(self.rng, 0.7):
            return self.result("Not", [known], "b", value.shape)
        if value.kind == "b" and all(isinstance(d, int) for d in value.shape):
            one, other = self.like_of_integers(value.shape), self.constant(int(self.rng.integers(4)))
            return self.result(pick(self.rng, ("Less", "Greater", "Equal")), [one, other], "b", value.shape)
        return known if value.kind == "b" and known is not None else self.like_of_integers(value.shape)

    def like_of_integers(self, shape: Shape) -> Value:
        known = self.any("i", lambda v: v.shape == shape)
        if known is None:
            return self.constant(self.rng.integers(0, 5, shape)) if shape else self.constant(int(self.rng.integers(5)))
        if odds(self.rng, 0.5):
            return known
        other = self.any("i", lambda v: v.shape in ((), shape)) or known
        both = self.result(pick(self.rng, ("Add", "Sub", "Mul")), [known, other], "i", shape)
        return self.result("Mod", [both, self.constant(7)], "i", shape)

    def condition(self) -> Value:
        """A bool scalar."""
        if odds(self.rng, 0.4):
            return self.input(f"flag{int(self.rng.integers(2))}", "b", ())
        return self.like(Value("", "b", ()))

    @contextmanager
    def inner(self) -> Iterator[list[NodeProto]]:
        """Nodes that are added meanwhile are those of a graph in this one, which sees what is in scope."""
        scope, nodes, self.nodes = len(self.scope), self.nodes, []
        try:
            yield self.nodes
        finally:
            del self.scope[scope:]
            self.nodes = nodes

    def outputs(self, values: Sequence[Value]) -> list[Value]:
        """Values as outputs of the innermost graph: copies of those that it does not compute, or that are outputs
        already.
        """
        made: list[Value] = []
        own = {name for node in self.nodes for name in node.output}
        for value in values:
            if value.name not in own or value.name in {v.name for v in made}:
                value = self.result("Identity", [value], value.kind, value.shape) if value.count is None else self.add(
                    "Identity", [value], Value(self.name(), value.kind, value.shape, value.count))  # fmt: skip
            made.append(value)
        return made


def _graph(
    g: Graph, nodes: Sequence[NodeProto], inputs: Sequence[Value], outputs: Sequence[Value], is_scan: bool = False
) -> GraphProto:
    """A graph in a node; ONNX Runtime needs the shapes of that of a Scan."""
    shaped = is_scan or odds(g.rng, 0.5)
    return helper.make_graph(
        list(nodes),
        g.name("g"),
        [v.info(is_shaped=shaped) for v in inputs],
        [v.info(is_shaped=shaped) for v in outputs],
    )


# --- nodes of one tensor


def _unary(g: Graph) -> None:
    x = g.any("f", lambda v: bool(v.shape))
    if x is not None:
        g.result(pick(g.rng, UNARY), [x], "f", x.shape)


def _binary(g: Graph) -> None:
    x = g.any("f")
    assert x is not None
    y = g.any("f", lambda v: v.shape in ((), x.shape, x.shape[-1:])) or x
    op = pick(g.rng, ("Add", "Sub", "Mul", "Max", "Min"))
    made = g.result(op, [x, y] if odds(g.rng, 0.5) else [y, x], "f", x.shape)
    g.result(pick(g.rng, ("Tanh", "Sin")), [made], "f", x.shape)


def _integers(g: Graph) -> None:
    x = g.any("i")
    g.like_of_integers(x.shape if x is not None else ())


def _reduce(g: Graph) -> None:
    x = g.any("f", lambda v: bool(v.shape) and not v.is_empty)
    if x is None:
        return
    axis = int(g.rng.integers(len(x.shape)))
    keeps = odds(g.rng, 0.5)
    shape = tuple(1 if k == axis else d for k, d in enumerate(x.shape) if keeps or k != axis)
    g.result(pick(g.rng, ("ReduceMax", "ReduceMean")), [x], "f", shape, axes=[axis], keepdims=int(keeps))


def _scalar(g: Graph) -> None:
    x = g.any("f", lambda v: bool(v.shape) and not v.is_empty)
    if x is not None:
        g.result("ReduceMean", [x], "f", (), keepdims=0)


def _transpose(g: Graph) -> None:
    x = g.any("f", lambda v: len(v.shape) > 1)
    if x is not None:
        order = [int(k) for k in g.rng.permutation(len(x.shape))]
        g.result("Transpose", [x], "f", tuple(x.shape[k] for k in order), perm=order)


def _slice(g: Graph) -> None:
    x = g.any("f", lambda v: any(isinstance(d, int) and d > 1 for d in v.shape) and not v.is_empty)
    if x is None:
        return
    axis = pick(g.rng, [k for k, d in enumerate(x.shape) if isinstance(d, int) and d > 1])
    extent = x.shape[axis]
    assert isinstance(extent, int)
    begin = int(g.rng.integers(extent))
    end = int(g.rng.integers(begin + 1, extent + 1))
    places = [g.constant(np.array([k])) for k in (begin, end, axis)]
    g.result("Slice", [x, *places], "f", tuple(end - begin if k == axis else d for k, d in enumerate(x.shape)))


def _concat(g: Graph) -> None:
    x = g.any("f", lambda v: 0 < len(v.shape) < 4 and isinstance(v.shape[0], int) and v.shape[0] < 12)
    if x is None:
        return
    y = g.any(
        "f", lambda v: len(v.shape) == len(x.shape) and v.shape[1:] == x.shape[1:] and isinstance(v.shape[0], int)
    )
    y = y or x
    g.result("Concat", [x, y], "f", (int(x.shape[0]) + int(y.shape[0]), *x.shape[1:]), axis=0)


def _row(g: Graph) -> None:
    x = g.any("f", lambda v: len(v.shape) > 1 and isinstance(v.shape[0], int) and not v.is_empty)
    if x is None:
        return
    place = g.like_of_integers(())
    place = g.result("Mod", [place, g.constant(int(x.shape[0]))], "i", ())
    if odds(g.rng, 0.5):
        g.result("Gather", [x, place], "f", x.shape[1:])
        return
    row = g.any("f", lambda v: v.shape == x.shape[1:])
    if row is not None:
        at = g.result("Reshape", [place, g.constant(np.array([1, 1]))], "i", (1, 1))
        new = g.result("Unsqueeze", [row, g.constant(np.array([0]))], "f", (1, *row.shape))
        g.result("ScatterND", [x, at, new], "f", x.shape)


def _choose(g: Graph) -> None:
    x = g.any("f")
    assert x is not None
    y = g.any("f", x.is_like) or x
    g.result("Where", [g.condition(), x, y], "f", x.shape)


def _product(g: Graph) -> None:
    x = g.any("f", lambda v: len(v.shape) == 2 and isinstance(v.shape[1], int) and not v.is_empty)
    if x is None:
        return
    inner = int(x.shape[1])
    width = pick(g.rng, (inner, inner, 3))
    weights = g.constant(g.rng.normal(0, 0.5 / np.sqrt(inner), (inner, width)))
    g.result("MatMul", [x, weights], "f", (x.shape[0], width))


# --- sequences


def _sequence(g: Graph) -> None:
    known = [v for v in g.scope if v.count is not None]
    if not known or odds(g.rng, 0.3):
        x = g.any("f", lambda v: all(isinstance(d, int) for d in v.shape))
        if x is None:
            return
        items = [g.like(x) for _ in range(int(g.rng.integers(1, 4)))]
        g.add("SequenceConstruct", items, Value(g.name("s"), "f", x.shape, len(items)))
        return
    s = pick(g.rng, known)
    like = Value("", "f", s.shape)
    place = g.like_of_integers(())
    is_known = odds(g.rng, 0.4)

    def position(count: int) -> Value:
        if is_known:
            return g.constant(int(g.rng.integers(-count, count)))
        return g.result("Mod", [place, g.constant(count)], "i", ())

    match int(g.rng.integers(5)):
        case 0 | 1 if s.count:
            g.result("SequenceAt", [s, position(s.count)], "f", s.shape)
        case 2:
            at = [position(s.count)] if s.count and odds(g.rng, 0.7) else []
            g.add("SequenceInsert", [s, g.like(like), *at], Value(g.name("s"), "f", s.shape, s.count + 1))
        case 3 if s.count > 1:
            at = [position(s.count)] if odds(g.rng, 0.7) else []
            g.add("SequenceErase", [s, *at], Value(g.name("s"), "f", s.shape, s.count - 1))
        case 4 if s.count:
            axis = int(g.rng.integers(len(s.shape) + 1))
            shape = (*s.shape[:axis], s.count, *s.shape[axis:])
            g.result("ConcatFromSequence", [s], "f", shape, axis=axis, new_axis=1)


# --- control flow


def _choice(g: Graph, depth: int) -> None:
    condition = g.condition()
    wanted = [_wanted(g) for _ in range(int(g.rng.integers(1, 4)))]
    differs = g.any("f", lambda v: len(v.shape) > 1 and all(isinstance(d, int) for d in v.shape))
    if differs is not None and odds(g.rng, 0.25):
        wanted.append(differs)
    else:
        differs = None
    graphs = []
    for _ in range(2):
        with g.inner() as nodes:
            _nodes(g, int(g.rng.integers(0, 4)), depth - 1)
            kinds = list(wanted)
            if differs is not None:
                kinds[-1] = Value("", "f", (int(g.rng.integers(1, 6)), *differs.shape[1:]))
            made = g.outputs([g.like(v) for v in kinds])
            graphs.append(_graph(g, nodes, [], made))
    shapes = [v.shape for v in wanted]
    if differs is not None:
        shapes[-1] = (g.name("d"), *differs.shape[1:])
    results = [Value(g.name(), v.kind, s, v.count) for v, s in zip(wanted, shapes, strict=True)]
    g.add("If", [condition], *results, then_branch=graphs[0], else_branch=graphs[1])


def _wanted(g: Graph) -> Value:
    """A value of the type that a result of a branch, or what a loop carries, is to have."""
    sequences = [v for v in g.scope if v.count is not None]
    if sequences and odds(g.rng, 0.15):
        return pick(g.rng, sequences)
    value = g.any(pick(g.rng, "fffib"))
    return value if value is not None else pick(g.rng, [v for v in g.scope if v.count is None])


def _carried(g: Graph) -> list[Value]:
    """Values that a loop begins with, some of which have equal types, so that they may change places."""
    made = [_wanted(g) for _ in range(int(g.rng.integers(1, 4)))]
    if odds(g.rng, 0.5):
        made.append(g.like(made[0]))
    return made


def _later(g: Graph, carried: Sequence[Value]) -> list[Value]:
    """What carried values are in the next iteration."""
    made = []
    for value in carried:
        same = [v for v in carried if v.is_like(value)]
        made.append(pick(g.rng, same) if odds(g.rng, 0.35) else g.like(value))
    return made


def _trips(g: Graph, has_rows: bool) -> tuple[Value | str, int | str | None]:
    """A trip count, and the number of rows of scan outputs; None where it is not known."""
    known = pick(g.rng, (0, 1, 2, 3, 11))
    match int(g.rng.integers(4)):
        case 0:
            return g.constant(known), known
        case 1 if has_rows:
            return g.input("rows", "i", ()), "rows"
        case 2:
            return g.input(f"trips{int(g.rng.integers(2))}", "i", ()), None
        case 3 if not has_rows:
            return g.result("Mod", [g.like_of_integers(()), g.constant(4)], "i", ()), None
    return (g.constant(known), known) if has_rows else ("", None)


def _loop(g: Graph, depth: int) -> None:
    has_rows = odds(g.rng, 0.4)
    trips, rows = _trips(g, has_rows)
    has_rows = has_rows and rows is not None
    is_endless = trips == ""
    exits = is_endless or (not has_rows and odds(g.rng, 0.4))
    start: Value | str = g.condition() if exits and odds(g.rng, 0.3) else g.constant(True)
    # ONNX Runtime ends loops without a condition by that of the body, which the standard ignores
    start = "" if not exits and odds(g.rng, 0.5) else start
    given = _carried(g)
    number, going = Value(g.name("i"), "i", ()), Value(g.name("go"), "b", ())
    carried = [Value(g.name("a"), v.kind, v.shape, v.count) for v in given]
    with g.inner() as nodes:
        g.scope += [number, *carried]
        _nodes(g, int(g.rng.integers(0, 5)), depth - 1)
        if exits:
            goes_on = g.result("Less", [number, g.constant(int(g.rng.integers(0, 6)))], "b", ())
            if odds(g.rng, 0.5):
                goes_on = g.result("And", [goes_on, g.condition()], "b", ())
        else:
            goes_on = pick(g.rng, (going, g.constant(True)))
        scanned = [v for v in (_wanted(g) for _ in range(int(g.rng.integers(1, 3)))) if v.count is None]
        scanned = scanned if has_rows else []
        made = g.outputs([goes_on, *_later(g, carried), *scanned])
        body = _graph(g, nodes, [number, going, *carried], made)
    results = [Value(g.name(), v.kind, v.shape, v.count) for v in given]
    if has_rows:
        assert rows is not None
        results += [Value(g.name(), v.kind, (rows, *v.shape)) for v in scanned]
    g.add("Loop", [trips, start, *given], *results, body=body)


def _scan(g: Graph, depth: int) -> None:
    x = g.any("f", lambda v: bool(v.shape) and not v.is_empty)
    if x is None:
        return
    axis = int(g.rng.integers(len(x.shape)))
    extent = x.shape[axis]
    sources, axes = [x], [axis]
    other = g.any(pick(g.rng, "ffib"), lambda v: extent in v.shape)
    if other is not None and odds(g.rng, 0.5):
        sources.append(other)
        axes.append(pick(g.rng, [k for k, d in enumerate(other.shape) if d == extent]))
    given = [v for v in _carried(g) if v.count is None][: int(g.rng.integers(0, 4))]
    carried = [Value(g.name("a"), v.kind, v.shape) for v in given]
    rows = [Value(g.name("r"), v.kind, (*v.shape[:a], *v.shape[a + 1 :])) for v, a in zip(sources, axes, strict=True)]
    with g.inner() as nodes:
        g.scope += [*carried, *rows]
        _nodes(g, int(g.rng.integers(0, 5)), depth - 1)
        scanned = [v for v in (_wanted(g) for _ in range(int(g.rng.integers(1, 3)))) if v.count is None]
        if not scanned:
            return
        made = g.outputs([*_later(g, carried), *scanned])
        body = _graph(g, nodes, [*carried, *rows], made, is_scan=True)
    places = [int(g.rng.integers(len(v.shape) + 1)) for v in scanned]
    results = [Value(g.name(), v.kind, v.shape) for v in given]
    shapes = [(*v.shape[:place], extent, *v.shape[place:]) for v, place in zip(scanned, places, strict=True)]
    results += [Value(g.name(), v.kind, shape) for v, shape in zip(scanned, shapes, strict=True)]
    g.add(
        "Scan", [*given, *sources], *results, body=body, num_scan_inputs=len(sources), scan_input_axes=axes,
        scan_input_directions=[int(k) for k in g.rng.integers(0, 2, len(sources))], scan_output_axes=places,
        scan_output_directions=[int(k) for k in g.rng.integers(0, 2, len(scanned))],
    )  # fmt: skip


PLAIN = (
    *(_unary, _unary, _binary, _binary, _integers, _reduce, _scalar, _transpose, _slice, _concat, _row, _row),
    *(_choose, _product, _sequence, _sequence, add_run_time_sequence),
)
NESTED = (_choice, _loop, _loop, _scan)


def _nodes(g: Graph, count: int, depth: int) -> None:
    for _ in range(count):
        if depth and odds(g.rng, 0.35):
            pick(g.rng, NESTED)(g, depth)
        else:
            pick(g.rng, PLAIN)(g)


# --- cases


def random_model(rng: Generator) -> tuple[ModelProto, dict[str, str]]:
    """A model, and the pairs of inputs and outputs that may be its state."""
    g = Graph(rng)
    is_sized = odds(rng, 0.4)
    extent: int | str = "n" if is_sized else int(rng.integers(1, 6))
    g.scope += [g.input("x", "f", (extent, 4)), g.input("h", "f", (4,)), g.input("k", "i", ())]
    if odds(rng, 0.6):
        g.scope.append(g.input("z", "f", (int(rng.integers(1, 4)), 4)))
    if odds(rng, 0.3):
        g.scope.append(g.input("w", "f", (2, extent, 3)))
    _nodes(g, 2, 0)
    pick(rng, NESTED)(g, DEPTH)
    _nodes(g, int(rng.integers(1, 6)), DEPTH)
    state = {}
    if odds(rng, 0.3):
        kept = g.result("Tanh", [g.like(Value("", "f", (4,)))], "f", (4,))
        state = {"h": kept.name}
    read = names_read(g.nodes)
    inputs = [v for v in g.inputs if v.name in read]
    results = [v for v in g.scope if v not in g.inputs and v.count is None]
    outputs = [v for v in results if v.name not in read or odds(rng, 0.2) or v.name in state.values()]
    state = state if "h" in read else {}
    graph = helper.make_graph(g.nodes, "g", [_input_info(v) for v in inputs], [v.info() for v in outputs])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), state


def _input_info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, TYPES[value.kind], value.shape)


def make(seed: int) -> Files:
    """A random model, the inputs of its runs, and how it is compiled."""
    rng = np.random.default_rng(seed)
    model, state = random_model(rng)
    runs = [_feeds(rng, model.graph.input) for _ in range(RUNS)]
    names = {v.name for v in model.graph.input}
    texts = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    dims: dict[str, list[int]] = ({"n": [1, MOST]} if "n" in texts else {}) | (
        {"rows[0]": [0, MOST_TRIPS]} if "rows" in names else {}) | {"[*]": [0, 11]}  # fmt: skip
    target = pick(rng, targets()) if odds(rng, 0.4) else "c"
    setting = {"target": target, "opt_level": pick(rng, (0, 1, 2, 3, 3, 3)), "threads": pick(rng, (1, 1, 2)),
               "dims": dims, "state": state}  # fmt: skip
    return files_of(model, runs, setting)


def _feeds(rng: Generator, inputs: Sequence[onnx.ValueInfoProto]) -> dict[str, Array]:
    n = pick(rng, (1, 2, 3, 5, MOST, MOST))
    feeds: dict[str, Array] = {}
    for value in inputs:
        shape = [n if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name.startswith(("rows", "trips")):
            feeds[value.name] = np.array(pick(rng, (0, 1, 2, 4, MOST_TRIPS)))
        elif value.name == "k":
            feeds[value.name] = np.array(rng.integers(0, 7))
        elif value.name.startswith("flag"):
            feeds[value.name] = np.array(odds(rng, 0.5))
        else:
            feeds[value.name] = rng.normal(0, 0.8, shape).astype(np.float32)
    return feeds


def files_of(model: ModelProto, runs: Sequence[Mapping[str, Array]], setting: Mapping[str, Any]) -> Files:
    blob = io.BytesIO()
    names = [v.name for v in model.graph.input]
    np.savez(blob, **{f"{k} {name}": feeds[name] for k, feeds in enumerate(runs) for name in names})
    data = {"model.onnx": model.SerializeToString(), "inputs.npz": blob.getvalue()}
    return {**data, "setting.json": json.dumps(setting).encode()}


def load_case(data: Mapping[str, bytes]) -> tuple[ModelProto, list[dict[str, Array]], dict[str, Any]]:
    """The model, the inputs of its runs and the setting in the files of a case."""
    runs: list[dict[str, Array]] = [{} for _ in range(RUNS)]
    with np.load(io.BytesIO(data["inputs.npz"])) as file:
        for key in file.files:
            number, name = key.split(" ", 1)
            runs[int(number)][name] = file[key]
    return ModelProto.FromString(data["model.onnx"]), runs, json.loads(data["setting.json"])
