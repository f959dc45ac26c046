# SPDX-License-Identifier: Apache-2.0
"""Build the ONNX networks that the benchmarks measure, with seeded random weights: image, language,
speech networks.

NETWORK_BUILD_FUNCTIONS["mobilenet_v2"]()    # a ModelProto, batch 1, float32
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import onnx

from benchmarks.onnx_graph_builder import OnnxGraphBuilder, resnet18

Shape = Sequence[int]


class NetworkBuilder(OnnxGraphBuilder):
    """Builder of an ONNX graph that generates the names of nodes and weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.count = 0

    def generate_unique_name(self, kind: str) -> str:
        self.count += 1
        return f"{kind.lower()}_{self.count}"

    def append_node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append an ONNX node with a single result, named after its operator, and return its name."""
        return self.append_named_node(op_type, *inputs, name=self.generate_unique_name(op_type), **attributes)

    def append_multi_output_node(
        self, op_type: str, output_count: int, *inputs: str, **attributes: Any
    ) -> tuple[str, ...]:
        """Append an ONNX node with `output_count` results and return their names."""
        name = self.generate_unique_name(op_type)
        names = tuple(f"{name}_{k}" for k in range(output_count))
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), list(names), name=name, **attributes))
        return names

    def add_constant(self, values: Any, dtype: str = "float32") -> str:
        name = self.generate_unique_name("constant")
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def add_uniform_weights(self, *shape: int, fan: int | None = None) -> str:
        """Add weights with a uniform distribution that preserves the variance of activations, given
        the fan-in (He et al., 2015).
        """
        limit = math.sqrt(3.0 / (fan or math.prod(shape[1:])))
        return self.add_constant(self.rng.uniform(-limit, limit, shape))

    def append_conv_norm_activation(
        self,
        x: str,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: str = "",
    ) -> str:
        """Append a convolution with "same" padding, a batch normalization, and the activation
        `activation` ("" for none).
        """
        weight = self.add_uniform_weights(out_channels, in_channels // groups, kernel, kernel)
        pad = kernel // 2
        y = self.append_node(
            "Conv", x, weight, kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2, group=groups
        )
        y = self.append_batch_norm(y, self.generate_unique_name("norm"), out_channels)
        return self.append_activation(y, activation)

    def append_activation(self, x: str, activation: str) -> str:
        match activation:
            case "relu6":
                return self.append_node("Clip", x, self.add_constant(0.0), self.add_constant(6.0))
            case "silu":
                return self.append_node("Mul", x, self.append_node("Sigmoid", x))
            case "hardswish":
                return self.append_node("HardSwish", x)
            case "relu":
                return self.append_node("Relu", x)
            case _:
                return x

    def append_squeeze_excitation(
        self, x: str, channels: int, squeezed_channels: int, activation: str, gate_operator: str
    ) -> str:
        """Append squeeze and excitation (Hu et al., 2018): scale each channel by a function of the
        channel means.
        """
        y = self.append_node("GlobalAveragePool", x)
        y = self.append_node(
            "Conv",
            y,
            self.add_uniform_weights(squeezed_channels, channels, 1, 1),
            self.add_constant(np.zeros(squeezed_channels)),
        )
        y = self.append_activation(y, activation)
        y = self.append_node(
            "Conv",
            y,
            self.add_uniform_weights(channels, squeezed_channels, 1, 1),
            self.add_constant(np.zeros(channels)),
        )
        return self.append_node("Mul", x, self.append_node(gate_operator, y))

    def append_linear_layer(self, x: str, in_width: int, out_width: int) -> str:
        """Append a linear layer to the graph: x @ w + b over the last axis, with random w and b."""
        y = self.append_node("MatMul", x, self.add_uniform_weights(in_width, out_width, fan=in_width))
        return self.append_node("Add", y, self.add_constant(self.rng.uniform(-0.1, 0.1, out_width)))

    def append_layer_norm(self, x: str, width: int) -> str:
        scale, bias = self.rng.uniform(0.5, 1.5, width), self.rng.uniform(-0.1, 0.1, width)
        return self.append_node(
            "LayerNormalization", x, self.add_constant(scale), self.add_constant(bias), axis=-1, epsilon=1e-12
        )

    def append_classifier_head(self, x: str, channels: int, classes: int) -> None:
        """Append global average pooling and a linear layer with the output "scores"."""
        y = self.append_node("Flatten", self.append_node("GlobalAveragePool", x))
        bias = self.add_constant(self.rng.uniform(-0.1, 0.1, classes))
        self.append_named_node("Gemm", y, self.add_uniform_weights(classes, channels), bias, name="scores", transB=1)


def _append_inverted_residual_block(
    n: NetworkBuilder,
    x: str,
    in_channels: int,
    out_channels: int,
    expanded_channels: int,
    kernel: int,
    stride: int,
    activation: str,
    squeezed_channels: int = 0,
) -> str:
    """Append an inverted residual block: expansion, depthwise convolution, projection (Sandler et
    al., 2018).

    `squeezed_channels` is the inner width of squeeze and excitation, 0 for none.
    """
    y = (
        x
        if expanded_channels == in_channels
        else n.append_conv_norm_activation(x, in_channels, expanded_channels, activation=activation)
    )
    y = n.append_conv_norm_activation(
        y, expanded_channels, expanded_channels, kernel, stride, groups=expanded_channels, activation=activation
    )
    if squeezed_channels:
        outer = ("relu", "HardSigmoid") if activation != "silu" else ("silu", "Sigmoid")
        y = n.append_squeeze_excitation(y, expanded_channels, squeezed_channels, *outer)
    y = n.append_conv_norm_activation(y, expanded_channels, out_channels)
    return n.append_node("Add", x, y) if stride == 1 and in_channels == out_channels else y


def resnet50() -> onnx.ModelProto:
    """Build ResNet-50 v1.5 (He et al., 2016; strides in the 3x3 convolutions): data[1, 3, 224, 224]
    -> scores[1, 1000].
    """
    n = NetworkBuilder()
    x, width = n.append_conv_norm_activation("data", 3, 64, 7, 2, activation="relu"), 64
    x = n.append_node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    for stage, repeats in enumerate((3, 4, 6, 3)):
        inner, after = 64 << stage, 256 << stage
        for k in range(repeats):
            stride = 2 if k == 0 and stage else 1
            y = n.append_conv_norm_activation(
                n.append_conv_norm_activation(x, width, inner, activation="relu"),
                inner,
                inner,
                3,
                stride,
                activation="relu",
            )
            shortcut = n.append_conv_norm_activation(x, width, after, 1, stride) if k == 0 else x
            x = n.append_activation(
                n.append_node("Add", n.append_conv_norm_activation(y, inner, after), shortcut), "relu"
            )
            width = after
    n.append_classifier_head(x, width, 1000)
    return n.build_checked_model("resnet50", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def mobilenet_v2() -> onnx.ModelProto:
    """Build MobileNetV2 (Sandler et al., 2018), width 1: data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = NetworkBuilder()
    x, width = n.append_conv_norm_activation("data", 3, 32, 3, 2, activation="relu6"), 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, after, repeats, stride in rows:
        for k in range(repeats):
            x = _append_inverted_residual_block(n, x, width, after, width * factor, 3, stride if k == 0 else 1, "relu6")
            width = after
    n.append_classifier_head(n.append_conv_norm_activation(x, width, 1280, activation="relu6"), 1280, 1000)
    return n.build_checked_model("mobilenet_v2", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def mobilenet_v3_small() -> onnx.ModelProto:
    """Build MobileNetV3-Small (Howard et al., 2019): data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = NetworkBuilder()
    x, width = n.append_conv_norm_activation("data", 3, 16, 3, 2, activation="hardswish"), 16
    rows = (
        (16, 16, 3, 2, "relu", 8), (72, 24, 3, 2, "relu", 0), (88, 24, 3, 1, "relu", 0),
        (96, 40, 5, 2, "hardswish", 24), (240, 40, 5, 1, "hardswish", 64), (240, 40, 5, 1, "hardswish", 64),
        (120, 48, 5, 1, "hardswish", 32), (144, 48, 5, 1, "hardswish", 40), (288, 96, 5, 2, "hardswish", 72),
        (576, 96, 5, 1, "hardswish", 144), (576, 96, 5, 1, "hardswish", 144),
    )  # fmt: skip
    for expand, after, kernel, stride, act, squeeze in rows:
        x = _append_inverted_residual_block(n, x, width, after, expand, kernel, stride, act, squeeze)
        width = after
    x = n.append_node("GlobalAveragePool", n.append_conv_norm_activation(x, width, 576, activation="hardswish"))
    x = n.append_activation(n.append_linear_layer(n.append_node("Flatten", x), 576, 1024), "hardswish")
    bias = n.add_constant(np.zeros(1000))
    n.append_named_node("Gemm", x, n.add_uniform_weights(1000, 1024), bias, name="scores", transB=1)
    return n.build_checked_model("mobilenet_v3_small", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def efficientnet_b0() -> onnx.ModelProto:
    """Build EfficientNet-B0 (Tan and Le, 2019): data[1, 3, 224, 224] -> scores[1, 1000]."""
    n = NetworkBuilder()
    x, width = n.append_conv_norm_activation("data", 3, 32, 3, 2, activation="silu"), 32
    rows = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )  # fmt: skip
    for factor, after, repeats, stride, kernel in rows:
        for k in range(repeats):
            step = stride if k == 0 else 1
            x = _append_inverted_residual_block(
                n, x, width, after, width * factor, kernel, step, "silu", max(1, width // 4)
            )
            width = after
    n.append_classifier_head(n.append_conv_norm_activation(x, width, 1280, activation="silu"), 1280, 1000)
    return n.build_checked_model("efficientnet_b0", {"data": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def _append_split_into_attention_heads(
    n: NetworkBuilder, x: str, length: int, width: int, heads: int, axis_order: Shape
) -> str:
    """Append the split of [1, length, width] into attention heads, transposed by `axis_order`."""
    shape = n.add_constant([1, length, heads, width // heads], "int64")
    return n.append_node("Transpose", n.append_node("Reshape", x, shape), perm=list(axis_order))


def _append_multi_head_attention(n: NetworkBuilder, x: str, length: int, width: int, heads: int, mask: str) -> str:
    """Append multi-head attention (Vaswani et al., 2017); `mask` is added to the scores, "" for
    none.
    """
    q, k, v = (n.append_linear_layer(x, width, width) for _ in range(3))
    q, v = (_append_split_into_attention_heads(n, t, length, width, heads, (0, 2, 1, 3)) for t in (q, v))
    k = _append_split_into_attention_heads(n, k, length, width, heads, (0, 2, 3, 1))
    scores = n.append_node("Mul", n.append_node("MatMul", q, k), n.add_constant(1 / math.sqrt(width // heads)))
    scores = n.append_node("Add", scores, mask) if mask else scores
    y = n.append_node("MatMul", n.append_node("Softmax", scores, axis=-1), v)
    y = n.append_node(
        "Reshape", n.append_node("Transpose", y, perm=[0, 2, 1, 3]), n.add_constant([1, length, width], "int64")
    )
    return n.append_linear_layer(y, width, width)


def _append_erf_gelu(n: NetworkBuilder, x: str) -> str:
    y = n.append_node("Erf", n.append_node("Div", x, n.add_constant(math.sqrt(2.0))))
    return n.append_node(
        "Mul", n.append_node("Mul", x, n.append_node("Add", y, n.add_constant(1.0))), n.add_constant(0.5)
    )


def _append_tanh_gelu(n: NetworkBuilder, x: str) -> str:
    cube = n.append_node("Mul", n.append_node("Mul", x, x), x)
    inner = n.append_node("Add", x, n.append_node("Mul", cube, n.add_constant(0.044715)))
    y = n.append_node("Tanh", n.append_node("Mul", inner, n.add_constant(math.sqrt(2 / math.pi))))
    return n.append_node(
        "Mul", n.append_node("Mul", x, n.append_node("Add", y, n.add_constant(1.0))), n.add_constant(0.5)
    )


def minilm() -> onnx.ModelProto:
    """Build the encoder of MiniLM-L6 (Wang et al., 2020) for 128 tokens: embeddings[1, 128, 384] ->
    hidden[1, 128, 384].
    """
    n, length, width = NetworkBuilder(), 128, 384
    x = n.append_layer_norm("embeddings", width)
    for _ in range(6):
        x = n.append_layer_norm(
            n.append_node("Add", x, _append_multi_head_attention(n, x, length, width, 12, "")), width
        )
        y = n.append_linear_layer(_append_erf_gelu(n, n.append_linear_layer(x, width, 4 * width)), 4 * width, width)
        x = n.append_layer_norm(n.append_node("Add", x, y), width)
    n.append_named_node("Identity", x, name="hidden")
    return n.build_checked_model("minilm", {"embeddings": [1, length, width]}, {"hidden": [1, length, width]})


def vit_small() -> onnx.ModelProto:
    """Build ViT-S/16 (Dosovitskiy et al., 2021) with the mean of the patches instead of a class token:
    image[1, 3, 224, 224] -> scores[1, 1000].
    """
    n, patches, width = NetworkBuilder(), 196, 384
    weight = n.add_uniform_weights(width, 3, 16, 16, fan=3 * 16 * 16)
    x = n.append_node("Conv", "image", weight, strides=[16, 16])
    x = n.append_node("Reshape", x, n.add_constant([1, width, patches], "int64"))
    x = n.append_node("Transpose", x, perm=[0, 2, 1])
    x = n.append_node("Add", x, n.add_constant(n.rng.standard_normal((1, patches, width)) / 10))
    for _ in range(12):
        y = n.append_layer_norm(x, width)
        x = n.append_node("Add", x, _append_multi_head_attention(n, y, patches, width, 6, ""))
        y = n.append_linear_layer(n.append_layer_norm(x, width), width, 4 * width)
        x = n.append_node("Add", x, n.append_linear_layer(_append_erf_gelu(n, y), 4 * width, width))
    x = n.append_node("ReduceMean", n.append_layer_norm(x, width), axes=[1], keepdims=0)
    n.append_named_node("Identity", n.append_linear_layer(x, width, 1000), name="scores")
    return n.build_checked_model("vit_small", {"image": [1, 3, 224, 224]}, {"scores": [1, 1000]})


def gpt2_small() -> onnx.ModelProto:
    """Build six causal decoder blocks as in GPT-2 (Radford et al., 2019) for 64 tokens of width
    384.
    """
    n, length, width = NetworkBuilder(), 64, 384
    mask = n.add_constant(np.triu(np.full((length, length), -1e9), 1)[None, None])
    x = "embeddings"
    for _ in range(6):
        x = n.append_node(
            "Add", x, _append_multi_head_attention(n, n.append_layer_norm(x, width), length, width, 6, mask)
        )
        y = n.append_linear_layer(
            _append_tanh_gelu(n, n.append_linear_layer(n.append_layer_norm(x, width), width, 4 * width)),
            4 * width,
            width,
        )
        x = n.append_node("Add", x, y)
    n.append_named_node("Identity", n.append_layer_norm(x, width), name="hidden")
    return n.build_checked_model("gpt2_small", {"embeddings": [1, length, width]}, {"hidden": [1, length, width]})


def gpt2_step() -> onnx.ModelProto:
    """Build one decoding step of GPT-2 small (Radford et al., 2019): a token after 128 others with
    cached keys and values.

    embedding[1, 1, 768], 12 layers' past[1, 12, 128, 64] -> logits[1, 1, 50257], the token's own
    keys and values.
    """
    n, width = NetworkBuilder(), 768
    hidden, inputs, outputs = append_gpt2_decoding_blocks(n, width, heads=12, layers=12)
    n.append_named_node("MatMul", hidden, n.add_uniform_weights(width, 50257, fan=width), name="logits")
    return n.build_checked_model("gpt2_step", inputs, {"logits": [1, 1, 50257], **outputs})


def append_gpt2_decoding_blocks(
    n: NetworkBuilder, width: int, heads: int, layers: int
) -> tuple[str, dict[str, list[int]], dict[str, list[int]]]:
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
        y = n.append_layer_norm(x, width)
        q, *key_value = (
            _append_split_into_attention_heads(n, n.append_linear_layer(y, width, width), 1, width, heads, (0, 2, 1, 3))
            for _ in range(3)
        )
        past = [f"past_{kind}{layer}" for kind in "kv"]
        inputs |= {name: [1, heads, 128, size] for name in past}
        outputs |= {name: [1, heads, 1, size] for name in key_value}
        k, v = (n.append_node("Concat", a, b, axis=2) for a, b in zip(past, key_value, strict=True))
        scores = n.append_node("MatMul", q, n.append_node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = n.append_node("Softmax", n.append_node("Mul", scores, n.add_constant(1 / math.sqrt(size))), axis=-1)
        y = n.append_node("Transpose", n.append_node("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = n.append_node("Reshape", y, n.add_constant([1, 1, width], "int64"))
        x = n.append_node("Add", x, n.append_linear_layer(y, width, width))
        y = n.append_linear_layer(
            _append_tanh_gelu(n, n.append_linear_layer(n.append_layer_norm(x, width), width, 4 * width)),
            4 * width,
            width,
        )
        x = n.append_node("Add", x, y)
    return n.append_layer_norm(x, width), inputs, outputs


def ds_cnn() -> onnx.ModelProto:
    """Build the keyword spotting network DS-CNN-S (Zhang et al., 2017): mfcc[1, 1, 49, 10] ->
    scores[1, 12].
    """
    n = NetworkBuilder()
    x = n.append_node(
        "Conv", "mfcc", n.add_uniform_weights(64, 1, 10, 4), kernel_shape=[10, 4], pads=[4, 1, 5, 1], strides=[2, 2]
    )
    x = n.append_activation(n.append_batch_norm(x, n.generate_unique_name("norm"), 64), "relu")
    for _ in range(4):
        x = n.append_conv_norm_activation(x, 64, 64, 3, groups=64, activation="relu")
        x = n.append_conv_norm_activation(x, 64, 64, activation="relu")
    n.append_classifier_head(x, 64, 12)
    return n.build_checked_model("ds_cnn", {"mfcc": [1, 1, 49, 10]}, {"scores": [1, 12]})


def lstm() -> onnx.ModelProto:
    """Build two LSTM layers (Hochreiter and Schmidhuber, 1997) of width 128 over 50 steps: x[50, 1,
    128] -> y[1, 10].
    """
    n, steps, width = NetworkBuilder(), 50, 128
    x = "x"
    for _ in range(2):
        w, r = (n.add_constant(n.rng.uniform(-1, 1, (1, 4 * width, width)) / math.sqrt(width)) for _ in range(2))
        y, _ = n.append_multi_output_node(
            "LSTM", 2, x, w, r, n.add_constant(np.zeros((1, 8 * width))), hidden_size=width
        )
        x = n.append_node("Squeeze", y, n.add_constant([1], "int64"))
    last = n.append_node("Gather", x, n.add_constant(-1, "int64"), axis=0)
    n.append_named_node(
        "Gemm", last, n.add_uniform_weights(10, width), n.add_constant(np.zeros(10)), name="y", transB=1
    )
    return n.build_checked_model("lstm", {"x": [steps, 1, width]}, {"y": [1, 10]})


def unet() -> onnx.ModelProto:
    """Build U-Net (Ronneberger et al., 2015), four levels from 16 channels: image[1, 3, 128, 128]
    -> mask[1, 1, 128, 128].
    """
    n = NetworkBuilder()
    x, width, skips = "image", 3, []
    for level in range(4):
        after = 16 << level
        x = n.append_conv_norm_activation(
            n.append_conv_norm_activation(x, width, after, 3, activation="relu"), after, after, 3, activation="relu"
        )
        width = after
        if level < 3:
            skips.append((x, width))
            x = n.append_node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for skip, after in reversed(skips):
        x = n.append_node(
            "ConvTranspose",
            x,
            n.add_uniform_weights(width, after, 2, 2, fan=width),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        x = n.append_node("Concat", skip, x, axis=1)
        x = n.append_conv_norm_activation(
            n.append_conv_norm_activation(x, 2 * after, after, 3, activation="relu"), after, after, 3, activation="relu"
        )
        width = after
    x = n.append_node(
        "Conv", x, n.add_uniform_weights(1, width, 1, 1), n.add_constant(np.zeros(1)), kernel_shape=[1, 1]
    )
    n.append_named_node("Sigmoid", x, name="mask")
    return n.build_checked_model("unet", {"image": [1, 3, 128, 128]}, {"mask": [1, 1, 128, 128]})


NETWORK_BUILD_FUNCTIONS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {
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
