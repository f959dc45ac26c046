# SPDX-License-Identifier: Apache-2.0
"""Packages for other ecosystems: built by the tools of these, with the results of the project."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import aotc
from aotc.packaging.archives import wheel_platform_of_library
from aotc.packaging.ecosystems import ECOSYSTEMS
from aotc.packaging.package_information import PackageInformation, read_package_information
from aotc.packaging.write_package import package_project
from tests.cli.invoke import call
from tests.e2e.projects import DIGITS
from tests.ecosystems.builders import BUILDERS
from tests.ecosystems.conftest import MODELS, Projects, output_line, printed
from tests.share import share

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Texts with the characters that are special in one of the languages of packages.
INFORMATION = PackageInformation(
    version="1.2.3",
    license="MIT OR Apache-2.0",
    author="Zoë O'Hara <zoe@example.org>",
    description="""Says "hi" & <b>, costs $5 #1 %2 {x} \\ 'done'.""",
    url="https://example.org/a?b=1#c",
)
STRICT = ["-O1", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]


def bare_or_hosted(ecosystem: str, model: str) -> bool:
    """Whether a model is compiled without an operating system for an ecosystem; both where both are possible."""
    row = ECOSYSTEMS[ecosystem]
    return row.projects == "bare" or (row.projects == "any" and model == "gru")


def elements_of(text: str) -> bytes:
    """The bits of the output in what an example printed."""
    return np.array(output_line(text).partition(":")[2].split(), np.float64).astype(np.float32).tobytes()


def test_every_ecosystem_is_built() -> None:
    assert BUILDERS.keys() == ECOSYSTEMS.keys()


#: All but modules of WebAssembly, which `test_npm_package.py` has.
PACKAGES = [(ecosystem, model) for ecosystem in BUILDERS if ecosystem != "npm" for model in MODELS]
#: Ecosystems whose tools take long.
SLOW = {"conan", "rust"}


@pytest.mark.parametrize(("ecosystem", "model"), [
    *share([package for package in PACKAGES if package[0] not in SLOW], 5),
    *(pytest.param(*package, marks=pytest.mark.slow) for package in PACKAGES if package[0] in SLOW),
])  # fmt: skip
def test_examples_print_the_results_of_the_project(
    ecosystem: str, model: str, projects: Projects, expected: Callable[..., str], tmp_path: Path
) -> None:
    bare = bare_or_hosted(ecosystem, model)
    project = projects(model, bare, build=ECOSYSTEMS[ecosystem].projects == "hosted")
    package = package_project(project, ecosystem, tmp_path / "package", INFORMATION).path
    (tmp_path / "scratch").mkdir()
    text = BUILDERS[ecosystem](package, tmp_path / "scratch")
    assert elements_of(text) == elements_of(expected(model, bare))


@pytest.mark.parametrize(("compiler", "flags"), [
    ("gcc", "-std=c99"), ("g++", "-xc++ -std=c++17"),
    *(pytest.param(c, f, marks=pytest.mark.slow) for c, f in [
        ("gcc", "-std=c11"), ("gcc", "-std=c2x"), ("clang", "-std=c99"), ("clang", "-std=c2x"),
        ("clang", "-xc++ -std=c++17"),
    ]),
])  # fmt: skip
def test_the_single_file_is_clean_c_and_cpp(
    compiler: str, flags: str, projects: Projects, expected: Callable[..., str], tmp_path: Path
) -> None:
    for model in MODELS:
        package = package_project(projects(model, True), "single-file", tmp_path / model).path
        command = [compiler, *flags.split(), *STRICT, f"{model}_example.c", f"{model}.c", "-lm", "-o", "example"]
        printed(command, package)
        assert output_line(printed([package / "example"], package)) == expected(model, True)


@pytest.mark.parametrize("flags", [
    "-O2 -march=x86-64-v3", *(pytest.param(f, marks=pytest.mark.slow) for f in ["-O3 -march=x86-64-v3", "-Os", "-O0"])
])  # fmt: skip
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_results_need_no_flags(
    compiler: str, flags: str, projects: Projects, expected: Callable[..., str], tmp_path: Path
) -> None:
    """Compilers that may use multiply-adds and vectors, and are not told to leave them, give the same bits."""
    for model in ("digits", "gru"):
        package = package_project(projects(model), "platformio", tmp_path / model).path
        sources = sorted((package / "src").glob("*.c"))
        command = [compiler, *flags.split(), "-Iinclude", *sources, "examples/run_once/main.c", "-lm", "-o", "example"]
        printed(command, package)
        assert output_line(printed([package / "example"], package)) == expected(model, False)


