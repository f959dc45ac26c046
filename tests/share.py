# SPDX-License-Identifier: Apache-2.0
"""Selects a share of the tests for `make test`; `make test-all` runs all tests.

@pytest.mark.parametrize("name", share(NAMES, 4))      # the others are marked slow
@pytest.mark.parametrize(("name", "target"), share_of_each(NAMES, TARGETS, 2))      # every name, on two targets
@pytest.mark.always      # runs in every `make test`, however long it takes

The cases of a test function that takes long (its line in expensive_tests.txt says how long) are drawn so that they take
half a processor second on average over all seeds.  AOTC_TEST_SEED chooses another share than that of seed 0.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SEED = int(os.environ.get("AOTC_TEST_SEED", "0"))
EXPENSIVE_TESTS = Path(__file__).with_name("expensive_tests.txt")
"""Mean processor seconds of a case of each expensive test function, written by `python -m tests.processor_times`."""
MAX_EXPECTED_SECONDS = 0.5
"""Processor seconds that the drawn cases of a test function take on average over all seeds."""


def share(cases: Iterable[Any], count: int, *, always: Collection[Any] = ()) -> list[Any]:
    """Parameters of a test: `count` cases drawn by seed, and those that ever failed; the others are marked slow.

    A case that is a tuple gives several parameters.
    """
    cases = list(cases)
    return _parameters(cases, random.Random(SEED).sample(range(len(cases)), count), always)


def share_of_each(
    names: Iterable[Any], others: Iterable[Any], count: int, *, always: Collection[tuple[Any, Any]] = ()
) -> list[Any]:
    """Parameters of a test: all pairs of a name and one of `others`, of which those are marked slow that are neither
    among the `count` pairs drawn by seed for each name nor in `always`."""
    names, others = list(names), list(others)
    drawn = [(name, other) for name in names for other in draw(others, count, name)]
    cases = [*product(names, others)]
    return _parameters(cases, {k for k, case in enumerate(cases) if case in drawn}, always)


def draw(cases: Sequence[T], count: int, name: object = "") -> list[T]:
    """At most `count` of the cases, drawn by seed and by a name (for another choice in each test or case)."""
    return random.Random(f"{SEED} {name}").sample(cases, min(count, len(cases)))


def expensive_tests() -> dict[str, float]:
    """Return the mean processor seconds of a case by the name of its test function, as expensive_tests.txt has them."""
    lines = EXPENSIVE_TESTS.read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, _, name in (line.partition(" ") for line in lines)}


def leave_out_expensive_cases(items: Iterable[pytest.Item], seconds_of_case: Mapping[str, float]) -> None:
    """Mark cases of expensive test functions as slow, so that those left take MAX_EXPECTED_SECONDS on average.

    Cases marked `always` or `slow` already stay as they are.  A function whose single case takes longer than the limit
    is drawn with the probability that meets it.
    """
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in seconds_of_case and not any(map(item.get_closest_marker, ("always", "slow"))):
            cases[name].append(item)
    for name, of_function in cases.items():
        generator = random.Random(f"{SEED} {name}")
        count = int(MAX_EXPECTED_SECONDS / seconds_of_case[name] + generator.random())
        drawn = generator.sample(range(len(of_function)), min(count, len(of_function)))
        for k, item in enumerate(of_function):
            if k not in drawn:
                item.add_marker(pytest.mark.slow)


def _parameters(cases: Sequence[Any], drawn: Collection[int], always: Collection[Any]) -> list[Any]:
    """One parameter set for each case: those in `always` have the mark of this name; others not drawn are slow."""
    marks = [pytest.mark.always if c in always else () if k in drawn else pytest.mark.slow for k, c in enumerate(cases)]
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=m) for c, m in zip(cases, marks, strict=True)]
