# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of packages run and print what they show."""

from __future__ import annotations

import doctest
import importlib

import pytest

PACKAGES = ("loops", "schedule", "schedule.stages", "schedule.contraction", "schedule.algorithms")


@pytest.mark.parametrize("name", PACKAGES)
def test_examples_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"aotc.tir.{name}"))
    assert found.attempted > 0 and found.failed == 0
