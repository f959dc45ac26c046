# SPDX-License-Identifier: Apache-2.0
"""TFLite layers with int16 activations and int8 weights, all with zero point 0; TFLite Micro and
LiteRT both use TFLite's reference kernels for them.

Input: 64-bit sums of products. Output: int16.

    requantize_to_int16(sums, ratio, onto, axis=3)
    int16_logistic_or_tanh("TANH", x, onto, use_fixed_point=False)
    int16_softmax(x, onto, 1.0)

Source: TFLite's MultiplyByQuantizedMultiplier of 64 bits (Apache-2.0), reimplemented.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.quantization import OutputQuantization, QuantizedTensor, clip_and_cast
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    LITERT_RUY,
    constant_value,
    requantize_rounding_twice,
    round_half_away_from_zero,
    unit_quantization,
)
from aotc.relay.frontend.tflite.load import TfliteTensor
from aotc.relay.graph_api import Expr, compile_time_elements
from aotc.relay.op.qnn.fixed_point import FixedPointFactors, fixed_point_factors_of_scales

#: Data type of sums of products.
SUM_DTYPE: Final = "int64"
_INT: Final = "int32"
#: Largest multiplier: multipliers have 15 bits.
_MAX_MULTIPLIER: Final = 0x7FFF
#: Indices at which TFLite's table of the logistic function is one greater than the correctly
#: rounded value.
_LOGISTIC_TABLE_EXCEPTIONS: Final = (
    4,
    8,
    12,
    14,
    15,
    16,
    17,
    19,
    20,
    21,
    22,
    25,
    27,
    28,
    29,
    30,
    31,
    33,
    34,
    35,
    37,
    39,
    40,
    41,
    43,
    44,
    45,
    46,
    49,
    50,
    54,
    62,
    63,
    64,
    66,
    82,
    86,
    93,
    100,
    103,
    112,
    116,
    135,
    255,
)


def tflite_logistic_table_uint16() -> Array:
    """Return TFLite's table of the logistic function: 256 values at multiples of 1/24, times 2^16,
    as uint16.
    """
    exact = 65536 / (1 + np.exp(-np.arange(256) / 24))
    table = np.rint(exact).astype(np.uint16)
    table[list(_LOGISTIC_TABLE_EXCEPTIONS)] += 1
    return np.asarray(table)


def multipliers_of_15_bits_and_right_shifts(factors: FixedPointFactors) -> tuple[Array, Array]:
    """Return multipliers of 15 bits and the numbers of bits by which products with them are shifted
    right.
    """
    multiplier = np.minimum((factors.multiplier + (1 << 15)) >> 16, _MAX_MULTIPLIER)
    return np.asarray(multiplier), np.asarray(15 - (factors.left_shift - factors.right_shift))


def requantize_to_int16(sums: Expr, ratio: Array, output: OutputQuantization, axis: int) -> Expr:
    """Multiply sums by numbers (one, or one per element of `axis`) as 15-bit multipliers, rounded
    half up, and saturate.
    """
    multiplier, last = multipliers_of_15_bits_and_right_shifts(
        fixed_point_factors_of_scales(np.asarray(ratio), np.float64(1), "TFLITE")
    )
    require("tflite-quant", bool((last > 0).all()), "the scales of an int16 layer differ too much")
    along = partial(fx.int64_constant_along_axis, axis=axis, rank=g.rank(sums))
    half = np.int64(1) << (last - 1)
    y = g.add(g.mul(sums, along(multiplier)), along(half))
    return clip_and_cast(g.call_op("right_shift", y, along(last)), output.dtype)


def requantize_litert_dense(
    sums: Expr, x: QuantizedTensor, w: QuantizedTensor, output: OutputQuantization, has_bias: bool
) -> Expr:
    """Requantize sums of a fully connected layer as LiteRT does: with a bias in double precision,
    without a bias as 32-bit sums that are rounded twice.
    """
    if not has_bias:
        return LITERT_RUY.requantize_sums(
            g.cast(sums, _INT), LITERT_RUY.dense_scale_ratio(x.scale, w.scale, output), output, 1
        )
    ratio = LITERT_RUY.scale_ratio(x.scale, w.scale, output)
    y = round_half_away_from_zero(g.mul(g.cast(sums, "float64"), g.constant(ratio)))
    return clip_and_cast(y, output.dtype)


def check_int16_layer(name: str, weight: TfliteTensor, axis: int, bias: OptionalExpr) -> None:
    """Raise AotcError (code "tflite-quant") unless the weights are int8, the bias is int64 and the
    sums are below 2^47.

    With an int32 bias the reference kernels round in another way.
    """
    fits = weight.dtype == "int8" and (bias is None or g.dtype(bias) == SUM_DTYPE)
    text = f"{name} of integers of 16 bits takes weights of int8 and a bias of int64"
    require("tflite-quant", fits, text)
    count = math.prod(weight.shape) // max(weight.shape[axis], 1)
    given = None if bias is None else compile_time_elements(bias)
    known = (0,) if given is None else map(int, given.reshape(-1))
    reached = (count << 22) + max(map(abs, known), default=0)
    text = f"sums of {name} may reach {reached:,}; they and their biases must be below 2^47"
    require("tflite-quant", reached < 1 << 47, text)


def int16_logistic_or_tanh(name: str, x: QuantizedTensor, output: OutputQuantization, use_fixed_point: bool) -> Expr:
    """Compute LOGISTIC or TANH of int16 by interpolation in the table of the logistic function. The
    input is first scaled to 3 * x with 12 fractional bits.

    use_fixed_point    use gemmlowp's fixed-point functions with 3 integer bits instead, where the input scale
                       allows it (LiteRT)
    """
    factor, shift = np.float64(constant_value(x.scale)) * 4096 * 3, 0
    while factor <= _MAX_MULTIPLIER / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    fits = constant_value(output.scale) == 2.0**-15 and factor <= _MAX_MULTIPLIER and shift <= 30
    require(
        "tflite-quant",
        bool(fits),
        f"{name} of int16 needs an input scale between 2^-30 and 2 and the output scale 2^-15",
    )
    logistic = name == "LOGISTIC"
    up = {2.0**-12: 0, 2.0**-11: 1}.get(float(constant_value(x.scale)))
    if use_fixed_point and up is not None and not (logistic and up):
        whole = fx.shift_left_saturated(fx.cast_to_int64(x.data), up, 15)
        y = (fx.fixed_point_logistic if logistic else fx.fixed_point_tanh)(whole, 3, 15)
        return g.cast(y, output.dtype)
    v = g.add(g.mul(g.cast(x.data, _INT), int(factor)), 1 << shift >> 1)
    v = _shift_right(v, shift)
    digits, most = (9, _MAX_MULTIPLIER << 10) if logistic else (8, 0xFFFF << 8)
    size = g.absolute(v)
    place = _shift_right(size, digits)
    inside = g.minimum(place, 254)
    low, high = (_logistic_table_elements_at(inside, k) for k in (0, 1))
    rest = g.call_op("bitwise_and", size, g.constant((1 << digits) - 1, _INT))
    y = g.add(g.mul(low, 1 << digits), g.mul(rest, g.sub(high, low)))
    y = g.where(g.greater(place, 254), most, y)
    if logistic:
        below = g.sub(g.constant((1 << 25) + (1 << 9) - 1, _INT), y)
        y = _shift_right(g.where(g.less(v, 0), below, g.add(y, 1 << 9)), 10)
    else:
        below = g.sub(g.constant((1 << 23) + (1 << 7) - 1, _INT), y)
        y = _shift_right(g.where(g.less(v, 0), below, g.add(y, (1 << 7) - (1 << 23))), 8)
    return g.cast(y, output.dtype)


def _corrected_q15_interpolation_samples(
    function: Callable[[Array], Array], low: float, high: float, compute_dtype: Any
) -> Array:
    """Sample a function at 513 equidistant points from `low` to `high`, times 2^15, computed in the
    data type `compute_dtype`. Each sample is corrected by half of the interpolation error in the
    middle between it and the next one.
    """
    step, unit = compute_dtype(high - low) / compute_dtype(512), compute_dtype(1 << 15)
    places = compute_dtype(low) + np.arange(513).astype(compute_dtype) * step
    values, middles = (function(at).astype(compute_dtype) * unit for at in (places, places[:-1] + step / 2))
    whole = _round_half_away_from_zero(values)
    between = _round_half_away_from_zero((values[1:] + whole[:-1]) / 2)
    whole[:-1] -= _round_half_away_from_zero((between - _round_half_away_from_zero(middles)) / 2)
    return np.clip(whole, -(1 << 15), _MAX_MULTIPLIER).astype(np.int32)


def _exponential(x: Array) -> Array:
    return np.asarray(np.exp(x.astype(np.float64)))


def _reciprocal_of_one_plus(x: Array) -> Array:
    return np.asarray(1 / (1 + x))


def _round_half_away_from_zero(x: Array) -> Array:
    """Round to integers, half away from zero."""
    y = x.astype(np.float64)
    return np.asarray(np.trunc(y + np.copysign(0.5, y)), x.dtype)


def interpolate_513_samples_at_int16(values: Array, x: Expr) -> Expr:
    """Interpolate linearly between 513 samples at positions given by 16-bit integers; the result is
    int32.
    """
    table, x = g.constant(values), g.clip(x, -(1 << 15), _MAX_MULTIPLIER)
    place = g.add(_shift_right(x, 7), 256)
    low, high = (g.call_op("take", table, g.add(place, k), axis=0, mode="clip") for k in (0, 1))
    rest = g.call_op("bitwise_and", x, g.constant(127, _INT))
    return g.add(low, _shift_right(g.add(g.mul(g.sub(high, low), rest), 64), 7))


def int16_softmax(x: QuantizedTensor, output: OutputQuantization, beta: float, compute_dtype: Any = np.float32) -> Expr:
    """Compute softmax of int16: exponentials from a table over the range -10 to 0, and the
    reciprocal of their sum from another table. Both tables are computed in the data type
    `compute_dtype`: float32 for TFLite Micro, float64 for LiteRT.
    """
    data = g.cast(x.data, _INT)
    last = g.rank(data) - 1
    count = g.dim(data, last)
    require("tflite-quant", count <= 1 << 16, f"SOFTMAX of {count} integers of 16 bits is not supported")
    below = g.sub(data, g.call_reduction("max", data, [last], True))
    ratio = np.float64(constant_value(x.scale)) * beta / (10 / 65535)
    steps = requantize_rounding_twice(below, ratio, unit_quantization())
    e = interpolate_513_samples_at_int16(
        _corrected_q15_interpolation_samples(_exponential, -10, 0, compute_dtype), g.add(steps, _MAX_MULTIPLIER)
    )
    total = g.call_reduction("sum", e, [last], True)
    zeros = g.cast(fx.leading_zeros_of_positive_int32(fx.cast_to_int64(total)), _INT)
    # 17 bits, the first of which has the value 1
    shifted = g.call_op("left_shift", total, g.sub(zeros, 1))
    shifted = _shift_right(g.add(_shift_right(shifted, 13), 1), 1)
    inverse = interpolate_513_samples_at_int16(
        _corrected_q15_interpolation_samples(_reciprocal_of_one_plus, 0, 1, compute_dtype), g.sub(shifted, 3 << 15)
    )
    shift = g.sub(g.constant(31, _INT), zeros)
    half = g.call_op("left_shift", g.constant(1, _INT), g.sub(shift, 1))
    y = g.call_op("right_shift", g.add(g.mul(e, inverse), half), shift)
    return g.cast(g.clip(y, 0, _MAX_MULTIPLIER), output.dtype)


def _shift_right(x: Expr, bits: int) -> Expr:
    return g.call_op("right_shift", x, g.constant(bits, _INT)) if bits else x


def _logistic_table_elements_at(index: Expr, offset: int) -> Expr:
    """Return the elements `index + offset` of the table of the logistic function, as int32."""
    return g.call_op(
        "take", g.constant(tflite_logistic_table_uint16().astype(np.int32)), g.add(index, offset), axis=0, mode="clip"
    )
