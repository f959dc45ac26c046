# SPDX-License-Identifier: Apache-2.0
"""CPU tilings with vectors along the data: 1x1 and depthwise convolutions, few input channels. From
a Request, candidates.

Vectors run along an axis of the data (image columns), and elements of the weights are broadcast.

    for 4 channels: for 3 vectors of columns: acc[3][4]; for k: acc[i][j] += x[i] * w[j]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aotc.ir import frozen
from aotc.tir import linear, te
from aotc.tir.schedule.contraction import tile_segments
from aotc.tir.schedule.contraction.index_space import Irregular, Pixels, Split, flat, fused, independent
from aotc.tir.schedule.contraction.operand_staging import Staging
from aotc.tir.schedule.contraction.tile_segments import TileAxis
from aotc.tir.schedule.contraction.tiling import Output, Product, Reduction, Tiling
from aotc.tir.schedule.contraction.tiling_candidate import Candidate, Request, attempts, candidate
from aotc.tir.schedule.contraction.tiling_cost import VECTORS


def by_pixels(req: Request) -> Iterator[Candidate]:
    """Yield every tiling with vectors along the data whose accumulators fit in the registers."""
    channels: list[te.Axis | None] = [a for a in reversed(req.analysis.channel) if a[1] > 1]
    sizes = [(vectors, count) for vectors in VECTORS for count in (8, 6, 4, 3, 2, 1)]
    fitting = [(v, n) for v, n in sizes if (v + 1) * (n + 1) <= req.target.registers or v * n == 1]
    return attempts(_candidate, req, ((axis, v, n) for v, n in fitting for axis in channels or [None]))


def _candidate(req: Request, axis: te.Axis | None, vectors: int, count: int) -> Candidate:
    """Return the CPU tiling with tiles of `vectors` vectors of columns and `count` positions of the
    channel axis.

    Raise Irregular if there is none.
    """
    block = req.c.block
    if axis is None and count > 1:
        raise Irregular("no channels")
    if axis is not None and (count > axis[1] or (block and block % count)):
        raise Irregular("a tile wider than the channels")
    split = Split.of(req.analysis, axis, count)
    if not independent(split.a, split.lane):
        raise Irregular("the data depends on the channel")
    if not req.analysis.pixel:
        raise Irregular("no axis of the data alone")
    data = _direct(req, split) or _staged(req, split)
    pixels, staging = data.pixels, data.staging
    lanes = req.lanes
    while lanes > 4 and pixels.axes[-1][1] * 2 <= lanes:
        lanes //= 2
    weights = _weights(req, split)
    x = req.operand(req.a, pixels.position, staging)
    y = req.operand(req.b, flat(split.b), None) if weights is None else weights.operand
    tiling = Tiling(
        _levels(req, split, data, vectors, lanes),
        Product(x, y, req.c.dtype, lanes),
        Reduction((), data.written),
        Output(req.c.axes, req.store, pixels.unfuse),
    )
    name = req.name("pixels", axis, vectors=vectors, count=count)
    return candidate(req, name, tiling, (staging, weights), short=True)


@frozen(eq=False)
class _Data:
    """The data of a contraction as a tile reads it: in place, or a scratch copy.

    pixels    its axes and addresses
    staging   the copy; None for the data in place
    written   reduction axes that must be unrolled to read the copy
    """

    pixels: Pixels
    staging: Staging | None = None
    written: Sequence[te.Axis] = ()


def _direct(req: Request, split: Split) -> _Data | None:
    """Return the data of a contraction in place if vectors can be loaded from it, else None."""
    pixels = fused(req.analysis, split.a, flat(split.a))
    var, extent = pixels.axes[-1]
    if not all(d.inside for d in split.a):
        return None
    if req.lanes > 1 and (extent < req.lanes or pixels.position.coefficient(var) != 1):
        return None
    return _Data(pixels)


def _staged(req: Request, split: Split) -> _Data:
    """Return a copy of the data with its border, columns contiguous; raise Irregular if it cannot
    be copied.
    """
    req.require_finite(split.a)
    *rows, (column, _) = req.analysis.pixel
    # an axis that is a dimension of the data by itself, such as the batch, stays an outer loop
    lone = {v for v, _ in rows for d in split.a if d.inside and d.index.terms == {v: 1} and d.index.const == 0}
    of_column = [d for d in split.a if column in d.variables]
    if len(of_column) != 1:
        raise Irregular("columns along a diagonal")
    inner = (req.pixel_vars - lone) | req.reduction_vars
    staging = req.stage("rows", req.a, split.a, split, inner=inner, vector=column, slack=req.lanes, fill=req.c.fill)
    position = linear(staging.operand.flat, split.ranges)
    if staging.phases == 1:
        return _Data(fused(req.analysis, (), position), staging)
    # columns are addressed through quotients: keep the axes, and unroll the taps along them
    names = of_column[0].variables
    written = [(v, n) for v, n in req.c.reduce_axes if v in names]
    return _Data(Pixels(req.analysis.pixel, position, {}), staging, written)


def _weights(req: Request, split: Split) -> Staging | None:
    """Return a copy of the weights in the accumulator type; None if they can be broadcast in place."""
    if req.broadcasts(req.b):
        return None
    return req.stage("weights", req.b, split.b, split, inner={split.tile, split.lane} | req.reduction_vars)


def _levels(req: Request, split: Split, data: _Data, most: int, lanes: int) -> list[TileAxis]:
    """Return the loops of a tiling; tiles have at most `most` vectors, or fewer if that divides the
    columns more evenly.
    """
    staging, axes = data.staging, data.pixels.axes
    column, extent = axes[-1]
    vectors = -(-extent // lanes)
    if most > vectors:
        raise Irregular("a tile wider than the image")
    wanted = -(-vectors // -(-vectors // most))
    found = tile_segments.vector_segments(extent, wanted, lanes, staging is not None, merge=False)
    inner = [tile_segments.single(v, n) for v, n in axes[:-1]]
    var, rows = axes[-2:][0]
    # True if there is a separate copy for each position of this axis
    copied = staging is not None and var in staging.needs
    if split.size == 1 and len(axes) > 1 and not copied:
        budget = max(1, req.target.registers // 2 // wanted)
        inner[-1] = TileAxis(var, rows, tile_segments.even_segments(rows, min(budget, rows)), "x")
    inner.append(TileAxis(column, extent, found, "x", lanes))
    others = req.around(split.axis)
    if split.axis is None:
        return [*others, *inner]
    var, extent = split.axis
    channel = TileAxis(var, extent, tile_segments.cut(extent, split.size), "y", 1, split.names)
    if (staging is not None and split.tile in staging.needs) or req.b.nbytes > req.target.l2 // 2:
        return [*others, channel, *inner]
    return [*others, *inner, channel]
