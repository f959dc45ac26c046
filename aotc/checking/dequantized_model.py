# SPDX-License-Identifier: Apache-2.0
"""What a quantized ONNX model stands for: a copy in which nothing is rounded to integers.

without_rounding(model)                    # Conv and Clip for QLinearConv, Clip for QuantizeLinear
by_definition(model)                       # DequantizeLinear, Conv and QuantizeLinear for QLinearConv

Quantizers leave activations to saturation: numbers beyond those that integers reach are the last ones that they do.
"""

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from aotc.ir import AotcError

#: Operators of real numbers by those of integers, and the inputs that have a scale and a zero point behind them.
_OPERATORS: Final = {
    "QLinearConv": ("Conv", (0, 3)),
    "QLinearMatMul": ("MatMul", (0, 3)),
    "QGemm": ("Gemm", (0, 3)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
}
#: Where the bias is, whose scale is the product of the scales of both operands.
_BIAS: Final = {"QLinearConv": 8, "QGemm": 6}
#: Where scale and zero point of the result are, if not behind those of the operands.
_RESULT: Final = {"QGemm": 7}
#: Attributes that operators of real numbers do not have.
_FOREIGN: Final = ("channels_last", "opset")
#: Operators that do to bytes what they do to the numbers that these stand for.
_MOVES: Final = {
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Reshape",
    "Resize",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
}


class _Plain:
    """The nodes of a graph without rounding, one after another.

    made   tensors of integers that were computed, and are real numbers now
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.known = {t.name: t for t in graph.initializer}
        self.made: set[str] = set()
        self.nodes: list[NodeProto] = []
        self.count = 0

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The result of one more node."""
        self.count += 1
        name = f"{op}__{self.count}__plain"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def real(self, given: Sequence[str], axis: int) -> str:
        """A tensor of integers, with its scale and zero point, as real numbers."""
        return given[0] if given[0] in self.made else self.add("DequantizeLinear", *given, axis=axis)

    def saturated(self, name: str, onto: Sequence[str], output: str) -> None:
        """Numbers within those that integers of one scale stand for, as a tensor of that name."""
        self.made.add(output)
        ends, (scale, zero) = [], onto
        if scale in self.known and (zero in self.known or not zero):
            size = numpy_helper.to_array(self.known[scale]).astype(np.float64)
            middle = numpy_helper.to_array(self.known[zero]) if zero else np.uint8(0)
            limits = ml_dtypes.iinfo(middle.dtype)
            ends = [size * (end - middle.astype(np.float64)) for end in (limits.min, limits.max)]
        if ends and ends[0].size == 1:
            low, high = (self.add("Constant", value_float=float(e.reshape(()))) for e in ends)
            self.nodes.append(helper.make_node("Clip", [name, low, high], [output]))
        else:
            self.nodes.append(helper.make_node("Identity", [name], [output]))

    def operator(self, node: NodeProto) -> None:
        """An operator of integers on what these stand for."""
        given = list(node.input) + [""] * 9
        if node.op_type == "QLinearConcat":
            op, places = "Concat", tuple(range(2, len(node.input), 3))
        else:
            op, places = _OPERATORS[node.op_type]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        last = 0 if op == "Conv" or attributes.get("transB") else -1
        parts = [self.real(given[k : k + 3], last if k == 3 else -1) for k in places]
        at = _BIAS.get(node.op_type)
        if at is not None and given[at]:
            scale = self.add("Mul", given[1], given[4])
            parts.append(self.add("DequantizeLinear", given[at], scale, axis=0 if op == "Conv" else -1))
        if attributes.get("channels_last") or (attributes.get("alpha", 1.0) != 1.0 and op == "Gemm"):
            raise AotcError("reference", f"{node.op_type} has no floating-point counterpart")
        kept = {k: v for k, v in attributes.items() if k not in _FOREIGN}
        onto = given[:2] if op == "Concat" else given[_RESULT.get(node.op_type, 3 * len(places)) :][:2]
        self.saturated(self.add(op, *parts, **kept), onto, node.output[0])

    def dynamic(self, node: NodeProto) -> None:
        """DynamicQuantizeLinear: numbers as they are, of scale 1 around 0."""
        data, scale, zero = node.output
        self.nodes.append(helper.make_node("Identity", node.input, [data]))
        for name, value in ((scale, np.float32(1)), (zero, np.uint8(0))):
            tensor = numpy_helper.from_array(np.asarray(value), name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        self.made.add(data)

    def product(self, node: NodeProto) -> None:
        """ConvInteger and MatMulInteger of numbers of scale 1."""
        given = [*node.input, "", ""]
        one = self.add("Constant", value_float=1.0)
        op, axis = ("Conv", 0) if node.op_type == "ConvInteger" else ("MatMul", -1)
        parts = [self.real((given[k], one, given[k + 2]), axis) for k in range(2)]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes.append(helper.make_node(op, parts, node.output, **attributes))

    def recurrent(self, node: NodeProto) -> None:
        """DynamicQuantizeLSTM: an LSTM by the numbers that its weights (directions, inputs, gates) stand for."""
        given = [*node.input, *[""] * 12]
        weights = [self._weights(given[at], *given[scale : scale + 2]) for at, scale in ((1, 8), (2, 10))]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes.append(helper.make_node("LSTM", [given[0], *weights, *given[3:8]], node.output, **attributes))

    def _weights(self, name: str, scale: str, zero: str) -> str:
        """Weights (directions, gates, inputs) as real numbers; scales are for a direction, or for a gate of it."""
        if not {name, scale, zero} <= {*self.known, ""}:
            raise AotcError("reference", f"the weights {name!r} are not constant")
        whole, size, middle = (
            numpy_helper.to_array(self.known[n]).astype(np.float64) if n else np.zeros(1) for n in (name, scale, zero)
        )
        real = (whole - middle.reshape(len(middle), 1, -1)) * size.reshape(len(size), 1, -1)
        value = numpy_helper.from_array(np.ascontiguousarray(real.transpose(0, 2, 1)))
        return self.add("Constant", value=value)

    def node(self, node: NodeProto) -> None:
        """One more node of the model."""
        op = node.op_type
        if op in _OPERATORS or op == "QLinearConcat":
            self.operator(node)
        elif op == "DynamicQuantizeLinear":
            self.dynamic(node)
        elif op in ("ConvInteger", "MatMulInteger"):
            self.product(node)
        elif op == "DynamicQuantizeLSTM":
            self.recurrent(node)
        elif op == "QuantizeLinear":
            name, *onto = [*node.input, ""][:3]
            self.saturated(name, onto, node.output[0])
        elif op == "DequantizeLinear" and node.input[0] in self.made:
            self.nodes.append(helper.make_node("Identity", node.input[:1], node.output))
        elif self.made.intersection(node.input) and op not in _MOVES:
            raise AotcError("reference", f"{op} computes on integers")
        else:
            self.made.update(node.output if self.made.intersection(node.input) else ())
            self.nodes.append(node)


def without_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which quantizing a tensor and dequantizing it again does nothing: what a quantized model stands for.

    Raises AotcError (code "reference") for models that compute on integers in other ways.
    """
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    found = _Plain(plain.graph)
    for node in model.graph.node:
        found.node(node)
    if not (found.made or found.count):
        raise AotcError("reference", "the model contains no quantized operators")
    del plain.graph.node[:]
    plain.graph.node.extend(found.nodes)
    return plain


class _Defined(_Plain):
    """The nodes of a graph, operators of integers written as what defines them, rounding included."""

    def saturated(self, name: str, onto: Sequence[str], output: str) -> None:
        """Numbers rounded to integers, as a tensor of that name."""
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *(n for n in onto if n)], [output]))

    def node(self, node: NodeProto) -> None:
        """One more node of the model; integers that are no operator's of this table stay as they are."""
        if node.op_type in _OPERATORS or node.op_type == "QLinearConcat":
            self.operator(node)
        else:
            self.nodes.append(node)


def by_definition(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which operators of integers are DequantizeLinear, the operator on real numbers and QuantizeLinear.

    Raises AotcError (code "reference") for operators that have no such counterpart.
    """
    defined = onnx.ModelProto()
    defined.CopyFrom(model)
    found = _Defined(defined.graph)
    for node in model.graph.node:
        found.node(node)
    del defined.graph.node[:]
    defined.graph.node.extend(found.nodes)
    return defined
