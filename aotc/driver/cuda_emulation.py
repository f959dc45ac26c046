# SPDX-License-Identifier: Apache-2.0
"""CUDA without a GPU: compile CUDA kernels for this machine's CPU, and provide a fake CUDA driver
that runs them.

images = emulated_images(text_of_kernels, [80])      # {"sm_80": a shared library, in the place of a cubin}
library = fake_driver()                              # .../libcuda.so.1; $AOTC_CUDA_DRIVER has the runtime take it

The rest of an emitted project is unchanged: only the driver loads images and runs the code in them.
"""

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL
from functools import cache
from pathlib import Path
from typing import Final

import aotc_runtime_c
from aotc_codegen.c.compiler_flags import cflags

from aotc.driver.nvrtc import DeviceCompiler
from aotc.driver.object_cache import default_cache, digest
from aotc.driver.toolchain import Toolchain, resolve_target, run_compiler, version_of
from aotc.ir import AotcError
from aotc.ir.atomic_write import make_temporary_folder, temporary_folder

#: The compute capability that the fake device has, times ten.
ARCHITECTURE: Final = 80
#: The environment variable that names the CUDA driver library for the runtime.
DRIVER: Final = "AOTC_CUDA_DRIVER"
CANDIDATES: Final = ("c++", "g++", "clang++")
_FLAGS: Final = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def emulated_images(source: str, archs: Sequence[int], *more: str) -> Mapping[str, bytes]:
    """Compile CUDA source for the fake device; return {"sm_80": shared library}, whatever
    architectures are requested.

    more    compiler flags after the default flags for C kernels

    Raises AotcError: code "no-compiler" without a C++ compiler, "compiler-failed" with its message.
    """
    folder = aotc_runtime_c.emulator_dir()
    header = (folder / "aotc_emulator.h").read_text(encoding="utf-8")
    flags = ("-DAOTC_EMULATED", *cflags(resolve_target("host")), *more)
    return {f"sm_{ARCHITECTURE}": _library({"kernels.cpp": source, "aotc_emulator.h": header}, flags)}


@cache
def fake_driver(*more: str) -> Path:
    """Build the fake CUDA driver as a shared library; return its path, which exists until this
    process ends.

    The arguments and errors are those of `emulated_images`.
    """
    headers = [path for path in (*aotc_runtime_c.sources(), *aotc_runtime_c.cuda_sources()) if path.suffix == ".h"]
    paths = [*aotc_runtime_c.emulator_dir().iterdir(), *headers]
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(paths)}
    kept = Path(make_temporary_folder("aotc-cuda-"))
    made = kept / "libcuda.so.1"
    # no soname: otherwise a later dlopen of the system's driver by name would return this library
    made.write_bytes(_library(files, ("-O2", "-pthread", *more)))
    return made


#: The device compiler for the fake device.
EMULATOR: Final = DeviceCompiler(emulated_images, (ARCHITECTURE,), 12000)


def is_emulated() -> bool:
    """Return True if $AOTC_CUDA_DRIVER names a driver that emulates a GPU."""
    with suppress(OSError):
        return DRIVER in os.environ and hasattr(CDLL(os.environ[DRIVER]), "aotc_emulator_launch")
    return False


@contextmanager
def emulating() -> Iterator[None]:
    """Context manager: models for GPUs that are loaded inside the block run on the fake device."""
    before = os.environ.get(DRIVER)
    os.environ[DRIVER] = str(fake_driver())
    try:
        yield
    finally:
        os.environ.pop(DRIVER)
        os.environ.update({} if before is None else {DRIVER: before})


def _library(files: Mapping[str, str], flags: Sequence[str]) -> bytes:
    """Compile C++ files, given by name together with their headers, to a shared library; return its
    bytes.
    """
    compiler, store = _compiler(), default_cache()
    key = digest(
        version_of(compiler), *compiler.cc, *_FLAGS, *flags, *(part for file in files.items() for part in file)
    )
    if store is not None and (found := store.get(key)) is not None:
        return found
    with temporary_folder("aotc-cuda-") as scratch:
        folder = Path(scratch)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        made = folder / "library.so"
        sources = [name for name in files if name.endswith(".cpp")]
        command = (*compiler.cc, *_FLAGS, *flags, *sources, "-ldl", "-o", made.name)
        run_compiler(command, folder, compiler.seconds, made)
        found = made.read_bytes()
    if store is not None:
        store.put(key, found)
    return found


def _compiler() -> Toolchain:
    """Return the C++ compiler: $CXX, else the first known one on the path; AotcError (code
    "no-compiler") if none.
    """
    wanted = tuple(shlex.split(os.environ.get("CXX", "")))
    for name in wanted[:1] or CANDIDATES:
        if path := shutil.which(name):
            return Toolchain((path, *wanted[1:]))
    text = f"no C++ compiler found (looked for {', '.join(wanted[:1] or CANDIDATES)}), which emulates a GPU"
    raise AotcError("no-compiler", text, hint="install g++ or clang++, name one with $CXX")
