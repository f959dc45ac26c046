# SPDX-License-Identifier: Apache-2.0
"""What is done with a mutated model: read, and compiled to C where it can be."""

from __future__ import annotations

import zlib
from pathlib import Path

from aotc.driver.compile import compile, import_model
from aotc.ir.diagnostics import AotcError
from tests.fuzz.case import Found, Stage

TARGETS = ("c", "x86-64-v3", "x86-64-v4")


def check_model(path: Path, stage: Stage) -> str:
    """Read a model and write it as C, on a target and a level that its bytes choose."""
    choice = zlib.crc32(path.read_bytes())
    stage("import")
    module = import_model(path)
    stage("compile")
    out = path.parent / "out"
    try:
        compile(module, output=out, target=TARGETS[choice % 3], opt_level=choice // 3 % 4, build=False, cache=False)
    except AotcError:
        if out.exists():
            raise Found("leftover", "a project that was refused", f"{out} exists") from None
        raise
    return "accepted"
