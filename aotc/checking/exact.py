# SPDX-License-Identifier: Apache-2.0
"""A model in double precision: how far a single-precision result is from what was meant.

In: an ONNX model in float32.  Out: its outputs computed in float64 by onnx's own reference evaluator, which
shares no code with this compiler or with ONNX Runtime.

    run_in_double(model, {"x": array})["y"]            # array and result in float64
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from aotc.checking.inputs import Arrays
from aotc.ir import AotcError
from aotc.relay.frontend.onnx.load import messages


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """The maximum over all spatial axes, however many; the evaluator's own takes two."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class DequantizeLinear(OpRun):  # type: ignore[misc]
    """Integers with a scale, scales along an axis, or for blocks; the evaluator's own begins with version 19."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, zero: Any = None, **_: Any) -> tuple[Any]:
        axis, block = getattr(self, "axis", 1), getattr(self, "block_size", 0)

        def laid(values: Any) -> Any:
            wide = np.asarray(values).astype(np.float64)
            if wide.size == 1:
                return wide.reshape(())
            if block:
                return np.repeat(wide, block, axis).take(np.arange(x.shape[axis]), axis)
            return wide.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])

        real = x.astype(np.float64) - (0 if zero is None else laid(zero))
        return (np.asarray(real * laid(scale)),)


def _widen_node(node: onnx.NodeProto) -> None:
    if node.op_type == "Upsample":
        # the evaluator's own knows the nearest mode only
        node.op_type, node.input[1:] = "Resize", ["", *node.input[1:]]
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        node.attribute.extend(helper.make_attribute(*item) for item in how.items())
    for attribute in node.attribute:
        to_dtype = node.op_type in ("Cast", "EyeLike") and attribute.name in ("to", "dtype")
        if to_dtype and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            array = np.asarray(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with every float32 turned into float64."""
    wide = copy.deepcopy(model)
    for message in list(messages(wide)):
        match message:
            case onnx.NodeProto():
                _widen_node(message)
            case TensorProto(data_type=TensorProto.FLOAT):
                array = numpy_helper.to_array(message).astype(np.float64)
                message.CopyFrom(numpy_helper.from_array(array, message.name))
            case onnx.TypeProto.Tensor(elem_type=TensorProto.FLOAT):
                message.elem_type = TensorProto.DOUBLE
    return wide


def without_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which quantising a tensor and dequantising it again does nothing: what a quantised model stands for.

    Raises AotcError (code "reference") for models that compute on integers by themselves.
    """
    plain = copy.deepcopy(model)
    made = {node.output[0]: node for node in plain.graph.node}
    for node in plain.graph.node:
        source = made.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if source is not None and source.op_type == "QuantizeLinear":
            del node.input[1:], node.attribute[:]
            node.op_type, node.input[0] = "Identity", source.input[0]
    kept = [n for n in plain.graph.node if n.op_type != "QuantizeLinear"]
    integers = any("Q" in n.op_type.replace("DequantizeLinear", "") or "Integer" in n.op_type for n in kept)
    if integers or len(kept) == len(plain.graph.node):
        raise AotcError("reference", "the model computes on integers")
    del plain.graph.node[:]
    plain.graph.node.extend(kept)
    return plain


def run_in_double(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """The outputs by name of `model` in double precision; raises whatever the evaluator does."""
    values = ReferenceEvaluator(in_double(model), new_ops=[GlobalMaxPool, DequantizeLinear]).run(None, dict(inputs))
    return {o.name: np.asarray(v) for o, v in zip(model.graph.output, values, strict=True)}
