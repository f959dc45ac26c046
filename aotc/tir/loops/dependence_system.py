# SPDX-License-Identifier: Apache-2.0
"""Translate a question about two accesses to a buffer into a system of equations over integers.

Input: the addresses of two accesses, and the iterations that make them. Output: a system that has a
solution exactly if the accesses have a common element. A quotient `x // c` and its remainder become
two new variables q and r with x == c * q + r and 0 <= r < c; a minimum becomes a variable that is at
most each of its operands; every other expression that is not linear is an unknown number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aotc.tir import Binary, Const, Expr, Unary, Var
from aotc.tir.expr import INDEX
from aotc.tir.loops.integer_constraints import LinearSum, Terms
from aotc.tir.loops.integer_system import IntegerSystem, divide_bound
from aotc.tir.simplify import Interval, LinearForm, bounds, comparison_as_nonnegative_form, conjuncts, linear_form

Ranges = dict[Var, Interval]
#: Predicate: True if an expression has one value for both accesses.
IsShared = Callable[[Expr], bool]


@dataclass(slots=True)
class IterationPoint:
    """One of the two iterations of a question: the numbers of the system's variables for its loop
    variables and other terms.

    system      the system under construction
    ranges      the intervals of variables
    lasts       for loop variables, upper bounds that are linear forms of other variables
    firsts      for loop variables, lower bounds that are linear forms of other variables
    steps       for loop variables, the distance of their values, which begin at the low end of the
                interval; 1 if it is absent
    is_shared   True for expressions that have one value in both iterations
    shared      sums of the expressions with one value in both iterations
    own         sums of the other expressions
    """

    system: IntegerSystem
    ranges: Ranges
    lasts: Mapping[Var, Sequence[LinearForm]]
    firsts: Mapping[Var, Sequence[LinearForm]]
    steps: Mapping[Var, int]
    is_shared: IsShared
    shared: dict[Expr, LinearSum]
    own: dict[Expr, LinearSum] = field(default_factory=dict)

    def sum_of_form(self, form: LinearForm) -> LinearSum:
        """Return a linear form as a sum over the variables of the system."""
        total: Terms = {}
        const = form.const
        for atom, factor in form.terms.items():
            terms, offset = self.sum_of_atom(atom)
            const += factor * offset
            for var, c in terms.items():
                total[var] = total.get(var, 0) + factor * c
        return {var: c for var, c in total.items() if c}, const

    def sum_of_atom(self, atom: Expr) -> LinearSum:
        """Return a term of a linear form as a sum over the variables of the system."""
        known = self.shared if self.is_shared(atom) else self.own
        if atom not in known:
            known[atom] = self._new_sum_of_atom(atom, known)
        return known[atom]

    def _new_sum_of_atom(self, atom: Expr, known: dict[Expr, LinearSum]) -> LinearSum:
        """Return a new term as a sum; variables and equations for it are added to the system."""
        match atom:
            case Var():
                return self._new_sum_of_var(atom, known)
            case Binary(op="floordiv" | "floormod", a=a, b=Const(value=divisor)) if divisor > 0:
                return self._sum_of_division(atom, a, int(divisor), known)
            case Binary(op="floordiv" | "floormod", a=a, b=b) if bounds(b, self.ranges)[0] >= 0:
                return self._sum_of_division_by_symbols(atom, a, b, known)
            case Binary(op="mul"):
                return self._sum_of_product(atom)
        low, high = bounds(atom, self.ranges)
        var = self.system.add_variable(low, high)
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            sign = 1 if atom.op == "min" else -1
            for operand in (atom.a, atom.b):  # a minimum is at most each operand
                terms, const = self.sum_of_form(linear_form(operand, self.ranges))
                self.system.add_inequality({**{v: sign * c for v, c in terms.items()}, var: -sign}, sign * const)
            self._add_symbol(var, known)
        return {var: 1}, 0

    def _new_sum_of_var(self, var: Var, known: dict[Expr, LinearSum]) -> LinearSum:
        """Return a new loop variable as a sum; its lower and upper bounds are added to the system."""
        low, high = bounds(var, self.ranges)
        step = self.steps.get(var, 1)
        if step > 1:
            known[var] = {self.system.add_variable(0, divide_bound(high - low, step)): step}, int(low)
        else:
            number = self.system.add_variable(low, high)
            known[var] = {number: 1}, 0
            self._add_symbol(number, known)
        self.require_limits_of_var(var)
        return known[var]

    def _sum_of_division(self, atom: Binary, a: Expr, divisor: int, known: dict[Expr, LinearSum]) -> LinearSum:
        """Return a quotient or remainder by a constant as a sum; `known` receives both of them."""
        low, high = bounds(a, self.ranges)
        form = linear_form(a, self.ranges)
        if -low == high:  # infinite: the dividend may overflow
            return {self.system.add_variable(*bounds(atom, self.ranges)): 1}, 0
        terms, const = self.sum_of_form(form)
        quotient = self.system.add_variable(divide_bound(low, divisor), divide_bound(high, divisor))
        rest = self.system.add_variable(0, divisor - 1)
        self.system.add_equation({**terms, quotient: -divisor, rest: -1}, const)
        for var in (quotient, rest):
            self._add_symbol(var, known)
        known[Binary("floordiv", a, atom.b)] = {quotient: 1}, 0
        known[Binary("floormod", a, atom.b)] = {rest: 1}, 0
        return known[atom]

    def _add_symbol(self, var: int, known: dict[Expr, LinearSum]) -> None:
        """Let a variable be a factor of products if it has one value in both iterations, from 0 on."""
        if known is self.shared and self.system.lows[var] >= 0:
            self.system.symbols.add(var)

    def _sum_of_division_by_symbols(self, atom: Binary, a: Expr, b: Expr, known: dict[Expr, LinearSum]) -> LinearSum:
        """Return a quotient or remainder by a number of at least 0 that is known at run time only as a sum;
        an unknown number if the divisor is no number of both iterations.

        The divisor is at least 1 wherever the division is computed.
        """
        dividend = self.sum_of_form(linear_form(a, self.ranges))
        divisor, const = self.sum_of_form(linear_form(b, self.ranges))
        low, high = bounds(atom, self.ranges)
        quotient = self.system.add_variable(*bounds(Binary("floordiv", a, b), self.ranges))
        self._add_symbol(quotient, known)
        product: Terms = {quotient: const} if const else {}
        for var, c in divisor.items():
            factor = self.system.product_of(var, quotient)
            if factor is None:
                return {self.system.add_variable(low, high): 1}, 0
            product[factor] = c
        rest = self.system.add_variable(0, bounds(b, self.ranges)[1] - 1)
        self.system.add_inequality(divisor, const - 1)
        self.system.add_inequality({**divisor, rest: -1}, const - 1)
        self.system.add_equation({**dividend[0], **{var: -c for var, c in product.items()}, rest: -1}, dividend[1])
        known[Binary("floordiv", a, b)] = {quotient: 1}, 0
        known[Binary("floormod", a, b)] = {rest: 1}, 0
        return known[atom]

    def _sum_of_product(self, atom: Binary) -> LinearSum:
        """Return a product as a sum of products of variables, where one factor is a sum of extents that
        are known at run time only; an unknown number otherwise.
        """
        total: Terms = {}
        (a_terms, a_const), (b_terms, b_const) = (
            self.sum_of_form(linear_form(e, self.ranges)) for e in (atom.a, atom.b)
        )
        for a, a_factor in a_terms.items():
            for b, b_factor in b_terms.items():
                product = self.system.product_of(a, b)
                if product is None:
                    return {self.system.add_variable(*bounds(atom, self.ranges)): 1}, 0
                total[product] = total.get(product, 0) + a_factor * b_factor
        for terms, factor in ((a_terms, b_const), (b_terms, a_const)):
            for var, c in terms.items() if factor else ():
                total[var] = total.get(var, 0) + c * factor
        return {var: c for var, c in total.items() if c}, a_const * b_const

    def require_nonnegative(self, form: LinearForm) -> None:
        """Require that a linear form is at least 0 in this iteration."""
        self.system.add_inequality(*self.sum_of_form(form))

    def require_limits_of_var(self, var: Var) -> None:
        """Require that a loop variable is at least its lower bounds, and at most its upper bounds."""
        for last in self.lasts.get(var, ()):
            self.require_nonnegative(last.add_multiple(LinearForm({var: 1}), -1))
        for first in self.firsts.get(var, ()):
            self.require_nonnegative(LinearForm({var: 1}).add_multiple(first, -1))

    def require_conditions(self, conditions: Iterable[tuple[Expr, bool]]) -> None:
        """Require that conditions are true (false, where the second value is False), as far as they
        are comparisons of indices.
        """
        for cond, holds in conditions:
            while isinstance(cond, Unary) and cond.op == "not":
                cond, holds = cond.a, not holds
            parts = list(conjuncts(cond))
            for part in parts if holds or len(parts) == 1 else ():
                self._require_comparison(part, holds)

    def _require_comparison(self, cond: Expr, holds: bool) -> None:
        """Require that a comparison of indices is true (false, if `holds` is False); ignore other
        conditions.
        """
        form = comparison_as_nonnegative_form(cond, self.ranges)
        if form is not None:
            negated = LinearForm(const=-1).add_multiple(form, -1)
            self.require_nonnegative(form if holds else negated)
        elif isinstance(cond, Binary) and cond.op == ("eq" if holds else "ne") and cond.a.dtype == INDEX:
            difference = linear_form(cond.a, self.ranges).add_multiple(linear_form(cond.b, self.ranges), -1)
            self.system.add_equation(*self.sum_of_form(difference))
