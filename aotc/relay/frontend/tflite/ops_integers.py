# SPDX-License-Identifier: Apache-2.0
"""Integer forms of TFLite operators that have arithmetic of their own, as TFLite's reference
kernels or XNNPACK compute them: activations, bilinear resizing, matrix products.

Input: an operator with its inputs. Output: integers of its output tensor.

    hard_swish(node)
    resized(node, (8, 8), False, True)      # bilinear, of centers of pixels
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.quantization import Quantized
from aotc.relay.frontend.tflite import int16x8
from aotc.relay.frontend.tflite.integer_semantics import every, number, onto_whole, scaled_twice
from aotc.relay.frontend.tflite.node import Node, check_scales
from aotc.relay.graph_api import Expr, known_data
from aotc.relay.op.qnn.fixed_point import factors_of

_INT: Final = "int32"


def _centered(x: Quantized) -> Expr:
    return q.centered(x.data, x.zero, -1)


def _whole(ratio: Any) -> tuple[int, int]:
    """Return a real factor as an integer multiplier with 15 fractional bits and an exponent of two."""
    f = factors_of(np.float64(ratio), np.float64(1), "TFLITE")
    return min((int(f.multiplier) + (1 << 15)) >> 16, (1 << 15) - 1), int(f.left) - int(f.right)


def _high(a: Array, b: int) -> Array:
    """Return a * b / 2^15, rounded half up."""
    return (a * b + (1 << 14)) >> 15


def _divided(a: Array, bits: int) -> Array:
    """Return a / 2^bits, rounded half away from zero."""
    return a if bits <= 0 else (a + (1 << bits >> 1) - (a < 0)) >> bits


def _saturated(a: Array) -> Array:
    return np.clip(a, -(1 << 15), (1 << 15) - 1)


def hard_swish(node: Node) -> Expr:
    """Compute HARD_SWISH, x * relu6(x + 3) / 6, of 8-bit quantized integers with 16-bit products,
    as a table of 256 values.
    """
    x, onto = node.whole(0), node.onto()
    fine = number(x.scale) * np.float32(1 / 128)
    factor, exponent = _whole(fine / number(onto.scale))
    gate, shift = _whole(fine / np.float32(3 / 32768))
    text = "the scales of HARD_SWISH are too far apart"
    require("tflite-quant", -15 <= exponent <= 0 and shift >= -15, text)
    steps = number(every(x)) << 7
    scaled = _high(steps, factor)
    y = _saturated(steps << (shift - 1)) if shift > 0 else steps
    y = _high(y, gate)
    y = _saturated(y << 1) if shift > 0 else _divided(y, -shift)
    y = (y + (1 << 15)) >> 1
    product = y * scaled
    whole = np.sign(product) * (abs(product) >> 15)
    table = _divided(whole, -exponent) + int(number(onto.zero))
    low, high = int(onto.dtype.min), int(onto.dtype.max)
    return q.looked_up(g.constant(np.clip(table, low, high).astype(onto.dtype.numpy)), x.data)


def leaky_relu(node: Node, alpha: float) -> Expr:
    """Compute LEAKY_RELU of quantized integers: x for x >= 0 and alpha * x for x < 0."""
    x, onto = node.whole(0), node.onto()
    up, down = number(x.scale) / onto_scale(node), number(x.scale) * np.float32(alpha) / onto_scale(node)
    steps = _centered(x)
    fits = 2.0**-8 <= up <= 128 and 2.0**-8 <= abs(down) < 128
    if node.rounding.name != "litert" or not fits:
        # multipliers must be positive: negate the data instead
        other = scaled_twice(steps if alpha >= 0 else g.negative(steps), abs(down), onto)
        return g.where(g.less(steps, 0), other, scaled_twice(steps, up, onto))
    factors = (int(np.rint(np.float32(v) * np.float32(256))) for v in (up, down))
    above, below = (g.mul(steps, f) for f in factors)
    y = g.add(g.where(g.less(steps, 0), below, above), 128)
    y = g.add(g.op("right_shift", y, g.constant(8, _INT)), onto.zero)
    return q.saturated(y, onto.dtype)


def onto_scale(node: Node) -> Array:
    """Return the scale of a TFLite operator's first output."""
    return number(node.onto().scale)


