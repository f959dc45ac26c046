# SPDX-License-Identifier: Apache-2.0
"""Networks of seeded weights that several tests and benchmarks use.

dilated_network(size=64, blocks=2, channels=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def dilated_network(size: int = 256, blocks: int = 26, channels: int = 32, seed: int = 0) -> onnx.ModelProto:
    """Residual blocks of four convolutions, of which one is dilated (by 2, 4, 8, 16 in turn) and one is transposed.

    By default 104 convolutions with 3.7 MB of weights, on images (1, 3, 256, 256); the output is (1, 32, 256, 256).
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def convolution(x: str, inputs: int, op: str = "Conv", **attributes: Any) -> str:
        k = len(nodes)
        shape = (channels, inputs, 3, 3) if op == "Conv" else (inputs, channels, 3, 3)
        weight = rng.standard_normal(shape) * np.sqrt(2 / (inputs * 9))
        for name, array in ((f"w{k}", weight), (f"b{k}", rng.standard_normal(channels) * 0.1)):
            weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        nodes.append(helper.make_node(op, [x, f"w{k}", f"b{k}"], [f"c{k}"], name=f"conv{k}", **attributes))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"relu{k}"))
        return f"r{k}"

    x, inputs = "x", 3
    for block in range(blocks):
        reach = (2, 4, 8, 16)[block % 4]
        y = convolution(x, inputs, pads=[1] * 4)
        y = convolution(y, channels, pads=[reach] * 4, dilations=[reach] * 2)
        y = convolution(y, channels, pads=[1] * 4, strides=[2, 2])
        y = convolution(y, channels, "ConvTranspose", pads=[1] * 4, strides=[2, 2], output_padding=[1, 1])
        if block:
            nodes.append(helper.make_node("Add", [x, y], [f"s{block}"], name=f"sum{block}"))
            y = f"s{block}"
        x, inputs = y, channels
    nodes[-1].output[0] = "y"
    shapes = {"x": (1, 3, size, size), "y": (1, channels, size, size)}
    source, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in shapes.items())
    graph = helper.make_graph(nodes, "dilated", [source], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, np.ndarray[Any, Any]],
    input_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model whose weights are float32 unless they are integers."""
    ends = [
        [helper.make_tensor_value_info(n, kind, shape) for n, shape in side.items()]
        for side, kind in ((inputs, input_type), (outputs, TensorProto.FLOAT))
    ]
    arrays = {n: w if w.dtype.kind == "i" else w.astype(np.float32) for n, w in weights.items()}
    graph = helper.make_graph(nodes, "net", *ends, [numpy_helper.from_array(w, n) for n, w in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def mobile_network(seed: int = 0) -> onnx.ModelProto:
    """A classifier of images (1, 3, 24, 24): pointwise and depthwise convolutions, a mean and a softmax over 10."""
    rng = np.random.default_rng(seed)
    nodes, weights, x, inputs = [], dict[str, Any](), "x", 3
    for k, (outputs, kernel, groups, stride) in enumerate(
        [(16, 3, 1, 2), (16, 3, 16, 1), (24, 1, 1, 1), (24, 5, 24, 2), (32, 1, 1, 1)]
    ):
        scale = np.sqrt(2 * groups / (inputs * kernel**2))
        weights[f"w{k}"] = rng.standard_normal((outputs, inputs // groups, kernel, kernel)) * scale
        weights[f"b{k}"] = rng.standard_normal(outputs) * 0.1
        window = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": groups}
        nodes.append(helper.make_node("Conv", [x, f"w{k}", f"b{k}"], [f"c{k}"], **window))
        nodes.append(helper.make_node("HardSwish" if k % 2 else "Relu", [f"c{k}"], [f"a{k}"]))
        x, inputs = f"a{k}", outputs
    weights |= {"w": rng.standard_normal((10, 32)), "b": rng.standard_normal(10)}
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    return _model(nodes, {"x": (1, 3, 24, 24)}, {"y": (1, 10)}, weights)


def attention_network(seed: int = 0) -> onnx.ModelProto:
    """A layer of an encoder on (1, 12, 32): attention of 4 heads, layer norms, a feed-forward part with Gelu."""
    rng = np.random.default_rng(seed)
    width = 32
    weights: dict[str, Any] = {n: rng.standard_normal((width, width)) / np.sqrt(width) for n in ("q", "k", "v", "o")}
    weights |= {"up": rng.standard_normal((width, 64)) / 6, "down": rng.standard_normal((64, width)) / 8}
    for k in range(2):
        weights |= {f"s{k}": rng.uniform(0.5, 1.5, width), f"b{k}": rng.standard_normal(width) * 0.1}
    weights |= {"heads": np.array([1, 12, 4, 8]), "joined": np.array([1, 12, width]), "root": np.array(8**-0.5)}
    node = helper.make_node
    nodes = []
    for name, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            node("MatMul", ["x", name], [f"{name}1"]),
            node("Reshape", [f"{name}1", "heads"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=order),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["logits"]),
        node("Mul", ["logits", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["shares"], axis=-1),
        node("MatMul", ["shares", "v3"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=(0, 2, 1, 3)),
        node("Reshape", ["back", "joined"], ["flat"]),
        node("MatMul", ["flat", "o"], ["attended"]),
        node("Add", ["x", "attended"], ["r0"]),
        node("LayerNormalization", ["r0", "s0", "b0"], ["n0"], axis=-1),
        node("MatMul", ["n0", "up"], ["wide"]),
        node("Gelu", ["wide"], ["active"]),
        node("MatMul", ["active", "down"], ["narrow"]),
        node("Add", ["n0", "narrow"], ["r1"]),
        node("LayerNormalization", ["r1", "s1", "b1"], ["y"], axis=-1),
    ]
    return _model(nodes, {"x": (1, 12, width)}, {"y": (1, 12, width)}, weights)


def recurrent_network(seed: int = 0) -> onnx.ModelProto:
    """A bidirectional LSTM of 16 over (9, 1, 8), and a GRU of 12 on its results; the output is (9, 1, 1, 12)."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Any] = {
        "w": rng.standard_normal((2, 64, 8)) / 3,
        "r": rng.standard_normal((2, 64, 16)) / 4,
        "b": rng.standard_normal((2, 128)) / 4,
        "shape": np.array([9, 1, 32]),
        "w2": rng.standard_normal((1, 36, 32)) / 5,
        "r2": rng.standard_normal((1, 36, 12)) / 4,
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["h"], hidden_size=16, direction="bidirectional"),
        helper.make_node("Transpose", ["h"], ["t"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["t", "shape"], ["f"]),
        helper.make_node("GRU", ["f", "w2", "r2"], ["y"], hidden_size=12),
    ]
    return _model(nodes, {"x": (9, 1, 8)}, {"y": (9, 1, 1, 12)}, weights)


