# SPDX-License-Identifier: Apache-2.0
"""Declared dependency versions are right: the oldest and the newest ones compile, run and verify a model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import skip_or_fail_without
from tests.e2e.projects import DIGITS, ROOT, run
from tests.packaging.conftest import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNREACHABLE = re.compile("connection|Temporary failure|No matching distribution|Max retries", re.IGNORECASE)
"""What pip says of an index that it cannot ask."""


def declared() -> dict[str, str]:
    """The lower bounds of what is needed to compile and verify, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["verify"]]
    return dict(requirement.split(">=") for requirement in needed)


def oldest_python() -> str:
    """The oldest Python that is supported, or else one for which the oldest versions are built, too."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in (shutil.which("python3.10"), *sorted(pyenv.glob("versions/3.10.*/bin/python3.10"))):
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return str(path)
    if sys.version_info >= (3, 12):
        skip_or_fail_without("Python 3.10")
    return sys.executable


def environment(folder: Path, python: str, *options: str | Path) -> Path:
    """A virtual environment in which pip has installed something."""
    run([python, "-m", "venv", folder], folder.parent)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *options]
    done = subprocess.run([str(p) for p in pip], capture_output=True, text=True, env=os.environ | clean())
    if done.returncode != 0 and "ResolutionImpossible" not in done.stderr and UNREACHABLE.search(done.stderr):
        skip_or_fail_without(f"an index of packages ({done.stderr.strip().splitlines()[-1]})")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def versions(programs: Path) -> dict[str, str]:
    listed = run([programs / "python", "-m", "pip", "list", "--format=json"], programs, **clean())
    return {row["name"].lower().replace("-", "_"): row["version"] for row in json.loads(listed)}


def compiles_runs_and_verifies(programs: Path, folder: Path) -> None:
    shutil.copy(DIGITS, folder)
    aotc = programs / "aotc"
    env = clean() | {"AOTC_CACHE_DIR": str(folder / "cache")}
    run([aotc, "compile", "digits.onnx", "-o", "net", "--cflags=-O1"], folder, **env)
    assert "scores" in run([aotc, "run", "net", "--output", "out.npz"], folder, **env)
    said = run([aotc, "verify", "digits.onnx", "--cflags=-O1", "--seeds", "2"], folder, **env)
    assert "compared with onnxruntime: all outputs agree" in said
    assert "nn.conv2d" in run([aotc, "inspect", "digits.onnx"], folder, **env)


@pytest.mark.slow
def test_the_oldest_declared_versions(wheel: Path, tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in declared().items()))
    programs = environment(tmp_path / "venv", oldest_python(), f"{wheel}[verify]", "--constraint", constraints)
    found = versions(programs)
    for name, version in declared().items():
        assert re.fullmatch(rf"{re.escape(version)}(\.0)*", found[name]), (name, found[name])
    compiles_runs_and_verifies(programs, tmp_path)


@pytest.mark.slow
def test_the_newest_versions(wheel: Path, tmp_path: Path) -> None:
    options = ("--upgrade", "--upgrade-strategy", "eager")
    programs = environment(tmp_path / "venv", sys.executable, f"{wheel}[verify]", *options)
    assert "torch" not in versions(programs)
    compiles_runs_and_verifies(programs, tmp_path)
