# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of convolution, pooling and resizing. An input without a batch axis gets one
during the operator.

OPS["conv2d"](x=a, weight=w, bias=b)    # nn.bias_add(nn.conv2d(a, w), b)
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.matmul_einsum import matmul
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue


def _ints_per_axis(value: TorchValue, rank: int) -> tuple[int, ...]:
    """Return a tuple with one number per axis; a single number is repeated `rank` times. Raises
    AotcError (code "torch-shape") for other counts.
    """
    items = tv.to_int_list(value)
    text = f"the list {items} has {len(items)} numbers for {rank} spatial dimensions"
    require("torch-shape", len(items) in (1, rank), text)
    return tuple(items * rank if len(items) == 1 else items)


def _call_with_batch_axis(
    builder: Callable[..., Expr], x: Expr, spatial_rank: int, *args: Any, **attributes: Any
) -> Expr:
    """Call the graph builder `builder` on x; if x has no batch axis, add one before and remove it
    from the result. Raises AotcError (code "torch-shape") if x does not have `spatial_rank` spatial
    axes.
    """
    if g.rank(x) == spatial_rank + 1:
        return g.squeeze(builder(g.unsqueeze(x, [0]), *args, **attributes), [0])
    fits = g.rank(x) == spatial_rank + 2
    require("torch-shape", fits, f"an input of {g.rank(x)} dimensions cannot have {spatial_rank} spatial dimensions")
    return builder(x, *args, **attributes)


def _build_window(
    rank: int, kernel: TorchValue, stride: TorchValue = None, padding: TorchValue = 0, dilation: TorchValue = 1
) -> Window:
    """Return the window of a PyTorch convolution or pool; without a stride, the stride is the
    kernel size.
    """
    sizes = _ints_per_axis(kernel, rank)
    strides = _ints_per_axis(stride, rank) if stride not in (None, []) else sizes
    window = Window(sizes, strides, _ints_per_axis(dilation, rank), ())
    if padding == "same":
        return window.with_pads(
            conv_pool.split_padding_before_after([span - 1 for span in window.dilated_kernel_extents()])
        )
    return window.with_pads(_ints_per_axis(0 if padding == "valid" else padding, rank) * 2)


def _convolution(
    x: Expr, weight: Expr, bias: Expr | None = None, groups: int = 1, transposed: bool = False, **places: TorchValue
) -> Expr:
    rank, extra = g.rank(weight) - 2, places.pop("output_padding", 0)
    require("torch-shape", places.get("stride") != [], "a convolution has an empty list of strides")
    require("torch-shape", 1 <= rank <= 3, f"a convolution with a weight of {rank + 2} dimensions is not supported")
    window = _build_window(rank, tv.static_dims(weight)[2:], **places)
    added = _ints_per_axis(extra, rank)
    require("torch-shape", min(added) >= 0, f"output_padding {added} is negative")
    if transposed:
        most = [max(s, d) for s, d in zip(window.strides, window.dilations, strict=True)]
        text = f"output_padding {added} must be below the greater of stride and dilation, {most}"
        require("torch-shape", all(p < m for p, m in zip(added, most, strict=True)), text)
        return _call_with_batch_axis(
            conv_pool.build_transposed_convolution, x, rank, weight, window, bias, groups, added
        )
    return _call_with_batch_axis(conv_pool.build_convolution, x, rank, weight, window, bias, groups)


_transposed = partial(_convolution, transposed=True)


# --- pools


def _pool(
    kind: str, rank: int, x: Expr, kernel_size: TorchValue, ceil_mode: bool = False, **options: TorchValue
) -> Expr:
    include = options.pop("count_include_pad", True)
    divisor = options.pop("divisor_override", None)
    window = _build_window(rank, kernel_size, **options)
    spans = window.dilated_kernel_extents()
    text = f"padding {window.pads[:rank]} is more than half of the window {tuple(spans)}"
    require("torch-shape", all(2 * p <= n for p, n in zip(window.pads, spans, strict=False)), text)
    pool = partial(
        _call_with_batch_axis, partial(conv_pool.build_pool, kind), x, rank, window, ceil_mode=bool(ceil_mode)
    )
    if kind == "max":
        return pool()
    if divisor is None:
        return pool(count_include_pad=bool(include))
    require("torch-argument", divisor != 0, "divisor_override is 0")
    require("torch-op", not ceil_mode, "avg_pool with both ceil_mode and divisor_override is not supported")
    return g.mul(pool(count_include_pad=True), math.prod(window.kernel) / divisor)


