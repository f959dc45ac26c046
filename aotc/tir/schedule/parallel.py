# SPDX-License-Identifier: Apache-2.0
"""Kernels for several threads: the same statements, of which every participant does its share.

In: a finished kernel.  Out: one for a team, or the very same where there is nothing to gain.  Every participant runs
the whole kernel with its own `PART` of `PARTS`:

    for i in 0..64: y[i] = ...       =>   lo = 64 * part / parts; hi = ...; for i in lo..hi: y[i] = ...
    sum = ...; for ...: sum += x[i]  =>   the same: what is in registers and on the stack, everybody computes
    y[0] = sum                       =>   if part == 0: y[0] = sum

Loops are divided only where their iterations provably write apart from each other, and what they write depends on
nothing but themselves: results are the same bits for any number of participants.  Between statements that touch the
same memory the participants wait for each other (`Sync`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, as_expr, maximum, minimum, walk
from aotc.tir.plan.program import Program, Step
from aotc.tir.simplify import Interval, Linear, bounds, linear
from aotc.tir.stmt import (
    PART,
    PARTS,
    Assign,
    Block,
    Declare,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Sync,
    Transpose,
    While,
    remembered_kernel,
    stmt_children,
    stmt_exprs,
    walk_stmts,
)

_ENOUGH: Final = 64
"""Iterations that any team can share evenly enough."""
_FEW: Final = 8
"""Iterations below this leave some participants with much less to do than others."""
_RUN: Final = 64
"""Iterations of an innermost loop that stay together: whole vectors, which the C compiler rounds in its own way."""
_MACS_PER_NS: Final = 50
_BYTES_PER_NS: Final = 80
_WORTH_NS: Final = 4000.0
"""Kernels that take less time by this rough measure are not worth a meeting."""

Ranges = dict[Var, Interval]


def for_teams(program: Program) -> Program:
    """The program with each kernel that is worth it for a team; the plan stays as it is."""
    made = {kernel: for_team(kernel) for kernel in program.kernels}
    return replace(program, steps=tuple(_step(step, made[step.kernel]) for step in program.steps))


def _step(step: Step, kernel: Kernel) -> Step:
    return step if kernel is step.kernel else replace(step, kernel=kernel)


def for_team(kernel: Kernel) -> Kernel:
    """The kernel for a team; itself if it is too small, or nothing in it can be divided."""
    nbytes = sum(b.nbytes for b in kernel.params)
    if kernel.source is not None or max(kernel.macs / _MACS_PER_NS, nbytes / _BYTES_PER_NS) < _WORTH_NS:
        return kernel
    made = remembered_kernel("team", kernel, kernel.span, lambda: _divided(kernel))
    return made if made.team else kernel


def _divided(kernel: Kernel) -> Kernel:
    splitter = _Splitter(kernel)
    stmts = splitter.region(_stmts(kernel.body), {}, frozenset())
    if stmts is None or not splitter.divided:
        return kernel
    return replace(
        kernel, body=Block(stmts), team=True, private=tuple(b for b in kernel.workspace if b in splitter.private)
    )


def _stmts(stmt: Stmt) -> tuple[Stmt, ...]:
    return stmt.stmts if isinstance(stmt, Block) else (stmt,)


def _loads(stmt: Stmt) -> Iterable[Load]:
    return (n for e in stmt_exprs(stmt) for n in walk(e) if isinstance(n, Load))


@dataclass(frozen=True, slots=True)
class _Use:
    """The shared buffers that a statement reads, and those that it writes, with the places where.

    single    one participant does it alone
    """

    reads: frozenset[Buffer]
    writes: dict[Buffer, list[_Access]]
    single: bool = False

    def conflicts(self, other: _Use) -> bool:
        """Whether one must be over before the other begins."""
        if self.single and other.single:
            return False
        read = any(b in other.reads for b in self.writes) or any(b in self.reads for b in other.writes)
        both = self.writes.keys() & other.writes.keys()
        return read or not all(_disjoint(self.writes[b], other.writes[b]) for b in both)


@dataclass
class _Splitter:
    """One kernel's division.  `private`: scratch of which each participant needs its own."""

    kernel: Kernel
    private: set[Buffer] = field(default_factory=set)
    divided: bool = False

    def region(self, stmts: Sequence[Stmt], ranges: Ranges, fixed: frozenset[Var]) -> list[Stmt] | None:
        """Statements that all participants run through together; None if they cannot.

        ranges   of the variables of loops outside, in which all participants go round together (`fixed`)
        """
        self._classify(stmts)
        found: list[Stmt] = []
        pending: list[_Use] = []
        for stmt in stmts:
            use = self._use(stmt, ranges)
            if use.writes:
                made = self._shared(stmt, ranges, fixed)
                if made is None and not self._can_be_single(stmt):
                    return None
                use = use if made is not None else replace(use, single=True)
                new = made if made is not None else If(PART.equal(0), stmt)
            else:
                new = stmt
            if any(use.conflicts(other) for other in pending):
                found.append(Sync())
                pending = []
            found.append(new)
            pending.append(use)
        return found

    def _classify(self, stmts: Sequence[Stmt]) -> None:
        """Scratch is private where a statement of this region fills it and reads it; else one hands it to another."""
        for buffer in self.kernel.workspace:
            if not buffer.private:
                continue
            if any(buffer in _written(s) and buffer in _read(s) for s in stmts):
                self.private.add(buffer)

    def _is_local(self, buffer: Buffer) -> bool:
        return buffer.scope == "stack" or buffer in self.private

    def _writes(self, stmt: Stmt) -> set[Buffer]:
        return {b for b in _written(stmt) if not self._is_local(b)}

    def _use(self, stmt: Stmt, ranges: Ranges) -> _Use:
        reads = frozenset(b for b in _read(stmt) if not self._is_local(b))
        accesses: dict[Buffer, list[_Access]] = {b: [] for b in self._writes(stmt)}
        known = _collect(stmt, ranges, accesses, reads=False)
        return _Use(reads, {b: found if known else [] for b, found in accesses.items()})

    def _can_be_single(self, stmt: Stmt) -> bool:
        """Whether nothing that every participant needs is left in registers or on the stack."""
        if isinstance(stmt, (Declare, Assign)) or any(isinstance(s, Assign) for s in _outer_assigns(stmt)):
            return False
        local = {b for b in _written(stmt) if self._is_local(b)}
        others = [s for s in walk_stmts(self.kernel.body) if s is not stmt]
        inside = set(walk_stmts(stmt))
        return not any(load.buffer in local for s in others if s not in inside for load in _loads(s))

    # --- loops

    def _shared(self, stmt: Stmt, ranges: Ranges, fixed: frozenset[Var]) -> Stmt | None:
        """A loop divided, or one whose body is; None if neither can be."""
        if not isinstance(stmt, For):
            return None
        chain = self._chain(stmt, ranges, fixed)
        count = math.prod(_units(loop) for loop in chain)
        if count >= _FEW:
            return self._divided(chain)
        together = self._together(stmt, ranges, fixed)
        if together is not None:
            return together
        return self._divided(chain) if count > 1 else None

    def _together(self, loop: For, ranges: Ranges, fixed: frozenset[Var]) -> Stmt | None:
        """A loop that all go round together, its body divided; None if each would do most of it for itself."""
        inside = _stmts(loop.body)
        if 2 * sum(_rounds(s) for s in inside if not self._writes(s)) > sum(map(_rounds, inside)):
            return None
        before = set(self.private), self.divided
        inner = {**ranges, loop.var: _range(loop, ranges)}
        self.divided = False
        body = self.region(_stmts(loop.body), inner, fixed | {loop.var})
        if body is None or not self.divided:
            self.private, self.divided = before
            return None
        end = () if self._is_parallel(loop, ranges, fixed) else (Sync(),)
        return For(loop.var, loop.end, Block([*body, *end]), begin=loop.begin, step=loop.step, kind=loop.kind)

    def _chain(self, loop: For, ranges: Ranges, fixed: frozenset[Var]) -> list[For]:
        """Loops one in the other, beginning with this one, whose iterations may be dealt out."""
        chain: list[For] = []
        ranges = dict(ranges)
        current: Stmt | None = loop
        while isinstance(current, For) and self._is_plain(current) and self._is_parallel(current, ranges, fixed):
            if chain and _is_innermost(current):
                break
            chain.append(current)
            ranges[current.var] = _range(current, ranges)
            fixed = fixed | {current.var}
            if math.prod(_units(c) for c in chain) >= _ENOUGH:
                break
            shared = [s for s in _stmts(current.body) if self._writes(s)]
            current = shared[0] if len(shared) == 1 else None
        return chain

    @cached_property
    def _all_read(self) -> set[Buffer]:
        return _read(self.kernel.body)

    def _is_plain(self, loop: For) -> bool:
        return loop.step == 1 and _extent(loop) > 0

    def _is_parallel(self, loop: For, ranges: Ranges, fixed: frozenset[Var]) -> bool:
        """Whether the iterations leave nothing for each other, in registers or in memory that they share."""
        if any(True for _ in _outer_assigns(loop.body)):
            return False
        kept = {b for b in _written(loop.body) if self._is_local(b) and not b.private}
        if kept & self._all_read:  # what one iteration leaves there another one may read
            return False
        accesses: dict[Buffer, list[_Access]] = {b: [] for b in self._writes(loop.body)}
        if not _collect(loop.body, {**ranges, loop.var: _range(loop, ranges)}, accesses):
            return False
        return all(_apart(found, loop.var, _extent(loop), fixed) for found in accesses.values())

    def _divided(self, chain: Sequence[For]) -> Stmt:
        """The loops over a participant's share of all their iterations, counted through."""
        self.divided = True
        sizes = [_extent(loop) for loop in chain]
        run = _RUN if _is_innermost(chain[0]) else 1
        total = math.prod(map(_units, chain))
        low, high = Var("lo", INDEX), Var("hi", INDEX)
        return Block(
            (
                Declare(low, _share(total, PART) * run),
                Declare(high, _share(total, PART + 1) * run),
                _counted(chain, sizes, low, high),
            )
        )


