# SPDX-License-Identifier: Apache-2.0
"""Verification: agreement passes, an error fails and is found, rounding is told from errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.checking.compare import compare, exact_error, judge_by_exact
from aotc.checking.exact import run_in_double
from aotc.checking.inputs import random_inputs, read_inputs, save_arrays
from aotc.checking.reference import onnx_reference, or_none
from aotc.checking.verify import verify
from aotc.driver.compilation import Compilation
from aotc.driver.compile import CompileOptions
from aotc.ir.diagnostics import AotcError
from aotc.ir.types import TensorType

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
    assert [case.source for case in report.cases] == ["seed 0", "seed 1"]
    assert report.as_dict()["cases"][0]["outputs"][0]["name"] == "y"
    with (tmp_path / "in.npz").open("wb") as file:
        save_arrays(file, {"x": np.ones((3, 6), np.float32)})
    assert verify(small_model(), dims={"batch": 3}, inputs=tmp_path / "in.npz", **FAST).cases[0].source == "in.npz"


def test_a_wrong_model_fails_and_the_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CompileOptions.compilation

    def wrong(options: CompileOptions, model: onnx.ModelProto, **more: Any) -> Compilation:
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        next(n for n in broken.graph.node if n.name == "active").attribute[0].f = 0.11
        return real(options, broken, **more)

    monkeypatch.setattr(CompileOptions, "compilation", wrong)
    report = verify(small_model(), dims={"batch": 3}, seeds=1, bisect=True, **FAST)
    assert not report.ok
    assert report.first_difference.startswith("node active (LeakyRelu), output 'active'")


def test_rounding_is_judged_by_the_exact_result() -> None:
    exact = np.array([1.0, 2.0, 3.0])
    reference = (exact + 3e-4).astype(np.float32)
    ours = (exact - 3e-4).astype(np.float32)
    noise = exact_error(reference, exact)
    found = compare("y", ours, reference, 1e-5)
    assert not found.ok
    judged = judge_by_exact(found, ours, exact, noise)
    assert judged.ok and judged.exact == pytest.approx(judged.reference_exact, rel=0.01)
    wrong = (exact - 3e-2).astype(np.float32)
    assert not judge_by_exact(compare("y", wrong, reference, 1e-5), wrong, exact, noise).ok
    assert not judge_by_exact(found, ours, exact, noise=1e-9).ok  # a reference that is right proves ours wrong
    assert not judge_by_exact(found, ours, exact, noise=0.7).ok  # an evaluator that far off cannot judge


def test_the_exact_result_is_in_double_precision() -> None:
    model = small_model()
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    found = onnx_reference(model).exact({"x": x})
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
    found = run_in_double(model, {"x": np.array([[[0.0, 1.0]]])})["y"]
    assert found.tolist() == [[[0.0, 0.5, 1.0, 1.0]]] and model.graph.node[0].op_type == "Upsample"


def test_a_model_that_the_evaluator_cannot_run_has_no_exact_result() -> None:
    model = small_model()
    model.graph.node[1].op_type = "NoSuchOperator"
    inputs = {"x": np.zeros((1, 6))}
    assert or_none(partial(run_in_double, small_model()))(inputs) is not None
    assert or_none(partial(run_in_double, model))(inputs) is None


def test_inputs_come_from_files_by_name(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    types = {"file": TensorType((2,), "float32"), "a/b:0": TensorType((), "int64")}
    arrays = random_inputs(types, 0)
    with path.open("wb") as file:
        save_arrays(file, arrays)
    read = read_inputs(path, types)
    assert all(np.array_equal(read[n], arrays[n]) for n in types)
    with pytest.raises(AotcError, match="has no input 'other'"):
        read_inputs(path, {"other": types["file"]})
    path.write_bytes(b"not a zip file")
    with pytest.raises(AotcError, match="cannot read"):
        read_inputs(path, types)


def test_an_unpinned_dimension_is_named() -> None:
    with pytest.raises(AotcError, match="batch"):
        verify(small_model(), **FAST)
