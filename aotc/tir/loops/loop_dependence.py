# SPDX-License-Identifier: Apache-2.0
"""What the iterations of a loop, or two statements, are to each other: the proofs of what loops say of themselves.

In: statements over flat buffers, and the ranges of the variables around them.  Out: places in memory, whether they
never meet, and what is wrong with the kind of a loop:

    for i in 0..8 independent: for c in 0..16 independent: y[16 * i + c] = ...    # None
    for i in 0..8 independent: for c in 0..17 independent: y[16 * i + c] = ...    # several iterations touch y
    for i in 0..8 reduction: sum = sum + x[i]                                     # None
"""

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.tir import Interval, Linear, bounds, is_sum, linear, linear_bounds, nodes, stmt_exprs
from aotc.tir.expr import INDEX, Binary, Buffer, Call, Const, Expr, Load, Var, loads_in, mentioned, substitute, walk
from aotc.tir.loops.divmod_addresses import Access, plain, shared, tell_apart
from aotc.tir.stmt import Assign, Block, Declare, For, Intrinsic, Stmt, Store, While, stmts_of, walk_stmts, warp_call

Ranges = dict[Var, Interval]
#: Places in buffers.
Accesses = dict[Buffer, list[Access]]

#: Operations that reductions combine values by.
ASSOCIATIVE: Final = frozenset({"add", "mul", "min", "max", "and", "or"})
#: Elements of scratch that are followed one by one.
_MANY: Final = 1 << 16
#: Iterations whose places are compared one by one.
_FEW: Final = 256


def loads(stmt: Stmt) -> Iterator[Load]:
    """Every load directly in a statement (not those of statements inside it)."""
    return (load for e in stmt_exprs(stmt) for load in loads_in(e))


def straight_line(loop: For) -> tuple[Stmt, ...] | None:
    """The statements of an innermost loop without branches, and nothing that waits for others; None for another."""
    stmts = stmts_of(loop.body)
    kinds = all(isinstance(s, (Store, Declare, Assign)) for s in stmts)
    if kinds and not any(warp_call(s) or getattr(s, "asynchronous", False) for s in stmts):
        return stmts
    return None


def written(stmt: Stmt) -> set[Buffer]:
    return {s.buffer for s in walk_stmts(stmt) if isinstance(s, (Store, Intrinsic))}


def read(stmt: Stmt) -> set[Buffer]:
    return {load.buffer for s in walk_stmts(stmt) for load in loads(s)}


def assigned(stmt: Stmt) -> frozenset[Var]:
    """The registers that are given other values than those they were declared with."""
    return frozenset(s.var for s in walk_stmts(stmt) if isinstance(s, Assign))


def is_replaceable(stmt: Declare, changing: Container[Var | Buffer]) -> bool:
    """Whether a register in indices may be replaced by its value, among statements that change these.

    What the value is made of must be then what it was where the register was declared.
    """
    return stmt.var.dtype == INDEX and not any(n in changing for n in (stmt.var, *mentioned(stmt.value)))


def outer_assigns(stmt: Stmt) -> Iterator[Assign]:
    """Assignments to registers that were declared outside."""
    declared = {s.var for s in walk_stmts(stmt) if isinstance(s, Declare)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in declared)


def counted(loop: For) -> range:
    """The values of the variable of a loop; none if they are not known."""
    match loop:
        case For(begin=Const(value=begin), end=Const(value=end), step=step):
            return range(int(begin), int(end), step)
    return range(0)


def extent_of(loop: For) -> int:
    """How often a loop runs; 0 if that is not known."""
    return len(counted(loop))


def is_innermost(loop: For) -> bool:
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def range_of(loop: For, ranges: Ranges) -> Interval:
    """The least and greatest value of the variable of a loop."""
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    whole_steps = not any(factor % loop.step for factor in linear(loop.begin, ranges).terms.values())
    if whole_steps and high - low < math.inf:
        high = low + (high - low) // loop.step * loop.step
    return low, high


def inside(loops: Iterable[For], ranges: Ranges) -> Ranges:
    """The ranges in nested loops, the outermost first."""
    for loop in loops:
        ranges = {**ranges, loop.var: range_of(loop, ranges)}
    return ranges


def disjoint(a: Sequence[Access], b: Sequence[Access]) -> bool:
    """Whether two statements write to different parts of the buffer, or of each of its rows."""
    strides = {abs(c) for access in (*a, *b) for c in access.form.terms.values()}
    return bool(a and b) and any(_parted(window(a, n), window(b, n), n) for n in sorted(strides | {0}))


def follows(b: Sequence[Access], a: Sequence[Access]) -> bool:
    """Whether all of the places `b` lie behind those of `a`."""
    return bool(a and b) and window(a, 0)[1] < window(b, 0)[0]


