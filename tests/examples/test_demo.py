# SPDX-License-Identifier: Apache-2.0
"""The demo: its report, and its exit code if results agree, differ, or cannot be computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from aotc.checking.model_reference_runs import Reference
from examples import demo
from tests.conftest import require_tool, skip_or_fail_without
from tests.examples.conftest import ROOT

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module", autouse=True)
def make() -> str:
    return require_tool("make")


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(demo.main, [str(a) for a in arguments])


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """out = in + in, and flags = in < in, over float16[batch, 3]."""
    declare = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["in", "in"], ["out"]), helper.make_node("Less", ["in", "out"], ["flags"])],
        "dynamic",
        [declare("in", TensorProto.FLOAT16, ["batch", 3])],
        [declare("out", TensorProto.FLOAT16, ["batch", 3]), declare("flags", TensorProto.BOOL, ["batch", 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "dynamic model.onnx")
    return tmp_path / "dynamic model.onnx"


def test_resnet18(tmp_path: Path) -> None:
    done = invoke("--output", tmp_path / "net", "--runs", "2")
    assert done.exit_code == 0, done.output
    assert "C and Python agree with onnxruntime" in done.output
    for fact in (
        "FuseOps",
        "all passes",
        "arena",
        "libresnet18.so",
        "1.827 G",
        "from C ",
        "from Python ",
        "of the time of ONNX Runtime",
    ):
        assert fact in done.output


def test_model_of_the_user(tmp_path: Path) -> None:
    done = invoke("--model", DIGITS, "--output", tmp_path / "net", "--runs", "2")
    assert done.exit_code == 0, done.output
    assert "C and Python agree with" in done.output
    assert (tmp_path / "net" / "build" / "digits_example").exists()


def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is emulated."""
    monkeypatch.setenv("AOTC_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    arguments = ("--target", "cuda", "--cuda-arch", "90", "--output", tmp_path / "net")
    done = invoke("--model", DIGITS, *arguments)
    if "compiler for GPU code, is not installed" in done.output:
        skip_or_fail_without("NVRTC")
    assert done.exit_code == 0, done.output
    assert "sm_90 " in done.output and "an emulated GPU agrees with" in done.output


def test_second_run_takes_the_place_of_the_first(tmp_path: Path) -> None:
    arguments = ("--model", DIGITS, "--output", tmp_path / "net", "--runs", "1")
    assert [invoke(*arguments).exit_code for _ in range(2)] == [0, 0]


def test_given_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", image=np.zeros((1, 1, 8, 8), np.float32))
    arguments = ("--model", DIGITS, "--output", tmp_path / "net", "--runs", "1", "--inputs", tmp_path / "in.npz")
    assert invoke(*arguments).exit_code == 0


def test_dynamic_dimension_is_asked_for(dynamic: Path, tmp_path: Path) -> None:
    done = invoke("--model", dynamic, "--output", tmp_path / "net")
    assert done.exit_code == 2
    assert "batch" in done.output and "Traceback" not in done.output
    done = invoke("--model", dynamic, "--output", tmp_path / "net", "--dim", "batch=2", "--runs", "1")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("where", ["C", "Python"])
def test_a_difference_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    compare_all = demo.compare_all

    def compare_wrong(made: dict[str, dict[str, Any]], *more: Any) -> dict[str, Sequence[Any]]:
        off = {w: {n: (a + 1e-3 * (w == where)).astype(a.dtype) for n, a in o.items()} for w, o in made.items()}
        return dict(compare_all(off, *more))

    monkeypatch.setattr(demo, "compare_all", compare_wrong)
    done = invoke("--model", DIGITS, "--output", tmp_path / "net", "--runs", "1")
    assert done.exit_code == 1
    assert f"{where} DIFFER" in done.output
    assert done.output.count(" ok") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nothing.onnx"), "nothing.onnx"),
        (("--dim", "batch=1"), "--model"),
        (("--model", str(DIGITS), "--cc", "no-such-compiler"), "no-such-compiler"),
        (("--model", str(DIGITS), "--cc", "false"), "make failed"),
        (("--model", str(DIGITS), "--inputs", os.devnull), os.devnull),
    ],
)
def test_user_errors(tmp_path: Path, arguments: Sequence[str], message: str) -> None:
    done = invoke(*arguments, "--output", tmp_path / "net")
    assert done.exit_code == 2, done.output
    assert message in done.output and "Traceback" not in done.output


def test_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "Makefile").write_text("mine", encoding="utf-8")
    done = invoke("--model", DIGITS, "--output", tmp_path)
    assert done.exit_code == 2 and "Makefile" in done.output
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "notes.txt": "mine",
        "Makefile": "mine",
    }


@pytest.mark.parametrize(
    ("own_error", "known", "accepted"), [(1e-4, True, True), (1e-2, True, False), (1e-4, False, False)]
)
def test_rounding_is_judged_by_the_exact_result(own_error: float, known: bool, accepted: bool) -> None:
    exact = np.random.default_rng(0).standard_normal(1000)
    wrong, ours = ((exact * (1 + error)).astype(np.float32) for error in (1e-3, own_error))
    reference = Reference("another", lambda _: {"y": wrong}, lambda _: {"y": exact} if known else None)
    ((found,),) = demo.compare_all({"C": {"y": ours}}, {}, {"y": wrong}, reference, 1e-5).values()
    assert found.ok == accepted
    assert ("float64" in found.text) == known
