# SPDX-License-Identifier: Apache-2.0
"""The wheel, built from a copy of the checkout."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.e2e.projects import ROOT, run

NAMES = ("aotc", "codegen", "runtime_c", "pyproject.toml", "README.md", "LICENSE")
"""What the wheel is made from."""


def copied(folder: Path) -> Path:
    """What is in the checkout, without what was made from it."""
    for name in NAMES:
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copyfile(source, copy)
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the build tools of the running environment."""
    if int(version("setuptools").partition(".")[0]) < 77:
        missing("setuptools 77")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist"]
    run(command, copied(folder / "source"))
    (built,) = (folder / "dist").glob("*.whl")
    return built


def clean() -> dict[str, str]:
    """Variables that keep this process's paths out of another one."""
    return {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
