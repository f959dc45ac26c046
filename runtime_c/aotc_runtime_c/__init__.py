# SPDX-License-Identifier: Apache-2.0
"""The C runtime as files: what every emitted project contains, and the loader for host programs.

In: nothing.  Out: paths of the C sources installed with this package.

include_dir()                  # .../aotc_runtime_c/include, for -I
source_dir()                   # .../aotc_runtime_c/src
sources()                      # (.../include/aotc.h, .../src/aotc_rt.c)
sources(pool=True)             # these, and aotc_team.h, aotc_pool.h, aotc_pool.c
cuda_sources()                 # (.../include/aotc_cuda.h, .../src/aotc_cuda.c, ...)
loader_sources()               # (.../include/aotc_loader.h, .../src/aotc_loader.c)
emulator_dir()                 # .../aotc_runtime_c/emulator: C++ that takes the place of a GPU and its driver
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parent


def include_dir() -> Path:
    """The folder of the headers, for the C compiler's -I."""
    return _ROOT / "include"


def source_dir() -> Path:
    """The folder of the C sources."""
    return _ROOT / "src"


def sources(*, pool: bool = False) -> tuple[Path, ...]:
    """The header and the source that go into every emitted project; with `pool`, those for threads too."""
    found = include_dir() / "aotc.h", source_dir() / "aotc_rt.c"
    more = include_dir() / "aotc_team.h", include_dir() / "aotc_pool.h", source_dir() / "aotc_pool.c"
    return (*found, *more) if pool else found


def bare_sources() -> tuple[Path, ...]:
    """What projects for machines without an operating system contain instead of `sources`."""
    return (include_dir() / "aotc_bare.h",)


def cuda_sources() -> tuple[Path, ...]:
    """The headers and sources that projects for GPUs contain as well."""
    src = source_dir()
    files = src / "aotc_cuda_driver.h", src / "aotc_cuda.c", src / "aotc_cuda_session.c"
    return include_dir() / "aotc_cuda.h", *files


def loader_sources() -> tuple[Path, ...]:
    """The header and the source of the loader, for programs that open compiled libraries at run time."""
    return include_dir() / "aotc_loader.h", source_dir() / "aotc_loader.c"


def emulator_dir() -> Path:
    """The folder of the C++ sources that run CUDA kernels on the CPU."""
    return _ROOT / "emulator"
