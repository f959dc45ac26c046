# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of quantized operators: those of the ONNX standard, and those that ONNX Runtime
adds in the domain com.microsoft.

Results equal those of the definition (dequantize, compute, quantize) up to the roundings that
docs/quantization.md states for each operator.

OPS["QuantizeLinear"](x, scale, zero)           # qnn.quantize(x, scale, zero)
OPS["QLinearConv"](node=node)                   # qnn.requantize(qnn.conv2d(x, w, ...), ...)
MICROSOFT_OPS["QLinearAdd"](node=node)          # qnn.add(a, b, ...)
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aotc.ir import DType, require
from aotc.relay.expr import Expr, Tuple
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.onnx.node import OnnxNode, OptionalDType, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_conv import convolution_window, pool_window
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor

_FLOAT: Final = DType("float32")
_UINT8: Final = DType("uint8")


# --- scales and zero points of a node


def _quantized_from_inputs(node: OnnxNode, first_input: int) -> QuantizedTensor:
    """Return the quantized tensor that three consecutive inputs from `first_input` on describe:
    integers, scale, zero point.
    """
    return quantized_tensor_of_scale_zero_inputs(node, node[first_input], first_input + 1, first_input + 2)


def quantized_tensor_of_scale_zero_inputs(
    node: OnnxNode, integers: Expr, scale_input: int, zero_input: int
) -> QuantizedTensor:
    """Return a quantized tensor of the integers `integers` with the inputs `scale_input` and
    `zero_input` as scale and zero point.
    """
    return QuantizedTensor(
        integers,
        _checked_quantization_scale_input(node, scale_input),
        q.zero_point_as_int32(node.optional_input(zero_input)),
    )


def _checked_quantization_scale_input(node: OnnxNode, index: int) -> Expr:
    return q.checked_scale_with_single_as_scalar(node[index], f"the scale of {node.op_type} (input {index})")


def _output_quantization(node: OnnxNode, scale_input: int, dtype: DType) -> OutputQuantization:
    """Return the quantization parameters of a result from the inputs `scale_input` (scale) and
    `scale_input + 1` (zero point); both must be single values.
    """
    scale, zero = (
        _checked_quantization_scale_input(node, scale_input),
        q.zero_point_as_int32(node.optional_input(scale_input + 1)),
    )
    _require_single_scales_and_zero_points(node, scale, zero)
    return OutputQuantization(scale, zero, dtype)


def _require_single_scales_and_zero_points(node: OnnxNode, *values: Expr) -> None:
    """Raise AotcError (code "onnx-quant") unless all given scales and zero points are single
    values.
    """
    fits = all(map(q.is_single_element_quant_param, values))
    subject = f"scales and zero points of {node.op_type}"
    require("onnx-quant", fits, f"{subject} must be a single value for the whole tensor")


def _require_per_tensor_quantized_inputs(node: OnnxNode, first_input: int) -> QuantizedTensor:
    """Return the quantized tensor that three consecutive inputs from `first_input` on describe; its
    scale and zero point must be single values.
    """
    tensor = _quantized_from_inputs(node, first_input)
    _require_single_scales_and_zero_points(node, tensor.scale, tensor.zero)
    return tensor


# --- quantize and dequantize


def _division_dtype_of_quantize_linear(x: Expr, scale: Expr) -> DType:
    """Return the data type in which QuantizeLinear divides: that of the scale (up to version 19
    data and scale have equal types); for a scale of 8 bits that of the data.
    """
    dtype = g.dtype(scale)
    if dtype.is_float and dtype.bits >= 16:
        return dtype
    return g.dtype(x) if g.dtype(x).is_float else _FLOAT


def _quantize_linear(
    x: Expr,
    scale: Expr,
    zero: OptionalExpr = None,
    *,
    output_dtype: OptionalDType = None,
    precision: OptionalDType = None,
    **options: Any,
) -> Expr:
    dtype = (output_dtype or _UINT8) if zero is None else g.dtype(zero)
    work = precision or _division_dtype_of_quantize_linear(x, scale)
    return q.quantize(x, scale, zero, dtype, work=work, **options)


def _dequantize_linear(
    x: Expr, scale: Expr, zero: OptionalExpr = None, *, output_dtype: OptionalDType = None, **places: int
) -> Expr:
    dtype = output_dtype or g.dtype(scale)
    return q.dequantize(x, scale, zero, dtype, **places)


def _quantize_along_axis(x: Expr, scale: Expr, zero: OptionalExpr = None, *, axis: int = 1) -> Expr:
    return _quantize_linear(x, scale, zero, axis=axis)