def test_a_package_has_the_same_bytes_each_time(projects: Projects, tmp_path: Path) -> None:
    # `test_npm_package.py` compares modules of WebAssembly
    for ecosystem, row in ((name, row) for name, row in ECOSYSTEMS.items() if row.content != "module"):
        project = projects("digits", row.projects == "bare", build=row.projects == "hosted")
        first, second = (package_project(project, ecosystem, tmp_path / f"{ecosystem}{k}", INFORMATION) for k in (0, 1))
        assert first.files == second.files
        for file in first.files:
            assert (first.path / file).read_bytes() == (second.path / file).read_bytes(), file
            assert str(tmp_path).encode() not in (first.path / file).read_bytes()


def test_the_table_of_a_file_and_options_say_what_a_package_is(projects: Projects, tmp_path: Path) -> None:
    file = tmp_path / "about.toml"
    file.write_text('[package]\nname = "Digit reader"\nversion = "2.0.1"\nauthor = "Ada"\n[other]\nx = 1\n')
    options = ["--manifest", file, "--version", "2.1.0"]
    done = call("package", projects("digits"), "--for", "arduino", "-o", tmp_path / "out", *options)
    assert done.code == 0, done.err
    text = (tmp_path / "out" / "library.properties").read_text()
    assert "name=Digit reader\nversion=2.1.0\nauthor=Ada\n" in text


def test_files_of_the_user_are_kept(projects: Projects, tmp_path: Path) -> None:
    """A conflicting file is an error, and nothing is written; other files stay."""
    own, other = tmp_path / "Makefile", tmp_path / "notes.txt"
    own.write_text("mine")
    other.write_text("mine too")
    with pytest.raises(aotc.AotcError, match="holds files that would be lost: Makefile"):
        package_project(projects("digits"), "pkg-config", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"Makefile", "notes.txt"} and own.read_text() == "mine"
    package_project(projects("digits"), "meson", tmp_path)
    package_project(projects("digits"), "platformio", tmp_path)
    assert own.read_text() == "mine" and other.read_text() == "mine too" and not (tmp_path / "meson.build").exists()


def bad(projects: Projects, folder: Path, ecosystem: str, model: str = "digits", **options: object) -> str:
    about = PackageInformation(**options.pop("about", {}))  # type: ignore[arg-type]
    with pytest.raises(aotc.AotcError) as caught:
        package_project(projects(model, **options), ecosystem, folder / "out", about)
    assert caught.value.code == "package" and not (folder / "out").exists()
    return str(caught.value)


def test_targets_that_an_ecosystem_cannot_have(projects: Projects, tmp_path: Path) -> None:
    text = bad(projects, tmp_path, "arduino", target="x86-64-v4")
    assert "cannot contain code for x86-64-v4" in text and 'target="cortex-m4"' in text
    assert 'environment="bare"' in bad(projects, tmp_path, "single-file")
    assert "did you mean 'meson'" in bad(projects, tmp_path, "messon")


def test_models_whose_tensors_are_no_arrays_of_numbers(tmp_path: Path) -> None:
    """Examples of packages would run sizes of a run with 0, and strings as bytes."""
    rows = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 19]> g (float[n] x) => (float[n] y) { y = Relu (x) }'
    )
    words = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 19]> g (string[2] x, string[2] z) => (bool[2] y) { y = Equal (x, z) }'
    )
    cases = (rows, {"n": (1, 4)}, r"x, \(n\), is known at run time only"), (words, {"x": 8, "z": 8}, "x holds strings")
    for number, (model, dims, message) in enumerate(cases):
        project = aotc.compile(
            model, output=tmp_path / str(number), name="net", target="c", dims=dims, build=False
        ).path
        with pytest.raises(aotc.AotcError, match=message):
            package_project(project, "cmake", tmp_path / "package")


