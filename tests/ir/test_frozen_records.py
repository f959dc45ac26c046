# SPDX-License-Identifier: Apache-2.0
"""Frozen records, and context variables that have a value within a block."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import FrozenInstanceError, field, replace

import pytest

from aotc.ir import frozen, temporarily_set_context_variable


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
