# SPDX-License-Identifier: Apache-2.0
"""GPU schedule of a contraction: each thread block computes a tile of the output, with operand
tiles in shared memory.

    for b in 0..98 block: for t in 0..256 thread:                    # 64 x 64 elements, 4 x 4 of each thread
        acc[4 x 4] = 0
        even[16 x 64 + 16 x 64] = async the first pieces of data and weights
        for pair in 0..18:
            wait; sync; odd = async the next ones; acc += products of even
            wait; sync; even = async the next ones, if any; acc += products of odd
        y = what is inside of acc

The rows of the product are the axes of the data alone, the columns those of the weights alone; axes
of both are distributed over blocks. Shared memory is double-buffered: the next pieces of the
operands are copied asynchronously while the current ones are multiplied. Out-of-range elements are
zeros in shared memory, so all threads run all steps.

If there are few tiles, tiles are smaller, and several groups of threads compute one tile: each
multiplies its part of a piece, and their sums, which reuse the shared memory of the pieces, are
added in the order of the groups. If there are still too few blocks, several blocks compute one tile
(split-K): each reduces a part, and the last block to finish adds their sums, which are in global
memory, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import (
    BYTES_PER_DOT,
    INSTRUCTIONS,
    Block,
    Buffer,
    Declare,
    Expr,
    For,
    Gpu,
    Load,
    Ranges,
    Target,
    Var,
    linear_form,
    stmts_run_by_last_gpu_block_of_group,
    substitute_in_stmt,
    te,
)
from aotc.tir.expr import Binary, Const, all_of, call, const, substitute, walk_once
from aotc.tir.instruction_statements import block_barrier, wait_for_copies
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.contraction_index_analysis import (
    ContractionAnalysis,
    analyze_operand_dims_and_output_axes,
    are_weights_known_finite,
    axis_values_at_row_major_number,
    iteration_space_point_count,
    neighbor_distance_along_last_axis,
    variables_of_dimensions,
)
from aotc.tir.schedule.contraction.contraction_operand import ContractionOperand
from aotc.tir.schedule.contraction.gpu_block_tile_shape import BlockTile, ThreadBuffers
from aotc.tir.schedule.contraction.gpu_dp4a import (
    needs_dp4a,
    operand_loaded_in_4_byte_words,
    split_reduction_steps_by_4_for_dp4a,
)
from aotc.tir.schedule.contraction.gpu_split_reduction import gpu_split_reductions
from aotc.tir.schedule.contraction.gpu_tensor_cores import WarpTile
from aotc.tir.schedule.contraction.shared_memory_copies import (
    ELEMENTS_PER_MEMORY_SECTOR,
    ReductionOrder,
    TileOperand,
    VectorPiece,
)
from aotc.tir.schedule.contraction.tiling_completion import TilingCandidate
from aotc.tir.schedule.contraction.tiling_cost import block_tile_cycles
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn, accumulate_all_products
from aotc.tir.stmt import Assign, If, Stmt, Store, loop_nest

#: Classes of tiles by the level of their micro-kernel.
_TILE_CLASSES: Final[Mapping[str, type[BlockTile]]] = {"threads": BlockTile, "warp": WarpTile}


@frozen(eq=False)
class GpuTilingCandidate(TilingCandidate):
    """One way to compute a contraction on a GPU.

    build_nest    function that returns the loop nest
    """

    build_nest: Callable[[], ContractionNest]

    def build_loop_nests(self) -> ContractionNest:
        return self.build_nest()


def gpu_tiling_candidates(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target
) -> list[TilingCandidate]:
    """Return every way to compute `contraction`, a whole kernel, by thread blocks of a GPU, each with
    its cost in cycles; none if the contraction does not fit these schedules.

    contraction, a, b, store, target    as for `build_contraction_nest`
    """
    gpu = target.gpu
    if gpu is None or target.ordered or 0 in (contraction.size, *(n for _, n in contraction.reduce_axes)):
        return []
    whole, (contraction, places) = contraction, _split_axes_used_in_quotients(contraction)
    grouped = split_reduction_steps_by_4_for_dp4a(contraction)
    if grouped is None and needs_dp4a(contraction):
        return []
    analysis = grouped[0] if grouped is not None else analyze_operand_dims_and_output_axes(contraction, False)
    if analysis is None or not analysis.c.reduce_axes:
        return []
    # padding would yield NaN where zero meets an infinity
    dims = analysis.b if are_weights_known_finite(contraction) else (*analysis.a, *analysis.b)
    staged = contraction.dtype.is_float and not all(dim.inside for dim in dims)
    store = _store_function_recomputing_nan_elements(whole, a, b, store) if staged else store
    is_extended = iteration_space_point_count(contraction.axes) > contraction.size
    store = _store_function_for_inside_elements(whole, store) if is_extended else store
    columns = [axis for axis in analysis.channel if axis[0] not in variables_of_dimensions(analysis.a)]
    sides = (
        ContractionOperand(a, analysis.a, analysis.pixel, contraction.fill),
        ContractionOperand(b, analysis.b, columns),
    )
    if grouped is not None:
        left, right = (operand_loaded_in_4_byte_words(side, analysis.ranges, grouped[1]) for side in sides)
        sides = left, right
    if min(side.exclusive_output_point_count for side in sides) < gpu.costs.min_gemm_side:
        reductions = gpu_split_reductions(analysis, sides, gpu)
        return [
            GpuTilingCandidate(
                reduction.estimated_cycles(gpu), reduction.name, partial(reduction.build_loop_nest, places, store)
            )
            for reduction in reductions
        ]
    kernels = _block_tile_kernels(whole, group=1 if grouped is None else BYTES_PER_DOT, target=target)
    return [
        GpuTilingCandidate(
            block_tile_cycles(tile, *_product_extents(analysis.c, sides), gpu),
            tile.name,
            partial(_block_tile_loop_nest, analysis, sides, places, store, tile),
        )
        for tile in _block_tiles_that_fit(analysis.c, sides, kernels, staged, gpu)
    ]


def _block_tile_kernels(contraction: te.Contraction, group: int, target: Target) -> list[MicroKernel]:
    """Return the micro-kernels of a GPU that multiply the operands of a contraction in groups of
    `group` steps.

    Where some are made for the types of the operands, those for all types are left out: tensor cores
    round float sums differently, so rounding depends on types only.
    """
    assert target.gpu is not None
    types = contraction.a.dtype, contraction.b.dtype
    oldest = min(target.gpu.architectures)
    kernels = [
        kernel
        for kernel in target.micro_kernels
        if kernel.group == group
        and kernel.accepts_types(*types, contraction.dtype)
        and (not kernel.multiply or INSTRUCTIONS[kernel.multiply_name(*types)].least <= oldest)
    ]
    return [kernel for kernel in kernels if kernel.operands] or kernels


def _product_extents(
    contraction: te.Contraction, sides: tuple[ContractionOperand, ContractionOperand]
) -> tuple[int, int, int, int]:
    """Return the rows, columns, number and reduction steps of the matrix products of a contraction."""
    rows, columns = (side.exclusive_output_point_count for side in sides)
    batch = iteration_space_point_count(contraction.axes) // (rows * columns)
    return rows, columns, batch, iteration_space_point_count(contraction.reduce_axes)


def _block_tiles_that_fit(
    contraction: te.Contraction,
    sides: tuple[ContractionOperand, ContractionOperand],
    kernels: Sequence[MicroKernel],
    staged: bool,
    gpu: Gpu,
) -> Iterator[BlockTile]:
    """Yield the tiles of micro-kernels that fit in shared memory, each for one and for several blocks
    per tile.
    """
    for kernel in kernels:
        for shape in kernel.blocks:
            tile = _TILE_CLASSES[kernel.level](shape, kernel, staged)
            if tile.fits_shared_memory(contraction.dtype, gpu):
                yield from tile.tile_variants_by_blocks_per_output_tile(*_product_extents(contraction, sides), gpu)


def _split_axes_used_in_quotients(contraction: te.Contraction) -> tuple[te.Contraction, Sequence[Expr]]:
    """Split axes o that the data's indices use as (o + 3) // 8 into two axes.

    Return the contraction with the new axes, and its former axes as expressions of them. The new
    axes together may exceed the extent of the former axis.
    """
    axes: list[te.Axis] = []
    places: dict[Var, Expr] = {}
    for var, extent in contraction.axes:
        nodes = (n for e in contraction.a_index for n in walk_once(e) if isinstance(n, Binary) and n.op == "floordiv")
        quotients = ((n.b, linear_form(n.a, {})) for n in nodes)
        sizes = (int(b.value) for b, form in quotients if form.terms == {var: 1} and isinstance(b, Const))
        size = next((item for item in sizes if item > 1), 1)
        group, item = Var(var.name), Var(var.name)
        axes += [(group, -(-extent // size)), (item, size)] if size > 1 else [(var, extent)]
        places[var] = group * size + item if size > 1 else var
    a_index, b_index = (
        tuple(substitute(e, places) for e in indices) for indices in (contraction.a_index, contraction.b_index)
    )
    return replace(contraction, axes=tuple(axes), a_index=a_index, b_index=b_index), tuple(places.values())


def _store_function_for_inside_elements(contraction: te.Contraction, store: StoreFn) -> StoreFn:
    """Return a store function that skips elements outside of the output."""

    def store_if_inside(indices: tuple[Expr, ...], value: Expr) -> Stmt:
        index_vars = tuple(Var(var.name) for var, _ in contraction.axes)
        tests = (var < extent for var, (_, extent) in zip(index_vars, contraction.axes, strict=True))
        return Block((*map(Declare, index_vars, indices), If(all_of(*tests), store(index_vars, value))))

    return store_if_inside


def _store_function_recomputing_nan_elements(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn
) -> StoreFn:
    """Return a store function that recomputes NaN elements without the padding, as NaN may stem
    from infinity times zero.
    """

    def store_recomputing_nan(indices: tuple[Expr, ...], value: Expr) -> Stmt:
        total = Var("exact", contraction.dtype)
        names = {var: at for (var, _), at in zip(contraction.axes, indices, strict=True)}
        again = substitute_in_stmt(accumulate_all_products(contraction, a, b, total), names)
        again = Block((Assign(total, const(0, contraction.dtype)), again))
        return Block((Declare(total, value), If(call("isnan", total), again), store(indices, total)))

    return store_recomputing_nan


def _reduction_group_and_thread_within_group(tile: BlockTile, thread: Expr) -> tuple[Expr, Expr]:
    """Return the number of a thread's group in its block, and the number of the thread in its
    group.
    """
    if tile.shape.reduction_groups == 1:
        return const(0), thread
    return thread // tile.threads_per_reduction_group, thread % tile.threads_per_reduction_group


def _block_tile_loop_nest(
    analysis: ContractionAnalysis,
    row_and_column_operands: tuple[ContractionOperand, ContractionOperand],
    output_indices: Sequence[Expr],
    store: StoreFn,
    tile: BlockTile,
) -> ContractionNest:
    """Return the loop nest of a contraction for one tile shape.

    row_and_column_operands    operands of rows and of columns
    output_indices             the output indices as expressions of the contraction's axes
    """
    c, block, (a, b), splits = analysis.c, Var("b"), row_and_column_operands, tile.shape.splits
    number_var, place = Var("number"), Var("part")
    number, part = (number_var, place) if splits > 1 else (block, const(0))
    outer = [axis for axis in c.axes if axis not in (*a.axes, *b.axes)]
    down = -(-a.exclusive_output_point_count // tile.tile_rows)
    across = -(-b.exclusive_output_point_count // tile.tile_columns)
    names = axis_values_at_row_major_number(outer, number // (down * across))
    steps = ReductionOrder.choose_reduction_order(
        c, tile.shape.depth, tile.threads_per_block, names, neighbor_distance_along_last_axis(b.dims, b.axes) == 1
    )
    thread, along = steps.thread, c.axes[-1] in b.axes and c.axes[-1][1] >= ELEMENTS_PER_MEMORY_SECTOR
    group, member = _reduction_group_and_thread_within_group(tile, thread)
    left, right, size = _tile_operands_and_shared_element_count(
        analysis, row_and_column_operands, tile, steps, member, along, (number // across % down, number % across)
    )
    pieces, sums = _allocate_shared_piece_and_sum_buffers(tile, left.registers.dtype, size, c.dtype)
    acc = Buffer("acc", c.dtype, tile.shape.high * tile.shape.wide, "stack", 16)
    operands = tile.operand_register_arrays(acc)

    def multiply_pieces(shared: Buffer) -> Stmt:
        return tile.multiply_operand_pieces_in_shared_memory(
            ThreadBuffers(shared, operands, acc), left, right, member, group
        )

    share = steps.piece_count // splits
    walked = _SoftwarePipeline((left, right), pieces, multiply_pieces, steps, part * share, share)
    grid = iteration_space_point_count(outer) * down * across
    parts = Buffer("parts", c.dtype, grid * splits * tile.tile_elements, "workspace", 64)
    partial = _PartialSums(tile, along, thread, parts)
    store_tile_element = _store_function_for_tile_element(left, right, steps, output_indices, store)
    done = store_tile_element if number is block else partial.store_function_for_partial_sum(block)
    copy_barrier: list[Stmt] = [wait_for_copies(0), block_barrier()] if sums is pieces[0] and share != 2 else []
    body: list[Stmt] = [
        loop_nest([(clear := Var("i"), acc.size)], Store(acc, clear, const(0, c.dtype)), "independent"),
        *walked.double_buffered_multiply_stmts(),
        *copy_barrier,
        _add_reduction_group_sums_and_store(acc, sums, left, right, along, tile, thread, done),
    ]
    counts = Buffer("counts", DType("int32"), grid, "workspace", 64)
    if splits > 1:
        rest = partial.add_partial_sums_and_store(number * splits, splits, store_tile_element)
        registers = Declare(number_var, block // splits), Declare(place, block % splits)
        body = [*registers, *body, *stmts_run_by_last_gpu_block_of_group(counts, number, splits, rest)]
    stmt = For(block, grid * splits, For(thread, tile.threads_per_block, Block(body), kind="thread"), kind="block")
    shared = (*pieces[: min(share, 2)], *([sums] if sums.size and sums is not pieces[0] else []))
    staging = (side.registers for side in (left, right) if not side.can_copy_asynchronously)
    return ContractionNest(stmt, (acc, *staging, *operands), (parts, counts) if splits > 1 else (), shared)


def _allocate_shared_piece_and_sum_buffers(
    tile: BlockTile, operand_dtype: DType, piece_elements: int, sum_dtype: DType
) -> tuple[tuple[Buffer, Buffer], Buffer]:
    """Return the shared-memory buffers of a thread block: two for pieces of both operands, and one
    for the sums of the thread groups.

    The sums reuse the first buffer of pieces if they have the same type, so threads must be done
    with the pieces before they store sums.
    """
    over = tile.shared_elements_for_thread_group_sums if operand_dtype == sum_dtype else 0
    even = Buffer("even", operand_dtype, max(piece_elements, over), "shared", 16)
    odd = Buffer("odd", operand_dtype, piece_elements, "shared", 16)
    sums = even if over else Buffer("sums", sum_dtype, tile.shared_elements_for_thread_group_sums, "shared", 16)
    return (even, odd), sums


def _store_function_for_tile_element(
    left: TileOperand, right: TileOperand, steps: ReductionOrder, output_indices: Sequence[Expr], store: StoreFn
) -> _StoreElement:
    """Return a function (row, column, value) that stores an element of a tile, if it is inside the
    output.

    output_indices    the output indices as expressions of the contraction's axes
    """
    a, b = left.whole, right.whole

    def store_tile_element(row_in_tile: Expr, column_in_tile: Expr, value: Expr) -> Stmt:
        row, column = Var("row"), Var("column")
        names = {
            **steps.names,
            **axis_values_at_row_major_number(a.axes, row),
            **axis_values_at_row_major_number(b.axes, column),
        }
        body = store(tuple(substitute(place, names) for place in output_indices), value)
        tests = [
            *a.in_bounds_condition_if_needed(row, left.tile_rows_or_columns),
            *b.in_bounds_condition_if_needed(column, right.tile_rows_or_columns),
        ]
        registers = (
            Declare(row, left.tile * left.tile_rows_or_columns + row_in_tile),
            Declare(column, right.tile * right.tile_rows_or_columns + column_in_tile),
        )
        return Block((*registers, If(all_of(*tests), body) if tests else body))

    return store_tile_element


def _tile_operands_and_shared_element_count(
    analysis: ContractionAnalysis,
    row_and_column_operands: tuple[ContractionOperand, ContractionOperand],
    tile: BlockTile,
    steps: ReductionOrder,
    thread_in_group: Expr,
    neighbors_along_columns: bool,
    tile_row_and_column: tuple[Expr, Expr],
) -> tuple[TileOperand, TileOperand, int]:
    """Return both operands of a GPU tile, and the number of elements of both in shared memory.

    thread_in_group            index of the thread in its group
    neighbors_along_columns    True if neighboring threads have neighboring columns
    tile_row_and_column        index of the block's tile along rows and along columns
    """
    dtype, (a, b), sizes = (
        tile.operand_dtype(analysis.c.dtype),
        row_and_column_operands,
        (tile.tile_rows, tile.tile_columns),
    )
    register_sizes = [size * tile.shape.depth // tile.threads_per_block for size in sizes]
    layouts = [
        _vector_copy_and_is_reduction_contiguous(half, steps, analysis.ranges, tile, analysis.c.dtype, n)
        for half, n in zip(row_and_column_operands, register_sizes, strict=True)
    ]
    (high, left), (wide, right) = tile.shared_memory_pitches_and_sizes(layouts[0][1], layouts[1][1])
    x, w = (Buffer(name, dtype, size, "stack", 16) for name, size in zip("xw", register_sizes, strict=True))
    rows, cols = tile.functions_to_row_and_column_of_thread(thread_in_group, neighbors_along_columns)
    sides = (
        TileOperand(a, 0, x, tile.shape.high, tile.shape.rows, rows, high, tile_row_and_column[0], *layouts[0]),
        TileOperand(b, left, w, tile.shape.wide, tile.shape.columns, cols, wide, tile_row_and_column[1], *layouts[1]),
    )
    return *sides, left + right


def _vector_copy_and_is_reduction_contiguous(
    operand: ContractionOperand, steps: ReductionOrder, ranges: Ranges, tile: BlockTile, dtype: DType, operand_rows: int
) -> tuple[VectorPiece | None, bool]:
    """Return the vector copy that an operand permits (None for single elements) and the layout of
    the operand.

    The layout is True if the contiguous axis is that of the reduction steps.
    """
    ways = [(operand.axes, False)]
    if tile.allows_reduction_contiguous_layout:
        ways.append((steps.axes[-1:] if steps.does_piece_depth_divide_last_axis else steps.axes, True))
    for axes, deep in ways:
        piece = VectorPiece.find_aligned_16_byte_vectors(operand, axes, ranges, tile.operand_dtype(dtype))
        if piece is not None and (operand_rows % piece.lanes == 0 or not deep):
            return piece, deep
    return None, False


@frozen(eq=False)
class _SoftwarePipeline:
    """The software pipeline of a thread block: copy the next operand pieces to shared memory while
    multiplying the current.

    sides          both operands
    pieces         two buffers in shared memory
    product        returns the multiplication of the pieces in a buffer
    steps          order of the reduction
    first, count   first piece, and number of pieces
    """

    sides: tuple[TileOperand, TileOperand]
    pieces: tuple[Buffer, Buffer]
    product: Callable[[Buffer], Stmt]
    steps: ReductionOrder
    first: Expr
    count: int

    def double_buffered_multiply_stmts(self) -> list[Stmt]:
        """Return the statements for all operand pieces; the loop processes two at a time, one in
        each buffer.
        """
        (even, odd), pair = self.pieces, Var("pair")
        stmts = [
            self.start_operand_copies_to_shared_memory(even, self.first),
            self.store_register_copies_to_shared_memory(even),
        ]
        if self.count > 1:
            has_next_pair = pair < self.count // 2 - 1 if self.count % 2 == 0 else None
            both = (
                *self.multiply_piece_and_prefetch_next(pair * 2, even, odd),
                *self.multiply_piece_and_prefetch_next(pair * 2 + 1, odd, even, has_next_pair),
            )
            stmts.append(For(pair, self.count // 2, Block(both)))
        return stmts + (self.multiply_piece_and_prefetch_next(const(self.count - 1), even) if self.count % 2 else [])

    def multiply_piece_and_prefetch_next(
        self,
        piece_number: Expr,
        current_buffer: Buffer,
        next_buffer: Buffer | None = None,
        has_next: Expr | None = None,
    ) -> list[Stmt]:
        """Return the statements that multiply operand piece `piece_number` in buffer
        `current_buffer`, and copy the next one to `next_buffer`.

        `has_next` is the condition under which there is a next piece; None for always.
        """
        waits: list[Stmt] = [wait_for_copies(0)] if any(side.can_copy_asynchronously for side in self.sides) else []
        stmts = [*waits, block_barrier(), self.product(current_buffer)]
        if next_buffer is not None:
            begun, ended = (
                self.start_operand_copies_to_shared_memory(next_buffer, self.first + piece_number + 1),
                self.store_register_copies_to_shared_memory(next_buffer),
            )
            begun, ended = (begun, ended) if has_next is None else (If(has_next, begun), If(has_next, ended))
            stmts = [*waits, block_barrier(), begun, self.product(current_buffer), ended]
        return stmts

    def start_operand_copies_to_shared_memory(self, shared: Buffer, step: Expr) -> Stmt:
        """Return the statements that start the copies of both operands' pieces to shared memory."""
        return Block(side.start_piece_copy(shared, step, self.steps) for side in self.sides)

    def store_register_copies_to_shared_memory(self, shared: Buffer) -> Stmt:
        """Return the statements that store pieces of both operands to shared memory, if they go
        through registers.
        """
        return Block(side.store_piece_from_registers(shared, self.steps) for side in self.sides)


