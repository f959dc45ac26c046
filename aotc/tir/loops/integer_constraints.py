# SPDX-License-Identifier: Apache-2.0
"""Linear equations and inequalities over bounded integer variables, and products of the variables.

A product `i * n` is a variable of its own, of which the factors are known; it is the product of some
symbols, which are known at run time only, and of another variable. The constraints can be read as
linear sums, and as polynomials of the factors (`polynomial_bounds`). `integer_system` solves them.

    8 * q + r - n == 0, i * n + j - 3 >= 0      # with variables i, j, n, q, r and i * n
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from aotc.tir.loops.polynomial_bounds import Polynomial, PolynomialBounds, add_multiple_of_terms, multiply_polynomials
from aotc.tir.simplify import Bound

#: Coefficients of variables, which have numbers.
Terms: TypeAlias = "dict[int, int]"
#: A sum of terms, and a constant.
LinearSum: TypeAlias = "tuple[Terms, int]"
#: The symbols in a product, and its other factor or None.
_Product: TypeAlias = "tuple[tuple[int, ...], int | None]"


@dataclass(slots=True)
class IntegerConstraints:
    """System of linear equations and inequalities over integer variables with intervals.

    lows, highs     the interval of each variable, by its number
    equations       sums that are 0
    inequalities    sums that are at least 0
    symbols         variables of at least 0 that may be factors of products
    products        variables that are products: the symbols in it, and another variable or None; used
                    where strides are known at run time only
    """

    lows: list[Bound] = field(default_factory=list)
    highs: list[Bound] = field(default_factory=list)
    equations: list[LinearSum] = field(default_factory=list)
    inequalities: list[LinearSum] = field(default_factory=list)
    symbols: set[int] = field(default_factory=set)
    products: dict[int, _Product] = field(default_factory=dict)

    def add_variable(self, low: Bound, high: Bound) -> int:
        """Add a variable with values from `low` to `high`; return its number."""
        self.lows.append(low)
        self.highs.append(high)
        return len(self.lows) - 1

    def product_of(self, a: int, b: int) -> int | None:
        """Return the number of the variable that is the product of two variables; None if neither of
        them is a product of symbols alone.
        """
        (a_symbols, a_other), (b_symbols, b_other) = self.factors_of(a), self.factors_of(b)
        if a_other is not None and b_other is not None:
            return None
        other = b_other if a_other is None else a_other
        return self.variable_of_product((*a_symbols, *b_symbols), other)

    def factors_of(self, var: int) -> _Product:
        """Return the factors of a variable that stands for a product: its symbols, and the factor that is
        no symbol (None if all factors are symbols).
        """
        return self.products.get(var) or (((var,), None) if var in self.symbols else ((), var))

    def variable_of_product(self, symbols: Iterable[int], other: int | None) -> int:
        """Return the number of the variable that is the product of some symbols, and of another
        variable if there is one; it is added if it is new.
        """
        factors = tuple(sorted(symbols)), other
        if len(factors[0]) + (other is not None) == 1:
            return factors[0][0] if other is None else other
        for number, known in self.products.items():
            if known == factors:
                return number
        number = self.add_variable(*self.interval_of_product(factors))
        self.products[number] = factors
        return number

    def interval_of_product(self, factors: _Product) -> tuple[Bound, Bound]:
        """Return the interval of a product, by the intervals of its factors."""
        symbols, other = factors
        low, high = (1, 1) if other is None else (self.lows[other], self.highs[other])
        for symbol in symbols:
            ends = [_multiply(x, y) for x in (low, high) for y in (self.lows[symbol], self.highs[symbol])]
            low, high = min(ends), max(ends)
        return low, high

    def add_equation(self, terms: Mapping[int, int], const: int) -> None:
        """Require that a sum is 0."""
        self.equations.append((dict(terms), const))

    def add_inequality(self, terms: Mapping[int, int], const: int) -> None:
        """Require that a sum is at least 0."""
        self.inequalities.append((dict(terms), const))

    def interval_of_sum(self, terms: Iterable[tuple[int, int]], const: int) -> tuple[Bound, Bound]:
        """Return the interval of a sum of terms, by the intervals of its variables alone."""
        low: Bound = const
        high: Bound = const
        for var, factor in terms:
            if factor > 0:
                low, high = low + factor * self.lows[var], high + factor * self.highs[var]
            else:
                low, high = low + factor * self.highs[var], high + factor * self.lows[var]
        return low, high

    def polynomial_bounds(self, others: Iterable[LinearSum] = ()) -> PolynomialBounds:
        """Return the intervals, inequalities and equations, with products as polynomials; `others` are
        further equations.
        """
        facts = [self.polynomial_of_sum(terms, const) for terms, const in self.inequalities]
        for terms, const in (*self.equations, *others):
            equal = self.polynomial_of_sum(terms, const)
            facts += [equal, multiply_polynomials(equal, {(): -1})]
        return PolynomialBounds(self.lows, self.highs, facts, self.symbols)

    def polynomial_of_sum(self, terms: Terms, const: int) -> Polynomial:
        """Return a sum with its products of variables multiplied out."""
        total: Polynomial = {(): const} if const else {}
        for var, c in terms.items():
            symbols, other = self.products.get(var, ((), var))
            monomial = tuple(sorted(symbols if other is None else (*symbols, other)))
            total = add_multiple_of_terms(total, {monomial: c})
        return total

    def sum_of_polynomial(self, polynomial: Polynomial) -> LinearSum:
        """Return a polynomial as a sum, with a variable for each product."""
        terms: Terms = {}
        for monomial, c in polynomial.items():
            others = [var for var in monomial if var not in self.symbols]
            symbols = [var for var in monomial if var in self.symbols]
            if monomial:
                terms[self.variable_of_product(symbols, others[0] if others else None)] = c
        return terms, polynomial.get((), 0)


def _multiply(x: Bound, y: Bound) -> Bound:
    """Return x * y, where 0 times infinity is 0."""
    return 0 if 0 in (x, y) else x * y