def prelu(node: Node) -> Expr:
    """Compute PRELU of quantized integers: x for x >= 0 and slope * x for x < 0; the slope
    broadcasts.
    """
    x, slope, onto = node.whole(0), node.whole(1), node.onto()
    steps = _centered(x)
    scales = (number(v).astype(np.float64) for v in (x.scale, slope.scale, onto.scale))
    a, b, c = scales
    below = scaled_twice(g.mul(steps, _centered(slope)), a * b / c, onto)
    return g.where(g.less(steps, 0), below, scaled_twice(steps, a / c, onto))


def squared_difference(node: Node) -> Expr:
    """Compute SQUARED_DIFFERENCE, (a - b)^2, of quantized integers: shift both inputs left by 7
    bits (not for int16), scale them to twice the larger scale, subtract, square and requantize.
    """
    bits = 0 if node.in_words else 7
    a, b, onto = node.whole(0), node.whole(1), node.onto()
    twice = 2 * np.float64(max(number(a.scale), number(b.scale)))
    parts = []
    for v in (a, b):
        wide = g.op("left_shift", _centered(v), g.constant(bits, _INT))
        parts.append(scaled_twice(wide, np.float64(number(v.scale)) / twice, onto_whole()))
    d = g.sub(*parts)
    return scaled_twice(g.mul(d, d), twice * twice / ((1 << 2 * bits) * np.float64(number(onto.scale))), onto)


# --- bilinear resizing


def _lines(count: int, size: int, corners: bool, centers: bool, exact: bool) -> tuple[Array, Array, Array]:
    """Return for each line of a bilinear resize the two source lines between which it lies and the
    weight of the second one: with 10 fractional bits, or if not `exact` with 11, computed in
    float32.
    """
    aligned = corners and count > 1
    last, n = size - 1, np.arange(count)
    if not exact:
        scale = np.float32(size - aligned) / np.float32(count - aligned)
        place = n.astype(np.float32) * scale
        if centers and not corners:
            place = np.clip(place + (np.float32(0.5) * scale - np.float32(0.5)), 0, np.float32(last))
        low = place.astype(np.int64)
        part = np.rint((place - low.astype(np.float32)) * np.float32(2048)).astype(np.int64)
        return low, np.minimum(low + 1, last), part
    top, bottom = (1024 * last, count - 1) if aligned else (1024 * size, count)
    scale = (top + bottom // 2) // bottom
    place = n * scale + ((scale // 2 - 512) if centers else 0)
    low = np.maximum(place // 1024, 0)
    return low, np.minimum(-(-place // 1024), last), place - 1024 * low


def resized(node: Node, sizes: Sequence[int], corners: bool, centers: bool) -> Expr:
    """Compute RESIZE_BILINEAR of quantized images with 10-bit weights and rounding half away from
    zero; for XNNPACK with 11-bit weights and rounding half up.
    """
    check_scales(node, True)
    exact, wide = node.rounding.name != "litert", "int64" if node.in_words else _INT
    y = g.cast(node[0], wide)
    bits = 10 if exact else 11
    for axis, count in ((2, sizes[1]), (1, sizes[0])):
        low, high, part = _lines(count, g.dim(y, axis), corners, centers, exact)
        first, second = (g.op("take", y, g.constant(v, _INT), axis=axis, mode="clip") for v in (low, high))
        weights = [g.along(g.constant(v, wide), axis, 4) for v in ((1 << bits) - part, part)]
        y = g.add(g.mul(first, weights[0]), g.mul(second, weights[1]))
    shift, half = g.constant(2 * bits, wide), 1 << (2 * bits - 1)
    if not exact:
        return g.cast(g.op("right_shift", g.add(y, half), shift), node.result.dtype)
    size = g.op("right_shift", g.add(g.absolute(y), half), shift)
    return g.cast(g.where(g.less(y, 0), g.negative(size), size), node.result.dtype)


# --- matrix products


def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """Compute BATCH_MATMUL of quantized matrices, which are already transposed as required;
    XNNPACK's arithmetic applies if the second operand is a constant with zero point 0.
    """
    x, y, onto = node.whole(0), node.whole(1), node.onto()
    wide = "int64" if node.in_words else _INT
    sums = q.product(Quantized(a, x.scale, x.zero), Quantized(b, y.scale, y.zero), wide)
    if node.rounding.name == "litert" and known_data(node[1]) is not None and q.is_zero(y.zero):
        return node.rounding.requantized(sums, node.rounding.ratio(x.scale, y.scale, onto), onto)
    both = (number(x.scale) * number(y.scale)).astype(np.float64)
    ratio = both / np.float64(number(onto.scale))
    return int16x8.requantized(sums, ratio, onto, -1) if node.in_words else scaled_twice(sums, ratio, onto)
