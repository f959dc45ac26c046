# SPDX-License-Identifier: Apache-2.0
"""`make test` draws cases of expensive test functions; those that are marked to run always are not drawn."""

from __future__ import annotations

from typing import Any, cast

import pytest

import tests.share
from tests.processor_times import exists
from tests.share import MAX_EXPECTED_SECONDS, expensive_tests, leave_out_expensive_cases


class Case:
    """A stand-in for a pytest.Item, with the members that leave_out_expensive_cases uses."""

    def __init__(self, name: str, *marks: str) -> None:
        self.nodeid, self.marks = name, [*marks]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def cases_left(cases: list[Case], seconds: float) -> int:
    """Return how many cases of the function `f` are run by `make test` if each takes some processor seconds."""
    leave_out_expensive_cases(cast(Any, cases), {"f": seconds})
    return sum("slow" not in case.marks for case in cases)


@pytest.mark.parametrize(("count", "seconds"), [(1, 6.0), (2, 30.0), (10, 2.0), (500, 0.25)])
def test_drawn_cases_take_the_limit_on_average(count: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    total = 0.0
    for seed in range(2000):
        monkeypatch.setattr(tests.share, "SEED", seed)
        total += cases_left([Case(f"f[{k}]") for k in range(count)], seconds) * seconds
    assert total / 2000 == pytest.approx(MAX_EXPECTED_SECONDS, rel=0.2)


def test_marked_cases_are_not_drawn() -> None:
    cases = [Case("f[0]", "always"), *(Case(f"f[{k}]", "slow") for k in (1, 2)), Case("g")]
    assert cases_left(cases, 1e6) == 2 and cases[0].marks == ["always"] and not cases[3].marks


def test_every_expensive_test_exists() -> None:
    missing = [name for name in expensive_tests() if not exists(name)]
    assert not missing, f"`python -m tests.processor_times --write-expensive` removes {missing} from the file"
