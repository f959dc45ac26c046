# SPDX-License-Identifier: Apache-2.0
"""Converters of matrix products and normalisations, and of quantised operators.

OPS["Gemm"](a, b, c, transB=1)          # nn.bias_add(nn.dense(a, b), c)
OPS["QuantizeLinear"](x, scale, zero)   # cast(clip(round(x / scale) + zero, 0, 255), "uint8")
"""

from __future__ import annotations

from typing import Any

from aotc.ir import DType, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.arguments import Axis
from aotc.relay.frontend.normalisation import batch_norm, batch_norm_in, moments, per_channel, standardized
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Converted, Node, Table
from aotc.relay.frontend.onnx.ops_conv import convolve
from aotc.relay.frontend.products import einsum, matmul
from aotc.relay.frontend.quantisation import centred, dequantize, dynamic_range, laid, quantize, requantize
from aotc.relay.frontend.reductions import p_norm


def _gemm(a: Expr, b: Expr, c: Expr | None = None, *, transA: int, transB: int, alpha: float, beta: float) -> Expr:
    matrices = g.rank(a) == g.rank(b) == 2
    require("onnx-gemm", matrices, lambda: f"Gemm needs matrices, got shapes {g.dims(a)} and {g.dims(b)}")
    if transA:
        a = g.transpose(a, (1, 0))
    if transB:
        units = g.dims(b)[0]
        y = g.op("nn.dense", a, b, units=units if isinstance(units, int) else None)
    else:
        y = g.op("nn.matmul", a, b, units=None)
    y = g.scaled(y, alpha)
    if c is None or beta == 0.0:
        return y
    c = g.scaled(c, beta)
    if g.rank(c) == 1 and g.dims(c)[0] == g.dims(y)[1]:
        return g.op("nn.bias_add", y, c, axis=1)
    return g.add(y, c)


# --- normalisation


def _stash(code: int) -> DType:
    """The data type of statistics."""
    return dtype_of_elem(code, "the stash type")


def _batch_normalization(
    x: Expr, scale: Expr, bias: Expr, mean: Expr, var: Expr, *, epsilon: float, momentum: float = 0.9, node: Node
) -> Converted:
    if not node.attrs.get("training_mode"):
        statistics = any(node.wants(k) for k in range(1, 5))
        require("onnx-training", not statistics, "BatchNormalization with statistics as outputs is for training")
        flat = node.since < 9 and not node.attrs.get("spatial", 1)
        require("onnx-norm", not flat, "BatchNormalization with spatial=0 is not supported")
        return [batch_norm(x, scale, bias, mean, var, epsilon)]
    # statistics of the batch itself, and running ones that move towards them
    work = g.dtype(mean)
    axes, data = [0, *range(2, g.rank(x))], g.cast(x, work)
    batch_mean = g.reduce("mean", data, axes, False)
    centred = g.sub(data, g.along(batch_mean, 1, g.rank(x)))
    batch_var = g.reduce("mean", g.mul(centred, centred), axes, False)
    y = batch_norm_in(work, x, scale, bias, batch_mean, batch_var, epsilon)
    pairs = ((mean, batch_mean), (var, batch_var))
    return [y, *(g.add(g.mul(old, momentum), g.mul(new, 1.0 - momentum)) for old, new in pairs)]


def _layer_normalization(
    x: Expr, scale: Expr, bias: Expr | None = None, *, axis: Axis = -1, epsilon: float, stash_type: int, node: Node
) -> Converted:
    rank, stash = g.rank(x), _stash(stash_type)
    plain = axis == rank - 1 and g.rank(scale) == 1 and g.dtype(x) == stash and g.dims(scale) == g.dims(x)[-1:]
    if plain and not node.wants(1) and not node.wants(2) and (bias is None or g.dims(bias) == g.dims(scale)):
        beta = bias if bias is not None else g.filled(0, g.shape(scale), g.dtype(x))
        y = g.op("nn.layer_norm", x, scale, beta, axis=-1, epsilon=epsilon, center=bias is not None)
        return [y, None, None]
    mean, centred, var = moments(g.cast(x, stash), range(axis, rank))
    inverse = g.div(1.0, g.sqrt(g.add(var, epsilon)))
    y = g.mul(g.cast(g.mul(centred, inverse), g.dtype(x)), scale)
    return [y if bias is None else g.add(y, bias), mean, inverse]


def _rms_normalization(x: Expr, scale: Expr, *, axis: Axis = -1, epsilon: float, stash_type: int) -> Expr:
    data = g.cast(x, _stash(stash_type))
    root = g.sqrt(g.add(g.reduce("mean", g.mul(data, data), range(axis, g.rank(x)), True), epsilon))
    return g.mul(g.cast(g.div(data, root), g.dtype(scale)), scale)


