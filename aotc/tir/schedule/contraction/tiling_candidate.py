# SPDX-License-Identifier: Apache-2.0
"""Complete a tiling to a candidate: choose loops and partial sums of the reduction, place copies,
estimate the cost.

The modules `cpu_weight_vectors` and `cpu_data_vectors` propose operands, tiles and borders.
`candidate` makes the decisions common to both: which reduction axes are loops, the number of
partial sums, where scratch is filled, the cost.
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

#: Largest extent of a trailing reduction axis that is unrolled, if the budget allows it.
SHORT: Final = 8
MAX_SPLITS: Final = 4
#: Copies of operands beyond this many times the first-level cache slow everything down.
LARGE: Final = 2


@frozen(eq=False)
class Request:
    """A contraction to be tiled, and the target.

    analysis   the contraction with its dependences
    group      variable that counts the products of one dot-product instruction; None for plain
               multiply-adds
    a, b       buffers of data and weights
    store      function that returns the statement to store an output element
    target     the target
    lanes      elements of a vector; 1 if the types have no vector arithmetic
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
        """The contraction."""
        return self.analysis.c

    def scratch_dtype(self, operand: Buffer) -> DType:
        """Return the element type of a copy of an operand: narrow floats are converted when they
        are copied.
        """
        return self.c.dtype if operand.dtype.is_narrow_float and self.lanes > 1 else operand.dtype

    def broadcasts(self, operand: Buffer) -> bool:
        """Return True if elements of an operand can be broadcast without a conversion at each use."""
        return self.scratch_dtype(operand) == operand.dtype

    def require_finite(self, dims: Sequence[Dimension]) -> None:
        """Raise Irregular if zero padding could yield NaN, that is, if dimensions have borders and
        weights may be infinite.
        """
        if not index_space.finite_weights(self.c) and not all(d.inside for d in dims):
            raise Irregular("padding beside weights that may be infinite")

    @property
    def dots(self) -> Dots | None:
        """The dot-product instruction; reduced to one group per step where wider steps do not fit;
        None without int8 products.
        """
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
        """True if float sums must have the order of the reduction axes (an `ordered` target)."""
        return self.target.ordered and self.c.dtype.is_float

    @property
    def pixel_vars(self) -> set[Var]:
        """The variables of the output axes that only the data depends on."""
        return {var for var, _ in self.analysis.pixel}

    @property
    def reduction_vars(self) -> set[Var]:
        """The variables of the reduction axes, including the axis inside a group."""
        found = {var for var, _ in self.c.reduce_axes}
        return found if self.group is None else found | {self.group}

    @property
    def outputs(self) -> te.Axis:
        """The one axis of the weights; raise Irregular if there are several, or if an axis belongs
        to neither operand.
        """
        channel = self.analysis.channel
        others = {v for v, n in self.c.axes if n > 1} - self.pixel_vars
        if len(channel) != 1 or not others <= {channel[0][0]}:
            raise Irregular("outputs along several axes")
        return channel[0]

    def split(self, size: int) -> Split:
        """Return the operands with the output channels in blocks of `size`; raise Irregular if the
        data depends on the channel.
        """
        found = Split.of(self.analysis, self.outputs, size)
        if used(found.a) & {found.tile, found.lane}:
            raise Irregular("data that depends on outputs")
        return found

    def name(self, kind: str, axis: te.Axis | None, **parameters: int) -> str:
        """Return the name of a candidate tiling: its kind, axis and parameters, as used in records
        of measurements.
        """
        own = next((k for k, (var, _) in enumerate(self.c.axes) if axis is not None and var is axis[0]), -1)
        return " ".join([kind, *(f"{key}={value}" for key, value in {"axis": own, **parameters}.items())])

    def operand(self, buffer: Buffer, position: Linear, staging: Staging | None) -> Operand:
        """Return an operand of the contraction, or its scratch copy, at an address."""
        first = substitute(position.expr(), {} if self.group is None else {self.group: const(0)})
        return Operand(buffer if staging is None else staging.operand.buffer, first)

    def stage(self, name: str, operand: Buffer, dims: Sequence[Dimension], split: Split, **how: Any) -> Staging:
        """Return a scratch copy of an operand, made by `operand_staging.stage`."""
        return stage(name, operand, dims, ranges=split.ranges, dtype=self.scratch_dtype(operand), **how)

    def around(self, axis: te.Axis | None) -> list[TileAxis]:
        """Return the output axes that neither `axis` nor the data's tile covers, as outermost
        loops.
        """
        tiled = self.pixel_vars | ({axis[0]} if axis else set())
        return [single(var, extent) for var, extent in self.c.axes if var not in tiled]


