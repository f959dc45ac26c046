# SPDX-License-Identifier: Apache-2.0
"""Prove that GPU blocks, or the threads of a block, do not race: no two access an element that one
of them writes.

Input: a loop over blocks or threads, and the ranges of the variables around it. Output: the reason
why freedom from races is not proven, or None:

    for b in 0..4 block: for t in 0..256 thread: for n in 256 * b + t..9999 step 1024: y[n] = x[n]    # None
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from aotc.tir import (
    BarrierPhases,
    LinearAccess,
    LinearForm,
    bounds,
    bounds_of_linear_form,
    comparison_as_nonnegative_form,
    conjuncts,
    is_race_free_by_enumeration,
    linear_form,
)
from aotc.tir.expr import INDEX, Binary, Buffer, Const, Expr, Var, substitute, vars_and_buffers_in, walk_once
from aotc.tir.loops import loop_dependence
from aotc.tir.loops.loop_dependence import (
    Accesses,
    Ranges,
    constant_trip_count,
    iterations_access_distinct_elements,
    ranges_inside_loops,
    read_buffers,
    written_buffers,
)
from aotc.tir.stmt import Assign, Block, Declare, For, If, Stmt, direct_child_stmts, walk_stmts

_CounterDefinitions = dict[Var, Expr]
_NEGATED_COMPARISON: Final = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def why_gpu_loop_may_race(
    loop: For, ranges: Ranges, outer_vars: Iterable[Var], private_buffers: Container[Buffer]
) -> str | None:
    """Return the reason why the iterations of a loop over blocks or threads may race; None if they
    are proven not to.

    loop               the loop; barriers in it separate phases, each of which is checked alone
    ranges             the known ranges of the variables around the loop
    outer_vars         all variables around the loop
    private_buffers    memory of which each iteration has its own copy, or that no statement reads
    """
    phases = BarrierPhases.split_loop_at_barriers(loop, ranges_inside_loops([loop], ranges), private_buffers)
    ranges, outer_vars = phases.ranges, {*outer_vars, *phases.rounds}
    for phase in phases.phase_stmts if constant_trip_count(loop) != 1 else ():  # a single iteration cannot race
        accesses: Accesses = {buffer: [] for buffer in written_buffers(phase) if buffer not in private_buffers}
        loop_dependence.collect_accesses(phase, ranges, accesses, expands_registers=True)
        for buffer, buffer_accesses in accesses.items():
            is_disjoint = iterations_access_distinct_elements(
                buffer_accesses, loop, outer_vars
            ) or _DisjointAccessProof(buffer, loop, outer_vars).iterations_access_disjoint_elements(phase, ranges)
            if not is_disjoint and not is_race_free_by_enumeration(buffer, phase, loop, ranges, outer_vars):
                return f"iterations may touch the same elements of {buffer.name}"
    return phases.problem


@dataclass(slots=True)
class _DisjointAccessProof:
    """Proof that the iterations of a loop over blocks or threads access disjoint parts of a buffer.

    Walks the loop body to the statements that access the buffer, and collects "counters": registers
    and inner loop variables computed from the iteration, such as `n = 256 * b + t`. If the address
    determines the counters and the counters determine the iteration, then different iterations have
    different addresses.

    buffer   the buffer
    loop     the loop over blocks or threads
    fixed    variables that have one value in all iterations
    access_groups    groups of accesses already proven to be disjoint between iterations
    """

    buffer: Buffer
    loop: For
    fixed: set[Var]
    access_groups: list[list[LinearAccess]] = field(default_factory=list)

    def iterations_access_disjoint_elements(self, stmt: Stmt, ranges: Ranges) -> bool:
        """Return True if no two iterations of the loop over blocks or threads access a common
        element of the buffer.
        """
        return self.stmt_accesses_are_disjoint(stmt, ranges, {}) and all(
            loop_dependence.are_accesses_proven_disjoint(a, b) for a, b in combinations(self.access_groups, 2)
        )

    def stmt_accesses_are_disjoint(self, stmt: Stmt, ranges: Ranges, counters: _CounterDefinitions) -> bool:
        """Return True if every access of `stmt` to the buffer is proven to be to an element of one
        iteration only.

        `counters` maps each counter (see the class) to the expression that it is computed from. The
        proven accesses are appended to `access_groups`.
        """
        if self.buffer not in written_buffers(stmt) | read_buffers(stmt):
            return True
        low, high = ranges[self.loop.var]
        if low == high:  # only one iteration executes this statement
            self.access_groups.append(self.accesses_to_proof_buffer_in_stmt(stmt, ranges))
            return True
        guarded = _is_if_without_else(stmt)  # its condition limits the range of the addresses further
        if counters and not guarded and self.addresses_determine_iteration(stmt, ranges, counters):
            return True
        if any(load.buffer is self.buffer for load in loop_dependence.direct_loads(stmt)):
            return False
        match stmt:
            case For(step=step) if step > 1:
                turn = Var(stmt.var.name)
                low, high = loop_dependence.loop_var_interval(stmt, ranges)
                if high == math.inf:
                    return False
                ranges = {**ranges, stmt.var: (low, high), turn: (0, (high - low) // step)}
                return self.stmt_accesses_are_disjoint(
                    stmt.body, ranges, {**counters, stmt.var: stmt.begin + turn * step}
                )
            case For():
                return self.stmt_accesses_are_disjoint(stmt.body, ranges_inside_loops([stmt], ranges), counters)
            case If():
                branches = (
                    (s, _ranges_in_branch(ranges, stmt.cond, s is stmt.then, counters))
                    for s in direct_child_stmts(stmt)
                )
                return all(self.stmt_accesses_are_disjoint(s, known, counters) for s, known in branches)
            case Block():
                return self.sequence_accesses_are_disjoint(stmt.stmts, ranges, counters)
        return False

    def sequence_accesses_are_disjoint(
        self, stmts: Sequence[Stmt], ranges: Ranges, counters: _CounterDefinitions
    ) -> bool:
        """Return True if each access to the buffer in a sequence of statements is to an element of
        one iteration only.

        Registers declared in the sequence become counters (see the class).
        """
        changing = {s.var for stmt in stmts for s in walk_stmts(stmt) if isinstance(s, Assign)}
        for k, stmt in enumerate(stmts):
            if not (isinstance(stmt, Declare) and stmt.var.dtype == INDEX and stmt.var not in changing):
                if not self.stmt_accesses_are_disjoint(stmt, ranges, counters):
                    return False
                continue
            ranges = {**ranges, stmt.var: bounds(stmt.value, ranges)}
            if loop_dependence.is_iteration_invariant(stmt.value, self.fixed):
                self.fixed = {*self.fixed, stmt.var}
                continue
            self.fixed = self.fixed - {stmt.var}
            counters = {**counters, stmt.var: stmt.value}
            guarded = len(stmts) == k + 2 and _is_if_without_else(stmts[-1])
            if self.buffer in read_buffers(stmt) or (
                not guarded and self.addresses_determine_iteration(Block(stmts[k + 1 :]), ranges, counters)
            ):
                return self.buffer not in read_buffers(stmt)
        return True

    def accesses_to_proof_buffer_in_stmt(self, stmt: Stmt, ranges: Ranges) -> list[LinearAccess]:
        """Return all loads and stores of the buffer under proof in a statement."""
        accesses: Accesses = {self.buffer: []}
        loop_dependence.collect_accesses(stmt, ranges, accesses, expands_registers=True)
        return accesses[self.buffer]

    def addresses_determine_iteration(self, stmt: Stmt, ranges: Ranges, counters: _CounterDefinitions) -> bool:
        """Return True if the addresses in a statement determine the counters (see the class), and
        these the iteration.

        The accesses are then appended to `access_groups`.
        """
        accesses = self.accesses_to_proof_buffer_in_stmt(stmt, ranges)
        if not self.are_addresses_injective_in_iteration(accesses, ranges, counters):
            return False
        self.access_groups.append(accesses)
        return True

    def are_addresses_injective_in_iteration(
        self, accesses: Sequence[LinearAccess], ranges: Ranges, counters: _CounterDefinitions
    ) -> bool:
        """Return True if different iterations have different addresses.

        The proof uses the given counters, and then also terms of the addresses that are functions
        of the iteration.
        """
        known = (accesses, ranges, counters), self.add_iteration_terms_as_counters(accesses, ranges, counters)
        return any(self.are_addresses_injective_by_counters(*args, counters) for args in known)

    def add_iteration_terms_as_counters(
        self, linear_accesses: Sequence[LinearAccess], ranges: Ranges, counters: _CounterDefinitions
    ) -> tuple[Sequence[LinearAccess], Ranges, _CounterDefinitions]:
        """Return accesses, ranges and counters in which terms computed from the iteration, such as
        `b // 66 % 2`, are counters, too.
        """
        terms = dict.fromkeys(atom for access in linear_accesses for atom in access.form.terms)
        known = ({n for n in vars_and_buffers_in(atom) if isinstance(n, Var)} for atom in terms)
        atoms = (atom for atom, used in zip(terms, known, strict=True) if self.loop.var in used <= {*ranges})
        names = {atom: Var("digit", INDEX) for atom in atoms}
        extents = {var: bounds(atom, ranges) for atom, var in names.items()}
        forms = [LinearForm({names.get(a, a): c for a, c in f.terms.items()}, f.const) for f, *_ in linear_accesses]
        accesses = [
            a._replace(form=form, ranges={**a.ranges, **extents})
            for a, form in zip(linear_accesses, forms, strict=True)
        ]
        return accesses, {**ranges, **extents}, {**counters, **{var: atom for atom, var in names.items()}}

    def are_addresses_injective_by_counters(
        self,
        accesses: Sequence[LinearAccess],
        ranges: Ranges,
        counters: _CounterDefinitions,
        unused_counters: _CounterDefinitions,
    ) -> bool:
        """Return True if addresses are injective in each counter used, and these counters determine
        the iteration.

        A counter may determine it through other counters, on which it depends; `unused_counters`
        are the counters not used so far.
        """
        used = {n for access in accesses for atom in access.form.terms for n in walk_once(atom)}
        used_counters = {var: value for var, value in counters.items() if var in used}
        if not used_counters or not all(
            self.are_addresses_injective_in_counter(accesses, var, ranges) for var in used_counters
        ):
            return False
        number = _combine_to_mixed_radix_number(
            [_replace_counters_by_definitions(value, counters) for value in used_counters.values()], ranges
        )
        if number is not None and iterations_access_distinct_elements(
            [number], _set_loop_bounds_to_var_range(self.loop, ranges), self.fixed
        ):
            return True
        rest = {var: value for var, value in unused_counters.items() if var not in used_counters}
        number = _combine_to_mixed_radix_number(used_counters.values(), ranges)
        return (
            0 < len(rest) < len(unused_counters)
            and number is not None
            and self.are_addresses_injective_in_iteration([number], ranges, rest)
        )

    def are_addresses_injective_in_counter(
        self, accesses: Sequence[LinearAccess], counter: Var, ranges: Ranges
    ) -> bool:
        """Return True if different values of one counter lead to different addresses."""
        low, high = ranges[counter]
        if high - low == math.inf:
            return False
        least = LinearForm(const=min((access.form.const for access in accesses), default=0))
        offset_accesses = [access._replace(form=access.form.add_multiple(least, -1)) for access in accesses]
        values = For(counter, Const(int(high) + 1, INDEX), self.loop.body, begin=Const(int(low), INDEX))
        return iterations_access_distinct_elements(accesses, values, self.fixed) or iterations_access_distinct_elements(
            offset_accesses, values, self.fixed
        )


def _combine_to_mixed_radix_number(values: Iterable[Expr], ranges: Ranges) -> LinearAccess | None:
    """Combine several values into one mixed-radix number that determines all of them; None if one
    of them is unbounded.
    """
    number_form, unit = LinearForm(), 1
    for form in (linear_form(value, ranges) for value in values):
        first, last = bounds_of_linear_form(form, ranges)
        if last - first == math.inf:
            return None
        number_form = number_form.add_multiple(form, unit).add_multiple(LinearForm(const=-int(first) * unit))
        unit *= int(last - first) + 1
    return LinearAccess(number_form, 1, ranges, {})


def _replace_counters_by_definitions(expr: Expr, counters: _CounterDefinitions) -> Expr:
    """Return an expression with all counters replaced by the expressions that they are computed
    from.
    """
    for var, value in reversed(counters.items()):
        expr = substitute(expr, {var: value})
    return expr


def _is_if_without_else(stmt: Stmt) -> bool:
    """Return True if a statement is an `if` without an `else`."""
    return isinstance(stmt, If) and stmt.orelse is None


def _set_loop_bounds_to_var_range(loop: For, ranges: Ranges) -> For:
    """Return a copy of a loop whose bounds are the range of its variable; the loop itself if that
    range is infinite.
    """
    low, high = ranges[loop.var]
    finite = -math.inf < low and high < math.inf
    return replace(loop, begin=Const(int(low), INDEX), end=Const(int(high) + 1, INDEX)) if finite else loop


def _ranges_in_branch(ranges: Ranges, cond: Expr, holds: bool, counters: _CounterDefinitions) -> Ranges:
    """Return the ranges of variables and counters in a branch where `cond` is true (false, if
    `holds` is False).

    A test of a counter also narrows the variables that the counter is computed from.
    """
    for test in (cond, _replace_counters_by_definitions(cond, counters)):
        ranges = _narrow_ranges_by_condition(ranges, test, holds)
    for var, value in counters.items():
        (low, high), (least, most) = ranges[var], bounds(value, ranges)
        ranges = {**ranges, var: (max(low, least), min(high, most))}
    return ranges


def _narrow_ranges_by_condition(ranges: Ranges, cond: Expr, holds: bool) -> Ranges:
    """Return the ranges of variables, narrowed by a condition that is true (false, if `holds` is
    False).
    """
    if not holds:
        match cond:
            case Binary(op="lt" | "le" | "gt" | "ge" as op):
                cond = Binary(_NEGATED_COMPARISON[op], cond.a, cond.b)
            case _:
                return ranges
    for half in filter(None, (comparison_as_nonnegative_form(part, ranges) for part in conjuncts(cond))):
        for var, factor in half.terms.items():
            if len(half.terms) == 1 and isinstance(var, Var) and var in ranges:
                low, high = ranges[var]
                edge = -(half.const // factor) if factor > 0 else half.const // -factor
                ranges = {**ranges, var: (max(low, edge), high) if factor > 0 else (low, min(high, edge))}
    return ranges
