# SPDX-License-Identifier: Apache-2.0
"""Generate the loop nest of a tiling: loops over tiles, and in each tile the unrolled inner kernel.

A tile is a set of named accumulators acc[i][j]: i counts vectors of the operand `x` (loaded as
vectors), j elements of the operand `offsets` (broadcast).  For a convolution with packed weights
and rows of 56 columns:

    for tile: acc00 = 0 ...; for ic: for kh: for kw: { w0 = load; w1 = load; y = broadcast; acc00 += w0 * y; ... }

Accumulators are separate variables, as C compilers keep an array of vectors in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import Final, TypeAlias

from aotc.tir import Buffer, Const, Expr, Var, all_of, as_expr, substitute, written_buffers
from aotc.tir.expr import loads_in
from aotc.tir.schedule.contraction.arm_multi_group_dot_steps import (
    multi_group_dot_step,
    reorder_matrix_multiply_results,
)
from aotc.tir.schedule.contraction.contraction_index_analysis import OperandDimension
from aotc.tir.schedule.contraction.epilogue import Accumulators, EpilogueBuffers, finish_and_store_tile
from aotc.tir.schedule.contraction.register_tiling_types import MultiplyAddStep, RegisterTile, RegisterTiling
from aotc.tir.schedule.contraction.tile_loops import OutputTile, loops_over_tiles
from aotc.tir.schedule.contraction.tile_segments import TileAxis
from aotc.tir.simplify import linear_form, simplify
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, all_exprs_in_stmt, bind_to_new_register, loop_nest

#: Accumulator, element of `x` and element of `offsets` of each product.
_ProductList: TypeAlias = "list[tuple[Var, Expr, Expr]]"
#: Largest number of accumulators of a tile whose taps are fully unrolled.
MAX_UNROLLED_TILE_ACCUMULATORS: Final = 8


def build_tiled_loop_nest(tiling: RegisterTiling) -> tuple[Stmt, tuple[Buffer, ...]]:
    """Return the whole loop nest of a tiling, and the stack buffers through which finished tiles
    are stored.
    """
    spill = EpilogueBuffers.allocate_epilogue_buffers(tiling)

    def register_tile_stmts(tile: OutputTile) -> Stmt:
        return _register_tile_stmts(RegisterTile.make_register_tile(tiling, tile.starts, tile.segments), spill)

    nest = loops_over_tiles(tiling.levels, tiling.copies, register_tile_stmts)
    used = written_buffers(nest)
    return nest, tuple(b for b in (spill.buffer, spill.transposed) if b in used)


def estimated_multiply_add_code_size(tiling: RegisterTiling) -> int:
    """Estimate the size of a tiling's code: the multiply-adds of each distinct tile, for each part
    of its taps.
    """
    total, reduction = 0, tiling.reduction
    unrolled = math.prod(extent for _, extent in reduction.unrolled)
    for chosen in product(*(axis.segments for axis in tiling.levels)):
        segments = dict(zip(tiling.levels, chosen, strict=True))
        tile = RegisterTile.make_register_tile(tiling, {axis: as_expr(0) for axis in segments}, segments)
        accs = len(tile.xs) * len(tile.ys)
        few = accs * reduction.splits <= MAX_UNROLLED_TILE_ACCUMULATORS and not reduction.ordered
        taps = [n for _, n in reduction.taps] if few else map(len, _tap_ranges_of_constant_in_range_set(tile))
        total += accs * unrolled * math.prod(taps)
    return total


def _register_tile_stmts(tile: RegisterTile, epilogue_buffers: EpilogueBuffers) -> Stmt:
    """Return the statements of a register tile: clear the accumulators, reduce, finish and store
    the elements.
    """
    step = tile.tiling.product
    pairs = [(i, j) for j in range(len(tile.ys)) for i in range(len(tile.xs))]
    accs: Accumulators = [
        {(i, j): Var(f"acc{i}_{j}{name}", step.dtype, step.lanes) for i, j in pairs}
        for name in ("", *"bcdefgh")[: tile.tiling.reduction.splits]
    ]
    zeros = (Declare(split[pair], step.initial_zero_of_accumulator) for pair in pairs for split in accs)
    ends = finish_and_store_tile(tile, accs, epilogue_buffers)
    if tile.tiling.accumulate is None:
        return Block(
            (*zeros, _reduction_over_tap_ranges(tile, accs), *reorder_matrix_multiply_results(tile, accs), *ends)
        )
    return Block((*zeros, *_interleave_steps_with_early_stores(tile.tiling.accumulate(tile, accs), ends)))


def _interleave_steps_with_early_stores(steps: Sequence[Stmt], stores: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield reduction steps, each followed by the stores that need no later step, which frees their
    accumulators early.
    """
    last = {s.var: k for k, s in enumerate(steps) if isinstance(s, Assign)}
    waiting: list[list[Stmt]] = [[] for _ in range(len(steps) + 1)]
    for end in stores:
        used = [last[n] for n in all_exprs_in_stmt(end) if isinstance(n, Var) and n in last]
        waiting[max(used) if used else -1].append(end)
    for k, step in enumerate(steps):
        yield step
        yield from waiting[k]
    yield from waiting[-1]


