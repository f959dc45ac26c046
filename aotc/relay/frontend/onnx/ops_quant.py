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
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.frontend.onnx.node import Node, Stated, Table, named
from aotc.relay.frontend.onnx.ops_conv import pool_window, window_of
from aotc.relay.frontend.quantization import Onto, Quantized

_FLOAT: Final = DType("float32")
_UINT8: Final = DType("uint8")


# --- scales and zero points of a node


def _stored(node: Node, at: int) -> Quantized:
    """Return the quantized tensor that three consecutive inputs from `at` on describe: integers,
    scale, zero point.
    """
    return quantized(node, node[at], at + 1, at + 2)


def quantized(node: Node, x: Expr, scale: int, zero: int) -> Quantized:
    """Return a quantized tensor of the integers `x` with the inputs `scale` and `zero` as scale and
    zero point.
    """
    return Quantized(x, _scale(node, scale), q.zero_of(node.optional(zero)))


def _scale(node: Node, at: int) -> Expr:
    return q.scale_of(node[at], f"the scale of {node.op_type} (input {at})")


def _onto(node: Node, at: int, dtype: DType) -> Onto:
    """Return the quantization parameters of a result from the inputs `at` (scale) and `at + 1`
    (zero point); both must be single values.
    """
    scale, zero = _scale(node, at), q.zero_of(node.optional(at + 1))
    _one(node, scale, zero)
    return Onto(scale, zero, dtype)


def _one(node: Node, *values: Expr) -> None:
    """Raise AotcError (code "onnx-quant") unless all given scales and zero points are single
    values.
    """
    fits = all(map(q.single, values))
    what = f"scales and zero points of {node.op_type}"
    require("onnx-quant", fits, f"{what} must be a single value for the whole tensor")


def _whole(node: Node, at: int) -> Quantized:
    """Return the quantized tensor that three consecutive inputs from `at` on describe; its scale
    and zero point must be single values.
    """
    found = _stored(node, at)
    _one(node, found.scale, found.zero)
    return found


# --- quantize and dequantize


def _division(x: Expr, scale: Expr) -> DType:
    """Return the data type in which QuantizeLinear divides: that of the scale (up to version 19
    data and scale have equal types); for a scale of 8 bits that of the data.
    """
    dtype = g.dtype(scale)
    if dtype.is_float and dtype.bits >= 16:
        return dtype
    return g.dtype(x) if g.dtype(x).is_float else _FLOAT


def _quantize_linear(
    x: Expr, scale: Expr, zero: Maybe = None, *, output_dtype: Stated = None, precision: Stated = None, **others: Any
) -> Expr:
    dtype = (output_dtype or _UINT8) if zero is None else g.dtype(zero)
    work = precision or _division(x, scale)
    return q.quantize(x, scale, zero, dtype, work=work, **others)


def _dequantize_linear(x: Expr, scale: Expr, zero: Maybe = None, *, output_dtype: Stated = None, **places: int) -> Expr:
    dtype = output_dtype or g.dtype(scale)
    return q.dequantize(x, scale, zero, dtype, **places)


def _quantize_axis(x: Expr, scale: Expr, zero: Maybe = None, *, axis: int = 1) -> Expr:
    return _quantize_linear(x, scale, zero, axis=axis)


def _dequantize_axis(x: Expr, scale: Expr, zero: Maybe = None, *, axis: int = 1) -> Expr:
    return _dequantize_linear(x, scale, zero, axis=axis)


def _dynamic_quantize_linear(x: Expr) -> list[Expr]:
    scale, zero = q.dynamic_range(x, _UINT8)
    return [q.quantize(x, scale, zero, _UINT8, work=_FLOAT), scale, zero]


# --- sums of products


def _convolved(node: Node, x: Quantized, w: Quantized, bias: Maybe = None) -> Expr:
    window, groups = window_of(node, x.data, w.data), node.attrs["group"]
    return conv_pool.convolve(x.data, w.data, window, bias, groups, q.terms(x, w), out_dtype="int32")


def _plain(node: Node, at: int) -> Quantized:
    """Return the quantized tensor of the input `at` with the scale 1 and the zero point in the
    input `at + 2`, as for ConvInteger and MatMulInteger, whose inputs are two tensors and then
    their zero points.
    """
    zero = q.zero_of(node.optional(at + 2))
    return Quantized(node[at], g.constant(1.0, _FLOAT), zero)


def _conv_integer(*, node: Node) -> Expr:
    return _convolved(node, _plain(node, 0), _plain(node, 1))


def _qlinear_conv(*, node: Node) -> Expr:
    last = bool(node.attrs.get("channels_last"))
    x, w = _whole(node, 0), _stored(node, 3)
    x = replace(x, data=_channels_first(x.data) if last else x.data)
    sums = _convolved(node, x, w, node.optional(8))
    onto = _onto(node, 6, g.dtype(node[7]))
    y = q.requantize(sums, q.products(x, w), onto, axis=1)
    return _channels_last(y) if last else y


