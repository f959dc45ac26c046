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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.tir import (
    Interval,
    LinearForm,
    bounds,
    bounds_of_linear_form,
    direct_exprs_of_stmt,
    is_accumulating_dot_instruction,
    linear_form,
)
from aotc.tir.expr import (
    INDEX,
    Binary,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Var,
    loads_in,
    minimum,
    substitute,
    vars_and_buffers_in,
)
from aotc.tir.instruction_accesses import accesses_of_instruction
from aotc.tir.loops.divmod_address_analysis import (
    LinearAccess,
    common_fixed_terms,
    mixed_radix_digits_determine_variable,
    simplify_divmod_in_address,
)
from aotc.tir.simplify import SimplifierScope, simplify
from aotc.tir.stmt import (
    Assign,
    Block,
    Declare,
    Execute,
    For,
    Stmt,
    Store,
    While,
    block_stmts_or_self,
    buffer_written_by,
    count_reads_in_stmt,
    declared_registers,
    walk_stmts,
)

Ranges = dict[Var, Interval]
#: The accesses to each buffer.
Accesses = dict[Buffer, list[LinearAccess]]

#: Binary operations by which a reduction loop may combine values.
ASSOCIATIVE_OPS: Final = frozenset({"add", "mul", "min", "max", "and", "or"})
#: Largest number of elements of a scratch buffer that are enumerated one by one.
_MAX_ENUMERATED_ELEMENTS: Final = 1 << 16
#: Largest number of iterations whose addresses are enumerated and compared one by one.
_MAX_ENUMERATED_ITERATIONS: Final = 256


def direct_loads(stmt: Stmt) -> Iterator[Load]:
    """Yield every load directly in a statement; statements nested inside it are not visited."""
    return (load for e in direct_exprs_of_stmt(stmt) for load in loads_in(e))


def straight_line_stmts(loop: For) -> tuple[Stmt, ...] | None:
    """Return the statements of an innermost loop whose body is straight-line code; None for any
    other loop.

    Straight-line code consists of stores, declarations and assignments of values.
    """
    stmts = block_stmts_or_self(loop.body)
    return stmts if all(isinstance(s, (Store, Declare, Assign)) for s in stmts) else None


