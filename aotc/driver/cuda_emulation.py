# SPDX-License-Identifier: Apache-2.0
"""CUDA without a GPU: compile CUDA kernels for this machine's CPU, and provide a fake CUDA driver
that runs them.

images = compile_cuda_as_sm80_for_fake_device(text_of_kernels, [80])  # {"sm_80": a shared library}
library = build_fake_cuda_driver()                   # .../libcuda.so.1; $AOTC_CUDA_DRIVER has the runtime take it

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
from aotc_codegen.c.compiler_flags import kernel_cflags

from aotc.driver.nvrtc import DeviceCompiler
from aotc.driver.object_cache import sha256_of_parts, user_object_cache
from aotc.driver.toolchain import Toolchain, compiler_version_line, resolve_target, run_compiler
from aotc.ir import AotcError
from aotc.ir.atomic_write import make_temporary_folder, temporary_folder

#: The compute capability that the fake device has, times ten.
EMULATED_COMPUTE_CAPABILITY: Final = 80
#: The environment variable that names the CUDA driver library for the runtime.
CUDA_DRIVER_VARIABLE: Final = "AOTC_CUDA_DRIVER"
CXX_COMPILER_CANDIDATES: Final = ("c++", "g++", "clang++")
_CXX_FLAGS: Final = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def compile_cuda_as_sm80_for_fake_device(source: str, archs: Sequence[int], *extra_flags: str) -> Mapping[str, bytes]:
    """Compile CUDA source for the fake device; return {"sm_80": shared library}, whatever
    architectures are requested.

    extra_flags    compiler flags after the default flags for C kernels

    Raises AotcError: code "no-compiler" without a C++ compiler, "compiler-failed" with its message.
    """
    folder = aotc_runtime_c.emulator_dir()
    header = (folder / "aotc_emulator.h").read_text(encoding="utf-8")
    flags = ("-DAOTC_EMULATED", *kernel_cflags(resolve_target("host")), *extra_flags)
    return {
        f"sm_{EMULATED_COMPUTE_CAPABILITY}": _compile_cpp_library_cached(
            {"kernels.cpp": source, "aotc_emulator.h": header}, flags
        )
    }


@cache
def build_fake_cuda_driver(*extra_flags: str) -> Path:
    """Build the fake CUDA driver as a shared library; return its path, which exists until this
    process ends.

    The arguments and errors are those of `compile_cuda_as_sm80_for_fake_device`.
    """
    headers = [
        path
        for path in (*aotc_runtime_c.hosted_runtime_files(), *aotc_runtime_c.cuda_runtime_files())
        if path.suffix == ".h"
    ]
    paths = [*aotc_runtime_c.emulator_dir().iterdir(), *headers]
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(paths)}
    folder = Path(make_temporary_folder("aotc-cuda-"))
    library_path = folder / "libcuda.so.1"
    # no soname: otherwise a later dlopen of the system's driver by name would return this library
    library_path.write_bytes(_compile_cpp_library_cached(files, ("-O2", "-pthread", *extra_flags)))
    return library_path


#: The device compiler for the fake device.
EMULATOR_DEVICE_COMPILER: Final = DeviceCompiler(
    compile_cuda_as_sm80_for_fake_device, (EMULATED_COMPUTE_CAPABILITY,), 12000
)


def is_gpu_emulated() -> bool:
    """Return True if $AOTC_CUDA_DRIVER names a driver that emulates a GPU."""
    with suppress(OSError):
        return CUDA_DRIVER_VARIABLE in os.environ and hasattr(
            CDLL(os.environ[CUDA_DRIVER_VARIABLE]), "aotc_emulator_launch"
        )
    return False


@contextmanager
def run_models_on_fake_gpu() -> Iterator[None]:
    """Context manager: models for GPUs that are loaded inside the block run on the fake device."""
    before = os.environ.get(CUDA_DRIVER_VARIABLE)
    os.environ[CUDA_DRIVER_VARIABLE] = str(build_fake_cuda_driver())
    try:
        yield
    finally:
        os.environ.pop(CUDA_DRIVER_VARIABLE)
        os.environ.update({} if before is None else {CUDA_DRIVER_VARIABLE: before})


def _compile_cpp_library_cached(text_by_file_name: Mapping[str, str], flags: Sequence[str]) -> bytes:
    """Compile C++ files, given by name together with their headers, to a shared library; return its
    bytes.
    """
    compiler, store = _find_cpp_compiler(), user_object_cache()
    key = sha256_of_parts(
        compiler_version_line(compiler),
        *compiler.cc,
        *_CXX_FLAGS,
        *flags,
        *(part for file in text_by_file_name.items() for part in file),
    )
    if store is not None and (library_bytes := store.get(key)) is not None:
        return library_bytes
    with temporary_folder("aotc-cuda-") as scratch:
        folder = Path(scratch)
        for name, text in text_by_file_name.items():
            (folder / name).write_text(text, encoding="utf-8")
        library_path = folder / "library.so"
        sources = [name for name in text_by_file_name if name.endswith(".cpp")]
        command = (*compiler.cc, *_CXX_FLAGS, *flags, *sources, "-ldl", "-o", library_path.name)
        run_compiler(command, folder, compiler.seconds, library_path)
        library_bytes = library_path.read_bytes()
    if store is not None:
        store.put(key, library_bytes)
    return library_bytes


def _find_cpp_compiler() -> Toolchain:
    """Return the C++ compiler: $CXX, else the first known one on the path; AotcError (code
    "no-compiler") if none.
    """
    command = tuple(shlex.split(os.environ.get("CXX", "")))
    for name in command[:1] or CXX_COMPILER_CANDIDATES:
        if path := shutil.which(name):
            return Toolchain((path, *command[1:]))
    text = (
        f"no C++ compiler found (looked for {', '.join(command[:1] or CXX_COMPILER_CANDIDATES)}), which emulates a GPU"
    )
    raise AotcError("no-compiler", text, hint="install g++ or clang++, name one with $CXX")