def _parted(a: Interval, b: Interval, row: int) -> bool:
    in_row = row == 0 or (min(a[0], b[0]) >= 0 and max(a[1], b[1]) < row)
    return in_row and (a[1] < b[0] or b[1] < a[0])


def window(accesses: Sequence[Access], row: int = 0) -> Interval:
    """The interval from the first element accessed to the last: in each row of `row` elements, in the buffer for 0."""
    rests: list[Linear] = []
    for access in accesses:
        terms = {atom: c for atom, c in access.form.terms.items() if not row or c % row}
        rests.append(Linear(terms, access.form.const % row if row else access.form.const))
    return _reach(accesses, rests)


def _reach(accesses: Sequence[Access], forms: Sequence[Linear]) -> Interval:
    """The interval from the first element to the last where these are the places of accesses."""
    first, last = math.inf, -math.inf
    for access, form in zip(accesses, forms, strict=True):
        first = min(first, linear_bounds(form, access.ranges)[0])
        last = max(last, access.highest(form) + access.lanes - 1)
    return first, last


def collect(
    stmt: Stmt, ranges: Ranges, found: Accesses, *, reads: bool = True, stores: bool = True, closely: bool = False
) -> None:
    """Add to `found` all places where its buffers are written, and read.

    closely   registers in indices and in the bounds of loops are replaced by their values, and loops that begin at
              what is no sum of terms (max(lo - 4 * i, 0)) only have a range
    """
    places = _Places(dict(ranges), closely)
    changing = assigned(stmt) | written(stmt)
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            places.enter(s)
        if closely and isinstance(s, Declare) and is_replaceable(s, changing):
            places.registers[s.var] = substitute(s.value, places.registers)
        for buffer, index, lanes in touched(s, reads=reads, stores=stores):
            if buffer in found:
                found[buffer].append(places.access(index, lanes))


def touched(stmt: Stmt, *, reads: bool = True, stores: bool = True) -> Iterator[tuple[Buffer, Expr, int]]:
    """The buffers, first elements and numbers of elements that a statement itself reads and writes."""
    if isinstance(stmt, Intrinsic):
        for row in range(stmt.size):
            if stores:
                yield stmt.buffer, stmt.index + row * stmt.stride, stmt.size
            if reads:
                yield stmt.source.buffer, stmt.source.index + row * stmt.source_stride, stmt.size
        return
    if stores and isinstance(stmt, Store):
        yield stmt.buffer, stmt.index, stmt.value.lanes
    yield from ((load.buffer, *load.span) for load in loads(stmt) if reads)


@dataclass
class _Places:
    """Indices as sums of terms.  The variable of a loop from 5 * i on becomes 5 * i + another, from 0 on."""

    ranges: Ranges
    closely: bool
    lasts: dict[Var, list[Linear]] = field(default_factory=dict)
    moved: dict[Var, Linear] = field(default_factory=dict)
    registers: dict[Var, Expr] = field(default_factory=dict)

    def enter(self, loop: For) -> None:
        loop = replace(loop, begin=self._written_out(loop.begin), end=self._written_out(loop.end))
        if loop.var in self.ranges:  # another loop counts with it: what was found there stays
            self.ranges, self.lasts = dict(self.ranges), dict(self.lasts)
            self.moved.pop(loop.var, None)
        self.ranges[loop.var] = range_of(loop, self.ranges)
        var, begin = loop.var, self.form(loop.begin)
        if begin.terms and not (self.closely and not all(isinstance(atom, Var) for atom in begin.terms)):
            var = Var(loop.var.name, INDEX)
            self.moved[loop.var] = begin.plus(Linear({var: 1}))
        else:
            begin = Linear()
        lasts = [self.form(end).plus(begin, -1).plus(Linear(const=-1)) for end in nested("min", loop.end)]
        self.lasts[var] = [last for last in lasts if last.terms]  # the others are in the ranges
        if begin.terms:
            self.ranges[var] = (0, max(0, min(linear_bounds(last, self.ranges)[1] for last in lasts)))

    def _written_out(self, expr: Expr) -> Expr:
        return substitute(expr, self.registers) if self.registers else expr

    def form(self, index: Expr) -> Linear:
        found = linear(self._written_out(index), self.ranges)
        for var in [a for a in found.terms if isinstance(a, Var) and a in self.moved]:
            factor = found.terms[var]
            found = found.plus(Linear({var: factor}), -1).plus(self.moved[var], factor)
        return found

    def access(self, index: Expr, lanes: int) -> Access:
        return Access(self.form(index), lanes, self.ranges, self.lasts)


