# SPDX-License-Identifier: Apache-2.0
"""Register promotion (scalar replacement): hold vectors of scratch arrays that a loop loads and
stores repeatedly in registers.

    for k in 0..96 by 16: for l in 0..16 by 8:           r = part[0:8]; s = part[8:8]
        part[l] = part[l:8] + x[k + l:8]            ->   for k in 0..96 by 16: r = r + x[k:8]; s = s + x[k + 8:8]
                                                         part[0] = r; part[8] = s

The operations and their order, and thus the results, do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import INDEX, Buffer, Const, Expr, Load, Var, operands, simplify_stmt, unrolled_iterations, with_operands
from aotc.tir.loops.loop_dependence import constant_loop_range, direct_loads, read_buffers, written_buffers
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    For,
    Stmt,
    Store,
    block_stmts_or_self,
    count_exprs_in_stmt,
    rebuild_stmt,
    walk_stmts,
)

#: The elements of a buffer that one register holds: index of the first element, number of elements.
_VectorSlot: TypeAlias = "tuple[int, int]"
#: Largest number of expression nodes of inner loops that are unrolled.
_MAX_UNROLLED_NODES: Final = 256


def promote_scratch_to_registers(stmt: Stmt, max_registers: int) -> Stmt:
    """Return `stmt` with private scratch arrays that loops update promoted to registers.

    At most `max_registers` registers are used for the array of one loop.
    """
    return _RegisterPromoter(max_registers).promote_scratch_arrays_in_stmt(stmt)


@frozen
class _RegisterPromoter:
    """Promotes scratch arrays to registers, at most `max_registers` vector registers per array."""

    max_registers: int

    def promote_scratch_arrays_in_stmt(self, stmt: Stmt) -> Stmt:
        """Return a statement with the scratch arrays of all loops in it promoted, outer loops
        first.
        """
        stmts, k = list(block_stmts_or_self(stmt)), 0
        while k < len(stmts):
            new_stmts = self.promote_one_scratch_array_of_loop(stmts, k)
            stmts, k = (stmts, k + 1) if new_stmts is None else (new_stmts, k)
        return Block(rebuild_stmt(s, self.promote_scratch_arrays_in_stmt) for s in stmts)

    def promote_one_scratch_array_of_loop(self, stmts: Sequence[Stmt], loop_position: int) -> list[Stmt] | None:
        """Promote one scratch array of the loop at index `loop_position` of a sequence of
        statements.

        The adjacent statements that use the array are included. Return the new sequence, or None if
        no array can be promoted.
        """
        loop = stmts[loop_position]
        if not isinstance(loop, For) or loop.kind == "independent":
            return None
        private = [b for b in written_buffers(loop) & read_buffers(loop) if b.private]
        for buffer in sorted(private, key=lambda b: b.name):
            core = self.unroll_until_constant_indices(loop, buffer)
            if core is None or not self.fits_in_registers([core], buffer):
                continue
            before = self.unrolled_adjacent_stmts_using_buffer(reversed(stmts[:loop_position]), [core], buffer)
            after = self.unrolled_adjacent_stmts_using_buffer(stmts[loop_position + 1 :], [*before, core], buffer)
            region = Block((*reversed(before), core, *after))
            if any(_is_any_element_stored_before_loaded(s, buffer) for s in region.stmts if not isinstance(s, Store)):
                continue
            return [
                *stmts[: loop_position - len(before)],
                *_replace_buffer_of_block_by_registers(region, buffer),
                *stmts[loop_position + 1 + len(after) :],
            ]
        return None

    def unrolled_adjacent_stmts_using_buffer(
        self, stmts: Iterable[Stmt], promoted_stmts: Sequence[Stmt], buffer: Buffer
    ) -> list[Stmt]:
        """Return the statements next to `promoted_stmts` that use the buffer and fit into the
        registers together with it, unrolled.

        Statements that do not use the buffer may be between them; the first statement that does not
        fit ends the search.
        """
        fitting_stmts, last = list[Stmt](), 0
        for stmt in stmts:
            unrolled_stmt = self.unroll_until_constant_indices(stmt, buffer)
            if unrolled_stmt is None or not self.fits_in_registers(
                [*promoted_stmts, *fitting_stmts, unrolled_stmt], buffer
            ):
                break
            fitting_stmts.append(unrolled_stmt)
            last = len(fitting_stmts) if _accesses_buffer(stmt, buffer) else last
        return fitting_stmts[:last]

    def fits_in_registers(self, stmts: Sequence[Stmt], buffer: Buffer) -> bool:
        """Return True if the statements access the buffer as at most `max_registers` vectors, which
        do not overlap.
        """
        places = sorted({p for s in stmts for p in _vectors_accessed_at_constant_indices(s, buffer)})
        disjoint = all(first + lanes <= after for (first, lanes), (after, _) in pairwise(places))
        return disjoint and 0 < len(places) <= self.max_registers and all(lanes > 1 for _, lanes in places)

    def unroll_until_constant_indices(self, stmt: Stmt, buffer: Buffer) -> Stmt | None:
        """Return a statement with its loops unrolled until every index into the buffer is a
        constant; None if that is impossible.
        """
        match stmt:
            case _ if not _accesses_buffer(stmt, buffer):
                return stmt
            case For():
                body = self.unroll_until_constant_indices(stmt.body, buffer)
                if body is not None:
                    return rebuild_stmt(stmt, lambda _: body)
                values = constant_loop_range(stmt)
                size = count_exprs_in_stmt(stmt.body)
                if not 0 < len(values) <= self.max_registers or len(values) * size > _MAX_UNROLLED_NODES:
                    return None
                copies = (simplify_stmt(copy, {}) for copy in unrolled_iterations(stmt))
                return self.unroll_until_constant_indices(Block(copies), buffer)
            case Block():
                parts = [self.unroll_until_constant_indices(s, buffer) for s in stmt.stmts]
                return None if None in parts else Block(s for s in parts if s is not None)
            case Store() | Declare() | Assign():
                literal = all(isinstance(index, Const) for index, _ in _accesses_of_buffer(stmt, buffer))
                return stmt if literal and all(load.stride == 1 for load in direct_loads(stmt)) else None
        return None


def _accesses_buffer(stmt: Stmt, buffer: Buffer) -> bool:
    """Return True if a statement writes or reads a buffer."""
    return buffer in written_buffers(stmt) or buffer in read_buffers(stmt)


def _accesses_of_buffer(stmt: Stmt, buffer: Buffer) -> Iterator[tuple[Expr, int]]:
    """Yield index and number of elements of each load and store of a buffer in a statement and the
    statements nested in it.
    """
    for s in walk_stmts(stmt):
        yield from ((load.index, load.lanes) for load in direct_loads(s) if load.buffer is buffer)
        if isinstance(s, Store) and s.buffer is buffer:
            yield s.index, s.value.lanes


def _is_any_element_stored_before_loaded(stmt: Stmt, buffer: Buffer) -> bool:
    """Return True if a loop stores to an element before it loads it: its register would be read
    uninitialized.
    """
    loaded: set[Expr] = set()
    for s in walk_stmts(stmt):
        loaded.update(load.index for load in direct_loads(s) if load.buffer is buffer)
        if isinstance(s, Store) and s.buffer is buffer and s.index not in loaded:
            return True
    return False


def _vectors_accessed_at_constant_indices(stmt: Stmt, buffer: Buffer) -> set[_VectorSlot]:
    """Return the vectors of a buffer that a statement accesses at constant indices, as (first
    element, number of elements).
    """
    return {(int(i.value), lanes) for i, lanes in _accesses_of_buffer(stmt, buffer) if isinstance(i, Const)}


def _replace_buffer_of_block_by_registers(region: Block, buffer: Buffer) -> list[Stmt]:
    """Return statements with a buffer in registers, which are loaded at their first use and stored
    at the end.
    """
    registers: dict[_VectorSlot, Var] = {}
    new_stmts: list[Stmt] = []
    for stmt in region.stmts:
        fresh = sorted(_vectors_accessed_at_constant_indices(stmt, buffer) - registers.keys())
        new_registers = {place: Var(buffer.name, buffer.dtype, place[1]) for place in fresh}
        registers |= new_registers
        if new_registers and isinstance(stmt, Store) and buffer not in read_buffers(stmt):
            new_stmts += [Declare(var, stmt.value) for var in new_registers.values()]
            continue
        definitions = ((var, Load(buffer, Const(k, INDEX), lanes)) for (k, lanes), var in new_registers.items())
        new_stmts += [*starmap(Declare, definitions), _replace_accesses_by_registers(stmt, buffer, registers)]
    stores = (Store(buffer, Const(i, INDEX), var) for (i, _), var in sorted(registers.items()))
    return [*new_stmts, *stores]


def _replace_accesses_by_registers(stmt: Stmt, buffer: Buffer, registers: dict[_VectorSlot, Var]) -> Stmt:
    """Return a statement with loads and stores of a scratch array replaced by uses and assignments
    of registers.
    """

    def replace_loads_by_registers(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer is buffer and isinstance(expr.index, Const):
            return registers[int(expr.index.value), expr.lanes]
        return with_operands(expr, tuple(map(replace_loads_by_registers, operands(expr))))

    if isinstance(stmt, Store) and stmt.buffer is buffer and isinstance(stmt.index, Const):
        return Assign(registers[int(stmt.index.value), stmt.value.lanes], replace_loads_by_registers(stmt.value))
    return rebuild_stmt(
        stmt, lambda s: _replace_accesses_by_registers(s, buffer, registers), replace_loads_by_registers
    )
