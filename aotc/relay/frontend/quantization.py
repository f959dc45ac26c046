# SPDX-License-Identifier: Apache-2.0
"""Graph builders for quantized tensors with the operators `qnn.*`, where real = scale * (stored -
zero point).

Input: tensors with scales and zero points, which are tensors too: one value, one value per element
of an axis, or one value per block of elements. Output: expressions.

    quantize(x, scale, zero, DType("uint8"), work=DType("float32"))     # qnn.quantize
    dequantize(q, scale, zero, DType("float32"))                        # qnn.dequantize, of a constant too

A quantized product is an integer product that is requantized to the scale of the result:

    x, w = QuantizedTensor(x, x_scale, x_zero), QuantizedTensor(w, w_scales, w_zero)
    terms = qnn_zero_points_and_scales(x, w)
    sums = conv_pool.build_convolution(x.data, w.data, window, bias, zero_points_and_scales=terms)
    requantize(sums, product_scale(x, w), OutputQuantization(y_scale, y_zero, DType("int8")), axis=1)

Every elementwise function of an 8-bit tensor becomes a lookup table:

    apply_by_lookup_table(x, onto, g.sigmoid)  # take(table of 256 elements, x)

Parameters that the `qnn.*` operators do not support, which are scales per block and 8-bit
floating-point types, are expanded into ordinary arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from aotc.ir import AotcError, DType, frozen, require
from aotc.ir.dimension_conditions import may_be_equal_dims
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.matmul_einsum import ProductBuilders, matmul
from aotc.relay.graph_api import Call, Constant, Expr, compile_time_elements
from aotc.relay.op.qnn.quant_params import check_scales_positive_if_constant

_SATURATING_DTYPES: Final = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_FLOAT: Final = DType("float32")
_INT: Final = DType("int32")
#: Largest number of bits of integers that passes keep as they are, as weights of products in floating point.
_MAX_BITS_OF_WEIGHTS: Final = 8


@frozen
class OutputQuantization:
    """The quantization parameters of a result: its scale, its zero point and its stored data type."""

    scale: Expr
    zero: Expr
    dtype: DType


@frozen
class QuantizedTensor:
    """A quantized tensor: its stored integers, its scale and its zero point."""

    data: Expr
    scale: Expr
    zero: Expr

    @property
    def dequantized_expr(self) -> Expr:
        """The dequantized real numbers, in the data type of the scale."""
        return dequantize(self.data, self.scale, self.zero, g.dtype(self.scale))


def is_single_element_quant_param(param: Expr) -> bool:
    """Return True if a scale or zero point is a single value."""
    return g.rank(param) == 0 or g.dims(param) == (1,)


def checked_scale_with_single_as_scalar(scale: Expr, subject: str = "a scale") -> Expr:
    """Return a scale, reshaped to rank 0 if it is a single value. Raises AotcError (code
    "qnn.scale") for a constant scale that is not positive and finite.
    """
    check_scales_positive_if_constant([(subject, scale)])
    return g.reshape(scale, ()) if is_single_element_quant_param(scale) else scale


def zero_point_as_int32(zero: OptionalExpr) -> Expr:
    """Return a zero point as int32, 0 if it is None; a single value is reshaped to rank 0."""
    if zero is None:
        return g.constant(0, _INT)
    return g.cast(g.reshape(zero, ()) if is_single_element_quant_param(zero) else zero, _INT)


def is_omitted_or_zero(x: OptionalExpr) -> bool:
    """Return True if a zero point is omitted or is a constant with all elements 0."""
    return x is None or (isinstance(x, Constant) and not x.data.any())


def is_quantize_call(x: Expr | None) -> bool:
    """Return True if an expression is a call of qnn.quantize."""
    return isinstance(x, Call) and getattr(x.op, "name", "") == "qnn.quantize"


def subtract_zero_point(x: Expr, zero: Expr, axis: int) -> Expr:
    """Cast a quantized tensor to int32 and subtract its zero point, which is one value or one value
    per element of `axis`.
    """
    wide = g.cast(x, _INT)
    return (
        wide if is_omitted_or_zero(zero) else g.sub(wide, reshape_param_to_broadcast_along_axis(zero, axis, g.rank(x)))
    )


def reshape_param_to_broadcast_along_axis(param: Expr, axis: int, rank: int) -> Expr:
    """Reshape a scale or zero point so that it broadcasts against a tensor of rank `rank`: a single
    value to rank 0, a vector along `axis`.
    """
    if is_single_element_quant_param(param):
        return g.reshape(param, ())
    return g.reshape_along_axis(param, axis, rank) if g.rank(param) == 1 else param


def _make_quant_param_broadcastable_to(param: Expr, x: Expr, axis: int = 1, block_size: int = 0) -> Expr:
    """Reshape or repeat a scale or zero point so that it broadcasts against `x`: a single value,
    one value per element of an axis, or one value per block of `block_size` elements.
    """
    if g.rank(param) == 0 or g.dims(param) == (1,):
        return g.reshape(param, ())
    if g.rank(param) == 1 and not block_size:
        return g.reshape_along_axis(param, g.normalize_axis(axis, g.rank(x)), g.rank(x))
    return _repeat_param_per_block(param, g.shape(x), g.normalize_axis(axis, g.rank(param)), block_size)


def _repeat_param_per_block(param: Expr, shape: Sequence[int], axis: int, block_size: int) -> Expr:
    """Repeat each value of `param` along `axis` `block_size` times and cut the result to the extent
    of the data. Raises AotcError (code "graph-quant") if the shape of `param` does not fit the
    blocks of `shape`.
    """
    small = g.shape(param)
    fits = block_size > 0 and len(small) == len(shape)
    if not fits or small != tuple(-(-n // block_size) if k == axis else n for k, n in enumerate(shape)):
        text = f"a scale of shape {small} in blocks of {block_size} along axis {axis} does not fit {tuple(shape)}"
        raise AotcError("graph-quant", text)
    head, tail = small[: axis + 1], small[axis + 1 :]
    wide = g.broadcast_to(g.reshape(param, (*head, 1, *tail)), (*head, block_size, *tail))
    y = g.reshape(wide, (*small[:axis], small[axis] * block_size, *tail))
    return y if small[axis] * block_size == shape[axis] else g.strided_slice(y, [0], [shape[axis]], [axis])


def int8_zero_point_from_range(low_steps: Expr, high_steps: Expr) -> Expr:
    """Compute the int8 zero point, as a float, from both ends of a real range divided by the scale:
    it is derived from the end with the smaller rounding error, which is the end nearer to 0, as in
    LiteRT.
    """
    nearer = g.greater(g.add(g.add(low_steps, -128.0), g.add(high_steps, 127.0)), 0.0)
    zero = g.where(nearer, g.sub(-128.0, low_steps), g.sub(127.0, high_steps))
    return g.call_op("round", g.clip(zero, -128.0, 127.0))


def clip_and_cast(y: Expr, dtype: DType) -> Expr:
    """Clip rounded values to the range of an integer type and cast them to it."""
    return g.cast(g.clip(y, float(dtype.min), float(dtype.max)), dtype)


def cast_with_float8_saturation(x: Expr, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Expr:
    """Cast `x` to `dtype`. For 8-bit floating-point types values out of range become the greatest
    finite value if `saturate` is True; for float4_e2m1fn always. `round_mode` ("up", "down" or
    "nearest") is that of float8_e8m0fnu.
    """
    source = g.dtype(x)
    if dtype == "float8_e8m0fnu" and source != dtype:
        return _round_to_power_of_two(g.cast(x, "float32"), saturate, round_mode)
    is_narrowed = dtype.is_float and dtype.bits <= 8 and source.is_float and source != dtype
    if is_narrowed and (dtype == "float4_e2m1fn" or (saturate and dtype in _SATURATING_DTYPES)):
        work = source if source.max >= dtype.max else DType("float32")
        x = g.clip(g.cast(x, work), float(dtype.min), float(dtype.max))
    return g.cast(x, dtype)


#: Fields of float32: bits of the fraction, and the greatest exponents of finite numbers and of all.
_FRACTION_BITS: Final = 23
_GREATEST_FINITE_EXPONENT: Final = 254
_SPECIAL_EXPONENT: Final = 255


def _round_to_power_of_two(x: Expr, saturate: bool, round_mode: str) -> Expr:
    """Cast float32 to float8_e8m0fnu, which has the exponent of float32, no sign and no fraction.

    The bits are those of ONNX's `to_float8e8m0`: the sign is ignored, infinities and NaN become NaN, and halves
    are rounded up by "nearest" unless they are subnormal. A number beyond the greatest power of two becomes that
    power if `saturate` is True, otherwise NaN.
    """
    known = ("up", "down", "nearest")
    require("graph-cast", round_mode in known, f"unknown round_mode {round_mode!r}; known: {', '.join(known)}")
    bits = g.call_op("reinterpret", x, dtype="int32")
    exponent = g.call_op("bitwise_and", g.call_op("right_shift", bits, g.constant(_FRACTION_BITS, "int32")),
                         g.constant(_SPECIAL_EXPONENT, "int32"))  # fmt: skip
    fraction = g.call_op("bitwise_and", bits, g.constant((1 << _FRACTION_BITS) - 1, "int32"))
    half = 1 << (_FRACTION_BITS - 1)
    if round_mode == "up":
        is_up = g.greater(fraction, 0)
    else:
        beyond_half = g.greater(fraction, half)
        at_half = g.logical_and(g.equal(fraction, half), g.greater(exponent, 0))
        is_up = g.logical_or(beyond_half, at_half)
    if round_mode != "down":
        last = _GREATEST_FINITE_EXPONENT if saturate else _SPECIAL_EXPONENT
        exponent = g.add(exponent, g.cast(g.logical_and(is_up, g.less(exponent, last)), "int32"))
    return g.call_op("reinterpret", g.cast(exponent, "uint8"), dtype="float8_e8m0fnu")


def quantize(
    x: Expr, scale: Expr, zero: OptionalExpr, dtype: DType, *, work: DType, saturate: bool = True, **places: int
) -> Expr:
    """Quantize `x`: divide by the scale, round half to even, add the zero point and convert to
    `dtype`; computed in the data type `work`.

    places   `axis` (1 by default), along which the scale has several values, and `block_size`, the
             number of elements that share a scale, 0 if each element of the axis has its own

    Raises AotcError if scale and zero point do not fit the data.
    """
    _check_param_shapes(x, scale, zero, **places)
    if dtype.is_integer and _is_supported_by_qnn(x, scale, **places):
        numbers = g.cast(checked_scale_with_single_as_scalar(scale), work), zero_point_as_int32(zero)
        return g.call_op(
            "qnn.quantize",
            g.cast(x, work),
            *numbers,
            out_dtype=dtype,
            axis=_normalize_axis_or_minus_one_if_invalid(x, **places),
        )
    if g.dtype(scale).is_float:
        check_scales_positive_if_constant([("a scale", scale)])
    y = g.div(g.cast(x, work), g.cast(_make_quant_param_broadcastable_to(scale, x, **places), work))
    y = y if dtype.is_float else g.call_op("round", y)
    if zero is not None and not is_omitted_or_zero(zero):
        y = g.add(y, g.cast(_make_quant_param_broadcastable_to(zero, x, **places), work))
    return cast_with_float8_saturation(y, dtype, saturate) if dtype.is_float else clip_and_cast(y, dtype)


def dequantize(x: Expr, scale: Expr, zero: OptionalExpr, dtype: DType, **places: int) -> Expr:
    """Dequantize `x` to real numbers of the data type `dtype`; `places` as in `quantize`."""
    _check_param_shapes(x, scale, zero, **places)
    if g.dtype(x).is_integer and _is_supported_by_qnn(x, scale, **places):
        axis = _normalize_axis_or_minus_one_if_invalid(x, **places)
        return g.call_op_unfolded(
            "qnn.dequantize",
            x,
            checked_scale_with_single_as_scalar(scale),
            zero_point_as_int32(zero),
            out_dtype=dtype,
            axis=axis,
        )
    require_finite_scales_if_constant(scale)
    zero = None if is_omitted_or_zero(zero) else zero
    scales = g.cast(_make_quant_param_broadcastable_to(scale, x, **places), dtype)
    zeros = None if zero is None else _make_quant_param_broadcastable_to(zero, x, **places)
    if g.dtype(x).is_integer and g.dtype(x).bits <= _MAX_BITS_OF_WEIGHTS and dtype.bits > _MAX_BITS_OF_WEIGHTS:
        return _scaled_differences(x, scales, None if zeros is None else g.cast(zeros, dtype))
    if zeros is None:
        return g.mul(g.cast(x, dtype), scales)
    work = "int32" if g.dtype(x).is_integer else str(dtype)
    return g.mul(g.cast(g.sub(g.cast(x, work), g.cast(zeros, work)), dtype), scales)


def _scaled_differences(x: Expr, scales: Expr, zeros: OptionalExpr) -> Expr:
    """Return (x - zeros) * scales in the data type of the scales, in which differences of integers of up to 8 bits are
    exact.

    Nothing is folded: later passes keep the constant integers of this expression in few bits.
    """
    y: Expr = g.call_op_unfolded("cast", x, dtype=str(g.dtype(scales)))
    if zeros is not None:
        y = g.call_op_unfolded("subtract", y, zeros)
    return g.call_op_unfolded("multiply", y, scales)


def _is_supported_by_qnn(x: Expr, scale: Expr, axis: int = 1, block_size: int = 0) -> bool:
    """Return True if a floating-point scale is a single value or has one value per element of an
    axis, so that the `qnn.*` operators support it.
    """
    return g.dtype(scale).is_float and (is_single_element_quant_param(scale) or (g.rank(scale) == 1 and not block_size))


def _normalize_axis_or_minus_one_if_invalid(x: Expr, axis: int = 1, block_size: int = 0) -> int:
    """Return the axis of a scale counted from 0, or -1 if `axis` is out of range, which can only be
    for a single scale, where the axis has no meaning.
    """
    return g.normalize_axis(axis, g.rank(x)) if -g.rank(x) <= axis < g.rank(x) else -1


def _check_param_shapes(x: Expr, scale: Expr, zero: OptionalExpr, axis: int = 1, block_size: int = 0) -> None:
    """Raise AotcError unless `axis` is an axis of `x` (for several scales) and the zero points have
    the shape of the scales.
    """
    many = not is_single_element_quant_param(scale)
    if many:
        g.normalize_axis(axis, g.rank(x))
    if zero is None:
        return
    scale_dims, other = g.dims(scale), g.dims(zero)
    equal = (
        len(scale_dims) == len(other) and all(map(may_be_equal_dims, scale_dims, other))
        if many
        else is_single_element_quant_param(zero)
    )
    text = f"scales of shape {scale_dims} have zero points of shape {other}"
    require("graph-quant", equal, text)


def require_finite_scales_if_constant(scale: Expr) -> None:
    """Raise AotcError (code "qnn.scale") if the constant scales of blocks are not all finite.

    They may be 0 or negative: quantizers of weights choose 0 for blocks of zeros, and a negative
    scale to represent the greatest magnitude exactly.
    """
    value = compile_time_elements(scale)
    if value is not None and not np.isfinite(value.astype(np.float64)).all():
        raise AotcError("qnn.scale", "the scale of a block is not finite")


def dequantize_in_blocks(x: Expr, scales: Expr, zeros: Expr, axis: int, block_size: int) -> Expr:
    """Dequantize integers with a scale and a zero point per block of `block_size` elements along an
    axis.
    """
    require_finite_scales_if_constant(scales)
    shape = g.shape(x)
    scales, zeros = (_repeat_param_per_block(v, shape, axis, block_size) for v in (scales, zeros))
    return _scaled_differences(x, scales, zeros)


# --- sums of products


def qnn_zero_points_and_scales(x: QuantizedTensor, w: QuantizedTensor) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the arguments of qnn.conv2d and similar operators that follow data and weights: both
    zero points, then both scales.
    """
    return x.zero, w.zero, x.scale, w.scale


