# SPDX-License-Identifier: Apache-2.0
"""WebAssembly: static libraries whose results have the bits of other targets. Samples of operators and fused kernels
run there, too (`ELSEWHERE` in `tests.targets.machines`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import aotc
from aotc.driver.toolchain import archiver_of_compiler, find_toolchain
from aotc.packaging.write_package import package_project
from aotc.tir.interpreter import run_kernel
from aotc.tir.target import get_target
from tests.cli.invoke import call, refused
from tests.codegen.cases import all_cases, difference
from tests.conftest import require_tool
from tests.e2e.projects import DIGITS, run
from tests.share import draw
from tests.targets.browser import document_of_page
from tests.targets.machines import machine
from tests.targets.native_targets import node_has_relaxed_simd

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


# --- relaxed SIMD

PAGE = """<!doctype html><body><script type="module">
import { Model, inputs, outputs } from "./net/index.js";
try {
  const model = await Model.load();
  const x = Float32Array.from({ length: inputs[0].length }, (_, k) => ((k * 7919) % 201) / 100 - 1);
  document.body.dataset.found = JSON.stringify(Array.from(model.run({ [inputs[0].name]: x })[outputs[0].name]));
} catch (error) {
  document.body.dataset.found = JSON.stringify(String(error));
}
</script></body>"""
DEPTH, COLUMNS = 64, 24


def int4_product() -> onnx.ModelProto:
    """Rows of float32 times weights of 4 bits, by products of integers."""
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 256, (COLUMNS, DEPTH // 32, 16)).astype(np.uint8)
    scales = rng.uniform(0.5, 1.5, COLUMNS * DEPTH // 32).astype(np.float32)
    facts = {"K": DEPTH, "N": COLUMNS, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = onnx.helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **facts)
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, size])
        for name, size in (("x", DEPTH), ("y", COLUMNS))
    ]
    constants = [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(scales, "s")]
    graph = onnx.helper.make_graph([node], "net", values[:1], values[1:], constants)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def relaxed_package(folder: Path) -> Path:
    """The npm package of the product for relaxed SIMD."""
    machine("wasm32")
    project = aotc.compile(int4_product(), output=folder / "project", name="net", target="wasm32-relaxed", build=False)
    sources = [path.read_text("utf-8") for path in (project.path / "src").glob("*.[ch]")]
    assert any("__builtin_wasm_relaxed_dot" in text for text in sources)
    return package_project(project.path, "npm", folder / "web" / "net").path


@pytest.mark.slow
def test_relaxed_dot_products_in_a_browser(tmp_path: Path) -> None:
    relaxed_package(tmp_path)
    (tmp_path / "web" / "index.html").write_text(PAGE, encoding="utf-8")
    text = document_of_page(tmp_path / "web", tmp_path)
    seen = re.search(r'data-found="(.*?)"', text)
    assert seen is not None, text[-2000:]
    x = (np.arange(2 * DEPTH, dtype=np.int64) * 7919 % 201 / 100 - 1).astype(np.float32).reshape(2, DEPTH)
    (expected,) = aotc.compile(int4_product(), target="c").session().run(None, {"x": x})
    found = np.array(json.loads(seen[1].replace("&quot;", '"')), np.float32).reshape(expected.shape)
    np.testing.assert_array_equal(found, expected)


def test_hosts_without_relaxed_dot_products_refuse_the_module(tmp_path: Path) -> None:
    package = relaxed_package(tmp_path)
    assert json.loads((package / "package.json").read_text("utf-8"))["engines"] == {"node": ">=22"}
    node = require_tool("node")
    script = """import { Model } from "./index.js";
console.log(await Model.load().then(() => "loaded", (error) => `${error.name}: ${error.message}`));"""
    (package / "load.mjs").write_text(script, encoding="utf-8")
    expected = "loaded" if node_has_relaxed_simd() else "CompileError"
    assert run([node, "load.mjs"], package).startswith(expected)
