# SPDX-License-Identifier: Apache-2.0
"""Which memory the statements of a kernel use, and what they leave behind: the facts that dividing it rests on.

Statements and the ranges of variables around them in; the shared buffers that they read and write out, with places, and
whether registers or scratch hand anything on to other statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property

from aotc.ir import frozen
from aotc.tir import Block, Buffer, Declare, For, Intrinsic, Kernel, Stmt, Var, mentioned, stmt_exprs, walk_stmts
from aotc.tir.loops import loop_dependence
from aotc.tir.loops.loop_dependence import Accesses, Ranges, collect, disjoint, loads, outer_assigns
from aotc.tir.stmt import Store, stmt_children, stmts_of


@frozen
class Use:
    """The shared buffers that a statement reads and writes, with the places where (none if they cannot be told).

    single    one thread runs it alone
    """

    reads: Accesses
    writes: Accesses
    single: bool = False

    def conflicts(self, other: Use) -> bool:
        """Whether one must be over before the other begins."""
        if self.single and other.single:
            return False
        pairs = ((self.writes, other.writes), (self.writes, other.reads), (self.reads, other.writes))
        return not all(disjoint(a[b], c[b]) for a, c in pairs for b in a.keys() & c.keys())


@dataclass
class Uses:
    """What the statements of one kernel use.

    private  scratch of which each thread needs its own, as far as is known so far
    """

    kernel: Kernel
    private: set[Buffer] = field(default_factory=set)
    _known: dict[object, Use] = field(default_factory=dict)
    _buffers: dict[Stmt, tuple[frozenset[Buffer], frozenset[Buffer]]] = field(default_factory=dict)

    def buffers(self, stmt: Stmt) -> tuple[frozenset[Buffer], frozenset[Buffer]]:
        """What a statement, with those inside of it, writes and reads; found once for each."""
        if stmt not in self._buffers:
            inner = [self.buffers(s) for s in stmt_children(stmt)]
            writes = {stmt.buffer} if isinstance(stmt, (Store, Intrinsic)) else set()
            reads = {load.buffer for load in loads(stmt)}
            made = frozenset(writes.union(*(w for w, _ in inner))), frozenset(reads.union(*(r for _, r in inner)))
            self._buffers[stmt] = made
        return self._buffers[stmt]

    def classify(self, stmts: Sequence[Stmt]) -> None:
        """Scratch is private where a statement of this region fills it and reads it; else one hands it to another."""
        for buffer in (b for b in self.kernel.workspace if b.private):
            if any(buffer in self.buffers(s)[0] and loop_dependence.begins_with_filling(buffer, s) for s in stmts):
                self.private.add(buffer)

    def is_local(self, buffer: Buffer) -> bool:
        return buffer.scope == "stack" or buffer in self.private

    def writes(self, stmt: Stmt) -> set[Buffer]:
        return {b for b in self.buffers(stmt)[0] if not self.is_local(b)}

    def of(self, stmt: Stmt, ranges: Ranges) -> Use:
        key = (stmts_of(stmt), tuple(ranges.items()), frozenset(self.private))
        if key not in self._known:
            reads: Accesses = {b: [] for b in self.buffers(stmt)[1] if not self.is_local(b)}
            writes: Accesses = {b: [] for b in self.writes(stmt)}
            collect(stmt, ranges, reads, stores=False)
            collect(stmt, ranges, writes, reads=False)
            self._known[key] = Use(reads, writes)
        return self._known[key]

    def can_be_single(self, group: Sequence[Stmt]) -> bool:
        """Whether nothing that every thread needs is left in registers or on the stack."""
        local = {b for s in group for b in self.buffers(s)[0] if self.is_local(b)}
        return self.is_closed(group) and not self._is_used(local, group)

    def is_closed(self, stmts: Sequence[Stmt]) -> bool:
        """Whether the statements leave nothing in registers or on the stack, and change no registers."""
        if any(True for _ in outer_assigns(Block(stmts))):
            return False
        declared = {s.var for s in stmts if isinstance(s, Declare)}
        local = {b for s in stmts for b in self.buffers(s)[0] if self.is_local(b) and not b.private}
        return not self._is_used(declared | local, stmts)

    def _is_used(self, kept: AbstractSet[Var | Buffer], stmts: Sequence[Stmt]) -> bool:
        """Whether another statement of the kernel than these computes with one of the registers or buffers."""
        inside = set(walk_stmts(Block(stmts))) if kept else set()
        return any(s not in inside for k in kept for s in self._users.get(k, ()))

    @cached_property
    def _users(self) -> dict[Var | Buffer, dict[Stmt, None]]:
        """The statements of the kernel that compute with each register, and that load from each buffer."""
        found: dict[Var | Buffer, dict[Stmt, None]] = {}
        for stmt in walk_stmts(self.kernel.body):
            for kept in (kept for e in stmt_exprs(stmt) for kept in mentioned(e)):
                found.setdefault(kept, {})[stmt] = None
        return found

    def hands_on(self, group: Sequence[Stmt], stmts: Sequence[Stmt], ranges: Ranges) -> bool:
        """Whether a statement behind the group reads what this has left in private scratch."""
        left = {b for s in group for b in self.buffers(s)[0] if b.private and self.is_local(b)}
        last = max(k for k, s in enumerate(stmts) if s is group[-1])
        return any(not loop_dependence.is_filled_before_read(b, stmts[last + 1 :], ranges) for b in left)

    def is_divisible(self, loop: For) -> bool:
        """Whether a thread may run some of the iterations, as far as the loop and its scratch say."""
        kept = {b for b in self.buffers(loop.body)[0] if self.is_local(b) and not b.private}
        # what one iteration leaves there another one may read
        if any(b in self._users for b in kept):
            return False
        turned = any(isinstance(s, Intrinsic) and not self.is_local(s.buffer) for s in walk_stmts(loop.body))
        return loop.kind == "independent" and not turned
