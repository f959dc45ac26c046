# SPDX-License-Identifier: Apache-2.0
"""Libraries for AArch64 state at load which instructions the processor lacks, instead of ending with a signal."""

from __future__ import annotations

from pathlib import Path

import pytest
from aotc_codegen.c.cpu_feature_check import AARCH64_LOCATION_BY_FEATURE

import aotc
from aotc.tir.processor_features import PROCESSOR_FEATURES
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, build_program_that_opens_libraries, run
from tests.targets.machines import machine


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that opens libraries."""
    return build_program_that_opens_libraries(require_tool("aarch64-linux-gnu-gcc"), tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize(
    ("target", "processor_lacks"),
    [
        ("aarch64", {"cortex-a53": ""}),
        ("aarch64-dotprod", {"cortex-a53": "dotprod", "cortex-a76": ""}),
        ("aarch64-i8mm", {"cortex-a53": "dotprod, i8mm", "cortex-a76": "i8mm", "max": ""}),
    ],
)
def test_loading_states_all_that_the_processor_lacks(
    target: str, processor_lacks: dict[str, str], host: Path, tmp_path: Path
) -> None:
    machine(target)
    model = aotc.compile(DIGITS, output=tmp_path / "digits", target=target, cflags=["-O1"])
    for processor, lacks in processor_lacks.items():
        emulator = (require_tool("qemu-aarch64"), "-L", "/usr/aarch64-linux-gnu", "-cpu", processor)
        printed = run([*emulator, host, model.library], tmp_path)
        if lacks:
            assert printed == f"8 the processor lacks {lacks}, which kernels for {target} need\n"
        else:
            assert printed.startswith("0 ")


def test_every_feature_of_aarch64_is_checked() -> None:
    assert AARCH64_LOCATION_BY_FEATURE.keys() == {f.name for f in PROCESSOR_FEATURES.values() if f.machine == "aarch64"}
