# SPDX-License-Identifier: Apache-2.0
"""Tensor-core schedule: thread-block tiles (`gpu_block_tiles`) that warps multiply by mma
instructions.

Operands are float16, bfloat16 or TF32 with float32 sums, or bytes with int32 sums:

    for s in 0..2:                                    # 16 steps of the reduction, of 32 in shared memory
        a[2 x 4] = ldmatrix(xs); b[2 x 4] = ldmatrix(ws)
        for i in 0..2: for j in 0..4: acc[4 * i + j] = mma(acc[4 * i + j], a[i], b[j])

Each warp computes 32 rows and 32 columns of a tile. In each 16 x 8 block a thread holds two rows, 8
apart, and two adjacent columns (`aotc.tir.warp_matrix_fragments`). Operands are stored in shared
memory step by step, so that their blocks are transposed when they are loaded.
"""

from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import INSTRUCTIONS, Block, Buffer, Call, Expr, For, Gpu, Load, Stmt, Store, Target, Var, te
from aotc.tir.instruction_statements import execute_to_memory
from aotc.tir.schedule.contraction.gpu_block_tile_shape import BlockTile, ThreadBuffers
from aotc.tir.schedule.contraction.gpu_block_tiles import SCALAR_BLOCK_TILES, schedule_gpu_block_tiles
from aotc.tir.schedule.contraction.shared_memory_copies import ThreadElementIndex, TileOperand
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import loop_nest

#: Tile shapes: warps along rows and columns, groups, and reduction steps per piece.
_WARP_TILE_SHAPES: Final = ((4, 2, 1, 32), (2, 4, 1, 32), (2, 2, 1, 32), (1, 1, 4, 64))
#: Tile shapes for words of four bytes, fewer steps of which fit.
_WARP_TILE_SHAPES_FOR_INT8: Final = ((4, 2, 1, 16), (2, 4, 1, 16), (2, 2, 1, 32), (1, 1, 4, 64))
#: Padding elements of rows, so that rows loaded together are aligned to 16 bytes and in different
#: memory banks.
_SMEM_PAD_ELEMENTS: Final = 8