def _share(total: int, part: Expr) -> Expr:
    return Binary("truncdiv", part * total, PARTS)


def _counted(chain: Sequence[For], sizes: Sequence[int], low: Expr, high: Expr) -> Stmt:
    """The loops from iteration `low` to `high` of all; bounds of inner ones clipped in the first and last round."""
    loop, *rest = chain
    if not rest:
        begin, end = maximum(low, 0), minimum(high, sizes[0])
        return For(loop.var, end, loop.body, begin=begin, kind=loop.kind)
    inside = math.prod(sizes[1:])
    begin, end = maximum(_quotient(low, inside), 0), minimum(_quotient(high + (inside - 1), inside), sizes[0])
    done = loop.var * inside
    inner = _counted(rest, sizes[1:], low - done, high - done)
    body = Block(inner if s is rest[0] else s for s in _stmts(loop.body))
    return For(loop.var, end, body, begin=begin, kind=loop.kind)


def _quotient(value: Expr, divisor: int) -> Expr:
    """Rounded to zero: what is negative is clipped to 0 anyway."""
    return Binary("truncdiv", value, as_expr(divisor))


# --- what statements touch


def _written(stmt: Stmt) -> set[Buffer]:
    return {s.buffer for s in walk_stmts(stmt) if isinstance(s, (Store, Transpose))}


