# SPDX-License-Identifier: Apache-2.0
"""Random attention layers of ONNX and com.microsoft with fixed shapes, evaluated as graphs, against ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from aotc.ir import AotcError
from tests.fuzz import attention
from tests.fuzz.case import write
from tests.fuzz.control_flow import files_of, load_case
from tests.share import share

SEEDS_OF_A_TEST = 25


@pytest.mark.parametrize("block", share(list(range(40)), 2))
def test_layers_of_fixed_shapes(block: int, tmp_path: Path) -> None:
    """Few layers are refused, such as those whose past and several new tokens belong to several sequences."""
    outcomes = Counter[str]()
    for seed in range(block * SEEDS_OF_A_TEST, (block + 1) * SEEDS_OF_A_TEST):
        model, runs, setting = load_case(attention.make(seed))
        if setting["dims"]:
            continue
        write(files_of(model, runs, {**setting, "is_compiled": False}), tmp_path)
        try:
            outcomes[attention.check(tmp_path, lambda _: None)] += 1
        except AotcError:
            outcomes["refused"] += 1
    assert 3 * outcomes["refused"] < outcomes["agreed"] > 5, outcomes
