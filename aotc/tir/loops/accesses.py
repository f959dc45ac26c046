# SPDX-License-Identifier: Apache-2.0
"""What statements touch, and whether that is apart: the proofs behind sharing a kernel.

In: statements over flat buffers, the ranges of variables outside.  Out: places, and whether they never meet:

    for i in 0..8: for c in 0..16: y[16 * i + c] = ...        # iterations of i write apart, those of c too
    for i in 0..8: for c in 0..17: y[16 * i + c] = ...        # neighbours in i meet
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, walk
from aotc.tir.simplify import Interval, Linear, bounds, linear, linear_bounds
from aotc.tir.stmt import Assign, Block, Declare, For, Stmt, Store, Transpose, While, stmt_exprs, walk_stmts

Ranges = dict[Var, Interval]

_MANY: Final = 1 << 16
"""Elements of scratch that are followed one by one."""


def loads(stmt: Stmt) -> Iterable[Load]:
    return (n for e in stmt_exprs(stmt) for n in walk(e) if isinstance(n, Load))


def written(stmt: Stmt) -> set[Buffer]:
    return {s.buffer for s in walk_stmts(stmt) if isinstance(s, (Store, Transpose))}


def read(stmt: Stmt) -> set[Buffer]:
    return {load.buffer for s in walk_stmts(stmt) for load in loads(s)}


def outer_assigns(stmt: Stmt) -> Iterable[Assign]:
    """Assignments to registers that were declared outside."""
    inside = {s.var for s in walk_stmts(stmt) if isinstance(s, Declare)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in inside)


def extent_of(loop: For) -> int:
    """How often a loop runs; 0 if that is not known."""
    begin, end = loop.begin, loop.end
    if not (isinstance(begin, Const) and isinstance(end, Const)):
        return 0
    return len(range(int(begin.value), int(end.value), loop.step))


def is_innermost(loop: For) -> bool:
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def range_of(loop: For, ranges: Ranges) -> Interval:
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    if isinstance(loop.begin, Const) and high < math.inf:
        high = low + (high - low) // loop.step * loop.step
    return low, high


class Access(NamedTuple):
    """The place of a first element as a sum of terms, how many follow one another, the ranges of variables.

    lasts   what the last value of a variable is no larger than, where others are in it
    """

    form: Linear
    lanes: int
    ranges: Ranges
    lasts: Mapping[Var, Sequence[Linear]]

    def highest(self, form: Linear) -> float:
        """No less than the form at these places, where a loop may end sooner in some rounds of others."""
        high = linear_bounds(form, self.ranges)[1]
        for var in [a for a, factor in form.terms.items() if isinstance(a, Var) and factor > 0]:
            rest = Linear({a: factor for a, factor in form.terms.items() if a is not var}, form.const)
            for last in self.lasts.get(var, ()):
                high = min(high, linear_bounds(rest.plus(last, form.terms[var]), self.ranges)[1])
        return high


def disjoint(a: Sequence[Access], b: Sequence[Access]) -> bool:
    """Whether two statements write apart from each other: in different parts of the buffer, or of each of its rows."""
    strides = {abs(c) for access in (*a, *b) for c in access.form.terms.values()}
    return bool(a and b) and any(_parted(_window(a, n), _window(b, n), n) for n in sorted(strides | {0}))


def follows(b: Sequence[Access], a: Sequence[Access]) -> bool:
    """Whether all of the places `b` lie behind those of `a`."""
    return bool(a and b) and _window(a, 0)[1] < _window(b, 0)[0]


def _parted(a: Interval, b: Interval, row: int) -> bool:
    inside = row == 0 or (min(a[0], b[0]) >= 0 and max(a[1], b[1]) < row)
    return inside and (a[1] < b[0] or b[1] < a[0])


def _window(accesses: Sequence[Access], row: int) -> Interval:
    """From the first element to the last; within rows of a length, if it is not 0."""
    first, last = math.inf, -math.inf
    for access in accesses:
        terms = {atom: c for atom, c in access.form.terms.items() if not row or c % row}
        rest = Linear(terms, access.form.const % row if row else access.form.const)
        first = min(first, linear_bounds(rest, access.ranges)[0])
        last = max(last, access.highest(rest) + access.lanes - 1)
    return first, last


def collect(
    stmt: Stmt, ranges: Ranges, accesses: dict[Buffer, list[Access]], *, reads: bool = True, stores: bool = True
) -> bool:
    """All places where the buffers are written, and read; False, and none of a buffer, if some cannot be told."""
    places, unknown = _Places(dict(ranges)), set()
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            places.enter(s)
        if isinstance(s, Transpose):
            unknown |= {b for b, wanted in ((s.buffer, stores), (s.source.buffer, reads)) if wanted and b in accesses}
        if isinstance(s, Store) and stores and s.buffer in accesses:
            accesses[s.buffer].append(places.access(s.index, s.value.lanes))
        for load in loads(s) if reads else ():
            if load.buffer in accesses:
                accesses[load.buffer].append(places.access(load.index, load.lanes))
    for buffer in unknown:
        accesses[buffer].clear()
    return not unknown


@dataclass
class _Places:
    """Indices as sums of terms.  The variable of a loop from 5 * i on becomes 5 * i + another, which is from 0 on."""

    ranges: Ranges
    lasts: dict[Var, list[Linear]] = field(default_factory=dict)
    moved: dict[Var, Linear] = field(default_factory=dict)

    def enter(self, loop: For) -> None:
        self.ranges[loop.var] = range_of(loop, self.ranges)
        var, begin = loop.var, self.form(loop.begin)
        if begin.terms:
            var = Var(loop.var.name, INDEX)
            self.moved[loop.var] = begin.plus(Linear({var: 1}))
        else:
            begin = Linear()
        lasts = [self.form(end).plus(begin, -1).plus(Linear(const=-1)) for end in _smallest(loop.end)]
        self.lasts[var] = [last for last in lasts if last.terms]  # the others are in the ranges
        if begin.terms:
            self.ranges[var] = (0, max(0, min(linear_bounds(last, self.ranges)[1] for last in lasts)))

    def form(self, index: Expr) -> Linear:
        found = linear(index, self.ranges)
        for var in [a for a in found.terms if isinstance(a, Var) and a in self.moved]:
            factor = found.terms[var]
            found = found.plus(Linear({var: factor}), -1).plus(self.moved[var], factor)
        return found

    def access(self, index: Expr, lanes: int) -> Access:
        return Access(self.form(index), lanes, self.ranges, self.lasts)


def _smallest(expr: Expr) -> list[Expr]:
    """Of what an expression is the smallest."""
    if isinstance(expr, Binary) and expr.op == "min":
        return [*_smallest(expr.a), *_smallest(expr.b)]
    return [expr]


def is_filled_before_read(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges) -> bool:
    """Whether statements read from scratch only what they themselves have written there before.

    A statement that both writes and reads it fills it first: so scratch is used.
    """
    filled: set[int] = set()
    for stmt in stmts:
        if buffer in written(stmt):
            filled |= _written_places(stmt, buffer, {})
        elif buffer in read(stmt):
            places = _read_places(stmt, buffer, ranges)
            if places is None or not places <= filled:
                return False
    return True


def _written_places(stmt: Stmt, buffer: Buffer, values: Mapping[Var, range]) -> set[int]:
    """Elements of a buffer that a statement writes whatever happens, as far as that can be told."""
    match stmt:
        case Block():
            return {n for inner in stmt.stmts for n in _written_places(inner, buffer, values)}
        case For(begin=Const() as begin, end=Const() as end):
            counted = range(int(begin.value), int(end.value), stmt.step)
            return _written_places(stmt.body, buffer, {**values, stmt.var: counted}) if counted else set()
        case Store() if stmt.buffer is buffer:
            return _elements(stmt.index, stmt.value.lanes, values) or set()
        case Transpose() if stmt.buffer is buffer:
            return _square(stmt.index, stmt.stride, stmt.size, values) or set()
        case _:
            return set()


def _read_places(stmt: Stmt, buffer: Buffer, ranges: Ranges) -> set[int] | None:
    """All elements of a buffer that a statement may read; None if that cannot be told."""
    ranges = dict(ranges)
    values: dict[Var, range] = {}
    found: set[int] = set()
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            low, high = ranges[s.var] = range_of(s, ranges)
            if -math.inf < low and high < math.inf:
                values[s.var] = range(int(low), int(max(low, high)) + 1)
        for load in (load for load in loads(s) if load.buffer is buffer):
            if isinstance(s, Transpose):
                places = _square(load.index, s.source_stride, s.size, values)
            else:
                places = _elements(load.index, load.lanes, values)
            if places is None:
                return None
            found |= places
    return found


def _square(index: Expr, stride: int, size: int, values: Mapping[Var, range]) -> set[int] | None:
    rows = [_elements(index + row * stride, size, values) for row in range(size)]
    return None if None in rows else {n for row in rows for n in row or ()}


def _elements(index: Expr, lanes: int, values: Mapping[Var, range]) -> set[int] | None:
    """Elements from `index` on, over all values of variables; None if it depends on others, or they are too many."""
    form = linear(index, {var: (counted[0], counted[-1]) for var, counted in values.items()})
    found = set(range(form.const, form.const + lanes))
    for atom, factor in form.terms.items():
        counted = values.get(atom) if isinstance(atom, Var) else None
        if counted is None or len(found) * len(counted) > _MANY:
            return None
        found = {n + factor * value for n in found for value in counted}
    return found


def apart(accesses: Sequence[Access], loop: For, fixed: frozenset[Var]) -> bool:
    """Whether places of different iterations are always different.

    Every place is step * iteration + low + high, where all of `high` is a multiple of a number (that of a row of the
    output, of which loops or the statements of an unrolled tile make several) that step * iteration + low never reaches
    across, and `low` never reaches across a step.
    """
    factors = {access.form.coefficient(loop.var) for access in accesses}
    factor = next(iter(factors)) if len(factors) == 1 else None
    if not factor:
        return False
    span = _span(factor, loop)
    rests = [{a: c for a, c in f.terms.items() if a is not loop.var and a not in fixed} for f, *_ in accesses]
    unit = math.gcd(*(c for rest in rests for c in rest.values() if abs(c) > span))
    consts = sorted({access.form.const for access in accesses})
    rows = {math.gcd(unit, c - consts[0]) for c in consts if c - consts[0] > span}
    return any(_steps_apart(accesses, rests, loop, factor, u) for u in (unit, *sorted(rows)))


def _span(factor: int, loop: For) -> int:
    """From the first step to the last one, which may be cut short; what goes further leads to other rows."""
    return abs(factor) * loop.step * max(1, extent_of(loop) - 1)


def _steps_apart(
    accesses: Sequence[Access], rests: Sequence[dict[Expr, int]], loop: For, factor: int, unit: int
) -> bool:
    """Whether what is left of the places without multiples of `unit` stays within its step, and all steps in a unit."""
    step, span = abs(factor) * loop.step, _span(factor, loop)
    least, most, first, last = math.inf, -math.inf, math.inf, -math.inf
    for access, rest in zip(accesses, rests, strict=True):
        const = access.form.const % unit if unit else access.form.const
        low = Linear({a: c for a, c in rest.items() if abs(c) <= span}, const)
        least, most = min(least, linear_bounds(low, access.ranges)[0]), max(most, access.highest(low) + access.lanes)
        whole = low.plus(Linear({loop.var: factor}))
        first = min(first, linear_bounds(whole, access.ranges)[0])
        last = max(last, access.highest(whole) + access.lanes)
    return most - least <= step and (unit == 0 or last - first <= unit)  # neither if it is infinite
