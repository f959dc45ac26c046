# SPDX-License-Identifier: Apache-2.0
"""Builds small TFLite models, and runs them with LiteRT and TFLite Micro.

model = Builder()
x = model.tensor((1, 8), "int8", scale=0.1, zero=3)
y = model.tensor((1, 8), "int8", scale=0.2)
model.op("RELU", [x], [y])
litert(model.data([x], [y]), [array])           # [array]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as fb
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tflite_micro.python.tflite_micro import runtime

CODES: Final = {v.removesuffix("_"): getattr(fb.BuiltinOperator, v) for v in vars(fb.BuiltinOperator) if v.isupper()}
TYPES: Final = {v: getattr(fb.TensorType, v) for v in vars(fb.TensorType) if v.isupper()}


class Builder:
    """A model that grows tensor by tensor, operator by operator."""

    def __init__(self) -> None:
        self.model = fb.ModelT()
        self.model.version = 3
        self.model.buffers = [fb.BufferT()]
        self.model.operatorCodes = []
        self.model.subgraphs = []
        self.graph = self.add_subgraph()

    def add_subgraph(self) -> Any:
        """A further subgraph, to which `tensor` and `op` add from now on; `graph` is the current one."""
        self.graph = fb.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs.append(self.graph)
        return self.graph

    @contextmanager
    def subgraph(self) -> Iterator[int]:
        """The number of a further subgraph, which is the current one inside; `ends` states its inputs
        and outputs."""
        before = self.graph
        self.add_subgraph()
        yield len(self.model.subgraphs) - 1
        self.graph = before

    def ends(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.graph.inputs, self.graph.outputs = list(inputs), list(outputs)

    def signature(self, key: str, subgraph: int, inputs: dict[str, int], outputs: dict[str, int]) -> None:
        """A function of the model: a subgraph, with names of its inputs and outputs."""
        made = fb.SignatureDefT()
        made.signatureKey, made.subgraphIndex = key, subgraph
        made.inputs, made.outputs = [], []
        for rows, ends in ((made.inputs, inputs), (made.outputs, outputs)):
            for name, index in ends.items():
                row = fb.TensorMapT()
                row.name, row.tensorIndex = name, index
                rows.append(row)
        self.model.signatureDefs = [*(self.model.signatureDefs or []), made]

    def variable(self, name: str) -> int:
        """A resource variable by its name; the tensor that refers to it."""
        made = self.tensor((), "resource")
        self.op("VAR_HANDLE", [], [made], "VarHandleOptions", sharedName=name, container="")
        return made

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", data: Any = None, scale: Any = None, zero: Any = 0,
        axis: int = 0, name: str | None = None, variable: bool = False, signature: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """A tensor, with data where it is a constant, and with a shape signature, whose -1 are open; its number."""
        made = fb.TensorT()
        made.shape, made.type = list(shape), TYPES[dtype.upper()]
        made.name = f"t{len(self.graph.tensors)}" if name is None else name
        made.isVariable = variable
        made.shapeSignature = list(signature) or None
        if data is not None:
            buffer = fb.BufferT()
            raw = np.asarray(data, dtype) if dtype != "int4" else np.asarray(data, np.uint8)
            buffer.data = np.frombuffer(raw.tobytes(), np.uint8)
            made.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        if scale is not None:
            made.quantization = fb.QuantizationParametersT()
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            made.quantization.scale = scales
            made.quantization.zeroPoint = np.broadcast_to(np.asarray(zero, np.int64), scales.shape).copy()
            made.quantization.quantizedDimension = axis
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def op(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", version: int = 1,
        intermediates: Sequence[int] = (), custom_options: bytes = b"", **fields: Any,
    ) -> None:  # fmt: skip
        """An operator, a custom one where its name is no builtin's."""
        code, made = fb.OperatorCodeT(), fb.OperatorT()
        code.builtinCode = CODES.get(name, CODES["CUSTOM"])
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.customCode = None if name in CODES else name
        code.version = version
        made.opcodeIndex = len(self.model.operatorCodes)
        self.model.operatorCodes.append(code)
        made.inputs, made.outputs = list(inputs), list(outputs)
        made.intermediates = list(intermediates) or None
        if custom_options:
            made.customOptions = np.frombuffer(custom_options, np.uint8)
        if options:
            table = getattr(fb, f"{options}T")()
            for field, value in fields.items():
                assert hasattr(table, field), (options, field)
                setattr(table, field, value)
            if hasattr(fb.BuiltinOptions, options):
                made.builtinOptionsType, made.builtinOptions = getattr(fb.BuiltinOptions, options), table
            else:
                made.builtinOptions2Type, made.builtinOptions2 = getattr(fb.BuiltinOptions2, options), table
        self.graph.operators.append(made)

    def data(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The bytes of the file."""
        self.ends(inputs, outputs)
        return packed(self.model)

    def saved(self, inputs: Sequence[int], outputs: Sequence[int], path: str = "net.tflite") -> str:
        """The path of a file that is written."""
        Path(path).write_bytes(self.data(inputs, outputs))
        return path


def packed(model: Any) -> bytes:
    """A model of the object API as a file."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def litert(data: bytes, inputs: Sequence[Any], xnnpack: bool = True) -> list[Any]:
    """Return the outputs of a model that LiteRT runs."""
    (outputs,) = litert_runs(data, [inputs], xnnpack)
    return outputs


def litert_runs(data: bytes, runs: Sequence[Sequence[Any]], xnnpack: bool = True) -> list[list[Any]]:
    """Return the outputs of each of several runs of a model by one interpreter of LiteRT, whose input tensors have the
    shapes of the first run."""
    kinds = OpResolverType
    kind = kinds.AUTO if xnnpack else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=data, experimental_op_resolver_type=kind)
    for detail, array in zip(interpreter.get_input_details(), runs[0], strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    results = []
    for inputs in runs:
        for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results.append([interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()])
    return results


def tflm_interpreter(data: bytes) -> Any:
    """TFLite Micro with a model."""
    return runtime.Interpreter.from_bytes(data, arena_size=1 << 20)


def tflm(data: bytes, inputs: Sequence[Any], outputs: int = 1) -> list[Any]:
    """Return the outputs of a model that TFLite Micro runs."""
    interpreter = tflm_interpreter(data)
    for place, array in enumerate(inputs):
        interpreter.set_input(array, place)
    interpreter.invoke()
    return [interpreter.get_output(k) for k in range(outputs)]
