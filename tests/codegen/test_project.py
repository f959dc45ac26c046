# SPDX-License-Identifier: Apache-2.0
"""Emitted projects: their files, and builds with make, cmake, gcc and clang, as C and as C++."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.c_identifiers import c_model_identifier
from aotc_codegen.c.cpu_feature_check import cpu_feature_check_code
from aotc_codegen.c.host_project import emit_host_project
from aotc_codegen.c.kernel_files import KernelFileSizes, print_kernels

from aotc.driver.toolchain import resolve_target
from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DTYPES
from aotc.runtime.session import load
from aotc.tir.expr import maximum, minimum
from aotc.tir.target import TARGETS, C
from tests.codegen.cases import values
from tests.codegen.programs import affine, copies, elementwise, expected

HOSTILE = ('a*/b"c\n#error\\', "??/ input_1:0 ü 模")
LANGUAGES = (
    ("gcc", "-std=c99"),
    ("clang", "-std=c99"),
    ("g++", "-x", "c++", "-std=c++17"),
    ("clang++", "-x", "c++", "-std=c++17"),
)
SMALL_FILES = KernelFileSizes(own=10, shared=10)
BIG = 20_000
"""Elements, so that the parameters are above the limit for C arrays."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"[:4000]
    return done.stdout


def check_library(library: Path, size: int = 12, name: str = "net", input_name: str = "x") -> None:
    program = affine(name, size)
    x = np.random.default_rng(1).normal(size=program.inputs[0].shape).astype(np.float32)
    (y,) = load(library).run(None, {input_name: x})
    np.testing.assert_allclose(y, expected(program, x), rtol=1e-6)


