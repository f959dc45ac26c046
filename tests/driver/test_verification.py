# SPDX-License-Identifier: Apache-2.0
"""Verification: agreement passes, an error fails and is located, rounding is distinguished from errors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.checking import model_reference_runs
from aotc.checking.float64_reference import evaluate_model_in_float64
from aotc.checking.input_generation import INPUT_SCALE_FACTORS, draw_random_inputs, read_npz_inputs, save_arrays_to_npz
from aotc.checking.model_reference_runs import make_onnx_reference, wrap_runner_to_return_none_on_error
from aotc.checking.output_comparison import (
    Comparison,
    compare_arrays,
    rejudge_against_float64_result,
    relative_error_against_float64,
)
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions
from aotc.driver.pipeline import Compilation
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType
from aotc.runtime.session import Session

FAST = {"cflags": ("-O1",)}


def small_model(slope: float = 0.1) -> onnx.ModelProto:
    """y = softmax(leaky_relu(x w))"""
    weight = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("LeakyRelu", ["product"], ["active"], name="active", alpha=slope),
        helper.make_node("Softmax", ["active"], ["y"], name="scores", axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def test_a_right_model_passes(tmp_path: Path) -> None:
    report = verify(small_model(), dims={"batch": 3}, seeds=2, **FAST)
    assert report.ok
    sources = [case.source for case in report.cases]
    assert sources[:2] == ["seed 0", "seed 1"]
    assert sorted(float(s.rpartition(" times ")[2]) for s in sources[2:]) == sorted(INPUT_SCALE_FACTORS)
    assert report.as_dict()["cases"][0]["outputs"][0]["name"] == "y"
    with (tmp_path / "in.npz").open("wb") as file:
        save_arrays_to_npz(file, {"x": np.ones((3, 6), np.float32)})
    assert verify(small_model(), dims={"batch": 3}, inputs=tmp_path / "in.npz", **FAST).cases[0].source == "in.npz"


def test_a_wrong_model_fails_and_the_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CompileOptions.start_compilation

    def wrong(options: CompileOptions, model: onnx.ModelProto, **more: Any) -> Compilation:
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        next(n for n in broken.graph.node if n.name == "active").attribute[0].f = 0.11
        return real(options, broken, **more)

    monkeypatch.setattr(CompileOptions, "start_compilation", wrong)
    report = verify(small_model(), dims={"batch": 3}, seeds=1, bisect=True, **FAST)
    assert not report.ok
    assert report.first_difference.startswith("node active (LeakyRelu), output 'active'")


def test_rounding_is_judged_by_the_exact_result() -> None:
    exact = np.array([1.0, 2.0, 3.0])
    reference = (exact + 3e-4).astype(np.float32)
    ours = (exact - 3e-4).astype(np.float32)
    noise = relative_error_against_float64(reference, exact)
    found = compare_arrays("y", ours, reference, 1e-5)
    assert not found.ok
    judged = rejudge_against_float64_result(found, ours, exact, noise)
    assert judged.ok and judged.exact == pytest.approx(judged.reference_exact, rel=0.01)
    wrong = (exact - 3e-2).astype(np.float32)
    assert not rejudge_against_float64_result(compare_arrays("y", wrong, reference, 1e-5), wrong, exact, noise).ok
    assert not rejudge_against_float64_result(
        found, ours, exact, reference_error=1e-9
    ).ok  # a reference that is right proves ours wrong
    assert not rejudge_against_float64_result(
        found, ours, exact, reference_error=0.7
    ).ok  # such an error is not one of rounding


def test_a_wrong_reference_neither_condemns_nor_excuses() -> None:
    """Sigmoids of -23 are 1e-10; a reference that flushes them to 0 has an error of several standard deviations."""
    exact = 1 / (1 + np.exp(-np.random.default_rng(0).uniform(-24, -22, 100)))
    reference = np.zeros(100, np.float32)
    noise = relative_error_against_float64(reference, exact)

    def judged(factor: float, rounding: float | None = 2e-7) -> Comparison:
        ours = (exact * factor).astype(np.float32)
        return rejudge_against_float64_result(compare_arrays("y", ours, reference, 1e-5), ours, exact, noise, rounding)

    assert noise > 1
    right = judged(1 + 1e-6)
    assert right.ok and right.reference_is_off and "the reference is off" in right.text
    assert f"of the reference {noise:.1e}" in right.text
    assert judged(1 + 1e-6, None).ok
    for factor in (1 + 1e-3, 1.1, 0.9):
        for rounding in (2e-7, None):
            wrong = judged(factor, rounding)
            assert not (wrong.ok or wrong.reference_is_off) and "the reference has" in wrong.reason


@pytest.mark.parametrize(("reference_error", "rounding", "limit"), [
    (1e-3, None, 4e-3),
    (1e-3, 1e-4, 4e-4),  # the reference is off by more than rounding
    (1e-4, 1e-3, 4e-4),
    (5e-2, None, 6.25e-2),
    (5e-2, 5e-5, 2e-4),
    (5e-2, 5e-2, 6.25e-2),
    (0.5, 1e-4, 4e-4),
    (0.5, None, 1e-5),
    (0.5, 0.5, 1e-5),
    (1e-9, 1e-9, 1e-5),
])  # fmt: skip
def test_the_error_that_rounding_explains(reference_error: float, rounding: float | None, limit: float) -> None:
    exact = np.random.default_rng(0).standard_normal(1000)
    exact /= exact.std()
    for error, accepted in ((0.97 * limit, True), (1.03 * limit, False)):
        ours = exact.copy()
        ours[7] += error
        found = replace(compare_arrays("y", ours, exact, 0.0), bound=1e-5)
        assert rejudge_against_float64_result(found, ours, exact, reference_error, rounding).ok is accepted


def test_a_second_evaluation_keeps_a_wrong_reference_from_excusing_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime gives results that are 2 % off, the compiled model ones that are 1 % off: both are wrong."""
    real_run, real_session = Session.run, model_reference_runs._onnxruntime_session_or_none

    class Off:
        def __init__(self, session: Any) -> None:
            self.session = session

        def run(self, *arguments: Any) -> list[Any]:
            return [y * np.float32(1.02) for y in self.session.run(*arguments)]

    monkeypatch.setattr(model_reference_runs, "_onnxruntime_session_or_none", lambda model: Off(real_session(model)))
    right = verify(small_model(), dims={"batch": 3}, seeds=1, check_compiler=False, **FAST)
    assert right.ok and right.cases[0].outputs[0].reference_is_off
    monkeypatch.setattr(Session, "run", lambda *a, **k: [y * np.float32(1.01) for y in real_run(*a, **k)])
    wrong = verify(small_model(), dims={"batch": 3}, seeds=1, check_compiler=False, **FAST)
    found = wrong.cases[0].outputs[0]
    assert wrong.verdict == "differ" and found.rounding is not None and found.rounding < 1e-5 < found.exact


