# SPDX-License-Identifier: Apache-2.0
"""Integer forms of elementwise functions, comparisons, division, sums and L2 normalization, as
TFLite Micro and LiteRT compute them.

Input: an operator with its inputs. Output: integers of its output tensor.

    apply_real_function_by_table("EXP", node)  # a table of 256 elements, or 512 straight lines for 16 bits
    quantized_l2_normalization(node)

Source: TFLite's reference kernels (Apache-2.0), reimplemented. Where they convert a float beyond
the range of int32, which is undefined in C, results saturate here.
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite import int16x8
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    all_8bit_values_minus_zero_point,
    constant_value,
    requantize_rounding_twice,
    round_half_away_from_zero,
    unit_quantization,
)
from aotc.relay.frontend.tflite.node import TfliteNode
from aotc.relay.graph_api import Expr
from aotc.relay.op.qnn.fixed_point import fixed_point_factors_of_scales

_INT: Final = "int32"
_WIDE: Final = "int64"
_ONE: Final = np.float32(1)
#: A number beyond the range of all 16-bit results.
_BEYOND_INT16: Final = float(1 << 20)
#: A function of float32 arrays; it also takes the scale and zero point of its results.
ArrayFunction = Callable[[Array, OutputQuantization], Array]


def _apply_in_double_precision(function: Callable[[float], float], x: Array) -> Array:
    """Apply a function to float32 numbers in double precision and round the result once to float32."""
    with np.errstate(over="ignore"):
        return np.reshape([function(float(v)) for v in x.reshape(-1)], x.shape).astype(np.float32)


def _exp_rounded_to_float32(x: Array, output: OutputQuantization) -> Array:
    return _apply_in_double_precision(lambda v: math.exp(v) if v < 700 else math.inf, x)


def _elu_rounded_to_float32(x: Array, output: OutputQuantization) -> Array:
    return _apply_in_double_precision(lambda v: math.expm1(v) if v < 0 else v, x)


def _log_or_output_minimum_if_not_positive(x: Array, output: OutputQuantization) -> Array:
    """Return log(x) for x > 0, and the least representable result for other x."""
    least = np.float32(int(output.dtype.min) - int(constant_value(output.zero))) * np.float32(
        constant_value(output.scale)
    )
    return np.asarray(np.where(x <= 0, least, _apply_in_double_precision(lambda v: math.log(v) if v > 0 else 0.0, x)))


def _rsqrt_or_output_maximum_if_nonpositive(x: Array, output: OutputQuantization) -> Array:
    """Return 1 / sqrt(x) for x > 0, and the greatest representable result for other x."""
    most = np.float32(int(output.dtype.max)) * np.float32(constant_value(output.scale))
    return np.asarray(np.where(x <= 0, most, _ONE / np.sqrt(np.where(x <= 0, _ONE, x))))


def _gelu_in_float32(x: Array, output: OutputQuantization) -> Array:
    inner = x * np.float32(-math.sqrt(0.5))
    return np.asarray(np.float32(0.5) * x * _apply_in_double_precision(math.erfc, inner))


def _gelu_by_tanh_in_float32(x: Array, output: OutputQuantization) -> Array:
    cube = np.float32(0.044715) * x * x * x
    inner = np.float32(2 / math.sqrt(math.pi) * math.sqrt(0.5)) * (x + cube)
    return np.asarray(np.float32(0.5) * x * (_ONE + _apply_in_double_precision(math.tanh, inner)))


_FUNCTIONS: Final[dict[str, ArrayFunction]] = {
    "ELU": _elu_rounded_to_float32,
    "EXP": _exp_rounded_to_float32,
    "GELU": _gelu_in_float32,
    "GELU_BY_TANH": _gelu_by_tanh_in_float32,
    "LOG": _log_or_output_minimum_if_not_positive,
    "RSQRT": _rsqrt_or_output_maximum_if_nonpositive,
}


def _round_half_away_from_zero(x: Array) -> Array:
    """Round to integers, half away from zero."""
    return np.asarray(np.trunc(x.astype(np.float64) + np.copysign(0.5, x)), np.float32)


def _clip_to_output_dtype(y: Array, output: OutputQuantization) -> Array:
    low, high = float(output.dtype.min), float(output.dtype.max)
    return np.clip(y, low, high).astype(output.dtype.numpy)


def apply_real_function_by_table(name: str, node: TfliteNode) -> Expr:
    """Apply the real function `name` (such as EXP or LOG) to a quantized input: by a table of 256
    results for 8 bits, by linear interpolation for 16 bits.
    """
    x, onto, function = node.per_tensor_quantized_input(0), node.output_quantization(), _FUNCTIONS[name]
    if node.has_int16_output:
        return g.cast(
            int16x8.interpolate_513_samples_at_int16(
                _corrected_int16_interpolation_samples(function, x, onto), g.cast(x.data, _INT)
            ),
            onto.dtype,
        )
    real = np.float32(constant_value(x.scale)) * constant_value(all_8bit_values_minus_zero_point(x)).astype(np.float32)
    y = _round_half_away_from_zero(function(real, onto) * (_ONE / np.float32(constant_value(onto.scale)))) + np.float32(
        constant_value(onto.zero)
    )
    return q.lookup_in_256_table(g.constant(_clip_to_output_dtype(y, onto)), x.data)


def _corrected_int16_interpolation_samples(
    function: ArrayFunction, x: QuantizedTensor, output: OutputQuantization
) -> Array:
    """Return 513 samples of a function for int16 interpolation, from the least to the greatest
    input. Each sample is corrected by half of the interpolation error in the middle between it and
    the next one.
    """
    scale, unit = np.float32(constant_value(x.scale)), np.float32(constant_value(output.scale))
    low, high = scale * np.float32(-32768), scale * np.float32(32767)
    step = (high - low) / np.float32(512)
    inverse = np.float32(65536) / (unit * np.float32(32767) - unit * np.float32(-32768))
    places = low + np.arange(513).astype(np.float32) * step
    with np.errstate(over="ignore", invalid="ignore"):
        values = function(places, output) * inverse
        middles = _round_half_away_from_zero(function(places[:-1] + step / np.float32(2), output) * inverse)
        whole = _round_half_away_from_zero(values)
        between = _round_half_away_from_zero((values[1:] + whole[:-1]) / np.float32(2))
        whole[:-1] -= _round_half_away_from_zero((between - middles) / np.float32(2))
        whole[-1] = _round_half_away_from_zero(function(np.array([high]), output) * inverse)[0]
    return np.asarray(np.clip(np.nan_to_num(whole, nan=32767.0), -32768, 32767), np.int32)


def quantized_abs(node: TfliteNode) -> Expr:
    """Compute ABS of quantized integers, requantized to the scale of the output."""
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    ratio = np.float32(constant_value(x.scale)) / np.float32(constant_value(onto.scale))
    return requantize_rounding_twice(g.absolute(q.subtract_zero_point(x.data, x.zero, -1)), np.float64(ratio), onto)


def quantized_negate(node: TfliteNode) -> Expr:
    """Negate quantized integers, which must have the zero point 0; the least integer, which has no
    negative counterpart, is unchanged.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    same = (
        q.is_omitted_or_zero(x.zero)
        and q.is_omitted_or_zero(onto.zero)
        and constant_value(x.scale) == constant_value(onto.scale)
    )
    text = "NEG of integers takes and gives one scale, and the zero point 0: the interpreters of TFLite know no other"
    require("tflite-quant", bool(same), text)
    return g.negative(x.data)


