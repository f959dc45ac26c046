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
from aotc.tir import WARP, map_exprs, stmt_exprs, stmts_of, walk_stmts
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, operands, substitute
from aotc.tir.loops.loop_dependence import Ranges, extent_of, inside, read, written
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, Sync, While, is_barrier, stmt_children, warp_call

_UNDER: Final = "a barrier is under control that is not alike for all threads"
_DIVERGENT: Final = "an instruction of a warp is under control that is not alike for its threads"
_SKIPPED: Final = "a barrier inside a loop is under a condition"
_Env = Mapping[Var, Expr]


def meets(stmt: Stmt) -> bool:
    """Return True if a statement is, or contains, a barrier."""
    return any(map(is_barrier, walk_stmts(stmt)))


@dataclass(slots=True)
class Phases:
    """The statements of a loop over threads or blocks, split at barriers; accesses to memory that
    is only read are left out.

    ranges     the ranges of variables, including the new variables of loops around barriers
    written    buffers that the loop writes, without memory that each iteration has for itself
    changing   registers that are assigned to after their declaration
    rounds     the new variables of loops around barriers, each with one value for all threads
    found      the statements of each phase; where conditions decide, a superset of the statements
               that run
    problem    the error in the use of barriers; None if there is none
    present    the statements collected for the current phase
    """

    ranges: Ranges
    written: frozenset[Buffer]
    changing: frozenset[Var]
    rounds: set[Var] = field(default_factory=set)
    found: list[Stmt] = field(default_factory=list)
    problem: str | None = None
    present: list[Stmt] = field(default_factory=list)

    @staticmethod
    def of(loop: For, ranges: Ranges, own: Container[Buffer]) -> Phases:
        """Return the phases of a loop; a loop over blocks is a single phase.

        ranges   the ranges of the variables around the loop
        own      memory of which each iteration has a copy of its own, which cannot cause races
        """
        changing = frozenset(s.var for s in walk_stmts(loop.body) if isinstance(s, Assign))
        made = Phases(ranges, frozenset(b for b in written(loop.body) if b not in own), changing)
        if loop.kind == "thread" and (any(map(warp_call, walk_stmts(loop.body))) and _is_divided(loop, warp=True)):
            made.problem = _DIVERGENT
        if loop.kind == "block" or not meets(loop.body):
            made.found = [loop.body]
        elif _is_divided(loop, warp=False):
            made.problem = _UNDER
        else:
            made.add(loop.body, {})
            made.end()
        return made

    def end(self) -> None:
        """End the current phase (the statements between two barriers), at a barrier."""
        self.found.append(Block(self.present))
        self.present = []

    def add(self, stmt: Stmt, env: _Env) -> None:
        """Add a statement to the current phase, and end the phase at each barrier in it.

        `env` maps variables to values: loop variables of loops around barriers, and index registers
        declared in earlier phases. Set `problem` if a barrier is skipped in some iterations of a
        loop.
        """
        if not meets(stmt):
            self.present.append(self.kept(stmt, env))
            return
        self.present += (self.kept(Declare(Var("read", e.dtype, e.lanes), e), env) for e in stmt_exprs(stmt))
        match stmt:
            case Sync() | Declare():
                self.end()
            case Block():
                known = env
                for inner in stmt.stmts:
                    env = known if meets(inner) else env
                    self.add(inner, env)
                    if self.is_index(inner):
                        known = {**known, inner.var: substitute(inner.value, known)}
            case If():
                before = self.present
                ends = [] if stmt.orelse is not None else list(before)
                for branch in stmt_children(stmt):
                    self.present = list(before)
                    self.add(branch, env)
                    ends += self.present
                self.present = list(dict.fromkeys(ends))
            case For():
                self.rounds_of(stmt, env)
            case _:
                self.problem = _SKIPPED

    def rounds_of(self, loop: For, env: _Env) -> None:
        """Add the phases of a loop around barriers: its first iteration, then any iteration and the
        iteration after it.

        Set `problem` if an iteration may have no barrier.
        """
        if not _always(loop.body):
            self.problem = _SKIPPED
        before, var = list(self.present), Var(loop.var.name)
        begin, end = (substitute(e, env) for e in (loop.begin, loop.end))
        self.ranges = inside([replace(loop, var=var, begin=begin, end=end)], self.ranges)
        self.rounds.add(var)
        self.add(loop.body, {**env, loop.var: begin})
        self.present = []
        self.add(loop.body, {**env, loop.var: var})
        last = list(self.present)
        self.add(loop.body, {**env, loop.var: var + loop.step})
        self.present = last if extent_of(loop) else [*before, *last]

    def is_index(self, stmt: Stmt) -> TypeGuard[Declare]:
        """Return True if a statement declares an index register that is never assigned to again."""
        return isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in self.changing

    def kept(self, stmt: Stmt, env: _Env) -> Stmt:
        """Return a statement with the variables in `env` replaced; an empty block if it accesses no
        memory that the loop writes.
        """
        touched = self.is_index(stmt) or self.written.intersection(written(stmt) | read(stmt))
        return map_exprs(stmt, lambda e: substitute(e, env)) if touched else Block(())


def _always(stmt: Stmt) -> bool:
    """Return True if every execution of a statement reaches a barrier."""
    match stmt:
        case If():
            return stmt.orelse is not None and all(map(_always, stmt_children(stmt)))
        case For():
            return extent_of(stmt) > 0 and _always(stmt.body)
        case _:
            return is_barrier(stmt) or any(map(_always, stmts_of(stmt) if isinstance(stmt, Block) else ()))


def _is_divided(loop: For, *, warp: bool) -> bool:
    """Return True if threads may diverge around a barrier or, with `warp`, threads of one warp
    around a warp-wide instruction.
    """
    own: set[Var] = set()
    spread = _Spread(loop.var, own, warp)
    while True:
        size = len(own)
        divided = spread.over(loop.body, under=warp and extent_of(loop) % WARP != 0)
        if len(own) == size:
            return divided


@frozen(eq=False)
class _Spread:
    """Fixpoint analysis of thread-dependent (divergent) registers.

    thread   the variable of the loop over threads
    own      registers whose values may differ between threads; grows until the fixpoint
    warp     compare the threads of one warp only, instead of all threads of a block
    """

    thread: Var
    own: set[Var]
    warp: bool

    def over(self, stmt: Stmt, *, under: bool) -> bool:
        """Add the registers that a statement sets to divergent values to `own`.

        Return True if the statement contains a barrier (with `warp`, a warp-wide instruction) under
        divergent control flow.

        under   the statement itself is under divergent control flow
        """
        differs = any(map(self.differs, stmt_exprs(stmt)))
        if isinstance(stmt, (For, Declare, Assign)) and (under or differs):
            self.own.add(stmt.var)
        met = warp_call(stmt) is not None if self.warp else is_barrier(stmt)
        under = under or (differs and isinstance(stmt, (For, While, If)))
        found = [self.over(s, under=under) for s in stmt_children(stmt)]
        return any(found) or (under and met)

    def differs(self, expr: Expr) -> bool:
        """Return True if a value may differ between threads; `t // 32` and `t < 64` do not differ
        within a warp.
        """
        match expr:
            case Var():
                return expr is self.thread or expr in self.own
            case Load() if expr.buffer.scope == "stack":
                return True
            case Binary(a=a, b=Const(value=n), op="floordiv" | "lt" | "ge") if a is self.thread and n % WARP == 0:
                return not self.warp
        return any(map(self.differs, operands(expr)))
