# SPDX-License-Identifier: Apache-2.0
"""Layers with activations of 16 bits and weights of 8 give the integers of TFLite Micro and of LiteRT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.build import Builder, litert, tflm

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
    for k, s in enumerate(((0.0002, 0.0005, 0.0006), (0.001, 0.00003, 0.0009), (2**-11, 2**-12, 2**-11))):
        for name in ("ADD", "SUB", "MUL"):
            scales = (*s[:2], s[0] * s[1] * 9000) if name == "MUL" else s
            yield f"{name}-{k}", pair(name, scales, (0, 1, 3)[k])
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


OPERATORS = dict(operators())
#: What LiteRT makes of these is not known.
REFUSED = ("ADD", "SUB", "MUL", "LOGISTIC", "TANH")


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("name", OPERATORS)
def test_integers_of_operators(name: str, rounding: str) -> None:
    data, arrays = OPERATORS[name]
    if rounding == "litert" and name.startswith(REFUSED):
        with pytest.raises(AotcError, match="with activations of 16 bits is not supported"):
            from_tflite(data, rounding=rounding)
        return
    expected = (litert if rounding == "litert" else tflm)(data, arrays)[0]
    assert len(np.unique(expected)) > 100
    module = from_tflite(data, rounding=rounding)
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("scale", [0.0027, 0.0007, 0.05])
@pytest.mark.parametrize("name", LAYERS)
def test_integers_of_layers(name: str, scale: float, rounding: str) -> None:
    dense, known = name == "FULLY_CONNECTED", rounding == "litert"
    for biased, activation in ((False, 0), (True, 0), (True, 3)):
        # TFLite Micro has one scale for such weights of dense layers
        data, arrays = layer(name, scale, activation > 0 and not dense, biased, activation)
        if known and dense:
            with pytest.raises(AotcError, match="what LiteRT makes of FULLY_CONNECTED with activations of 16 bits"):
                from_tflite(data, rounding=rounding)
            continue
        # LiteRT refuses convolutions of 16 bits without a bias
        expected = (litert if known and biased else tflm)(data, arrays)[0]
        assert len(np.unique(expected)) > 30
        module = from_tflite(data, rounding=rounding)
        (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_biases_of_32_bits_are_refused(name: str) -> None:
    data, _ = layer(name, 0.01, False, True, 0, "int32")
    with pytest.raises(AotcError, match=f"{name} of integers of 16 bits takes weights of int8 and a bias of int64"):
        from_tflite(data)
