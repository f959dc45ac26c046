# SPDX-License-Identifier: Apache-2.0
"""Integer forms of TFLite operators that have arithmetic of their own, as TFLite's reference
kernels or XNNPACK compute them: activations, bilinear resizing, matrix products.

Input: an operator with its inputs. Output: integers of its output tensor.

    integer_hard_swish(node)
    integer_resize_bilinear(node, (8, 8), False, True)  # bilinear, of centers of pixels
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import QuantizedTensor
from aotc.relay.frontend.tflite import int16x8
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    LITERT_BUILTIN,
    all_8bit_values_minus_zero_point,
    constant_value,
    requantize_rounding_twice,
    unit_quantization,
)
from aotc.relay.frontend.tflite.node import TfliteNode, check_quantization_support
from aotc.relay.graph_api import Expr
from aotc.relay.op.qnn.fixed_point import fixed_point_factors_of_scales

_INT: Final = "int32"


def _subtract_zero_point(x: QuantizedTensor) -> Expr:
    return q.subtract_zero_point(x.data, x.zero, -1)


def _int16_multiplier_and_exponent(ratio: Any) -> tuple[int, int]:
    """Return a real factor as an integer multiplier with 15 fractional bits and an exponent of two."""
    f = fixed_point_factors_of_scales(np.float64(ratio), np.float64(1), "TFLITE")
    return min((int(f.multiplier) + (1 << 15)) >> 16, (1 << 15) - 1), int(f.left_shift) - int(f.right_shift)


def _rounded_q15_product(a: Array, b: int) -> Array:
    """Return a * b / 2^15, rounded half up."""
    return (a * b + (1 << 14)) >> 15


def _rounding_divide_by_power_of_two(a: Array, bits: int) -> Array:
    """Return a / 2^bits, rounded half away from zero."""
    return a if bits <= 0 else (a + (1 << bits >> 1) - (a < 0)) >> bits


def _clip_to_int16_range(a: Array) -> Array:
    return np.clip(a, -(1 << 15), (1 << 15) - 1)


def integer_hard_swish(node: TfliteNode) -> Expr:
    """Compute HARD_SWISH, x * relu6(x + 3) / 6, of 8-bit quantized integers with 16-bit products,
    as a table of 256 values.
    """
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    fine = constant_value(x.scale) * np.float32(1 / 128)
    factor, exponent = _int16_multiplier_and_exponent(fine / constant_value(onto.scale))
    gate, shift = _int16_multiplier_and_exponent(fine / np.float32(3 / 32768))
    text = "the scales of HARD_SWISH are too far apart"
    require("tflite-quant", -15 <= exponent <= 0 and shift >= -15, text)
    steps = constant_value(all_8bit_values_minus_zero_point(x)) << 7
    scaled = _rounded_q15_product(steps, factor)
    y = _clip_to_int16_range(steps << (shift - 1)) if shift > 0 else steps
    y = _rounded_q15_product(y, gate)
    y = _clip_to_int16_range(y << 1) if shift > 0 else _rounding_divide_by_power_of_two(y, -shift)
    y = (y + (1 << 15)) >> 1
    product = y * scaled
    whole = np.sign(product) * (abs(product) >> 15)
    table = _rounding_divide_by_power_of_two(whole, -exponent) + int(constant_value(onto.zero))
    low, high = int(onto.dtype.min), int(onto.dtype.max)
    return q.lookup_in_256_table(g.constant(np.clip(table, low, high).astype(onto.dtype.numpy)), x.data)


def integer_leaky_relu(node: TfliteNode, alpha: float) -> Expr:
    """Compute LEAKY_RELU of quantized integers: x for x >= 0 and alpha * x for x < 0."""
    x, onto = node.per_tensor_quantized_input(0), node.output_quantization()
    up, down = (
        constant_value(x.scale) / first_output_scale(node),
        constant_value(x.scale) * np.float32(alpha) / first_output_scale(node),
    )
    steps = _subtract_zero_point(x)
    fits = 2.0**-8 <= up <= 128 and 2.0**-8 <= abs(down) < 128
    if node.rounding.name != "litert" or not fits:
        # multipliers must be positive: negate the data instead
        other = requantize_rounding_twice(steps if alpha >= 0 else g.negative(steps), abs(down), onto)
        return g.where(g.less(steps, 0), other, requantize_rounding_twice(steps, up, onto))
    factors = (int(np.rint(np.float32(v) * np.float32(256))) for v in (up, down))
    above, below = (g.mul(steps, f) for f in factors)
    y = g.add(g.where(g.less(steps, 0), below, above), 128)
    y = g.add(g.call_op("right_shift", y, g.constant(8, _INT)), onto.zero)
    return q.clip_and_cast(y, onto.dtype)


def first_output_scale(node: TfliteNode) -> Array:
    """Return the scale of a TFLite operator's first output."""
    return constant_value(node.output_quantization().scale)


