# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms and complex tensors of TFLite models have LiteRT's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError, flatten_nested_tuple
from aotc.relay.frontend.tflite import from_tflite
from aotc.relay.graph_api import evaluate
from tests.frontend_tflite.model_builder import Builder, litert


def spectrum(shape: tuple[int, ...], lengths: tuple[int, int]) -> tuple[Builder, int, int, tuple[int, ...]]:
    """A model that begins with a transform: its input, and the complex tensor with its shape."""
    model, result = Builder(), (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
    x, y = model.tensor(shape), model.tensor(result, "complex64")
    model.op("RFFT2D", [x, model.tensor((2,), "int32", np.array(lengths))], [y])
    return model, x, y, result


@pytest.mark.parametrize(
    ("shape", "lengths"), [((3, 1, 16), (1, 16)), ((2, 8, 4), (8, 4)), ((4, 16), (8, 8)), ((2, 3, 10), (4, 16))]
)
def test_transform_and_parts(shape: tuple[int, ...], lengths: tuple[int, int]) -> None:
    model, x, y, result = spectrum(shape, lengths)
    outputs = [model.tensor(result) for _ in range(3)]
    for name, out in zip(("REAL", "IMAG", "COMPLEX_ABS"), outputs, strict=True):
        model.op(name, [y], [out])
    data, given = model.data([x], outputs), np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    module = from_tflite(data)
    actual = flatten_nested_tuple(evaluate(module, params={module.main.params[0].name: given}))
    for a, e in zip(actual, litert(data, [given]), strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


def test_complex_elements_move() -> None:
    """A transform of rows has an axis of one element, which is removed in complex numbers."""
    model, x, y, _ = spectrum((3, 1, 8), (1, 8))
    flat, real = model.tensor((3, 5), "complex64"), model.tensor((3, 5))
    model.op("SQUEEZE", [y], [flat], "SqueezeOptions", squeezeDims=[1])
    model.op("REAL", [flat], [real])
    data, given = model.data([x], [real]), np.random.default_rng(2).standard_normal((3, 1, 8)).astype(np.float32)
    module = from_tflite(data)
    actual: Any = evaluate(module, params={module.main.params[0].name: given})
    np.testing.assert_allclose(actual, litert(data, [given])[0], rtol=1e-4, atol=1e-5)


def test_other_operators_of_complex_numbers_are_refused() -> None:
    model, x, y, result = spectrum((2, 4, 4), (4, 4))
    out, real = model.tensor(result, "complex64"), model.tensor(result)
    model.op("ADD", [y, y], [out], "AddOptions")
    model.op("REAL", [x], [real])
    with pytest.raises(AotcError) as caught:
        from_tflite(model.data([x], [out, y, real]))
    found = [(str(d.span and d.span.node), d.message) for d in caught.value.diagnostics]
    assert ("ADD#1 t3", "ADD of complex numbers is not supported") in found
    assert any(message == "output 't1' is complex, which is not supported" for _, message in found)
    assert all(d.code in ("tflite-dtype", "tflite-output") for d in caught.value.diagnostics)
