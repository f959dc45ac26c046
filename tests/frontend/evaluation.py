# SPDX-License-Identifier: Apache-2.0
"""Evaluates converted models with the numpy reference of every operator.

run_model(module, {"x": array})         # [array, ...]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule

Array = np.ndarray[Any, Any]


def run_model(module: IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of @main."""
    arguments = [np.asarray(inputs[p.name]) for p in module.main.params]
    with np.errstate(all="ignore"):
        result: Any = evaluate(module, *arguments)
    return list(result) if isinstance(result, tuple) else [result]


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    *,
    constants: Mapping[str, Array] | None = None,
    opset: int = 20,
    elem: int = TensorProto.FLOAT,
) -> ModelProto:
    """A model of these nodes; float inputs by shape, constants as initializers, outputs without declared types."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(name, elem, list(shape)) for name, shape in inputs.items()],
        [ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def ort_run(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a model by ONNX Runtime, which rewrites none of its nodes."""
    held = ModelProto.FromString(model.SerializeToString())
    held.ir_version = min(held.ir_version, 10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(held.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(inputs))]
