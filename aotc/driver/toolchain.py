# SPDX-License-Identifier: Apache-2.0
"""The C compiler: which one, with which flags, and a library out of an emitted project.

toolchain = find_toolchain(cc=None, cflags=("-g",))
build_library(project_directory, toolchain, target)          # .../lib/libnet.so
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from aotc.ir.diagnostics import AotcError
from aotc.tir.target import Target, get_target, host_target

CANDIDATES = ("cc", "gcc", "clang")
MESSAGE_LINES = 30
"""How much of a compiler's complaint is shown."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler command and the user's extra flags."""

    cc: tuple[str, ...]
    cflags: tuple[str, ...] = ()


def find_toolchain(cc: str | None = None, cflags: Sequence[str] = ()) -> Toolchain:
    """The compiler `cc`, else $CC, else the first of cc, gcc and clang on the path.

    Raises AotcError (code "no-compiler") if there is none.
    """
    wanted = cc or os.environ.get("CC") or ""
    try:
        command = tuple(shlex.split(wanted))
    except ValueError as error:
        raise AotcError("no-compiler", f"C compiler {wanted!r} is not a command: {error}") from error
    if command:
        if shutil.which(command[0]) is None:
            raise AotcError(
                "no-compiler",
                f"C compiler {command[0]!r} not found",
                hint="give its path with --cc, or emit sources only with --no-build",
            )
        return Toolchain(command, tuple(cflags))
    for name in CANDIDATES:
        if shutil.which(name):
            return Toolchain((name,), tuple(cflags))
    raise AotcError(
        "no-compiler",
        "no C compiler found (looked for cc, gcc, clang)",
        hint="install gcc or clang, name one with --cc, or emit sources only with --no-build",
    )


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return frozenset(lines[0].partition(":")[2].split()) if lines else frozenset()


def resolve_target(target: str | Target) -> Target:
    """A target by name; "host" is the best one for this machine."""
    if isinstance(target, Target):
        return target
    if target == "host":
        return host_target(platform.machine(), _cpu_flags())
    return get_target(target)


def run_compiler(command: Sequence[str], cwd: Path) -> None:
    """Run one compiler command; AotcError (code "compiler-failed") with its message if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise AotcError("compiler-failed", f"cannot run {command[0]}: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise AotcError(
            "compiler-failed",
            f"{command[0]} failed with exit code {done.returncode}",
            notes=lines[:MESSAGE_LINES],
            hint="the command was: " + shlex.join(command),
        )


def compile_all(commands: Sequence[Sequence[str]], cwd: Path) -> None:
    """Run independent compiler commands, as many at once as there are processors."""
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for result in [pool.submit(run_compiler, command, cwd) for command in commands]:
            result.result()