def test_notes_on_missing_tools_and_large_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,600] x) => (float[1,600] y) { y = MatMul (x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((600, 600), np.float32), "w"))
    options = {"target": "c", "environment": "bare", "build": False}
    project = aotc.compile(model, output=tmp_path / "project", name="net", **options).path
    monkeypatch.setenv("PATH", "/nowhere")
    expected = {
        "arduino": "the parameters have 1.4 MiB, which is much for an Arduino library (more than 1 MiB)",
        "platformio": "pio, which builds the package, is not installed here: pip install platformio",
        "bazel": "bazel, which builds the package, is not installed here: npm install -g @bazel/bazelisk",
        "cmake": "cmake, which builds the package, is not installed here: apt install cmake or pip install cmake",
    }
    for ecosystem, note in expected.items():
        notes = package_project(project, ecosystem, tmp_path / ecosystem).notes
        assert note in notes and any("MiB" in text for text in notes) == (ecosystem in ("arduino", "platformio"))


def test_names_that_an_ecosystem_forbids(projects: Projects, tmp_path: Path) -> None:
    assert "cannot be the name" in bad(projects, tmp_path, "arduino", about={"name": "Arduino_digits"})
    assert 'name="a_b"' in bad(projects, tmp_path, "meson", about={"name": "a/b"})
    for field, value in {"version": "1.0", "license": "a\nb", "url": "ftp://x", "author": "<a@b>"}.items():
        with pytest.raises(aotc.AotcError, match=f"cannot be the {field} of a package"):
            PackageInformation(**{field: value})


def test_names_of_modules_that_are_words_of_the_language() -> None:
    for ecosystem, name in [("wheel", "True"), ("wheel", "None"), ("rust", "run-once"), ("rust", "Self")]:
        assert not ECOSYSTEMS[ecosystem].names.allows(name)


def test_texts_of_any_script_in_every_template(tmp_path: Path, projects: Projects) -> None:
    """Rust and TOML have no escapes of JSON for characters beyond ASCII."""
    text = 'Café 😀 "q" \\ */ --> ${y}'
    about = PackageInformation(name="null", description=text, author="Zoë 😀")
    package = package_project(projects("digits", True), "rust", tmp_path / "rust", about).path
    assert tomllib.loads((package / "Cargo.toml").read_text("utf-8"))["package"]["description"] == text
    documentation = next(x for x in (package / "src/lib.rs").read_text("utf-8").splitlines() if "#![doc" in x)
    assert documentation == '#![doc = "Café 😀 \\"q\\" \\\\ */ --> ${y}"]'
    package = package_project(projects("digits", True), "zephyr", tmp_path / "zephyr", about).path
    assert 'name: "null"' in (package / "zephyr/module.yml").read_text("utf-8")


def test_a_model_called_example(tmp_path: Path) -> None:
    """The program and the source of the model are different files and targets."""
    project = tmp_path / "project"
    aotc.compile(DIGITS, name="example", output=project, target="c", build=False, environment="bare")
    single = package_project(project, "single-file", tmp_path / "single").path
    assert (single / "example.c").read_text("utf-8").startswith('#include "example.h"')
    assert "int main(void)" in (single / "example_example.c").read_text("utf-8")
    rules = (package_project(project, "bazel", tmp_path / "bazel").path / "BUILD.bazel").read_text("utf-8")
    assert rules.count('name = "example",') == 1


@pytest.mark.parametrize("role", ["input", "output"])
def test_models_whose_c_names_begin_as_those_of_arrays_could(role: str, tmp_path: Path) -> None:
    """Examples and wrappers declare neither the type `output_outputs` nor the function `output_run` anew."""
    graph = {
        "input": "g (float[3] inputs, float[3] run) => (float[3] y) { y = Sub (inputs, run) }",
        "output": "g (float[3] x) => (float[3] outputs, float[3] run) { outputs = Neg (x) run = Exp (x) }",
    }
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + graph[role])
    project = aotc.compile(model, output=tmp_path / "project", name=role, target="c", build=False).path
    package = package_project(project, "meson", tmp_path / "package").path
    wrapper = tmp_path / "wrapper.cpp"
    wrapper.write_text(f'#include "{role}.hpp"\nint main() {{ {role}_cpp::model model; return model.run(); }}\n')
    folders = {path.parent for path in package.rglob("*.h*")}
    for command in (["gcc", "-std=c99", *project.glob("examples/*.c")], ["gcc", "-std=c99", *package.rglob("main.c")],
                    ["g++", "-std=c++17", wrapper]):  # fmt: skip
        assert len(command) > 2
        printed([*command, *STRICT, "-fsyntax-only", *(f"-I{folder}" for folder in folders)], tmp_path)