def quantized_matmul(a: QuantizedTensor, b: QuantizedTensor, dtype: str = "int32") -> Expr:
    """Multiply quantized integers with the rules of numpy.matmul, zero points subtracted. Zero
    points per row, or per column of a stack of matrices, are subtracted before the product, whose
    data type is then int32.
    """
    rows, columns = not is_single_element_quant_param(a.zero), not is_single_element_quant_param(b.zero)
    if rows or (columns and g.rank(b.data) != 2):
        return matmul(
            subtract_zero_point(a.data, a.zero, g.rank(a.data) - 2),
            subtract_zero_point(b.data, b.zero, g.rank(b.data) - 1),
        )
    unit_scale = g.constant(1.0, _FLOAT)
    scales = (v if is_single_element_quant_param(v) else unit_scale for v in (a.scale, b.scale))
    numbers = a.zero, b.zero, *scales

    def quantized_dense_product(x: Expr, y: Expr) -> Expr:
        return g.call_op("qnn.dense", x, g.transpose(y, (1, 0)), *numbers, units=None, out_dtype=dtype)

    def quantized_batch_product(x: Expr, y: Expr) -> Expr:
        return g.call_op("qnn.batch_matmul", x, g.transpose(y, (0, 2, 1)), *numbers, out_dtype=dtype)

    return matmul(a.data, b.data, ProductBuilders(quantized_dense_product, quantized_batch_product))


