# SPDX-License-Identifier: Apache-2.0
"""Integer forms of operators, from one table, give the integers of the interpreters that support them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from aotc.relay.frontend.tflite.converter_table import MOVES
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.cases import CASES, Case, Data
from tests.frontend_tflite.model_builder import Builder, litert, tflm


@dataclass(frozen=True)
class Row:
    """An operator on tensors of one or two shapes.

    scales    of the inputs and of the result, for 8 bits; those of 16 are 256 times finer
    zeros     of the same, for int8; of uint8 they are 128 more, of int16 0
    types     for which LiteRT has kernels, and those of TFLite Micro
    result    the type of the result where that is another one
    above     whether inputs are not below their zero point
    """

    name: str
    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    types: str
    micro: str = ""
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    axes: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    result: str = ""
    above: bool = False


#: Scales of results that the kernels require, whatever the type is.
_FIXED_SCALES = (1 / 128, 1 / 16)
_GELU = {"kind": "GeluOptions"}
_COMPARISONS = "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL"
_SUM: dict[str, Any] = {"kind": "ReducerOptions"}
_PAIR = ((6, 7, 5), (7, 1))
ROWS = [
    *(Row("ABS", (0.05, y), (3, -7), "int8 int16", "int8 int16") for y in (0.05, 0.031, 0.2)),
    *(Row("ELU", (x, 0.043), (3, -70), "int8", "int8") for x in (0.011, 0.05, 0.2)),
    *(Row("EXP", (x, 0.4), (9, -128), "int8 int16") for x in (0.011, 0.04)),
    *(Row("GELU", (x, 0.04), (5, -60), "int8 uint8 int16", **_GELU, options={"approximate": a})
      for x in (0.02, 0.05, 0.3) for a in (False, True)),
    *(Row("LOG", (x, 0.03), (z, 5), "int8 int16") for x, z in ((0.03, -128), (0.2, 17))),
    Row("NEG", (0.05, 0.05), (0, 0), "int8 int16"),
    *(Row("RSQRT", (x, y), (-128, -128), "int8 int16", "int8 int16", above=True)
      for x, y in ((0.03, 0.04), (0.4, 0.01))),
    *(Row("SQRT", (x, 0.02), (-128, -100), "int8 int16", above=True) for x in (0.03, 0.1)),
    *(Row("L2_NORMALIZATION", (0.05, 1 / 128), (z, 0), "int8 uint8", "int8", "L2NormOptions") for z in (0, 9)),
    *(Row("SUM", (0.05, y), (5, -9), "int8 uint8 int16", "int8 int16", **_SUM, axes=a, options={"keepDims": k})
      for y in (0.05, 0.9) for a, k in (((1, 2), True), ((0,), False))),
    *(Row("SUM", (0.05, 0.9), z, "int8", "int8", **_SUM, axes=(0,), options={"keepDims": False})
      for z in ((-7, 4), (100, -90))),
    *(Row(n, (x, y), (5, z), "int8 uint8", "int8", shapes=s, result="bool")
      for n in _COMPARISONS.split() for x, y, z in ((0.05, 0.05, 5), (0.05, 0.031, -9), (0.003, 0.003, 5))
      for s in ((), _PAIR)),
    *(Row(n, (0.05, 0.031), (0, 0), "int16", result="bool") for n in ("EQUAL", "NOT_EQUAL")),
    *(Row(n, (0.05, 0.05), (0, 0), "int16", result="bool") for n in ("GREATER", "LESS_EQUAL")),
    *(Row("CAST", (0.05,), (5,), "int8 uint8 int16", result=t, kind="CastOptions") for t in ("float32", "int32")),
    *(Row("LOG_SOFTMAX", (x, 1 / 16), (3, 127), "int8 uint8", "int8", "LogSoftmaxOptions", shapes=s)
      for x in (0.0007, 0.011, 0.05, 0.2, 1.3) for s in ((), ((3, 300),), ((40, 1),), ((2, 3, 2),))),
    *(Row("REDUCE_PROD", (x, y), (z, -9), "int8 int16", kind="ReducerOptions", shapes=((6, 5, 4, 3),), axes=a,
          options={"keepDims": k})
      for x, y, z, a, k in ((0.03, 0.5, 5, (3,), False), (0.03, 0.11, -128, (3,), True), (0.01, 0.02, 0, (1, 2), False),
                            (0.008, 0.003, 9, (0, 3), True), (0.02, 0.9, 3, (2,), False))),
    *(Row("CONCATENATION", (0.05, y, 0.06), (3, -9, 5), "uint8", kind="ConcatenationOptions", options={"axis": 1})
      for y in (0.05, 0.11)),
]  # fmt: skip


def stored(scale: float, zero: int, dtype: str) -> dict[str, Any]:
    scale = scale if dtype != "int16" or scale in _FIXED_SCALES else scale / 256
    return {"scale": scale, "zero": {"int8": zero, "uint8": zero + 128, "int16": 0}[dtype]}


def values(row: Row, dtype: str, shape: tuple[int, ...], number: int) -> Any:
    """Every integer of 8 bits, in another order for each input; random ones of 16."""
    rng = np.random.default_rng(number)
    info = np.iinfo(dtype)
    low = stored(1.0, row.zeros[number], dtype)["zero"] + 1 if row.above else info.min
    if shape == (16, 16) and not row.above:
        return rng.permutation(np.arange(info.min, info.max + 1) if dtype != "int16" else words(rng)).reshape(16, 16)
    return rng.integers(low, info.max + 1, shape)


def words(rng: np.random.Generator) -> Any:
    return rng.integers(-(1 << 15), 1 << 15, 256)


def model_of(row: Row, dtype: str) -> tuple[bytes, list[Any]]:
    model, inputs, arrays = Builder(), [], []
    pairs = row.name in _COMPARISONS.split() or len(row.scales) == 3
    shapes = row.shapes or ((2, 9, 5, 7),) * (1 + pairs) if row.axes else row.shapes or ((16, 16),) * (1 + pairs)
    for number, shape in enumerate(shapes):
        inputs.append(model.tensor(shape, dtype, **stored(row.scales[number], row.zeros[number], dtype)))
        arrays.append(values(row, dtype, shape, number).astype(dtype))
    more = [model.tensor((len(row.axes),), "int32", row.axes)] if row.axes else []
    given = np.broadcast_shapes(*shapes)
    if row.axes:
        keep = row.options["keepDims"]
        given = tuple(1 if k in row.axes else d for k, d in enumerate(given) if keep or k not in row.axes)
    given = (16, 32) if row.name == "CONCATENATION" else given
    scale = {} if row.result else stored(row.scales[-1], row.zeros[-1], dtype)
    output = model.tensor(given, row.result or dtype, **scale)
    options = row.options
    if row.kind == "CastOptions":
        numbers = {"float32": 0, "int32": 2, "uint8": 3, "int16": 7, "int8": 9}
        options = {"inDataType": numbers[dtype], "outDataType": numbers[row.result]}
    model.op(row.name, [*inputs, *more], [output], row.kind, 1, **options)
    return model.data(inputs, [output]), arrays


def integers_of(data: bytes, arrays: list[Any], rounding: str) -> Any:
    module = from_tflite(data, rounding=rounding)
    return run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})


def cells() -> Iterator[Any]:
    for number, row in enumerate(ROWS):
        for dtype in row.types.split():
            yield pytest.param(row, dtype, id=f"{row.name}-{dtype}-{number}")


@pytest.mark.parametrize(("row", "dtype"), list(cells()))
def test_integers(row: Row, dtype: str) -> None:
    """Those of LiteRT, and of TFLite Micro where it has the operator."""
    data, arrays = model_of(row, dtype)
    np.testing.assert_array_equal(integers_of(data, arrays, "litert")[0], litert(data, arrays)[0])
    if dtype in row.micro.split():
        np.testing.assert_array_equal(integers_of(data, arrays, "tflm")[0], tflm(data, arrays)[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scales", [(0.05, 0.05, 0.05), (0.05, 0.0685, 0.0605), (0.1, 0.02, 0.2)])
def test_quotients(dtype: str, scales: tuple[float, float, float]) -> None:
    """The nearest integers everywhere; those of LiteRT wherever its shifts are defined, so that it is near, too."""
    row = Row("DIV", scales, (5, -9, 11), dtype, kind="DivOptions")
    data, arrays = model_of(row, dtype)
    zeros = [stored(1.0, z, dtype)["zero"] for z in row.zeros]
    arrays[1][arrays[1] == zeros[1]] = zeros[1] + 1
    (actual,), (expected,) = integers_of(data, arrays, "litert"), litert(data, arrays)
    a, b = (x.astype(np.int64) - z for x, z in zip(arrays, zeros, strict=False))
    info = np.iinfo(dtype)
    exact = np.clip(a * scales[0] / (b * scales[1]) / scales[2] + zeros[2], info.min, info.max)
    assert np.abs(actual - exact).max() <= 0.5001
    near = np.abs(expected - exact) < 0.51
    assert near.mean() > 0.9
    np.testing.assert_array_equal(actual[near], expected[near])


def nonzero_divisors(row: Row, dtype: str) -> tuple[bytes, list[Any]]:
    data, arrays = model_of(row, dtype)
    zero = stored(1.0, row.zeros[1], dtype)["zero"]
    arrays[1][arrays[1] == zero] = zero + 1
    return data, arrays


@pytest.mark.parametrize("shapes", [((90, 100), (90, 100)), ((40, 7, 50), (7, 1))])
@pytest.mark.parametrize("scales", [(0.05, 0.05, 0.05), (0.05, 0.0685, 9.0), (0.1, 0.0002, 200.0), (3.0, 0.001, 700.0)])
def test_quotients_of_16_bits(scales: tuple[float, float, float], shapes: Any) -> None:
    """The nearest integers everywhere; those of LiteRT wherever its shifts
    are defined, so that it is near, too.
    """
    data, arrays = nonzero_divisors(Row("DIV", scales, (0, 0, 0), "int16", kind="DivOptions", shapes=shapes), "int16")
    (actual,), (expected,) = integers_of(data, arrays, "litert"), litert(data, arrays)
    quotient = arrays[0] * scales[0] / (arrays[1] * scales[1]) / scales[2] * 256
    exact = np.clip(quotient, -32768, 32767)
    assert np.abs(actual - exact).max() <= 0.51
    near = np.abs(expected - exact) < 0.51
    assert near.mean() > 0.9
    np.testing.assert_array_equal(actual[near], expected[near])
    assert len(np.unique(actual)) > 10


def test_products_beyond_32_bits_saturate() -> None:
    """Where LiteRT's sums wrap, which C leaves open."""
    row = Row("REDUCE_PROD", (0.5, 0.01), (0, 0), "int16", kind="ReducerOptions", axes=(0,), shapes=((6, 2),),
              options={"keepDims": False})  # fmt: skip
    data, _ = model_of(row, "int16")
    array = np.array([[32767, 32767]] * 5 + [[32767, -32767]], np.int16)
    np.testing.assert_array_equal(integers_of(data, [array], "litert")[0], [32767, -32768])


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", ["FLOOR_DIV", "FLOOR_MOD"])
def test_floor_divisions(name: str, scaled: bool, dtype: str) -> None:
    """All pairs of int8, those of int16 that are drawn; without scales the integers stand for themselves."""
    model, info = Builder(), np.iinfo(dtype)
    every = np.arange(-128, 128) if dtype == "int8" else np.random.default_rng(3).integers(info.min, info.max + 1, 256)
    arrays = [every.astype(dtype)[:, None], every[every != 0].astype(dtype)]
    how: list[dict[str, Any]] = [
        {"scale": s} if scaled else {} for s in (0.3, 0.3, 0.3 if name == "FLOOR_MOD" else 1.0)
    ]
    inputs = [model.tensor(a.shape, dtype, **h) for a, h in zip(arrays, how, strict=False)]
    output = model.tensor((256, arrays[1].size), dtype, **how[2])
    model.op(name, inputs, [output])
    data = model.data(inputs, [output])
    np.testing.assert_array_equal(integers_of(data, arrays, "litert")[0], litert(data, arrays)[0])


