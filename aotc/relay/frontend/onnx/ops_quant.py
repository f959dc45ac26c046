# SPDX-License-Identifier: Apache-2.0
"""Converters of quantised operators, composed of ordinary arithmetic.

Products accumulate in int32 exactly; scaling, rounding and saturation happen in float32.

    OPS["QuantizeLinear"](node)             # cast(clip(round(x / scale) + zero, 0, 255), "uint8")
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.matmul import matmul
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.onnx.ops_conv import centred, convolve
from aotc.relay.frontend.onnx.ops_elementwise import convert_dtype


def _spread(v: Expr, x: Expr, axis: int, block: int) -> Expr:
    """A scale or zero point brought to a shape that broadcasts with `x`: one value, one per axis, or blocks."""
    rank = g.rank(v)
    if rank == 0 or g.dims(v) == (1,):
        return g.reshape(v, ())
    if rank == 1 and not block:
        place = g.axis(axis, g.rank(x))
        return g.reshape(v, [-1 if k == place else 1 for k in range(g.rank(x))])
    return _blocks(v, g.shape(x), g.axis(axis, rank), block)


def _blocks(v: Expr, shape: Sequence[int], axis: int, block: int) -> Expr:
    """Each value along `axis` repeated `block` times, cut to the length of the data."""
    small = g.shape(v)
    if len(small) != len(shape) or block < 1 or small[axis] * block < shape[axis]:
        raise AotcError("onnx-quant", f"a scale of shape {small} in blocks of {block} does not fit {tuple(shape)}")
    wide = g.broadcast(
        g.reshape(v, (*small[: axis + 1], 1, *small[axis + 1 :])), (*small[: axis + 1], block, *small[axis + 1 :])
    )
    y = g.reshape(wide, (*small[:axis], small[axis] * block, *small[axis + 1 :]))
    return y if small[axis] * block == shape[axis] else g.cut(y, [0], [shape[axis]], [axis])


def saturated(y: Expr, dtype: DType) -> Expr:
    """Rounded values clipped to the range of an integer type and converted."""
    return g.cast(g.op("clip", y, a_min=float(dtype.min), a_max=float(dtype.max)), dtype)


def _quantize(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axis, block = node.integer("axis", 1), node.integer("block_size")
    dtype = _quantized_dtype(node, zero)
    work = _precision(node, x, scale)
    y = g.div(g.cast(x, work), g.cast(_spread(scale, x, axis, block), work))
    point = None if zero is None or _is_zero(zero) else g.cast(_spread(zero, x, axis, block), work)
    if dtype.is_float:
        y = y if point is None else g.add(y, point)
        return convert_dtype(y, dtype, bool(node.integer("saturate", 1)))
    y = g.op("round", y)
    return saturated(y if point is None else g.add(y, point), dtype)


def _precision(node: Node, x: Expr, scale: Expr) -> DType:
    """The type of the division: `precision`, else the scale's (the data's up to version 19: they are equal)."""
    if node.integer("precision"):
        return dtype_of_elem(node.integer("precision"), "the precision")
    dtype = g.dtype(scale)
    return dtype if dtype.is_float and dtype.bits >= 16 else g.dtype(x) if g.dtype(x).is_float else DType("float32")


def _quantized_dtype(node: Node, zero: Expr | None) -> DType:
    if zero is not None:
        return g.dtype(zero)
    code = node.integer("output_dtype")
    return dtype_of_elem(code, "the output of QuantizeLinear") if code else DType("uint8")


def _is_zero(x: Expr) -> bool:
    return isinstance(x, Constant) and not x.data.any()


def _dequantize(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axis, block = node.integer("axis", 1), node.integer("block_size")
    code = node.integer("output_dtype")
    dtype = dtype_of_elem(code, "the output of DequantizeLinear") if code else g.dtype(scale)
    if zero is None or _is_zero(zero):
        y = g.cast(x, dtype)
    else:
        work = "int32" if g.dtype(x).is_integer else str(dtype)
        y = g.cast(g.sub(g.cast(x, work), g.cast(_spread(zero, x, axis, block), work)), dtype)
    return g.mul(y, g.cast(_spread(scale, x, axis, block), dtype))


def _dynamic_quantize(node: Node) -> list[Expr | None]:
    """Scale and zero point from the range of the data, which always includes 0.

    Where all data is 0 every scale would do; it is 1, as in ONNX Runtime, rather than 0, which nothing can be
    divided by.
    """
    x = node.input(0)
    axes = range(g.rank(x))
    low = g.minimum(g.reduce("min", x, axes, False), 0.0)
    high = g.maximum(g.reduce("max", x, axes, False), 0.0)
    extent = g.sub(high, low)
    scale = g.where(g.binary("equal", extent, 0.0), g.constant(1.0, "float32"), g.div(extent, 255.0))
    zero = saturated(g.op("round", g.div(g.op("negative", low), scale)), DType("uint8"))
    y = g.add(g.op("round", g.div(x, scale)), g.cast(zero, "float32"))
    return [saturated(y, DType("uint8")), scale, zero]


def _requantized(sums: Expr, factor: Expr, zero: Expr) -> Expr:
    """int32 sums times a factor, rounded, around a zero point, saturated to its type."""
    y = g.add(g.op("round", g.mul(g.cast(sums, "float32"), factor)), g.cast(zero, "float32"))
    return saturated(y, g.dtype(zero))


def _along(v: Expr, axis: int, rank: int) -> Expr:
    """One value, or one per element of an axis."""
    if g.rank(v) == 0 or g.dims(v) == (1,):
        return g.reshape(v, ())
    return g.reshape(v, [-1 if k == axis else 1 for k in range(rank)]) if g.rank(v) == 1 else v


def _qlinear_conv(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(k) for k in range(8))
    sums = convolve(node, centred(x, x_zero, 1), centred(w, w_zero, 0), "int32")
    bias = node.optional(8)
    rank = g.rank(x)
    if bias is not None:
        sums = g.add(sums, _along(bias, 1, rank))
    factor = g.div(g.mul(g.reshape(x_scale, ()), _along(w_scale, 1, rank)), g.reshape(y_scale, ()))
    return _requantized(sums, factor, g.reshape(y_zero, ()))


def _qlinear_matmul(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(k) for k in range(8))
    rank = max(g.rank(a), g.rank(b))
    sums = matmul(centred(a, a_zero, g.rank(a) - 2), centred(b, b_zero, g.rank(b) - 1))
    scales = g.mul(
        _along(g.cast(a_scale, "float32"), rank - 2, rank), _along(g.cast(b_scale, "float32"), rank - 1, rank)
    )
    factor = g.div(scales, _along(g.cast(y_scale, "float32"), rank - 2, rank))
    return _requantized(sums, factor, _along(y_zero, rank - 2, rank))


OPS: Table = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
