# SPDX-License-Identifier: Apache-2.0
"""Selects a share of a test's cases for `make test`; `make test-all` runs all cases.

@pytest.mark.parametrize("name", share(NAMES, 4))      # the others are marked slow
@pytest.mark.parametrize(("name", "target"), share_of_each(NAMES, TARGETS, 2))      # every name, on two targets

AOTC_TEST_SEED chooses another share than that of seed 0.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SEED = int(os.environ.get("AOTC_TEST_SEED", "0"))


def share(cases: Iterable[Any], count: int, *, always: Collection[Any] = ()) -> list[Any]:
    """Parameters of a test: `count` cases drawn by seed, and those that ever failed; the others are marked slow.

    A case that is a tuple gives several parameters.
    """
    cases = list(cases)
    drawn = random.Random(SEED).sample(range(len(cases)), count)
    return _parameters(cases, {*drawn, *(k for k, case in enumerate(cases) if case in always)})


def share_of_each(
    names: Iterable[Any], others: Iterable[Any], count: int, *, always: Collection[tuple[Any, Any]] = ()
) -> list[Any]:
    """Parameters of a test: all pairs of a name and one of `others`, of which those are marked slow that are neither
    among the `count` pairs drawn by seed for each name nor in `always`."""
    names, others = list(names), list(others)
    drawn = [(name, other) for name in names for other in draw(others, count, name)]
    cases = [*product(names, others)]
    return _parameters(cases, {k for k, case in enumerate(cases) if case in drawn or case in always})


def draw(cases: Sequence[T], count: int, name: object = "") -> list[T]:
    """At most `count` of the cases, drawn by seed and by a name (for another choice in each test or case)."""
    return random.Random(f"{SEED} {name}").sample(cases, min(count, len(cases)))


def _parameters(cases: Sequence[Any], chosen: Collection[int]) -> list[Any]:
    """One parameter set for each case; cases whose index is not among the chosen ones are marked slow."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*v, marks=() if k in chosen else pytest.mark.slow) for k, v in enumerate(values)]
