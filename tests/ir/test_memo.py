# SPDX-License-Identifier: Apache-2.0
"""Results are kept under all that they are made from, and what holds code is not kept."""

from __future__ import annotations

import pickle

import pytest

from aotc.ir.memo import alike, remembered, remembering
from aotc.tir import te
from aotc.tir.expr import Var
from aotc.tir.stmt import PART, PARTS, Block


class Shelf(dict[str, bytes]):
    """A store in memory."""

    def put(self, key: str, data: bytes) -> None:
        self[key] = data


def asked(store: Shelf | None, kind: str, source: object, salt: str = "s") -> bool:
    """Whether the result had to be made."""
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return [7]

    with remembering(store, salt):
        assert remembered(kind, source, make) == [7]
    return bool(made)


def test_the_key_is_kind_source_and_salt() -> None:
    shelf = Shelf()
    assert asked(shelf, "k", (1, "a")) and not asked(shelf, "k", (1, "a"))
    assert asked(shelf, "k", (1, "b")) and asked(shelf, "m", (1, "a")) and asked(shelf, "k", (1, "a"), "t")
    assert asked(shelf, "k", 0.0) and asked(shelf, "k", -0.0)
    assert asked(None, "k", (1, "a"))


def test_nothing_is_kept_outside() -> None:
    assert [remembered("k", 1, iter([k]).__next__) for k in (1, 2)] == [1, 2]


def test_what_holds_code_or_is_too_deep_is_made_anew() -> None:
    shelf = Shelf()
    x = te.placeholder((4,), "float32", "x")
    program = te.extern("sorted", [((4,), "float32")], [x], lambda *_: Block(()))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for source in (program, lambda: 1, deep):
        assert asked(shelf, "k", source) and asked(shelf, "k", source)
    assert not shelf


@pytest.mark.parametrize("other", [1, 2])
def test_results_are_known_by_their_sources(other: int) -> None:
    shelf = Shelf()

    def chain(source: int) -> list[str]:
        steps: list[str] = []

        def step(name: str, value: list[int]) -> list[int]:
            steps.append(name)
            return value

        with remembering(shelf, "s"):
            first = remembered("first", source, lambda: step("first", [5]))
            again = alike([*first, 9], first)  # another object, of the same worth
            remembered("second", again, lambda: step("second", [6]))
        return steps

    assert chain(1) == ["first", "second"]
    assert chain(other) == ([] if other == 1 else ["first", "second"])


def test_the_variables_of_teams_stay_themselves() -> None:
    i = Var("part")
    part, parts, j = pickle.loads(pickle.dumps((PART, PARTS, i)))
    assert part is PART and parts is PARTS and j is not i and j is not PART and j.name == "part"
