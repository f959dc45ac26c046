# SPDX-License-Identifier: Apache-2.0
"""Every operator: what its conversion means is what LiteRT computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.relay.frontend.tflite import CONVERTERS, from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.build import Builder, litert
from tests.frontend_tflite.cases import CASES, Case, Data


def built(case: Case) -> tuple[bytes, list[Any]]:
    """The model of a case, and its inputs."""
    model, rng, arrays, inputs, places = Builder(), np.random.default_rng(5), [], [], []
    for given in case.inputs:
        if isinstance(given, Data):
            inputs.append(model.tensor(given.shape, given.dtype))
            arrays.append(given.array(rng))
            places.append(inputs[-1])
        else:
            array = np.asarray(given)
            places.append(model.tensor(array.shape, str(array.dtype), array))
    outputs = [model.tensor((), dtype) for dtype in case.outputs]
    model.op(
        case.name,
        places,
        outputs,
        case.kind,
        version=2 if case.name in ("BROADCAST_TO", "DEQUANTIZE") else 1,
        **case.options,
    )
    return model.data(inputs, outputs), arrays


def recurrent(time_major: bool) -> tuple[bytes, list[Any]]:
    model, rng = Builder(), np.random.default_rng(8)
    shape = (6, 2) if time_major else (2, 6)
    x = model.tensor((*shape, 7))
    weights = [model.tensor((5, n), "float32", rng.standard_normal((5, n))) for n in (7, 5) for _ in range(4)]
    bias = [model.tensor((5,), "float32", rng.standard_normal(5)) for _ in range(4)]
    states = [model.tensor((2, 5), variable=True) for _ in range(2)]
    y = model.tensor((*shape, 5))
    inputs = [x, *weights, -1, -1, -1, *bias, -1, -1, *states, -1, -1, -1, -1]
    options = {"fusedActivationFunction": 4, "cellClip": 0.0, "projClip": 0.0, "timeMajor": time_major}
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], "UnidirectionalSequenceLSTMOptions", **options)
    return model.data([x], [y]), [rng.standard_normal((*shape, 7)).astype(np.float32)]


@pytest.mark.parametrize("time_major", [False, True])
def test_lstm(time_major: bool) -> None:
    data, arrays = recurrent(time_major)
    module = from_tflite(data)
    (actual,) = run_model(module, {module.main.params[0].name: arrays[0]})
    np.testing.assert_allclose(actual, litert(data, arrays)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_operator(case: Case) -> None:
    data, arrays = built(case)
    expected = litert(data, arrays, xnnpack=False)
    module = from_tflite(data)
    actual = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-6)


def test_every_converter_has_a_case() -> None:
    assert {case.name for case in CASES} | {"QUANTIZE", "UNIDIRECTIONAL_SEQUENCE_LSTM"} >= set(CONVERTERS)
