# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of convolution, pooling and resizing. An input without a batch axis gets one
during the operator.

OPS["conv2d"](x=a, weight=w, bias=b)    # nn.bias_add(nn.conv2d(a, w), b)
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.conv_pool import Window
from aotc.relay.frontend.pytorch import converter_values as tv
from aotc.relay.frontend.pytorch.converter_values import Table, Value


def _per_axis(value: Value, rank: int) -> tuple[int, ...]:
    """Return a tuple with one number per axis; a single number is repeated `rank` times."""
    items = tv.ints(value)
    return tuple(items * rank if len(items) == 1 else items)


def _batched(body: Callable[..., Expr], x: Expr, rank: int, *args: Any, **attributes: Any) -> Expr:
    """Call the graph builder `body` on x; if x has no batch axis, add one before and remove it from
    the result. Raises AotcError (code "torch-shape") if x does not have `rank` spatial axes.
    """
    if g.rank(x) == rank + 1:
        return g.squeeze(body(g.unsqueeze(x, [0]), *args, **attributes), [0])
    fits = g.rank(x) == rank + 2
    require("torch-shape", fits, f"an input of {g.rank(x)} dimensions cannot have {rank} spatial dimensions")
    return body(x, *args, **attributes)


def _window(rank: int, kernel: Value, stride: Value = None, padding: Value = 0, dilation: Value = 1) -> Window:
    """Return the window of a PyTorch convolution or pool; without a stride, the stride is the
    kernel size.
    """
    sizes = _per_axis(kernel, rank)
    strides = _per_axis(stride, rank) if stride not in (None, []) else sizes
    window = Window(sizes, strides, _per_axis(dilation, rank), ())
    if padding == "same":
        return window.padded(conv_pool.halves([span - 1 for span in window.spans()]))
    return window.padded(_per_axis(0 if padding == "valid" else padding, rank) * 2)


def _convolution(
    x: Expr, weight: Expr, bias: Expr | None = None, groups: int = 1, transposed: bool = False, **places: Value
) -> Expr:
    rank, extra = g.rank(weight) - 2, places.pop("output_padding", 0)
    require("torch-shape", 1 <= rank <= 3, f"a convolution with a weight of {rank + 2} dimensions is not supported")
    window = _window(rank, tv.shape(weight)[2:], **places)
    if transposed:
        return _batched(conv_pool.convolve_transposed, x, rank, weight, window, bias, groups, _per_axis(extra, rank))
    return _batched(conv_pool.convolve, x, rank, weight, window, bias, groups)


_transposed = partial(_convolution, transposed=True)


# --- pools


def _pool(kind: str, rank: int, x: Expr, kernel_size: Value, ceil_mode: bool = False, **options: Value) -> Expr:
    include = options.pop("count_include_pad", True)
    divisor = options.pop("divisor_override", None)
    window = _window(rank, kernel_size, **options)
    pool = partial(_batched, partial(conv_pool.pool, kind), x, rank, window, ceil_mode=bool(ceil_mode))
    if kind == "max":
        return pool()
    if divisor is None:
        return pool(count_include_pad=bool(include))
    require("torch-op", not ceil_mode, "avg_pool with both ceil_mode and divisor_override is not supported")
    return g.mul(pool(count_include_pad=True), math.prod(window.kernel) / divisor)


def _adaptive(kind: str, rank: int, x: Expr, output_size: Value) -> Expr:
    wanted = output_size if isinstance(output_size, (list, tuple)) else [output_size]
    wanted = list(wanted) * rank if len(wanted) == 1 else wanted
    start = g.rank(x) - rank
    sizes = tuple(tv.size(x, start + k) if w is None else tv.ints(w)[0] for k, w in enumerate(wanted))
    return _batched(partial(g.op, f"nn.adaptive_{kind}_pool{rank}d"), x, rank, output_size=sizes)


# --- resizing


def _upsample(
    rank: int,
    method: str,
    mode: str,
    x: Expr,
    output_size: Value = None,
    align_corners: bool = False,
    scale_factors: Value = None,
    **scales: Value,
) -> Expr:
    """Convert torch's upsampling operators: positions are computed from the given scale factors, or
    else from the ratio of the extents.
    """
    names = ["scales"] if rank == 1 else [f"scales_{axis}" for axis in "dhw"[3 - rank :]]
    require("torch-argument", scales.keys() <= set(names), "a scale factor is given for an axis that does not exist")
    extents, mode = tv.shape(x)[2:], "align_corners" if align_corners else mode
    factors = [float(f or 0.0) for f in scale_factors or map(scales.get, names)]
    if output_size is None:
        output_size = [math.floor(n * f) for n, f in zip(extents, factors, strict=True)]
    target = tv.ints(output_size)
    exact = [factors[k] or target[k] / extents[k] for k in range(rank)]
    given = any(f * n != t for f, n, t in zip(exact, extents, target, strict=True)) and mode != "align_corners"
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    return conv_pool.resize(x, target, method, mode, rounding, scales=tuple(exact) if given else None)


def _grid_sampler(x: Expr, grid: Expr, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Expr:
    method = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    edges = ("zeros", "border", "reflection")[padding_mode]
    return conv_pool.grid_sample(x, grid, method, edges, bool(align_corners))


def _im2col(x: Expr, kernel_size: Value, **places: Value) -> Expr:
    """Convert im2col: slice the elements of each kernel position and concatenate them as columns; a
    convolution with an identity kernel would be slower.
    """
    window = _window(2, kernel_size, **places)
    y = g.pad(x, [(0, 0), (0, 0), *((p, p) for p in window.pads[:2])])
    n, c, *extents = tv.shape(y)
    counts = [(m - span) // s + 1 for m, span, s in zip(extents, window.spans(), window.strides, strict=True)]
    taps = [g.reshape(part, (n, c, 1, math.prod(counts))) for _, part in conv_pool.taps(y, window, counts)]
    return g.reshape(g.concat(taps, 2), (n, c * len(taps), math.prod(counts)))


_INDICES: Final = "the indices of max_pool and adaptive_max_pool"
OPS: Table = {
    **dict.fromkeys(("convolution", "_convolution_mode"), _convolution),
    **{f"conv{r}d": _convolution for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": _transposed for r in (1, 2, 3)},
    **{f"{kind}_pool{r}d": partial(_pool, kind, r) for kind in ("avg", "max") for r in (1, 2, 3)},
    **{f"max_pool{r}d_with_indices": tv.with_absent(partial(_pool, "max", r), _INDICES) for r in (1, 2, 3)},
    **{f"adaptive_avg_pool{r}d": partial(_adaptive, "avg", r) for r in (1, 2, 3)},
    **{f"adaptive_max_pool{r}d": tv.with_absent(partial(_adaptive, "max", r), _INDICES) for r in (1, 2, 3)},
    **{f"upsample_nearest{r}d": partial(_upsample, r, "nearest_neighbor", "asymmetric") for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": partial(_upsample, r, "nearest_neighbor", "half_pixel") for r in (1, 2, 3)},
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d"), _grid_sampler),
    "im2col": _im2col,
    "upsample_bicubic2d": partial(_upsample, 2, "cubic", "half_pixel"),
    "upsample_bilinear2d": partial(_upsample, 2, "linear", "half_pixel"),
    "upsample_linear1d": partial(_upsample, 1, "linear", "half_pixel"),
    "upsample_trilinear3d": partial(_upsample, 3, "linear", "half_pixel"),
}
