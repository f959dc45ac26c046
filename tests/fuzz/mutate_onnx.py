# SPDX-License-Identifier: Apache-2.0
"""Mutations of ONNX models, as graphs of nodes with attributes, types and constants, and as bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.fuzz.case import ROOT, Files, Mutations
from tests.fuzz.mutate_bytes import FLOATS, STRINGS, changed_bytes, integer, odds, pick, shorter

Generator = np.random.Generator
LARGEST = 600_000
"""Bytes of a model that is taken as a base."""
DTYPES = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 19, 21, 22, 23, 8, 14, 0, 99)


def light() -> list[bytes]:
    """Large networks without weights, of ONNX's suite."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return [p.read_bytes() for p in sorted(folder.glob("*.onnx")) if p.stat().st_size < LARGEST]


@lru_cache(maxsize=2)
def suite(everything: bool) -> Mapping[str, tuple[ModelProto, Sequence[tuple[list[Any], list[Any]]]]]:
    """The small models of ONNX's suite with their data: those that lie on disk, else all operators' nodes as well."""
    sys.path.insert(0, str(ROOT / "tests" / "conformance"))
    from onnx_suite import all_cases, data_of  # type: ignore[import-not-found]

    kinds = ("simple", "pytorch-operator", "pytorch-converted", *(["node"] if everything else []))
    return {case.name: data_of(case.test) for case in all_cases(kinds)}


def failing() -> Set[str]:
    """The names of the suite's tests that are known to fail."""
    lines = (ROOT / "tests" / "conformance" / "failing.txt").read_text(encoding="utf-8").splitlines()
    return {line.partition(" |")[0] for line in lines}


def trained() -> list[bytes]:
    """Small trained models, where there are some."""
    folder = ROOT.parent / "shared" / "models"
    return [p.read_bytes() for p in sorted(folder.glob("*.onnx")) if p.stat().st_size < LARGEST]


