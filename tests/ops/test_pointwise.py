# SPDX-License-Identifier: Apache-2.0
"""Elementwise, broadcasting and conversion operators against independent references, and at the limits of types."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aotc.ir.attrs import NO_ATTRS
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Var
from aotc.relay.op import OPERATORS_BY_NAME, binary_elementwise, cast_clip_prelu, elementwise_unary
from aotc.relay.op.cast_clip_prelu import CastAttrs, ClipAttrs, PReluAttrs
from aotc.relay.op.opdef import Array, Sample
from tests.ops.harness import interpret, kernel_job
from tests.ops.onnxruntime_oracle import close, error_code, normal, onnx_reference, ort, reference

UNARY_ONNX = {
    "abs": "Abs", "ceil": "Ceil", "floor": "Floor", "round": "Round", "sign": "Sign", "negative": "Neg",
    "nn.relu": "Relu", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh",
    "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid", "isnan": "IsNaN",
    "isinf": "IsInf", "copy": "Identity",
}  # fmt: skip
BINARY_ONNX = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "maximum": "Max",
    "minimum": "Min", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}  # fmt: skip

TO_BOOL = ("isnan", "isinf", "equal", "less", "less_equal", "greater", "greater_equal")
"""Operators for which the helper around ONNX Runtime cannot say the result's type."""


def kernel(name: str, *arrays: Array) -> Array:
    return interpret([kernel_job(OPERATORS_BY_NAME[name], Sample(args=arrays))])[0][0]


@pytest.mark.parametrize("name", UNARY_ONNX)
def test_unary_agrees_with_onnx(name: str) -> None:
    data = np.array([0.1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 0.0, np.inf, -np.inf, np.nan], np.float32)
    theirs = (onnx_reference if name in TO_BOOL else ort)(UNARY_ONNX[name], data)
    ours = reference(name, NO_ATTRS, data)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BINARY_ONNX)
def test_binary_agrees_with_onnx(name: str) -> None:
    a, b = normal(2, 1, 4), normal(3, 1, seed=1)
    base = np.abs(a) if name == "power" else a
    theirs = (onnx_reference if name in TO_BOOL else ort)(BINARY_ONNX[name], base, b)
    np.testing.assert_allclose(reference(name, NO_ATTRS, base, b), theirs, rtol=1e-5)


def test_integer_division_truncates_as_onnxruntime() -> None:
    a, b = np.array([7, -7, 7, -7, 0], np.int32), np.array([2, 2, -2, -2, 5], np.int32)
    np.testing.assert_array_equal(reference("divide", NO_ATTRS, a, b), ort("Div", a, b))
    np.testing.assert_array_equal(reference("divide", NO_ATTRS, a, b), [3, -3, -3, 3, 0])
    np.testing.assert_array_equal(reference("floor_divide", NO_ATTRS, a, b), [3, -4, -4, 3, 0])
    np.testing.assert_array_equal(reference("floor_mod", NO_ATTRS, a, b), ort("Mod", a, b))
    np.testing.assert_array_equal(reference("mod", NO_ATTRS, a, b), ort("Mod", a, b, fmod=1))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("name", ["divide", "floor_divide", "mod", "floor_mod"])
def test_division_is_defined_everywhere(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.min, limits.max, 5, 0], dtype)
    zero = np.zeros(4, dtype)
    np.testing.assert_array_equal(kernel(name, a, zero), 0)
    if limits.min < 0:  # the least value by -1 wraps
        minus_one = np.full(4, -1, dtype)
        expected = (0 - a) if name.endswith("divide") else zero
        np.testing.assert_array_equal(kernel(name, a, minus_one), expected)


def test_integer_arithmetic_wraps() -> None:
    a = np.array([127, -128, 100], np.int8)
    np.testing.assert_array_equal(kernel("add", a, a), [-2, 0, -56])
    np.testing.assert_array_equal(kernel("abs", a), [127, -128, 100])
    np.testing.assert_array_equal(kernel("negative", a), [-127, -128, -100])
    np.testing.assert_array_equal(kernel("multiply", a, a), [1, 0, 16])


def test_shifts_by_the_width_or_more() -> None:
    a, by = np.array([-128, 127, 1, 1], np.int8), np.array([9, 8, 7, 0], np.int8)
    np.testing.assert_array_equal(kernel("right_shift", a, by), [-1, 0, 0, 1])
    np.testing.assert_array_equal(kernel("left_shift", a, by), [0, 0, -128, 1])


def test_shifts_of_64_bits_are_exact() -> None:
    a, by = np.array([2**64 - 1, 2**63 + 1, 3], np.uint64), np.array([1, 0, 64], np.uint64)
    for name, expected in (("right_shift", [2**63 - 1, 2**63 + 1, 0]), ("left_shift", [2**64 - 2, 2**63 + 1, 0])):
        for results in (kernel(name, a, by), reference(name, NO_ATTRS, a, by)):
            assert results.dtype == a.dtype and results.tolist() == expected