@frozen(eq=False)
class Candidate:
    """A complete tiling with its estimated cost.

    tiling      the tiling
    workspace   scratch buffers that it needs
    cost        estimated cycles
    name        its kind and parameters, as in records of measurements
    others      further tilings, for the rest of the output
    """

    tiling: Tiling
    workspace: tuple[Buffer, ...]
    cost: float
    name: str
    others: tuple[Candidate, ...] = ()

    def nest(self) -> ContractionNest:
        """Return the loop nest of this candidate tiling, followed by the nests of `others`."""
        parts = [tiled_nest(one.tiling) for one in (self, *self.others)]
        stack = tuple(buffer for _, buffers in parts for buffer in buffers)
        return ContractionNest(Block(stmt for stmt, _ in parts), stack, self.workspace)


def candidate(
    req: Request, name: str, tiling: Tiling, copies: Sequence[Staging | None], *, short: bool = False
) -> Candidate:
    """Complete a tiling and estimate its cost.

    tiling   its reduction has the borders, and the axes that must be unrolled
    copies   copies of operands that it reads; None for operands that are read directly
    short    unroll short reduction axes, too
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
    """Return the number of accumulators of the largest register tile."""
    return math.prod(max(len(s.starts) for s in axis.segments) for axis in tiling.tiled)


def _with_loops(req: Request, tiling: Tiling, short: bool) -> Tiling:
    """Divide the reduction axes (without taps, the kernel offsets at borders) into loops and
    unrolled axes.

    Raise Irregular if that breaks a required summation order.
    """
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
    """Combine several groups of bytes into one reduction step, where the target has instructions
    for it.
    """
    dots, made = req.dots, tiling.product
    if dots is None or dots.groups == 1:
        return tiling
    for var, extent in tiling.reduction.looped:
        if linear(made.y.flat, {}).coefficient(var) == made.group and extent % dots.groups == 0:
            tiling = _cut(tiling, (var, extent), dots.groups)
            return replace(tiling, product=replace(tiling.product, groups=dots.groups, rows=dots.rows))
    return tiling


def _with_partial_sums(req: Request, tiling: Tiling) -> Tiling:
    """Add partial sums if there are too few accumulators to hide the latency of the multiply-adds."""
    chains = 2 * req.target.tiles.latency  # the units start two multiply-adds in a cycle
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
    """Turn unrolled reduction axes that exceed the code-size budget into loops with as many
    unrolled steps as it allows.
    """
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
    """Split a reduction axis into an innermost loop and `factor` unrolled steps."""
    var, extent = axis
    outer, inner = Var(var.name), Var(var.name)
    made, reduction = tiling.product, tiling.reduction
    x, y = (Operand(o.buffer, substitute(o.flat, {var: outer * factor + inner})) for o in (made.x, made.y))
    looped, unrolled = ([a for a in axes if a[0] is not var] for axes in (reduction.looped, reduction.unrolled))
    groups, steps = (outer, extent // factor), (inner, factor)
    reduction = replace(reduction, looped=[*looped, groups], unrolled=[*unrolled, steps])
    return replace(tiling, product=replace(made, x=x, y=y), reduction=reduction)


def _copies(stagings: Sequence[Staging], levels: Sequence[TileAxis]) -> dict[TileAxis | None, CopyFn]:
    """Place each scratch copy in the outermost loop where the axes that it depends on are known;
    zero fills before all loops.
    """
    found: dict[TileAxis | None, list[CopyFn]] = {}
    for staging in stagings:
        if staging.zero is not None:
            found.setdefault(None, []).append(staging.zero)
        found.setdefault(_home(staging, levels), []).append(staging.copy)
    return {axis: partial(_run, makers) for axis, makers in found.items()}


def _run(makers: Sequence[CopyFn], names: dict[Var, Expr]) -> Stmt:
    """Return the statements of several scratch copies as one block."""
    return Block(make(names) for make in makers)


def _home(staging: Staging, levels: Sequence[TileAxis]) -> TileAxis | None:
    """Return the innermost output axis that a scratch copy depends on; None if it depends on none."""
    return next((axis for axis in reversed(levels) if axis.names_used & staging.needs), None)


def _staging_cost(staging: Staging, levels: Sequence[TileAxis]) -> float:
    """Return the cycles of a scratch copy, times the iterations of the loops around it."""
    home = _home(staging, levels)
    outside = () if home is None else levels[: levels.index(home) + 1]
    return math.prod(axis.trips for axis in outside) * staging.elements * staging.effort


def attempts(make: Callable[..., Candidate], req: Request, tiles: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
    """Yield `make(req, *tile)` for each tile for which it does not raise Irregular."""
    for tile in tiles:
        with suppress(Irregular):
            yield make(req, *tile)
