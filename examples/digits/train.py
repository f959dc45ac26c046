# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network on scikit-learn's handwritten digits and write it as ONNX.

Out: digits.onnx (the network, about 20 kB) and digits_test.bin (the held-out images: 64 gray values from 0
to 16 and a label, a byte each).  Plain numpy, deterministic; `make train` runs it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
CLASSES = 10
TEST_IMAGES = 360
EPOCHS = 60
BATCH = 32

Params = dict[str, np.ndarray]


def initial_params(rng: np.random.Generator) -> Params:
    """He initialization: two 3x3 convolutions and a dense layer."""
    shapes = {"w1": (8, 1, 3, 3), "w2": (16, 8, 3, 3), "w3": (CLASSES, 16 * 2 * 2)}
    params = {n: rng.standard_normal(s) * np.sqrt(2 / np.prod(s[1:])) for n, s in shapes.items()}
    return {**params, "b1": np.zeros(8), "b2": np.zeros(16), "b3": np.zeros(CLASSES)}


def windows(x: np.ndarray) -> np.ndarray:
    """(N, C, H, W) -> (N, C, H, W, 3, 3): the zero-padded neighborhood of each pixel."""
    return sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))


def conv(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("nchwij,ocij->nohw", windows(x), w, optimize=True) + b[:, None, None]


def conv_grads(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of a convolution for its input, weights and bias."""
    dw = np.einsum("nchwij,nohw->ocij", windows(x), dy, optimize=True)
    dx = np.einsum("nohwij,ocij->nchw", windows(dy), w[:, :, ::-1, ::-1], optimize=True)
    return dx, dw, dy.sum(axis=(0, 2, 3))


def pool(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


def unpool(x: np.ndarray, y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Gradient of 2x2 max pooling: to where the maximum was."""
    up = y.repeat(2, axis=2).repeat(2, axis=3) == x
    return up * dy.repeat(2, axis=2).repeat(2, axis=3)


def forward(p: Params, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits and the activations that the backward pass needs."""
    a1 = np.maximum(conv(x, p["w1"], p["b1"]), 0)
    p1 = pool(a1)
    a2 = np.maximum(conv(p1, p["w2"], p["b2"]), 0)
    p2 = pool(a2)
    flat = p2.reshape(len(x), -1)
    return flat @ p["w3"].T + p["b3"], [x, a1, p1, a2, p2, flat]


def gradients(p: Params, x: np.ndarray, labels: np.ndarray) -> Params:
    """Return the gradients of the mean softmax cross-entropy with respect to all parameters."""
    logits, (x, a1, p1, a2, p2, flat) = forward(p, x)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    d = e / e.sum(axis=1, keepdims=True)
    d[np.arange(len(labels)), labels] -= 1
    d /= len(labels)
    grads = {"w3": d.T @ flat, "b3": d.sum(axis=0)}
    da2 = unpool(a2, p2, (d @ p["w3"]).reshape(p2.shape)) * (a2 > 0)
    dp1, grads["w2"], grads["b2"] = conv_grads(p1, p["w2"], da2)
    da1 = unpool(a1, p1, dp1) * (a1 > 0)
    _, grads["w1"], grads["b1"] = conv_grads(x, p["w1"], da1)
    return grads


def train(x: np.ndarray, labels: np.ndarray) -> Params:
    """Adam (Kingma and Ba, 2015) with a linearly falling step."""
    rng = np.random.default_rng(0)
    params = initial_params(rng)
    m, v = ({n: np.zeros_like(a) for n, a in params.items()} for _ in range(2))
    step, steps = 0, EPOCHS * (len(x) // BATCH)
    for _ in range(EPOCHS):
        order = rng.permutation(len(x))
        for first in range(0, len(x) - BATCH + 1, BATCH):
            batch = order[first : first + BATCH]
            step += 1
            rate = 3e-3 * (1 - step / (steps + 1))
            for name, g in gradients(params, x[batch], labels[batch]).items():
                m[name] = 0.9 * m[name] + 0.1 * g
                v[name] = 0.999 * v[name] + 0.001 * g * g
                scale = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                params[name] = params[name] - scale * m[name] / (np.sqrt(v[name]) + 1e-8)
    return params


def to_onnx(p: Params) -> onnx.ModelProto:
    """image float32[1, 1, 8, 8], gray values from 0 to 1 -> scores float32[1, 10], probabilities."""
    node = helper.make_node
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    half = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        node("Conv", ["image", "w1", "b1"], ["c1"], name="conv1", **same),
        node("Relu", ["c1"], ["r1"], name="relu1"),
        node("MaxPool", ["r1"], ["p1"], name="pool1", **half),
        node("Conv", ["p1", "w2", "b2"], ["c2"], name="conv2", **same),
        node("Relu", ["c2"], ["r2"], name="relu2"),
        node("MaxPool", ["r2"], ["p2"], name="pool2", **half),
        node("Flatten", ["p2"], ["f"], name="flatten"),
        node("Gemm", ["f", "w3", "b3"], ["logits"], name="dense", transB=1),
        node("Softmax", ["logits"], ["scores"], name="softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in p.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], producer_name="examples/digits")
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def main() -> None:
    data = load_digits()
    order = np.random.default_rng(1).permutation(len(data.images))
    images, labels = data.images[order], data.target[order]
    x = images[:, None] / 16.0
    params = train(x[:-TEST_IMAGES], labels[:-TEST_IMAGES])
    guesses = forward(params, x[-TEST_IMAGES:])[0].argmax(axis=1)
    print(f"held-out accuracy: {np.mean(guesses == labels[-TEST_IMAGES:]):.4f} of {TEST_IMAGES} images")
    onnx.save(to_onnx(params), HERE / "digits.onnx")
    rows = np.concatenate([images[-TEST_IMAGES:].reshape(-1, 64), labels[-TEST_IMAGES:, None]], axis=1)
    (HERE / "digits_test.bin").write_bytes(rows.astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
