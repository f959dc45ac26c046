# SPDX-License-Identifier: Apache-2.0
"""On a processor without the features that a library needs, the library returns a status or an error that names
them, and never crashes with a signal. Libraries with several versions of their kernels use the best version that the
processor supports, or the requested one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from aotc_codegen.c.cpu_feature_check import CPUID_LOCATION_BY_FEATURE

import aotc
from aotc.driver.pipeline import CompiledModel
from aotc.driver.toolchain import require_cpu_can_run, resolve_target
from aotc.ir.architecture_names import normalized_architecture_name
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.measuring.profile import profile_library
from aotc.relay.expr import Constant, Function, Var
from aotc.relay.interpreter import evaluate
from aotc.relay.module import IRModule
from aotc.relay.op.conv import conv2d
from aotc.relay_api.build import build
from aotc.tir.processor_features import PROCESSOR_FEATURES, ProcessorFeature
from aotc.tir.target import TARGETS, X86_64, X86_64_MULTI, X86_64_V3
from tests.cli.invoke import call
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, build_program_that_opens_libraries, run, run_all
from tests.e2e.test_threads import image, network
from tests.targets.machines import native_targets

pytestmark = pytest.mark.skipif(normalized_architecture_name() != "x86_64", reason="instruction sets of x86-64")
NEHALEM = ("qemu-x86_64", "-cpu", "Nehalem")
"""A processor of 2008: SSE 4.2 is the newest that it has."""
X = np.ones((1, 1, 8, 8), np.float32)


@pytest.fixture(scope="module")
def nehalem() -> tuple[str, ...]:
    return (require_tool(NEHALEM[0]), *NEHALEM[1:])


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that opens libraries."""
    return build_program_that_opens_libraries("gcc", tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="module")
