# SPDX-License-Identifier: Apache-2.0
"""CPU tilings with vectors along the weights, for convolutions and matrix products: from a Request,
candidates.

Vectors run along an axis of the weights (output channels), and elements of the data are broadcast.
In depthwise convolutions with the channels last, data and weights have that axis in common, and
both are read as vectors.

    for tile of 32 channels: for 14 columns: acc[2][14]; for k: acc[i][j] += w[i] * x[j]
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import LANES, Var, linear, te
from aotc.tir.schedule.contraction import index_space, tile_segments
from aotc.tir.schedule.contraction.index_space import (
    Dimension,
    Irregular,
    Pixels,
    Split,
    flat,
    fused,
    independent,
    used,
)
from aotc.tir.schedule.contraction.operand_staging import Staging, packed
from aotc.tir.schedule.contraction.tile_loop_nest import written_out
from aotc.tir.schedule.contraction.tile_segments import BorderSignature, TileAxis
from aotc.tir.schedule.contraction.tiling import Output, Product, Reduction, Tiling
from aotc.tir.schedule.contraction.tiling_candidate import Candidate, Request, attempts, candidate
from aotc.tir.schedule.contraction.tiling_cost import VECTORS, tile_columns

#: Least number of rows that reuse weights for which copying the weights to contiguous panels pays.
PANEL_ROWS: Final = 16
#: Factor of the time of products whose data was evicted from the L1 cache.
EVICTED: Final = 2
#: Ratio of the cache lines that a tile reads to those that fit into the cache sets that they map to
#: from which on the data is considered evicted before it is used again.
OVERFULL: Final = 2
#: Tiles with more columns than this may be narrowed, so that the data reused by the next row of
#: tiles stays in the cache.
FEW_COLUMNS: Final = 5


def by_lanes(req: Request) -> Iterator[Candidate]:
    """Yield the tilings with vectors along the weights, for the first axis of the weights that
    permits any.
    """
    c = req.c
    axes = [a for a in c.axes if a[0] is c.lane] if c.lane is not None else list(reversed(req.analysis.channel))
    for axis in axes:
        lanes = req.lanes if not c.block else math.gcd(req.lanes, c.block)
        while lanes > max(4, axis[1]) and not independent(req.analysis.a, axis[0]):
            lanes //= 2
        whole = math.gcd(lanes, axis[1])
        lengths = {lanes, whole} if req.group and whole in LANES else {lanes}
        tiles = ((axis, vectors, length) for length in sorted(lengths) for vectors in VECTORS)
        found = list(attempts(_candidate, req, tiles))
        if found:
            yield from found
            return


@frozen(eq=False)
class _Attempt:
    """A tile of `vectors` vectors of `lanes` elements along `axis` of the weights; `along` as in
    Product.
    """

    req: Request
    axis: te.Axis
    vectors: int
    lanes: int
    split: Split
    along: bool


def _candidate(req: Request, axis: te.Axis, vectors: int, lanes: int) -> Candidate:
    """Return the CPU tiling for a tile of `vectors` vectors of weights.

    Raise Irregular if it is wider than the weights, or the data does not permit it.
    """
    block, size = req.c.block, vectors * lanes
    whole = block and block % size and not (req.group and size % block == 0)
    if vectors > max(1, -(-axis[1] // lanes)) or whole:
        raise Irregular("a tile wider than the weights")
    split = Split.of(req.analysis, axis, size)
    along = not independent(split.a, split.lane)
    attempt = _Attempt(req, axis, vectors, lanes, split, along)
    if along:
        lane = split.lane
        alone = all(d.index.coefficient(lane) == d.stride == 1 or independent([d], lane) for d in split.a)
        if not alone or vectors > 1 or lanes == 1 or req.group is not None:
            raise Irregular("the data depends on the lane")
    found = _simplest(attempt)
    if found is None:
        raise Irregular("borders that are not known when a tile is written")
    return found


def _simplest(attempt: _Attempt) -> Candidate | None:
    """Return the best tiling for one tile size, None if there is none.

    Tried in order: the data itself in tiles of several image rows; if their borders take too much
    code, tiles of one row, or a padded copy of the data, whichever is cheaper.
    """
    ready = attempt.along or _lies_ready(attempt.req, attempt.split)
    found = _assembled(attempt, None) if ready else None
    if attempt.along:
        return _within_l1(attempt, found or _assembled(attempt, None, rows=False))
    if found is not None:
        return found
    single = _assembled(attempt, None, rows=False) if ready else None
    try:
        padded = _assembled(attempt, _padded(attempt))
    except Irregular:
        if single is None:
            raise
        return single
    return single if single is not None and (padded is None or single.cost < padded.cost) else padded


def _within_l1(attempt: _Attempt, direct: Candidate | None) -> Candidate | None:
    """Return the cheaper one of a tiling of the data with channels last and a tiling of a padded copy.

    Positions map to few sets of the L1 cache if their distance, the number of channels, is a
    multiple of a large power of two. If a tile reads many more cache lines than these sets hold,
    products wait for the L2 cache. In the copy, the vectors of neighboring positions are contiguous
    and use all sets.
    """
    if direct is None or not _evicts(attempt, direct.tiling):
        return direct
    direct = replace(direct, cost=direct.cost * EVICTED)
    with suppress(Irregular):
        padded = _padded(attempt)
        fits = padded.operand.buffer.nbytes <= attempt.req.target.l2 // 4
        copied = _assembled(attempt, padded) if fits else None
        return copied if copied is not None and copied.cost < direct.cost else direct
    return direct


def _evicts(attempt: _Attempt, tiling: Tiling) -> bool:
    """Return True if a tile reads more cache lines than the L1 cache sets that they map to can hold."""
    target, dims, dtype = attempt.req.target, attempt.split.a, attempt.req.a.dtype
    tile = {axis.var: max(s.size for s in axis.segments) for axis in tiling.levels if axis.role == "y"}
    if not tile or _window(attempt, tile) <= target.l1:
        return False
    position = flat(dims)
    pitch = min(abs(position.coefficient(var) or 0) for var in tile) * dtype.itemsize
    held = target.l1_ways * (target.l1_stride // math.gcd(pitch, target.l1_stride))
    lines = index_space.reach(dims, {**dict(attempt.req.c.reduce_axes), **tile})
    return pitch > target.line and lines > OVERFULL * held


def _lies_ready(req: Request, split: Split) -> bool:
    """Return True if the data can be broadcast from its buffer, apart from its borders."""
    if req.c.fill and not req.target.bare and not all(d.inside for d in split.a):
        return False
    if req.group is None:
        return req.broadcasts(req.a)
    whole = all(d.inside for d in split.a if req.group in d.variables)
    return whole and flat(split.a).coefficient(req.group) == 1


def _padded(attempt: _Attempt) -> Staging:
    """Return a copy of the data in scratch memory, with its border of zeros (or `fill`)."""
    req, split = attempt.req, attempt.split
    req.require_finite(split.a)
    inner, vector = req.pixel_vars | req.reduction_vars, req.group
    if attempt.along:
        inner, vector = inner | {split.lane}, split.lane
    how = {} if vector is None else {"vector": vector}
    return req.stage("padded", req.a, split.a, split, inner=inner, fill=req.c.fill, **how)


def _assembled(attempt: _Attempt, padded: Staging | None, rows: bool = True) -> Candidate | None:
    """Return the candidate tiling for the data or its padded copy; None if the data's borders take
    too much code.

    `rows` allows tiles of several rows of an image.
    """
    req, split = attempt.req, attempt.split
    dims = split.a if padded is None else ()
    position = flat(split.a) if padded is None else linear(padded.operand.flat, split.ranges)
    pixels = fused(req.analysis, dims, position)
    tiles = _tile_sizes(attempt, pixels, rows)
    open_dims = [d for d in dims if not d.inside]
    borders = [d for d in open_dims if d.variables & set(tiles)]
    taps = [(v, n) for v, n in req.c.reduce_axes if v in used(borders)]
    written = attempt.vectors * math.prod(tiles.values()) * math.prod(n for _, n in taps)
    long = written > 2 * req.target.budget.unrolled
    if borders and (long or not all(_is_static(d, set(tiles), req.reduction_vars) for d in borders)):
        return None
    if taps and req.ordered:
        before = list(req.c.reduce_axes[: req.c.reduce_axes.index(taps[-1]) + 1])
        if len(before) > len(taps) and not attempt.along:
            return None
        taps = before
    panel = _panel(attempt, math.prod(n for _, n in pixels.axes))
    x = req.operand(req.b, flat(split.b) if panel is None else linear(panel.operand.flat, {}), panel)
    y = req.operand(req.a, pixels.position, padded)
    group = req.c.group if req.group else 1
    tiling = Tiling(
        _levels(attempt, _tiled_pixels(pixels, tiles, borders, taps), panel, padded),
        Product(x, y, req.c.dtype, attempt.lanes, attempt.along, req.c.fill, group),
        Reduction((), (), taps, borders, [d for d in open_dims if d not in borders], ordered=req.ordered),
        Output(req.c.axes, req.store, pixels.unfuse),
    )
    parameters = {"vectors": attempt.vectors, "lanes": attempt.lanes}
    parameters |= {"group": group} if group > 1 else {}
    name = req.name("lanes", attempt.axis, **parameters)
    made = candidate(req, name, tiling, (padded, panel))
    return None if borders and written_out(made.tiling) > req.target.budget.written else made


def _tile_sizes(attempt: _Attempt, pixels: Pixels, rows: bool) -> dict[Var, int]:
    """Return the register-tile size along each tiled axis of the data: columns, and rows if an
    image is narrow.
    """
    target = attempt.req.target
    budget = tile_columns(target, attempt.vectors, attempt.lanes, attempt.req.dots)
    wide = [(v, n) for v, n in pixels.axes if n > 1]
    if not wide:
        return {}
    column, extent = wide[-1]
    sizes = {column: min(budget, extent)}
    if attempt.along and len(wide) > 1:
        fitting = (n for n in range(sizes[column], FEW_COLUMNS, -1) if _window(attempt, {column: n}) <= target.l1)
        sizes[column] = next(fitting, sizes[column])
    if rows and len(wide) > 1 and extent * 2 <= budget:
        sizes[wide[-2][0]] = min(budget // extent, wide[-2][1])
    return sizes


def _is_static(dim: Dimension, tiles: set[Var], reduction: set[Var]) -> bool:
    """Return True if a border is known at code generation: its index depends on one tiled axis and
    reduction axes only.
    """
    used = dim.variables
    plain = all(isinstance(t, Var) for t in dim.index.terms)
    return plain and len(used & tiles) == 1 and used <= tiles | reduction


def _panel(attempt: _Attempt, rows: int) -> Staging | None:
    """Return a copy of the weights in which the lanes are contiguous; None where they are already."""
    req, split = attempt.req, attempt.split
    if req.group is not None and not req.c.block:
        axes = ((split.lane, split.size), (req.group, req.c.group))
        return packed("panel", req.b, split.b, (*req.c.reduce_axes, *axes))
    contiguous = bool(req.group) or flat(split.b).coefficient(split.lane) == 1
    if attempt.lanes == 1 or req.c.block:
        if attempt.lanes > 1 and not contiguous:
            raise Irregular("packed weights that are not contiguous")
        return None
    if contiguous and (rows < PANEL_ROWS or attempt.along) and attempt.axis[1] >= attempt.lanes:
        return None
    if attempt.along:
        raise Irregular("weights that do not lie as the data does")
    inner = {split.lane} | req.reduction_vars
    return req.stage("panel", req.b, split.b, split, inner=inner, vector=split.lane, clipped=True)


def _tiled_pixels(
    pixels: Pixels, tiles: Mapping[Var, int], borders: Sequence[Dimension], taps: Sequence[te.Axis]
) -> list[TileAxis]:
    """Return the axes that only the data depends on, split into tiles; tiled axes are innermost."""
    found: list[TileAxis] = []
    for var, extent in pixels.axes:
        if var not in tiles:
            found.append(tile_segments.single(var, extent))
            continue
        signature = BorderSignature.of(borders, var, taps)
        found.append(TileAxis(var, extent, tile_segments.bordered_segments(extent, tiles[var], signature), "y"))
    return sorted(found, key=lambda axis: axis.role == "y")


def _levels(
    attempt: _Attempt, inner: Sequence[TileAxis], panel: Staging | None, padded: Staging | None
) -> list[TileAxis]:
    """Return the loops of a tiling; the weights' loop is outside of the data's if the weights are
    copied or exceed the cache.
    """
    req, (var, extent) = attempt.req, attempt.axis
    whole, merge = bool(req.c.block) or panel is not None, var is not req.c.axes[-1][0]
    found = tile_segments.vector_segments(extent, attempt.vectors, attempt.lanes, whole, merge)
    lane = TileAxis(var, extent, found, "x", attempt.lanes, attempt.split.names)
    if attempt.along and padded is None and len(inner) > 1:
        return [*req.around(attempt.axis), *inner[:-2], *_near(attempt, lane, *inner[-2:])]
    early = panel is not None or (padded is not None and attempt.split.tile in padded.needs)
    if early or req.b.nbytes > req.target.l2 // 2 or not inner:
        return [*req.around(attempt.axis), lane, *inner]
    return [*req.around(attempt.axis), *inner[:-1], lane, inner[-1]]


def _near(attempt: _Attempt, lane: TileAxis, rows: TileAxis, columns: TileAxis) -> list[TileAxis]:
    """Return the loops of a tiling in an order in which the data of one row of tiles stays in the
    first-level cache.
    """
    row, tile = ({axis.var: max(s.size for s in axis.segments)} for axis in (rows, columns))
    l1 = attempt.req.target.l1
    if _window(attempt, {**row, columns.var: columns.extent}) <= l1:
        return [rows, lane, columns]
    if _window(attempt, {**row, **tile}) <= l1:
        return [columns, rows, lane]
    return [columns, lane, rows] if _is_near(attempt) else [rows, lane, columns]


def _window(attempt: _Attempt, positions: Mapping[Var, int]) -> int:
    """Return the bytes of data that all channels read, for given numbers of output positions along
    each axis.
    """
    split = attempt.split
    channels = {split.tile: -(-attempt.axis[1] // split.size), split.lane: split.size}
    extents = {**dict(attempt.req.c.reduce_axes), **channels, **positions}
    return index_space.reach(split.a, extents) * attempt.req.a.dtype.itemsize


def _is_near(attempt: _Attempt) -> bool:
    """Return True if data and output of a contraction fit in the second-level cache."""
    c = attempt.req.c
    return attempt.req.a.nbytes + index_space.points(c.axes) * c.dtype.itemsize <= attempt.req.target.l2
