# SPDX-License-Identifier: Apache-2.0
"""Quantized operators other than layers give the bytes of TFLite Micro and of LiteRT, with the rounding of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, tflm
from tests.frontend_tflite.test_tflite_integer_layers import one, rows, softmax, two


def leaky(x: float, y: float, alpha: float) -> Any:
    return one("LEAKY_RELU", x, y, (3, -7), "LeakyReluOptions", alpha=alpha)


def prelu(x: float, y: float, slopes: float) -> Any:
    model = Builder()
    slope = model.tensor((1, 1, 16), "int8", rows(1, 1, 1, 16), scale=slopes, zero=-2)
    inputs = [model.tensor((1, 4, 16, 16), "int8", scale=x, zero=5)]
    outputs = [model.tensor((1, 4, 16, 16), "int8", scale=y, zero=-3)]
    model.op("PRELU", [*inputs, slope], outputs)
    return model.data(inputs, outputs), [rows(2, 1, 4, 16, 16)]


def resize(name: str, sizes: tuple[int, int], corners: bool, centers: bool) -> Any:
    model = Builder()
    places = model.tensor((2,), "int32", sizes)
    inputs = [model.tensor((1, 5, 4, 3), "int8", scale=0.1, zero=5)]
    outputs = [model.tensor((1, *sizes, 3), "int8", scale=0.1, zero=5)]
    kind = "ResizeBilinearOptions" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    model.op(name, [*inputs, places], outputs, kind, alignCorners=corners, halfPixelCenters=centers)
    return model.data(inputs, outputs), [rows(3, 1, 5, 4, 3)]


def transposed(padding: int, size: tuple[int, int], several: bool, biased: bool) -> Any:
    model, rng = Builder(), np.random.default_rng(5)
    shape = model.tensor((4,), "int32", (1, *size, 3))
    scales = rng.uniform(0.002, 0.01, 3) if several else 0.006
    w = model.tensor((3, 3, 2, 4), "int8", rows(4, 3, 3, 2, 4), scale=scales, zero=0)
    bias = [model.tensor((3,), "int32", rng.integers(-900, 900, 3))] if biased else []
    inputs = [model.tensor((1, 4, 5, 4), "int8", scale=0.05, zero=-9)]
    outputs = [model.tensor((1, *size, 3), "int8", scale=0.2, zero=4)]
    options = {"padding": padding, "strideH": 2, "strideW": 2}
    version = 3 if biased else 1
    model.op("TRANSPOSE_CONV", [shape, w, *inputs, *bias], outputs, "TransposeConvOptions", version, **options)
    return model.data(inputs, outputs), [rows(6, 1, 4, 5, 4)]


def products(turned: tuple[bool, bool], scale: float) -> Any:
    model = Builder()
    shapes = [(2, 7, 50) if turned[0] else (2, 50, 7), (2, 40, 7) if turned[1] else (2, 7, 40)]
    inputs = [model.tensor(s, "int8", scale=0.02, zero=z) for s, z in zip(shapes, (3, -4), strict=True)]
    outputs = [model.tensor((2, 50, 40), "int8", scale=scale, zero=9)]
    model.op("BATCH_MATMUL", inputs, outputs, "BatchMatMulOptions", adjX=turned[0], adjY=turned[1])
    return model.data(inputs, outputs), [rows(k, *s) for k, s in enumerate(shapes)]


def constant_product(scale: float) -> Any:
    model = Builder()
    b = model.tensor((7, 40), "int8", rows(8, 7, 40), scale=0.02, zero=0)
    inputs = [model.tensor((3, 50, 7), "int8", scale=0.02, zero=3)]
    outputs = [model.tensor((3, 50, 40), "int8", scale=scale, zero=9)]
    model.op("BATCH_MATMUL", [*inputs, b], outputs, "BatchMatMulOptions", adjX=False, adjY=False)
    return model.data(inputs, outputs), [rows(9, 3, 50, 7)]


def halves(rng: np.random.Generator, *shape: int) -> Any:
    """Numbers of 4 bits, two in a byte."""
    values = rng.integers(-7, 8, shape).reshape(-1)
    values = np.pad(values, (0, values.size % 2)) & 15
    return (values[::2] | values[1::2] << 4).astype(np.uint8)


def layer(name: str, dtype: str, weights: str, scale: float, several: bool = False, bare: bool = False) -> Any:
    """A layer with weights of 4 bits, or with data and weights of the unsigned bytes of old models."""
    model, rng = Builder(), np.random.default_rng(11)
    shape = {"CONV_2D": (5, 3, 3, 4), "DEPTHWISE_CONV_2D": (1, 3, 3, 8)}.get(name, (5, 64))
    channels = shape[3] if name == "DEPTHWISE_CONV_2D" else shape[0]
    limits = (-127, 128) if weights == "int8" else (0, 256)
    data = halves(rng, *shape) if weights == "int4" else rng.integers(*limits, shape)
    scales = rng.uniform(0.01, 0.1, channels) if several else 0.02
    zero = 131 if weights == "uint8" else 0
    axis = 3 if name == "DEPTHWISE_CONV_2D" else 0
    w = model.tensor(shape, weights, data, scales, zero, axis)
    one = None if bare else 0.05 * 0.02
    bias = model.tensor((channels,), "int32", rng.integers(-900, 900, channels), scale=one)
    dense = name == "FULLY_CONNECTED"
    given = (20, 64) if dense else (1, 9, 8, 8 if channels == 8 else 4)
    start = 128 if dtype == "uint8" else 0
    inputs = [model.tensor(given, dtype, scale=0.05, zero=start - 9)]
    outputs = [model.tensor((20, 5) if dense else (1, 7, 6, channels), dtype, scale=scale, zero=start + 4)]
    kinds = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}
    options = {} if dense else {"padding": 1, "strideH": 1, "strideW": 1}
    options |= {"depthMultiplier": 1} if channels == 8 else {}
    model.op(name, [*inputs, w, bias], outputs, kinds.get(name, "FullyConnectedOptions"), 1, **options)
    return model.data(inputs, outputs), [(rows(12, *given).astype(np.int16) + start).astype(dtype)]


def old_depthwise(multiplier: int, stride: int, dilation: int, scale: float) -> Any:
    """A depthwise convolution of unsigned bytes whose weights have one scale and a zero point of their own."""
    model, channels = Builder(), 4 * multiplier
    rng = np.random.default_rng(channels + stride)
    w = model.tensor((1, 3, 2, channels), "uint8", rng.integers(0, 256, (1, 3, 2, channels)), scale=0.02, zero=117)
    bias = model.tensor((channels,), "int32", rng.integers(-900, 900, channels), scale=0.05 * 0.02)
    inputs = [model.tensor((2, 9, 8, 4), "uint8", scale=0.05, zero=119)]
    outputs = [model.tensor((), "uint8", scale=scale, zero=132)]
    options = {"padding": 0, "strideH": stride, "strideW": stride, "depthMultiplier": multiplier}
    options |= {"dilationHFactor": dilation, "dilationWFactor": dilation, "fusedActivationFunction": 1}
    model.op("DEPTHWISE_CONV_2D", [*inputs, w, bias], outputs, "DepthwiseConv2DOptions", 2, **options)
    return model.data(inputs, outputs), [rng.integers(0, 256, (2, 9, 8, 4)).astype(np.uint8)]


LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def cases() -> Iterator[Any]:
    for scale in (0.013, 0.4):
        yield f"BATCH_MATMUL-constant-{scale}", constant_product(scale)
        for name in LAYERS:
            # TFLite Micro has one scale for such weights of dense layers
            # both refuse small results of layers whose bias has no scale
            if scale > 0.1:
                yield f"{name}-bare-{scale}", layer(name, "int8", "int8", scale, False, True)
            for several in (False,) if name == "FULLY_CONNECTED" else (False, True):
                yield f"{name}-int4-{scale}-{several}", layer(name, "int8", "int4", scale, several)
    for x, y in ((0.05, 0.05), (0.011, 0.013), (0.2, 0.1), (0.03, 0.0237)):
        yield f"HARD_SWISH-{x}", one("HARD_SWISH", x, y)
        yield f"LEAKY_RELU-{x}", leaky(x, y, 0.1 if x < 0.1 else 1.7)
        yield f"PRELU-{x}", prelu(x, y, 0.007)
        yield f"SQUARED_DIFFERENCE-{x}", two("SQUARED_DIFFERENCE", (x, y, x * y * 60))
    for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for corners, centers in ((False, False), (True, False), (False, True)):
            for sizes in ((7, 3), (10, 8), (1, 1), (2, 9)):
                yield f"{name}-{sizes}-{corners}-{centers}", resize(name, sizes, corners, centers)
    for padding, size in ((0, (8, 10)), (0, (7, 9)), (1, (9, 10))):
        yield f"TRANSPOSE_CONV-{padding}-{size}", transposed(padding, size, padding == 0, padding == 1)
    for turned in ((False, False), (False, True), (True, False), (True, True)):
        for scale in (0.013, 0.031, 0.4):
            yield f"BATCH_MATMUL-{turned}-{scale}", products(turned, scale)


def old() -> Iterator[Any]:
    """Models of unsigned bytes."""
    for name in LAYERS:
        for scale in (0.013, 0.11, 0.9):
            for bare in (False, True) if scale > 0.1 else (False,):
                yield f"{name}-{scale}-{bare}", layer(name, "uint8", "uint8", scale, False, bare)
    for multiplier, stride, dilation, scale in ((2, 1, 1, 0.02), (3, 2, 1, 0.11), (1, 1, 2, 0.4), (2, 1, 3, 0.9)):
        yield f"depthwise-{multiplier}-{stride}-{dilation}", old_depthwise(multiplier, stride, dilation, scale)
    for name in ("ADD", "SUB", "MUL"):
        for scales in ((0.02, 0.05, 0.06), (0.1, 0.003, 0.09)):
            scales = (*scales[:2], scales[0] * scales[1] * 40) if name == "MUL" else scales
            yield f"{name}-{scales}", two(name, scales, dtype="uint8")
    kinds = [("LOGISTIC", 1 / 256, 0), ("TANH", 1 / 128, 128), ("RELU", 0.06, 7), ("QUANTIZE", 0.03, 9)]
    for name, y, zero in kinds:
        for x in (0.011, 0.043, 0.2):
            yield f"{name}-{x}", one(name, x, y, (133, zero), dtype="uint8")
    for x, y in ((0.05, 0.05), (0.011, 0.013), (0.2, 0.1)):
        yield f"HARD_SWISH-{x}", one("HARD_SWISH", x, y, (133, 121), dtype="uint8")
        yield f"LEAKY_RELU-{x}", one("LEAKY_RELU", x, y, (133, 121), "LeakyReluOptions", "uint8", alpha=0.3)
    for scale, beta in ((0.1, 1.0), (0.02, 1.0), (0.5, 0.7)):
        yield f"SOFTMAX-{scale}", softmax(scale, beta, "uint8")


MODELS = dict(cases())
OLD = dict(old())


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("name", MODELS)
def test_operators(name: str, rounding: str) -> None:
    data, arrays = MODELS[name]
    expected = (litert if rounding == "litert" else tflm)(data, arrays)[0]
    module = from_tflite(data, rounding=rounding)
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", OLD)
def test_unsigned_bytes(name: str) -> None:
    """uint8 operators of old models, which TFLite Micro does not support, agree with LiteRT."""
    data, arrays = OLD[name]
    module = from_tflite(data, rounding="litert")
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, litert(data, arrays)[0])
