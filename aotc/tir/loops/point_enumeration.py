# SPDX-License-Identifier: Apache-2.0
"""Enumerate the iterations that make an access, and the elements that each of them accesses.

This is the fallback of the access relation for addresses that linear arithmetic does not describe,
such as `sums[t ^ 1]`. Input: loop variables with intervals and bounds, and conditions. Output: numpy
arrays with one element for each iteration ("point").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.tir import Binary, Const, Expr, Unary, Var, conjuncts, unary, vars_and_buffers_in
from aotc.tir.expr import Select
from aotc.tir.simplify import Interval, LinearForm

Int64Array: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Points: TypeAlias = "dict[Var, Int64Array]"

#: Largest number of points, and of elements, that are enumerated.
MAX_ENUMERATED_POINTS: Final = 1 << 18
#: Largest value of a variable; arithmetic of 64 bits is exact for the trip counts up to it.
_MOST_ENUMERATED_VALUE: Final = 1 << 61
_NUMPY_FUNCTION_OF_OP: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "floormod": np.mod,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class NotEnumerableError(Exception):
    """Raised where a value depends on more than the enumerated variables, or where there are too many
    points.
    """


@dataclass(slots=True)
class PointEnumerator:
    """Enumerates the values of loop variables.

    ranges       the intervals of variables
    lasts        for loop variables, upper bounds that are linear forms of other variables
    steps        for loop variables, the distance of their values; 1 if it is absent
    conditions   conditions that are true (false, where the second value is False) at all points
    max_values   largest number of values of a variable, of which the first ones are enumerated; None for
                 all values
    """

    ranges: Mapping[Var, Interval]
    lasts: Mapping[Var, Sequence[LinearForm]]
    steps: Mapping[Var, int]
    conditions: Sequence[tuple[Expr, bool]]
    max_values: int | None = None
    points: Points = field(default_factory=dict)

    def points_of_vars(self, needed: Iterable[Var]) -> Points:
        """Return all values of some variables, and of the variables that bound them.

        Values at which a condition or bound cannot be evaluated are included. Raise
        NotEnumerableError if the interval of a variable is infinite, or there are too many points.
        """
        self.points = {}
        for var in needed:
            self._add_var(var)
        return self.points

    def _add_var(self, var: Var) -> None:
        """Enumerate the values of a variable at each of the present points."""
        if var in self.points:
            return
        low, high = self.ranges.get(var, (-math.inf, math.inf))
        if high - low == math.inf:
            raise NotEnumerableError
        # each variable that is added changes the points, so that bounds are evaluated after all of them
        lasts = self.lasts.get(var, ())
        for other in dict.fromkeys(other for last in lasts for other in vars_of_form(last)):
            with suppress(NotEnumerableError):
                self._add_var(other)
        size = next(iter(self.points.values())).size if self.points else 1
        if abs(low) > _MOST_ENUMERATED_VALUE:
            raise NotEnumerableError
        highest = np.full(size, int(min(max(high, low - 1), _MOST_ENUMERATED_VALUE)), np.int64)
        for last in lasts:
            with suppress(NotEnumerableError):
                highest = np.minimum(highest, value_of_form(last, self.points))
        step = self.steps.get(var, 1)
        trips = np.clip((highest - int(low)) // step + 1, 0, self.max_values)
        # the sum of long trips would overflow
        if max(trips.max(initial=0), trips.sum()) > MAX_ENUMERATED_POINTS:
            raise NotEnumerableError
        copies = np.repeat(np.arange(trips.size), trips)
        turn = np.arange(copies.size) - (np.cumsum(trips) - trips)[copies]
        self.points = {v: a[copies] for v, a in self.points.items()}
        self.points[var] = int(low) + turn * step
        self._drop_points_by_conditions(var)

    def _drop_points_by_conditions(self, var: Var) -> None:
        """Drop the points at which a condition that uses a variable does not hold."""
        for cond, holds in self.conditions:
            for part in conjuncts(cond) if holds else (unary("not", cond),):
                if var in vars_and_buffers_in(part):
                    with suppress(NotEnumerableError):
                        mask = np.broadcast_to(
                            np.asarray(value_at_points(part, self.points)), self.points[var].shape
                        ).astype(np.bool_)
                        self.points = {v: a[mask] for v, a in self.points.items()}


def vars_of_form(form: LinearForm) -> list[Var]:
    """Return the variables of a linear form, each once, in the order of its terms."""
    used = (n for atom in form.terms for n in vars_and_buffers_in(atom))
    return list(dict.fromkeys(n for n in used if isinstance(n, Var)))


def value_of_form(form: LinearForm, points: Points) -> Int64Array:
    """Return the value of a linear form at all points; raise NotEnumerableError if it is not a
    function of the enumerated variables.
    """
    size = next(iter(points.values())).size if points else 1
    total = np.full(size, form.const, np.int64)
    for atom, factor in form.terms.items():
        total = total + factor * np.asarray(value_at_points(atom, points), np.int64)
    return total


def value_at_points(expr: Expr, points: Points) -> Any:
    """Evaluate an expression at all points; raise NotEnumerableError if it is not a function of the
    enumerated variables.
    """
    match expr:
        case Var() if expr in points:
            return points[expr]
        case Const(value=value):
            return value
        case Binary(op=op) if op in _NUMPY_FUNCTION_OF_OP and (
            op not in ("floordiv", "floormod") or isinstance(expr.b, Const)
        ):
            return _NUMPY_FUNCTION_OF_OP[op](value_at_points(expr.a, points), value_at_points(expr.b, points))
        case Select(cond=cond, a=a, b=b):
            return np.where(*(value_at_points(part, points) for part in (cond, a, b)))
        case Unary(op="not", a=a) if a.dtype.is_bool:
            return ~np.asarray(value_at_points(a, points), np.bool_)
    raise NotEnumerableError