#: Function (row, column, value) that returns the statement for an element, with row and column
#: relative to its tile.
_StoreElement = Callable[[Expr, Expr, Expr], Stmt]


def _store_loops_over_thread_accumulators(
    acc: Buffer, left: TileOperand, right: TileOperand, tile: BlockTile, store_element: _StoreElement
) -> Stmt:
    """Return loops that apply `element(row, column, value)` to each accumulator of a thread."""
    down, i, across, j = (Var(name) for name in ("down", "i", "across", "j"))
    store_stmt = store_element(
        left.own(down, i), right.own(across, j), Load(acc, tile.accumulator_index(down, i, across, j))
    )
    adjacent = tile.kernel.adjacent
    body = loop_nest([(across, tile.shape.wide // adjacent), (j, adjacent)], store_stmt)
    return loop_nest([(down, tile.shape.high // adjacent), (i, adjacent)], body)


def _add_reduction_group_sums_and_store(
    acc: Buffer,
    sums: Buffer,
    left: TileOperand,
    right: TileOperand,
    is_row_major: bool,
    tile: BlockTile,
    thread: Var,
    store_element: _StoreElement,
) -> Stmt:
    """Return the statements that add the sums of all thread groups, through shared memory if
    needed, and finish the elements.
    """
    if not sums.size:
        return _store_loops_over_thread_accumulators(acc, left, right, tile, store_element)
    parts = _PartialSums(tile, is_row_major, thread, sums)
    keep = parts.store_function_for_partial_sum(thread // tile.threads_per_reduction_group)
    rest = parts.add_partial_sums_and_store(const(0), tile.shape.reduction_groups, store_element)
    return Block((_store_loops_over_thread_accumulators(acc, left, right, tile, keep), block_barrier(), rest))


@frozen(eq=False)
class _PartialSums:
    """Partial sums of tiles in memory, tile after tile; stored row by row if `wide`, else column by
    column.
    """

    tile: BlockTile
    wide: bool
    thread: Expr
    sums: Buffer

    @property
    def contiguous_partial_sum_axis_extent(self) -> int:
        """The extent of the contiguous axis of a tile's partial sums."""
        return self.tile.tile_columns if self.wide else self.tile.tile_rows

    def store_function_for_partial_sum(self, partial_sum_number: Expr) -> _StoreElement:
        """Return a function (row, column, value) that stores an element of partial sum
        `partial_sum_number` of a tile.
        """

        def store_partial_sum(row: Expr, column: Expr, value: Expr) -> Stmt:
            place = (
                row * self.contiguous_partial_sum_axis_extent + column
                if self.wide
                else column * self.contiguous_partial_sum_axis_extent + row
            )
            return Store(self.sums, partial_sum_number * self.tile.tile_elements + place, value)

        return store_partial_sum

    def add_partial_sums_and_store(self, first_partial_sum: Expr, count: int, store_element: _StoreElement) -> Stmt:
        """Return a loop that adds `count` partial sums of a tile from number `first_partial_sum`
        on, in order, and finishes the elements.
        """
        turn, other, total = Var("turn"), Var("group"), Var("total", self.sums.dtype)
        size, threads = self.tile.tile_elements, self.tile.threads_per_block
        place = turn * threads + self.thread
        m, n = place // self.contiguous_partial_sum_axis_extent, place % self.contiguous_partial_sum_axis_extent
        m, n = (m, n) if self.wide else (n, m)
        add = Assign(total, total + Load(self.sums, (first_partial_sum + other) * size + place))
        add_loops = [For(other, count, add, begin=1)] if count > 1 else []
        stmts = (
            Declare(total, Load(self.sums, first_partial_sum * size + place)),
            *add_loops,
            store_element(m, n, total),
        )
        return For(turn, size // threads, Block(stmts))