def controls() -> list[bytes]:
    """Models with branches, loops, scans and functions of their own."""
    from onnx.parser import parse_model

    texts = (
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) {
            yes = Constant <value = bool {1}> ()
            y = If (yes) <then_branch = a () => (float[2,3] p) { p = Relu(x) },
                          else_branch = b () => (float[2,3] q) { q = Neg(x) }> }""",
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y, float[3,2,3] s) {
            n = Constant <value = int64 {3}> ()
            yes = Constant <value = bool {1}> ()
            y, s = Loop (n, yes, x) <body = b (int64 i, bool c, float[2,3] v) => (bool d, float[2,3] w, float[2,3] z)
                { d = Identity(c) w = Add(v, x) z = Mul(v, v) }> }""",
        """<ir_version: 8, opset_import: ["" : 17]> g (float[3,2] x) => (float[2] y, float[3,2] s) {
            z = Constant <value = float[2] {0.0, 0.0}> ()
            y, s = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] f, float[2] h)
                { f = Add(a, e) h = Identity(f) }> (z, x) }""",
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[2,3] x) => (float[2,3] y) {
            a = own.twice <by = 2.0> (x)
            y = own.twice <by = 3.0> (a) }
           <domain: "own", opset_import: ["" : 17]> twice <by> (t) => (r) {
            k = Constant <value_float: float = @by> ()
            r = Mul(t, k) }""",
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,H,W] x) => (float[N,M] y) {
            s = Shape(x)
            zero = Constant <value = int64[1] {0}> ()
            one = Constant <value = int64[1] {1}> ()
            n = Slice(s, zero, one, zero)
            minus = Constant <value = int64[1] {-1}> ()
            to = Concat <axis = 0> (n, minus)
            y = Reshape(x, to) }""",
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,8] y) {
            q = SequenceConstruct(x, x)
            y = ConcatFromSequence <axis = 1> (q) }""",
    )  # fmt: skip
    return [parse_model(text).SerializeToString() for text in texts]


@lru_cache(maxsize=2)
def bases(everything: bool) -> Sequence[bytes]:
    """Models to begin with; `everything` takes those that are slow to make, too."""
    found = [model.SerializeToString() for model, _ in suite(everything).values()]
    found = [data for data in found if len(data) < LARGEST] + controls() * 5
    return [*found, *light(), *trained() * 3] if everything else found


# --- mutations


def _graphs(model: ModelProto) -> list[GraphProto]:
    found, stack = [], [model.graph]
    while stack:
        graph = stack.pop()
        found.append(graph)
        for node in graph.node:
            for attribute in node.attribute:
                stack += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return found


def _nodes(model: ModelProto) -> list[NodeProto]:
    return [n for g in _graphs(model) for n in g.node] + [n for f in model.functions for n in f.node]


def _names(model: ModelProto) -> list[str]:
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output)] + [t.name for t in graph.initializer]
    return names + [name for node in _nodes(model) for name in (*node.input, *node.output)] + [""]


def _edge(rng: Generator, model: ModelProto) -> None:
    """An input or output of a node becomes another tensor: dangling, cyclic, twice, absent."""
    node = pick(rng, _nodes(model))
    side = node.input if odds(rng, 0.7) else node.output
    match int(rng.integers(5)):
        case 0 if side:
            del side[int(rng.integers(len(side)))]
        case 1:
            side.append(pick(rng, _names(model)))
        case 2 if len(side) > 1:
            a, b = rng.integers(len(side), size=2)
            side[a], side[b] = side[b], side[a]
        case _ if side:
            side[int(rng.integers(len(side)))] = pick(rng, _names(model))
        case _:
            side.append("nobody")


def _operator(rng: Generator, model: ModelProto) -> None:
    """A node of another operator, or of another domain, or moved, or twice, or gone."""
    graph = pick(rng, _graphs(model))
    if not graph.node:
        return
    at = int(rng.integers(len(graph.node)))
    match int(rng.integers(6)):
        case 0:
            del graph.node[at]
        case 1:
            graph.node.add().CopyFrom(graph.node[at])
        case 2:
            graph.node[at].domain = pick(rng, ("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "own", "ü"))
        case 3:
            graph.node[at].op_type = pick(rng, _all_operators())
        case 4:
            graph.node[at].op_type = pick(rng, [n.op_type for n in graph.node])
        case _:
            node = NodeProto()
            node.CopyFrom(graph.node[at])
            del graph.node[at]
            graph.node.insert(int(rng.integers(len(graph.node) + 1)), node)


@lru_cache
def _all_operators() -> Sequence[str]:
    return sorted({s.name for s in onnx.defs.get_all_schemas()})


def _attribute(rng: Generator, model: ModelProto) -> None:
    """An attribute with another value, one that the operator has but the node did not state, or one too few."""
    node = pick(rng, _nodes(model))
    known = _known_attributes(node.op_type)
    match int(rng.integers(6)):
        case 0 if node.attribute:
            del node.attribute[int(rng.integers(len(node.attribute)))]
        case 1 | 2 if known:
            name, kind = pick(rng, known)
            for k in [k for k, a in enumerate(node.attribute) if a.name == name][::-1]:
                del node.attribute[k]
            node.attribute.append(_new_attribute(rng, name, kind))
        case 3 if node.attribute:
            node.attribute.add().CopyFrom(pick(rng, node.attribute))
        case _ if node.attribute:
            _change(rng, pick(rng, node.attribute))
        case _:
            node.attribute.append(
                _new_attribute(rng, pick(rng, ("axis", "to", "x", "")), pick(rng, (1, 2, 3, 6, 7, 8)))
            )


@lru_cache
def _known_attributes(op: str) -> Sequence[tuple[str, int]]:
    found = {
        (a.name, int(a.type.value))
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == op
        for a in s.attributes.values()
    }
    return sorted(found)


def _new_attribute(rng: Generator, name: str, kind: int) -> AttributeProto:
    made = AttributeProto(name=name, type=kind)
    count = int(rng.integers(0, 5))
    small = [0, 1, 2, 3, -1, 4]
    words = (
        "NOTSET",
        "SAME_UPPER",
        "VALID",
        "linear",
        "nearest",
        "constant",
        "reflect",
        "wrap",
        "add",
        "max",
        "",
        "none",
    )
    match kind:
        case AttributeProto.FLOAT:
            made.f = pick(rng, FLOATS)
        case AttributeProto.INT:
            made.i = integer(rng, pick(rng, small), -(1 << 63), (1 << 63) - 1)
        case AttributeProto.STRING:
            made.s = pick(rng, words).encode()
        case AttributeProto.FLOATS:
            made.floats.extend(pick(rng, FLOATS) for _ in range(count))
        case AttributeProto.INTS:
            made.ints.extend(pick(rng, small) for _ in range(count))
        case AttributeProto.STRINGS:
            made.strings.extend(pick(rng, words).encode() for _ in range(count))
        case AttributeProto.TENSOR:
            made.t.CopyFrom(_new_tensor(rng, ""))
    return made


def _change(rng: Generator, attribute: AttributeProto) -> None:
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = integer(rng, attribute.i, -(1 << 63), (1 << 63) - 1)
        case AttributeProto.FLOAT:
            attribute.f = pick(rng, FLOATS)
        case AttributeProto.INTS if attribute.ints:
            k = int(rng.integers(len(attribute.ints)))
            match int(rng.integers(4)):
                case 0:
                    del attribute.ints[k]
                case 1:
                    attribute.ints.append(attribute.ints[k])
                case _:
                    attribute.ints[k] = integer(rng, attribute.ints[k], -(1 << 63), (1 << 63) - 1)
        case AttributeProto.STRING:
            attribute.s = pick(rng, (*(s.encode() for s in STRINGS), b"\xff\xfe", changed_bytes(rng, attribute.s)))
        case AttributeProto.TENSOR:
            _change_tensor(rng, attribute.t)
        case _:
            _reflect(rng, attribute)


def _new_tensor(rng: Generator, name: str) -> TensorProto:
    shape = tuple(int(d) for d in rng.integers(0, 5, int(rng.integers(0, 4))))
    dtype = pick(rng, (np.float32, np.int64, np.int32, np.bool_, np.float16, np.float64, np.uint8, np.int8))
    return numpy_helper.from_array((rng.standard_normal(shape) * 3).astype(dtype), name)


def _tensors(model: ModelProto) -> list[TensorProto]:
    found = [t for g in _graphs(model) for t in g.initializer]
    return found + [a.t for n in _nodes(model) for a in n.attribute if a.HasField("t")]


def _tensor(rng: Generator, model: ModelProto) -> None:
    found = _tensors(model)
    if found:
        _change_tensor(rng, pick(rng, found))
    else:
        _edge(rng, model)


def _change_tensor(rng: Generator, tensor: TensorProto) -> None:
    """Other values, another shape, another type, too much or too little data, data elsewhere."""
    match int(rng.integers(8)):
        case 0:
            tensor.data_type = pick(rng, DTYPES)
        case 1:
            _change_dims(rng, tensor.dims)
        case 2:
            tensor.raw_data = changed_bytes(rng, tensor.raw_data)
        case 3:
            tensor.data_location = TensorProto.EXTERNAL
            for key, values in (
                ("location", ("model.onnx", "../x", "none", "")),
                ("offset", ("0", "-1", "x", "9" * 30)),
                ("length", ("4", "0", "-8")),
            ):
                if odds(rng, 0.7):
                    tensor.external_data.add(key=key, value=pick(rng, values))
        case 4:
            _reflect(rng, tensor)
        case _:
            _change_values(rng, tensor)


def _change_values(rng: Generator, tensor: TensorProto) -> None:
    """Some values become special ones: bounds, axes, shapes, indices and scales are constants often."""
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:
        return
    if array.dtype == object or not array.size or array.size > 100_000:
        return
    for _ in range(int(rng.integers(1, 3))):
        k = int(rng.integers(array.size))
        with np.errstate(all="ignore"):
            if array.dtype.kind in "iu":
                info = np.iinfo(array.dtype)
                array.flat[k] = integer(rng, int(array.flat[k]), int(info.min), int(info.max))
            elif array.dtype.kind == "f":
                array.flat[k] = pick(rng, FLOATS)
    if odds(rng, 0.25) and array.ndim == 1:
        array = np.append(array, array[-1:]) if odds(rng, 0.5) else array[:-1]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _change_dims(rng: Generator, dims: Any) -> None:
    match int(rng.integers(3)):
        case 0:
            dims.append(pick(rng, (0, 1, 2, -1, 1 << 40)))
        case 1 if dims:
            del dims[int(rng.integers(len(dims)))]
        case _ if dims:
            k = int(rng.integers(len(dims)))
            dims[k] = integer(rng, dims[k], -(1 << 63), (1 << 63) - 1)


def _type(rng: Generator, model: ModelProto) -> None:
    """An input (or another declared type) of another element type, rank or dimension."""
    graph = pick(rng, _graphs(model))
    values = [*graph.input, *graph.input, *graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    value = pick(rng, values)
    tensor = value.type.tensor_type
    dims = tensor.shape.dim
    match int(rng.integers(7)):
        case 0:
            tensor.elem_type = pick(rng, DTYPES)
        case 1:
            dims.add().dim_value = pick(rng, (0, 1, 2, 3))
        case 2 if dims:
            del dims[int(rng.integers(len(dims)))]
        case 3 if dims:
            pick(rng, dims).dim_param = pick(rng, ("N", "", "batch", "x" * 100, "1", "ü\n"))
        case 4:
            _reflect(rng, value)
        case _ if dims:
            dim = pick(rng, dims)
            dim.dim_value = (
                pick(rng, (0, 1, 2)) if odds(rng, 0.5) else integer(rng, dim.dim_value, -(1 << 63), (1 << 63) - 1)
            )


def _versions(rng: Generator, model: ModelProto) -> None:
    """Operator set or IR of another version."""
    if model.opset_import and odds(rng, 0.8):
        entry = pick(rng, model.opset_import)
        entry.version = int(rng.integers(1, 29)) if odds(rng, 0.8) else pick(rng, (0, -1, 1 << 40))
    else:
        model.ir_version = pick(rng, (0, 1, 2, 3, 4, 7, 10, 13, -1, 1 << 40))


def _interface(rng: Generator, model: ModelProto) -> None:
    """Inputs become constants, constants inputs; intermediates become outputs."""
    graph = model.graph
    match int(rng.integers(4)):
        case 0 if graph.input:
            value = pick(rng, graph.input)
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            dtype = value.type.tensor_type.elem_type
            if dtype in (1, 6, 7, 10, 11) and 0 < np.prod([max(0, d) for d in shape]) < 10_000:
                data = rng.integers(-3, 9, shape).astype(helper.tensor_dtype_to_np_dtype(dtype))
                graph.initializer.append(numpy_helper.from_array(data, value.name))
                graph.input.remove(value)
        case 1 if graph.initializer:
            tensor = pick(rng, graph.initializer)
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
            if odds(rng, 0.8):
                graph.initializer.remove(tensor)
        case 2 if graph.output:
            graph.output.remove(pick(rng, graph.output))
        case _:
            name = pick(rng, _names(model))
            graph.output.append(helper.make_tensor_value_info(name, pick(rng, DTYPES), None))


def _subgraph(rng: Generator, model: ModelProto) -> None:
    """A graph in the place of another."""
    found = _graphs(model)
    if len(found) < 2:
        _attribute(rng, model)
        return
    copy = _copy(pick(rng, found))
    pick(rng, found[1:]).CopyFrom(copy)


def _messages(message: Any) -> list[Any]:
    found, stack = [], [message]
    while stack:
        current = stack.pop()
        found.append(current)
        for field, value in current.ListFields():
            if field.type == Field.TYPE_MESSAGE:
                stack += list(value) if field.is_repeated else [value]
    return found


def _reflect(rng: Generator, message: Any) -> None:
    """Any field of a message or of those in it: another value, repeated, removed, taken from elsewhere."""
    found = _messages(message)
    current = pick(rng, found)
    field = pick(rng, current.DESCRIPTOR.fields)
    if field.is_repeated:
        _reflect_repeated(rng, current, field, found)
    elif field.type == Field.TYPE_MESSAGE:
        others = [m for m in found if m.DESCRIPTOR is field.message_type]
        if odds(rng, 0.4) or not others:
            current.ClearField(field.name)
        else:
            getattr(current, field.name).CopyFrom(_copy(pick(rng, others)))
    elif odds(rng, 0.2):
        current.ClearField(field.name)
    else:
        setattr(current, field.name, _scalar(rng, field, getattr(current, field.name)))


def _reflect_repeated(rng: Generator, current: Any, field: Any, found: Sequence[Any]) -> None:
    items = getattr(current, field.name)
    if items and odds(rng, 0.5):
        del items[int(rng.integers(len(items)))]
    elif field.type == Field.TYPE_MESSAGE:
        others = [m for m in found if m.DESCRIPTOR is field.message_type and m.ByteSize() < 20_000]
        copy = _copy(pick(rng, others)) if others else None
        added = items.add()
        if copy is not None:
            added.CopyFrom(copy)
    else:
        items.append(_scalar(rng, field, items[0] if items else 0))


def _copy(message: Any) -> Any:
    """A message of its own: one may not be copied into a part of itself.  Empty for a large one."""
    copy = type(message)()
    if message.ByteSize() < 20_000:
        copy.CopyFrom(message)
    return copy


def _scalar(rng: Generator, field: Any, near: Any) -> Any:
    match field.cpp_type:
        case Field.CPPTYPE_INT32 | Field.CPPTYPE_INT64 | Field.CPPTYPE_UINT64 | Field.CPPTYPE_UINT32:
            low, high = {
                Field.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1), Field.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
                Field.CPPTYPE_UINT32: (0, (1 << 32) - 1), Field.CPPTYPE_UINT64: (0, (1 << 64) - 1),
            }[field.cpp_type]  # fmt: skip
            return integer(rng, int(near or 0), low, high)
        case Field.CPPTYPE_ENUM:
            return pick(rng, [v.number for v in field.enum_type.values])
        case Field.CPPTYPE_BOOL:
            return odds(rng, 0.5)
        case Field.CPPTYPE_STRING:
            text = pick(rng, STRINGS)
            return text.encode() if field.type == Field.TYPE_BYTES else text
        case _:
            return pick(rng, FLOATS)


MUTATIONS: Sequence[Callable[[Generator, ModelProto], None]] = (
    *(_edge,) * 2, *(_operator,) * 2, *(_attribute,) * 6, *(_tensor,) * 4, *(_type,) * 4, _versions,
    *(_interface,) * 2, _subgraph, *(_reflect,) * 3,
)  # fmt: skip


def mutated(bases: Sequence[bytes], seed: int, without: frozenset[int]) -> bytes:
    """A mutated model, and now and then its bytes as well."""
    mutations = Mutations(seed, without)
    rng = mutations.base()
    data = pick(rng, bases)
    as_bytes = odds(rng, 0.08)
    model = ModelProto.FromString(data)
    for step in mutations.each():
        if as_bytes:
            data = changed_bytes(step, data)
        elif model.graph.node:
            pick(step, MUTATIONS)(step, model)
    return data if as_bytes else bytes(model.SerializeToString())


# --- simpler variants


def _without_each(model: ModelProto, path: Callable[[ModelProto], Any]) -> Iterator[ModelProto]:
    count = len(path(model))
    size = max(1, count // 2)
    while count and size:
        for at in range(0, count, size):
            made = ModelProto()
            made.CopyFrom(model)
            del path(made)[at : at + size]
            yield made
        size //= 2


def smaller(data: bytes) -> Iterator[bytes]:
    """Fewer nodes, then fewer of everything else; fewer bytes of what is no model."""
    try:
        model = ModelProto.FromString(data)
    except Exception:
        yield from shorter(data)
        return
    paths: list[Callable[[ModelProto], Any]] = [
        lambda m: m.graph.node, lambda m: m.graph.initializer, lambda m: m.graph.output, lambda m: m.graph.input,
        lambda m: m.graph.value_info, lambda m: m.functions, lambda m: m.metadata_props,
    ]  # fmt: skip
    for k in range(min(len(model.graph.node), 5)):
        paths.append(lambda m, k=k: m.graph.node[k].attribute)  # type: ignore[misc]
    for path in paths:
        for made in _without_each(model, path):
            yield bytes(made.SerializeToString())


def model_files(data: bytes) -> Files:
    return {"model.onnx": data}
