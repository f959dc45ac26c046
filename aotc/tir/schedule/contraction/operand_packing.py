# SPDX-License-Identifier: Apache-2.0
"""Packing: copies of a part of an operand to another memory, as one description with one generator of
loops.

    row, column = turn * 4 + thread // 16, thread % 16      # 16 x 16 elements, 4 by each of 64 threads
    share = CopyShare([(turn, 4)], (row, column))
    PackedOperand(share, (Load(x, row * 64 + column),), shared, row * 20 + column, ASYNC).copy_nest()

Users, by the destination:

    scratch of a core    `operand_staging`: one thread copies a tile, with its dimensions by stride and even and
                         odd columns apart, or with its axes in row-major order
    shared memory        `shared_memory_copies`: the threads of a block copy a piece asynchronously, or
                         through registers, to rows with padding against bank conflicts
    registers            `gpu_block_tile_shape`: each thread copies its rows or columns of a piece;
                         `gpu_tensor_cores`: a warp copies fragments of mma instructions, by an
                         instruction or by loads of its threads
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aotc.ir import frozen
from aotc.tir import Block, Buffer, Declare, Expr, Stmt, Store, Var, all_of, te
from aotc.tir.instruction_statements import execute_to_memory, start_async_copy
from aotc.tir.stmt import If, loop_nest

#: Values of `PackedOperand.how` that are no names of instructions.
STORE: Final = "store"
ASYNC: Final = "async"


@frozen(eq=False)
class CopyShare:
    """The positions in a tile that one thread copies: all of them, or its share among the threads of a
    block or of a warp.

    loops       iterations of the thread, the outermost first
    position    position of an iteration in the tile, in expressions of the loops and of the thread
    exists      conditions under which an iteration has a position; none if all have
    kind        kind of the loops
    """

    loops: Sequence[te.Axis]
    position: tuple[Expr, ...]
    exists: Sequence[Expr] = ()
    kind: str = "serial"

    @staticmethod
    def whole_tile(names: Sequence[str], extents: Sequence[int]) -> CopyShare:
        """Return the share of a single thread: all positions of a tile, with variables of some names."""
        place = tuple(Var(name) for name in names)
        return CopyShare(tuple(zip(place, extents, strict=True)), place, kind="independent")


@frozen(eq=False)
class PackedOperand:
    """A part of an operand in another memory, and how it gets there.

    share          positions that each thread copies
    values         what is read in an iteration: an element, a vector, or the operands of an instruction; the
                   padding, where it is chosen for each element
    destination    the memory, whose scope says which threads share it: "stack" and "workspace" for one thread,
                   "shared" for a block; "stack" on GPUs for registers
    address        the layout: where an iteration writes
    how            `STORE`; `ASYNC` for an asynchronous copy, for which its thread must wait; or the name of an
                   instruction, which may be one of a whole warp
    inside         conditions under which the element exists; others are skipped, and the destination has
                   been filled with the padding before
    registers      values that are computed once in an iteration
    """

    share: CopyShare
    values: tuple[Expr, ...]
    destination: Buffer
    address: Expr
    how: str = STORE
    inside: Sequence[Expr] = ()
    registers: Sequence[Declare] = ()

    def copy_nest(self) -> Stmt:
        """Return the loops in which a thread copies its share."""
        body = self._copy_stmt()
        for conditions in (self.inside, self.share.exists):
            body = If(all_of(*conditions), body) if conditions else body
        body = Block((*self.registers, body)) if self.registers else body
        return loop_nest(self.share.loops, body, self.share.kind)

    def _copy_stmt(self) -> Stmt:
        """Return the statement that copies what an iteration reads."""
        if self.how == STORE:
            (value,) = self.values
            return Store(self.destination, self.address, value)
        if self.how == ASYNC:
            (value,) = self.values
            return start_async_copy(self.destination, self.address, value)
        return execute_to_memory(self.how, self.destination, self.address, *self.values)