def _adaptive_pool(kind: str, rank: int, x: Expr, output_size: TorchValue) -> Expr:
    target_sizes = output_size if isinstance(output_size, (list, tuple)) else [output_size]
    target_sizes = list(target_sizes) * rank if len(target_sizes) == 1 else target_sizes
    start = g.rank(x) - rank
    sizes = tuple(
        tv.static_dim(x, start + k) if w is None else tv.to_int_list(w)[0] for k, w in enumerate(target_sizes)
    )
    return _call_with_batch_axis(partial(g.call_op, f"nn.adaptive_{kind}_pool{rank}d"), x, rank, output_size=sizes)


# --- resizing


def _upsample(
    rank: int,
    method: str,
    mode: str,
    x: Expr,
    output_size: TorchValue = None,
    align_corners: bool = False,
    scale_factors: TorchValue = None,
    **scales: TorchValue,
) -> Expr:
    """Convert torch's upsampling operators: positions are computed from the given scale factors, or
    else from the ratio of the extents.
    """
    names = ["scales"] if rank == 1 else [f"scales_{axis}" for axis in "dhw"[3 - rank :]]
    require("torch-argument", scales.keys() <= set(names), "a scale factor is given for an axis that does not exist")
    extents, mode = tv.static_dims(x)[2:], "align_corners" if align_corners else mode
    factors = [float(f or 0.0) for f in scale_factors or map(scales.get, names)]
    fits = len(extents) == len(factors) == rank and all(map(math.isfinite, factors))
    text = f"scale factors {factors} do not fit an input with the spatial extents {list(extents)}"
    require("torch-shape", fits, text)
    if output_size is None:
        output_size = [math.floor(n * f) for n, f in zip(extents, factors, strict=True)]
    target = tv.to_int_list(output_size)
    text = f"output_size {target} does not fit an input with the spatial extents {list(extents)}"
    require("torch-shape", len(target) == rank, text)
    exact = [factors[k] or target[k] / extents[k] for k in range(rank)]
    given = any(f * n != t for f, n, t in zip(exact, extents, target, strict=True)) and mode != "align_corners"
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    return conv_pool.build_resize(x, target, method, mode, rounding, scales=tuple(exact) if given else None)


def _triangle(distance: Array) -> Array:
    """Return the weights of linear interpolation at distances from a sample."""
    return np.maximum(1.0 - np.abs(distance), 0.0)


def _cubic_antialias(distance: Array) -> Array:
    """Return the weights of cubic convolution at distances from a sample, with a = -0.5 (Keys, 1981)."""
    d, a = np.abs(distance), -0.5
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d < 1, near, np.where(d < 2, far, 0.0))


def _antialiased_resize_matrix(
    weight_of_distance: Callable[[Array], Array], radius: int, extent: int, target: int, step: float
) -> Array:
    """Return the matrix (target, extent) of an antialiased resize of one axis: where it shrinks, the
    filter is as many times wider. `step` is the distance of output samples in input samples.
    """
    g.check_materialization_cost((target, extent), "float64", "the matrix of an antialiased resize")
    width = max(step, 1.0)
    matrix = np.zeros((target, extent))
    for row in range(target):
        center, support = step * (row + 0.5), radius * width
        first, last = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), extent)
        weights = weight_of_distance((np.arange(first, last) - center + 0.5) / width)
        matrix[row, first:last] = weights / weights.sum() if weights.sum() else weights
    return matrix


