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
from aotc.tir import INSTRUCTIONS, Block, Buffer, Call, Expr, For, Load, Stmt, Store, Target, Var, te
from aotc.tir.schedule.contraction.gpu_block_tiles import TILES, Tile, Used, by_blocks
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.shared_memory_copies import Place, Side
from aotc.tir.stmt import loops

#: Tile shapes: warps along rows and columns, groups, and reduction steps per piece.
_SHAPES: Final = ((4, 2, 1, 32), (2, 4, 1, 32), (2, 2, 1, 32), (1, 1, 4, 64))
#: Tile shapes for words of four bytes, fewer steps of which fit.
_WORDS: Final = ((4, 2, 1, 16), (2, 4, 1, 16), (2, 2, 1, 32), (1, 1, 4, 64))
#: Speed of tensor cores relative to scalar multiply-adds.
_FASTER: Final = 8
#: Padding elements of rows, so that rows loaded together are aligned to 16 bytes and in different
#: memory banks.
_GAP: Final = 8


@frozen
class Warps(Tile):
    """A thread-block tile that warps compute by tensor cores.

    operands   type of the multiplied elements, int32 for words of bytes
    multiply   name of the mma instruction
    """

    operands: DType = DType("float16")
    multiply: str = "mma_float16"

    def of(self, dtype: DType) -> DType:
        return self.operands

    @property
    def work(self) -> float:
        return self.height * self.width * self.depth / _FASTER

    def own(self, thread: Expr, along: bool) -> tuple[Place, Place]:
        warp, lane, across = thread // 32, thread % 32, self.columns // 4
        return (
            lambda quad, one: warp // across * 32 + quad * 16 + one * 8 + lane // 4,
            lambda quad, one: warp % across * 32 + quad * 8 + lane % 4 * 2 + one,
        )

    def accumulator(self, down: Expr, i: Expr, across: Expr, j: Expr) -> Expr:
        return ((down * (self.wide // 2) + across) * 2 + i) * 2 + j

    @property
    def rowwise(self) -> bool:
        return self.operands.bits == 16

    def registers(self, acc: Buffer) -> tuple[Buffer, Buffer]:
        dtype = DType("int32" if self.operands == "int32" else "uint32")
        a, b = (Buffer(name, dtype, 8, "stack", 16) for name in "ab")
        return a, b

    def product(self, at: Used, left: Side, right: Side, thread: Expr, group: Expr) -> Stmt:
        (a, b), acc = at.operands, at.acc
        warp, across, steps = thread // 32, self.columns // 4, 256 // self.operands.bits
        step, i, j = Var("s"), Var("i"), Var("j")
        first = group * (self.depth // self.groups) + step * steps
        bring = _rounded if steps == 8 else _brought
        own = warp // across, warp % across
        brought = (bring(at, k, side, first, own[k] * 32, thread % 32) for k, side in enumerate((left, right)))
        place = i * 16 + j * 4
        operands = Load(acc, place, 4), Load(a, i * 4, 4), Load(b, j * 2, 2)
        product = Store(acc, place, Call(self.multiply, operands))
        body = Block((*brought, loops([(i, 2), (j, 4)], product)))
        return For(step, self.depth // self.groups // steps, body)


def _brought(at: Used, k: int, side: Side, depth: Expr, own: Expr, lane: Expr) -> Stmt:
    """Return the loads of 16-bit operands to registers, as blocks of 8 x 8 (ldmatrix).

    k   0 for the left operand, whose first two blocks are one below the other; 1 for the right one
    """
    i, row, (near, far) = Var("i"), lane % 8, (lane % 16 // 8 * 8, lane // 16 * 8)
    along, across = (far, near) if k == 0 else (near, far)
    if side.deep:
        place, name = side.at(depth + along, own + i * 16 + across + row), "ldmatrix_rows"
    else:
        place, name = side.at(depth + along + row, own + i * 16 + across), "ldmatrix"
    load = Load(at.shared, place, 8)
    return For(i, 2, Store(at.operands[k], i * 4, Call(f"{name}_{at.shared.dtype}", (load,))))


def _rounded(at: Used, k: int, side: Side, depth: Expr, own: Expr, lane: Expr) -> Stmt:
    """Return the loads of 32-bit operands to registers: floats rounded to TF32, words of bytes
    unchanged.
    """
    i, step, half = Var("i"), Var("k"), Var("half")
    place = side.at(depth + lane % 4 + step * 4, own + i * 16 + half * 8 + lane // 4)
    to = i * 4 + (step * 2 + half if k == 0 else half * 2 + step)
    load = Load(at.shared, place)
    store = Store(at.operands[k], to, Call("tf32", (load,)) if load.dtype.is_float else load)
    return loops([(i, 2), (step, 2), (half, 2)], store)


def by_warps(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest | None:
    """Return the GPU loop nest of a contraction, by tensor cores where the device supports its
    types, else by `by_blocks`.

    Integer sums do not depend on the order, so that scalar tiles are used for them where
    tensor-core tiles are too large.
    """
    gpu, words = target.gpu, c.dtype == "int32"
    name, operands = f"mma_{a.dtype}", a.dtype
    allowed = a.dtype == b.dtype and c.dtype == "float32"
    allowed = allowed and gpu is not None and a.dtype in gpu.matrices
    if words:
        name, operands, allowed = f"{name}_{b.dtype}", c.dtype, True
    fits = allowed and name in INSTRUCTIONS
    if gpu is None or not fits or min(gpu.architectures) < INSTRUCTIONS[name].least:
        return by_blocks(c, a, b, store, target)
    tiles: list[Tile] = [
        Warps(8 * down, 4 * across, 4, 8, groups, depth, 2, _GAP, operands=operands, multiply=name)
        for down, across, groups, depth in (_WORDS if words else _SHAPES)
    ]
    return by_blocks(c, a, b, store, target, [*tiles, *(TILES if words else ())])
