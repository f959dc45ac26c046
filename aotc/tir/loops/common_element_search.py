# SPDX-License-Identifier: Apache-2.0
"""Search a few iterations of two accesses for an element that both of them access.

Such an element shows that no proof of the contrary exists, before a long search for a proof fails. Input: the
accesses, and the variables that have one value in all iterations. Output: addresses at some iterations; two accesses
with an equal address have a common element.

    y[n * i + j] = ..., 0 <= i < m, 0 <= j < n    # n = 16: elements 0, 1, 16, 17
    ... = y[k], 0 <= k < n * m                    # elements 0, 1: the first iterations of both access y[0]
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Final

import numpy as np

from aotc.tir import LinearForm, Var
from aotc.tir.loops.buffer_access import Access
from aotc.tir.loops.offset_dimensions import OffsetDimension
from aotc.tir.loops.point_enumeration import NotEnumerableError, PointEnumerator, value_of_form, vars_of_form
from aotc.tir.simplify import Interval

#: Number of values of each variable that are examined: the first ones.
_EXAMINED_VALUES: Final = 2
#: Largest number of variables of an address, of which these values are combined, and of addresses.
_MAX_VARIABLES: Final = 8
_MAX_ADDRESSES: Final = 1 << 14


def addresses_at_first_iterations(
    access: Access, offset: int, dimensions: Sequence[OffsetDimension], fixed: Container[Var]
) -> frozenset[int]:
    """Return addresses that an access has at some of its iterations, where the variables with one value in all
    iterations have their largest values; no address where an iteration or an address is not certain.

    access        the access
    offset        a constant that replaces that of its address
    dimensions    distances of further addresses, each with the number of its multiples
    fixed         variables that have one value in all iterations
    """
    form = LinearForm(access.form.terms, offset)
    needed = vars_of_form(form)
    if access.conditions or any(access.firsts.values()) or len(needed) > _MAX_VARIABLES:
        return frozenset()
    ranges = {v: _first_values(ends, access.steps.get(v, 1), v in fixed) for v, ends in access.ranges.items()}
    enumerator = PointEnumerator(ranges, access.lasts, access.steps, (), _EXAMINED_VALUES)
    try:
        points = enumerator.points_of_vars(needed)
        # the enumeration ignores limits that it cannot evaluate
        for limit in (last for var in points for last in access.lasts.get(var, ())):
            value_of_form(limit, points)
        addresses = np.unique(value_of_form(form, points))
    except NotEnumerableError:
        return frozenset()
    for distance, count in dimensions:
        if addresses.size * count > _MAX_ADDRESSES:
            break
        addresses = np.unique(addresses[:, None] + distance * np.arange(count))
    return frozenset(addresses.tolist())


def _first_values(interval: Interval, step: int, is_fixed: bool) -> Interval:
    """Return an interval with the first values of a variable, or with the largest one if that is fixed."""
    low, high = interval
    if is_fixed and high < math.inf:
        return high, high
    if low == -math.inf:
        low = min(0, high)
    return low, min(high, low + (_EXAMINED_VALUES - 1) * step)
