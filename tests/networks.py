# SPDX-License-Identifier: Apache-2.0
"""Networks of seeded weights that several tests and benchmarks use.

dilated_network(size=64, blocks=2, channels=8)
"""

from __future__ import annotations

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
