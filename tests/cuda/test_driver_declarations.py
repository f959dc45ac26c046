# SPDX-License-Identifier: Apache-2.0
"""Declarations of CUDA's driver in the C runtime and in the fake driver agree with cuda.h of NVIDIA's packages."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import aotc_runtime_c
import pytest

from tests.conftest import skip_or_fail_without

RUNTIME = aotc_runtime_c.source_dir() / "aotc_cuda_driver.h"
FAKE = aotc_runtime_c.emulator_dir() / "fake_cuda.h"
STRUCT = "CUDA_KERNEL_NODE_PARAMS_v2"
STRICT = ("-Wall", "-Wextra", "-Werror", "-fsyntax-only")
#: The names of constants here and in cuda.h, of both headers.
CONSTANTS = {
    "CAPABILITY_MAJOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "CAPABILITY_MINOR": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
    "DYNAMIC_SHARED_BYTES": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "MEMORY_TYPE": "CU_POINTER_ATTRIBUTE_MEMORY_TYPE",
    "MEMORY_TYPE_HOST": "CU_MEMORYTYPE_HOST",
    "MEMORY_TYPE_DEVICE": "CU_MEMORYTYPE_DEVICE",
    "DEVICE_ORDINAL": "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL",
    "BUFFER_ID": "CU_POINTER_ATTRIBUTE_BUFFER_ID",
}


@pytest.fixture(scope="module")
def theirs() -> str:
    """The folder of cuda.h."""
    found = importlib.util.find_spec("nvidia.cuda_runtime") if importlib.util.find_spec("nvidia") else None
    if found is None:
        skip_or_fail_without("nvidia-cuda-runtime-cu12")
    assert found is not None
    return str(Path(found.submodule_search_locations[0]) / "include")  # type: ignore[index]


def checks(header: Path) -> str:
    """Assertions in C++ that constants and the one structure of a header are as in cuda.h."""
    text = header.read_text(encoding="utf-8")
    names = set(re.findall(r"\b([A-Z][A-Z_]+)(?: = |, )\d+", text))
    known = {name: CONSTANTS.get(name, f"CUDA_{name}") for name in names}
    lines = [f'static_assert(int({ours}) == int({their}), "{ours}");' for ours, their in known.items()]
    struct = re.search(rf"typedef struct {STRUCT}_st (\{{.*?\}}) {STRUCT};", text, re.DOTALL)
    assert len(lines) > 5 and struct is not None
    fields = re.findall(r"(\w+)[,;]", struct[1])
    lines.append(f"struct Ours {struct[1]};\nstatic_assert(sizeof(Ours) == sizeof({STRUCT}));")
    lines += [f'static_assert(offsetof(Ours, {f}) == offsetof({STRUCT}, {f}), "{f}");' for f in fields]
    return "\n".join(lines)


def compiles(theirs: str, source: str, folder: Path) -> None:
    path = folder / "check.cpp"
    path.write_text(f"#include <stddef.h>\n#include <cuda.h>\n{source}", encoding="utf-8")
    places = (theirs, aotc_runtime_c.include_dir(), RUNTIME.parent, FAKE.parent)
    include = [word for place in places for word in ("-I", str(place))]
    done = subprocess.run(["g++", "-std=c++17", *STRICT, *include, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_the_runtime_calls_what_there_is(theirs: str, tmp_path: Path) -> None:
    assign = "#define ASSIGN(name, parameters) d->name = ::name;\n"
    check = f"{assign}void check(aotc_cuda_driver *d) {{ DRIVER_FUNCTIONS(ASSIGN) }}\n"
    compiles(theirs, f'#include "{RUNTIME.name}"\n{check}{checks(RUNTIME)}', tmp_path)


def test_the_fake_driver_defines_what_there_is(theirs: str, tmp_path: Path) -> None:
    names = re.findall(r"R\((\w+), \d+\)", FAKE.read_text(encoding="utf-8"))
    same = "".join(f'static_assert(int({name}) == int(CUDA_{name}), "{name}");\n' for name in names)
    assert names
    compiles(theirs, f'#include "fake_driver.cpp"\n#include "fake_graphs.cpp"\n{same}', tmp_path)


def test_the_fake_driver_has_all_that_the_runtime_calls() -> None:
    called = set(re.findall(r"F\((cu\w+),", RUNTIME.read_text(encoding="utf-8")))
    texts = (path.read_text(encoding="utf-8") for path in FAKE.parent.glob("fake_*.cpp"))
    defined = {name for text in texts for name in re.findall(r"^(?:CUresult )?(cu[A-Z]\w+)\(", text, re.MULTILINE)}
    assert called and called <= defined