@pytest.mark.parametrize("name", ["dist", "benchmark"])
def test_names_that_meson_has_for_targets_of_its_own(name: str, tmp_path: Path) -> None:
    aotc.compile(DIGITS, name=name, output=tmp_path / "project", target="c", build=False)
    package = package_project(tmp_path / "project", "meson", tmp_path / "package").path
    rules = (package / "meson.build").read_text("utf-8")
    assert f"static_library(\n  '{name}_model'," in rules and f"meson.override_dependency('{name}'" in rules
    if name == "dist":
        (tmp_path / "scratch").mkdir()
        assert "scores:" in BUILDERS["meson"](package, tmp_path / "scratch")


def test_texts_of_spaces_are_refused() -> None:
    for field in ("name", "license", "author", "description", "url"):
        for text in (" ", "a "):
            with pytest.raises(aotc.AotcError, match=f"cannot be the {field} of a package"):
                PackageInformation(**{field: text})


def test_the_license_of_a_cmsis_pack_is_that_of_the_model(projects: Projects, tmp_path: Path) -> None:
    package = package_project(projects("digits", True), "cmsis-pack", tmp_path / "pack", INFORMATION).path
    (description,) = package.glob("*.pdsc")
    assert "<license>LICENSE.txt</license>" in description.read_text("utf-8")
    assert "MIT OR Apache-2.0" in (package / "LICENSE.txt").read_text("utf-8")


