# SPDX-License-Identifier: Apache-2.0
"""npm packages: modules of WebAssembly that node runs, with the bits of C, and what their JavaScript refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from onnx import parser

import aotc
from aotc.packaging.package_information import PackageInformation
from aotc.packaging.write_package import package_project
from tests.conftest import require_tool
from tests.ecosystems.builders import BUILDERS
from tests.ecosystems.conftest import MODELS, Projects, model_of, output_line, printed
from tests.share import share
from tests.targets.machines import machine

INFORMATION = PackageInformation(
    name="@scope/digits", version="1.2.3", license="MIT", author="Zoë O'Hara <zoe@example.org>", description='"</a>'
)
CHECKS = """
import { readFile } from "node:fs/promises";
import { Model, inputs, outputs } from "./index.js";
const refused = (call) => {
  try { call(); return "nothing"; } catch (error) { return `${error.name}: ${error.message}`; }
};
const bytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString("hex");
const model = await Model.load();
const x = {};
for (const { name, type, length } of inputs) x[name] = new globalThis[type](length).fill(0.5);
const first = model.run(x), second = model.run(x);
model.reset();
const again = model.run(x);
const other = (await Model.load(new URL("./NAME.wasm", import.meta.url))).run(x);
const name = inputs[0].name, result = outputs[0].name;
console.log(JSON.stringify({
  inputs, outputs,
  runs: [first, second, again, other].map((run) => bytes(run[result])),
  module: WebAssembly.Module.imports(await WebAssembly.compile(await readFile("NAME.wasm"))),
  refused: [
    refused(() => model.run({})),
    refused(() => model.run({ ...x, [name]: new Int16Array(inputs[0].length) })),
    refused(() => model.run({ ...x, [name]: [1, 2] })),
    refused(() => model.run({ ...x, [name]: x[name].subarray(1) })),
  ],
}));
"""


def wasm_project(model: str, folder: Path, accuracy: str = "reproducible") -> Path:
    machine("wasm32")
    options = {"name": model, "state": MODELS[model][1], "accuracy": accuracy, "build": False}
    return aotc.compile(model_of(model), output=folder / "project", target="wasm32", **options).path


@pytest.fixture(autouse=True)
def _no_cc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.parametrize("model", share(MODELS, 1, always=["digits"]))
def test_the_module_has_the_bits_of_portable_c(model: str, tmp_path: Path) -> None:
    package = package_project(wasm_project(model, tmp_path), "npm", tmp_path / "npm", INFORMATION).path
    options = {"name": model, "state": MODELS[model][1], "accuracy": "reproducible", "build": False}
    native = aotc.compile(model_of(model), output=tmp_path / "c", target="c", environment="bare", **options).path
    single = package_project(native, "single-file", tmp_path / "single").path
    wasm, c = (
        output_line(BUILDERS[e](p, tmp_path)).split()[1:] for e, p in (("npm", package), ("single-file", single))
    )
    assert len(wasm) == len(c)
    # nine digits are all of a float32
    assert [f"{float(word):.9g}" for word in wasm] == [f"{float(word):.9g}" for word in c]
    about = json.loads((package / "package.json").read_text("utf-8"))
    assert (about["name"], about["version"], about["license"]) == ("@scope/digits", "1.2.3", "MIT")
    assert about["description"] == '"</a>' and about["author"] == INFORMATION.author
    assert all((package / file).exists() for file in [*about["files"], about["main"], about["types"]])
    # there are no sources whose flags matter
    assert "-ffast-math" not in (package / "README.md").read_text("utf-8")
    assert "-ffast-math" in (single / "README.md").read_text("utf-8")


@pytest.mark.parametrize("model", ["gru"])
def test_state_and_what_is_refused(model: str, tmp_path: Path) -> None:
    package = package_project(wasm_project(model, tmp_path), "npm", tmp_path / "npm").path
    (package / "checks.mjs").write_text(CHECKS.replace("NAME", model), encoding="utf-8")
    found = json.loads(printed([require_tool("node"), "checks.mjs"], package))
    first, second, again, other = found["runs"]
    assert first == again == other != second
    assert found["module"] == [] and [tensor["name"] for tensor in found["inputs"]] == ["x"]
    missing, wrong_type, no_array, short = found["refused"]
    length = found["inputs"][0]["length"]
    assert "TypeError: the inputs are x, not " in missing
    assert f"x is a Float32Array of {length} elements, not Int16Array of {length}" in wrong_type
    assert "not Array of 2" in no_array and f"not Float32Array of {length - 1}" in short


def test_what_cannot_be_an_npm_package(projects: Projects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(aotc.AotcError, match="contains a module of WebAssembly") as caught:
        package_project(projects("digits", True), "npm", tmp_path / "out")
    assert 'target="wasm32"' in str(caught.value)
    project = wasm_project("digits", tmp_path)
    with pytest.raises(aotc.AotcError, match="cannot contain code for wasm32"):
        package_project(project, "arduino", tmp_path / "out")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(aotc.AotcError, match="no C compiler for wasm32 found"):
        package_project(project, "npm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["module", "input"])
def test_names_that_the_source_of_exports_could_have(name: str, tmp_path: Path) -> None:
    """The C functions of a model, such as `module_run` and `input_run`, differ from the names of its exports."""
    machine("wasm32")
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      g (float[3] run, float[3] reset) => (float[3] y) { y = Sub (run, reset) }""")
    project = aotc.compile(model, output=tmp_path / "project", name=name, target="wasm32", build=False).path
    package = package_project(project, "npm", tmp_path / "npm").path
    assert output_line(BUILDERS["npm"](package, tmp_path)).split()[1:] == ["0", "0", "0"]


def test_the_compiler_of_a_package_can_be_named(tmp_path: Path) -> None:
    project = wasm_project("digits", tmp_path)
    with pytest.raises(aotc.AotcError, match="/nowhere/clang"):
        package_project(project, "npm", tmp_path / "out", cc="/nowhere/clang --target=wasm32-wasi")


def test_equal_projects_give_equal_bytes(tmp_path: Path) -> None:
    project = wasm_project("digits", tmp_path)
    folders = [package_project(project, "npm", tmp_path / name).path for name in ("a", "b")]
    first, second = ({p.name: p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders)
    assert first == second and len(first["digits.wasm"]) < 20_000
    assert not any(str(tmp_path).encode() in data for data in first.values())