def _reduction_over_tap_ranges(tile: RegisterTile, accumulators: Accumulators) -> Stmt:
    """Return the reduction of a register tile, with one loop nest for each range of kernel offsets
    (taps).

    Within a range, the set of products inside the data is constant. Ranges are nests of their own,
    not statements in a row, unless the tile is small: otherwise a C compiler would keep common
    broadcasts in registers and spill accumulators.
    """
    taps = tile.tiling.reduction.taps
    if sum(map(len, accumulators)) <= MAX_UNROLLED_TILE_ACCUMULATORS and not tile.tiling.reduction.ordered:
        points = list(product(*(range(extent) for _, extent in taps)))
        return _reduction_loops(tile, accumulators, [[range(k, k + 1) for k in at] for at in points], {})
    stmts: list[Stmt] = []
    for runs in product(*_tap_ranges_of_constant_in_range_set(tile)):
        fixed = {var: as_expr(run.start) for (var, _), run in zip(taps, runs, strict=True) if len(run) == 1}
        body = _reduction_loops(tile, accumulators, [runs], fixed)
        for (var, _), run in reversed(list(zip(taps, runs, strict=True))):
            body = body if len(run) == 1 else For(var, run.stop, body, begin=run.start, kind="reduction")
        stmts.append(body)
    return Block(stmts)


def _tap_ranges_of_constant_in_range_set(tile: RegisterTile) -> list[list[range]]:
    """Return the values of each tap (kernel offset) cut into runs for which the set of positions in
    range is constant.

    If an inner tap is cut and the summation order matters, outer taps run one by one.
    """
    reduction = tile.tiling.reduction
    runs = [_split_tap_at_border_changes(tile, var, extent) for var, extent in reduction.taps]
    if not reduction.ordered:
        return runs
    cut = max((k for k, tap_runs in enumerate(runs) if len(tap_runs) > 1), default=0)
    single = ([range(k, k + 1) for k in range(n)] for _, n in reduction.taps[:cut])
    return [*single, *runs[cut:]]


def _reduction_loops(
    tile: RegisterTile,
    accumulators: Accumulators,
    tap_ranges: Sequence[Sequence[range]],
    single_tap_values: Mapping[Var, Expr],
) -> Stmt:
    """Return the reduction loops around the products for some ranges of taps, guarded where data
    may be out of range.

    tap_ranges           ranges of the taps (kernel offsets)
    single_tap_values    the values of taps with one value
    """
    reduction = tile.tiling.reduction
    tests: list[Expr] = []
    for dim in reduction.guards:
        index = simplify(substitute(dim.index.to_expr(), {**tile.origin, **single_tap_values}), {})
        tests += [index >= 0, index < dim.extent]
    condition = all_of(*tests)

    def multiply_adds_of_tap_ranges(is_in_range: bool) -> Stmt:
        multiply_step = tile.tiling.product
        sorts = (
            multiply_step.lanes == multiply_step.kernel.group == len(tile.xs) == 1 and multiply_step.dtype.is_integer
        )
        products: _ProductList | None = [] if sorts else None
        stmts = [
            stmt
            for runs in tap_ranges
            for stmt in _multiply_adds_of_taps(tile, accumulators, runs, is_in_range, products)
        ]
        return Block((*stmts, *_order_products_by_data_address(multiply_step, products or ())))

    if isinstance(condition, Const) and not condition.value and not tile.tiling.product.fill:
        return Block(())  # nothing but padding
    if isinstance(condition, Const):
        body = multiply_adds_of_tap_ranges(bool(condition.value))
    else:
        body = If(
            condition,
            multiply_adds_of_tap_ranges(True),
            multiply_adds_of_tap_ranges(False) if tile.tiling.product.fill else None,
        )
    return loop_nest(reduction.looped, body, "reduction")


def _split_tap_at_border_changes(tile: RegisterTile, tap: Var, extent: int) -> list[range]:
    """Cut the range of a tap (kernel offset) at the values where the set of output positions with
    data in range changes.
    """
    reduction = tile.tiling.reduction
    dims = [dim for dim in reduction.borders if tap in dim.variables_of_index]
    other_taps = {var for var, _ in reduction.taps} - {tap}
    if any(dim.variables_of_index & other_taps for dim in dims):
        return [range(k, k + 1) for k in range(extent)]
    alike = groupby(range(extent), lambda k: [is_tile_element_in_range(tile, y, {tap: k}, dims) for y in tile.ys])
    runs = [list(run) for _, run in alike]
    return [range(run[0], run[-1] + 1) for run in runs]


