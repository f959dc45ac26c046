# SPDX-License-Identifier: Apache-2.0
"""Memory effects of the statements of a kernel, from which `parallel_kernels` decides how to divide
them among threads.

Input: statements and the ranges of the variables around them. Output: the accesses to shared
buffers, and if later statements use registers or scratch memory that these statements write.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from aotc.ir import frozen
from aotc.tir import INDEX, Block, Buffer, For, Kernel, Stmt, Var, direct_exprs_of_stmt, vars_and_buffers_in, walk_stmts
from aotc.tir.loops.access_collection import Accesses, collect_accesses, is_written_before_read
from aotc.tir.loops.access_relation import AccessRelation
from aotc.tir.loops.loop_dependence import Ranges, assigns_to_outer_registers, direct_loads, is_stored_before_first_load
from aotc.tir.stmt import (
    Destination,
    block_stmts_or_self,
    buffer_written_by,
    direct_child_stmts,
    executions_in,
    register_declared_by,
)


@frozen
class ThreadSharedAccesses:
    """The accesses of a statement to buffers that all threads of a CPU team share; a relation without
    accesses means that the addresses are unknown.

    reads, writes   for each buffer, the accesses that read and write it
    single          one thread runs the statement alone
    numbers         the numbers of the kernel: variables with one value in all statements and threads
    """

    reads: Accesses
    writes: Accesses
    single: bool = False
    numbers: frozenset[Var] = frozenset()

    def needs_barrier_with(self, other: ThreadSharedAccesses) -> bool:
        """Return True if two statements need a barrier between them: one may write elements that
        the other accesses.

        Statements that only one thread runs (`single`) never conflict with each other.
        """
        if self.single and other.single:
            return False
        pairs = ((self.writes, other.writes), (self.writes, other.reads), (self.reads, other.writes))
        return not all(a[b].is_disjoint_from(c[b], self.numbers) for a, c in pairs for b in a.keys() & c.keys())


@dataclass
class MemoryEffects:
    """Memory effects of the statements of one kernel, computed on demand and cached.

    kernel    the kernel
    private   scratch buffers of which each thread needs its own copy, as far as they were
              classified
    """

    kernel: Kernel
    private: set[Buffer] = field(default_factory=set)
    _accesses_cache: dict[object, ThreadSharedAccesses] = field(default_factory=dict)
    _buffers: dict[Stmt, tuple[frozenset[Buffer], frozenset[Buffer]]] = field(default_factory=dict)

    def buffers_written_and_read(self, stmt: Stmt) -> tuple[frozenset[Buffer], frozenset[Buffer]]:
        """Return the buffers that a statement, with the statements nested in it, writes and reads."""
        if stmt not in self._buffers:
            inner = [self.buffers_written_and_read(s) for s in direct_child_stmts(stmt)]
            written = buffer_written_by(stmt)
            writes = set() if written is None else {written}
            reads = {load.buffer for load in direct_loads(stmt)}
            buffer_sets = (
                frozenset(writes.union(*(w for w, _ in inner))),
                frozenset(reads.union(*(r for _, r in inner))),
            )
            self._buffers[stmt] = buffer_sets
        return self._buffers[stmt]

    def mark_private_scratch_filled_before_read(self, stmts: Sequence[Stmt]) -> None:
        """Mark scratch buffers as private that a statement of `stmts` fills before it reads them.

        Scratch that passes values from one statement to another stays shared.
        """
        for buffer in (b for b in self.kernel.workspace if b.private):
            if any(
                buffer in self.buffers_written_and_read(s)[0] and is_stored_before_first_load(buffer, s) for s in stmts
            ):
                self.private.add(buffer)

    @cached_property
    def _ranges_of_numbers(self) -> Ranges:
        return {number.var: number.interval for number in self.kernel.numbers if number.var.dtype == INDEX}

    def is_thread_local(self, buffer: Buffer) -> bool:
        """Return True if each thread has its own copy of a buffer: it is on the stack, or private
        scratch.
        """
        return buffer.scope == "stack" or buffer in self.private

    def thread_shared_buffers_written(self, stmt: Stmt) -> set[Buffer]:
        """Return the buffers shared between threads that a statement writes."""
        return {b for b in self.buffers_written_and_read(stmt)[0] if not self.is_thread_local(b)}

    def accesses_to_thread_shared_buffers(self, stmt: Stmt, ranges: Ranges) -> ThreadSharedAccesses:
        """Return the accesses of a statement to shared buffers, given the ranges of the variables
        around it.
        """
        key = (block_stmts_or_self(stmt), tuple(ranges.items()), frozenset(self.private))
        if key not in self._accesses_cache:
            written, read = self.buffers_written_and_read(stmt)
            both = {b: AccessRelation() for b in written | read if not self.is_thread_local(b)}
            collect_accesses(stmt, {**self._ranges_of_numbers, **ranges}, both)
            reads = {b: both[b].accesses_of_kind(is_write=False) for b in read if b in both}
            writes = {b: both[b].accesses_of_kind(is_write=True) for b in written if b in both}
            self._accesses_cache[key] = ThreadSharedAccesses(reads, writes, numbers=frozenset(self._ranges_of_numbers))
        return self._accesses_cache[key]

    def can_run_on_one_thread(self, stmts: Sequence[Stmt]) -> bool:
        """Return True if one thread alone may run the statements: no other statement uses registers
        or local buffers they write.
        """
        local = {b for s in stmts for b in self.buffers_written_and_read(s)[0] if self.is_thread_local(b)}
        return self.has_no_register_or_stack_flow_outside(stmts) and not self._is_used_outside(local, stmts)

    def has_no_register_or_stack_flow_outside(self, stmts: Sequence[Stmt]) -> bool:
        """Return True if the statements change no registers declared outside, and no statement
        outside uses their registers or stack arrays.
        """
        if any(True for _ in assigns_to_outer_registers(Block(stmts))):
            return False
        declared = {var for s in stmts if (var := register_declared_by(s)) is not None}
        local = {
            b for s in stmts for b in self.buffers_written_and_read(s)[0] if self.is_thread_local(b) and not b.private
        }
        return not self._is_used_outside(declared | local, stmts)

    def _is_used_outside(self, registers_and_buffers: AbstractSet[Var | Buffer], stmts: Sequence[Stmt]) -> bool:
        """Return True if a statement of the kernel outside of `stmts` uses one of the registers or
        buffers `registers_and_buffers`.
        """
        inside = set(walk_stmts(Block(stmts))) if registers_and_buffers else set()
        return any(
            s not in inside for k in registers_and_buffers for s in self._users_of_registers_and_buffers.get(k, ())
        )

    @cached_property
    def _users_of_registers_and_buffers(self) -> dict[Var | Buffer, dict[Stmt, None]]:
        """For each register and buffer, the statements of the kernel that use its value (a dict as
        an ordered set).
        """
        users: dict[Var | Buffer, dict[Stmt, None]] = {}
        for stmt in walk_stmts(self.kernel.body):
            for operand in (operand for e in direct_exprs_of_stmt(stmt) for operand in vars_and_buffers_in(e)):
                users.setdefault(operand, {})[stmt] = None
        return users

    def may_later_stmts_read_private_scratch(
        self, group: Sequence[Stmt], stmts: Sequence[Stmt], ranges: Ranges
    ) -> bool:
        """Return True if a statement after `group` in `stmts` may read values that the group left
        in private scratch.
        """
        left = {b for s in group for b in self.buffers_written_and_read(s)[0] if b.private and self.is_thread_local(b)}
        last = max(k for k, s in enumerate(stmts) if s is group[-1])
        numbers = self._ranges_of_numbers
        return any(
            not is_written_before_read(b, stmts[last + 1 :], {**numbers, **ranges}, frozenset(numbers)) for b in left
        )

    def do_kind_and_buffers_allow_division(self, loop: For) -> bool:
        """Return True if the iterations of a loop may be divided among threads, judged by its kind
        and its local buffers.

        Private scratch does not prevent that; stack arrays that any statement reads do, and
        instructions that write several rows of shared buffers.
        """
        local_buffers = {
            b for b in self.buffers_written_and_read(loop.body)[0] if self.is_thread_local(b) and not b.private
        }
        # an iteration may read what another iteration left there
        if any(b in self._users_of_registers_and_buffers for b in local_buffers):
            return False
        writes_rows_apart = any(
            isinstance(s.result, Destination) and s.has_rows_apart and not self.is_thread_local(s.result.buffer)
            for s in executions_in(loop.body)
        )
        return loop.kind == "independent" and not writes_rows_apart
