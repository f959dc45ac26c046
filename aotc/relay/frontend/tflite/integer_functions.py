# SPDX-License-Identifier: Apache-2.0
"""Integer forms of elementwise functions, comparisons, division, sums and L2 normalization, as
TFLite Micro and LiteRT compute them.

Input: an operator with its inputs. Output: integers of its output tensor.

    of_real("EXP", node)                    # a table of 256 elements, or 512 straight lines for 16 bits
    l2_normalized(node)

Source: TFLite's reference kernels (Apache-2.0), reimplemented. Where they convert a float beyond
the range of int32, which is undefined in C, results saturate here.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import Onto, Quantized
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite import int16x8
from aotc.relay.frontend.tflite.integer_semantics import every, nearest, number, onto_whole, scaled_twice
from aotc.relay.frontend.tflite.node import Node
from aotc.relay.graph_api import Expr
from aotc.relay.op.qnn.fixed_point import factors_of

_INT: Final = "int32"
_WIDE: Final = "int64"
_ONE: Final = np.float32(1)
#: A number beyond the range of all 16-bit results.
_FAR: Final = float(1 << 20)
#: A function of float32 arrays; it also takes the scale and zero point of its results.
Function = Callable[[Array, Onto], Array]


def _exact(function: Callable[[float], float], x: Array) -> Array:
    """Apply a function to float32 numbers in double precision and round the result once to float32."""
    with np.errstate(over="ignore"):
        return np.reshape([function(float(v)) for v in x.reshape(-1)], x.shape).astype(np.float32)


def _exp(x: Array, onto: Onto) -> Array:
    return _exact(lambda v: math.exp(v) if v < 700 else math.inf, x)


def _elu(x: Array, onto: Onto) -> Array:
    return _exact(lambda v: math.expm1(v) if v < 0 else v, x)


def _log(x: Array, onto: Onto) -> Array:
    """Return log(x) for x > 0, and the least representable result for other x."""
    least = np.float32(int(onto.dtype.min) - int(number(onto.zero))) * np.float32(number(onto.scale))
    return np.asarray(np.where(x <= 0, least, _exact(lambda v: math.log(v) if v > 0 else 0.0, x)))


def _rsqrt(x: Array, onto: Onto) -> Array:
    """Return 1 / sqrt(x) for x > 0, and the greatest representable result for other x."""
    most = np.float32(int(onto.dtype.max)) * np.float32(number(onto.scale))
    return np.asarray(np.where(x <= 0, most, _ONE / np.sqrt(np.where(x <= 0, _ONE, x))))


def _gelu(x: Array, onto: Onto) -> Array:
    inner = x * np.float32(-math.sqrt(0.5))
    return np.asarray(np.float32(0.5) * x * _exact(math.erfc, inner))


def _gelu_by_tanh(x: Array, onto: Onto) -> Array:
    cube = np.float32(0.044715) * x * x * x
    inner = np.float32(2 / math.sqrt(math.pi) * math.sqrt(0.5)) * (x + cube)
    return np.asarray(np.float32(0.5) * x * (_ONE + _exact(math.tanh, inner)))


_FUNCTIONS: Final[dict[str, Function]] = {
    "ELU": _elu,
    "EXP": _exp,
    "GELU": _gelu,
    "GELU_BY_TANH": _gelu_by_tanh,
    "LOG": _log,
    "RSQRT": _rsqrt,
}


def _away(x: Array) -> Array:
    """Round to integers, half away from zero."""
    return np.asarray(np.trunc(x.astype(np.float64) + np.copysign(0.5, x)), np.float32)


def _stored(y: Array, onto: Onto) -> Array:
    low, high = float(onto.dtype.min), float(onto.dtype.max)
    return np.clip(y, low, high).astype(onto.dtype.numpy)


def of_real(name: str, node: Node) -> Expr:
    """Apply the real function `name` (such as EXP or LOG) to a quantized input: by a table of 256
    results for 8 bits, by linear interpolation for 16 bits.
    """
    x, onto, function = node.whole(0), node.onto(), _FUNCTIONS[name]
    if node.in_words:
        return g.cast(int16x8.interpolated(_lines(function, x, onto), g.cast(x.data, _INT)), onto.dtype)
    real = np.float32(number(x.scale)) * number(every(x)).astype(np.float32)
    y = _away(function(real, onto) * (_ONE / np.float32(number(onto.scale)))) + np.float32(number(onto.zero))
    return q.looked_up(g.constant(_stored(y, onto)), x.data)


def _lines(function: Function, x: Quantized, onto: Onto) -> Array:
    """Return 513 samples of a function for int16 interpolation, from the least to the greatest
    input. Each sample is corrected by half of the interpolation error in the middle between it and
    the next one.
    """
    scale, unit = np.float32(number(x.scale)), np.float32(number(onto.scale))
    low, high = scale * np.float32(-32768), scale * np.float32(32767)
    step = (high - low) / np.float32(512)
    inverse = np.float32(65536) / (unit * np.float32(32767) - unit * np.float32(-32768))
    places = low + np.arange(513).astype(np.float32) * step
    with np.errstate(over="ignore", invalid="ignore"):
        values = function(places, onto) * inverse
        middles = _away(function(places[:-1] + step / np.float32(2), onto) * inverse)
        whole = _away(values)
        between = _away((values[1:] + whole[:-1]) / np.float32(2))
        whole[:-1] -= _away((between - middles) / np.float32(2))
        whole[-1] = _away(function(np.array([high]), onto) * inverse)[0]
    return np.asarray(np.clip(np.nan_to_num(whole, nan=32767.0), -32768, 32767), np.int32)


def absolute(node: Node) -> Expr:
    """Compute ABS of quantized integers, requantized to the scale of the output."""
    x, onto = node.whole(0), node.onto()
    ratio = np.float32(number(x.scale)) / np.float32(number(onto.scale))
    return scaled_twice(g.absolute(q.centered(x.data, x.zero, -1)), np.float64(ratio), onto)


def negated(node: Node) -> Expr:
    """Negate quantized integers, which must have the zero point 0; the least integer, which has no
    negative counterpart, is unchanged.
    """
    x, onto = node.whole(0), node.onto()
    same = q.is_zero(x.zero) and q.is_zero(onto.zero) and number(x.scale) == number(onto.scale)
    text = "NEG of integers takes and gives one scale, and the zero point 0: the interpreters of TFLite know no other"
    require("tflite-quant", bool(same), text)
    return g.negative(x.data)


def root(node: Node) -> Expr:
    """Compute SQRT of quantized integers, rounded down; negative numbers give the root of 0, where
    LiteRT refuses them.
    """
    x, onto = node.whole(0), node.onto()
    real = g.op("qnn.product", g.cast(q.centered(x.data, x.zero, -1), "float32"), x.scale)
    y = g.div(g.sqrt(g.maximum(real, 0.0)), onto.scale)
    return q.saturated(g.add(g.cast(g.minimum(y, _FAR), _INT), onto.zero), onto.dtype)


# --- inverse square roots


def _inverse_root(x: Expr) -> tuple[Expr, Expr]:
    """Compute 1 / sqrt(x) for integers up to 2^29 (int64, last axis of extent 1) as multiplier /
    2^(31 + shift), by five steps of Newton's method.
    """
    pairs = g.sub(g.op("right_shift", g.sub(fx.leading_zeros(x), 1), g.constant(1, _WIDE)), 1)
    pairs = g.maximum(pairs, 0)
    # fixed-point numbers from 1/4 to 1 with 3 integer bits
    whole = g.op("left_shift", x, g.mul(pairs, 2))
    half = fx.divided(fx.right(whole, 1), 1)
    y: Expr = g.constant(1 << 28, _WIDE)
    for _ in range(5):
        cube = fx.saturated(fx.high_product(fx.high_product(y, y), y), 6)
        y = g.sub(fx.high_product(y, (1 << 28) + (1 << 27)), fx.high_product(half, cube))
        y = fx.saturated(y, 3)
    y = fx.high_product(y, 1518500250)
    shift = g.sub(g.constant(11, _WIDE), pairs)
    y = g.op("left_shift", y, g.maximum(g.negative(shift), 0))
    few = g.less(x, 2)
    return g.where(few, (1 << 31) - 1, y), g.where(few, 0, g.maximum(shift, 0))


def _times(x: Expr, multiplier: Expr, right: Expr) -> Expr:
    """Return x * multiplier / 2^(31 + right), rounded after the product and after the shift; a
    negative `right` shifts left.
    """
    y = fx.high_product(g.op("left_shift", x, g.maximum(g.negative(right), 0)), multiplier)
    return _divided(y, right)


def _divided(y: Expr, right: Expr) -> Expr:
    """Return y / 2^right, rounded half away from zero, where `right` is positive, otherwise y."""
    return g.where(g.less(right, 1), y, fx.divided(y, g.maximum(right, 1)))


def rsqrt(node: Node) -> Expr:
    """Compute RSQRT, 1 / sqrt(x), of quantized integers, for 8 bits as a table; x <= 0 gives the
    greatest integer.
    """
    x, onto = node.whole(0), node.onto()
    if not node.in_words:
        return q.looked_up(_inverse_roots(every(x), x, onto), x.data)
    if node.rounding.name != "tflm":
        return of_real("RSQRT", node)
    return _inverse_roots(fx.wide(x.data), x, onto)


def _inverse_roots(steps: Expr, x: Quantized, onto: Onto) -> Expr:
    """Compute 1 / sqrt(x) for integers with their zero point subtracted, in fixed point."""
    steps = g.unsqueeze(steps, [g.rank(steps)])
    multiplier, shift = _inverse_root(g.maximum(steps, 1))
    fine = _times(g.constant(1, _WIDE), multiplier, g.sub(shift, 20))
    scale = np.sqrt(np.float32(number(x.scale))) * np.float32(number(onto.scale))
    factors = factors_of(1 / np.float64(scale), np.float64(1), "TFLITE")
    right = int(factors.right) - int(factors.left) + 20
    y = _times(fine, g.constant(int(factors.multiplier), _WIDE), g.constant(right, _WIDE))
    y = g.where(g.less(steps, 1), int(onto.dtype.max), g.add(y, fx.wide(onto.zero)))
    return g.squeeze(q.saturated(y, onto.dtype), [g.rank(steps) - 1])


def l2_normalized(node: Node) -> Expr:
    """Compute L2_NORMALIZATION: divide the vectors along the last axis by their lengths; results
    have the scale 1/128.
    """
    x, onto = node.whole(0), node.onto()
    signed = onto.dtype == "int8"
    zero = 0 if signed else 128
    fits = number(onto.scale) == 1 / 128 and int(number(onto.zero)) == zero
    text = f"L2_NORMALIZATION of {onto.dtype} gives the scale 1/128 and the zero point {zero}"
    require("tflite-quant", bool(fits), text)
    steps = fx.wide(q.centered(x.data, x.zero, -1))
    last = g.rank(steps) - 1
    count = g.dim(steps, last)
    require("tflite-quant", count <= 8192, f"L2_NORMALIZATION of {count} integers is not supported (8192 are)")
    multiplier, shift = _inverse_root(g.reduce("sum", g.mul(steps, steps), [last], True))
    y = _times(steps, multiplier, g.sub(shift, 7)) if signed else _times(g.mul(steps, 128), multiplier, shift)
    return q.saturated(g.add(y, zero), onto.dtype)


# --- binary operators


def compared(name: str, node: Node) -> Expr:
    """Compare quantized tensors: shift both left by 8 bits and multiply them by their scales. For
    int16, LiteRT's order comparisons compare the integers directly, which requires equal scales,
    and TFLite Micro has no order comparison.
    """
    x, y = node.whole(0), node.whole(1)
    if node.tensor(0).dtype == "int16" and node.op.name not in ("EQUAL", "NOT_EQUAL"):
        same = number(x.scale) == number(y.scale) and node.rounding.name != "tflm"
        text = f"{node.op.name} of integers of 16 bits is not supported, but by LiteRT's rounding with one scale"
        require("tflite-quant", bool(same), text)
        return g.op(name, x.data, y.data)
    below = number(x.scale) < 1 and number(y.scale) < 1
    require("tflite-quant", bool(below), f"{node.op.name} of integers needs scales below 1")
    eight = g.constant(8, _INT)
    parts = (
        scaled_twice(g.op("left_shift", q.centered(v.data, v.zero, -1), eight), number(v.scale), onto_whole())
        for v in (x, y)
    )
    return g.op(name, *parts)


def quotient(node: Node) -> Expr:
    """Compute the quotient x / y of 8-bit quantized tensors with a table of the reciprocals of all
    y. LiteRT refuses division by 0; here a divisor of 0 is replaced by 1.

    The reference kernels shift small quotients by more than 31 bits, which is undefined in C; here
    they become 0.
    """
    x, y, onto = node.whole(0), node.whole(1), node.onto()
    sizes = g.reshape(g.maximum(g.constant(np.arange(512, dtype=np.int64)), 1), (512, 1))
    zeros = fx.leading_zeros(sizes)
    inverse = fx.reciprocal(g.sub(g.op("left_shift", sizes, zeros), 1 << 31))
    bits = g.sub(g.constant(31, _WIDE), zeros)
    a, b = (fx.wide(q.centered(v.data, v.zero, -1)) for v in (x, y))
    a, size = g.where(g.less(b, 0), g.negative(a), a), g.cast(g.absolute(b), _INT)
    inverse, bits = (g.op("take", g.reshape(v, (512,)), size, axis=0, mode="clip") for v in (inverse, bits))
    # the number of free bits between the sign and the first digit
    magnitudes = g.constant(np.array([31 - v.bit_length() for v in range(512)], np.int64))
    beyond = g.cast(g.where(g.less(a, 0), g.sub(g.negative(a), 1), a), _INT)
    headroom = g.op("take", magnitudes, beyond, axis=0, mode="clip")
    y0 = fx.high_product(g.op("left_shift", a, headroom), inverse)
    ratio = np.float32(number(x.scale)) / (np.float32(number(y.scale)) * np.float32(number(onto.scale)))
    factors = factors_of(np.float64(ratio), np.float64(1), "TFLITE")
    right = g.add(g.add(bits, headroom), int(factors.right) - int(factors.left))
    result = _divided(fx.high_product(y0, int(factors.multiplier)), right)
    return node.activated(q.saturated(g.add(result, fx.wide(onto.zero)), onto.dtype))


# --- sums and requantization


def summed(node: Node, axes: list[int], keep_dims: bool) -> Expr:
    """Sum quantized integers over axes. TFLite Micro rounds twice; XNNPACK multiplies in float32
    and rounds half to even, LiteRT's own kernels half away from zero.
    """
    x, onto = node.whole(0), node.onto()
    count = math.prod(g.dim(x.data, k) for k in axes)
    few = 0 < count < 1 << (31 - g.dtype(x.data).bits)
    require("tflite-quant", few, f"SUM of {count} integers of {node.result.dtype} is not supported")
    scale = np.float32(number(x.scale)) / np.float32(number(onto.scale))
    if node.rounding.name == "litert":
        # XNNPACK combines the zero points of the sum and of the result into one term
        term = np.float32(number(onto.zero)) - np.float32(count * int(number(x.zero))) * scale
        y = g.op("qnn.product", g.cast(_added(g.cast(x.data, _INT), axes, keep_dims), "float32"), g.constant(scale))
        return q.saturated(g.op("round", g.add(y, g.constant(term))), onto.dtype)
    sums = _added(q.centered(x.data, x.zero, -1), axes, keep_dims)
    if node.rounding.name == "tflm":
        ratio = np.float64(number(x.scale)) / np.float64(number(onto.scale))
        return scaled_twice(sums, ratio, onto)
    y = nearest(g.op("qnn.product", g.cast(sums, "float32"), g.constant(scale)))
    return q.saturated(g.add(g.cast(g.clip(y, -_FAR, _FAR), _INT), onto.zero), onto.dtype)


def _added(x: Expr, axes: list[int], keep_dims: bool) -> Expr:
    return g.reduce("sum", x, axes, keep_dims)


def brought(x: Quantized, onto: Onto) -> Expr:
    """Requantize uint8 to another scale by a table of 256 values, computed in float32 and rounded
    half away from zero.
    """
    scale = np.float32(number(x.scale)) * (_ONE / np.float32(number(onto.scale)))
    bias = np.float32(-int(number(x.zero))) * scale
    y: Any = _away(np.arange(256).astype(np.float32) * scale + bias) + np.float32(number(onto.zero))
    return q.looked_up(g.constant(_stored(y, onto)), x.data)
