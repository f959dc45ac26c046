# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic of TFLite interpreters: for each reference implementation, the functions whose
results match it bit for bit.

tflm     TFLite Micro: quotients of scales in double precision become 31-bit multipliers; products
         with them are rounded twice
litert   LiteRT with XNNPACK, for operators that XNNPACK supports: quotients in float32, products
         rounded once, half to even
builtin  LiteRT's own kernels, for operators that XNNPACK does not support
ruy      LiteRT's own fully connected and convolution layers: rounded twice, the second time half up

    rounding = ROUNDINGS["tflm"]
    rounding.requantize_sums(sums, rounding.scale_ratio(x, w, y), onto, axis=3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Array, DType, frozen, require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.op.qnn.fixed_point import fixed_point_factors_of_scales

#: Lower and upper bound of each activation that clips; None for no upper bound.
ACTIVATION_BOUNDS: Final[Mapping[str, tuple[float, float | None]]] = {
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_0_TO_1": (0.0, 1.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
_INT: Final = "int32"
_WIDE: Final = "int64"
#: Values of the attribute `rounding` of qnn.requantize: rounded twice, or once half to even.
_TWICE, _ONCE = "TFLITE", "FLOAT_EVEN"
#: A rounding that qnn.requantize does not have: rounded twice, the second time half up.
_TWICE_HALF_UP = "TWICE_UP"


def constant_value(x: Expr) -> Array:
    """Return the value of a scale or zero point, which is always a constant in TFLite models."""
    assert isinstance(x, Constant)
    return x.data


@frozen(eq=False)
class IntegerArithmetic:
    """The integer arithmetic of one TFLite interpreter.

    work      data type in which quotients of scales are computed
    products  rounding when int32 dot products are requantized: a value of the attribute `rounding` of
              qnn.requantize
    add       function for the sum (or, for the sign -1, the difference) of two tensors
    softmax   function for softmax along the last axis; its third argument is beta
    quantize  function that quantizes real numbers
    rescaled  function that requantizes integers to another scale
    curve     function for LOGISTIC or TANH of 8-bit integers
    """

    name: str
    work: Any
    products: str
    add: Callable[[QuantizedTensor, QuantizedTensor, OutputQuantization, int], Expr]
    softmax: Callable[[QuantizedTensor, OutputQuantization, float], Expr]
    quantize: Callable[[Expr, OutputQuantization], Expr]
    rescaled: Callable[[QuantizedTensor, OutputQuantization], Expr]
    curve: Callable[[str, QuantizedTensor, OutputQuantization], Expr]

    def litert_builtin_unless_supported(self, is_supported: bool) -> IntegerArithmetic:
        """Return this arithmetic, or the arithmetic of LiteRT's own kernels if this one is
        XNNPACK's and XNNPACK does not support the scales of the operator (`is_supported` is False).
        """
        return self if is_supported or self.name != "litert" else LITERT_BUILTIN

    def scale_ratio(self, x_scale: Expr, w_scale: Expr, output: OutputQuantization) -> Array:
        """Return the quotient of the product of two scales and the scale of a result."""
        a, b, c = (constant_value(v).astype(self.work) for v in (x_scale, w_scale, output.scale))
        return np.asarray(a * b / c)

    def product_of_layer_scales(self, x_scale: Expr, w_scale: Expr) -> Array:
        """Return the products of the scales of data and weights of a matrix product, as float64.

        LiteRT rounds them to float32, TFLite Micro does not.
        """
        a, b = constant_value(x_scale), constant_value(w_scale)
        if self.name == "tflm":
            return np.asarray(a.astype(np.float64) * b.astype(np.float64))
        return np.asarray((a * b).astype(np.float64))

    def dense_scale_ratio(self, x_scale: Expr, w_scale: Expr, output: OutputQuantization) -> Array:
        """Return the quotient of scales of a fully connected layer, with the product of two single
        scales by `product_of_layer_scales`.
        """
        if constant_value(w_scale).size > 1:
            return self.scale_ratio(x_scale, w_scale, output)
        product = self.product_of_layer_scales(x_scale, w_scale)
        return np.asarray(product.astype(self.work) / constant_value(output.scale).astype(self.work))

    def multiply_quantized(self, a: QuantizedTensor, b: QuantizedTensor, output: OutputQuantization) -> Expr:
        """Multiply two quantized tensors elementwise."""
        whole = g.mul(q.subtract_zero_point(a.data, a.zero, -1), q.subtract_zero_point(b.data, b.zero, -1))
        return self.requantize_sums(whole, self.scale_ratio(a.scale, b.scale, output), output)

    def requantized_mean(self, sums: Expr, x: QuantizedTensor, count: int, output: OutputQuantization) -> Expr:
        """Divide sums of `count` elements by `count` and requantize them.

        XNNPACK's arithmetic multiplies in float32 and adds the zero point before rounding. The
        other implementations divide the multiplier by `count`, which loses its last digits.
        """
        if self.products == _ONCE:
            ratio = constant_value(x.scale) / constant_value(output.scale) / np.float32(count)
            y = g.call_op("qnn.product", g.cast(sums, "float32"), g.constant(ratio))
            y = g.call_op("round", g.add(y, g.cast(output.zero, "float32")))
            return q.clip_and_cast(y, output.dtype)
        factors = fixed_point_factors_of_scales(constant_value(x.scale), constant_value(output.scale), "TFLITE")
        exponent = int(factors.left_shift) - int(factors.right_shift)
        shift = min(count.bit_length() - 1, 32, 31 + exponent)
        multiplier, exponent = (int(factors.multiplier) << shift) // count, exponent - shift
        y = g.mul(fx.cast_to_int64(sums), 1 << max(exponent, 0))
        last = max(-exponent, 0)
        y = fx.rounding_divide_by_power_of_two(fx.fixed_point_product(y, multiplier), last)
        y = g.add(y, fx.cast_to_int64(output.zero))
        return q.clip_and_cast(y, output.dtype)

    def requantize_sums(self, sums: Expr, ratio: Array, output: OutputQuantization, axis: int = -1) -> Expr:
        """Multiply integers by `ratio` (one number, or one number per element of `axis`) with the
        interpreter's rounding, and convert them to the quantization parameters `output`.
        """
        if self.products == _TWICE_HALF_UP:
            return _requantize_rounding_half_up(sums, ratio, output, axis)
        return _requantize_by_ratio(sums, ratio, output, self.products, axis)


def _requantize_rounding_half_up(sums: Expr, ratio: Array, output: OutputQuantization, axis: int) -> Expr:
    """Requantize with rounding after the product with a 31-bit multiplier, and half up after the
    final shift.
    """
    factors = fixed_point_factors_of_scales(ratio, np.float64(1), "TFLITE")
    along = partial(fx.int64_constant_along_axis, axis=axis, rank=g.rank(sums))
    left, last = (np.asarray(v, np.int64) for v in (factors.left_shift, factors.right_shift))
    multiplier = np.asarray(factors.multiplier, np.int64) << left
    y = fx.cast_to_int64(sums)
    if left.any():
        # values beyond this bound saturate in the result too, and their product would overflow
        most = along(((1 << 31) - 1) >> left)
        y = g.minimum(g.maximum(y, g.negative(most)), most)
    y = fx.shift_right(g.add(g.mul(y, along(multiplier)), 1 << 30), 31)
    half = (np.int64(1) << last) >> 1
    y = g.call_op("right_shift", g.add(y, along(half)), along(last))
    y = g.add(y, fx.cast_to_int64(output.zero))
    return q.clip_and_cast(y, output.dtype)


def requantize_rounding_twice(x: Expr, ratio: Any, output: OutputQuantization) -> Expr:
    """Multiply int32 by a double-precision number (or one per column) as a 31-bit multiplier,
    rounded twice.
    """
    return _requantize_by_ratio(x, np.asarray(ratio, np.float64), output, _TWICE)


def _requantize_by_ratio(x: Expr, ratio: Any, output: OutputQuantization, rounding: str, axis: int = -1) -> Expr:
    unit_scale, zero = g.constant(1.0, "float32"), g.constant(0, _INT)
    how = {"rounding": rounding, "out_dtype": output.dtype, "axis": axis}
    return g.call_op("qnn.requantize", x, g.constant(ratio), zero, unit_scale, output.zero, **how)


def unit_quantization(dtype: str = _INT) -> OutputQuantization:
    """Return quantization parameters of scale 1 and zero point 0."""
    return OutputQuantization(g.constant(1.0, "float32"), g.constant(0, _INT), DType(dtype))


# --- addition


def _add_by_left_shift(
    a: QuantizedTensor, b: QuantizedTensor, output: OutputQuantization, sign: int, round_once: bool = False
) -> Expr:
    """Add two quantized tensors as TFLite's reference kernel does: shift both left by 20 bits (15
    for int16), scale them to twice the larger scale, add, and requantize.

    round_once    the exponent of each scale factor is part of the shift before the product, which is then
                  rounded once
    """
    bits = 20 if output.dtype.bits == 8 else 15
    twice = 2 * np.float64(max(constant_value(a.scale), constant_value(b.scale)))
    shifted = []
    for v in (a, b):
        ratio = np.float64(constant_value(v.scale)) / twice
        ratio, exponent = np.frexp(ratio) if round_once else (ratio, 0)
        places = bits + int(exponent)
        name = "left_shift" if places >= 0 else "right_shift"
        x = g.call_op(name, q.subtract_zero_point(v.data, v.zero, -1), g.constant(abs(places), _INT))
        shifted.append(_requantize_by_ratio(x, ratio, unit_quantization(), _TWICE))
    total = g.call_op("add" if sign > 0 else "subtract", *shifted)
    ratio = twice / ((1 << bits) * np.float64(constant_value(output.scale)))
    return _requantize_by_ratio(total, ratio, output, _TWICE)


def _add_as_litert_builtin(a: QuantizedTensor, b: QuantizedTensor, output: OutputQuantization, sign: int) -> Expr:
    """Add two quantized tensors as LiteRT's own kernel does: int16 by shifts if all scales are
    powers of two, otherwise int16 sums in blocks of 16 elements; 8-bit tensors and other int16
    differences as the reference kernel does.
    """
    scales = [constant_value(v.scale) for v in (a, b, output)]
    if output.dtype.bits == 8:
        return _add_by_left_shift(a, b, output, sign)
    if any((np.frexp(scale)[0] != 0.5).any() for scale in scales):
        return _add_int16_in_blocks(a, b, output) if sign > 0 else _add_by_left_shift(a, b, output, sign)
    bits = [int(np.log2(scales[2] / s)) for s in scales[:2]]
    text = "LiteRT requires one of the two input scales to equal the output scale"
    require("tflite-quant", min(bits) == 0, text)
    x, y = (fx.rounding_divide_by_power_of_two(fx.cast_to_int64(v.data), k) for v, k in zip((a, b), bits, strict=True))
    total = g.call_op("add" if sign > 0 else "subtract", x, y)
    return q.clip_and_cast(total, output.dtype)


def _add_int16_in_blocks(a: QuantizedTensor, b: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Add int16 tensors of one shape (apart from leading axes of extent 1) as LiteRT's vectorized
    kernel does: in blocks of 16 elements each product is rounded once, with the exponent of its
    factor in the shift before it; in the remaining elements it is rounded twice.
    """
    longer = max(a.data, b.data, key=g.rank)
    shapes = [(1,) * (g.rank(longer) - g.rank(v.data)) + g.shape(v.data) for v in (a, b)]
    if shapes[0] != shapes[1]:
        return _add_by_left_shift(a, b, output, 1)
    count = math.prod(shapes[0])
    whole, parts = count - count % 16, list[Expr]()
    for begin, end in ((0, whole), (whole, count)):
        cut = (g.strided_slice(g.reshape(v.data, (-1,)), [begin], [end], [0]) for v in (a, b))
        x, y = (replace(v, data=data) for v, data in zip((a, b), cut, strict=True))
        parts += [_add_by_left_shift(x, y, output, 1, round_once=end == whole)] if end > begin else []
    return g.reshape(g.concat(parts, 0), shapes[0]) if parts else _add_by_left_shift(a, b, output, 1)


def _add_as_xnnpack(a: QuantizedTensor, b: QuantizedTensor, output: OutputQuantization, sign: int) -> Expr:
    """Add two 8-bit quantized tensors as XNNPACK does: multiply both by 21-bit integers, add, and
    shift right with rounding half up; other types as the reference kernel does.
    """
    if output.dtype.bits != 8:
        return _add_by_left_shift(a, b, output, sign)
    ratios = [constant_value(v.scale) / constant_value(output.scale) for v in (a, b)]
    shift = 20 - (int(np.frexp(max(ratios))[1]) - 1)
    factors = [int(np.rint(np.ldexp(r, shift))) for r in ratios]
    factors[1] *= sign
    parts = [g.mul(q.subtract_zero_point(v.data, v.zero, -1), f) for v, f in zip((a, b), factors, strict=True)]
    total = g.add(g.add(*parts), 1 << (shift - 1))
    y = g.add(g.call_op("right_shift", total, g.constant(shift, _INT)), output.zero)
    return q.clip_and_cast(y, output.dtype)


# --- softmax


@frozen(eq=False)
class FixedPointExponentials:
    """Exponentials of the 256 distances from an element to the maximum of its row, in fixed point;
    index 255 is the distance 0.

    scaled_steps    the distances (int64) times the scale of the input, with 26 fractional bits
    exponentials    int64, with 31 fractional bits; 0 for distances beyond `radius`
    multiplier, left_shift   multiplier with 31 fractional bits, and the shift before the product
    radius          greatest distance, in steps of the input, that has an exponential
    """

    scaled_steps: Expr
    exponentials: Expr
    multiplier: int
    left_shift: int
    radius: int


def exp_table_in_fixed_point(scale: Expr, beta: float) -> FixedPointExponentials:
    """Return the exponentials of TFLite Micro's 8-bit softmax for an input scale times `beta`."""
    ratio = min(float(constant_value(scale)) * beta * (1 << 26), float((1 << 31) - 1))
    factors = fixed_point_factors_of_scales(np.float64(ratio), np.float64(1), "TFLITE")
    multiplier, left = int(factors.multiplier), int(factors.left_shift)
    radius = int(np.floor(31 * (1 << 26) / 2.0**left))
    steps = g.constant(np.arange(256, dtype=np.int64) - 255)
    scaled = fx.fixed_point_product(g.mul(steps, 1 << left), multiplier)
    e = g.where(g.less(steps, -radius), 0, fx.fixed_point_exp_of_negative(scaled, 5))
    return FixedPointExponentials(scaled, e, multiplier, left, radius)


def sum_rounded_table_entries(exponentials: Expr, indices: Expr) -> Expr:
    """Sum the indexed exponentials along the last axis, each rounded to 19 fractional bits; the
    result is int64.
    """
    terms = gather_from_table(g.cast(fx.rounding_divide_by_power_of_two(exponentials, 12), _INT), indices)
    return fx.cast_to_int64(g.call_reduction("sum", terms, [g.rank(indices) - 1], True))


def _softmax_in_fixed_point(x: QuantizedTensor, output: OutputQuantization, beta: float) -> Expr:
    """Compute softmax as TFLite Micro does: exponentials in fixed point with 31 fractional bits,
    their sum with 19, and its reciprocal by Newton's method.
    """
    e = exp_table_in_fixed_point(x.scale, beta).exponentials
    place = exp_table_index_from_row_maximum(x)
    scale, zeros = fx.fixed_point_reciprocal_and_leading_zeros(sum_rounded_table_entries(e, place))
    bits = output.dtype.bits
    exponent = g.sub(g.constant(12 + 31 - bits, _WIDE), zeros)
    y = fx.rounding_divide_by_power_of_two(fx.fixed_point_product(gather_from_table(e, place), scale), exponent)
    y = g.add(y, int(output.dtype.min))
    return q.clip_and_cast(y, output.dtype)


def exp_table_index_from_row_maximum(x: QuantizedTensor) -> Expr:
    """Return 255 minus the distance to the greatest element along the last axis: an index into a
    table of exponentials.
    """
    data = g.cast(x.data, _INT)
    top = g.call_reduction("max", data, [g.rank(data) - 1], True)
    return g.add(g.sub(data, top), 255)


def gather_from_table(table: Expr, indices: Expr) -> Expr:
    """Return the elements of a one-dimensional table at `indices`."""
    return g.call_op("take", table, indices, axis=0, mode="clip")


def exp_table_in_float(scale: Expr, beta: float) -> Array:
    """Return float32 exponentials of the 256 distances from an element to the maximum of its row,
    times `beta` and the scale; index 255 is the distance 0.
    """
    factor = np.float32(-constant_value(scale) * np.float32(beta))
    steps = np.arange(255, -1, -1, dtype=np.float32)
    return np.asarray(np.exp((factor * steps).astype(np.float64)).astype(np.float32))


def sum_last_axis_sequentially(terms: Expr) -> Expr:
    """Sum along the last axis in the order of the elements; the axis remains, with extent 1."""
    last = g.rank(terms) - 1
    count = g.dim(terms, last)
    return g.strided_slice(g.call_op("cumsum", terms, axis=last), [count - 1], [count], [last])


def _softmax_by_float_table(x: QuantizedTensor, output: OutputQuantization, beta: float) -> Expr:
    """Compute softmax as LiteRT does: float32 exponentials from a table, summed in order."""
    e = g.constant(exp_table_in_float(x.scale, beta))
    terms = gather_from_table(e, exp_table_index_from_row_maximum(x))
    inverse = g.div(1.0, g.mul(sum_last_axis_sequentially(terms), float(constant_value(output.scale))))
    y = g.call_op("qnn.product", terms, inverse)
    whole = g.call_op("floor", y)
    up = g.cast(g.greater_equal(g.sub(y, whole), g.constant(0.5, "float32")), _INT)
    y = g.add(g.add(g.cast(whole, _INT), up), output.zero)
    return q.clip_and_cast(y, output.dtype)


# --- quantization of real numbers


def round_half_away_from_zero(x: Expr) -> Expr:
    """Round real numbers to integers, half away from zero."""
    size, dtype = g.absolute(x), g.dtype(x)
    whole = g.call_op("floor", size)
    up = g.greater_equal(g.sub(size, whole), g.constant(0.5, dtype))
    size = g.add(whole, g.cast(up, dtype))
    return g.where(g.less(x, 0.0), g.negative(size), size)


def _quantize_half_away_from_zero(x: Expr, output: OutputQuantization) -> Expr:
    """Quantize real numbers: divide by the scale and round half away from zero."""
    y = round_half_away_from_zero(g.div(x, float(constant_value(output.scale))))
    low, high = int(output.dtype.min), int(output.dtype.max)
    zero = int(constant_value(output.zero))
    return g.cast(g.add(g.cast(g.clip(y, low - zero, high - zero), _INT), zero), output.dtype)


def _quantize_half_to_even(x: Expr, output: OutputQuantization) -> Expr:
    """Quantize real numbers: multiply by the inverse of the scale and round half to even."""
    y = g.call_op("qnn.product", x, g.constant(np.float32(1) / constant_value(output.scale)))
    return q.clip_and_cast(g.add(g.call_op("round", y), g.cast(output.zero, "float32")), output.dtype)


# --- requantization to another scale


def rescale_rounding_twice(x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Requantize by a 31-bit multiplier, rounded twice."""
    ratio = np.float64(constant_value(x.scale)) / np.float64(constant_value(output.scale))
    return _requantize_by_ratio(q.subtract_zero_point(x.data, x.zero, -1), ratio, output, _TWICE)


def _rescale_as_xnnpack(x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Requantize as XNNPACK does: for 8-bit integers of one type whose quotient of scales is from
    2^-8 to 2^7 by a multiplier with 8 fractional bits, rounded half up; between different 8-bit
    types rounded twice, the second time half up; otherwise rounded twice.
    """
    source, ratio = g.dtype(x.data), constant_value(x.scale) / constant_value(output.scale)
    whole = q.subtract_zero_point(x.data, x.zero, -1)
    if source != output.dtype and source.bits == output.dtype.bits == 8:
        ratio = np.float64(constant_value(x.scale)) / np.float64(constant_value(output.scale))
        return _requantize_rounding_half_up(whole, ratio, output, -1)
    if source != output.dtype or source.bits != 8 or not 2.0**-8 <= ratio <= 2.0**7:
        return rescale_rounding_twice(x, output)
    factor = int(np.rint(ratio * np.float32(256)))
    whole = g.add(g.mul(whole, factor), 128)
    y = g.add(g.call_op("right_shift", whole, g.constant(8, _INT)), output.zero)
    return q.clip_and_cast(y, output.dtype)


# --- LOGISTIC and TANH


def all_8bit_values_minus_zero_point(x: QuantizedTensor) -> Expr:
    """Return a constant of all 256 values of an 8-bit type in the order of their bit patterns, with
    the zero point subtracted, as int64.
    """
    bits = np.arange(256).astype(np.uint8).view(g.dtype(x.data).numpy)
    return g.sub(g.constant(bits.astype(np.int64)), fx.cast_to_int64(x.zero))


def _logistic_or_tanh_in_fixed_point(name: str, x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Compute LOGISTIC or TANH as TFLite Micro does, in fixed point with 4 integer bits; inputs
    outside this range give the smallest or largest value. The result is a lookup in a table of 256
    values.
    """
    steps = all_8bit_values_minus_zero_point(x)
    factors = fixed_point_factors_of_scales(np.float64(constant_value(x.scale)) * (1 << 27), np.float64(1), "TFLITE")
    radius = int(np.floor(15 * (1 << 27) / 2.0 ** int(factors.left_shift)))
    scaled = fx.fixed_point_product(g.mul(steps, 1 << int(factors.left_shift)), int(factors.multiplier))
    scaled = fx.rounding_divide_by_power_of_two(scaled, int(factors.right_shift))
    curve, bits = {"LOGISTIC": (fx.fixed_point_logistic, 23), "TANH": (fx.fixed_point_tanh, 24)}[name]
    low, high = int(output.dtype.min), int(output.dtype.max)
    whole = name == "TANH" or constant_value(output.zero) == low
    require("tflite-quant", bool(whole), f"the output of integer LOGISTIC must have the zero point {low}")
    y = g.add(
        fx.rounding_divide_by_power_of_two(curve(scaled, 4), bits), low if name == "LOGISTIC" else (low + high + 1) // 2
    )
    y = g.clip(y, low, high)
    y = g.where(g.greater(steps, radius - 1), high, g.where(g.less(steps, 1 - radius), low, y))
    return q.lookup_in_256_table(g.cast(y, output.dtype), x.data)


def _logistic_or_tanh_in_float(name: str, x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Compute LOGISTIC or TANH as LiteRT does, in floating point and rounded half to even. The
    result is a lookup in a table of 256 values.
    """
    real = np.float32(constant_value(x.scale)) * constant_value(all_8bit_values_minus_zero_point(x)).astype(np.float32)
    exact = 1 / (1 + np.exp(-real.astype(np.float64))) if name == "LOGISTIC" else np.tanh(real.astype(np.float64))
    inverse = np.float32(1) / constant_value(output.scale)
    y = np.rint(exact.astype(np.float32) * inverse) + constant_value(output.zero)
    table = np.clip(y, int(output.dtype.min), int(output.dtype.max)).astype(output.dtype.numpy)
    return q.lookup_in_256_table(g.constant(table), x.data)


ARITHMETIC_BY_ROUNDING: Final = {
    "tflm": IntegerArithmetic(
        "tflm",
        np.float64,
        _TWICE,
        _add_by_left_shift,
        _softmax_in_fixed_point,
        _quantize_half_away_from_zero,
        rescale_rounding_twice,
        _logistic_or_tanh_in_fixed_point,
    ),
    "litert": IntegerArithmetic(
        "litert",
        np.float32,
        _ONCE,
        _add_as_xnnpack,
        _softmax_by_float_table,
        _quantize_half_to_even,
        _rescale_as_xnnpack,
        _logistic_or_tanh_in_float,
    ),
}
#: Arithmetic of LiteRT's own kernels.
LITERT_BUILTIN: Final = IntegerArithmetic(
    "builtin",
    np.float64,
    _TWICE,
    _add_as_litert_builtin,
    _softmax_by_float_table,
    _quantize_half_to_even,
    rescale_rounding_twice,
    _logistic_or_tanh_in_float,
)
#: Arithmetic of LiteRT's own elementwise products of 16-bit integers.
LITERT_INT16_PRODUCTS: Final = replace(LITERT_BUILTIN, work=np.float32)
#: Arithmetic of LiteRT's own 8-bit layers.
LITERT_RUY: Final = replace(LITERT_BUILTIN, name="ruy", products=_TWICE_HALF_UP)
