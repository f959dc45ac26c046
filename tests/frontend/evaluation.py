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

from aotc.ir.op import Op
from aotc.relay.expr import Call, Constant, Expr, If, Tuple, TupleGetItem
from aotc.relay.module import IRModule
from aotc.relay.visitor import post_order

Array = np.ndarray[Any, Any]


def run_model(module: IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of @main."""
    values: dict[Expr, Any] = {p: np.asarray(inputs[p.name]) for p in module.main.params}
    for node in post_order(module.main.body):
        match node:
            case Constant():
                values[node] = node.data
            case Tuple():
                values[node] = tuple(values[f] for f in node.fields)
            case TupleGetItem():
                values[node] = values[node.tuple_value][node.index]
            case If():
                values[node] = values[node.true_branch if values[node.cond] else node.false_branch]
            case Call(op=Op() as op):
                with np.errstate(all="ignore"):
                    values[node] = op.reference(node.attrs, *(values[a] for a in node.args))
    result = values[module.main.body]
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