#: Types of operators whose scales are drawn.
DRAWN = {
    "ABS": "int8 int16", "CONCATENATION": "uint8", "ELU": "int8", "EQUAL": "int8 int16", "EXP": "int8 int16",
    "GELU": "int8 uint8", "L2_NORMALIZATION": "int8 uint8", "LESS": "int8 uint8", "LOG": "int8 int16",
    "LOG_SOFTMAX": "int8 uint8", "REDUCE_PROD": "int8 int16", "RSQRT": "int8 int16", "SQRT": "int8 int16",
    "SUM": "int8 uint8 int16",
}  # fmt: skip


def drawn(rng: np.random.Generator, name: str) -> Row:
    """An operator with scales from 1/400 to 1/2 and any zero points."""
    count = 3 if name == "CONCATENATION" else 2
    scales = tuple(float(np.float32(10 ** rng.uniform(-2.6, -0.3))) for _ in range(count))
    zeros = tuple(int(v) for v in rng.integers(-128, 128, count))
    if name == "L2_NORMALIZATION":
        return Row(name, (scales[0], 1 / 128), (zeros[0], 0), DRAWN[name])
    if name == "LOG_SOFTMAX":
        return Row(name, (scales[0], 1 / 16), (zeros[0], 127), DRAWN[name])
    if name == "REDUCE_PROD":
        axes = ((0,), (1, 2), (3,))[rng.integers(3)]
        how: dict[str, Any] = {"kind": "ReducerOptions", "options": {"keepDims": False}, "shapes": ((3, 2, 4, 5),)}
        return Row(name, (min(scales[0], 0.007), scales[1]), zeros, DRAWN[name], axes=axes, **how)
    if name in ("EQUAL", "LESS"):
        return Row(name, scales, zeros, DRAWN[name], result="bool")
    if name in ("RSQRT", "SQRT"):
        return Row(name, scales, (-128, zeros[1]), DRAWN[name], above=True)
    if name == "SUM":
        axes = ((0,), (1, 2), (3,))[rng.integers(3)]
        return Row(name, scales, zeros, DRAWN[name], axes=axes, kind="ReducerOptions", options={"keepDims": False})
    options = {"GELU": {"approximate": bool(rng.integers(2))}, "CONCATENATION": {"axis": 1}}.get(name, {})
    kind = {"GELU": "GeluOptions", "CONCATENATION": "ConcatenationOptions"}.get(name, "")
    return Row(name, scales, zeros, DRAWN[name], kind=kind, options=options)