def _upsample_antialiased(
    weight_of_distance: Callable[[Array], Array],
    radius: int,
    x: Expr,
    output_size: TorchValue = None,
    align_corners: bool = False,
    scale_factors: TorchValue = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Expr:
    """Convert torch's antialiased resizing: a product with a matrix for each axis."""
    factors = list(scale_factors or (scales_h, scales_w))
    extents, dtype = tv.static_dims(x)[2:], str(g.dtype(x))
    require("torch-shape", len(extents) == len(factors) == 2, f"a tensor of rank {g.rank(x)} is no batch of images")
    if output_size is None:
        output_size = [math.floor(n * f) for n, f in zip(extents, factors, strict=True)]
    matrices = []
    for extent, target, factor in zip(extents, tv.to_int_list(output_size), factors, strict=True):
        require("torch-shape", target > 0, f"the output size {target} is not positive")
        step = 1.0 / factor if factor else extent / target
        if align_corners:
            step = (extent - 1) / (target - 1) if target > 1 else 0.0
        matrix = _antialiased_resize_matrix(weight_of_distance, radius, extent, target, step)
        matrices.append(g.constant(matrix, dtype))
    return matmul(matrices[0], matmul(x, g.transpose(matrices[1], (1, 0))))


def _grid_sampler(x: Expr, grid: Expr, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Expr:
    known = 0 <= interpolation_mode < 3 and 0 <= padding_mode < 3
    text = f"interpolation_mode {interpolation_mode} with padding_mode {padding_mode} is not supported (0 to 2 are)"
    require("torch-argument", known, text)
    method = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    edges = ("zeros", "border", "reflection")[padding_mode]
    return conv_pool.grid_sample(x, grid, method, edges, bool(align_corners))


def _im2col(x: Expr, kernel_size: TorchValue, **places: TorchValue) -> Expr:
    """Convert im2col: slice the elements of each kernel position and concatenate them as columns; a
    convolution with an identity kernel would be slower.
    """
    window = _build_window(2, kernel_size, **places)
    numbers = (*window.kernel, *window.strides, *window.dilations)
    text = f"kernel_size, stride and dilation {numbers} must be positive, padding {window.pads[:2]} not negative"
    require("torch-shape", min(numbers) > 0 and min(window.pads) >= 0, text)
    g.check_unroll_count(math.prod(window.kernel), "im2col")
    require("torch-shape", g.rank(x) == 4, f"im2col of {g.rank(x)} dimensions is not supported (4 are)")
    y = g.pad(x, [(0, 0), (0, 0), *((p, p) for p in window.pads[:2])])
    n, c, *extents = tv.static_dims(y)
    spans = window.dilated_kernel_extents()
    fits = all(m >= span for m, span in zip(extents, spans, strict=True))
    require("torch-shape", fits, f"a window of {spans} does not fit the padded extents {extents}")
    counts = [
        (m - span) // s + 1 for m, span, s in zip(extents, window.dilated_kernel_extents(), window.strides, strict=True)
    ]
    taps = [g.reshape(part, (n, c, 1, math.prod(counts))) for _, part in conv_pool.kernel_tap_slices(y, window, counts)]
    return g.reshape(g.concat(taps, 2), (n, c * len(taps), math.prod(counts)))


def _roi_align(
    x: Expr,
    rois: Expr,
    spatial_scale: float,
    pooled_height: TorchValue,
    pooled_width: TorchValue,
    sampling_ratio: int,
    aligned: bool,
) -> Expr:
    """Convert roi_align of torchvision: means of samples in the cells of regions (N, 5), whose first
    numbers are the images.
    """
    return g.call_op(
        "vision.roi_align",
        x,
        rois,
        pooled_size=(tv.to_python_int(pooled_height), tv.to_python_int(pooled_width)),
        spatial_scale=float(spatial_scale),
        sample_ratio=sampling_ratio,
        aligned=bool(aligned),
    )


_POOL_INDICES_SUBJECT: Final = "the indices of max_pool and adaptive_max_pool"
OPS: Table = {
    **dict.fromkeys(("convolution", "_convolution_mode"), _convolution),
    **{f"conv{r}d": _convolution for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": _transposed for r in (1, 2, 3)},
    **{f"{kind}_pool{r}d": partial(_pool, kind, r) for kind in ("avg", "max") for r in (1, 2, 3)},
    **{
        f"max_pool{r}d_with_indices": tv.append_uncomputed_results(partial(_pool, "max", r), _POOL_INDICES_SUBJECT)
        for r in (1, 2, 3)
    },
    **{f"adaptive_avg_pool{r}d": partial(_adaptive_pool, "avg", r) for r in (1, 2, 3)},
    **{
        f"adaptive_max_pool{r}d": tv.append_uncomputed_results(partial(_adaptive_pool, "max", r), _POOL_INDICES_SUBJECT)
        for r in (1, 2, 3)
    },
    **{f"upsample_nearest{r}d": partial(_upsample, r, "nearest_neighbor", "asymmetric") for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": partial(_upsample, r, "nearest_neighbor", "half_pixel") for r in (1, 2, 3)},
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d"), _grid_sampler),
    "im2col": _im2col,
    "torchvision::roi_align": _roi_align,
    "_upsample_bicubic2d_aa": partial(_upsample_antialiased, _cubic_antialias, 2),
    "_upsample_bilinear2d_aa": partial(_upsample_antialiased, _triangle, 1),
    "upsample_bicubic2d": partial(_upsample, 2, "cubic", "half_pixel"),
    "upsample_bilinear2d": partial(_upsample, 2, "linear", "half_pixel"),
    "upsample_linear1d": partial(_upsample, 1, "linear", "half_pixel"),
    "upsample_trilinear3d": partial(_upsample, 3, "linear", "half_pixel"),
}