def _dequantize_along_axis(x: Expr, scale: Expr, zero: OptionalExpr = None, *, axis: int = 1) -> Expr:
    return _dequantize_linear(x, scale, zero, axis=axis)


def _dynamic_quantize_linear(x: Expr) -> list[Expr]:
    scale, zero = q.quant_params_from_data_range(x, _UINT8)
    return [q.quantize(x, scale, zero, _UINT8, work=_FLOAT), scale, zero]


# --- sums of products


def _integer_convolution(node: OnnxNode, x: QuantizedTensor, w: QuantizedTensor, bias: OptionalExpr = None) -> Expr:
    window, groups = convolution_window(node, x.data, w.data), node.attrs["group"]
    return conv_pool.build_convolution(
        x.data, w.data, window, bias, groups, q.qnn_zero_points_and_scales(x, w), out_dtype="int32"
    )


def _quantized_with_unit_scale(node: OnnxNode, index: int) -> QuantizedTensor:
    """Return the quantized tensor of the input `index` with the scale 1 and the zero point in the
    input `index + 2`, as for ConvInteger and MatMulInteger, whose inputs are two tensors and then
    their zero points.
    """
    zero = q.zero_point_as_int32(node.optional_input(index + 2))
    return QuantizedTensor(node[index], g.constant(1.0, _FLOAT), zero)


def _conv_integer(*, node: OnnxNode) -> Expr:
    return _integer_convolution(node, _quantized_with_unit_scale(node, 0), _quantized_with_unit_scale(node, 1))


def _qlinear_conv(*, node: OnnxNode) -> Expr:
    last = bool(node.attrs.get("channels_last"))
    x, w = _require_per_tensor_quantized_inputs(node, 0), _quantized_from_inputs(node, 3)
    x = replace(x, data=_to_channels_first(x.data) if last else x.data)
    sums = _integer_convolution(node, x, w, node.optional_input(8))
    onto = _output_quantization(node, 6, g.dtype(node[7]))
    y = q.requantize(sums, q.product_scale(x, w), onto, axis=1)
    return _to_channels_last(y) if last else y


def _to_channels_first(x: Expr) -> Expr:
    return g.transpose(x, (0, g.rank(x) - 1, *range(1, g.rank(x) - 1)))


def _to_channels_last(x: Expr) -> Expr:
    return g.transpose(x, (0, *range(2, g.rank(x)), 1))


def _matmul_integer(*, node: OnnxNode) -> Expr:
    a, b = _quantized_with_unit_scale(node, 0), _quantized_with_unit_scale(node, 1)
    _require_vectors_quantized_per_tensor(a, b)
    return q.quantized_matmul(a, b)


def _require_vectors_quantized_per_tensor(*parts: QuantizedTensor) -> None:
    """Raise AotcError (code "onnx-quant") if a vector operand has more than one scale or zero
    point: a vector is a single row or column.
    """
    flat = [x for x in parts if g.rank(x.data) == 1]
    fits = all(q.is_single_element_quant_param(v) for x in flat for v in (x.scale, x.zero))
    require("onnx-quant", fits, "a vector operand must have a single scale and a single zero point")


def _qlinear_matmul(*, node: OnnxNode) -> Expr:
    a, b, dtype = _quantized_from_inputs(node, 0), _quantized_from_inputs(node, 3), g.dtype(node[7])
    y_scale, y_zero = _checked_quantization_scale_input(node, 6), q.zero_point_as_int32(node[7])
    _require_vectors_quantized_per_tensor(a, b)
    sums = q.quantized_matmul(a, b)
    rank = g.rank(sums)
    whole = all(map(q.is_single_element_quant_param, (a.scale, y_scale, y_zero)))
    if whole and g.rank(b.scale) < 2:
        onto = OutputQuantization(y_scale, y_zero, dtype)
        return q.requantize(sums, q.product_scale(a, b), onto, rank - 1)
    # a product with a vector has no column axis, a product of a vector has no row axis
    row = rank - 1 if g.rank(b.data) == 1 else rank - 2
    scales = g.mul(
        q.reshape_param_to_broadcast_along_axis(a.scale, row, rank),
        q.reshape_param_to_broadcast_along_axis(b.scale, rank - 1, rank),
    )
    factor = g.div(scales, q.reshape_param_to_broadcast_along_axis(y_scale, row, rank))
    return q.requantize_by_factor(sums, factor, q.reshape_param_to_broadcast_along_axis(y_zero, row, rank), dtype)


