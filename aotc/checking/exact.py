# SPDX-License-Identifier: Apache-2.0
"""A model in double precision: how far a single-precision result is from what was meant.

In: an ONNX model in float32.  Out: its outputs computed in float64 by onnx's own reference evaluator, which
shares no code with this compiler or with ONNX Runtime.

    run_in_double(model, {"x": array})["y"]            # array and result in float64
"""

import copy
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from aotc.checking.inputs import Arrays
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


class MatMulNBits(OpRun):  # type: ignore[misc]
    """A product with a matrix (N, K) of integers of a few bits, the first in the lowest bits of a byte."""

    op_domain = "com.microsoft"

    def _run(self, x: Any, packed: Any, scales: Any, *more: Any, **_: Any) -> tuple[Any]:
        zeros, groups, bias = (*more, None, None, None)[:3]
        rows, columns, bits = self.N, self.K, self.bits
        count = -(-columns // self.block_size)

        def unpacked(values: Any, size: int) -> Any:
            parts = values.reshape(rows, -1)[..., None] >> np.arange(0, 8, bits) & (1 << bits) - 1
            return parts.reshape(rows, -1)[:, :size].astype(np.float64)

        if groups is None:
            groups = np.arange(columns) // self.block_size
        if zeros is None:
            zeros = np.full((rows, count), 2.0 ** (bits - 1))
        elif zeros.dtype == np.uint8:
            zeros = unpacked(zeros, count)
        scales, zeros = (v.reshape(rows, count)[:, groups] for v in (scales, zeros))
        y = x @ ((unpacked(packed, columns) - zeros) * scales).T
        return (y if bias is None else y + bias,)


_OPERATORS = (GlobalMaxPool, DequantizeLinear, MatMulNBits)


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


def run_in_double(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """The outputs by name of `model` in double precision; raises whatever the evaluator does."""
    values = ReferenceEvaluator(in_double(model), new_ops=list(_OPERATORS)).run(None, dict(inputs))
    return {o.name: np.asarray(v) for o, v in zip(model.graph.output, values, strict=True)}
