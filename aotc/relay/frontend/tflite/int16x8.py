# SPDX-License-Identifier: Apache-2.0
"""TFLite layers with int16 activations and int8 weights, all with zero point 0; TFLite Micro and
LiteRT both use TFLite's reference kernels for them.

Input: 64-bit sums of products. Output: int16.

    requantized(sums, ratio, onto, axis=3)
    curve("TANH", x, onto, series=False)
    softmax(x, onto, 1.0)

Source: TFLite's MultiplyByQuantizedMultiplier of 64 bits (Apache-2.0), reimplemented.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.frontend.quantization import Onto, Quantized, saturated
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite.integer_semantics import RUY, nearest, number, onto_whole, scaled_twice
from aotc.relay.frontend.tflite.load import Tensor
from aotc.relay.graph_api import Expr, known_data
from aotc.relay.op.qnn.fixed_point import factors_of

#: Data type of sums of products.
SUMS: Final = "int64"
_INT: Final = "int32"
#: Largest multiplier: multipliers have 15 bits.
_MOST: Final = 0x7FFF
#: Indices at which TFLite's table of the logistic function is one greater than the correctly
#: rounded value.
_RAISED: Final = (
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


def table() -> Array:
    """Return TFLite's table of the logistic function: 256 values at multiples of 1/24, times 2^16,
    as uint16.
    """
    exact = 65536 / (1 + np.exp(-np.arange(256) / 24))
    found = np.rint(exact).astype(np.uint16)
    found[list(_RAISED)] += 1
    return np.asarray(found)


def requantized(sums: Expr, ratio: Array, onto: Onto, axis: int) -> Expr:
    """Multiply sums by numbers (one, or one per element of `axis`) as 15-bit multipliers, rounded
    half up, and saturate.
    """
    factors = factors_of(np.asarray(ratio), np.float64(1), "TFLITE")
    multiplier = np.minimum((factors.multiplier + (1 << 15)) >> 16, _MOST)
    last = 15 - (factors.left - factors.right)
    require("tflite-quant", bool((last > 0).all()), "the scales of an int16 layer differ too much")
    along = partial(fx.along, axis=axis, rank=g.rank(sums))
    half = np.int64(1) << (last - 1)
    y = g.add(g.mul(sums, along(multiplier)), along(half))
    return saturated(g.op("right_shift", y, along(last)), onto.dtype)


def litert_dense(sums: Expr, x: Quantized, w: Quantized, onto: Onto, biased: bool) -> Expr:
    """Requantize sums of a fully connected layer as LiteRT does: with a bias in double precision,
    without a bias as 32-bit sums that are rounded twice.
    """
    if not biased:
        return RUY.requantized(g.cast(sums, _INT), RUY.dense_ratio(x.scale, w.scale, onto), onto, 1)
    ratio = RUY.ratio(x.scale, w.scale, onto)
    y = nearest(g.mul(g.cast(sums, "float64"), g.constant(ratio)))
    return saturated(y, onto.dtype)


def check(name: str, weight: Tensor, axis: int, bias: Maybe) -> None:
    """Raise AotcError (code "tflite-quant") unless the weights are int8, the bias is int64 and the
    sums are below 2^47.

    With an int32 bias the reference kernels round in another way.
    """
    fits = weight.dtype == "int8" and (bias is None or g.dtype(bias) == SUMS)
    text = f"{name} of integers of 16 bits takes weights of int8 and a bias of int64"
    require("tflite-quant", fits, text)
    count = math.prod(weight.shape) // max(weight.shape[axis], 1)
    given = None if bias is None else known_data(bias)
    known = (0,) if given is None else map(int, given.reshape(-1))
    reached = (count << 22) + max(map(abs, known), default=0)
    text = f"sums of {name} may reach {reached:,}; they and their biases must be below 2^47"
    require("tflite-quant", reached < 1 << 47, text)


def curve(name: str, x: Quantized, onto: Onto, series: bool) -> Expr:
    """Compute LOGISTIC or TANH of int16 by interpolation in the table of the logistic function. The
    input is first scaled to 3 * x with 12 fractional bits.

    series   use gemmlowp's fixed-point functions with 3 integer bits instead, where the input scale
             allows it (LiteRT)
    """
    factor, shift = np.float64(number(x.scale)) * 4096 * 3, 0
    while factor <= _MOST / 2 and shift <= 30:
        factor, shift = factor * 2, shift + 1
    fits = number(onto.scale) == 2.0**-15 and factor <= _MOST and shift <= 30
    require(
        "tflite-quant",
        bool(fits),
        f"{name} of int16 needs an input scale between 2^-30 and 2 and the output scale 2^-15",
    )
    logistic = name == "LOGISTIC"
    up = {2.0**-12: 0, 2.0**-11: 1}.get(float(number(x.scale)))
    if series and up is not None and not (logistic and up):
        whole = fx.saturated(fx.wide(x.data), up, 15)
        y = (fx.logistic if logistic else fx.tanh)(whole, 3, 15)
        return g.cast(y, onto.dtype)
    v = g.add(g.mul(g.cast(x.data, _INT), int(factor)), 1 << shift >> 1)
    v = _right(v, shift)
    digits, most = (9, _MOST << 10) if logistic else (8, 0xFFFF << 8)
    size = g.absolute(v)
    place = _right(size, digits)
    inside = g.minimum(place, 254)
    low, high = (_value(inside, k) for k in (0, 1))
    rest = g.op("bitwise_and", size, g.constant((1 << digits) - 1, _INT))
    y = g.add(g.mul(low, 1 << digits), g.mul(rest, g.sub(high, low)))
    y = g.where(g.greater(place, 254), most, y)
    if logistic:
        below = g.sub(g.constant((1 << 25) + (1 << 9) - 1, _INT), y)
        y = _right(g.where(g.less(v, 0), below, g.add(y, 1 << 9)), 10)
    else:
        below = g.sub(g.constant((1 << 23) + (1 << 7) - 1, _INT), y)
        y = _right(g.where(g.less(v, 0), below, g.add(y, (1 << 7) - (1 << 23))), 8)
    return g.cast(y, onto.dtype)


def _samples(function: Callable[[Array], Array], low: float, high: float, work: Any) -> Array:
    """Sample a function at 513 equidistant points from `low` to `high`, times 2^15, computed in the
    data type `work`. Each sample is corrected by half of the interpolation error in the middle
    between it and the next one.
    """
    step, unit = work(high - low) / work(512), work(1 << 15)
    places = work(low) + np.arange(513).astype(work) * step
    values, middles = (function(at).astype(work) * unit for at in (places, places[:-1] + step / 2))
    whole = _nearest(values)
    between = _nearest((values[1:] + whole[:-1]) / 2)
    whole[:-1] -= _nearest((between - _nearest(middles)) / 2)
    return np.clip(whole, -(1 << 15), _MOST).astype(np.int32)


def _exponential(x: Array) -> Array:
    return np.asarray(np.exp(x.astype(np.float64)))


def _inverse(x: Array) -> Array:
    return np.asarray(1 / (1 + x))


def _nearest(x: Array) -> Array:
    """Round to integers, half away from zero."""
    y = x.astype(np.float64)
    return np.asarray(np.trunc(y + np.copysign(0.5, y)), x.dtype)


def interpolated(values: Array, x: Expr) -> Expr:
    """Interpolate linearly between 513 samples at positions given by 16-bit integers; the result is
    int32.
    """
    table, x = g.constant(values), g.clip(x, -(1 << 15), _MOST)
    place = g.add(_right(x, 7), 256)
    low, high = (g.op("take", table, g.add(place, k), axis=0, mode="clip") for k in (0, 1))
    rest = g.op("bitwise_and", x, g.constant(127, _INT))
    return g.add(low, _right(g.add(g.mul(g.sub(high, low), rest), 64), 7))


def softmax(x: Quantized, onto: Onto, beta: float, work: Any = np.float32) -> Expr:
    """Compute softmax of int16: exponentials from a table over the range -10 to 0, and the
    reciprocal of their sum from another table. Both tables are computed in the data type `work`:
    float32 for TFLite Micro, float64 for LiteRT.
    """
    data = g.cast(x.data, _INT)
    last = g.rank(data) - 1
    count = g.dim(data, last)
    require("tflite-quant", count <= 1 << 16, f"SOFTMAX of {count} integers of 16 bits is not supported")
    below = g.sub(data, g.reduce("max", data, [last], True))
    ratio = np.float64(number(x.scale)) * beta / (10 / 65535)
    steps = scaled_twice(below, ratio, onto_whole())
    e = interpolated(_samples(_exponential, -10, 0, work), g.add(steps, _MOST))
    total = g.reduce("sum", e, [last], True)
    zeros = g.cast(fx.leading_zeros(fx.wide(total)), _INT)
    # 17 bits, the first of which has the value 1
    shifted = g.op("left_shift", total, g.sub(zeros, 1))
    shifted = _right(g.add(_right(shifted, 13), 1), 1)
    inverse = interpolated(_samples(_inverse, 0, 1, work), g.sub(shifted, 3 << 15))
    shift = g.sub(g.constant(31, _INT), zeros)
    half = g.op("left_shift", g.constant(1, _INT), g.sub(shift, 1))
    y = g.op("right_shift", g.add(g.mul(e, inverse), half), shift)
    return g.cast(g.clip(y, 0, _MOST), onto.dtype)


def _right(x: Expr, bits: int) -> Expr:
    return g.op("right_shift", x, g.constant(bits, _INT)) if bits else x


def _value(place: Expr, more: int) -> Expr:
    """Return the elements `place + more` of the table of the logistic function, as int32."""
    return g.op("take", g.constant(table().astype(np.int32)), g.add(place, more), axis=0, mode="clip")
