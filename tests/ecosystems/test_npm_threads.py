# SPDX-License-Identifier: Apache-2.0
"""npm packages of the target `wasm32-threads`: any number of threads gives the same bits, one thread runs where memory
cannot be shared, and a thread that fails ends the run.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import aotc
from aotc.packaging.write_package import package_project
from tests.conftest import require_tool
from tests.ecosystems.conftest import MODELS, model_of, printed
from tests.targets.browser import posted_by_page
from tests.targets.machines import machine

#: Prints a JSON object: for each number of threads, that of the model and the bits of several runs.
RUNS = """
import { Model, inputs, outputs } from "./index.js";
const x = {};
for (const { name, type, length } of inputs) {
  x[name] = new globalThis[type](length).map((_, k) => ((k * 7919) % 201) / 100 - 1);
}
const hex = (array) => Array.from(new Uint8Array(array.buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
export async function runs(threads, count) {
  const model = await Model.load(undefined, { threads });
  const seen = [];
  for (let round = 0; round < 2; ++round) {
    for (let k = 0; k < count; ++k) seen.push(hex(model.run(x)[outputs[0].name]));
    model.reset();
  }
  const found = { threads: model.threads, bits: [...new Set(seen.slice(0, count))], again: [...new Set(seen)] };
  model.close();
  return found;
}
"""
#: Prints the bits of four runs and of four after a reset, by one, two and three threads.
SEQUENCES = """
import { Model, inputs, outputs } from "./index.js";
const x = {};
for (const { name, type, length } of inputs) {
  x[name] = new globalThis[type](length).map((_, k) => ((k * 7919) % 201) / 100 - 1);
}
const bits = ({ buffer }) => Buffer.from(buffer).toString("hex");
const found = [];
for (const threads of [1, 2, 3]) {
  const model = await Model.load(undefined, { threads });
  const seen = [];
  for (let k = 0; k < 8; ++k) {
    if (k === 4) model.reset();
    seen.push(bits(model.run(x)[outputs[0].name]));
  }
  found.push(seen);
}
console.log(JSON.stringify(found));
process.exit(0);
"""
PAGE = """<!doctype html><body><script type="module">
const { runs } = await import("./runs.mjs");
const found = await runs(2, 20).catch((error) => String(error));
await fetch("/", { method: "POST", body: JSON.stringify([self.crossOriginIsolated, found]) });
</script></body>"""
#: Waits for a part of a second, in which a run begins.
LATE = "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);"
FAILURES = """
import { Model, inputs } from "./index.js";
const x = Object.fromEntries(inputs.map(({ name, length }) => [name, new Float32Array(length)]));
const refused = async (call) => {
  try { await call(); return "nothing"; } catch (error) { return `${error.name}: ${error.message}`; }
};
const numbers = [];
for (const threads of [0, 17, 1.5, "2"]) numbers.push(await refused(() => Model.load(undefined, { threads })));
const model = await refused(() => Model.load(undefined, { threads: 2 })).then(() => Model.load());
model.close();
const failing = await Model.load(undefined, { threads: 3 }).catch((error) => error.message);
const first = failing.run ? await refused(() => failing.run(x)) : failing;
const second = failing.run ? await refused(() => failing.run(x)) : "";
console.log(JSON.stringify({ numbers, closed: await refused(() => model.run(x)), first, second }));
"""


SHAPE = (4, 128, 32)


def network() -> onnx.ModelProto:
    """Attention of a layer: products whose rows are divided, and strips for which each thread has memory of its own."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
      net (float[4,128,32] x) => (float[4,128,10] y) {
        q = MatMul (x, w0)
        k = MatMul (x, w1)
        t = Transpose <perm = [0, 2, 1]> (k)
        s = MatMul (q, t)
        p = Softmax (s)
        c = MatMul (p, x)
        y = MatMul (c, w2)
      }""")
    rng = np.random.default_rng(5)
    weights = [rng.normal(0, 0.2, shape).astype(np.float32) for shape in ((32, 32), (32, 32), (32, 10))]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, f"w{k}") for k, value in enumerate(weights))
    return model


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CC", raising=False)
        machine("wasm32")
        folder = tmp_path_factory.mktemp("threads")
        options: dict[str, Any] = {"target": "wasm32-threads", "accuracy": "reproducible", "build": False}
        project = aotc.compile(network(), output=folder / "project", name="net", **options)
        header = (project.path / "include" / "net.h").read_text("utf-8")
        assert int(re.findall(r"THREAD_WORKSPACE_BYTES (\d+)", header)[0]) > 0
        made = package_project(project.path, "npm", folder / "npm").path
        (made / "runs.mjs").write_text(RUNS, encoding="utf-8")
        return made


@pytest.fixture
def expected() -> str:
    """The bits of the results by a library for another target."""
    x = (np.arange(np.prod(SHAPE)) * 7919 % 201 / 100 - 1).astype(np.float32).reshape(SHAPE)
    (y,) = aotc.compile(network(), target="c", accuracy="reproducible").session().run(None, {"x": x})
    return str(y.tobytes().hex())


def found_by_node(package: Path, before: str, threads: str) -> list[dict[str, Any]]:
    """What `runs` gives for some numbers of threads."""
    script = f"""{before}
const {{ runs }} = await import("./runs.mjs");
const found = [];
for (const threads of {threads}) found.push(await runs(threads, 30));
console.log(JSON.stringify(found));"""
    (package / "script.mjs").write_text(script, encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(printed([require_tool("node"), "script.mjs"], package))
    return found


def test_any_number_of_threads_gives_the_bits_of_one(package: Path, expected: str) -> None:
    found = found_by_node(package, "", "[1, 2, 3, 5]")
    assert found == [{"threads": n, "bits": [expected], "again": [expected]} for n in (1, 2, 3, 5)]


def test_threads_that_sleep_at_once(package: Path, expected: str) -> None:
    """As they do where there are more threads than processors."""
    one = 'Object.defineProperty(globalThis, "navigator", { value: { hardwareConcurrency: 1 } });'
    found = found_by_node(package, one, "[3]")
    assert found == [{"threads": 3, "bits": [expected], "again": [expected]}]


def test_one_thread_where_memory_cannot_be_shared(package: Path, expected: str) -> None:
    for obstacle in ("delete globalThis.SharedArrayBuffer;", "globalThis.crossOriginIsolated = false;"):
        assert found_by_node(package, obstacle, "[4]") == [{"threads": 1, "bits": [expected], "again": [expected]}]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_models_with_and_without_state(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any number of threads, results have the bits of the target wasm32; a state begins again by reset()."""
    monkeypatch.delenv("CC", raising=False)
    machine("wasm32")
    options = {"name": model, "state": MODELS[model][1], "accuracy": "reproducible", "build": False}
    found = {}
    for target in ("wasm32", "wasm32-threads"):
        project = aotc.compile(model_of(model), output=tmp_path / target, target=target, **options).path
        package = package_project(project, "npm", tmp_path / f"{target}-npm").path
        (package / "script.mjs").write_text(SEQUENCES, encoding="utf-8")
        found[target] = json.loads(printed([require_tool("node"), "script.mjs"], package))
    (one, *_), several = found["wasm32"], found["wasm32-threads"]
    assert several == [one] * 3 and len(set(one)) == (4 if MODELS[model][1] else 1)


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
def test_pages_with_and_without_shared_memory(isolated: bool, package: Path, expected: str, tmp_path: Path) -> None:
    (package / "index.html").write_text(PAGE, encoding="utf-8")
    found = {"threads": 2 if isolated else 1, "bits": [expected], "again": [expected]}
    assert json.loads(posted_by_page(package, tmp_path, isolated)) == [isolated, found]


@pytest.mark.parametrize(("worker", "first", "second"), [
    (None, "a worker cannot start: ", ""),
    (f"{LATE} throw new Error('broken'); //", "RuntimeError: ", "Error: the model was closed"),
])  # fmt: skip
def test_threads_that_fail(worker: str | None, first: str, second: str, package: Path, tmp_path: Path) -> None:
    shutil.copytree(package, tmp_path / "npm")
    script = tmp_path / "npm" / "worker.js"
    text = script.read_text("utf-8")
    script.unlink()
    if worker is not None:
        assert text.count("exports.work(part);") == 1
        script.write_text(text.replace("exports.work(part);", worker), encoding="utf-8")
    (tmp_path / "npm" / "failures.mjs").write_text(FAILURES, encoding="utf-8")
    found = json.loads(printed([require_tool("node"), "failures.mjs"], tmp_path / "npm"))
    assert all(re.fullmatch("RangeError: threads is a number from 1 to 16, not .*", text) for text in found["numbers"])
    assert found["first"].startswith(first) and found["second"] == second
    assert found["closed"] == "Error: the model was closed"


def test_the_package_says_what_it_needs(package: Path) -> None:
    about = json.loads((package / "package.json").read_text("utf-8"))
    assert all((package / file).exists() for file in about["files"]) and "worker.js" in about["files"]
    readme = (package / "README.md").read_text("utf-8")
    assert "Cross-Origin-Embedder-Policy" in readme and "imports nothing" not in readme
    assert "readonly threads: number;" in (package / "index.d.ts").read_text("utf-8")


def test_there_is_no_library(tmp_path: Path) -> None:
    with pytest.raises(aotc.AotcError, match="there is no library for wasm32-threads") as caught:
        aotc.compile(network(), output=tmp_path / "net", target="wasm32-threads")
    assert "build=False" in str(caught.value) and not (tmp_path / "net").exists()
