# SPDX-License-Identifier: Apache-2.0
"""Models compiled for GPUs, from `aotc.compile` and from the command line; they run on an emulated GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import aotc
from aotc.driver import nvrtc
from aotc.driver.compile import CompileOptions
from aotc.driver.emulation import emulating
from aotc.ir.diagnostics import AotcError
from tests.cli.invoke import call
from tests.conftest import missing

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[2, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[2, 4] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
  r = Relu(c)
  p = GlobalAveragePool(r)
  f = Flatten(p)
  y = Softmax(f)
}
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
    made = CompileOptions(target="cuda", emulated=True, output=tmp_path / "out").compiled(model)
    expected = aotc.compile(model, target="c").session().run(None, arrays())
    np.testing.assert_allclose(made.session().run(None, arrays())[0], expected[0], rtol=1e-5)
    with emulating():
        np.testing.assert_allclose(aotc.load(tmp_path / "out", device=0).run(None, arrays())[0], expected[0], rtol=1e-5)
    launches = [(row["grid"], row["block"]) for row in made.metadata["steps"]]
    assert launches and all(grid >= 1 and block >= 1 for grid, block in launches)


def test_each_model_of_a_process_has_its_own_kernels() -> None:
    """Which have the names of other models' kernels, too."""
    x, sessions = np.float32([0.25, 4]), []
    for op in ("Sqrt", "Neg", "Abs"):
        text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[2] x) => (float[2] y) {{ y = {op}(x) }}'
        made = CompileOptions(target="cuda", emulated=True).compiled(parser.parse_model(text))
        sessions.append(made.session())
    found = [session.run(None, {"x": x})[0].tolist() for session in sessions]
    assert found == [[0.5, 2], [-0.25, -4], [0.25, 4]]


def test_verify_says_what_ran_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    done = call("verify", model, "--target", "cuda", "--seeds", "1")
    assert done.code == 0, done.err
    assert "run on an emulated GPU" in done.out


def test_code_for_the_chosen_architectures(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        nvrtc.find_nvrtc()
    except AotcError:
        missing("NVRTC")
    made = aotc.compile(model, target="cuda", cuda_arch=[90, 80], output=tmp_path / "out")
    assert list(made.metadata["device"]["code_bytes"]) == ["compute_80", "sm_80", "sm_90"]
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    with pytest.raises(AotcError, match="the driver of the GPU cannot be loaded"):
        made.session()


def test_without_nvrtc_nothing_is_written(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc, "find_spec", lambda _: None)
    with pytest.raises(AotcError, match="NVRTC, which makes code for GPUs, is not installed"):
        aotc.compile(model, target="cuda", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_there_is_no_c_compiler_to_check(model: Path) -> None:
    with pytest.raises(AotcError, match="nothing of kernels for GPUs"):
        aotc.compile(model, target="cuda", check_compiler=True)
