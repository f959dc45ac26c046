# SPDX-License-Identifier: Apache-2.0
"""Polynomials over bounded integer variables, and proofs that a polynomial is never positive.

Used for strides and loop ends that are known at run time only: the address `i * n + j` is a polynomial
in i, n and j. Input: a polynomial, the intervals of its variables, and polynomials that are at least 0
("facts"). Output: True if the polynomial is proven to be at most 0; False if it is not, or if the proof
fails. Example: the last element of a matrix of m rows, with the facts m - 1 - i >= 0 and n - 1 - j >= 0:

    i * n + j + 1 - m * n <= i * n + n - m * n <= (m - 1) * n + n - m * n = 0

Method: a variable is replaced by a bound of it, from a fact, as in the elimination of Fourier and
Motzkin, with multipliers that are polynomials (Sherali and Adams, "A hierarchy of relaxations between
the continuous and convex hull representations for zero-one programming problems", 1990). Choices of
facts are searched up to a limit. An upper bound of what remains is computed by intervals, with the
origin of each variable at its least value: m' * n' + m' + n' for (m' + 1) * (n' + 1) - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from aotc.tir.simplify import Bound

#: A product of variables, which have numbers; repeated numbers are powers.
Monomial: TypeAlias = "tuple[int, ...]"
#: The coefficient of each monomial, other than 0; the empty monomial is 1.
Polynomial: TypeAlias = "dict[Monomial, int]"
_Key = TypeVar("_Key")
#: A variable, and the number of a bound of it by which a search replaces it.
_Use: TypeAlias = "tuple[int, int]"

#: Largest number of polynomials that one attempt of a proof examines, and that all proofs with the same
#: facts examine.
_MAX_EXAMINED_POLYNOMIALS: Final = 64
_MAX_EXAMINED_POLYNOMIALS_OF_FACTS: Final = 2500
#: Largest number of terms, and of factors of a term, of a polynomial that is examined.
_MAX_TERMS: Final = 32
_MAX_DEGREE: Final = 6


def add_multiple_of_terms(a: Mapping[_Key, int], b: Mapping[_Key, int], factor: int = 1) -> dict[_Key, int]:
    """Return the terms of `a + factor * b`, without zero coefficients; terms are coefficients by monomial
    (of polynomials) or by variable (of linear sums).
    """
    total = dict(a)
    for monomial, c in b.items():
        value = total.get(monomial, 0) + factor * c
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return total


def multiply_polynomials(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return `a * b`."""
    total: Polynomial = {}
    for x, c in a.items():
        for y, d in b.items():
            monomial = tuple(sorted(x + y)) if x and y else x or y
            total[monomial] = total.get(monomial, 0) + c * d
    return {monomial: c for monomial, c in total.items() if c}


def variables_of_polynomial(polynomial: Polynomial) -> set[int]:
    """Return the numbers of the variables of a polynomial."""
    return {var for monomial in polynomial for var in monomial}


def coefficient_of_variable(polynomial: Polynomial, var: int) -> Polynomial | None:
    """Return the coefficient of a variable: the polynomial f in the remaining variables for which
    `polynomial` is f * var + g, where `var` does not occur in g. None if a power of `var` occurs.
    """
    factor: Polynomial = {}
    for monomial, c in polynomial.items():
        count = monomial.count(var)
        if count > 1:
            return None
        if count:
            at = monomial.index(var)
            factor[monomial[:at] + monomial[at + 1 :]] = c
    return factor


