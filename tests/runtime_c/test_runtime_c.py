# SPDX-License-Identifier: Apache-2.0
"""The C runtime, compiled as C and C++ by gcc and clang, runs under sanitizers."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aotc_runtime_c import (
    bare_metal_runtime_files,
    cuda_runtime_files,
    hosted_runtime_files,
    include_dir,
    model_loader_files,
    source_dir,
    string_runtime_files,
)

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DTYPES as ALL_DTYPES
from aotc.runtime.abi import ABI_VERSION, DTYPE_BY_CODE, ENTRY_SYMBOL, STATUS_MESSAGES, ffi
from aotc.runtime.library_integrity import require_complete_library_file
from tests.shared_library_images import IMAGES, damaged

HERE = Path(__file__).parent
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
POOL = ("aotc_team", "aotc_pool")
C_FILES = sorted(source_dir().glob("*.c"))
HEADERS = sorted([*include_dir().glob("*.h"), *source_dir().glob("*.h")])


def command(*arguments: str | Path) -> str:
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


def compile_c(output: Path, *files: Path, flags: tuple[str, ...] = (), compiler: str = "gcc") -> Path:
    command(compiler, "-std=c99", *WARNINGS, f"-I{include_dir()}", *flags, *files, "-o", output, "-ldl")
    return output


def library(output: Path, *flags: str) -> Path:
    return compile_c(output, HERE / "tiny_model.c", flags=("-shared", "-fPIC", *flags))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the header and the shared functions say."""
    program = tmp_path_factory.mktemp("tables") / "tables"
    compile_c(program, HERE / "tables.c", source_dir() / "aotc_rt.c", flags=SANITIZE)
    found: dict[str, Any] = json.loads(command(program))
    return found


def test_package_lists_its_files() -> None:
    assert {
        *hosted_runtime_files(pool=True),
        *bare_metal_runtime_files(),
        *model_loader_files(),
        *cuda_runtime_files(),
        *string_runtime_files(),
    } == {*C_FILES, *HEADERS}
    assert {*hosted_runtime_files(pool=True)} - {*hosted_runtime_files()} == {
        p for p in (*C_FILES, *HEADERS) if p.stem in POOL
    }
    assert set(cuda_runtime_files()) == {p for p in (*C_FILES, *HEADERS) if p.stem.startswith("aotc_cuda")}