def _qgemm(*, alpha: float, transA: int, transB: int, node: OnnxNode) -> Expr:
    a, b, bias = _require_per_tensor_quantized_inputs(node, 0), _quantized_from_inputs(node, 3), node.optional_input(6)
    shapes = [g.dims(x.data) for x in (a, b)]
    matrices = [len(shape) for shape in shapes] == [2, 2]
    require("onnx-gemm", matrices, f"QGemm needs matrices, got {shapes}")
    a = replace(a, data=g.transpose(a.data, (1, 0))) if transA else a
    b = replace(b, data=g.transpose(b.data, (1, 0))) if transB else b
    sums = q.quantized_matmul(a, b)
    sums = sums if bias is None else g.add(sums, bias)
    scales = g.mul(g.mul(a.scale, alpha), b.scale)
    if node.optional_input(7) is None:
        return q.dequantize_sums(sums, scales)
    dtype = g.dtype(a.data) if node.optional_input(8) is None else g.dtype(node[8])
    return q.requantize(sums, scales, _output_quantization(node, 7, dtype), axis=1)


def quantized_matmul_as_float(a: QuantizedTensor, b: QuantizedTensor, bias: OptionalExpr) -> Expr:
    """Multiply quantized tensors as integers, convert the product to real numbers, and add a bias
    unless it is None.
    """
    y = q.dequantize_sums(q.quantized_matmul(a, b), q.product_scale(a, b))
    return y if bias is None else g.add(y, bias)


def _matmul_integer_to_float(*, node: OnnxNode) -> Expr:
    a = quantized_tensor_of_scale_zero_inputs(node, node[0], 2, 4)
    return quantized_matmul_as_float(
        a, quantized_tensor_of_scale_zero_inputs(node, node[1], 3, 5), node.optional_input(6)
    )


def dynamically_quantized_matmul(x: Expr, w: QuantizedTensor, bias: OptionalExpr = None) -> Expr:
    """Round real numbers to uint8, with one scale and zero point for all of them, and multiply them by a quantized
    tensor as integers.
    """
    numbers = q.quant_params_from_data_range(x, _UINT8)
    data = q.quantize(x, *numbers, _UINT8, work=_FLOAT)
    return quantized_matmul_as_float(QuantizedTensor(data, numbers[0], q.zero_point_as_int32(numbers[1])), w, bias)


def _dynamic_quantize_matmul(*, node: OnnxNode) -> Expr:
    weight = quantized_tensor_of_scale_zero_inputs(node, node[1], 2, 3)
    return dynamically_quantized_matmul(node[0], weight, node.optional_input(4))


# --- elementwise


def _qlinear_binary(name: str, *, node: OnnxNode) -> Expr:
    a, b = _require_per_tensor_quantized_inputs(node, 0), _require_per_tensor_quantized_inputs(node, 3)
    onto = _output_quantization(node, 6, g.dtype(a.data))
    numbers = a.scale, a.zero, b.scale, b.zero, onto.scale, onto.zero
    return g.call_op(f"qnn.{name}", a.data, b.data, *numbers)


def _qlinear_unary(name: str, *, node: OnnxNode, **attributes: Any) -> Expr:
    x = _require_per_tensor_quantized_inputs(node, 0)
    onto = _output_quantization(node, 3, g.dtype(x.data))
    return g.call_op(f"qnn.{name}", x.data, x.scale, x.zero, onto.scale, onto.zero, **attributes)


def _qlinear_concat(*, axis: int, node: OnnxNode) -> Expr:
    count = len(node.inputs)
    text = "QLinearConcat takes three inputs for each tensor"
    require("onnx-input", count % 3 == 2, text)
    onto = _output_quantization(node, 0, g.dtype(node[1]))
    parts = [_require_per_tensor_quantized_inputs(node, k) for k in range(2, count, 3)]
    types = {(g.dtype(p.data), g.dtype(p.scale)) for p in parts}
    text = f"tensors of QLinearConcat must be {onto.dtype}, scales float32"
    require("onnx-type", types == {(onto.dtype, _FLOAT)}, text)
    rows = ((p.data, p.scale, p.zero) for p in parts)
    columns = map(Tuple, zip(*rows, strict=True))
    place = g.normalize_axis(axis, g.rank(parts[0].data))
    return g.call_op("qnn.concatenate", *columns, onto.scale, onto.zero, axis=place)


def _qlinear_where(*, node: OnnxNode) -> Expr:
    x, y = _require_per_tensor_quantized_inputs(node, 1), _require_per_tensor_quantized_inputs(node, 4)
    onto = _output_quantization(node, 7, g.dtype(x.data))
    branches = (q.apply_by_lookup_table(v, onto, lambda real: real) for v in (x, y))
    return g.where(node[0], *branches)


# --- pools and means


