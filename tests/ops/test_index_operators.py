# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter, sort and scan operators against numpy and ONNX; out-of-range indices; ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import aotc
from aotc.ir.attrs import Attrs
from aotc.ir.dimensions import SymDim
from aotc.ir.types import TensorType, TupleType
from aotc.relay.expr import Var
from aotc.relay.op import OPERATORS_BY_NAME, gather, scatter, sorting, tensor_creation
from aotc.relay.op.cumulative import ScanAttrs
from aotc.relay.op.gather import GatherAttrs, GatherNDAttrs, OneHotAttrs, TakeAttrs
from aotc.relay.op.opdef import Array, Sample
from aotc.relay.op.scatter import ScatterElementsAttrs, ScatterNDAttrs
from aotc.relay.op.sorting import ArgsortAttrs, SortAttrs, TopkAttrs
from aotc.relay.op.tensor_creation import ArangeAttrs
from tests.ops.harness import interpret, kernel_job
from tests.ops.onnxruntime_oracle import close, error_code, normal, onnx_reference, reference

few = settings(max_examples=60, deadline=None)


def kernel(name: str, attributes: Attrs, *args: Any) -> list[Array]:
    return interpret([kernel_job(OPERATORS_BY_NAME[name], Sample(args=args, attrs=attributes))])[0]


def var(*extents: int | SymDim, dtype: str = "float32") -> Var:
    return Var("x", TensorType(extents, dtype))


def ints(*values: Any, dtype: str = "int64") -> Array:
    return np.array(values, dtype)


# --- take, gather


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_agrees_with_onnx_gather(axis: int) -> None:
    data, places = normal(3, 4, 5), ints([0, 2], [-1, 1])
    want = onnx_reference("Gather", data, places, axis=axis)
    np.testing.assert_array_equal(kernel("take", TakeAttrs(axis=axis, mode="wrap"), data, places)[0], want)


def test_take_clips_or_wraps_hostile_indices() -> None:
    data, places = normal(4), ints(-(2**63), -1, 3, 4, 2**63 - 1)
    np.testing.assert_array_equal(kernel("take", TakeAttrs(axis=0), data, places)[0], data[[0, 0, 3, 3, 3]])
    np.testing.assert_array_equal(kernel("take", TakeAttrs(axis=0, mode="wrap"), data, places)[0], data[places % 4])


@pytest.mark.parametrize("dtype", ["uint64", "uint32", "int32"])
def test_positions_that_become_negative_as_int64_count_from_the_end(dtype: str) -> None:
    nodes = [
        helper.make_node("Cast", ["positions"], ["signed"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["data", "signed"], ["y"]),
    ]
    kinds = {"data": onnx.TensorProto.FLOAT, "positions": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
    inputs = [helper.make_tensor_value_info(name, kind, [4]) for name, kind in kinds.items()]
    results = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, results), ir_version=9)
    last = {"uint64": 2**64, "uint32": 4, "int32": 0}[dtype] - 1
    feeds = {"data": normal(4), "positions": ints(1, last, 0, 3, dtype=dtype)}
    session = aotc.compile(model, target="c", cflags=["-O0"]).session()
    np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["data"][[1, 3, 0, 3]])


@pytest.mark.parametrize("axis", [0, 1])
def test_gather_agrees_with_onnx_gather_elements(axis: int) -> None:
    data, places = normal(3, 3), ints([1, -2, 0], [2, 0, -3], [0, 1, 2])
    want = onnx_reference("GatherElements", data, places, axis=axis)
    np.testing.assert_array_equal(kernel("gather", GatherAttrs(axis=axis), data, places)[0], want)


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_nd_agrees_with_onnx(batch: int) -> None:
    data, places = normal(2, 3, 4), ints([[0], [-1]], [[1], [1]])
    want = onnx_reference("GatherND", data, places, opset=13, batch_dims=batch)
    first_axis = np.moveaxis(places, -1, 0).copy()
    np.testing.assert_array_equal(kernel("gather_nd", GatherNDAttrs(batch_dims=batch), data, first_axis)[0], want)


def test_one_hot_of_indices_outside_is_off() -> None:
    on, off = np.float32(2).reshape(()), np.float32(-1).reshape(())
    (got,) = kernel("one_hot", OneHotAttrs(depth=3, axis=0), ints(0, 2, 3, -1), on, off)
    np.testing.assert_array_equal(got, [[2, -1, -1, -1], [-1, -1, -1, -1], [-1, 2, -1, -1]])


def test_index_errors() -> None:
    places = var(2, 2, dtype="int64")
    assert error_code(gather.take, var(3), var(2)) == "indices"
    assert error_code(gather.take, var(3), places, 0, 0, "raise") == "take.mode"
    assert error_code(gather.take, var(0), places, 0) == "take.empty"
    assert error_code(gather.take, var(3, 4), places, 0, 1) == "take.batch_dims"
    assert error_code(gather.gather, var(3, 1), 0, places) == "gather.shape"
    assert error_code(gather.gather, var(3), 0, places) == "gather.rank"
    assert error_code(gather.gather_nd, var(3), places) == "gather_nd.depth"
    assert error_code(gather.one_hot, places, 1.0, 0.0, -1) == "one_hot.depth"
    assert error_code(scatter.scatter_elements, var(3, 3), places, var(2, 1)) == "scatter.updates"
    assert error_code(scatter.scatter_elements, var(3, 3), places, var(2, 2), 0, "div") == "scatter.reduction"
    assert error_code(scatter.scatter_nd, var(3, 3), places, var(2, 2)) == "scatter_nd.updates"


# --- scatter


