# SPDX-License-Identifier: Apache-2.0
"""Builders of statements that execute an instruction (`aotc.tir.stmt.Execute`).

execute_to_memory("pairs2x4", tile, 0, Load(col, 0, 16), Load(w, 0, 32))     # tile[0] = pairs2x4(...)
execute_to_register("shuffle_xor", other, total, const(16, "int32"))        # let other = shuffle_xor(...)
block_barrier()                                                             # sync
"""

from aotc.tir.expr import Buffer, Expr, Load, Operand, Var, as_expr
from aotc.tir.instruction_table import INSTRUCTIONS
from aotc.tir.stmt import Destination, Execute


def execute_to_memory(instruction: str, buffer: Buffer, index: Operand, *operands: Expr) -> Execute:
    """Return the statement that writes the result of an instruction to a buffer, from `index` on.

    Raise TypeError if the instruction does not take operands of these types.
    """
    return _checked_execute(Execute(instruction, Destination(buffer, as_expr(index)), operands))


def execute_to_register(instruction: str, register: Var, *operands: Expr) -> Execute:
    """Return the statement that declares a register with the result of an instruction.

    Raise TypeError if the instruction does not take operands of these types.
    """
    return _checked_execute(Execute(instruction, register, operands))


def _checked_execute(stmt: Execute) -> Execute:
    if problem := INSTRUCTIONS[stmt.instruction].operand_type_problem((e.dtype, e.lanes) for e in stmt.operands):
        raise TypeError(problem)
    return stmt


def block_barrier() -> Execute:
    """Return a barrier: all threads of a block, or of a team of CPU threads, wait for each other.
    It does nothing where one thread runs alone.
    """
    return Execute("sync", None, ())


def start_async_copy(buffer: Buffer, index: Operand, source: Expr) -> Execute:
    """Return an asynchronous copy to shared memory, which is complete after `wait_for_copies` and a
    barrier.

    `source` is a load of 4, 8 or 16 bytes from a multiple of them on, or a selection between such a
    load and zeros.
    """
    return execute_to_memory("copy_async", buffer, index, source)


def wait_for_copies(pending_groups: int) -> Execute:
    """Return the statement that waits for the asynchronous copies of the thread, except those of
    the latest `pending_groups` groups.

    A group is the set of copies between two such statements.
    """
    return Execute("wait", None, (as_expr(pending_groups),))


def transpose_square(
    side: int, target: Buffer, index: Operand, pitch: int, source: Buffer, source_index: Operand, source_pitch: int
) -> Execute:
    """Return the statement that transposes a square of memory into another one.

    The `side` rows of the square that is written begin at `target[index + i * pitch]`, those of the
    square that is read at `source[source_index + i * source_pitch]`; the squares do not overlap.
    """
    span = (side - 1) * source_pitch + side
    numbers = (as_expr(n) for n in (side, source_pitch, pitch))
    return execute_to_memory("transpose_square", target, index, Load(source, as_expr(source_index), span), *numbers)


def sum_square_rows(
    side: int, target: Buffer, index: Operand, source: Buffer, source_index: Operand, source_pitch: int
) -> Execute:
    """Return the statement that writes the sums of the `side` rows of a square to `target[index]` and what
    follows; row i of the square begins at `source[source_index + i * source_pitch]`.

    The halves of a row are added until one element is left.
    """
    span = (side - 1) * source_pitch + side
    operands = Load(source, as_expr(source_index), span), as_expr(side), as_expr(source_pitch)
    return execute_to_memory("sum_square_rows", target, index, *operands)
