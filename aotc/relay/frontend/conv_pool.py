# SPDX-License-Identifier: Apache-2.0
"""Graph builders for convolution and pooling over one to three spatial axes, and for resizing and
grid sampling of these axes.

Input: data (batch, channels, *spatial), or in another layout that an attribute names, and a
`Window`. Output: calls of nn.conv2d, nn.max_pool2d and so on.

    window = Window((3, 3), strides=(2, 2), dilations=(1, 1), pads=(1, 1, 1, 1))
    build_convolution(x, weight, window, bias)  # nn.bias_add(nn.conv2d(x, weight, ...), bias)
    build_pool("max", x, window)
    build_resize(x, (8, 8), "linear", "half_pixel")        # image.resize2d
    grid_sample(x, grid, "bilinear", "zeros", False)       # positions along the last axis of the grid

A front end whose format names the padding (SAME, VALID) computes the widths first; for
channels-last data it passes the layouts:

    window = window.with_pads(same_padding_widths(spatial, window))
    build_convolution(x, weight, window, bias, data_layout="NHWC", kernel_layout="OHWI")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from aotc.ir import Dim, frozen, maximum_of_dims, product_of_dims, require, require_static_shape, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr

#: Data layout by number of spatial axes.
DATA_LAYOUT_BY_SPATIAL_RANK: Final = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


@frozen
class Window:
    """The window of a convolution or pooling operator: kernel extents, strides, dilations and
    padding, one value per spatial axis. `pads` holds the widths before all axes, then the widths
    after all axes.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Return the number of spatial axes of the window."""
        return len(self.kernel)

    def dilated_kernel_extents(self) -> list[int]:
        """Return the dilated extent of the kernel per axis: `(kernel - 1) * dilation + 1`."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def covered_input_extents(self, window_counts: Sequence[int]) -> list[int]:
        """Return, per axis, the number of input elements that `window_counts` positions of the
        window cover.
        """
        return [
            (n - 1) * stride + span
            for n, stride, span in zip(window_counts, self.strides, self.dilated_kernel_extents(), strict=True)
        ]

    def with_pads(self, pads: Sequence[int]) -> Window:
        """Return a copy of the window with the padding widths `pads`."""
        return replace(self, pads=tuple(pads))

    def window_attributes(self) -> dict[str, tuple[int, ...]]:
        """Return the window as attributes `strides`, `padding` and `dilation` of a convolution or
        pooling operator.
        """
        return {"strides": self.strides, "padding": self.pads, "dilation": self.dilations}


def split_padding_before_after(totals: Sequence[int], larger_half_after: bool = True) -> tuple[int, ...]:
    """Split the total padding of each axis into a width before and a width after it; return all
    widths before, then all widths after, as one tuple. If a total is odd, the larger part is the
    one after the axis, or the one before it if `larger_half_after` is False.
    """
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*small, *large) if larger_half_after else (*large, *small)


def same_padding_widths(
    spatial_extents: Sequence[int], window: Window, larger_half_after: bool = True
) -> tuple[int, ...]:
    """Return the widths of SAME padding, with which a convolution or pool has ceil(extent / stride)
    elements per axis; all widths before the axes come first, then all widths after.
    """
    return require_static_shape(same_padding_widths_of_dims(spatial_extents, window, larger_half_after))


