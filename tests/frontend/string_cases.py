# SPDX-License-Identifier: Apache-2.0
"""Models with one node for each case, on strings and numbers, in compiled C against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

import aotc
from aotc.ir.string_slots import strings_of_slots
from aotc.relay import Tuple
from aotc.relay.frontend.onnx import from_onnx

FLOAT, INT64, STRING, BOOL, INT32 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL, TensorProto.INT32,
)  # fmt: skip
Array = np.ndarray[Any, Any]
SLOT_BYTES = 30


def strings(values: Any) -> Array:
    return np.asarray(values, object)


def elem_type(array: Array) -> int:
    return int(STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype))


class Cases:
    """A model with one node for each case."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.initializers: list[Any] = []
        self.feeds: dict[str, Array] = {}

    def add(
        self, op: str, *inputs: Array, types: tuple[int, ...], constants: tuple[Array, ...] = (), **attrs: Any
    ) -> None:
        """Add a node that reads inputs of the model, and then constants."""
        number = len(self.nodes)
        names = [f"x{number}_{k}" for k in range(len(inputs) + len(constants))]
        for name, array in zip(names, inputs, strict=False):
            self.inputs.append(helper.make_tensor_value_info(name, elem_type(array), array.shape))
            self.feeds[name] = array
        for name, array in zip(names[len(inputs) :], constants, strict=True):
            data = [t.encode() for t in array.reshape(-1)] if array.dtype == object else array.reshape(-1)
            self.initializers.append(helper.make_tensor(name, elem_type(array), array.shape, data))
        results = [helper.make_tensor_value_info(f"y{number}_{k}", t, None) for k, t in enumerate(types)]
        self.outputs += results
        self.nodes.append(helper.make_node(op, names, [r.name for r in results], name=f"node{number}", **attrs))

    def ml(self, op: str, x: Array, *types: int, **attrs: Any) -> None:
        self.add(op, x, types=types, domain="ai.onnx.ml", **attrs)

    def model(self, version: int = 3, opset: int = 20) -> ModelProto:
        graph = helper.make_graph(self.nodes, "strings", self.inputs, self.outputs, self.initializers)
        versions = (("", opset), ("ai.onnx.ml", version), ("com.microsoft", 1))
        opsets = [helper.make_opsetid(*v) for v in versions]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def check(self, **versions: int) -> None:
        """Compare compiled C with ONNX Runtime: labels and strings exactly, scores to its rounding."""
        proto = self.model(**versions)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        dims = {name: SLOT_BYTES for name, array in self.feeds.items() if array.dtype == object}
        expected = session.run(None, self.feeds)
        self.compare(aotc.compile(proto, dims=dims, cflags=("-O0",)).session().run(None, self.feeds), expected)

    def check_folded(self, **versions: int) -> None:
        """Compare the results for inputs that are constants, which the front end computes, with ONNX Runtime."""
        proto = self.model(**versions)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, self.feeds)
        proto.graph.ClearField("input")
        for name, array in self.feeds.items():
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        body = from_onnx(proto).main.body
        constants = [field.data for field in (body.fields if isinstance(body, Tuple) else [body])]
        found = zip(self.outputs, constants, strict=True)
        is_string = lambda info: info.type.tensor_type.elem_type == STRING  # noqa: E731
        self.compare([strings_of_slots(data) if is_string(info) else data for info, data in found], expected)

    def compare(self, found: list[Array], expected: list[Array]) -> None:
        """Compare results: labels and strings exactly, scores to ONNX Runtime's rounding."""
        for info, a, b in zip(self.outputs, expected, found, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape, info.name
            if a.dtype == np.float32:
                np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=info.name)
            else:
                assert a.tolist() == b.tolist(), info.name
