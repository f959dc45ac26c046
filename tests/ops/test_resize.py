# SPDX-License-Identifier: Apache-2.0
"""Resize operators against ONNX Runtime and onnx's reference evaluator; depth_to_space; type rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.ir.types import TensorType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.resize import UpSamplingAttrs, resize1d, resize2d, resize3d
from aotc.relay.op.resize_sampling import COORDINATE_MODES, RESIZE_ROUNDING_METHODS
from aotc.relay.op.space_to_depth_and_batch import SubPixelAttrs
from tests.ops.onnxruntime_oracle import close, error_code, normal, onnx_reference, ort, reference

Resize2DAttrs = resize2d.attrs
RESIZE = {1: resize1d.attrs, 2: Resize2DAttrs, 3: resize3d.attrs}
ONNX_MODE = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
SIZES = [(4, 6), (6, 10), (3, 2), (1, 1), (7, 5)]


def _sizes(x: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    return np.array([*x.shape[:2], *size], np.int64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("mode", [m for m in COORDINATE_MODES[:-1] if m != "tf_half_pixel_for_nn"])
def test_interpolation_agrees_with_onnx_runtime(mode: str, method: str, size: tuple[int, int]) -> None:
    x = normal(1, 2, 4, 5)
    fields: dict[str, Any] = {"coordinate_transformation_mode": mode, "cubic_alpha": -0.75}
    got = reference("image.resize2d", Resize2DAttrs(size=size, method=method, **fields), x)
    want = ort("Resize", x, None, None, _sizes(x, size), mode=method, coordinate_transformation_mode=mode)
    close(got, want, 1e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rounding", RESIZE_ROUNDING_METHODS[2:])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"])
def test_nearest_agrees_with_onnx_runtime(mode: str, rounding: str, size: tuple[int, int]) -> None:
    x = normal(1, 2, 4, 5)
    fields = {"method": "nearest_neighbor", "coordinate_transformation_mode": mode, "rounding_method": rounding}
    got = reference("image.resize2d", Resize2DAttrs(size=size, **fields), x)
    names = {"mode": "nearest", "coordinate_transformation_mode": mode, "nearest_mode": rounding}
    np.testing.assert_array_equal(got, ort("Resize", x, None, None, _sizes(x, size), **names))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("method", ["nearest_neighbor", "linear"])
def test_other_ranks(n: int, method: str) -> None:
    x, size = normal(1, 2, 4, 5, 3)[(..., *(0,) * (3 - n))], (6, 3, 7)[:n]
    fields = {"method": method, "rounding_method": "round_prefer_floor"}
    got = reference(f"image.resize{n}d", RESIZE[n](size=size, **fields), x)
    close(got, onnx_reference("Resize", x, None, None, _sizes(x, size), mode=ONNX_MODE[method]), 1e-5)


@pytest.mark.parametrize("method", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.8, 0.3), (1.7, 2.5)])
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("extra", [{}, {"antialias": 1}, {"exclude_outside": 1}])
def test_given_factors(extra: dict[str, int], mode: str, scales: tuple[float, float], method: str) -> None:
    x = normal(1, 1, 5, 6)
    size = tuple(int(np.floor(d * s)) for d, s in zip(x.shape[2:], scales, strict=True))
    fields: dict[str, Any] = {"coordinate_transformation_mode": mode, "cubic_alpha": -0.75, "scales": scales}
    fields |= {"antialias": bool(extra.get("antialias")), "cubic_exclude": extra.get("exclude_outside", 0)}
    got = reference("image.resize2d", Resize2DAttrs(size=size, method=method, **fields), x)
    factors = np.array([1, 1, *scales], np.float32)
    names = {"mode": method, "coordinate_transformation_mode": mode, **extra}
    oracle = onnx_reference
    if mode == "align_corners":  # where the evaluator of ONNX takes the product of factor and extent for the size
        oracle = ort
        if method == "linear":  # no coordinate is outside, and ONNX Runtime refuses the attribute
            names.pop("exclude_outside", None)
    close(got, oracle("Resize", x, None, factors, **names), 2e-5)


@pytest.mark.parametrize("method", ["linear", "nearest_neighbor"])
def test_crop_and_resize(method: str) -> None:
    x = normal(1, 1, 4, 5)
    roi, size = (0.4, 0.6, 1.2, 1.7), (3, 6)
    mode = "tf_crop_and_resize"
    fields: dict[str, Any] = {"coordinate_transformation_mode": mode, "extrapolation_value": 10.0, "roi": roi}
    fields |= {"method": method, "rounding_method": "round_prefer_floor"}
    got = reference("image.resize2d", Resize2DAttrs(size=size, **fields), x)
    whole = np.array([0, 0, *roi[:2], 1, 1, *roi[2:]], np.float32)
    names = {"mode": ONNX_MODE[method], "coordinate_transformation_mode": mode, "extrapolation_value": 10.0}
    close(got, ort("Resize", x, whole, None, _sizes(x, size), **names), 1e-5)


def test_integers_are_truncated_and_saturated() -> None:
    x = np.array([[[[0, 255, 255, 0]]]], np.uint8)
    got = reference("image.resize2d", Resize2DAttrs(size=(1, 7), method="cubic"), x)
    assert got.max() == 255
    assert got.min() == 0


def test_layouts_only_move_axes() -> None:
    x = normal(1, 2, 4, 5)
    plain = reference("image.resize2d", Resize2DAttrs(size=(6, 3)), x)
    moved = reference("image.resize2d", Resize2DAttrs(size=(6, 3), layout="NHWC"), x.transpose(0, 2, 3, 1))
    close(moved, plain.transpose(0, 2, 3, 1))


def test_upsampling_repeats() -> None:
    x = normal(1, 2, 3, 4)
    got = reference("nn.upsampling", UpSamplingAttrs(scale_h=2.0, scale_w=3.0), x)
    np.testing.assert_array_equal(got, x.repeat(2, axis=2).repeat(3, axis=3))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_agrees_with_onnx_runtime_and_is_undone(mode: str) -> None:
    x = normal(2, 8, 3, 4)
    attributes = SubPixelAttrs(block_size=2, mode=mode)
    got = reference("nn.depth_to_space", attributes, x)
    np.testing.assert_array_equal(got, ort("DepthToSpace", x, blocksize=2, mode=mode))
    np.testing.assert_array_equal(reference("nn.space_to_depth", attributes, got), x)


def test_space_to_depth_agrees_with_onnx_runtime() -> None:
    x = normal(2, 3, 4, 6)
    got = reference("nn.space_to_depth", SubPixelAttrs(block_size=2), x)
    np.testing.assert_array_equal(got, ort("SpaceToDepth", x, blocksize=2))


def test_ill_typed_resizes() -> None:
    infer, x = OPERATORS_BY_NAME["image.resize2d"].infer, TensorType((1, 2, 3, 4))
    assert error_code(infer, Resize2DAttrs(size=(2, 2), method="best"), [x]) == "resize.method"
    assert error_code(infer, Resize2DAttrs(size=(2, 0)), [x]) == "resize.size"
    assert error_code(infer, Resize2DAttrs(), [x]) == "resize.size"
    crop = Resize2DAttrs(size=(2, 2), coordinate_transformation_mode="tf_crop_and_resize")
    assert error_code(infer, crop, [x]) == "resize.roi"
    assert error_code(infer, Resize2DAttrs(size=(2, 2), coordinate_transformation_mode="half"), [x]) == "resize.mode"
    assert (
        error_code(OPERATORS_BY_NAME["nn.depth_to_space"].infer, SubPixelAttrs(block_size=3), [x]) == "depth.divisible"
    )