def quantized_sqrt(node: TfliteNode) -> Expr:
    """Compute SQRT of quantized integers, rounded down; negative numbers give the root of 0, where
    LiteRT refuses them.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    real = g.call_op("qnn.product", g.cast(q.subtract_zero_point(x.data, x.zero, -1), "float32"), x.scale)
    y = g.div(g.sqrt(g.maximum(real, 0.0)), onto.scale)
    return q.clip_and_cast(g.add(g.cast(g.minimum(y, _BEYOND_INT16), _INT), onto.zero), onto.dtype)


# --- inverse square roots


def _inverse_sqrt_multiplier_and_shift(x: Expr) -> tuple[Expr, Expr]:
    """Compute 1 / sqrt(x) for integers up to 2^29 (int64, last axis of extent 1) as multiplier /
    2^(31 + shift), by five steps of Newton's method.
    """
    pairs = g.sub(g.call_op("right_shift", g.sub(fx.leading_zeros_of_positive_int32(x), 1), g.constant(1, _WIDE)), 1)
    pairs = g.maximum(pairs, 0)
    # fixed-point numbers from 1/4 to 1 with 3 integer bits
    whole = g.call_op("left_shift", x, g.mul(pairs, 2))
    half = fx.rounding_divide_by_power_of_two(fx.shift_right(whole, 1), 1)
    y: Expr = g.constant(1 << 28, _WIDE)
    for _ in range(5):
        cube = fx.shift_left_saturated(fx.fixed_point_product(fx.fixed_point_product(y, y), y), 6)
        y = g.sub(fx.fixed_point_product(y, (1 << 28) + (1 << 27)), fx.fixed_point_product(half, cube))
        y = fx.shift_left_saturated(y, 3)
    y = fx.fixed_point_product(y, 1518500250)
    shift = g.sub(g.constant(11, _WIDE), pairs)
    y = g.call_op("left_shift", y, g.maximum(g.negative(shift), 0))
    few = g.less(x, 2)
    return g.where(few, (1 << 31) - 1, y), g.where(few, 0, g.maximum(shift, 0))


def _rounding_multiply_and_shift_right(x: Expr, multiplier: Expr, right_shift: Expr) -> Expr:
    """Return x * multiplier / 2^(31 + right_shift), rounded after the product and after the shift;
    a negative `right_shift` shifts left.
    """
    y = fx.fixed_point_product(g.call_op("left_shift", x, g.maximum(g.negative(right_shift), 0)), multiplier)
    return _rounding_divide_by_power_of_two(y, right_shift)


def _rounding_divide_by_power_of_two(y: Expr, right_shift: Expr) -> Expr:
    """Return y / 2^right, rounded half away from zero, where `right_shift` is positive, otherwise
    y.
    """
    return g.where(g.less(right_shift, 1), y, fx.rounding_divide_by_power_of_two(y, g.maximum(right_shift, 1)))


def quantized_rsqrt(node: TfliteNode) -> Expr:
    """Compute RSQRT, 1 / sqrt(x), of quantized integers, for 8 bits as a table; x <= 0 gives the
    greatest integer.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    if not node.has_int16_output:
        return q.lookup_in_256_table(_requantized_inverse_sqrt(all_8bit_values_minus_zero_point(x), x, onto), x.data)
    if node.rounding.name != "tflm":
        return apply_real_function_by_table("RSQRT", node)
    return _requantized_inverse_sqrt(fx.cast_to_int64(x.data), x, onto)


