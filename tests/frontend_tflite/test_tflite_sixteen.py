# SPDX-License-Identifier: Apache-2.0
"""Layers with activations of 16 bits and weights of 8 give the integers of TFLite Micro and of LiteRT."""

from __future__ import annotations

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
