# SPDX-License-Identifier: Apache-2.0
"""Corner cases of quantized operators: ties, distant scales, mixed types; unsupported ones are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tflite")

from aotc.ir import AotcError
from aotc.relay.frontend.tflite import from_tflite
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, tflm

TINY = np.nextafter(np.float32(0.5), np.float32(0))
SHAPE = (16, 256)


def drawn(shape: Sequence[int], dtype: str) -> Any:
    rng = np.random.default_rng(len(shape))
    if dtype == "float32":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)


def model(name: str, inputs: Sequence[Any], output: Any, kind: str = "", version: int = 1, **options: Any) -> Any:
    """An operator; tensors are (shape, type, scale, zero point), and the value where they are constants."""
    made, places, given, arrays = Builder(), [], [], []
    for shape, dtype, scale, zero, *value in inputs:
        places.append(made.tensor(shape, dtype, value[0] if value else None, scale, zero))
        if not value:
            given.append(places[-1])
            arrays.append(drawn(shape, dtype))
    result = made.tensor(*output[:2], scale=output[2], zero=output[3])
    made.op(name, places, [result], kind, version, **options)
    return made.data(given, [result]), arrays


def tensor(dtype: str, scale: float | None = None, zero: int = 0, *value: Any) -> Any:
    return (np.shape(value[0]) if value else SHAPE), dtype, scale, zero, *value


def pair(name: str, a: float, b: float, y: float, activation: int = 0, zero: int = -1) -> Any:
    """A model with one binary int8 operator and a fused activation; a, b and y are the scales."""
    kind, options = f"{name.title()}Options", {"fusedActivationFunction": activation}
    inputs = [tensor("int8", a, 3), tensor("int8", b, -4)]
    return model(name, inputs, tensor("int8", y, zero), kind, **options)


def layer(name: str, scale: float, activation: int = 0, zero: int = 0, weights: str = "int8") -> Any:
    """A layer without a remarkable thing."""
    shape = {"FULLY_CONNECTED": (6, 16), "DEPTHWISE_CONV_2D": (1, 3, 3, 4)}.get(name, (4, 3, 3, 4))
    dense, sizes = name == "FULLY_CONNECTED", {"padding": 1, "strideH": 1, "strideW": 1}
    w = tensor(weights, 0.1, zero, drawn(shape, weights))
    bias = tensor("int32", 0.005, 0, np.arange(shape[0] if shape[0] > 1 else 4))
    x = ((9, 16) if dense else (1, 6, 5, 4)), "int8", 0.05, 3
    y = ((9, 6) if dense else (1, 4, 3, 4)), "int8", scale, -1
    kind = "FullyConnectedOptions" if dense else "Conv2DOptions"
    options: dict[str, Any] = {"fusedActivationFunction": activation} | ({} if dense else sizes)
    if name == "TRANSPOSE_CONV":
        y = (1, 8, 7, 4), *y[1:]
        shaped = tensor("int32", None, 0, np.array(y[0]))
        return model(name, [shaped, w, x, bias], y, "TransposeConvOptions", 4, **options)
    if name == "DEPTHWISE_CONV_2D":
        kind, options = "DepthwiseConv2DOptions", options | {"depthMultiplier": 1}
    return model(name, [x, w, bias], y, kind, **options)


def pool(name: str, scale: float, zero: int) -> Any:
    sizes = {"filterHeight": 2, "filterWidth": 2, "strideH": 2, "strideW": 2, "padding": 1}
    ends = ((1, 8, 8, 4), "int8", scale, zero), ((1, 4, 4, 4), "int8", scale, zero)
    return model(name, ends[:1], ends[1], "Pool2DOptions", fusedActivationFunction=3, **sizes)


def quantized(dtype: str, scale: float, zero: int) -> Any:
    """All halves, and the greatest number below one."""
    data, _ = model("QUANTIZE", [tensor("float32")], tensor(dtype, scale, zero))
    values = np.arange(-2048, 2048).astype(np.float32) * np.float32(scale / 2)
    values[:2] = TINY * np.float32(scale), -TINY * np.float32(scale)
    return data, [values.reshape(SHAPE)]


def leaky(x: float, alpha: float) -> Any:
    return model("LEAKY_RELU", [tensor("int8", x, 3)], tensor("int8", 0.05, 1), "LeakyReluOptions", alpha=alpha)


def turned_ties() -> Any:
    """Sums that are halves of a step."""
    w = tensor("int8", 0.5, 0, drawn((3, 3, 3, 2), "int8"))
    shape = tensor("int32", None, 0, np.array((1, 8, 9, 3)))
    x, y = ((1, 3, 4, 2), "int8", 0.5, -128), ((1, 8, 9, 3), "int8", 32.0, 127)
    options = {"padding": 1, "strideH": 2, "strideW": 2}
    y = ((1, 7, 9, 3), *y[1:])
    shape = tensor("int32", None, 0, np.array(y[0]))
    return model("TRANSPOSE_CONV", [shape, w, x], y, "TransposeConvOptions", **options)


def cases() -> Iterator[tuple[str, Any]]:
    # where 6 is a half of a step, with zero points that make its neighbors even and odd
    for scale in (12 / 7, 0.8):
        for zero in (-1, 0):
            yield f"ADD-{scale}-{zero}", pair("ADD", scale, scale, scale, 3, zero)
            yield f"SUB-{scale}-{zero}", pair("SUB", scale, scale, scale, 3, zero)
            yield f"MUL-{scale}-{zero}", pair("MUL", scale, scale, scale, 3, zero)
            for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
                yield f"{name}-{scale}-{zero}", pool(name, scale, zero)
            yield f"RELU6-{scale}-{zero}", model("RELU6", [tensor("int8", scale, zero)], tensor("int8", scale, zero))
        for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            yield f"{name}-{scale}", layer(name, scale, 3)
        yield f"TRANSPOSE_CONV-{scale}", layer("TRANSPOSE_CONV", scale, 1)
    yield "TRANSPOSE_CONV-ties", turned_ties()
    for ratio in (2.0**-12, 2.0**-9.5, 2.0**7.9):
        yield f"ADD-ratio-{ratio}", pair("ADD", 0.05 * ratio, 0.04 * ratio, 0.05)
        yield f"ADD-one-{ratio}", pair("ADD", 0.05 * ratio, 0.04, 0.05, 3)
        yield f"SUB-ratio-{ratio}", pair("SUB", 0.05 * ratio, 0.04 * ratio, 0.05)
        yield f"MUL-ratio-{ratio}", pair("MUL", 0.05 * ratio, 0.05, 0.0025)
        yield f"LEAKY_RELU-ratio-{ratio}", leaky(0.05 * ratio, 0.1)
    for alpha in (0.003, -0.3, -200.0, 130.0, 0.0):
        yield f"LEAKY_RELU-{alpha}", leaky(0.05, alpha)
    for dtype in ("int8", "int16"):
        for scale in (1.0, 0.3, 0.0117):
            yield f"QUANTIZE-{dtype}-{scale}", quantized(dtype, scale, -3 if dtype == "int8" else 0)
    for x, y in ((0.0003, 0.05), (0.0017, 0.07), (0.0001, 0.05), (0.05, 0.0003)):
        yield f"QUANTIZE-int8-int8-{x}", model("QUANTIZE", [tensor("int8", x, 5)], tensor("int8", y, 77))
        yield f"QUANTIZE-signs-{x}", model("QUANTIZE", [tensor("uint8", x, 131)], tensor("int8", y, 77))
        yield f"QUANTIZE-no-sign-{x}", model("QUANTIZE", [tensor("int8", x, 5)], tensor("uint8", y, 77))
    yield (
        "SOFTMAX-int8-int16",
        model("SOFTMAX", [tensor("int8", 0.1, 3)], tensor("int16", 2**-16, -32768), "SoftmaxOptions", beta=1.0),
    )


CASES = dict(cases())


@pytest.mark.parametrize("rounding", ["tflm", "litert"])
@pytest.mark.parametrize("name", CASES)
def test_bytes_at_edges(name: str, rounding: str) -> None:
    data, arrays = CASES[name]
    expected = (litert if rounding == "litert" else tflm)(data, arrays)[0]
    module = from_tflite(data, rounding=rounding)
    (actual,) = run_model(module, {p.name: a for p, a in zip(module.main.params, arrays, strict=True)})
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


# --- refusals


def refused(made: Any, text: str, rounding: str = "tflm") -> None:
    """One error, which names the node."""
    with pytest.raises(AotcError, match=text) as caught:
        from_tflite(made[0], rounding=rounding)
    (found,) = caught.value.diagnostics
    assert found.code == "tflite-quant" and found.span is not None and found.span.node


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"])
def test_zero_points_of_weights_are_refused(name: str) -> None:
    """TFLite Micro ignores them."""
    refused(layer(name, 0.2, zero=5), f"{name} has int8 weights with a zero point other than 0")


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"])
@pytest.mark.parametrize("weights", ["uint8", "int16"])
def test_weights_of_other_types_are_refused(name: str, weights: str) -> None:
    refused(layer(name, 0.2, weights=weights), f"{name} of integers takes and gives one data type")


@pytest.mark.parametrize("weights", ["uint8", "int16"])
def test_weights_beside_real_numbers_have_a_sign(weights: str) -> None:
    w = tensor(weights, 0.1, 0, drawn((6, 16), weights))
    x, y = ((9, 16), "float32", None, 0), ((9, 6), "float32", None, 0)
    made = model("FULLY_CONNECTED", [x, w], y, "FullyConnectedOptions")
    refused(made, f"takes weights of int8, here it has {weights}")


ONE = ("RELU", "LEAKY_RELU", "HARD_SWISH", "LOGISTIC", "TANH")


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("kinds", [("int8", "uint8"), ("uint8", "int8"), ("int8", "int16"), ("int16", "int8")])
def test_results_of_another_type_are_refused(name: str, kinds: tuple[str, str]) -> None:
    x, y = (tensor(kind, 0.1) for kind in kinds)
    options: dict[str, Any] = {"kind": "LeakyReluOptions", "alpha": 0.1} if name == "LEAKY_RELU" else {}
    refused(model(name, [x], y, **options), f"{name} of integers takes and gives one data type")


@pytest.mark.parametrize("name", ["ADD", "BATCH_MATMUL"])
@pytest.mark.parametrize(
    "kinds", [("int8", "uint8", "int8"), ("float32", "int8", "float32"), ("int16", "int8", "int16")]
)
def test_pairs_of_several_types_are_refused(name: str, kinds: tuple[str, ...]) -> None:
    parts = [((4, 4), kind, None if kind == "float32" else 0.1, 0) for kind in kinds]
    kind = "AddOptions" if name == "ADD" else "BatchMatMulOptions"
    refused(model(name, parts[:2], parts[2], kind), f"{name} of integers takes and gives one data type")


def test_results_without_a_scale_are_refused() -> None:
    x, y = tensor("int8", 0.1), tensor("int8")
    refused(model("ADD", [x, x], y, "AddOptions"), "the output of ADD .int8. has no scale; its inputs have one")


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("int16", "int16"), ("uint8", "int16"), ("int16", "int8")])
def test_probabilities_have_one_scale(kinds: tuple[str, str]) -> None:
    made = model("SOFTMAX", [tensor(kinds[0], 0.1)], tensor(kinds[1], 1 / 255, 3), "SoftmaxOptions", beta=1.0)
    refused(made, f"SOFTMAX of {kinds[0]} (gives {kinds[1]} of the scale|cannot have an output of)")


def test_scales_that_are_too_far_apart_are_refused() -> None:
    for name in ("ADD", "SUB", "MUL"):
        made = pair(name, 1.0, 0.04, 0.05 / 300 if name != "MUL" else 0.04 / 300)
        refused(made, f"the scales of {name} differ too much for LiteRT's fixed-point arithmetic", "litert")
    made = model("HARD_SWISH", [tensor("int8", 1e-5)], tensor("int8", 0.05))
    refused(made, "the scales of HARD_SWISH are too far apart")
    refused(model("RELU6", [tensor("int8", 0.1)], tensor("int8", 0.2)), "RELU6 have different scales")


@pytest.mark.parametrize("name", ["QUANTIZE", "DEQUANTIZE"])
def test_integers_of_32_bits_are_refused(name: str) -> None:
    result = tensor("int8", 0.1) if name == "QUANTIZE" else tensor("float32")
    refused(model(name, [tensor("int32", 0.1)], result), f"{name} of int32 is not supported")


@pytest.mark.parametrize(("dtype", "size"), [("int16", 256), ("int8", 4096)])
def test_sums_of_pools_that_int32_does_not_hold_are_refused(dtype: str, size: int) -> None:
    shape = (1, size, size, 1)
    sizes = {"filterHeight": size, "filterWidth": size, "strideH": 1, "strideW": 1, "padding": 1}
    made = model("AVERAGE_POOL_2D", [(shape, dtype, 0.1, 0)], ((1, 1, 1, 1), dtype, 0.1, 0), "Pool2DOptions", **sizes)
    refused(made, f"AVERAGE_POOL_2D of {size * size} integers of {dtype} is not supported")


@pytest.mark.parametrize("name", ["CONV_2D", "FULLY_CONNECTED"])
def test_biases_beyond_47_bits_are_refused(name: str) -> None:
    dense = name == "FULLY_CONNECTED"
    shape = (4, 16) if dense else (4, 1, 1, 16)
    x, w = ((2, 16) if dense else (1, 2, 2, 16), "int16", 0.1, 0), tensor("int8", 0.1, 0, drawn(shape, "int8"))
    y = ((2, 4) if dense else (1, 2, 2, 4), "int16", 0.1, 0)
    options: dict[str, Any] = {} if dense else {"padding": 1, "strideH": 1, "strideW": 1}
    kind = "FullyConnectedOptions" if dense else "Conv2DOptions"
    for value, fits in (((1 << 47) - (1 << 26) - 1, True), (-(1 << 47), False), (1 << 47, False), (-(1 << 63), False)):
        made = model(name, [x, w, tensor("int64", 0.01, 0, np.full(4, value))], y, kind, **options)
        if fits:
            from_tflite(made[0])
        else:
            refused(made, f"sums of {name} may reach [0-9,]+; they and their biases must be below 2.47")


@pytest.mark.parametrize(
    ("name", "dtype"), [("NEAREST_NEIGHBOR", "float32"), ("BILINEAR", "float32"), ("BILINEAR", "int8")]
)
def test_images_of_half_a_billion_lines_are_refused(name: str, dtype: str) -> None:
    kind = "".join(word.title() for word in ("resize", *name.split("_"), "options"))
    scale = 0.1 if dtype == "int8" else None
    sizes = tensor("int32", None, 0, np.array([1 << 29, 3]))
    ends = ((1, 5, 4, 2), dtype, scale, 0), ((1, 1 << 29, 3, 2), dtype, scale, 0)
    data, _ = model(f"RESIZE_{name}", [ends[0], sizes], ends[1], kind)
    with pytest.raises(AotcError, match="the lines of an image") as caught:
        from_tflite(data)
    assert caught.value.code == "budget"


def test_windows_of_huge_images_are_refused() -> None:
    sizes = {"filterHeight": 2, "filterWidth": 2, "strideH": 1, "strideW": 1, "padding": 0}
    ends = ((1, 1 << 16, 1 << 15, 1), "int8", 0.1, 0)
    with pytest.raises(AotcError, match="the sizes of windows"):
        made = Builder()
        x, y = made.tensor(*ends[:2], scale=0.1, zero=0), made.tensor(*ends[:2], scale=0.1, zero=0)
        made.op("AVERAGE_POOL_2D", [x], [y], "Pool2DOptions", **sizes)
        from_tflite(made.data([x], [y]))