def is_tile_element_in_range(
    tile: RegisterTile, offsets: Mapping[TileAxis, int], tap_values: Mapping[Var, int], dims: Sequence[OperandDimension]
) -> bool:
    """Return True if the data of a tile's element is in range in some dimensions, for given kernel
    offsets (taps).

    The result is equal for all tiles of a segment.
    """
    at: dict[Expr, int] = {axis.var: tile.segments[axis].begin + offset for axis, offset in offsets.items()}
    at.update(tap_values.items())
    return all(dim.is_index_in_range(at) for dim in dims)


def _multiply_adds_of_taps(
    tile: RegisterTile,
    accumulators: Accumulators,
    tap_ranges: Sequence[range],
    is_in_range: bool,
    products: _ProductList | None,
) -> list[Stmt]:
    """Return the multiply-adds for one range of taps (kernel offsets), unrolled; `is_in_range` is
    False if no data is in range.
    """
    reduction = tile.tiling.reduction
    taps = {var: run for (var, _), run in zip(reduction.taps, tap_ranges, strict=True)}
    first = {var: run.start for var, run in taps.items()}
    present: dict[int, Mapping[TileAxis, int] | None] = {}
    for j, y in enumerate(tile.ys):
        here = is_in_range and is_tile_element_in_range(tile, y, first, reduction.borders)
        if here or tile.tiling.product.fill:
            present[j] = y if here else None
    fixed = {var: run.start for var, run in taps.items() if len(run) == 1}
    unrolled = [var for var, _ in reduction.unrolled]
    stmts: list[Stmt] = []
    values = product(*(range(extent) for _, extent in reduction.unrolled))
    points = [{v: as_expr(k) for v, k in (*fixed.items(), *zip(unrolled, at, strict=True))} for at in values]
    groups = tile.tiling.product.groups_per_step
    for number in range(len(points) // groups):
        split, step = accumulators[number % reduction.splits], points[number * groups : (number + 1) * groups]
        if groups > 1:
            stmts += multi_group_dot_step(tile, split, present, step)
        else:
            stmts += _multiply_adds_at_point(tile, split, present, step[0], products)
    return stmts


def _order_products_by_data_address(
    multiply_add_step: MultiplyAddStep, products: Sequence[tuple[Var, Expr, Expr]]
) -> Iterator[Stmt]:
    """Yield products in the order of the data in memory, with each element loaded once, so that few
    registers are live.
    """
    sharing: dict[Expr, list[tuple[Var, Expr]]] = {}
    for acc, x, y in products:
        sharing.setdefault(y, []).append((acc, x))
    places = {y: next((linear_form(load.index, {}).const for load in loads_in(y)), 0) for y in sharing}
    for y in sorted(sharing, key=places.__getitem__):
        stmts: list[Stmt] = []
        value = bind_to_new_register("y", y, stmts) if len(sharing[y]) > 1 and not isinstance(y, Const) else y
        yield from (*stmts, *(multiply_add_step.multiply_add(acc, x, value) for acc, x in sharing[y]))


def _multiply_adds_at_point(
    tile: RegisterTile,
    accumulators: Mapping[tuple[int, int], Var],
    offsets_in_data: Mapping[int, Mapping[TileAxis, int] | None],
    point: Mapping[Var, Expr],
    products: _ProductList | None = None,
) -> list[Stmt]:
    """Return the multiply-adds at a point of the reduction; operands that are used several times
    are loaded into registers.

    offsets_in_data    offsets of the elements of `offsets` that take part, None for elements outside of the
                       data
    products           if given, the products are appended to it instead of returned as statements
    """
    step, stmts = tile.tiling.product, list[Stmt]()
    offsets = tile.xs if offsets_in_data else ()
    xs: list[Expr] = [step.load_operand(step.x, {**tile.operand_var_values(x), **point}, step.lanes) for x in offsets]
    if len(offsets_in_data) > 1:
        xs = [bind_to_new_register("x", value, stmts) for value in xs]
    for j, y in offsets_in_data.items():
        shared = step.padding_value_vector if y is None else None
        if y is not None and not step.along:
            shared = step.load_and_broadcast_data_operand({**tile.operand_var_values(y), **point})
        if shared is not None and len(xs) > 1:
            shared = bind_to_new_register("y", shared, stmts)
        for i, x in enumerate(xs):
            names = {**tile.operand_var_values(offsets[i], y or {}), **point}
            other = step.load_operand(step.y, names, step.lanes) if shared is None else shared
            if products is None:
                stmts.append(step.multiply_add(accumulators[i, j], x, other))
            else:
                products.append((accumulators[i, j], x, other))
    return stmts
