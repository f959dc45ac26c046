# SPDX-License-Identifier: Apache-2.0
"""Emitted projects as users build them: reproducible, with every build system, linked together, documented."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import aotc
from tests.e2e.projects import DIGITS, ROOT, affine, run, tree, write_raw
from tests.share import share

STRICT = "-O1 -Wall -Wextra -Wconversion -Wshadow -Werror"


def compile_elsewhere(model: Path, output: Path, cwd: Path, seed: int) -> None:
    """Compile in a process of its own, with another working directory and order of hashes."""
    paths = ":".join(str(ROOT / p) for p in ("", "codegen", "runtime_c"))
    arguments = ["compile", model, "-o", output, "--name", "net", "--quiet", "--cflags=-O1"]
    run([sys.executable, "-m", "aotc.cli", *arguments], cwd, PYTHONHASHSEED=str(seed), PYTHONPATH=paths)


@pytest.mark.parametrize("name", share(["digits", "vittrack", "yolox_nano"], 0, always=["digits"]))
def test_the_same_model_gives_the_same_bytes(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Sources, metadata and library: whatever the working directory, output path, hash seed and file name."""
    source = DIGITS if name == "digits" else request.getfixturevalue("models") / f"{name}.onnx"
    folders = [tmp_path / "one", tmp_path / "another" / "deeper"]
    for seed, folder in enumerate(folders):
        folder.mkdir(parents=True)
        shutil.copy(source, folder / "m.onnx")
        compile_elsewhere(Path("m.onnx") if seed else folder / "m.onnx", folder / "out", folder, seed)
    first, second = (tree(folder / "out") for folder in folders)
    assert first.keys() == second.keys() and "lib/libnet.so" in first
    assert [path for path in first if first[path] != second[path]] == []
    text = b"".join(first.values())
    assert str(tmp_path).encode() not in text


TWO = r"""
#include <stdio.h>
#include "first.h"
#include "second.h"

static unsigned char memory[FIRST_WORKSPACE_BYTES + SECOND_WORKSPACE_BYTES + 128];
static float x[SECOND_INPUT_X_ELEMENTS], a[FIRST_OUTPUT_Y_ELEMENTS], b[SECOND_OUTPUT_Y_ELEMENTS];

int main(int argc, char **argv) {
  const first_inputs in1 = {x};
  const first_outputs out1 = {a};
  const second_inputs in2 = {x};
  const second_outputs out2 = {b};
  unsigned char *const workspace = memory + (64 - (size_t)memory % 64);
  FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL || fread(x, 1, sizeof x, file) != sizeof x || fclose(file) != 0) return 1;
  if (first_run(&in1, &out1, workspace, NULL) != AOTC_OK) return 2;
  if (second_run(&in2, &out2, workspace, NULL) != AOTC_OK) return 3;
  if (first_info()->num_inputs != 1 || second_info()->num_outputs != 1) return 4;
  printf("%.9g %.9g\n", (double)a[FIRST_OUTPUT_Y_ELEMENTS - 1], (double)b[SECOND_OUTPUT_Y_ELEMENTS - 1]);
  return 0;
}
"""


@pytest.mark.parametrize("options", [(), ("CC=clang",), ("PORTABLE_PARAMS=1",)], ids=" ".join)
def test_two_models_in_one_program(tmp_path: Path, options: tuple[str, ...], clang: str) -> None:
    """One with its weights as C arrays, one with a binary file; one runtime library for both."""
    x = np.random.default_rng(5).standard_normal((1, 200)).astype(np.float32)
    expected = []
    for name, size in (("first", 12), ("second", 200)):
        project = aotc.compile(affine(size, seed=size), output=tmp_path / name, name=name, target="c", cflags=["-O1"])
        expected.append(project.session().run(None, {"x": x[:, :size]})[0][0, -1])
        run(["make", "-s", "-j2", f"CFLAGS={STRICT}", "static", *options], tmp_path / name)
    assert (tmp_path / "second" / "src" / "second_params.bin").exists()
    assert not (tmp_path / "first" / "src" / "first_params.bin").exists()
    (tmp_path / "main.c").write_text(TWO)
    flags = ["-std=c99", *STRICT.split(), "-Ifirst/include", "-Isecond/include"]
    archives = ["first/build/libfirst.a", "second/build/libsecond.a", "second/build/libaotc_rt.a"]
    run(["gcc", *flags, "main.c", *archives, "-lm", "-o", "both"], tmp_path)
    found = run(["./both", write_raw(tmp_path, "x", x)], tmp_path).split()
    np.testing.assert_allclose([float(f) for f in found], expected, rtol=1e-6, atol=1e-7)


