# SPDX-License-Identifier: Apache-2.0
"""The two ways to tile a contraction.  An analysed contraction in, tilings with their scratch and cost out.

by_lanes    vectors along an axis of the weights (output channels), data broadcast: convolutions, matrices; or
            vectors of both, where they share the axis: depthwise convolutions with the channels last
by_pixels   vectors along an axis of the data (image columns), weights broadcast: 1x1 and depthwise
            convolutions, few input channels

    best = min((*by_lanes(request), *by_pixels(request)), key=lambda candidate: candidate.cost)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import Buffer, Expr, Var, substitute
from aotc.tir.schedule.contraction.cost import VECTORS, tile_columns, tiling_cost, waiting_cost
from aotc.tir.schedule.contraction.naive import StoreFn
from aotc.tir.schedule.contraction.space import (
    Analysis,
    Dimension,
    Irregular,
    Operand,
    finite_weights,
    flat,
    fusible,
    independent,
    linear_variables,
    tiled_dimensions,
)
from aotc.tir.schedule.contraction.staging import Staging, stage
from aotc.tir.schedule.contraction.tile import (
    MIN_CHAINS,
    BorderSignature,
    TileAxis,
    Tiling,
    bordered_segments,
    cut,
    even_segments,
    single,
    vector_segments,
)
from aotc.tir.simplify import Linear, linear
from aotc.tir.stmt import Block, Stmt
from aotc.tir.target import Target

UNROLL: Final = 320
"""Multiply-adds written out in one loop body."""
SHORT: Final = 8
"""A trailing reduction axis up to this extent is written out where there is room."""
PANEL_ROWS: Final = 16
"""Weights that are read by as many rows are worth being copied into panels."""
MAX_SPLITS: Final = 4
LARGE: Final = 2
"""Scratch of more than so many times the first-level cache must be worth it ..."""
MEMORY_PRICE: Final = 1.08
"""... by this factor of time."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What to build, and for which machine.  `lanes` is 1 where the types have no vector arithmetic."""

    analysis: Analysis
    a: Buffer
    b: Buffer
    store: StoreFn
    target: Target
    lanes: int

    @property
    def c(self) -> te.Contraction:
        return self.analysis.c

    def scratch_dtype(self, operand: Buffer) -> DType:
        """The element type of a copy of an operand: narrow floats are converted on the way."""
        return self.c.dtype if operand.dtype.is_narrow_float and self.lanes > 1 else operand.dtype

    def broadcasts(self, operand: Buffer) -> bool:
        """Whether the elements of an operand can be broadcast as they lie, without a conversion for each use."""
        return self.scratch_dtype(operand) == operand.dtype

    def require_finite(self, dims: Sequence[Dimension]) -> None:
        """Raise Irregular where zeros around the data would not do: times an infinite weight they are NaN."""
        if not finite_weights(self.c) and not all(d.inside for d in dims):
            raise Irregular("padding beside weights that may be infinite")

    @property
    def reduction_vars(self) -> set[Var]:
        return {var for var, _ in self.c.reduce_axes}


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A tiling, the scratch it needs, its estimated cost in cycles, and its parameters as a name."""

    tiling: Tiling
    workspace: tuple[Buffer, ...]
    cost: float
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class _Pixels:
    """The axes of the data, neighbours that are one in memory fused: the inner one's variable stands for both."""

    axes: tuple[te.Axis, ...]
    position: Linear
    unfuse: dict[Var, Expr]