def _qlinear_average_pool(
    *, ceil_mode: bool = False, count_include_pad: bool = False, channels_last: bool = False, node: OnnxNode
) -> Expr:
    x = _require_per_tensor_quantized_inputs(node, 0)
    onto = _output_quantization(node, 3, g.dtype(x.data))
    data = _to_channels_first(x.data) if channels_last else x.data
    modes: dict[str, Any] = {"ceil_mode": ceil_mode}
    modes |= {"count_include_pad": count_include_pad}
    window = pool_window(node, data)
    if window.rank == 2:
        modes |= {"pool_size": window.kernel, **window.window_attributes()}
        numbers = x.scale, x.zero, onto.scale, onto.zero
        y = g.call_op("qnn.avg_pool2d", data, *numbers, **modes)
    else:
        y = _quantized_average_pool(replace(x, data=data), onto, window, modes)
    return _to_channels_last(y) if channels_last else y


def _nhwc_max_pool(*, ceil_mode: bool = False, node: OnnxNode) -> Expr:
    x = _to_channels_first(node[0])
    y = conv_pool.build_pool("max", x, pool_window(node, x), ceil_mode=ceil_mode)
    return _to_channels_last(y)


def _quantized_average_pool(
    x: QuantizedTensor, output: OutputQuantization, window: Window, pool_attributes: Any
) -> Expr:
    """Average-pool centered integers in float32, multiply by the quotient of the scales, round and
    add the zero point.
    """
    whole = g.cast(q.subtract_zero_point(x.data, x.zero, 1), _FLOAT)
    mean = conv_pool.build_pool("avg", whole, window, **pool_attributes)
    steps = g.call_op("qnn.product", mean, g.div(x.scale, output.scale))
    return q.clip_and_cast(g.add(g.call_op("round", steps), g.cast(output.zero, _FLOAT)), output.dtype)


def _quantized_mean(node: OnnxNode, axes: Sequence[int], keepdims: bool) -> Expr:
    """Compute a quantized mean: sum the integers and requantize once, with the number of elements
    multiplied into the result scale.
    """
    x = _require_per_tensor_quantized_inputs(node, 0)
    onto = _output_quantization(node, 3, g.dtype(x.data))
    count = math.prod(g.dim(x.data, k) for k in axes)
    sums = g.call_reduction("sum", q.subtract_zero_point(x.data, x.zero, 0), axes, keepdims)
    scaled = replace(onto, scale=g.mul(onto.scale, float(count)))
    return q.requantize(sums, x.scale, scaled)


def _qlinear_global_average_pool(*, channels_last: bool = False, node: OnnxNode) -> Expr:
    rank = g.rank(node[0])
    axes = range(1, rank - 1) if channels_last else range(2, rank)
    return _quantized_mean(node, axes, True)


def _qlinear_reduce_mean(*, axes: list[int], keepdims: int = 1, node: OnnxNode) -> Expr:
    rank = g.rank(node[0])
    places = {g.normalize_axis(a, rank) for a in axes or range(rank)}
    return _quantized_mean(node, sorted(places), keepdims == 1)


def _qlinear_softmax(*, opset: int, axis: int = -1, node: OnnxNode) -> Expr:
    """Convert QLinearSoftmax; up to operator set 12 all axes from `axis` on are flattened to one."""
    x, shape = _require_per_tensor_quantized_inputs(node, 0), g.shape(node[0])
    onto, place = _output_quantization(node, 3, g.dtype(x.data)), g.normalize_axis(axis, len(shape))
    data = x.data if opset >= 13 else g.reshape(x.data, (*shape[:place], -1))
    y = g.call_op("qnn.softmax", data, x.scale, x.zero, onto.scale, onto.zero, axis=place)
    return g.reshape(y, shape)


OPS: Table = {
    **table_by_function_name(_conv_integer, _dequantize_linear, _dynamic_quantize_linear, _quantize_linear),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
MICROSOFT_OPS: Table = {
    "DequantizeLinear": _dequantize_along_axis,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "NhwcMaxPool": _nhwc_max_pool,
    "QGemm": _qgemm,
    "QLinearAdd": partial(_qlinear_binary, "add"),
    "QLinearAveragePool": _qlinear_average_pool,
    "QLinearConcat": _qlinear_concat,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": _qlinear_global_average_pool,
    "QLinearLeakyRelu": partial(_qlinear_unary, "leaky_relu"),
    "QLinearMul": partial(_qlinear_binary, "mul"),
    "QLinearReduceMean": _qlinear_reduce_mean,
    "QLinearSigmoid": partial(_qlinear_unary, "sigmoid"),
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearWhere": _qlinear_where,
    "QuantizeLinear": _quantize_along_axis,
}
