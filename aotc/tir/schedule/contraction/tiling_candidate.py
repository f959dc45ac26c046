# SPDX-License-Identifier: Apache-2.0
"""From an analyzed contraction to a candidate: a tiling with the scratch that it needs and its estimated cost.

`by_lanes` and `by_pixels` propose operands, tiles and borders; `candidate` decides what is alike for both: which
reduction axes are loops, how many partial sums there are, where scratch is filled, and what it all costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, Linear, Stmt, Target, Var, const, linear, substitute, te
from aotc.tir.grouped_dot_products import lane_name, matrix_name
from aotc.tir.schedule.contraction import index_space
from aotc.tir.schedule.contraction.index_space import Analysis, Dimension, Irregular, Operand, Split, used
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.operand_staging import CopyFn, Staging, stage
from aotc.tir.schedule.contraction.tile_loop_nest import tiled_nest
from aotc.tir.schedule.contraction.tile_segments import TileAxis, single
from aotc.tir.schedule.contraction.tiling import Tiling
from aotc.tir.schedule.contraction.tiling_cost import tiling_cost, waiting_cost
from aotc.tir.target_costs import Dots

#: A trailing reduction axis up to this extent is written out where there is room.
SHORT: Final = 8
MAX_SPLITS: Final = 4
#: First-level caches that copies of operands may fill before they make everything slower.
LARGE: Final = 2


@frozen(eq=False)
class Request:
    """What to build, and for which machine.

    lanes    1 where the types have no vector arithmetic
    group    what counts in groups of products of bytes, each of which is one step; None where there are none
    """

    analysis: Analysis
    group: Var | None
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
        """Whether elements of an operand can be broadcast without a conversion for each use."""
        return self.scratch_dtype(operand) == operand.dtype

    def require_finite(self, dims: Sequence[Dimension]) -> None:
        """Raise Irregular where zeros around the data would not do: times an infinite weight they are NaN."""
        if not index_space.finite_weights(self.c) and not all(d.inside for d in dims):
            raise Irregular("padding beside weights that may be infinite")

    @property
    def dots(self) -> Dots | None:
        """How sums of products of bytes are added; a group at a time where no others lie beside it."""
        found = self.target.dots if self.group else None
        if found is None or found.groups == 1:
            return found
        position, types = index_space.flat(self.analysis.a), (str(self.a.dtype), str(self.b.dtype))
        steps = [n for v, n in self.c.reduce_axes if position.coefficient(v) == self.c.group]
        known = lane_name(*types, 0) if found.rows == 1 else matrix_name(*types)
        fitting = known and any(n % found.groups == 0 for n in steps)
        return found if fitting else replace(found, groups=1, rows=1)

    @property
    def ordered(self) -> bool:
        """Whether sums must keep the order of the reduction axes."""
        return self.target.ordered and self.c.dtype.is_float

    @property
    def pixel_vars(self) -> set[Var]:
        return {var for var, _ in self.analysis.pixel}

    @property
    def reduction_vars(self) -> set[Var]:
        found = {var for var, _ in self.c.reduce_axes}
        return found if self.group is None else found | {self.group}

    @property
    def outputs(self) -> te.Axis:
        """The one axis of the weights; Irregular where there are several, or where an axis is of neither operand."""
        channel = self.analysis.channel
        others = {v for v, n in self.c.axes if n > 1} - self.pixel_vars
        if len(channel) != 1 or not others <= {channel[0][0]}:
            raise Irregular("outputs along several axes")
        return channel[0]

    def split(self, size: int) -> Split:
        """The operands with outputs in blocks of a size; Irregular where the data depends on these."""
        found = Split.of(self.analysis, self.outputs, size)
        if used(found.a) & {found.tile, found.lane}:
            raise Irregular("data that depends on outputs")
        return found

    def name(self, kind: str, axis: te.Axis | None, **parameters: int) -> str:
        """What a tiling is called in records of measurements."""
        own = next((k for k, (var, _) in enumerate(self.c.axes) if axis is not None and var is axis[0]), -1)
        return " ".join([kind, *(f"{key}={value}" for key, value in {"axis": own, **parameters}.items())])

    def operand(self, buffer: Buffer, position: Linear, staging: Staging | None) -> Operand:
        """An operand, or the copy of it, at a position."""
        first = substitute(position.expr(), {} if self.group is None else {self.group: const(0)})
        return Operand(buffer if staging is None else staging.operand.buffer, first)

    def stage(self, name: str, operand: Buffer, dims: Sequence[Dimension], split: Split, **how: Any) -> Staging:
        """A copy of an operand, as `staging.stage` makes it."""
        return stage(name, operand, dims, ranges=split.ranges, dtype=self.scratch_dtype(operand), **how)

    def around(self, axis: te.Axis | None) -> list[TileAxis]:
        """The output axes beside `axis` and those of the data: they are walked outside all others."""
        tiled = self.pixel_vars | ({axis[0]} if axis else set())
        return [single(var, extent) for var, extent in self.c.axes if var not in tiled]


@frozen(eq=False)
class Candidate:
    """A tiling, the scratch it needs, its estimated cost in cycles, and its parameters as a name.

    others   further ones, for what is left of the output
    """

    tiling: Tiling
    workspace: tuple[Buffer, ...]
    cost: float
    name: str
    others: tuple[Candidate, ...] = ()

    def nest(self) -> ContractionNest:
        """The statements."""
        parts = [tiled_nest(one.tiling) for one in (self, *self.others)]
        stack = tuple(buffer for _, buffers in parts for buffer in buffers)
        return ContractionNest(Block(stmt for stmt, _ in parts), stack, self.workspace)


def candidate(
    req: Request, name: str, tiling: Tiling, copies: Sequence[Staging | None], *, short: bool = False
) -> Candidate:
    """A tiling completed, and its cost.

    tiling     its reduction has the borders, and the axes that must be written out
    copies     of operands, where it reads copies
    short      short reduction axes are written out, too
    """
    stagings = [staging for staging in copies if staging is not None]
    tiling = _with_partial_sums(req, _bounded(req, _in_steps(req, _with_loops(req, tiling, short))))
    levels = tiling.levels
    products = tiling_cost(tiling, req.target)
    weights = {var for var, _ in req.analysis.channel}
    passes = math.prod(axis.trips for axis in levels if axis.var not in weights)
    cost = products + waiting_cost(req.b.nbytes, passes, products, req.target)
    cost += sum(_staging_cost(staging, levels) for staging in stagings)
    scratch = tuple(staging.operand.buffer for staging in stagings)
    if sum(b.nbytes for b in scratch) > LARGE * req.target.l1:
        cost *= req.target.tiles.large_copies
    return Candidate(replace(tiling, copies=_copies(stagings, levels)), scratch, cost, name)


def _pairs(tiling: Tiling) -> int:
    """Accumulators of the largest tile."""
    return math.prod(max(len(s.starts) for s in axis.segments) for axis in tiling.tiled)


def _with_loops(req: Request, tiling: Tiling, short: bool) -> Tiling:
    """The reduction axes divided into loops and what is written out (taps are neither)."""
    reduction = tiling.reduction
    fixed = used(reduction.guards) | {v for v, _ in reduction.taps}
    unrolled = {var for var, _ in reduction.unrolled}
    work = _pairs(tiling) * math.prod(n for _, n in reduction.unrolled)
    for var, extent in reversed(req.c.reduce_axes):
        if var in unrolled:
            continue
        if not short or extent > SHORT or work * extent > req.target.budget.unrolled or var in fixed:
            break
        unrolled.add(var)
        work *= extent
    axes = [a for a in req.c.reduce_axes if a not in reduction.taps]
    looped, written = ([a for a in axes if (a[0] in unrolled) == out] for out in (False, True))
    walked, wanted = [*reduction.taps, *looped, *written], req.c.reduce_axes
    if req.ordered and [v for v, n in walked if n > 1] != [v for v, n in wanted if n > 1]:
        raise Irregular("sums in another order")
    return replace(tiling, reduction=replace(reduction, looped=looped, unrolled=written))


def _in_steps(req: Request, tiling: Tiling) -> Tiling:
    """Steps of several groups of bytes, where the machine has them."""
    dots, made = req.dots, tiling.product
    if dots is None or dots.groups == 1:
        return tiling
    for var, extent in tiling.reduction.looped:
        if linear(made.y.flat, {}).coefficient(var) == made.group and extent % dots.groups == 0:
            tiling = _cut(tiling, (var, extent), dots.groups)
            return replace(tiling, product=replace(tiling.product, groups=dots.groups, rows=dots.rows))
    return tiling


def _with_partial_sums(req: Request, tiling: Tiling) -> Tiling:
    """Several partial sums where accumulators are few, so that one need not wait for the other."""
    chains = 2 * req.target.tiles.latency  # the units begin two multiply-adds in a cycle
    dots = req.dots
    chains = chains if dots is None else int(dots.rate * dots.latency)
    reduction, wanted = tiling.reduction, -(-chains // _pairs(tiling))
    if wanted == 1 or req.lanes == 1 or req.ordered or tiling.product.groups > 1:
        return tiling
    written = math.prod(n for _, n in reduction.unrolled)
    if written >= 2:
        return replace(tiling, reduction=replace(reduction, splits=min(MAX_SPLITS, wanted, written)))
    if not reduction.looped or reduction.taps or reduction.looped[-1][0] in used(reduction.guards):
        return tiling
    var, extent = reduction.looped[-1]
    factor = next((f for f in (8, 4, 6, 5, 3, 7, 2) if extent % f == 0), 1)
    if factor == 1:
        return tiling
    tiling = _cut(tiling, (var, extent), factor)
    return replace(tiling, reduction=replace(tiling.reduction, splits=min(MAX_SPLITS, wanted, factor)))


def _bounded(req: Request, tiling: Tiling) -> Tiling:
    """What would be written out beyond the budget becomes loops, whose bodies keep as many steps as it allows."""
    most = req.target.budget.unrolled // _pairs(tiling)
    while (steps := math.prod(n for _, n in tiling.reduction.unrolled)) > max(1, most):
        first, *others = tiling.reduction.unrolled
        if req.ordered and others:
            looped = [*tiling.reduction.looped, first]
            tiling = replace(tiling, reduction=replace(tiling.reduction, looped=looped, unrolled=others))
            continue
        axis = max(tiling.reduction.unrolled, key=lambda axis: axis[1])
        room = max(1, most * axis[1] // steps)
        tiling = _cut(tiling, axis, next(n for n in range(min(room, axis[1]), 0, -1) if axis[1] % n == 0))
    return tiling


def _cut(tiling: Tiling, axis: te.Axis, factor: int) -> Tiling:
    """A reduction axis made an innermost loop over groups of `factor` steps, which are written out."""
    var, extent = axis
    outer, inner = Var(var.name), Var(var.name)
    made, reduction = tiling.product, tiling.reduction
    x, y = (Operand(o.buffer, substitute(o.flat, {var: outer * factor + inner})) for o in (made.x, made.y))
    looped, unrolled = ([a for a in axes if a[0] is not var] for axes in (reduction.looped, reduction.unrolled))
    groups, steps = (outer, extent // factor), (inner, factor)
    reduction = replace(reduction, looped=[*looped, groups], unrolled=[*unrolled, steps])
    return replace(tiling, product=replace(made, x=x, y=y), reduction=reduction)


def _copies(stagings: Sequence[Staging], levels: Sequence[TileAxis]) -> dict[TileAxis | None, CopyFn]:
    """Each copy in the outermost loop where the axes it needs are known; zeros before everything."""
    found: dict[TileAxis | None, list[CopyFn]] = {}
    for staging in stagings:
        if staging.zero is not None:
            found.setdefault(None, []).append(staging.zero)
        found.setdefault(_home(staging, levels), []).append(staging.copy)
    return {axis: partial(_run, makers) for axis, makers in found.items()}


def _run(makers: Sequence[CopyFn], names: dict[Var, Expr]) -> Stmt:
    return Block(make(names) for make in makers)


def _home(staging: Staging, levels: Sequence[TileAxis]) -> TileAxis | None:
    """The innermost axis that a copy depends on."""
    return next((axis for axis in reversed(levels) if axis.names_used & staging.needs), None)


def _staging_cost(staging: Staging, levels: Sequence[TileAxis]) -> float:
    home = _home(staging, levels)
    outside = () if home is None else levels[: levels.index(home) + 1]
    return math.prod(axis.trips for axis in outside) * staging.elements * staging.effort


def attempts(make: Callable[..., Candidate], req: Request, tiles: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
    """What `make` finds for a request and each of some tiles, where that is regular."""
    for tile in tiles:
        with suppress(Irregular):
            yield make(req, *tile)
