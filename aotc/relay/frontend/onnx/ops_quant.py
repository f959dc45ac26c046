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
from itertools import zip_longest
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
from aotc.relay.frontend.windows import Window

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
    what = f"scales and zero points of {node.op_type}"
    require("onnx-quant", fits, f"{what} are one value for each tensor")


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


def _convolved(node: Node, x: Quantised, w: Quantised, bias: Maybe = None) -> Expr:
    window, groups = window_of(node, x.data, w.data), node.attrs["group"]
    return windows.convolve(x.data, w.data, window, bias, groups, q.terms(x, w), out_dtype="int32")


def _plain(node: Node, at: int) -> Quantised:
    """Two inputs of four: integers whose scale nobody asks for, and
    their zero point.
    """
    zero = q.zero_of(node.optional(at + 2))
    return Quantised(node[at], g.constant(1.0, _FLOAT), zero)


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


def _check_of_vectors(*parts: Quantised) -> None:
    """A vector is one row, or one column."""
    flat = [x for x in parts if g.rank(x.data) == 1]
    fits = all(q.single(v) for x in flat for v in (x.scale, x.zero))
    require("onnx-quant", fits, "a vector has one scale and one zero point")


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
    # a product with a vector has no columns, that of a vector no rows
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
    shapes = (reversed(g.dims(x)) for x in (a, b))
    pairs = zip_longest(*shapes, fillvalue=1)
    found = next((p for p in pairs if p != (1, 1)), None)
    return found is not None and found[0] == 1


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


def _mean_of_windows(x: Quantised, onto: Onto, window: Window, modes: Any) -> Expr:
    """Means of real numbers, stored anew."""
    real = q.scaled(q.centred(x.data, x.zero, 1), x.scale)
    steps = g.div(windows.pool("avg", real, window, **modes), onto.scale)
    y = g.op("round", g.add(steps, g.cast(onto.zero, _FLOAT)))
    return q.saturated(y, onto.dtype)


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
    axes = range(1, rank - 1) if channels_last else range(2, rank)
    return _mean(node, axes, True)


