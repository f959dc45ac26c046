# SPDX-License-Identifier: Apache-2.0
"""Frozen records, and context variables that have a value within a block."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
from contextvars import ContextVar
from dataclasses import FrozenInstanceError, dataclass, field, replace
from threading import Event, Thread

import pytest

from aotc.ir import frozen, temporarily_set_context_variable
from aotc.ir.frozen_dataclass import _report_frozen_bases_as_mutable
from aotc.ir.garbage_collection import collect_garbage_rarely


@frozen
class Point:
    x: int
    names: list[str] = field(default_factory=list)


@frozen(eq=False, kw_only=True)
class Node:
    x: int = 0


def test_records_are_frozen_and_have_slots() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    assert not hasattr(point, "__dict__")
    assert point == Point(1, []) != replace(point, x=2)
    assert point.names is not Point(1).names


def test_options_of_dataclasses_are_options_of_records() -> None:
    with pytest.raises(TypeError):
        Node(1)  # type: ignore[call-arg]
    assert Node(x=1) != Node(x=1)


def test_a_variable_has_its_value_back_after_the_block_even_if_that_fails() -> None:
    variable: ContextVar[int | None] = ContextVar("test_setting", default=None)
    with temporarily_set_context_variable(variable, 1) as given:
        assert (given, variable.get()) == (1, 1)
        with pytest.raises(KeyError), temporarily_set_context_variable(variable, 2):
            raise KeyError
        assert variable.get() == 1
    assert variable.get() is None


@frozen
class Shifted(Point):
    """A record with inherited fields, one that is no argument, and a check."""

    z: int = 3
    total: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.z < 0:
            raise ValueError("z")
        object.__setattr__(self, "total", self.x + self.z)


def test_inherited_fields_fields_that_are_no_arguments_and_checks() -> None:
    assert Shifted(1) == Shifted(x=1, names=[], z=3) and Shifted(1, z=4).total == 5
    assert replace(Shifted(1), z=5).total == 6
    assert list(inspect.signature(Shifted).parameters) == ["x", "names", "z"]
    assert Shifted.__init__.__annotations__ == {"x": "int", "names": "list[str]", "z": "int", "return": None}
    with pytest.raises(TypeError, match="x"):
        Shifted()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="z"):
        Shifted(1, z=-1)


@frozen
class Single:
    """A record that defines a method itself, and a field that is not compared."""

    value: int
    note: str = field(default="", compare=False, repr=False)

    def __repr__(self) -> str:
        return f"<{self.value}>"


@frozen(slots=False, kw_only=True)
class Open:
    size: int = 0


@dataclass(frozen=True)
class Plain(Open):
    """A frozen dataclass of the standard library derived from a record."""

    name: str = ""


@frozen(slots=False)
class Mixed(Plain):
    """A record derived from a frozen dataclass of the standard library."""

    last: int = 1


def test_equality_hashes_and_texts_are_those_of_dataclasses() -> None:
    assert (Point(1) == (1, [])) is False and Point(1).__eq__(1) is NotImplemented
    assert Single(1, "a") == Single(1, "b") and hash(Single(1, "a")) == hash(Single(1, "b")) == hash((1,))
    assert len({Single(1), Single(1), Single(2)}) == 2
    assert repr(Shifted(1)) == "Shifted(x=1, names=[], z=3, total=4)" and repr(Single(2)) == "<2>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_records_are_copied_and_pickled() -> None:
    for record in (Point(1, ["a"]), Single(1, "a"), Shifted(2), Open(size=3), Mixed("n", size=4)):
        for other in (copy.copy(record), copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
            assert other == record and type(other) is type(record)


def test_records_and_frozen_dataclasses_are_derived_from_each_other() -> None:
    mixed = Mixed("n", size=2)
    assert (mixed.name, mixed.size, mixed.last) == ("n", 2, 1) and mixed == replace(mixed) != Plain("n", size=2)
    for record in (Open(), Plain(), mixed):
        with pytest.raises(FrozenInstanceError):
            record.size = 1  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError):
            del record.size
        with pytest.raises(FrozenInstanceError):
            record.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="frozen"):
        dataclass(type("Thawed", (Open,), {}))


def test_the_garbage_collector_gets_its_thresholds_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), collect_garbage_rarely():
        raised = gc.get_threshold()
        with collect_garbage_rarely():  # one that is inside leaves it alone
            pass
        assert gc.get_threshold() == raised > before
        raise KeyError
    assert gc.get_threshold() == before


def test_objects_of_a_block_are_not_searched_for_garbage_at_its_end() -> None:
    searched: list[int] = []

    def count_young_objects(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            searched.append(len(gc.get_objects(generation=0)))

    gc.unfreeze()  # the tests run with frozen objects
    gc.collect()
    gc.callbacks.append(count_young_objects)
    try:
        with collect_garbage_rarely():
            created = [[k] for k in range(20_000)]
        more = [[k] for k in range(2_000)]
    finally:
        gc.callbacks.remove(count_young_objects)
        gc.freeze()
    assert len(created) + len(more) == 22_000 and searched and max(searched) < 10_000


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with collect_garbage_rarely():
        pass
    # objects that nothing refers to any more are not counted
    assert gc.get_freeze_count() > count // 2 > 0


def test_a_class_may_refuse_hashes() -> None:
    @frozen
    class Unhashable:
        x: int
        __hash__ = None  # type: ignore[assignment]

    @frozen
    class Compared:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(TypeError, match="unhashable"):
        hash(Unhashable(1))
    assert hash(Compared(1)) == hash((1,)) and Compared(1) == 3


def test_threads_derive_classes_from_one_base_at_once() -> None:
    """A base is reported as mutable until the class is complete, whatever another thread does."""
    inside, left = Event(), Event()
    reported: list[bool] = []

    def derive() -> None:
        with _report_frozen_bases_as_mutable(Plain):
            inside.set()
            left.wait(5)
            reported.append(Open.__dataclass_params__.frozen)  # type: ignore[attr-defined]

    thread = Thread(target=derive)
    with _report_frozen_bases_as_mutable(Plain):
        thread.start()
        inside.wait(0.1)
    left.set()
    thread.join()
    assert reported == [False] and Open.__dataclass_params__.frozen  # type: ignore[attr-defined]