@pytest.mark.parametrize("reduction", ["update", "add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements_agrees_with_onnx(axis: int, reduction: str) -> None:
    data, updates = normal(3, 4), normal(2, 3, seed=1)
    places = ints([0, 2, 0], [-1, 0, 1])
    onnx_name = "none" if reduction == "update" else reduction
    want = onnx_reference("ScatterElements", data, places, updates, opset=18, axis=axis, reduction=onnx_name)
    attributes = ScatterElementsAttrs(axis=axis, reduction=reduction)
    close(kernel("scatter_elements", attributes, data, places, updates)[0], want)


@pytest.mark.parametrize("mode", ["update", "add", "mul", "min", "max"])
def test_scatter_nd_agrees_with_onnx(mode: str) -> None:
    data, updates, places = normal(4, 3), normal(2, 3, seed=1), ints([1], [-1])
    onnx_name = "none" if mode == "update" else mode
    want = onnx_reference("ScatterND", data, places, updates, opset=18, reduction=onnx_name)
    close(kernel("scatter_nd", ScatterNDAttrs(mode=mode), data, places.T.copy(), updates)[0], want)


def test_the_last_of_several_updates_wins_and_strays_are_dropped() -> None:
    data, places = np.zeros(3, np.float32), ints(1, 1, 5, -9, 2**62, 0)
    updates = np.arange(1, 7, dtype=np.float32)
    (got,) = kernel("scatter_elements", ScatterElementsAttrs(), data, places, updates)
    np.testing.assert_array_equal(got, [6, 2, 0])
    (got,) = kernel("scatter_nd", ScatterNDAttrs(mode="add"), data, places.reshape(1, -1), updates)
    np.testing.assert_array_equal(got, [6, 3, 0])


# --- sort, topk


keys = st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]), min_size=1, max_size=70)


@few
@given(keys, st.booleans())
def test_sort_is_stable_with_nan_greatest(values: list[float], ascend: bool) -> None:
    data = np.array(values, np.float32)
    want = sorted(range(len(values)), key=lambda p: (np.isnan(data[p]), 0 if np.isnan(data[p]) else data[p]))
    if not ascend:  # equal keys keep their order in this direction too
        want = sorted(range(len(values)), key=lambda p: (not np.isnan(data[p]), 0 if np.isnan(data[p]) else -data[p]))
    (order,) = kernel("argsort", ArgsortAttrs(is_ascend=ascend, dtype="int64"), data)
    np.testing.assert_array_equal(order, want)
    (values_in_order,) = kernel("sort", SortAttrs(is_ascend=ascend), data)
    np.testing.assert_array_equal(values_in_order, data[want])


@few
@given(keys, st.integers(1, 70), st.booleans())
def test_topk_is_the_beginning_of_the_order(values: list[float], k: int, ascend: bool) -> None:
    data = np.array(values, np.float32)
    count = min(k, len(values))
    order = reference("argsort", ArgsortAttrs(is_ascend=ascend), data)[:count]
    top, places = kernel("topk", TopkAttrs(k=count, is_ascend=ascend), data)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(top, data[order])


def test_topk_agrees_with_onnx() -> None:
    data = normal(3, 6)
    want = onnx_reference("TopK", data, ints(3), opset=11, axis=1, largest=1)
    np.testing.assert_array_equal(kernel("topk", TopkAttrs(k=3), data)[0], want)


def test_topk_types() -> None:
    both = sorting.topk(var(SymDim("n"), 5), k=2).checked_type
    assert isinstance(both, TupleType)
    assert both.fields[1] == TensorType((SymDim("n"), 2), "int32")
    assert sorting.topk(var(5), k=2, ret_type="indices", dtype="int64").checked_type == TensorType((2,), "int64")
    assert sorting.topk(var(5), k=0, ret_type="values").checked_type == TensorType((5,), "float32")
    assert error_code(sorting.topk, var(5), 6) == "topk.k"
    assert error_code(sorting.topk, var(5), 2, -1, "all") == "topk.ret_type"


# --- cumsum


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumsum_agrees_with_onnx(axis: int, exclusive: bool) -> None:
    data = normal(2, 3, 4)
    want = onnx_reference("CumSum", data, ints(axis)[0].reshape(()), opset=14, exclusive=int(exclusive))
    close(kernel("cumsum", ScanAttrs(axis=axis, exclusive=exclusive), data)[0], want)


def test_cumprod_of_flattened_data() -> None:
    data = normal(2, 3)
    close(kernel("cumprod", ScanAttrs(), data)[0], data.reshape(-1).cumprod())


# --- arange


@few
@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_arange_as_python(start: int, stop: int, step: int) -> None:
    (got,) = kernel("arange", ArangeAttrs(start=start, stop=stop, step=step, dtype="int32"))
    np.testing.assert_array_equal(got, list(range(start, stop, step)))


def test_arange_of_floats_agrees_with_onnx() -> None:
    start, stop, step = (np.float32(v).reshape(()) for v in (1.0, 2.0, 0.3))
    want = onnx_reference("Range", start, stop, step, opset=11)
    close(kernel("arange", ArangeAttrs(start=1.0, stop=2.0, step=0.3, dtype="float32"))[0], want)


def test_arange_errors() -> None:
    assert error_code(tensor_creation.arange, 0, 1, 0) == "arange.step"
    assert error_code(tensor_creation.arange, 0, float("inf"), 1) == "arange.step"
    assert error_code(tensor_creation.arange, 0, 1, 0.5, "int32") == "arange.fraction"
    assert error_code(tensor_creation.zeros, (2, -1), "float32") == "init.shape"
