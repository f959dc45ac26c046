# SPDX-License-Identifier: Apache-2.0
"""Random ONNX graphs, built from the models of ONNX's suite, against ONNX Runtime without optimizations.

files = make(seed, everything=True)     # a model, inputs, and how it is to be compiled
"""

from __future__ import annotations

import functools
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aotc.checking.input_generation import save_arrays_to_npz
from aotc.checking.output_comparison import Array
from aotc.driver.compile import CompileOptions
from aotc.ir.dtype import DType
from tests.fuzz.case import Files, Found, Stage
from tests.fuzz.differential import check_executions, setting_of
from tests.fuzz.execute import Setting, targets
from tests.fuzz.graphs import MOST_ELEMENTS, SPECIAL
from tests.fuzz.mutate_bytes import odds, pick
from tests.fuzz.mutate_onnx import failing, suite
from tests.fuzz.rounding_bounds import Expected

Generator = np.random.Generator
VERSIONS = (13, 17, 18, 20, 21, 22, 23, 24)
"""Operator sets of the graphs."""
MOST_SETTING = 16
"""Elements of arguments that may be axes, sizes and the like, which must be constants."""
UNKNOWABLE = {
    "Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Dropout",
}  # fmt: skip
"""Operators whose results are drawn by chance."""
UNSPECIFIED = {
    "MaxPool", "GlobalMaxPool", "Conv", "ConvTranspose", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "RMSNormalization", "MeanVarianceNormalization",
}  # fmt: skip
"""Operators whose results for NaN and infinities are not specified.

ONNX Runtime leaves NaN out of maxima, multiplies padding by weights (0 by infinity is NaN), and makes variances of
squares, which may overflow.
"""


@dataclass(frozen=True)
class Piece:
    """A small model of the suite with its data."""

    nodes: Sequence[NodeProto]
    constants: Sequence[TensorProto]
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    version: int

    def fits(self, version: int) -> bool:
        """Whether its operators mean the same in another operator set."""
        return all(_since(n.op_type, self.version) == _since(n.op_type, version) is not None for n in self.nodes)


@functools.cache
def _since(op: str, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(op, version, "").since_version)
    except onnx.defs.SchemaError:
        return None


def _piece(model: ModelProto, inputs: Sequence[object], outputs: Sequence[object]) -> Piece | None:
    graph = model.graph
    fixed = {t.name for t in graph.initializer}
    names = [v.name for v in graph.input if v.name not in fixed]
    arrays = [*inputs, *outputs]
    if len(model.opset_import) != 1 or model.functions or len(names) != len(inputs) or len(graph.node) > 3:
        return None
    if not all(isinstance(a, np.ndarray) and a.dtype != object and a.size <= MOST_ELEMENTS for a in arrays):
        return None
    if any(n.op_type in UNKNOWABLE or n.domain for n in graph.node):
        return None
    given = dict(zip(names, inputs, strict=True))
    made = dict(zip((v.name for v in graph.output), outputs, strict=True))
    return Piece(graph.node, graph.initializer, given, made, model.opset_import[0].version)  # type: ignore[arg-type]


@functools.cache
def pieces(everything: bool, version: int) -> Sequence[Piece]:
    """What graphs of an operator set are made of."""
    bad = failing()
    found = (_piece(model, *sets[0]) for name, (model, sets) in suite(everything).items() if sets and name not in bad)
    return [p for p in found if p is not None and p.fits(version)]