def avx2(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    return aotc.compile(DIGITS, output=tmp_path_factory.mktemp("v3") / "digits", target="x86-64-v3", cflags=["-O1"])


def test_an_old_processor_gets_a_status(avx2: CompiledModel, host: Path, nehalem: tuple[str, ...]) -> None:
    (line,) = run([*nehalem, host, avx2.library], avx2.path).splitlines()
    assert line.startswith("8 the processor lacks ") and line.endswith(", which kernels for x86-64-v3 need")
    lacks = line.removeprefix("8 the processor lacks ").partition(", which")[0].split(", ")
    assert {"avx", "avx2", "fma"} <= set(lacks) and not {"ssse3", "sse4_2"} & set(lacks)


def test_direct_callers_get_a_status(avx2: CompiledModel, tmp_path: Path, nehalem: tuple[str, ...]) -> None:
    """Linked with the static library of the project's own Makefile."""
    run(["make", "-s", "-j2", "CFLAGS=-O1", "BUILD=made", "made/libdigits.a"], avx2.path)
    (tmp_path / "direct.c").write_text(
        """#include <stdio.h>
        #include "digits.h"
        int main(void) {
          static float x[DIGITS_INPUT_IMAGE_ELEMENTS], y[DIGITS_OUTPUT_SCORES_ELEMENTS];
          static union { double align[8]; unsigned char bytes[DIGITS_WORKSPACE_BYTES + 64]; } memory;
          digits_inputs in = {0};
          digits_outputs out = {0};
          const aotc_model *const model = digits_info();
          in.image = x;
          out.scores = y;
          printf("%d %d %d\\n", model->cpu_missing() != 0, aotc_model_check(model, NULL, NULL, NULL, 0),
                 digits_run(&in, &out, memory.bytes + (64 - (size_t)memory.bytes % 64), NULL));
          return 0;
        }""",
        encoding="utf-8",
    )
    runtime = avx2.path / "runtime" / "aotc_rt.c"
    parts = ["direct.c", runtime, avx2.path / "made" / "libdigits.a", "-lm", "-o", "direct"]
    run(["gcc", "-std=c99", f"-I{avx2.path / 'include'}", *parts], tmp_path)
    assert run([*nehalem, "./direct"], tmp_path).split() == ["1", "8", "8"]


@pytest.fixture
def impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledModel:
    """A model for a processor that does not exist: the CPUID instruction has no such leaf."""
    monkeypatch.setitem(CPUID_LOCATION_BY_FEATURE, "never", (0x7FFFFFFF, 0, 0, 0, 0))
    monkeypatch.setitem(PROCESSOR_FEATURES, "never", ProcessorFeature("never", "x86_64", "__NEVER__"))
    target = replace(X86_64, name="x86-64-never", features=("sse3", "never"))
    return aotc.compile(DIGITS, output=tmp_path / "digits", target=target, cflags=["-O1"], cache=False)


def test_what_is_missing_is_named(impossible: CompiledModel, host: Path) -> None:
    (isa,) = impossible.metadata["isas"]
    assert isa["features"] == ["sse3", "never"] and len(isa["files"]) > 0
    with pytest.raises(AotcError, match=r"code for x86-64-never, which needs what this processor lacks: never\n") as e:
        impossible.session()
    assert e.value.code == "cpu" and 'target="host"' in str(e.value.diagnostics[0].hint)
    said = run([host, impossible.library], impossible.path)
    assert said == "8 the processor lacks never, which kernels for x86-64-never need\n"


def test_other_code_is_for_every_processor(avx2: CompiledModel) -> None:
    """Only objects of kernels have instructions on long vectors."""
    run(["make", "-s", "-j2", "CFLAGS=-O1", "BUILD=made", "made/libdigits.so"], avx2.path)
    kernels = {Path(f).stem for f in avx2.metadata["isas"][0]["files"]}
    for path in (avx2.path / "made").glob("*/*.o"):
        text = run(["objdump", "-d", path], avx2.path)
        assert ("%ymm" in text or "vmov" in text) == (path.stem in kernels), path.stem


def test_kernels_are_not_compiled_for_a_processor_that_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("never", "not", "ever"):
        monkeypatch.setitem(PROCESSOR_FEATURES, name, ProcessorFeature(name, "x86_64", f"__{name}__"))
    require_cpu_can_run(resolve_target("host"))
    never = replace(X86_64_V3, features=("sse3", "never"))
    worse = replace(never, features=("not", "ever"), level="worse")
    for target in (never, replace(never, versions=(worse, never))):
        with pytest.raises(AotcError, match="code for x86-64-v3 cannot run here: the processor lacks never"):
            require_cpu_can_run(target)
    require_cpu_can_run(replace(never, versions=(never, X86_64)))


def test_an_instruction_set_that_a_library_does_not_have(avx2: CompiledModel) -> None:
    with pytest.raises(AotcError, match="no kernels for the instruction set 'x86-64-v4'") as e:
        aotc.load(avx2.path, isa="x86-64-v4")
    assert e.value.code == "isa"


def test_every_feature_can_be_asked_for() -> None:
    assert {f.name for f in PROCESSOR_FEATURES.values() if f.machine == "x86_64"} == CPUID_LOCATION_BY_FEATURE.keys()


# --- several versions in one library

EVERY = X86_64_MULTI.versions
NAMES = [t.name for t in EVERY if t.micro_kernels and not t.has_integer_dot_instruction]
HERE_TOO = [n for n in NAMES if TARGETS[n].vector_bytes <= resolve_target("host").vector_bytes]
"""The versions that this processor can run, the best first."""


@pytest.fixture(scope="module")
def multi(tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """Built by the project's Makefile, too."""
    folder = tmp_path_factory.mktemp("multi") / "digits"
    model = aotc.compile(DIGITS, output=folder, target="x86-64-multi", cflags=["-O1"], check_compiler=True)
    run(["make", "-s", "-j2", "CFLAGS=-O1", "BUILD=made", "made/libdigits.so"], folder)
    return model


def scores(text: str) -> np.ndarray:
    """What the program that opens libraries prints of a run."""
    opened, ran, values = text.splitlines()
    assert (opened, ran) == ("0 ", "0 success")
    return np.array(values.split(), np.float32)


def test_versions_agree(multi: CompiledModel, avx2: CompiledModel, host: Path) -> None:
    (expected,) = avx2.session().run(None, {"image": X})
    assert aotc.load(multi.path).isa == HERE_TOO[0]
    libraries = [multi.library, multi.path / "made" / "libdigits.so"]
    for name in HERE_TOO:
        for library in libraries:
            session = aotc.load(library, isa=name)
            assert session.isa == name
            np.testing.assert_allclose(session.run(None, {"image": X})[0], expected, rtol=1e-5, atol=1e-7)
        found = scores(run([host, libraries[1], name], multi.path))
        np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-7)


def test_a_network_on_all_versions_and_threads(tmp_path: Path) -> None:
    """Packed weights and Winograd's are there once; arenas of all versions fit the workspace."""
    module = network()
    model = aotc.compile(module, output=tmp_path / "net", name="net", target="x86-64-multi", cflags=["-O1"])
    single = aotc.compile(module, output=tmp_path / "single", name="net", target="x86-64-v3", build=False)
    memory = model.metadata["memory"]
    assert all(buffer["first_step"] is not None for buffer in memory["buffers"])
    assert model.metadata["weights_bytes"] == single.metadata["weights_bytes"]
    assert (
        model.session().workspace_bytes
        == memory["peak"]
        == max(version["workspace_bytes"] for version in model.metadata["isas"])
    )
    expected = np.asarray(evaluate(module, image()["image"]))
    for name in HERE_TOO:
        alone, shared = aotc.load(model.path, isa=name), aotc.load(model.path, isa=name, threads=3)
        (y,) = alone.run(None, image())
        assert np.abs(y - expected).max() <= 1e-4 * expected.std()
        np.testing.assert_array_equal(shared.run(None, image())[0], y)


def test_products_of_bytes_have_versions_of_their_own(tmp_path: Path) -> None:
    """One copy of the weights, and equal results."""
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 256, (1, 9, 9, 6)).astype(np.uint8), rng.integers(-128, 128, (20, 6, 3, 3)).astype(np.int8)
    data = Var("x", TensorType(x.shape, "uint8"))
    how = {"padding": (1, 1), "data_layout": "NHWC", "kernel_layout": "OIHW", "out_dtype": "int32", "pad_value": 200}
    module = IRModule({"main": Function((data,), conv2d(data, Constant(w), **how))})
    model = aotc.compile(module, output=tmp_path / "net", name="net", target="x86-64-multi", cflags=["-O1"])
    assert [isa["name"] for isa in model.metadata["isas"]] == [t.name for t in EVERY]
    # channels become 32, inputs 8
    assert model.metadata["weights_bytes"] == 32 * 3 * 3 * 8
    expected = np.asarray(conv2d.reference(conv2d.attrs(**how), x, w))
    for name in (t.name for t in EVERY if t.name in native_targets()):
        found = aotc.load(model.path, isa=name).run(None, {"x": x})
        np.testing.assert_array_equal(found[0], expected)


