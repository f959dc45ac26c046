# SPDX-License-Identifier: Apache-2.0
"""Small handwritten libraries, compiled on demand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from aotc_runtime_c import include_dir

from aotc.runtime.session import Session, load

HERE = Path(__file__).parent
SOURCES = {"tiny": HERE.parent / "runtime_c" / "tiny_model.c", "echo": HERE / "echo_model.c"}
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build("tiny", "-DTINY_ADD=2", to=path): the path of a library."""

    def compile_library(source: str, *flags: str, to: Path | None = None) -> Path:
        output = to or tmp_path_factory.mktemp(source) / f"lib{source}.so"
        output.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-shared", "-fPIC", "-O1", f"-I{include_dir()}", *flags, SOURCES[source], "-o", output]
        subprocess.run(command, check=True)
        return output

    return compile_library


@pytest.fixture(scope="session")
def tiny_library(build: Build) -> Path:
    return build("tiny")


@pytest.fixture
def tiny(tiny_library: Path) -> Session:
    """y = x * scale + 1 for x of 2x3, and the sum of y."""
    return load(tiny_library)


@pytest.fixture(scope="session")
def echo(build: Build) -> Session:
    """One input of every dtype, copied to an output; and "widened", the int4 input as int32."""
    return load(build("echo"))