def test_subnormal_results_may_be_flushed_to_zero() -> None:
    tiny = np.array([1e-40, 5e-39, 2e-42], np.float32)
    assert compare_arrays("y", np.zeros(3, np.float32), tiny, 1e-5).ok
    assert not compare_arrays("y", np.zeros(3, np.float32), tiny * np.float32(100), 1e-5).ok
    small = np.array([2e-7, 1e-6], np.float16)
    assert not compare_arrays("y", np.zeros(2, np.float16), small, 1e-2).ok


def test_the_exact_result_is_in_double_precision() -> None:
    model = small_model()
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    found = make_onnx_reference(model).exact({"x": x})
    assert found is not None and found["y"].dtype == np.float64
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    product = x.astype(np.float64) @ weight
    active = np.where(product < 0, np.float64(np.float32(0.1)) * product, product)
    e = np.exp(active - active.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found["y"], e / e.sum(axis=1, keepdims=True), rtol=1e-7)


def test_linear_upsampling_in_double_precision() -> None:
    node = helper.make_node("Upsample", ["x", "s"], ["y"], mode="linear")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4])
    scales = numpy_helper.from_array(np.array([1, 1, 2], np.float32), "s")
    model = helper.make_model(helper.make_graph([node], "up", [x], [y], [scales]))
    model.opset_import[0].version = 9
    found = evaluate_model_in_float64(model, {"x": np.array([[[0.0, 1.0]]])})["y"]
    assert found.tolist() == [[[0.0, 0.5, 1.0, 1.0]]] and model.graph.node[0].op_type == "Upsample"


def test_a_model_that_the_evaluator_cannot_run_has_no_exact_result() -> None:
    model = small_model()
    model.graph.node[1].op_type = "NoSuchOperator"
    inputs = {"x": np.zeros((1, 6))}
    assert wrap_runner_to_return_none_on_error(partial(evaluate_model_in_float64, small_model()))(inputs) is not None
    assert wrap_runner_to_return_none_on_error(partial(evaluate_model_in_float64, model))(inputs) is None


def test_inputs_come_from_files_by_name(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    types = {"file": TensorType((2,), "float32"), "a/b:0": TensorType((), "int64")}
    arrays = draw_random_inputs(types, 0)
    with path.open("wb") as file:
        save_arrays_to_npz(file, arrays)
    read = read_npz_inputs(path, types)
    assert all(np.array_equal(read[n], arrays[n]) for n in types)
    with pytest.raises(AotcError, match="has no input 'other'"):
        read_npz_inputs(path, {"other": types["file"]})
    path.write_bytes(b"not a zip file")
    with pytest.raises(AotcError, match="cannot read"):
        read_npz_inputs(path, types)


def test_an_unpinned_dimension_is_named() -> None:
    with pytest.raises(AotcError, match="batch"):
        verify(small_model(), **FAST)


def test_old_models_that_state_no_operator_set_have_a_reference() -> None:
    """ONNX Runtime and onnx's evaluator want one: it is 1."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "old", ends[:1], ends[1:]))
    del model.opset_import[:]
    model.ir_version = 1
    assert verify(model, cflags=("-O0",)).ok


def test_a_model_that_no_reference_loads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no such node")

    monkeypatch.setattr("onnx.reference.ReferenceEvaluator", fail)
    model = helper.make_model(helper.make_graph([], "empty", [], []))
    with pytest.raises(AotcError, match="loads the model: no such node"):
        model_reference_runs._evaluator_of_onnx(model)