def product_scale(x: QuantizedTensor, w: QuantizedTensor) -> Expr:
    """Return the scale of the products of two quantized tensors: the product of their scales."""
    return g.mul(x.scale, w.scale)


def requantize(sums: Expr, scale: Expr, output: OutputQuantization, axis: int = -1) -> Expr:
    """Requantize int32 sums from `scale` (one value, or one value per element of `axis`) to the
    parameters `output`: multiply by the quotient of the scales in float32 and round half to even.
    """
    zero = g.constant(0, _INT)
    how = {"rounding": "FLOAT_EVEN", "out_dtype": output.dtype, "axis": axis}
    return g.call_op(
        "qnn.requantize", sums, checked_scale_with_single_as_scalar(scale), zero, output.scale, output.zero, **how
    )


def dequantize_sums(sums: Expr, scale: Expr) -> Expr:
    """Convert int32 sums to real numbers by multiplying with their scale (one value, or one value
    per element of the last axis); the product is rounded separately, not fused into a following
    addition.
    """
    rank = g.rank(sums)
    return g.call_op("qnn.product", g.cast(sums, _FLOAT), reshape_param_to_broadcast_along_axis(scale, rank - 1, rank))


def requantize_by_factor(sums: Expr, factor: Expr, zero: Expr, dtype: DType) -> Expr:
    """Requantize int32 sums by multiplying with a factor tensor in float32, rounding, and adding a
    zero point tensor, both of which may have a value per row and column; the result saturates to
    `dtype`.
    """
    y = g.call_op("round", g.mul(g.cast(sums, _FLOAT), factor))
    return clip_and_cast(g.add(y, g.cast(zero, _FLOAT)), dtype)


