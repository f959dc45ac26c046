# SPDX-License-Identifier: Apache-2.0
"""Locate the C runtime's source files: the files copied into every emitted project, and the model
loader.

No input. Output: paths of the C sources installed with this package.

include_dir()                  # .../aotc_runtime_c/include, for -I
source_dir()                   # .../aotc_runtime_c/src
hosted_runtime_files()         # (.../include/aotc.h, .../src/aotc_rt.c)
hosted_runtime_files(pool=True)  # also aotc_team.h, aotc_pool.h, aotc_pool.c
freestanding_files()           # (.../freestanding/aotc_freestanding.c, .../math.h, .../string.h)
string_runtime_files()         # (.../include/aotc_strings.h,)
cuda_runtime_files()           # (.../include/aotc_cuda.h, .../src/aotc_cuda.c, ...)
model_loader_files()           # (.../include/aotc_loader.h, .../src/aotc_loader.c)
emulator_dir()                 # .../aotc_runtime_c/emulator: C++ that emulates a GPU and its driver
"""

from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parent


def include_dir() -> Path:
    """Return the directory of the headers, for the C compiler's -I."""
    return _PACKAGE_FOLDER / "include"


def source_dir() -> Path:
    """Return the directory of the C sources."""
    return _PACKAGE_FOLDER / "src"


def hosted_runtime_files(*, pool: bool = False) -> tuple[Path, ...]:
    """Return the header and source that every emitted project contains; with `pool`, also the
    thread pool's files.
    """
    base_files = include_dir() / "aotc.h", source_dir() / "aotc_rt.c"
    pool_files = include_dir() / "aotc_team.h", include_dir() / "aotc_pool.h", source_dir() / "aotc_pool.c"
    return (*base_files, *pool_files) if pool else base_files


def bare_metal_runtime_files() -> tuple[Path, ...]:
    """Return the headers that bare-metal projects contain instead of `hosted_runtime_files`."""
    return (include_dir() / "aotc_bare.h",)


def freestanding_files() -> tuple[Path, ...]:
    """Return the headers and the source that stand for <math.h>, <string.h> and their library in bare-metal
    projects, where a program has no C library.
    """
    folder = _PACKAGE_FOLDER / "freestanding"
    return folder / "aotc_freestanding.c", folder / "math.h", folder / "string.h"


def string_runtime_files() -> tuple[Path, ...]:
    """Return the header that projects of models with strings contain in addition."""
    return (include_dir() / "aotc_strings.h",)


def cuda_runtime_files() -> tuple[Path, ...]:
    """Return the headers and sources that GPU projects contain in addition to
    `hosted_runtime_files`.
    """
    src = source_dir()
    files = src / "aotc_cuda_driver.h", src / "aotc_cuda.c", src / "aotc_cuda_session.c"
    return include_dir() / "aotc_cuda.h", *files


def model_loader_files() -> tuple[Path, ...]:
    """Return the header and the source of the loader, for programs that open compiled libraries at
    run time.
    """
    return include_dir() / "aotc_loader.h", source_dir() / "aotc_loader.c"


def emulator_dir() -> Path:
    """Return the directory of the C++ sources that emulate CUDA kernels on the CPU."""
    return _PACKAGE_FOLDER / "emulator"
