# SPDX-License-Identifier: Apache-2.0
"""A model in double precision: how far a single-precision result is from what was meant.

In: an ONNX model in float32.  Out: its outputs computed in float64 by onnx's own reference evaluator, which
shares no code with this compiler or with ONNX Runtime.

    exact = exact_runner(model)
    exact({"x": array})["y"]               # float64; None where the evaluator cannot run the model
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Arrays = dict[str, "np.ndarray[Any, Any]"]


class Upsample(OpRun):  # type: ignore[misc]
    """Upsample as opset 10 defines it through Resize; the evaluator itself knows the nearest mode only."""

    op_domain = ""

    def _run(self, x: Any, scales: Any, mode: str | None = None) -> tuple[Any]:
        how = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **how)
        made = {"x": x, "scales": np.asarray(scales, np.float32)}
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None) for n, a in made.items()
        ]
        outputs = [helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)]
        graph = helper.make_graph([node], "upsample", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        return (ReferenceEvaluator(model).run(None, made)[0],)


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """The maximum over all spatial axes, however many; the evaluator's own takes two."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those in its nodes' attributes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                stack.extend([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        if (
            node.op_type in ("Cast", "EyeLike")
            and attribute.name in ("to", "dtype")
            and attribute.i == TensorProto.FLOAT
        ):
            attribute.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
            array = np.asarray(values if attribute.name == "value_floats" else values[0], np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with every float32 turned into float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for graph in _graphs(wide.graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for node in graph.node:
            _widen_node(node)
        for value in [*graph.input, *graph.output]:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        del graph.value_info[:]
    return wide


def exact_runner(model: onnx.ModelProto) -> Callable[[Mapping[str, np.ndarray[Any, Any]]], Arrays | None]:
    """A function that runs `model` in double precision; it gives None where the evaluator fails."""
    names = [o.name for o in model.graph.output]

    def run(inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays | None:
        wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}
        try:
            evaluator = ReferenceEvaluator(in_double(model), new_ops=[GlobalMaxPool, Upsample])
            values = evaluator.run(None, wide)
        except Exception:  # whatever it raises: there is no exact result then
            return None
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    return run
