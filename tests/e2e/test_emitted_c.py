# SPDX-License-Identifier: Apache-2.0
"""The emitted C of large networks: free of warnings and sanitizer reports, self-contained, thread-safe."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
import threading
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotc
from aotc.driver.compile_sources import build_project_library
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import Toolchain, resolve_target
from tests.e2e.conftest import Emitted
from tests.e2e.projects import NETWORKS, TARGETS, run, run_all, write_raw
from tests.share import share
from tests.targets.native_targets import native_targets

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
LANGUAGES = {
    "gcc-c99": ("gcc", "-std=c99"),
    "clang-c99": ("clang", "-std=c99"),
    "gcc-c++17": ("g++", "-x", "c++", "-std=c++17"),
    "clang-c++17": ("clang++", "-x", "c++", "-std=c++17"),
}
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all"
RACES = "-fsanitize=thread"
HEAP = {"malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "memalign", "strdup", "mmap"}


def sources(project: Path) -> list[Path]:
    """Every C file that a user compiles."""
    return sorted(p for folder in ("src", "runtime", "examples") for p in (project / folder).glob("*.c"))


@pytest.mark.always
@pytest.mark.parametrize(("name", "target", "language"), share(product(NETWORKS, TARGETS, LANGUAGES), 2))
def test_no_warnings(emitted: Emitted, clang: str, tmp_path: Path, name: str, target: str, language: str) -> None:
    """No compiler front end warns, nor GCC's optimizer, which finds more."""
    project = emitted(name, target).path
    strict = ("-pedantic",) if target == "c" else resolve_target(target).cflags
    options = (*LANGUAGES[language], *WARNINGS, *strict, "-Iinclude", "-Isrc")
    if language != "gcc-c99":
        run_all([(*options, "-fsyntax-only", s) for s in sources(project)], project)
        return
    objects = [("-O1", "-c", s, "-o", tmp_path / f"{s.parent.name}_{s.stem}.o") for s in sources(project)]
    run_all([(*options, *o) for o in objects], project)


def built(model: CompiledModel, target: str, folder: Path, *flags: str) -> Path:
    """A copy of a project, its library built quickly."""
    copy = folder / model.path.name
    shutil.copytree(model.path, copy)
    return build_project_library(copy, model.metadata, Toolchain(("gcc",), ("-O1", *flags)), resolve_target(target))


def undefined(listing: str) -> set[str]:
    """The strong undefined symbols in the output of nm, less those defined in it."""
    symbols = [line.split()[-2:] for line in listing.splitlines() if line and not line.endswith(":")]
    names = {s.partition("@")[0] for kind, s in symbols if kind == "U"}
    return names - {s for kind, s in symbols if kind not in ("U", "w")}


@pytest.mark.parametrize("name", share(NETWORKS, 1))
def test_symbols_and_threads(emitted: Emitted, tmp_path: Path, name: str) -> None:
    target = "x86-64-v3" if "x86-64-v3" in native_targets() else "c"
    library = built(emitted(name, target), target, tmp_path)
    needed = undefined(run(["nm", "-D", library], tmp_path))
    libm, libc = (ctypes.CDLL(ctypes.util.find_library(lib)) for lib in ("m", "c"))
    assert not {s for s in needed if not hasattr(libm, s) and not hasattr(libc, s)}
    assert not needed & HEAP - {"calloc", "free"}  # with which a pool of threads is made, once
    exported = {line.split()[-1] for line in run(["nm", "-D", "--defined-only", library], tmp_path).splitlines()}
    threads = {"aotc_model_threads_create", "aotc_model_threads_destroy"} if target != "c" else set()
    assert exported == {f"{name}_run", f"{name}_info", "aotc_model_entry"} | threads
    check_threads(aotc.load(library))


