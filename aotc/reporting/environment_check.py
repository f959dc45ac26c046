# SPDX-License-Identifier: Apache-2.0
"""Find out what this machine has of the programs and packages that aotc uses, and how to install what is missing.

environment_report()["missing"]    # [{"name": "qemu-riscv64", "use": "runs programs for ...", "install": "..."}, ...]
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

from aotc.driver.compiled_system import native_compiler_commands
from aotc.driver.emulators import BARE_METAL_EMULATORS, QEMU_USER_PACKAGE, qemu_command
from aotc.driver.nvrtc import find_nvrtc_compiler
from aotc.driver.object_cache import user_object_cache, why_folder_is_untrusted
from aotc.driver.toolchain import (
    PROBE_TIMEOUT_SECONDS,
    compiler_version_line,
    cpuinfo_field,
    find_toolchain,
    foreign_architecture_of_target,
    packages_of_compiler,
    require_compiler_for_architecture,
    require_cpu_can_run,
    require_vector_extensions,
    resolve_target,
    run_compiler,
    system_compiled_for,
    usable_processor_features,
)
from aotc.ir import AotcError, gpu_count, normalized_architecture_name
from aotc.ir.atomic_write import temporary_folder
from aotc.ir.version import VERSION
from aotc.tir import TARGETS, Target

#: Extras whose packages only tests, documents, benchmarks and examples of aotc itself need.
_EXTRAS_OF_DEVELOPERS: Final = frozenset({"test", "docs", "bench", "bench-decoder", "bench-trees", "zoo", "train"})
_REQUIREMENT_PATTERN: Final = re.compile(r"""([\w.-]+)[^;]*;.*\bextra\s*==\s*["']([\w-]+)["']""")
_INSTALL_NATIVE: Final = f"apt install {packages_of_compiler(None)}"
#: Program that finds deviations from MISRA C, and the command that installs it.
MISRA_CHECKER: Final = "cppcheck"
INSTALL_MISRA_CHECKER: Final = f"apt install {MISRA_CHECKER}"
_PROBE_SOURCE: Final = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
double value(double x) { int64_t bits; memcpy(&bits, &x, sizeof bits); return bits ? sqrt(x) : x; }
"""


def environment_report() -> dict[str, Any]:
    """Describe this machine as aotc sees it, in the order and under the keys that `aotc doctor --json` prints.

    aotc, python, system, processor    versions, and the instruction sets that targets can use
    compilers    C compilers on the path, with versions; the first one is the default
    default_compiler    its command, and the reason why it cannot build libraries; "" if it can
    targets      for each target its compiler, and where its programs run: "here", an emulator's command, or ""
    gpu          what NVRTC makes code for, "" if it is not installed, and the number of GPUs
    cache        folder, number and size of the entries, and the reason why it is not used; "" if it is
    extras       the packages of each extra, with their versions; None for one that is not installed
    missing      name, use and command of installation of what is missing; a program counts only if some
                 target has no other
    """
    target_rows, missing_for_targets = _targets()
    command, problem = _default_compiler()
    extras = _extras()
    missing = [*_missing_default_compiler(command, problem), *missing_for_targets]
    missing += [*_missing_misra_checker(), *_missing_extras(extras)]
    return {
        "aotc": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "compilers": _compilers(),
        "default_compiler": {"command": command, "problem": problem},
        "targets": target_rows,
        "gpu": _gpu(),
        "cache": _cache(),
        "extras": extras,
        "missing": missing,
    }


def _processor() -> dict[str, Any]:
    return {
        "architecture": normalized_architecture_name(),
        "name": cpuinfo_field("model name") or platform.processor(),
        "logical_processors": os.cpu_count() or 1,
        "features": sorted(usable_processor_features()),
        "host_target": resolve_target("host").name,
    }


def _compilers() -> list[dict[str, str]]:
    """List the C compilers for this machine that are on the path, those with version numbers included."""
    configured = os.environ.get("CC", "").strip()
    names = [configured] if configured else []
    numbered = {path.name for folder in os.get_exec_path() for path in _gcc_and_clang_versions(Path(folder))}
    found = []
    for name in dict.fromkeys([*names, *map(shlex.join, native_compiler_commands()), *sorted(numbered)]):
        with suppress(AotcError):
            toolchain = find_toolchain(name, cache=False)
            found.append({"command": name, "version": compiler_version_line(toolchain)})
    return found


def _gcc_and_clang_versions(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in folder.iterdir():
            if re.fullmatch(r"(gcc|clang)-\d+", path.name):
                yield path


def _default_compiler() -> tuple[str, str]:
    """Return the command of the default C compiler, and the reason why it cannot build a library."""
    try:
        toolchain = find_toolchain(cache=False)
    except AotcError as error:
        return "", error.diagnostics[0].message
    with temporary_folder("aotc-doctor-") as folder:
        library = Path(folder) / "probe.so"
        (Path(folder) / "probe.c").write_text(_PROBE_SOURCE, encoding="utf-8")
        system = system_compiled_for(toolchain)
        command = [*toolchain.cc, "-shared", *system.object_flags, "probe.c", "-o", str(library), *system.math_flags]
        try:
            run_compiler(command, Path(folder), PROBE_TIMEOUT_SECONDS, library)
        except AotcError as error:
            reasons = [line for line in error.diagnostics[0].notes if "error" in line]
            return shlex.join(toolchain.cc), ": ".join([error.diagnostics[0].message, *reasons[:1]])
    return shlex.join(toolchain.cc), ""


def _missing_default_compiler(command: str, problem: str) -> list[dict[str, str]]:
    # without any compiler, the targets of this machine miss one
    if not (problem and command):
        return []
    return [{"name": f"working {command}", "use": "builds libraries for this machine", "install": _INSTALL_NATIVE}]


def _targets() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return a row for each target, and what is missing to compile for targets and to run their programs."""
    rows: list[dict[str, str]] = []
    missing: dict[str, dict[str, str]] = {}
    for target in TARGETS.values():
        if target.gpu is not None:
            continue
        compiler, hint = _compiler_for(target)
        runs, program, package = _where_programs_run(target)
        rows.append({"name": target.name, "machine": target.machine or "any", "compiler": compiler, "runs": runs})
        if hint:
            name = f"C compiler for {foreign_architecture_of_target(target) or 'this machine'}"
            missing.setdefault(name + hint, {"name": name, "use": "builds for", "install": hint})
            missing[name + hint]["use"] += f" {target.name}"
        if program:
            missing.setdefault(
                program, {"name": program, "use": "runs programs for", "install": f"apt install {package}"}
            )
            missing[program]["use"] += f" {target.name}"
    return rows, list(missing.values())


def _compiler_for(target: Target) -> tuple[str, str]:
    """Return the command of the C compiler for a target, or "" and what to install."""
    try:
        toolchain = find_toolchain(cache=False, target=target)
        require_compiler_for_architecture(toolchain, target)
        require_vector_extensions(toolchain, target)
    except AotcError as error:
        text = str(error.diagnostics[0].hint)
        if (packages := packages_of_compiler(target)) in text:
            return "", f"apt install {packages}"
        return "", text if foreign_architecture_of_target(target) else _INSTALL_NATIVE
    return shlex.join(toolchain.cc), ""


def _where_programs_run(target: Target) -> tuple[str, str, str]:
    """Return "here", the command of an emulator, or ""; the missing emulator, and Debian's package of it."""
    if not target.bare:
        with suppress(AotcError):
            require_cpu_can_run(target)
            return "here", "", ""
    if target.bare or target.machine in BARE_METAL_EMULATORS:
        program, package = BARE_METAL_EMULATORS[target.machine]
        command: Sequence[str] = (program,)
    elif foreign := foreign_architecture_of_target(target):
        command, package = qemu_command(foreign, target), QEMU_USER_PACKAGE
    else:
        # another processor of this architecture: emulators of user programs lack most of its extensions
        return "", "", ""
    if shutil.which(command[0]) is None:
        return "", command[0], package
    return shlex.join(command), "", ""


def _missing_misra_checker() -> list[dict[str, str]]:
    if shutil.which(MISRA_CHECKER) is not None:
        return []
    use = "finds deviations of emitted C from MISRA C for aotc inspect"
    return [{"name": MISRA_CHECKER, "use": use, "install": INSTALL_MISRA_CHECKER}]


def _gpu() -> dict[str, Any]:
    report = {"nvrtc": "", "devices": gpu_count()}
    with suppress(AotcError):
        compiler = find_nvrtc_compiler()
        archs = compiler.architectures
        report["nvrtc"] = f"for compute capabilities {archs[0] / 10:.1f} to {archs[-1] / 10:.1f}"
    return report


def _cache() -> dict[str, Any]:
    cache = user_object_cache()
    if cache is None:
        return {"folder": "", "entries": 0, "bytes": 0, "limit": 0, "problem": "there is no home directory"}
    entries, used = cache.cache_entry_count_and_total_bytes()
    problem = why_folder_is_untrusted(cache.folder) if cache.folder.exists() else ""
    return {"folder": str(cache.folder), "entries": entries, "bytes": used, "limit": cache.limit, "problem": problem}


def _extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra for users, with the installed version of each."""
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in _declared_requirements():
        if (match := _REQUIREMENT_PATTERN.match(requirement)) and match[2] not in _EXTRAS_OF_DEVELOPERS:
            extras.setdefault(match[2], {})[match[1]] = _installed_version(match[1])
    return extras


def _declared_requirements() -> list[str]:
    """Return the requirements in the metadata of the installed package; none if aotc was not installed."""
    with suppress(PackageNotFoundError):
        return requires("aotc") or []
    return []


def _installed_version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _missing_extras(extras: dict[str, dict[str, str | None]]) -> list[dict[str, str]]:
    return [
        {
            "name": f"extra {extra}",
            "use": "lacks " + ", ".join(name for name, found in packages.items() if found is None),
            "install": f"{shlex.quote(sys.executable)} -m pip install "
            + " ".join(name for name, found in packages.items() if found is None),
        }
        for extra, packages in extras.items()
        if None in packages.values()
    ]
