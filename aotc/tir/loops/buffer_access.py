# SPDX-License-Identifier: Apache-2.0
"""An access to a buffer: the address as a linear form, and the iterations of loops that make it.

The relation of a buffer, which answers questions about its accesses, is in `access_relation`.

    for i in 0..n: if i < m: y[4 * i:4] = ...    # 4 * i, 4 lanes; 0 <= i <= n - 1, i < m
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from aotc.ir import frozen
from aotc.tir import Expr, LinearForm, Var, bounds_of_linear_form, vars_and_buffers_in
from aotc.tir.loops.point_enumeration import (
    MAX_ENUMERATED_POINTS,
    Int64Array,
    NotEnumerableError,
    PointEnumerator,
    value_of_form,
    vars_of_form,
)
from aotc.tir.simplify import Interval

Ranges = dict[Var, Interval]
#: A condition, and True if it holds, False if its negation holds.
Condition: TypeAlias = "tuple[Expr, bool]"


@frozen(eq=False)
class ExactLoop:
    """A loop of which all iterations are known: the values `first`, `first + step`, ... up to `last`.

    The last value is a linear form of other variables; if it is less than `first`, the loop is empty.
    """

    var: Var
    first: int
    last: LinearForm
    step: int


@frozen(eq=False)
class Access:
    """An access to consecutive elements of a buffer in each iteration of some loops.

    form         the address of the first element as a linear form
    lanes        the number of consecutive elements
    ranges       the intervals of variables
    lasts        for loop variables, upper bounds that are linear forms of other variables
    firsts       for loop variables, lower bounds that are linear forms of other variables
    steps        for loop variables, the distance of their values, the first of which is the low end of
                 the interval; 1 if it is absent
    conditions   conditions under which the access is made
    is_write     True for a store, False for a load
    loops        the loops around the access, the outermost first, if every execution of the statements
                 makes it in all iterations of them; None if that is not known
    """

    form: LinearForm
    lanes: int
    ranges: Ranges
    lasts: Mapping[Var, Sequence[LinearForm]] = field(default_factory=dict)
    firsts: Mapping[Var, Sequence[LinearForm]] = field(default_factory=dict)
    steps: Mapping[Var, int] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    is_write: bool = True
    loops: tuple[ExactLoop, ...] | None = None

    @property
    def is_certain(self) -> bool:
        """True if every execution of the statements accesses the same known elements, all of them: the
        loops have constant bounds.
        """
        if self.loops is None or any(loop.last.terms or loop.last.const < loop.first for loop in self.loops):
            return False
        variables = {loop.var for loop in self.loops}
        return all(n in variables for atom in self.form.terms for n in vars_and_buffers_in(atom))

    def certain_elements(self) -> Int64Array:
        """Return the elements that every execution of the statements accesses; none if they are not known.

        The loops are enumerated by their exact ends: intervals of variables may be longer.

        Raise NotEnumerableError as `accessed_elements`.
        """
        if not self.is_certain or self.loops is None:
            return np.zeros(0, np.int64)
        exact_ranges = {loop.var: (loop.first, loop.last.const) for loop in self.loops}
        steps = {loop.var: loop.step for loop in self.loops}
        exact = replace(self, ranges={**self.ranges, **exact_ranges}, lasts={}, steps=steps)
        return exact.accessed_elements({}, None)[0].ravel()

    def depends_on(self, var: Var) -> bool:
        """Return True if the accessed elements may depend on a loop variable."""
        limits = (*self.lasts.values(), *self.firsts.values())
        forms = (self.form, *(limit for forms in limits for limit in forms))
        return any(form.depends_on(var) for form in forms) or any(
            var in vars_and_buffers_in(cond) for cond, _ in self.conditions
        )

    def upper_bound_of_address(self) -> float:
        """Return an upper bound of the address of the first element, using the bounds in `lasts` where
        they are tighter than the ranges.
        """
        address = self.form
        high = bounds_of_linear_form(address, self.ranges)[1]
        for var in [a for a, factor in address.terms.items() if isinstance(a, Var) and factor > 0]:
            for last in self.lasts.get(var, ()):
                # a bound of another variable may have replaced the factor by one that is not positive
                factor = address.terms.get(var, 0)
                if factor <= 0:
                    break
                shorter = address.add_multiple(LinearForm({var: 1}), -factor).add_multiple(last, factor)
                if bounds_of_linear_form(shorter, self.ranges)[1] < high:
                    address, high = shorter, bounds_of_linear_form(shorter, self.ranges)[1]
        return high

    def accessed_elements(
        self, omitted_terms: Mapping[Expr, int], var: Var | None, max_values: int | None = None
    ) -> tuple[Int64Array, Int64Array]:
        """Return the accessed elements at all points, an array of shape (points, lanes), and the value
        of a loop variable at each point (0 for None).

        omitted_terms    terms that are subtracted from the address, by their factors
        var              the loop variable
        max_values       largest number of values of a variable, of which the first ones are enumerated;
                         None for all values

        Raise NotEnumerableError if an address is not a function of variables with finite intervals, or
        if there are too many points.
        """
        form = self.form.add_multiple(LinearForm(dict(omitted_terms)), -1)
        enumerator = PointEnumerator(self.ranges, self.lasts, self.steps, self.conditions, max_values)
        points = enumerator.points_of_vars([*([] if var is None else [var]), *vars_of_form(form)])
        addresses = value_of_form(form, points)
        if addresses.size * self.lanes > MAX_ENUMERATED_POINTS:
            raise NotEnumerableError
        values = points[var] if var is not None else np.zeros(addresses.size, np.int64)
        return addresses[:, None] + np.arange(self.lanes), values


def is_invariant(term: Expr, fixed: Container[Var]) -> bool:
    """Return True if a term has one value in all iterations: all its variables are in `fixed`, and it
    loads no memory.
    """
    return all(n in fixed for n in vars_and_buffers_in(term))