def _requantized_inverse_sqrt(centered_integers: Expr, x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Compute 1 / sqrt(x) for integers with their zero point subtracted, in fixed point."""
    centered_integers = g.unsqueeze(centered_integers, [g.rank(centered_integers)])
    multiplier, shift = _inverse_sqrt_multiplier_and_shift(g.maximum(centered_integers, 1))
    fine = _rounding_multiply_and_shift_right(g.constant(1, _WIDE), multiplier, g.sub(shift, 20))
    scale = np.sqrt(np.float32(constant_value(x.scale))) * np.float32(constant_value(output.scale))
    factors = fixed_point_factors_of_scales(1 / np.float64(scale), np.float64(1), "TFLITE")
    right = int(factors.right_shift) - int(factors.left_shift) + 20
    y = _rounding_multiply_and_shift_right(fine, g.constant(int(factors.multiplier), _WIDE), g.constant(right, _WIDE))
    y = g.where(g.less(centered_integers, 1), int(output.dtype.max), g.add(y, fx.cast_to_int64(output.zero)))
    return g.squeeze(q.clip_and_cast(y, output.dtype), [g.rank(centered_integers) - 1])


def quantized_l2_normalization(node: TfliteNode) -> Expr:
    """Compute L2_NORMALIZATION: divide the vectors along the last axis by their lengths; results
    have the scale 1/128.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    signed = onto.dtype == "int8"
    zero = 0 if signed else 128
    fits = constant_value(onto.scale) == 1 / 128 and int(constant_value(onto.zero)) == zero
    text = f"L2_NORMALIZATION of {onto.dtype} gives the scale 1/128 and the zero point {zero}"
    require("tflite-quant", bool(fits), text)
    steps = fx.cast_to_int64(q.subtract_zero_point(x.data, x.zero, -1))
    last = g.rank(steps) - 1
    count = g.dim(steps, last)
    require("tflite-quant", count <= 8192, f"L2_NORMALIZATION of {count} integers is not supported (8192 are)")
    multiplier, shift = _inverse_sqrt_multiplier_and_shift(g.call_reduction("sum", g.mul(steps, steps), [last], True))
    y = (
        _rounding_multiply_and_shift_right(steps, multiplier, g.sub(shift, 7))
        if signed
        else _rounding_multiply_and_shift_right(g.mul(steps, 128), multiplier, shift)
    )
    return q.clip_and_cast(g.add(y, zero), onto.dtype)


# --- binary operators


def compare_quantized(name: str, node: TfliteNode) -> Expr:
    """Compare quantized tensors: shift both left by 8 bits and multiply them by their scales. For
    int16, LiteRT's order comparisons compare the integers directly, which requires equal scales,
    and TFLite Micro has no order comparison.
    """
    x, y = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1)
    if node.input_declaration(0).dtype == "int16" and node.op.name not in ("EQUAL", "NOT_EQUAL"):
        same = constant_value(x.scale) == constant_value(y.scale) and node.rounding.name != "tflm"
        text = f"{node.op.name} of integers of 16 bits is not supported, but by LiteRT's rounding with one scale"
        require("tflite-quant", bool(same), text)
        return g.call_op(name, x.data, y.data)
    below = constant_value(x.scale) < 1 and constant_value(y.scale) < 1
    require("tflite-quant", bool(below), f"{node.op.name} of integers needs inputs with scales below 1")
    eight = g.constant(8, _INT)
    parts = (
        requantize_rounding_twice(
            g.call_op("left_shift", q.subtract_zero_point(v.data, v.zero, -1), eight),
            constant_value(v.scale),
            unit_quantization(),
        )
        for v in (x, y)
    )
    return g.call_op(name, *parts)


