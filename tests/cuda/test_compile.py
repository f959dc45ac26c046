# SPDX-License-Identifier: Apache-2.0
"""Models compiled for GPUs by `aotc.compile` and by the command line; they run on an emulated GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import aotc
from aotc.driver import nvrtc
from aotc.driver.compile import CompileOptions
from aotc.driver.cuda_emulation import run_models_on_fake_gpu
from aotc.driver.toolchain import ToolchainFactory
from aotc.ir.diagnostics import AotcError
from aotc.measuring.tuning import CandidateTimes, JobResults, TuningJob, tune_contractions
from aotc.reporting.text_tables import describe_register_spills
from tests.cli.invoke import call
from tests.conftest import skip_or_fail_without

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[2, 4] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
  r = Relu(c)
  p = GlobalAveragePool(r)
  f = Flatten(p)
  y = Softmax(f)
}
"""

PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[64, 48] x, float[48, 80] w) => (float[64, 80] y) { y = MatMul(x, w) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(NET), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {"x": (2, 3, 8, 8), "w": (4, 3, 3, 3), "b": (4,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_an_emulated_gpu_computes_what_processors_do(model: Path, tmp_path: Path) -> None:
    made = CompileOptions(target="cuda", emulated=True, output=tmp_path / "out").compile_model(model)
    expected = aotc.compile(model, target="c").session().run(None, arrays())
    np.testing.assert_allclose(made.session().run(None, arrays())[0], expected[0], rtol=1e-5)
    with run_models_on_fake_gpu():
        np.testing.assert_allclose(aotc.load(tmp_path / "out", device=0).run(None, arrays())[0], expected[0], rtol=1e-5)
    launches = [(row["grid"], row["block"]) for row in made.metadata["steps"]]
    assert launches and all(grid >= 1 and block >= 1 for grid, block in launches)


def test_each_model_of_a_process_has_its_own_kernels() -> None:
    """Which have the names of other models' kernels, too."""
    x, sessions = np.float32([0.25, 4]), []
    for op in ("Sqrt", "Neg", "Abs"):
        text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[2] x) => (float[2] y) {{ y = {op}(x) }}'
        made = CompileOptions(target="cuda", emulated=True).compile_model(parser.parse_model(text))
        sessions.append(made.session())
    found = [session.run(None, {"x": x})[0].tolist() for session in sessions]
    assert found == [[0.5, 2], [-0.25, -4], [0.25, 4]]


def test_verify_says_what_ran_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no driver, and no NVRTC either."""
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    monkeypatch.setattr(nvrtc, "find_spec", lambda _: None)
    done = call("verify", model, "--target", "cuda", "--seeds", "1")
    assert done.code == 0, done.err
    assert "run on an emulated GPU" in done.out
    assert call("inspect", model, "--target", "cuda").code == 0


def test_code_for_the_chosen_architectures(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        nvrtc.find_nvrtc_compiler()
    except AotcError:
        skip_or_fail_without("NVRTC")
    made = aotc.compile(model, target="cuda", cuda_arch=[90, 80], output=tmp_path / "out")
    device = made.metadata["device"]
    assert list(device["code_bytes"]) == ["compute_80", "sm_80", "sm_90"]
    assert list(device["kernels"]) == ["sm_80", "sm_90"]
    names = {row["kernel"] for row in made.metadata["steps"]}
    for kernels in device["kernels"].values():
        assert kernels.keys() == names
        assert all(row["registers"] > 0 < row["code_bytes"] and 0 < row["occupancy"] <= 1 for row in kernels.values())
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    with pytest.raises(AotcError, match="the driver of the GPU cannot be loaded"):
        made.session()
    kept = {path: path.read_bytes() for path in (tmp_path / "out/src").glob("*_[0-9]*")}
    for path in kept:
        path.write_bytes(b"")
    subprocess.run(["make", "-s", "cubins", "NVCC=", f"PYTHON={sys.executable}"], cwd=tmp_path / "out", check=True)
    assert len(kept) == 3 and all(path.read_bytes() == data for path, data in kept.items())
    asked = subprocess.run(["make", "-n", "cubins"], cwd=tmp_path / "out", check=True, capture_output=True, text=True)
    assert "nvcc --fmad=false" in asked.stdout and "-cubin -arch=sm_90 src/" in asked.stdout
    shown = call("inspect", made.library).out
    head, *rows = (line.split() for line in shown[: shown.index("\n\n")].splitlines())
    columns = ("sm_80", "blocks", "threads", "registers", "shared", "local", "held", "occupancy", "code")
    assert tuple(head) == columns and len(rows) == len(names)
    for name, _, _, registers, shared, local, held, occupancy, code in rows:
        row = device["kernels"]["sm_80"][f"{made.metadata['name']}_{name}"]
        assert (int(registers), int(shared), int(local)) == (row["registers"], row["shared_bytes"], row["local_bytes"])
        assert (int(held), occupancy) == (row["resident_blocks"], f"{row['occupancy']:.0%}")
        assert int(code) == row["code_bytes"]
    assert "for CUDA 12.0 or newer" in shown and "spill" not in shown
    assert json.loads(call("inspect", tmp_path / "out", "--json").out) == made.metadata
    for row in device["kernels"]["sm_90"].values():
        row["local_bytes"] = 40
    assert describe_register_spills(made.metadata).count("(40 bytes of a thread)") == len(names)


def test_without_nvrtc_nothing_is_written(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "find_spec", lambda _: None)
    with pytest.raises(AotcError, match="NVRTC, NVIDIA's run-time compiler for GPU code, is not installed"):
        aotc.compile(model, target="cuda", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A product of matrices, which tiles of thread blocks compute."""
    onnx.save(parser.parse_model(PRODUCT), tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


def test_tilings_for_gpus_are_ranked(product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their estimated cycles: nothing is measured or recorded."""
    monkeypatch.setenv("AOTC_TUNING_STORE", str(tmp_path / "tuning"))
    shown = call("tune", product, "--target", "cuda").out
    assert "ranked by estimated cycles: nothing was measured or recorded" in shown
    report = json.loads(call("tune", product, "--target", "cuda", "--trials", 3, "--json").out)
    assert (report["measured"], report["ranked"], report["store"]) == (0, len(report["rows"]), None)
    for row in report["rows"]:
        cycles = list(row["estimated_cycles"].values())
        assert cycles == sorted(cycles) and 0 < len(cycles) <= 3 and row["candidate"] in row["estimated_cycles"]
        assert row["candidate"] in shown
    assert not (tmp_path / "tuning").exists()


def test_records_for_gpus_apply_without_a_device(product: Path, tmp_path: Path) -> None:
    """The results of a runner choose tilings of a later compilation."""

    def last_is_fastest(jobs: Sequence[TuningJob], _: ToolchainFactory) -> JobResults:
        for job in jobs:
            yield job, CandidateTimes("a GPU", {name: 1 / (k + 1) for k, name in enumerate(job.kernels)})

    store = tmp_path / "records"
    report = tune_contractions(product, target="cuda", store=store, trials=2, runner=last_is_fastest)
    assert report["measured"] == report["contractions"] > 0
    texts = []
    for name, tuning in (("plain", False), ("tuned", str(store))):
        options = CompileOptions(target="cuda", build=False, tuning=tuning)
        (program,) = options.start_compilation(product).scheduled_programs
        texts.append("".join(str(kernel.body) for kernel in program.distinct_kernels))
        assert texts[-1], name
    assert texts[0] != texts[1]


def test_there_is_no_c_compiler_to_check(model: Path, tmp_path: Path) -> None:
    arguments = (model, "-o", tmp_path / "net", "--target", "cuda", "--check-compiler", "--json")
    (said,) = json.loads(call("compile", *arguments).out)["unchecked"]
    assert said == "the C compiler was not checked for cuda: it does not compile kernels for GPUs"


HALVES = """<ir_version: 8, opset_import: ["" : 17]>
net (TYPE[2, 16, 12, 12] x, TYPE[32, 16, 3, 3] w, TYPE[320, 24] v) => (TYPE[10, 24] y) {
  c = Conv(x, w)
  r = Relu(c)
  s = Constant<value = int64[2] {20, 320}>()
  f = Reshape(r, s)
  m = MatMul(f, v)
  t = Constant<value = int64[3] {10, 2, 24}>()
  g = Reshape(m, t)
  y = ReduceMean<axes = [1], keepdims = 0>(g)
}
"""


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_models_that_matrix_instructions_multiply(dtype: str, tmp_path: Path) -> None:
    """Matrix instructions multiply float16, and float32 as TF32 if `compile.tf32` is set."""
    onnx.save(parser.parse_model(HALVES.replace("TYPE", dtype)), tmp_path / "net.onnx")
    options = CompileOptions(target="cuda", emulated=True, config={"compile.tf32": True}, output=tmp_path / "out")
    made = options.compile_model(tmp_path / "net.onnx")
    text = (tmp_path / "out" / "src" / "net.cu").read_text(encoding="utf-8")
    kernels = text.split('extern "C" __global__')[1:]
    assert sum(re.search(r"^ +aotc_mma_float\d\d\(", one, re.MULTILINE) is not None for one in kernels) == 2
    rng = np.random.default_rng(6)
    shapes = {"x": (2, 16, 12, 12), "w": (32, 16, 3, 3), "v": (320, 24)}
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    values = {name: rng.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
    expected = aotc.compile(tmp_path / "net.onnx", target="c").session().run(None, values)[0]
    (y,) = made.session().run(None, values)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
