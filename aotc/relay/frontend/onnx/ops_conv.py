# SPDX-License-Identifier: Apache-2.0
"""Converters of convolutions and pools, for one to three spatial axes.

OPS["Conv"](node)                       # nn.bias_add(nn.conv2d(x, w, ...), b)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import windows
from aotc.relay.frontend.onnx.node import Converted, Converter, Node, Table
from aotc.relay.frontend.quantisation import centred
from aotc.relay.frontend.shapes import take
from aotc.relay.frontend.windows import Window

_PLAIN = ("", "NOTSET", "VALID")
"""Values of `auto_pad` for which the padding does not depend on the data."""


def window_of(node: Node, x: Expr, kernel: Sequence[int]) -> Window:
    """The window that a node's attributes describe, padded as `auto_pad` asks for.

    Raises AotcError (code "onnx-window") for attributes that do not fit each other.
    """
    window, auto = _stated(node, kernel), node.text("auto_pad", "NOTSET")
    if auto in _PLAIN:
        return window
    spatial = _spatial(x)
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise AotcError("onnx-window", f"auto_pad {auto!r} is not supported here")
    return window.padded(windows.same_padding(spatial, window, auto == "SAME_UPPER"))


def _stated(node: Node, kernel: Sequence[int]) -> Window:
    """The window of a node, without the padding that `auto_pad` has worked out."""
    rank = len(kernel)
    strides = tuple(node.ints("strides") or [1] * rank)
    dilations = tuple(node.ints("dilations") or [1] * rank)
    pads = tuple(node.ints("pads") or [0] * (2 * rank))
    fits = len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    if not fits or min((*strides, *dilations, *kernel), default=1) < 1 or min(pads, default=0) < 0:
        text = f"kernel {list(kernel)}, strides {strides}, dilations {dilations}, pads {pads} do not fit"
        raise AotcError("onnx-window", text)
    return Window(tuple(kernel), strides, dilations, pads if node.text("auto_pad") != "VALID" else (0,) * len(pads))


def _spatial(x: Expr) -> list[int]:
    return [g.dim(x, k) for k in range(2, g.rank(x))]


def _spatial_rank(node: Node, x: Expr) -> int:
    return windows.spatial_rank(g.rank(x), f"{node.op_type} of an input")


def _kernel(node: Node, x: Expr, w: Expr) -> tuple[int, ...]:
    """The extents of the weight of a convolution."""
    rank = _spatial_rank(node, x)
    shape, given = g.shape(w, "the weight"), node.ints("kernel_shape")
    if len(shape) != rank + 2 or (given is not None and tuple(given) != shape[2:]):
        raise AotcError("onnx-window", f"a weight of shape {shape} does not fit the input and kernel_shape {given}")
    return shape[2:]


def convolve(node: Node, x: Expr, w: Expr, bias: Expr | None = None, out_dtype: str = "") -> Expr:
    """The convolution that a node describes."""
    window = window_of(node, x, _kernel(node, x, w))
    return windows.convolve(x, w, window, bias, node.integer("group", 1), out_dtype=out_dtype)


def _conv_integer(node: Node) -> Expr:
    x, w = centred(node[0], node.optional(2), 1), centred(node[1], node.optional(3), 0)
    return convolve(node, x, w, out_dtype="int32")


def _conv_transpose(node: Node) -> Expr:
    x, w = node[0], node[1]
    window, extra = _transposed_padding(node, x, _stated(node, _kernel(node, x, w)))
    return windows.convolve_transposed(x, w, window, node.optional(2), node.integer("group", 1), extra)


def _transposed_padding(node: Node, x: Expr, window: Window) -> tuple[Window, tuple[int, ...]]:
    """Padding and output padding, worked out from `output_shape` or `auto_pad` where those are given."""
    extra = tuple(node.ints("output_padding") or [0] * window.rank)
    target, auto = node.ints("output_shape"), node.text("auto_pad", "NOTSET")
    if target is None and auto in _PLAIN:
        return window, extra
    sizes = _spatial(x)
    if target is None:
        target = [size * stride for size, stride in zip(sizes, window.strides, strict=True)]
    target = target[-window.rank :]
    totals = [
        stride * (size - 1) + more + span - wanted
        for stride, size, more, span, wanted in zip(window.strides, sizes, extra, window.spans(), target, strict=True)
    ]
    extra = tuple(more + max(-total, 0) for more, total in zip(extra, totals, strict=True))
    return window.padded(windows.halves([max(t, 0) for t in totals], auto == "SAME_UPPER")), extra


# --- pools


def _pool_window(node: Node, x: Expr) -> Window:
    """The window of a pool, over as many axes as `x` has spatial ones."""
    rank, kernel = _spatial_rank(node, x), node.ints("kernel_shape") or []
    if len(kernel) != rank:
        raise AotcError("onnx-window", f"kernel_shape {kernel} does not fit an input of rank {rank + 2}")
    return window_of(node, x, kernel)


def _pool(kind: str) -> Converter:
    def convert(node: Node) -> Converted:
        x = node[0]
        window, ceil = _pool_window(node, x), node.flag("ceil_mode")
        if kind == "avg":
            include = node.flag("count_include_pad")
            return windows.pool(kind, x, window, ceil_mode=ceil, count_include_pad=include)
        result = windows.pool(kind, x, window, ceil_mode=ceil)
        if not node.wants(1):
            return result
        return [result, _pool_indices(x, window, g.shape(result), node.flag("storage_order"))]

    return convert


def _pool_indices(x: Expr, window: Window, result: Sequence[int], column_major: bool) -> Expr:
    """Where in the flattened data the greatest value of each window lies: the first tap that is greatest."""
    shape, rank = g.shape(x), window.rank
    sizes, counts = shape[2:], result[2:]
    ends = [(n - 1) * s + span for n, s, span in zip(counts, window.strides, window.spans(), strict=True)]
    widths = [(b, max(end - b - size, 0)) for b, end, size in zip(window.pads, ends, sizes, strict=False)]
    dtype = g.dtype(x)
    padded = g.pad(x, [(0, 0), (0, 0), *widths], float("-inf") if dtype.is_float else dtype.min)
    steps = [math.prod(sizes[:k]) if column_major else math.prod(sizes[k + 1 :]) for k in range(rank)]
    taps, offsets = [], []
    g.check_unrolled(math.prod(window.kernel), "the indices of a pool")
    for tap in itertools.product(*(range(k) for k in window.kernel)):
        begin = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, counts, window.strides, strict=True)]
        part = g.cut(padded, begin, end, range(2, rank + 2), window.strides)
        taps.append(g.reshape(part, (1, *result)))
        offsets.append(sum(b * step for b, step in zip(begin, steps, strict=True)))
    best = g.cast(g.op("argmax", g.concat(taps, 0), axis=(0,), keepdims=False), "int64")
    base = np.arange(shape[0] * shape[1]).reshape(*shape[:2], *(1,) * rank) * math.prod(sizes)
    for k in range(rank):
        first = (np.arange(counts[k]) * window.strides[k] - window.pads[k]) * steps[k]
        base = base + first.reshape(-1, *(1,) * (rank - 1 - k))
    return g.add(take(g.constant(offsets, "int64"), best, 0), g.constant(base, "int64"))


def _max_unpool(node: Node) -> Expr:
    """Each value goes back to where it came from; the indices refer to the flattened result."""
    x, indices = node[0], node[1]
    given = node.const_ints(2, "the output shape")
    window = _pool_window(node, x)
    rows = zip(g.shape(x)[2:], window.strides, window.spans(), strict=True)
    natural = [(size - 1) * stride + span for size, stride, span in rows]
    spatial = [n - window.pads[k] - window.pads[k + window.rank] for k, n in enumerate(natural)]
    inferred = (*g.shape(x)[:2], *spatial)
    target = g.checked_shape(given if given is not None else inferred, g.dtype(x), "the result of MaxUnpool")
    if given is not None and target != inferred:  # indices count in the shape that the window implies
        indices = _moved(indices, inferred, target)
    zeros = g.filled(0, (math.prod(target),), g.dtype(x))
    flat = g.op("scatter_elements", zeros, g.reshape(indices, (-1,)), g.reshape(x, (-1,)), axis=0, reduction="update")
    return g.reshape(flat, target)


def _moved(indices: Expr, source: Sequence[int], target: Sequence[int]) -> Expr:
    """Flat positions in one shape as flat positions in another."""
    result: Expr | None = None
    for k in range(len(source)):
        place = g.binary("floor_mod", g.binary("floor_divide", indices, math.prod(source[k + 1 :])), source[k])
        term = g.mul(place, math.prod(target[k + 1 :]))
        result = term if result is None else g.add(result, term)
    assert result is not None
    return result


def _global(kind: str) -> Converter:
    def convert(node: Node) -> Expr:
        x = node[0]
        if g.rank(x) == 4:
            return g.op(f"nn.global_{kind}_pool2d", x)
        return g.reduce("mean" if kind == "avg" else kind, x, range(2, g.rank(x)), True)

    return convert


def _norm(x: Expr, p: int) -> Expr:
    return g.absolute(x) if p == 1 else g.op("power", g.absolute(x), g.constant(p, g.dtype(x)))


def _root(x: Expr, p: int) -> Expr:
    if p < 1:
        raise AotcError("onnx-attribute", f"attribute 'p' must be 1 or greater, it is {p}")
    if p == 1:
        return x
    return g.sqrt(x) if p == 2 else g.op("power", x, g.constant(1.0 / p, g.dtype(x)))


def _global_lp_pool(node: Node) -> Expr:
    x, p = node[0], node.integer("p", 2)
    return _root(g.reduce("sum", g.mul(x, x) if p == 2 else _norm(x, p), range(2, g.rank(x)), True), p)


def _lp_pool(node: Node) -> Expr:
    """The root of a sum of powers over complete windows: zeros are added until every window is complete."""
    x, p = node[0], node.integer("p", 2)
    sizes = g.shape(x)[2:]
    window = _pool_window(node, x)
    rank = window.rank
    widths = [(0, 0), (0, 0)]
    for k, (size, span, stride) in enumerate(zip(sizes, window.spans(), window.strides, strict=True)):
        before, after = window.pads[k], window.pads[k + rank]
        room = size + before + after - span
        steps = -(-room // stride) if node.integer("ceil_mode") else room // stride
        if steps * stride >= size + before:
            steps -= 1
        widths.append((before, steps * stride + span - size - before))
    y = g.pad(g.mul(x, x) if p == 2 else _norm(x, p), [(b, max(a, 0)) for b, a in widths])
    y = windows.pool("avg", y, window.padded((0,) * (2 * rank)), ceil_mode=False, count_include_pad=True)
    return _root(g.mul(y, float(math.prod(window.kernel))), p)


OPS: Table = {
    "AveragePool": _pool("avg"),
    "Conv": lambda node: convolve(node, node[0], node[1], node.optional(2)),
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global("avg"),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global("max"),
    "LpPool": _lp_pool,
    "MaxPool": _pool("max"),
    "MaxUnpool": _max_unpool,
}