def nested(op: str, expr: Expr) -> list[Expr]:
    """The operands of nested minima, or maxima: the value of `expr` is the smallest of theirs."""
    if isinstance(expr, Binary) and expr.op == op:
        return [*nested(op, expr.a), *nested(op, expr.b)]
    return [expr]


def is_filled_before_read(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges) -> bool:
    """Whether statements read from scratch only what they have written there before."""
    filled: set[int] = set()
    for stmt in stmts:
        if buffer in read(stmt) and not begins_with_filling(buffer, stmt):
            places = read_places(stmt, buffer, ranges)
            if places is None or not places <= filled:
                return False
        filled |= written_places(stmt, buffer, {})
    return True


def written_places(stmt: Stmt, buffer: Buffer, values: Mapping[Var, range]) -> set[int]:
    """Elements of a buffer that a statement writes whatever happens, as far as that can be told."""
    match stmt:
        case Block():
            return {n for inner in stmt.stmts for n in written_places(inner, buffer, values)}
        case For() if counted(stmt):
            return written_places(stmt.body, buffer, {**values, stmt.var: counted(stmt)})
        case Store() | Intrinsic() if stmt.buffer is buffer:
            return set().union(*(_elements(index, n, values) or () for _, index, n in touched(stmt, reads=False)))
        case _:
            return set()


def read_places(stmt: Stmt, buffer: Buffer, ranges: Ranges) -> set[int] | None:
    """All elements of a buffer that a statement may read; None if that cannot be told."""
    ranges = dict(ranges)
    values: dict[Var, range] = {}
    found: set[int] = set()
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            low, high = ranges[s.var] = range_of(s, ranges)
            if -math.inf < low and high < math.inf:
                values[s.var] = range(int(low), int(max(low, high)) + 1)
        for other, index, lanes in touched(s, stores=False):
            elements = _elements(index, lanes, values) if other is buffer else set()
            if elements is None:
                return None
            found |= elements
    return found


def _elements(index: Expr, lanes: int, values: Mapping[Var, range]) -> set[int] | None:
    """Elements from `index` on, over all values of variables; None if they are unknown or too many."""
    form = linear(index, {var: (numbers[0], numbers[-1]) for var, numbers in values.items()})
    found = set(range(form.const, form.const + lanes))
    for atom, factor in form.terms.items():
        numbers = values.get(atom) if isinstance(atom, Var) else None
        if numbers is None or len(found) * len(numbers) > _MANY:
            return None
        found = {n + factor * value for n in found for value in numbers}
    return found


def why_not(loop: For, ranges: Ranges, fixed: Container[Var], unread: Container[Buffer] = ()) -> str | None:
    """What speaks against the kind of a loop; None if it is proven.

    ranges   of the variables around it, as far as they are known
    fixed    all variables around it
    unread   scratch that nothing reads
    """
    low, high = range_of(loop, ranges)
    if loop.kind == "serial" or high - low < loop.step:  # no other iteration
        return None
    reads = _reads(loop) if loop.kind == "reduction" else {}
    assigned = list(outer_assigns(loop.body))
    for register in dict.fromkeys(s.var for s in assigned):
        if not _accumulates(register, [s for s in assigned if s.var is register], reads):
            return f"iterations hand register {register.name} to each other"
    accesses: Accesses = {buffer: [] for buffer in written(loop.body)}
    collect(loop.body, {**ranges, loop.var: (low, high)}, accesses, closely=True)
    for buffer, found in accesses.items():
        if buffer in unread or differ(found, loop, fixed):
            continue
        if buffer.private and begins_with_filling(buffer, loop.body):
            continue
        stores = [s for s in walk_stmts(loop.body) if isinstance(s, (Store, Intrinsic)) and s.buffer is buffer]
        if not _accumulates(buffer, stores, reads):
            return f"iterations may touch the same elements of {buffer.name}"
    return None


def _reads(loop: For) -> Counter[object]:
    """How often a loop mentions each register, and loads from each buffer."""
    # one object may stand at several places of an expression: each of them counts
    places = (n for n in nodes(loop.body) if isinstance(n, (Load, Var)))
    return Counter(n.buffer if isinstance(n, Load) else n for n in places)


def _accumulates(place: Var | Buffer, updates: Sequence[Stmt], reads: Mapping[object, int]) -> bool:
    """Whether a register or buffer changes by `place = place op value` alone, by one operation, unread elsewhere.

    reads   how often the loop reads what it may reduce to
    """
    ops = {_update(stmt) for stmt in updates}
    return len(ops) == 1 and None not in ops and reads.get(place) == len(updates)