@pytest.mark.parametrize("name", ["maximum", "minimum", "nn.relu", "sign"])
def test_nan_stays(name: str) -> None:
    data = np.array([np.nan, 1.0, -1.0], np.float32)
    args = (data, data[::-1].copy()) if OPERATORS_BY_NAME[name].arity == 2 else (data,)
    assert np.isnan(kernel(name, *args)[0])


def test_narrow_floats_round_every_result() -> None:
    a, b = np.array([2048], np.float16), np.array([1], np.float16)
    np.testing.assert_array_equal(kernel("add", a, b), [2048])  # 2049 is no float16
    assert kernel("add", a, b).dtype == np.float16


def test_power_of_integers() -> None:
    a, b = np.array([2, 3, -1, -1, 2, 1, 0], np.int32), np.array([31, 3, -3, -2, -1, -5, 0], np.int32)
    np.testing.assert_array_equal(kernel("power", a, b), [-(2**31), 27, -1, 1, 0, 1, 1])


def test_where_broadcasts_all_three() -> None:
    condition, x, y = np.array([[True], [False]]), normal(3), normal(2, 1, 1, seed=2)
    np.testing.assert_array_equal(reference("where", NO_ATTRS, condition, x, y), np.where(condition, x, y))
    assert reference("where", NO_ATTRS, condition, x, y).shape == (2, 2, 3)


# --- clip, cast, prelu


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (0.0, 6.0), (1.0, -1.0), (-math.inf, 0.25)])
def test_clip_agrees_with_onnx(low: float, high: float) -> None:
    data = normal(4, 5)
    want = onnx_reference("Clip", data, np.float32(low), np.float32(high), opset=13)
    np.testing.assert_array_equal(reference("clip", ClipAttrs(a_min=low, a_max=high), data), want)


def test_clip_of_integers_rounds_bounds_inwards() -> None:
    data = np.arange(-5, 6, dtype=np.int8)
    got = reference("clip", ClipAttrs(a_min=-2.5, a_max=3.7), data)
    np.testing.assert_array_equal(got, np.clip(data, -2, 3))
    np.testing.assert_array_equal(reference("clip", ClipAttrs(a_min=-1e9, a_max=1e9), data), data)
    np.testing.assert_array_equal(reference("clip", ClipAttrs(a_min=200.0, a_max=1e9), data), np.full(11, 127))


def test_clip_bounds_must_be_numbers() -> None:
    x = Var("x", TensorType((2,), "float32"))
    assert error_code(cast_clip_prelu.clip, x, math.nan, 1.0) == "clip.bounds"


def test_cast_to_bool_is_not_zero() -> None:
    data = np.array([0.0, -0.0, 0.5, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(reference("cast", CastAttrs(dtype="bool"), data), [False, False, True, True, True])


def test_cast_rejects_unknown_types() -> None:
    assert error_code(cast_clip_prelu.cast, Var("x", TensorType((2,), "float32")), "float31") == "dtype"


def test_prelu_agrees_with_onnx_and_solves_alpha() -> None:
    data, slope = normal(2, 3, 4), normal(3, seed=1)
    want = ort("PRelu", data, slope.reshape(3, 1))
    close(reference("nn.prelu", PReluAttrs(), data, slope), want)
    refine = OPERATORS_BY_NAME["nn.prelu"].refine
    assert refine is not None
    known = TensorType((2, 3, 4), "float16")
    assert refine(PReluAttrs(), [known, None])[1] == TensorType((3,), "float16")


# --- types


def test_dtypes_must_match() -> None:
    x, y = Var("x", TensorType((2,), "float32")), Var("y", TensorType((2,), "int32"))
    assert error_code(binary_elementwise.add, x, y) == "dtype-mismatch"
    assert error_code(binary_elementwise.logical_and, x, x) == "dtype"
    assert error_code(elementwise_unary.exp, y) == "dtype"
    assert error_code(binary_elementwise.where, x, x, x) == "where.condition"


def test_shapes_must_broadcast() -> None:
    x, y = Var("x", TensorType((2, 3), "float32")), Var("y", TensorType((2,), "float32"))
    assert error_code(binary_elementwise.add, x, y) == "broadcast"


def test_unknown_dimensions_broadcast() -> None:
    n = SymDim("n")
    x, y = Var("x", TensorType((n, 3), "float32")), Var("y", TensorType((1,), "float32"))
    assert binary_elementwise.add(x, y).checked_type == TensorType((n, 3), "float32")
    assert binary_elementwise.less(x, x).checked_type == TensorType((n, 3), "bool")


def test_untyped_arguments_wait_for_inference() -> None:
    assert binary_elementwise.add(Var("x"), Constant(np.zeros(3, np.float32))).checked_type is None