def test_an_old_processor_takes_the_oldest_version(multi: CompiledModel, host: Path, nehalem: tuple[str, ...]) -> None:
    (expected,) = aotc.load(multi.path, isa="x86-64").run(None, {"image": X})
    np.testing.assert_allclose(scores(run([*nehalem, host, multi.library], multi.path)), expected[0], rtol=1e-6)
    opened, ran = run([*nehalem, host, multi.library, "x86-64-v3"], multi.path).splitlines()
    assert opened == "0 " and ran.startswith("8 the processor lacks instructions")
    said = run([*nehalem, host, multi.library], multi.path, AOTC_ISA="x86-64-v4")
    assert said.startswith("8 the processor lacks ") and said.endswith("avx512vl, which kernels for x86-64-v4 need\n")


def test_the_environment_names_a_version(
    multi: CompiledModel, avx2: CompiledModel, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = aotc.load(multi.path, isa="x86-64").run(None, {"image": X})
    np.testing.assert_array_equal(scores(run([host, multi.library], multi.path, AOTC_ISA="x86-64")), expected[0])
    wrong = "9 there are no kernels for v3, only for x86-64-v4, x86-64-v3, x86-64\n"
    assert run([host, multi.library], multi.path, AOTC_ISA="v3") == wrong
    monkeypatch.setenv("AOTC_ISA", "x86-64")
    assert aotc.load(multi.path).isa == "x86-64"
    assert aotc.load(multi.path, isa="x86-64-v3").isa == "x86-64-v3"
    assert avx2.session().isa == "x86-64-v3", "it has no others"
    monkeypatch.setenv("AOTC_ISA", "v3")
    with pytest.raises(AotcError, match="no kernels for the instruction set 'v3'") as e:
        aotc.load(multi.path)
    assert e.value.code == "isa"


def test_a_run_names_a_version_that_is_not_there(multi: CompiledModel, host: Path) -> None:
    _, ran = run([host, multi.library, "x86-64-v5"], multi.path).splitlines()
    assert ran == "9 the model has no kernels for the instruction set named"


def test_profiles_tell_the_kernels_that_ran(multi: CompiledModel) -> None:
    steps = {version["name"]: version["steps"] for version in multi.metadata["isas"]}
    for name in (None, "x86-64"):
        rows = profile_library(multi.path, repeat=1, isa=name)["steps"]
        assert [row["kernel"] for row in rows] == steps[name or HERE_TOO[0]]


def test_the_command_names_a_version(multi: CompiledModel) -> None:
    assert call("run", multi.path, "--isa", "x86-64").code == 0
    wrong = call("run", multi.path, "--isa", "x86-64-v5")
    assert wrong.code != 0 and "no kernels for the instruction set 'x86-64-v5'" in " ".join(wrong.err.split())


@pytest.mark.parametrize("language", [("gcc", "-std=c99"), ("clang", "-std=c99"), ("g++", "-x", "c++", "-std=c++17")])
def test_versions_compile_without_warnings(
    language: tuple[str, ...], multi: CompiledModel, request: pytest.FixtureRequest
) -> None:
    if language[0] == "clang":
        request.getfixturevalue("clang")
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-O1", "-fsyntax-only", "-Iinclude", "-Isrc"]
    flags = {file: isa["cflags"] for isa in multi.metadata["isas"] for file in isa["files"]}
    files = [path.relative_to(multi.path) for path in sorted(multi.path.glob("*/*.c"))]
    run_all([[*language, *strict, *flags.get(str(f), ()), f] for f in files if f.parts[0] != "made"], multi.path)


def test_cmake_gives_each_version_its_flags(multi: CompiledModel, tmp_path: Path, cmake: str) -> None:
    run([cmake, "-S", multi.path, "-B", tmp_path, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], tmp_path)
    commands = (tmp_path / "compile_commands.json").read_text(encoding="utf-8").splitlines()
    compiled = [line for line in commands if '"command"' in line]
    for isa in multi.metadata["isas"]:
        for file in isa["files"]:
            (line,) = (c for c in compiled if f"/{file} " in f"{c} ".replace('",', " ").replace('" ', " "))
            assert line.rindex(isa["cflags"][0]) == line.rindex("-march=")


def test_relay_build_refuses_several_versions() -> None:
    with pytest.raises(AotcError, match="compiles for one instruction set, not for x86-64-multi"):
        build(network(), target="x86-64-multi")
