# SPDX-License-Identifier: Apache-2.0
"""What the blocks and threads of a device are to each other.

In: a loop over blocks, or over threads, and the ranges of the variables around it.  Out: what is wrong with its kind.

    for b in 0..4 block: for t in 0..256 thread: for n in 256 * b + t..9999 step 1024: y[n] = x[n]    # None
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from aotc.tir import Access, Linear, Phases, are_counted_apart, bounds, conjuncts, half_space, linear, linear_bounds
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Var, substitute, walk
from aotc.tir.loops import loop_dependence
from aotc.tir.loops.loop_dependence import Accesses, Ranges, differ, extent_of, inside, read, written
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, stmt_children, walk_stmts

_Counters = dict[Var, Expr]
_OPPOSITES: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def why_not_at_once(loop: For, ranges: Ranges, fixed: Iterable[Var], own: Container[Buffer]) -> str | None:
    """What speaks against running all iterations of a loop over blocks or threads at once; None if nothing does.

    ranges   of the variables around it, as far as they are known
    fixed    all variables around it
    own      memory of which each iteration has its own, or that nothing reads
    """
    phases = Phases.of(loop, inside([loop], ranges), own)
    ranges, fixed = phases.ranges, {*fixed, *phases.rounds}
    for phase in phases.found if extent_of(loop) != 1 else ():  # nothing runs beside a single one
        accesses: Accesses = {buffer: [] for buffer in written(phase) if buffer not in own}
        loop_dependence.collect(phase, ranges, accesses, closely=True)
        for buffer, found in accesses.items():
            apart = differ(found, loop, fixed) or _Dealt(buffer, loop, fixed).is_own(phase, ranges)
            if not apart and not are_counted_apart(buffer, phase, loop, ranges, fixed):
                return f"iterations may touch the same elements of {buffer.name}"
    return phases.problem


@dataclass(slots=True)
class _Dealt:
    """Follows the statements of a loop over blocks or threads to those that touch a buffer.

    parts   the places that were found to be an iteration's own
    """

    buffer: Buffer
    loop: For
    fixed: set[Var]
    parts: list[list[Access]] = field(default_factory=list)

    def is_own(self, stmt: Stmt, ranges: Ranges) -> bool:
        """Whether no two iterations touch one place of the buffer."""
        return self.out(stmt, ranges, {}) and all(
            loop_dependence.disjoint(a, b) for a, b in combinations(self.parts, 2)
        )

    def out(self, stmt: Stmt, ranges: Ranges, counters: _Counters) -> bool:
        """Whether registers and loops deal out places to iterations of the loop: `n = 256 * b + t` does.

        A place tells which values of these counters have it, and they tell which iteration.
        """
        if self.buffer not in written(stmt) | read(stmt):
            return True
        low, high = ranges[self.loop.var]
        if low == high:  # a single iteration comes here
            self.parts.append(self.places(stmt, ranges))
            return True
        guarded = _is_guarded(stmt)  # what it guards is known to be in fewer places
        if counters and not guarded and self.are_own(stmt, ranges, counters):
            return True
        if any(load.buffer is self.buffer for load in loop_dependence.loads(stmt)):
            return False
        match stmt:
            case For(step=step) if step > 1:
                turn = Var(stmt.var.name)
                low, high = loop_dependence.range_of(stmt, ranges)
                if high == math.inf:
                    return False
                ranges = {**ranges, stmt.var: (low, high), turn: (0, (high - low) // step)}
                return self.out(stmt.body, ranges, {**counters, stmt.var: stmt.begin + turn * step})
            case For():
                return self.out(stmt.body, inside([stmt], ranges), counters)
            case If():
                branches = ((s, _branch(ranges, stmt.cond, s is stmt.then, counters)) for s in stmt_children(stmt))
                return all(self.out(s, known, counters) for s, known in branches)
            case Block():
                return self.in_order(stmt.stmts, ranges, counters)
        return False

    def in_order(self, stmts: Sequence[Stmt], ranges: Ranges, counters: _Counters) -> bool:
        """Whether statements behind one another are dealt out."""
        changing = {s.var for stmt in stmts for s in walk_stmts(stmt) if isinstance(s, Assign)}
        for k, stmt in enumerate(stmts):
            if not (isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing):
                if not self.out(stmt, ranges, counters):
                    return False
                continue
            ranges = {**ranges, stmt.var: bounds(stmt.value, ranges)}
            if loop_dependence.is_fixed(stmt.value, self.fixed):
                self.fixed = {*self.fixed, stmt.var}
                continue
            self.fixed = self.fixed - {stmt.var}
            counters = {**counters, stmt.var: stmt.value}
            guarded = len(stmts) == k + 2 and _is_guarded(stmts[-1])
            if self.buffer in read(stmt) or (not guarded and self.are_own(Block(stmts[k + 1 :]), ranges, counters)):
                return self.buffer not in read(stmt)
        return True

    def places(self, stmt: Stmt, ranges: Ranges) -> list[Access]:
        """Where a statement touches the buffer."""
        found: Accesses = {self.buffer: []}
        loop_dependence.collect(stmt, ranges, found, closely=True)
        return found[self.buffer]

    def are_own(self, stmt: Stmt, ranges: Ranges, counters: _Counters) -> bool:
        """Whether the places of a statement tell the values of counters, and these the iteration."""
        found = self.places(stmt, ranges)
        if not self.is_injective(found, ranges, counters):
            return False
        self.parts.append(found)
        return True

    def is_injective(self, found: Sequence[Access], ranges: Ranges, counters: _Counters) -> bool:
        """Whether iterations have different places, which counters, or terms of the iteration in them, tell."""
        known = (found, ranges, counters), self.with_digits(found, ranges, counters)
        return any(self.is_injective_by(*one, counters) for one in known)

    def with_digits(
        self, found: Sequence[Access], ranges: Ranges, counters: _Counters
    ) -> tuple[Sequence[Access], Ranges, _Counters]:
        """What is made of the iteration in places, as `b // 66 % 2`, is counted, too."""
        terms = dict.fromkeys(atom for access in found for atom in access.form.terms)
        known = ({n for n in walk(atom) if isinstance(n, Var)} for atom in terms)
        atoms = (atom for atom, used in zip(terms, known, strict=True) if self.loop.var in used <= {*ranges})
        names = {atom: Var("digit", INDEX) for atom in atoms}
        extents = {var: bounds(atom, ranges) for atom, var in names.items()}
        forms = [Linear({names.get(a, a): c for a, c in f.terms.items()}, f.const) for f, *_ in found]
        accesses = [a._replace(form=form, ranges={**a.ranges, **extents}) for a, form in zip(found, forms, strict=True)]
        return accesses, {**ranges, **extents}, {**counters, **{var: atom for atom, var in names.items()}}

    def is_injective_by(self, found: Sequence[Access], ranges: Ranges, counters: _Counters, others: _Counters) -> bool:
        """Whether places are injective in each counter, and these, or registers they read, tell the iteration."""
        used = {n for access in found for atom in access.form.terms for n in walk(atom)}
        own = {var: value for var, value in counters.items() if var in used}
        if not own or not all(self.is_injective_in(found, var, ranges) for var in own):
            return False
        told = _joined([_made_of(value, counters) for value in own.values()], ranges)
        if told is not None and differ([told], _within(self.loop, ranges), self.fixed):
            return True
        rest = {var: value for var, value in others.items() if var not in own}
        told = _joined(own.values(), ranges)
        return 0 < len(rest) < len(others) and told is not None and self.is_injective([told], ranges, rest)

    def is_injective_in(self, found: Sequence[Access], var: Var, ranges: Ranges) -> bool:
        """Whether different values of a counter lead to different places."""
        low, high = ranges[var]
        if high - low == math.inf:
            return False
        least = Linear(const=min((access.form.const for access in found), default=0))
        moved = [access._replace(form=access.form.plus(least, -1)) for access in found]
        values = For(var, Const(int(high) + 1, INDEX), self.loop.body, begin=Const(int(low), INDEX))
        return differ(found, values, self.fixed) or differ(moved, values, self.fixed)


def _joined(values: Iterable[Expr], ranges: Ranges) -> Access | None:
    """One number for several; None if they have no bounds."""
    told, unit = Linear(), 1
    for form in (linear(value, ranges) for value in values):
        first, last = linear_bounds(form, ranges)
        if last - first == math.inf:
            return None
        told = told.plus(form, unit).plus(Linear(const=-int(first) * unit))
        unit *= int(last - first) + 1
    return Access(told, 1, ranges, {})


def _made_of(expr: Expr, counters: _Counters) -> Expr:
    """An expression without counters, of what they are made of."""
    for var, value in reversed(counters.items()):
        expr = substitute(expr, {var: value})
    return expr


def _is_guarded(stmt: Stmt) -> bool:
    return isinstance(stmt, If) and stmt.orelse is None


def _within(loop: For, ranges: Ranges) -> For:
    """A loop over the range of its variable, if that is finite."""
    low, high = ranges[loop.var]
    finite = -math.inf < low and high < math.inf
    return replace(loop, begin=Const(int(low), INDEX), end=Const(int(high) + 1, INDEX)) if finite else loop


def _branch(ranges: Ranges, cond: Expr, holds: bool, counters: _Counters) -> Ranges:
    """The ranges of variables and of registers in a branch: a test of a register is one of what it is made of."""
    for test in (cond, _made_of(cond, counters)):
        ranges = _narrowed(ranges, test, holds)
    for var, value in counters.items():
        (low, high), (least, most) = ranges[var], bounds(value, ranges)
        ranges = {**ranges, var: (max(low, least), min(high, most))}
    return ranges


def _narrowed(ranges: Ranges, cond: Expr, holds: bool) -> Ranges:
    """The ranges of variables where a condition holds, or does not."""
    if not holds:
        match cond:
            case Binary(op="lt" | "le" | "gt" | "ge" as op):
                cond = Binary(_OPPOSITES[op], cond.a, cond.b)
            case _:
                return ranges
    for half in filter(None, (half_space(part, ranges) for part in conjuncts(cond))):
        for var, factor in half.terms.items():
            if len(half.terms) == 1 and isinstance(var, Var) and var in ranges:
                low, high = ranges[var]
                edge = -(half.const // factor) if factor > 0 else half.const // -factor
                ranges = {**ranges, var: (max(low, edge), high) if factor > 0 else (low, min(high, edge))}
    return ranges
