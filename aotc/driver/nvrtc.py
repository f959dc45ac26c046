# SPDX-License-Identifier: Apache-2.0
"""Compile CUDA source to GPU code with NVRTC, NVIDIA's run-time compiler, which the
optional dependencies `cuda` of aotc install.

nvrtc = find_nvrtc_compiler()
nvrtc.images(text, (80, 90))             # {"sm_80": machine code, "sm_90": machine code, "compute_80": PTX}

Machine code runs on GPUs of its major compute capability, PTX on all newer ones.  No GPU is needed.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

from aotc_codegen.c.compiler_flags import CUDA_COMPILER_FLAGS

from aotc.driver import nvrtc_worker
from aotc.driver.object_cache import ObjectCache, sha256_of_parts
from aotc.driver.subprocesses import FinishedProcess, run_program
from aotc.driver.toolchain import DEFAULT_CC_TIMEOUT_SECONDS, MAX_MESSAGE_LINES, PROBE_TIMEOUT_SECONDS
from aotc.ir import AotcError, frozen, translate_os_errors
from aotc.ir.atomic_write import open_for_atomic_write
from aotc.tir import Gpu

#: Function from CUDA source and compute capabilities (80 for 8.0) to code by architecture name.
ImageCompiler: TypeAlias = Callable[[str, Sequence[int]], Mapping[str, bytes]]
#: Warning 39, division by a constant zero, is suppressed: models may contain such divisions.
FLAGS: Final = (*CUDA_COMPILER_FLAGS, "--device-as-default-execution-space", "--diag-suppress=39")
#: PTX version per architecture that drivers of CUDA 12.0, the oldest supported ones, accept.
_PTX_VERSION_BY_ARCHITECTURE: Final = dict.fromkeys((75, 80, 86, 87, 89, 90), "8.0")
_NVRTC_LIBRARY_GLOBS: Final = ("*/lib/libnvrtc.so.1?", "*/bin/nvrtc64_1*_0.dll", "*/bin/*/nvrtc64_1*_0.dll")


@frozen
class DeviceCompiler:
    """A compiler from CUDA source to GPU code.

    images          function from the source and compute capabilities to the code for each
    architectures   compute capabilities that it supports, 80 for 8.0
    least_driver    oldest driver version that accepts the code: 12040 for CUDA 12.4
    """

    images: ImageCompiler
    architectures: tuple[int, ...]
    least_driver: int

    def requested_or_supported_architectures(self, gpu: Gpu | None) -> Sequence[int]:
        """Return the compute capabilities to compile for: all that the user requested, else the
        target's defaults that this compiler supports.
        """
        requested_archs = (gpu or Gpu()).architectures
        if requested_archs != Gpu().architectures:
            return requested_archs
        return [a for a in requested_archs if a in self.architectures]


@frozen
class _Nvrtc:
    path: Path
    version: tuple[int, int]
    architectures: tuple[int, ...]


def find_nvrtc_compiler(
    cache: ObjectCache | None = None, package_folders: Iterable[str] | None = None, *, strict: bool = True
) -> DeviceCompiler:
    """Return a device compiler based on the newest NVRTC that is installed as a Python package.

    cache              object cache for the generated code; None for none
    package_folders    folders with NVIDIA's packages; None for the installed package `nvidia`
    strict             treat compiler warnings as errors; the pipeline does not, because a warning does not
                       make a kernel wrong

    Raises AotcError (code "no-nvrtc") if NVRTC is not installed or cannot be loaded.
    """
    package = find_spec("nvidia") if package_folders is None else None
    known = package.submodule_search_locations if package is not None else None
    nvrtc = _find_newest_nvrtc(tuple(known or ()) if package_folders is None else tuple(package_folders))
    return DeviceCompiler(
        partial(_compile_images_with_nvrtc, nvrtc, cache, strict), nvrtc.architectures, 1000 * nvrtc.version[0]
    )


def _compile_images_with_nvrtc(
    nvrtc: _Nvrtc, cache: ObjectCache | None, strict: bool, source: str, archs: Sequence[int]
) -> Mapping[str, bytes]:
    """Compile CUDA source to machine code for each architecture, and to PTX for the first one.

    Raises AotcError: code "cuda-arch" for an architecture that NVRTC does not support,
    "compiler-failed" with its message.
    """
    unknown = [str(arch) for arch in archs if arch not in nvrtc.architectures]
    if unknown or not archs:
        text = f"NVRTC {'.'.join(map(str, nvrtc.version))} makes no code for {', '.join(unknown) or 'nothing'}"
        raise AotcError("cuda-arch", text, hint=f"known: {', '.join(map(str, nvrtc.architectures))}")
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        cubin_ptx_pairs = list(pool.map(partial(_compile_to_cubin_and_ptx, nvrtc, cache, strict, source), archs))
    images = {f"sm_{arch}": code for arch, (code, _) in zip(archs, cubin_ptx_pairs, strict=True)}
    return images | {f"compute_{archs[0]}": _replace_ptx_version_by_minimum_of_arch(cubin_ptx_pairs[0][1], archs[0])}


def _replace_ptx_version_by_minimum_of_arch(ptx: bytes, arch: int) -> bytes:
    if arch not in _PTX_VERSION_BY_ARCHITECTURE:
        return ptx
    return re.sub(
        rb"^\.version \S+$", f".version {_PTX_VERSION_BY_ARCHITECTURE[arch]}".encode(), ptx, count=1, flags=re.MULTILINE
    )


def _compile_to_cubin_and_ptx(
    nvrtc: _Nvrtc, cache: ObjectCache | None, strict: bool, source: str, arch: int
) -> tuple[bytes, bytes]:
    flags = (f"--gpu-architecture=sm_{arch}", *FLAGS)
    key = sha256_of_parts("nvrtc", str(nvrtc.version), str(strict), *flags, source)
    blob = cache.get(key) if cache is not None else None
    if blob is None:
        done = _run_nvrtc_worker(nvrtc.path, *flags, text=source.encode())
        error_text = done.errors.decode("utf-8", "replace").strip()
        if done.code != 0 or (strict and "warning" in error_text):
            lines = error_text.splitlines()[:MAX_MESSAGE_LINES]
            raise AotcError("compiler-failed", f"NVRTC cannot compile the kernels for sm_{arch}", notes=lines)
        blob = done.output
        if cache is not None:
            cache.put(key, blob)
    size = int.from_bytes(blob[:8], "little")
    return blob[8 : 8 + size], blob[8 + size :].rstrip(b"\0")


def _run_nvrtc_worker(nvrtc_library: Path, *flags: str, text: bytes = b"") -> FinishedProcess:
    command = (sys.executable, "-I", str(nvrtc_worker.__file__), str(nvrtc_library), *flags)
    with translate_os_errors("compiler-failed", "run NVRTC"):
        return run_program(command, seconds=DEFAULT_CC_TIMEOUT_SECONDS if flags else PROBE_TIMEOUT_SECONDS, given=text)


@lru_cache
def _find_newest_nvrtc(folders: Sequence[str]) -> _Nvrtc:
    libraries = [path for folder in folders for name in _NVRTC_LIBRARY_GLOBS for path in Path(folder).glob(name)]
    if not libraries:
        hint = "pip install nvidia-cuda-nvrtc-cu12; no GPU and no CUDA toolkit are needed"
        raise AotcError("no-nvrtc", "NVRTC, NVIDIA's run-time compiler for GPU code, is not installed", hint=hint)
    path = max(libraries, key=lambda p: p.name)
    done = _run_nvrtc_worker(path)
    if done.code != 0:
        raise AotcError("no-nvrtc", f"{path} cannot be loaded", notes=done.error_or_output_lines()[-1:])
    major, minor, *archs = map(int, done.output.split())
    return _Nvrtc(path, (major, minor), tuple(archs))


def recompile_gpu_code_files(cuda_source: Path, *files: Path) -> None:
    """Recompile files of GPU code, such as net_sm_80.cubin and net_compute_80.ptx, from the CUDA
    source `cuda_source`.
    """
    names = {file: "_".join(file.stem.split("_")[-2:]) for file in files}
    archs = sorted({int(name.rpartition("_")[2]) for name in names.values() if name.startswith("sm_")})
    images = find_nvrtc_compiler(strict=False).images(cuda_source.read_text(encoding="utf-8"), archs)
    for file, name in names.items():
        with open_for_atomic_write(file) as target:
            target.write(images[name])


if __name__ == "__main__":
    recompile_gpu_code_files(*map(Path, sys.argv[1:]))
