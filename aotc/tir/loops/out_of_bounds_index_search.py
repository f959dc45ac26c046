# SPDX-License-Identifier: Apache-2.0
"""Find values that an index certainly takes, by executing a loop nest at the corners of its
iteration space.

Used to show that an access is out of bounds, so no guesses are allowed. Input: the loops and
conditions around an access. Output: some of the values of its index, including the extreme values:

    for i in 0..16: if i < 12: y[i] = ...            # 0, 11
    for s in 0..3: for i in 0..min(16, 40 - 16 * s): y[16 * s + i] = ...        # 0, 15, ..., 32, 39

No value is found where a condition depends on data.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from aotc.tir import COMPARE, INDEX, THREAD_COUNT, THREAD_NUMBER, Binary, Const, Declare, Expr, For, Unary, Var
from aotc.tir.simplify import Interval, bounds, comparison_as_nonnegative_form, conjuncts, linear_form, simplify

#: An element of the context of an access: a loop, a register declaration, or a condition.
EnclosingContext: TypeAlias = "For | Declare | Expr"
VarIntervals: TypeAlias = dict[Var, Interval]

#: Largest number of corners of one loop nest that are followed.
_MAX_CORNERS: Final = 4096


def sample_reachable_index_values(enclosing: Sequence[EnclosingContext], index: Expr) -> Iterator[int]:
    """Yield values that an index takes inside loops and conditions (`enclosing`, the outermost
    first).
    """
    if _has_unknown_variable_condition(enclosing):
        return
    for values in itertools.islice(_iteration_space_corners(enclosing), _MAX_CORNERS):
        value = _evaluate_index(index, values)
        if value is not None:
            yield value


def _has_unknown_variable_condition(enclosing: Sequence[EnclosingContext]) -> bool:
    """Return True if a condition compares an index with an unknown variable, so that it may never
    be true.
    """
    known = {THREAD_NUMBER, THREAD_COUNT, *(a.var for a in enclosing if isinstance(a, (For, Declare)))}
    for condition in enclosing:
        if isinstance(condition, (For, Declare)):
            continue
        for part in (condition.a,) if isinstance(condition, Unary) else conjuncts(condition):
            if isinstance(part, Binary) and part.op in COMPARE and part.a.dtype == INDEX:
                terms = linear_form(part.a, {}).add_multiple(linear_form(part.b, {}), -1).terms
                if any(isinstance(atom, Var) and atom not in known for atom in terms):
                    return True
    return False


def _iteration_space_corners(enclosing: Sequence[EnclosingContext]) -> Iterator[VarIntervals]:
    """Yield values of all variables at the first and last iterations of all loops, and where
    conditions change.

    Corners at which a condition is not certainly true are skipped. `THREAD_NUMBER` of
    `THREAD_COUNT` is 0 of 1, 0 of 2 and 1 of 2.
    """
    alone: VarIntervals = {THREAD_NUMBER: (0, 0), THREAD_COUNT: (1, 1)}
    last_of_two: VarIntervals = {THREAD_NUMBER: (1, 1), THREAD_COUNT: (2, 2)}
    stack: list[tuple[int, VarIntervals]] = [(0, last_of_two), (0, {**last_of_two, THREAD_NUMBER: (0, 0)}), (0, alone)]
    while stack:
        depth, values = stack.pop()
        if depth == len(enclosing):
            yield values
            continue
        match enclosing[depth]:
            case For() as loop:
                numbers = _loop_ends_and_condition_change_points(loop, enclosing[depth + 1 :], values)
                stack += [(depth + 1, {**values, loop.var: (n, n)}) for n in numbers]
            case Declare(var=var, value=value):
                constant = _evaluate_index(value, values)
                stack.append((depth + 1, values if constant is None else {**values, var: (constant, constant)}))
            case condition:
                if simplify(condition, values) == Const(True, condition.dtype):
                    stack.append((depth + 1, values))


def _loop_ends_and_condition_change_points(
    loop: For, inner_conditions: Sequence[EnclosingContext], values: VarIntervals
) -> set[int]:
    """Return the first and last value of a loop variable, and the values around which a condition
    inside the loop changes.
    """
    begin, end = _evaluate_index(loop.begin, values), _evaluate_index(loop.end, values)
    if begin is None or end is None or begin >= end:
        return set()
    last = begin + (end - 1 - begin) // loop.step * loop.step
    points = {begin, last}
    known = {**values, loop.var: (begin, last)}
    for condition in inner_conditions:
        if isinstance(condition, (For, Declare)):
            continue
        positive = condition.a if isinstance(condition, Unary) else condition
        for half in (comparison_as_nonnegative_form(part, known) for part in conjuncts(positive)):
            factor = half.terms.get(loop.var, 0) if half is not None and len(half.terms) == 1 else 0
            if half is not None and factor:
                change = begin + (-half.const // factor - begin) // loop.step * loop.step
                points |= {
                    n for n in range(change - loop.step, change + 2 * loop.step, loop.step) if begin <= n <= last
                }
    return points


def _evaluate_index(expr: Expr, values: VarIntervals) -> int | None:
    """Return the value of an index expression, or None if it is not a single known value."""
    if expr.dtype != INDEX or expr.lanes != 1:
        return None
    low, high = bounds(expr, values)
    return int(low) if low == high else None
