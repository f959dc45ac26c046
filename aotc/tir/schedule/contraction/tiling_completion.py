# SPDX-License-Identifier: Apache-2.0
"""Complete a tiling to a candidate: choose loops and partial sums of the reduction, place copies,
estimate the cost.

The modules `cpu_tilings_vector_along_weights` and `cpu_tilings_vector_along_data` propose operands,
tiles and borders. `complete_tiling_candidate` makes the decisions common to both: which reduction
axes are loops, the number of partial sums, where scratch is filled, the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, Stmt, Target, Var, const, linear_form, substitute, te
from aotc.tir.micro_kernels import MULTIPLY_ADD, MicroKernel
from aotc.tir.schedule.contraction import contraction_index_analysis
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    AddressedOperand,
    ChannelSplit,
    ContractionAnalysis,
    OperandDimension,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.operand_staging import CopyFn, StagedOperand, stage_operand_in_scratch
from aotc.tir.schedule.contraction.register_tiling_types import RegisterTiling
from aotc.tir.schedule.contraction.run_time_extents import RunTimeExtents
from aotc.tir.schedule.contraction.tile_loop_nest import build_tiled_loop_nest
from aotc.tir.schedule.contraction.tile_segments import TileAxis, untiled_axis
from aotc.tir.schedule.contraction.tiling_cost import strided_walk_cycles, tiling_cycles, weight_load_wait_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn

#: Largest extent of a trailing reduction axis that is unrolled, if the budget allows it.
MAX_UNROLLED_REDUCTION_EXTENT: Final = 8
MAX_SPLITS: Final = 4


@frozen(eq=False)
class TilingRequest:
    """A contraction to be tiled, and the target.

    analysis   the contraction with its dependences
    group      variable that counts the products that the micro-kernel adds to one accumulator; None
               for one product
    a, b       buffers of data and weights
    store      function that returns the statement to store an output element
    target     the target
    lanes      elements of a vector; 1 if the types have no vector arithmetic
    kernel     the micro-kernel that multiplies
    run_time   extents of a run, if the contraction has typical ones; None if all extents are known
    """

    analysis: ContractionAnalysis
    group: Var | None
    a: Buffer
    b: Buffer
    store: StoreFn
    target: Target
    lanes: int
    kernel: MicroKernel = MULTIPLY_ADD
    run_time: RunTimeExtents | None = None

    @property
    def contraction(self) -> te.Contraction:
        """The contraction."""
        return self.analysis.c

    def dtype_of_scratch_copy(self, operand: Buffer) -> DType:
        """Return the element type of a copy of an operand.

        Narrow floats are converted to the type of the sums when they are copied, except for dot
        products of them; targets without vectors convert only types that cannot represent zero,
        which padding needs.
        """
        dtype = operand.dtype
        converted = self.group is None and dtype.is_narrow_float and (self.lanes > 1 or not dtype.can_represent_zero)
        return self.contraction.dtype if converted else dtype

    def is_broadcastable_without_cast(self, operand: Buffer) -> bool:
        """Return True if elements of an operand can be broadcast without a conversion at each use."""
        return self.dtype_of_scratch_copy(operand) == operand.dtype

    def can_pad_with_zeros(self, dims: Sequence[OperandDimension]) -> bool:
        """Return True unless zero padding could yield NaN, that is, unless dimensions have borders
        and weights may be infinite.
        """
        return contraction_index_analysis.are_weights_known_finite(self.contraction) or all(d.inside for d in dims)

    @property
    def step_kernel(self) -> MicroKernel:
        """The micro-kernel of a step: the first one of the target that multiplies several groups of
        adjacent data, if they fit the reduction and the vectors; else `kernel`.
        """
        if self.group is None:
            return self.kernel
        position = contraction_index_analysis.row_major_address(self.analysis.a)
        steps = [n for v, n in self.contraction.reduce_axes if position.coefficient(v) == self.kernel.group]
        types = (self.a.dtype, self.b.dtype, self.contraction.dtype)
        wide = (
            k
            for k in self.target.micro_kernels
            if k.groups > 1 and k.accepts_types(*types) and self.lanes in (k.lanes or (self.lanes,))
        )
        return next((k for k in wide if any(n % k.groups == 0 for n in steps)), self.kernel)

    @property
    def must_sum_floats_in_reduction_order(self) -> bool:
        """True if float sums must have the order of the reduction axes (an `ordered` target)."""
        return self.target.ordered and self.contraction.dtype.is_float

    @property
    def output_axis_vars_of_data_only(self) -> set[Var]:
        """The variables of the output axes that only the data depends on."""
        return {var for var, _ in self.analysis.pixel}

    @property
    def reduction_axis_vars(self) -> set[Var]:
        """The variables of the reduction axes, including the axis inside a group."""
        axis_vars = {var for var, _ in self.contraction.reduce_axes}
        return axis_vars if self.group is None else axis_vars | {self.group}

    @property
    def output_channel_axis(self) -> te.Axis | None:
        """The one axis of the weights; None if there are several, or if an axis belongs to neither
        operand.
        """
        channel = self.analysis.channel
        other_vars = {v for v, n in self.contraction.axes if n > 1} - self.output_axis_vars_of_data_only
        if len(channel) != 1 or not other_vars <= {channel[0][0]}:
            return None
        return channel[0]

    def split_output_channels(self, block_size: int) -> ChannelSplit | None:
        """Return the operands with the output channels in blocks of `block_size`; None if there is
        not one axis of channels, or if the data depends on it.
        """
        if self.output_channel_axis is None:
            return None
        split = ChannelSplit.split_channel_axis(self.analysis, self.output_channel_axis, block_size)
        return None if variables_of_dimensions(split.a) & {split.tile, split.lane} else split

    def candidate_name(self, kind: str, axis: te.Axis | None, **parameters: int) -> str:
        """Return the name of a candidate tiling: its kind, axis and parameters, and its micro-kernel
        unless that is a multiply-add, as used in records of measurements.
        """
        axis_index = next(
            (k for k, (var, _) in enumerate(self.contraction.axes) if axis is not None and var is axis[0]), -1
        )
        words = [kind, *(f"{key}={value}" for key, value in {"axis": axis_index, **parameters}.items())]
        return " ".join(words if self.group is None else [*words, self.kernel.name])

    def run_time_extent(self, var: Var) -> Expr | None:
        """Return the extent of an axis, if it is known at run time only."""
        return None if self.run_time is None else self.run_time.extents.get(var)

    def part_of_longer_axis(self, var: Var) -> tuple[Expr, Expr] | None:
        """Return where an axis that is part of a longer one begins and ends there."""
        return None if self.run_time is None else self.run_time.parts.get(var)

    def data_address(self, dims: Sequence[OperandDimension]) -> Expr:
        """Return the address of an element of the data in its buffer."""
        known = contraction_index_analysis.row_major_address(dims)
        return known.to_expr() if self.run_time is None else self.run_time.data_address(dims)

    def weight_address(self, dims: Sequence[OperandDimension]) -> Expr:
        """Return the address of a weight in its buffer."""
        known = contraction_index_analysis.row_major_address(dims)
        return known.to_expr() if self.run_time is None else self.run_time.weight_address(dims)

    def operand_or_scratch_copy(self, buffer: Buffer, address: Expr, staging: StagedOperand | None) -> AddressedOperand:
        """Return an operand of the contraction, or its scratch copy, at an address."""
        first = substitute(address, {} if self.group is None else {self.group: const(0)})
        return AddressedOperand(buffer if staging is None else staging.operand.buffer, first)

    def operand_scratch_copy(
        self, name: str, operand: Buffer, dims: Sequence[OperandDimension], split: ChannelSplit, **staging_options: Any
    ) -> StagedOperand | None:
        """Return a scratch copy of an operand, made by `operand_staging.stage_operand_in_scratch`;
        None if it cannot be copied.
        """
        return stage_operand_in_scratch(
            name, operand, dims, ranges=split.ranges, dtype=self.dtype_of_scratch_copy(operand), **staging_options
        )

    def output_axes_outside_of_tile(self, axis: te.Axis | None) -> list[TileAxis]:
        """Return the output axes that neither `axis` nor the data's tile covers, as outermost
        loops.
        """
        tiled = self.output_axis_vars_of_data_only | ({axis[0]} if axis else set())
        return [
            untiled_axis(var, extent, self.run_time_extent(var), self.part_of_longer_axis(var))
            for var, extent in self.contraction.axes
            if var not in tiled
        ]


@frozen(eq=False)
class TilingCandidate:
    """One way to compute a contraction, with its estimated cost.

    cost               estimated cycles
    name               its kind and parameters, as in records of measurements
    """

    cost: float
    name: str

    def build_loop_nests(self) -> ContractionNest:
        """Return the loop nest of this candidate."""
        raise NotImplementedError


@frozen(eq=False)
class MemoryKernelCandidate(TilingCandidate):
    """Calls of a micro-kernel that reads its operands from memory.

    build_nest    function that returns the loop nest
    """

    build_nest: Callable[[], ContractionNest]

    def build_loop_nests(self) -> ContractionNest:
        """Return the loops over the calls, with the statements that pack operands and store sums."""
        return self.build_nest()


@frozen(eq=False)
class RegisterTilingCandidate(TilingCandidate):
    """A complete register tiling.

    tiling         the tiling
    workspace      scratch buffers that it needs
    rest_tilings   further tilings, for the rest of the output
    """

    tiling: RegisterTiling
    workspace: tuple[Buffer, ...] = ()
    rest_tilings: tuple[RegisterTilingCandidate, ...] = ()

    def build_loop_nests(self) -> ContractionNest:
        """Return the loop nest of this candidate tiling, followed by the nests of `rest_tilings`."""
        parts = [build_tiled_loop_nest(candidate.tiling) for candidate in (self, *self.rest_tilings)]
        stack = tuple(buffer for _, buffers in parts for buffer in buffers)
        return ContractionNest(Block(stmt for stmt, _ in parts), stack, self.workspace)


def complete_tiling_candidate(
    request: TilingRequest,
    name: str,
    tiling: RegisterTiling,
    staged_operands: Sequence[StagedOperand | None],
    *,
    unrolls_short_axes: bool = False,
) -> RegisterTilingCandidate | None:
    """Complete a tiling and estimate its cost; None if it cannot have the required summation order.

    tiling             its reduction has the borders, and the axes that must be unrolled
    staged_operands    copies of operands that it reads; None for operands that are read directly
    unrolls_short_axes              unroll short reduction axes, too
    """
    stagings = [staging for staging in staged_operands if staging is not None]
    looped = _choose_reduction_loops(request, tiling, unrolls_short_axes)
    if looped is None:
        return None
    looped = _combine_byte_groups_into_one_dot_step(request, looped)
    tiling = _add_partial_sums_to_hide_latency(request, _limit_unrolling_to_budget(request, looped))
    levels = tiling.levels
    products = tiling_cycles(tiling, request.target)
    weights = {var for var, _ in request.analysis.channel}
    passes = math.prod(axis.tile_count_of_all_segments for axis in levels if axis.var not in weights)
    cost = products + weight_load_wait_cycles(_weight_bytes_fetched(request, tiling), passes, products, request.target)
    cost += sum(_scratch_copy_cycles_in_all_iterations(request, staging, levels) for staging in stagings)
    scratch = tuple(staging.operand.buffer for staging in stagings)
    if sum(b.nbytes for b in scratch) > request.target.tiles.copies_l1_caches * request.target.l1:
        cost *= request.target.tiles.large_copies
    tiling = replace(tiling, copies=_scratch_copies_by_containing_loop_axis(stagings, levels))
    if request.run_time is not None:
        tiling = _with_run_time_reduction(tiling, request.run_time)
    return RegisterTilingCandidate(cost * request.target.tiles.slowdown, name, tiling, scratch)


def _with_run_time_reduction(tiling: RegisterTiling, run_time: RunTimeExtents) -> RegisterTiling:
    """Return a tiling whose reduction loops end at the extents of a run."""
    reduction = tiling.reduction
    looped: list[tuple[Var, Any]] = [(var, run_time.extents.get(var, extent)) for var, extent in reduction.looped]
    return replace(tiling, reduction=replace(reduction, looped=looped))


def _weight_bytes_fetched(request: TilingRequest, tiling: RegisterTiling) -> int:
    """Return the bytes of weights that are fetched from memory in one pass over all weights.

    Processors prefetch adjacent cache lines. Tiles narrower than a block of packed weights skip
    lines of each block, which are fetched again for the next tile.
    """
    block, vector = request.contraction.block, tiling.vector_axis
    if not block or vector.split is None:
        return request.b.nbytes
    return request.b.nbytes * max(1, block // max(segment.size for segment in vector.segments))


def _max_tile_accumulators(tiling: RegisterTiling) -> int:
    """Return the number of accumulators of the largest register tile."""
    return math.prod(max(len(s.starts) for s in axis.segments) for axis in tiling.register_tile_axes)


def _choose_reduction_loops(
    request: TilingRequest, tiling: RegisterTiling, unrolls_short_axes: bool
) -> RegisterTiling | None:
    """Divide the reduction axes (without taps, the kernel offsets at borders) into loops and
    unrolled axes; return None if that breaks a required summation order.
    """
    reduction = tiling.reduction
    fixed = variables_of_dimensions(reduction.guards) | {v for v, _ in reduction.taps}
    unrolled = {var for var, _ in reduction.unrolled}
    work = _max_tile_accumulators(tiling) * math.prod(n for _, n in reduction.unrolled)
    for var, extent in reversed(request.contraction.reduce_axes):
        if var in unrolled:
            continue
        if (
            not unrolls_short_axes
            or extent > MAX_UNROLLED_REDUCTION_EXTENT
            or work * extent > request.target.budget.unrolled
            or var in fixed
        ):
            break
        unrolled.add(var)
        work *= extent
    axes = [a for a in request.contraction.reduce_axes if a not in reduction.taps]
    looped, written = ([a for a in axes if (a[0] in unrolled) == out] for out in (False, True))
    walked, required_axes = [*reduction.taps, *looped, *written], request.contraction.reduce_axes
    if request.must_sum_floats_in_reduction_order and [v for v, n in walked if n > 1] != [
        v for v, n in required_axes if n > 1
    ]:
        return None
    return replace(tiling, reduction=replace(reduction, looped=looped, unrolled=written))


def _combine_byte_groups_into_one_dot_step(request: TilingRequest, tiling: RegisterTiling) -> RegisterTiling:
    """Combine several groups of bytes into one reduction step, where the target has instructions
    for it.
    """
    wide, step = request.step_kernel, tiling.product
    if wide.groups == 1:
        return tiling
    for var, extent in tiling.reduction.looped:
        is_known = request.run_time_extent(var) is None
        adjacent = linear_form(step.y.flat, {}).coefficient(var) == step.kernel.group
        if is_known and adjacent and extent % wide.groups == 0:
            tiling = _split_reduction_axis(tiling, (var, extent), wide.groups)
            return replace(tiling, product=replace(tiling.product, wide=wide))
    return tiling


def _add_partial_sums_to_hide_latency(request: TilingRequest, tiling: RegisterTiling) -> RegisterTiling:
    """Add partial sums if there are too few accumulators to hide the latency of the multiply-adds."""
    kernel = request.kernel
    # the units start two multiply-adds in a cycle
    chains = 2 * request.target.tiles.latency if kernel.group == 1 else int(kernel.rate * kernel.latency)
    reduction, needed_splits = tiling.reduction, -(-chains // _max_tile_accumulators(tiling))
    if (
        needed_splits == 1
        or request.lanes == 1
        or request.must_sum_floats_in_reduction_order
        or tiling.product.groups_per_step > 1
    ):
        return tiling
    written = math.prod(n for _, n in reduction.unrolled)
    if written >= 2:
        return replace(tiling, reduction=replace(reduction, splits=min(MAX_SPLITS, needed_splits, written)))
    if not reduction.looped or reduction.taps or reduction.looped[-1][0] in variables_of_dimensions(reduction.guards):
        return tiling
    var, extent = reduction.looped[-1]
    if request.run_time_extent(var) is not None:
        return tiling
    factor = next((f for f in (8, 4, 6, 5, 3, 7, 2) if extent % f == 0), 1)
    if factor == 1:
        return tiling
    tiling = _split_reduction_axis(tiling, (var, extent), factor)
    return replace(tiling, reduction=replace(tiling.reduction, splits=min(MAX_SPLITS, needed_splits, factor)))


def _limit_unrolling_to_budget(request: TilingRequest, tiling: RegisterTiling) -> RegisterTiling:
    """Turn unrolled reduction axes that exceed the code-size budget into loops with as many
    unrolled steps as it allows.
    """
    most = request.target.budget.unrolled // _max_tile_accumulators(tiling)
    while (steps := math.prod(n for _, n in tiling.reduction.unrolled)) > max(1, most):
        first, *rest_axes = tiling.reduction.unrolled
        if request.must_sum_floats_in_reduction_order and rest_axes:
            looped = [*tiling.reduction.looped, first]
            tiling = replace(tiling, reduction=replace(tiling.reduction, looped=looped, unrolled=rest_axes))
            continue
        axis = max(tiling.reduction.unrolled, key=lambda axis: axis[1])
        room = max(1, most * axis[1] // steps)
        tiling = _split_reduction_axis(
            tiling, axis, next(n for n in range(min(room, axis[1]), 0, -1) if axis[1] % n == 0)
        )
    return tiling


def _split_reduction_axis(tiling: RegisterTiling, axis: te.Axis, factor: int) -> RegisterTiling:
    """Split a reduction axis into an innermost loop and `factor` unrolled steps."""
    var, extent = axis
    outer, inner = Var(var.name), Var(var.name)
    multiply_step, reduction = tiling.product, tiling.reduction
    x, y = (
        AddressedOperand(o.buffer, substitute(o.flat, {var: outer * factor + inner}))
        for o in (multiply_step.x, multiply_step.y)
    )
    looped, unrolled = ([a for a in axes if a[0] is not var] for axes in (reduction.looped, reduction.unrolled))
    groups, steps = (outer, extent // factor), (inner, factor)
    reduction = replace(reduction, looped=[*looped, groups], unrolled=[*unrolled, steps])
    return replace(tiling, product=replace(multiply_step, x=x, y=y), reduction=reduction)


def _scratch_copies_by_containing_loop_axis(
    staged_operands: Sequence[StagedOperand], axes: Sequence[TileAxis]
) -> dict[TileAxis | None, CopyFn]:
    """Place each scratch copy in the outermost loop where the axes that it depends on are known;
    zero fills before all loops.
    """
    copy_makers: dict[TileAxis | None, list[CopyFn]] = {}
    for staging in staged_operands:
        if staging.zero is not None:
            copy_makers.setdefault(None, []).append(staging.zero)
        copy_makers.setdefault(_innermost_needed_axis(staging, axes), []).append(staging.copy)
    return {axis: partial(_concatenate_copy_stmts, makers) for axis, makers in copy_makers.items()}


def _concatenate_copy_stmts(copies: Sequence[CopyFn], values_of_vars: dict[Var, Expr]) -> Stmt:
    """Return the statements of several scratch copies as one block."""
    return Block(make(values_of_vars) for make in copies)


def _innermost_needed_axis(staging: StagedOperand, axes: Sequence[TileAxis]) -> TileAxis | None:
    """Return the innermost output axis that a scratch copy depends on; None if it depends on none."""
    return next((axis for axis in reversed(axes) if axis.operand_vars_addressing_axis & staging.needs), None)


def _scratch_copy_cycles_in_all_iterations(
    request: TilingRequest, staging: StagedOperand, axes: Sequence[TileAxis]
) -> float:
    """Return the cycles of a scratch copy, times the iterations of the loops around it.

    Copies of integers that read at a distance wait for cache lines; the costs of tilings of floats were
    fitted without this term.
    """
    home = _innermost_needed_axis(staging, axes)
    outside = () if home is None else axes[: axes.index(home) + 1]
    cycles = staging.scratch_elements * staging.effort
    if staging.walk is not None and request.contraction.dtype.is_integer:
        walks = staging.scratch_elements / staging.walk.elements
        cycles += walks * strided_walk_cycles(staging.walk, request.target)
    return math.prod(axis.tile_count_of_all_segments for axis in outside) * cycles


def feasible_candidates(
    make_candidate: Callable[..., RegisterTilingCandidate | None],
    request: TilingRequest,
    tiles: Iterable[tuple[Any, ...]],
) -> list[RegisterTilingCandidate]:
    """Return `make_candidate(request, *tile)` for each tile for which it is not None."""
    return [c for tile in tiles if (c := make_candidate(request, *tile)) is not None]
