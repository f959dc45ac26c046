# SPDX-License-Identifier: Apache-2.0
"""The pages on targets state the fields of the targets and the error bounds; their CMake commands work."""

from __future__ import annotations

import re
from pathlib import Path

import aotc
from aotc.reporting.support_tables import target_table
from aotc.tir.functions.elementary_function_table import ULP
from aotc.tir.target import TARGETS, Target
from tests.e2e.projects import DIGITS, ROOT, run
from tests.processor_times import exists
from tests.targets.machines import machine


def row(target: Target) -> str:
    """The target's line in the table."""
    flags = f" `{' '.join(target.cflags)}`" if target.cflags else ""
    sizes = f"{target.l1 >> 10} | {target.l2 >> 10}"
    fma = "yes" if target.fma else "no"
    begin = f"| `{target.name}` | {target.machine or 'any'} | {target.vector_bytes} | {target.registers}"
    return f"{begin} | {fma} | {target.fma_bytes} | {sizes} |{flags} |"


def test_the_table_is_that_of_the_targets() -> None:
    lines = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == [
        row(target) for target in TARGETS.values() if not target.versions
    ]


def test_the_page_on_support_names_all_targets_and_tests_that_exist() -> None:
    text = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if "::" in line]
    named = {name for row in rows if len(row) == 6 for name in re.findall("`([^`]+)`", row[0])}
    assert named == TARGETS.keys()
    missing = [row[-1] for row in rows if not exists(row[-1].strip("`"))]
    assert not missing and len(rows) > 10


def test_cmake_builds_for_another_machine(tmp_path: Path, cmake: str) -> None:
    """The command of the page, and what it built runs."""
    foreign = machine("aarch64")
    project = aotc.compile(DIGITS, output=tmp_path / "net", name="net", target=foreign.target, build=False)
    system = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_C_COMPILER={foreign.cc}"]
    run([cmake, "-S", project.path, "-B", "cross", *system, "-DCMAKE_EXE_LINKER_FLAGS=-static"], tmp_path)
    run([cmake, "--build", "cross", "--target", "net_example"], tmp_path)
    assert "scores:" in foreign.run(tmp_path / "cross" / "net_example")


def test_the_page_states_the_bounds() -> None:
    lines = (ROOT / "docs" / "targets" / "function-accuracy.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| [12]\.?\d? \| ", line)]
    assert {name: float(bound) for bound, names in rows for name in names.split(", ")} == ULP


def test_the_list_of_targets_has_the_vectors_of_loops_or_of_micro_kernels() -> None:
    bits = {row["name"]: row["vector_bits"] for row in target_table()["targets"]}
    assert bits["cortex-m55"] == 128 and bits["cortex-m4"] == bits["cuda"] == 0
    assert bits["x86-64-multi"] == 512 and bits["aarch64"] == 128
