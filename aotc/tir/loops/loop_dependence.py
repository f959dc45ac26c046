# SPDX-License-Identifier: Apache-2.0
"""Dependence analysis: prove that the iterations of a loop, or two statements, access different
elements of memory.

Input: statements over flat buffers, and the ranges of the variables around them. Output: addresses
as linear forms, if they can overlap, and the reason why a loop's kind (independent, reduction) is
not proven:

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
#: The accesses to each buffer.
Accesses = dict[Buffer, list[Access]]

#: Binary operations by which a reduction loop may combine values.
ASSOCIATIVE: Final = frozenset({"add", "mul", "min", "max", "and", "or"})
#: Largest number of elements of a scratch buffer that are enumerated one by one.
_MANY: Final = 1 << 16
#: Largest number of iterations whose addresses are enumerated and compared one by one.
_FEW: Final = 256


def loads(stmt: Stmt) -> Iterator[Load]:
    """Yield every load directly in a statement; statements nested inside it are not visited."""
    return (load for e in stmt_exprs(stmt) for load in loads_in(e))


def straight_line(loop: For) -> tuple[Stmt, ...] | None:
    """Return the statements of an innermost loop whose body is straight-line code; None for any
    other loop.

    Loops with warp-wide instructions or asynchronous copies do not count as straight-line code.
    """
    stmts = stmts_of(loop.body)
    kinds = all(isinstance(s, (Store, Declare, Assign)) for s in stmts)
    if kinds and not any(warp_call(s) or getattr(s, "asynchronous", False) for s in stmts):
        return stmts
    return None


def written(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, writes."""
    return {s.buffer for s in walk_stmts(stmt) if isinstance(s, (Store, Intrinsic))}


