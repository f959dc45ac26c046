# SPDX-License-Identifier: Apache-2.0
"""Memoized results: keys contain everything on which a result depends; values with code are not stored or loaded."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aotc.ir.dtype import DType
from aotc.ir.persistent_memo import (
    give_new_value_memo_key_of_old,
    load_or_compute_memoized_result,
    memoize_results_in_store,
)
from aotc.ir.safe_json import JsonFormat
from aotc.tir import te
from aotc.tir.expr import Buffer, Load, Var
from aotc.tir.kernel_text import to_text
from aotc.tir.stmt import THREAD_COUNT, THREAD_NUMBER, Block, For, Kernel, Store, memoized_kernel

LISTS: JsonFormat[list[int]] = JsonFormat(list)


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

    with memoize_results_in_store(store, salt):
        assert load_or_compute_memoized_result(kind, source, make, LISTS) == [7]
    return bool(made)


def test_the_key_is_kind_source_and_salt() -> None:
    shelf = Shelf()
    assert asked(shelf, "k", (1, "a")) and not asked(shelf, "k", (1, "a"))
    assert asked(shelf, "k", (1, "b")) and asked(shelf, "m", (1, "a")) and asked(shelf, "k", (1, "a"), "t")
    assert asked(shelf, "k", 0.0) and asked(shelf, "k", -0.0)
    assert asked(None, "k", (1, "a"))


def test_nothing_is_kept_outside() -> None:
    assert [load_or_compute_memoized_result("k", 1, iter([k]).__next__, JsonFormat(int)) for k in (1, 2)] == [1, 2]


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

        with memoize_results_in_store(shelf, "s"):
            first = load_or_compute_memoized_result("first", source, lambda: step("first", [5]), LISTS)
            again = give_new_value_memo_key_of_old([*first, 9], first)  # another object, of the same worth
            load_or_compute_memoized_result("second", again, lambda: step("second", [6]), LISTS)
        return steps

    assert chain(1) == ["first", "second"]
    assert chain(other) == ([] if other == 1 else ["first", "second"])


@dataclass(frozen=True)
class Leaf:
    name: str
    value: object = None


@dataclass(frozen=True, kw_only=True)
class Pair:
    left: object
    right: object
    note: str = field(default="", compare=False)


LEAF = Leaf("shared")
FORM: JsonFormat[Pair] = JsonFormat(Pair, [Pair, Leaf, DType], [LEAF])


def test_values_come_back_as_they_were() -> None:
    leaf = Leaf("a", (1, True, 1.0, 0.0, -0.0, None, "\x00\ud800", math.inf, frozenset({(1,)}), [], {"b": 2, 3: "c"}))
    back = FORM.load_json(FORM.dump_json(Pair(left=leaf, right=(leaf, LEAF, DType("float32")), note="n")))
    assert back.left == leaf and repr(back.left) == repr(leaf) and back.note == "n"
    assert back.right[0] is back.left and back.right[1] is LEAF and isinstance(back.right[2], DType)
    assert math.isnan(JsonFormat(float).load_json(JsonFormat(float).dump_json(math.nan)))
    deep: object = ()
    for _ in range(100_000):
        deep = (deep,)
    assert len(JsonFormat(tuple).load_json(JsonFormat(tuple).dump_json(deep))) == 1


@pytest.mark.parametrize("value", [b"bytes", 1j, print, Shelf(), object, -math.nan, {1: {2: {3}}}])
def test_other_classes_are_not_kept(value: object) -> None:
    with pytest.raises(TypeError):
        FORM.dump_json(Pair(left=value, right=1))
    shelf = Shelf()
    with memoize_results_in_store(shelf, "s"):
        assert load_or_compute_memoized_result("k", 1, lambda: Pair(left=value, right=1), FORM).left is value
    assert not shelf


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"[", b"[" * 100_000, b"{}", b"[]", b"7", b"[[0,1]]", b"[1]", b"[[99]]", b"[[-9]]", b"[[5,0]]",
        b"[[4,1,1,1,1],[0,1]]", b'["x",[0,1]]', b'["int7",[6,1],[0,2]]', b"[[0],[3,1],[0,2]]", b"[[[0]]]", b"[1,[0,1]]",
        b'["Z",[5,1],[0,2]]', b"[1e999999,[0,1,1]]", b"[" + b"9" * 5000 + b"]",
    ],
)  # fmt: skip
def test_other_texts_are_no_values(data: bytes) -> None:
    with pytest.raises(ValueError, match="this is no"):
        FORM.load_json(data)
    assert JsonFormat(Leaf, [Leaf]).load_json(b'["Z",null,[4,0,1],[0,2]]') == Leaf("Z")


def test_nothing_that_is_kept_runs(tmp_path: Path) -> None:
    """Pickles among what is kept are not read: the results are made again."""

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return eval, (f"__import__('pathlib').Path('{tmp_path / 'proof'}').touch()",)

    shelf = Shelf()
    assert asked(shelf, "k", 1) and not asked(shelf, "k", 1)
    for hostile in (pickle.dumps(Bomb()), pickle.dumps([7]), json.dumps(["os.system"]).encode()):
        shelf[next(iter(shelf))] = hostile
        assert asked(shelf, "k", 1) and not asked(shelf, "k", 1)
    assert not (tmp_path / "proof").exists()


def test_the_variables_of_teams_stay_themselves() -> None:
    i, x = Var("part"), Buffer("x", DType("float32"), 4)
    kernel = Kernel(
        name="k",
        inputs=(),
        outputs=(x,),
        body=For(i, THREAD_COUNT, Store(x, THREAD_NUMBER, Load(x, i)), kind="independent"),
    )
    shelf = Shelf()
    for made in (kernel, None):
        with memoize_results_in_store(shelf, "s"):
            back = memoized_kernel("kernel", 1, None, lambda made=made: made)
    assert back is not kernel and to_text(back) == to_text(kernel)
    assert isinstance(back.body, For) and isinstance(back.body.body, Store) and isinstance(back.body.body.value, Load)
    assert back.body.end is THREAD_COUNT and back.body.body.index is THREAD_NUMBER
    assert back.body.body.value.index is back.body.var and back.body.var is not i and back.body.var is not THREAD_NUMBER
