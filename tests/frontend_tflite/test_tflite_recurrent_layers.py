# SPDX-License-Identifier: Apache-2.0
"""SVDF, RNN and UNIDIRECTIONAL_SEQUENCE_RNN: several runs as in LiteRT and TFLite Micro, which keep states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite, import_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, litert_runs, tflm_interpreter

NONE, RELU, RELU_N1_TO_1, RELU6, TANH = range(5)


def svdf(kind: str, rank: int, activation: int, has_bias: bool = True, is_variable: bool = True) -> bytes:
    """A layer of 4 units over frames of 5 numbers, with a memory of 3 steps; its input is a frame of a batch of 2."""
    model, rng = Builder(), np.random.default_rng(rank)
    units, memory, batch = 4, 3, 2
    filters = units * rank
    scales = {"x": 0.02, "w": 0.01, "t": 0.0001, "s": 0.0008, "y": 0.2} if kind == "int8" else {}

    def tensor(shape: tuple[int, ...], dtype: str, name: str, values: Any = None, **options: Any) -> int:
        scale, real = scales.get(name), "float32"
        if kind == "float32":
            return model.tensor(shape, real, None if values is None else values / 64, **options)
        return model.tensor(shape, dtype, None if values is None else values.astype(dtype), scale=scale, **options)

    x = tensor((batch, 5), "int8", "x", zero=-7)
    w = tensor((filters, 5), "int8", "w", rng.integers(-127, 128, (filters, 5)))
    t = tensor((filters, memory), "int16", "t", rng.integers(-127, 128, (filters, memory)) * (200 if scales else 1))
    bias = tensor((units,), "int32", "b", rng.integers(-99, 99, units)) if has_bias else -1
    if scales and has_bias:
        bias = model.tensor((units,), "int32", rng.integers(-99999, 99999, units), scale=0.0001 * 0.0008)
    state = tensor((batch, filters * memory), "int16", "s", variable=is_variable)
    y = tensor((batch, units), "int8", "y", zero=5)
    options = {"rank": rank, "fusedActivationFunction": activation, "asymmetricQuantizeInputs": False}
    model.op("SVDF", [x, w, t, bias, state], [y], "SVDFOptions", version=3 if scales else 1, **options)
    return model.data([x], [y])


def frames(kind: str, count: int = 5) -> list[list[Any]]:
    rng = np.random.default_rng(8)
    if kind == "int8":
        return [[rng.integers(-128, 128, (2, 5)).astype(np.int8)] for _ in range(count)]
    return [[rng.standard_normal((2, 5)).astype(np.float32)] for _ in range(count)]


def runs_of_tflm(data: bytes, runs: list[list[Any]]) -> list[list[Any]]:
    interpreter, found = tflm_interpreter(data), []
    for (x,) in runs:
        interpreter.set_input(x, 0)
        interpreter.invoke()
        found.append([interpreter.get_output(0)])
    return found


def interpreted_runs(data: bytes, runs: list[list[Any]], rounding: str) -> list[list[Any]]:
    """Runs of the module, each with the states that the run before returned."""
    module, pairs = import_tflite(data, rounding=rounding)
    names = [p.name for p in module.main.params]
    assert names[1:] == [p.past for p in pairs]
    state = {p.name: np.zeros(p.checked_type.static_shape, p.checked_type.dtype.numpy) for p in module.main.params[1:]}
    found = []
    for (x,) in runs:
        outputs = run_model(module, {names[0]: x} | state)
        found.append(outputs[: len(outputs) - len(pairs)])
        state = dict(zip(names[1:], outputs[len(outputs) - len(pairs) :], strict=True))
    return found


@pytest.mark.parametrize(("rank", "activation"), [(1, RELU), (2, NONE), (3, RELU6)])
def test_filters_keep_their_state(rank: int, activation: int) -> None:
    data, runs = svdf("float32", rank, activation, rank != 2), frames("float32")
    expected = litert_runs(data, runs)
    for ours, theirs in zip(interpreted_runs(data, runs, "litert"), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_filters_of_integers_are_those_of_both_interpreters(rank: int, rounding: str) -> None:
    data, runs = svdf("int8", rank, RELU), frames("int8", 8)
    expected = runs_of_tflm(data, runs) if rounding == "tflm" else litert_runs(data, runs)
    np.testing.assert_array_equal(interpreted_runs(data, runs, rounding), expected)
    assert len(np.unique(expected)) > 30


def test_a_compiled_filter_keeps_its_state(tmp_path: Path) -> None:
    data, runs = svdf("int8", 2, RELU), frames("int8")
    (tmp_path / "net.tflite").write_bytes(data)
    session = aotc.compile(tmp_path / "net.tflite", target="c", cflags=("-O0",)).session()
    state, (x,) = session.new_state(), session.get_inputs()
    actual = [session.run(None, {x.name: array}, state=state) for (array,) in runs]
    np.testing.assert_array_equal(actual, runs_of_tflm(data, runs))


@pytest.mark.parametrize("activation", [TANH, RELU])
def test_simple_layers(activation: int) -> None:
    """One step, of which runs keep the state, and sequences of both layouts, which begin with zeros."""
    rng = np.random.default_rng(2)
    weights = [(rng.standard_normal((4, n)) / 2).astype(np.float32) for n in (5, 4)]
    for time_major in (None, False, True):
        model = Builder()
        shape = (2, 5) if time_major is None else (6, 2, 5) if time_major else (2, 6, 5)
        x, y = model.tensor(shape), model.tensor((*shape[:-1], 4))
        inputs = [model.tensor(w.shape, data=w) for w in weights] + [model.tensor((4,), data=rng.standard_normal(4))]
        inputs = [x, *inputs, model.tensor((2, 4), variable=True)]
        if time_major is None:
            model.op("RNN", inputs, [y], "RNNOptions", fusedActivationFunction=activation)
        else:
            model.op("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, [y], "SequenceRNNOptions", timeMajor=time_major,
                     fusedActivationFunction=activation)  # fmt: skip
        data = model.data([x], [y])
        runs = [[rng.standard_normal(shape).astype(np.float32)] for _ in range(3)]
        expected = litert_runs(data, runs) if time_major is None else [litert(data, run) for run in runs]
        for ours, theirs in zip(interpreted_runs(data, runs, "litert"), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_filters_that_no_kernel_computes_are_refused() -> None:
    with pytest.raises(AotcError, match="SVDF of integers with the activation 0 is not supported"):
        from_tflite(svdf("int8", 1, NONE))
    with pytest.raises(AotcError) as caught:
        from_tflite(svdf("float32", 1, RELU, is_variable=False))
    assert caught.value.diagnostics