def test_make_example_and_library(tmp_path: Path) -> None:
    """The example program reads and writes files; both libraries agree with the one that compile made."""
    model = aotc.compile(DIGITS, output=tmp_path / "digits", cflags=["-O1"])
    run(["make", "-s", "-j2", "CFLAGS=-O1"], model.path)
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
    run(["build/digits_example", "-n", "3", write_raw(tmp_path, "image", image), tmp_path / "scores.bin"], model.path)
    (expected,) = model.session().run(None, {"image": image})
    scores = np.fromfile(tmp_path / "scores.bin", np.float32)
    np.testing.assert_allclose(scores, expected[0], rtol=1e-4, atol=1e-7)
    (built,) = aotc.load(model.path / "build" / "libdigits.so").run(None, {"image": image})
    np.testing.assert_allclose(built, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("arguments", [["no-such-file"], ["README.md"]])
def test_the_example_refuses_bad_files(tmp_path: Path, arguments: list[str]) -> None:
    model = aotc.compile(affine(4, 0), output=tmp_path / "net", build=False, target="c")
    run(["make", "-s", "CFLAGS=-O1"], model.path)
    with pytest.raises(AssertionError, match=arguments[0]):
        run(["build/model_example", *arguments], model.path)


def test_cmake_consumer(tmp_path: Path, cmake: str) -> None:
    """add_subdirectory and the target that the project's README names."""
    aotc.compile(DIGITS, output=tmp_path / "digits", build=False)
    (tmp_path / "app.c").write_text(c_block((tmp_path / "digits" / "README.md").read_text()))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(app LANGUAGES C)\nadd_subdirectory(digits)\n"
        "add_executable(app app.c)\ntarget_link_libraries(app PRIVATE digits::digits)\n"
    )
    run([cmake, "-S", ".", "-B", "out"], tmp_path)
    run([cmake, "--build", "out", "-j2"], tmp_path)
    assert run(["out/app"], tmp_path).strip() == "success"


def c_block(markdown: str) -> str:
    """The first C program in a document."""
    found = re.search(r"^```c\n(.*?)^```", markdown, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("document", ["project", "repository"])
def test_c_code_of_the_documents_compiles_and_runs(tmp_path: Path, document: str) -> None:
    model = aotc.compile(DIGITS, output=tmp_path / "digits", build=False)
    run(["make", "-s", "-j2", "CFLAGS=-O1", "static"], model.path)
    readme = model.path / "README.md" if document == "project" else ROOT / "README.md"
    (tmp_path / "app.c").write_text(c_block(readme.read_text(encoding="utf-8")))
    archives = ["digits/build/libdigits.a", "digits/build/libaotc_rt.a"]
    run(["gcc", *STRICT.split(), "-Idigits/include", "app.c", *archives, "-lm", "-o", "app"], tmp_path)
    assert re.search(r"success|score of zero: 0\.\d+", run(["./app"], tmp_path))


def edge_models() -> dict[str, onnx.ModelProto]:
    """Graphs whose schedule, tables or example lack something that most have."""

    def value(name: str, shape: tuple[int, ...] = (2, 3)) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], *outputs: str) -> onnx.ModelProto:
        shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inputs}
        shape = next(iter(shapes.values()), (2, 3))
        graph = helper.make_graph(nodes, "g", inputs, [value(o, shape) for o in outputs])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    node = helper.make_node
    ones = helper.make_tensor("ones", TensorProto.FLOAT, (2, 3), [1.0] * 6)
    hostile = ['*/"\n\\', "int", "X", "x", "input_1:0", "日本"]
    return {
        "no_workspace": model([node("Relu", ["x"], ["y"])], [value("x")], "y"),
        "no_kernel": model([node("Identity", ["x"], ["y"])], [value("x")], "y"),
        "no_inputs": model([node("Constant", [], ["y"], value=ones)], [], "y"),
        "one_result_twice": model([node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["z"])], [value("x")], "y", "z"),
        "scalar": model([node("Exp", ["x"], ["y"])], [value("x", ())], "y"),
        "empty": model([node("Exp", ["x"], ["y"])], [value("x", (0, 3))], "y"),
        "unused_input": model([node("Exp", ["x"], ["y"])], [value("x"), value("unused")], "y"),
        "hostile_names": model(
            [node("Neg", [n], [f"{n}?"], name=f"%s {n} */ ??/") for n in hostile],
            [value(n) for n in hostile],
            *(f"{n}?" for n in hostile),
        ),
    }


EDGES = edge_models()


@pytest.mark.parametrize("name", share(EDGES, 4))
def test_unusual_models(name: str, tmp_path: Path, clang: str) -> None:
    """Strictly clean in C and C++, built by make, and right."""
    model = aotc.compile(EDGES[name], output=tmp_path / name, name=name, target="c", cflags=["-O1"])
    session = model.session()
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    expected = ReferenceEvaluator(EDGES[name]).run(None, feeds)
    assert [o.name for o in session.get_outputs()] == [o.name for o in EDGES[name].graph.output]
    for got, want in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, strict=True)
    for options in (["CC=gcc"], ["CC=clang", "BUILD=build2"]):
        run(["make", "-s", "-j2", f"CFLAGS={STRICT} -pedantic", *options], model.path)
    run([f"build/{name}_example"], model.path)
    for compiler in ("g++", "clang++"):
        for source in [*model.path.glob("src/*.c"), model.path / "examples" / "main.c"]:
            run([compiler, "-x", "c++", *STRICT.split(), "-Iinclude", "-fsyntax-only", source], model.path)
