# SPDX-License-Identifier: Apache-2.0
"""The thread pool under the sanitizers for threads, addresses and undefined behavior."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest
from aotc_runtime_c import include_dir, source_dir

HERE = Path(__file__).parent
#: A machine of 16 processors, on which threads look at those of others before they sleep.
MANY_PROCESSORS = """
#include <unistd.h>
long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name) {
  return name == _SC_NPROCESSORS_ONLN ? 16 : __real_sysconf(name);
}
"""
BUILDS = {
    "threads": ("-fsanitize=thread", "-g", "-O1"),
    "memory": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"),
    "fast": ("-O3",),
}


def run_host(
    tmp_path: Path,
    *flags: str,
    most: int,
    compiler: tuple[str, ...] = ("gcc", "-std=c99"),
    processors: Collection[int] | None = None,
) -> str:
    """Compile and run `pool_host.c` with pools of 1 to `most` threads, on some processors; return what it prints."""
    program = tmp_path / "pool"
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
    command = [*compiler, *warnings, f"-I{include_dir()}", *flags, HERE / "pool_host.c", source_dir() / "aotc_pool.c"]
    subprocess.run([*map(str, command), "-pthread", "-o", str(program)], check=True)
    # more threads than processors must not crawl
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or before)
    try:
        done = subprocess.run([program, str(most)], capture_output=True, text=True, timeout=120, check=False)
    finally:
        os.sched_setaffinity(0, before)
    return done.stdout + done.stderr


@pytest.mark.parametrize("build", BUILDS)
def test_every_part_runs_and_meetings_keep_order(build: str, tmp_path: Path) -> None:
    flags = BUILDS[build]
    if build == "threads":  # whatever this machine has: threads look while others start
        (tmp_path / "processors.c").write_text(MANY_PROCESSORS, encoding="utf-8")
        flags = (*flags, "-Wl,--wrap=sysconf", str(tmp_path / "processors.c"))
    assert run_host(tmp_path, *flags, most=5) == "ok\n"


def test_threads_that_share_a_processor(tmp_path: Path) -> None:
    """The pool counts all processors of the machine, so that its threads look before they sleep."""
    assert run_host(tmp_path, *BUILDS["threads"], most=2, processors={min(os.sched_getaffinity(0))}) == "ok\n"


def test_as_cpp(tmp_path: Path) -> None:
    assert run_host(tmp_path, "-O1", most=3, compiler=("g++", "-std=c++17", "-x", "c++")) == "ok\n"


def test_without_threads(tmp_path: Path) -> None:
    assert run_host(tmp_path, "-DAOTC_NO_THREADS", most=1) == "ok\n"
