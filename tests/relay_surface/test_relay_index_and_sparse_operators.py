# SPDX-License-Identifier: Apache-2.0
"""Relay's index, sparse tensor, unique and region operators against plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotc
from aotc import relay
from aotc.relay.op import OPERATORS_BY_NAME

Array = np.ndarray[Any, Any]


def array(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def reference(name: str, *args: Any, **attributes: Any) -> Any:
    op = OPERATORS_BY_NAME[name]
    return op.reference(op.attrs(**attributes), *args)


def run(build: Callable[..., Any], *args: Array, unknown: bool = False) -> Any:
    """The result of a program of one expression on the virtual machine, its dimensions `unknown` or not."""
    shapes = [(relay.Any(),) * a.ndim if unknown else a.shape for a in args]
    inputs = [
        relay.var(f"x{k}", shape=s, dtype=str(a.dtype)) for k, (s, a) in enumerate(zip(shapes, args, strict=True))
    ]
    module = aotc.IRModule.from_expr(relay.Function(inputs, build(*inputs)))
    found = relay.create_executor("vm", mod=module).evaluate()(*args)
    return tuple(f.numpy() for f in found) if isinstance(found, tuple) else found.numpy()


@pytest.mark.parametrize(
    ("begin", "end", "strides"),
    [((0, 1), (3, 9), (2, 2)), ((2, 4), (-9, 0), (-1, -2)), ((-2,), (9,), (1,)), ((1, 3), (2, -9), (1, -3))],
)
def test_a_slice_is_set_as_numpy_sets_it(begin: Any, end: Any, strides: Any) -> None:
    data = array(3, 5)
    place = tuple(slice(*b) for b in zip(begin, end, strides, strict=True))
    values, expected = (array(3, 5, 1)[: data[place].shape[0], : data[place].shape[1], 0], data.copy())
    expected[place] = values
    bounds = [np.array(b, np.int64) for b in (begin, end, strides)]
    np.testing.assert_array_equal(reference("strided_set", data, values, *bounds), expected)


def test_places_are_those_of_numpy() -> None:
    data, rows, columns = (array(4, 5, 2), np.array([[3], [0]]), np.array([1, 4, 2]))
    np.testing.assert_array_equal(reference("adv_index", (data, rows, columns)), data[rows, columns])
    flat = np.array([5, 0, 23])
    expected = np.stack(np.unravel_index(flat, (2, 3, 4)))
    np.testing.assert_array_equal(reference("unravel_index", flat, np.array([2, 3, 4])), expected)


def test_a_sparse_tensor_in_another_shape_has_the_same_elements() -> None:
    old, new, places = ((3, 4, 2), (6, 4), np.array([[0, 1, 1], [2, 3, 0], [1, 0, 0]]))
    found, shape = reference("sparse_reshape", places, np.array(old), np.array([-1, 4]))
    np.testing.assert_array_equal(shape, new)
    flat = np.ravel_multi_index(tuple(places.T), old)
    np.testing.assert_array_equal(np.ravel_multi_index(tuple(found.T), new), flat)
    dense = run(lambda i, v: relay.sparse_to_dense(i, old, v, -1.0), places, array(3))
    expected = np.full(old, -1, np.float32)
    expected[tuple(places.T)] = array(3)
    np.testing.assert_array_equal(dense, expected)


@pytest.mark.parametrize("ordered", [True, False])
def test_equal_elements_are_found_once(ordered: bool) -> None:
    data = np.array([5, 2, 5, 9, 2, 2, 7], np.int32)
    values, first, inverse, number, counts = reference("unique", data, is_sorted=ordered, return_counts=True)
    known = sorted(set(data.tolist())) if ordered else list(dict.fromkeys(data.tolist()))
    assert values[: number[0]].tolist() == known
    assert first[: number[0]].tolist() == [data.tolist().index(v) for v in known]
    assert counts[: number[0]].tolist() == [data.tolist().count(v) for v in known]
    np.testing.assert_array_equal(values[inverse], data)


@pytest.mark.parametrize("segments", [None, 3, 5])
def test_rows_of_a_segment_are_added(segments: int | None) -> None:
    data, ids = array(4, 2), np.array([2, 0, 2])
    expected = np.zeros((segments or 3, 2), np.float32)
    np.add.at(expected, ids, data[:3])
    found = run(lambda x, i: relay.op.segment_sum(x, i, segments), data, ids, unknown=segments != 5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_ids_are_no_segments() -> None:
    found = run(lambda x, i: relay.op.segment_sum(x, i), array(4, 2), np.zeros(0, np.int64))
    assert found.shape == (0, 2)


@pytest.mark.parametrize(("sequence", "values"), [((2,), (2, 0)), ((0,), (2,)), ((2, 0), (2, 3)), ((0, 3), (0, 2))])
def test_rows_without_elements_are_searched(sequence: tuple[int, ...], values: tuple[int, ...]) -> None:
    found = reference("searchsorted", array(*sequence), array(*values))
    np.testing.assert_array_equal(found, np.zeros(values, np.int32))


def of(*shape: int, dtype: str = "int64") -> Any:
    return relay.var("x", shape=shape, dtype=dtype)


REFUSED: dict[str, Callable[[], Any]] = {
    "300 does not fit int8": lambda: relay.sparse_to_dense(of(1), (4,), of(1, dtype="int8"), 300),
    "bounds must be integers": lambda: relay.strided_set(of(3), of(2), [0.5], [2]),
    "do not fit": lambda: relay.sparse_reshape(of(2, 0), of(0), of(1)),
    "does not fit": lambda: relay.sparse_fill_empty_rows(of(2, 0), of(2), of(0), of(1)),
    "upsampling must be finite": lambda: relay.nn.upsampling3d(of(1, 1, 2, 2, 2, dtype="float32"), np.inf, 1.0, 1.0),
    "must be a scalar": lambda: relay.sparse_fill_empty_rows(of(2, 1), of(2), of(1), of(3, 1)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_arguments_that_do_not_fit(message: str) -> None:
    with pytest.raises(aotc.AotcError, match=message):
        REFUSED[message]()


def test_mean_and_deviation_come_as_a_tuple() -> None:
    data = array(3, 4)
    mean, deviation = run(lambda x: relay.mean_std(x, axis=1), data)
    np.testing.assert_allclose(mean, data.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(deviation, data.std(1), rtol=1e-5)
    assert run(lambda x: relay.sum(x, axis=0), np.array([[True, False], [True, False]])).tolist() == [True, False]


def test_a_box_of_a_whole_image_is_the_image() -> None:
    data, box, index = array(2, 4, 5, 3), np.array([[0, 0, 1, 1]], np.float32), np.array([1], np.int32)
    found = reference("image.crop_and_resize", data, box, index, crop_size=(4, 5))
    np.testing.assert_allclose(found[0], data[1], rtol=1e-5, atol=1e-6)
    twice = reference("image.crop_and_resize", data, box, index, crop_size=(7, 9))
    np.testing.assert_allclose(twice[0, 1::2, ::2], (data[1, :-1] + data[1, 1:]) / 2, rtol=1e-4, atol=1e-5)


def test_without_offsets_taps_stay_at_their_places() -> None:
    data, weight, offset = array(1, 4, 6, 6), array(2, 4, 3, 3), np.zeros((1, 18, 6, 6), np.float32)
    attributes = {"padding": (1, 1, 1, 1)}
    plain = reference("nn.conv2d", data, weight, **attributes)
    found = reference("nn.deformable_conv2d", data, offset, weight, **attributes)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4)
    moved = offset + np.tile(np.array([0, 1], np.float32), 9)[None, :, None, None]
    found = reference("nn.deformable_conv2d", data, moved, weight, **attributes)
    np.testing.assert_allclose(found[..., :-2], plain[..., 1:-1], rtol=1e-4, atol=1e-4)


def test_cells_of_whole_pixels() -> None:
    data, roi = array(1, 2, 6, 8), np.array([[0, 2, 1, 5, 4]], np.float32)
    inner = data[0, :, 1:5, 2:6]
    greatest = inner.reshape(2, 2, 2, 2, 2).max((2, 4))
    np.testing.assert_array_equal(
        reference("vision.roi_pool", data, roi, pooled_size=(2, 2), spatial_scale=1.0)[0], greatest
    )
    # two samples for each half pixel fall a quarter beside the pixels: their mean is that of a weighted window
    found = reference("vision.roi_align", data * 0 + 3, roi, pooled_size=(2, 2), spatial_scale=1.0)
    np.testing.assert_allclose(found, 3, rtol=1e-6)


def test_dimensions_are_named_after_what_they_are_made_of() -> None:
    n, m = aotc.te.var("n"), aotc.te.var("m")
    assert str(n * 2 + 1) == "2*n+1"
    assert n + 2 - 2 == n
    assert str((n + 1) * 3 * m) == "3*m*n+3*m"
    assert str(relay.Any() + 1) == "1<=?"
    assert n * np.int64(2) == n * 2
    for number in (1.5, "a"):
        with pytest.raises(TypeError):
            n * number
    assert str((n * 2 + 1) * 3) == "6*n+3"
    assert str((n * 2 + 1) * m) == "2*m*n+m"
    assert str(aotc.ir.indexdiv(n * 2, 3) * 2) == "2*((2*n)//3)"
    x = relay.var("x", shape=(n, m, 4))
    assert relay.nn.batch_flatten(x).checked_type == relay.TensorType((n, m * 4))
    assert relay.concatenate([x, x], 1).checked_type == relay.TensorType((n, m + m, 4))
    parts = relay.split(x, (1, 3), axis=1)
    assert [str(t.shape[1]) for t in parts.checked_type.fields] == ["1", "2", "m-3"]
    module = aotc.IRModule.from_expr(relay.Function([x], relay.nn.batch_flatten(x)))
    assert aotc.ir.structural_equal(relay.fromtext(module.astext()), module)
    assert (aotc.te.min_value("int8").value, aotc.te.max_value("uint8").value) == (-128, 255)
