# SPDX-License-Identifier: Apache-2.0
"""Analyze addresses with quotients and remainders, which arise where axes of an output are fused or
permuted.

Input: addresses as linear forms. Output: equal addresses with fewer quotients and remainders, and a
proof that different iterations of a loop have different addresses:

    (12 * i + j) // 36 * 6 + i % 3 * 2      # 2 * i, where j is below 12
    i // 3 * 99 + j * 9 + i % 3 * 2         # places of different i are different, where j is below 11
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aotc.tir import Binary, Const, Expr, Interval, Linear, Var, binary, bounds, linear, linear_bounds
from aotc.tir.simplify import recombined, split_by

Ranges = dict[Var, Interval]
#: Predicate: True if a term has one value in all iterations of the loop.
IsFixed = Callable[[Expr], bool]


class Access(NamedTuple):
    """A memory access: the address of its first element as a linear form.

    form     the address in elements
    lanes    the number of consecutive elements
    ranges   ranges of the variables
    lasts    for loop variables, upper bounds that are linear forms of other variables
    """

    form: Linear
    lanes: int
    ranges: Ranges
    lasts: Mapping[Var, Sequence[Linear]]

    def highest(self, form: Linear) -> float:
        """Return an upper bound of `form`, using the bounds in `lasts` where they are tighter than
        the ranges.
        """
        high = linear_bounds(form, self.ranges)[1]
        for var in [a for a, factor in form.terms.items() if isinstance(a, Var) and factor > 0]:
            for last in self.lasts.get(var, ()):
                shorter = form.plus(Linear({var: 1}), -form.terms.get(var, 0)).plus(last, form.terms.get(var, 0))
                if linear_bounds(shorter, self.ranges)[1] < high:
                    form, high = shorter, linear_bounds(shorter, self.ranges)[1]
        return high

    def is_within(self, form: Linear, size: int, lanes: int = 1) -> bool:
        """Return True if the linear form is proven to be at least 0, and `form + lanes` at most
        `size`.
        """
        return linear_bounds(form, self.ranges)[0] >= 0 and self.highest(form) + lanes <= size


def plain(access: Access) -> Access:
    """Return an access to equal addresses with as few quotients and remainders as possible."""
    found = Linear(const=access.form.const)
    for atom, factor in access.form.terms.items():
        found = found.plus(_reduced(atom, access), factor)
    return access._replace(form=recombined(found, access.ranges))


def _reduced(atom: Expr, access: Access) -> Linear:
    """Simplify a quotient or remainder by a common factor: (12 * i + j) // 36 is i // 3 if 0 <= j <
    12.
    """
    division = _division(atom)
    if division is None or math.inf in map(abs, bounds(division[0], access.ranges)):  # it might overflow
        return Linear({atom: 1})
    operand, divisor, is_quotient = division
    form = linear(operand, access.ranges)
    for unit in sorted({math.gcd(divisor, c) for c in form.terms.values()} - {1}, reverse=True):
        whole, low = split_by(form, unit)
        if not access.is_within(low, unit):
            continue
        if is_quotient:
            return linear(binary("floordiv", whole.expr(), divisor // unit), access.ranges)
        return low.plus(linear(binary("floormod", whole.expr(), divisor // unit), access.ranges), unit)
    return Linear({atom: 1})


def _division(atom: Expr) -> tuple[Expr, int, bool] | None:
    """Return operand, divisor, and True for a quotient (False for a remainder); None for other
    expressions.
    """
    match atom:
        case Binary(op="floordiv" | "floormod", b=Const(value=divisor)) if divisor > 0:
            return atom.a, int(divisor), atom.op == "floordiv"
    return None


def tell_apart(accesses: Sequence[Access], var: Var, is_fixed: IsFixed) -> bool:
    """Return True if different values of a variable lead to different addresses, judged by the
    digits of the addresses.

    Every address is written in a mixed-radix system, as factor * digit + remainder with 0 <=
    remainder < factor, where the remainder is split further by the next smaller factor. Equal
    addresses have equal digits.
    """
    common = shared(accesses, is_fixed)
    forms = [a.form.plus(Linear(common), -1) for a in accesses]
    factors = sorted({c for form in forms for c in form.terms.values()}, reverse=True)
    if not factors or factors[-1] < 0:
        return False
    digits: list[Linear] = []
    above: list[int] = []
    for factor in factors:
        parts = [_part(form, factor) for form in forms]
        if any(n % factor for n in above) or not all(
            access.is_within(rest, factor, access.lanes) for access, (_, rest) in zip(accesses, parts, strict=True)
        ):
            above.append(factor)
            continue
        first = parts[0][0]
        if all((p.terms, p.const) == (first.terms, first.const) for p, _ in parts):
            digits.append(first)
        above, forms = [], [rest for _, rest in parts]
    return _determine(digits, accesses[0], var, is_fixed)


def shared(accesses: Sequence[Access], is_fixed: IsFixed) -> dict[Expr, int]:
    """Return the terms that the addresses of all accesses contain with an equal factor, among those
    fixed in all iterations.
    """
    first, *others = (access.form.terms for access in accesses)
    return {a: c for a, c in first.items() if is_fixed(a) and all(o.get(a) == c for o in others)}


def _part(form: Linear, factor: int) -> tuple[Linear, Linear]:
    """Split an address by a factor: return the quotient and the remainder, as linear forms."""
    digit = {a: c // factor for a, c in form.terms.items() if c >= factor}
    rest = {a: c for a, c in form.terms.items() if c < factor}
    return Linear(digit, form.const // factor), Linear(rest, form.const % factor)


def _determine(digits: Sequence[Linear], access: Access, var: Var, is_fixed: IsFixed) -> bool:
    """Return True if equal values of the linear forms `digits` imply an equal value of the variable
    `var`.
    """
    known: list[Expr] = []
    for digit in digits:
        terms = [a for a in digit.terms if not is_fixed(a)]
        if len(terms) == 1:
            known.append(terms[0])
        elif digit.terms != access.form.terms and tell_apart([access._replace(form=digit, lanes=1)], var, is_fixed):
            return True
    if var in known:
        return True
    for atom in known:
        division = _division(atom)
        if division is None or division[2]:
            continue
        quotient = linear(binary("floordiv", *division[:2]), access.ranges)
        if all(a in known for a in quotient.terms):
            others = [Linear({a: 1}) for a in known if a is not atom]
            return _determine([*others, linear(division[0], access.ranges)], access, var, is_fixed)
    return False