def _update(stmt: Stmt) -> str | None:
    """The operation of `place = place op value`; None if the statement is none, or no reduction by it."""
    if not isinstance(stmt, (Assign, Store)):
        return None
    place = stmt.var if isinstance(stmt, Assign) else Load(stmt.buffer, stmt.index, stmt.value.lanes)
    match stmt.value:
        case Binary(op=op, a=a, b=b) if op in ASSOCIATIVE and place in (a, b):
            return op
        case Call(name="fma", args=(_, _, added)) if added == place:
            return "add"
        case Call(name=name, args=(added, *_)) if added == place and is_sum(name):
            return "add"
    return None


def begins_with_filling(buffer: Buffer, stmt: Stmt) -> bool:
    """Whether a statement reads from scratch only after it has begun to write there."""
    filled = False
    for inner in walk_stmts(stmt):
        if any(load.buffer is buffer for load in loads(inner)):
            return filled
        filled = filled or (isinstance(inner, (Store, Intrinsic)) and inner.buffer is buffer)
    return False


def differ(accesses: Sequence[Access], loop: For, fixed: Container[Var]) -> bool:
    """Whether places of different iterations differ, as they are written or with fewer digits."""
    if _apart(accesses, loop, fixed):
        return True
    found = [plain(access) for access in accesses]
    if _apart(found, loop, fixed) or tell_apart(found, loop.var, lambda atom: is_fixed(atom, fixed)):
        return True
    return len(counted(loop)) <= _FEW and _are_counted_apart(accesses, loop, fixed)


def _are_counted_apart(accesses: Sequence[Access], loop: For, fixed: Container[Var]) -> bool:
    """Whether the places of one iteration after the other differ from all before, as far as they can be counted."""
    common = Linear(shared(accesses, lambda atom: is_fixed(atom, fixed)))
    taken: set[int] = set()
    for value in counted(loop):
        here: set[int] = set()
        for access in accesses:
            place = substitute(access.form.plus(common, -1).expr(), {loop.var: Const(value, INDEX)})
            known = {v: r for v, r in access.ranges.items() if -math.inf < r[0] <= r[1] < math.inf}
            values = {v: range(int(low), int(high) + 1) for v, (low, high) in known.items()}
            elements = _elements(place, access.lanes, values)
            if elements is None:
                return False
            here |= elements
        if here & taken:
            return False
        taken |= here
    return bool(taken)


def _apart(accesses: Sequence[Access], loop: For, fixed: Container[Var]) -> bool:
    """Whether places of different iterations are always different.

    Every place is step * iteration + low + high, where all of `high` is a multiple of a number (that of a row of the
    output, of which loops or the statements of an unrolled tile make several) that step * iteration + low never reaches
    across, and `low` never reaches across a step.  Terms that have one value in all iterations say nothing where every
    place has them; where only some do, they move these.
    """
    factors = {access.form.coefficient(loop.var) for access in accesses}
    factor = next(iter(factors)) if len(factors) == 1 else None
    if not factor:
        return False
    span = _span(factor, loop)
    common = set.intersection(*(set(access.form.terms.items()) for access in accesses))
    same = {loop.var, *(atom for atom, _ in common if is_fixed(atom, fixed))}
    rests = [{a: c for a, c in access.form.terms.items() if a not in same} for access in accesses]
    unit = math.gcd(*(c for rest in rests for c in rest.values() if abs(c) > span))
    consts = sorted({access.form.const for access in accesses})
    rows = {math.gcd(unit, c - consts[0]) for c in consts if c - consts[0] > span}
    return any(_steps_apart(accesses, rests, loop, factor, u) for u in (unit, *sorted(rows)))


def is_fixed(atom: Expr, fixed: Container[Var]) -> bool:
    """Whether a term has one value in all iterations."""
    return all(n in fixed if isinstance(n, Var) else not isinstance(n, Load) for n in walk(atom))


def _span(factor: int, loop: For) -> int:
    """From the first step to the last; what goes further leads to other rows."""
    return abs(factor) * loop.step * max(1, extent_of(loop) - 1)


def _steps_apart(
    accesses: Sequence[Access], rests: Sequence[dict[Expr, int]], loop: For, factor: int, unit: int
) -> bool:
    """Whether places without multiples of `unit` stay within their steps, and all steps in a unit."""
    step, span = abs(factor) * loop.step, _span(factor, loop)
    lows: list[Linear] = []
    for access, rest in zip(accesses, rests, strict=True):
        const = access.form.const % unit if unit else access.form.const
        lows.append(Linear({a: c for a, c in rest.items() if abs(c) <= span}, const))
    least, most = _reach(accesses, lows)
    first, last = _reach(accesses, [low.plus(Linear({loop.var: factor})) for low in lows])
    return most - least < step and (unit == 0 or last - first < unit)  # neither if it is infinite
