# SPDX-License-Identifier: Apache-2.0
"""Pooling operators against ONNX Runtime; type rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.ir.types import TensorType
from aotc.relay.expr import Var
from aotc.relay.op import OPERATORS_BY_NAME, pool
from aotc.relay.op.adaptive_pool_window import AdaptiveWindow
from aotc.relay.op.opdef import Sample
from aotc.relay.op.pool import GlobalPool2DAttrs, adaptive_avg_pool2d
from tests.ops.harness import interpret, kernel_job
from tests.ops.onnxruntime_oracle import close, error_code, normal, onnx_reference, ort, reference

MAX = {1: pool.max_pool1d.attrs, 2: pool.max_pool2d.attrs, 3: pool.max_pool3d.attrs}
AVG = {1: pool.avg_pool1d.attrs, 2: pool.avg_pool2d.attrs, 3: pool.avg_pool3d.attrs}


def _window(seed: int, n: int) -> dict[str, list[int]]:
    rng = np.random.default_rng(seed)
    kernel = rng.integers(2, 4, n)
    return {
        "kernel_shape": kernel.tolist(),
        "strides": rng.integers(1, 4, n).tolist(),
        "dilations": rng.integers(1, 3, n).tolist(),
        "pads": [int(rng.integers(0, k)) for k in (*kernel, *kernel)],
    }


def _fields(window: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    names = {"kernel_shape": "pool_size", "strides": "strides", "dilations": "dilation", "pads": "padding"}
    return {names[k]: tuple(v) for k, v in window.items()}


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_maximum_agrees_with_onnx_runtime(n: int, seed: int, ceil: bool) -> None:
    window = _window(seed, n)
    x = normal(2, 3, *(6 + (seed + k) % 4 for k in range(n)), seed=seed)
    got = reference(f"nn.max_pool{n}d", MAX[n](ceil_mode=ceil, **_fields(window)), x)
    close(got, ort("MaxPool", x, ceil_mode=int(ceil), **window))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_mean_agrees_with_onnx_runtime(n: int, seed: int, ceil: bool, include: bool) -> None:
    window = _window(seed, n)
    x = normal(2, 3, *(6 + (seed + k) % 4 for k in range(n)), seed=seed)
    attributes = AVG[n](ceil_mode=ceil, count_include_pad=include, **_fields(window))
    got = reference(f"nn.avg_pool{n}d", attributes, x)
    close(got, ort("AveragePool", x, ceil_mode=int(ceil), count_include_pad=int(include), **window))


def test_nan_wins() -> None:
    x = normal(1, 1, 4, 4)
    x[0, 0, 1, 1] = np.nan
    got = reference("nn.max_pool2d", pool.max_pool2d.attrs(pool_size=(2, 2), strides=(2, 2)), x)
    assert np.isnan(got[0, 0]).tolist() == [[True, False], [False, False]]


def test_global_pools_agree_with_onnx_runtime() -> None:
    x = normal(2, 3, 5, 4)
    close(reference("nn.global_avg_pool2d", GlobalPool2DAttrs(), x), ort("GlobalAveragePool", x))
    close(reference("nn.global_max_pool2d", GlobalPool2DAttrs(), x), ort("GlobalMaxPool", x))


@pytest.mark.parametrize("n", [1, 3])
def test_global_pools_of_other_axes(n: int) -> None:
    x, axes = normal(2, 3, *(5, 4, 2)[:n]), tuple(range(2, n + 2))
    for kind, meaning in (("max", x.max), ("avg", x.mean)):
        name = f"nn.global_{kind}_pool{n}d"
        close(reference(name, OPERATORS_BY_NAME[name].attrs(), x), meaning(axis=axes, keepdims=True))


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 4), (7, 9)])
def test_adaptive_windows_cover_their_part(size: tuple[int, int]) -> None:
    x = normal(1, 2, 5, 4)
    got = reference("nn.adaptive_avg_pool2d", adaptive_avg_pool2d.attrs(output_size=size), x)
    for i, j in np.ndindex(*size):
        rows = slice(int(np.floor(i * 5 / size[0])), int(np.ceil((i + 1) * 5 / size[0])))
        columns = slice(int(np.floor(j * 4 / size[1])), int(np.ceil((j + 1) * 4 / size[1])))
        np.testing.assert_allclose(got[0, :, i, j], x[0, :, rows, columns].mean((1, 2)), rtol=1e-5, atol=1e-6)


def test_integer_means_are_truncated() -> None:
    x = np.array([[[[-7, 0], [0, 0]]]], np.int8)
    assert reference("nn.global_avg_pool2d", GlobalPool2DAttrs(), x).item() == -1


def test_ill_typed_pools() -> None:
    infer = OPERATORS_BY_NAME["nn.max_pool2d"].infer
    assert error_code(infer, pool.max_pool2d.attrs(pool_size=(2, 2)), [TensorType((1, 2, 3))]) == "pool.rank"
    assert error_code(infer, pool.max_pool2d.attrs(pool_size=(4, 4)), [TensorType((1, 2, 3, 3))]) == "window"
    assert error_code(infer, pool.max_pool2d.attrs(pool_size=(2, 2, 2)), [TensorType((1, 2, 3, 3))]) == "window"
    adaptive = OPERATORS_BY_NAME["nn.adaptive_avg_pool2d"].infer
    assert (
        error_code(adaptive, adaptive_avg_pool2d.attrs(output_size=(0, 2)), [TensorType((1, 2, 3, 3))]) == "pool.size"
    )


def test_functions_store_full_padding() -> None:
    x = Var("x", TensorType((1, 3, 8, 8)))
    call = pool.max_pool2d(x, (3, 3), (2, 2), padding=(1, 1))
    assert call.attrs.non_default_fields() == {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    assert pool.adaptive_avg_pool2d(x).checked_type == x.checked_type


def test_partial_windows_as_the_reference_evaluator() -> None:
    x = normal(1, 1, 5, 5)
    window = {"kernel_shape": [2, 2], "strides": [3, 3]}
    got = reference("nn.max_pool2d", pool.max_pool2d.attrs(pool_size=(2, 2), strides=(3, 3), ceil_mode=True), x)
    close(got, onnx_reference("MaxPool", x, ceil_mode=1, **window))


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (7, 2)])
def test_one_partial_window_where_none_is_complete(size: tuple[int, int]) -> None:
    x = normal(1, 2, *size)
    fields = {"pool_size": (3, 3), "strides": (2, 2), "ceil_mode": True}
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    close(reference("nn.max_pool2d", pool.max_pool2d.attrs(**fields), x), ort("MaxPool", x, **window))
    close(reference("nn.avg_pool2d", pool.avg_pool2d.attrs(**fields), x), ort("AveragePool", x, **window))


def test_a_step_short_of_data_there_is_no_window() -> None:
    attributes = pool.max_pool2d.attrs(pool_size=(3, 3), strides=(2, 2), ceil_mode=True)
    assert error_code(OPERATORS_BY_NAME["nn.max_pool2d"].infer, attributes, [TensorType((1, 2, 1, 3))]) == "window"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("name", ["nn.global_avg_pool2d", "nn.adaptive_avg_pool2d", "nn.avg_pool2d", "mean"])
def test_averages_of_large_integers(name: str, dtype: str) -> None:
    """The average of the largest values is the largest value: their sum needs a wider type."""
    op, largest = OPERATORS_BY_NAME[name], np.iinfo(dtype).max
    sample = next(iter(op.samples()))
    values = np.full((1, 2, 210, 200), largest, dtype)
    job = kernel_job(op, Sample(args=(values,), attrs=sample.attrs))
    for found in (op.reference(sample.attrs, values), interpret([job])[0][0]):
        assert found.dtype == dtype
        assert (np.asarray(found) == largest).all()


@given(st.integers(0, 200), st.integers(1, 200))
def test_widths_of_adaptive_windows(extent: int, count: int) -> None:
    part = AdaptiveWindow(extent, count)
    widths = [end - begin for begin, end in map(part.position_range_of_adaptive_window, range(count))]
    assert part.min_and_max_adaptive_window_width == (min(widths), max(widths))


def test_outputs_without_number_are_not_counted() -> None:
    assert AdaptiveWindow(9, 1 << 62).min_and_max_adaptive_window_width == (1, 2)
