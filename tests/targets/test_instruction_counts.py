# SPDX-License-Identifier: Apache-2.0
"""Instruction counts of int8 layers on microcontrollers, measured by QEMU, equal in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.instruction_counts import BENCHMARK_LAYERS, compile_without_building_library, instructions_by_function
from tests.share import share

#: For each multiply-add, requantizing included, at most: of the layers in their order.
BOUNDS = {"cortex-m4": (1.6, 1.6, 5.0), "cortex-m55": (0.36, 0.36, 2.6)}
CASES = [(target, place) for target in BOUNDS for place in range(len(BENCHMARK_LAYERS))]


@pytest.mark.parametrize(("target", "place"), share(CASES, 1))
def test_layers_take_few_instructions(target: str, place: int, tmp_path: Path) -> None:
    layer, most = BENCHMARK_LAYERS[place], BOUNDS[target][place]
    total = instructions_by_function(
        compile_without_building_library(layer.build_relay_module(), target, tmp_path), target, tmp_path
    ).total()
    assert 0 < total <= most * layer.multiply_accumulates_of_layer
