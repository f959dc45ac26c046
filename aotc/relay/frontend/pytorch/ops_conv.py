# SPDX-License-Identifier: Apache-2.0
"""Converters of convolutions, pools and resizing.  Inputs without a batch axis get one for the time being.

OPS["conv2d"](x=a, weight=w, bias=b)    # nn.bias_add(nn.conv2d(a, w), b)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.pytorch.values import Absent, Converter, Table, Value, ints_of, shape, size

_LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_ROUNDING = {"asymmetric": "floor", "half_pixel": "round_prefer_ceil"}


def _per_axis(value: Value, rank: int) -> tuple[int, ...]:
    """One number for each of the axes."""
    items = ints_of(value)
    return tuple(items * rank if len(items) == 1 else items)


def _batched(x: Expr, rank: int, body: Any) -> Expr:
    """`body` of x with a batch axis, which goes away again if x has none."""
    if g.rank(x) == rank + 1:
        return g.squeeze(body(g.unsqueeze(x, [0])), [0])
    if g.rank(x) != rank + 2:
        raise AotcError("torch-shape", f"an input of {g.rank(x)} dimensions does not fit {rank} spatial ones")
    return body(x)  # type: ignore[no-any-return]


def _bias(y: Expr, bias: Expr | None) -> Expr:
    return y if bias is None else g.op("nn.bias_add", y, bias, axis=1)


def _padding(padding: Value, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """All befores, then all afters; "same" puts the odd element after."""
    if padding == "same":
        totals = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        return (*(t // 2 for t in totals), *(t - t // 2 for t in totals))
    return _per_axis(0 if padding == "valid" else padding, len(kernel)) * 2


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
    dims = shape(weight)
    kernel, rank = dims[2:], len(dims) - 2
    if not 1 <= rank <= 3:
        raise AotcError("torch-shape", f"a convolution with a weight of {len(dims)} dimensions is not supported")
    steps = _per_axis(dilation, rank)
    common = {
        "strides": _per_axis(stride, rank),
        "padding": _padding(padding, kernel, steps),
        "dilation": steps,
        "groups": groups,
        "kernel_size": kernel,
        "channels": dims[1] * groups if transposed else dims[0],
    }
    if transposed:
        extra = _per_axis(output_padding, rank)
        name = f"nn.conv{rank}d_transpose"
        return _batched(x, rank, lambda y: _bias(g.op(name, y, weight, output_padding=extra, **common), bias))
    return _batched(x, rank, lambda y: _bias(g.op(f"nn.conv{rank}d", y, weight, **common), bias))


def _conv(
    x: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Value = 1,
    padding: Value = 0,
    dilation: Value = 1,
    groups: int = 1,
) -> Expr:
    return _convolution(x, weight, bias, stride, padding, dilation, False, 0, groups)


def _conv_transpose(
    x: Expr,
    weight: Expr,
    bias: Expr | None = None,
    stride: Value = 1,
    padding: Value = 0,
    output_padding: Value = 0,
    groups: int = 1,
    dilation: Value = 1,
) -> Expr:
    return _convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


# --- pools


def _max_pool(rank: int) -> Converter:
    def convert(
        x: Expr,
        kernel_size: Value,
        stride: Value = None,
        padding: Value = 0,
        dilation: Value = 1,
        ceil_mode: bool = False,
    ) -> Expr:
        attrs = _window(rank, kernel_size, stride, padding, ceil_mode)
        return _batched(x, rank, lambda y: g.op(f"nn.max_pool{rank}d", y, dilation=_per_axis(dilation, rank), **attrs))

    return convert


def _window(rank: int, kernel: Value, stride: Value, padding: Value, ceil_mode: bool) -> dict[str, Any]:
    sizes = _per_axis(kernel, rank)
    return {
        "pool_size": sizes,
        "strides": _per_axis(stride, rank) if stride not in (None, []) else sizes,
        "padding": _per_axis(padding, rank) * 2,
        "ceil_mode": bool(ceil_mode),
    }


def _max_pool_with_indices(rank: int) -> Converter:
    pool = _max_pool(rank)

    def convert(
        x: Expr,
        kernel_size: Value,
        stride: Value = None,
        padding: Value = 0,
        dilation: Value = 1,
        ceil_mode: bool = False,
    ) -> list[Value]:
        return [pool(x, kernel_size, stride, padding, dilation, ceil_mode), Absent("the indices of max_pool")]

    return convert


def _avg_pool(rank: int) -> Converter:
    def convert(
        x: Expr,
        kernel_size: Value,
        stride: Value = None,
        padding: Value = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:
        attrs = _window(rank, kernel_size, stride, padding, ceil_mode)
        include = bool(count_include_pad)
        if divisor_override is None:
            return _batched(x, rank, lambda y: g.op(f"nn.avg_pool{rank}d", y, count_include_pad=include, **attrs))
        if ceil_mode:
            raise AotcError("torch-op", "avg_pool with both ceil_mode and divisor_override is not supported")
        mean = _batched(x, rank, lambda y: g.op(f"nn.avg_pool{rank}d", y, count_include_pad=True, **attrs))
        return g.mul(mean, math.prod(attrs["pool_size"]) / divisor_override)

    return convert


def _adaptive(kind: str, rank: int) -> Converter:
    def convert(x: Expr, output_size: Value) -> Expr:
        wanted = output_size if isinstance(output_size, (list, tuple)) else [output_size] * rank
        if len(wanted) == 1:
            wanted = list(wanted) * rank
        start = g.rank(x) - rank
        sizes = tuple(size(x, start + k) if w is None else ints_of(w)[0] for k, w in enumerate(wanted))
        return _batched(x, rank, lambda y: g.op(f"nn.adaptive_{kind}_pool{rank}d", y, output_size=sizes))

    return convert


def _adaptive_max(rank: int) -> Converter:
    def convert(x: Expr, output_size: Value) -> list[Value]:
        return [_adaptive("max", rank)(x, output_size), Absent("the indices of adaptive_max_pool")]

    return convert


# --- resizing


def _resize(x: Expr, rank: int, sizes: Value, scales: Sequence[float | None], method: str, mode: str) -> Expr:
    """torch computes positions with a given factor, and with the ratio of the extents where there is none."""
    extents = shape(x)[2:]
    factors = [f if f is not None else 0.0 for f in (scales or [None] * rank)]
    if sizes is None:
        sizes = [math.floor(n * f) for n, f in zip(extents, factors, strict=True)]
    target = tuple(ints_of(sizes))
    exact = [target[k] / extents[k] if not factors[k] else factors[k] for k in range(rank)]
    given = tuple(exact) if any(f * n != t for f, n, t in zip(exact, extents, target, strict=True)) else None
    if mode == "align_corners":
        given = None
    return g.op(
        f"image.resize{rank}d",
        x,
        size=target,
        layout=_LAYOUTS[rank],
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=_ROUNDING[mode] if method == "nearest_neighbor" else "",
        cubic_alpha=-0.75,
        scales=given,
    )


def _scales_of(rank: int, scale_factors: Value, named: Sequence[float | None]) -> list[float | None]:
    if scale_factors is not None:
        return [float(s) for s in scale_factors]
    return [None if s is None else float(s) for s in named][3 - rank :]


def _nearest(rank: int, mode: str) -> Converter:
    def convert(
        x: Expr,
        output_size: Value = None,
        scale_factors: Value = None,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Expr:
        factors = _scales_of(rank, scale_factors, (scales_d, scales_h, scales_w if rank > 1 else scales))
        return _resize(x, rank, output_size, factors, "nearest_neighbor", mode)

    return convert


def _linear(rank: int, method: str) -> Converter:
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
        factors = _scales_of(rank, scale_factors, (scales_d, scales_h, scales_w if rank > 1 else scales))
        mode = "align_corners" if align_corners else "half_pixel"
        return _resize(x, rank, output_size, factors, method, mode)

    return convert


def _grid_sampler(x: Expr, grid: Expr, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Expr:
    rank = g.rank(grid)
    return g.op(
        "image.grid_sample",
        x,
        g.transpose(grid, (0, rank - 1, *range(1, rank - 1))),
        method=("bilinear", "nearest", "bicubic")[interpolation_mode],
        layout=_LAYOUTS[g.rank(x) - 2],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=bool(align_corners),
    )


def _im2col(x: Expr, kernel_size: Value, dilation: Value, padding: Value, stride: Value) -> Expr:
    """Each window as a column: a convolution with the identity would cost more than slices."""
    k, d, p, s = (_per_axis(v, 2) for v in (kernel_size, dilation, padding, stride))
    y = g.pad(x, [(0, 0), (0, 0), (p[0], p[0]), (p[1], p[1])])
    n, c, height, width = shape(y)
    counts = [(extent - (k[i] - 1) * d[i] - 1) // s[i] + 1 for i, extent in enumerate((height, width))]
    taps = []
    for row in range(k[0]):
        for column in range(k[1]):
            begin = [row * d[0], column * d[1]]
            end = [b + (m - 1) * t + 1 for b, m, t in zip(begin, counts, s, strict=True)]
            taps.append(g.reshape(g.cut(y, begin, end, (2, 3), s), (n, c, 1, counts[0] * counts[1])))
    return g.reshape(g.concat(taps, 2), (n, c * k[0] * k[1], counts[0] * counts[1]))


OPS: Table = {
    "_convolution": _convolution,
    "_convolution_mode": _conv,
    "convolution": _convolution,
    **{f"conv{r}d": _conv for r in (1, 2, 3)},
    **{f"conv_transpose{r}d": _conv_transpose for r in (1, 2, 3)},
    **{f"max_pool{r}d": _max_pool(r) for r in (1, 2, 3)},
    **{f"max_pool{r}d_with_indices": _max_pool_with_indices(r) for r in (1, 2, 3)},
    **{f"avg_pool{r}d": _avg_pool(r) for r in (1, 2, 3)},
    **{f"adaptive_avg_pool{r}d": _adaptive("avg", r) for r in (1, 2, 3)},
    **{f"_adaptive_avg_pool{r}d": _adaptive("avg", r) for r in (2, 3)},
    **{f"adaptive_max_pool{r}d": _adaptive_max(r) for r in (1, 2, 3)},
    **{f"upsample_nearest{r}d": _nearest(r, "asymmetric") for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": _nearest(r, "half_pixel") for r in (1, 2, 3)},
    "grid_sampler": _grid_sampler,
    "grid_sampler_2d": _grid_sampler,
    "im2col": _im2col,
    "upsample_bicubic2d": _linear(2, "cubic"),
    "upsample_bilinear2d": _linear(2, "linear"),
    "upsample_linear1d": _linear(1, "linear"),
    "upsample_trilinear3d": _linear(3, "linear"),
}
