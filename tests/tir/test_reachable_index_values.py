# SPDX-License-Identifier: Apache-2.0
"""Values that an index certainly takes in a run; none if it depends on data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from aotc.tir import INDEX, Const, Declare, Expr, For, Var, as_expr
from aotc.tir.expr import unary
from aotc.tir.loops import out_of_bounds_index_search as module
from aotc.tir.loops.out_of_bounds_index_search import EnclosingContext, sample_reachable_index_values
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block

EMPTY = Block(())


def taken(around: Sequence[EnclosingContext], index: Expr, values: dict[Var, tuple[int, int]]) -> set[int]:
    """All values of an index, by running through the loops."""
    if not around:
        place = simplify(index, values)
        assert isinstance(place, Const)
        return {int(place.value)}
    first, *rest = around
    match first:
        case For(var=var, begin=Const(value=begin), end=Const(value=end), step=step):
            return {v for n in range(begin, end, step) for v in taken(rest, index, {**values, var: (n, n)})}
        case Declare(var=var, value=value):
            found = simplify(value, values)
            assert isinstance(found, Const)
            return taken(rest, index, {**values, var: (int(found.value),) * 2})
    holds = simplify(first, values)
    return taken(rest, index, values) if holds == Const(True, holds.dtype) else set()


@pytest.mark.parametrize("seed", range(30))
def test_values_of_random_nests(seed: int) -> None:
    """Each value is one of a run; with a condition on another index there are none."""
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    i, j, n, other = (Var(name, INDEX) for name in ("i", "j", "n", "other"))
    outer, inner = For(i, draw(1, 9), EMPTY), For(j, draw(1, 9), EMPTY)
    number = Declare(n, i * draw(1, 4) + j)
    conditions = [i + draw(0, 3) < draw(1, 9), unary("not", n < draw(0, 9)), j * 2 < draw(1, 12)]
    around: list[EnclosingContext] = [
        outer,
        conditions[0],
        inner,
        number,
        *(c for c in conditions[1:] if rng.random() < 0.6),
    ]
    index = n * draw(1, 4) - i
    assert set(sample_reachable_index_values(around, index)) <= taken(around, index, {})
    for condition in (other < 4, unary("not", other - i >= 4), (i < 9) & (other < n)):
        assert list(sample_reachable_index_values([*around, condition], index)) == []


def test_the_ends_of_loops_and_conditions_are_found() -> None:
    i = Var("i", INDEX)
    assert {0, 15} <= set(sample_reachable_index_values([For(i, 16, EMPTY)], i))
    assert {0, 11} <= set(sample_reachable_index_values([For(i, 16, EMPTY), i < 12], i))


def test_nothing_is_followed_where_data_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests are not run through for conditions that nothing around them decides."""
    loops = [For(Var(f"i{k}", INDEX), 8, EMPTY) for k in range(12)]
    sums: Expr = as_expr(0)
    for a, b in pairwise(loops):
        sums = sums + a.var * b.var
    monkeypatch.setattr(module, "_iteration_space_corners", lambda _: pytest.fail("followed"))
    assert list(sample_reachable_index_values([*loops, Var("low", INDEX) < 4], sums)) == []