def divide_polynomial(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return a quotient and a rest with `dividend == quotient * divisor + rest`; the rest has no term
    that is a multiple of the leading term of the divisor.
    """
    lead = next(iter(divisor)) if len(divisor) == 1 else max(divisor, key=_monomial_order)
    lead_coefficient = divisor[lead]
    quotient: Polynomial = {}
    rest: Polynomial = {}
    if len(divisor) == 1:  # no multiple of the divisor changes another term
        for monomial, c in dividend.items():
            factors = _monomial_without_factors(monomial, lead) if c % lead_coefficient == 0 else None
            if factors is None:
                rest[monomial] = c
            else:
                quotient[factors] = c // lead_coefficient
        return quotient, rest
    while dividend:
        monomial = max(dividend, key=_monomial_order)
        c = dividend[monomial]
        factors = _monomial_without_factors(monomial, lead) if c % lead_coefficient == 0 else None
        if factors is None:
            rest[monomial] = c
            dividend = {m: d for m, d in dividend.items() if m != monomial}
        else:
            term = {factors: c // lead_coefficient}
            quotient[factors] = term[factors]  # terms come in decreasing order: each once
            dividend = add_multiple_of_terms(dividend, multiply_polynomials(term, divisor), -1)
    return quotient, rest


def _monomial_without_factors(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """Return a product of variables divided by another one; None if that is no product."""
    if not factors:
        return monomial
    rest = [*monomial]
    for var in factors:
        if var not in rest:
            return None
        rest.remove(var)
    return tuple(rest)


def _monomial_order(monomial: Monomial) -> tuple[int, Monomial]:
    """Return the key of the graded lexicographic order."""
    return len(monomial), monomial


class PolynomialBounds:
    """Intervals of variables, and inequalities between polynomials in them, from which bounds of other
    polynomials follow.

    Inside, a variable is its distance from the finite end of its interval (`_lengths` holds the largest
    distance), so that all variables are at least 0; `_free` holds the variables without a finite end.
    """

    def __init__(
        self,
        lows: Sequence[Bound],
        highs: Sequence[Bound],
        facts: Iterable[Polynomial],
        parameters: Container[int] = (),
    ) -> None:
        """Take the interval of each variable, by its number, polynomials that are at least 0, and the
        variables that are parameters.
        """
        self._origins: list[Polynomial] = [
            ({(var,): 1, (): int(low)} if low else {(var,): 1})
            if low > -math.inf
            else ({(var,): -1, (): int(high)} if high < math.inf else {(var,): 1})
            for var, (low, high) in enumerate(zip(lows, highs, strict=True))
        ]
        self._lengths: list[Bound] = [high - low for low, high in zip(lows, highs, strict=True)]
        self._free = {v for v, ends in enumerate(zip(lows, highs, strict=True)) if ends == (-math.inf, math.inf)}
        self._facts = [_divided_by_common_factor(self._with_origins(fact), 1) for fact in facts]
        self._facts_of_var: dict[int, list[tuple[Polynomial, Polynomial]]] = {}
        self._goals: dict[tuple[frozenset[tuple[Monomial, int]], int], list[tuple[Polynomial, _Use]]] = {}
        self._parameters = parameters
        self._remaining = _MAX_EXAMINED_POLYNOMIALS_OF_FACTS
        self._bounding = {v for fact in self._facts for monomial, c in fact.items() if c > 0 for v in monomial}

    def _with_origins(self, polynomial: Polynomial) -> Polynomial:
        """Return a polynomial in the distances of its variables from the ends of their intervals."""
        total: Polynomial = {}
        for monomial, c in polynomial.items():
            product: Polynomial = {(): c}
            for var in monomial:
                product = multiply_polynomials(product, self._origins[var])
            total = add_multiple_of_terms(total, product)
        return total

    def is_never_negative(self, polynomial: Polynomial) -> bool:
        """Return True if a polynomial is proven to be at least 0."""
        return self.is_never_positive({monomial: -c for monomial, c in polynomial.items()})

    def is_never_positive(self, polynomial: Polynomial) -> bool:
        """Return True if a polynomial is proven to be at most 0."""
        goal = _divided_by_common_factor(self._with_origins(polynomial), -1)
        # variables that bound others come last, in one attempt parameters after them
        return (
            self._is_proven(goal, lambda var: (var in self._bounding, var))
            or self._is_proven(goal, lambda var: (var in self._bounding, var), prefers_symbolic_bounds=True)
            or self._is_proven(goal, lambda var: (var in self._parameters, var in self._bounding, var))
        )

    def _is_proven(
        self, goal: Polynomial, order: Callable[[int], tuple[int, ...]], prefers_symbolic_bounds: bool = False
    ) -> bool:
        """Return True if a search proves that a polynomial is at most 0; it replaces variables in an order,
        first by bounds after which few terms remain or, with `prefers_symbolic_bounds`, many terms. In the latter
        case, no variable is replaced by the same bound twice: two bounds that contain each other's variable, such as
        a dividend and its quotient, would be exchanged without end.
        """
        stack: list[tuple[Polynomial, frozenset[int], frozenset[_Use]]] = [(goal, frozenset(), frozenset())]
        seen: set[tuple[frozenset[tuple[Monomial, int]], frozenset[int]]] = set()
        for _ in range(_MAX_EXAMINED_POLYNOMIALS):
            if not stack or not self._remaining:
                return False
            self._remaining -= 1
            goal, kept, used = stack.pop()
            if self._greatest(goal) <= 0:
                return True
            key = frozenset(goal.items())
            if (key, kept) in seen:
                continue
            seen.add((key, kept))
            for var in sorted(variables_of_polynomial(goal) - kept, key=order):
                simpler = self._goals.get((key, var))
                if simpler is None:
                    simpler = sorted(self._goals_without_variable(goal, var), key=lambda g: _size_of_polynomial(g[0]))
                    self._goals[key, var] = simpler
                if prefers_symbolic_bounds:
                    simpler = [step for step in simpler if step[1] not in used]
                    simpler.sort(key=lambda step: _degree_and_missing_terms(step[0]))
                if simpler:
                    stack.append((goal, kept | {var}, used))
                    stack += [(other, kept, used | {use}) for other, use in reversed(simpler)]
                    break
        return False

    def lower_bound(self, polynomial: Polynomial) -> Bound:
        """Return a lower bound of a polynomial by the intervals of its variables."""
        return self._least(self._with_origins(polynomial))

    def upper_bound(self, polynomial: Polynomial) -> Bound:
        """Return an upper bound of a polynomial by the intervals of its variables."""
        return self._greatest(self._with_origins(polynomial))

    def _facts_with_variable(self, var: int) -> list[tuple[Polynomial, Polynomial]]:
        """Return the facts that bound a variable, each with the factor of the variable in it."""
        if var not in self._facts_of_var:
            facts = self._facts
            if self._lengths[var] < math.inf:
                facts = [*facts, {(var,): -1, (): int(self._lengths[var])}]
            factors = ((fact, coefficient_of_variable(fact, var)) for fact in facts)
            self._facts_of_var[var] = [(fact, factor) for fact, factor in factors if factor]
        return self._facts_of_var[var]

    def _goals_without_variable(self, goal: Polynomial, var: int) -> Iterator[tuple[Polynomial, _Use]]:
        """Yield polynomials without a variable, each with the bound of the variable that it follows from; `goal` is at
        most 0 if one of them is.

        The factors c of the variable in the goal and a in a fact have opposite signs. If c is a multiple
        of a, `goal <= 0` follows from `goal - c / a * fact <= 0`. Otherwise, with s = |a| >= 1,
        `s * goal - s + 1 + |c| * fact <= 0` implies `s * goal < s`, and `goal <= 0`, as the goal is an
        integer.
        """
        factor = coefficient_of_variable(goal, var)
        if not factor:
            return
        sign = 1 if self._least(factor) >= 0 else -1 if self._greatest(factor) <= 0 else 0
        for number, (fact, step) in enumerate(self._facts_with_variable(var) if sign else ()):
            quotient, rest = divide_polynomial(factor, step)
            if not rest and self._greatest(quotient) <= 0:
                total = add_multiple_of_terms(goal, multiply_polynomials(quotient, fact), -1)
            else:
                scale = {monomial: -sign * c for monomial, c in step.items()}
                if self._least(scale) < 1:
                    continue
                total = multiply_polynomials(goal, scale)
                total = add_multiple_of_terms(add_multiple_of_terms(total, scale, -1), {(): 1})
                total = add_multiple_of_terms(total, multiply_polynomials(factor, fact), sign)
            if len(total) <= _MAX_TERMS and _size_of_polynomial(total)[0] <= _MAX_DEGREE:
                yield _divided_by_common_factor(total, -1), (var, number)

    def _least(self, polynomial: Polynomial) -> Bound:
        return -self._greatest(polynomial, -1)

    def _greatest(self, polynomial: Polynomial, sign: int = 1) -> Bound:
        """Return an upper bound of a polynomial in distances, or of its negation (`sign` -1)."""
        total: Bound = 0
        for monomial, c in polynomial.items():
            if not monomial:
                total += sign * c
            elif not self._free.isdisjoint(monomial):
                return math.inf
            elif (c > 0) == (sign > 0):
                lengths = [self._lengths[var] for var in monomial]
                total += 0 if 0 in lengths else sign * c * math.prod(lengths)
        return total


def _size_of_polynomial(polynomial: Polynomial) -> tuple[int, int]:
    """Return the degree and the number of terms."""
    return max(map(len, polynomial), default=0), len(polynomial)


def _degree_and_missing_terms(polynomial: Polynomial) -> tuple[int, int]:
    """Return the degree and the negated number of terms."""
    degree, terms = _size_of_polynomial(polynomial)
    return degree, -terms


def _divided_by_common_factor(polynomial: Polynomial, sign: int) -> Polynomial:
    """Return a polynomial that is at least 0 (`sign` 1) or at most 0 (`sign` -1) exactly where
    `polynomial` is, with coefficients without a common factor.
    """
    divisor = math.gcd(*(c for monomial, c in polynomial.items() if monomial))
    if divisor <= 1:
        return polynomial
    const = sign * (sign * polynomial.get((), 0) // divisor)
    reduced = {monomial: c // divisor for monomial, c in polynomial.items() if monomial}
    return {**reduced, (): const} if const else reduced
