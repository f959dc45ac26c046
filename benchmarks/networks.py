# SPDX-License-Identifier: Apache-2.0
"""Build the ONNX networks that the benchmarks measure, with seeded random weights: image, language,
speech networks.

NETWORKS["mobilenet_v2"]()             # a ModelProto, batch 1, float32
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.models import Builder, resnet18

Shape = Sequence[int]


class Network(Builder):
    """Builder of an ONNX graph that generates the names of nodes and weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind.lower()}_{self.count}"

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append an ONNX node with a single result, named after its operator, and return its name."""
        return self.op(op_type, *inputs, name=self.name(op_type), **attributes)

    def nodes_of(self, op_type: str, count: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Append an ONNX node with `count` results and return their names."""
        name = self.name(op_type)
        names = tuple(f"{name}_{k}" for k in range(count))
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), list(names), name=name, **attributes))
        return names

    def constant(self, values: Any, dtype: str = "float32") -> str:
        name = self.name("constant")
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def uniform(self, *shape: int, fan: int | None = None) -> str:
        """Add weights with a uniform distribution that preserves the variance of activations, given
        the fan-in (He et al., 2015).
        """
        limit = math.sqrt(3.0 / (fan or math.prod(shape[1:])))
        return self.constant(self.rng.uniform(-limit, limit, shape))

    def convolve(
        self, x: str, before: int, after: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: str = ""
    ) -> str:
        """Append a convolution with "same" padding, a batch normalization, and the activation `act`
        ("" for none).
        """
        weight = self.uniform(after, before // groups, kernel, kernel)
        pad = kernel // 2
        y = self.node("Conv", x, weight, kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2, group=groups)
        y = self.batch_norm(y, self.name("norm"), after)
        return self.activate(y, act)

    def activate(self, x: str, act: str) -> str:
        match act:
            case "relu6":
                return self.node("Clip", x, self.constant(0.0), self.constant(6.0))
            case "silu":
                return self.node("Mul", x, self.node("Sigmoid", x))
            case "hardswish":
                return self.node("HardSwish", x)
            case "relu":
                return self.node("Relu", x)
            case _:
                return x

    def squeeze(self, x: str, channels: int, inner: int, act: str, gate: str) -> str:
        """Append squeeze and excitation (Hu et al., 2018): scale each channel by a function of the
        channel means.
        """
        y = self.node("GlobalAveragePool", x)
        y = self.node("Conv", y, self.uniform(inner, channels, 1, 1), self.constant(np.zeros(inner)))
        y = self.activate(y, act)
        y = self.node("Conv", y, self.uniform(channels, inner, 1, 1), self.constant(np.zeros(channels)))
        return self.node("Mul", x, self.node(gate, y))

    def linear(self, x: str, before: int, after: int) -> str:
        """Append a linear layer to the graph: x @ w + b over the last axis, with random w and b."""
        y = self.node("MatMul", x, self.uniform(before, after, fan=before))
        return self.node("Add", y, self.constant(self.rng.uniform(-0.1, 0.1, after)))

    def layer_norm(self, x: str, width: int) -> str:
        scale, bias = self.rng.uniform(0.5, 1.5, width), self.rng.uniform(-0.1, 0.1, width)
        return self.node("LayerNormalization", x, self.constant(scale), self.constant(bias), axis=-1, epsilon=1e-12)

    def classify(self, x: str, channels: int, classes: int) -> None:
        """Append global average pooling and a linear layer with the output "scores"."""
        y = self.node("Flatten", self.node("GlobalAveragePool", x))
        bias = self.constant(self.rng.uniform(-0.1, 0.1, classes))
        self.op("Gemm", y, self.uniform(classes, channels), bias, name="scores", transB=1)


def _inverted(
    n: Network, x: str, before: int, after: int, expand: int, kernel: int, stride: int, act: str, squeeze: int = 0
) -> str:
    """Append an inverted residual block: expansion, depthwise convolution, projection (Sandler et
    al., 2018).

    `squeeze` is the inner width of squeeze and excitation, 0 for none.
    """
    y = x if expand == before else n.convolve(x, before, expand, act=act)
    y = n.convolve(y, expand, expand, kernel, stride, groups=expand, act=act)
    if squeeze:
        outer = ("relu", "HardSigmoid") if act != "silu" else ("silu", "Sigmoid")
        y = n.squeeze(y, expand, squeeze, *outer)
    y = n.convolve(y, expand, after)
    return n.node("Add", x, y) if stride == 1 and before == after else y


def resnet50() -> onnx.ModelProto:
    """Build ResNet-50 v1.5 (He et al., 2016; strides in the 3x3 convolutions): data[1, 3, 224, 224]
    -> scores[1, 1000].
    """
    n = Network()
    x, width = n.convolve("data", 3, 64, 7, 2, act="relu"), 64
    x = n.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for stage, repeats in enumerate((3, 4, 6, 3)):
        inner, after = 64 << stage, 256 << stage
        for k in range(repeats):
            stride = 2 if k == 0 and stage else 1
            y = n.convolve(n.convolve(x, width, inner, act="relu"), inner, inner, 3, stride, act="relu")
            shortcut = n.convolve(x, width, after, 1, stride) if k == 0 else x
            x = n.activate(n.node("Add", n.convolve(y, inner, after), shortcut), "relu")
            width = after
    n.classify(x, width, 1000)
    return n.model("resnet50", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def mobilenet_v2() -> onnx.ModelProto:
    """Build MobileNetV2 (Sandler et al., 2018), width 1: data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = Network()
    x, width = n.convolve("data", 3, 32, 3, 2, act="relu6"), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, after, repeats, stride in rows:
        for k in range(repeats):
            x = _inverted(n, x, width, after, width * factor, 3, stride if k == 0 else 1, "relu6")
            width = after
    n.classify(n.convolve(x, width, 1280, act="relu6"), 1280, 1000)
    return n.model("mobilenet_v2", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def mobilenet_v3_small() -> onnx.ModelProto:
    """Build MobileNetV3-Small (Howard et al., 2019): data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = Network()
    x, width = n.convolve("data", 3, 16, 3, 2, act="hardswish"), 16
    rows = (
        (16, 16, 3, 2, "relu", 8), (72, 24, 3, 2, "relu", 0), (88, 24, 3, 1, "relu", 0),
        (96, 40, 5, 2, "hardswish", 24), (240, 40, 5, 1, "hardswish", 64), (240, 40, 5, 1, "hardswish", 64),
        (120, 48, 5, 1, "hardswish", 32), (144, 48, 5, 1, "hardswish", 40), (288, 96, 5, 2, "hardswish", 72),
        (576, 96, 5, 1, "hardswish", 144), (576, 96, 5, 1, "hardswish", 144),
    )  # fmt: skip
    for expand, after, kernel, stride, act, squeeze in rows:
        x = _inverted(n, x, width, after, expand, kernel, stride, act, squeeze)
        width = after
    x = n.node("GlobalAveragePool", n.convolve(x, width, 576, act="hardswish"))
    x = n.activate(n.linear(n.node("Flatten", x), 576, 1024), "hardswish")
    bias = n.constant(np.zeros(1000))
    n.op("Gemm", x, n.uniform(1000, 1024), bias, name="scores", transB=1)
    return n.model("mobilenet_v3_small", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def efficientnet_b0() -> onnx.ModelProto:
    """Build EfficientNet-B0 (Tan and Le, 2019): data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = Network()
    x, width = n.convolve("data", 3, 32, 3, 2, act="silu"), 32
    rows = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )  # fmt: skip
    for factor, after, repeats, stride, kernel in rows:
        for k in range(repeats):
            step = stride if k == 0 else 1
            x = _inverted(n, x, width, after, width * factor, kernel, step, "silu", max(1, width // 4))
            width = after
    n.classify(n.convolve(x, width, 1280, act="silu"), 1280, 1000)
    return n.model("efficientnet_b0", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def _heads(n: Network, x: str, length: int, width: int, heads: int, order: Shape) -> str:
    """Append the split of [1, length, width] into attention heads, transposed by `order`."""
    shape = n.constant([1, length, heads, width // heads], "int64")
    return n.node("Transpose", n.node("Reshape", x, shape), perm=list(order))


def _attention(n: Network, x: str, length: int, width: int, heads: int, mask: str) -> str:
    """Append multi-head attention (Vaswani et al., 2017); `mask` is added to the scores, "" for
    none.
    """
    q, k, v = (n.linear(x, width, width) for _ in range(3))
    q, v = (_heads(n, t, length, width, heads, (0, 2, 1, 3)) for t in (q, v))
    k = _heads(n, k, length, width, heads, (0, 2, 3, 1))
    scores = n.node("Mul", n.node("MatMul", q, k), n.constant(1 / math.sqrt(width // heads)))
    scores = n.node("Add", scores, mask) if mask else scores
    y = n.node("MatMul", n.node("Softmax", scores, axis=-1), v)
    y = n.node("Reshape", n.node("Transpose", y, perm=[0, 2, 1, 3]), n.constant([1, length, width], "int64"))
    return n.linear(y, width, width)


def _gelu(n: Network, x: str) -> str:
    y = n.node("Erf", n.node("Div", x, n.constant(math.sqrt(2.0))))
    return n.node("Mul", n.node("Mul", x, n.node("Add", y, n.constant(1.0))), n.constant(0.5))


def _tanh_gelu(n: Network, x: str) -> str:
    cube = n.node("Mul", n.node("Mul", x, x), x)
    inner = n.node("Add", x, n.node("Mul", cube, n.constant(0.044715)))
    y = n.node("Tanh", n.node("Mul", inner, n.constant(math.sqrt(2 / math.pi))))
    return n.node("Mul", n.node("Mul", x, n.node("Add", y, n.constant(1.0))), n.constant(0.5))


def minilm() -> onnx.ModelProto:
    """Build the encoder of MiniLM-L6 (Wang et al., 2020) for 128 tokens: embeddings[1, 128, 384] ->
    hidden[1, 128, 384].
    """
    n, length, width = Network(), 128, 384
    x = n.layer_norm("embeddings", width)
    for _ in range(6):
        x = n.layer_norm(n.node("Add", x, _attention(n, x, length, width, 12, "")), width)
        y = n.linear(_gelu(n, n.linear(x, width, 4 * width)), 4 * width, width)
        x = n.layer_norm(n.node("Add", x, y), width)
    n.op("Identity", x, name="hidden")
    return n.model("minilm", {"embeddings": [1, length, width]}, {"hidden": [1, length, width]})


def gpt2_small() -> onnx.ModelProto:
    """Build six causal decoder blocks as in GPT-2 (Radford et al., 2019) for 64 tokens of width
    384.
    """
    n, length, width = Network(), 64, 384
    mask = n.constant(np.triu(np.full((length, length), -1e9), 1)[None, None])
    x = "embeddings"
    for _ in range(6):
        x = n.node("Add", x, _attention(n, n.layer_norm(x, width), length, width, 6, mask))
        y = n.linear(_tanh_gelu(n, n.linear(n.layer_norm(x, width), width, 4 * width)), 4 * width, width)
        x = n.node("Add", x, y)
    n.op("Identity", n.layer_norm(x, width), name="hidden")
    return n.model("gpt2_small", {"embeddings": [1, length, width]}, {"hidden": [1, length, width]})


def gpt2_step() -> onnx.ModelProto:
    """Build one decoding step of GPT-2 small (Radford et al., 2019): a token after 128 others with
    cached keys and values.

    embedding[1, 1, 768], 12 layers' past[1, 12, 128, 64] -> logits[1, 1, 50257], the token's own
    keys and values.
    """
    n, width = Network(), 768
    hidden, inputs, outputs = steps(n, width, heads=12, layers=12)
    n.op("MatMul", hidden, n.uniform(width, 50257, fan=width), name="logits")
    return n.model("gpt2_step", inputs, {"logits": [1, 1, 50257], **outputs})


def steps(n: Network, width: int, heads: int, layers: int) -> tuple[str, dict[str, list[int]], dict[str, list[int]]]:
    """Append GPT-2 blocks for one token after 128 others; return the hidden state, and the shapes
    of inputs and outputs.

    The inputs are the token's embedding and the cached keys and values; the outputs are the token's
    own keys and values.
    """
    size = width // heads
    inputs: dict[str, list[int]] = {"embedding": [1, 1, width]}
    outputs: dict[str, list[int]] = {}
    x = "embedding"
    for layer in range(layers):
        y = n.layer_norm(x, width)
        q, *own = (_heads(n, n.linear(y, width, width), 1, width, heads, (0, 2, 1, 3)) for _ in range(3))
        past = [f"past_{kind}{layer}" for kind in "kv"]
        inputs |= {name: [1, heads, 128, size] for name in past}
        outputs |= {name: [1, heads, 1, size] for name in own}
        k, v = (n.node("Concat", a, b, axis=2) for a, b in zip(past, own, strict=True))
        scores = n.node("MatMul", q, n.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = n.node("Softmax", n.node("Mul", scores, n.constant(1 / math.sqrt(size))), axis=-1)
        y = n.node("Transpose", n.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = n.node("Reshape", y, n.constant([1, 1, width], "int64"))
        x = n.node("Add", x, n.linear(y, width, width))
        y = n.linear(_tanh_gelu(n, n.linear(n.layer_norm(x, width), width, 4 * width)), 4 * width, width)
        x = n.node("Add", x, y)
    return n.layer_norm(x, width), inputs, outputs


def ds_cnn() -> onnx.ModelProto:
    """Build the keyword spotting network DS-CNN-S (Zhang et al., 2017): mfcc[1, 1, 49, 10] ->
    scores[1, 12].
    """
    n = Network()
    x = n.node("Conv", "mfcc", n.uniform(64, 1, 10, 4), kernel_shape=[10, 4], pads=[4, 1, 5, 1], strides=[2, 2])
    x = n.activate(n.batch_norm(x, n.name("norm"), 64), "relu")
    for _ in range(4):
        x = n.convolve(x, 64, 64, 3, groups=64, act="relu")
        x = n.convolve(x, 64, 64, act="relu")
    n.classify(x, 64, 12)
    return n.model("ds_cnn", {"mfcc": [1, 1, 49, 10]}, {"scores": [1, 12]})


def lstm() -> onnx.ModelProto:
    """Build two LSTM layers (Hochreiter and Schmidhuber, 1997) of width 128 over 50 steps: x[50, 1,
    128] -> y[1, 10].
    """
    n, steps, width = Network(), 50, 128
    x = "x"
    for _ in range(2):
        w, r = (n.constant(n.rng.uniform(-1, 1, (1, 4 * width, width)) / math.sqrt(width)) for _ in range(2))
        y, _ = n.nodes_of("LSTM", 2, x, w, r, n.constant(np.zeros((1, 8 * width))), hidden_size=width)
        x = n.node("Squeeze", y, n.constant([1], "int64"))
    last = n.node("Gather", x, n.constant(-1, "int64"), axis=0)
    n.op("Gemm", last, n.uniform(10, width), n.constant(np.zeros(10)), name="y", transB=1)
    return n.model("lstm", {"x": [steps, 1, width]}, {"y": [1, 10]})


def unet() -> onnx.ModelProto:
    """Build U-Net (Ronneberger et al., 2015), four levels from 16 channels: image[1, 3, 128, 128]
    -> mask[1, 1, 128, 128].
    """
    n = Network()
    x, width, skips = "image", 3, []
    for level in range(4):
        after = 16 << level
        x = n.convolve(n.convolve(x, width, after, 3, act="relu"), after, after, 3, act="relu")
        width = after
        if level < 3:
            skips.append((x, width))
            x = n.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for skip, after in reversed(skips):
        x = n.node("ConvTranspose", x, n.uniform(width, after, 2, 2, fan=width), kernel_shape=[2, 2], strides=[2, 2])
        x = n.node("Concat", skip, x, axis=1)
        x = n.convolve(n.convolve(x, 2 * after, after, 3, act="relu"), after, after, 3, act="relu")
        width = after
    x = n.node("Conv", x, n.uniform(1, width, 1, 1), n.constant(np.zeros(1)), kernel_shape=[1, 1])
    n.op("Sigmoid", x, name="mask")
    return n.model("unet", {"image": [1, 3, 128, 128]}, {"mask": [1, 1, 128, 128]})


NETWORKS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_small": mobilenet_v3_small,
    "efficientnet_b0": efficientnet_b0,
    "minilm": minilm,
    "gpt2_small": gpt2_small,
    "ds_cnn": ds_cnn,
    "lstm": lstm,
    "unet": unet,
}