# --- lookup tables for 8-bit functions


def apply_by_lookup_table(x: QuantizedTensor, output: OutputQuantization, function: Callable[[Expr], Expr]) -> Expr:
    """Apply a function of real numbers to an 8-bit quantized tensor by a table of 256 results,
    computed in float64 and rounded once to the parameters `output`.
    """
    every = np.arange(256).astype(np.uint8).view(g.dtype(x.data).numpy)
    work = DType("float64")
    steps = g.cast(g.sub(g.constant(every.astype(np.int32)), x.zero), work)
    real = function(g.mul(steps, g.cast(x.scale, work)))
    table = quantize(real, output.scale, output.zero, output.dtype, work=work)
    return lookup_in_256_table(table, x.data)


def lookup_in_256_table(table: Expr, x: Expr) -> Expr:
    """Look up the elements of a table of 256 entries by 8-bit integers, reinterpreted as unsigned."""
    return g.call_op("take", table, g.cast(g.cast(x, "uint8"), _INT), axis=0, mode="clip")


# --- quantization parameters computed at run time


def quant_params_from_data_range(x: Expr, dtype: DType) -> tuple[Expr, Expr]:
    """Compute the scale and zero point of an unsigned type from the range of the data at run time,
    extended to include 0.

    If all data is 0, every scale is valid; the scale is 1, as in ONNX Runtime, to avoid a division
    by 0.
    """
    axes = range(g.rank(x))
    low = g.minimum(g.call_reduction("min", x, axes, False), 0.0)
    high = g.maximum(g.call_reduction("max", x, axes, False), 0.0)
    extent = g.sub(high, low)
    steps = float(dtype.max - dtype.min)
    scale = g.where(g.equal(extent, 0.0), g.constant(1.0, "float32"), g.div(extent, steps))
    return scale, clip_and_cast(g.call_op("round", g.div(g.negative(low), scale)), dtype)
