# SPDX-License-Identifier: Apache-2.0
"""WebAssembly: static libraries whose results have the bits of other targets. Samples of operators and fused kernels
run there, too (`ELSEWHERE` in `tests.targets.machines`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.toolchain import archiver_of_compiler, find_toolchain
from aotc.tir.interpreter import run_kernel
from aotc.tir.target import get_target
from tests.cli.invoke import call, refused
from tests.codegen.cases import all_cases, difference
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, run
from tests.share import draw
from tests.targets.machines import machine

MAIN = """
#include <stdio.h>
#include "digits.h"
static _Alignas(64) unsigned char workspace[DIGITS_WORKSPACE_BYTES];
int main(void) {
  static float image[64], scores[10];
  const digits_inputs in = {image};
  const digits_outputs out = {scores};
  for (int k = 0; k < 64; ++k) image[k] = (float)(k % 17) / 16;
  if (digits_run(&in, &out, workspace, NULL) != AOTC_OK) return 1;
  for (int k = 0; k < 10; ++k) printf("%a\\n", (double)scores[k]);
  return 0;
}
"""


@pytest.fixture(autouse=True)
def _no_cc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)


def test_operations_agree_with_the_interpreter(tmp_path: Path) -> None:
    here = machine("wasm32")
    cases = draw(all_cases(), 120, "wasm32")
    results = here.run_kernels([(c.kernel, c.inputs) for c in cases], tmp_path, "-O1")
    problems = [difference(c, r[0], run_kernel(c.kernel, c.inputs)[0]) for c, r in zip(cases, results, strict=True)]
    assert not any(problems), "\n".join(filter(None, problems))


@pytest.mark.parametrize("accuracy", ["reproducible", "fast"])
def test_the_library_has_the_results_of_portable_c(accuracy: str, tmp_path: Path) -> None:
    here = machine("wasm32")
    (tmp_path / "main.c").write_text(MAIN, encoding="utf-8")
    texts = []
    for target, cc in (("wasm32", here.compiler), ("c", [require_tool("gcc")])):
        model = aotc.compile(DIGITS, output=tmp_path / target, target=target, environment="bare", accuracy=accuracy)
        program = tmp_path / f"{target}.program"
        run([*cc, "-std=c11", "-I", model.path / "include", "main.c", model.library, "-lm", "-o", program], tmp_path)
        texts.append(here.run(program) if target == "wasm32" else run([program], tmp_path))
    wasm, portable = (np.array([float.fromhex(word) for word in text.split()]) for text in texts)
    assert wasm.size == 10 and abs(wasm.sum() - 1) < 1e-5
    if accuracy == "reproducible":
        assert texts[0] == texts[1]
    np.testing.assert_allclose(wasm, portable, rtol=1e-5)


def test_the_makefile_builds_the_library(tmp_path: Path) -> None:
    machine("wasm32")
    project = aotc.compile(DIGITS, output=tmp_path / "net", name="net", target="wasm32", build=False)
    toolchain = find_toolchain(target=get_target("wasm32"))
    tools = [f"CC={' '.join(toolchain.cc)}", f"AR={archiver_of_compiler(toolchain)}"]
    run([require_tool("make"), "-s", *tools], project.path)
    assert b"net_run" in (project.path / "build" / "libnet.a").read_bytes()
    assert "gcc or\nclang, since its kernels have vectors" in (project.path / "README.md").read_text("utf-8")


def test_kernels_refuse_flags_without_vectors(tmp_path: Path) -> None:
    compiler = machine("wasm32").compiler
    project = aotc.compile(DIGITS, output=tmp_path / "net", name="net", target="wasm32", build=False)
    with pytest.raises(AssertionError, match="need vectors of 128 bits: compile with -msimd128"):
        run([*compiler, "-Iinclude", "-Isrc", "-c", "src/net_kernels_0.c", "-o", tmp_path / "x.o"], project.path)


def test_commands(tmp_path: Path) -> None:
    text = refused("compile", DIGITS, "-o", tmp_path / "a", "--target", "wasm32", env={"PATH": "/nowhere"})
    assert "clang-19 lld-19 wasi-libc" in text
    assert "is for wasm32" in refused("verify", DIGITS, "--target", "wasm32")
    machine("wasm32")
    made = call("compile", DIGITS, "-o", tmp_path / "b", "--target", "wasm32")
    assert made.code == 0 and "C99 with vectors" in made.out