def inputs_for(session: aotc.Session, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {i.name: rng.standard_normal(i.shape).astype(i.dtype.numpy) for i in session.get_inputs()}


def check_threads(session: aotc.Session) -> None:
    """Two threads, each with inputs of its own, agree bit for bit with one."""
    feeds = [inputs_for(session, seed) for seed in (1, 2)]
    expected = [session.run(None, feed) for feed in feeds]
    assert any(not np.array_equal(a, b) for a, b in zip(*expected, strict=True))
    found: list[list[list[np.ndarray[Any, Any]]]] = [[], []]
    start = threading.Barrier(2)

    def work(k: int) -> None:
        start.wait()
        found[k] = [session.run(None, feeds[k]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in (0, 1):
        assert len(found[k]) == 3
        for outputs in found[k]:
            for a, b in zip(outputs, expected[k], strict=True):
                np.testing.assert_array_equal(a, b)


def build_of_exact(name: str, sanitize: str) -> list[str | Path]:
    """The command that links a built project with exact_buffers.c."""
    driver = ["gcc", "-std=c99", f"-DMODEL={name}_info", "-Iinclude", Path(__file__).with_name("exact_buffers.c")]
    return [*driver, *sanitize.split(), "-g", f"build/lib{name}.a", "build/libaotc_rt.a", "-lm", "-pthread"]


@pytest.mark.always
@pytest.mark.parametrize(("name", "target"), share(product(NETWORKS, TARGETS), 1))
def test_sanitizers(emitted: Emitted, tmp_path: Path, name: str, target: str) -> None:
    if target not in native_targets():
        pytest.skip(f"this machine does not run {target}")
    model = emitted(name, target)
    project = tmp_path / name
    shutil.copytree(model.path, project)
    flags = " ".join(("-O0", "-g", *resolve_target(target).cflags, SANITIZE))
    run(["make", "-j2", "STATIC=1", f"CFLAGS={flags}", f"LDFLAGS={SANITIZE}", f"build/{name}_example"], project)
    rng = np.random.default_rng(3)
    arrays = {i["c_name"]: rng.standard_normal(i["shape"]).astype(i["dtype"]) for i in model.metadata["inputs"]}
    outputs = {o["c_name"]: tmp_path / f"out_{o['c_name']}" for o in model.metadata["outputs"]}
    files = [write_raw(tmp_path, f"in_{n}", a) for n, a in arrays.items()]
    text = run([f"build/{name}_example", *files, *outputs.values()], project)
    assert re.search(r"1 runs, best [\d.]+ ms", text)
    check_outputs(model.metadata, outputs)
    run([*build_of_exact(name, SANITIZE), "-o", "exact"], project)
    assert run(["./exact"], project) == "0 outputs differ\n"


@pytest.mark.parametrize("name", share(NETWORKS, 1))
def test_no_races(emitted: Emitted, tmp_path: Path, name: str) -> None:
    """Three threads share one run, under the sanitizer that sees whatever nobody waits for."""
    target = next(t for t in reversed(TARGETS) if t in native_targets())
    if resolve_target(target).threads is None:
        pytest.skip("this machine runs no target with threads")
    project = tmp_path / name
    shutil.copytree(emitted(name, target).path, project)
    flags = " ".join(("-O0", "-g", *resolve_target(target).cflags, RACES))
    run(["make", "-j2", "STATIC=1", f"CFLAGS={flags}", f"LDFLAGS={RACES}", f"build/{name}_example"], project)
    assert run([*build_of_exact(name, RACES), "-DTHREADS=3", "-o", "exact"], project) == ""
    assert run(["./exact"], project) == "0 outputs differ\n"


def check_outputs(metadata: Mapping[str, Any], files: Mapping[str, Path]) -> None:
    """Every output is there, of its size, and finite."""
    for info in metadata["outputs"]:
        data = files[info["c_name"]].read_bytes()
        assert len(data) == info["bytes"]
        assert np.isfinite(np.frombuffer(data, info["dtype"])).all()
