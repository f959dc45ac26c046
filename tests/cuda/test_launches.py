# SPDX-License-Identifier: Apache-2.0
"""How many launches networks take: between one and the next, a GPU does nothing."""

from __future__ import annotations

import pytest

from aotc.driver.compile import CompileOptions
from benchmarks.networks import NETWORKS

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "most"), [("resnet18", 21), pytest.param("resnet50", 53, marks=SLOW), ("mobilenet_v2", 53), ("minilm", 31)]
)
def test_launches_of_a_network(name: str, most: int) -> None:
    options = CompileOptions(target="cuda")
    (program,) = options.compilation(options.imported(NETWORKS[name]())).programs
    assert len(program.steps) <= most
