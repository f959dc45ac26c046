# SPDX-License-Identifier: Apache-2.0
"""Targets that this processor runs, and targets that neither it nor an emulator runs."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from aotc.driver.toolchain import require_cpu_can_run
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.diagnostics import AotcError
from aotc.tir.target import TARGETS, Target


def native_targets() -> list[str]:
    """The targets whose code this processor runs, "c" among them."""
    return [name for name, t in TARGETS.items() if not t.versions and t.gpu is None and not _obstacle(t)]


def _obstacle(target: Target) -> str:
    """Why code for a target cannot run here; "" where it can."""
    try:
        require_cpu_can_run(target)
    except AotcError as error:
        return error.diagnostics[0].message
    return ""


@cache
def node_has_relaxed_simd() -> bool:
    """Whether there is a node with dot products of relaxed SIMD. Version 20 has them by a flag, but some are wrong."""
    node = shutil.which("node")
    if node is None:
        return False
    text = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    return int(text.removeprefix("v").partition(".")[0]) >= 22


def targets_that_cannot_run() -> dict[str, str]:
    """Names of the targets whose code neither this processor nor an emulator can run, with the reason of each."""
    processor_targets = (
        t for t in TARGETS.values() if t.machine == normalized_architecture_name() and not t.versions and t.gpu is None
    )
    obstacles = {t.name: why for t in processor_targets if (why := _obstacle(t))}
    relaxed = {} if node_has_relaxed_simd() else {"wasm32-relaxed": "node lacks relaxed SIMD, which version 22 has"}
    return obstacles | relaxed
