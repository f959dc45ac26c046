# SPDX-License-Identifier: Apache-2.0
"""Tiles of the output that GPU thread blocks compute: their shape, shared memory, registers, inner
multiplication and estimated cost.

    tile = BlockTile(16, 16, 4, 4)      # 16 x 16 threads, each with 4 x 4 accumulators
    tile.tile_rows, tile.tile_columns   # (64, 64)
    tile.estimated_cycles(1024, 1024, 1, 512, gpu)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, For, Gpu, Load, Var
from aotc.tir.schedule.contraction.shared_memory_copies import ThreadElementIndex, TileOperand
from aotc.tir.stmt import Stmt, Store, loop_nest

#: Adjacent accumulators of a thread, whose operands are loaded by one instruction.
_ACCUMULATORS_PER_LOAD: Final = 4
#: Padding elements between rows in shared memory, which reduces bank conflicts when threads store
#: down a column.
_SMEM_PAD_ELEMENTS: Final = 4
#: Accesses to global memory, one after another, from the end of a block's work until it has read from
#: the counter that it is the last block of its tile, and has partial sums of the other blocks.
_LAST_BLOCK_MEMORY_ACCESSES: Final = 3
#: Largest number of blocks that compute one tile.
_MAX_BLOCKS_PER_TILE: Final = 8


@frozen(eq=False)
class ThreadBuffers:
    """Buffers of a GPU thread's multiplication.

    shared     the current piece in shared memory
    operands   registers of both operands
    acc        accumulators
    """

    shared: Buffer
    operands: tuple[Buffer, Buffer]
    acc: Buffer


@frozen
class BlockTile:
    """Shape of the tile of a thread block.

    rows, columns   threads of a group along rows and columns of the product
    high, wide      accumulators of each thread along rows and columns
    groups          groups of threads that split the steps of a piece
    depth           reduction steps of a piece
    quad, gap       adjacent accumulators, and padding elements of rows in shared memory
    splits          blocks that compute one tile
    staged          True if sums go through shared memory even with a single group
    """

    rows: int
    columns: int
    high: int
    wide: int
    reduction_groups: int = 1
    depth: int = 16
    quad: int = _ACCUMULATORS_PER_LOAD
    gap: int = _SMEM_PAD_ELEMENTS
    splits: int = 1
    staged: bool = False

    @property
    def allows_reduction_contiguous_layout(self) -> bool:
        """True if operands in shared memory may have the reduction steps as their contiguous axis."""
        return False

    @property
    def threads_per_reduction_group(self) -> int:
        """Threads of one of the groups that split the reduction steps."""
        return self.rows * self.columns

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        return self.reduction_groups * self.threads_per_reduction_group

    @property
    def tile_rows(self) -> int:
        """Rows of the output tile of a thread block."""
        return self.rows * self.high

    @property
    def tile_columns(self) -> int:
        """Columns of the output tile of a thread block."""
        return self.columns * self.wide

    @property
    def tile_elements(self) -> int:
        """Elements of the output tile of a thread block."""
        return self.tile_rows * self.tile_columns

    def tile_variants_by_blocks_per_output_tile(
        self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu
    ) -> list[BlockTile]:
        """Return this tile shape with one thread block per tile and, if that leaves multiprocessors
        idle, with several.
        """
        blocks, count = self.tile_count(rows, columns, batch), -(-steps // self.depth)
        most = min(gpu.processors // blocks, count // 2, _MAX_BLOCKS_PER_TILE)
        return [self, *(replace(self, splits=n) for n in range(2, most + 1) if count % n == 0)]

    def tile_count(self, rows: int, columns: int, batch: int) -> int:
        """Return the number of tiles that cover `batch` output matrices of some rows and columns."""
        return batch * -(-rows // self.tile_rows) * -(-columns // self.tile_columns)

    def shared_memory_pitches_and_sizes(
        self, left_reduction_contiguous: bool, right_reduction_contiguous: bool
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return, for both operands in shared memory, the distance between rows and the total size,
        in elements.

        `left_reduction_contiguous` and `right_reduction_contiguous` are True if the contiguous axis
        of the operand is that of the reduction steps.
        """
        sides = ((self.tile_rows, left_reduction_contiguous), (self.tile_columns, right_reduction_contiguous))
        pairs = [(self.depth, size) if deep else (size, self.depth) for size, deep in sides]
        (a, b), (c, d) = pairs
        return (a + self.gap, (a + self.gap) * b), (c + self.gap, (c + self.gap) * d)

    @property
    def shared_elements_for_thread_group_sums(self) -> int:
        """Elements of shared memory for the sums of the thread groups."""
        return self.tile_elements * self.reduction_groups if self.reduction_groups > 1 or self.staged else 0

    def fits_shared_memory(self, sum_dtype: DType, gpu: Gpu) -> bool:
        """Return True if operand pieces and sums of a tile fit in shared memory; `sum_dtype` is the
        type of the sums.
        """
        operands = self.operand_dtype(sum_dtype)
        (_, left), (_, right) = self.shared_memory_pitches_and_sizes(True, True)
        (_, high), (_, wide) = self.shared_memory_pitches_and_sizes(False, False)
        pieces = (max(left, high) + max(right, wide)) * operands.itemsize
        sums = self.shared_elements_for_thread_group_sums * sum_dtype.itemsize
        return (max(pieces, sums) if operands == sum_dtype else pieces + sums) + pieces <= gpu.shared_bytes

    def operand_dtype(self, sum_dtype: DType) -> DType:
        """Return the element type of the operands in shared memory, for sums of type `sum_dtype`."""
        return sum_dtype

    def functions_to_row_and_column_of_thread(
        self, thread: Expr, neighbors_along_columns: bool
    ) -> tuple[ThreadElementIndex, ThreadElementIndex]:
        """Return functions from (quad, index in it) to a thread's row and column of the tile.

        Neighboring threads have neighboring columns if `neighbors_along_columns`, else neighboring
        rows.
        """
        quick, slow = thread % self.rows, thread // self.rows
        if neighbors_along_columns:
            quick, slow = thread // self.columns, thread % self.columns
        return (
            lambda quad, index: quad * (self.quad * self.rows) + quick * self.quad + index,
            lambda quad, index: quad * (self.quad * self.columns) + slow * self.quad + index,
        )

    def accumulator_index(self, row_group: Expr, row_in_group: Expr, column_group: Expr, column_in_group: Expr) -> Expr:
        """Return the index of a GPU thread's accumulator for row `row_in_group` of its row group
        `row_group` and column `column_in_group` of group `column_group`.
        """
        return (row_group * self.quad + row_in_group) * self.wide + column_group * self.quad + column_in_group

    def operand_register_arrays(self, accumulators: Buffer) -> tuple[Buffer, Buffer]:
        """Return register arrays for a thread's elements of both operands."""
        a, b = (Buffer(name, accumulators.dtype, n, "stack", 16) for name, n in (("a", self.high), ("b", self.wide)))
        return a, b

    def multiply_operand_pieces_in_shared_memory(
        self, buffers: ThreadBuffers, left: TileOperand, right: TileOperand, thread: Expr, thread_group: Expr
    ) -> Stmt:
        """Return the multiplication of operand pieces in shared memory by one thread: load
        registers, multiply all pairs.
        """
        depth, stmts, acc, operand_arrays = Var("depth"), list[Stmt](), buffers.acc, buffers.operands
        for side, to in zip((left, right), operand_arrays, strict=True):
            quad, index = Var("quad"), Var("one")
            value = Load(
                buffers.shared,
                side.shared_memory_address(
                    thread_group * (self.depth // self.reduction_groups) + depth, side.own(quad, index)
                ),
            )
            copy = Store(to, quad * self.quad + index, value)
            stmts.append(loop_nest([(quad, side.count // self.quad), (index, self.quad)], copy, "independent"))
        i, j = Var("i"), Var("j")
        place = i * right.count + j
        total = left.whole.multiply_add(
            Load(acc, place), Load(operand_arrays[0], i), Load(operand_arrays[1], j), right.whole
        )
        update = Store(acc, place, total)
        stmts.append(loop_nest([(i, left.count), (j, right.count)], update, "independent"))
        return For(depth, self.depth // self.reduction_groups, Block(stmts))

    def multiplication_cost_per_operand_piece(self, gpu: Gpu) -> float:
        """Cost of multiplying one piece for the threads of a group, in scalar multiply-adds: products,
        and loads from shared memory.
        """
        return self.threads_per_reduction_group * self.depth * (self.high * self.wide + 1.5 * (self.high + self.wide))

    def estimated_cycles(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> float:
        """Estimate the cycles of a GPU multiprocessor for a contraction with this tile.

        Counts the work of its threads, copies to shared memory, and adding the sums of groups and
        blocks.
        """
        share = -(-self.tile_count(rows, columns, batch) * self.splits // gpu.processors)
        copy_cost = 4 * self.depth * (self.tile_rows + self.tile_columns)
        work = share * (self.multiplication_cost_per_operand_piece(gpu) + copy_cost) / gpu.costs.multiply_adds_per_cycle
        summed = self.shared_elements_for_thread_group_sums + (self.splits + 1) * self.tile_elements * (self.splits > 1)
        latency = gpu.costs.memory_latency_cycles
        last = share * summed / 16 + _LAST_BLOCK_MEMORY_ACCESSES * latency * (self.splits > 1)
        return -(-steps // self.depth) / self.splits * max(work, latency) + last