def _fused(c: te.Contraction, pixel: Sequence[te.Axis], dims: Sequence[Dimension], position: Linear) -> _Pixels:
    order = [var for var, _ in c.axes]
    axes: list[te.Axis] = []
    unfuse: dict[Var, Expr] = {}
    for var, extent in pixel:
        outer = axes[-1] if axes else None
        adjacent = outer is not None and order.index(var) == order.index(outer[0]) + 1
        if outer is None or not adjacent or not fusible(outer, (var, extent), position, dims):
            axes.append((var, extent))
            continue
        position = Linear({t: k for t, k in position.terms.items() if t is not outer[0]}, position.const)
        unfuse = {v: substitute(e, {outer[0]: var // extent}) for v, e in unfuse.items()}
        unfuse.setdefault(outer[0], var // extent)
        unfuse[var] = var % extent
        axes[-1] = (var, outer[1] * extent)
    return _Pixels(tuple(axes), position, unfuse)


@dataclass(slots=True, eq=False)
class _Assembly:
    """Collects the parts of a tiling.

    written    reduction axes that must be written out
    short      whether short ones are, too
    """

    req: Request
    name: str
    x: Operand
    y: Operand
    unfuse: dict[Var, Expr]
    levels: list[TileAxis]
    borders: Sequence[Dimension] = ()
    guards: Sequence[Dimension] = ()
    taps: Sequence[te.Axis] = ()
    written: Sequence[te.Axis] = ()
    short: bool = False
    stagings: Sequence[Staging] = ()
    along: bool = False

    def candidate(self) -> Candidate:
        """The tiling and its cost."""
        pairs = self._pairs()
        looped, unrolled = self._reduction(pairs)
        splits = 1
        if pairs < MIN_CHAINS and self.req.lanes > 1:
            looped, unrolled, splits = self._split(looped, unrolled, -(-MIN_CHAINS // pairs))
        tiling = Tiling(
            c=self.req.c,
            x=self.x,
            y=self.y,
            levels=self.levels,
            looped=looped,
            unrolled=unrolled,
            taps=self.taps,
            store=self.req.store,
            unfuse=self.unfuse,
            borders=self.borders,
            guards=self.guards,
            copies=self._copies(),
            splits=splits,
            along=self.along,
        )
        products = tiling_cost(tiling, self.req.target)
        waiting = waiting_cost(self.req.b.nbytes, self._passes(), products, self.req.target)
        cost = products + waiting + sum(self._staging_cost(s) for s in self.stagings)
        scratch = tuple(s.operand.buffer for s in self.stagings)
        if sum(b.nbytes for b in scratch) > LARGE * self.req.target.l1:
            cost *= MEMORY_PRICE
        return Candidate(tiling, scratch, cost, self.name)

    def _passes(self) -> int:
        """How often the weights are walked over."""
        weights = {var for var, _ in self.req.analysis.channel}
        return math.prod(sum(s.count for s in a.segments) for a in self.levels if a.var not in weights)

    def _pairs(self) -> int:
        """Accumulators of the largest tile."""
        return math.prod(max(len(s.starts) for s in a.segments) for a in self.levels if a.role != "outer")

    def _reduction(self, pairs: int) -> tuple[list[te.Axis], list[te.Axis]]:
        """Which reduction axes are loops, and which are written out (taps are neither)."""
        fixed = {v for d in self.guards for v in linear_variables(d.index)} | {v for v, _ in self.taps}
        unrolled = {var for var, _ in self.written}
        work = pairs * math.prod(n for _, n in self.written)
        for var, extent in reversed(self.req.c.reduce_axes):
            if var in unrolled:
                continue
            if not self.short or extent > SHORT or work * extent > UNROLL or var in fixed:
                break
            unrolled.add(var)
            work *= extent
        axes = [a for a in self.req.c.reduce_axes if a not in self.taps]
        return [a for a in axes if a[0] not in unrolled], [a for a in axes if a[0] in unrolled]

    def _split(
        self, looped: list[te.Axis], unrolled: list[te.Axis], wanted: int
    ) -> tuple[list[te.Axis], list[te.Axis], int]:
        """Several partial sums, so that one need not wait for the other."""
        if math.prod(n for _, n in unrolled) >= 2:
            return looped, unrolled, min(MAX_SPLITS, wanted, math.prod(n for _, n in unrolled))
        guarded = {v for d in self.guards for v in linear_variables(d.index)}
        if not looped or self.taps or looped[-1][0] in guarded:
            return looped, unrolled, 1
        var, extent = looped[-1]
        factor = next((f for f in (8, 4, 6, 5, 3, 7, 2) if extent % f == 0), 1)
        if factor == 1:
            return looped, unrolled, 1
        outer, inner = Var(var.name), Var(var.name)
        moved = {var: outer * factor + inner}
        self.x = Operand(self.x.buffer, substitute(self.x.flat, moved))
        self.y = Operand(self.y.buffer, substitute(self.y.flat, moved))
        looped = [*looped[:-1], (outer, extent // factor)]
        return looped, [*unrolled, (inner, factor)], min(MAX_SPLITS, wanted, factor)

    def _copies(self) -> dict[TileAxis | None, Callable[[dict[Var, Expr]], Stmt]]:
        """Each copy in the outermost loop where the axes it needs are known; zeros before everything."""
        found: dict[TileAxis | None, list[Callable[[dict[Var, Expr]], Stmt]]] = {}
        for staging in self.stagings:
            if staging.zero is not None:
                zero = staging.zero
                found.setdefault(None, []).append(lambda _, zero=zero: zero)  # type: ignore[misc]
            found.setdefault(self._home(staging), []).append(staging.copy)
        return {axis: partial(_run, makers) for axis, makers in found.items()}

    def _home(self, staging: Staging) -> TileAxis | None:
        home: TileAxis | None = None
        for axis in self.levels:
            if axis.names_used & staging.needs:
                home = axis
        return home

    def _staging_cost(self, staging: Staging) -> float:
        times = 1
        home = self._home(staging)
        if home is not None:
            for axis in self.levels[: self.levels.index(home) + 1]:
                times *= sum(s.count for s in axis.segments)
        return times * staging.elements * staging.effort


def _run(makers: Sequence[Callable[[dict[Var, Expr]], Stmt]], names: dict[Var, Expr]) -> Stmt:
    return Block(make(names) for make in makers)


def _position(c: te.Contraction, axis: te.Axis | None) -> int:
    """Which output axis it is; -1 for none."""
    return next((k for k, (var, _) in enumerate(c.axes) if axis is not None and var is axis[0]), -1)


def _attempts(makers: Iterable[Callable[[], Candidate]]) -> Iterator[Candidate]:
    for make in makers:
        try:
            yield make()
        except Irregular:
            continue


# --- vectors along the weights


def by_lanes(req: Request) -> Iterator[Candidate]:
    """Tilings with vectors of weights."""
    c = req.c
    axes = [a for a in c.axes if a[0] is c.lane] if c.lane is not None else list(reversed(req.analysis.channel))
    for axis in axes:
        lanes = req.lanes if not c.block else math.gcd(req.lanes, c.block)
        while lanes > max(4, axis[1]) and not independent(req.analysis.a, axis[0]):
            lanes //= 2
        found = list(_attempts(partial(_ByLanes(req, axis, v, lanes).candidate) for v in VECTORS))
        if found:
            yield from found
            return


class _ByLanes:
    """by_lanes for one axis, tile and vector length."""

    def __init__(self, req: Request, axis: te.Axis, vectors: int, lanes: int) -> None:
        self.req, self.axis, self.vectors, self.lanes = req, axis, vectors, lanes
        self.size = vectors * lanes
        self.tile, self.lane = Var(axis[0].name), Var("lane")

    def candidate(self) -> Candidate:
        c, an = self.req.c, self.req.analysis
        if self.vectors > max(1, -(-self.axis[1] // self.lanes)) or (c.block and c.block % self.size):
            raise Irregular("a tile wider than the weights")
        split = (self.axis[0], self.tile, self.lane, self.size, an.ranges)
        self.a = tiled_dimensions(c.a.shape, c.a_index, *split)
        self.b = tiled_dimensions(c.b.shape, c.b_index, *split)
        self.ranges = {**an.ranges, self.tile: (0, (self.axis[1] - 1) // self.size), self.lane: (0, self.size - 1)}
        self.along = not independent(self.a, self.lane)
        if self.along:
            return self._along()
        direct = self._assemble(None) if self.req.broadcasts(self.req.a) else None
        found = direct or self._assemble(self._padded())
        if found is None:
            raise Irregular("borders that are not known when a tile is written")
        return found

    def _along(self) -> Candidate:
        """Data and weights both as vectors."""
        alone = all(d.index.coefficient(self.lane) == d.stride == 1 or independent([d], self.lane) for d in self.a)
        if not alone or self.vectors > 1 or self.lanes == 1:
            raise Irregular("the data depends on the lane")
        found = self._assemble(None) or self._assemble(None, rows=False)
        if found is None:
            raise Irregular("borders that are not known when a tile is written")
        return found

    def _padded(self) -> Staging:
        """The data with its border of zeros in scratch."""
        self.req.require_finite(self.a)
        inner = {v for v, _ in self.req.analysis.pixel} | self.req.reduction_vars
        dtype = self.req.scratch_dtype(self.req.a)
        return stage("padded", self.req.a, self.a, inner, Var("none"), self.ranges, dtype=dtype, slack=0)

    def _assemble(self, padded: Staging | None, rows: bool = True) -> Candidate | None:
        """The candidate; None if the data's borders take too much code, and a padded copy of it is needed.

        `rows` allows tiles of several rows of an image.
        """
        req, c = self.req, self.req.c
        dims = self.a if padded is None else ()
        position = flat(self.a) if padded is None else linear(padded.operand.flat, self.ranges)
        pixels = _fused(c, req.analysis.pixel, dims, position)
        tiles = self._tile_sizes(pixels, rows)
        open_dims = [d for d in dims if not d.inside]
        borders = [d for d in open_dims if linear_variables(d.index) & set(tiles)]
        names = {v for d in borders for v in linear_variables(d.index)}
        taps = [(v, n) for v, n in c.reduce_axes if v in names]
        written = self.vectors * math.prod(tiles.values()) * math.prod(n for _, n in taps)
        if borders and (written > 2 * UNROLL or not all(self._static(d, tiles) for d in borders)):
            return None
        panel = self._panel(math.prod(n for _, n in pixels.axes))
        x = Operand(req.b, flat(self.b).expr()) if panel is None else panel.operand
        return _Assembly(
            req,
            f"lanes axis={_position(c, self.axis)} vectors={self.vectors} lanes={self.lanes}",
            x,
            Operand(req.a, pixels.position.expr()) if padded is None else padded.at(pixels.position),
            pixels.unfuse,
            self._levels(pixels, tiles, borders, taps, panel, padded),
            borders=borders,
            guards=[d for d in open_dims if d not in borders],
            taps=taps,
            stagings=[s for s in (padded, panel) if s is not None],
            along=self.along,
        ).candidate()

    def _tile_sizes(self, pixels: _Pixels, rows: bool) -> dict[Var, int]:
        """Columns, and rows where an image is narrow."""
        budget = tile_columns(self.req.target, self.vectors, self.lanes)
        wide = [(v, n) for v, n in pixels.axes if n > 1]
        if not wide:
            return {}
        column, extent = wide[-1]
        sizes = {column: min(budget, extent)}
        if rows and len(wide) > 1 and extent * 2 <= budget:
            sizes[wide[-2][0]] = min(budget // extent, wide[-2][1])
        return sizes

    def _static(self, dim: Dimension, tiles: dict[Var, int]) -> bool:
        """Whether the border is known when a tile is written: one tiled axis and taps, nothing else."""
        used = linear_variables(dim.index)
        plain = all(isinstance(t, Var) for t in dim.index.terms)
        return plain and len(used & set(tiles)) == 1 and used <= set(tiles) | self.req.reduction_vars

    def _panel(self, rows: int) -> Staging | None:
        """Weights copied so that the lanes are contiguous; None where they are."""
        contiguous = flat(self.b).coefficient(self.lane) == 1
        if self.lanes == 1 or self.req.c.block:
            if self.lanes > 1 and not contiguous:
                raise Irregular("packed weights that are not contiguous")
            return None
        if contiguous and (rows < PANEL_ROWS or self.along) and self.axis[1] >= self.lanes:
            return None
        if self.along:
            raise Irregular("weights that do not lie as the data does")
        inner = {self.lane} | self.req.reduction_vars
        dtype = self.req.scratch_dtype(self.req.b)
        return stage("panel", self.req.b, self.b, inner, self.lane, self.ranges, dtype=dtype, slack=0, clipped=True)

    def _levels(
        self,
        pixels: _Pixels,
        tiles: dict[Var, int],
        borders: Sequence[Dimension],
        taps: Sequence[te.Axis],
        panel: Staging | None,
        padded: Staging | None,
    ) -> list[TileAxis]:
        req, c = self.req, self.req.c
        images = {v for v, _ in req.analysis.pixel}
        others = [single(v, n) for v, n in c.axes if v not in images and v is not self.axis[0]]
        whole = bool(c.block) or panel is not None
        merge = self.axis[0] is not c.axes[-1][0]
        segments = vector_segments(self.axis[1], self.vectors, self.lanes, whole, merge)
        lane = TileAxis(self.axis[0], self.axis[1], segments, "x", self.lanes, (self.tile, self.lane, self.size))
        inner: list[TileAxis] = []
        for var, extent in pixels.axes:
            if var not in tiles:
                inner.append(single(var, extent))
                continue
            signature = BorderSignature.of(borders, var, taps)
            inner.append(TileAxis(var, extent, bordered_segments(extent, tiles[var], signature), "y"))
        inner.sort(key=lambda axis: axis.role == "y")
        early = panel is not None or (padded is not None and self.tile in padded.needs)
        if early or req.b.nbytes > req.target.l2 // 2 or not inner:
            return [*others, lane, *inner]
        return [*others, *inner[:-1], lane, inner[-1]]


# --- vectors along the data


def by_pixels(req: Request) -> Iterator[Candidate]:
    """Tilings with vectors of data."""
    channels: list[te.Axis | None] = [a for a in reversed(req.analysis.channel) if a[1] > 1]
    for vectors in VECTORS:
        for count in (8, 6, 4, 3, 2, 1):
            if (vectors + 1) * (count + 1) <= req.target.registers or vectors * count == 1:
                yield from _attempts(
                    partial(_ByPixels(req, axis, vectors, count).candidate) for axis in channels or [None]
                )


class _ByPixels:
    """by_pixels for one channel axis and tile."""

    def __init__(self, req: Request, axis: te.Axis | None, vectors: int, count: int) -> None:
        self.req, self.axis, self.vectors, self.count = req, axis, vectors, count
        self.tile, self.lane = Var("c" if axis is None else axis[0].name), Var("lane")
        self.lanes = req.lanes

    def candidate(self) -> Candidate:
        c, an = self.req.c, self.req.analysis
        self.ranges = dict(an.ranges)
        self.a, self.b = an.a, an.b
        if self.axis is None and self.count > 1:
            raise Irregular("no channels")
        if self.axis is not None:
            var, extent = self.axis
            if self.count > extent or (c.block and c.block % self.count):
                raise Irregular("a tile wider than the channels")
            split = (var, self.tile, self.lane, self.count, an.ranges)
            self.a = tiled_dimensions(c.a.shape, c.a_index, *split)
            self.b = tiled_dimensions(c.b.shape, c.b_index, *split)
            self.ranges.update({self.tile: (0, (extent - 1) // self.count), self.lane: (0, self.count - 1)})
            if not independent(self.a, self.lane):
                raise Irregular("the data depends on the channel")
        if not an.pixel:
            raise Irregular("no axis of the data alone")
        return self._assemble()

    def _direct(self) -> _Pixels | None:
        """The data as it lies, if vectors of it can be loaded; None if not."""
        pixels = _fused(self.req.c, self.req.analysis.pixel, self.a, flat(self.a))
        var, extent = pixels.axes[-1]
        if not all(d.inside for d in self.a):
            return None
        if self.req.lanes > 1 and (extent < self.req.lanes or pixels.position.coefficient(var) != 1):
            return None
        return pixels

    def _staged(self) -> Staging:
        """The data with its border, columns contiguous."""
        self.req.require_finite(self.a)
        lone = {v for v, _ in self.req.analysis.pixel[:-1] if self._alone(v)}
        inner = ({v for v, _ in self.req.analysis.pixel} - lone) | self.req.reduction_vars
        column = self.req.analysis.pixel[-1][0]
        if sum(column in linear_variables(d.index) for d in self.a) != 1:
            raise Irregular("columns along a diagonal")
        dtype = self.req.scratch_dtype(self.req.a)
        return stage("rows", self.req.a, self.a, inner, column, self.ranges, dtype=dtype, slack=self.req.lanes)

    def _weights(self) -> Staging | None:
        """The weights converted; None where they can be broadcast as they lie."""
        if self.req.broadcasts(self.req.b):
            return None
        inner = {self.tile, self.lane} | self.req.reduction_vars
        dtype = self.req.scratch_dtype(self.req.b)
        return stage("weights", self.req.b, self.b, inner, Var("none"), self.ranges, dtype=dtype, slack=0)

    def _alone(self, var: Var) -> bool:
        """Whether an axis is a dimension of the data by itself, as the batch is."""
        return any(d.inside and d.index.terms == {var: 1} and d.index.const == 0 for d in self.a)

    def _assemble(self) -> Candidate:
        req = self.req
        pixels, staging = self._direct(), None
        if pixels is None:
            staging = self._staged()
            pixels = self._staged_pixels(staging)
        while self.lanes > 4 and pixels.axes[-1][1] * 2 <= self.lanes:
            self.lanes //= 2
        x = Operand(req.a, pixels.position.expr()) if staging is None else staging.at(pixels.position)
        weights = self._weights()
        column = req.analysis.pixel[-1][0]
        written: list[te.Axis] = []
        if staging is not None and staging.phases > 1:
            names = {v for d in self.a if column in linear_variables(d.index) for v in linear_variables(d.index)}
            written = [(v, n) for v, n in req.c.reduce_axes if v in names]
        return _Assembly(
            req,
            f"pixels axis={_position(req.c, self.axis)} vectors={self.vectors} count={self.count}",
            x,
            Operand(req.b, flat(self.b).expr()) if weights is None else weights.operand,
            pixels.unfuse,
            self._levels(pixels, staging),
            written=written,
            short=True,
            stagings=[s for s in (staging, weights) if s is not None],
        ).candidate()

    def _staged_pixels(self, staging: Staging) -> _Pixels:
        if staging.phases > 1:  # columns are read through quotients: leave the axes alone
            return _Pixels(self.req.analysis.pixel, linear(staging.operand.flat, self.ranges), {})
        return _fused(self.req.c, self.req.analysis.pixel, (), linear(staging.operand.flat, self.ranges))

    def _levels(self, pixels: _Pixels, staging: Staging | None) -> list[TileAxis]:
        req, c = self.req, self.req.c
        images = {v for v, _ in req.analysis.pixel}
        own = None if self.axis is None else self.axis[0]
        others = [single(v, n) for v, n in c.axes if v not in images and v is not own]
        column, extent = pixels.axes[-1]
        vectors = -(-extent // self.lanes)
        if self.vectors > vectors:
            raise Irregular("a tile wider than the image")
        wanted = -(-vectors // -(-vectors // self.vectors))
        segments = vector_segments(extent, wanted, self.lanes, staging is not None, merge=False)
        inner = [single(v, n) for v, n in pixels.axes[:-1]]
        var, rows = pixels.axes[-2:][0]
        copied = staging is not None and var in staging.needs  # one copy for each position of it
        if self.count == 1 and len(pixels.axes) > 1 and not copied:
            budget = max(1, req.target.registers // 2 // wanted)
            inner[-1] = TileAxis(var, rows, even_segments(rows, min(budget, rows)), "x")
        inner.append(TileAxis(column, extent, segments, "x", self.lanes))
        if self.axis is None:
            return [*others, *inner]
        var, extent = self.axis
        channel = TileAxis(var, extent, cut(extent, self.count), "y", 1, (self.tile, self.lane, self.count))
        if (staging is not None and self.tile in staging.needs) or req.b.nbytes > req.target.l2 // 2:
            return [*others, channel, *inner]
        return [*others, *inner, channel]