@frozen
class TensorCoreTile(BlockTile):
    """A thread-block tile that warps compute by tensor cores.

    operands   type of the multiplied elements, int32 for words of bytes
    multiply   name of the mma instruction
    """

    operands: DType = DType("float16")
    multiply: str = "mma_float16"

    def operand_dtype(self, sum_dtype: DType) -> DType:
        return self.operands

    def multiplication_cost_per_operand_piece(self, gpu: Gpu) -> float:
        return self.tile_rows * self.tile_columns * self.depth / gpu.costs.tensor_core_speedup

    def functions_to_row_and_column_of_thread(
        self, thread: Expr, neighbors_along_columns: bool
    ) -> tuple[ThreadElementIndex, ThreadElementIndex]:
        warp, lane, across = thread // 32, thread % 32, self.columns // 4
        return (
            lambda quad, index: warp // across * 32 + quad * 16 + index * 8 + lane // 4,
            lambda quad, index: warp % across * 32 + quad * 8 + lane % 4 * 2 + index,
        )

    def accumulator_index(self, row_group: Expr, row_in_group: Expr, column_group: Expr, column_in_group: Expr) -> Expr:
        return ((row_group * (self.wide // 2) + column_group) * 2 + row_in_group) * 2 + column_in_group

    @property
    def allows_reduction_contiguous_layout(self) -> bool:
        return self.operands.bits == 16

    def operand_register_arrays(self, accumulators: Buffer) -> tuple[Buffer, Buffer]:
        dtype = DType("int32" if self.operands == "int32" else "uint32")
        a, b = (Buffer(name, dtype, 8, "stack", 16) for name in "ab")
        return a, b

    def multiply_operand_pieces_in_shared_memory(
        self, buffers: ThreadBuffers, left: TileOperand, right: TileOperand, thread: Expr, thread_group: Expr
    ) -> Stmt:
        (a, b), acc = buffers.operands, buffers.acc
        warp, across, steps = thread // 32, self.columns // 4, 256 // self.operands.bits
        step, i, j = Var("s"), Var("i"), Var("j")
        first = thread_group * (self.depth // self.reduction_groups) + step * steps
        bring = _load_32_bit_operands if steps == 8 else _load_16_bit_operands_by_ldmatrix
        warp_position = warp // across, warp % across
        load_stmts = (
            bring(buffers, k, side, first, warp_position[k] * 32, thread % 32) for k, side in enumerate((left, right))
        )
        place = i * 16 + j * 4
        operands = Load(acc, place, 4), Load(a, i * 4, 4), Load(b, j * 2, 2)
        product = execute_to_memory(self.multiply, acc, place, *operands)
        body = Block((*load_stmts, loop_nest([(i, 2), (j, 4)], product)))
        return For(step, self.depth // self.reduction_groups // steps, body)


def _load_16_bit_operands_by_ldmatrix(
    buffers: ThreadBuffers, operand_number: int, operand: TileOperand, depth: Expr, first_row: Expr, lane: Expr
) -> Stmt:
    """Return the loads of 16-bit operands to registers, as blocks of 8 x 8 (ldmatrix).

    operand_number    0 for the left operand, whose first two blocks have the same reduction steps
                      and consecutive rows; 1 for the right operand, whose first two blocks have
                      consecutive reduction steps and the same columns
    """
    i, row, (near, far) = Var("i"), lane % 8, (lane % 16 // 8 * 8, lane // 16 * 8)
    along, across = (far, near) if operand_number == 0 else (near, far)
    if operand.deep:
        place, name = operand.shared_memory_address(depth + along, first_row + i * 16 + across + row), "ldmatrix_rows"
    else:
        place, name = operand.shared_memory_address(depth + along + row, first_row + i * 16 + across), "ldmatrix"
    load = Load(buffers.shared, place, 8)
    instruction = f"{name}_{buffers.shared.dtype}"
    return For(i, 2, execute_to_memory(instruction, buffers.operands[operand_number], i * 4, load))


def _load_32_bit_operands(
    buffers: ThreadBuffers, operand_number: int, operand: TileOperand, depth: Expr, first_row: Expr, lane: Expr
) -> Stmt:
    """Return the loads of 32-bit operands to registers: floats rounded to TF32, words of bytes
    unchanged.
    """
    i, step, half = Var("i"), Var("k"), Var("half")
    place = operand.shared_memory_address(depth + lane % 4 + step * 4, first_row + i * 16 + half * 8 + lane // 4)
    to = i * 4 + (step * 2 + half if operand_number == 0 else half * 2 + step)
    load = Load(buffers.shared, place)
    store = Store(buffers.operands[operand_number], to, Call("tf32", (load,)) if load.dtype.is_float else load)
    return loop_nest([(i, 2), (step, 2), (half, 2)], store)


def schedule_gpu_tensor_cores(
    contraction: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target
) -> ContractionNest | None:
    """Return the GPU loop nest of a contraction, by tensor cores where the device supports its
    types, else by `schedule_gpu_block_tiles`.

    Integer sums do not depend on the order, so that scalar tiles are used for them where
    tensor-core tiles are too large.
    """
    gpu, words = target.gpu, contraction.dtype == "int32"
    name, operands = f"mma_{a.dtype}", a.dtype
    allowed = a.dtype == b.dtype and contraction.dtype == "float32"
    allowed = allowed and gpu is not None and a.dtype in gpu.matrices
    if words:
        name, operands, allowed = f"{name}_{b.dtype}", contraction.dtype, True
    fits = allowed and name in INSTRUCTIONS
    if gpu is None or not fits or min(gpu.architectures) < INSTRUCTIONS[name].least:
        return schedule_gpu_block_tiles(contraction, a, b, store, target)
    tiles: list[BlockTile] = [
        TensorCoreTile(
            8 * down, 4 * across, 4, 8, groups, depth, 2, _SMEM_PAD_ELEMENTS, operands=operands, multiply=name
        )
        for down, across, groups, depth in (_WARP_TILE_SHAPES_FOR_INT8 if words else _WARP_TILE_SHAPES)
    ]
    return schedule_gpu_block_tiles(contraction, a, b, store, target, [*tiles, *(SCALAR_BLOCK_TILES if words else ())])
