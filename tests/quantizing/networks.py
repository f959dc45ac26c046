# SPDX-License-Identifier: Apache-2.0
"""Float networks quantized by ONNX Runtime's tool, and cut into pieces at byte tensors.

work = Work.of(model, "qdq-u8", folder)
seen = work.seen(inputs)                       # the bytes that ONNX Runtime's optimized kernels give
pieces = seen.cut()                            # a model whose kernels take those bytes, each one by itself

The forms: pairs of QuantizeLinear and DequantizeLinear ("qdq-u8", "qdq-s8"), operators of integers ("qop-u8",
"qop-s8"), and scales found at run time ("dynamic").
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnxruntime import quantization as tool
from onnxruntime.tools.onnx_model_utils import fix_output_shapes, make_input_shape_fixed

from aotc.checking.input_generation import Arrays, draw_random_inputs
from aotc.ir.types import TensorType
from aotc.quantizing.onnxruntime_quantizer import Feed

FORMS = ("qdq-u8", "qdq-s8", "qop-u8", "dynamic")
BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_LEVELS = onnxruntime.GraphOptimizationLevel
#: Operators whose results are integers of products, or what these are computed with.
_DYNAMIC = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")


def types_of(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The types of the inputs, all of which have known shapes."""
    kinds = {v.name: v.type.tensor_type for v in model.graph.input}
    name = helper.tensor_dtype_to_np_dtype
    return {
        n: TensorType(tuple(d.dim_value for d in t.shape.dim), np.dtype(name(t.elem_type)).name)
        for n, t in kinds.items()
    }


def session(model: Path | bytes, level: Any = _LEVELS.ORT_ENABLE_ALL, optimized: Path | None = None) -> Any:
    """A session of one thread; `optimized` is where its graph is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def pinned(model: onnx.ModelProto, shapes: dict[str, Sequence[int]]) -> onnx.ModelProto:
    """The model for inputs of these shapes, with weights that nobody can give as inputs."""
    known = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in known]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    for name, shape in shapes.items():
        make_input_shape_fixed(model.graph, name, list(shape))
    if shapes:
        fix_output_shapes(model)
    return model


@dataclass
class Work:
    """A float model, its quantized version, and both in files."""

    plain: Path
    path: Path
    types: dict[str, TensorType]

    @staticmethod
    def of(model: onnx.ModelProto, form: str, folder: Path, *, per_channel: bool = True) -> Work:
        """A model quantized by what it computes on seeded inputs."""
        source, plain, path = (folder / f"{name}.onnx" for name in ("source", "float", form))
        onnx.save(model, source)
        types = types_of(model)
        with _silent():
            tool.quant_pre_process(str(source), str(plain), skip_symbolic_shape=True)
            if form == "dynamic":
                kind = tool.QuantType.QInt8
                tool.quantize_dynamic(str(plain), str(path), weight_type=kind, per_channel=per_channel)
            else:
                shape, _, sign = form.partition("-")
                tool.quantize_static(
                    str(plain),
                    str(path),
                    Feed([draw_random_inputs(types, seed) for seed in range(100, 104)]),
                    quant_format=tool.QuantFormat[{"qdq": "QDQ", "qop": "QOperator"}[shape]],
                    activation_type=tool.QuantType[{"u8": "QUInt8", "s8": "QInt8"}[sign]],
                    weight_type=tool.QuantType.QInt8,
                    per_channel=per_channel,
                )
        return Work(plain, path, types)

    def model(self) -> onnx.ModelProto:
        """The quantized model."""
        return onnx.load(self.path)

    def narrow(self, inputs: Arrays) -> list[str]:
        """The tensors of bytes between nodes, in order; of dynamic models those around operators of integers."""
        model = self.model()
        known = {t.name for t in model.graph.initializer}
        made = [n for node in model.graph.node for n in node.output if n]
        around = [n for x in model.graph.node if x.op_type in _DYNAMIC for n in (*x.input[:1], *x.output)]
        if around:
            return [n for n in dict.fromkeys(around) if n in made and n not in known]
        whole = session(exposed(model, made).SerializeToString(), _LEVELS.ORT_DISABLE_ALL)
        values = dict(zip([o.name for o in whole.get_outputs()], whole.run(None, inputs), strict=True))
        return [n for n in made if values[n].dtype in BYTES]

    def seen(self, inputs: Arrays) -> Seen:
        """What the optimized kernels compute, and which operators do."""
        where, signed = self.path.with_suffix(".optimized.onnx"), self.path.stem.endswith("s8")
        if signed:
            # bytes become unsigned ones, unless somebody looks at them
            session(self.path, optimized=where)
            model = onnx.load(where)
            names = [n for node in model.graph.node for n in node.output]
            runs = session(exposed(model, names).SerializeToString(), _LEVELS.ORT_DISABLE_ALL)
        else:
            model, names = self.model(), self.narrow(inputs)
            runs = session(exposed(model, names).SerializeToString(), optimized=where)
        values = dict(zip([o.name for o in runs.get_outputs()], runs.run(None, inputs), strict=True))
        names = [n for n in names if not signed or values[n].dtype in BYTES]
        makers = {n: node for node in onnx.load(where).graph.node for n in node.output}
        return Seen(model, names, values, makers, only_integers=signed)


@dataclass
class Seen:
    """Tensors of bytes and outputs of a run of a model, and the nodes that made them in the optimized graph."""

    model: onnx.ModelProto
    names: list[str]
    values: Arrays
    makers: dict[str, onnx.NodeProto]
    only_integers: bool

    def cut(self) -> onnx.ModelProto:
        """The model where each reader of a tensor of bytes has an input of its own; outputs are what is compared."""
        model = exposed(self.model, self.compared)
        graph, given = model.graph, set(self.names)
        wanted, kept = set(self.compared), []
        for node in reversed(graph.node):
            if wanted.intersection(node.output):
                wanted |= set(node.input) - given
                kept.append(node)
                node.input[:] = [f"{n}__given" if n in given else n for n in node.input]
        del graph.node[:]
        graph.node.extend(reversed(kept))
        outputs = [o for o in graph.output if o.name in self.compared]
        del graph.output[:]
        graph.output.extend(outputs)
        for name in self.names:
            value = self.values[name]
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(helper.make_tensor_value_info(f"{name}__given", kind, value.shape))
        return model

    @property
    def compared(self) -> list[str]:
        """The integers, and scales that are found at run time; of optimized graphs what kernels of integers made."""
        dynamic = [node.output[1] for node in self.makers.values() if node.op_type == "DynamicQuantizeLinear"]
        found = [n for n in self.names if self.values[n].dtype.kind in "iu" or n in dynamic]
        return [n for n in found if not self.only_integers or self.on_integers(n)]

    def given(self, inputs: Arrays) -> Arrays:
        """The inputs of the cut model."""
        return inputs | {f"{n}__given": self.values[n] for n in self.names}

    def on_integers(self, name: str) -> bool:
        """Whether a kernel of integers made a tensor, or the quantization of an input."""
        node = self.makers.get(name)
        if node is None or node.op_type != "QuantizeLinear":
            return True
        return node.input[0] not in self.makers

    def whole(self, outputs: Sequence[str]) -> bool:
        """Whether nothing is computed on real numbers between the first quantization and the last dequantization."""
        ends = all(n in self.makers and self.makers[n].op_type == "DequantizeLinear" for n in outputs)
        return ends and all(map(self.on_integers, self.names))


def exposed(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A copy with more outputs, whose types nobody has to know."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    present = {o.name for o in copied.graph.output}
    copied.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in present)
    return copied