@pytest.mark.parametrize("language", ["c99", "c11", "c++11", "c++17"])
@pytest.mark.parametrize("path", [*C_FILES, *HEADERS], ids=lambda p: p.name)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_clean_under_all_warnings(
    compiler: str, path: Path, language: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if compiler == "clang":
        request.getfixturevalue("clang")
    unit = path
    if path.suffix == ".h":  # a header must compile on its own, and twice
        unit = tmp_path / "unit.c"
        unit.write_text(f'#include "{path.name}"\n#include "{path.name}"\nextern int unit;\nint unit = 0;\n')
    kind = "c++" if "++" in language else "c"
    flags = ("-x", kind, f"-std={language}", *WARNINGS, f"-I{include_dir()}", f"-I{path.parent}")
    command(compiler, *flags, "-c", unit, "-o", tmp_path / "unit.o")


def test_no_allocation_and_no_state(tmp_path: Path) -> None:
    for path in C_FILES:
        compile_c(tmp_path / "unit.o", path, flags=("-c", "-fno-pic", "-DAOTC_NO_THREADS"))
        rows = [line.split() for line in command("nm", tmp_path / "unit.o").splitlines()]
        assert not [r for r in rows if r[-2] in "bBdDcC"], "mutable data"
        undefined = {r[-1] for r in rows if r[-2] == "U"}
        opening = {"calloc", "free", "snprintf", "vsnprintf"} if path in cuda_runtime_files() else set()
        ours = {name for name in undefined if name.startswith("aotc_")}
        assert undefined - ours - opening <= {
            "memcmp",
            "memcpy",
            "memset",
            "strlen",
            "strcmp",
            "strpbrk",
            "open64",
            "fstat64",
            "pread64",
            "close",
            "getenv",
            "dlopen",
            "dlsym",
            "dlclose",
            "dlerror",
        }


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_loader(compiler: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if compiler == "clang":
        request.getfixturevalue("clang")
    empty = tmp_path / "empty.c"
    empty.write_text("extern int nothing;\nint nothing = 0;\n")
    text = tmp_path / "text.so"
    text.write_text("this is no library")
    host = tmp_path / "host"
    files = (HERE / "loader_host.c", *C_FILES)
    compile_c(host, *files, flags=SANITIZE, compiler=compiler)
    command(
        host,
        library(tmp_path / "tiny.so"),
        library(tmp_path / "other.so", "-DTINY_ABI=77"),
        library(tmp_path / "null.so", "-DTINY_NULL"),
        compile_c(tmp_path / "plain.so", empty, flags=("-shared", "-fPIC")),
        text,
        tmp_path / "missing.so",
    )


def test_loader_refuses_the_files_that_python_does(tmp_path: Path) -> None:
    """Whole ones, cut ones, and ones with other numbers in their headers; none is read where it is not."""
    host = compile_c(tmp_path / "host", HERE / "loader_host.c", *C_FILES, flags=SANITIZE)
    rng, files, refused = random.Random(0), [], ""
    for name, image in IMAGES.items():
        for k, data in enumerate([image, image[: rng.randrange(4, len(image))], *damaged(image, 40)]):
            files.append(tmp_path / f"{name}-{k}")
            files[-1].write_bytes(data)
            try:
                require_complete_library_file(files[-1])
                refused += "0"
            except AotcError:
                refused += "1"
    found = command(host, "cut", *files).strip()
    assert [f.name for f, a, b in zip(files, found, refused, strict=True) if a != b] == []
    assert found.count("1") > 100 and found.count("0") > 50


def test_loader_opens_no_library_that_was_cut_short(tmp_path: Path) -> None:
    host = compile_c(tmp_path / "host", HERE / "loader_host.c", *C_FILES)
    data, rng, files = library(tmp_path / "tiny.so").read_bytes(), random.Random(1), []
    for length in (64, 4096, len(data) - 1, *(rng.randrange(4, len(data)) for _ in range(40))):
        files.append(tmp_path / f"cut{length}.so")
        files[-1].write_bytes(data[:length])
    assert command(host, "cut", tmp_path / "tiny.so", *files).strip() == "0" + "1" * len(files)


def test_python_declares_the_same_structures(tables: dict[str, Any]) -> None:
    layout = {name: tuple(value) for name, value in tables["layout"].items() if name != "end"}
    declared = {
        f"{struct}.{name}": (field.offset, ffi.sizeof(field.type))
        for struct in tables["sizes"]
        for name, field in ffi.typeof(struct).fields
    }
    assert declared == layout
    assert {struct: ffi.sizeof(struct) for struct in tables["sizes"]} == tables["sizes"]


def test_python_knows_the_same_constants(tables: dict[str, Any]) -> None:
    assert (tables["abi"], tables["entry"]) == (ABI_VERSION, ENTRY_SYMBOL)
    names = [
        line.split("=")[0].strip().removeprefix("AOTC_").lower()
        for line in (include_dir() / "aotc.h").read_text().split("enum aotc_dtype {")[1].split("}")[0].split(",")
    ]
    assert names == list(DTYPE_BY_CODE)
    assert set(DTYPE_BY_CODE) == set(ALL_DTYPES)


def test_element_sizes(tables: dict[str, Any]) -> None:
    assert tables["bytes"][0] == 0
    assert tables["bytes"][1 : 1 + len(DTYPE_BY_CODE)] == [dtype.itemsize for dtype in DTYPE_BY_CODE]
    assert not any(tables["bytes"][1 + len(DTYPE_BY_CODE) :])


def test_status_messages(tables: dict[str, Any]) -> None:
    messages = tables["messages"][1:]
    assert dict(enumerate(messages[:25])) == STATUS_MESSAGES
    assert len(set(messages[:25])) == 25
    assert messages[25] == tables["messages"][0] == "unknown status"
    assert tables["numbered"] == [messages[22], messages[23], "unknown status"]


def test_models_for_gpus_need_a_driver(tmp_path: Path) -> None:
    """Programs link and start without one, and say what is missing."""
    host = compile_c(tmp_path / "host", HERE / "cuda_host.c", *C_FILES, flags=SANITIZE)
    named = {"driver": tmp_path / "none.so", "function": library(tmp_path / "tiny.so")}
    said = [run_with_driver(host, path) for path in named.values()]
    assert said[0] == f"10 the driver of the GPU cannot be loaded: there is no {named['driver']}\n"
    assert said[1] == "11 the driver of the GPU is older than the model needs: it has no cuInit\n"


def run_with_driver(host: Path, driver: Path) -> str:
    environment = {**os.environ, "AOTC_CUDA_DRIVER": str(driver)}
    done = subprocess.run([host], capture_output=True, text=True, check=True, env=environment)
    return done.stdout
