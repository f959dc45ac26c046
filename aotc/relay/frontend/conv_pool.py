# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pools over one to three spatial axes, and the
windows that they move; resizing of these axes, and samples at
positions that are computed.

In: data (batch, channels, *spatial), or in another layout that is
named; a `Window`.  Out: calls of nn.conv2d, nn.max_pool2d and so
on.

    window = Window((3, 3), strides=(2, 2), dilations=(1, 1), pads=(1, 1, 1, 1))
    convolve(x, weight, window, bias)       # nn.bias_add(nn.conv2d(x, weight, ...), bias)
    pool("max", x, window)
    resize(x, (8, 8), "linear", "half_pixel")              # image.resize2d
    grid_sample(x, grid, "bilinear", "zeros", False)       # positions along the last axis of the grid

Formats that have words for padding work it out first; data with the
channels last names its layouts:

    window = window.padded(same_padding(spatial, window))
    convolve(x, weight, window, bias, data_layout="NHWC", kernel_layout="OHWI")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from aotc.ir import frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe

#: The layouts of data by the number of spatial axes.
LAYOUTS: Final = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@frozen
class Window:
    """A window over the spatial axes; `pads` holds all befores,
    then all afters.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    def spans(self) -> list[int]:
        """The extent of the window per axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def reach(self, counts: Sequence[int]) -> list[int]:
        """The elements per axis over which so many windows extend."""
        return [(n - 1) * stride + span for n, stride, span in zip(counts, self.strides, self.spans(), strict=True)]

    def padded(self, pads: Sequence[int]) -> Window:
        """The window with another padding."""
        return replace(self, pads=tuple(pads))

    def attributes(self) -> dict[str, tuple[int, ...]]:
        """What convolutions and pools call it, but for the kernel."""
        return {"strides": self.strides, "padding": self.pads, "dilation": self.dilations}


def halves(totals: Sequence[int], more_after: bool = True) -> tuple[int, ...]:
    """Padding split in two, befores first; of an odd number the
    larger part goes after, or before.
    """
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*small, *large) if more_after else (*large, *small)


def same_padding(spatial: Sequence[int], window: Window, more_after: bool = True) -> tuple[int, ...]:
    """The padding with which the result has ceil(extent / stride)
    elements per axis.
    """
    rows = zip(spatial, window.strides, window.spans(), strict=True)
    return halves([max((-(-n // stride) - 1) * stride + span - n, 0) for n, stride, span in rows], more_after)


def spatial_rank(rank: int, what: str) -> int:
    """The number of spatial axes of a tensor of `rank`: 1 to 3;
    AotcError (code "graph-rank") for others.
    """
    require("graph-rank", 3 <= rank <= 5, f"{what} of rank {rank} is not supported (3 to 5 are)")
    return rank - 2


def with_bias(y: Expr, bias: Maybe, axis: int = 1) -> Expr:
    """`y` with a bias per channel."""
    return y if bias is None else g.op("nn.bias_add", y, bias, axis=axis)


def convolve(
    x: Expr,
    weight: Expr,
    window: Window,
    bias: Maybe = None,
    groups: int = 1,
    terms: Sequence[Expr] = (),
    **attributes: Any,
) -> Expr:
    """A convolution; the weight is (channels, inputs / groups,
    *kernel), or what `kernel_layout` says.

    terms        zero points and scales of data and weight, where they are quantized
    attributes   those of nn.conv1d, nn.conv2d or nn.conv3d: layouts, and `out_dtype` for sums of integers
    """
    place = attributes.get("kernel_layout", "O").index("O")
    sizes = {"channels": g.shape(weight)[place], "kernel_size": window.kernel}
    name = f"{'qnn' if terms else 'nn'}.conv{window.rank}d"
    y = g.op(name, x, weight, *terms, **window.attributes(), groups=groups, **sizes, **attributes)
    return with_bias(y, bias, attributes.get("data_layout", "NC").index("C"))


def convolve_transposed(
    x: Expr,
    weight: Expr,
    window: Window,
    bias: Maybe,
    groups: int,
    output_padding: tuple[int, ...],
    terms: Sequence[Expr] = (),
    **attributes: Any,
) -> Expr:
    """A transposed convolution; the weight is (inputs, channels /
    groups, *kernel), or what `kernel_layout` says; terms and
    attributes are those of `convolve`.
    """
    place = attributes.get("kernel_layout", "IO").index("O")
    sizes = {"channels": g.shape(weight)[place] * groups, "kernel_size": window.kernel}
    sizes |= {"output_padding": output_padding}
    name = f"{'qnn' if terms else 'nn'}.conv{window.rank}d_transpose"
    y = g.op(name, x, weight, *terms, **window.attributes(), groups=groups, **sizes, **attributes)
    return with_bias(y, bias, attributes.get("data_layout", "NC").index("C"))


def taps(x: Expr, window: Window, counts: Sequence[int]) -> Iterator[tuple[list[int], Expr]]:
    """For each element of a window: its place in the window, and
    the elements of `x` that it meets on its way, (batch, channels,
    *counts).
    """
    for tap in itertools.product(*map(range, window.kernel)):
        begin = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, counts, window.strides, strict=True)]
        yield begin, g.cut(x, begin, end, range(2, window.rank + 2), window.strides)


def pool(kind: str, x: Expr, window: Window, **attributes: Any) -> Expr:
    """A pool of kind "max" or "avg"; further attributes are
    `ceil_mode`, `count_include_pad`, `layout`.
    """
    return g.op(f"nn.{kind}_pool{window.rank}d", x, pool_size=window.kernel, **window.attributes(), **attributes)


# --- sampling


def resize(
    x: Expr, sizes: Sequence[int], method: str, mode: str, rounding: str = "", cubic: float = -0.75, **attributes: Any
) -> Expr:
    """`x` (batch, channels, one to three spatial axes) with other
    spatial extents.

    method       "nearest_neighbor", "linear" or "cubic"
    mode         how positions of the result are those of the data: "half_pixel", "align_corners", "asymmetric", ...
    rounding     of positions, for the nearest neighbor
    attributes   others of image.resize2d: `scales`, `roi`, `layout`, `antialias`, ...
    """
    return g.op(
        f"image.resize{len(sizes)}d",
        x,
        size=tuple(sizes),
        method=method,
        coordinate_transformation_mode=mode,
        rounding_method=rounding if method == "nearest_neighbor" else "",
        cubic_alpha=cubic,
        **{"layout": LAYOUTS[len(sizes)], **attributes},
    )


def grid_sample(x: Expr, grid: Expr, method: str, padding_mode: str, align_corners: bool) -> Expr:
    """Elements of `x` (batch, channels, *spatial) at positions
    (batch, *result, coordinates) from -1 to 1.
    """
    rank = g.rank(grid)
    positions = g.transpose(grid, (0, rank - 1, *range(1, rank - 1)))
    layout = LAYOUTS[g.rank(x) - 2]
    modes = {"padding_mode": padding_mode, "align_corners": align_corners}
    return g.op("image.grid_sample", x, positions, method=method, layout=layout, **modes)