def integer_prelu(node: TfliteNode) -> Expr:
    """Compute PRELU of quantized integers: x for x >= 0 and slope * x for x < 0; the slope
    broadcasts.
    """
    x, slope, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    steps = _subtract_zero_point(x)
    scales = (constant_value(v).astype(np.float64) for v in (x.scale, slope.scale, onto.scale))
    a, b, c = scales
    below = requantize_rounding_twice(g.mul(steps, _subtract_zero_point(slope)), a * b / c, onto)
    return g.where(g.less(steps, 0), below, requantize_rounding_twice(steps, a / c, onto))


def integer_squared_difference(node: TfliteNode) -> Expr:
    """Compute SQUARED_DIFFERENCE, (a - b)^2, of quantized integers: shift both inputs left by 7
    bits (not for int16), scale them to twice the larger scale, subtract, square and requantize.
    """
    bits = 0 if node.has_int16_output else 7
    a, b, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    twice = 2 * np.float64(max(constant_value(a.scale), constant_value(b.scale)))
    parts = []
    for v in (a, b):
        wide = g.call_op("left_shift", _subtract_zero_point(v), g.constant(bits, _INT))
        parts.append(requantize_rounding_twice(wide, np.float64(constant_value(v.scale)) / twice, unit_quantization()))
    d = g.sub(*parts)
    return requantize_rounding_twice(
        g.mul(d, d), twice * twice / ((1 << 2 * bits) * np.float64(constant_value(onto.scale))), onto
    )


# --- bilinear resizing


def _bilinear_source_lines_and_weights(
    output_count: int, input_extent: int, align_corners: bool, half_pixel_centers: bool, use_10_bit_weights: bool
) -> tuple[Array, Array, Array]:
    """Return for each line of a bilinear resize the two source lines between which it lies and the
    weight of the second one: with 10 fractional bits if `use_10_bit_weights`, otherwise with 11, computed in
    float32.
    """
    aligned = align_corners and output_count > 1
    last, n = input_extent - 1, np.arange(output_count)
    if not use_10_bit_weights:
        scale = np.float32(input_extent - aligned) / np.float32(output_count - aligned)
        place = n.astype(np.float32) * scale
        if half_pixel_centers and not align_corners:
            place = np.clip(place + (np.float32(0.5) * scale - np.float32(0.5)), 0, np.float32(last))
        low = place.astype(np.int64)
        part = np.rint((place - low.astype(np.float32)) * np.float32(2048)).astype(np.int64)
        return low, np.minimum(low + 1, last), part
    top, bottom = (1024 * last, output_count - 1) if aligned else (1024 * input_extent, output_count)
    scale = (top + bottom // 2) // bottom
    place = n * scale + ((scale // 2 - 512) if half_pixel_centers else 0)
    low = np.maximum(place // 1024, 0)
    return low, np.minimum(-(-place // 1024), last), place - 1024 * low


def integer_resize_bilinear(
    node: TfliteNode, sizes: Sequence[int], align_corners: bool, half_pixel_centers: bool
) -> Expr:
    """Compute RESIZE_BILINEAR of quantized images with 10-bit weights and rounding half away from
    zero; for XNNPACK with 11-bit weights and rounding half up.
    """
    check_quantization_support(node, True)
    exact, wide = node.rounding.name != "litert", "int64" if node.has_int16_output else _INT
    y = g.cast(node[0], wide)
    bits = 10 if exact else 11
    for axis, count in ((2, sizes[1]), (1, sizes[0])):
        low, high, part = _bilinear_source_lines_and_weights(
            count, g.dim(y, axis), align_corners, half_pixel_centers, exact
        )
        first, second = (g.call_op("take", y, g.constant(v, _INT), axis=axis, mode="clip") for v in (low, high))
        weights = [g.reshape_along_axis(g.constant(v, wide), axis, 4) for v in ((1 << bits) - part, part)]
        y = g.add(g.mul(first, weights[0]), g.mul(second, weights[1]))
    shift, half = g.constant(2 * bits, wide), 1 << (2 * bits - 1)
    if not exact:
        return g.cast(g.call_op("right_shift", g.add(y, half), shift), node.first_output_declaration.dtype)
    size = g.call_op("right_shift", g.add(g.absolute(y), half), shift)
    return g.cast(g.where(g.less(y, 0), g.negative(size), size), node.first_output_declaration.dtype)


# --- matrix products


def integer_batch_matmul(node: TfliteNode, a: Expr, b: Expr) -> Expr:
    """Compute BATCH_MATMUL of quantized matrices, which are already transposed as required;
    XNNPACK's arithmetic applies if the second operand has the zero point 0.
    """
    x, y, onto = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1), node.output_quantization()
    wide = "int64" if node.has_int16_output else _INT
    sums = q.quantized_matmul(QuantizedTensor(a, x.scale, x.zero), QuantizedTensor(b, y.scale, y.zero), wide)
    if node.rounding.name == "litert" and q.is_omitted_or_zero(y.zero):
        return node.rounding.requantize_sums(sums, node.rounding.scale_ratio(x.scale, y.scale, onto), onto)
    arithmetic = node.rounding if node.rounding.name == "tflm" else LITERT_BUILTIN
    ratio = arithmetic.dense_scale_ratio(x.scale, y.scale, onto)
    return (
        int16x8.requantize_to_int16(sums, ratio, onto, -1)
        if node.has_int16_output
        else requantize_rounding_twice(sums, ratio, onto)
    )
