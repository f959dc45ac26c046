# SPDX-License-Identifier: Apache-2.0
"""Resize and Upsample by fractional scales have the sizes and values of ONNX Runtime and torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from aotc.relay.frontend.onnx import from_onnx
from tests.frontend.evaluation import model_of, ort_run, run_model

MODES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners")


def resized(x: Any, scales: list[float], opset: int, **attributes: Any) -> Any:
    """The model, which is an Upsample up to operator set 9."""
    factors = np.asarray([1.0, 1.0, *scales], np.float32)
    if opset < 9:
        node = helper.make_node("Upsample", ["x"], ["y"], scales=factors.tolist(), **attributes)
        return model_of([node], {"x": x.shape}, ["y"], opset=opset)
    names = ["x", "" if opset > 11 else "region", "scales"] if opset > 10 else ["x", "scales"]
    node = helper.make_node("Upsample" if opset == 9 else "Resize", names, ["y"], **attributes)
    constants = {"scales": factors} | ({"region": np.zeros(0, np.float32)} if opset == 11 else {})
    return model_of([node], {"x": x.shape}, ["y"], opset=opset, constants=constants)


def assert_as_ort(x: Any, model: Any) -> None:
    (want,) = ort_run(model, {"x": x})
    (got,) = run_model(from_onnx(model), {"x": x})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 19])
def test_sizes_are_those_of_onnx_runtime(opset: int) -> None:
    """Up to 20 elements by 0.3, 0.4, ... 2.9: 5 * 1.4 is 7, as in float32, not 6.99999988."""
    for extent in range(5, 21):
        x = np.arange(4 * extent, dtype=np.float32).reshape(1, 1, 4, extent)
        for tenths in (3, 7, 9, 11, 13, 14, 18, 19, 29):
            if opset < 10 and tenths < 10:
                continue  # Upsample does not shrink
            model = resized(x, [1.0, tenths / 10], opset, mode="nearest")
            (want,) = ort_run(model, {"x": x})
            (got,) = run_model(from_onnx(model), {"x": x})
            assert got.shape == want.shape, (extent, tenths)


@pytest.mark.parametrize("mode", MODES)
def test_coordinates_are_those_of_onnx_runtime(mode: str) -> None:
    rng = random.Random(mode)
    for method in ("nearest", "linear", "cubic"):
        for _ in range(12):
            extent, scale = rng.randint(4, 13), round(rng.uniform(0.3, 3.0), 1)
            x = np.random.default_rng(extent).standard_normal((1, 2, extent, extent)).astype(np.float32)
            if int(np.float32(extent) * np.float32(scale)) == extent:
                continue  # which ONNX Runtime copies, whatever the factor
            model = resized(x, [scale, scale], 19, mode=method, coordinate_transformation_mode=mode)
            assert_as_ort(x, model)


@pytest.mark.parametrize("corners", [False, True])
def test_interpolation_is_that_of_torch(corners: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 1, 5, 5)).astype(np.float32))
    for scale in (1.4, 1.7, 2.3):
        want = torch.nn.functional.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=corners)
        mode = "align_corners" if corners else "pytorch_half_pixel"
        model = resized(x, [scale, scale], 18, mode="linear", coordinate_transformation_mode=mode)
        (got,) = run_model(from_onnx(model), {"x": x.numpy()})
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-5)
