# SPDX-License-Identifier: Apache-2.0
"""Every converted TFLite operator has LiteRT's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import tflite

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import CONVERTERS, from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.cases import CASES, Case, Data
from tests.frontend_tflite.model_builder import Builder, litert


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


def with_integers(case: Case, dtype: str) -> Case:
    """The case with small positive integers instead of real numbers."""
    rng = np.random.default_rng(6)

    def replaced(given: Any) -> Any:
        if isinstance(given, Data):
            return Data(given.shape, dtype, (1, 7)) if given.dtype == "float32" else given
        return rng.integers(1, 7, given.shape).astype(dtype) if given.dtype == np.float32 else given

    outputs = tuple(dtype if t == "float32" else t for t in case.outputs)
    return Case(case.name, tuple(map(replaced, case.inputs)), case.kind, case.options, outputs)


#: Operators that compute in LiteRT on int32 and int64 or on the first alone.
COMPUTING = {
    "int32": {"ADD", "ADD_N", "CUMSUM", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MUL", "REDUCE_PROD", "SUB", "SUM"},
    "int64": {"ADD", "CUMSUM", "FLOOR_MOD", "MAXIMUM", "MUL", "REDUCE_PROD", "SUB", "SUM"},
}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_without_scales(dtype: str) -> None:
    """Whatever LiteRT computes on these types."""
    ran = set()
    for case in CASES:
        data, arrays = built(with_integers(case, dtype))
        # BITCAST to another size is refused, and LiteRT leaves the results of FAKE_QUANT unwritten
        if case.name in ("BITCAST", "FAKE_QUANT"):
            continue
        if not any(a.dtype == dtype for a in arrays):
            continue
        try:
            expected = litert(data, arrays)
        except RuntimeError:
            continue
        module = from_tflite(data)
        actual = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, e, err_msg=case.name)
        ran.add(case.name)
    assert ran >= COMPUTING[dtype]


#: Operators that other files test.
TESTED_ELSEWHERE = {
    *(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        "BIDIRECTIONAL_SEQUENCE_RNN",
        "LSTM",
        "RNN",
        "SVDF",
        "UNIDIRECTIONAL_SEQUENCE_RNN",
    ),
    *("MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "REDUCE_WINDOW"),
    *("ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "COMPLEX_ABS", "IMAG", "REAL", "RFFT2D", "DENSIFY", "IF", "QUANTIZE"),
    *("READ_VARIABLE", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIQUE", "VAR_HANDLE", "WHERE", "WHILE"),
}


def test_every_converter_has_a_case() -> None:
    of_others = {name for name in CONVERTERS if name.startswith("STABLEHLO_")}
    assert {case.name for case in CASES} | TESTED_ELSEWHERE | of_others >= set(CONVERTERS)


def test_most_builtin_operators_are_converted() -> None:
    """All of them by the schema's names; those that LiteRT's schema does not know would have no case."""
    names = set(vars(tflite.BuiltinOperator))
    assert set(CONVERTERS) <= names and len(CONVERTERS) >= 90


def test_floats_that_are_no_numbers_have_buckets() -> None:
    model = Builder()
    x, y = model.tensor((7,)), model.tensor((7,), "int32")
    model.op("BUCKETIZE", [x], [y], "BucketizeOptions", boundaries=[-1.5, 0.0, 1.25])
    data, values = model.data([x], [y]), np.array([-1.5, 0, 1.25, 1.2499999, np.nan, np.inf, -np.inf], np.float32)
    found = run_model(from_tflite(data), {from_tflite(data).main.params[0].name: values})
    assert np.array_equal(found[0], litert(data, [values])[0])


def test_buckets_in_another_order_are_refused() -> None:
    model = Builder()
    x, y = model.tensor((2,)), model.tensor((2,), "int32")
    model.op("BUCKETIZE", [x], [y], "BucketizeOptions", boundaries=[1.0, 0.5])
    with pytest.raises(AotcError, match="must be numbers in ascending order"):
        from_tflite(model.data([x], [y]))


def test_all_that_is_not_supported_is_told_at_once() -> None:
    """Custom operators by their names, builtin ones, and types that have no meaning here."""
    model = Builder()
    x, kept = model.tensor((1, 8), name="x"), model.tensor((1, 8))
    outs = [model.tensor((1, 8)) for _ in range(3)]
    model.op("ABS", [x], [kept])
    for name, out in zip(("AudioSpectrogram", "Mfcc", "SKIP_GRAM"), outs, strict=True):
        model.op(name, [x], [out])
    after = model.tensor((1, 8))
    model.op("NEG", [outs[0]], [after])
    with pytest.raises(AotcError) as caught:
        from_tflite(model.data([x], [kept, after, *outs]))
    found = caught.value.diagnostics
    expected = ["custom operator AudioSpectrogram", "custom operator Mfcc", "operator SKIP_GRAM"]
    reasons = ["", "", ": it works on strings and tables"]
    assert [d.message for d in found] == [f"{t} is not supported{r}" for t, r in zip(expected, reasons, strict=True)]
    assert all(d.code == "tflite-op" and d.hint for d in found)
    nodes = [f"{text.split()[-1]}#{k} " for k, text in enumerate(expected, 1)]
    assert all(d.span is not None and str(d.span.node).startswith(n) for d, n in zip(found, nodes, strict=True))


@pytest.mark.parametrize("version", [0, 1, 2, 4, 1 << 31])
def test_other_versions_of_the_schema_are_refused(version: int) -> None:
    model = Builder()
    x, y = model.tensor((1, 8)), model.tensor((1, 8))
    model.op("ABS", [x], [y])
    model.model.version = version
    with pytest.raises(AotcError, match=f"version {version} of the schema is not supported") as caught:
        from_tflite(model.data([x], [y]))
    assert caught.value.code == "tflite-version"


@pytest.mark.parametrize("part", [0, 3, 7, 8, 11, 20, 64, 200, -40, -1])
def test_truncated_files_are_refused(part: int) -> None:
    """And files of other formats."""
    data, _ = recurrent(False)
    with pytest.raises(AotcError) as caught:
        from_tflite(data[:part])
    assert {d.code for d in caught.value.diagnostics} <= {"tflite-file", "tflite-version", "tflite-dtype"}
    with pytest.raises(AotcError, match="not a TFLite model"):
        from_tflite(b"\x08\x03onnx" + data[:part])
