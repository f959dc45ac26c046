# SPDX-License-Identifier: Apache-2.0
"""CUDA without a GPU: kernels compiled for this machine, and a driver that runs them as a device would.

images = emulated_images(text_of_kernels, [80])      # {"sm_80": a shared library, in the place of a cubin}
library = fake_driver()                              # .../libcuda.so.1; $AOTC_CUDA_DRIVER has the runtime take it

Everything else of an emitted project is as for a GPU: the driver is what loads images and runs what is in them.
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
#: The environment variable by which the runtime finds a driver.
DRIVER: Final = "AOTC_CUDA_DRIVER"
CANDIDATES: Final = ("c++", "g++", "clang++")
_FLAGS: Final = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def emulated_images(source: str, archs: Sequence[int], *more: str) -> Mapping[str, bytes]:
    """The kernels of a CUDA text for the fake device, whatever architectures are asked for.

    more    flags behind those that kernels in C are compiled with

    Raises AotcError: code "no-compiler" without a C++ compiler, "compiler-failed" with its message.
    """
    folder = aotc_runtime_c.emulator_dir()
    header = (folder / "aotc_emulator.h").read_text(encoding="utf-8")
    flags = ("-DAOTC_EMULATED", *cflags(resolve_target("host")), *more)
    return {f"sm_{ARCHITECTURE}": _library({"kernels.cpp": source, "aotc_emulator.h": header}, flags)}


@cache
def fake_driver(*more: str) -> Path:
    """The driver as a file, which lies there until this process ends; arguments and errors as `emulated_images`."""
    headers = [path for path in (*aotc_runtime_c.sources(), *aotc_runtime_c.cuda_sources()) if path.suffix == ".h"]
    paths = [*aotc_runtime_c.emulator_dir().iterdir(), *headers]
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(paths)}
    kept = Path(make_temporary_folder("aotc-cuda-"))
    made = kept / "libcuda.so.1"
    # without a name of its own inside: who looks for the system's driver by name would be given this one, once loaded
    made.write_bytes(_library(files, ("-O2", "-pthread", *more)))
    return made


#: What makes code for the fake device.
EMULATOR: Final = DeviceCompiler(emulated_images, (ARCHITECTURE,), 12000)


def is_emulated() -> bool:
    """Whether $AOTC_CUDA_DRIVER names a driver that emulates a GPU."""
    with suppress(OSError):
        return DRIVER in os.environ and hasattr(CDLL(os.environ[DRIVER]), "aotc_emulator_launch")
    return False


@contextmanager
def emulating() -> Iterator[None]:
    """Models for GPUs that are loaded in the block run on the fake device."""
    before = os.environ.get(DRIVER)
    os.environ[DRIVER] = str(fake_driver())
    try:
        yield
    finally:
        os.environ.pop(DRIVER)
        os.environ.update({} if before is None else {DRIVER: before})


def _library(files: Mapping[str, str], flags: Sequence[str]) -> bytes:
    """A shared library of C++ files, given by name with the headers that they include."""
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
    """$CXX, else the first C++ compiler on the path."""
    wanted = tuple(shlex.split(os.environ.get("CXX", "")))
    for name in wanted[:1] or CANDIDATES:
        if path := shutil.which(name):
            return Toolchain((path, *wanted[1:]))
    text = f"no C++ compiler found (looked for {', '.join(wanted[:1] or CANDIDATES)}), which emulates a GPU"
    raise AotcError("no-compiler", text, hint="install g++ or clang++, name one with $CXX")
