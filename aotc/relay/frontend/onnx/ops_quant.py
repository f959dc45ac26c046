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
from aotc.relay.frontend.onnx.build import (
    add,
    axis_index,
    binary,
    broadcast_to,
    cast,
    constant,
    dims_of,
    div,
    dtype_of,
    emit,
    maximum,
    minimum,
    mul,
    rank_of,
    reduce,
    reshape,
    shape_of,
    slice_axes,
    sub,
    where,
)
from aotc.relay.frontend.onnx.load import dtype_of_elem
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.onnx.ops_conv import centred, convolve
from aotc.relay.frontend.onnx.ops_elementwise import convert_dtype
from aotc.relay.frontend.onnx.ops_matmul import matmul


def _spread(v: Expr, x: Expr, axis: int, block: int) -> Expr:
    """A scale or zero point brought to a shape that broadcasts with `x`: one value, one per axis, or blocks."""
    rank = rank_of(v)
    if rank == 0 or dims_of(v) == (1,):
        return reshape(v, ())
    if rank == 1 and not block:
        place = axis_index(axis, rank_of(x))
        return reshape(v, [-1 if k == place else 1 for k in range(rank_of(x))])
    return _blocks(v, shape_of(x), axis_index(axis, rank), block)


def _blocks(v: Expr, shape: Sequence[int], axis: int, block: int) -> Expr:
    """Each value along `axis` repeated `block` times, cut to the length of the data."""
    small = shape_of(v)
    if len(small) != len(shape) or block < 1 or small[axis] * block < shape[axis]:
        raise AotcError("onnx-quant", f"a scale of shape {small} in blocks of {block} does not fit {tuple(shape)}")
    wide = broadcast_to(
        reshape(v, (*small[: axis + 1], 1, *small[axis + 1 :])), (*small[: axis + 1], block, *small[axis + 1 :])
    )
    y = reshape(wide, (*small[:axis], small[axis] * block, *small[axis + 1 :]))
    return y if small[axis] * block == shape[axis] else slice_axes(y, [0], [shape[axis]], [axis])


def saturated(y: Expr, dtype: DType) -> Expr:
    """Rounded values clipped to the range of an integer type and converted."""
    return cast(emit("clip", y, a_min=float(dtype.min), a_max=float(dtype.max)), dtype)


def _quantize(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axis, block = node.integer("axis", 1), node.integer("block_size")
    dtype = _quantized_dtype(node, zero)
    work = _precision(node, x, scale)
    y = div(cast(x, work), cast(_spread(scale, x, axis, block), work))
    point = None if zero is None or _is_zero(zero) else cast(_spread(zero, x, axis, block), work)
    if dtype.is_float:
        y = y if point is None else add(y, point)
        return convert_dtype(y, dtype, bool(node.integer("saturate", 1)))
    y = emit("round", y)
    return saturated(y if point is None else add(y, point), dtype)


def _precision(node: Node, x: Expr, scale: Expr) -> DType:
    """The type of the division: `precision`, else the scale's (the data's up to version 19: they are equal)."""
    if node.integer("precision"):
        return dtype_of_elem(node.integer("precision"), "the precision")
    dtype = dtype_of(scale)
    return dtype if dtype.is_float and dtype.bits >= 16 else dtype_of(x) if dtype_of(x).is_float else DType("float32")


def _quantized_dtype(node: Node, zero: Expr | None) -> DType:
    if zero is not None:
        return dtype_of(zero)
    code = node.integer("output_dtype")
    return dtype_of_elem(code, "the output of QuantizeLinear") if code else DType("uint8")


def _is_zero(x: Expr) -> bool:
    return isinstance(x, Constant) and not x.data.any()


def _dequantize(node: Node) -> Expr:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    axis, block = node.integer("axis", 1), node.integer("block_size")
    code = node.integer("output_dtype")
    dtype = dtype_of_elem(code, "the output of DequantizeLinear") if code else dtype_of(scale)
    if zero is None or _is_zero(zero):
        y = cast(x, dtype)
    else:
        work = "int32" if dtype_of(x).is_integer else str(dtype)
        y = cast(sub(cast(x, work), cast(_spread(zero, x, axis, block), work)), dtype)
    return mul(y, cast(_spread(scale, x, axis, block), dtype))


def _dynamic_quantize(node: Node) -> list[Expr | None]:
    """Scale and zero point from the range of the data, which always includes 0.

    Where all data is 0 every scale would do; it is 1, as in ONNX Runtime, rather than 0, which nothing can be
    divided by.
    """
    x = node.input(0)
    axes = range(rank_of(x))
    low = minimum(reduce("min", x, axes, False), 0.0)
    high = maximum(reduce("max", x, axes, False), 0.0)
    extent = sub(high, low)
    scale = where(binary("equal", extent, 0.0), constant(1.0, "float32"), div(extent, 255.0))
    zero = saturated(emit("round", div(emit("negative", low), scale)), DType("uint8"))
    y = add(emit("round", div(x, scale)), cast(zero, "float32"))
    return [saturated(y, DType("uint8")), scale, zero]


def _requantized(sums: Expr, factor: Expr, zero: Expr) -> Expr:
    """int32 sums times a factor, rounded, around a zero point, saturated to its type."""
    y = add(emit("round", mul(cast(sums, "float32"), factor)), cast(zero, "float32"))
    return saturated(y, dtype_of(zero))


def _along(v: Expr, axis: int, rank: int) -> Expr:
    """One value, or one per element of an axis."""
    if rank_of(v) == 0 or dims_of(v) == (1,):
        return reshape(v, ())
    return reshape(v, [-1 if k == axis else 1 for k in range(rank)]) if rank_of(v) == 1 else v


def _qlinear_conv(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(k) for k in range(8))
    sums = convolve(node, centred(x, x_zero, 1), centred(w, w_zero, 0), "int32")
    bias = node.optional(8)
    rank = rank_of(x)
    if bias is not None:
        sums = add(sums, _along(bias, 1, rank))
    factor = div(mul(reshape(x_scale, ()), _along(w_scale, 1, rank)), reshape(y_scale, ()))
    return _requantized(sums, factor, reshape(y_zero, ()))


def _qlinear_matmul(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(k) for k in range(8))
    rank = max(rank_of(a), rank_of(b))
    sums = matmul(centred(a, a_zero, rank_of(a) - 2), centred(b, b_zero, rank_of(b) - 1))
    scales = mul(_along(cast(a_scale, "float32"), rank - 2, rank), _along(cast(b_scale, "float32"), rank - 1, rank))
    factor = div(scales, _along(cast(y_scale, "float32"), rank - 2, rank))
    return _requantized(sums, factor, _along(y_zero, rank - 2, rank))


OPS: Table = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}
