# SPDX-License-Identifier: Apache-2.0
"""Layers with 16-bit activations and 8-bit weights give the integers of TFLite Micro and of LiteRT."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, tflm

#: Of the input; channels of the weight stand at the axis.
LAYERS: dict[str, Any] = {
    "CONV_2D": ((1, 9, 8, 4), (5, 3, 3, 4), 0),
    "DEPTHWISE_CONV_2D": ((1, 9, 8, 8), (1, 3, 3, 8), 3),
    "FULLY_CONNECTED": ((200, 640), (6, 640), 0),
}


def layer(name: str, scale: float, several: bool, biased: bool, activation: int, bias_type: str = "int64") -> Any:
    """Layers of random numbers."""
    given, shape, axis = LAYERS[name]
    rng, model = np.random.default_rng(len(name)), Builder()
    channels = shape[axis]
    scales = rng.uniform(0.001, 0.01, channels) if several else 0.004
    w = model.tensor(shape, "int8", rng.integers(-127, 128, shape), scales, 0, axis)
    bias = rng.integers(-(1 << 20), 1 << 20, channels)
    more = [model.tensor((channels,), bias_type, bias, scale=0.0002 * 0.004)] if biased else []
    x = model.tensor(given, "int16", scale=0.0002, zero=0)
    dense = name == "FULLY_CONNECTED"
    y = model.tensor((given[0], channels) if dense else (1, 7, 6, channels), "int16", scale=scale, zero=0)
    options: dict[str, Any] = {} if dense else {"padding": 1, "strideH": 1, "strideW": 1}
    options |= {"depthMultiplier": 1} if axis else {}
    kinds = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}
    options |= {"fusedActivationFunction": activation}
    model.op(name, [x, w, *more], [y], kinds.get(name, "FullyConnectedOptions"), 4, **options)
    return model.data([x], [y]), [rng.integers(-32768, 32768, given).astype(np.int16)]


def words(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(-32768, 32768, shape).astype(np.int16)


def pair(name: str, scales: tuple[float, float, float], activation: int) -> Any:
    model, shape = Builder(), (64, 128)
    x, y, z = (model.tensor(shape, "int16", scale=s, zero=0) for s in scales)
    model.op(name, [x, y], [z], f"{name.title()}Options", fusedActivationFunction=activation)
    return model.data([x, y], [z]), [words(*shape), words(*shape)[::-1]]


def single(name: str, x: float, y: float, shape: Any, result: Any, kind: str = "", **options: Any) -> Any:
    model = Builder()
    inputs = [model.tensor(shape, "int16", scale=x, zero=0)]
    outputs = [model.tensor(result, "int16", scale=y, zero=0)]
    axes = [model.tensor((2,), "int32", [1, 2])] if name == "MEAN" else []
    model.op(name, [*inputs, *axes], outputs, kind, **options)
    every = np.arange(-32768, 32768).astype(np.int16)
    return model.data(inputs, outputs), [every.reshape(shape) if shape == (256, 256) else words(*shape)]


def operators() -> Iterator[Any]:
    """The operators of 16 bits beside layers; all integers where there is one input."""
    whole = (256, 256), (256, 256)
    scales = (0.0002, 0.0005, 0.0006), (0.001, 0.00003, 0.0009), (2**-11, 2**-12, 2**-11), (0.00073, 0.00019, 0.0007)
    for k, s in enumerate((*scales, (2**-10, 2**-10, 2**-10), (2**-13, 2**-9, 2**-9))):
        for name in ("ADD", "SUB", "MUL"):
            scales = (*s[:2], s[0] * s[1] * 9000) if name == "MUL" else s
            yield f"{name}-{k}", pair(name, scales, (0, 1, 3)[k % 3])
    for x in (2**-12, 2**-11, 0.0001, 0.0007, 2**-15, 0.01):
        for name in ("LOGISTIC", "TANH"):
            yield f"{name}-{x}", single(name, x, 2**-15, *whole)
    for x, y in ((0.0002, 0.0005), (0.0002, 0.0002), (0.0005, 0.0002)):
        for name in ("RELU", "QUANTIZE"):
            yield f"{name}-{x}-{y}", single(name, x, y, *whole)
        yield f"LEAKY_RELU-{x}-{y}", single("LEAKY_RELU", x, y, *whole, "LeakyReluOptions", alpha=0.1)
        yield f"MEAN-{x}-{y}", single("MEAN", x, y / 4, (1, 8, 4, 900), (1, 900), "ReducerOptions", keepDims=False)
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        options = {"filterHeight": 3, "filterWidth": 2, "strideH": 1, "strideW": 1, "padding": 0}
        shape = (1, 9, 8, 30)
        yield name, single(name, 0.0002, 0.0002, shape, shape, "Pool2DOptions", **options)


def made(name: str, inputs: Any, output: Any, kind: str = "", **options: Any) -> Any:
    """An operator of tensors (shape, type, scale), constants with their value."""
    model, places, given, arrays = Builder(), [], [], []
    for shape, dtype, scale, *value in inputs:
        places.append(model.tensor(shape, dtype, value[0] if value else None, scale))
        if not value:
            given.append(places[-1])
            every = np.arange(-128, 128).astype(np.int8)
            arrays.append(np.resize(every, shape) if dtype == "int8" else words(*shape))
            if dtype == "float32":
                arrays[-1] = (np.arange(-8000, 8000) * np.float32(0.15)).astype(np.float32).reshape(shape)
    result = model.tensor(output[0], output[1], scale=output[2])
    model.op(name, places, [result], kind, **options)
    return model.data(given, [result]), arrays


def probabilities(x: float, beta: float) -> Any:
    """All differences of two, and longer rows."""
    data, _ = made("SOFTMAX", [((65536, 2), "int16", x)], ((65536, 2), "int16", 2**-15), "SoftmaxOptions", beta=beta)
    every = np.arange(-32768, 32768).astype(np.int16)
    return data, [np.stack([every, np.full_like(every, 32767)], -1)]


def turned_convolution(padding: int, biased: bool) -> Any:
    rng, size = np.random.default_rng(3), (8, 10) if padding == 0 else (9, 11)
    shape, w = np.array((1, *size, 3)), rng.integers(-127, 128, (3, 3, 3, 4))
    bias = [((3,), "int64", 1e-6, rng.integers(-(1 << 20), 1 << 20, 3))] if biased else []
    inputs = [((4,), "int32", None, shape), (w.shape, "int8", 0.004, w), ((1, 4, 5, 4), "int16", 0.0002), *bias]
    options = {"padding": padding, "strideH": 2, "strideW": 2}
    return made("TRANSPOSE_CONV", inputs, (tuple(shape), "int16", 0.003), "TransposeConvOptions", **options)


def whole_products(turned: bool, shape: Any) -> Any:
    a, b = (*shape, 50, 7), (*shape, 40, 7) if turned else (*shape, 7, 40)
    inputs = [(a, "int16", 0.0002), (b, "int16", 0.0003)]
    result = (*shape, 50, 40), "int16", 0.004
    return made("BATCH_MATMUL", inputs, result, "BatchMatMulOptions", adjX=False, adjY=turned)


def more_operators() -> Iterator[Any]:
    whole = (64, 128)
    for x, beta in ((0.0005, 1.0), (0.0001, 2.0), (2**-12, 1.0), (0.004, 0.5)):
        yield f"SOFTMAX-{x}", probabilities(x, beta)
    for shape in ((40, 13), (8, 1), (3, 2000)):
        ends = (shape, "int16", 0.0003), (shape, "int16", 2**-15)
        yield f"SOFTMAX-{shape}", made("SOFTMAX", ends[:1], ends[1], "SoftmaxOptions", beta=1.0)
    for x, y in ((0.0003, 0.05), (0.0004, 0.0003), (0.004, 0.02)):
        yield f"QUANTIZE-16-8-{x}", made("QUANTIZE", [(whole, "int16", x)], (whole, "int8", y))
        yield f"QUANTIZE-8-16-{x}", made("QUANTIZE", [(whole, "int8", y)], (whole, "int16", x))
        yield (
            f"SQUARED_DIFFERENCE-{x}",
            made("SQUARED_DIFFERENCE", [(whole, "int16", x), (whole[1:], "int16", y)], (whole, "int16", x * y * 9000)),
        )
        slopes = ((1, 1, 16), "int8", 0.01, np.arange(-8, 8))
        yield f"PRELU-{x}", made("PRELU", [((1, 8, 8, 16), "int16", x), slopes], ((1, 8, 8, 16), "int16", y))
    for x in (0.0003, 12 / 7):
        yield f"RELU6-{x}", made("RELU6", [(whole, "int16", x)], (whole, "int16", x))
    for padding, biased in ((0, False), (1, True)):
        yield f"TRANSPOSE_CONV-{padding}", turned_convolution(padding, biased)
    for turned in (False, True):
        yield f"BATCH_MATMUL-{turned}", whole_products(turned, (2,))
        yield f"BATCH_MATMUL-{turned}-4", whole_products(turned, (1, 2))
    for corners, centers in ((False, False), (True, False), (False, True)):
        sizes = ((2,), "int32", None, np.array([7, 5]))
        ends = ((1, 5, 4, 9), "int16", 0.1), ((1, 7, 5, 9), "int16", 0.1)
        options = {"alignCorners": corners, "halfPixelCenters": centers}
        yield (
            f"RESIZE_BILINEAR-{corners}-{centers}",
            made("RESIZE_BILINEAR", [ends[0], sizes], ends[1], "ResizeBilinearOptions", **options),
        )
    two = [(whole, "int16", 0.1), (whole, "int16", 0.1)]
    for name in ("MAXIMUM", "MINIMUM"):
        yield name, made(name, two, (whole, "int16", 0.1), "MaximumMinimumOptions")
    options = {"axis": 1, "fusedActivationFunction": 0}
    yield "CONCATENATION", made("CONCATENATION", two, ((64, 256), "int16", 0.1), "ConcatenationOptions", **options)
    yield "QUANTIZE-real", made("QUANTIZE", [((4, 4000), "float32", None)], ((4, 4000), "int16", 0.3))
    yield "DEQUANTIZE", made("DEQUANTIZE", [(whole, "int16", 0.0007)], (whole, "float32", None))


OPERATORS = dict([*operators(), *more_operators()])
#: What one interpreter alone computes, whatever is asked for.
ALONE = {"SQUARED_DIFFERENCE": tflm, "RESIZE_BILINEAR": litert}


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("name", OPERATORS)
def test_integers_of_operators(name: str, rounding: str) -> None:
    data, arrays = OPERATORS[name]
    interpret = ALONE.get(name.partition("-")[0], litert if rounding == "litert" else tflm)
    expected = interpret(data, arrays)[0]
    few = name.startswith(("RELU6-1", "SOFTMAX-(8", "QUANTIZE-16-8"))
    assert len(np.unique(expected)) > (0 if few else 100)
    module = from_tflite(data, rounding=rounding)
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, expected)


def check_compiled(data: bytes, arrays: Any, rounding: str, folder: Path) -> None:
    """Without warnings: sums of 64 bits hold all."""
    path = folder / "net.tflite"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = aotc.compile(path, rounding=rounding).session()
    given = {x.name: a for x, a in zip(session.get_inputs(), arrays, strict=True)}
    interpret = tflm if rounding == "tflm" else litert
    np.testing.assert_array_equal(session.run(None, given)[0], interpret(data, arrays)[0])


@pytest.mark.parametrize("name", ["SOFTMAX-(40, 13)", "BATCH_MATMUL-True", "TRANSPOSE_CONV-1", "PRELU-0.0003"])
def test_compiled_operators(name: str, tmp_path: Path) -> None:
    check_compiled(*OPERATORS[name], "tflm", tmp_path)


@pytest.mark.parametrize("biased", [False, True])
def test_compiled_layers_of_litert(biased: bool, tmp_path: Path) -> None:
    check_compiled(*layer("FULLY_CONNECTED", 0.0007, True, biased, 3), "litert", tmp_path)


def added(*arrays: Any, scales: tuple[float, ...] = (0.0002, 0.0005, 0.0006)) -> bytes:
    model, shape = Builder(), np.broadcast_shapes(*(a.shape for a in arrays))
    x, y, z = (
        model.tensor(s, "int16", scale=v) for s, v in zip((*(a.shape for a in arrays), shape), scales, strict=True)
    )
    model.op("ADD", [x, y], [z], "AddOptions", fusedActivationFunction=0)
    return model.data([x, y], [z])


SHAPES = [((n,), (n,)) for n in (5, 16, 17, 47, 48)]
SHAPES += [((7, 11), (7, 11)), ((1, 7, 11), (7, 11)), ((7, 11), (1, 1, 7, 11)), ((7, 11), (11,)), ((1,), (7, 11))]


@pytest.mark.parametrize("shapes", SHAPES)
def test_sums_of_litert(shapes: Any, tmp_path: Path) -> None:
    """LiteRT adds blocks of 16 elements otherwise than those behind them and than what broadcasts, which are those of
    TFLite Micro: of numbers for which these differ.
    """
    many = [words(300, 300), words(300, 300)[::-1]]
    telling = litert(added(*many), many)[0] != tflm(added(*many), many)[0]
    arrays = [np.resize(v[telling], s) for v, s in zip(many, shapes, strict=True)]
    data = added(*arrays)
    expected, whole = litert(data, arrays)[0], max(shapes, key=len)
    differ = np.flatnonzero(expected != tflm(data, arrays)[0])
    blocks = 0 if min(map(np.prod, shapes)) < np.prod(whole) else np.prod(whole) // 16 * 16
    np.testing.assert_array_equal(differ, np.arange(blocks))
    module = from_tflite(data, rounding="litert")
    (actual,) = run_model(module, {p.name: v for p, v in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, expected)
    if shapes == SHAPES[3]:
        check_compiled(data, arrays, "litert", tmp_path)


def test_sums_of_litert_far_apart() -> None:
    arrays = [words(64, 128), words(64, 128)[::-1]]
    for scales in ((1e-3, 1e-8, 1e-3), (1e-5, 0.9, 2.0), (0.001, 0.001, 3e-7)):
        data = added(*arrays, scales=scales)
        module = from_tflite(data, rounding="litert")
        (actual,) = run_model(module, {p.name: v for p, v in zip(module.main.params, arrays, strict=True)})
        np.testing.assert_array_equal(actual, litert(data, arrays)[0])


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("scale", [0.0027, 0.0007, 0.05])
@pytest.mark.parametrize("name", LAYERS)
def test_integers_of_layers(name: str, scale: float, rounding: str) -> None:
    dense, known = name == "FULLY_CONNECTED", rounding == "litert"
    for biased, activation in ((False, 0), (True, 0), (True, 3)):
        # TFLite Micro has one scale for such weights of dense layers
        data, arrays = layer(name, scale, activation > 0 and not dense, biased, activation)
        # LiteRT refuses convolutions of 16 bits without a bias
        expected = (litert if known and (biased or dense) else tflm)(data, arrays)[0]
        assert len(np.unique(expected)) > 30
        module = from_tflite(data, rounding=rounding)
        (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
        np.testing.assert_array_equal(actual, expected)


def test_layers_of_litert_beyond_32_bits() -> None:
    """What their sums are modulo 2^32."""
    w = np.full((2, 640), 127)
    x = np.linspace(-32768, 32767, 300).astype(np.int16)[:, None] * np.ones((1, 640), np.int16)
    inputs = [(x.shape, "int16", 0.0002), (w.shape, "int8", 0.004, w)]
    data, _ = made("FULLY_CONNECTED", inputs, ((300, 2), "int16", 0.06), "FullyConnectedOptions")
    module = from_tflite(data, rounding="litert")
    (actual,) = run_model(module, {module.main.params[0].name: x})
    np.testing.assert_array_equal(actual, litert(data, [x])[0])
    assert (np.diff(actual[:, 0].astype(np.int32)) < 0).any()


@pytest.mark.parametrize("name", LAYERS)
def test_biases_of_32_bits_are_refused(name: str) -> None:
    data, _ = layer(name, 0.01, False, True, 0, "int32")
    with pytest.raises(AotcError, match=f"{name} of integers of 16 bits takes weights of int8 and a bias of int64"):
        from_tflite(data)
