# SPDX-License-Identifier: Apache-2.0
"""Verdicts of verifications: outputs without information are inconclusive, constant outputs give a warning."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from aotc.checking.output_comparison import why_comparison_is_weak, why_no_comparison_is_possible
from aotc.checking.verify import verify
from examples import demo
from tests.cli.invoke import call
from tests.conftest import require_tool

FLAGS = ("--cflags", "-O1", "--target", "c", "--no-check-compiler")


def model_of(*nodes: onnx.NodeProto, dtype: int = TensorProto.FLOAT, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from x to y, four elements each."""
    x, y = (helper.make_tensor_value_info(n, t, [4]) for n, t in (("x", dtype), ("y", TensorProto.FLOAT)))
    known = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    model = helper.make_model(helper.make_graph(nodes, "net", [x], [y], known))
    model.opset_import[0].version, model.ir_version = 17, 8
    return model


NODE = helper.make_node
#: Models that no random inputs suit, with what is said of the output.
ROOT_OF_NEGATIVE = model_of(
    NODE("Abs", ["x"], ["a"]), NODE("Sub", ["m", "a"], ["b"]), NODE("Sqrt", ["b"], ["y"]), m=np.float32(-1)
)
ALWAYS_INFINITE = model_of(
    NODE("Mul", ["x", "z"], ["a"]), NODE("Add", ["a", "i"], ["y"]), z=np.float32(0), i=np.float32(np.inf)
)
NOTHING = {"NaN": (ROOT_OF_NEGATIVE, "is NaN throughout"), "infinite": (ALWAYS_INFINITE, "is infinite throughout")}


@pytest.mark.parametrize("kind", NOTHING)
def test_outputs_without_a_finite_element_are_inconclusive(kind: str, tmp_path: Path) -> None:
    model, words = NOTHING[kind]
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    report = verify(model, seeds=2, target="c", cflags=("-O1",), check_compiler=False)
    assert (report.verdict, report.ok) == ("inconclusive", False)
    assert report.inconclusive == (f"output 'y' {words}",)
    said = call("verify", path, *FLAGS)
    assert said.code == 3 and f"inconclusive: output 'y' {words}" in said.out
    assert "INCONCLUSIVE" in said.out and "agree" not in said.out and "--input-range" in said.out
    said = call("verify", path, "--json", *FLAGS)
    data = json.loads(said.out)
    assert said.code == 3 and data["verdict"] == "inconclusive" and not data["ok"] and data["inconclusive"]


def test_the_demo_is_inconclusive_too(tmp_path: Path) -> None:
    require_tool("make")
    onnx.save(NOTHING["NaN"][0], tmp_path / "net.onnx")
    arguments = ["--model", tmp_path / "net.onnx", "--output", tmp_path / "project", "--runs", "1", "--target", "c"]
    done = CliRunner().invoke(demo.main, [str(a) for a in arguments])
    assert done.exit_code == 3, done.output
    assert "INCONCLUSIVE" in done.output and "is NaN throughout" in done.output and "agree" not in done.output


def test_a_range_of_the_caller_saves_what_can_be_saved(tmp_path: Path) -> None:
    """sqrt(sum over w x) of weights of both signs: no rule knows that all elements of x must be equal."""
    weights = np.array([[3, -1, -1, 0]] * 4, np.float32).T
    nodes = NODE("MatMul", ["x", "w"], ["a"]), NODE("Sub", ["a", "c"], ["b"]), NODE("Sqrt", ["b"], ["y"])
    model = model_of(*nodes, w=weights, c=np.full(4, 50, np.float32))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    assert call("verify", path, *FLAGS).code == 3
    said = call("verify", path, "--input-range", "x=100:101", *FLAGS)
    assert said.code == 0 and "all outputs agree" in said.out


def test_an_output_that_is_empty_is_inconclusive() -> None:
    model = model_of(NODE("Slice", ["x", "zero", "zero"], ["y"]), zero=np.array([0], np.int64))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 0
    report = verify(model, seeds=1, target="c", cflags=("-O1",), check_compiler=False)
    assert report.inconclusive == ("output 'y' has no elements",)


def test_constant_outputs_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model_of(NODE("Mul", ["x", "zero"], ["y"]), zero=np.float32(0)), path)
    said = call("verify", path, *FLAGS)
    assert said.code == 0 and "warning: output 'y' is constant: each of 12 elements is" in said.out
    assert json.loads(call("verify", path, "--json", *FLAGS).out)["warnings"]


def test_a_difference_outweighs_what_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NOTHING["NaN"][0]
    monkeypatch.setattr("aotc.runtime.session.Session.run", lambda *_, **__: [np.zeros(4, np.float32)])
    report = verify(model, seeds=1, target="c", cflags=("-O1",), check_compiler=False)
    assert report.verdict == "differ" and report.inconclusive


def test_what_results_of_several_runs_say() -> None:
    nan, one = np.full(2, np.nan, np.float32), np.ones(2, np.float32)
    assert why_no_comparison_is_possible([nan, nan]) == "is NaN throughout"
    assert why_no_comparison_is_possible([nan, -np.inf * one]) == "is NaN or infinite throughout"
    assert why_no_comparison_is_possible([np.zeros((0, 3))]) == "has no elements"
    assert why_no_comparison_is_possible([nan, one]) == ""
    assert why_comparison_is_weak([nan, one]) == "has 2 of 4 elements that are NaN or infinite"
    assert why_comparison_is_weak([one, one]) == "is constant: each of 4 elements is 1"
    assert why_comparison_is_weak([one, 2 * one]) == why_comparison_is_weak([one[:1]]) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input-range", "z=0:1"), "there is no input 'z'"),
        (("--input-range", "x=1:0"), "ends before it begins"),
        (("--input-range", "x=a:b"), "is not of the form"),
        (("--input-range", "x=1"), "is not of the form"),
        (("--input-range", "x=0:inf"), "is not finite"),
        (("--input-range", "x=0:1", "--inputs", "in.npz"), "as well as a file of inputs"),
    ],
)
def test_ranges_that_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    onnx.save(model_of(NODE("Relu", ["x"], ["y"])), tmp_path / "net.onnx")
    said = call("verify", tmp_path / "net.onnx", *FLAGS, *arguments)
    assert said.code == 2 and message in " ".join(said.err.split())
