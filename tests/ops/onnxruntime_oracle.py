# SPDX-License-Identifier: Apache-2.0
"""Runs a single ONNX node in ONNX Runtime, as an independent reference for an operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aotc.ir.attrs import Attrs
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType, Type
from aotc.relay.expr import Call, Constant, Expr, Tuple, Var
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.opdef import Array, OpDef
from aotc.relay.visitor import post_order


def _model(op: str, inputs: tuple[Array | None, ...], opset: int, attributes: dict[str, Any]) -> onnx.ModelProto:
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    node = helper.make_node(op, names, ["y"], **attributes)
    held = [numpy_helper.from_array(x, n) for x, n in zip(inputs[1:], names[1:], strict=True) if x is not None]
    first = inputs[0]
    assert first is not None
    kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x0", kind, first.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def ort(op: str, *inputs: Array | None, opset: int = 19, **attributes: Any) -> Array:
    """The first output of one node by ONNX Runtime; all inputs but the first are initializers."""
    model = _model(op, inputs, opset, attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x0": inputs[0]})[0])


def onnx_reference(op: str, *inputs: Array | None, opset: int = 19, **attributes: Any) -> Array:
    """The same by onnx's reference evaluator."""
    return np.asarray(ReferenceEvaluator(_model(op, inputs, opset, attributes)).run(None, {"x0": inputs[0]})[0])


def types_of(*arrays: Array) -> list[Type]:
    return [TensorType(x.shape, DType.from_numpy(x)) for x in arrays]


def reference(name: str, attributes: Attrs, *arrays: Array) -> Array:
    """What the operator's numpy meaning gives, checked against its type rule."""
    op: OpDef = OPERATORS_BY_NAME[name]
    result = np.asarray(op.reference(attributes, *arrays))
    assert op.infer(attributes, types_of(*arrays)) == TensorType(result.shape, DType.from_numpy(result))
    return result


def close(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    """Equal shapes, and differences small beside the largest value."""
    assert got.shape == want.shape
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0) <= tolerance * scale


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def var(*shape: int, dtype: str = "float32") -> Var:
    """A tensor that an operator may be called on."""
    return Var("x", TensorType(shape, dtype))


def error_code(call: Any, *args: Any, **kwargs: Any) -> str:
    """The code of the AotcError that a call raises."""
    from aotc.ir.diagnostics import AotcError

    with pytest.raises(AotcError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def evaluate(body: Expr, values: dict[Var, Array]) -> Array:
    """An expression of operator calls, through the numpy meaning of each."""
    known: dict[Expr, Any] = dict(values)
    for node in post_order(body):
        match node:
            case Constant():
                known[node] = node.data
            case Tuple():
                known[node] = tuple(known[f] for f in node.fields)
            case Call(op=OpDef()):
                known[node] = node.op.reference(node.attrs, *(known[a] for a in node.args))
    return np.asarray(known[body])