def same_padding_widths_of_dims(
    spatial_extents: Sequence[Dim], window: Window, larger_half_after: bool = True
) -> tuple[Dim, ...]:
    """Return the widths of SAME padding, as `same_padding_widths` does, for extents that may be known at run time only.
    A width is a number if it is the same for all extents: with a stride of 1, and where extents are multiples of the
    stride.
    """
    rows = zip(spatial_extents, window.strides, window.dilated_kernel_extents(), strict=True)
    totals = [
        maximum_of_dims((sum_of_dims((product_of_dims(((n + (stride - 1)) // stride - 1, stride)), span, 0 - n)), 0))
        for n, stride, span in rows
    ]
    small = [t // 2 for t in totals]
    large = [t - s for t, s in zip(totals, small, strict=True)]
    return (*small, *large) if larger_half_after else (*large, *small)


def spatial_rank_of_tensor_rank_3_to_5(tensor_rank: int, subject: str) -> int:
    """Return the number of spatial axes, 1 to 3, of a tensor of rank `tensor_rank` with batch and channel
    axes. Raises AotcError (code "graph-rank") for other ranks.
    """
    require("graph-rank", 3 <= tensor_rank <= 5, f"{subject} of rank {tensor_rank} is not supported (3 to 5 are)")
    return tensor_rank - 2


def add_optional_bias(y: Expr, bias: OptionalExpr, axis: int = 1) -> Expr:
    """Add a bias vector along the channel axis of `y`; return `y` itself if the bias is None."""
    return y if bias is None else g.call_op("nn.bias_add", y, bias, axis=axis)


def build_convolution(
    x: Expr,
    weight: Expr,
    window: Window,
    bias: OptionalExpr = None,
    groups: int = 1,
    zero_points_and_scales: Sequence[Expr] = (),
    **attributes: Any,
) -> Expr:
    """Build a convolution; the weight is (output channels, input channels / groups, *kernel), or in
    the layout that the attribute `kernel_layout` names.

    zero_points_and_scales        zero points and scales of data and weight; if given, the operator is qnn.conv*d
    attributes   further attributes of nn.conv1d, nn.conv2d or nn.conv3d: layouts, and `out_dtype`
                 for integer sums
    """
    place = attributes.get("kernel_layout", "O").index("O")
    sizes = {"channels": g.shape(weight)[place], "kernel_size": window.kernel}
    name = f"{'qnn' if zero_points_and_scales else 'nn'}.conv{window.rank}d"
    y = g.call_op(
        name, x, weight, *zero_points_and_scales, **window.window_attributes(), groups=groups, **sizes, **attributes
    )
    return add_optional_bias(y, bias, attributes.get("data_layout", "NC").index("C"))


def build_transposed_convolution(
    x: Expr,
    weight: Expr,
    window: Window,
    bias: OptionalExpr,
    groups: int,
    output_padding: tuple[int, ...],
    zero_points_and_scales: Sequence[Expr] = (),
    **attributes: Any,
) -> Expr:
    """Build a transposed convolution; the weight is (input channels, output channels / groups,
    *kernel), or in the layout that `kernel_layout` names. `zero_points_and_scales` and `attributes` have the meaning
    that they have in `build_convolution`.
    """
    place = attributes.get("kernel_layout", "IO").index("O")
    sizes = {"channels": g.shape(weight)[place] * groups, "kernel_size": window.kernel}
    sizes |= {"output_padding": output_padding}
    name = f"{'qnn' if zero_points_and_scales else 'nn'}.conv{window.rank}d_transpose"
    y = g.call_op(
        name, x, weight, *zero_points_and_scales, **window.window_attributes(), groups=groups, **sizes, **attributes
    )
    return add_optional_bias(y, bias, attributes.get("data_layout", "NC").index("C"))


def kernel_tap_slices(x: Expr, window: Window, window_counts: Sequence[int]) -> Iterator[tuple[list[int], Expr]]:
    """Yield for each element of the kernel its offset in the window, per axis, and the strided
    slice of `x` that this element reads over all positions of the window: (batch, channels,
    *counts).
    """
    for tap in itertools.product(*map(range, window.kernel)):
        begin = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, window_counts, window.strides, strict=True)]
        yield begin, g.strided_slice(x, begin, end, range(2, window.rank + 2), window.strides)


def build_pool(kind: str, x: Expr, window: Window, **attributes: Any) -> Expr:
    """Build a pooling operator of kind "max" or "avg"; further attributes are `ceil_mode`,
    `count_include_pad` and `layout`.
    """
    return g.call_op(
        f"nn.{kind}_pool{window.rank}d", x, pool_size=window.kernel, **window.window_attributes(), **attributes
    )


# --- sampling


def build_resize(
    x: Expr,
    sizes: Sequence[Dim],
    method: str,
    coordinate_transformation: str,
    coordinate_rounding: str = "",
    cubic_coefficient: float = -0.75,
    **attributes: Any,
) -> Expr:
    """Resize the spatial axes of `x` (batch, channels, one to three spatial axes) to the extents
    `sizes`.

    method                 "nearest_neighbor", "linear" or "cubic"
    coordinate_transformation  map from result coordinates to data coordinates: "half_pixel", "align_corners",
                           "asymmetric", ...
    coordinate_rounding    rounding of coordinates, for "nearest_neighbor" only
    cubic_coefficient      coefficient of cubic interpolation
    attributes             further attributes of image.resize2d: `scales`, `roi`, `layout`, `antialias`, ...
    """
    return g.call_op(
        f"image.resize{len(sizes)}d",
        x,
        size=tuple(sizes),
        method=method,
        coordinate_transformation_mode=coordinate_transformation,
        rounding_method=coordinate_rounding if method == "nearest_neighbor" else "",
        cubic_alpha=cubic_coefficient,
        **{"layout": DATA_LAYOUT_BY_SPATIAL_RANK[len(sizes)], **attributes},
    )


def grid_sample(x: Expr, grid: Expr, method: str, padding_mode: str, align_corners: bool) -> Expr:
    """Sample `x` (batch, channels, *spatial) at the positions `grid` (batch, *result, coordinates),
    whose coordinates range from -1 to 1.
    """
    rank = g.rank(grid)
    positions = g.transpose(grid, (0, rank - 1, *range(1, rank - 1)))
    layout = DATA_LAYOUT_BY_SPATIAL_RANK[g.rank(x) - 2]
    modes = {"padding_mode": padding_mode, "align_corners": align_corners}
    return g.call_op("image.grid_sample", x, positions, method=method, layout=layout, **modes)
