# SPDX-License-Identifier: Apache-2.0
"""Converters of convolutions, pools and resizing.  Inputs without a batch axis get one for
the time being.

OPS["conv2d"](x=a, weight=w, bias=b)    # nn.bias_add(nn.conv2d(a, w), b)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import windows
from aotc.relay.frontend.pytorch import values as tv
from aotc.relay.frontend.pytorch.values import Converter, Table, Value
from aotc.relay.frontend.windows import Window, grid_sample, resize


def _per_axis(value: Value, rank: int) -> tuple[int, ...]:
    """One number for each of the axes."""
    items = tv.ints(value)
    return tuple(items * rank if len(items) == 1 else items)


def _batched(body: Callable[..., Expr], x: Expr, rank: int, *args: Any, **attributes: Any) -> Expr:
    """What `body` gives for x with a batch axis, which goes away again if x has none."""
    if g.rank(x) == rank + 1:
        return g.squeeze(body(g.unsqueeze(x, [0]), *args, **attributes), [0])
    if g.rank(x) != rank + 2:
        raise AotcError("torch-shape", f"an input of {g.rank(x)} dimensions does not fit {rank} spatial ones")
    return body(x, *args, **attributes)


def _convolution(
    x: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Value = 1,
    padding: Value = 0,
    dilation: Value = 1,
    transposed: bool = False,
    output_padding: Value = 0,
    groups: int = 1,
) -> Expr:
    kernel = tv.shape(weight)[2:]
    rank = len(kernel)
    if not 1 <= rank <= 3:
        raise AotcError("torch-shape", f"a convolution with a weight of {rank + 2} dimensions is not supported")
    window = Window(kernel, _per_axis(stride, rank), _per_axis(dilation, rank), ())
    if padding == "same":
        window = window.padded(windows.halves([span - 1 for span in window.spans()]))
    else:
        window = window.padded(_per_axis(0 if padding == "valid" else padding, rank) * 2)
    if transposed:
        extra = _per_axis(output_padding, rank)
        return _batched(windows.convolve_transposed, x, rank, weight, window, bias, groups, extra)
    return _batched(windows.convolve, x, rank, weight, window, bias, groups)


_transposed = partial(_convolution, transposed=True)


# --- pools


def _window(rank: int, kernel: Value, stride: Value, padding: Value, dilation: Value) -> Window:
    sizes = _per_axis(kernel, rank)
    strides = _per_axis(stride, rank) if stride not in (None, []) else sizes
    return Window(sizes, strides, _per_axis(dilation, rank), _per_axis(padding, rank) * 2)


def _pool(kind: str, rank: int) -> Converter:
    def convert(
        x: Expr,
        kernel_size: Value,
        stride: Value = None,
        padding: Value = 0,
        dilation: Value = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:
        window = _window(rank, kernel_size, stride, padding, dilation)
        pool = partial(_batched, partial(windows.pool, kind), x, rank, window, ceil_mode=bool(ceil_mode))
        if kind == "max":
            return pool()
        if divisor_override is None:
            return pool(count_include_pad=bool(count_include_pad))
        if ceil_mode:
            raise AotcError("torch-op", "avg_pool with both ceil_mode and divisor_override is not supported")
        return g.mul(pool(count_include_pad=True), math.prod(window.kernel) / divisor_override)

    return convert


def _adaptive(kind: str, rank: int) -> Converter:
    def convert(x: Expr, output_size: Value) -> Expr:
        wanted = output_size if isinstance(output_size, (list, tuple)) else [output_size]
        wanted = list(wanted) * rank if len(wanted) == 1 else wanted
        start = g.rank(x) - rank
        sizes = tuple(tv.size(x, start + k) if w is None else tv.ints(w)[0] for k, w in enumerate(wanted))
        return _batched(partial(g.op, f"nn.adaptive_{kind}_pool{rank}d"), x, rank, output_size=sizes)

    return convert


# --- resizing


def _resized(x: Expr, rank: int, sizes: Value, scales: Sequence[float | None], method: str, mode: str) -> Expr:
    """torch computes positions with a given factor, and with the ratio of the extents where
    there is none.
    """
    extents = tv.shape(x)[2:]
    factors = [f if f is not None else 0.0 for f in (scales or [None] * rank)]
    if sizes is None:
        sizes = [math.floor(n * f) for n, f in zip(extents, factors, strict=True)]
    target = tv.ints(sizes)
    exact = [factors[k] or target[k] / extents[k] for k in range(rank)]
    given = any(f * n != t for f, n, t in zip(exact, extents, target, strict=True)) and mode != "align_corners"
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    return resize(x, target, method, mode, rounding, scales=tuple(exact) if given else None)


def _upsample(rank: int, method: str, mode: str = "half_pixel") -> Converter:
    def convert(
        x: Expr,
        output_size: Value = None,
        align_corners: bool = False,
        scale_factors: Value = None,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Expr:
        named = (scales_d, scales_h, scales_w if rank > 1 else scales)
        factors = named[3 - rank :] if scale_factors is None else scale_factors
        floats = [None if s is None else float(s) for s in factors]
        return _resized(x, rank, output_size, floats, method, "align_corners" if align_corners else mode)

    return convert


def _grid_sampler(x: Expr, grid: Expr, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Expr:
    method = ("bilinear", "nearest", "bicubic")[interpolation_mode]
    return grid_sample(x, grid, method, ("zeros", "border", "reflection")[padding_mode], bool(align_corners))


def _im2col(x: Expr, kernel_size: Value, dilation: Value, padding: Value, stride: Value) -> Expr:
    """Each window as a column: a convolution with the identity would cost more than slices."""
    k, d, p, s = (_per_axis(v, 2) for v in (kernel_size, dilation, padding, stride))
    y = g.pad(x, [(0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])])
    n, c, height, width = tv.shape(y)
    counts = [(extent - (k[i] - 1) * d[i] - 1) // s[i] + 1 for i, extent in enumerate((height, width))]
    taps = []
    for tap in itertools.product(range(k[0]), range(k[1])):
        begin = [t * step for t, step in zip(tap, d, strict=True)]
        end = [b + (m - 1) * t + 1 for b, m, t in zip(begin, counts, s, strict=True)]
        taps.append(g.reshape(g.cut(y, begin, end, (2, 3), s), (n, c, 1, counts[0] * counts[1])))
    return g.reshape(g.concat(taps, 2), (n, c * k[0] * k[1], counts[0] * counts[1]))


OPS: Table = {
    **dict.fromkeys(("_convolution", "convolution", "_convolution_mode"), _convolution),
    **{f"conv{r}d": _convolution for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": _transposed for r in (1, 2, 3)},
    **{f"max_pool{r}d": _pool("max", r) for r in (1, 2, 3)},
    **{f"max_pool{r}d_with_indices": tv.with_absent(_pool("max", r), "the indices of max_pool") for r in (1, 2, 3)},
    **{f"avg_pool{r}d": _pool("avg", r) for r in (1, 2, 3)},
    **{f"adaptive_avg_pool{r}d": _adaptive("avg", r) for r in (1, 2, 3)},
    **{f"_adaptive_avg_pool{r}d": _adaptive("avg", r) for r in (2, 3)},
    **{
        f"adaptive_max_pool{r}d": tv.with_absent(_adaptive("max", r), "the indices of adaptive_max_pool")
        for r in (1, 2, 3)
    },
    **{f"upsample_nearest{r}d": _upsample(r, "nearest_neighbor", "asymmetric") for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": _upsample(r, "nearest_neighbor") for r in (1, 2, 3)},
    **dict.fromkeys(("grid_sampler", "grid_sampler_2d"), _grid_sampler),
    "im2col": _im2col,
    "upsample_bicubic2d": _upsample(2, "cubic"),
    "upsample_bilinear2d": _upsample(2, "linear"),
    "upsample_linear1d": _upsample(1, "linear"),
    "upsample_trilinear3d": _upsample(3, "linear"),
}
