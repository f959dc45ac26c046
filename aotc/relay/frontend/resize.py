# SPDX-License-Identifier: Apache-2.0
"""Resizing of the spatial axes, and samples at positions that are computed.

resize(x, (8, 8), "linear", "half_pixel")              # image.resize2d of (batch, channels, height, width)
grid_sample(x, grid, "bilinear", "zeros", False)       # the positions lie along the last axis of the grid
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.windows import LAYOUTS


def resize(
    x: Expr, sizes: Sequence[int], method: str, mode: str, rounding: str = "", cubic: float = -0.75, **attributes: Any
) -> Expr:
    """`x` (batch, channels, one to three spatial axes) with other spatial extents.

    method       "nearest_neighbor", "linear" or "cubic"
    mode         how positions of the result are those of the data: "half_pixel", "align_corners", "asymmetric", ...
    rounding     of positions, for the nearest neighbour
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
    """Elements of `x` (batch, channels, *spatial) at positions (batch, *result, coordinates) from -1 to 1."""
    rank = g.rank(grid)
    positions = g.transpose(grid, (0, rank - 1, *range(1, rank - 1)))
    layout = LAYOUTS[g.rank(x) - 2]
    modes = {"padding_mode": padding_mode, "align_corners": align_corners}
    return g.op("image.grid_sample", x, positions, method=method, layout=layout, **modes)