def test_wheels_name_the_c_library_that_loads_them() -> None:
    """glibc by its newest version, musl by the name of its C library, and no others."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00"
    names = {
        b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0": "manylinux_2_34_x86_64",
        b"\0libc.so.6\0GLIBC_2.2.5\0": "manylinux_2_17_x86_64",
        b"\0libc.so\0": "musllinux_1_2_x86_64",
    }
    for text, tag in names.items():
        assert wheel_platform_of_library(header + text) == tag
    with pytest.raises(aotc.AotcError, match="libraries for Linux"):
        wheel_platform_of_library(b"MZ" + bytes(62))


def test_pipes_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "package.toml")
    with pytest.raises(aotc.AotcError, match="pipe"):
        read_package_information(tmp_path / "package.toml")


def test_a_changed_project_is_not_packaged(projects: Projects, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(projects("digits"), project)
    (project / "src" / "digits.c").write_text("int x;\n")
    with pytest.raises(aotc.AotcError, match=r"digits\.c was changed since aotc wrote it"):
        package_project(project, "meson", tmp_path / "out")
    with pytest.raises(aotc.AotcError, match="is not a compiled project"):
        package_project(tmp_path, "meson", tmp_path / "out")


def test_packages_and_their_projects_are_apart(projects: Projects, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(projects("digits"), project)
    places = {
        "is the project itself": tmp_path / "out" / ".." / "project",
        "is inside of the project": project / "include",
        "contains the project": tmp_path,
    }
    for text, output in places.items():
        with pytest.raises(aotc.AotcError, match=text):
            package_project(project, "meson", output, overwrite=True)


def test_compile_writes_a_package_in_place_of_the_project(tmp_path: Path) -> None:
    options = ["--target", "c", "--package", "pkg-config"]
    done = call("compile", DIGITS, "-o", tmp_path / "out", *options)
    assert done.code == 0 and f"package      {tmp_path / 'out'} (digits, " in done.out, done.err
    assert (tmp_path / "out" / "digits.pc.in").is_file() and not (tmp_path / "out" / "metadata.json").exists()
    unfit = [*options[:2], "--package", "single-file"]
    for wrong in (["--package", "messon"], ["--manifest", tmp_path / "x.toml"], unfit):
        refused = call("compile", DIGITS, "-o", tmp_path / "no", *wrong)
        # nothing was compiled
        assert refused.code == 2 and "importing" not in refused.err
    flagged = call("compile", DIGITS, "-o", tmp_path / "out", *options, "--cflags=-g")
    assert "sets the flags of the C compiler, without --cflags=-g" in flagged.out
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.always
def test_compile_writes_a_package_that_has_the_library(tmp_path: Path) -> None:
    options = ["--target", "c", "--package", "wheel", "--cflags=-O0"]
    done = call("compile", DIGITS, "-o", tmp_path / "out", *options)
    assert done.code == 0 and "package      " in done.out and "library  " not in done.out, done.err
    assert len(list((tmp_path / "out").glob("digits-*.whl"))) == 1


@pytest.mark.parametrize(("compiler", "exceptions"), [
    ("g++", "-fno-exceptions"), *(pytest.param(*row, marks=pytest.mark.slow) for row in [
        ("g++", "-fexceptions"), ("clang++", "-fno-exceptions"), ("clang++", "-fexceptions"),
    ]),
])  # fmt: skip
def test_cpp_programs_with_two_models(
    compiler: str, exceptions: str, cmake: str, projects: Projects, expected: Callable[..., str], tmp_path: Path
) -> None:
    """Two installed packages in one C++ program, by their classes, under the sanitizers."""
    for model in ("digits", "gru"):
        package = package_project(projects(model), "cmake", tmp_path / model).path
        printed([cmake, "-S", package, "-B", tmp_path / f"{model}-build"], tmp_path)
        build = ["--build", tmp_path / f"{model}-build", "--target"]
        printed([cmake, *build, "install"], tmp_path, DESTDIR=str(tmp_path / "root"))
    program = tmp_path / "program"
    program.mkdir()
    (program / "main.cpp").write_text(CPP_PROGRAM)
    flags = f"-O1 -Wall -Wextra -Wconversion -pedantic -Werror -fsanitize=address,undefined {exceptions}"
    if exceptions == "-fexceptions":
        flags += " -DDIGITS_EXCEPTIONS -DGRU_EXCEPTIONS"
    (program / "CMakeLists.txt").write_text(f"""
      cmake_minimum_required(VERSION 3.16)
      project(program CXX)
      find_package(digits 0.1 REQUIRED)
      find_package(gru REQUIRED)
      add_executable(program main.cpp)
      target_compile_features(program PRIVATE cxx_std_17)
      target_compile_options(program PRIVATE {flags})
      target_link_libraries(program PRIVATE digits::digits gru::gru -fsanitize=address,undefined)
    """)
    options = [f"-DCMAKE_PREFIX_PATH={tmp_path}/root/usr/local", f"-DCMAKE_CXX_COMPILER={compiler}"]
    printed([cmake, "-S", program, "-B", program / "build", *options], program)
    printed([cmake, "--build", program / "build"], program)
    first, second, third = printed([program / "build/program"], program).splitlines()
    assert elements_of(first) == elements_of(expected("digits", False))
    assert elements_of(second) == elements_of(expected("gru", False)) == elements_of(third)


CPP_PROGRAM = """
#include <cstdio>
#include <utility>

#include "digits.hpp"
#include "gru.hpp"

template <class View>
void fill(View view) {
  int k = 0;
  for (auto &element : view) element = static_cast<float>(k++ % 17) * 0.125f - 1.0f;
}

template <class View>
void print(const char *name, View view) {
  std::printf("%s:", name);
  for (std::size_t k = 0; k < view.size(); ++k) std::printf(" %.9g", static_cast<double>(view[k]));
  std::printf("\\n");
}

int main() {
  digits_cpp::model first;
  gru_cpp::model gru(2);
  if (!first || !gru) return 1;
  fill(first.input_image());
  digits_cpp::model digits = std::move(first);
  if (first || digits.run() != AOTC_OK) return 2;
  print("scores", digits.output_scores());
  fill(gru.input_x());
  for (int k = 0; k < 2; ++k) {
    if (gru.run() != AOTC_OK || gru.run() == AOTC_ERROR_STATE) return 3;
    gru.reset();
    if (gru.run() != AOTC_OK) return 4;
    print("y", gru.output_y());
    gru.reset();
  }
  return 0;
}
"""
