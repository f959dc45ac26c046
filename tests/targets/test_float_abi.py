# SPDX-License-Identifier: Apache-2.0
"""Float ABIs of Arm microcontrollers, user flags in emitted builds, and C99 without inline assembly."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.pipeline import CompiledModel
from aotc.ir import AotcError
from aotc.tir.float_abi import with_float_abi
from aotc.tir.target import get_target
from tests.e2e.projects import DIGITS, run
from tests.targets.firmware import WARNINGS, Board, board, program_of
from tests.targets.test_bare_metal import IMAGE, QUANTIZED, host_outputs

X = IMAGE.astype(np.float32) / 16
INTEGERS = (IMAGE.astype(np.int32) * 16 - 128).clip(-128, 127).astype(np.int8)
M4 = "-mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16"


def compiled(folder: Path, path: Path = DIGITS, target: str = "cortex-m4", **options: object) -> CompiledModel:
    return aotc.compile(path, output=folder / "net", name="net", target=target, **{"build": False, **options})


def abis_of(library: Path, here: Board) -> set[str]:
    """Which float ABIs the objects of a library are for, by their attributes."""
    listed = run([here.tool_prefix + "readelf", "-A", library], library.parent).split("File: ")
    marks = {("Tag_ABI_VFP_args" in part, "Tag_FP_arch" in part) for part in listed if "net_kernels" in part[:200]}
    assert marks
    return {"hard" if by_registers else "softfp" if fpu else "soft" for by_registers, fpu in marks}


def with_abi(name: str, abi: str) -> Board:
    return replace(board(name), target=with_float_abi(get_target(name), abi))


@pytest.mark.parametrize(
    ("name", "abi"),
    [
        ("cortex-m0plus", "soft"), ("cortex-m4", "soft"), ("cortex-m4", "softfp"), ("cortex-m4", "hard"),
        ("cortex-m33", "softfp"), ("cortex-m55", "hard"), ("cortex-m55", "softfp"), ("cortex-m55", "soft"),
    ],
)  # fmt: skip
def test_firmware_of_each_float_abi(name: str, abi: str, tmp_path: Path) -> None:
    """It links with start-up code and libraries of the ABI; without an FPU, bits are those of the host."""
    here = with_abi(name, abi)
    model = compiled(tmp_path, target=name, float_abi=abi)
    assert model.metadata["float_abi"] == abi
    (found,), _ = here.outputs(model, [X], tmp_path)
    check = np.testing.assert_array_equal if abi == "soft" else np.testing.assert_allclose
    check(found, host_outputs(DIGITS, X), **({} if abi == "soft" else {"rtol": 1e-5, "atol": 1e-7}))
    assert abis_of(model.path / "build" / "libnet.a", here) == {abi}


def test_integers_without_an_fpu(tmp_path: Path) -> None:
    """A core whose vectors need the registers of its FPU has none of these instructions."""
    here = with_abi("cortex-m55", "soft")
    model = compiled(tmp_path, QUANTIZED, "cortex-m55", float_abi="soft", io_dtype="int8")
    (found,), _ = here.outputs(model, [INTEGERS], tmp_path)
    np.testing.assert_array_equal(found, host_outputs(QUANTIZED, INTEGERS, io_dtype="int8"))


def built_by_cmake(cmake: str, here: Board, project: Path, folder: Path, *options: str) -> Path:
    tools = [f"-DCMAKE_C_COMPILER={here.cc[0]}", "-DCMAKE_SYSTEM_NAME=Generic"]
    tools.append("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY")
    run([cmake, "-S", project, "-B", folder, *tools, *options], project)
    run([cmake, "--build", folder], project)
    return folder / "libnet.a"


def test_what_the_toolchain_of_the_application_says_counts(tmp_path: Path, cmake: str) -> None:
    """In flags of CMake and make and in a toolchain file; firmware of it runs."""
    here, model = with_abi("cortex-m4", "softfp"), compiled(tmp_path)
    file = tmp_path / "toolchain.cmake"
    file.write_text(f'set(CMAKE_C_FLAGS_INIT "{M4} -mfloat-abi=softfp")\n')
    options = {"flags": f"-DCMAKE_C_FLAGS={M4} -mfloat-abi=softfp", "file": f"-DCMAKE_TOOLCHAIN_FILE={file}"}
    for name, option in options.items():
        library = built_by_cmake(cmake, here, model.path, model.path / name, option)
        assert abis_of(library, here) == {"softfp"}
    plain = built_by_cmake(cmake, here, model.path, model.path / "plain")
    assert abis_of(plain, here) == {"hard"}
    program = here.link(library, program_of(model, [X]), tmp_path)
    assert here.start(program)
    for words in ([f"CC={here.cc[0]} -mfloat-abi=softfp"], [f"CC={here.cc[0]}", "CFLAGS=-mfloat-abi=softfp"]):
        run(["make", "-s", "clean", "all", f"AR={here.tool_prefix}ar", *words], model.path)
        assert abis_of(model.path / "build" / "libnet.a", here) == {"softfp"}


def test_flags_of_an_application_around_the_project(tmp_path: Path, cmake: str) -> None:
    """Those that CMake hands on to subdirectories count as well."""
    here = with_abi("cortex-m4", "softfp")
    compiled(tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app LANGUAGES C)\n"
        "add_compile_options(-mthumb -mfloat-abi=softfp)\nadd_subdirectory(net)\n"
    )
    library = built_by_cmake(cmake, here, tmp_path, tmp_path / "out").parent / "net" / "libnet.a"
    assert abis_of(library, here) == {"softfp"}


def test_flags_without_the_fpu_that_code_needs(tmp_path: Path, cmake: str) -> None:
    """One error in words; integers, which need none, compile."""
    here, flags = board("cortex-m4"), f"-DCMAKE_C_FLAGS={M4} -mfloat-abi=soft"
    model = compiled(tmp_path)
    with pytest.raises(AssertionError, match=r"this code needs an FPU.*generate it with --float-abi soft"):
        built_by_cmake(cmake, here, model.path, tmp_path / "float", flags)
    with pytest.raises(AssertionError, match="generate it with --float-abi soft"):
        here.make(model.path, "-mfloat-abi=soft")
    other = compiled(tmp_path / "int8", QUANTIZED, io_dtype="int8")
    assert abis_of(built_by_cmake(cmake, here, other.path, tmp_path / "integers", flags), here) == {"soft"}


def test_flags_of_the_compiler_choose_the_float_abi(tmp_path: Path) -> None:
    board("cortex-m4")
    for options in ({"cflags": ["-mfloat-abi=soft"]}, {"cc": "arm-none-eabi-gcc -mfloat-abi=soft"}):
        model = compiled(tmp_path, build=True, **options)
        assert model.metadata["float_abi"] == "soft" and model.metadata["links"]["m"] == []
        assert abis_of(model.built, board("cortex-m4")) == {"soft"}


@pytest.mark.parametrize(
    ("target", "options", "text"),
    [
        ("cortex-m0plus", {"float_abi": "hard"}, "the float ABI of target cortex-m0plus is soft"),
        ("cortex-m4", {"float_abi": "firm"}, "unknown float ABI 'firm'"),
        ("c", {"float_abi": "hard"}, "target c has no choice of float ABIs"),
        ("riscv32", {"float_abi": "soft"}, "target riscv32 has no choice of float ABIs"),
        ("cortex-m4", {"float_abi": "hard", "cflags": ["-mfloat-abi=soft"]}, "hard is asked for, and the flags"),
    ],
)
def test_float_abis_that_cannot_be(target: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(AotcError, match=text) as caught:
        aotc.compile(DIGITS, target=target, build=False, **options)
    assert caught.value.code == "float-abi"


@pytest.mark.parametrize("target", ["c", "x86-64-v3", "cortex-m4"])
def test_flags_of_the_user_reach_all_builds(target: str, tmp_path: Path, cmake: str) -> None:
    """Behind those of the project, with everything that shells, make and CMake would read otherwise."""
    flags = ["-g3", '-DMARK="a b;$c#d"', "-Os"]
    here = board("cortex-m4") if target == "cortex-m4" else None
    cc = here.cc[0] if here is not None else "gcc"
    model = compiled(tmp_path, target=target, cflags=flags, build=True, cc=cc)
    run(["make", "-s", "-j2", f"CC={cc}"], model.path)
    if here is not None:
        built_by_cmake(cmake, here, model.path, tmp_path / "out")
    else:
        run([cmake, "-S", model.path, "-B", tmp_path / "out", f"-DCMAKE_C_COMPILER={cc}"], tmp_path)
        run([cmake, "--build", tmp_path / "out", "-j2"], tmp_path)
    libraries = [*model.path.glob("build/libnet.*"), tmp_path / "out" / "libnet.a"]
    assert len(libraries) == 2
    for library in (model.built, *libraries):
        assert b'MARK "a b;$c#d"' in library.read_bytes(), library
    level = b" -O1" if target == "x86-64-v3" else b" -O2"  # of the project's own flags
    for library in libraries:
        recorded = re.findall(rb"GNU C\d\d [^\0]*-fno-tree-vectorize[^\0]*", library.read_bytes())
        assert recorded and all(row.rindex(b" -Os") > row.rindex(level) for row in recorded)


def test_portable_code_has_no_assembly_and_equal_bits(tmp_path: Path) -> None:
    """The kernels of a core with instructions of its own, as C99 that this machine compiles, too."""
    here, printed = board("cortex-m4"), []
    for portable in (False, True):
        folder = tmp_path / str(portable)
        model = compiled(folder, QUANTIZED, io_dtype="int8", portable=portable)
        files = [*model.path.rglob("*.[ch]")]
        text = "".join(file.read_text() for file in files)
        assert bool(re.search(r"\basm\b|__asm", text)) is model.metadata["inline_assembly"] is not portable
        said = (model.path / "README.md").read_text()
        assert ("inline assembly" in said) is not portable
        (found,), _ = here.outputs(model, [INTEGERS], folder)
        printed.append(found.tobytes())
    assert printed[0] == printed[1] and not [*model.path.rglob("*.S")]
    strict = ("-std=c99", "-pedantic", *WARNINGS[:3], "-Werror", "-Iinclude", "-Isrc")
    for file in model.path.glob("src/*.c"):
        run(["gcc", *strict, "-c", file, "-o", "/dev/null"], model.path)


@pytest.mark.parametrize("options", [{"target": "c"}, {"target": "c", "environment": "bare"}, {"target": "riscv32"}])
def test_targets_that_are_c99(options: dict[str, str], tmp_path: Path) -> None:
    """Integers that are saturated have an instruction on some cores; here nothing but C99 says so."""
    model = aotc.compile(QUANTIZED, output=tmp_path / "net", build=False, io_dtype="int8", portable=True, **options)
    plain = aotc.compile(QUANTIZED, build=False, io_dtype="int8", **options)
    assert model.metadata["inline_assembly"] is plain.metadata["inline_assembly"] is False
    assert not [*model.path.rglob("*.S")]
    for file in model.path.glob("src/*.c"):
        run(["gcc", "-std=c99", "-pedantic", "-Werror", "-Iinclude", "-Isrc", "-fsyntax-only", file], model.path)


@pytest.mark.parametrize("target", ["x86-64-v3", "cuda"])
def test_vectors_are_not_portable(target: str) -> None:
    with pytest.raises(AotcError, match=f"code for target {target} is not portable"):
        aotc.compile(DIGITS, target=target, portable=True, build=False)
