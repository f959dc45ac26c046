# SPDX-License-Identifier: Apache-2.0
"""The published archives: their content, and equal bytes for equal sources."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.e2e.projects import ROOT
from tests.packaging.conftest import built, clean, copied

PACKAGES = {"aotc": ROOT, "aotc_codegen": ROOT / "codegen", "aotc_runtime_c": ROOT / "runtime_c"}
DATA = {".bin", ".onnx", ".pyi", ".py", ".j2", ".js", ".c", ".h", ".cpp", ".typed"}


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_the_wheel_holds_the_packages_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    info = next(n.partition("/")[0] for n in names if n.endswith("/WHEEL"))
    about = {f"{info}/{n}" for n in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")}
    code = {
        p.relative_to(base).as_posix()
        for package, base in PACKAGES.items()
        for p in (base / package).rglob("*")
        if p.suffix in DATA
    }
    assert set(names) == code | about | {f"{info}/licenses/LICENSE"} and len(names) == len(set(names))
    for needed in (
        "aotc/py.typed",
        "aotc/__init__.pyi",
        "aotc/relay/dataflow_pattern/__init__.pyi",
        "aotc_codegen/templates/Makefile.j2",
        "aotc_runtime_c/src/aotc_rt.c",
    ):
        assert needed in code


def test_the_archive_of_sources_holds_what_builds_and_tests(archives: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(archives[0]) as archive:
        names = {m.name.partition("/")[2] for m in archive}
    made = {n for n in names if n.partition("/")[0] in ("PKG-INFO", "setup.cfg", "aotc.egg-info")}
    assert names - made == files(copied(tmp_path / "aotc"))
    for needed in ("LICENSE", "tests/conftest.py", "distribution/reproducible.py", "examples/digits/digits.onnx"):
        assert needed in names


def test_what_is_published_is_what_is_tracked(tmp_path: Path) -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a checkout")
    tracked = {n for n in done.stdout.splitlines() if not n.startswith(".") and (ROOT / n).is_file()}
    assert tracked <= files(copied(tmp_path / "aotc"))


def test_equal_sources_give_equal_bytes(archives: tuple[Path, Path], tmp_path: Path) -> None:
    """Elsewhere, later, for another user, and over what an earlier build left."""
    source = copied(tmp_path / "deep" / "elsewhere")
    for n, path in enumerate(sorted(source.rglob("*"), reverse=True)):
        os.utime(path, (n * 10**5, n * 10**5))
        path.chmod(0o700)
    for junk in ("aotc/__pycache__/x.pyc", "tests/__pycache__/x.pyc", "build/lib/aotc/gone.py"):
        (source / junk).parent.mkdir(parents=True, exist_ok=True)
        (source / junk).write_text("junk")
    before = os.umask(0o077)
    try:
        again = built(source)
        assert [p.read_bytes() for p in again] == [p.read_bytes() for p in archives]
        command = [sys.executable, "-c", f"import reproducible; print(reproducible.build_wheel({str(tmp_path)!r}))"]
        env = os.environ | clean() | {"PYTHONPATH": "distribution"}
        subprocess.run(command, cwd=source, env=env, check=True, capture_output=True)
    finally:
        os.umask(before)
    assert (tmp_path / archives[1].name).read_bytes() == archives[1].read_bytes()
