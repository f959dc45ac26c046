# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of convolution and pooling operators with one to three spatial axes.

OPS["Conv"](x, w, b, node=node)         # nn.bias_add(nn.conv2d(x, w, ...), b)
"""

import math
from collections.abc import Sequence
from functools import partial
from functools import reduce as fold
from typing import Any

import numpy as np

from aotc.ir import Dim, product_of_dims, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, SizeInput, Table, table_by_function_name
from aotc.relay.frontend.onnx.run_time_axes import flat_indices_in_other_shape, flat_steps
from aotc.relay.frontend.reductions import p_norm
from aotc.relay.frontend.size_conditions import require_at_least, require_equal_dims
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices

#: Values of `auto_pad` with which the padding does not depend on the shape of the data.
_EXPLICIT_AUTO_PADS = ("", "NOTSET", "VALID")


def _window_with_explicit_pads_only(
    kernel: Sequence[int], *, strides: Any = (), dilations: Any = (), pads: Any = (), auto_pad: str = "", **_: Any
) -> Window:
    """Return the window of an ONNX convolution or pool that its attributes describe, with the
    explicit padding (zero for `auto_pad` "VALID"); SAME padding is not computed here.

    Raises AotcError (code "onnx-window") for attributes whose lengths or values are not valid.
    """
    rank = len(kernel)
    strides, dilations = (tuple(given) or (1,) * rank for given in (strides, dilations))
    pads = tuple(pads) or (0,) * (2 * rank)
    rows = (
        ("kernel", kernel, rank, 1),
        ("strides", strides, rank, 1),
        ("dilations", dilations, rank, 1),
        ("pads", pads, 2 * rank, 0),
    )
    for name, given, count, least in rows:
        fits = len(given) == count and min(given, default=least) >= least
        text = f"{name} {list(given)} are not {count} numbers of {least} or more"
        require("onnx-window", fits, text, hint=f"for example {name}={[least] * count}")
    return Window(tuple(kernel), strides, dilations, pads if auto_pad != "VALID" else (0,) * len(pads))


def _window_with_auto_pad(node: OnnxNode, x: Expr, kernel: Sequence[int]) -> Window:
    """Return the window of an ONNX convolution or pool, with the padding that `auto_pad` demands."""
    window, auto = _window_with_explicit_pads_only(kernel, **node.attrs), node.attrs.get("auto_pad", "")
    if auto in _EXPLICIT_AUTO_PADS:
        return window
    spatial = _spatial_extents(x)
    require(
        "onnx-window",
        auto in ("SAME_UPPER", "SAME_LOWER"),
        f"auto_pad {auto!r} is not SAME_UPPER, SAME_LOWER, VALID or NOTSET",
    )
    return window.with_pads(conv_pool.same_padding_widths(spatial, window, auto == "SAME_UPPER"))


def _spatial_extents(x: Expr) -> list[int]:
    return [g.dim(x, k) for k in range(2, g.rank(x))]


def _checked_kernel_extents_of_weight(node: OnnxNode, x: Expr, w: Expr) -> tuple[int, ...]:
    """Return the kernel extents of a convolution from the shape of its weight. Raises AotcError
    (code "onnx-window") if the weight does not fit the input or the attribute `kernel_shape`.
    """
    rank = conv_pool.spatial_rank_of_tensor_rank_3_to_5(g.rank(x), f"{node.op_type} of an input")
    shape, given = g.shape(w, "the weight"), node.attrs.get("kernel_shape")
    fits = len(shape) == rank + 2 and (given is None or tuple(given) == shape[2:])
    text = f"a weight of shape {shape} does not fit the input and kernel_shape {given}"
    require("onnx-window", fits, text)
    return shape[2:]


def convolution_window(node: OnnxNode, x: Expr, w: Expr) -> Window:
    """Return the window of a convolution node with the data `x` and the weight `w`."""
    return _window_with_auto_pad(node, x, _checked_kernel_extents_of_weight(node, x, w))


def _conv(x: Expr, w: Expr, bias: OptionalExpr = None, *, group: int = 1, node: OnnxNode) -> Expr:
    return conv_pool.build_convolution(x, w, convolution_window(node, x, w), bias, group)


def _deform_conv(
    x: Expr,
    w: Expr,
    offset: Expr,
    bias: OptionalExpr = None,
    mask: OptionalExpr = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    node: OnnxNode,
) -> Expr:
    """Convert DeformConv: sample the values of all taps, and apply a convolution whose windows do not overlap."""
    window = convolution_window(node, x, w)
    require("onnx-window", window.rank == 2, f"DeformConv with {window.rank} spatial axes is not supported (2 are)")
    rows, columns = window.kernel
    if mask is None:
        batch, _, *space = g.shape(offset, "the offset")
        mask = g.full(1, (batch, max(offset_group, 1) * rows * columns, *space), g.dtype(x))
    attributes = window.window_attributes()
    samples = g.call_op(
        "nn.deformable_im2col", x, offset, mask, kernel_size=window.kernel, deformable_groups=offset_group, **attributes
    )
    disjoint = Window(window.kernel, window.kernel, (1, 1), (0, 0, 0, 0))
    return conv_pool.build_convolution(samples, w, disjoint, bias, group)


def _conv_transpose(x: Expr, w: Expr, bias: OptionalExpr = None, *, group: int = 1, node: OnnxNode) -> Expr:
    window, extra = _transposed_conv_padding(
        x, _window_with_explicit_pads_only(_checked_kernel_extents_of_weight(node, x, w), **node.attrs), **node.attrs
    )
    return conv_pool.build_transposed_convolution(x, w, window, bias, group, extra)


def _transposed_conv_padding(
    x: Expr, window: Window, *, output_padding: Any = (), output_shape: Any = None, auto_pad: str = "", **_: Any
) -> tuple[Window, tuple[int, ...]]:
    """Return the window with its padding, and the output padding, of a transposed convolution; both
    are computed from `output_shape` or `auto_pad` if these are given.
    """
    extra = tuple(output_padding) or (0,) * window.rank
    if output_shape is None and auto_pad in _EXPLICIT_AUTO_PADS:
        return window, extra
    sizes = _spatial_extents(x)
    if output_shape is None:
        output_shape = [size * stride for size, stride in zip(sizes, window.strides, strict=True)]
    target = output_shape[-window.rank :]
    totals = [
        n + out_pad - extent
        for n, out_pad, extent in zip(window.covered_input_extents(sizes), extra, target, strict=True)
    ]
    extra = tuple(out_pad + max(-total, 0) for out_pad, total in zip(extra, totals, strict=True))
    return window.with_pads(
        conv_pool.split_padding_before_after([max(t, 0) for t in totals], auto_pad == "SAME_UPPER")
    ), extra


# --- pools


def pool_window(node: OnnxNode, x: Expr) -> Window:
    """Return the window of a pooling node, which has the spatial rank of `x`. Raises AotcError
    (code "onnx-window") if `kernel_shape` does not.
    """
    kernel = node.attrs.get("kernel_shape", [])
    rank = conv_pool.spatial_rank_of_tensor_rank_3_to_5(g.rank(x), f"{node.op_type} of an input")
    require(
        "onnx-window",
        len(kernel) == rank,
        f"kernel_shape {kernel} has the wrong number of axes for an input of rank {rank + 2}",
    )
    return _window_with_auto_pad(node, x, kernel)


def _average_pool(x: Expr, *, ceil_mode: bool = False, count_include_pad: bool = False, node: OnnxNode) -> Expr:
    modes = {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    return conv_pool.build_pool("avg", x, pool_window(node, x), **modes)


def _max_pool(x: Expr, *, ceil_mode: bool = False, storage_order: bool = False, node: OnnxNode) -> Converted:
    window = pool_window(node, x)
    result = conv_pool.build_pool("max", x, window, ceil_mode=ceil_mode)
    return [result, _max_pool_indices(x, window, g.shape(result), storage_order)] if node.needs_output(1) else result


def _max_pool_indices(x: Expr, window: Window, result_shape: Sequence[int], column_major: bool) -> Expr:
    """Return the second output of MaxPool: for each window the position of its greatest element in
    the flattened data; the first one if several are equal.
    """
    shape, rank, dtype = g.shape(x), window.rank, g.dtype(x)
    sizes, counts = shape[2:], result_shape[2:]
    padded = g.pad(x, _pool_padding_widths(shape, window, counts), float("-inf") if dtype.is_float else dtype.min)
    steps = [math.prod(sizes[:k]) if column_major else math.prod(sizes[k + 1 :]) for k in range(rank)]
    g.check_unroll_count(math.prod(window.kernel), "the indices of a pool")
    begins, parts = zip(*conv_pool.kernel_tap_slices(padded, window, counts), strict=True)
    stacked = g.concat([g.reshape(part, (1, *result_shape)) for part in parts], 0)
    best = g.cast(g.call_op("argmax", stacked, axis=(0,), keepdims=False), "int64")
    firsts = [(np.arange(counts[k]) * window.strides[k] - window.pads[k]) * steps[k] for k in range(rank)]
    base = fold(np.add.outer, firsts, np.arange(shape[0] * shape[1]).reshape(shape[:2]) * math.prod(sizes))
    return g.add(gather_slices(g.constant(np.dot(begins, steps), "int64"), best, 0), g.constant(base, "int64"))


def _pool_padding_widths(shape: Sequence[int], window: Window, window_counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) padding widths per axis, batch and channels included, with which all
    `window_counts` windows of a pool are inside the padded data.
    """
    rows = zip(window.pads, window.covered_input_extents(window_counts), shape[2:], strict=False)
    return [(0, 0), (0, 0), *((before, max(end - before - size, 0)) for before, end, size in rows)]