def read(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, loads from."""
    return {load.buffer for s in walk_stmts(stmt) for load in loads(s)}


def assigned(stmt: Stmt) -> frozenset[Var]:
    """Return the registers that a statement assigns to (declarations do not count)."""
    return frozenset(s.var for s in walk_stmts(stmt) if isinstance(s, Assign))


def is_replaceable(stmt: Declare, changing: Container[Var | Buffer]) -> bool:
    """Return True if an index register may be replaced by its value in the statements that use it.

    Neither the register nor anything that its value is computed from may be in `changing`, the
    registers and buffers that these statements change.
    """
    return stmt.var.dtype == INDEX and not any(n in changing for n in (stmt.var, *mentioned(stmt.value)))


def outer_assigns(stmt: Stmt) -> Iterator[Assign]:
    """Yield the assignments in a statement to registers that are declared outside of it."""
    declared = {s.var for s in walk_stmts(stmt) if isinstance(s, Declare)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in declared)


def counted(loop: For) -> range:
    """Return the values of a loop variable as a range; an empty range if the loop bounds are not
    constants.
    """
    match loop:
        case For(begin=Const(value=begin), end=Const(value=end), step=step):
            return range(int(begin), int(end), step)
    return range(0)


def extent_of(loop: For) -> int:
    """Return the number of iterations of a loop; 0 if its bounds are not constants."""
    return len(counted(loop))


def is_innermost(loop: For) -> bool:
    """Return True if a loop contains no other loop."""
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def range_of(loop: For, ranges: Ranges) -> Interval:
    """Return the smallest and largest value of a loop variable, given the ranges of the variables
    in the loop bounds.
    """
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    whole_steps = not any(factor % loop.step for factor in linear(loop.begin, ranges).terms.values())
    if whole_steps and high - low < math.inf:
        high = low + (high - low) // loop.step * loop.step
    return low, high


def inside(loops: Iterable[For], ranges: Ranges) -> Ranges:
    """Return `ranges` extended by the variables of nested loops, given from the outermost to the
    innermost.
    """
    for loop in loops:
        ranges = {**ranges, loop.var: range_of(loop, ranges)}
    return ranges


def disjoint(a: Sequence[Access], b: Sequence[Access]) -> bool:
    """Return True if two lists of accesses to a buffer overlap nowhere.

    They may occupy different intervals of the whole buffer, or different columns of its rows, for a
    row length that occurs as a coefficient in the addresses.
    """
    strides = {abs(c) for access in (*a, *b) for c in access.form.terms.values()}
    return bool(a and b) and any(_parted(window(a, n), window(b, n), n) for n in sorted(strides | {0}))


def follows(b: Sequence[Access], a: Sequence[Access]) -> bool:
    """Return True if every element of the accesses `b` is at a higher address than every element of
    the accesses `a`.
    """
    return bool(a and b) and window(a, 0)[1] < window(b, 0)[0]


def _parted(a: Interval, b: Interval, row: int) -> bool:
    """Return True if two intervals are disjoint and, for `row` > 0, both within the row of elements
    0 to `row` - 1.
    """
    in_row = row == 0 or (min(a[0], b[0]) >= 0 and max(a[1], b[1]) < row)
    return in_row and (a[1] < b[0] or b[1] < a[0])


def window(accesses: Sequence[Access], row: int = 0) -> Interval:
    """Return the interval from the first to the last accessed element.

    For `row` > 0 the interval is that of the columns in rows of `row` elements: terms that are
    multiples of it are dropped.
    """
    rests: list[Linear] = []
    for access in accesses:
        terms = {atom: c for atom, c in access.form.terms.items() if not row or c % row}
        rests.append(Linear(terms, access.form.const % row if row else access.form.const))
    return _reach(accesses, rests)


def _reach(accesses: Sequence[Access], forms: Sequence[Linear]) -> Interval:
    """Return the interval from the first to the last element of accesses whose addresses are
    replaced by `forms`.
    """
    first, last = math.inf, -math.inf
    for access, form in zip(accesses, forms, strict=True):
        first = min(first, linear_bounds(form, access.ranges)[0])
        last = max(last, access.highest(form) + access.lanes - 1)
    return first, last


def collect(
    stmt: Stmt, ranges: Ranges, found: Accesses, *, reads: bool = True, stores: bool = True, closely: bool = False
) -> None:
    """Append the accesses of a statement to `found`, for the buffers that are keys of `found`.

    reads     include loads
    stores    include stores
    closely   replace registers in indices and loop bounds by their values; a loop that begins at an
              expression other than a sum of terms, such as max(lo - 4 * i, 0), contributes the
              range of its variable only
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
    """Yield (buffer, index of the first element, number of elements) of every access that a
    statement itself makes.
    """
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
    """Converts index expressions to linear forms while walking a loop nest.

    The variable of a loop that begins at 5 * i is represented as 5 * i + v, with a new variable v
    that begins at 0.

    ranges      the ranges of the variables
    closely     see `collect`
    lasts       for a loop variable, upper bounds that are linear forms of other variables
    moved       for a variable of a loop that does not begin at a constant, its begin plus the new
                variable
    registers   the values of index registers, which replace the registers
    """

    ranges: Ranges
    closely: bool
    lasts: dict[Var, list[Linear]] = field(default_factory=dict)
    moved: dict[Var, Linear] = field(default_factory=dict)
    registers: dict[Var, Expr] = field(default_factory=dict)

    def enter(self, loop: For) -> None:
        """Add the variable of a loop, with its range and bounds, before the accesses in its body
        are converted.
        """
        loop = replace(loop, begin=self._written_out(loop.begin), end=self._written_out(loop.end))
        if loop.var in self.ranges:  # another loop uses this variable, too: accesses found there keep their ranges
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
        self.lasts[var] = [last for last in lasts if last.terms]  # bounds without variables are in the ranges already
        if begin.terms:
            self.ranges[var] = (0, max(0, min(linear_bounds(last, self.ranges)[1] for last in lasts)))

    def _written_out(self, expr: Expr) -> Expr:
        return substitute(expr, self.registers) if self.registers else expr

    def form(self, index: Expr) -> Linear:
        """Return an index as a linear form, with registers and shifted loop variables replaced."""
        found = linear(self._written_out(index), self.ranges)
        for var in [a for a in found.terms if isinstance(a, Var) and a in self.moved]:
            factor = found.terms[var]
            found = found.plus(Linear({var: factor}), -1).plus(self.moved[var], factor)
        return found

    def access(self, index: Expr, lanes: int) -> Access:
        """Return the access to `lanes` consecutive elements from `index` on, with the address as a
        linear form.
        """
        return Access(self.form(index), lanes, self.ranges, self.lasts)


def nested(op: str, expr: Expr) -> list[Expr]:
    """Return the operands of nested minima (`op` "min") or maxima ("max"): `expr` is the minimum or
    maximum of them all.
    """
    if isinstance(expr, Binary) and expr.op == op:
        return [*nested(op, expr.a), *nested(op, expr.b)]
    return [expr]


def is_filled_before_read(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges) -> bool:
    """Return True if a sequence of statements reads only elements of a scratch buffer that it has
    written before.
    """
    filled: set[int] = set()
    for stmt in stmts:
        if buffer in read(stmt) and not begins_with_filling(buffer, stmt):
            places = read_places(stmt, buffer, ranges)
            if places is None or not places <= filled:
                return False
        filled |= written_places(stmt, buffer, {})
    return True


def written_places(stmt: Stmt, buffer: Buffer, values: Mapping[Var, range]) -> set[int]:
    """Return the elements of a buffer that a statement writes in every execution, as far as they
    are known.

    `values` are the values of the loop variables around the statement. Stores under conditions do
    not count.
    """
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
    """Return all elements of a buffer that a statement may read; None if an index is unknown or
    there are too many elements.
    """
    ranges = dict(ranges)
    values: dict[Var, range] = {}
    found: set[int] = set()
    for s in walk_stmts(stmt):  # outer loops before inner loops
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
    """Return the elements `index` to `index + lanes - 1` over all values of the variables.

    Return None if an index contains other terms, or if there are more than `_MANY` elements.
    """
    form = linear(index, {var: (numbers[0], numbers[-1]) for var, numbers in values.items()})
    found = set(range(form.const, form.const + lanes))
    for atom, factor in form.terms.items():
        numbers = values.get(atom) if isinstance(atom, Var) else None
        if numbers is None or len(found) * len(numbers) > _MANY:
            return None
        found = {n + factor * value for n in found for value in numbers}
    return found


def why_not(loop: For, ranges: Ranges, fixed: Container[Var], unread: Container[Buffer] = ()) -> str | None:
    """Return the reason why the kind of a loop ("independent", "reduction") is not proven; None if
    it is proven.

    ranges   the known ranges of the variables around the loop
    fixed    all variables around the loop
    unread   scratch buffers that no statement reads, which are ignored
    """
    low, high = range_of(loop, ranges)
    if loop.kind == "serial" or high - low < loop.step:  # at most one iteration
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
    """Count the mentions of each register in a loop and the loads from each buffer."""
    # an object may occur several times in an expression: count every occurrence
    places = (n for n in nodes(loop.body) if isinstance(n, (Load, Var)))
    return Counter(n.buffer if isinstance(n, Load) else n for n in places)


def _accumulates(place: Var | Buffer, updates: Sequence[Stmt], reads: Mapping[object, int]) -> bool:
    """Return True if a register or buffer changes by `place = place op value` only, with one
    associative operation.

    place     the register or buffer
    updates   all statements that change it
    reads     the number of times the loop reads each register and buffer: reads other than in the
              updates are not allowed
    """
    ops = {_update(stmt) for stmt in updates}
    return len(ops) == 1 and None not in ops and reads.get(place) == len(updates)


def _update(stmt: Stmt) -> str | None:
    """Return the associative operation of `place = place op value`; None if the statement does not
    have this form.
    """
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
    """Return True if a statement loads from a scratch buffer, and a store to it precedes the first
    load in program order.
    """
    filled = False
    for inner in walk_stmts(stmt):
        if any(load.buffer is buffer for load in loads(inner)):
            return filled
        filled = filled or (isinstance(inner, (Store, Intrinsic)) and inner.buffer is buffer)
    return False


def differ(accesses: Sequence[Access], loop: For, fixed: Container[Var]) -> bool:
    """Return True if accesses in different iterations of a loop are proven to be to different
    elements.

    Tries, in order: the linear forms as they are, the forms with simplified quotients and
    remainders, a comparison of the digits (quotients and remainders), and enumeration for loops of
    at most `_FEW` iterations.
    """
    if _apart(accesses, loop, fixed):
        return True
    found = [plain(access) for access in accesses]
    if _apart(found, loop, fixed) or tell_apart(found, loop.var, lambda atom: is_fixed(atom, fixed)):
        return True
    return len(counted(loop)) <= _FEW and _are_counted_apart(accesses, loop, fixed)


def _are_counted_apart(accesses: Sequence[Access], loop: For, fixed: Container[Var]) -> bool:
    """Return True if enumeration shows that no element is accessed in two iterations; False if the
    elements are unknown.
    """
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
    """Return True if the linear forms show that different iterations access different elements.

    Every address is split into step * iteration + low + high. All terms of `high` are multiples of
    a row length (the row of the output, of which loops or the statements of an unrolled tile make
    several) that step * iteration + low does not exceed, and the range of `low` is smaller than a
    step. Terms that are equal in all iterations are ignored if all addresses contain them; if only
    some addresses do, they count as offsets.
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
    """Return True if a term has one value in all iterations: all its variables are in `fixed`, and
    it loads no memory.
    """
    return all(n in fixed if isinstance(n, Var) else not isinstance(n, Load) for n in walk(atom))


def _span(factor: int, loop: For) -> int:
    """Return the distance between the addresses of the first and the last iteration of a loop."""
    return abs(factor) * loop.step * max(1, extent_of(loop) - 1)


def _steps_apart(
    accesses: Sequence[Access], rests: Sequence[dict[Expr, int]], loop: For, factor: int, unit: int
) -> bool:
    """Return True if the addresses, modulo a row length `unit`, show that different iterations
    access different elements.

    The addresses of one iteration must span less than a step of the loop, and all iterations
    together less than a row.
    """
    step, span = abs(factor) * loop.step, _span(factor, loop)
    lows: list[Linear] = []
    for access, rest in zip(accesses, rests, strict=True):
        const = access.form.const % unit if unit else access.form.const
        lows.append(Linear({a: c for a, c in rest.items() if abs(c) <= span}, const))
    least, most = _reach(accesses, lows)
    first, last = _reach(accesses, [low.plus(Linear({loop.var: factor})) for low in lows])
    return most - least < step and (unit == 0 or last - first < unit)  # neither if it is infinite
