# SPDX-License-Identifier: Apache-2.0
"""Tiles of thread blocks that warps multiply by mma instructions (tensor cores), the micro-kernels
of level "warp".

Operands are float16, bfloat16 or TF32 with float32 sums, or bytes with int32 sums:

    for s in 0..2:                                    # 16 steps of the reduction, of 32 in shared memory
        a[2 x 4] = ldmatrix(xs); b[2 x 4] = ldmatrix(ws)
        for i in 0..2: for j in 0..4: acc[4 * i + j] = mma(acc[4 * i + j], a[i], b[j])

Each warp computes 32 rows and 32 columns of a tile. In each 16 x 8 block a thread holds two rows, 8
apart, and two adjacent columns (`aotc.tir.warp_matrix_fragments`). Operands are stored in shared
memory step by step, so that their blocks are transposed when they are loaded.
"""

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Call, Expr, For, GpuCosts, Load, Stmt, Var
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.gpu_block_tile_shape import BlockTile, ThreadBuffers
from aotc.tir.schedule.contraction.operand_packing import CopyShare, PackedOperand
from aotc.tir.schedule.contraction.shared_memory_copies import ThreadElementIndex, TileOperand
from aotc.tir.stmt import loop_nest


@frozen
class WarpTile(BlockTile):
    """A thread-block tile whose warps multiply by mma instructions."""

    def cycles_per_operand_piece(self, costs: GpuCosts) -> float:
        kernel = self.kernel
        products = self.tile_rows * self.tile_columns * self.shape.depth * kernel.group
        return products / (kernel.positions * kernel.outputs * kernel.depth) * kernel.tile_cycles

    def functions_to_row_and_column_of_thread(
        self, thread: Expr, neighbors_along_columns: bool
    ) -> tuple[ThreadElementIndex, ThreadElementIndex]:
        warp, lane, across = thread // 32, thread % 32, self.shape.columns // 4
        return (
            lambda quad, index: warp // across * 32 + quad * 16 + index * 8 + lane // 4,
            lambda quad, index: warp % across * 32 + quad * 8 + lane % 4 * 2 + index,
        )

    def accumulator_index(self, row_group: Expr, row_in_group: Expr, column_group: Expr, column_in_group: Expr) -> Expr:
        return ((row_group * (self.shape.wide // 2) + column_group) * 2 + row_in_group) * 2 + column_in_group

    def operand_register_arrays(self, accumulators: Buffer) -> tuple[Buffer, Buffer]:
        dtype = DType("int32" if self.kernel.sums == "int32" else "uint32")
        a, b = (Buffer(name, dtype, 8, "stack", 16) for name in "ab")
        return a, b

    def multiply_operand_pieces_in_shared_memory(
        self, buffers: ThreadBuffers, left: TileOperand, right: TileOperand, thread: Expr, thread_group: Expr
    ) -> Stmt:
        (a, b), acc, kernel = buffers.operands, buffers.acc, self.kernel
        warp, across, steps = thread // 32, self.shape.columns // 4, kernel.depth // kernel.group
        step, i, j = Var("s"), Var("i"), Var("j")
        first = thread_group * (self.shape.depth // self.shape.reduction_groups) + step * steps
        bring = _load_operands_by_ldmatrix if kernel.load else _load_32_bit_operands
        warp_position = warp // across, warp % across
        load_stmts = (
            bring(kernel, buffers, k, side, first, warp_position[k] * 32, thread % 32)
            for k, side in enumerate((left, right))
        )
        place = i * 16 + j * 4
        operands = Load(acc, place, 4), Load(a, i * 4, 4), Load(b, j * 2, 2)
        name = kernel.multiply_name(left.whole.buffer.dtype, right.whole.buffer.dtype)
        product = execute_to_memory(name, acc, place, *operands)
        body = Block((*load_stmts, loop_nest([(i, 2), (j, 4)], product)))
        return For(step, self.shape.depth // self.shape.reduction_groups // steps, body)


def _load_operands_by_ldmatrix(
    kernel: MicroKernel,
    buffers: ThreadBuffers,
    operand_number: int,
    operand: TileOperand,
    depth: Expr,
    first_row: Expr,
    lane: Expr,
) -> Stmt:
    """Return the loads of 16-bit operands to registers, as blocks of 8 x 8 (ldmatrix).

    operand_number    0 for the left operand, whose first two blocks have the same reduction steps
                      and consecutive rows; 1 for the right operand, whose first two blocks have
                      consecutive reduction steps and the same columns
    """
    i, row, (near, far) = Var("i"), lane % 8, (lane % 16 // 8 * 8, lane // 16 * 8)
    along, across = (far, near) if operand_number == 0 else (near, far)
    position = (
        (depth + along, first_row + i * 16 + across + row)
        if operand.deep
        else (depth + along + row, first_row + i * 16 + across)
    )
    row_of_thread = Load(buffers.shared, operand.shared_memory_address(*position), 8)
    instruction = kernel.load_name(buffers.shared.dtype, 4, not operand.deep)
    share, fragments = CopyShare([(i, 2)], position), buffers.operands[operand_number]
    return PackedOperand(share, (row_of_thread,), fragments, i * 4, instruction).copy_nest()


def _load_32_bit_operands(
    kernel: MicroKernel,
    buffers: ThreadBuffers,
    operand_number: int,
    operand: TileOperand,
    depth: Expr,
    first_row: Expr,
    lane: Expr,
) -> Stmt:
    """Return the loads of 32-bit operands to registers: floats rounded to TF32, words of bytes
    unchanged.
    """
    i, step, half = Var("i"), Var("k"), Var("half")
    position = depth + lane % 4 + step * 4, first_row + i * 16 + half * 8 + lane // 4
    to = i * 4 + (step * 2 + half if operand_number == 0 else half * 2 + step)
    load = Load(buffers.shared, operand.shared_memory_address(*position))
    word = Call(kernel.broadcast, (load,)) if kernel.broadcast else load
    share = CopyShare([(i, 2), (step, 2), (half, 2)], position)
    return PackedOperand(share, (word,), buffers.operands[operand_number], to).copy_nest()
