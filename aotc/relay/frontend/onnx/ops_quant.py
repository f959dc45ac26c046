# SPDX-License-Identifier: Apache-2.0
"""Converters of quantised operators.

OPS["QuantizeLinear"](node)             # cast(clip(round(x / scale) + zero, 0, 255), "uint8")
"""

from __future__ import annotations

from aotc.ir.dtype import DType
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.matmul import matmul
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.onnx.ops_conv import convolve
from aotc.relay.frontend.quantisation import centred, dequantize, dynamic_range, laid, quantize, requantize

_UINT8 = DType("uint8")


def _dtype(node: Node, name: str, otherwise: DType, what: str) -> DType:
    """The data type that an attribute states."""
    code = node.integer(name)
    return dtype_of_elem(code, what) if code else otherwise


def _quantize(node: Node) -> Expr:
    x, scale, zero = node[0], node[1], node.optional(2)
    if zero is not None:
        dtype = g.dtype(zero)
    else:
        dtype = _dtype(node, "output_dtype", _UINT8, "the output of QuantizeLinear")
    work = _dtype(node, "precision", _division(x, scale), "the precision")
    places = {"axis": node.integer("axis", 1), "block": node.integer("block_size")}
    return quantize(x, scale, zero, dtype, work=work, saturate=node.flag("saturate", 1), **places)


def _division(x: Expr, scale: Expr) -> DType:
    """The type of the division: the scale's (the data's up to version 19: they are equal)."""
    dtype = g.dtype(scale)
    if dtype.is_float and dtype.bits >= 16:
        return dtype
    return g.dtype(x) if g.dtype(x).is_float else DType("float32")


def _dequantize(node: Node) -> Expr:
    x, scale, zero = node[0], node[1], node.optional(2)
    dtype = _dtype(node, "output_dtype", g.dtype(scale), "the output of DequantizeLinear")
    return dequantize(x, scale, zero, dtype, node.integer("axis", 1), node.integer("block_size"))


def _dynamic_quantize(node: Node) -> list[Expr]:
    x = node[0]
    scale, zero = dynamic_range(x, _UINT8)
    return [quantize(x, scale, zero, _UINT8, work=DType("float32")), scale, zero]


def _qlinear_conv(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node[k] for k in range(8))
    sums = convolve(node, centred(x, x_zero, 1), centred(w, w_zero, 0), out_dtype="int32")
    bias, rank = node.optional(8), g.rank(x)
    if bias is not None:
        sums = g.add(sums, laid(bias, 1, rank))
    factor = g.div(g.mul(g.reshape(x_scale, ()), laid(w_scale, 1, rank)), g.reshape(y_scale, ()))
    return requantize(sums, factor, g.reshape(y_zero, ()))


def _matmul_integer(node: Node) -> Expr:
    a = centred(node[0], node.optional(2), g.rank(node[0]) - 2)
    b = centred(node[1], node.optional(3), g.rank(node[1]) - 1)
    return matmul(a, b)


def _qlinear_matmul(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node[k] for k in range(8))
    rank = max(g.rank(a), g.rank(b))
    sums = matmul(centred(a, a_zero, g.rank(a) - 2), centred(b, b_zero, g.rank(b) - 1))
    rows, columns, results = (g.cast(v, "float32") for v in (a_scale, b_scale, y_scale))
    factor = g.div(g.mul(laid(rows, rank - 2, rank), laid(columns, rank - 1, rank)), laid(results, rank - 2, rank))
    return requantize(sums, factor, laid(y_zero, rank - 2, rank))


OPS: Table = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
