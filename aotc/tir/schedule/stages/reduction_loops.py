# SPDX-License-Identifier: Apache-2.0
"""Loop nests of reductions: from a stage whose anchor is a te.Reduce, a statement.

Six shapes, chosen by the number of elements that are combined and by the axis that is contiguous
in memory:

    window     a few elements:              for j: acc = x[j]; acc += x[j + 1]; ...; y[j] = acc
    rows       the last output axis:    for k: for j: row[j] += x[k, j]        a row of accumulators, or a few rows
                                                                               of them for parts of many k
    partial    a reduction axis:        for k by 16: for l in 0..16: part[l] += x[i, k + l]
    square     a reduction axis, for    for k by 8: for r in 0..8: for l in 0..8: part[r, l] += x[i + r, k + l]
               many sums of few:        y[i .. i + 7] = sum_square_rows(part)
    scalar     neither:                 for k: acc += x[...]
    threads    long, on a device:       for l in 0..256: for k from l by 256: part[l] += x[i, k]        (gpu_reduction)

Partial results combine elements a fixed distance apart. Left-over elements go to the first partial
results or, where elements may be combined twice (min, max, and, or), a whole number of vectors
begins earlier. Then halves are combined until one result is left. The order is fixed by the
program, whatever it is compiled to. Minima and maxima do not depend on it, except for zeros of
different signs, of which either may be the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aotc.ir import DType, frozen, is_static
from aotc.tir import (
    Buffer,
    Expr,
    Gpu,
    Load,
    Operand,
    Threads,
    Var,
    as_expr,
    binary,
    bounds,
    const,
    linear_form,
    minimum,
    rename_declared_vars,
    substitute,
    substitute_in_stmt,
    te,
    tensor_graph,
)
from aotc.tir.instruction_statements import sum_square_rows
from aotc.tir.loops.loop_dependence import direct_loads, straight_line_stmts, written_buffers
from aotc.tir.loops.loop_nest_rewrites import (
    constant_unit_step_range,
    merge_nested_loops_into_flat_loop,
    unrolled_iterations,
)
from aotc.tir.schedule.stages.gpu_reduction import LongReduction, split_reduction_among_threads
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.stage_grouping import MIN_ACCUMULATOR_ROW_EXTENT, ComputeStage
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Store, forall, loop_nest, rebuild_stmt, walk_stmts

OP_OF_COMBINER: Final = {"sum": "add", "prod": "mul", "min": "min", "max": "max", "and": "and", "or": "or"}
#: Least number of results of a row whose accumulators are updated together, if neighbors read up to
#: _MAX_ROW_STRIDE apart.
_MIN_STRIDED_ROW_RESULTS: Final = 4
_MAX_ROW_STRIDE: Final = 4
#: Largest number of elements of a reduction that is unrolled; fewer if borders multiply the code.
_MAX_UNROLLED_ELEMENTS: Final = 32
_MAX_UNROLLED_GUARDED_ELEMENTS: Final = 9
#: Number of accumulators of short rows, of which the elements of a long reduction take turns, so that a sum
#: does not wait for the one before it; and the largest number of rows of them.
_ACCUMULATORS_OF_SHORT_ROWS: Final = 32
_MAX_ACCUMULATOR_ROWS: Final = 4
#: Fewest results of which a vector of partial sums each is added at once.
_MIN_SQUARE_SIDE: Final = 4
#: Partial accumulators on every `ordered` target.
ORDERED_PARTIAL_ACCUMULATORS: Final = 8


def identity_of_combiner(combiner: str, dtype: DType) -> Expr:
    """Return the identity element of a combiner, which is the result of a reduction over no
    elements.
    """
    every_bit = -1 if dtype.is_integer and dtype.is_signed else dtype.max
    identities = {
        "sum": 0,
        "or": 0,
        "prod": 1,
        "and": every_bit,
        "min": dtype.largest_value,
        "max": dtype.smallest_value,
    }
    return const(identities[combiner], dtype)


@frozen
class _ReductionParts:
    """The parts of a reduction: `acc` is set to `start`, `update` runs the reduction loops,
    `finish` uses the result.
    """

    builder: KernelBuilder
    op: str
    acc: Var
    start: Expr
    update: Stmt
    finish: tuple[Stmt, ...]


def build_reduction_nest(builder: KernelBuilder, stage: ComputeStage, anchor: te.Reduce, outer_loop_count: int) -> Stmt:
    """Return the loop nest of a reduction stage inside its outer `outer_loop_count` loops."""
    acc = Var(anchor.name, anchor.dtype)
    start = identity_of_combiner(anchor.combiner, anchor.dtype)
    scalar = Block(
        (
            Declare(acc, start),
            _reduction_loops_by_stride(builder, stage, anchor, acc),
            builder.stmts_storing_element_of_stage_tensors(stage, acc),
        )
    )
    free: list[tuple[Var, int]] = []
    free_of_any_extent: list[tuple[Var, Operand]] = []
    nest = merge_nested_loops_into_flat_loop(
        _loops_without_unit_axes(stage.anchor_axes[outer_loop_count:], scalar, "independent")
    )
    while isinstance(nest, For):
        free.append((nest.var, constant_unit_step_range(nest).stop))
        free_of_any_extent.append((nest.var, nest.end))
        nest = nest.body
    if not isinstance(nest, Block):
        raise AssertionError("a reduction is a block")
    parts = _ReductionParts(builder, OP_OF_COMBINER[anchor.combiner], acc, start, nest.stmts[1], nest.stmts[2:])
    axes = tensor_graph.output_and_reduction_axes(anchor)
    if not is_static([extent for _, extent in axes]):
        return _reduction_loop_nest_of_run_time_extents(parts, free_of_any_extent, nest)
    return _choose_reduction_loop_nest(parts, free, nest, outer_loop_count, stage.anchor_axes)


def _reduction_loops_by_stride(
    builder: KernelBuilder, stage: ComputeStage, anchor: te.Reduce, accumulator: Var
) -> Stmt:
    """Return the loops over the reduction axes, with the axis of the smallest stride innermost."""
    body = builder.new_element_lowering_for_stage(stage)
    value = body.lower_tensor_expr(anchor.body, {})
    update: Stmt = Block(
        (
            *body.needed_register_declarations,
            Assign(accumulator, binary(OP_OF_COMBINER[anchor.combiner], accumulator, value)),
        )
    )
    if anchor.guard is not None:
        outer = builder.new_element_lowering_for_stage(stage)
        guard = outer.lower_tensor_expr(anchor.guard, {})
        update = Block((*outer.needed_register_declarations, If(guard, update)))
    # a stride that is known at run time only is a product of extents
    unknown = 0 if is_static([extent for _, extent in anchor.reduce_axes]) else math.inf

    def stride_of_axis(axis: te.Axis) -> int | float:
        stride = _max_load_stride(update, axis[0])
        return unknown if stride is None else stride

    axes = sorted(anchor.reduce_axes, key=lambda axis: -stride_of_axis(axis))
    nest = merge_nested_loops_into_flat_loop(_loops_without_unit_axes(axes, update, "reduction"))
    # without iterations there still is one statement for the loops, so that the parts can be
    # distinguished
    return nest if isinstance(nest, For) else If(const(True, "bool"), nest)


def _loops_without_unit_axes(axes: Sequence[te.Axis], body: Stmt, kind: str) -> Stmt:
    """Return loops over axes, without axes of one element, which would hide contiguous memory."""
    units: dict[Var, Expr] = {var: as_expr(0) for var, extent in axes if extent == 1}
    long_axes = [axis for axis in axes if axis[0] not in units]
    return loop_nest(long_axes, substitute_in_stmt(body, units) if units else body, kind)


def _max_load_stride(stmt: Stmt, var: Var) -> int | None:
    """Return the largest distance in memory between the loads of successive iterations; None if it
    varies.
    """
    strides = [linear_form(load.index, {}).coefficient(var) for s in walk_stmts(stmt) for load in direct_loads(s)]
    return None if None in strides else max((abs(factor or 0) for factor in strides), default=0)


def _choose_reduction_loop_nest(
    reduction: _ReductionParts,
    free_axes: Sequence[tuple[Var, int]],
    scalar_nest: Stmt,
    outer_loop_count: int,
    axes: Sequence[te.Axis],
) -> Stmt:
    """Return the loop nest of a reduction, vectorized in the way that suits its sizes and strides."""
    builder, dtype = reduction.builder, reduction.acc.dtype
    lanes = _accumulator_count(reduction)
    row = (
        _max_load_stride(reduction.update, free_axes[-1][0])
        if free_axes and not written_buffers(reduction.update)
        else None
    )
    strided = row is not None and row <= _MAX_ROW_STRIDE and free_axes[-1][1] >= _MIN_STRIDED_ROW_RESULTS
    window = _unroll_small_reduction(reduction.update) if strided else None
    if window is not None:
        return loop_nest(
            free_axes, Block((Declare(reduction.acc, reduction.start), *window, *reduction.finish)), "independent"
        )
    if (gpu := builder.target.gpu) is not None and builder.target.can_split_reduction_in_thread_block:
        return _split_reduction_among_gpu_threads(reduction, gpu, free_axes, outer_loop_count, axes) or loop_nest(
            free_axes, scalar_nest, "independent"
        )
    if row is not None and row <= 1 and free_axes[-1][1] >= MIN_ACCUMULATOR_ROW_EXTENT:
        if outer_loop_count == 0 and (count := _part_count_of_reduction_for_threads(reduction, free_axes)):
            return loop_nest(
                free_axes[:-1], _reduce_in_parts_of_accumulator_rows(reduction, *free_axes[-1], count), "independent"
            )
        return loop_nest(free_axes[:-1], _reduce_with_accumulator_row(reduction, *free_axes[-1]), "independent")
    inner = _innermost_straight_line_loop(reduction.update)
    # adding integers one after the other has no latency to hide
    pays = dtype.is_float or builder.target.lanes(dtype) >= builder.target.tiles.partial_sums
    if inner is not None and (_max_load_stride(inner.body, inner.var) or 2) <= 1 and pays:
        values = constant_unit_step_range(inner)
        while not builder.target.ordered and len(values) < 2 * lanes and lanes > builder.target.tiles.partial_sums:
            lanes //= 2
        if values.start == 0 and len(values) >= 2 * lanes:
            return loop_nest(
                free_axes,
                _reduce_with_several_accumulators(reduction, inner, len(values), lanes, len(values)),
                "independent",
            )
    if strided:
        return loop_nest(free_axes[:-1], _reduce_with_accumulator_row(reduction, *free_axes[-1]), "independent")
    return loop_nest(free_axes, scalar_nest, "independent")


def _reduction_loop_nest_of_run_time_extents(
    reduction: _ReductionParts, free_axes: Sequence[tuple[Var, Operand]], scalar_nest: Stmt
) -> Stmt:
    """Return the loop nest of a reduction with extents that are known at run time only: with a row of
    accumulators, with several accumulators, or with one, as the strides suit it.
    """
    builder = reduction.builder
    if free_axes and not written_buffers(reduction.update):
        var, extent = free_axes[-1]
        most = bounds(as_expr(extent), builder.ranges_of_numbers)[1]
        row = _max_load_stride(reduction.update, var)
        if row is not None and row <= 1 and MIN_ACCUMULATOR_ROW_EXTENT <= most < math.inf:
            if (nest := _reduce_with_rows_in_turn(reduction, var, extent)) is not None:
                return loop_nest(free_axes[:-1], nest, "independent")
            limit = max(builder.target.budget.row_bytes // reduction.acc.dtype.itemsize, 1)
            nest = _reduce_with_tiles_of_accumulators(reduction, var, extent, min(int(most), limit))
            return loop_nest(free_axes[:-1], nest, "independent")
    inner = _innermost_straight_line_loop(reduction.update)
    if inner is not None and inner.begin == as_expr(0) and _max_load_stride(inner.body, inner.var) == 1:
        most = bounds(inner.end, builder.ranges_of_numbers)[1]
        lanes = _accumulator_count(reduction)
        while not builder.target.ordered and most < 2 * lanes and lanes > builder.target.tiles.partial_sums:
            lanes //= 2
        if 2 * lanes <= most < math.inf:
            extent = len(constant_unit_step_range(inner)) or inner.end
            nest = _reduce_with_several_accumulators(reduction, inner, extent, lanes, int(most))
            squares = _reduce_squares_of_results(reduction, inner, free_axes[-1], nest) if free_axes else None
            if squares is not None:
                return loop_nest(free_axes[:-1], squares, "independent")
            return loop_nest(free_axes, nest, "independent")
    return loop_nest(free_axes, scalar_nest, "independent")


def _reduce_with_rows_in_turn(reduction: _ReductionParts, var: Var, extent: Operand) -> Stmt | None:
    """Return a reduction with a few short rows of accumulators along an output axis, which successive elements
    of the reduction update in turn; None if the row is not short, or if the reduction has several loops.
    """
    loop, target = reduction.update, reduction.builder.target
    width, most = bounds(as_expr(extent), reduction.builder.ranges_of_numbers)
    count = min(int(_ACCUMULATORS_OF_SHORT_ROWS // width), _MAX_ACCUMULATOR_ROWS) if 0 < width == most else 0
    if count < 2 or (target.is_scalar and not target.ordered) or target.gpu is not None:
        return None
    if not isinstance(loop, For) or loop is not _innermost_straight_line_loop(loop) or loop.begin != as_expr(0):
        return None
    width = int(width)
    name = f"{reduction.acc.name}_row"
    rows = reduction.builder.allocate_scratch(name, reduction.acc.dtype, count * width, private=True)
    along = partial(_loop_over_accumulator_row, reduction.acc, rows, var)
    whole = loop.end // count * count
    turns = [along(as_expr(0), width, loop.body, first=turn * width) for turn in range(count)]
    chunk = Var(loop.var.name)
    turns = [substitute_in_stmt(stmt, {loop.var: chunk + turn}) for turn, stmt in enumerate(turns)]
    stmts = [along(as_expr(0), width * count, Assign(reduction.acc, reduction.start))]
    stmts.append(For(chunk, whole, Block(turns), step=count, kind="reduction"))
    stmts.append(replace(loop, begin=whole, body=along(as_expr(0), width, loop.body)))
    while count > 1:
        # of an odd number of rows, the one in the middle waits for the next step
        kept = (count + 1) // 2
        lane, other = Var("l"), kept * width
        pair = binary(reduction.op, Load(rows, lane), Load(rows, lane + other))
        stmts.append(forall(lane, (count - kept) * width, Store(rows, lane, pair)))
        count = kept
    return Block((*stmts, along(as_expr(0), width, Block(reduction.finish))))


def _reduce_squares_of_results(
    reduction: _ReductionParts, inner: For, axis: tuple[Var, Operand], single_result: Stmt
) -> Stmt | None:
    """Return sums along a contiguous axis, for as many results at a time as a vector has lanes; None where
    vectors of partial sums have no use.

    axis             the innermost output axis
    single_result    the reduction for one value of this axis, for the results that are left
    """
    (var, extent), target = axis, reduction.builder.target
    side, size = target.lanes(reduction.acc.dtype), len(constant_unit_step_range(inner))
    is_sum = reduction.op == "add" and reduction.acc.dtype.is_float and inner is reduction.update
    if not is_sum or target.gpu is not None or target.ordered or side < _MIN_SQUARE_SIDE or size == 0 or size % side:
        return None
    scratch = partial(reduction.builder.allocate_scratch, dtype=reduction.acc.dtype, private=True)
    square = scratch(f"{reduction.acc.name}_square", size=side * side)
    sums = scratch(f"{reduction.acc.name}_results", size=side)
    base, chunk = Var(var.name), Var(inner.var.name)
    along = partial(_loop_over_accumulator_row, reduction.acc, square, inner.var)
    rows = [substitute_in_stmt(along(chunk, side, inner.body, first=r * side), {var: base + r}) for r in range(side)]
    stmts = [
        *(along(chunk, side, Assign(reduction.acc, reduction.start), first=r * side) for r in range(side)),
        For(chunk, size, Block(rows), step=side, kind="reduction"),
        sum_square_rows(side, sums, 0, square, 0, side),
        _loop_over_accumulator_row(reduction.acc, sums, var, base, as_expr(side), Block(reduction.finish)),
    ]
    whole = as_expr(extent) // side * side
    rest = forall(var, extent, rename_declared_vars(single_result), begin=whole)
    return Block((forall(base, whole, Block(stmts), step=side), rest))


def _accumulator_count(reduction: _ReductionParts) -> int:
    """Return the number of accumulators of a reduction along a contiguous axis, or of one fourth of them."""
    target = reduction.builder.target
    if target.ordered:
        return ORDERED_PARTIAL_ACCUMULATORS
    return max(target.lanes(reduction.acc.dtype), target.tiles.partial_sums)


def _split_reduction_among_gpu_threads(
    reduction: _ReductionParts,
    gpu: Gpu,
    free_axes: Sequence[tuple[Var, int]],
    outer_loop_count: int,
    axes: Sequence[te.Axis],
) -> Stmt | None:
    """Return the loop nest of a reduction that the threads of GPU blocks split; None if it is too
    short.
    """
    long = LongReduction(
        reduction.op,
        reduction.acc,
        reduction.start,
        reduction.update,
        Block(reduction.finish),
        free_axes,
        reduction.builder.allocate_scratch,
    )
    across = any(
        extent > 1 and _max_load_stride(reduction.update, var) == 1
        for var, extent in (*free_axes, *axes[:outer_loop_count])[-1:]
    )
    results = math.prod(extent for _, extent in axes)
    return split_reduction_among_threads(
        long, gpu, results, is_result_axis_contiguous=across, is_only_statement=outer_loop_count == 0
    )


def _unroll_small_reduction(update: Stmt) -> list[Stmt] | None:
    """Return the reduction loops fully unrolled; None if there are too many iterations."""
    points, nest = 1, update
    while isinstance(nest, For):
        points, nest = points * len(constant_unit_step_range(nest)), nest.body
    kinds = {type(s) for s in walk_stmts(nest)}
    most = _MAX_UNROLLED_GUARDED_ELEMENTS if If in kinds else _MAX_UNROLLED_ELEMENTS
    if For in kinds or not 0 < points <= most:
        return None
    return _unroll_all_loops(update)


def _unroll_all_loops(stmt: Stmt) -> list[Stmt]:
    """Return a statement with its loops fully unrolled."""
    if not isinstance(stmt, For):
        return [stmt]
    return [inner for copy in unrolled_iterations(stmt) for inner in _unroll_all_loops(copy)]


def _innermost_straight_line_loop(stmt: Stmt) -> For | None:
    """Return the innermost loop of a perfect nest if its body has no branches and loops, else None."""
    while isinstance(stmt, For) and isinstance(stmt.body, For):
        stmt = stmt.body
    return stmt if isinstance(stmt, For) and straight_line_stmts(stmt) is not None else None


def _part_count_of_reduction_for_threads(reduction: _ReductionParts, free_axes: Sequence[tuple[Var, int]]) -> int:
    """Return the number of parts into which a long reduction to one row is divided for threads; 0
    for no division.
    """
    target = reduction.builder.target
    threads = Threads() if target.ordered else target.threads
    if threads is None:
        return 0
    values = constant_unit_step_range(reduction.update)
    is_single_row = math.prod(extent for _, extent in free_axes[:-1]) == 1 and values.start == 0
    long = is_single_row and len(values) >= 4 * threads.parts and len(values) * free_axes[-1][1] >= threads.long
    return threads.parts if long else 0


def _reduce_in_parts_of_accumulator_rows(reduction: _ReductionParts, var: Var, extent: int, part_count: int) -> Stmt:
    """Return a row of accumulators for each part of the outermost reduction loop, followed by the
    combination of the rows.
    """
    loop = reduction.update
    if not isinstance(loop, For):
        raise AssertionError("a long reduction is a loop")
    part, lane = Var("part"), Var("l")
    part_rows = reduction.builder.allocate_scratch(
        f"{reduction.acc.name}_parts", reduction.acc.dtype, part_count * extent, shared=True
    )
    begin, end = (at * as_expr(loop.end) // part_count for at in (part, part + 1))
    update = replace(loop, end=end, begin=begin)
    store = Store(part_rows, part * extent + var, reduction.acc)
    rows = forall(
        part, part_count, _reduce_with_accumulator_row(replace(reduction, update=update, finish=(store,)), var, extent)
    )
    total: Expr = Load(part_rows, lane)
    for k in range(1, part_count):
        total = binary(reduction.op, total, Load(part_rows, lane + k * extent))
    finish = Block((Declare(reduction.acc, total), *reduction.finish))
    return Block((rows, forall(lane, extent, _replace_vars_with_memory(finish, {var: lane}))))


def _reduce_with_accumulator_row(reduction: _ReductionParts, var: Var, extent: int) -> Stmt:
    """Return a reduction with a row of accumulators along an output axis, in tiles if the axis is
    long.
    """
    limit = max(reduction.builder.target.budget.row_bytes // reduction.acc.dtype.itemsize, 1)
    tile = extent if extent <= limit else _largest_divisor_or_max_tile_size(extent, limit)
    return _reduce_with_tiles_of_accumulators(reduction, var, extent, tile)


def _reduce_with_tiles_of_accumulators(reduction: _ReductionParts, var: Var, extent: Operand, tile: int) -> Stmt:
    """Return a reduction with a row of `tile` accumulators along an output axis; the last tile may be
    shorter.
    """
    row = reduction.builder.allocate_scratch(f"{reduction.acc.name}_row", reduction.acc.dtype, tile, private=True)
    outer = Var(var.name)
    is_whole = isinstance(extent, int) and extent % tile == 0
    width = as_expr(tile) if is_whole else minimum(tile, as_expr(extent) - outer)
    along = partial(_loop_over_accumulator_row, reduction.acc, row, var, outer, width)
    init = along(Assign(reduction.acc, reduction.start))
    update = _apply_to_innermost_body_or_loop(reduction.update, along)
    return forall(outer, extent, Block((init, update, along(Block(reduction.finish)))), step=tile)


def _loop_over_accumulator_row(
    accumulator: Var, row: Buffer, var: Var, first_value: Expr, width: Operand, body: Stmt, first: Operand = 0
) -> Stmt:
    """Return a loop over `width` values of a variable from `first_value` on, each with its own
    accumulator in a row, from element `first` on.
    """
    lane = Var("l")
    accumulator_of_lane = Load(row, lane + first)
    mapping = {var: first_value + lane, accumulator: accumulator_of_lane}
    return forall(lane, width, rename_declared_vars(_replace_vars_with_memory(body, mapping)))


def _largest_divisor_or_max_tile_size(extent: int, max_size: int) -> int:
    """Return a tile size for an axis: its largest divisor up to a limit, or the limit itself if all
    divisors are small.
    """
    best = max(d for d in range(1, max_size + 1) if extent % d == 0)
    return best if best >= max_size // 4 else max_size


def _apply_to_innermost_body_or_loop(stmt: Stmt, wrap: Callable[[Stmt], Stmt], target_loop: For | None = None) -> Stmt:
    """Apply `wrap` to the body of a perfect loop nest or, if `target_loop` is given, to that loop
    of the nest.
    """
    if isinstance(stmt, For) and stmt is not target_loop:
        return replace(stmt, body=_apply_to_innermost_body_or_loop(stmt.body, wrap, target_loop))
    return wrap(stmt)


def _replace_vars_with_memory(stmt: Stmt, mapping: dict[Var, Expr]) -> Stmt:
    """Return `stmt` with variables replaced; an assignment to a variable that is now in memory
    becomes a store.
    """
    if isinstance(stmt, Assign) and isinstance(load := mapping.get(stmt.var), Load):
        return Store(load.buffer, load.index, substitute(stmt.value, mapping))
    return rebuild_stmt(stmt, lambda s: _replace_vars_with_memory(s, mapping), lambda e: substitute(e, mapping))


def _reduce_with_several_accumulators(
    reduction: _ReductionParts, inner: For, extent: Operand, lanes: int, most: int
) -> Stmt:
    """Return a reduction with several accumulators along the contiguous reduction axis, combined in
    pairs at the end; `most` is the largest value of its extent.
    """
    width = lanes * (4 if most >= 8 * lanes else 1)
    buffer = reduction.builder.allocate_scratch(f"{reduction.acc.name}_part", reduction.acc.dtype, width, private=True)
    whole: Operand
    rest: Operand
    if isinstance(extent, int):
        whole, rest = extent - extent % width, extent % width
        if reduction.op not in ("add", "mul"):  # min, max, and, or may combine an element twice
            rest = -(-rest // lanes) * lanes
    else:
        whole = as_expr(extent) // width * width
        rest = as_expr(extent) - whole

    along = partial(_loop_over_accumulator_row, reduction.acc, buffer, inner.var)
    chunk = Var(inner.var.name)
    most_chunks = For(chunk, whole, along(chunk, width, inner.body), step=width, kind="reduction")
    chunks = Block((most_chunks, along(as_expr(extent) - rest, rest, inner.body)))
    init = along(chunk, width, Assign(reduction.acc, reduction.start))
    folds: list[Stmt] = []
    while width > 1:
        width //= 2
        lane = Var("l")
        pair = binary(reduction.op, Load(buffer, lane), Load(buffer, lane + width))
        folds.append(forall(lane, width, Store(buffer, lane, pair)))
    declare = Declare(reduction.acc, Load(buffer, as_expr(0)))
    return Block(
        (
            init,
            _apply_to_innermost_body_or_loop(reduction.update, lambda _: chunks, inner),
            *folds,
            declare,
            *reduction.finish,
        )
    )
