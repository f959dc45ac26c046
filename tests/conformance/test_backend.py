# SPDX-License-Identifier: Apache-2.0
"""ONNX's backend interface: models and nodes run as compiled C."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from aotc import onnx_backend
from aotc.ir.diagnostics import AotcError

X = np.array([[-1.0, 2.0, 3.0]], np.float32)
W = np.arange(6, dtype=np.float32).reshape(3, 2)


def model(rows: int | str = 1) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y:0"])],
        "net",
        [
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3]),
        ],
        [helper.make_tensor_value_info("y:0", TensorProto.FLOAT, [rows, 2])],
        [numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("inputs", [[X], (X,), {"x": X}, X, [numpy_helper.from_array(X)]])
def test_forms_of_inputs(inputs: object) -> None:
    prepared = onnx_backend.prepare(model(), "CPU", cflags=("-O1",))
    (result,) = prepared.run(inputs)
    np.testing.assert_allclose(result, np.maximum(X @ W, 0), rtol=1e-6)
    assert prepared.calls == 1


def test_dynamic_dimensions_are_compiled_for_the_inputs() -> None:
    prepared = onnx_backend.prepare(model("n"), cflags=("-O1",))
    for rows in (1, 4, 0):
        x = np.repeat(X, rows, 0)
        np.testing.assert_allclose(prepared.run([x])[0], np.maximum(x @ W, 0), rtol=1e-6)
    assert prepared.calls == 3


def test_strings_without_elements() -> None:
    text = "g (string[n] x) => (string[n, k] parts, int64[n] counts) { parts, counts = StringSplit (x) }"
    split = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    prepared = onnx_backend.prepare(split, cflags=("-O0",))
    parts, counts = prepared.run([np.array([], object)])
    assert (parts.shape, counts.shape) == ((0, 0), (0,))


def test_a_single_node() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    (result,) = onnx_backend.run_node(node, [X, X], opset_version=13)
    np.testing.assert_array_equal(result, X + X)


def test_what_is_refused() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA")
    for call in (
        lambda: onnx_backend.prepare(model(), "CUDA"),
        lambda: onnx_backend.prepare(model(), speed="fast"),
        lambda: onnx_backend.run_model(model(), [X, X]),
        lambda: onnx_backend.run_model(model(), [[X]]),
        lambda: onnx_backend.run_model(model(), [X.astype(np.float64)]),
    ):
        with pytest.raises(AotcError):
            call()
