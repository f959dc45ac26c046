# SPDX-License-Identifier: Apache-2.0
"""Trained models give the results of LiteRT and TFLite Micro; integers are equal byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.checking.verify import verify
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, tflm_interpreter

INTEGERS = ("ad_int8", "kws_int8", "micro_speech_int8", "mnist_lstm_int8", "resnet8_int8", "vww_int8")
FLOATS = ("ad_fp32", "kws_fp32", "resnet8_fp32", "vww_fp32")
Run = Callable[[Any], Any]


def by_reference(path: Path, rounding: str) -> Run:
    """The model through the numpy meaning of each operator; it has one input and one output."""
    module = from_tflite(path, rounding=rounding)
    (param,) = module.main.params
    return lambda x: run_model(module, {param.name: x})[0]


def compiled(path: Path, rounding: str) -> Run:
    """The model through C."""
    session = aotc.compile(path, rounding=rounding).session()
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def compare_with_litert(name: str, models: Path, make: Callable[[Path, str], Run]) -> None:
    path = models / "tflite" / f"{name}.tflite"
    with np.load(path.with_suffix(".npz")) as file:
        (x,) = (file[k] for k in file.files if k.startswith("in/"))
        (expected,) = (file[k] for k in file.files if k.startswith("out/"))
    actual = make(path, "litert")(x)
    assert actual.dtype == expected.dtype
    error = np.abs(actual.astype(np.float64) - expected).max()
    assert error <= (0 if name in INTEGERS else 1e-5 * np.abs(expected).max())


def compare_with_micro(name: str, models: Path, make: Callable[[Path, str], Run], seeds: int) -> None:
    path = models / "tflite" / f"{name}.tflite"
    run, interpreter = make(path, "tflm"), tflm_interpreter(path.read_bytes())
    shape = interpreter.get_input_details(0)["shape"]
    for seed in range(seeds):
        x = np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)
        interpreter.set_input(x, 0)
        interpreter.invoke()
        np.testing.assert_array_equal(run(x), interpreter.get_output(0))
        interpreter.reset()


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_as_litert(name: str, models: Path) -> None:
    compare_with_litert(name, models, by_reference)


@pytest.mark.parametrize("name", [*INTEGERS, "person_detect_int8"])
def test_as_micro(name: str, models: Path) -> None:
    compare_with_micro(name, models, by_reference, 10)


@pytest.mark.parametrize("name", ["kws_int8"])
def test_compiled(name: str, models: Path) -> None:
    compare_with_litert(name, models, compiled)
    compare_with_micro(name, models, compiled, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_compiled_as_litert(name: str, models: Path) -> None:
    compare_with_litert(name, models, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*INTEGERS, "person_detect_int8"])
def test_compiled_as_micro(name: str, models: Path) -> None:
    compare_with_micro(name, models, compiled, 100)


def test_channels_stay_last(models: Path) -> None:
    """No tensor is turned around, and the arena holds no copies of tensors in another layout."""
    made = aotc.compile(models / "tflite" / "kws_int8.tflite", target="c", build=False)
    assert not any("transpose" in str(step) for step in made.metadata["steps"])
    assert made.metadata["memory"]["peak"] <= 17_200


def test_parts_of_models(tmp_path: Path) -> None:
    """A part between tensors; what comes after it, a custom operator here, is left out."""
    model = Builder()
    x, a, b, y = (model.tensor((1, 4), name=name) for name in "xaby")
    model.op("NEG", [x], [a])
    model.op("RELU", [a], [b])
    model.op("CUSTOM", [b], [y])
    path = tmp_path / "m.tflite"
    path.write_bytes(model.data([x], [y]))
    array = np.array([[-2, -1, 1, 2]], np.float32)
    for ends, inputs, want in (
        ({"cut_after": ["b", "a"]}, {"x": array}, [np.maximum(-array, 0), -array]),
        ({"cut_before": ["a"], "cut_after": ["b"]}, {"a": array}, [np.maximum(array, 0)]),
    ):
        session = aotc.compile(path, target="c", cflags=["-O1"], **ends).session()
        np.testing.assert_array_equal(session.run(None, inputs), want)
    with pytest.raises(aotc.AotcError, match="no node of the model computes a tensor called 'q'"):
        aotc.compile(path, build=False, cut_after=["q"])
    with pytest.raises(aotc.AotcError, match="interpreters run whole models"):
        verify(path, cut_after=["b"])
