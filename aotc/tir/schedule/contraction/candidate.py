# SPDX-License-Identifier: Apache-2.0
"""From an analysed contraction to a candidate: a tiling with the scratch that it needs and its estimated cost.

`by_lanes` and `by_pixels` propose a `Draft` (operands, tiles, borders); `candidate` decides what is alike for both:
which reduction axes are loops, how many partial sums there are, where scratch is filled, and what it all costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from aotc.ir.dtype import DType
from aotc.tir import te
from aotc.tir.expr import Buffer, Expr, Var, substitute
from aotc.tir.schedule.contraction import space
from aotc.tir.schedule.contraction.cost import tiling_cost, waiting_cost
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.segments import TileAxis, single
from aotc.tir.schedule.contraction.space import Analysis, Dimension, Irregular, Operand
from aotc.tir.schedule.contraction.staging import Staging
from aotc.tir.schedule.contraction.tile import tiled_nest
from aotc.tir.schedule.contraction.tiling import MIN_CHAINS, CopyFn, Output, Product, Reduction, Tiling
from aotc.tir.simplify import Linear
from aotc.tir.stmt import Block, Stmt
from aotc.tir.target import Target

UNROLL: Final = 320
"""Multiply-adds written out in one loop body."""
SHORT: Final = 8
"""A trailing reduction axis up to this extent is written out where there is room."""
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
        """The element type of a copy of an operand: narrow floats are converted while they are copied."""
        return self.c.dtype if operand.dtype.is_narrow_float and self.lanes > 1 else operand.dtype

    def broadcasts(self, operand: Buffer) -> bool:
        """Whether the elements of an operand can be broadcast as they lie, without a conversion for each use."""
        return self.scratch_dtype(operand) == operand.dtype

    def require_finite(self, dims: Sequence[Dimension]) -> None:
        """Raise Irregular where zeros around the data would not do: times an infinite weight they are NaN."""
        if not space.finite_weights(self.c) and not all(d.inside for d in dims):
            raise Irregular("padding beside weights that may be infinite")

    @property
    def pixel_vars(self) -> set[Var]:
        return {var for var, _ in self.analysis.pixel}

    @property
    def reduction_vars(self) -> set[Var]:
        return {var for var, _ in self.c.reduce_axes}

    def name(self, kind: str, axis: te.Axis | None, **parameters: int) -> str:
        """What a tiling is called in records of measurements."""
        own = next((k for k, (var, _) in enumerate(self.c.axes) if axis is not None and var is axis[0]), -1)
        return " ".join([kind, *(f"{key}={value}" for key, value in {"axis": own, **parameters}.items())])

    def around(self, axis: te.Axis | None) -> list[TileAxis]:
        """The output axes beside `axis` and those of the data: they are walked outside all others."""
        tiled = self.pixel_vars | ({axis[0]} if axis else set())
        return [single(var, extent) for var, extent in self.c.axes if var not in tiled]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The operands with an axis of the weights written as tile * size + lane; as they are if there is no axis."""

    axis: te.Axis | None
    size: int
    tile: Var
    lane: Var
    a: Sequence[Dimension]
    b: Sequence[Dimension]
    ranges: dict[Var, tuple[int, int]]

    @staticmethod
    def of(analysis: Analysis, axis: te.Axis | None, size: int) -> Split:
        """The operands for tiles of `size`."""
        c, lane = analysis.c, Var("lane")
        if axis is None:
            return Split(None, size, Var("c"), lane, analysis.a, analysis.b, analysis.ranges)
        var, extent = axis
        tile = Var(var.name)
        a, b = (
            space.tiled_dimensions(operand.shape, index, var, tile, lane, size, analysis.ranges)
            for operand, index in ((c.a, c.a_index), (c.b, c.b_index))
        )
        ranges = {**analysis.ranges, tile: (0, (extent - 1) // size), lane: (0, size - 1)}
        return Split(axis, size, tile, lane, a, b, ranges)

    @property
    def names(self) -> tuple[Var, Var, int]:
        """What the operands call a position of the axis, as in TileAxis."""
        return self.tile, self.lane, self.size

    def moves(self, staging: Staging | None) -> bool:
        """Whether a copy of an operand is another one for each tile."""
        return staging is not None and self.tile in staging.needs


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """The axes of the data, neighbours that are one in memory fused: the inner one's variable stands for both."""

    axes: tuple[te.Axis, ...]
    position: Linear
    unfuse: dict[Var, Expr]


def fused(analysis: Analysis, dims: Sequence[Dimension], position: Linear) -> Pixels:
    """The axes of the data at `position`; those that `dims` give a border are not fused."""
    order = [var for var, _ in analysis.c.axes]
    axes: list[te.Axis] = []
    unfuse: dict[Var, Expr] = {}
    for var, extent in analysis.pixel:
        outer = axes[-1] if axes else None
        adjacent = outer is not None and order.index(var) == order.index(outer[0]) + 1
        if outer is None or not adjacent or not space.fusible(outer, (var, extent), position, dims):
            axes.append((var, extent))
            continue
        position = Linear({t: k for t, k in position.terms.items() if t is not outer[0]}, position.const)
        unfuse = {v: substitute(e, {outer[0]: var // extent}) for v, e in unfuse.items()}
        unfuse.setdefault(outer[0], var // extent)
        unfuse[var] = var % extent
        axes[-1] = (var, outer[1] * extent)
    return Pixels(tuple(axes), position, unfuse)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A tiling, the scratch it needs, its estimated cost in cycles, and its parameters as a name."""

    tiling: Tiling
    workspace: tuple[Buffer, ...]
    cost: float
    name: str

    def nest(self) -> ContractionNest:
        """The statements."""
        stmt, stack = tiled_nest(self.tiling)
        return ContractionNest(stmt, stack, self.workspace)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A tiling whose reduction is not decided yet.

    lanes       elements of a vector
    x, y        the operands, `along` as in Product
    unfuse      as in Output
    reduction   the borders, and the axes that must be written out
    short       whether short reduction axes are written out, too
    """

    name: str
    lanes: int
    x: Operand
    y: Operand
    unfuse: dict[Var, Expr]
    levels: Sequence[TileAxis]
    reduction: Reduction
    short: bool = False
    stagings: Sequence[Staging] = ()
    along: bool = False


def candidate(req: Request, draft: Draft) -> Candidate:
    """The tiling of a draft and its cost."""
    draft = _split(req, _unrolled(req, draft))
    stagings, levels = draft.stagings, draft.levels
    tiling = Tiling(
        levels,
        Product(draft.x, draft.y, req.c.dtype, draft.lanes, draft.along),
        draft.reduction,
        Output(req.c.axes, req.store, draft.unfuse),
        _copies(stagings, levels),
    )
    products = tiling_cost(tiling, req.target)
    weights = {var for var, _ in req.analysis.channel}
    passes = math.prod(axis.trips for axis in levels if axis.var not in weights)
    cost = products + waiting_cost(req.b.nbytes, passes, products, req.target)
    cost += sum(_staging_cost(staging, levels) for staging in stagings)
    scratch = tuple(staging.operand.buffer for staging in stagings)
    if sum(b.nbytes for b in scratch) > LARGE * req.target.l1:
        cost *= MEMORY_PRICE
    return Candidate(tiling, scratch, cost, draft.name)


def _pairs(draft: Draft) -> int:
    """Accumulators of the largest tile."""
    return math.prod(max(len(s.starts) for s in a.segments) for a in draft.levels if a.role != "outer")


def _unrolled(req: Request, draft: Draft) -> Draft:
    """The draft with its reduction axes divided into loops and what is written out (taps are neither)."""
    reduction = draft.reduction
    fixed = {v for d in reduction.guards for v in d.variables} | {v for v, _ in reduction.taps}
    unrolled = {var for var, _ in reduction.unrolled}
    work = _pairs(draft) * math.prod(n for _, n in reduction.unrolled)
    for var, extent in reversed(req.c.reduce_axes):
        if var in unrolled:
            continue
        if not draft.short or extent > SHORT or work * extent > UNROLL or var in fixed:
            break
        unrolled.add(var)
        work *= extent
    axes = [a for a in req.c.reduce_axes if a not in reduction.taps]
    looped = [a for a in axes if a[0] not in unrolled]
    return replace(draft, reduction=replace(reduction, looped=looped, unrolled=[a for a in axes if a[0] in unrolled]))


def _split(req: Request, draft: Draft) -> Draft:
    """The draft with several partial sums where accumulators are few, so that one need not wait for the other."""
    reduction, wanted = draft.reduction, -(-MIN_CHAINS // _pairs(draft))
    if wanted == 1 or req.lanes == 1:
        return draft
    written = math.prod(n for _, n in reduction.unrolled)
    if written >= 2:
        return replace(draft, reduction=replace(reduction, splits=min(MAX_SPLITS, wanted, written)))
    guarded = {v for d in reduction.guards for v in d.variables}
    if not reduction.looped or reduction.taps or reduction.looped[-1][0] in guarded:
        return draft
    *looped, (var, extent) = reduction.looped
    factor = next((f for f in (8, 4, 6, 5, 3, 7, 2) if extent % f == 0), 1)
    if factor == 1:
        return draft
    outer, inner = Var(var.name), Var(var.name)
    x, y = (Operand(o.buffer, substitute(o.flat, {var: outer * factor + inner})) for o in (draft.x, draft.y))
    looped, unrolled = [*looped, (outer, extent // factor)], [*reduction.unrolled, (inner, factor)]
    splits = min(MAX_SPLITS, wanted, factor)
    return replace(draft, x=x, y=y, reduction=replace(reduction, looped=looped, unrolled=unrolled, splits=splits))


def _copies(stagings: Sequence[Staging], levels: Sequence[TileAxis]) -> dict[TileAxis | None, CopyFn]:
    """Each copy in the outermost loop where the axes it needs are known; zeros before everything."""
    found: dict[TileAxis | None, list[CopyFn]] = {}
    for staging in stagings:
        if staging.zero is not None:
            found.setdefault(None, []).append(partial(_constant, staging.zero))
        found.setdefault(_home(staging, levels), []).append(staging.copy)
    return {axis: partial(_run, makers) for axis, makers in found.items()}


def _constant(stmt: Stmt, _: dict[Var, Expr]) -> Stmt:
    return stmt


def _run(makers: Sequence[CopyFn], names: dict[Var, Expr]) -> Stmt:
    return Block(make(names) for make in makers)


def _home(staging: Staging, levels: Sequence[TileAxis]) -> TileAxis | None:
    """The innermost axis that a copy depends on."""
    return next((axis for axis in reversed(levels) if axis.names_used & staging.needs), None)


def _staging_cost(staging: Staging, levels: Sequence[TileAxis]) -> float:
    home = _home(staging, levels)
    outside = () if home is None else levels[: levels.index(home) + 1]
    return math.prod(axis.trips for axis in outside) * staging.elements * staging.effort


def attempts(makers: Iterable[Callable[[], Candidate]]) -> Iterator[Candidate]:
    """What can be made."""
    for make in makers:
        try:
            yield make()
        except Irregular:
            continue
