# SPDX-License-Identifier: Apache-2.0
"""Operators of StableHLO in TFLite models: against LiteRT where it has a kernel, else against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import CONVERTERS, from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

RNG = np.random.default_rng(3)
#: Operators of StableHLO for which LiteRT has a kernel.
WITH_KERNEL = ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM", "PAD", "SHIFT_LEFT")


def f(*shape: int) -> Any:
    return (RNG.standard_normal(shape) * 2).astype(np.float32)


def i(*shape: int, low: int = -9, high: int = 10) -> Any:
    return RNG.integers(low, high, shape).astype(np.int32)


def b(*shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(bool)


Row = tuple[str, Sequence[Any], Any, str, dict[str, Any]]


def row(name: str, inputs: Sequence[Any], function: Callable[..., Any], kind: str = "", **options: Any) -> Row:
    return name, inputs, function(*inputs), f"Stablehlo{kind}Options" if kind else "", options


def starts(*values: int) -> list[Any]:
    return [np.array(v, np.int32) for v in values]


def padded(x: Any, value: Any) -> Any:
    result = np.full((5, 8), value, x.dtype)
    result[1:4:2, 1:8:2] = x[:2, 1:]
    return result


A, B, POSITIVE, WHOLE, COUNT = f(2, 3), f(2, 3), np.abs(f(2, 3)) + 0.1, i(2, 3), i(2, 3, low=1, high=5)
CASES = [
    *(
        row(name, [A], function)
        for name, function in (
            ("ABS", np.abs), ("COSINE", np.cos), ("EXPONENTIAL", np.exp), ("FLOOR", np.floor), ("NEGATE", np.negative),
            ("TANH", np.tanh), ("LOGISTIC", lambda x: 1 / (1 + np.exp(-x))),
        )
    ),
    *(row(name, [POSITIVE], function) for name, function in (("LOG", np.log), ("RSQRT", lambda x: 1 / np.sqrt(x)))),
    *(
        row(name, [x, y], function)
        for x, y in ((A, B), (WHOLE, COUNT))
        for name, function in (
            ("ADD", np.add), ("SUBTRACT", np.subtract), ("MULTIPLY", np.multiply), ("MAXIMUM", np.maximum),
            ("MINIMUM", np.minimum), ("REMAINDER", np.fmod),
        )
    ),
    row("DIVIDE", [A, POSITIVE], np.divide),
    row("DIVIDE", [WHOLE, COUNT], lambda x, y: np.trunc(x / y).astype(np.int32)),
    row("POWER", [POSITIVE, A], np.power),
    *(
        row(name, [x, y], function)
        for name, function in (("AND", np.bitwise_and), ("OR", np.bitwise_or))
        for x, y in ((b(5), b(5)), (WHOLE, COUNT))
    ),
    row("SHIFT_LEFT", [WHOLE, COUNT], np.left_shift, "ShiftLeft"),
    row("CBRT", [np.array([-8, 0, 1e-38, 3e38, -np.inf, np.nan, 0.3], np.float32)], np.cbrt),
    row("CLAMP", [np.float32(-1), A, np.float32(0.5)], lambda low, x, high: np.clip(x, low, high)),
    row("CLAMP", [B - 1, A, B + 1], lambda low, x, high: np.clip(x, low, high)),
    *(
        row("COMPARE", [WHOLE, COUNT], function, "Compare", comparisonDirection=k)
        for k, function in enumerate((np.equal, np.not_equal, np.greater_equal, np.greater, np.less_equal, np.less))
    ),
    row("SELECT", [b(2, 3), A, B], np.where),
    row("CONVERT", [WHOLE], lambda x: x.astype(np.float32)),
    row("RESHAPE", [A], lambda x: x.reshape(3, 2)),
    row("TRANSPOSE", [f(2, 3, 4)], lambda x: x.transpose(2, 0, 1), "Transpose", permutation=[2, 0, 1]),
    row("CONCATENATE", [A, B], lambda *x: np.concatenate(x, 1), "Concatenate", dimension=1),
    row("BROADCAST_IN_DIM", [f(3, 1)], lambda x: np.broadcast_to(x, (2, 3, 4)), "BroadcastInDim",
        broadcastDimensions=[1, 2]),
    row("IOTA", [], lambda: np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (3, 2)), "Iota", iotaDimension=0),
    row("SLICE", [f(5, 6)], lambda x: x[1:5:2, 0:6:3], "Slice", startIndices=[1, 0], limitIndices=[5, 6],
        strides=[2, 3]),
    row("DYNAMIC_SLICE", [f(5, 6), *starts(9, 1)], lambda x, *_: x[3:5, 1:4], "DynamicSlice", sliceSizes=[2, 3]),
    row("DYNAMIC_UPDATE_SLICE", [np.zeros((3, 4), np.float32), A[:, :2], *starts(5, -1)],
        lambda x, u, *_: np.pad(u, ((1, 0), (0, 2)))),
    row("PAD", [f(3, 5), np.float32(7)], padded, "Pad", edgePaddingLow=[1, -1], edgePaddingHigh=[-1, 0],
        interiorPadding=[1, 1]),
    row("DOT_GENERAL", [f(3, 2, 4), f(4, 5, 2)], lambda x, y: np.einsum("mbk,knb->bmn", x, y), "DotGeneral",
        lhsBatchingDimensions=[1], rhsBatchingDimensions=[2], lhsContractingDimensions=[2],
        rhsContractingDimensions=[0]),
    row("DOT_GENERAL", [i(3, 4, low=-128, high=128).astype(np.int8), i(4, 5, low=-128, high=128).astype(np.int8)],
        lambda x, y: x.astype(np.int32) @ y, "DotGeneral", lhsContractingDimensions=[1], rhsContractingDimensions=[0]),
]  # fmt: skip


def model_of(case: Row) -> tuple[bytes, list[Any]]:
    name, inputs, expected, kind, options = case
    model, places, runs = Builder(), [], []
    for array in inputs:
        places.append(model.tensor(array.shape, str(array.dtype)))
        runs.append(array)
    y = model.tensor(expected.shape, str(expected.dtype))
    model.op(f"STABLEHLO_{name}", places, [y], kind, **options)
    return model.data(places, [y]), runs


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_operator(case: Row) -> None:
    data, arrays = model_of(case)
    module = from_tflite(data)
    (found,) = run_model(module, {p.name: x for p, x in zip(module.main.params, arrays, strict=True)})
    wanted = [case[2], *(litert(data, arrays) if case[0] in WITH_KERNEL else [])]
    for expected in wanted:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


BODIES = {"ADD": np.sum, "MULTIPLY": np.prod, "MAXIMUM": np.max, "MINIMUM": np.min}


def reducing(name: str) -> bytes:
    model = Builder()
    x, first, y = model.tensor((2, 3, 4)), model.tensor((), data=1.5), model.tensor((3,))
    with model.subgraph() as body:
        a, c, result = model.tensor(()), model.tensor(()), model.tensor(())
        model.op(f"STABLEHLO_{name}", [a, c] if name != "SUBTRACT" else [c, c], [result])
        model.ends([a, c], [result])
    model.op("STABLEHLO_REDUCE", [x, first], [y], "StablehloReduceOptions", dimensions=[2, 0], bodySubgraphIndex=body)
    return model.data([x], [y])


@pytest.mark.parametrize("name", BODIES)
def test_reductions_by_one_operator(name: str) -> None:
    x, module = f(2, 3, 4), from_tflite(reducing(name))
    (found,) = run_model(module, {module.main.params[0].name: x})
    start = {"ADD": x.sum((0, 2)) + 1.5, "MULTIPLY": x.prod((0, 2)) * 1.5}
    expected = start.get(name, BODIES[name](np.stack([BODIES[name](x, (0, 2)), np.full(3, 1.5)]), 0))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_other_reductions_are_refused() -> None:
    with pytest.raises(AotcError, match="if its body is one operator"):
        from_tflite(reducing("SUBTRACT"))


def test_composites_are_their_decompositions() -> None:
    """An operator with a name, such as those of exporters for normalizations and attention."""
    model = Builder()
    x, w, y = model.tensor((2, 3)), model.tensor((3,)), model.tensor((2, 3))
    with model.subgraph() as body:
        a, c, product, result = model.tensor((2, 3)), model.tensor((3,)), model.tensor((2, 3)), model.tensor((2, 3))
        model.op("MUL", [a, c], [product], "MulOptions")
        model.op("TANH", [product], [result])
        model.ends([a, c], [result])
    model.op("STABLEHLO_COMPOSITE", [x, w], [y], "StableHLOCompositeOptions", decompositionSubgraphIndex=body)
    stated = model.graph.operators[-1].builtinOptions2
    stated.name, stated.compositeAttributes = "odml.scaled_tanh", np.frombuffer(flexbuffers.Dumps({"a": 1}), np.uint8)
    data, arrays = model.data([x, w], [y]), [f(2, 3), f(3)]
    module = from_tflite(data)
    (found,) = run_model(module, {p.name: v for p, v in zip(module.main.params, arrays, strict=True)})
    np.testing.assert_allclose(found, litert(data, arrays)[0], rtol=1e-5, atol=1e-6)


def test_loops() -> None:
    """A loop whose number of iterations its input decides, with a condition on carried values."""
    model = Builder()
    inputs, outputs = ((model.tensor((), "int32"), model.tensor((3,))) for _ in range(2))
    with model.subgraph() as condition:
        k, x, end, goes = (
            model.tensor((), "int32"),
            model.tensor((3,)),
            model.tensor((), "int32", 5),
            model.tensor((), "bool"),
        )
        model.op("STABLEHLO_COMPARE", [k, end], [goes], "StablehloCompareOptions", comparisonDirection=5)
        model.ends([k, x], [goes])
    with model.subgraph() as body:
        k, x, one = model.tensor((), "int32"), model.tensor((3,)), model.tensor((), "int32", 1)
        after, squares = model.tensor((), "int32"), model.tensor((3,))
        model.op("STABLEHLO_ADD", [k, one], [after])
        model.op("STABLEHLO_MULTIPLY", [x, x], [squares])
        model.ends([k, x], [after, squares])
    options = {"condSubgraphIndex": condition, "bodySubgraphIndex": body}
    model.op("STABLEHLO_WHILE", inputs, outputs, "StablehloWhileOptions", **options)
    module = from_tflite(model.data(inputs, outputs))
    for first, last in ((2, 5), (5, 5), (7, 7)):
        x = np.array([1.25, 0.5, -1], np.float32)
        values = zip(module.main.params, (np.array(first, np.int32), x), strict=True)
        count, found = run_model(module, {p.name: v for p, v in values})
        assert count == last
        np.testing.assert_allclose(found, x**2 ** (last - first), rtol=1e-5)


def test_every_converter_is_tested() -> None:
    tested = {f"STABLEHLO_{case[0]}" for case in CASES}
    tested |= {f"STABLEHLO_{name}" for name in ("COMPOSITE", "CONVOLUTION", "GATHER", "REDUCE", "REDUCE_WINDOW")}
    tested |= {f"STABLEHLO_{name}" for name in ("RNG_BIT_GENERATOR", "SCATTER", "SORT", "WHILE")}
    assert {n for n in CONVERTERS if n.startswith("STABLEHLO_")} == tested


def test_the_cube_root_of_negative_zero_is_negative_zero() -> None:
    data, arrays = model_of(row("CBRT", [np.array([-0.0, 0.0], np.float32)], np.cbrt))
    module = from_tflite(data)
    (found,) = run_model(module, dict(zip([p.name for p in module.main.params], arrays, strict=True)))
    assert list(np.signbit(found)) == [True, False]
