# SPDX-License-Identifier: Apache-2.0
"""Converters of quantised operators: those of ONNX, and those that
ONNX Runtime adds (domain com.microsoft).

Results are those of ONNX Runtime's integer kernels, bit for bit.

OPS["QuantizeLinear"](x, scale, zero)           # qnn.quantize(x, scale, zero)
OPS["QLinearConv"](node=node)                   # qnn.requantize(qnn.conv2d(x, w, ...), ...)
MICROSOFT_OPS["QLinearAdd"](node=node)          # qnn.add(a, b, ...)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, DType, require
from aotc.relay.expr import Expr, Tuple, known_data
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import quantisation as q
from aotc.relay.frontend import windows
from aotc.relay.frontend.arguments import Maybe
from aotc.relay.frontend.onnx.node import Converted, Node, Stated, Table, named
from aotc.relay.frontend.onnx.ops_conv import pool_window, window_of
from aotc.relay.frontend.onnx.ops_nn import recurrent
from aotc.relay.frontend.products import matmul
from aotc.relay.frontend.quantisation import Onto, Quantised
from aotc.relay.frontend.shapes import element, from_start, take

_FLOAT: Final = DType("float32")
_UINT8: Final = DType("uint8")


# --- numbers of a node


def _stored(node: Node, at: int) -> Quantised:
    """Three inputs: integers, their scale, their zero point."""
    return _quantised(node, node[at], at + 1, at + 2)


def _quantised(node: Node, x: Expr, scale: int, zero: int) -> Quantised:
    return Quantised(x, _scale(node, scale), q.zero_of(node.optional(zero)))


def _scale(node: Node, at: int) -> Expr:
    return q.scale_of(node[at], f"the scale of {node.op_type} (input {at})")


def _onto(node: Node, at: int, dtype: DType) -> Onto:
    """Two inputs: a scale and a zero point, of integers of a type."""
    scale, zero = _scale(node, at), q.zero_of(node.optional(at + 1))
    _one(node, scale, zero)
    return Onto(scale, zero, dtype)


def _one(node: Node, *values: Expr) -> None:
    """AotcError where a scale or a zero point is not one value."""
    fits = all(map(q.single, values))
    require("onnx-quant", fits, f"scales and zero points of {node.op_type} are one value for each tensor")


def _whole(node: Node, at: int) -> Quantised:
    """Three inputs, of a tensor that has one scale."""
    found = _stored(node, at)
    _one(node, found.scale, found.zero)
    return found


# --- quantize and dequantize


def _division(x: Expr, scale: Expr) -> DType:
    """The type of the division: the scale's (the data's up to
    version 19: they are equal).
    """
    dtype = g.dtype(scale)
    if dtype.is_float and dtype.bits >= 16:
        return dtype
    return g.dtype(x) if g.dtype(x).is_float else _FLOAT


def _quantize_linear(
    x: Expr, scale: Expr, zero: Maybe = None, *, output_dtype: Stated = None, precision: Stated = None, **others: Any
) -> Expr:
    dtype = (output_dtype or _UINT8) if zero is None else g.dtype(zero)
    return q.quantize(x, scale, zero, dtype, work=precision or _division(x, scale), **others)


def _dequantize_linear(x: Expr, scale: Expr, zero: Maybe = None, *, output_dtype: Stated = None, **places: int) -> Expr:
    return q.dequantize(x, scale, zero, output_dtype or g.dtype(scale), **places)


def _quantize_axis(x: Expr, scale: Expr, zero: Maybe = None, *, axis: int = 1) -> Expr:
    return _quantize_linear(x, scale, zero, axis=axis)


def _dequantize_axis(x: Expr, scale: Expr, zero: Maybe = None, *, axis: int = 1) -> Expr:
    return _dequantize_linear(x, scale, zero, axis=axis)


def _dynamic_quantize_linear(x: Expr) -> list[Expr]:
    scale, zero = q.dynamic_range(x, _UINT8)
    return [q.quantize(x, scale, zero, _UINT8, work=_FLOAT), scale, zero]


# --- sums of products


def _convolved(node: Node, x: Quantised, w: Quantised, bias: Maybe = None) -> Expr:
    window, groups = window_of(node, x.data, w.data), node.attrs["group"]
    return windows.convolve(x.data, w.data, window, bias, groups, q.terms(x, w), out_dtype="int32")


def _plain(node: Node, x: Expr, zero: Maybe) -> Quantised:
    """Integers whose scale nobody asks for."""
    return Quantised(x, g.constant(1.0, _FLOAT), q.zero_of(zero))


def _conv_integer(x: Expr, w: Expr, x_zero: Maybe = None, w_zero: Maybe = None, *, node: Node) -> Expr:
    return _convolved(node, _plain(node, x, x_zero), _plain(node, w, w_zero))


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


def _matmul_integer(a: Expr, b: Expr, a_zero: Maybe = None, b_zero: Maybe = None, *, node: Node) -> Expr:
    left, right = _plain(node, a, a_zero), _plain(node, b, b_zero)
    _check_of_vectors((a, left.zero), (b, right.zero))
    return q.product(left, right)


def _check_of_vectors(*pairs: tuple[Expr, Expr]) -> None:
    """A vector is one row, or one column: it has one scale and one zero point."""
    fits = all(g.rank(x) > 1 or q.single(v) for x, v in pairs)
    require("onnx-quant", fits, "a vector has one scale and one zero point")


def _qlinear_matmul(*, node: Node) -> Expr:
    a, b, dtype = _stored(node, 0), _stored(node, 3), g.dtype(node[7])
    y_scale, y_zero = _scale(node, 6), q.zero_of(node[7])
    _check_of_vectors(*((x.data, v) for x in (a, b) for v in (x.scale, x.zero)))
    sums = q.product(a, b)
    rank = g.rank(sums)
    if all(map(q.single, (a.scale, y_scale, y_zero))) and g.rank(b.scale) < 2:
        return q.requantize(sums, q.products(a, b), Onto(y_scale, y_zero, dtype), rank - 1)
    # a product with a vector has no columns, that of a vector no rows
    row = rank - 1 if g.rank(b.data) == 1 else rank - 2
    scales = g.mul(q.laid(a.scale, row, rank), q.laid(b.scale, rank - 1, rank))
    factor = g.div(scales, q.laid(y_scale, row, rank))
    return q.rescaled(sums, factor, q.laid(y_zero, row, rank), dtype)


def _qgemm(*, alpha: float, transA: int, transB: int, node: Node) -> Expr:
    a, b, bias = _whole(node, 0), _stored(node, 3), node.optional(6)
    matrices = g.rank(a.data) == g.rank(b.data) == 2
    require("onnx-gemm", matrices, lambda: f"QGemm needs matrices, got {g.dims(a.data)} and {g.dims(b.data)}")
    a, b = (replace(x, data=g.transpose(x.data, (1, 0))) if t else x for x, t in ((a, transA), (b, transB)))
    sums = q.product(a, b)
    sums = sums if bias is None else g.add(sums, bias)
    scales = g.mul(g.mul(a.scale, alpha), b.scale)
    if node.optional(7) is None:
        return q.scaled(sums, scales)
    dtype = g.dtype(a.data) if node.optional(8) is None else g.dtype(node[8])
    return q.requantize(sums, scales, _onto(node, 7, dtype), axis=1)


def _matmul_to_float(a: Quantised, b: Quantised, bias: Maybe) -> Expr:
    y = q.scaled(q.product(a, b), q.products(a, b))
    return y if bias is None else g.add(y, bias)


def _matmul_integer_to_float(*, node: Node) -> Expr:
    a = _quantised(node, node[0], 2, 4)
    return _matmul_to_float(a, _quantised(node, node[1], 3, 5), node.optional(6))


def _dynamic_quantize_matmul(*, node: Node) -> Expr:
    numbers = q.dynamic_range(node[0], _UINT8)
    data = q.quantize(node[0], *numbers, _UINT8, work=_FLOAT)
    a = Quantised(data, numbers[0], q.zero_of(numbers[1]))
    return _matmul_to_float(a, _quantised(node, node[1], 2, 3), node.optional(4))


# --- elementwise


def _binary(name: str, *, node: Node) -> Expr:
    a, b = _whole(node, 0), _whole(node, 3)
    onto = _onto(node, 6, g.dtype(a.data))
    swapped = name == "add" and _is_repeated(a.data, b.data)
    a, b = (b, a) if swapped else (a, b)
    numbers = a.scale, a.zero, b.scale, b.zero, onto.scale, onto.zero
    return g.op(f"qnn.{name}", a.data, b.data, *numbers)


def _is_repeated(a: Expr, b: Expr) -> bool:
    """Whether one element of `a` meets several of `b`, along the
    last axis that is no 1: the kernels then add `b` to it.
    """
    one, other = ((1,) * 8 + tuple(g.dims(x)) for x in (a, b))
    pairs = [p for p in zip(reversed(one), reversed(other), strict=False) if p != (1, 1)]
    return bool(pairs) and pairs[0][0] == 1


def _unary(name: str, *, node: Node, **attributes: Any) -> Expr:
    x = _whole(node, 0)
    onto = _onto(node, 3, g.dtype(x.data))
    return g.op(f"qnn.{name}", x.data, x.scale, x.zero, onto.scale, onto.zero, **attributes)


def _qlinear_concat(*, axis: int, node: Node) -> Expr:
    require("onnx-input", len(node.inputs) % 3 == 2, "QLinearConcat takes three inputs for each tensor")
    onto = _onto(node, 0, g.dtype(node[1]))
    parts = [_whole(node, k) for k in range(2, len(node.inputs), 3)]
    fits = all(g.dtype(p.data) == onto.dtype and g.dtype(p.scale) == _FLOAT for p in parts)
    require("onnx-type", fits, f"tensors of QLinearConcat must be {onto.dtype}, their scales float32")
    columns = (Tuple(v) for v in zip(*((p.data, p.scale, p.zero) for p in parts), strict=True))
    place = g.axis(axis, g.rank(parts[0].data))
    return g.op("qnn.concatenate", *columns, onto.scale, onto.zero, axis=place)


def _moved(x: Quantised, onto: Onto) -> Expr:
    """The same numbers as integers of another scale; themselves
    where scale and zero point are known to be those.
    """
    ours, theirs = ([known_data(v) for v in (p.scale, p.zero)] for p in (x, onto))
    if None not in (*ours, *theirs) and ours == theirs:
        return x.data
    return q.mapped(x, onto, lambda y: y)


def _qlinear_where(*, node: Node) -> Expr:
    x, y = _whole(node, 1), _whole(node, 4)
    onto = _onto(node, 7, g.dtype(x.data))
    return g.where(node[0], _moved(x, onto), _moved(y, onto))


# --- pools and means


def _qlinear_average_pool(*, ceil_mode: bool = False, count_include_pad: bool = False, node: Node) -> Expr:
    """The mean of real numbers, stored anew."""
    last = bool(node.attrs["channels_last"])
    x, modes = _whole(node, 0), {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    onto = _onto(node, 3, g.dtype(x.data))
    data = _channels_first(x.data) if last else x.data
    window = pool_window(node, data)
    if window.rank == 2:
        numbers = x.scale, x.zero, onto.scale, onto.zero
        y = g.op("qnn.avg_pool2d", data, *numbers, pool_size=window.kernel, **window.attributes(), **modes)
    else:
        real = q.scaled(q.centred(data, x.zero, 1), x.scale)
        mean = windows.pool("avg", real, window, **modes)
        y = g.op("round", g.add(g.div(mean, onto.scale), g.cast(onto.zero, _FLOAT)))
        y = q.saturated(y, onto.dtype)
    return _channels_last(y) if last else y


def _mean(node: Node, axes: Sequence[int], keepdims: bool) -> Expr:
    """The sum of integers, scaled once."""
    x = _whole(node, 0)
    onto = _onto(node, 3, g.dtype(x.data))
    count = math.prod(g.dim(x.data, k) for k in axes)
    sums = g.reduce("sum", q.centred(x.data, x.zero, 0), axes, keepdims)
    scaled = replace(onto, scale=g.mul(onto.scale, float(count)))
    return q.requantize(sums, x.scale, scaled)


def _qlinear_global_average_pool(*, channels_last: bool = False, node: Node) -> Expr:
    rank = g.rank(node[0])
    return _mean(node, range(1, rank - 1) if channels_last else range(2, rank), True)


def _qlinear_reduce_mean(*, axes: list[int], keepdims: int = 1, node: Node) -> Expr:
    rank = g.rank(node[0])
    return _mean(node, sorted({g.axis(a, rank) for a in axes or range(rank)}), keepdims == 1)


def _qlinear_softmax(*, opset: int, axis: int = -1, node: Node) -> Expr:
    """Up to operator set 12 over all axes from one on, as of one."""
    x, shape = _whole(node, 0), g.shape(node[0])
    onto, place = _onto(node, 3, g.dtype(x.data)), g.axis(axis, len(shape))
    data = x.data if opset >= 13 else g.reshape(x.data, (*shape[:place], -1))
    y = g.op("qnn.softmax", data, x.scale, x.zero, onto.scale, onto.zero, axis=place)
    return g.reshape(y, shape)


# --- weights of few bits


def _unpacked(packed: Expr, bits: int, count: int) -> Expr:
    """Integers of a few bits each, the first in the lowest bits of a
    byte, along the last axis, which has `count` of them.
    """
    require("onnx-quant", bits in (2, 4, 8), f"integers of {bits} bits in bytes are not supported")
    data = known_data(packed)
    if data is None:
        raise AotcError("onnx-quant", "packed weights and their zero points must be known at compile time")
    parts = data[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    flat = parts.reshape(*data.shape[:-1], -1)
    fits = flat.shape[-1] >= count
    require("onnx-quant", fits, f"{data.shape} bytes hold no {count} integers of {bits} bits in a row")
    return g.constant(flat[..., :count], "uint4" if bits == 4 else "uint8")


def _mat_mul_n_bits(
    x: Expr,
    packed: Expr,
    scales: Expr,
    zeros: Maybe = None,
    g_idx: Maybe = None,
    bias: Maybe = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int,
    **_: Any,
) -> Expr:
    """A product with a matrix (N, K) of integers, dequantised."""
    require("onnx-quant", min(K, N, block_size) > 0, "MatMulNBits needs positive sizes")
    blocks = -(-K // block_size)
    scales = g.reshape(scales, (N, blocks))
    rows = _unpacked(g.reshape(packed, (N, -1)), bits, K)
    if zeros is None:
        zeros = g.filled(1 << bits - 1, (N, blocks), "uint8")
    elif g.dtype(zeros) == _UINT8:
        zeros = _unpacked(g.reshape(zeros, (N, -1)), bits, blocks)
    zeros = g.cast(g.reshape(zeros, (N, blocks)), g.dtype(scales))
    if g_idx is not None:
        scales, zeros = (g.op("take", v, g_idx, axis=1, mode="clip") for v in (scales, zeros))
        block_size = 1
    weight = q.in_blocks(rows, scales, zeros, 1, block_size)
    y = g.op("nn.dense", x, weight, units=N)
    return y if bias is None else g.op("nn.bias_add", y, bias, axis=-1)


def _gather_block_quantized(
    data: Expr,
    indices: Expr,
    scales: Expr,
    zeros: Maybe = None,
    *,
    bits: int,
    block_size: int,
    gather_axis: int,
    quantize_axis: int,
) -> Expr:
    """Rows of integers and of their scales, dequantised."""
    rank = g.rank(data)
    place, along = g.axis(gather_axis, rank), g.axis(quantize_axis, rank)
    require("onnx-quant", place != along, "GatherBlockQuantized gathers along another axis than that of the blocks")
    middle = 0
    if g.dtype(data) == _UINT8:
        require("onnx-quant", along == rank - 1, "bytes of GatherBlockQuantized have blocks along their last axis")
        middle = 1 << bits - 1
        zeros = None if zeros is None else _unpacked(zeros, bits, g.dim(scales, along))
        data = _unpacked(data, bits, g.dim(data, along) * (8 // bits))
    zeros = g.filled(middle, g.shape(scales), "int32") if zeros is None else zeros
    work = g.dtype(scales)
    where = from_start(indices, g.dim(data, place))
    rows, scales, zeros = (take(v, where, place) for v in (data, scales, g.cast(zeros, work)))
    return q.in_blocks(rows, scales, zeros, along if along < place else along + g.rank(indices) - 1, block_size)


# --- layers of floats with quantised weights


def _dynamic_quantize_lstm(*, direction: str, node: Node) -> Converted:
    """An LSTM of floats: only its weights are quantised."""
    weights = (_along_directions(node, k, s) for k, s in ((1, 8), (2, 10)))
    inputs = [node[0], *weights, *(node.optional(k) for k in range(3, 8))]
    return recurrent(direction=direction, node=replace(node, op_type="LSTM", inputs=inputs))


def _along_directions(node: Node, at: int, numbers: int) -> Expr:
    """Weights (directions, inputs, gates) as floats (directions,
    gates, inputs); scales are for a direction, or a gate of it.
    """
    scale, zero = _scale(node, numbers), q.zero_of(node[numbers + 1])
    ends = (g.reshape(v, (*g.shape(v), *(1,) * (2 - g.rank(v)))) for v in (scale, zero))
    scale, zero = (g.unsqueeze(v, [1]) for v in ends)
    real = g.mul(g.cast(g.sub(g.cast(node[at], "int32"), zero), _FLOAT), scale)
    return g.transpose(real, (0, 2, 1))


def _q_attention(*, num_heads: int, unidirectional: bool = False, scale: float = 0.0, node: Node, **given: Any) -> Any:
    """Attention whose first product is one of integers."""
    require("onnx-op", not given.get("do_rotary"), "QAttention with rotary positions is not supported")
    x, w = _quantised(node, node[0], 3, 6), _quantised(node, node[1], 4, 7)
    batch, steps, _ = g.shape(x.data)
    size = g.dim(w.data, 1) // (3 * num_heads) if num_heads > 0 else 0
    fits = size * 3 * num_heads == g.dim(w.data, 1)
    require("onnx-quant", fits and size > 0, f"weights of {g.dim(w.data, 1)} columns do not fit {num_heads} heads")
    joined = _matmul_to_float(x, w, node[2])
    heads = g.transpose(g.reshape(joined, (batch, steps, 3, num_heads, size)), (2, 0, 3, 1, 4))
    query, key, value = (element(heads, 0, k) for k in range(3))
    past = node.optional(8)
    if past is not None:
        key, value = (g.concat([element(past, 0, k), new], 2) for k, new in enumerate((key, value)))
    scores = matmul(query, g.transpose(key, (0, 1, 3, 2)))
    scores = g.mul(scores, scale or 1 / math.sqrt(size))
    hidden = _hidden(node, unidirectional, (batch, steps, g.dim(key, 2)))
    if hidden is not None:
        scores = g.add(scores, g.mul(g.cast(hidden, _FLOAT), given.get("mask_filter_value", -10000.0)))
    mixed = matmul(g.op("nn.softmax", scores, axis=-1), value)
    y = g.reshape(g.transpose(mixed, (0, 2, 1, 3)), (batch, steps, num_heads * size))
    return [y, g.stack([key, value], 0)]


def _hidden(node: Node, causal: bool, sizes: tuple[int, int, int]) -> Maybe:
    """Where attention must not look (batch, 1, steps, positions);
    None where it may look everywhere.
    """
    batch, steps, count = sizes
    mask, hidden = node.optional(5), None
    if mask is not None and g.dims(mask) == (batch, count):
        hidden = g.reshape(g.equal(mask, 0), (batch, 1, 1, count))
    elif mask is not None and g.dims(mask) == (batch,):
        beyond = g.op("greater_equal", g.iota(count, "int32"), g.reshape(mask, (batch, 1)))
        hidden = g.reshape(beyond, (batch, 1, 1, count))
    elif mask is not None:
        raise AotcError("onnx-quant", f"a mask of shape {g.dims(mask)} is not supported")
    if not causal:
        return hidden
    later = np.arange(count) > np.arange(steps)[:, None] + count - steps
    ahead = g.constant(later.reshape(1, 1, steps, count))
    return ahead if hidden is None else g.op("logical_or", hidden, ahead)


OPS: Table = {
    **named(_conv_integer, _dequantize_linear, _dynamic_quantize_linear, _quantize_linear),
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
MICROSOFT_OPS: Table = {
    **named(_gather_block_quantized, _mat_mul_n_bits, _q_attention),
    "DequantizeLinear": _dequantize_axis,
    "DynamicQuantizeLSTM": _dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
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
