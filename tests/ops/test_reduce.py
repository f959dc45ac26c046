# SPDX-License-Identifier: Apache-2.0
"""Reductions against ONNX Runtime; ties, NaN, and reductions over no elements."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType
from aotc.relay.expr import Var
from aotc.relay.op import OPERATORS_BY_NAME, reduce
from aotc.relay.op.opdef import Array, Sample
from aotc.relay.op.reduce import ArgReduceAttrs, ReduceAttrs
from tests.ops.harness import interpret, kernel_job
from tests.ops.onnxruntime_oracle import close, error_code, evaluate, normal, onnx_reference, ort, reference

ONNX = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


def kernel(name: str, attributes: ReduceAttrs | ArgReduceAttrs, data: Array) -> Array:
    return interpret([kernel_job(OPERATORS_BY_NAME[name], Sample(args=(data,), attrs=attributes))])[0][0]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(0,), (1, -1), (0, 1, 2)])
@pytest.mark.parametrize("name", ONNX)
def test_agrees_with_onnxruntime(name: str, axes: tuple[int, ...], keepdims: bool) -> None:
    data = normal(3, 4, 5)
    want = ort(ONNX[name], data, np.array(axes, np.int64), opset=18, keepdims=int(keepdims))
    close(reference(name, ReduceAttrs(axis=axes, keepdims=keepdims), data), want)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_position_of_ties(name: str, last: bool) -> None:
    data = np.array([[2, 1, 2, 1], [5, 5, 5, 5], [0, 3, 1, 3]], np.float32)
    op = "ArgMax" if name == "argmax" else "ArgMin"
    want = onnx_reference(op, data, opset=13, axis=1, keepdims=0, select_last_index=int(last))
    attributes = ArgReduceAttrs(axis=(1,), select_last_index=last)
    np.testing.assert_array_equal(reference(name, attributes, data), want)
    np.testing.assert_array_equal(kernel(name, attributes, data), want)


def test_nan_is_found_first() -> None:
    data = np.array([1, np.nan, 7, np.nan], np.float32)
    for name in ("argmax", "argmin"):
        assert kernel(name, ArgReduceAttrs(), data) == 1
        assert kernel(name, ArgReduceAttrs(select_last_index=True), data) == 3
    assert np.isnan(kernel("max", ReduceAttrs(), data))


def test_position_in_several_axes_is_flat() -> None:
    data = normal(3, 4, 5)
    got = kernel("argmax", ArgReduceAttrs(axis=(0, 2)), data)
    np.testing.assert_array_equal(got, data.transpose(1, 0, 2).reshape(4, -1).argmax(1))


def test_reductions_of_nothing() -> None:
    data = np.zeros((2, 0), np.float32)
    over = ReduceAttrs(axis=(1,))
    np.testing.assert_array_equal(kernel("sum", over, data), [0, 0])
    np.testing.assert_array_equal(kernel("prod", over, data), [1, 1])
    np.testing.assert_array_equal(kernel("max", over, data), [-np.inf, -np.inf])
    np.testing.assert_array_equal(kernel("min", over, data), [np.inf, np.inf])
    assert np.isnan(kernel("mean", over, data)).all()
    assert error_code(reduce.argmax, Var("x", TensorType((2, 0), "float32")), 1) == "argreduce.empty"


def test_float16_is_summed_in_float32() -> None:
    data = np.full((1, 4096), 1, np.float16)
    assert kernel("sum", ReduceAttrs(axis=(1,)), data) == 4096  # 2048 if every partial sum were rounded
    assert reference("sum", ReduceAttrs(axis=(1,)), data) == 4096


def test_exclude_reduces_the_other_axes() -> None:
    data = normal(2, 3, 4)
    close(reference("sum", ReduceAttrs(axis=(1,), exclude=True), data), data.sum((0, 2)))
    assert reference("sum", ReduceAttrs(axis=(), exclude=True), data).shape == ()
    assert reference("sum", ReduceAttrs(axis=()), data).shape == (2, 3, 4)


def test_composites() -> None:
    data = normal(3, 40)
    x = Var("x", TensorType(data.shape, "float32"))
    close(evaluate(reduce.variance(x, 1), {x: data}), data.var(1))
    close(evaluate(reduce.std(x, 1, unbiased=True), {x: data}), data.std(1, ddof=1))
    close(evaluate(reduce.logsumexp(x, 1), {x: data}), np.log(np.exp(data).sum(1)))
    huge = data * 1000
    close(evaluate(reduce.logsumexp(x, 1), {x: huge}), huge.max(1), 1e-3)
    assert evaluate(reduce.logsumexp(x, 1), {x: np.full_like(data, -np.inf)})[0] == -np.inf


def test_axes_are_checked() -> None:
    x = Var("x", TensorType((2, SymDim("n"), 3), "float32"))
    assert error_code(reduce.sum, x, 3) == "axis"
    assert error_code(reduce.sum, x, (1, -2)) == "axis-twice"
    assert error_code(reduce.all, x) == "dtype"
    assert reduce.mean(x, -1, keepdims=True).checked_type == TensorType((2, SymDim("n"), 1), "float32")