@pytest.mark.parametrize("name", DRAWN)
def test_scales_drawn(name: str) -> None:
    """LiteRT's integers, whatever the scales are."""
    rng = np.random.default_rng(len(name))
    for _ in range(6):
        row = drawn(rng, name)
        for dtype in row.types.split():
            data, arrays = model_of(row, dtype)
            actual, expected = integers_of(data, arrays, "litert")[0], litert(data, arrays)[0]
            np.testing.assert_array_equal(actual, expected, err_msg=str((row, dtype)))


def test_compiled() -> None:
    """Norms, sums, products, tables, comparisons, quotients and logarithms of probabilities of one tensor, as C."""
    model, rng = Builder(), np.random.default_rng(2)
    x = model.tensor((6, 8), "int8", scale=0.05, zero=-9, name="x")
    results = [
        model.tensor((6, 8), "int8", scale=1 / 128, zero=0),
        model.tensor((6,), "int8", scale=0.2, zero=3),
        model.tensor((6, 8), "int8", scale=0.05, zero=4),
        model.tensor((6, 8), "int8", scale=0.1, zero=-100),
        model.tensor((6, 8), "bool"),
        model.tensor((6, 8), "int8", scale=0.02, zero=1),
        model.tensor((6, 8), "int8", scale=1 / 16, zero=127),
        model.tensor((8,), "int8", scale=0.3, zero=7),
    ]
    model.op("L2_NORMALIZATION", [x], results[:1], "L2NormOptions")
    model.op("SUM", [x, model.tensor((1,), "int32", [1])], results[1:2], "ReducerOptions")
    model.op("GELU", [x], results[2:3], "GeluOptions", approximate=False)
    model.op("ABS", [x], results[3:4])
    model.op("LESS", [x, results[2]], results[4:5])
    divisor = model.tensor((1, 8), "int8", rng.integers(1, 100, (1, 8)), scale=0.04, zero=0)
    model.op("DIV", [x, divisor], results[5:6], "DivOptions")
    model.op("LOG_SOFTMAX", [x], results[6:7], "LogSoftmaxOptions")
    model.op("REDUCE_PROD", [x, model.tensor((1,), "int32", [0])], results[7:], "ReducerOptions")
    data, array = model.data([x], results), rng.integers(-128, 128, (6, 8)).astype(np.int8)
    session = aotc.compile(from_tflite(data, rounding="litert"), target="c").session()
    for actual, wanted in zip(session.run(None, {"x": array}), litert(data, [array]), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_compiled_logarithms_of_probabilities_in_fixed_point() -> None:
    data, arrays = model_of(Row("LOG_SOFTMAX", (0.05, 1 / 16), (3, 127), "int8"), "int8")
    module = from_tflite(data, rounding="tflm")
    session = aotc.compile(module, target="c").session()
    actual = session.run(None, {module.main.params[0].name: arrays[0]})
    np.testing.assert_array_equal(actual[0], tflm(data, arrays)[0])


def test_compiled_quotients_of_16_bits() -> None:
    row = Row("DIV", (0.05, 0.05, 0.05), (0, 0, 0), "int16", kind="DivOptions", shapes=((40, 7), (7,)))
    data, arrays = nonzero_divisors(row, "int16")
    module = from_tflite(data, rounding="litert")
    session = aotc.compile(module, target="c").session()
    actual = session.run(None, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_array_equal(actual[0], integers_of(data, arrays, "litert")[0])


@pytest.mark.parametrize(
    ("row", "dtype", "message"),
    [
        (Row("NEG", (0.05, 0.05), (3, 3), "int8"), "int8", "NEG of integers takes and gives one scale"),
        (Row("EQUAL", (1.5, 1.5), (0, 0), "int8", result="bool"), "int8", "EQUAL of integers needs inputs with scales"),
        (Row("LESS", (0.1, 0.2), (0, 0), "int16", result="bool"), "int16", "LESS of integers of 16 bits"),
        (Row("L2_NORMALIZATION", (0.1, 0.1), (0, 0), "int8"), "int8", "gives the scale 1/128"),
        (Row("LOG_SOFTMAX", (0.1, 0.1), (0, 127), "int8"), "int8", "require 1/16 and 127"),
        (Row("LOG_SOFTMAX", (0.1, 1 / 16), (0, 0), "uint8"), "uint8", "zero point 128; .* require 1/16 and 255"),
        (Row("FLOOR_DIV", (0.1, 0.2, 1.0), (0, 0, 0), "int8"), "int8", "the scales of the inputs must be equal"),
        (Row("FLOOR_MOD", (0.1, 0.1, 0.1), (0, 3, 0), "int8"), "int8", "the zero points must be 0"),
        (Row("FLOOR_MOD", (0.1, 0.1, 0.2), (0, 0, 0), "int8"), "int8", "output scale must be that of the inputs"),
        (
            Row(
                "REDUCE_PROD", (0.1, 0.1), (0, 0), "uint8", axes=(0,), kind="ReducerOptions", options={"keepDims": True}
            ),
            "uint8",
            "REDUCE_PROD of uint8",
        ),
    ],
)
def test_what_the_interpreters_compute_otherwise_is_refused(row: Row, dtype: str, message: str) -> None:
    with pytest.raises(AotcError, match=message) as caught:
        from_tflite(model_of(row, dtype)[0], rounding="litert")
    assert caught.value.code == "tflite-quant"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", ["ADD", "AVERAGE_POOL_2D", "DIV", "MEAN", "MUL", "PRELU", "RELU6", "SUB", "SUM"])
def test_integers_without_a_scale(name: str, dtype: str) -> None:
    """An error, but for the sums and products of int16 that LiteRT computes as integers."""
    case = next(c for c in CASES if c.name == name)
    model, rng, inputs, arrays = Builder(), np.random.default_rng(2), list[int](), list[Any]()
    for given in case.inputs:
        real = isinstance(given, Data) or given.dtype == np.float32
        shape = given.shape
        array = rng.integers(1, 7, shape).astype(dtype) if real else given
        inputs.append(model.tensor(shape, dtype if real else "int32", None if real else array))
        arrays += [array] if real else []
    output = model.tensor((), dtype)
    model.op(name, inputs, [output], case.kind, **case.options)
    data = model.data([k for k, _ in zip(inputs, arrays, strict=False)], [output])
    if dtype == "int16" and name in ("ADD", "MUL"):
        np.testing.assert_array_equal(integers_of(data, arrays, "litert")[0], litert(data, arrays)[0])
        return
    with pytest.raises(AotcError, match=f"{name} is {dtype} without a scale") as caught:
        from_tflite(data)
    assert caught.value.code == "tflite-quant"


# --- what moves elements


def moved(case: Case, dtype: str) -> tuple[bytes, list[Any]]:
    """The model of a case with integers instead of real numbers, all of one scale."""
    model, rng, arrays, inputs, places = Builder(), np.random.default_rng(5), list[Any](), list[int](), list[int]()
    # SCATTER_ND fills with the integer 0
    info, how = np.iinfo(dtype), stored(0.05, 3, dtype) if case.name != "SCATTER_ND" else {"scale": 0.05}
    for given in case.inputs:
        array = given.array(rng) if isinstance(given, Data) else np.asarray(given)
        if array.dtype == np.float32:
            array = rng.integers(info.min, info.max + 1, array.shape).astype(dtype)
            number = model.tensor(array.shape, dtype, None if isinstance(given, Data) else array, **how)
        else:
            number = model.tensor(array.shape, str(array.dtype), None if isinstance(given, Data) else array)
        places.append(number)
        if isinstance(given, Data):
            inputs.append(number)
            arrays.append(array)
    outputs = [
        model.tensor((), dtype if t == "float32" else t, **(how if t == "float32" else {})) for t in case.outputs
    ]
    version = 2 if case.name == "BROADCAST_TO" else 1
    model.op(case.name, places, outputs, case.kind, version, **case.options)
    return model.data(inputs, outputs), arrays


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", sorted(MOVES | {"CONCATENATION"}))
def test_elements_are_moved(name: str, dtype: str) -> None:
    """As LiteRT moves them, for all types that it takes."""
    ran = 0
    for case in (c for c in CASES if c.name == name and "float32" in c.outputs):
        data, arrays = moved(case, dtype)
        try:
            expected = litert(data, arrays, xnnpack=False)
        except RuntimeError:
            continue
        for actual, wanted in zip(integers_of(data, arrays, "litert"), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)
        ran += 1
    if not ran:
        pytest.skip(f"LiteRT has no {name} of {dtype}")