def _channels_first(x: Expr) -> Expr:
    return g.transpose(x, (0, g.rank(x) - 1, *range(1, g.rank(x) - 1)))


def _channels_last(x: Expr) -> Expr:
    return g.transpose(x, (0, *range(2, g.rank(x)), 1))


def _matmul_integer(*, node: Node) -> Expr:
    a, b = _plain(node, 0), _plain(node, 1)
    _check_of_vectors(a, b)
    return q.product(a, b)


def _check_of_vectors(*parts: Quantized) -> None:
    """Raise AotcError (code "onnx-quant") if a vector operand has more than one scale or zero
    point: a vector is a single row or column.
    """
    flat = [x for x in parts if g.rank(x.data) == 1]
    fits = all(q.single(v) for x in flat for v in (x.scale, x.zero))
    require("onnx-quant", fits, "a vector operand must have a single scale and a single zero point")


def _qlinear_matmul(*, node: Node) -> Expr:
    a, b, dtype = _stored(node, 0), _stored(node, 3), g.dtype(node[7])
    y_scale, y_zero = _scale(node, 6), q.zero_of(node[7])
    _check_of_vectors(a, b)
    sums = q.product(a, b)
    rank = g.rank(sums)
    whole = all(map(q.single, (a.scale, y_scale, y_zero)))
    if whole and g.rank(b.scale) < 2:
        onto = Onto(y_scale, y_zero, dtype)
        return q.requantize(sums, q.products(a, b), onto, rank - 1)
    # a product with a vector has no column axis, a product of a vector has no row axis
    row = rank - 1 if g.rank(b.data) == 1 else rank - 2
    scales = g.mul(q.laid(a.scale, row, rank), q.laid(b.scale, rank - 1, rank))
    factor = g.div(scales, q.laid(y_scale, row, rank))
    return q.rescaled(sums, factor, q.laid(y_zero, row, rank), dtype)


def _qgemm(*, alpha: float, transA: int, transB: int, node: Node) -> Expr:
    a, b, bias = _whole(node, 0), _stored(node, 3), node.optional(6)
    shapes = [g.dims(x.data) for x in (a, b)]
    matrices = [len(shape) for shape in shapes] == [2, 2]
    require("onnx-gemm", matrices, f"QGemm needs matrices, got {shapes}")
    a = replace(a, data=g.transpose(a.data, (1, 0))) if transA else a
    b = replace(b, data=g.transpose(b.data, (1, 0))) if transB else b
    sums = q.product(a, b)
    sums = sums if bias is None else g.add(sums, bias)
    scales = g.mul(g.mul(a.scale, alpha), b.scale)
    if node.optional(7) is None:
        return q.scaled(sums, scales)
    dtype = g.dtype(a.data) if node.optional(8) is None else g.dtype(node[8])
    return q.requantize(sums, scales, _onto(node, 7, dtype), axis=1)


def matmul_to_float(a: Quantized, b: Quantized, bias: Maybe) -> Expr:
    """Multiply quantized tensors as integers, convert the product to real numbers, and add a bias
    unless it is None.
    """
    y = q.scaled(q.product(a, b), q.products(a, b))
    return y if bias is None else g.add(y, bias)


def _matmul_integer_to_float(*, node: Node) -> Expr:
    a = quantized(node, node[0], 2, 4)
    return matmul_to_float(a, quantized(node, node[1], 3, 5), node.optional(6))


def _dynamic_quantize_matmul(*, node: Node) -> Expr:
    numbers = q.dynamic_range(node[0], _UINT8)
    data = q.quantize(node[0], *numbers, _UINT8, work=_FLOAT)
    a = Quantized(data, numbers[0], q.zero_of(numbers[1]))
    return matmul_to_float(a, quantized(node, node[1], 2, 3), node.optional(4))


# --- elementwise


def _binary(name: str, *, node: Node) -> Expr:
    a, b = _whole(node, 0), _whole(node, 3)
    onto = _onto(node, 6, g.dtype(a.data))
    numbers = a.scale, a.zero, b.scale, b.zero, onto.scale, onto.zero
    return g.op(f"qnn.{name}", a.data, b.data, *numbers)


def _unary(name: str, *, node: Node, **attributes: Any) -> Expr:
    x = _whole(node, 0)
    onto = _onto(node, 3, g.dtype(x.data))
    return g.op(f"qnn.{name}", x.data, x.scale, x.zero, onto.scale, onto.zero, **attributes)


def _qlinear_concat(*, axis: int, node: Node) -> Expr:
    count = len(node.inputs)
    text = "QLinearConcat takes three inputs for each tensor"
    require("onnx-input", count % 3 == 2, text)
    onto = _onto(node, 0, g.dtype(node[1]))
    parts = [_whole(node, k) for k in range(2, count, 3)]
    types = {(g.dtype(p.data), g.dtype(p.scale)) for p in parts}
    text = f"tensors of QLinearConcat must be {onto.dtype}, scales float32"
    require("onnx-type", types == {(onto.dtype, _FLOAT)}, text)
    rows = ((p.data, p.scale, p.zero) for p in parts)
    columns = map(Tuple, zip(*rows, strict=True))
    place = g.axis(axis, g.rank(parts[0].data))
    return g.op("qnn.concatenate", *columns, onto.scale, onto.zero, axis=place)


