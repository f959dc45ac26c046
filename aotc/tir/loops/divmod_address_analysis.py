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

from aotc.tir import Binary, Const, Expr, Interval, LinearForm, Var, binary, bounds, bounds_of_linear_form, linear_form
from aotc.tir.simplify import recombine_divmod_terms, split_into_quotient_and_remainder

Ranges = dict[Var, Interval]
#: Predicate: True if a term has one value in all iterations of the loop.
IsFixed = Callable[[Expr], bool]


class LinearAccess(NamedTuple):
    """A memory access: the address of its first element as a linear form.

    form     the address in elements
    lanes    the number of consecutive elements
    ranges   ranges of the variables
    lasts    for loop variables, upper bounds that are linear forms of other variables
    """

    form: LinearForm
    lanes: int
    ranges: Ranges
    lasts: Mapping[Var, Sequence[LinearForm]]

    def upper_bound_of_address(self, address: LinearForm) -> float:
        """Return an upper bound of `address`, using the bounds in `lasts` where they are tighter
        than the ranges.
        """
        high = bounds_of_linear_form(address, self.ranges)[1]
        for var in [a for a, factor in address.terms.items() if isinstance(a, Var) and factor > 0]:
            for last in self.lasts.get(var, ()):
                shorter = address.add_multiple(LinearForm({var: 1}), -address.terms.get(var, 0)).add_multiple(
                    last, address.terms.get(var, 0)
                )
                if bounds_of_linear_form(shorter, self.ranges)[1] < high:
                    address, high = shorter, bounds_of_linear_form(shorter, self.ranges)[1]
        return high

    def is_proven_in_bounds(self, address: LinearForm, size: int, lanes: int = 1) -> bool:
        """Return True if the linear form is proven to be at least 0, and `address + lanes` at most
        `size`.
        """
        return (
            bounds_of_linear_form(address, self.ranges)[0] >= 0 and self.upper_bound_of_address(address) + lanes <= size
        )


def simplify_divmod_in_address(access: LinearAccess) -> LinearAccess:
    """Return an access to equal addresses with as few quotients and remainders as possible."""
    new_form = LinearForm(const=access.form.const)
    for atom, factor in access.form.terms.items():
        new_form = new_form.add_multiple(_reduce_divmod_by_common_factor(atom, access), factor)
    return access._replace(form=recombine_divmod_terms(new_form, access.ranges))


def _reduce_divmod_by_common_factor(atom: Expr, access: LinearAccess) -> LinearForm:
    """Simplify a quotient or remainder by a common factor: (12 * i + j) // 36 is i // 3 if 0 <= j <
    12.
    """
    division = _match_division_by_constant(atom)
    if division is None or math.inf in map(abs, bounds(division[0], access.ranges)):  # it might overflow
        return LinearForm({atom: 1})
    operand, divisor, is_quotient = division
    form = linear_form(operand, access.ranges)
    for unit in sorted({math.gcd(divisor, c) for c in form.terms.values()} - {1}, reverse=True):
        whole, low = split_into_quotient_and_remainder(form, unit)
        if not access.is_proven_in_bounds(low, unit):
            continue
        if is_quotient:
            return linear_form(binary("floordiv", whole.to_expr(), divisor // unit), access.ranges)
        return low.add_multiple(linear_form(binary("floormod", whole.to_expr(), divisor // unit), access.ranges), unit)
    return LinearForm({atom: 1})


def _match_division_by_constant(atom: Expr) -> tuple[Expr, int, bool] | None:
    """Return operand, divisor, and True for a quotient (False for a remainder); None for other
    expressions.
    """
    match atom:
        case Binary(op="floordiv" | "floormod", b=Const(value=divisor)) if divisor > 0:
            return atom.a, int(divisor), atom.op == "floordiv"
    return None


def mixed_radix_digits_determine_variable(accesses: Sequence[LinearAccess], var: Var, is_fixed: IsFixed) -> bool:
    """Return True if different values of a variable lead to different addresses, judged by the
    digits of the addresses.

    Every address is written in a mixed-radix system, as factor * digit + remainder with 0 <=
    remainder < factor, where the remainder is split further by the next smaller factor. Equal
    addresses have equal digits.
    """
    common = common_fixed_terms(accesses, is_fixed)
    forms = [a.form.add_multiple(LinearForm(common), -1) for a in accesses]
    factors = sorted({c for form in forms for c in form.terms.values()}, reverse=True)
    if not factors or factors[-1] < 0:
        return False
    digits: list[LinearForm] = []
    above: list[int] = []
    for factor in factors:
        parts = [_quotient_and_remainder_of_address(form, factor) for form in forms]
        if any(n % factor for n in above) or not all(
            access.is_proven_in_bounds(rest, factor, access.lanes)
            for access, (_, rest) in zip(accesses, parts, strict=True)
        ):
            above.append(factor)
            continue
        first = parts[0][0]
        if all((p.terms, p.const) == (first.terms, first.const) for p, _ in parts):
            digits.append(first)
        above, forms = [], [rest for _, rest in parts]
    return _equal_digits_imply_equal_variable(digits, accesses[0], var, is_fixed)


def common_fixed_terms(accesses: Sequence[LinearAccess], is_fixed: IsFixed) -> dict[Expr, int]:
    """Return the terms that the addresses of all accesses contain with an equal factor, among those
    fixed in all iterations.
    """
    first, *other_terms = (access.form.terms for access in accesses)
    return {a: c for a, c in first.items() if is_fixed(a) and all(o.get(a) == c for o in other_terms)}


def _quotient_and_remainder_of_address(form: LinearForm, factor: int) -> tuple[LinearForm, LinearForm]:
    """Split an address by a factor: return the quotient and the remainder, as linear forms."""
    digit = {a: c // factor for a, c in form.terms.items() if c >= factor}
    rest = {a: c for a, c in form.terms.items() if c < factor}
    return LinearForm(digit, form.const // factor), LinearForm(rest, form.const % factor)


def _equal_digits_imply_equal_variable(
    digits: Sequence[LinearForm], access: LinearAccess, var: Var, is_fixed: IsFixed
) -> bool:
    """Return True if equal values of the linear forms `digits` imply an equal value of the variable
    `var`.
    """
    known: list[Expr] = []
    for digit in digits:
        terms = [a for a in digit.terms if not is_fixed(a)]
        if len(terms) == 1:
            known.append(terms[0])
        elif digit.terms != access.form.terms and mixed_radix_digits_determine_variable(
            [access._replace(form=digit, lanes=1)], var, is_fixed
        ):
            return True
    if var in known:
        return True
    for atom in known:
        division = _match_division_by_constant(atom)
        if division is None or division[2]:
            continue
        quotient = linear_form(binary("floordiv", *division[:2]), access.ranges)
        if all(a in known for a in quotient.terms):
            other_digits = [LinearForm({a: 1}) for a in known if a is not atom]
            return _equal_digits_imply_equal_variable(
                [*other_digits, linear_form(division[0], access.ranges)], access, var, is_fixed
            )
    return False
