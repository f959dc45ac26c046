# SPDX-License-Identifier: Apache-2.0
"""Solver for systems of linear equations and inequalities over bounded integer variables: prove
that a system has no solution.

Input: variables with intervals, sums that are 0, and sums that are at least 0. Output: True if the
system is proven to have no solution; False if it has one, or if the proof fails. Example: the
elements 8 * i + j, with 0 <= i < 4 and 0 <= j < 8, of two iterations i and i + d, with d >= 1:

    8 * (i - (i + d)) + (j - k) == 0    # |j - k| <= 7, so j == k and 8 * d == 0: no solution

Method: an equation is split into equations of its small and of its large coefficients where the sum
of the small terms can be congruent to the constant in one way only (Maslov, "Delinearization: an
efficient way to break multiloop dependence equations", 1992). Equations with a coefficient of 1 or
-1 eliminate a variable (Gauss), and inequalities tighten the intervals of their variables. Upper
bounds of sums add multiples of inequalities, as in the elimination of Fourier and Motzkin. No step
loses or adds a solution, so that a contradiction is a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aotc.tir.loops.integer_constraints import IntegerConstraints, LinearSum, Terms
from aotc.tir.loops.polynomial_bounds import (
    Polynomial,
    PolynomialBounds,
    add_multiple_of_terms,
    divide_polynomial,
    multiply_polynomials,
)
from aotc.tir.simplify import Bound

#: Largest number of times that the equations and the inequalities of a system are examined.
_MAX_ROUNDS: Final = 8
#: Number of these times at which inequalities are divided by symbols.
_MAX_DIVIDING_ROUNDS: Final = 3
#: Largest number of inequalities that are added to a sum to find an upper bound of it.
_MAX_ADDED_INEQUALITIES: Final = 8


class _ContradictionError(Exception):
    """Raised where a system is proven to have no solution."""


@dataclass(slots=True)
class IntegerSystem(IntegerConstraints):
    """System of linear equations and inequalities over integer variables with intervals, and its solver."""

    def has_no_solution(self) -> bool:
        """Return True if the system is proven to have no solution. The system is changed to another
        one with equal solutions.
        """
        try:
            if any(low > high for low, high in zip(self.lows, self.highs, strict=True)):
                return True
            for turn in range(_MAX_ROUNDS):
                is_changed = self._solve_equations()
                if self.products and turn < _MAX_DIVIDING_ROUNDS:
                    self._divide_inequalities_by_symbols()
                if not self._tighten_intervals() and not is_changed:
                    break
            for terms, const in self.inequalities:
                if self.upper_bound(terms, const) < 0:
                    return True
            if self.products:
                return self._contradicts_polynomial_bounds()
        except _ContradictionError:
            return True
        return False

    def _contradicts_polynomial_bounds(self) -> bool:
        """Return True if the bounds of polynomials prove that one of the inequalities or equations cannot
        hold. Variables that stand for products are replaced by these products.
        """
        known = self.polynomial_bounds()
        sums = [*self.inequalities, *self.equations, *((_negate(terms), -const) for terms, const in self.equations)]
        return any(known.is_never_positive(self.polynomial_of_sum(terms, const + 1)) for terms, const in sums)

    def has_empty_interval(self) -> bool:
        """Tighten the intervals of variables by the equations and inequalities, which stay as they are;
        return True if that proves that the system has no solution.
        """
        try:
            any(not self._tighten_intervals() for _ in range(_MAX_ROUNDS))
        except _ContradictionError:
            return True
        return False

    def upper_bound(self, terms: Terms, const: int) -> Bound:
        """Return an upper bound of a sum of terms, by the intervals and the inequalities.

        Multiples of inequalities are added to the sum as long as that lowers the bound: a sum that is
        at least 0 never makes the sum smaller.
        """
        best = self.interval_of_sum(terms.items(), const)[1]
        for _ in range(_MAX_ADDED_INEQUALITIES):
            lower = self._sum_with_inequality_and_lower_bound(terms, const, best)
            if lower is None:
                break
            terms, const, best = lower
        return best

    def _sum_with_inequality_and_lower_bound(
        self, terms: Terms, const: int, bound: Bound
    ) -> tuple[Terms, int, Bound] | None:
        """Return a sum plus a multiple of an inequality that cancels a term of it, and the upper bound
        of the result, if that is lower than `bound`; None if no inequality lowers it.
        """
        for inequality, offset in self.inequalities:
            for var, factor in inequality.items():
                old = terms.get(var, 0)
                if not old or (old > 0) == (factor > 0) or old % factor:
                    continue
                total = add_multiple_of_terms(terms, inequality, -(old // factor))
                new_const = const + offset * -(old // factor)
                new_bound = self.interval_of_sum(total.items(), new_const)[1]
                if new_bound < bound:
                    return total, new_const, new_bound
        return None

    # equations

    def _solve_equations(self) -> bool:
        """Split equations and eliminate variables as far as possible; return True if the system
        changed.
        """
        pending, self.equations = self.equations, []
        is_changed = False
        while pending:
            terms, const = self._equation_without_fixed_variables(*pending.pop())
            if len(terms) < 2:
                is_changed = self._fix_variable_of_equation(terms, const) or is_changed
                continue
            parts = self._split_equation(terms, const) or self._split_equation_by_symbolic_stride(terms, const, pending)
            if parts is not None:
                pending += parts
                is_changed = True
                continue
            units = [var for var, factor in terms.items() if factor in (1, -1) and not self._is_in_product(var)]
            if not units:
                self.equations.append((terms, const))
                continue
            var = max(units, key=lambda v: self.highs[v] - self.lows[v])
            value = {v: -c * terms[var] for v, c in terms.items() if v != var}, -const * terms[var]
            self._eliminate_variable(var, *value)
            pending = [_substitute_in_sum(e, var, value) for e in (*pending, *self.equations)]
            self.equations = []
            is_changed = True
        return is_changed

    def _is_in_product(self, var: int) -> bool:
        """Return True if a variable is a product, or a factor of one: it is not eliminated."""
        return bool(self.products) and (
            var in self.products or any(var in symbols or var == other for symbols, other in self.products.values())
        )

    def _equation_without_fixed_variables(self, terms: Terms, const: int) -> LinearSum:
        """Return an equation without variables of one value, divided by the greatest common factor of
        its coefficients.

        Raise _ContradictionError if the factor does not divide the constant, or if the interval of the
        sum does not contain 0.
        """
        lows, highs = self.lows, self.highs
        fixed = [var for var in terms if lows[var] == highs[var]]
        if fixed:
            const += sum(int(lows[var]) * terms[var] for var in fixed)
            terms = {var: c for var, c in terms.items() if lows[var] != highs[var]}
        divisor = math.gcd(*terms.values())
        if divisor > 1:
            if const % divisor:
                raise _ContradictionError
            terms, const = {var: c // divisor for var, c in terms.items()}, const // divisor
        low, high = self.interval_of_sum(terms.items(), const)
        if low > 0 or high < 0:
            raise _ContradictionError
        return terms, const

    def _fix_variable_of_equation(self, terms: Terms, const: int) -> bool:
        """Set the variable of an equation of at most one term, with the coefficient 1 or -1, to its
        value; return True if there is a variable.
        """
        for var, factor in terms.items():
            self._narrow_interval_of_variable(var, -const * factor, -const * factor)
        return bool(terms)

    def _split_equation(self, terms: Terms, const: int) -> list[LinearSum] | None:
        """Split an equation into one of its small coefficients and one of its large coefficients; None
        if that is impossible.

        The large coefficients have a common factor, to which the sum of the small terms and the
        constant must be congruent. The split is possible if a single value of the small sum is.
        """
        ordered = sorted(terms.items(), key=lambda item: abs(item[1]))
        divisors, divisor = [0] * len(ordered), 0
        for k in range(len(ordered) - 1, 0, -1):
            divisors[k] = divisor = math.gcd(divisor, ordered[k][1])
        low: Bound = 0
        high: Bound = 0
        for k in range(1, len(ordered)):
            ends = self.interval_of_sum(ordered[k - 1 : k], 0)
            low, high, divisor = low + ends[0], high + ends[1], divisors[k]
            if low == -math.inf or high == math.inf:
                return None
            if divisor == 1 or abs(ordered[k - 1][1]) == abs(ordered[k][1]):
                continue
            first = low + (-const - low) % divisor
            if first > high:
                raise _ContradictionError
            small = dict(ordered[:k])
            if first + divisor <= high and self.inequalities:
                least, most = -self.upper_bound(_negate(small), 0), self.upper_bound(small, 0)
                first = least + (-const - least) % divisor
                if first > most:
                    raise _ContradictionError
                if first + divisor > most:
                    return [(small, -int(first)), (dict(ordered[k:]), const + int(first))]
            elif first + divisor > high:
                return [(small, -int(first)), (dict(ordered[k:]), const + int(first))]
        return None

    def _split_equation_by_symbolic_stride(
        self, terms: Terms, const: int, others: Iterable[LinearSum]
    ) -> list[LinearSum] | None:
        """Split the equation q * stride + r = 0 into q = 0 and r = 0, where `stride` is a polynomial in
        the symbols, such as n + 2; return None if no stride allows that.

        The split is correct if -stride < r < stride, because r is a multiple of the stride, and 0 is the
        only multiple in this range. `others` are further equations of the system.
        """
        if self.products.keys().isdisjoint(terms):
            return None
        one: Polynomial = {(): 1}
        factors: dict[int | None, Polynomial] = {}
        for var, c in terms.items():
            symbols, other = self.factors_of(var)
            if other is not None and self.lows[other] == self.highs[other]:  # the factor has one value: a number
                c, other = c * int(self.lows[other]), None
            factors[other] = add_multiple_of_terms(factors.get(other, {}), {symbols: c})
        if factors.keys() == {None}:
            return None  # such as the definition of a quotient of two symbols
        factors.setdefault(None, {})
        factors[None] = add_multiple_of_terms(factors[None], {(): const} if const else {})
        known = self.polynomial_bounds(others)
        quotients = [(stride, *_divide_factors(factors, stride)) for stride in self._strides_of_factors(factors, known)]
        # proofs are limited in number: the most promising strides come first
        for stride, quotient, small in sorted(quotients, key=lambda division: len(division[2])):
            distance = add_multiple_of_terms(one, stride, -1)
            # the multiple of the stride that the constant terms contain may belong to the small sum
            for shift in (0, 1, -1) if _contains_stride(factors[None], stride) else (0,):
                whole, rest = add_multiple_of_terms(quotient, one, shift), add_multiple_of_terms(small, stride, -shift)
                if whole and all(
                    known.is_never_positive(add_multiple_of_terms(distance, rest, sign)) for sign in (1, -1)
                ):
                    return [self.sum_of_polynomial(rest), self.sum_of_polynomial(whole)]
        return None

    def _divide_inequalities_by_symbols(self) -> None:
        """Add the inequalities that follow from others by a division by a factor known at run time only.

        With n * a + b >= 0 and b < 0, a is at least 1; with b < n, a is at least 0.
        """
        known = self.polynomial_bounds()
        for terms, const in list(self.inequalities):
            total = self.polynomial_of_sum(terms, const)
            products = [monomial for monomial in total if len(monomial) > 1]
            for symbol in sorted({var for monomial in products for var in monomial} & self.symbols):
                quotient, rest = divide_polynomial(total, {(symbol,): 1})
                if known.upper_bound(rest) < 0:
                    least = 1
                elif known.upper_bound(add_multiple_of_terms(rest, {(symbol,): 1}, -1)) < 0:
                    least = 0
                else:
                    continue
                inequality = self.sum_of_polynomial(add_multiple_of_terms(quotient, {(): 1}, -least))
                if inequality not in self.inequalities:
                    self.inequalities.append(inequality)

    def _strides_of_factors(
        self, factors: Mapping[int | None, Polynomial], known: PolynomialBounds
    ) -> Iterable[Polynomial]:
        """Yield the positive polynomials by which an equation may be split, those of low degree first."""
        found: dict[frozenset[tuple[tuple[int, ...], int]], Polynomial] = {}
        for factor in factors.values():
            unit = math.gcd(*factor.values())
            for divisor in (1, unit) if any(factor) else ():
                for sign in (1, -1):
                    stride = {monomial: sign * c // divisor for monomial, c in factor.items()}
                    if known.lower_bound(stride) >= 0:
                        found.setdefault(frozenset(stride.items()), stride)
            for symbol in {s for monomial in factor for s in monomial}:
                found.setdefault(frozenset({((symbol,), 1)}), {(symbol,): 1})
        return sorted(found.values(), key=lambda stride: (max(map(len, stride)), -max(stride.values())))

    def _eliminate_variable(self, var: int, terms: Terms, const: int) -> None:
        """Replace a variable by a sum in all inequalities; its interval becomes inequalities of the
        sum.
        """
        self.inequalities = [_substitute_in_sum(e, var, (terms, const)) for e in self.inequalities]
        low, high = self.interval_of_sum(terms.items(), const)
        if low < self.lows[var]:
            self.inequalities.append((terms, const - int(self.lows[var])))
        if high > self.highs[var]:
            self.inequalities.append((_negate(terms), int(self.highs[var]) - const))

    # intervals

    def _narrow_interval_of_variable(self, var: int, low: Bound, high: Bound) -> bool:
        """Intersect the interval of a variable with another one; return True if it becomes smaller.

        Raise _ContradictionError if it becomes empty.
        """
        is_changed = low > self.lows[var] or high < self.highs[var]
        self.lows[var], self.highs[var] = max(low, self.lows[var]), min(high, self.highs[var])
        if self.lows[var] > self.highs[var]:
            raise _ContradictionError
        return is_changed

    def _tighten_intervals(self) -> bool:
        """Tighten the intervals of variables by the inequalities and equations, each once, and those of
        products by those of their factors; return True if an interval became smaller.
        """
        is_changed = False
        for terms, const in (*self.inequalities, *self.equations, *((_negate(t), -c) for t, c in self.equations)):
            high = self.interval_of_sum(terms.items(), const)[1]
            if high < 0:
                raise _ContradictionError
            if high == math.inf:
                continue
            for var, factor in terms.items():
                # the other terms are at most high - (the largest value of this term)
                if factor > 0:
                    rest = high - factor * self.highs[var]
                    is_changed = self._narrow_interval_of_variable(var, -(rest // factor), math.inf) or is_changed
                else:
                    rest = high - factor * self.lows[var]
                    is_changed = self._narrow_interval_of_variable(var, -math.inf, rest // -factor) or is_changed
        for product, factors in self.products.items():
            is_changed = self._narrow_interval_of_variable(product, *self.interval_of_product(factors)) or is_changed
        return is_changed


def divide_bound(bound: Bound, divisor: int) -> Bound:
    """Return a bound divided by a positive number and rounded down; infinities stay infinite."""
    return bound if math.isinf(bound) else bound // divisor


def _divide_factors(factors: Mapping[int | None, Polynomial], stride: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return a quotient and a remainder: the sum of variables times factors is `quotient * stride + remainder`. A
    factor that the stride does not divide belongs to the remainder; factors[None] is the sum of the constant terms.
    """
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for var, factor in factors.items():
        whole, remainder = divide_polynomial(factor, stride)
        if var is not None and remainder:
            whole, remainder = {}, factor
        base: Polynomial = {(): 1} if var is None else {(var,): 1}
        quotient = add_multiple_of_terms(quotient, multiply_polynomials(whole, base))
        rest = add_multiple_of_terms(rest, multiply_polynomials(remainder, base))
    return quotient, rest


def _contains_stride(polynomial: Polynomial, stride: Polynomial) -> bool:
    """Return True if the quotient of a polynomial and a stride, which is no number, is not 0."""
    return any(stride) and bool(divide_polynomial(polynomial, stride)[0])


def _negate(terms: Terms) -> Terms:
    """Return the terms of the negated sum."""
    return {var: -c for var, c in terms.items()}


def _substitute_in_sum(old: LinearSum, var: int, value: LinearSum) -> LinearSum:
    """Return a sum with a variable replaced by another sum."""
    terms, const = old
    factor = terms.get(var, 0)
    if not factor:
        return old
    rest = {v: c for v, c in terms.items() if v != var}
    return add_multiple_of_terms(rest, value[0], factor), const + factor * value[1]