def _fixed_point_reciprocal_and_exponent(divisor: Expr) -> tuple[Expr, Expr]:
    """Return 1 / divisor for positive integers (int64) as multiplier / 2^(31 + exponent)."""
    last = g.rank(divisor)
    inverse, zeros = fx.fixed_point_reciprocal_and_leading_zeros(g.unsqueeze(divisor, [last]))
    return g.squeeze(inverse, [last]), g.squeeze(g.sub(g.constant(31, _WIDE), zeros), [last])


def _invert_bits_of_negative_numbers(x: Expr) -> Expr:
    """Return `x` where it is not negative, else `-x - 1`."""
    return g.where(g.less(x, 0), g.sub(g.negative(x), 1), x)


def _count_redundant_sign_bits(x: Expr) -> Expr:
    """Return the number of bits after the sign bit that are equal to it, for 32-bit integers (as
    int64).
    """
    last = g.rank(x)
    wide = g.unsqueeze(_invert_bits_of_negative_numbers(x), [last])
    return g.sub(g.squeeze(fx.leading_zeros_of_positive_int32(wide), [last]), 1)


def quantized_division(node: TfliteNode) -> Expr:
    """Compute the quotient x / y of quantized tensors, for 8 bits with a table of the reciprocals
    of all y. LiteRT refuses division by 0; here a divisor of 0 is replaced by 1.

    The reference kernels shift small quotients by more than 31 bits, which is undefined in C; here
    they become 0.
    """
    x, y, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    a, b = (fx.cast_to_int64(q.subtract_zero_point(v.data, v.zero, -1)) for v in (x, y))
    a, size = g.where(g.less(b, 0), g.negative(a), a), g.absolute(b)
    if node.has_int16_output:
        inverse, bits = _fixed_point_reciprocal_and_exponent(g.maximum(size, 1))
        headroom = _count_redundant_sign_bits(a)
    else:
        every = np.arange(512, dtype=np.int64)
        tables = _fixed_point_reciprocal_and_exponent(g.constant(np.maximum(every, 1)))
        inverse, bits = (g.call_op("take", v, g.cast(size, _INT), axis=0, mode="clip") for v in tables)
        place = g.cast(_invert_bits_of_negative_numbers(a), _INT)
        headroom = g.call_op("take", _count_redundant_sign_bits(g.constant(every)), place, axis=0, mode="clip")
    y0 = fx.fixed_point_product(g.call_op("left_shift", a, headroom), inverse)
    ratio = np.float32(constant_value(x.scale)) / (
        np.float32(constant_value(y.scale)) * np.float32(constant_value(onto.scale))
    )
    factors = fixed_point_factors_of_scales(np.float64(ratio), np.float64(1), "TFLITE")
    right = g.add(g.add(bits, headroom), int(factors.right_shift) - int(factors.left_shift))
    result = _rounding_divide_by_power_of_two(fx.fixed_point_product(y0, int(factors.multiplier)), right)
    return node.apply_fused_activation(q.clip_and_cast(g.add(result, fx.cast_to_int64(onto.zero)), onto.dtype))


