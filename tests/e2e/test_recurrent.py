# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in compiled models: every kind against ONNX Runtime, and equal bits for any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc import relay
from aotc.driver.compile import compile
from aotc.driver.pipeline import CompiledModel
from aotc.relay.op.recurrent import lstm
from aotc.runtime.session import load
from tests.targets.native_targets import native_targets

STEPS, INPUTS = 1030, 24
"""More steps than are ever unrolled."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "lstm": ("LSTM", 64, 1, {}),
    "lstm_both_ways": ("LSTM", 20, 1, {"direction": "bidirectional"}),
    "lstm_batch": ("LSTM", 33, 3, {}),
    "gru": ("GRU", 48, 1, {"linear_before_reset": 1}),
    "gru_back": ("GRU", 7, 2, {"linear_before_reset": 1, "direction": "reverse"}),
    "rnn": ("RNN", 100, 1, {}),
    "rnn_relu": ("RNN", 16, 1, {"activations": ["Relu"]}),
    "lstm_odd": ("LSTM", 37, 1, {}),
    "gru_odd": ("GRU", 50, 2, {"linear_before_reset": 1}),
}
"""Operator, units, sequences of the batch, and attributes."""


def recurrent_model() -> onnx.ModelProto:
    """All layers side by side, each with its first states, over inputs of one length."""
    rng = np.random.default_rng(0)
    nodes, inputs, outputs, constants = [], {}, [], []
    for name, (op, hidden, batch, attributes) in LAYERS.items():
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        rows = GATES[op] * hidden
        shapes = {
            "w": (directions, rows, INPUTS),
            "r": (directions, rows, hidden),
            "b": (directions, 2 * rows),
            "h": (directions, batch, hidden),
        }
        results = [f"{name}_y", f"{name}_last_h"]
        if op == "LSTM":
            shapes["c"] = shapes["h"]
            results.append(f"{name}_last_c")
        for key, shape in shapes.items():
            values = rng.uniform(-1, 1, shape) / np.sqrt(hidden)
            constants.append(numpy_helper.from_array(values.astype(np.float32), f"{name}_{key}"))
        inputs.setdefault(f"x{batch}", (STEPS, batch, INPUTS))
        first = [f"{name}_{key}" for key in shapes if key in "hc"]
        args = [f"x{batch}", f"{name}_w", f"{name}_r", f"{name}_b", "", *first]
        nodes.append(helper.make_node(op, args, results, hidden_size=hidden, **attributes))
        outputs += results
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, CompiledModel, dict[str, np.ndarray]]:
    model, folder = recurrent_model(), tmp_path_factory.mktemp("layers")
    onnx.save(model, folder / "layers.onnx")
    rng = np.random.default_rng(1)
    data = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    return model, compile(folder / "layers.onnx", output=folder / "project", target="x86-64-v3"), data


def test_layers_agree_with_onnxruntime(layers: tuple[onnx.ModelProto, CompiledModel, dict[str, np.ndarray]]) -> None:
    import onnxruntime

    model, compiled, data = layers
    names = [value.name for value in model.graph.output]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(names, data)
    for name, actual, wanted in zip(names, load(compiled.path).run(names, data), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("target", [name for name in native_targets() if name in {"c", "x86-64-v4"}])
def test_layers_of_other_targets_agree_with_onnxruntime(target: str) -> None:
    import onnxruntime

    model = recurrent_model()
    rng = np.random.default_rng(1)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    data = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    names = [value.name for value in model.graph.output]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(names, data)
    found = aotc.compile(model, target=target, name="layers").session().run(names, data)
    for name, actual, wanted in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_same_bits_on_threads(
    layers: tuple[onnx.ModelProto, CompiledModel, dict[str, np.ndarray]], threads: int
) -> None:
    model, compiled, data = layers
    names = [value.name for value in model.graph.output]
    alone = load(compiled.path).run(names, data)
    for one, other in zip(alone, load(compiled.path, threads=threads).run(names, data), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("steps", [3, relay.Any()], ids=["steps", "any steps"])
def test_unknown_batch_and_steps(steps: Any) -> None:
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal(shape).astype(np.float32) / 8 for shape in ((8, 256), (64, 256), (256,))]
    x, state = relay.var("x", shape=(steps, relay.Any(), 8)), ("h", "c")
    states = [relay.var(name, shape=(relay.Any(), 64)) for name in state]
    body = relay.nn.lstm(x, *map(relay.const, weights), *states)
    module = aotc.IRModule.from_expr(relay.Function([x, *states], body))
    data = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 8), (2, 64), (2, 64))]
    with aotc.transform.PassContext(opt_level=3):
        found = relay.create_executor("vm", mod=module, target="x86-64-v3").evaluate()(*data)
    expected = lstm.reference(lstm.attrs(), data[0], *weights, *data[1:])
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), wanted, rtol=1e-5, atol=1e-5)
