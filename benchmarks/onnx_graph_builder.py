# SPDX-License-Identifier: Apache-2.0
"""Build ONNX networks with seeded random weights for benchmarks and tests.

resnet18()                             # a ModelProto: pre-activation ResNet-18, 224x224, batch 1
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ONNX_OPSET = 17
BATCH_NORM_EPSILON = 2e-5


class OnnxGraphBuilder:
    """Builder of an ONNX graph; each method appends nodes or weights and returns the name of the
    result.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def append_named_node(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Append an ONNX node with a single result to the graph and return the result's name."""
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def add_weight(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add_xavier_weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add weights with a uniform distribution scaled by fan-in and fan-out (Glorot and Bengio,
        2010).
        """
        area = math.prod(shape[2:])
        limit = math.sqrt(6 / ((shape[0] + shape[1]) * area))
        return self.add_weight(name, self.rng.uniform(-limit, limit, shape))

    def append_convolution(
        self, x: str, name: str, weight_shape_oihw: tuple[int, int, int, int], stride: int = 1
    ) -> str:
        """Append a convolution without bias and with "same" padding; `weight_shape_oihw` is the shape of the
        weights in OIHW order.
        """
        pad = weight_shape_oihw[2] // 2
        return self.append_named_node(
            "Conv",
            x,
            self.add_xavier_weight(f"{name}_weight", weight_shape_oihw),
            name=name,
            kernel_shape=weight_shape_oihw[2:],
            pads=[pad] * 4,
            strides=[stride] * 2,
        )

    def append_batch_norm(self, x: str, name: str, channels: int) -> str:
        """Append a batch normalization with random scale, bias, mean and variance to the graph."""
        values = {
            "gamma": self.rng.uniform(0.5, 1.5, channels),
            "beta": self.rng.uniform(-0.2, 0.2, channels),
            "mean": self.rng.uniform(-0.2, 0.2, channels),
            "var": self.rng.uniform(0.5, 1.5, channels),
        }
        names = [self.add_weight(f"{name}_{key}", value) for key, value in values.items()]
        return self.append_named_node("BatchNormalization", x, *names, name=name, epsilon=BATCH_NORM_EPSILON)

    def append_batch_norm_relu(self, x: str, name: str, channels: int) -> str:
        return self.append_named_node("Relu", self.append_batch_norm(x, name, channels), name=f"{name}_relu")

    def build_checked_model(
        self, name: str, inputs: dict[str, list[int]], outputs: dict[str, list[int]]
    ) -> onnx.ModelProto:
        """Return the model with float32 inputs and outputs of the given shapes, after ONNX's check
        of validity.
        """
        declare = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            name,
            [declare(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [declare(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
            self.initializers,
        )
        domains = {"", *(node.domain for node in self.nodes)}
        imports = [helper.make_opsetid(domain, 1 if domain else ONNX_OPSET) for domain in sorted(domains)]
        model = helper.make_model(graph, opset_imports=imports, producer_name="aotc-benchmarks")
        model.ir_version = 8
        onnx.checker.check_model(model)
        return model


def _append_preactivation_residual_unit(
    b: OnnxGraphBuilder, x: str, name: str, in_out_channels: tuple[int, int], stride: int
) -> str:
    """Append a pre-activation residual unit (He et al., 2016, arXiv 1603.05027); `in_out_channels`
    are those before and after.
    """
    before, after = in_out_channels
    first = b.append_batch_norm_relu(x, f"{name}_bn1", before)
    y = b.append_convolution(first, f"{name}_conv1", (after, before, 3, 3), stride)
    y = b.append_convolution(b.append_batch_norm_relu(y, f"{name}_bn2", after), f"{name}_conv2", (after, after, 3, 3))
    shortcut = (
        x if in_out_channels[0] == in_out_channels[1] and stride == 1 and not name.endswith("stage1_unit1") else None
    )
    if shortcut is None:
        shortcut = b.append_convolution(first, f"{name}_sc", (after, before, 1, 1), stride)
    return b.append_named_node("Add", y, shortcut, name=f"{name}_add")


def resnet18(classes: int = 1000, seed: int = 0) -> onnx.ModelProto:
    """Build ResNet-18 with pre-activation units: data float32[1, 3, 224, 224] -> scores float32[1,
    classes].
    """
    b = OnnxGraphBuilder(seed)
    x = b.append_batch_norm("data", "bn_data", 3)
    x = b.append_batch_norm_relu(b.append_convolution(x, "conv0", (64, 3, 7, 7), 2), "bn0", 64)
    x = b.append_named_node("MaxPool", x, name="pool0", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    widths = (64, 64, 128, 256, 512)
    for stage in range(1, 5):
        before, after = widths[stage - 1], widths[stage]
        x = _append_preactivation_residual_unit(b, x, f"stage{stage}_unit1", (before, after), 1 if stage == 1 else 2)
        x = _append_preactivation_residual_unit(b, x, f"stage{stage}_unit2", (after, after), 1)
    x = b.append_named_node("GlobalAveragePool", b.append_batch_norm_relu(x, "bn1", widths[-1]), name="pool1")
    x = b.append_named_node("Flatten", x, name="flatten")
    bias = b.add_weight("fc1_bias", b.rng.uniform(-0.1, 0.1, classes))
    x = b.append_named_node(
        "Gemm", x, b.add_xavier_weight("fc1_weight", (classes, widths[-1])), bias, name="fc1", transB=1
    )
    b.append_named_node("Softmax", x, name="scores", axis=1)
    return b.build_checked_model("resnet18", {"data": [1, 3, 224, 224]}, {"scores": [1, classes]})
