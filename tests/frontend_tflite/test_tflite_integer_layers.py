# SPDX-License-Identifier: Apache-2.0
"""Quantized layers give the bytes of TFLite Micro and of LiteRT, with the rounding of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, tflm

EVERY = np.arange(-128, 128, dtype=np.int8)


def one(
    name: str, x: float, y: float, zeros: tuple[int, int] = (3, -7), kind: str = "", dtype: str = "int8", **options: Any
) -> Any:
    """All bytes through an operator of one tensor."""
    model = Builder()
    inputs = [model.tensor((16, 16), dtype, scale=x, zero=zeros[0])]
    outputs = [model.tensor((16, 16), dtype, scale=y, zero=zeros[1])]
    model.op(name, inputs, outputs, kind, **options)
    return model.data(inputs, outputs), [EVERY.view(dtype).reshape(16, 16)]


def two(name: str, scales: tuple[float, float, float], activation: int = 0, dtype: str = "int8") -> Any:
    """All pairs of bytes of two tensors."""
    model = Builder()
    shape, middle = (256, 256), 128 if dtype == "uint8" else 0
    zeros = (middle + 5, middle - 9, middle + 11)
    x, y, z = (model.tensor(shape, dtype, scale=s, zero=z) for s, z in zip(scales, zeros, strict=True))
    kind = {"SQUARED_DIFFERENCE": ""}.get(name, f"{name.title()}Options")
    model.op(name, [x, y], [z], kind, **({"fusedActivationFunction": activation} if kind else {}))
    every = EVERY.view(dtype)
    return model.data([x, y], [z]), [np.repeat(every, 256).reshape(shape), np.tile(every, 256).reshape(shape)]


def rows(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def softmax(scale: float, beta: float, dtype: str = "int8") -> Any:
    model = Builder()
    inputs = [model.tensor((64, 23), dtype, scale=scale, zero=4)]
    outputs = [model.tensor((64, 23), dtype, scale=1 / 256, zero=-128 if dtype == "int8" else 0)]
    model.op("SOFTMAX", inputs, outputs, "SoftmaxOptions", beta=beta)
    return model.data(inputs, outputs), [rows(2, 64, 23).view(dtype)]


def dense(scale: float, several: bool, activation: int = 0) -> Any:
    model, rng = Builder(), np.random.default_rng(4)
    w_scale = rng.uniform(0.001, 0.01, 17) if several else 0.0043
    w = model.tensor((17, 33), "int8", rows(6, 17, 33), scale=w_scale, zero=0)
    bias = model.tensor((17,), "int32", rng.integers(-900, 900, 17))
    inputs = [model.tensor((40, 33), "int8", scale=scale, zero=4)]
    outputs = [model.tensor((40, 17), "int8", scale=0.113, zero=-5)]
    options = {"fusedActivationFunction": activation}
    model.op("FULLY_CONNECTED", [*inputs, w, bias], outputs, "FullyConnectedOptions", **options)
    return model.data(inputs, outputs), [rows(3, 40, 33)]


def pool(name: str, size: tuple[int, int], padding: int) -> Any:
    model = Builder()
    count = (9, 8) if padding == 0 else (10 - size[0], 9 - size[1])
    inputs = [model.tensor((1, 9, 8, 3), "int8", scale=0.2, zero=4)]
    outputs = [model.tensor((1, *count, 3), "int8", scale=0.2, zero=4)]
    options = {"filterHeight": size[0], "filterWidth": size[1], "strideH": 1, "strideW": 1, "padding": padding}
    model.op(name, inputs, outputs, "Pool2DOptions", **options)
    return model.data(inputs, outputs), [rows(7, 1, 9, 8, 3)]


def quantize(x: float, zero: int) -> Any:
    """Real numbers, halves among them."""
    model = Builder()
    inputs = [model.tensor((1, 600), "float32")]
    outputs = [model.tensor((1, 600), "int8", scale=x, zero=zero)]
    model.op("QUANTIZE", inputs, outputs)
    return model.data(inputs, outputs), [(np.arange(-300, 300, dtype=np.float32) * np.float32(x / 2))[None]]


def mean(axes: list[int], keep: bool, scale: float) -> Any:
    """Among the means are halves."""
    model = Builder()
    x = model.tensor((1, 8, 4, 32), "int8", scale=0.05, zero=5)
    shape = [1 if k in axes else n for k, n in enumerate((1, 8, 4, 32)) if keep or k not in axes]
    y = model.tensor(shape, "int8", scale=scale, zero=5 if scale == 0.05 else -3)
    places = model.tensor((len(axes),), "int32", axes)
    model.op("MEAN", [x, places], [y], "ReducerOptions", keepDims=keep)
    return model.data([x], [y]), [rows(9, 1, 8, 4, 32) // 3]


def lstm(
    seed: int, digits: int, clip: float, time_major: bool = False, batch: int = 1, zeros: Any = (3, -2),
    inner_scale: float = 1 / 128,
) -> Any:  # fmt: skip
    """Layers of 7 inputs and 5 units, whose gates go to their ends."""
    model, rng = Builder(), np.random.default_rng(seed)
    shape = (6, batch) if time_major else (batch, 6)
    x = model.tensor((*shape, 7), "int8", scale=0.05, zero=zeros[0])
    weights = [
        model.tensor((5, n), "int8", rows(seed + n + k, 5, n), scale=rng.uniform(0.004, 0.03))
        for n in (7, 5)
        for k in range(4)
    ]
    bias = [model.tensor((5,), "int32", rng.integers(-900, 900, 5)) for _ in range(4)]
    h = model.tensor((batch, 5), "int8", scale=1 / 128, zero=zeros[1], variable=True)
    c = model.tensor((batch, 5), "int16", scale=2.0**-digits, variable=True)
    y = model.tensor((*shape, 5), "int8", scale=1 / 128, zero=zeros[1])
    inner = [
        *(model.tensor((0,), "int16", scale=2.0**-12) for _ in range(4)),
        model.tensor((0,), "int8", scale=inner_scale, zero=zeros[1]),
    ]
    inputs = [x, *weights, -1, -1, -1, *bias, -1, -1, h, c, -1, -1, -1, -1]
    options = {"fusedActivationFunction": 4, "cellClip": clip, "projClip": 0.0, "timeMajor": time_major}
    kind = "UnidirectionalSequenceLSTMOptions"
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], kind, intermediates=inner, **options)
    return model.data([x], [y]), [rows(seed, *shape, 7)]


def elementwise() -> Iterator[Any]:
    scales = ((0.02, 0.05, 0.06), (0.1, 0.003, 0.09), (0.07, 0.07, 0.07))
    for name in ("ADD", "SUB", "MUL"):
        for k, s in enumerate(scales):
            s = (*s[:2], s[0] * s[1] * 40) if name == "MUL" else s
            yield f"{name}-{k}", two(name, s, (0, 1, 3)[k])
    for name in ("RELU", "RELU6", "LOGISTIC", "TANH"):
        zero = {"LOGISTIC": -128, "TANH": 0}.get(name, -7)
        for x in (0.011, 0.043, 0.2):
            y = {"LOGISTIC": 1 / 256, "TANH": 1 / 128}.get(name, x if name == "RELU6" else 0.05)
            yield f"{name}-{x}", one(name, x, y, (3, 3 if name == "RELU6" else zero))
    for x, y in ((0.02, 0.05), (0.05, 0.02), (0.04, 0.04)):
        yield f"QUANTIZE-{x}-{y}", one("QUANTIZE", x, y)
        yield f"QUANTIZE-{x}", quantize(x, -3)


def layers() -> Iterator[Any]:
    for axes, keep in (([1, 2], True), ([1, 2], False), ([3], False), ([1], True)):
        for scale in (0.05, 0.031):
            yield f"MEAN-{axes}-{keep}-{scale}", mean(axes, keep, scale)
    for scale, beta in ((0.1, 1.0), (0.02, 1.0), (0.5, 0.7)):
        yield f"SOFTMAX-{scale}-{beta}", softmax(scale, beta)
    for scale in (0.021, 0.5):
        for several in (False, True):
            yield f"FULLY_CONNECTED-{scale}-{several}", dense(scale, several, 1 if several else 0)
    for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
        for size, padding in (((2, 3), 0), ((3, 3), 1), ((9, 8), 1)):
            yield f"{name}-{size}-{padding}", pool(name, size, padding)
    for seed in range(4):
        for digits, clip, time_major in ((12, 0.0, False), (11, 10.0, True), (13, 1.5, False)):
            yield f"LSTM-{seed}-{digits}-{clip}", lstm(seed, digits, clip, time_major)
    for zeros in ((-128, 127), (127, -128)):
        yield f"LSTM-ends-{zeros}", lstm(5, 12, 0.5, False, 3, zeros)
        yield f"LSTM-steps-{zeros}", lstm(6, 15, 0.0, True, 2, zeros)
    # LiteRT stores outputs by a scale of their own
    yield "LSTM-inner", lstm(7, 12, 0.0, inner_scale=1 / 64)


MODELS = dict([*elementwise(), *layers()])


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("name", MODELS)
def test_bytes(name: str, rounding: str) -> None:
    data, arrays = MODELS[name]
    expected = (litert if rounding == "litert" else tflm)(data, arrays)[0]
    module = from_tflite(data, rounding=rounding)
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual, expected)


def test_what_has_no_integers_is_refused() -> None:
    data, _ = one("COS", 0.1, 0.1)
    with pytest.raises(AotcError, match="COS of quantized tensors is not supported"):
        from_tflite(data)


@pytest.mark.parametrize("name", ["HARD_SWISH", "RELU_N1_TO_1", "RELU_0_TO_1"])
def test_integers_of_16_bits_are_refused(name: str) -> None:
    model = Builder()
    x = model.tensor((1, 4, 4, 4), "int16", scale=0.01)
    y = model.tensor((1, 4, 4, 4), "int16", scale=0.02)
    model.op(name, [x], [y])
    with pytest.raises(AotcError, match=rf"{name} of integers of more than 8 bits is not supported") as caught:
        from_tflite(model.data([x], [y]))
    assert caught.value.code == "tflite-quant"


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "SQUARED_DIFFERENCE"])
@pytest.mark.parametrize("kinds", [("int16", "int8", "int16"), ("int8", "uint8", "int8"), ("int8", "int8", "uint8")])
@pytest.mark.parametrize("rounding", ["tflm", "litert"])
def test_operands_of_several_types_are_refused(name: str, kinds: tuple[str, ...], rounding: str) -> None:
    model = Builder()
    a, b, y = (model.tensor((2, 8), kind, scale=0.1) for kind in kinds)
    options = "" if name == "SQUARED_DIFFERENCE" else f"{name.capitalize()}Options"
    model.op(name, [a, b], [y], options)
    with pytest.raises(AotcError) as caught:
        from_tflite(model.data([a, b], [y]), rounding=rounding)
    assert caught.value.code == "tflite-quant" and name in str(caught.value)


# --- the product of two scales


def sums_at_ties(seed: int, factor: float) -> tuple[np.float32, np.float32, np.float32, np.ndarray]:
    """Two scales, a result's scale, and sums between the ties of two quotients: with the product of the
    scales in double precision, and rounded to float32.  `factor` is about the quotient.
    """
    rng = np.random.default_rng(seed)
    x, w = np.float32(rng.uniform(0.01, 0.1)), np.float32(rng.uniform(0.001, 0.01))
    y = np.float32(float(x) * float(w) / factor)
    middle = (float(x) * float(w) + float(x * w)) / 2 / float(y)
    steps = np.arange(40, 110) + 0.5
    return x, w, y, np.rint(np.concatenate([steps, -steps]) / middle).astype(np.int64)


def weights_for_sums(sums: np.ndarray, count: int) -> np.ndarray:
    """int8 rows whose products with the data (1, 127, 127, ...) have the given sums."""
    rows = np.zeros((len(sums), count), np.int8)
    for row, total in zip(rows, sums.tolist(), strict=True):
        quotient, remainder = divmod(total + 64, 127)
        whole, more = divmod(abs(quotient), count - 1)
        sign = 1 if quotient > 0 else -1
        row[0], row[1:] = remainder - 64, sign * whole
        row[1 : 1 + more] += sign
    return rows


def dense_at_ties(seed: int, with_bias: bool) -> Any:
    count = 4 if with_bias else 4000
    x_scale, w_scale, y_scale, sums = sums_at_ties(seed, 1e-7 if with_bias else 1.8e-6)
    model = Builder()
    rows_of_weights = weights_for_sums(0 * sums if with_bias else sums, count)
    w = model.tensor(rows_of_weights.shape, "int8", rows_of_weights, scale=w_scale)
    bias = [model.tensor((len(sums),), "int32", sums)] if with_bias else []
    x = model.tensor((1, count), "int8", scale=x_scale)
    y = model.tensor((1, len(sums)), "int8", scale=y_scale)
    model.op("FULLY_CONNECTED", [x, w, *bias], [y], "FullyConnectedOptions")
    return model.data([x], [y]), [np.array([[1] + [127] * (count - 1)], np.int8)]


def matmul_at_ties(seed: int) -> Any:
    x_scale, w_scale, y_scale, sums = sums_at_ties(seed, 1.8e-6)
    model, rows_of_weights = Builder(), weights_for_sums(sums[40:70], 4000)
    x = model.tensor((1, 4000), "int8", scale=x_scale)
    w = model.tensor((4000, 30), "int8", scale=w_scale)
    y = model.tensor((1, 30), "int8", scale=y_scale)
    model.op("BATCH_MATMUL", [x, w], [y], "BatchMatMulOptions")
    return model.data([x, w], [y]), [np.array([[1] + [127] * 3999], np.int8), np.ascontiguousarray(rows_of_weights.T)]


@pytest.mark.parametrize("seed", [5, 7, 18])
@pytest.mark.parametrize("name", ["dense", "dense without bias", "matmul"])
def test_products_of_scales_are_rounded_as_in_each_interpreter(name: str, seed: int) -> None:
    """TFLite Micro multiplies scales in double precision, LiteRT's own kernels in float32, XNNPACK the sums
    in float32.
    """
    data, inputs = matmul_at_ties(seed) if name == "matmul" else dense_at_ties(seed, name == "dense")
    results = []
    for rounding, interpret in (("tflm", tflm), ("litert", litert)):
        module = from_tflite(data, rounding=rounding)
        (found,) = run_model(module, {p.name: x for p, x in zip(module.main.params, inputs, strict=True)})
        np.testing.assert_array_equal(found, interpret(data, inputs)[0])
        results.append(found)
    assert (results[0] != results[1]).any()


def lstm_at_ties(seed: int) -> Any:
    """One step of 70 cells whose other gates are equal: the biases of the cell gates alone differ."""
    rng, units = np.random.default_rng(seed), 70
    x_scale, w_scale = np.float32(rng.uniform(0.01, 0.1)), np.float32(rng.uniform(3e-10, 6e-10))
    middle = (float(x_scale) * float(w_scale) + float(x_scale * w_scale)) / 2 * 4096
    model, large = Builder(), np.full(units, (1 << 31) - 1)
    x = model.tensor((1, 1, 7), "int8", scale=x_scale)
    weights = [
        model.tensor((units, n), "int8", np.zeros((units, n)), scale=w_scale if n == 7 else 0.01)
        for n in (7, units)
        for _ in range(4)
    ]
    cell = np.rint((np.arange(20, 20 + units) + 0.5) / middle).astype(np.int64)
    biases = [model.tensor((units,), "int32", v) for v in (large, -large, cell, large)]
    h = model.tensor((1, units), "int8", scale=1 / 4096, variable=True)
    c = model.tensor((1, units), "int16", scale=2.0**-12, variable=True)
    y = model.tensor((1, 1, units), "int8", scale=1 / 4096)
    inner = [model.tensor((0,), "int16", scale=2.0**-12) for _ in range(4)]
    inner.append(model.tensor((0,), "int8", scale=1 / 4096))
    inputs = [x, *weights, -1, -1, -1, *biases, -1, -1, h, c, -1, -1, -1, -1]
    options = {"fusedActivationFunction": 4, "cellClip": 0.0, "projClip": 0.0, "timeMajor": False}
    kind = "UnidirectionalSequenceLSTMOptions"
    model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], kind, intermediates=inner, **options)
    return model.data([x], [y]), [np.zeros((1, 1, 7), np.int8)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rounding", ["tflm", "litert"])
def test_products_of_scales_of_recurrent_layers(rounding: str, seed: int) -> None:
    data, arrays = lstm_at_ties(seed)
    (expected,) = (litert if rounding == "litert" else tflm)(data, arrays)
    module = from_tflite(data, rounding=rounding)
    (found,) = run_model(module, {module.main.params[0].name: arrays[0]})
    np.testing.assert_array_equal(found, expected)
