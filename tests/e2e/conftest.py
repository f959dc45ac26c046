# SPDX-License-Identifier: Apache-2.0
"""Emits each project once for all tests that examine it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from aotc.driver.pipeline import CompiledModel
from tests.e2e.projects import emit

Emitted = Callable[[str, str], CompiledModel]


@pytest.fixture(scope="session")
def emitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    """emitted("resnet18", "c"): the sources of a network; not to be written into."""

    @cache
    def once(name: str, target: str) -> CompiledModel:
        folder = None if name == "resnet18" else request.getfixturevalue("models")
        return emit(name, target, tmp_path_factory.mktemp(f"{name}-{target}"), folder)

    return once
