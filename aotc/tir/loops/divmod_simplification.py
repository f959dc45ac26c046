# SPDX-License-Identifier: Apache-2.0
"""Simplify sums with quotients and remainders, which arise where axes of a tensor are fused or
permuted.

Input: a linear form, and the ranges of its variables. Output: an equal linear form with fewer
quotients and remainders:

    (12 * i + j) // 36 * 6 + i % 3 * 2      # 2 * i, where j is below 12
"""

import math
from collections.abc import Mapping

from aotc.tir import Binary, Const, Expr, Interval, LinearForm, Var, binary, bounds, bounds_of_linear_form, linear_form
from aotc.tir.simplify import recombine_divmod_terms, split_into_quotient_and_remainder


def simplify_divmods_in_form(form: LinearForm, ranges: Mapping[Var, Interval]) -> LinearForm:
    """Return an equal linear form with as few quotients and remainders as possible."""
    new_form = LinearForm(const=form.const)
    for atom, factor in form.terms.items():
        new_form = new_form.add_multiple(_reduce_divmod_by_common_factor(atom, ranges), factor)
    return recombine_divmod_terms(new_form, ranges)


def _reduce_divmod_by_common_factor(atom: Expr, ranges: Mapping[Var, Interval]) -> LinearForm:
    """Simplify a quotient or remainder by a common factor: (12 * i + j) // 36 is i // 3 if 0 <= j <
    12.
    """
    division = _match_division_by_constant(atom)
    if division is None or math.inf in map(abs, bounds(division[0], ranges)):  # it might overflow
        return LinearForm({atom: 1})
    operand, divisor, is_quotient = division
    form = linear_form(operand, ranges)
    for unit in sorted({math.gcd(divisor, c) for c in form.terms.values()} - {1}, reverse=True):
        whole, rest = split_into_quotient_and_remainder(form, unit)
        low, high = bounds_of_linear_form(rest, ranges)
        if low < 0 or high >= unit:
            continue
        if is_quotient:
            return linear_form(binary("floordiv", whole.to_expr(), divisor // unit), ranges)
        return rest.add_multiple(linear_form(binary("floormod", whole.to_expr(), divisor // unit), ranges), unit)
    return LinearForm({atom: 1})


def _match_division_by_constant(atom: Expr) -> tuple[Expr, int, bool] | None:
    """Return operand, divisor, and True for a quotient (False for a remainder); None for other
    expressions.
    """
    match atom:
        case Binary(op="floordiv" | "floormod", b=Const(value=divisor)) if divisor > 0:
            return atom.a, int(divisor), atom.op == "floordiv"
    return None