@dataclass
class Graph:
    """A model under construction: named values, each with the array that says its type and shape."""

    rng: Generator
    special: bool
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [self.name()], **attributes))
        return str(self.nodes[-1].output[0])

    def constant(self, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(array, self.name()))
        return str(self.constants[-1].name)

    def add(self, piece: Piece) -> None:
        """The nodes of a piece, some of its inputs taken from what is there."""
        names = {t.name: self.name() for t in piece.constants}
        for tensor in piece.constants:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name]
            self.constants.append(copy)
        for k, (name, array) in enumerate(piece.inputs.items()):
            setting = k > 0 and array.size <= MOST_SETTING and (array.ndim < 2 and odds(self.rng, 0.7))
            settled = not DType.from_numpy(array).is_float and array.size <= MOST_SETTING and array.ndim < 2
            names[name] = self.constant(array) if setting or (settled and k > 0) else self.operand(array)
        for node in piece.nodes:
            copy = NodeProto()
            copy.CopyFrom(node)
            names |= {name: self.name() for name in node.output if name}
            _rename(copy, names, self.name())
            self.nodes.append(copy)
        self.values |= {names[name]: array for name, array in piece.outputs.items()}

    def operand(self, array: Array) -> str:
        """A value of the type and shape of an array; integers are the array itself, since they may be places."""
        floats = DType.from_numpy(array).is_float
        same = [n for n, v in self.values.items() if v.dtype == array.dtype and v.shape == array.shape]
        if floats and same and odds(self.rng, 0.8):
            return self.take(pick(self.rng, same))
        others = [n for n, v in self.values.items() if v.size == array.size and v.dtype.kind in "fiub"]
        if floats and others and odds(self.rng, 0.6):
            return self.adapted(pick(self.rng, others[-5:]), array)
        if floats and self.values and array.size and odds(self.rng, 0.4):
            return self.adapted(pick(self.rng, list(self.values)[-5:]), array)
        name = self.name()
        self.inputs[name] = self.with_specials(array) if floats and self.special else array
        self.values[name] = array
        return self.take(name)

    def take(self, name: str) -> str:
        self.used.add(name)
        return name

    def adapted(self, name: str, array: Array) -> str:
        """A value's elements in another shape and type."""
        value = self.values[name]
        made = self.take(name)
        if not value.size:
            return self.constant(array)
        if value.dtype != array.dtype:
            made = self.node("Cast", [made], to=helper.np_dtype_to_tensor_dtype(array.dtype))
        if value.shape != array.shape:
            if value.size != array.size:
                made = self.node("Reshape", [made, self.constant(np.array([-1]))])
                places = np.arange(array.size) % value.size
                made = self.node("Gather", [made, self.constant(places)])
            zeros = {"allowzero": 1} if not array.size else {}
            made = self.node("Reshape", [made, self.constant(np.array(array.shape, np.int64))], **zeros)
        return made

    def with_specials(self, array: Array) -> Array:
        made = array.copy()
        for _ in range(1 + array.size // 20 if array.size else 0):
            with np.errstate(all="ignore"):
                made.flat[int(self.rng.integers(array.size))] = pick(self.rng, SPECIAL)
        return made

    def model(self, version: int) -> ModelProto:
        """All values that nothing uses are outputs, and some others."""
        unused = [n for n in self.values if n not in self.inputs and (n not in self.used or odds(self.rng, 0.15))]

        def info(name: str, array: Array) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

        inputs = [info(n, a) for n, a in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, [info(n, self.values[n]) for n in unused], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def _rename(node: NodeProto, names: Mapping[str, str], own: str) -> None:
    """Names in a node, and those that its subgraphs take from outside."""
    node.name = own
    for side in (node.input, node.output):
        side[:] = [names.get(n, n) for n in side]
    for attribute in node.attribute:
        for inner in (n for g in [attribute.g, *attribute.graphs] for n in g.node):
            inner.input[:] = [names.get(n, n) for n in inner.input]


def make(seed: int, everything: bool) -> Files:
    """A random model, its inputs and how to compile it."""
    rng = np.random.default_rng(seed)
    version = pick(rng, VERSIONS)
    graph = Graph(rng, special=odds(rng, 0.3))
    for _ in range(int(rng.integers(1, 9))):
        graph.add(pick(rng, pieces(everything, version)))
    setting = Setting(
        pick(rng, targets()), pick(rng, (0, 1, 2, 3, 3, 3)), "strict", pick(rng, (1, 1, 2)), odds(rng, 0.1)
    )
    return files_of(graph.model(version), graph.inputs, setting)


def files_of(model: ModelProto, inputs: Mapping[str, Array], setting: Setting) -> Files:
    """A case as files."""
    blob = io.BytesIO()
    save_arrays_to_npz(blob, {v.name: inputs[v.name] for v in model.graph.input})
    data = {"model.onnx": model.SerializeToString(), "inputs.npz": blob.getvalue()}
    return {**data, "setting.json": json.dumps(setting.as_dict()).encode()}


def load_case(folder: Path) -> tuple[ModelProto, dict[str, Array]]:
    """The model and the inputs in the files of a case."""
    model = onnx.load(folder / "model.onnx")
    with np.load(folder / "inputs.npz") as file:
        inputs = {}
        for value in model.graph.input:
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            array = file[value.name]
            inputs[value.name] = array if array.dtype == dtype else array.view(dtype)
    return model, inputs


def by_onnxruntime(model: ModelProto, inputs: Mapping[str, Array], stage: Stage) -> list[Array] | None:
    """The outputs by ONNX Runtime; None for what it does not take."""
    import onnxruntime

    stage("other: ONNX Runtime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not all(a.dtype.kind in "fiub" for a in inputs.values()):
        return None  # types that numpy does not know go by other ways
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        given = {name: a.copy() for name, a in inputs.items()}  # some operators write over their inputs
        return [np.asarray(a) for a in session.run(None, given)]
    except Exception:  # its own exception types
        return None


def check(folder: Path, stage: Stage) -> str:
    """The importer's graph means what ONNX Runtime does, and every execution gives that."""
    model, inputs = load_case(folder)
    stage("import")
    module = CompileOptions().import_as_graph_module(folder / "model.onnx")
    stage("definition")
    expected = Expected.of(module, inputs)
    compared = compare_with_onnxruntime(model, inputs, expected, stage)
    check_executions(folder, module, inputs, expected, setting_of(folder), stage)
    return "agreed" if compared else "no reference"


def compare_with_onnxruntime(model: ModelProto, inputs: Mapping[str, Array], expected: Expected, stage: Stage) -> bool:
    """Whether ONNX Runtime gives what is expected; False if it does not take the model, or is probably wrong itself.

    Raises Found where it differs and nobody else says that it is wrong.
    """
    theirs = by_onnxruntime(model, inputs, stage)
    if theirs is not None and len(theirs) == len(expected.values):
        theirs = [_masked(t, e) for t, e in zip(theirs, expected.values, strict=True)]
    stage("comparison")
    problems = expected.about().problems(theirs) if theirs is not None else ""
    if theirs is None or (problems and _excused(model, inputs, expected, theirs)):
        return False
    name = _suspect(model, inputs, stage) if problems else ""
    if name in UNSPECIFIED and not _ordinary(model, inputs):
        return False
    if problems:
        raise Found("other result", name, problems)
    return True


def _excused(model: ModelProto, inputs: Mapping[str, Array], expected: Expected, theirs: Sequence[Array]) -> bool:
    """Whether onnx's reference evaluator gives what is expected; of what NaN and infinities lead to, whether it does
    not give what ONNX Runtime does.
    """
    ordinary = _ordinary(model, inputs)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(inputs))]
        except Exception:  # whatever it raises: it says nothing then
            return not ordinary
    if not expected.about().problems(found):
        return True
    return not ordinary and bool(replace(expected, values=theirs).about().problems(found))


def _masked(theirs: Array, expected: Array) -> Array:
    """ONNX Runtime's attention masks scores with the lowest finite value, where the specification says -infinity."""
    if theirs.dtype.kind != "f" or theirs.shape != expected.shape:
        return theirs
    return np.where((theirs == np.finfo(theirs.dtype).min) & (expected == -np.inf), expected, theirs)


def _ordinary(model: ModelProto, inputs: Mapping[str, Array]) -> bool:
    """Whether all floats of inputs and weights are finite, and their squares, of which variances are made."""
    arrays = [*inputs.values(), *map(numpy_helper.to_array, model.graph.initializer)]
    with np.errstate(all="ignore"):
        return all(np.isfinite(a * a).all() for a in arrays if a.dtype.kind == "f")


def _suspect(model: ModelProto, inputs: Mapping[str, Array], stage: Stage) -> str:
    """The first operator whose result is another when every result is an output."""
    every = ModelProto()
    every.CopyFrom(model)
    del every.graph.output[:]
    names = {n: node.op_type for node in model.graph.node for n in node.output if n}
    every.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wrong = (
                Expected.of(CompileOptions().import_as_graph_module(every), inputs)
                .about()
                .wrong(by_onnxruntime(every, inputs, stage) or [])
            )
        except Exception:  # a search for a name must not hide the fault
            wrong = []
    return list(names.values())[wrong[0]] if wrong else "several of " + " ".join(sorted(set(names.values()))[:4])


def smaller(files: Files) -> Iterator[Files]:
    """One output; an intermediate result as the output, or as an input; an easier setting."""
    model = ModelProto.FromString(files["model.onnx"])
    with np.load(io.BytesIO(files["inputs.npz"])) as file:
        inputs = {n: file[n] for n in file.files}
    setting = Setting(**json.loads(files["setting.json"]))
    for made in pruned_models(model):
        yield files_of(made, inputs, setting)


def pruned_models(model: ModelProto) -> Iterator[ModelProto]:
    """Yield the model with one of its outputs, or with an intermediate result as its only output."""
    outputs = list(model.graph.output)
    for output in outputs if len(outputs) > 1 else ():
        yield _pruned(model, [output])
    if len(outputs) == 1:
        for node in model.graph.node:
            for name in node.output:
                if name != outputs[0].name:
                    yield _pruned(model, [onnx.ValueInfoProto(name=name)])


def names_read(nodes: Sequence[NodeProto]) -> set[str]:
    """Return the names that nodes and graphs in them read."""
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for graph in (g for a in node.attribute for g in [a.g, *a.graphs]):
            names |= names_read(graph.node) | {v.name for v in graph.output}
    return names


def _pruned(model: ModelProto, outputs: Sequence[onnx.ValueInfoProto]) -> ModelProto:
    """Only what some outputs need."""
    made = ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    needed = {o.name for o in outputs}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
            needed |= names_read([node])
    del graph.node[:], graph.output[:]
    graph.node.extend(reversed(kept))
    graph.output.extend(outputs)
    for values in (graph.input, graph.initializer):
        for k in range(len(values))[::-1]:
            if values[k].name not in needed:
                del values[k]
    return made