@pytest.mark.parametrize("size", [12, BIG])
@pytest.mark.parametrize("options", [(), ("PORTABLE_PARAMS=1",), ("CC=clang", "CFLAGS=-O1")], ids=" ".join)
def test_make_builds_everything(
    size: int, options: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "CC=clang" in options:
        request.getfixturevalue("clang")
    emit_host_project(affine("net", size), tmp_path, target=C)
    run(["make", "-s", "-j2", *options], tmp_path)
    check_library(tmp_path / "build" / "libnet.so", size)
    np.zeros(size, np.float32).tofile(tmp_path / "x.bin")
    text = run(["build/net_example", "-n", "2", "x.bin", "y.bin"], tmp_path)
    assert "y:" in text and "2 runs" in text
    zero = expected(affine("net", size), np.zeros((size // 4, 4), np.float32))
    np.testing.assert_allclose(np.fromfile(tmp_path / "y.bin", np.float32), zero.ravel(), rtol=1e-6)


@pytest.mark.parametrize("name", ["c", "host"])
def test_the_readme_does_what_it_says(name: str, tmp_path: Path) -> None:
    target = resolve_target(name)
    emit_host_project(affine("net", BIG), tmp_path, target=target)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert f"needs {'a C99 compiler' if target.is_scalar else 'gcc or clang'} and libm" in text
    (source,) = re.findall(r"^```c\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "app.c").write_text(source, encoding="utf-8")
    for commands in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        run(["sh", "-e", "-c", commands], tmp_path)
    assert run(["./app"], tmp_path) == "success\n"


def test_make_from_elsewhere(tmp_path: Path) -> None:
    emit_host_project(affine("net", BIG), tmp_path, target=C)
    run(["make", "-s", "-C", str(tmp_path), f"BUILD={tmp_path / 'elsewhere'}"], Path("/"))
    check_library(tmp_path / "elsewhere" / "libnet.so", BIG)


def test_objects_of_parameters_are_for_the_architecture_of_the_flags(tmp_path: Path, clang: str, cmake: str) -> None:
    """Flags alone name it where one compiler serves many."""
    emit_host_project(affine("net", BIG), tmp_path, target=C)
    flags = "--target=riscv64-linux-gnu -std=c11 -Werror"
    run(["make", "-s", f"CC={clang}", f"CFLAGS={flags}", "build/src/net_params.o"], tmp_path)
    options = [
        f"-DCMAKE_C_COMPILER={clang}",
        f"-DCMAKE_C_FLAGS={flags}",
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
    ]
    run([cmake, "-S", ".", "-B", "out", *options], tmp_path)
    run(["make", "-s", "-C", "out", "src/net_params.o"], tmp_path)
    objects = [tmp_path / "build/src/net_params.o", *tmp_path.glob("out/**/net_params.S.o")]
    machines = [file.read_bytes()[18:20] for file in objects]  # of the heads of ELF files
    assert machines == [(243).to_bytes(2, "little")] * 2


@pytest.mark.parametrize("portable", [False, True])
def test_cmake_links_two_models_into_one_program(portable: bool, tmp_path: Path, cmake: str) -> None:
    """One with parameters in C, one with a binary file; in C++, through the targets."""
    for name, size in (("one", 12), ("two", BIG)):
        (tmp_path / name).mkdir()
        emit_host_project(affine(name, size, seed=size), tmp_path / name, target=C)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app LANGUAGES C CXX)\nadd_subdirectory(one)\n"
        "add_subdirectory(two)\nadd_executable(app main.cpp)\n"
        "target_link_libraries(app PRIVATE one::one two::two)\n"
    )
    (tmp_path / "main.cpp").write_text("""
#include <cstdio>
#include "one.h"
#include "two.h"
alignas(64) static unsigned char workspace[TWO_WORKSPACE_BYTES + ONE_WORKSPACE_BYTES];
static float x[TWO_INPUT_X_ELEMENTS], y[TWO_OUTPUT_Y_ELEMENTS];
int main() {
  const one_inputs in1 = {x};
  const one_outputs out1 = {y};
  if (one_run(&in1, &out1, workspace, nullptr) != AOTC_OK) return 1;
  std::printf("%.9g\\n", static_cast<double>(y[11]));
  const two_inputs in2 = {x};
  const two_outputs out2 = {y};
  if (two_run(&in2, &out2, workspace, nullptr) != AOTC_OK) return 1;
  std::printf("%.9g\\n", static_cast<double>(y[TWO_OUTPUT_Y_ELEMENTS - 1]));
  return 0;
}
""")
    option = f"-DTWO_PORTABLE_PARAMS={'ON' if portable else 'OFF'}"
    run([cmake, "-S", ".", "-B", "out", option], tmp_path)
    run([cmake, "--build", "out", "-j2"], tmp_path)
    assert bool(list(tmp_path.glob("out/**/two_params_array.c"))) == portable
    first, second = map(float, run(["out/app"], tmp_path).split())
    for name, size, got in (("one", 12, first), ("two", BIG, second)):
        want = expected(affine(name, size, seed=size), np.zeros((size // 4, 4), np.float32)).ravel()[-1]
        assert got == pytest.approx(float(want), rel=1e-6)


@pytest.mark.parametrize("given", [False, True])
def test_cmake_makes_arrays_of_parameters_with_a_compiler_for_this_machine(
    given: bool, tmp_path: Path, cmake: str
) -> None:
    """The compiler of the project is for another machine: here it refuses the tool."""
    emit_host_project(affine("net", BIG), tmp_path, target=C)
    cross, host = tmp_path / "cross-cc", tmp_path / "host-cc"
    cross.write_text('#!/bin/sh\ncase "$*" in *params_to_c.c*) exit 1;; esac\nexec cc "$@"\n')
    host.write_text(f'#!/bin/sh\ntouch {tmp_path}/asked\nexec cc "$@"\n')
    cross.chmod(0o755)
    host.chmod(0o755)
    options = ["-DNET_PORTABLE_PARAMS=ON", f"-DCMAKE_C_COMPILER={cross}"]
    options += ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=other"]
    options += [f"-DAOTC_HOST_CC={host}"] if given else []
    run([cmake, "-S", ".", "-B", "out", *options], tmp_path)
    run([cmake, "--build", "out", "-j2", "--target", "net_example"], tmp_path)
    assert (tmp_path / "asked").exists() == given
    np.zeros(BIG, np.float32).tofile(tmp_path / "x.bin")
    run(["out/net_example", "x.bin", "y.bin"], tmp_path)
    zero = expected(affine("net", BIG), np.zeros((BIG // 4, 4), np.float32))
    np.testing.assert_allclose(np.fromfile(tmp_path / "y.bin", np.float32), zero.ravel(), rtol=1e-6)


def test_an_installed_model_is_found(tmp_path: Path, cmake: str) -> None:
    (tmp_path / "net").mkdir()
    emit_host_project(affine("net", BIG), tmp_path / "net", target=C)
    run([cmake, "-S", "net", "-B", "out", "-DCMAKE_INSTALL_PREFIX=" + str(tmp_path / "usr")], tmp_path)
    run([cmake, "--build", "out", "-j2", "--target", "install"], tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app LANGUAGES C)\nfind_package(net REQUIRED)\n"
        "add_executable(app net/examples/main.c)\ntarget_link_libraries(app PRIVATE net::net)\n"
    )
    run([cmake, "-S", ".", "-B", "app_out", f"-DCMAKE_PREFIX_PATH={tmp_path / 'usr'}"], tmp_path)
    run([cmake, "--build", "app_out"], tmp_path)
    assert "y:" in run(["app_out/app"], tmp_path)


@pytest.mark.parametrize("count", [60, 3000], ids=["arrays", "binary"])
def test_every_data_type_goes_in_and_out(count: int, tmp_path: Path) -> None:
    arrays = {str(d): values(d, 5, count).reshape(-1, 2, 3) for d in DTYPES}
    if count < 100:
        arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32)}
    metadata = emit_host_project(copies("net", arrays), tmp_path, target=C)
    assert (tmp_path / "src" / "net_params.bin").exists() == (count > 100) == (metadata["weights_bytes"] >= 64 << 10)
    run(["make", "-s", "-j2"], tmp_path)
    session = load(tmp_path / "build" / "libnet.so")
    results = session.run(None, {k: a[..., ::-1] if a.ndim else a for k, a in arrays.items()})
    for output, result in zip(session.get_outputs(), results, strict=True):
        key, _, role = output.name.rpartition("_")
        want = arrays[key][..., ::-1] if role == "in" and arrays[key].ndim else arrays[key]
        assert result.dtype == want.dtype and result.shape == want.shape
        assert result.tobytes() == np.ascontiguousarray(want).tobytes(), output.name


def test_a_model_without_inputs(tmp_path: Path) -> None:
    program = copies("net", {"a": np.arange(6, dtype=np.int64)})
    program = replace(program, inputs=(), outputs=program.outputs[1:], body=program.steps[1:])
    emit_host_project(program, tmp_path, target=C)
    run(["make", "-s", "-j2"], tmp_path)
    flags = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only", "-Iinclude", "-Isrc"]
    run(["gcc", "-std=c99", *flags, *tmp_path.glob("*/*.c")], tmp_path)
    (result,) = load(tmp_path / "build" / "libnet.so").run(None, {})
    assert result.tolist() == [0, 1, 2, 3, 4, 5]


def test_only_the_models_own_names_are_visible(tmp_path: Path) -> None:
    emit_host_project(affine("net", BIG), tmp_path, target=C)
    run(["make", "-s", "-j2", "all", "static"], tmp_path)
    rows = [line.split() for line in run(["nm", "-D", "build/libnet.so"], tmp_path).splitlines()]
    defined = {r[-1] for r in rows if len(r) == 3}
    assert {n for n in defined if not n.startswith("_")} == {"net_run", "net_info", "aotc_model_entry"}
    missing = {r[-1].split("@")[0] for r in rows if r[-2] == "U"}
    assert missing <= {"memset", "memcpy", "strcmp", "strlen"}
    rows = [line.split() for line in run(["nm", "-g", "build/libnet.a"], tmp_path).splitlines()]
    assert all(r[-1].startswith("net_") for r in rows if len(r) == 3), "a name of ours without the model's prefix"
    assert not [r for r in rows if len(r) == 3 and r[-2] in "BbDdC"], "mutable data"


@pytest.mark.parametrize("target", ["c", "x86-64-v3"])
@pytest.mark.parametrize("language", LANGUAGES, ids=" ".join)
def test_sources_compile_without_warnings(
    language: tuple[str, ...], target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if language[0].startswith("clang"):
        request.getfixturevalue("clang")
    emit_host_project(affine("net", names=HOSTILE, node=HOSTILE[0]), tmp_path, target=TARGETS[target])
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"] + (["-pedantic"] if target == "c" else [])
    for source in [*tmp_path.glob("*/*.c")]:
        flags = [*TARGETS[target].cflags, "-O1", "-fsyntax-only", "-Iinclude", "-Isrc"]
        run([*language, *strict, *flags, source], tmp_path)


def test_hostile_names_are_kept_in_the_metadata_only(tmp_path: Path) -> None:
    metadata = emit_host_project(affine("net", names=HOSTILE, node=HOSTILE[1]), tmp_path, target=C)
    assert [t["name"] for t in (*metadata["inputs"], *metadata["outputs"])] == list(HOSTILE)
    run(["make", "-s", "-j2"], tmp_path)
    check_library(tmp_path / "build" / "libnet.so", input_name=HOSTILE[0])


@pytest.mark.parametrize("stem", ["math", "string", "test", "m", "aotc", "aotc_rt", "all", "time", "class", "1x", "ü"])
def test_model_names_that_are_taken(stem: str, tmp_path: Path, cmake: str) -> None:
    """Files, targets and symbols are named after the model: none may hide one that builds need."""
    name = c_model_identifier(stem)
    assert c_model_identifier(name) == name
    emit_host_project(affine(name), tmp_path, target=C)
    run(["make", "-s", "-j2"], tmp_path)
    check_library(tmp_path / "build" / f"lib{name}.so", name=name)
    run([cmake, "-S", ".", "-B", "out"], tmp_path)


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="math"):
        emit_host_project(affine("math"), tmp_path, target=C)
    assert not any(tmp_path.iterdir())


def test_tensors_that_differ_in_case_only(tmp_path: Path) -> None:
    """Macros are upper case: their names must differ as well."""
    program = affine("net", names=("v", "V"))
    metadata = emit_host_project(program, tmp_path, target=C)
    assert metadata["inputs"][0]["c_name"] == "v"
    both = affine("net")
    twin = type(both)(
        name="net",
        inputs=both.inputs,
        outputs=(*both.outputs, *affine("net", names=("x", "Y")).outputs),
        body=both.body,
        plan=both.plan,
    )
    metadata = emit_host_project(twin, tmp_path, target=C)
    names = [t["c_name"].upper() for t in metadata["outputs"]]
    assert len(set(names)) == 2


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        folder.mkdir()
        emit_host_project(affine("net", BIG), folder, target=C)
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert first == second
    assert not [name for name, data in first.items() if str(tmp_path).encode() in data]
    assert json.loads(first["metadata.json"])["generator"] == "aotc"


def test_equal_kernels_and_equal_parameters_are_emitted_once(tmp_path: Path) -> None:
    program = affine("net")
    metadata = emit_host_project(program, tmp_path, target=C)
    assert len(program.distinct_kernels) == 3 and metadata["kernels"] == 2  # the two additions are one function
    assert metadata["weights_bytes"] <= 64


def test_the_system_is_asked_for_matrices_once() -> None:
    """Each question is a call of the system."""
    text = cpu_feature_check_code(("avx2", "amx_tile", "amx_int8"))
    before, loop = text.split("for (k = 0;")
    assert before.count("state = granted(state);") == 1
    assert "granted" not in loop
    assert "granted" not in cpu_feature_check_code(("avx2", "avx512f"))


def test_bad_calls_have_statuses(tmp_path: Path) -> None:
    emit_host_project(affine("net"), tmp_path, target=C)
    (tmp_path / "bad.c").write_text("""
#include <stdio.h>
#include "net.h"
static AOTC_BUFFER;
int main(void) {
  const net_inputs in = {x}, none = {NULL}, odd = {(const float *)(const void *)((const char *)x + 1)};
  const net_outputs out = {y};
  const aotc_run_options small = {1};
  printf("%d %d %d %d %d %d %d\\n", net_run(&in, &out, work, NULL), net_run(NULL, &out, work, NULL),
         net_run(&in, NULL, work, NULL), net_run(&none, &out, work, NULL), net_run(&in, &out, NULL, NULL),
         net_run(&odd, &out, work, NULL), net_run(&in, &out, work + 1, NULL));
  printf("%d\\n", net_run(&in, &out, work, &small));
  return 0;
}
""".replace("static AOTC_BUFFER;", "static float x[12], y[12];\n"
            "static unsigned char work[NET_WORKSPACE_BYTES + 64] __attribute__((aligned(64)));"))  # fmt: skip
    run(["make", "-s", "-j2", "static"], tmp_path)
    flags = ["-Iinclude", "-fsanitize=address,undefined"]
    run(["gcc", *flags, "bad.c", "build/libnet.a", "build/libaotc_rt.a", "-lm", "-o", "bad"], tmp_path)
    assert run(["./bad"], tmp_path).split() == ["0", "1", "1", "1", "1", "2", "2", "3"]


def test_a_change_of_one_kernel_leaves_the_files_of_the_others_as_they_are() -> None:
    def files(*scales: float) -> set[str]:
        kernels = [elementwise("scale", 8, lambda a, s=s: a * s, 1) for s in scales]
        printed = print_kernels(kernels, "net", file_sizes=SMALL_FILES)
        return set(printed.render_kernel_files("net", "", banner="", team_includes=()).values())

    first, second = files(1.5, 2.5, 3.5), files(1.5, 4.5, 3.5)
    assert len(first) == len(second) == 3 and len(first & second) == 2
    assert files(3.5, 2.5) < first


def test_helper_functions_of_several_files_are_in_one_header() -> None:
    def files(*values: float) -> dict[str, str]:
        kernels = [elementwise("bound", 8, lambda a, v=v: maximum(minimum(a, v), a * v), 1) for v in values]
        printed = print_kernels(kernels, "net", file_sizes=SMALL_FILES)
        return printed.render_kernel_files("net", "_v3", banner="", team_includes=())

    (alone,) = files(1.5).values()
    assert "aotc_max_f32(float a" in alone and "net_helpers" not in alone
    found = files(1.5, 2.5)
    header = found.pop("src/net_helpers_v3.h")
    for name in ("aotc_max_f32", "aotc_minc_f32"):
        assert header.count(f" {name}(float a") == 1
        assert all(f" {name}(float a" not in text and name in text for text in found.values())
    assert all('#include "net_helpers_v3.h"' in text for text in found.values())
