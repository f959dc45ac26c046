# SPDX-License-Identifier: Apache-2.0
"""TFLite models whose shape signatures leave dimensions open: compiled once for ranges of sizes, against LiteRT, whose
input tensors are resized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert

RNG = np.random.default_rng(9)


def ints(model: Builder, *values: int) -> int:
    return model.tensor((len(values),), "int32", np.array(values))


def numbers(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / np.sqrt(max(shape[-1], 1))).astype(np.float32)


def constant(model: Builder, array: Any) -> int:
    return model.tensor(array.shape, str(array.dtype), array)


def computed(
    model: Builder, name: str, inputs: list[int], kind: str = "", dtype: str = "float32", **options: Any
) -> int:
    """An operator with one result, whose shape the interpreter computes."""
    made = model.tensor((1,) if dtype == "int32" else (), dtype)
    model.op(name, inputs, [made], kind, version=2 if name == "BROADCAST_TO" else 1, **options)
    return made


def extent(model: Builder, x: int, axis: int) -> int:
    """The extent of an axis, as converters compute it: SHAPE, then STRIDED_SLICE of one element."""
    shape = computed(model, "SHAPE", [x], "ShapeOptions", "int32", outType=2)
    ends = [ints(model, axis), ints(model, axis + 1), ints(model, 1)]
    return computed(model, "STRIDED_SLICE", [shape, *ends], "StridedSliceOptions", "int32", shrinkAxisMask=1)


def shape_of(model: Builder, *parts: int) -> int:
    return computed(model, "PACK", list(parts), "PackOptions", "int32", axis=0, valuesCount=len(parts))


def one(model: Builder, value: int) -> int:
    return model.tensor((), "int32", np.array(value))


def sequences() -> bytes:
    """Attention over texts of any number and length, and slices, ranges, repetitions of axes of these extents."""
    model = Builder()
    x = model.tensor((1, 1, 8), signature=(-1, -1, 8), name="serving_default_x:0")
    mask = model.tensor((1, 1), signature=(-1, -1), name="mask")
    batch, length = extent(model, x, 0), extent(model, x, 1)
    flat = computed(model, "RESHAPE", [x, ints(model, -1, 8)], "ReshapeOptions", newShape=[-1, 8])
    rows = computed(model, "FULLY_CONNECTED", [flat, constant(model, numbers(8, 8)), constant(model, numbers(8))],
                    "FullyConnectedOptions", fusedActivationFunction=1)  # fmt: skip
    shape = shape_of(model, batch, length, one(model, 2), one(model, 4))
    heads = computed(model, "TRANSPOSE", [computed(model, "RESHAPE", [rows, shape]), ints(model, 0, 2, 1, 3)])
    scores = computed(model, "BATCH_MATMUL", [heads, heads], "BatchMatMulOptions", adjY=True)
    places = shape_of(model, batch, one(model, 1), one(model, 1), length)
    masked = computed(model, "ADD", [scores, computed(model, "RESHAPE", [mask, places])], "AddOptions")
    weights = computed(model, "SOFTMAX", [masked], "SoftmaxOptions", beta=1.0)
    mixed = computed(model, "BATCH_MATMUL", [weights, heads], "BatchMatMulOptions")
    whole = shape_of(model, batch, length, one(model, 8))
    y = computed(model, "RESHAPE", [computed(model, "TRANSPOSE", [mixed, ints(model, 0, 2, 1, 3)]), whole])
    y = computed(model, "FULLY_CONNECTED", [y, constant(model, numbers(6, 8))], "FullyConnectedOptions",
                 keepNumDims=True)  # fmt: skip
    last = computed(model, "STRIDED_SLICE", [y, ints(model, 0, -1, 0), ints(model, 0, 0, 6), ints(model, 1, 1, 1)],
                    "StridedSliceOptions", beginMask=5, endMask=5, shrinkAxisMask=2)  # fmt: skip
    odd = computed(model, "STRIDED_SLICE", [y, ints(model, 0, 1, -3), ints(model, 0, 99, -1), ints(model, 1, 2, 1)],
                   "StridedSliceOptions", beginMask=1, endMask=1)  # fmt: skip
    back = computed(model, "STRIDED_SLICE", [y, ints(model, 0, 0, 0), ints(model, 0, 1, 0), ints(model, 1, -1, 1)],
                    "StridedSliceOptions", beginMask=7, endMask=5)  # fmt: skip
    half = computed(model, "FLOOR_DIV", [length, one(model, 2)], "FloorDivOptions", "int32")
    head = computed(model, "SLICE", [y, ints(model, 0, 0, 1), shape_of(model, batch, half, one(model, -1))])
    order = computed(model, "RANGE", [one(model, 1), length, one(model, 2)], "RangeOptions", "int32")
    total = computed(model, "SUM", [y, ints(model, 1)], "ReducerOptions", keepDims=False)
    tiled = computed(model, "TILE", [last, shape_of(model, one(model, 2), half)])
    filled = computed(model, "FILL", [shape_of(model, length, batch), model.tensor((), data=1.5)])
    moved = computed(model, "TRANSPOSE", [filled, ints(model, 1, 0)])
    joined = computed(model, "CONCATENATION", [moved, mask], "ConcatenationOptions", axis=-1)
    widths = constant(model, np.array([[0, 0], [1, 2]], np.int32))
    padded = computed(model, "PAD", [joined, widths])
    return model.data([x, mask], [y, last, odd, back, head, order, total, tiled, padded])


SEQUENCE_SIZES = [(3, 7), (1, 2), (2, 16), (4, 5)]


def compiled(data: bytes, path: Path, **options: Any) -> Any:
    path.mkdir()
    (path / "net.tflite").write_bytes(data)
    flags = ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    return aotc.compile(path / "net.tflite", output=path / "net", target="c", cflags=flags, **options).session()


def test_sequences_of_any_number_and_length(tmp_path: Path) -> None:
    data = sequences()
    session = compiled(data, tmp_path / "a", dims={"batch": (1, 4), "dim1": (2, 16)})
    assert session.get_inputs()[0].shape == ["batch", "dim1", 8]
    for n, m in SEQUENCE_SIZES:
        feeds = {"serving_default_x:0": numbers(n, m, 8), "mask": numbers(n, m)}
        for got, want in zip(session.run(None, feeds), litert(data, list(feeds.values()), xnnpack=False), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    with pytest.raises(AotcError, match="dim1 = 17"):
        session.run(None, {"serving_default_x:0": numbers(2, 17, 8), "mask": numbers(2, 17)})


def test_a_dimension_of_one_input_has_a_name_of_its_own() -> None:
    """Inputs share names unless the caller names the dimension of one of them; sizes then depend on one another."""
    data = sequences()
    types = [p.checked_type for p in from_tflite(data, dims={"batch": 2, "dim1": (1, 9), "mask_1": (1, 9)}).main.params]
    assert [str(t) for t in types] == ["Tensor[(2, 1<=dim1<=9, 8), float32]", "Tensor[(2, 1<=mask_1<=9), float32]"]
    module = from_tflite(data, dims={"serving_default_x_0_0": 2, "mask_0": 2, "dim1": 5})
    arrays = [numbers(2, 5, 8), numbers(2, 5)]
    actual = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    for a, e in zip(actual, litert(data, arrays, xnnpack=False), strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-6)


def images(integers: bool) -> bytes:
    """Convolutions with strides over images of any size, and results of their size."""
    model = Builder()
    kind, quantized = ("int8", {"scale": 0.05, "zero": -3}) if integers else ("float32", {})

    def made() -> int:
        return model.tensor((), kind, **quantized)

    def weight(*shape: int, axis: int = 0) -> tuple[int, int]:
        channels = shape[axis]
        if not integers:
            return constant(model, numbers(*shape)), constant(model, numbers(channels))
        scales = RNG.uniform(0.002, 0.006, channels)
        w = model.tensor(shape, "int8", RNG.integers(-127, 128, shape), scale=scales, axis=axis)
        return w, model.tensor((channels,), "int32", RNG.integers(-99, 99, channels), scale=scales * 0.05)

    x = model.tensor((1, 8, 8, 3), kind, name="image", signature=(-1, -1, -1, 3), **quantized)
    conv = {"padding": 0, "strideH": 2, "strideW": 2, "dilationHFactor": 1, "dilationWFactor": 1}
    small, deep, same, means = made(), made(), made(), made()
    model.op("CONV_2D", [x, *weight(4, 3, 3, 3)], [small], "Conv2DOptions", **conv, fusedActivationFunction=3)
    model.op("DEPTHWISE_CONV_2D", [small, *weight(1, 5, 5, 4, axis=3)], [deep], "DepthwiseConv2DOptions",
             depthMultiplier=1, **conv | {"strideH": 1, "strideW": 1})  # fmt: skip
    model.op("ADD", [small, deep], [same], "AddOptions")
    model.op("MEAN", [same, ints(model, *((3,) if integers else (0, 3)))], [means], "ReducerOptions", keepDims=False)
    pooled = made()
    model.op("MAX_POOL_2D", [same], [pooled], "Pool2DOptions", padding=1, filterHeight=2, filterWidth=2, strideH=2,
             strideW=2)  # fmt: skip
    if integers:
        return model.data([x], [same, pooled, means])
    height, width = (extent(model, x, k) for k in (1, 2))
    size = shape_of(model, height, width)
    near, linear, up = made(), made(), made()
    model.op("RESIZE_NEAREST_NEIGHBOR", [same, size], [near], "ResizeNearestNeighborOptions", halfPixelCenters=True)
    model.op("RESIZE_BILINEAR", [pooled, size], [linear], "ResizeBilinearOptions", halfPixelCenters=True)
    shape = shape_of(model, extent(model, x, 0), height, width, one(model, 2))
    model.op("TRANSPOSE_CONV", [shape, weight(2, 3, 3, 4)[0], same], [up], "TransposeConvOptions", padding=0,
             strideH=2, strideW=2)  # fmt: skip
    return model.data([x], [near, linear, up, means])


@pytest.mark.parametrize("integers", [False, True])
def test_images_of_any_size(integers: bool, tmp_path: Path) -> None:
    data = images(integers)
    session = compiled(data, tmp_path / "a", dims={"batch": (1, 3), "dim1": "4..32:4", "dim2": "4..32:4"})
    for shape in ((1, 8, 8, 3), (3, 4, 20, 3), (2, 32, 12, 3)):
        x = RNG.integers(-128, 128, shape).astype(np.int8) if integers else numbers(*shape)
        for got, want in zip(session.run(None, {"image": x}), litert(data, [x], xnnpack=False), strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=0 if integers else 1e-4, atol=0 if integers else 1e-5)


def refusal(**options: Any) -> Any:
    with pytest.raises(AotcError) as caught:
        from_tflite(images(False), **options)
    return caught.value.diagnostics


def test_what_no_range_may_be_given_for() -> None:
    (found,) = refusal(dims={"height": (4, 32)})
    assert found.code == "tflite-dim" and "no open dimension" in found.message and "image_1" in found.hint
    assert [d.code for d in refusal(dims={"dim3": 3, "dim1": "a..b"})] == ["tflite-dim"] * 2
    found = refusal(dims={"dim1": (4, 32)})[0]
    assert "SAME padding" in found.message and "steps" in found.hint
    (found,) = refusal(dims={"dim1": 8}, shape={"image": (1, 8, 8, 3)})
    assert found.code == "tflite-dim"


def test_elements_of_an_input_decide_a_shape(tmp_path: Path) -> None:
    """One library for a RESHAPE to any shape, and a status for one that does not fit."""
    model = Builder()
    x, shape, y = model.tensor((2, 6), name="x"), model.tensor((2,), "int32", name="shape"), model.tensor((1, 1))
    model.op("RESHAPE", [x, shape], [y])
    session = compiled(model.data([x, shape], [y]), tmp_path / "a")
    array = numbers(2, 6)
    for wanted in ((3, 4), (12, 1)):
        feeds = {"x": array, "shape": np.array(wanted, np.int32)}
        np.testing.assert_array_equal(session.run(None, feeds)[0], array.reshape(wanted))
    with pytest.raises(AotcError):
        session.run(None, {"x": array, "shape": np.array((5, 2), np.int32)})