def _max_unpool(x: Expr, indices: Expr, output_shape: SizeInput | None = None, *, node: OnnxNode) -> Expr:
    """Convert MaxUnpool: scatter each value to its position, given by indices into the flattened
    result.
    """
    window = pool_window(node, x)
    rows = zip(window.covered_input_extents(g.shape(x)[2:]), window.pads, window.pads[window.rank :], strict=False)
    spatial = [n - before - after for n, before, after in rows]
    inferred: tuple[Dim, ...] = (*g.shape(x)[:2], *spatial)
    target = inferred
    if output_shape is not None:
        target = _checked_unpooled_shape(output_shape.within(0, None), inferred)
    target = g.checked_dims(target, g.dtype(x), "the result of MaxUnpool")
    if target != inferred:  # the indices refer to the shape that the window implies, not to output_shape
        indices = flat_indices_in_other_shape(g.cast(indices, "int64"), inferred, flat_steps(target))
    zeros = g.filled(0, (product_of_dims(target),), str(g.dtype(x)))
    flat = g.call_op("scatter_elements", zeros, g.flatten(indices), g.flatten(x), axis=0, reduction="update")
    return g.reshape(flat, target)


def _checked_unpooled_shape(given: Sequence[Dim], inferred: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the shape of a result of MaxUnpool: images may be larger than those that the window implies."""
    text = f"the output_shape {list(given)} of MaxUnpool does not hold the shape {list(inferred)} of its windows"
    require("onnx-window", len(given) == len(inferred), text)
    for wanted, extent in zip(given[:2], inferred[:2], strict=True):
        require_equal_dims("onnx-window", wanted, extent, text)
    for wanted, extent in zip(given[2:], inferred[2:], strict=True):
        require_at_least("onnx-window", wanted, extent, text)
    return (*inferred[:2], *given[2:])


def _global_pool(kind: str, x: Expr) -> Expr:
    if g.rank(x) == 4:
        return g.call_op(f"nn.global_{kind}_pool2d", x)
    return g.call_reduction("mean" if kind == "avg" else kind, x, range(2, g.rank(x)), True)


def _check_norm_order(p: int) -> None:
    require("onnx-attribute", p >= 1, f"attribute 'p' must be 1 or greater, not {p}")


def _global_lp_pool(x: Expr, *, p: int = 2) -> Expr:
    _check_norm_order(p)
    return p_norm(x, p, lambda y: g.call_reduction("sum", y, range(2, g.rank(x)), True))


def _lp_pool(x: Expr, *, p: int = 2, ceil_mode: bool = False, node: OnnxNode) -> Expr:
    """Convert LpPool, the p-norm of each window: the data is padded with zeros so that every window
    is complete, and the sum is an average pool times the number of kernel elements.
    """
    window = pool_window(node, x)
    _check_norm_order(p)
    result = conv_pool.build_pool("avg", x, window, ceil_mode=ceil_mode)
    widths = _pool_padding_widths(g.shape(x), window, g.shape(result)[2:])
    whole = window.with_pads((0,) * (2 * window.rank))

    def sum_windows(y: Expr) -> Expr:
        mean = conv_pool.build_pool("avg", g.pad(y, widths), whole, ceil_mode=False, count_include_pad=True)
        return g.mul(mean, float(math.prod(window.kernel)))

    return p_norm(x, p, sum_windows)


OPS: Table = {
    **table_by_function_name(_average_pool, _conv, _conv_transpose, _deform_conv, _global_lp_pool, _lp_pool),
    **table_by_function_name(_max_pool, _max_unpool),
    "GlobalAveragePool": partial(_global_pool, "avg"),
    "GlobalMaxPool": partial(_global_pool, "max"),
}
