# SPDX-License-Identifier: Apache-2.0
"""The double-precision reference evaluation: right for every window, with time and memory independent of dilation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aotc.checking.float64_reference import Float64Evaluator, convert_model_to_float64
from aotc.ir.diagnostics import AotcError
from tests.networks import dilated_network

DRAWS = 40


def windowed(op: str, rng: np.random.Generator) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A model of one convolution or pool whose attributes are drawn, and the shape of its data."""
    n, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    ints = lambda low, high, count=n: [int(v) for v in rng.integers(low, high + 1, count)]  # noqa: E731
    kernel, inner, outer = ints(1, 4), groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
    size = [k * 3 + int(v) for k, v in zip(kernel, rng.integers(0, 5, n), strict=True)]
    attributes: dict[str, Any] = {"strides": ints(1, 3), "kernel_shape": kernel}
    names, weights, channels = ["x"], [], inner
    how = str(rng.choice(["", "", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if how and (op != "ConvTranspose" or how == "VALID"):
        attributes["auto_pad"] = how
    else:
        attributes["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    if op.startswith("Conv"):
        attributes |= {"dilations": ints(1, 3), "group": groups}
        shape = (outer, inner // groups, *kernel) if op == "Conv" else (inner, outer // groups, *kernel)
        weights = [rng.standard_normal(shape).astype(np.float32), rng.standard_normal(outer).astype(np.float32)]
        names += ["w", "b"]
        if op == "ConvTranspose":
            attributes["output_padding"] = [int(rng.integers(0, s)) for s in attributes["strides"]]
    else:
        attributes["ceil_mode"] = 0 if how else int(rng.integers(0, 2))
        if op == "AveragePool":
            attributes["count_include_pad"] = int(rng.integers(0, 2))
        elif not how and rng.integers(0, 2):  # ONNX Runtime gives another shape than the standard's for both
            attributes["dilations"] = ints(1, 2)
    node = helper.make_node(op, names, ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, channels, *size))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * (n + 2))
    initializers = [numpy_helper.from_array(w, name) for w, name in zip(weights, "wb", strict=False)]
    graph = helper.make_graph([node], "window", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), (2, channels, *size)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_windows_are_those_of_onnxruntime(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In strips of one row, and of all."""
    ort = pytest.importorskip("onnxruntime")
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        model, shape = windowed(op, rng)
        monkeypatch.setattr("aotc.checking.onnx_evaluator_conv_pool.MAX_STRIP_BYTES", 1 if seed % 2 else 1 << 25)
        x = rng.standard_normal(shape).astype(np.float32)
        try:
            expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
        except Exception:  # it does not take these attributes
            continue
        found = Float64Evaluator(model).evaluate_model({"x": x.astype(np.float64)})["y"]
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}: {model.graph.node}")


def test_values_are_freed_after_their_last_use_and_the_budget_holds() -> None:
    """The evaluator without these convolutions takes more than a gigabyte for the same network."""
    model = dilated_network(size=64, blocks=4, channels=8)
    x = {"x": np.random.default_rng(0).standard_normal((1, 3, 64, 64))}
    value = 8 * 64 * 64 * 8
    budget = 6 * value + sum(2 * t.ByteSize() for t in model.graph.initializer) + (32 << 20)
    work = Float64Evaluator(model, budget)
    tracemalloc.start()
    try:
        found = work.evaluate_model(x)["y"]
        assert tracemalloc.get_traced_memory()[1] < budget
    finally:
        tracemalloc.stop()
    assert found.shape == (1, 8, 64, 64) and np.isfinite(found).all()
    with pytest.raises(AotcError, match=r"in double precision needs about .* MiB at node 'conv") as refused:
        Float64Evaluator(model, 5 * value).evaluate_model(x)
    (problem,) = refused.value.diagnostics
    assert problem.code == "memory" and "memory=4294967296" in problem.hint


def test_values_that_subgraphs_read_stay() -> None:
    """`a` is last read inside a branch, and `b` is an output of a branch."""
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [3])
    then = helper.make_graph([helper.make_node("Add", ["a", "b"], ["r"])], "then", [], [result])
    other = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["c"])],
        "else",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [3])],
    )
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Log", ["a"], ["b"]),
        helper.make_node("Abs", ["b"], ["d"]),
        helper.make_node("If", ["which"], ["e"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["e", "d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    model = helper.make_model(helper.make_graph(nodes, "g", [x, which], [y]), ir_version=9)
    for choice in (True, False):
        inputs = {"x": np.array([-1.0, 0.5, 2.0]), "which": np.array(choice)}
        expected = ReferenceEvaluator(convert_model_to_float64(model)).run(None, inputs)[0]
        assert np.array_equal(Float64Evaluator(model).evaluate_model(inputs)["y"], expected)


def _against_onnxruntime(node: onnx.NodeProto, opset: int, shape: tuple[int, ...], **weights: np.ndarray) -> None:
    """The judge and ONNX Runtime give the same results of a node on random inputs x."""
    ort = pytest.importorskip("onnxruntime")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    known = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], outputs, known), opset_imports=opsets, ir_version=8)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": data})
    found = Float64Evaluator(model).evaluate_model({"x": data.astype(np.float64)})
    for name, array in zip(node.output, expected, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", [8, 9, 13, 14, 15])
def test_norms_of_all_versions_use_the_stored_mean(opset: int) -> None:
    rng = np.random.default_rng(1)
    weights = {n: rng.uniform(0.5, 2, 4).astype(np.float32) for n in ("scale", "bias", "mean", "variance")}
    node = helper.make_node("BatchNormalization", ["x", *weights], ["y"], momentum=0.9, epsilon=1e-3)
    _against_onnxruntime(node, opset, (2, 4, 5, 5), **weights)


@pytest.mark.parametrize("shape", [(2, 40), (2, 40, 1)])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_of_signals_with_two_axes(shape: tuple[int, ...], onesided: int) -> None:
    window = np.hanning(16).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], onesided=onesided)
    _against_onnxruntime(node, 17, shape, step=np.array(5), window=window)


@pytest.mark.parametrize("changed", [{"clip": 0.2}, {"activations": ["Relu", "Tanh", "Tanh"]}, {"lengths": [2, 3]}])
def test_recurrent_layers_that_the_evaluator_reads_in_part_are_not_judged(changed: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    weights = {n: rng.standard_normal((1, 12, k)).astype(np.float32) for n, k in (("w", 4), ("r", 3))}
    lengths = np.array(changed.pop("lengths", []), np.int32)
    names = ["x", "w", "r", "", "lengths"] if lengths.size else ["x", "w", "r"]
    if lengths.size:
        weights["lengths"] = lengths
    with pytest.raises(NotImplementedError, match=r"LSTM with (clip|activations|sequence_lens)"):
        _against_onnxruntime(helper.make_node("LSTM", names, ["y"], hidden_size=3, **changed), 14, (3, 2, 4), **weights)
    plain = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)
    _against_onnxruntime(plain, 14, (3, 2, 4), w=weights["w"], r=weights["r"])
