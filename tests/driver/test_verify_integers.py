# SPDX-License-Identifier: Apache-2.0
"""Integers that differ from ONNX Runtime's are judged by the model's definition in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aotc.checking.dequantized_model import expand_quantized_operators_to_qdq, remove_quantization_rounding
from aotc.checking.float64_reference import Float64Evaluator, evaluate_model_in_float64
from aotc.checking.output_comparison import compare_arrays, rejudge_integers_by_definition
from aotc.checking.verify import verify
from aotc.driver.compile import CompileOptions

pytest.importorskip("onnxruntime")
QUICK = {"cflags": ("-O1",)}


def softmax(scale: float, form: str) -> onnx.ModelProto:
    """int8 probabilities of 40 float32 inputs, which are multiplied by 4 on their way."""
    numbers = {
        "s": np.float32(0.025),
        "v": np.float32(0.1),
        "z": np.int8(3),
        "t": np.float32(scale),
        "u": np.int8(-128),
    }
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    if form == "qdq":
        nodes.append(helper.make_node("DequantizeLinear", ["q", "v", "z"], ["r"]))
        nodes.append(helper.make_node("Softmax", ["r"], ["p"], axis=-1))
        nodes.append(helper.make_node("QuantizeLinear", ["p", "t", "u"], ["y"]))
    else:
        more = {"domain": "com.microsoft", "axis": -1, "opset": 13}
        nodes.append(helper.make_node("QLinearSoftmax", ["q", "v", "z", "t", "u"], ["y"], **more))
    x, y = (
        helper.make_tensor_value_info(name, kind, [3, 40])
        for name, kind in (("x", TensorProto.FLOAT), ("y", TensorProto.INT8))
    )
    known = [numpy_helper.from_array(np.asarray(v), n) for n, v in numbers.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "net", [x], [y], known), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("form", ["qdq", "qop"])
@pytest.mark.parametrize("scale", [0.0140, 0.3 / 40])
def test_a_softmax_that_onnx_runtime_approximates(scale: float, form: str, tmp_path: Path) -> None:
    onnx.save(softmax(scale, form), tmp_path / "net.onnx")
    report = verify(tmp_path / "net.onnx", seeds=2, **QUICK)
    assert report.ok, report
    # ONNX Runtime's kernel of integers multiplies by the integer below 1 / scale
    differs = max(output.max_abs for case in report.cases for output in case.outputs) >= 1
    assert differs == (form == "qop")


def test_the_definition_of_operators_of_integers() -> None:
    x = {"x": np.random.default_rng(0).standard_normal((3, 40))}
    found = [
        evaluate_model_in_float64(expand_quantized_operators_to_qdq(softmax(0.0140, form)), x)["y"]
        for form in ("qdq", "qop")
    ]
    np.testing.assert_array_equal(*found)
    real = 0.1 * (np.clip(np.rint(x["x"] / np.float64(np.float32(0.025))) + 3, -128, 127) - 3)
    e = np.exp(real)
    assert np.abs(found[0] - (e / e.sum(-1, keepdims=True) / 0.0140 - 128)).max() <= 0.5001


def test_more_differences_than_those_of_the_reference_are_told() -> None:
    defined = np.arange(100, dtype=np.int8)
    theirs, ours = defined.copy(), defined.copy()
    theirs[:10] += 1
    ours[:12] -= 1
    found = compare_arrays("y", ours, theirs, 0.0)
    assert not found.ok and rejudge_integers_by_definition(found, [(ours, theirs, defined)]).ok
    ours[:24] = 0
    text = "23 of 100 elements differ from the model's definition, 10 of the reference's"
    assert rejudge_integers_by_definition(found, [(ours, theirs, defined)]).reason == text


def test_integers_beyond_ties_must_be_explained_by_a_second_evaluation() -> None:
    defined = np.arange(100, dtype=np.int8)
    theirs, ours = defined + np.int8(1), defined.copy()
    ours[:12] -= 1
    found = compare_arrays("y", ours, theirs, 0.0)
    rows = [(ours, theirs, defined)]
    assert rejudge_integers_by_definition(found, rows, lambda: [np.where(defined < 2, 0, defined)]).reason == (
        "12 of 100 elements differ from the model's definition, 100 of the reference's, 1 of another evaluation's"
    )
    assert rejudge_integers_by_definition(found, rows, lambda: [np.where(defined < 4, 0, defined)]).ok
    assert rejudge_integers_by_definition(found, rows).ok


def test_counts_of_rounding_ties_vary() -> None:
    """A network that quantizes at run time and ends in ArgMax: three evaluations differ by 7, 3 and 5 of 3,000."""
    defined = np.arange(3000)
    ours, theirs, second = (np.where(defined < count, -1, defined) for count in (7, 3, 5))
    found = compare_arrays("y", ours, theirs, 0.0)
    assert rejudge_integers_by_definition(found, [(ours, theirs, defined)], lambda: [second]).ok
    assert not rejudge_integers_by_definition(found, [(ours, defined, defined)], lambda: [second]).ok


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("each", [False, True])
def test_recurrent_layers_with_quantized_weights_agree_with_onnx_runtime(direction: str, each: bool) -> None:
    """Both round data and state to integers; what the weights stand for is near."""
    rng = np.random.default_rng(0)
    count, size, units = 2 if direction == "bidirectional" else 1, 5, 4
    shape = (count, 4 * units) if each else (count,)
    weights: dict[str, np.ndarray] = {
        n: rng.integers(0, 256, (count, k, 4 * units)).astype(np.uint8) for n, k in (("w", size), ("r", units))
    }
    for name in ("w", "r"):
        weights[f"{name}s"] = rng.uniform(0.005, 0.02, shape).astype(np.float32)
        weights[f"{name}z"] = np.full(shape, 117, np.uint8)
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    options = {"hidden_size": units, "direction": direction, "domain": "com.microsoft"}
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], **options)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 2, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, count, 2, units])
    known = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "net", [x], [y], known), opset_imports=opsets, ir_version=8)
    report = verify(model, seeds=1, target="c", check_compiler=False, **QUICK)
    assert report.ok, report
    assert max(output.relative for case in report.cases for output in case.outputs) < 1e-4
    data = np.random.default_rng(1).standard_normal((6, 2, size))
    session = CompileOptions(target="c", cflags=("-O1",)).compile_model(model).session()
    (ours,) = session.run(None, {"x": data.astype(np.float32)})
    defined = Float64Evaluator(remove_quantization_rounding(model)).evaluate_model({"x": data})["y"]
    np.testing.assert_allclose(ours, defined, atol=0.05)
