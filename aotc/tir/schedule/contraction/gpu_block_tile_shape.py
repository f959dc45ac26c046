# SPDX-License-Identifier: Apache-2.0
"""Tiles of the output that GPU thread blocks compute: their shape, shared memory, registers and inner
multiplication.

    tile = BlockTile(BlockShape(16, 16, 4, 4), THREAD_MULTIPLY_ADD)      # 16 x 16 threads, each with 4 x 4 accumulators
    tile.tile_rows, tile.tile_columns                                    # (64, 64)
"""

from __future__ import annotations

from dataclasses import replace

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, For, Gpu, GpuCosts, Load, Var
from aotc.tir.micro_kernels import BlockShape, MicroKernel
from aotc.tir.schedule.contraction.operand_packing import CopyShare, PackedOperand
from aotc.tir.schedule.contraction.shared_memory_copies import ThreadElementIndex, TileOperand
from aotc.tir.stmt import Stmt, Store, loop_nest


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
    """The tile of a thread block, multiplied by each thread.

    shape    threads, accumulators and depth of the tile
    kernel   the micro-kernel that multiplies
    staged   True if sums go through shared memory even with a single group
    """

    shape: BlockShape
    kernel: MicroKernel
    staged: bool = False

    @property
    def name(self) -> str:
        """The name of the tile, as used in records of measurements."""
        sizes = f"rows={self.tile_rows} columns={self.tile_columns} threads={self.threads_per_block}"
        return f"block {sizes} depth={self.shape.depth} splits={self.shape.splits} {self.kernel.name}"

    @property
    def allows_reduction_contiguous_layout(self) -> bool:
        """True if operands in shared memory may have the reduction steps as their contiguous axis."""
        return bool(self.kernel.load)

    @property
    def threads_per_reduction_group(self) -> int:
        """Threads of one of the groups that split the reduction steps."""
        return self.shape.rows * self.shape.columns

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        return self.shape.reduction_groups * self.threads_per_reduction_group

    @property
    def tile_rows(self) -> int:
        """Rows of the output tile of a thread block."""
        return self.shape.rows * self.shape.high

    @property
    def tile_columns(self) -> int:
        """Columns of the output tile of a thread block."""
        return self.shape.columns * self.shape.wide

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
        blocks, count = self.tile_count(rows, columns, batch), -(-steps // self.shape.depth)
        most = min(gpu.processors // blocks, count // 2, gpu.costs.max_blocks_per_tile)
        splits = (n for n in range(2, most + 1) if count % n == 0)
        variants = (replace(self, shape=replace(self.shape, splits=n)) for n in splits)
        return [*([] if count % self.shape.splits else [self]), *variants]

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
        pairs = [(self.shape.depth, size) if deep else (size, self.shape.depth) for size, deep in sides]
        (a, b), (c, d) = pairs
        gap = self.kernel.row_padding
        return (a + gap, (a + gap) * b), (c + gap, (c + gap) * d)

    @property
    def shared_elements_for_thread_group_sums(self) -> int:
        """Elements of shared memory for the sums of the thread groups."""
        return self.tile_elements * self.shape.reduction_groups if self.shape.reduction_groups > 1 or self.staged else 0

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
        return DType(self.kernel.packed or sum_dtype)

    def functions_to_row_and_column_of_thread(
        self, thread: Expr, neighbors_along_columns: bool
    ) -> tuple[ThreadElementIndex, ThreadElementIndex]:
        """Return functions from (quad, index in it) to a thread's row and column of the tile.

        Neighboring threads have neighboring columns if `neighbors_along_columns`, else neighboring
        rows.
        """
        rows, columns, adjacent = self.shape.rows, self.shape.columns, self.kernel.adjacent
        quick, slow = thread % rows, thread // rows
        if neighbors_along_columns:
            quick, slow = thread // columns, thread % columns
        return (
            lambda quad, index: quad * (adjacent * rows) + quick * adjacent + index,
            lambda quad, index: quad * (adjacent * columns) + slow * adjacent + index,
        )

    def accumulator_index(self, row_group: Expr, row_in_group: Expr, column_group: Expr, column_in_group: Expr) -> Expr:
        """Return the index of a GPU thread's accumulator for row `row_in_group` of its row group
        `row_group` and column `column_in_group` of group `column_group`.
        """
        adjacent = self.kernel.adjacent
        return (row_group * adjacent + row_in_group) * self.shape.wide + column_group * adjacent + column_in_group

    def operand_register_arrays(self, accumulators: Buffer) -> tuple[Buffer, Buffer]:
        """Return register arrays for a thread's elements of both operands."""
        sizes = ("a", self.shape.high), ("b", self.shape.wide)
        a, b = (Buffer(name, accumulators.dtype, size, "stack", 16) for name, size in sizes)
        return a, b

    def multiply_operand_pieces_in_shared_memory(
        self, buffers: ThreadBuffers, left: TileOperand, right: TileOperand, thread: Expr, thread_group: Expr
    ) -> Stmt:
        """Return the multiplication of operand pieces in shared memory by one thread: load
        registers, multiply all pairs.
        """
        depth, stmts, acc, operand_arrays = Var("depth"), list[Stmt](), buffers.acc, buffers.operands
        adjacent = self.kernel.adjacent
        for side, to in zip((left, right), operand_arrays, strict=True):
            quad, index = Var("quad"), Var("one")
            value = Load(
                buffers.shared,
                side.shared_memory_address(
                    thread_group * (self.shape.depth // self.shape.reduction_groups) + depth, side.own(quad, index)
                ),
            )
            share = CopyShare(
                [(quad, side.count // adjacent), (index, adjacent)], (depth, side.own(quad, index)), kind="independent"
            )
            stmts.append(PackedOperand(share, (value,), to, quad * adjacent + index).copy_nest())
        i, j = Var("i"), Var("j")
        place = i * right.count + j
        total = left.whole.multiply_add(
            Load(acc, place), Load(operand_arrays[0], i), Load(operand_arrays[1], j), right.whole
        )
        update = Store(acc, place, total)
        stmts.append(loop_nest([(i, left.count), (j, right.count)], update, "independent"))
        return For(depth, self.shape.depth // self.shape.reduction_groups, Block(stmts))

    def cycles_per_operand_piece(self, costs: GpuCosts) -> float:
        """Return the cycles in which a multiprocessor multiplies one piece of the operands: products,
        and loads from shared memory.
        """
        high, wide = self.shape.high, self.shape.wide
        multiply_adds = high * wide / self.kernel.rate + costs.shared_load * (high + wide)
        return self.threads_per_reduction_group * self.shape.depth * multiply_adds / costs.multiply_adds_per_cycle
