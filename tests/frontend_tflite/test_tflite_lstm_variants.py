# SPDX-License-Identifier: Apache-2.0
"""LSTM and RNN layers in floating point with all that the schema allows, and hybrid SVDF, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, litert_runs
from tests.frontend_tflite.test_tflite_recurrent_layers import frames, interpreted_runs

BATCH, INPUTS, CELLS, OUTPUTS, STEPS = 2, 5, 4, 3, 6
NONE, RELU, TANH = 0, 1, 4
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "coupled": {"coupled": True},
    "peepholes": {"peepholes": True},
    "coupled peepholes": {"peepholes": True, "coupled": True},
    "projection": {"projection": True},
    "all": {"peepholes": True, "projection": True, "clips": (0.3, 0.1)},
    "relu": {"activation": RELU, "clips": (0.5, 0)},
}


class Lstm(Builder):
    """Tensors of layers, filled at random."""

    def __init__(self, seed: int, variant: dict[str, Any]) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.coupled, self.peepholes = variant.get("coupled", False), variant.get("peepholes", False)
        self.outputs = OUTPUTS if variant.get("projection") else CELLS
        clips = variant.get("clips", (0.0, 0.0))
        self.options = {"fusedActivationFunction": variant.get("activation", TANH), "cellClip": clips[0],
                        "projClip": clips[1]}  # fmt: skip

    def weight(self, *shape: int) -> int:
        return self.tensor(shape, data=self.rng.standard_normal(shape) / 2)

    def weights(self, *shape: int) -> list[int]:
        """One tensor per gate; a coupled input gate has none."""
        return [-1 if self.coupled and gate == "i" else self.weight(*shape) for gate in "ifco"]

    def direction(self, inputs: int = INPUTS) -> list[int]:
        """Weights of data and outputs, peepholes, biases, projection."""
        peepholes = [self.weight(CELLS) if self.peepholes else -1 for _ in range(3)]
        if self.coupled:
            peepholes[0] = -1
        has_projection = self.outputs != CELLS
        projection = [self.weight(OUTPUTS, CELLS), self.weight(OUTPUTS)] if has_projection else [-1, -1]
        parts = (self.weights(CELLS, inputs), self.weights(CELLS, self.outputs), peepholes, self.weights(CELLS))
        return [k for part in (*parts, projection) for k in part]

    def states(self) -> list[int]:
        return [self.tensor((BATCH, n), variable=True) for n in (self.outputs, CELLS)]


def run(data: bytes, arrays: list[Any]) -> list[Any]:
    module = from_tflite(data)
    return run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})


def check(data: bytes, arrays: list[Any]) -> None:
    for found, expected in zip(run(data, arrays), litert(data, arrays, xnnpack=False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def sequences(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("steps", [3, 12])
def test_sequences(name: str, steps: int) -> None:
    """Few steps, which are unrolled, and a loop of more."""
    model = Lstm(4, VARIANTS[name])
    x, y = model.tensor((steps, BATCH, INPUTS)), model.tensor((steps, BATCH, model.outputs))
    inputs = [x, *model.direction(), *model.states()]
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], "UnidirectionalSequenceLSTMOptions", timeMajor=True,
             **model.options)  # fmt: skip
    check(model.data([x], [y]), [sequences(steps, BATCH, INPUTS)])


@pytest.mark.parametrize("coupled", [False, True])
def test_layer_normalization(coupled: bool) -> None:
    model = Lstm(5, {"coupled": coupled, "projection": True, "peepholes": True})
    x, y = model.tensor((STEPS, BATCH, INPUTS)), model.tensor((STEPS, BATCH, model.outputs))
    inputs = [x, *model.direction(), *model.states(), *model.weights(CELLS)]
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], "UnidirectionalSequenceLSTMOptions", timeMajor=True,
             **model.options)  # fmt: skip
    check(model.data([x], [y]), [sequences(STEPS, BATCH, INPUTS)])


@pytest.mark.parametrize("name", VARIANTS)
def test_single_steps_keep_their_states(name: str) -> None:
    model = Lstm(6, VARIANTS[name])
    x, y = model.tensor((BATCH, INPUTS)), model.tensor((BATCH, model.outputs))
    inputs = [x, *model.direction(), *model.states()]
    model.op("LSTM", inputs, [y], "LSTMOptions", kernelType=0, **model.options)
    data, runs = model.data([x], [y]), frames("float32", 3)
    for found, expected in zip(interpreted_runs(data, runs, "litert"), litert_runs(data, runs, False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def both_directions(name: str, merged: bool, time_major: bool) -> bytes:
    model = Lstm(7, VARIANTS[name])
    lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
    x = model.tensor((*lead, INPUTS))
    outputs = [model.tensor((*lead, model.outputs * (1 + merged))) for _ in range(2 - merged)]
    inputs = [x, *model.direction(), *model.direction(), *model.states(), *model.states(), *[-1] * 9]
    model.op("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, "BidirectionalSequenceLSTMOptions", timeMajor=time_major,
             mergeOutputs=merged, **model.options)  # fmt: skip
    return model.data([x], outputs)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("time_major", [False, True])
def test_both_directions(name: str, time_major: bool) -> None:
    """Merged outputs are compared with separate ones: LiteRT's merged ones of layers with peepholes, with the batch
    first, contradict its separate ones."""
    arrays = [sequences(*((STEPS, BATCH) if time_major else (BATCH, STEPS)), INPUTS)]
    data = both_directions(name, False, time_major)
    check(data, arrays)
    (merged,) = run(both_directions(name, True, time_major), arrays)
    np.testing.assert_array_equal(merged, np.concatenate(run(data, arrays), 2))


@pytest.mark.parametrize("weighed", [False, True])
def test_second_inputs(weighed: bool) -> None:
    """With weights a second input of both directions, without the input of the backward direction."""
    model = Lstm(8, {})
    second = INPUTS if not weighed else 2
    x, more = model.tensor((STEPS, BATCH, INPUTS)), model.tensor((STEPS, BATCH, second))
    outputs = [model.tensor((STEPS, BATCH, CELLS)) for _ in range(2)]
    inputs = [x, *model.direction(), *model.direction(), *model.states(), *model.states(), more]
    inputs += [*model.weights(CELLS, 2), *model.weights(CELLS, 2)] if weighed else [-1] * 8
    model.op("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, "BidirectionalSequenceLSTMOptions", timeMajor=True,
             mergeOutputs=False, **model.options)  # fmt: skip
    check(model.data([x, more], outputs), [sequences(STEPS, BATCH, INPUTS), sequences(STEPS, BATCH, second)])


@pytest.mark.parametrize("activation", [RELU, TANH])
@pytest.mark.parametrize("second", ["", "weighed", "backward"])
def test_simple_layers_in_both_directions(activation: int, second: str) -> None:
    for time_major, merged in ((False, False), (True, True)):
        model = Lstm(9, {})
        lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
        size = INPUTS  # LiteRT reads beyond second inputs of other sizes
        x, more = model.tensor((*lead, INPUTS)), model.tensor((*lead, size)) if second else -1
        outputs = [model.tensor((*lead, CELLS * (1 + merged))) for _ in range(2 - merged)]
        inputs = [x]
        for _ in range(2):
            inputs += [model.weight(CELLS, INPUTS), model.weight(CELLS, CELLS), model.weight(CELLS)]
            inputs += [model.tensor((BATCH, CELLS), variable=True)]
        extra = [model.weight(CELLS, size), model.weight(CELLS, size)] if second == "weighed" else [-1, -1]
        inputs += [more, *extra]
        model.op("BIDIRECTIONAL_SEQUENCE_RNN", inputs, outputs, "BidirectionalSequenceRNNOptions",
                 timeMajor=time_major, mergeOutputs=merged, fusedActivationFunction=activation)  # fmt: skip
        arrays = [sequences(*lead, INPUTS), *([sequences(*lead, size)] if second else [])]
        check(model.data([x, more] if second else [x], outputs), arrays)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("rank", [1, 2])
def test_filters_with_weights_of_8_bits(asymmetric: bool, rank: int) -> None:
    model, rng = Builder(), np.random.default_rng(rank)
    units, memory, batch = 4, 3, 2
    filters = units * rank
    x, y = model.tensor((batch, 5)), model.tensor((batch, units))
    w = model.tensor((filters, 5), "int8", rng.integers(-127, 128, (filters, 5)), scale=0.01)
    t = model.tensor((filters, memory), "int8", rng.integers(-127, 128, (filters, memory)), scale=0.02)
    bias, state = model.tensor((units,), data=rng.standard_normal(units)), model.tensor((batch, filters * memory),
                                                                                         variable=True)  # fmt: skip
    options = {"rank": rank, "fusedActivationFunction": RELU, "asymmetricQuantizeInputs": asymmetric}
    model.op("SVDF", [x, w, t, bias, state], [y], "SVDFOptions", version=2, **options)
    data, runs = model.data([x], [y]), frames("float32", 4)
    runs[2][0][1] = 0
    for found, expected in zip(interpreted_runs(data, runs, "litert"), litert_runs(data, runs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_that_contradict_themselves_are_refused() -> None:
    def refused(changes: dict[int, int], text: str, **options: Any) -> None:
        model = Lstm(4, {})
        x, y = model.tensor((BATCH, INPUTS)), model.tensor((BATCH, CELLS))
        inputs = [x, *model.direction(), *model.states()]
        odd = model.tensor((CELLS, INPUTS + 1), data=np.zeros((CELLS, INPUTS + 1)))
        for place, value in changes.items():
            inputs[place] = odd if value else -1
        model.op("LSTM", inputs, [y], "LSTMOptions", **(model.options | options))
        with pytest.raises(AotcError, match=text):
            from_tflite(model.data([x], [y]))

    refused({2: 1}, "weights of shapes .* do not fit data")
    refused({7: 1}, "weights of shapes .* do not fit data")
    refused({1: 0}, "gates with weights, for data, outputs and biases")
    refused({2: 0}, "gates with weights, for data, outputs and biases")
    refused({}, "LSTM of the basic kernel is not supported", kernelType=1)
    refused({}, "with the activation SIGN_BIT is not supported", fusedActivationFunction=5)
