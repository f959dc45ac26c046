# SPDX-License-Identifier: Apache-2.0
"""Converters of convolutions and pools, for one to three spatial axes.

OPS["Conv"](node)                       # nn.bias_add(nn.conv2d(x, w, ...), b)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.node import Converted, Converter, Node, Table

_KERNEL_LAYOUT = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial axes; `pads` holds all befores, then all afters."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def spans(self) -> list[int]:
        """The extent of the window per axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def window_of(node: Node, spatial: Sequence[int] | None, kernel: Sequence[int]) -> Window:
    """The window that a node's attributes describe; `spatial` is needed where `auto_pad` asks for it.

    Raises AotcError (code "onnx-window") for attributes that do not fit each other.
    """
    rank = len(kernel)
    strides = tuple(node.ints("strides") or [1] * rank)
    dilations = tuple(node.ints("dilations") or [1] * rank)
    pads = tuple(node.ints("pads") or [0] * (2 * rank))
    fits = len(strides) == len(dilations) == rank and len(pads) == 2 * rank
    if not fits or min((*strides, *dilations, *kernel), default=1) < 1 or min(pads, default=0) < 0:
        text = f"kernel {list(kernel)}, strides {strides}, dilations {dilations}, pads {pads} do not fit"
        raise AotcError("onnx-window", text)
    window = Window(tuple(kernel), strides, dilations, pads)
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("", "NOTSET"):
        return window
    if auto == "VALID":
        return Window(window.kernel, strides, dilations, (0,) * (2 * rank))
    if auto not in ("SAME_UPPER", "SAME_LOWER") or spatial is None:
        raise AotcError("onnx-window", f"auto_pad {auto!r} is not supported here")
    totals = [
        max((-(-size // stride) - 1) * stride + span - size, 0)
        for size, stride, span in zip(spatial, strides, window.spans(), strict=True)
    ]
    return Window(window.kernel, strides, dilations, _halves(totals, more_after=auto == "SAME_UPPER"))


def _halves(totals: Sequence[int], more_after: bool) -> tuple[int, ...]:
    """Padding split in two, the odd element before or after."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*small, *large) if more_after else (*large, *small)


def spatial_rank(x: Expr, op_type: str) -> int:
    """The number of spatial axes, 1 to 3."""
    rank = g.rank(x) - 2
    if not 1 <= rank <= 3:
        raise AotcError("onnx-rank", f"{op_type} of an input of rank {rank + 2} is not supported (3 to 5 are)")
    return rank


def _spatial(node: Node, x: Expr) -> tuple[int, ...] | None:
    """The spatial extents where the padding depends on them."""
    if node.text("auto_pad", "NOTSET") in ("", "NOTSET", "VALID"):
        return None
    return tuple(g.dim(x, k) for k in range(2, g.rank(x)))


def _weight_shape(node: Node, w: Expr, rank: int) -> tuple[int, ...]:
    """The shape of the weight of a convolution over `rank` spatial axes."""
    shape, given = g.shape(w, "the weight"), node.ints("kernel_shape")
    if len(shape) != rank + 2 or (given is not None and tuple(given) != shape[2:]):
        raise AotcError("onnx-window", f"a weight of shape {shape} does not fit the input and kernel_shape {given}")
    return shape


def convolve(node: Node, x: Expr, w: Expr, out_dtype: str = "") -> Expr:
    """The convolution a node describes, without bias."""
    rank = spatial_rank(x, node.op_type)
    shape = _weight_shape(node, w, rank)
    window = window_of(node, _spatial(node, x), shape[2:])
    return g.op(
        f"nn.conv{rank}d",
        x,
        w,
        strides=window.strides,
        padding=window.pads,
        dilation=window.dilations,
        groups=node.integer("group", 1),
        channels=shape[0],
        kernel_size=window.kernel,
        out_dtype=out_dtype,
    )


def with_bias(y: Expr, bias: Expr | None) -> Expr:
    """`y` with a bias per channel."""
    return y if bias is None else g.op("nn.bias_add", y, bias, axis=1)


def _conv(node: Node) -> Expr:
    return with_bias(convolve(node, node.input(0), node.input(1)), node.optional(2))


def _conv_integer(node: Node) -> Expr:
    x, w = centred(node.input(0), node.optional(2), 1), centred(node.input(1), node.optional(3), 0)
    return convolve(node, x, w, "int32")


def centred(x: Expr, zero_point: Expr | None, axis: int) -> Expr:
    """A quantised tensor as int32, its zero point (one, or one along `axis`) taken off."""
    wide = g.cast(x, "int32")
    if zero_point is None or (isinstance(zero_point, Constant) and not zero_point.data.any()):
        return wide
    point = g.cast(zero_point, "int32")
    if g.rank(point) == 1:
        point = g.reshape(point, () if g.dims(point) == (1,) else (-1, *(1,) * (g.rank(x) - 1 - axis)))
    return g.sub(wide, point)


def _conv_transpose(node: Node) -> Expr:
    x, w = node.input(0), node.input(1)
    rank = spatial_rank(x, node.op_type)
    shape, groups = _weight_shape(node, w, rank), node.integer("group", 1)
    window = window_of_transposed(node, x, shape[2:])
    pads, extra = _transposed_padding(node, x, window)
    y = g.op(
        f"nn.conv{rank}d_transpose",
        x,
        w,
        channels=shape[1] * groups,
        kernel_size=window.kernel,
        strides=window.strides,
        output_padding=extra,
        padding=pads,
        dilation=window.dilations,
        groups=groups,
    )
    return with_bias(y, node.optional(2))


def window_of_transposed(node: Node, x: Expr, kernel: Sequence[int]) -> Window:
    """The window of a transposed convolution, whose automatic padding is worked out elsewhere."""
    attrs = {name: value for name, value in node.attrs.items() if name != "auto_pad"}
    plain = Node(node.op_type, node.inputs, attrs, node.since, node.wanted, node.host)
    return window_of(plain, None, kernel)


def _transposed_padding(node: Node, x: Expr, window: Window) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding and output padding, worked out from `output_shape` or `auto_pad` where those are given."""
    extra = tuple(node.ints("output_padding") or [0] * window.rank)
    target, auto = node.ints("output_shape"), node.text("auto_pad", "NOTSET")
    if target is None and auto in ("", "NOTSET", "VALID"):
        return (window.pads if auto != "VALID" else (0,) * (2 * window.rank)), extra
    sizes = [g.dim(x, k) for k in range(2, g.rank(x))]
    if target is None:
        target = [size * stride for size, stride in zip(sizes, window.strides, strict=True)]
    target = target[-window.rank :]
    totals = [
        stride * (size - 1) + more + span - wanted
        for stride, size, more, span, wanted in zip(window.strides, sizes, extra, window.spans(), target, strict=True)
    ]
    extra = tuple(more + max(-total, 0) for more, total in zip(extra, totals, strict=True))
    return _halves([max(t, 0) for t in totals], more_after=auto == "SAME_UPPER"), extra


# --- pools


def _pool_window(node: Node, x: Expr) -> Window:
    """The window of a pool, over as many axes as `x` has spatial ones."""
    rank, kernel = spatial_rank(x, node.op_type), node.ints("kernel_shape") or []
    if len(kernel) != rank:
        raise AotcError("onnx-window", f"kernel_shape {kernel} does not fit an input of rank {rank + 2}")
    return window_of(node, _spatial(node, x), kernel)


def _pool(mean: bool) -> Converter:
    def convert(node: Node) -> Converted:
        x = node.input(0)
        window = _pool_window(node, x)
        rank = window.rank
        more = {"count_include_pad": bool(node.integer("count_include_pad"))} if mean else {}
        result = g.op(
            f"nn.{'avg' if mean else 'max'}_pool{rank}d",
            x,
            pool_size=window.kernel,
            strides=window.strides,
            dilation=window.dilations,
            padding=window.pads,
            ceil_mode=bool(node.integer("ceil_mode")),
            **more,
        )
        column_major = bool(node.integer("storage_order"))
        return [result, _pool_indices(x, window, g.shape(result), column_major) if node.wants(1) else None]

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
    return g.add(g.op("take", g.constant(offsets, "int64"), best, axis=0, mode="clip"), g.constant(base, "int64"))


def _max_unpool(node: Node) -> Expr:
    """Each value goes back to where it came from; the indices refer to the flattened result."""
    x, indices = node.input(0), node.input(1)
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


def _global(mean: bool) -> Converter:
    def convert(node: Node) -> Expr:
        x = node.input(0)
        if g.rank(x) == 4:
            return g.op(f"nn.global_{'avg' if mean else 'max'}_pool2d", x)
        return g.reduce("mean" if mean else "max", x, range(2, g.rank(x)), True)

    return convert


def _norm(x: Expr, p: int) -> Expr:
    return g.op("abs", x) if p == 1 else g.op("power", g.op("abs", x), g.constant(p, g.dtype(x)))


def _root(x: Expr, p: int) -> Expr:
    if p < 1:
        raise AotcError("onnx-attribute", f"attribute 'p' must be 1 or greater, it is {p}")
    if p == 1:
        return x
    return g.op("sqrt", x) if p == 2 else g.op("power", x, g.constant(1.0 / p, g.dtype(x)))


def _global_lp_pool(node: Node) -> Expr:
    x, p = node.input(0), node.integer("p", 2)
    return _root(g.reduce("sum", g.mul(x, x) if p == 2 else _norm(x, p), range(2, g.rank(x)), True), p)


def _lp_pool(node: Node) -> Expr:
    """The root of a sum of powers over complete windows: zeros are added until every window is complete."""
    x, p = node.input(0), node.integer("p", 2)
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
    y = g.op(
        f"nn.avg_pool{rank}d",
        y,
        pool_size=window.kernel,
        strides=window.strides,
        dilation=window.dilations,
        padding=(0,) * (2 * rank),
        ceil_mode=False,
        count_include_pad=True,
    )
    return _root(g.binary("multiply", y, float(math.prod(window.kernel))), p)


OPS: Table = {
    "AveragePool": _pool(mean=True),
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global(mean=True),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global(mean=False),
    "LpPool": _lp_pool,
    "MaxPool": _pool(mean=False),
    "MaxUnpool": _max_unpool,
}