def quantized_floor_div_or_mod(name: str, node: TfliteNode) -> Expr:
    """Compute FLOOR_DIV or FLOOR_MOD of quantized integers. LiteRT divides the integers and ignores
    their scales. The quotient is right if all zero points are 0, the inputs have equal scales, and
    the output has the scale 1 (FLOOR_DIV) or the scale of the inputs (FLOOR_MOD); AotcError (code
    "tflite-quant") is raised for other parameters. LiteRT refuses division by 0.
    """
    x, y, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    scales = [float(constant_value(v.scale)) for v in (x, y, onto)]
    zeros = [int(constant_value(v.zero)) for v in (x, y, onto)]
    modulo = node.op.name == "FLOOR_MOD"
    text = (
        f"{node.op.name} of integers has the scales {scales[0]:.9g} and {scales[1]:.9g}, the output scale "
        f"{scales[2]:.9g} and the zero points {zeros}; the scales of the inputs must be equal, the output scale must "
        f"be {'that of the inputs' if modulo else 1}, and the zero points must be 0"
    )
    fits = scales[0] == scales[1] and scales[2] == (scales[0] if modulo else 1.0) and not any(zeros)
    require("tflite-quant", fits, text, hint="leave the operator in float when converting the model")
    return g.call_op(name, x.data, y.data)


# --- products, sums and requantization