def _qlinear_where(*, node: Node) -> Expr:
    x, y = _whole(node, 1), _whole(node, 4)
    onto = _onto(node, 7, g.dtype(x.data))
    moved = (q.mapped(v, onto, lambda real: real) for v in (x, y))
    return g.where(node[0], *moved)


# --- pools and means


def _qlinear_average_pool(
    *, ceil_mode: bool = False, count_include_pad: bool = False, channels_last: bool = False, node: Node
) -> Expr:
    x = _whole(node, 0)
    onto = _onto(node, 3, g.dtype(x.data))
    data = _channels_first(x.data) if channels_last else x.data
    modes: dict[str, Any] = {"ceil_mode": ceil_mode}
    modes |= {"count_include_pad": count_include_pad}
    window = pool_window(node, data)
    if window.rank == 2:
        modes |= {"pool_size": window.kernel, **window.attributes()}
        numbers = x.scale, x.zero, onto.scale, onto.zero
        y = g.op("qnn.avg_pool2d", data, *numbers, **modes)
    else:
        y = _mean_of_windows(replace(x, data=data), onto, window, modes)
    return _channels_last(y) if channels_last else y


def _nhwc_max_pool(*, ceil_mode: bool = False, node: Node) -> Expr:
    x = _channels_first(node[0])
    y = conv_pool.pool("max", x, pool_window(node, x), ceil_mode=ceil_mode)
    return _channels_last(y)


def _mean_of_windows(x: Quantized, onto: Onto, window: Window, modes: Any) -> Expr:
    """Average-pool centered integers in float32, multiply by the quotient of the scales, round and
    add the zero point.
    """
    whole = g.cast(q.centered(x.data, x.zero, 1), _FLOAT)
    mean = conv_pool.pool("avg", whole, window, **modes)
    steps = g.op("qnn.product", mean, g.div(x.scale, onto.scale))
    return q.saturated(g.add(g.op("round", steps), g.cast(onto.zero, _FLOAT)), onto.dtype)


def _mean(node: Node, axes: Sequence[int], keepdims: bool) -> Expr:
    """Compute a quantized mean: sum the integers and requantize once, with the number of elements
    multiplied into the result scale.
    """
    x = _whole(node, 0)
    onto = _onto(node, 3, g.dtype(x.data))
    count = math.prod(g.dim(x.data, k) for k in axes)
    sums = g.reduce("sum", q.centered(x.data, x.zero, 0), axes, keepdims)
    scaled = replace(onto, scale=g.mul(onto.scale, float(count)))
    return q.requantize(sums, x.scale, scaled)


def _qlinear_global_average_pool(*, channels_last: bool = False, node: Node) -> Expr:
    rank = g.rank(node[0])
    axes = range(1, rank - 1) if channels_last else range(2, rank)
    return _mean(node, axes, True)


def _qlinear_reduce_mean(*, axes: list[int], keepdims: int = 1, node: Node) -> Expr:
    rank = g.rank(node[0])
    places = {g.axis(a, rank) for a in axes or range(rank)}
    return _mean(node, sorted(places), keepdims == 1)


def _qlinear_softmax(*, opset: int, axis: int = -1, node: Node) -> Expr:
    """Convert QLinearSoftmax; up to operator set 12 all axes from `axis` on are flattened to one."""
    x, shape = _whole(node, 0), g.shape(node[0])
    onto, place = _onto(node, 3, g.dtype(x.data)), g.axis(axis, len(shape))
    data = x.data if opset >= 13 else g.reshape(x.data, (*shape[:place], -1))
    y = g.op("qnn.softmax", data, x.scale, x.zero, onto.scale, onto.zero, axis=place)
    return g.reshape(y, shape)


OPS: Table = {
    **named(_conv_integer, _dequantize_linear, _dynamic_quantize_linear, _quantize_linear),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
MICROSOFT_OPS: Table = {
    "DequantizeLinear": _dequantize_axis,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "NhwcMaxPool": _nhwc_max_pool,
    "QGemm": _qgemm,
    "QLinearAdd": partial(_binary, "add"),
    "QLinearAveragePool": _qlinear_average_pool,
    "QLinearConcat": _qlinear_concat,
    "QLinearConv": _qlinear_conv,
    "QLinearGlobalAveragePool": _qlinear_global_average_pool,
    "QLinearLeakyRelu": partial(_unary, "leaky_relu"),
    "QLinearMul": partial(_binary, "mul"),
    "QLinearReduceMean": _qlinear_reduce_mean,
    "QLinearSigmoid": partial(_unary, "sigmoid"),
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearWhere": _qlinear_where,
    "QuantizeLinear": _quantize_axis,
}