def embedding_network(seed: int = 0) -> onnx.ModelProto:
    """Words (2, 12) of 50, embedded with positions, a convolution, three kinds of norms, and scores (2, 6)."""
    rng = np.random.default_rng(seed)
    width = 16
    weights: dict[str, Any] = {
        "table": rng.standard_normal((50, width)),
        "positions": rng.standard_normal((12, width)) / 2,
        "conv": rng.standard_normal((24, width, 3)) / 7,
        "conv_bias": rng.standard_normal(24) / 4,
        "scores": rng.standard_normal((24, 6)) / 5,
        "scores_bias": rng.standard_normal(6),
        "mean": rng.standard_normal(24) / 4,
        "variance": rng.uniform(0.5, 2, 24),
    }
    for name, size in (("layer", width), ("instance", 24), ("batch", 24)):
        weights |= {f"{name}_scale": rng.uniform(0.5, 1.5, size), f"{name}_bias": rng.standard_normal(size) / 4}
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "x"], ["words"]),
        node("Add", ["words", "positions"], ["placed"]),
        node("LayerNormalization", ["placed", "layer_scale", "layer_bias"], ["n0"], axis=-1),
        node("Transpose", ["n0"], ["channels"], perm=(0, 2, 1)),
        node("Conv", ["channels", "conv", "conv_bias"], ["c"], pads=[1, 1]),
        node("InstanceNormalization", ["c", "instance_scale", "instance_bias"], ["n1"]),
        node("Relu", ["n1"], ["r"]),
        node("BatchNormalization", ["r", "batch_scale", "batch_bias", "mean", "variance"], ["n2"]),
        node("ReduceMax", ["n2"], ["top"], keepdims=1),
        node("Sub", ["n2", "top"], ["below"]),
        node("Exp", ["below"], ["e"]),
        node("ReduceMean", ["e", "last"], ["flat"], keepdims=0),
        node("Gemm", ["flat", "scores", "scores_bias"], ["y"]),
    ]
    weights["last"] = np.array([2])
    return _model(nodes, {"x": (2, 12)}, {"y": (2, 6)}, weights, TensorProto.INT64)