def _qlinear_reduce_mean(*, axes: list[int], keepdims: int = 1, node: Node) -> Expr:
    rank = g.rank(node[0])
    places = {g.axis(a, rank) for a in axes or range(rank)}
    return _mean(node, sorted(places), keepdims == 1)


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
    text = f"integers of {bits} bits in bytes are not supported"
    require("onnx-quant", bits in (2, 4, 8), text)
    data = known_data(packed)
    if data is None:
        text = "packed integers must be known at compile time"
        raise AotcError("onnx-quant", text)
    mask = np.uint8((1 << bits) - 1)
    parts = data[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & mask
    flat = parts.reshape(*data.shape[:-1], -1)
    text = f"{data.shape} bytes hold no {count} integers of {bits} bits in a row"
    require("onnx-quant", flat.shape[-1] >= count, text)
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
    fits = min(K, N, block_size) > 0
    require("onnx-quant", fits, "MatMulNBits needs positive sizes")
    blocks = -(-K // block_size)
    scales = g.reshape(scales, (N, blocks))
    rows = _unpacked(g.reshape(packed, (N, -1)), bits, K)
    if zeros is None:
        zeros = g.filled(1 << bits - 1, (N, blocks), "uint8")
    elif g.dtype(zeros) == _UINT8:
        zeros = _unpacked(g.reshape(zeros, (N, -1)), bits, blocks)
    zeros = g.cast(g.reshape(zeros, (N, blocks)), g.dtype(scales))
    if g_idx is not None:
        scales, zeros = (take(v, g_idx, 1) for v in (scales, zeros))
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
    what = "GatherBlockQuantized has blocks along"
    text = f"{what} another axis than that of its indices"
    require("onnx-quant", place != along, text)
    middle = 0
    if g.dtype(data) == _UINT8:
        text = f"{what} the last axis where it has bytes"
        require("onnx-quant", along == rank - 1, text)
        middle = 1 << bits - 1
        zeros = None if zeros is None else _unpacked(zeros, bits, g.dim(scales, along))
        data = _unpacked(data, bits, g.dim(data, along) * (8 // bits))
    zeros = g.filled(middle, g.shape(scales), "int32") if zeros is None else zeros
    work = g.dtype(scales)
    where = from_start(indices, g.dim(data, place))
    parts = (data, scales, g.cast(zeros, work))
    rows, scales, zeros = (take(v, where, place) for v in parts)
    along += 0 if along < place else g.rank(indices) - 1
    return q.in_blocks(rows, scales, zeros, along, block_size)


# --- layers of floats with quantised weights


def _dynamic_quantize_lstm(*, direction: str, node: Node) -> Converted:
    """An LSTM of floats: only its weights are quantised."""
    weights = (_along_directions(node, k, s) for k, s in ((1, 8), (2, 10)))
    inputs = [node[0], *weights, *(node.optional(k) for k in range(3, 8))]
    plain = replace(node, op_type="LSTM", inputs=inputs)
    return recurrent(direction=direction, node=plain)


def _along_directions(node: Node, at: int, numbers: int) -> Expr:
    """Weights (directions, inputs, gates) as floats (directions,
    gates, inputs); scales are for a direction, or a gate of it.
    """
    scale, zero = _scale(node, numbers), q.zero_of(node[numbers + 1])
    count = g.dim(node[at], 0)
    scale, zero = (g.reshape(v, (count, 1, -1)) for v in (scale, zero))
    whole = g.sub(g.cast(node[at], "int32"), zero)
    real = g.mul(g.cast(whole, _FLOAT), scale)
    return g.transpose(real, (0, 2, 1))


def _q_attention(
    *,
    num_heads: int,
    unidirectional: bool = False,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    do_rotary: bool = False,
    node: Node,
    **_rest: Any,
) -> list[Expr]:
    """Attention whose first product is one of integers."""
    text = "QAttention with rotary positions is not supported"
    require("onnx-op", not do_rotary, text)
    heads = _heads(node, num_heads)
    query, key, value = (element(heads, 0, k) for k in range(3))
    past = node.optional(8)
    if past is not None:
        key = g.concat([element(past, 0, 0), key], 2)
        value = g.concat([element(past, 0, 1), value], 2)
    batch, _, steps, size = g.shape(query)
    scores = matmul(query, g.transpose(key, (0, 1, 3, 2)))
    scores = g.mul(scores, scale or 1 / math.sqrt(size))
    positions = g.dim(key, 2)
    hidden = _hidden(node, batch, positions)
    if hidden is not None:
        low = g.mul(g.cast(hidden, _FLOAT), mask_filter_value)
        scores = g.add(scores, low)
    if unidirectional:
        rows = np.arange(steps)[:, None] + positions - steps
        later = g.constant(np.arange(positions) > rows)
        scores = g.where(later, float(_FLOAT.min), scores)
    mixed = matmul(g.op("nn.softmax", scores, axis=-1), value)
    y = g.transpose(mixed, (0, 2, 1, 3))
    y = g.reshape(y, (batch, steps, num_heads * size))
    return [y, g.stack([key, value], 0)]


def _heads(node: Node, count: int) -> Expr:
    """Queries, keys and values (3, batch, heads, steps, size)."""
    x, w = _quantised(node, node[0], 3, 6), _quantised(node, node[1], 4, 7)
    batch, steps, _ = g.shape(x.data)
    columns = g.dim(w.data, 1)
    fits = count > 0 and columns > 0 and columns % (3 * count) == 0
    text = f"weights of {columns} columns do not fit {count} heads"
    require("onnx-quant", fits, text)
    joined = _matmul_to_float(x, w, node[2])
    heads = g.reshape(joined, (batch, steps, 3, count, -1))
    return g.transpose(heads, (2, 0, 3, 1, 4))


def _hidden(node: Node, batch: int, count: int) -> Maybe:
    """Where attention must not look, as it meets (batch, heads,
    steps, positions); None where it may look everywhere.
    """
    mask = node.optional(5)
    if mask is None:
        return None
    if g.dims(mask) == (batch, count):
        hidden = g.equal(mask, 0)
    elif g.dims(mask) == (batch,):
        ends = g.reshape(mask, (batch, 1))
        hidden = g.op("greater_equal", g.iota(count, "int32"), ends)
    else:
        text = f"a mask of shape {g.dims(mask)} is not supported"
        raise AotcError("onnx-quant", text)
    return g.reshape(hidden, (batch, 1, 1, count))


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
