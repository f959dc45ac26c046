# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel from a copy of the checkout."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import skip_or_fail_without
from tests.e2e.projects import ROOT, run

NAMES = (
    *("aotc", "codegen", "runtime_c", "benchmarks", "changes", "distribution", "docs", "examples", "tests"),
    *("pyproject.toml", "MANIFEST.in", "Makefile", "LICENSE"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
)
"""What is published."""


def copied(folder: Path) -> Path:
    """What is in the checkout, without what was made from it."""
    for name in NAMES:
        source, copy = ROOT / name, folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "generated", "*.egg-info", "*.so", "*.o", "*.a")
            shutil.copytree(source, copy, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, copy)
    return folder


def built(source: Path) -> tuple[Path, Path]:
    """The archive of sources, and the wheel that is made from it, with the build tools of the running environment."""
    if int(version("setuptools").partition(".")[0]) < 77:
        skip_or_fail_without("setuptools 77")
    run([sys.executable, "-m", "build", "--no-isolation"], source)
    (archive,), (wheel,) = (source / "dist").glob("*.tar.gz"), (source / "dist").glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return built(copied(tmp_path_factory.mktemp("sources") / "aotc"))


@pytest.fixture(scope="session")
def wheel(archives: tuple[Path, Path]) -> Path:
    return archives[1]


def clean() -> dict[str, str]:
    """Variables that keep this process's paths out of another one."""
    return {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