def quantized_product_over_axes(node: TfliteNode, axes: list[int], keep_dims: bool) -> Expr:
    """Multiply quantized integers over axes, as LiteRT does: after each factor the product is
    multiplied by 15 bits of the input scale over a root of the output scale, and rounded half up.
    Where the kernel's int32 would overflow, products saturate.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    shape = g.shape(x.data)
    rest = [k for k in range(len(shape)) if k not in axes]
    count = math.prod(shape[k] for k in axes)
    require("tflite-quant", onto.dtype != "uint8", "REDUCE_PROD of uint8 is not supported (int8 and int16 are)")
    require("tflite-quant", count > 0, "REDUCE_PROD over an empty set of integers is not supported")
    g.check_unroll_count(count, "REDUCE_PROD of quantized integers")
    scale = float(constant_value(x.scale)) / float(constant_value(onto.scale)) ** (1.0 / count)
    factors = fixed_point_factors_of_scales(np.float64(scale), np.float64(1), "TFLITE")
    multiplier, shift = int16x8.multipliers_of_15_bits_and_right_shifts(factors)
    text = f"REDUCE_PROD has the input scale {float(constant_value(x.scale)):.9g}, which is too large for LiteRT"
    require("tflite-quant", bool(shift > 0), text)

    def rescale_and_saturate_product(y: Expr) -> Expr:
        y = fx.shift_right(g.add(g.mul(y, int(multiplier)), 1 << (int(shift) - 1)), int(shift))
        return g.clip(y, -(1 << 31), (1 << 31) - 1)

    steps = fx.cast_to_int64(q.subtract_zero_point(x.data, x.zero, -1))
    steps = g.reshape(g.transpose(steps, [*axes, *rest]), (count, *(shape[k] for k in rest)))
    parts = [g.squeeze(part, [0]) for part in g.split(steps, [1] * count, 0)]
    y = reduce(lambda product, factor: rescale_and_saturate_product(g.mul(product, factor)), parts)
    y = q.clip_and_cast(g.add(rescale_and_saturate_product(y), fx.cast_to_int64(onto.zero)), onto.dtype)
    return g.unsqueeze(y, axes) if keep_dims else y


def quantized_sum_over_axes(node: TfliteNode, axes: list[int], keep_dims: bool) -> Expr:
    """Sum quantized integers over axes. TFLite Micro rounds twice; XNNPACK multiplies in float32
    and rounds half to even, LiteRT's own kernels half away from zero.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    count = math.prod(g.dim(x.data, k) for k in axes)
    few = 0 < count < 1 << (31 - g.dtype(x.data).bits)
    require("tflite-quant", few, f"SUM of {count} integers of {node.first_output_declaration.dtype} is not supported")
    scale = np.float32(constant_value(x.scale)) / np.float32(constant_value(onto.scale))
    if node.rounding.name == "litert":
        # XNNPACK combines the zero points of the sum and of the result into one term
        term = np.float32(constant_value(onto.zero)) - np.float32(count * int(constant_value(x.zero))) * scale
        y = g.call_op(
            "qnn.product", g.cast(_sum_over_axes(g.cast(x.data, _INT), axes, keep_dims), "float32"), g.constant(scale)
        )
        return q.clip_and_cast(g.call_op("round", g.add(y, g.constant(term))), onto.dtype)
    sums = _sum_over_axes(q.subtract_zero_point(x.data, x.zero, -1), axes, keep_dims)
    if node.rounding.name == "tflm":
        ratio = np.float64(constant_value(x.scale)) / np.float64(constant_value(onto.scale))
        return requantize_rounding_twice(sums, ratio, onto)
    y = round_half_away_from_zero(g.call_op("qnn.product", g.cast(sums, "float32"), g.constant(scale)))
    return q.clip_and_cast(g.add(g.cast(g.clip(y, -_BEYOND_INT16, _BEYOND_INT16), _INT), onto.zero), onto.dtype)


def _sum_over_axes(x: Expr, axes: list[int], keep_dims: bool) -> Expr:
    return g.call_reduction("sum", x, axes, keep_dims)


def requantize_uint8_by_table(x: QuantizedTensor, output: OutputQuantization) -> Expr:
    """Requantize uint8 to another scale by a table of 256 values, computed in float32 and rounded
    half away from zero.
    """
    scale = np.float32(constant_value(x.scale)) * (_ONE / np.float32(constant_value(output.scale)))
    bias = np.float32(-int(constant_value(x.zero))) * scale
    y: Any = _round_half_away_from_zero(np.arange(256).astype(np.float32) * scale + bias) + np.float32(
        constant_value(output.zero)
    )
    return q.lookup_in_256_table(g.constant(_clip_to_output_dtype(y, output)), x.data)
