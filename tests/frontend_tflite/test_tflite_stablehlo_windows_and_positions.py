# SPDX-License-Identifier: Apache-2.0
"""Operators of StableHLO over windows and positions: against loops over elements that follow its specification, and
against LiteRT where it has a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

RNG = np.random.default_rng(4)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ADD": np.add, "MULTIPLY": np.multiply, "MAXIMUM": np.maximum, "MINIMUM": np.minimum, "": lambda _, b: b,
}  # fmt: skip


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def model_of(
    name: str, arrays: list[Any], results: list[tuple[tuple[int, ...], str]], options: dict[str, Any],
    body: str | None = None, field: str = "", kind: str = "",
) -> bytes:  # fmt: skip
    """A model of one operator, whose subgraph, if it has one, is one operator of two scalars or its second one."""
    model = Builder()
    inputs = [model.tensor(a.shape, str(a.dtype)) for a in arrays]
    outputs = [model.tensor(shape, dtype) for shape, dtype in results]
    if body is not None:
        dtype = str(arrays[0].dtype)
        with model.subgraph() as number:
            a, b, result = (model.tensor((), dtype) for _ in range(3))
            if body:
                model.op(f"STABLEHLO_{body}", [a, b], [result])
            model.ends([a, b], [result if body else b])
        options = options | {field: number}
    model.op(name, inputs, outputs, kind or "".join(map(str.title, name.split("_"))) + "Options", **options)
    return model.data(inputs, outputs)


def run(data: bytes, arrays: list[Any]) -> list[Any]:
    module = from_tflite(data)
    return run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})


# --- gather and scatter


def element_at(index: Any, position: Any, axis: int) -> Any:
    """An index vector at a position of the grid of windows."""
    if axis == index.ndim:
        return index[tuple(position)].reshape(1)
    return index[(*position[:axis], slice(None), *position[axis:])]


def gathered(x: Any, index: Any, o: dict[str, Any], shape: tuple[int, ...]) -> Any:
    result = np.zeros(shape, x.dtype)
    outer = [k for k in range(len(shape)) if k not in o["offsetDims"]]
    kept = [k for k in range(x.ndim) if k not in o["collapsedSliceDims"]]
    for at in np.ndindex(*shape):
        vector = element_at(index, [at[k] for k in outer], o["indexVectorDim"])
        place = np.zeros(x.ndim, int)
        for k, v in zip(o["startIndexMap"], vector, strict=True):
            place[k] = np.clip(v, 0, x.shape[k] - o["sliceSizes"][k])
        for k, axis in zip(kept, o["offsetDims"], strict=True):
            place[k] += at[axis]
        result[at] = x[tuple(place)]
    return result


def gather(index: Any, *options: Any) -> tuple[Any, dict[str, Any]]:
    names = ("offsetDims", "collapsedSliceDims", "startIndexMap", "indexVectorDim", "sliceSizes")
    return index, dict(zip(names, options, strict=True))


GATHERS = [
    ((5, 4), (3, 4), gather(np.array([4, 0, 7]), [1], [0], [0], 1, [1, 4])),  # rows of a table
    ((5, 4), (4, 3), gather(np.array([[4, 0, -1]]), [0], [0], [0], 0, [1, 4])),
    ((5, 4, 3), (2, 2, 3), gather(np.array([[3, 1], [9, 3]]), [1, 2], [1], [0, 1], 1, [2, 1, 3])),
    ((5, 4, 3), (2, 2, 2), gather(np.array([[3, 1], [9, 2]]), [1, 2], [1], [1, 0], 1, [2, 1, 2])),
    ((5, 4), (2, 3), gather(np.array([[[0, 1], [2, 3], [4, 0]], [[1, 1], [2, 2], [3, 3]]]), [], [0, 1], [0, 1], 2,
                            [1, 1])),
    ((6,), (3,), gather(np.array([2]), [0], [], [0], 0, [3])),  # a dynamic slice
    ((2, 3), (2, 3), gather(np.zeros((0,), int), [0, 1], [], [], 0, [2, 3])),
]  # fmt: skip


@pytest.mark.parametrize("case", GATHERS, ids=lambda c: f"{c[0]}-{c[1]}")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gather(case: Any, dtype: str) -> None:
    shape, result, (index, options) = case
    arrays = [f(*shape), index.astype(dtype)]
    data = model_of("STABLEHLO_GATHER", arrays, [(result, "float32")], options)
    (found,) = run(data, arrays)
    np.testing.assert_array_equal(found, gathered(*arrays, options, result))
    if options["indexVectorDim"] < index.ndim:  # LiteRT ends by a segmentation fault without an axis of vectors
        np.testing.assert_array_equal(found, litert(data, arrays)[0])


def scattered(x: Any, index: Any, update: Any, o: dict[str, Any], function: Callable[..., Any]) -> Any:
    result = x.copy()
    outer = [k for k in range(update.ndim) if k not in o["updateWindowDims"]]
    kept = [k for k in range(x.ndim) if k not in o["insertedWindowDims"]]
    for at in np.ndindex(*update.shape):
        vector = element_at(index, [at[k] for k in outer], o["indexVectorDim"])
        place = np.zeros(x.ndim, int)
        for k, v in zip(o["scatterDimsToOperandDims"], vector, strict=True):
            place[k] += v
        for k, axis in zip(kept, o["updateWindowDims"], strict=True):
            place[k] += at[axis]
        if all(0 <= v < n for v, n in zip(place, x.shape, strict=True)):
            result[tuple(place)] = function(result[tuple(place)], update[at])
    return result


def scatter(index: Any, *options: Any) -> tuple[Any, dict[str, Any]]:
    names = ("updateWindowDims", "insertedWindowDims", "scatterDimsToOperandDims", "indexVectorDim")
    return index, dict(zip(names, options, strict=True))


SCATTERS = [
    ((5, 4), (3, 4), scatter(np.array([4, 0, 4]), [1], [0], [0], 1)),
    ((5, 4), (3, 4), scatter(np.array([[4], [-1], [5]]), [1], [0], [0], 1)),  # some outside of the operand
    ((5, 4), (4, 3), scatter(np.array([[4, 0, 2]]), [0], [0], [0], 0)),
    ((5, 4, 3), (2, 2, 3), scatter(np.array([[3, 1], [1, 3]]), [1, 2], [1], [0, 1], 1)),
    ((5, 4), (2,), scatter(np.array([[3, 1], [2, 2]]), [], [0, 1], [0, 1], 1)),
    ((6,), (3,), scatter(np.array([2]), [0], [], [0], 0)),
    ((2, 3), (2, 3), scatter(np.zeros((0,), int), [0, 1], [], [], 0)),
]  # fmt: skip


@pytest.mark.parametrize("case", SCATTERS, ids=lambda c: f"{c[0]}-{c[1]}")
@pytest.mark.parametrize("body", FUNCTIONS)
def test_scatter(case: Any, body: str) -> None:
    shape, given, (index, options) = case
    arrays = [f(*shape), index.astype(np.int32), f(*given)]
    data = model_of("STABLEHLO_SCATTER", arrays, [(shape, "float32")], options, body, "updateComputationSubgraphIndex")
    (found,) = run(data, arrays)
    np.testing.assert_allclose(found, scattered(*arrays, options, FUNCTIONS[body]), rtol=1e-6)
    np.testing.assert_allclose(found, litert(data, arrays)[0], rtol=1e-6)


def test_positions_that_do_not_fit_are_refused() -> None:
    index = np.array([4, 0, 1], np.int32)
    options = gather(index, [1], [0], [0], 1, [1, 5])[1]
    for changed in ({}, {"collapsedSliceDims": [7], "sliceSizes": [1, 4]}, {"offsetDims": [9], "sliceSizes": [1, 4]}):
        with pytest.raises(AotcError) as caught:
            from_tflite(model_of("STABLEHLO_GATHER", [f(5, 4), index], [((3, 4), "float32")], options | changed))
        assert caught.value.diagnostics[0].code == "tflite-shape"
    options = scatter(index, [1], [0], [0], 1)[1]
    data = model_of("STABLEHLO_SCATTER", [f(5, 4), index, f(3, 4)], [((5, 4), "float32")], options, "SUBTRACT",
                    "updateComputationSubgraphIndex")  # fmt: skip
    with pytest.raises(AotcError, match="if its computation is the update, or one sum"):
        from_tflite(data)


# --- sort


def sorting(direction: int, swapped: bool, key: int, count: int = 2) -> bytes:
    model = Builder()
    inputs, outputs = ([model.tensor((3, 7)), model.tensor((3, 7), "int32")][:count] for _ in range(2))
    with model.subgraph() as comparator:
        parameters = [model.tensor((), t) for t in ("float32", "float32", "int32", "int32")[: 2 * count]]
        result = model.tensor((), "bool")
        pair = parameters[2 * key : 2 * key + 2]
        model.op("STABLEHLO_COMPARE", pair[::-1] if swapped else pair, [result], "StablehloCompareOptions",
                 comparisonDirection=direction)  # fmt: skip
        model.ends(parameters, [result])
    model.op("STABLEHLO_SORT", inputs, outputs, "StablehloSortOptions", dimension=1, isStable=True,
             comparatorSubgraphIndex=comparator)  # fmt: skip
    return model.data(inputs, outputs)


@pytest.mark.parametrize(("direction", "swapped"), [(5, False), (3, True), (3, False), (5, True)])
@pytest.mark.parametrize("key", [0, 1])
def test_sort(direction: int, swapped: bool, key: int) -> None:
    arrays = [f(3, 7), RNG.integers(0, 4, (3, 7)).astype(np.int32)]
    found = run(sorting(direction, swapped, key), arrays)
    ascending = (direction == 5) != swapped
    order = np.argsort(arrays[key] if ascending else -arrays[key], 1, kind="stable")
    for a, x in zip(found, arrays, strict=True):
        np.testing.assert_array_equal(a, np.take_along_axis(x, order, 1))
    if key == 0:
        (alone,) = run(sorting(direction, swapped, 0, 1), arrays[:1])
        np.testing.assert_array_equal(alone, found[0])


def test_other_comparators_are_refused() -> None:
    with pytest.raises(AotcError, match="one comparison, LT or GT"):
        from_tflite(sorting(4, False, 0))


# --- windows


def reduced(x: Any, first: Any, function: Callable[..., Any], window: Any, strides: Any, base: Any, steps: Any,
            padding: Any) -> Any:  # fmt: skip
    """Reductions over windows, element by element."""
    whole = np.full([(n - 1) * d + 1 for n, d in zip(x.shape, base, strict=True)], first, x.dtype)
    whole[tuple(slice(None, None, d) for d in base)] = x
    widths = [(max(a, 0), max(b, 0)) for a, b in zip(padding[::2], padding[1::2], strict=True)]
    whole = np.pad(whole, widths, constant_values=first)
    cuts = [slice(-min(a, 0), n + min(b, 0)) for a, b, n in zip(padding[::2], padding[1::2], whole.shape, strict=True)]
    whole = whole[tuple(cuts)]
    counts = [(n - (w - 1) * d - 1) // s + 1 for n, w, d, s in zip(whole.shape, window, steps, strides, strict=True)]
    result = np.full(counts, first, x.dtype)
    for at in np.ndindex(*counts):
        for inner in itertools.product(*map(range, window)):
            place = tuple(p * s + k * d for p, s, k, d in zip(at, strides, inner, steps, strict=True))
            result[at] = function(result[at], whole[place])
    return result


WINDOWS = [
    ((6, 7), [2, 3], [1, 2], [1, 1], [1, 1], [0, 0, 0, 0]),
    ((6, 7), [2, 3], [2, 1], [2, 1], [1, 2], [1, 0, 2, -1]),
    ((2, 5, 3), [1, 3, 1], [1, 2, 1], [1, 1, 2], [1, 2, 1], [0, 0, 1, 1, 0, 0]),
]


@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: str(c[5]))
@pytest.mark.parametrize("body", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_windows(case: Any, body: str) -> None:
    shape, *lists = case
    arrays = [f(*shape), np.float32(0.5)]
    expected = reduced(*arrays, FUNCTIONS[body], *lists)
    names = ("windowDimensions", "windowStrides", "baseDilations", "windowDilations", "padding")
    options = dict(zip(names, lists, strict=True))
    data = model_of(
        "STABLEHLO_REDUCE_WINDOW", arrays, [(expected.shape, "float32")], options, body, "bodySubgraphIndex"
    )
    (found,) = run(data, arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, litert(data, arrays)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", WINDOWS, ids=lambda c: str(c[5]))
@pytest.mark.parametrize("function", range(1, 7))
def test_windows_of_builtin_operators(case: Any, function: int) -> None:
    shape, window, strides, _, steps, _ = case
    body = (np.add, np.multiply, np.minimum, np.maximum, np.logical_and, np.logical_or)[function - 1]
    x, first = (f(*shape), 0.5) if function < 5 else (RNG.integers(0, 2, shape).astype(bool), function == 5)
    expected = reduced(x, first, body, window, strides, [1] * x.ndim, steps, [0, 0] * x.ndim)
    model = Builder()
    place, y = model.tensor(shape, str(x.dtype)), model.tensor(expected.shape, str(x.dtype))
    inputs = [place, model.tensor((), str(x.dtype), first)]
    inputs += [model.tensor((x.ndim,), "int64", v) for v in (window, strides, steps)]
    model.op("REDUCE_WINDOW", inputs, [y], "ReduceWindowOptions", reduceFunction=function)
    data = model.data([place], [y])
    (found,) = run(data, [x])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, litert(data, [x])[0], rtol=1e-5, atol=1e-6)


def convolved(x: Any, w: Any, strides: Any, pads: Any, spread: Any, steps: Any, turned: Any, groups: int) -> Any:
    """A convolution of NHWC data with an HWIO kernel, element by element."""
    count, inputs = x.ndim - 2, x.shape[-1]
    ends = [[0, 0], *([a, b] for a, b in zip(pads[::2], pads[1::2], strict=True)), [0, 0]]
    flat = [v for pair in ends for v in pair]
    for axis, flag in enumerate(turned):
        w = np.flip(w, axis) if flag else w
    size = w.shape[-1] // groups
    result = []
    for channel in range(w.shape[-1]):
        start = channel // size * (inputs // groups)
        part = x[..., start : start + inputs // groups]
        whole = reduced(part, 0, np.add, [1] * x.ndim, [1] * x.ndim, [1, *spread, 1], [1] * x.ndim, flat)
        kernel = w[..., channel]
        counts = [
            (n - (k - 1) * d - 1) // s + 1
            for n, k, d, s in zip(whole.shape[1:-1], w.shape[:count], steps, strides, strict=True)
        ]
        y = np.zeros([x.shape[0], *counts], x.dtype)
        for inner in itertools.product(*map(range, w.shape[:count])):
            cut = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip(inner, steps, counts, strides, strict=True)
            )
            y += (whole[(slice(None), *cut)] * kernel[inner]).sum(-1)
        result.append(y)
    return np.stack(result, -1)


CONVOLUTIONS = [
    ((2, 6, 7, 4), (3, 2, 4, 5), [1, 2], [1, 1, 0, 1], [1, 1], [1, 1], [False, False], 1),
    ((1, 5, 4, 4), (3, 2, 2, 6), [1, 1], [2, -1, 1, 0], [2, 3], [2, 1], [True, False], 2),
    ((2, 9, 3), (3, 1, 6), [2], [1, 1], [1], [2], [True], 3),
    ((1, 4, 3, 5, 2), (2, 2, 3, 2, 3), [1, 1, 2], [0, 1, 1, 0, 1, 1], [1, 2, 1], [1, 1, 1], [False] * 3, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: str(c[0]))
def test_convolution(case: Any) -> None:
    shape, kernel, strides, pads, spread, steps, turned, groups = case
    x, w = f(*shape), f(*kernel)
    expected = convolved(x, w, strides, pads, spread, steps, turned, groups)
    count = len(strides)
    inner = list(range(1, count + 1))
    options = {
        "windowStrides": strides, "padding": pads, "lhsDilation": spread, "rhsDilation": steps,
        "windowReversal": turned, "inputBatchDimension": 0, "inputFeatureDimension": count + 1,
        "inputSpatialDimensions": inner, "kernelInputFeatureDimension": count,
        "kernelOutputFeatureDimension": count + 1, "kernelSpatialDimensions": list(range(count)),
        "outputBatchDimension": 1, "outputFeatureDimension": 0, "outputSpatialDimensions": [k + 1 for k in inner],
        "featureGroupCount": groups, "batchGroupCount": 1,
    }  # fmt: skip
    expected = np.moveaxis(expected, -1, 0)
    data = model_of("STABLEHLO_CONVOLUTION", [x, w], [(expected.shape, "float32")], options)
    (found,) = run(data, [x, w])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
    with pytest.raises(AotcError, match="2 groups of the batch"):
        from_tflite(
            model_of("STABLEHLO_CONVOLUTION", [x, w], [(expected.shape, "float32")], options | {"batchGroupCount": 2})
        )
