# SPDX-License-Identifier: Apache-2.0
"""Shape, joining, padding and slicing operators against numpy and ONNX, on fixed and generated cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.attrs import Attrs
from aotc.ir.dimensions import SymDim
from aotc.ir.op import AxisMap
from aotc.ir.types import TensorType, TupleType
from aotc.relay.expr import Var
from aotc.relay.op import OPERATORS_BY_NAME, concat_split, layout, pad, shape, slice
from aotc.relay.op.concat_split import ConcatenateAttrs, SplitAttrs
from aotc.relay.op.layout import LayoutTransformAttrs
from aotc.relay.op.opdef import Array, Sample
from aotc.relay.op.pad import PadAttrs
from aotc.relay.op.shape import ReshapeAttrs
from aotc.relay.op.slice import ReverseSequenceAttrs, StridedSliceAttrs, TriluAttrs
from tests.ops.harness import interpret, kernel_job
from tests.ops.onnxruntime_oracle import error_code, normal, onnx_reference, reference

few = settings(max_examples=60, deadline=None)


def kernel(name: str, attributes: Attrs, *args: Any) -> list[Array]:
    return interpret([kernel_job(OPERATORS_BY_NAME[name], Sample(args=args, attrs=attributes))])[0]


def numbered(*extents: int) -> Array:
    """Each element is its own position: what moves where is plain to see."""
    return np.arange(math.prod(extents), dtype=np.int32).reshape(extents)


def var(*extents: int | SymDim, dtype: str = "float32") -> Var:
    return Var("x", TensorType(extents, dtype))


# --- reshape


@pytest.mark.parametrize(
    ("extents", "newshape", "result"),
    [
        ((2, 3, 4), (4, 0, 2), (4, 3, 2)),
        ((2, 3, 4), (2, 0, 0), (2, 3, 4)),
        ((2, 3, 4), (6, 1, -1), (6, 1, 4)),
        ((2, 3, 4), (4, -1, 2), (4, 3, 2)),
        ((2, 3, 4), (-2,), (2, 3, 4)),
        ((2, 3, 4), (2, -2), (2, 3, 4)),
        ((2, 3, 4), (-2, 1, 1), (2, 3, 4, 1, 1)),
        ((2, 3, 4), (-3, 4), (6, 4)),
        ((2, 3, 4, 5), (-3, -3), (6, 20)),
        ((2, 3, 4), (0, -3), (2, 12)),
        ((2, 3, 4), (-4, 1, 2, -2), (1, 2, 3, 4)),
        ((2, 3, 4), (2, -4, -1, 3, -2), (2, 1, 3, 4)),
        ((), (1,), (1,)),
    ],
)
def test_reshape_special_values(extents: tuple[int, ...], newshape: tuple[int, ...], result: tuple[int, ...]) -> None:
    assert shape.reshape(var(*extents), newshape).checked_type == TensorType(result, "float32")


@pytest.mark.parametrize(
    ("newshape", "code"),
    [
        ((5, 5), "reshape.size"),
        ((-1, -1), "reshape.one-unknown"),
        ((7, -1), "reshape.size"),
        ((0, 0, 0, 0), "reshape.rank"),
        ((-5,), "reshape.value"),
        ((-4, 2), "reshape.value"),
        ((-4, 3, 3, -2), "reshape.size"),
    ],
)
def test_reshape_errors(newshape: tuple[int, ...], code: str) -> None:
    assert error_code(shape.reshape, var(2, 3, 4), newshape) == code


def test_reshape_of_unknown_dimensions() -> None:
    n = SymDim("n")
    assert shape.reshape(var(n, 3, 4), (0, -1)).checked_type == TensorType((n, 12), "float32")
    assert shape.reshape(var(n, 3, 4), (-1, 12)).checked_type == TensorType((n, 12), "float32")
    flat = shape.reshape(var(SymDim("n", 4), 3), (-1,)).checked_type
    assert isinstance(flat, TensorType) and flat.rank == 1 and isinstance(flat.shape[0], SymDim)


def test_reshape_keeps_axes_said_to_be_kept() -> None:
    axes = OPERATORS_BY_NAME["reshape"].axes
    assert axes is not None
    types = [TensorType((2, 3, 4), "float32")]
    assert axes(ReshapeAttrs(newshape=(0, -1)), types) == AxisMap(((0, None),))
    assert axes(ReshapeAttrs(newshape=(6, 4)), types) == AxisMap(((None, None),))


# --- transpose, squeeze, broadcast


def test_transpose_errors() -> None:
    assert error_code(shape.transpose, var(2, 3), (0, 0)) == "transpose.axes"
    assert error_code(shape.transpose, var(2, 3), (0,)) == "transpose.axes"
    assert error_code(shape.squeeze, var(2, 3), (0,)) == "squeeze.axis"
    assert error_code(shape.broadcast_to, var(2, 3), (3, 3)) == "broadcast"
    assert error_code(shape.broadcast_to, var(2, 3), (3,)) == "broadcast"


@few
@given(st.permutations(range(4)), st.lists(st.integers(1, 4), min_size=4, max_size=4))
def test_transpose_moves_elements_as_numpy(axes: list[int], extents: list[int]) -> None:
    data = numbered(*extents)
    (got,) = kernel("transpose", shape.TransposeAttrs(axes=tuple(axes)), data)
    np.testing.assert_array_equal(got, data.transpose(axes))


# --- layouts


@few
@given(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.sampled_from(["NCHW4c", "NHWC", "CHWN2n", "NCHW2h3c"]))
def test_layout_round_trip_keeps_the_data(extents: list[int], blocked: str) -> None:
    data = numbered(*extents)
    there = LayoutTransformAttrs(src_layout="NCHW", dst_layout=blocked)
    (moved,) = kernel("layout_transform", there, data)
    np.testing.assert_array_equal(moved, reference("layout_transform", there, data))
    back = reference("layout_transform", LayoutTransformAttrs(src_layout=blocked, dst_layout="NCHW"), moved)
    np.testing.assert_array_equal(back[tuple(np.s_[:d] for d in extents)], data)
    assert int(back.astype(np.int64).sum()) == int(data.sum())  # what fills the blocks up is zero


def test_weights_are_packed_in_blocks_of_output_channels() -> None:
    weight = numbered(5, 2, 3, 3)
    (packed,) = kernel("layout_transform", LayoutTransformAttrs(src_layout="OIHW", dst_layout="OIHW4o"), weight)
    assert packed.shape == (2, 2, 3, 3, 4)
    np.testing.assert_array_equal(packed[0, 1, 2, 0], weight[:4, 1, 2, 0])
    np.testing.assert_array_equal(packed[1, 1, 2, 0], [weight[4, 1, 2, 0], 0, 0, 0])


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("NCHW", "NCH", "layout"),
        ("NCHW", "NCHW4x", "layout"),
        ("NCHW", "NCCW", "layout"),
        ("NCHW", "nope!", "layout"),
        ("NC", "CN", "layout.rank"),
    ],
)
def test_layout_errors(source: str, target: str, code: str) -> None:
    assert error_code(layout.layout_transform, var(1, 2, 3, 4), source, target) == code


def test_layout_block_must_have_its_extent() -> None:
    assert error_code(layout.layout_transform, var(1, 2, 3, 3, 3), "NCHW4c", "NCHW") == "layout.block"


# --- concatenate, stack, split


@few
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 2))
def test_concatenate_as_numpy(parts: list[int], axis: int) -> None:
    arrays = tuple(normal(*(p if k == axis else 2 for k in range(3)), seed=i) for i, p in enumerate(parts))
    (got,) = kernel("concatenate", ConcatenateAttrs(axis=axis), arrays)
    np.testing.assert_array_equal(got, np.concatenate(arrays, axis))


def test_concatenate_errors_and_unknown_dimensions() -> None:
    n = SymDim("n", 4)
    assert error_code(concat_split.concatenate, [var(2, 3), var(2, 3, 1)], 0) == "concatenate.rank"
    assert error_code(concat_split.concatenate, [var(2, 3), var(3, 3)], 1) == "concatenate.shape"
    assert error_code(concat_split.concatenate, [var(2), var(2, dtype="int8")], 0) == "dtype-mismatch"
    assert error_code(concat_split.concatenate, [], 0) == "concatenate.empty"
    assert error_code(concat_split.concatenate, var(2), 0) == "expected-tuple"
    joined = concat_split.concatenate([var(n, 3), var(2, 3)], 1).checked_type
    assert joined == TensorType((2, 6), "float32")
    longer = concat_split.concatenate([var(n, 3), var(2, 3)], 0).checked_type
    assert isinstance(longer, TensorType) and longer.shape[0] == SymDim("n+2", 6)


@pytest.mark.parametrize("where", [3, (1, 4), (), (0, 0, 6)])
def test_split_as_numpy(where: int | tuple[int, ...]) -> None:
    data = normal(2, 6)
    got = kernel("split", SplitAttrs(indices_or_sections=where, axis=1), data)
    want = np.split(data, where if isinstance(where, int) else list(where), axis=1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_split_errors() -> None:
    assert error_code(concat_split.split, var(5), 2) == "split.sections"
    assert error_code(concat_split.split, var(5), 0) == "split.sections"
    assert error_code(concat_split.split, var(5), (3, 2)) == "split.indices"
    assert error_code(concat_split.split, var(5), (6,)) == "split.indices"
    ty = concat_split.split(var(SymDim("n", 8)), (2,)).checked_type
    assert ty == TupleType((TensorType((2,), "float32"), TensorType((SymDim("n-2", 6),), "float32")))


# --- pad


@few
@given(st.sampled_from(["constant", "edge", "reflect", "wrap"]), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_pad_as_numpy(mode: str, widths: list[int]) -> None:
    data = normal(3, 4)
    pairs = ((widths[0], widths[1]), (widths[2], widths[3]))
    options: Any = {"constant_values": 7.0} if mode == "constant" else {}
    want = np.pad(data, pairs, mode, **options)  # type: ignore[call-overload]
    value = np.float32(7.0).reshape(())
    (got,) = kernel("nn.pad", PadAttrs(pad_width=pairs, pad_mode=mode), data, value)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(reference("nn.pad", PadAttrs(pad_width=pairs, pad_mode=mode), data, value), want)


def test_pad_by_less_than_nothing_crops() -> None:
    data = numbered(4, 5)
    attributes = PadAttrs(pad_width=((-1, 0), (2, -3)))
    want = np.pad(data[1:, :2], ((0, 0), (2, 0)), constant_values=9)
    np.testing.assert_array_equal(kernel("nn.pad", attributes, data, np.array(9, np.int32))[0], want)


def test_pad_errors() -> None:
    assert error_code(pad.pad, var(2, 3), ((1, 1),)) == "pad.rank"
    assert error_code(pad.pad, var(2), ((1, 1),), 0, "mirror") == "pad.mode"
    assert error_code(pad.pad, var(2), ((-2, -1),)) == "pad.width"
    assert error_code(pad.pad, var(2), ((-1, 1),), 0, "edge") == "pad.width"
    assert error_code(pad.pad, var(0), ((1, 1),), 0, "reflect") == "pad.empty"
    assert error_code(pad.pad, var(2), ((1, 1),), var(2)) == "pad.value"


# --- slices


bound = st.integers(-9, 9)


@few
@given(bound, bound, st.sampled_from([1, 2, 3, -1, -2]), st.integers(0, 6))
def test_slice_as_python(begin: int, end: int, stride: int, extent: int) -> None:
    data = numbered(2, extent)
    attributes = StridedSliceAttrs(begin=(begin,), end=(end,), strides=(stride,), axes=(1,))
    (got,) = kernel("strided_slice", attributes, data)
    np.testing.assert_array_equal(got, data[:, begin:end:stride])
    np.testing.assert_array_equal(got, reference("strided_slice", attributes, data))


def test_slice_of_unknown_dimensions() -> None:
    n = SymDim("n", 9)
    whole = slice.strided_slice(var(n, 4), (0, 1), (2**31 - 1, 3)).checked_type
    assert whole == TensorType((n, 2), "float32")
    some = slice.strided_slice(var(n, 4), (1,), (5,)).checked_type
    assert some == TensorType((SymDim("max(min(n, 5) - 1, 0)", 4), 4), "float32")


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("begin", [-9, -3, -1, 0, 2, 6])
@pytest.mark.parametrize("end", [-8, -2, 0, 1, 4, 9, 2**31 - 1])
def test_slices_of_symbolic_axes_have_the_extents_of_all_sizes(begin: int, end: int, step: int) -> None:
    ty = slice.strided_slice(var(SymDim("n"), 4), (begin,), (end,), (step,)).checked_type
    assert isinstance(ty, TensorType)
    dim = ty.shape[0]
    for n in range(12):
        assert (dim.bind({"n": n}) if isinstance(dim, SymDim) else dim) == len(range(n)[begin:end:step])


def test_slice_errors() -> None:
    assert error_code(slice.strided_slice, var(4), (0, 0), (1, 1)) == "slice.axes"
    assert error_code(slice.strided_slice, var(4), (0,), (1,), (0,)) == "slice.stride"
    assert error_code(slice.strided_slice, var(4), (0,), (1, 2)) == "slice.count"
    assert error_code(slice.strided_slice, var(4, 4), (0, 0), (1, 1), None, (1, 1)) == "slice.axes"
    assert error_code(slice.strided_slice, var(4), (0,), (1,), None, None, "length") == "slice.mode"


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("k", [-5, -1, 0, 2, 9])
def test_trilu_agrees_with_onnx(k: int, upper: bool) -> None:
    data, diagonal = normal(2, 3, 4), np.array(k, np.int64)
    want = onnx_reference("Trilu", data, diagonal, opset=14, upper=int(upper))
    np.testing.assert_array_equal(kernel("trilu", TriluAttrs(upper=upper), data, diagonal)[0], want)


def test_reverse_sequence_agrees_with_onnx() -> None:
    data, lengths = normal(4, 5), np.array([1, 5, 3, 2, 4], np.int64)
    want = onnx_reference("ReverseSequence", data, lengths, opset=10, batch_axis=1, time_axis=0)
    attributes = ReverseSequenceAttrs(seq_axis=0, batch_axis=1)
    np.testing.assert_array_equal(kernel("reverse_sequence", attributes, data, lengths)[0], want)
