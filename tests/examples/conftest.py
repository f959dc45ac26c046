# SPDX-License-Identifier: Apache-2.0
"""Runs commands of the documentation as a new user would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a Markdown page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Shell:
    """Runs scripts in `folder`, where `aotc` and `python` are those of this environment."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        binaries.mkdir()
        for name, module in (("aotc", "-m aotc.cli"), ("python", "")):
            script = binaries / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        packages = os.pathsep.join(str(ROOT / p) for p in ("", "codegen", "runtime_c"))
        self.environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": packages}

    def __call__(self, script: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a script, which stops at the first command that fails; return its exit code and output."""
        return subprocess.run(
            ["sh", "-eu", "-c", script],
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def succeed(self, script: str) -> str:
        """Run a script that must succeed; return its output."""
        done = self(script)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fail(self, script: str) -> str:
        """Run a script that must fail; return what it printed to standard error."""
        done = self(script)
        assert done.returncode != 0, f"{script} succeeds\n{done.stdout}"
        return done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in a folder that holds the examples and nothing that was built."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    return Shell(folder, tmp_path / "bin")
