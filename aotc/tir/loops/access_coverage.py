# SPDX-License-Identifier: Apache-2.0
"""Prove that stores fill what a load reads, where extents are known at run time only.

Input: stores with the loops around them, and a load. Output: True if every element that the load may
access is proven to be written by the stores. Example, for every n from 0 on:

    for t in 0..n // 8: for k in 0..8: y[8 * t + k] = ...     # elements 0 to 8 * (n // 8)
    for j in n // 8 * 8..n: y[j] = ...                        # elements 8 * (n // 8) to n
    for i in 0..n: ... = y[i]                                 # covered

Method: a store writes consecutive elements; a loop around them makes them longer where its stride is no
greater than their number. Runs of elements that follow one another are joined. A loop that does not make
a run longer, such as the one over the rows of a padded matrix, stays around the run, and the load must
be in one of its iterations. All numbers are polynomials in the extents (`polynomial_bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import Binary, Const, Expr, LinearForm, Var
from aotc.tir.expr import walk_once
from aotc.tir.loops.buffer_access import Access, ExactLoop, is_invariant
from aotc.tir.loops.dependence_system import IterationPoint
from aotc.tir.loops.integer_constraints import LinearSum
from aotc.tir.loops.integer_system import IntegerSystem
from aotc.tir.loops.polynomial_bounds import (
    Polynomial,
    PolynomialBounds,
    add_multiple_of_terms,
    coefficient_of_variable,
    divide_polynomial,
    multiply_polynomials,
    variables_of_polynomial,
)

_ONE: Final[Polynomial] = {(): 1}


def is_load_covered(stores: Iterable[Access], load: Access, fixed: Container[Var]) -> bool:
    """Return True if every element that a load may access is proven to be written by some stores.

    fixed    variables that have one value in all iterations
    """
    coverage = _Coverage(IntegerSystem(), fixed)
    point = coverage.iteration_of_load(load)
    element = coverage.polynomial_of_form(point, load.form)
    point.require_conditions(load.conditions)
    if coverage.system.has_empty_interval():
        return True  # the load is never made
    runs = [run for store in stores if (run := coverage.run_of_store(store)) is not None]
    known = coverage.system.polynomial_bounds()
    return any(_is_in_run(element, load.lanes, run, known) for run in _joined_runs(runs, known))


@frozen
class _Loop:
    """A loop around a run: the number of its variable, which counts from 0, and its trip count."""

    var: int
    trips: Polynomial

    def __hash__(self) -> int:
        return self.var


@frozen(eq=False)
class _Run:
    """The elements `first` to `first + length - 1`, in all iterations of some loops.

    first    a polynomial in extents and the variables of the loops
    length   a polynomial that is at least 0
    """

    first: Polynomial
    length: Polynomial
    loops: tuple[_Loop, ...]


@dataclass
class _Coverage:
    """Translates a load and stores to polynomials over the variables of one system.

    system   the system; its equations and inequalities hold where the load is made
    fixed    variables that have one value in all iterations
    shared   sums of expressions of these variables
    loops    the variable of each loop around stores, by the loop variable and its trip count
    """

    system: IntegerSystem
    fixed: Container[Var]
    shared: dict[Expr, LinearSum] = field(default_factory=dict)
    loops: dict[tuple[Var, frozenset[tuple[tuple[int, ...], int]]], int] = field(default_factory=dict)

    def _is_shared(self, expr: Expr) -> bool:
        return is_invariant(expr, self.fixed)

    def iteration_of_load(self, load: Access) -> IterationPoint:
        """Return the iteration that makes a load."""
        return IterationPoint(
            self.system, load.ranges, load.lasts, load.firsts, load.steps, self._is_shared, self.shared
        )

    def polynomial_of_form(self, point: IterationPoint, form: LinearForm) -> Polynomial:
        """Return a linear form in an iteration as a polynomial."""
        return self.system.polynomial_of_sum(*point.sum_of_form(form))

    def run_of_store(self, store: Access) -> _Run | None:
        """Return the elements that a store writes in all iterations of its loops; None if they are not
        known.

        Nothing is required of the variables of its loops, and no divisor is known not to be 0: the loops
        may be empty.
        """
        if store.loops is None or _has_divisor_that_may_be_zero(store):
            return None
        ranges = {var: interval for var, interval in store.ranges.items() if var in self.fixed}
        point = IterationPoint(self.system, ranges, {}, {}, {}, self._is_shared, self.shared)
        loops: list[_Loop] = []
        for loop in store.loops:
            trips = self._trip_count(point, loop)
            if trips is None:
                return None
            key = loop.var, frozenset(trips.items())
            if key not in self.loops:
                self.loops[key] = self.system.add_variable(0, math.inf)
            loops.append(_Loop(self.loops[key], trips))
            point.own[loop.var] = {self.loops[key]: loop.step}, loop.first
        first = self.polynomial_of_form(point, store.form)
        if not self._is_known_in_loops(loops, (first, *(loop.trips for loop in loops))):
            return None
        return _Run(first, {(): store.lanes}, tuple(loops))

    def _is_known_in_loops(self, loops: Iterable[_Loop], polynomials: Iterable[Polynomial]) -> bool:
        """Return True if polynomials depend on variables of loops and on numbers with one value in all
        iterations only.

        An expression that is no polynomial, such as i % 4, is a variable that may have another value in
        each iteration.
        """
        known = {loop.var for loop in loops}
        for terms, _ in self.shared.values():
            known |= variables_of_polynomial(self.system.polynomial_of_sum(terms, 0))
        return all(variables_of_polynomial(polynomial) <= known for polynomial in polynomials)

    def _trip_count(self, point: IterationPoint, loop: ExactLoop) -> Polynomial | None:
        """Return the number of iterations of a loop; None if it is no polynomial."""
        total = loop.last.add_multiple(LinearForm(const=loop.step - loop.first))
        if any(factor % loop.step for factor in total.terms.values()):
            return None
        terms = {atom: factor // loop.step for atom, factor in total.terms.items()}
        return self.polynomial_of_form(point, LinearForm(terms, total.const // loop.step))


def _has_divisor_that_may_be_zero(store: Access) -> bool:
    """Return True if the address of a store, or an end of a loop around it, has a quotient or remainder
    by a number that is known at run time only, or by 0, which a store in an empty loop may have.
    """
    forms = (store.form, *(loop.last for loop in store.loops or ()))
    return any(
        isinstance(e, Binary) and e.op in ("floordiv", "floormod") and not (isinstance(e.b, Const) and e.b.value)
        for form in forms
        for atom in form.terms
        for e in walk_once(atom)
    )


def _joined_runs(runs: Sequence[_Run], known: PolynomialBounds) -> list[_Run]:
    """Return runs that are as long as possible."""
    runs = [run for run in runs if all(known.is_never_negative(loop.trips) for loop in run.loops)]
    while True:
        longer = _join_runs_that_follow([_run_with_loops_joined(run, known) for run in runs])
        if len(longer) == len(runs):
            return longer
        runs = longer


def _run_with_loops_joined(run: _Run, known: PolynomialBounds) -> _Run:
    """Return a run of which each loop is removed that makes it longer without gaps."""
    while True:
        shorter = (_run_without_loop(run, loop, known) for loop in run.loops)
        longer = next((other for other in shorter if other is not None), None)
        if longer is None:
            return run
        run = longer


def _run_without_loop(run: _Run, loop: _Loop, known: PolynomialBounds) -> _Run | None:
    """Return the run in all iterations of a loop; None if that is no run, or if the loop bounds another
    one.
    """
    stride = coefficient_of_variable(run.first, loop.var)
    others = tuple(other for other in run.loops if other is not loop)
    dependent = [run.length, *(other.trips for other in others)]
    if stride is None or any(loop.var in variables_of_polynomial(polynomial) for polynomial in dependent):
        return None
    first = add_multiple_of_terms(run.first, multiply_polynomials(stride, {(loop.var,): 1}), -1)
    distance_of_last = multiply_polynomials(stride, add_multiple_of_terms(loop.trips, _ONE, -1))
    if stride and known.upper_bound(stride) <= 0:  # the last iteration has the first elements
        first = add_multiple_of_terms(first, distance_of_last)
        stride, distance_of_last = (multiply_polynomials(p, {(): -1}) for p in (stride, distance_of_last))
    # where the stride is the length, the run of a loop without iterations has no elements
    if stride != run.length:
        gap = add_multiple_of_terms(stride, run.length, -1)
        if known.upper_bound(gap) > 0 or known.lower_bound(stride) < 0:
            return None
        if not known.is_never_negative(add_multiple_of_terms(loop.trips, _ONE, -1)):
            return None  # the loop may be empty
    return _Run(first, add_multiple_of_terms(distance_of_last, run.length), others)


def _join_runs_that_follow(runs: Sequence[_Run]) -> list[_Run]:
    """Return runs in which each run is joined with one that begins at its end, in the same loops."""
    joined = list(runs)
    for run in runs:
        for other in joined:
            end = add_multiple_of_terms(run.first, run.length)
            if other is not run and run in joined and other.first == end and {*other.loops} == {*run.loops}:
                both = replace(run, length=add_multiple_of_terms(run.length, other.length))
                joined = [both, *(r for r in joined if r is not run and r is not other)]
                break
    return joined


def _is_in_run(element: Polynomial, lanes: int, run: _Run, known: PolynomialBounds) -> bool:
    """Return True if consecutive elements are proven to be in a run, in one iteration of its loops."""
    rest = element
    for loop in run.loops:
        stride = coefficient_of_variable(run.first, loop.var)
        if not stride or any(loop.var in variables_of_polynomial(other.trips) for other in run.loops):
            return False
        rest = add_multiple_of_terms(rest, multiply_polynomials(stride, {(loop.var,): 1}))
    rest = add_multiple_of_terms(rest, run.first, -1)
    for loop in run.loops:
        stride = coefficient_of_variable(run.first, loop.var)
        assert stride
        iteration, rest = divide_polynomial(rest, stride)
        last = add_multiple_of_terms(loop.trips, _ONE, -1)
        if not known.is_never_negative(iteration) or not known.is_never_positive(
            add_multiple_of_terms(iteration, last, -1)
        ):
            return False
    beyond = add_multiple_of_terms(add_multiple_of_terms(rest, {(): lanes}), run.length, -1)
    return known.is_never_negative(rest) and known.is_never_positive(beyond)
