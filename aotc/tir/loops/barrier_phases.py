# SPDX-License-Identifier: Apache-2.0
"""Split the body of a loop over GPU threads at its barriers into phases, for race checks within
each phase.

Input: a loop over threads. Output: the statements of each phase. A loop that contains barriers
contributes its first iteration, and any iteration with its successor, in place of its variable:

    for k in 0..3 { tile[t] = x[3 * t + k]  sync  y[t] = y[t] + tile[7 - t]  sync }
    # tile[t] = x[3 * t]  |  y[t] = y[t] + tile[7 - t]  |  tile[t] = x[3 * t + k + 1]
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from aotc.ir import frozen
from aotc.tir import THREADS_PER_WARP, block_stmts_or_self, direct_exprs_of_stmt, map_exprs, walk_stmts
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, operands, substitute
from aotc.tir.loops.loop_dependence import (
    Ranges,
    constant_trip_count,
    known_trip_count,
    ranges_inside_loops,
    read_buffers,
    written_buffers,
)
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    Execute,
    For,
    If,
    Stmt,
    While,
    direct_child_stmts,
    is_barrier,
    is_warp_wide,
    register_declared_by,
)

_DIVERGENT_BARRIER_MESSAGE: Final = "a barrier is under control flow that differs between threads"
_DIVERGENT_WARP_CALL_MESSAGE: Final = (
    "a warp instruction is under control flow that differs between the threads of a warp"
)
_SKIPPED_BARRIER_MESSAGE: Final = "a barrier inside a loop is under a condition"
_Env = Mapping[Var, Expr]


def contains_barrier(stmt: Stmt) -> bool:
    """Return True if a statement is, or contains, a barrier."""
    return any(map(is_barrier, walk_stmts(stmt)))


@dataclass(slots=True)
class BarrierPhases:
    """The statements of a loop over threads or blocks, split at barriers; accesses to memory that
    is only read are left out.

    ranges        the ranges of variables, including the new variables of loops around barriers
    written       buffers that the loop writes, without memory that each iteration has for itself
    changing      registers that are assigned to after their declaration
    rounds        the new variables of loops around barriers, each with one value for all threads
    phase_stmts   the statements of each phase; where conditions decide, a superset of the
                  statements that run
    problem       the error in the use of barriers; None if there is none
    present       the statements collected for the current phase
    """

    ranges: Ranges
    written: frozenset[Buffer]
    changing: frozenset[Var]
    rounds: set[Var] = field(default_factory=set)
    phase_stmts: list[Stmt] = field(default_factory=list)
    problem: str | None = None
    present: list[Stmt] = field(default_factory=list)

    @staticmethod
    def split_loop_at_barriers(loop: For, ranges: Ranges, private_memory: Container[Buffer]) -> BarrierPhases:
        """Return the phases of a loop; a loop over blocks is a single phase.

        ranges            the ranges of the variables around the loop
        private_memory    memory of which each iteration has a copy of its own, which cannot cause races
        """
        changing = frozenset(s.var for s in walk_stmts(loop.body) if isinstance(s, Assign))
        phases = BarrierPhases(
            ranges, frozenset(b for b in written_buffers(loop.body) if b not in private_memory), changing
        )
        if loop.kind == "thread" and (
            any(map(is_warp_wide, walk_stmts(loop.body))) and _has_divergent_barrier(loop, within_warp=True)
        ):
            phases.problem = _DIVERGENT_WARP_CALL_MESSAGE
        if loop.kind == "block" or not contains_barrier(loop.body):
            phases.phase_stmts = [loop.body]
        elif _has_divergent_barrier(loop, within_warp=False):
            phases.problem = _DIVERGENT_BARRIER_MESSAGE
        else:
            phases.add_stmt_to_phases(loop.body, {})
            phases.end_phase()
        return phases

    def end_phase(self) -> None:
        """End the current phase (the statements between two barriers), at a barrier."""
        self.phase_stmts.append(Block(self.present))
        self.present = []

    def add_stmt_to_phases(self, stmt: Stmt, value_of_var: _Env) -> None:
        """Add a statement to the current phase, and end the phase at each barrier in it.

        `value_of_var` maps variables to values: loop variables of loops around barriers, and index
        registers declared in earlier phases. Set `problem` if a barrier is skipped in some
        iterations of a loop.
        """
        if not contains_barrier(stmt):
            self.present.append(self.substitute_or_drop_if_no_written_memory(stmt, value_of_var))
            return
        self.present += (
            self.substitute_or_drop_if_no_written_memory(Declare(Var("read", e.dtype, e.lanes), e), value_of_var)
            for e in direct_exprs_of_stmt(stmt)
        )
        match stmt:
            case Execute():
                self.end_phase()
            case Block():
                known = value_of_var
                for inner in stmt.stmts:
                    value_of_var = known if contains_barrier(inner) else value_of_var
                    self.add_stmt_to_phases(inner, value_of_var)
                    if self.declares_never_reassigned_index(inner):
                        known = {**known, inner.var: substitute(inner.value, known)}
            case If():
                before = self.present
                ends = [] if stmt.orelse is not None else list(before)
                for branch in direct_child_stmts(stmt):
                    self.present = list(before)
                    self.add_stmt_to_phases(branch, value_of_var)
                    ends += self.present
                self.present = list(dict.fromkeys(ends))
            case For():
                self.add_phases_of_loop(stmt, value_of_var)
            case _:
                self.problem = _SKIPPED_BARRIER_MESSAGE

    def add_phases_of_loop(self, loop: For, value_of_var: _Env) -> None:
        """Add the phases of a loop around barriers: its first iteration, then any iteration and the
        iteration after it.

        Set `problem` if an iteration may have no barrier.
        """
        if not _always_reaches_barrier(loop.body):
            self.problem = _SKIPPED_BARRIER_MESSAGE
        before, var = list(self.present), Var(loop.var.name)
        begin, end = (substitute(e, value_of_var) for e in (loop.begin, loop.end))
        self.ranges = ranges_inside_loops([replace(loop, var=var, begin=begin, end=end)], self.ranges)
        self.rounds.add(var)
        self.add_stmt_to_phases(loop.body, {**value_of_var, loop.var: begin})
        self.present = []
        self.add_stmt_to_phases(loop.body, {**value_of_var, loop.var: var})
        last = list(self.present)
        self.add_stmt_to_phases(loop.body, {**value_of_var, loop.var: var + loop.step})
        self.present = last if constant_trip_count(loop) else [*before, *last]

    def declares_never_reassigned_index(self, stmt: Stmt) -> TypeGuard[Declare]:
        """Return True if a statement declares an index register that is never assigned to again."""
        return isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in self.changing

    def substitute_or_drop_if_no_written_memory(self, stmt: Stmt, value_of_var: _Env) -> Stmt:
        """Return a statement with the variables in `value_of_var` replaced; an empty block if it
        accesses no memory that the loop writes.
        """
        touched = self.declares_never_reassigned_index(stmt) or self.written.intersection(
            written_buffers(stmt) | read_buffers(stmt)
        )
        return map_exprs(stmt, lambda e: substitute(e, value_of_var)) if touched else Block(())


def _always_reaches_barrier(stmt: Stmt) -> bool:
    """Return True if every execution of a statement reaches a barrier."""
    match stmt:
        case If():
            return stmt.orelse is not None and all(map(_always_reaches_barrier, direct_child_stmts(stmt)))
        case For():
            return bool(constant_trip_count(stmt)) and _always_reaches_barrier(stmt.body)
        case _:
            return is_barrier(stmt) or any(
                map(_always_reaches_barrier, block_stmts_or_self(stmt) if isinstance(stmt, Block) else ())
            )


def _has_divergent_barrier(loop: For, *, within_warp: bool) -> bool:
    """Return True if threads may diverge around a barrier or, with `within_warp`, threads of one
    warp around a warp-wide instruction.
    """
    divergent_vars: set[Var] = set()
    spread = _DivergenceAnalysis(loop.var, divergent_vars, within_warp)
    while True:
        size = len(divergent_vars)
        divided = spread.find_divergent_sync_marking_registers(
            loop.body, is_divergent=within_warp and known_trip_count(loop) % THREADS_PER_WARP != 0
        )
        if len(divergent_vars) == size:
            return divided


@frozen(eq=False)
class _DivergenceAnalysis:
    """Fixpoint analysis of thread-dependent (divergent) registers.

    thread                the variable of the loop over threads
    divergent_registers   registers whose values may differ between threads; grows until the fixpoint
    warp                  compare the threads of one warp only, instead of all threads of a block
    """

    thread: Var
    divergent_registers: set[Var]
    warp: bool

    def find_divergent_sync_marking_registers(self, stmt: Stmt, *, is_divergent: bool) -> bool:
        """Add the registers that a statement sets to divergent values to `divergent_registers`.

        Return True if the statement contains a barrier (with `warp`, a warp-wide instruction) under
        divergent control flow.

        is_divergent    the statement itself is under divergent control flow
        """
        differs = any(map(self.differs_between_threads, direct_exprs_of_stmt(stmt)))
        register = stmt.var if isinstance(stmt, (For, Assign)) else register_declared_by(stmt)
        if register is not None and (is_divergent or differs):
            self.divergent_registers.add(register)
        is_sync_point = is_warp_wide(stmt) if self.warp else is_barrier(stmt)
        is_divergent = is_divergent or (differs and isinstance(stmt, (For, While, If)))
        child_results = [
            self.find_divergent_sync_marking_registers(s, is_divergent=is_divergent) for s in direct_child_stmts(stmt)
        ]
        return any(child_results) or (is_divergent and is_sync_point)

    def differs_between_threads(self, expr: Expr) -> bool:
        """Return True if a value may differ between threads; `t // 32` and `t < 64` do not differ
        within a warp.
        """
        match expr:
            case Var():
                return expr is self.thread or expr in self.divergent_registers
            case Load() if expr.buffer.scope == "stack":
                return True
            case Binary(a=a, b=Const(value=n), op="floordiv" | "lt" | "ge") if (
                a is self.thread and n % THREADS_PER_WARP == 0
            ):
                return not self.warp
        return any(map(self.differs_between_threads, operands(expr)))
