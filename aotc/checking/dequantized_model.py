# SPDX-License-Identifier: Apache-2.0
"""Conversion of a quantized ONNX model to float operators, with or without the rounding to
integers.

    remove_quantization_rounding(model)        # Conv and Clip for QLinearConv, Clip for QuantizeLinear
    expand_quantized_operators_to_qdq(model)   # DequantizeLinear, Conv and QuantizeLinear for QLinearConv

Saturation stays in both forms, since quantizers rely on it as an activation: values outside the
range of the integer dtype are clipped to that range.
"""

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from aotc.ir import AotcError

#: Float operator for each quantized operator, with the positions of the inputs that are followed
#: by a scale and a zero point.
_FLOAT_OPERATOR_BY_QUANTIZED: Final = {
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
#: Position of the bias input by quantized operator; the scale of the bias is the product of the
#: scales of both operands.
_BIAS_INPUT_INDEX: Final = {"QLinearConv": 8, "QGemm": 6}
#: Position of the result's scale, which the zero point follows, by operator; for other operators
#: they follow the operands.
_RESULT_SCALE_INPUT_INDEX: Final = {"QGemm": 7}
#: Attributes of quantized operators that the float operators do not have.
_QUANTIZED_ONLY_ATTRIBUTES: Final = ("channels_last", "opset")
#: Operators that copy or select elements and so work unchanged on quantized and on dequantized
#: tensors.
_DATA_MOVEMENT_OPERATORS: Final = {
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


class _UnroundedGraphBuilder:
    """Builder of a graph without rounding: converts quantized nodes to float nodes in the order of
    the graph.

    initializer_by_name   initializers by name
    created_names    names of tensors that are quantized in the model and hold real numbers in the new graph
    nodes   nodes of the new graph
    count   number of helper nodes that were added
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.initializer_by_name = {t.name: t for t in graph.initializer}
        self.created_names: set[str] = set()
        self.nodes: list[NodeProto] = []
        self.count = 0

    def append_node_and_return_output_name(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with a generated output name; return that name."""
        self.count += 1
        name = f"{op_type}__{self.count}__plain"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def append_dequantize_if_quantized(self, tensor_scale_zero_names: Sequence[str], axis: int) -> str:
        """Return the name of a tensor with the real values of a quantized one: a new
        DequantizeLinear, or the tensor itself if it already holds real numbers.

        tensor_scale_zero_names    names of the tensor, its scale and its zero point
        axis                       axis of the scales, where there are several
        """
        return (
            tensor_scale_zero_names[0]
            if tensor_scale_zero_names[0] in self.created_names
            else self.append_node_and_return_output_name("DequantizeLinear", *tensor_scale_zero_names, axis=axis)
        )

    def append_clip_or_quantize_to_dtype_range(
        self, input_name: str, scale_and_zero_names: Sequence[str], output_name: str
    ) -> None:
        """Append a node that clips the tensor `input_name` to the real range of a quantized dtype;
        the result is the tensor `output_name`.

        The node is an Identity if scale or zero point is not constant or is given per channel.

        scale_and_zero_names    names of the scale and the zero point; the dtype is that of the zero point
        """
        self.created_names.add(output_name)
        ends, (scale, zero) = [], scale_and_zero_names
        if scale in self.initializer_by_name and (zero in self.initializer_by_name or not zero):
            size = numpy_helper.to_array(self.initializer_by_name[scale]).astype(np.float64)
            middle = numpy_helper.to_array(self.initializer_by_name[zero]) if zero else np.uint8(0)
            limits = ml_dtypes.iinfo(middle.dtype)
            ends = [size * (end - middle.astype(np.float64)) for end in (limits.min, limits.max)]
        if ends and ends[0].size == 1:
            low, high = (
                self.append_node_and_return_output_name("Constant", value_float=float(e.reshape(()))) for e in ends
            )
            self.nodes.append(helper.make_node("Clip", [input_name, low, high], [output_name]))
        else:
            self.nodes.append(helper.make_node("Identity", [input_name], [output_name]))

    def append_float_op_of_quantized_node(self, node: NodeProto) -> None:
        """Append the float operator of a quantized operator, on dequantized operands, with a
        clipped result.

        Raise AotcError (code "reference") for the attribute channels_last and for a Gemm with alpha
        other than 1.
        """
        given = list(node.input) + [""] * 9
        if node.op_type == "QLinearConcat":
            op, places = "Concat", tuple(range(2, len(node.input), 3))
        else:
            op, places = _FLOAT_OPERATOR_BY_QUANTIZED[node.op_type]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        last = 0 if op == "Conv" or attributes.get("transB") else -1
        parts = [self.append_dequantize_if_quantized(given[k : k + 3], last if k == 3 else -1) for k in places]
        at = _BIAS_INPUT_INDEX.get(node.op_type)
        if at is not None and given[at]:
            scale = self.append_node_and_return_output_name("Mul", given[1], given[4])
            parts.append(
                self.append_node_and_return_output_name(
                    "DequantizeLinear", given[at], scale, axis=0 if op == "Conv" else -1
                )
            )
        if attributes.get("channels_last") or (attributes.get("alpha", 1.0) != 1.0 and op == "Gemm"):
            raise AotcError("reference", f"{node.op_type} has no floating-point counterpart")
        float_attributes = {k: v for k, v in attributes.items() if k not in _QUANTIZED_ONLY_ATTRIBUTES}
        onto = (
            given[:2] if op == "Concat" else given[_RESULT_SCALE_INPUT_INDEX.get(node.op_type, 3 * len(places)) :][:2]
        )
        self.append_clip_or_quantize_to_dtype_range(
            self.append_node_and_return_output_name(op, *parts, **float_attributes), onto, node.output[0]
        )

    def replace_dynamic_quantize_by_identity(self, node: NodeProto) -> None:
        """Replace DynamicQuantizeLinear by an Identity of the data, with scale 1 and zero point 0."""
        data, scale, zero = node.output
        self.nodes.append(helper.make_node("Identity", node.input, [data]))
        for name, value in ((scale, np.float32(1)), (zero, np.uint8(0))):
            tensor = numpy_helper.from_array(np.asarray(value), name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        self.created_names.add(data)

    def append_float_op_of_integer_product_node(self, node: NodeProto) -> None:
        """Replace ConvInteger or MatMulInteger by Conv or MatMul on operands that are dequantized
        with scale 1.
        """
        given = [*node.input, "", ""]
        unit_scale = self.append_node_and_return_output_name("Constant", value_float=1.0)
        op, axis = ("Conv", 0) if node.op_type == "ConvInteger" else ("MatMul", -1)
        parts = [self.append_dequantize_if_quantized((given[k], unit_scale, given[k + 2]), axis) for k in range(2)]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes.append(helper.make_node(op, parts, node.output, **attributes))

    def append_float_lstm_of_quantized_lstm(self, node: NodeProto) -> None:
        """Replace DynamicQuantizeLSTM by LSTM with dequantized weights; the quantized weights have
        the axes (directions, inputs, gates).
        """
        given = [*node.input, *[""] * 12]
        weights = [
            self._add_dequantized_transposed_lstm_weights(given[at], *given[scale : scale + 2])
            for at, scale in ((1, 8), (2, 10))
        ]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.nodes.append(helper.make_node("LSTM", [given[0], *weights, *given[3:8]], node.output, **attributes))

    def _add_dequantized_transposed_lstm_weights(self, name: str, scale: str, zero: str) -> str:
        """Return the name of a new constant with dequantized weights, transposed to the axes
        (directions, gates, inputs).

        Scales and zero points are given per direction, or per gate of each direction. Raise
        AotcError (code "reference") unless weights, scale and zero point are constant.
        """
        if not {name, scale, zero} <= {*self.initializer_by_name, ""}:
            raise AotcError("reference", f"the weights {name!r} are not constant")
        whole, size, middle = (
            numpy_helper.to_array(self.initializer_by_name[n]).astype(np.float64) if n else np.zeros(1)
            for n in (name, scale, zero)
        )
        real = (whole - middle.reshape(len(middle), 1, -1)) * size.reshape(len(size), 1, -1)
        value = numpy_helper.from_array(np.ascontiguousarray(real.transpose(0, 2, 1)))
        return self.append_node_and_return_output_name("Constant", value=value)

    def append_converted_or_copied_node(self, node: NodeProto) -> None:
        """Append the conversion of one node of the model, without rounding.

        Raise AotcError (code "reference") if a node other than a quantized operator or a copy
        computes on integers that were converted to real numbers.
        """
        op = node.op_type
        if op in _FLOAT_OPERATOR_BY_QUANTIZED or op == "QLinearConcat":
            self.append_float_op_of_quantized_node(node)
        elif op == "DynamicQuantizeLinear":
            self.replace_dynamic_quantize_by_identity(node)
        elif op in ("ConvInteger", "MatMulInteger"):
            self.append_float_op_of_integer_product_node(node)
        elif op == "DynamicQuantizeLSTM":
            self.append_float_lstm_of_quantized_lstm(node)
        elif op == "QuantizeLinear":
            name, *onto = [*node.input, ""][:3]
            self.append_clip_or_quantize_to_dtype_range(name, onto, node.output[0])
        elif op == "DequantizeLinear" and node.input[0] in self.created_names:
            self.nodes.append(helper.make_node("Identity", node.input[:1], node.output))
        elif self.created_names.intersection(node.input) and op not in _DATA_MOVEMENT_OPERATORS:
            raise AotcError("reference", f"{op} computes on integers")
        else:
            self.created_names.update(node.output if self.created_names.intersection(node.input) else ())
            self.nodes.append(node)


def remove_quantization_rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a quantized ONNX model in which quantization followed by dequantization
    clips but does not round.

    Raise AotcError (code "reference") for models without quantized operators and for models that
    compute on quantized integers in other ways.
    """
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    builder = _UnroundedGraphBuilder(plain.graph)
    for node in model.graph.node:
        builder.append_converted_or_copied_node(node)
    if not (builder.created_names or builder.count):
        raise AotcError("reference", "the model contains no quantized operators")
    del plain.graph.node[:]
    plain.graph.node.extend(builder.nodes)
    return plain


class _QuantizeDequantizeGraphBuilder(_UnroundedGraphBuilder):
    """Builder of a graph with rounding: each quantized operator becomes dequantization, a float
    operator and quantization.
    """

    def append_clip_or_quantize_to_dtype_range(
        self, input_name: str, scale_and_zero_names: Sequence[str], output_name: str
    ) -> None:
        """Append QuantizeLinear of the tensor `input_name`; the result is the tensor `output_name`.

        scale_and_zero_names    names of the scale and of the zero point, "" for none
        """
        self.nodes.append(
            helper.make_node("QuantizeLinear", [input_name, *(n for n in scale_and_zero_names if n)], [output_name])
        )

    def append_converted_or_copied_node(self, node: NodeProto) -> None:
        """Append the conversion of one node of the model; nodes that are no quantized operators of
        `_FLOAT_OPERATOR_BY_QUANTIZED` are copied.
        """
        if node.op_type in _FLOAT_OPERATOR_BY_QUANTIZED or node.op_type == "QLinearConcat":
            self.append_float_op_of_quantized_node(node)
        else:
            self.nodes.append(node)


def expand_quantized_operators_to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a quantized ONNX model in which each quantized operator is DequantizeLinear,
    the float operator and QuantizeLinear.

    Raise AotcError (code "reference") for operators without a float counterpart.
    """
    defined = onnx.ModelProto()
    defined.CopyFrom(model)
    builder = _QuantizeDequantizeGraphBuilder(defined.graph)
    for node in model.graph.node:
        builder.append_converted_or_copied_node(node)
    del defined.graph.node[:]
    defined.graph.node.extend(builder.nodes)
    return defined