def _read(stmt: Stmt) -> set[Buffer]:
    return {load.buffer for s in walk_stmts(stmt) for load in _loads(s)}


def _outer_assigns(stmt: Stmt) -> Iterable[Assign]:
    """Assignments to registers that were declared outside."""
    inside = {s.var for s in walk_stmts(stmt) if isinstance(s, Declare)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in inside)


def _extent(loop: For) -> int:
    """How often a loop from 0 runs; 0 if that is not known."""
    begin, end = loop.begin, loop.end
    return int(end.value) if isinstance(begin, Const) and isinstance(end, Const) and begin.value == 0 else 0


def _is_innermost(loop: For) -> bool:
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def _rounds(stmt: Stmt) -> int:
    """A measure of a statement's work: how often the bodies of its loops run, those of unknown extent once."""
    match stmt:
        case For():
            inside = sum(_rounds(s) for s in _stmts(stmt.body))
            return max(1, _extent(stmt)) * max(1, inside)
        case While() | If():
            return 1 + sum(_rounds(s) for s in stmt_children(stmt))
        case _:
            return 0


def _units(loop: For) -> int:
    """The parts of a loop that can be dealt out."""
    return -(-_extent(loop) // _RUN) if _is_innermost(loop) else _extent(loop)


def _range(loop: For, ranges: Ranges) -> Interval:
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    if isinstance(loop.begin, Const) and high < math.inf:
        high = low + (high - low) // loop.step * loop.step
    return low, high


_Access = tuple[Linear, int, Ranges]
"""The place of a first element as a sum of terms, how many follow one another, the ranges of variables."""


def _disjoint(a: Sequence[_Access], b: Sequence[_Access]) -> bool:
    """Whether two statements write apart from each other: in different parts of the buffer, or of each of its rows."""
    strides = {abs(c) for form, _, _ in (*a, *b) for c in form.terms.values()}
    return bool(a and b) and any(_parted(_window(a, n), _window(b, n), n) for n in sorted(strides | {0}))


def _parted(a: Interval, b: Interval, row: int) -> bool:
    inside = row == 0 or (min(a[0], b[0]) >= 0 and max(a[1], b[1]) < row)
    return inside and (a[1] < b[0] or b[1] < a[0])


def _window(accesses: Sequence[_Access], row: int) -> Interval:
    """From the first element to the last; within rows of a length, if it is not 0."""
    first, last = math.inf, -math.inf
    for form, lanes, ranges in accesses:
        terms = {atom: c for atom, c in form.terms.items() if not row or c % row}
        low, high = bounds(Linear(terms, form.const % row if row else form.const).expr(), ranges)
        first, last = min(first, low), max(last, high + lanes - 1)
    return first, last


def _collect(stmt: Stmt, ranges: Ranges, accesses: dict[Buffer, list[_Access]], reads: bool = True) -> bool:
    """All places where the buffers are written, and read; False if a statement's cannot be told."""
    ranges = dict(ranges)
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            ranges[s.var] = _range(s, ranges)
        if isinstance(s, Transpose) and s.buffer in accesses:
            return False
        if isinstance(s, Store) and s.buffer in accesses:
            accesses[s.buffer].append((linear(s.index, ranges), s.value.lanes, ranges))
        for load in _loads(s) if reads else ():
            if load.buffer in accesses:
                accesses[load.buffer].append((linear(load.index, ranges), load.lanes, ranges))
    return True


def _apart(accesses: Sequence[_Access], var: Var, extent: int, fixed: frozenset[Var]) -> bool:
    """Whether places of different values of `var` are always different.

    Every place is step * var + low + high, where all of `high` is a multiple of a number (that of a row of the output,
    of which loops or the statements of an unrolled tile make several) that step * var + low never reaches across, and
    `low` never reaches across a step.
    """
    steps = {form.coefficient(var) for form, _, _ in accesses}
    step = next(iter(steps)) if len(steps) == 1 else None
    if not step:
        return False
    span = abs(step) * extent
    rests = [{a: c for a, c in form.terms.items() if a is not var and a not in fixed} for form, _, _ in accesses]
    unit = math.gcd(*(c for rest in rests for c in rest.values() if abs(c) >= span))
    consts = sorted({form.const for form, _, _ in accesses})
    rows = {math.gcd(unit, c - consts[0]) for c in consts if c - consts[0] >= span}
    return any(_steps_apart(accesses, rests, abs(step), extent, u) for u in (unit, *sorted(rows)))


def _steps_apart(
    accesses: Sequence[_Access], rests: Sequence[dict[Expr, int]], step: int, extent: int, unit: int
) -> bool:
    """Whether what is left of the places without multiples of `unit` stays within its step."""
    span = step * extent
    least, most = math.inf, -math.inf
    for (form, lanes, ranges), rest in zip(accesses, rests, strict=True):
        const = form.const % unit if unit else form.const
        low = Linear({a: c for a, c in rest.items() if abs(c) < span}, const)
        begin, end = bounds(low.expr(), ranges)
        least, most = min(least, begin), max(most, end + lanes)
    reach = most - least
    if not reach <= step:  # infinite ones too
        return False
    return unit == 0 or step * (extent - 1) + reach <= unit
