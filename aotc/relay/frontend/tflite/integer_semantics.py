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
    rounding.requantized(sums, rounding.ratio(x, w, y), onto, axis=3)
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
from aotc.relay.frontend.quantization import Onto, Quantized
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.op.qnn.fixed_point import factors_of

#: Lower and upper bound of each activation that clips; None for no upper bound.
INTERVALS: Final[Mapping[str, tuple[float, float | None]]] = {
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
_TWICE_UP = "TWICE_UP"


def number(x: Expr) -> Array:
    """Return the value of a scale or zero point, which is always a constant in TFLite models."""
    assert isinstance(x, Constant)
    return x.data


@frozen(eq=False)
class Rounding:
    """The integer arithmetic of one TFLite interpreter.

    work      data type in which quotients of scales are computed
    products  rounding of sums of products, as the attribute `rounding` of qnn.requantize
    add       function for the sum (or, for the sign -1, the difference) of two tensors
    softmax   function for softmax along the last axis; its third argument is beta
    quantize  function that quantizes real numbers
    rescaled  function that requantizes integers to another scale
    curve     function for LOGISTIC or TANH of 8-bit integers
    """

    name: str
    work: Any
    products: str
    add: Callable[[Quantized, Quantized, Onto, int], Expr]
    softmax: Callable[[Quantized, Onto, float], Expr]
    quantize: Callable[[Expr, Onto], Expr]
    rescaled: Callable[[Quantized, Onto], Expr]
    curve: Callable[[str, Quantized, Onto], Expr]

    def within(self, fits: bool) -> Rounding:
        """Return this arithmetic, or the arithmetic of LiteRT's own kernels if this one is
        XNNPACK's and XNNPACK does not support the scales of the operator (`fits` is False).
        """
        return self if fits or self.name != "litert" else BUILTIN

    def ratio(self, x: Expr, w: Expr, onto: Onto) -> Array:
        """Return the quotient of the product of two scales and the scale of a result."""
        a, b, c = (number(v).astype(self.work) for v in (x, w, onto.scale))
        return np.asarray(a * b / c)

    def dense_ratio(self, x: Expr, w: Expr, onto: Onto) -> Array:
        """Return the quotient of scales of a fully connected layer; the product of two single
        scales is rounded to float32.
        """
        if number(w).size > 1:
            return self.ratio(x, w, onto)
        both = number(x) * number(w)
        return np.asarray(both.astype(self.work) / number(onto.scale).astype(self.work))

    def product(self, a: Quantized, b: Quantized, onto: Onto) -> Expr:
        """Multiply two quantized tensors elementwise."""
        whole = g.mul(q.centered(a.data, a.zero, -1), q.centered(b.data, b.zero, -1))
        return self.requantized(whole, self.ratio(a.scale, b.scale, onto), onto)

    def mean(self, sums: Expr, x: Quantized, count: int, onto: Onto) -> Expr:
        """Divide sums of `count` elements by `count` and requantize them.

        XNNPACK's arithmetic multiplies in float32 and adds the zero point before rounding. The
        other implementations divide the multiplier by `count`, which loses its last digits.
        """
        if self.products == _ONCE:
            ratio = number(x.scale) / number(onto.scale) / np.float32(count)
            y = g.op("qnn.product", g.cast(sums, "float32"), g.constant(ratio))
            y = g.op("round", g.add(y, g.cast(onto.zero, "float32")))
            return q.saturated(y, onto.dtype)
        factors = factors_of(number(x.scale), number(onto.scale), "TFLITE")
        exponent = int(factors.left) - int(factors.right)
        shift = min(count.bit_length() - 1, 32, 31 + exponent)
        multiplier, exponent = (int(factors.multiplier) << shift) // count, exponent - shift
        y = g.mul(fx.wide(sums), 1 << max(exponent, 0))
        last = max(-exponent, 0)
        y = fx.divided(fx.high_product(y, multiplier), last)
        y = g.add(y, fx.wide(onto.zero))
        return q.saturated(y, onto.dtype)

    def requantized(self, sums: Expr, ratio: Array, onto: Onto, axis: int = -1) -> Expr:
        """Multiply integers by `ratio` (one number, or one number per element of `axis`) with the
        interpreter's rounding, and convert them to the parameters `onto`.
        """
        if self.products == _TWICE_UP:
            return _rescaled_up(sums, ratio, onto, axis)
        return _rescaled(sums, ratio, onto, self.products, axis)


def _rescaled_up(sums: Expr, ratio: Array, onto: Onto, axis: int) -> Expr:
    """Requantize with rounding after the product with a 31-bit multiplier, and half up after the
    final shift.
    """
    factors = factors_of(ratio, np.float64(1), "TFLITE")
    along = partial(fx.along, axis=axis, rank=g.rank(sums))
    left, last = (np.asarray(v, np.int64) for v in (factors.left, factors.right))
    multiplier = np.asarray(factors.multiplier, np.int64) << left
    y = fx.wide(sums)
    if left.any():
        # values beyond this bound saturate in the result too, and their product would overflow
        most = along(((1 << 31) - 1) >> left)
        y = g.minimum(g.maximum(y, g.negative(most)), most)
    y = fx.right(g.add(g.mul(y, along(multiplier)), 1 << 30), 31)
    half = (np.int64(1) << last) >> 1
    y = g.op("right_shift", g.add(y, along(half)), along(last))
    y = g.add(y, fx.wide(onto.zero))
    return q.saturated(y, onto.dtype)


def scaled_twice(x: Expr, ratio: Any, onto: Onto) -> Expr:
    """Multiply int32 by a double-precision number (or one per column) as a 31-bit multiplier,
    rounded twice.
    """
    return _rescaled(x, np.asarray(ratio, np.float64), onto, _TWICE)


def _rescaled(x: Expr, ratio: Any, onto: Onto, rounding: str, axis: int = -1) -> Expr:
    one, zero = g.constant(1.0, "float32"), g.constant(0, _INT)
    how = {"rounding": rounding, "out_dtype": onto.dtype, "axis": axis}
    return g.op("qnn.requantize", x, g.constant(ratio), zero, one, onto.zero, **how)


def onto_whole(dtype: str = _INT) -> Onto:
    """Return quantization parameters of scale 1 and zero point 0."""
    return Onto(g.constant(1.0, "float32"), g.constant(0, _INT), DType(dtype))


# --- addition


def _sum_of_shifted(a: Quantized, b: Quantized, onto: Onto, sign: int, once: bool = False) -> Expr:
    """Add two quantized tensors as TFLite's reference kernel does: shift both left by 20 bits (15
    for int16), scale them to twice the larger scale, add, and requantize.

    once    the exponent of each scale factor is part of the shift before the product, which is then
            rounded once
    """
    bits = 20 if onto.dtype.bits == 8 else 15
    twice = 2 * np.float64(max(number(a.scale), number(b.scale)))
    shifted = []
    for v in (a, b):
        ratio = np.float64(number(v.scale)) / twice
        ratio, exponent = np.frexp(ratio) if once else (ratio, 0)
        places = bits + int(exponent)
        name = "left_shift" if places >= 0 else "right_shift"
        x = g.op(name, q.centered(v.data, v.zero, -1), g.constant(abs(places), _INT))
        shifted.append(_rescaled(x, ratio, onto_whole(), _TWICE))
    total = g.op("add" if sign > 0 else "subtract", *shifted)
    ratio = twice / ((1 << bits) * np.float64(number(onto.scale)))
    return _rescaled(total, ratio, onto, _TWICE)


def _sum_of_words(a: Quantized, b: Quantized, onto: Onto, sign: int) -> Expr:
    """Add two quantized tensors as LiteRT's own kernel does: int16 by shifts if all scales are
    powers of two, otherwise int16 sums in blocks of 16 elements; 8-bit tensors and other int16
    differences as the reference kernel does.
    """
    scales = [number(v.scale) for v in (a, b, onto)]
    if onto.dtype.bits == 8:
        return _sum_of_shifted(a, b, onto, sign)
    if any((np.frexp(scale)[0] != 0.5).any() for scale in scales):
        return _sum_in_blocks(a, b, onto) if sign > 0 else _sum_of_shifted(a, b, onto, sign)
    bits = [int(np.log2(scales[2] / s)) for s in scales[:2]]
    text = "LiteRT requires one of the two input scales to equal the output scale"
    require("tflite-quant", min(bits) == 0, text)
    x, y = (fx.divided(fx.wide(v.data), k) for v, k in zip((a, b), bits, strict=True))
    total = g.op("add" if sign > 0 else "subtract", x, y)
    return q.saturated(total, onto.dtype)


def _sum_in_blocks(a: Quantized, b: Quantized, onto: Onto) -> Expr:
    """Add int16 tensors of one shape (apart from leading axes of extent 1) as LiteRT's vectorized
    kernel does: in blocks of 16 elements each product is rounded once, with the exponent of its
    factor in the shift before it; in the remaining elements it is rounded twice.
    """
    longer = max(a.data, b.data, key=g.rank)
    shapes = [(1,) * (g.rank(longer) - g.rank(v.data)) + g.shape(v.data) for v in (a, b)]
    if shapes[0] != shapes[1]:
        return _sum_of_shifted(a, b, onto, 1)
    count = math.prod(shapes[0])
    whole, parts = count - count % 16, list[Expr]()
    for begin, end in ((0, whole), (whole, count)):
        cut = (g.cut(g.reshape(v.data, (-1,)), [begin], [end], [0]) for v in (a, b))
        x, y = (replace(v, data=data) for v, data in zip((a, b), cut, strict=True))
        parts += [_sum_of_shifted(x, y, onto, 1, once=end == whole)] if end > begin else []
    return g.reshape(g.concat(parts, 0), shapes[0]) if parts else _sum_of_shifted(a, b, onto, 1)


def _sum_of_products(a: Quantized, b: Quantized, onto: Onto, sign: int) -> Expr:
    """Add two 8-bit quantized tensors as XNNPACK does: multiply both by 21-bit integers, add, and
    shift right with rounding half up; other types as the reference kernel does.
    """
    if onto.dtype.bits != 8:
        return _sum_of_shifted(a, b, onto, sign)
    ratios = [number(v.scale) / number(onto.scale) for v in (a, b)]
    shift = 20 - (int(np.frexp(max(ratios))[1]) - 1)
    factors = [int(np.rint(np.ldexp(r, shift))) for r in ratios]
    factors[1] *= sign
    parts = [g.mul(q.centered(v.data, v.zero, -1), f) for v, f in zip((a, b), factors, strict=True)]
    total = g.add(g.add(*parts), 1 << (shift - 1))
    y = g.add(g.op("right_shift", total, g.constant(shift, _INT)), onto.zero)
    return q.saturated(y, onto.dtype)


# --- softmax


def _softmax_of_fixed_point(x: Quantized, onto: Onto, beta: float) -> Expr:
    """Compute softmax as TFLite Micro does: exponentials in fixed point with 31 fractional bits,
    their sum with 19, and its reciprocal by Newton's method.
    """
    ratio = min(float(number(x.scale)) * beta * (1 << 26), float((1 << 31) - 1))
    factors = factors_of(np.float64(ratio), np.float64(1), "TFLITE")
    left = int(factors.left)
    radius = int(np.floor(31 * (1 << 26) / 2.0**left))
    steps = g.constant(np.arange(256, dtype=np.int64) - 255)
    scaled = fx.high_product(g.mul(steps, 1 << left), int(factors.multiplier))
    e = g.where(g.less(steps, -radius), 0, fx.exp_of_negative(scaled, 5))
    place = _below_greatest(x)
    total = g.reduce("sum", _taken(g.cast(fx.divided(e, 12), _INT), place), [g.rank(place) - 1], True)
    total = fx.wide(total)
    zeros = fx.leading_zeros(total)
    shifted = g.sub(g.op("left_shift", total, zeros), 1 << 31)
    scale = fx.reciprocal(shifted)
    bits = onto.dtype.bits
    exponent = g.sub(g.constant(12 + 31 - bits, _WIDE), zeros)
    y = fx.divided(fx.high_product(_taken(e, place), scale), exponent)
    y = g.add(y, int(onto.dtype.min))
    return q.saturated(y, onto.dtype)


def _below_greatest(x: Quantized) -> Expr:
    """Return 255 minus the distance to the greatest element along the last axis: an index into a
    table of exponentials.
    """
    data = g.cast(x.data, _INT)
    top = g.reduce("max", data, [g.rank(data) - 1], True)
    return g.add(g.sub(data, top), 255)


def _taken(table: Expr, place: Expr) -> Expr:
    return g.op("take", table, place, axis=0, mode="clip")


def _softmax_of_table(x: Quantized, onto: Onto, beta: float) -> Expr:
    """Compute softmax as LiteRT does: float32 exponentials from a table, summed in order."""
    scale = np.float32(-number(x.scale) * np.float32(beta))
    steps = np.arange(255, -1, -1, dtype=np.float32)
    e = g.constant(np.exp((scale * steps).astype(np.float64)).astype(np.float32))
    terms = _taken(e, _below_greatest(x))
    last = g.rank(terms) - 1
    count = g.dim(terms, last)
    total = g.cut(g.op("cumsum", terms, axis=last), [count - 1], [count], [last])
    inverse = g.div(1.0, g.mul(total, float(number(onto.scale))))
    y = g.op("qnn.product", terms, inverse)
    whole = g.op("floor", y)
    up = g.cast(g.op("greater_equal", g.sub(y, whole), g.constant(0.5, "float32")), _INT)
    y = g.add(g.add(g.cast(whole, _INT), up), onto.zero)
    return q.saturated(y, onto.dtype)


# --- quantization of real numbers


def nearest(x: Expr) -> Expr:
    """Round real numbers to integers, half away from zero."""
    size, dtype = g.absolute(x), g.dtype(x)
    whole = g.op("floor", size)
    up = g.op("greater_equal", g.sub(size, whole), g.constant(0.5, dtype))
    size = g.add(whole, g.cast(up, dtype))
    return g.where(g.less(x, 0.0), g.negative(size), size)


def _away_from_zero(x: Expr, onto: Onto) -> Expr:
    """Quantize real numbers: divide by the scale and round half away from zero."""
    y = nearest(g.div(x, float(number(onto.scale))))
    low, high = int(onto.dtype.min), int(onto.dtype.max)
    zero = int(number(onto.zero))
    return g.cast(g.add(g.cast(g.clip(y, low - zero, high - zero), _INT), zero), onto.dtype)


def _to_even(x: Expr, onto: Onto) -> Expr:
    """Quantize real numbers: multiply by the inverse of the scale and round half to even."""
    y = g.op("qnn.product", x, g.constant(np.float32(1) / number(onto.scale)))
    return q.saturated(g.add(g.op("round", y), g.cast(onto.zero, "float32")), onto.dtype)


# --- requantization to another scale


def rescaled_twice(x: Quantized, onto: Onto) -> Expr:
    """Requantize by a 31-bit multiplier, rounded twice."""
    ratio = np.float64(number(x.scale)) / np.float64(number(onto.scale))
    return _rescaled(q.centered(x.data, x.zero, -1), ratio, onto, _TWICE)


def _rescaled_by_eighths(x: Quantized, onto: Onto) -> Expr:
    """Requantize as XNNPACK does: for 8-bit integers of one type whose quotient of scales is from
    2^-8 to 2^7 by a multiplier with 8 fractional bits, rounded half up; between different 8-bit
    types rounded twice, the second time half up; otherwise rounded twice.
    """
    source, ratio = g.dtype(x.data), number(x.scale) / number(onto.scale)
    whole = q.centered(x.data, x.zero, -1)
    if source != onto.dtype and source.bits == onto.dtype.bits == 8:
        ratio = np.float64(number(x.scale)) / np.float64(number(onto.scale))
        return _rescaled_up(whole, ratio, onto, -1)
    if source != onto.dtype or source.bits != 8 or not 2.0**-8 <= ratio <= 2.0**7:
        return rescaled_twice(x, onto)
    factor = int(np.rint(ratio * np.float32(256)))
    whole = g.add(g.mul(whole, factor), 128)
    y = g.add(g.op("right_shift", whole, g.constant(8, _INT)), onto.zero)
    return q.saturated(y, onto.dtype)


# --- LOGISTIC and TANH


def every(x: Quantized) -> Expr:
    """Return a constant of all 256 values of an 8-bit type in the order of their bit patterns, with
    the zero point subtracted, as int64.
    """
    bits = np.arange(256).astype(np.uint8).view(g.dtype(x.data).numpy)
    return g.sub(g.constant(bits.astype(np.int64)), fx.wide(x.zero))


def _curve_of_fixed_point(name: str, x: Quantized, onto: Onto) -> Expr:
    """Compute LOGISTIC or TANH as TFLite Micro does, in fixed point with 4 integer bits; inputs
    outside this range give the smallest or largest value. The result is a lookup in a table of 256
    values.
    """
    steps = every(x)
    factors = factors_of(np.float64(number(x.scale)) * (1 << 27), np.float64(1), "TFLITE")
    radius = int(np.floor(15 * (1 << 27) / 2.0 ** int(factors.left)))
    scaled = fx.high_product(g.mul(steps, 1 << int(factors.left)), int(factors.multiplier))
    scaled = fx.divided(scaled, int(factors.right))
    curve, bits = {"LOGISTIC": (fx.logistic, 23), "TANH": (fx.tanh, 24)}[name]
    low, high = int(onto.dtype.min), int(onto.dtype.max)
    whole = name == "TANH" or number(onto.zero) == low
    require("tflite-quant", bool(whole), f"the output of integer LOGISTIC must have the zero point {low}")
    y = g.add(fx.divided(curve(scaled, 4), bits), low if name == "LOGISTIC" else (low + high + 1) // 2)
    y = g.clip(y, low, high)
    y = g.where(g.greater(steps, radius - 1), high, g.where(g.less(steps, 1 - radius), low, y))
    return q.looked_up(g.cast(y, onto.dtype), x.data)


def _curve_of_float(name: str, x: Quantized, onto: Onto) -> Expr:
    """Compute LOGISTIC or TANH as LiteRT does, in floating point and rounded half to even. The
    result is a lookup in a table of 256 values.
    """
    real = np.float32(number(x.scale)) * number(every(x)).astype(np.float32)
    exact = 1 / (1 + np.exp(-real.astype(np.float64))) if name == "LOGISTIC" else np.tanh(real.astype(np.float64))
    inverse = np.float32(1) / number(onto.scale)
    y = np.rint(exact.astype(np.float32) * inverse) + number(onto.zero)
    table = np.clip(y, int(onto.dtype.min), int(onto.dtype.max)).astype(onto.dtype.numpy)
    return q.looked_up(g.constant(table), x.data)


ROUNDINGS: Final = {
    "tflm": Rounding(
        "tflm",
        np.float64,
        _TWICE,
        _sum_of_shifted,
        _softmax_of_fixed_point,
        _away_from_zero,
        rescaled_twice,
        _curve_of_fixed_point,
    ),
    "litert": Rounding(
        "litert",
        np.float32,
        _ONCE,
        _sum_of_products,
        _softmax_of_table,
        _to_even,
        _rescaled_by_eighths,
        _curve_of_float,
    ),
}
#: Arithmetic of LiteRT's own kernels.
BUILTIN: Final = Rounding(
    "builtin", np.float64, _TWICE, _sum_of_words, _softmax_of_table, _to_even, rescaled_twice, _curve_of_float
)
#: Arithmetic of LiteRT's own elementwise products of 16-bit integers.
PRODUCTS: Final = replace(BUILTIN, work=np.float32)
#: Arithmetic of LiteRT's own 8-bit layers.
RUY: Final = replace(BUILTIN, name="ruy", products=_TWICE_UP)
