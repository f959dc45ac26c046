# SPDX-License-Identifier: Apache-2.0
"""Converters of layers: convolutions, products, pools, softmax.

Data lies in NHWC and stays there.  Sums of products of integers are
brought to the result's scale by the rounding that is asked for.

OPS["CONV_2D"](x, w, bias, padding=0, stride_h=1, stride_w=1, node=node)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import quantisation as q
from aotc.relay.frontend import windows
from aotc.relay.frontend.arguments import Maybe
from aotc.relay.frontend.tflite.dynamic import dynamic
from aotc.relay.frontend.tflite.node import Node, Table
from aotc.relay.frontend.windows import Window

_SAME: Final = 0
_SHUFFLED: Final = 1
_NHWC: Final = "NHWC"


def window_of(x: Expr, kernel: Sequence[int], strides: Sequence[int], padding: int, dilations: Any = (1, 1)) -> Window:
    """A window over the two middle axes."""
    require("graph-rank", g.rank(x) == 4, f"data of rank {g.rank(x)} is not supported (4 is)")
    numbers = (*kernel, *strides, *dilations)
    require("tflite-options", min(numbers) > 0, f"extents, strides and dilations must be positive: {numbers}")
    window = Window(tuple(kernel), tuple(strides), tuple(dilations), (0, 0, 0, 0))
    spatial = g.shape(x)[1:3]
    if padding == _SAME:
        return window.padded(windows.same_padding(spatial, window))
    fits = all(n >= s for n, s in zip(spatial, window.spans(), strict=True))
    require("graph-shape", fits, f"a window of {window.spans()} does not fit {spatial}")
    return window


# --- convolutions


def _convolved(node: Node, window: Window, groups: int, layout: str) -> Expr:
    """A convolution, its bias and its activation."""
    place = layout.index("O")
    how: dict[str, Any] = {"data_layout": _NHWC, "kernel_layout": layout, "groups": groups}
    bias, last = node.optional(2), 3
    if node.is_dynamic:
        return node.activated(_dynamically_convolved(node, window, how))
    if not node.in_integers:
        y = windows.convolve(node[0], node.real(1), window, bias, **how)
        return node.activated(y)
    x, w = node.whole(0), node.weights(1, place)
    y = windows.convolve(x.data, w.data, window, bias, terms=q.terms(x, w), out_dtype="int32", **how)
    onto = node.onto()
    ratio = node.rounding.ratio(x.scale, w.scale, onto)
    return node.activated(node.rounding.requantized(y, ratio, onto, last))


def _dynamically_convolved(node: Node, window: Window, how: Any) -> Expr:
    """An image has a scale of its own; a pixel, where windows are single ones."""
    one = {*window.kernel, *window.strides} == {1}
    x, w = dynamic(node[0], (3,) if one else (1, 2, 3)), node.weights(1, how["kernel_layout"].index("O"))
    x = x.around_zero() if not one and g.dim(node[0], 0) != 1 else x
    sums = windows.convolve(x.data, w.data, window, terms=x.terms(w), out_dtype="int32", **how)
    return x.real(sums, w, node.optional(2), 3)


def _conv_2d(
    x: Expr,
    w: Expr,
    bias: Maybe = None,
    *,
    padding: int,
    stride_h: int,
    stride_w: int,
    dilation_h_factor: int = 1,
    dilation_w_factor: int = 1,
    node: Node,
) -> Expr:
    require("graph-rank", g.rank(w) == 4, f"weights of rank {g.rank(w)} are not supported (4 is)")
    dilations = dilation_h_factor, dilation_w_factor
    window = window_of(x, g.shape(w)[1:3], (stride_h, stride_w), padding, dilations)
    inputs, each = g.dim(x, 3), g.dim(w, 3)
    whole = each > 0 and inputs % each == 0
    require("graph-shape", whole, f"weights for {each} channels do not fit {inputs}")
    return _convolved(node, window, inputs // each, "OHWI")


def _depthwise_conv_2d(
    x: Expr,
    w: Expr,
    bias: Maybe = None,
    *,
    padding: int,
    stride_h: int,
    stride_w: int,
    dilation_h_factor: int = 1,
    dilation_w_factor: int = 1,
    node: Node,
) -> Expr:
    fits = g.rank(w) == 4 and g.dim(w, 0) == 1
    require("graph-shape", fits, f"weights of shape {g.shape(w)} are none of a depthwise convolution")
    dilations = dilation_h_factor, dilation_w_factor
    window = window_of(x, g.shape(w)[1:3], (stride_h, stride_w), padding, dilations)
    return _convolved(node, window, g.dim(x, 3), "IHWO")


# --- products


def _fully_connected(
    x: Expr, w: Expr, bias: Maybe = None, *, weights_format: int = 0, keep_num_dims: bool = False, node: Node
) -> Expr:
    require("tflite-options", weights_format != _SHUFFLED, "shuffled weights are not supported")
    require("graph-rank", g.rank(w) == 2, f"weights of rank {g.rank(w)} are not supported (2 is)")
    units, inner = g.shape(w)
    lead = g.shape(x)[:-1] if keep_num_dims else (-1,)
    rows = (-1, inner)
    if node.is_dynamic:
        d, v = dynamic(g.reshape(x, rows), (1,)), node.weights(1, 0)
        sums = g.op("qnn.dense", d.data, v.data, *d.terms(v), units=units)
        y = d.real(sums, v, bias, 1)
        return g.reshape(node.activated(y), (*lead, units))
    if not node.in_integers:
        y = g.op("nn.dense", g.reshape(x, rows), node.real(1), units=units)
        return g.reshape(node.activated(windows.with_bias(y, bias, 1)), (*lead, units))
    a, b = node.whole(0), node.weights(1, 0)
    sums = g.op("qnn.dense", g.reshape(a.data, rows), b.data, *q.terms(a, b), units=units)
    sums = windows.with_bias(sums, bias, 1)
    onto = node.onto()
    ratio = node.rounding.dense_ratio(a.scale, b.scale, onto)
    y = node.rounding.requantized(sums, ratio, onto, 1)
    return g.reshape(node.activated(y), (*lead, units))


# --- pools


def _pool_window(x: Expr, node: Node) -> Window:
    options = ("FilterHeight", "FilterWidth", "StrideH", "StrideW", "Padding")
    fh, fw, sh, sw, padding = (node.op.option(name) for name in options)
    require("tflite-options", fh is not None, f"{node.op.name} has no options")
    return window_of(x, (fh, fw), (sh, sw), padding)


def same_scale(node: Node, index: int = 0) -> None:
    """AotcError unless an input and the output have one scale and zero point."""
    x, y = node.tensor(index), node.result
    fits = np.array_equal(x.scale, y.scale) and np.array_equal(x.zero, y.zero)
    text = f"input {index} and output of {node.op.name} have different scales"
    require("tflite-quant", fits or not y.quantised, text)


def _max_pool_2d(x: Expr, *, node: Node) -> Expr:
    same_scale(node)
    y = windows.pool("max", x, _pool_window(x, node), layout=_NHWC)
    return node.activated(y)


def _average_pool_2d(x: Expr, *, node: Node) -> Expr:
    """The mean of integers, halves away from zero; the zero point stays in it."""
    window = _pool_window(x, node)
    if not node.in_integers:
        return node.activated(windows.pool("avg", x, window, layout=_NHWC))
    same_scale(node)
    return node.activated(_mean_of_integers(x, window))


def _mean_of_integers(x: Expr, window: Window) -> Expr:
    ones = g.filled(1, (g.dim(x, 3), *window.kernel, 1), "int8")
    how: dict[str, Any] = {"data_layout": _NHWC, "kernel_layout": "OHWI", "groups": g.dim(x, 3)}
    sums = windows.convolve(x, ones, window, out_dtype="int32", **how)
    counts = _counts(g.shape(x)[1:3], window, g.shape(sums)[1:3])
    half = g.op("floor_divide", counts, g.constant(2, "int32"))
    size = g.op("floor_divide", g.add(g.absolute(sums), half), counts)
    return g.cast(g.where(g.less(sums, 0), g.negative(size), size), g.dtype(x))


def _counts(spatial: Sequence[int], window: Window, counts: Sequence[int]) -> Expr:
    """How many elements each window holds: one number, or (1, h, w, 1)."""
    rows = []
    for k, count in enumerate(counts):
        begin = np.arange(count) * window.strides[k] - window.pads[k]
        end = np.minimum(begin + window.kernel[k], spatial[k])
        rows.append(end - np.maximum(begin, 0))
    both = np.outer(*rows).astype(np.int32)
    if both.size and (both == both.flat[0]).all():
        return g.constant(both.flat[0], "int32")
    return g.constant(both.reshape(1, *both.shape, 1))


# --- activations along an axis


def _softmax(x: Expr, *, beta: float, node: Node) -> Expr:
    if not node.in_integers:
        return g.op("nn.softmax", g.scaled(x, beta), axis=-1)
    return node.rounding.softmax(node.whole(0), node.onto(), float(beta))


OPS: Table = {
    "AVERAGE_POOL_2D": _average_pool_2d,
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "FULLY_CONNECTED": _fully_connected,
    "MAX_POOL_2D": _max_pool_2d,
    "SOFTMAX": _softmax,
}