def written_buffers(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, writes."""
    return {buffer for s in walk_stmts(stmt) if (buffer := buffer_written_by(s)) is not None}


def read_buffers(stmt: Stmt) -> set[Buffer]:
    """Return the buffers that a statement, with the statements nested in it, loads from."""
    return {load.buffer for s in walk_stmts(stmt) for load in direct_loads(s)}


def assigned_registers(stmt: Stmt) -> frozenset[Var]:
    """Return the registers that a statement assigns to (declarations do not count)."""
    return frozenset(s.var for s in walk_stmts(stmt) if isinstance(s, Assign))


def is_replaceable_by_value(stmt: Declare, changing: Container[Var | Buffer]) -> bool:
    """Return True if an index register may be replaced by its value in the statements that use it.

    Neither the register nor anything that its value is computed from may be in `changing`, the
    registers and buffers that these statements change.
    """
    return stmt.var.dtype == INDEX and not any(n in changing for n in (stmt.var, *vars_and_buffers_in(stmt.value)))


def assigns_to_outer_registers(stmt: Stmt) -> Iterator[Assign]:
    """Yield the assignments in a statement to registers that are declared outside of it."""
    declared = {*declared_registers(stmt)}
    return (s for s in walk_stmts(stmt) if isinstance(s, Assign) and s.var not in declared)


def constant_loop_range(loop: For) -> range:
    """Return the values of a loop variable as a range; an empty range if the loop bounds are not
    constants.
    """
    match loop:
        case For(begin=Const(value=begin), end=Const(value=end), step=step):
            return range(int(begin), int(end), step)
    return range(0)


def constant_trip_count(loop: For) -> int:
    """Return the number of iterations of a loop; 0 if its bounds are not constants."""
    return len(constant_loop_range(loop))


def decrement_loop_end(end: Expr, decrement: int) -> Expr:
    """Return a loop end reduced by a number; for a minimum of several ends, each of them is
    reduced.
    """
    if isinstance(end, Binary) and end.op == "min":
        return minimum(decrement_loop_end(end.a, decrement), decrement_loop_end(end.b, decrement))
    return simplify(end - decrement, {})


def is_innermost(loop: For) -> bool:
    """Return True if a loop contains no other loop."""
    return not any(isinstance(s, (For, While)) for s in walk_stmts(loop.body))


def loop_var_interval(loop: For, ranges: Ranges) -> Interval:
    """Return the smallest and largest value of a loop variable, given the ranges of the variables
    in the loop bounds.
    """
    low, high = bounds(loop.begin, ranges)[0], bounds(loop.end, ranges)[1] - 1
    whole_steps = not any(factor % loop.step for factor in linear_form(loop.begin, ranges).terms.values())
    if whole_steps and high - low < math.inf:
        high = low + (high - low) // loop.step * loop.step
    return low, high


def ranges_inside_loops(loops: Iterable[For], ranges: Ranges) -> Ranges:
    """Return `ranges` extended by the variables of nested loops, given from the outermost to the
    innermost.
    """
    for loop in loops:
        ranges = {**ranges, loop.var: loop_var_interval(loop, ranges)}
    return ranges


def are_accesses_proven_disjoint(a: Sequence[LinearAccess], b: Sequence[LinearAccess]) -> bool:
    """Return True if two lists of accesses to a buffer overlap nowhere.

    They may occupy different intervals of the whole buffer, or different columns of its rows, for a
    row length that occurs as a coefficient in the addresses.
    """
    strides = {abs(c) for access in (*a, *b) for c in access.form.terms.values()}
    return bool(a and b) and any(
        _are_disjoint_within_row(accessed_interval(a, n), accessed_interval(b, n), n) for n in sorted(strides | {0})
    )


def is_entirely_at_higher_addresses(upper: Sequence[LinearAccess], lower: Sequence[LinearAccess]) -> bool:
    """Return True if every element of the accesses `upper` is at a higher address than every
    element of the accesses `lower`.
    """
    return bool(lower and upper) and accessed_interval(lower, 0)[1] < accessed_interval(upper, 0)[0]


def _are_disjoint_within_row(a: Interval, b: Interval, row_length: int) -> bool:
    """Return True if two intervals are disjoint and, for `row_length` > 0, both within the row of
    elements 0 to `row_length` - 1.
    """
    in_row = row_length == 0 or (min(a[0], b[0]) >= 0 and max(a[1], b[1]) < row_length)
    return in_row and (a[1] < b[0] or b[1] < a[0])


def accessed_interval(accesses: Sequence[LinearAccess], row_length: int = 0) -> Interval:
    """Return the interval from the first to the last accessed element.

    For `row_length` > 0 the interval is that of the columns in rows of `row_length` elements: terms
    that are multiples of it are dropped.
    """
    rests: list[LinearForm] = []
    for access in accesses:
        terms = {atom: c for atom, c in access.form.terms.items() if not row_length or c % row_length}
        rests.append(LinearForm(terms, access.form.const % row_length if row_length else access.form.const))
    return _interval_of_addresses(accesses, rests)


def _interval_of_addresses(accesses: Sequence[LinearAccess], addresses: Sequence[LinearForm]) -> Interval:
    """Return the interval from the first to the last element of accesses whose addresses are
    replaced by `addresses`.
    """
    first, last = math.inf, -math.inf
    for access, form in zip(accesses, addresses, strict=True):
        first = min(first, bounds_of_linear_form(form, access.ranges)[0])
        last = max(last, access.upper_bound_of_address(form) + access.lanes - 1)
    return first, last


def collect_accesses(
    stmt: Stmt,
    ranges: Ranges,
    accesses_of_buffer: Accesses,
    *,
    reads: bool = True,
    stores: bool = True,
    expands_registers: bool = False,
) -> None:
    """Append the accesses of a statement to `accesses_of_buffer`, for the buffers that are keys of
    `accesses_of_buffer`.

    reads                include loads
    stores               include stores
    expands_registers    replace registers in indices and loop bounds by their values; a loop that begins at
                         an expression other than a sum of terms, such as max(lo - 4 * i, 0), contributes the
                         range of its variable only
    """
    places = _IndexLinearizer(dict(ranges), expands_registers)
    changing = assigned_registers(stmt) | written_buffers(stmt) if expands_registers else frozenset[Var | Buffer]()
    for s in walk_stmts(stmt):  # outer before inner
        if isinstance(s, For):
            places.enter_loop(s)
        if expands_registers and isinstance(s, Declare) and is_replaceable_by_value(s, changing):
            places.registers[s.var] = substitute(s.value, places.registers)
        for buffer, index, lanes in direct_accesses(s, reads=reads, stores=stores):
            if buffer in accesses_of_buffer:
                accesses_of_buffer[buffer].append(places.linear_access(index, lanes))


def direct_accesses(stmt: Stmt, *, reads: bool = True, stores: bool = True) -> Iterator[tuple[Buffer, Expr, int]]:
    """Yield (buffer, index of the first element, number of elements) of every access that a
    statement itself makes.
    """
    if isinstance(stmt, Execute):
        yield from accesses_of_instruction(stmt, reads=reads, stores=stores)
        return
    if stores and isinstance(stmt, Store):
        yield stmt.buffer, stmt.index, stmt.value.lanes
    yield from ((load.buffer, *load.lowest_index_and_extent) for load in direct_loads(stmt) if reads)


@dataclass
class _IndexLinearizer:
    """Converts index expressions to linear forms while walking a loop nest.

    The variable of a loop that begins at 5 * i is represented as 5 * i + v, with a new variable v
    that begins at 0.

    ranges              the ranges of the variables
    expands_registers   see `collect_accesses`
    lasts               for a loop variable, upper bounds that are linear forms of other variables
    shifted_loop_vars   for a variable of a loop that does not begin at a constant, its begin plus
                        the new variable
    registers           the values of index registers, which replace the registers
    """

    ranges: Ranges
    expands_registers: bool
    lasts: dict[Var, list[LinearForm]] = field(default_factory=dict)
    shifted_loop_vars: dict[Var, LinearForm] = field(default_factory=dict)
    registers: dict[Var, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # the linear forms of indices that many accesses share are computed once
        self._scope = SimplifierScope(self.ranges)

    def enter_loop(self, loop: For) -> None:
        """Add the variable of a loop, with its range and bounds, before the accesses in its body
        are converted.
        """
        loop = replace(
            loop, begin=self._replace_registers_by_values(loop.begin), end=self._replace_registers_by_values(loop.end)
        )
        if loop.var in self.ranges:  # another loop uses this variable, too: accesses found there keep their ranges
            self.ranges, self.lasts = dict(self.ranges), dict(self.lasts)
            self.shifted_loop_vars.pop(loop.var, None)
        self.ranges[loop.var] = loop_var_interval(loop, self.ranges)
        self._scope = SimplifierScope(self.ranges)
        var, begin = loop.var, self.linear_form_of_index(loop.begin)
        if begin.terms and not (self.expands_registers and not all(isinstance(atom, Var) for atom in begin.terms)):
            var = Var(loop.var.name, INDEX)
            self.shifted_loop_vars[loop.var] = begin.add_multiple(LinearForm({var: 1}))
        else:
            begin = LinearForm()
        lasts = [
            self.linear_form_of_index(end).add_multiple(begin, -1).add_multiple(LinearForm(const=-1))
            for end in operands_of_nested_min_max("min", loop.end)
        ]
        self.lasts[var] = [last for last in lasts if last.terms]  # bounds without variables are in the ranges already
        if begin.terms:
            high = max(0, min(bounds_of_linear_form(last, self.ranges)[1] for last in lasts))
            self.ranges[var] = (0, high if high == math.inf else high // loop.step * loop.step)
            self._scope = SimplifierScope(self.ranges)

    def _replace_registers_by_values(self, expr: Expr) -> Expr:
        return substitute(expr, self.registers) if self.registers else expr

    def linear_form_of_index(self, index: Expr) -> LinearForm:
        """Return an index as a linear form, with registers and shifted loop variables replaced."""
        form = linear_form(self._replace_registers_by_values(index), self._scope)
        if not self.shifted_loop_vars:
            return form
        for var in [a for a in form.terms if isinstance(a, Var) and a in self.shifted_loop_vars]:
            factor = form.terms[var]
            form = form.add_multiple(LinearForm({var: factor}), -1).add_multiple(self.shifted_loop_vars[var], factor)
        return form

    def linear_access(self, index: Expr, lanes: int) -> LinearAccess:
        """Return the access to `lanes` consecutive elements from `index` on, with the address as a
        linear form.
        """
        return LinearAccess(self.linear_form_of_index(index), lanes, self.ranges, self.lasts)


def operands_of_nested_min_max(min_or_max: str, expr: Expr) -> list[Expr]:
    """Return the operands of nested minima (`min_or_max` "min") or maxima ("max"): `expr` is the
    minimum or maximum of them all.
    """
    if isinstance(expr, Binary) and expr.op == min_or_max:
        return [*operands_of_nested_min_max(min_or_max, expr.a), *operands_of_nested_min_max(min_or_max, expr.b)]
    return [expr]


def is_written_before_read(buffer: Buffer, stmts: Sequence[Stmt], ranges: Ranges) -> bool:
    """Return True if a sequence of statements reads only elements of a scratch buffer that it has
    written before.
    """
    filled: set[int] = set()
    for stmt in stmts:
        if buffer in read_buffers(stmt) and not is_stored_before_first_load(buffer, stmt):
            places = elements_possibly_read(stmt, buffer, ranges)
            if places is None or not places <= filled:
                return False
        filled |= elements_always_written(stmt, buffer, {})
    return True


def elements_always_written(stmt: Stmt, buffer: Buffer, loop_var_values: Mapping[Var, range]) -> set[int]:
    """Return the elements of a buffer that a statement writes in every execution, as far as they
    are known.

    `loop_var_values` are the values of the loop variables around the statement. Stores under
    conditions do not count.
    """
    match stmt:
        case Block():
            return {n for inner in stmt.stmts for n in elements_always_written(inner, buffer, loop_var_values)}
        case For() if constant_loop_range(stmt):
            return elements_always_written(stmt.body, buffer, {**loop_var_values, stmt.var: constant_loop_range(stmt)})
        case Store() | Execute() if buffer_written_by(stmt) is buffer:
            return set().union(
                *(
                    _enumerate_elements(index, n, loop_var_values) or ()
                    for _, index, n in direct_accesses(stmt, reads=False)
                )
            )
        case _:
            return set()


def elements_possibly_read(stmt: Stmt, buffer: Buffer, ranges: Ranges) -> set[int] | None:
    """Return all elements of a buffer that a statement may read; None if an index is unknown or
    there are too many elements.
    """
    ranges = dict(ranges)
    values: dict[Var, range] = {}
    read_elements: set[int] = set()
    for s in walk_stmts(stmt):  # outer loops before inner loops
        if isinstance(s, For):
            low, high = ranges[s.var] = loop_var_interval(s, ranges)
            if -math.inf < low and high < math.inf:
                values[s.var] = range(int(low), int(max(low, high)) + 1)
        for other, index, lanes in direct_accesses(s, stores=False):
            elements = _enumerate_elements(index, lanes, values) if other is buffer else set()
            if elements is None:
                return None
            read_elements |= elements
    return read_elements


def _enumerate_elements(index: Expr, lanes: int, loop_var_values: Mapping[Var, range]) -> set[int] | None:
    """Return the elements `index` to `index + lanes - 1` over all values of the variables.

    Return None if an index contains other terms, or if there are more than
    `_MAX_ENUMERATED_ELEMENTS` elements.
    """
    form = linear_form(index, {var: (numbers[0], numbers[-1]) for var, numbers in loop_var_values.items()})
    elements = set(range(form.const, form.const + lanes))
    for atom, factor in form.terms.items():
        numbers = loop_var_values.get(atom) if isinstance(atom, Var) else None
        if numbers is None or len(elements) * len(numbers) > _MAX_ENUMERATED_ELEMENTS:
            return None
        elements = {n + factor * value for n in elements for value in numbers}
    return elements


def why_loop_kind_unproven(
    loop: For, ranges: Ranges, outer_vars: Container[Var], unread_buffers: Container[Buffer] = ()
) -> str | None:
    """Return the reason why the kind of a loop ("independent", "reduction") is not proven; None if
    it is proven.

    ranges            the known ranges of the variables around the loop
    outer_vars        all variables around the loop
    unread_buffers    scratch buffers that no statement reads, which are ignored
    """
    low, high = loop_var_interval(loop, ranges)
    if loop.kind == "serial" or high - low < loop.step:  # at most one iteration
        return None
    reads = count_reads_in_stmt(loop.body) if loop.kind == "reduction" else {}
    assigned = list(assigns_to_outer_registers(loop.body))
    for register in dict.fromkeys(s.var for s in assigned):
        if not _changes_by_accumulation_only(register, [s for s in assigned if s.var is register], reads):
            return f"iterations hand register {register.name} to each other"
    accesses: Accesses = {buffer: [] for buffer in written_buffers(loop.body)}
    collect_accesses(loop.body, {**ranges, loop.var: (low, high)}, accesses, expands_registers=True)
    for buffer, buffer_accesses in accesses.items():
        if buffer in unread_buffers or iterations_access_distinct_elements(buffer_accesses, loop, outer_vars):
            continue
        if buffer.private and is_stored_before_first_load(buffer, loop.body):
            continue
        stores = [s for s in walk_stmts(loop.body) if buffer_written_by(s) is buffer]
        if not _changes_by_accumulation_only(buffer, stores, reads):
            return f"iterations may touch the same elements of {buffer.name}"
    return None


def _changes_by_accumulation_only(target: Var | Buffer, updates: Sequence[Stmt], reads: Mapping[object, int]) -> bool:
    """Return True if a register or buffer changes by `target = target op value` only, with one
    associative operation.

    target     the register or buffer
    updates    all statements that change it
    reads      the number of times the loop reads each register and buffer: reads other than in the updates
               are not allowed
    """
    ops = {_associative_update_op(stmt) for stmt in updates}
    return len(ops) == 1 and None not in ops and reads.get(target) == len(updates)


def _associative_update_op(stmt: Stmt) -> str | None:
    """Return the associative operation of `target = target op value`; None if the statement does
    not have this form.
    """
    if not isinstance(stmt, (Assign, Store)):
        return None
    place = stmt.var if isinstance(stmt, Assign) else Load(stmt.buffer, stmt.index, stmt.value.lanes)
    match stmt.value:
        case Binary(op=op, a=a, b=b) if op in ASSOCIATIVE_OPS and place in (a, b):
            return op
        case Call(name="fma", args=(_, _, added)) if added == place:
            return "add"
        case Call(name=name, args=(added, *_)) if added == place and is_accumulating_dot_instruction(name):
            return "add"
    return None


def is_stored_before_first_load(buffer: Buffer, stmt: Stmt) -> bool:
    """Return True if a statement loads from a scratch buffer, and a store to it precedes the first
    load in program order.
    """
    filled = False
    for inner in walk_stmts(stmt):
        if any(load.buffer is buffer for load in direct_loads(inner)):
            return filled
        filled = filled or buffer_written_by(inner) is buffer
    return False


def iterations_access_distinct_elements(
    accesses: Sequence[LinearAccess], loop: For, invariant_vars: Container[Var]
) -> bool:
    """Return True if accesses in different iterations of a loop are proven to be to different
    elements.

    Tries, in order: the linear forms as they are, the forms with simplified quotients and
    remainders, a comparison of the digits (quotients and remainders), and enumeration for loops of
    at most `_MAX_ENUMERATED_ITERATIONS` iterations.
    """
    if _are_distinct_by_linear_forms(accesses, loop, invariant_vars):
        return True
    simple_accesses = [simplify_divmod_in_address(access) for access in accesses]
    if _are_distinct_by_linear_forms(simple_accesses, loop, invariant_vars) or mixed_radix_digits_determine_variable(
        simple_accesses, loop.var, lambda atom: is_iteration_invariant(atom, invariant_vars)
    ):
        return True
    return len(constant_loop_range(loop)) <= _MAX_ENUMERATED_ITERATIONS and _are_distinct_by_enumeration(
        accesses, loop, invariant_vars
    )


def _are_distinct_by_enumeration(accesses: Sequence[LinearAccess], loop: For, invariant_vars: Container[Var]) -> bool:
    """Return True if enumeration shows that no element is accessed in two iterations; False if the
    elements are unknown.
    """
    common = LinearForm(common_fixed_terms(accesses, lambda atom: is_iteration_invariant(atom, invariant_vars)))
    used_elements: set[int] = set()
    for value in constant_loop_range(loop):
        here: set[int] = set()
        for access in accesses:
            place = substitute(access.form.add_multiple(common, -1).to_expr(), {loop.var: Const(value, INDEX)})
            known = {v: r for v, r in access.ranges.items() if -math.inf < r[0] <= r[1] < math.inf}
            values = {v: range(int(low), int(high) + 1) for v, (low, high) in known.items()}
            elements = _enumerate_elements(place, access.lanes, values)
            if elements is None:
                return False
            here |= elements
        if here & used_elements:
            return False
        used_elements |= here
    return bool(used_elements)


def _are_distinct_by_linear_forms(accesses: Sequence[LinearAccess], loop: For, invariant_vars: Container[Var]) -> bool:
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
    span = _address_span_of_loop(factor, loop)
    common = set.intersection(*(set(access.form.terms.items()) for access in accesses))
    same = {loop.var, *(atom for atom, _ in common if is_iteration_invariant(atom, invariant_vars))}
    rests = [{a: c for a, c in access.form.terms.items() if a not in same} for access in accesses]
    unit = math.gcd(*(c for rest in rests for c in rest.values() if abs(c) > span))
    consts = sorted({access.form.const for access in accesses})
    rows = {math.gcd(unit, c - consts[0]) for c in consts if c - consts[0] > span}
    return any(_are_distinct_modulo_row(accesses, rests, loop, factor, u) for u in (unit, *sorted(rows)))


def is_iteration_invariant(term: Expr, invariant_vars: Container[Var]) -> bool:
    """Return True if a term has one value in all iterations: all its variables are in
    `invariant_vars`, and it loads no memory.
    """
    return all(n in invariant_vars for n in vars_and_buffers_in(term))


def _address_span_of_loop(elements_per_iteration: int, loop: For) -> int:
    """Return the distance between the addresses of the first and the last iteration of a loop."""
    return abs(elements_per_iteration) * loop.step * max(1, constant_trip_count(loop) - 1)


def _are_distinct_modulo_row(
    accesses: Sequence[LinearAccess], other_terms: Sequence[dict[Expr, int]], loop: For, factor: int, row_length: int
) -> bool:
    """Return True if the addresses, modulo a row length `row_length`, show that different
    iterations access different elements.

    The addresses of one iteration must span less than a step of the loop, and all iterations
    together less than a row.
    """
    step, span = abs(factor) * loop.step, _address_span_of_loop(factor, loop)
    lows: list[LinearForm] = []
    for access, rest in zip(accesses, other_terms, strict=True):
        const = access.form.const % row_length if row_length else access.form.const
        lows.append(LinearForm({a: c for a, c in rest.items() if abs(c) <= span}, const))
    least, most = _interval_of_addresses(accesses, lows)
    first, last = _interval_of_addresses(accesses, [low.add_multiple(LinearForm({loop.var: factor})) for low in lows])
    return most - least < step and (row_length == 0 or last - first < row_length)  # neither if it is infinite