def _group_normalization(
    x: Expr, scale: Expr, bias: Expr, *, num_groups: int, epsilon: float, stash_type: int = 1, node: Node
) -> Expr:
    """Scale and bias are per group up to version 18, per channel after."""
    shape = g.shape(x)
    fits = num_groups >= 1 and shape[1] % num_groups == 0
    require("onnx-norm", fits, f"{shape[1]} channels cannot form {num_groups} groups")
    data = g.cast(g.reshape(x, (shape[0], num_groups, -1)), _stash(stash_type))
    y = g.cast(standardized(data, (2,), epsilon), g.dtype(x))
    if node.since < 21 and g.dim(scale, 0) == num_groups:
        return g.reshape(per_channel(y, scale, bias), shape)
    return per_channel(g.reshape(y, shape), scale, bias)


def _lp_normalization(x: Expr, *, axis: Axis = -1, p: int = 2) -> Expr:
    require("onnx-norm", p in (1, 2), f"LpNormalization with p = {p} is not supported")
    size = p_norm(x, p, lambda y: g.reduce("sum", y, (axis,), True))
    return g.where(g.equal(size, 0.0), g.constant(0.0, g.dtype(x)), g.div(x, size))  # zeros stay zeros


def _mean_variance_normalization(x: Expr, *, axes: list[int] | None = None) -> Expr:
    _, centred, var = moments(x, [g.axis(a, g.rank(x)) for a in axes or (0, 2, 3)])
    return g.div(centred, g.add(g.sqrt(var), 1e-9))


# --- quantised tensors

_UINT8 = DType("uint8")


def _division(x: Expr, scale: Expr) -> DType:
    """The type of the division: the scale's (the data's up to version 19:
    they are equal).
    """
    dtype = g.dtype(scale)
    if dtype.is_float and dtype.bits >= 16:
        return dtype
    return g.dtype(x) if g.dtype(x).is_float else DType("float32")


def _stated(code: int, otherwise: DType, what: str) -> DType:
    """The data type that an attribute states."""
    return dtype_of_elem(code, what) if code else otherwise


def _quantize(
    x: Expr, scale: Expr, zero: Expr | None = None, *, output_dtype: int = 0, precision: int = 0, **attributes: Any
) -> Expr:
    dtype = _stated(output_dtype, _UINT8, "the output of QuantizeLinear") if zero is None else g.dtype(zero)
    work = _stated(precision, _division(x, scale), "the precision")
    return quantize(x, scale, zero, dtype, work=work, **attributes)


def _dequantize(x: Expr, scale: Expr, zero: Expr | None = None, *, output_dtype: int = 0, **places: int) -> Expr:
    dtype = _stated(output_dtype, g.dtype(scale), "the output of DequantizeLinear")
    return dequantize(x, scale, zero, dtype, **places)


def _dynamic_quantize(x: Expr) -> list[Expr]:
    scale, zero = dynamic_range(x, _UINT8)
    return [quantize(x, scale, zero, _UINT8, work=DType("float32")), scale, zero]


def _conv_integer(x: Expr, w: Expr, x_zero: Expr | None = None, w_zero: Expr | None = None, *, node: Node) -> Expr:
    return convolve(node, centred(x, x_zero, 1), centred(w, w_zero, 0), out_dtype="int32")


def _qlinear_conv(*, node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node[k] for k in range(8))
    sums, bias, rank = _conv_integer(x, w, x_zero, w_zero, node=node), node.optional(8), g.rank(x)
    if bias is not None:
        sums = g.add(sums, laid(bias, 1, rank))
    factor = g.div(g.mul(g.reshape(x_scale, ()), laid(w_scale, 1, rank)), g.reshape(y_scale, ()))
    return requantize(sums, factor, g.reshape(y_zero, ()))


def _matmul_integer(a: Expr, b: Expr, a_zero: Expr | None = None, b_zero: Expr | None = None) -> Expr:
    return matmul(centred(a, a_zero, g.rank(a) - 2), centred(b, b_zero, g.rank(b) - 1))


def _qlinear_matmul(*given: Expr) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = given
    rank, sums = max(g.rank(a), g.rank(b)), _matmul_integer(a, b, a_zero, b_zero)
    rows, columns, results = (g.cast(v, "float32") for v in (a_scale, b_scale, y_scale))
    factor = g.div(g.mul(laid(rows, rank - 2, rank), laid(columns, rank - 1, rank)), laid(results, rank - 2, rank))
    return requantize(sums, factor, laid(y_zero, rank - 2, rank))


OPS: Table = {
    "BatchNormalization": _batch_normalization,
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": lambda *operands, equation: einsum(equation, operands),
    "Gemm": _gemm,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": lambda *given, epsilon: g.op("nn.instance_norm", *given, axis=1, epsilon=epsilon),
    "LRN": lambda x, **attributes: g.op("nn.lrn", x, axis=1, **attributes),
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "MatMul": lambda a, b: matmul(a, b),
    "MatMulInteger": _matmul_integer,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _rms_normalization,
}
