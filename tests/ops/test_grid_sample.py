# SPDX-License-Identifier: Apache-2.0
"""grid_sample against ONNX Runtime; type rules."""

from __future__ import annotations

import numpy as np
import pytest

from aotc.ir.types import TensorType
from aotc.relay.op import OPERATORS_BY_NAME
from aotc.relay.op.grid_sample import GRID_PADDING_MODES, GRID_SAMPLE_METHODS, GridSampleAttrs
from tests.ops.onnxruntime_oracle import close, error_code, normal, ort, reference

ONNX_MODE = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", GRID_PADDING_MODES)
@pytest.mark.parametrize("method", GRID_SAMPLE_METHODS)
def test_grid_sample_agrees_with_onnx_runtime(method: str, padding: str, corners: bool) -> None:
    x, grid = normal(2, 3, 5, 6), normal(2, 4, 7, 2, seed=1)
    attributes = GridSampleAttrs(method=method, padding_mode=padding, align_corners=corners)
    got = reference("image.grid_sample", attributes, x, np.ascontiguousarray(np.moveaxis(grid, -1, 1)))
    names = {"mode": ONNX_MODE[method], "padding_mode": padding, "align_corners": int(corners)}
    close(got, ort("GridSample", x, grid, opset=20, **names), 2e-5)


def test_volumes() -> None:
    x, grid = normal(1, 2, 3, 4, 5), normal(1, 2, 3, 4, 3, seed=1)
    attributes = GridSampleAttrs(layout="NCDHW", align_corners=False)
    got = reference("image.grid_sample", attributes, x, np.moveaxis(grid, -1, 1))
    close(got, ort("GridSample", x, grid, opset=20, mode="linear"), 2e-5)


def test_positions_that_are_no_numbers_see_nothing() -> None:
    x, grid = normal(1, 1, 2, 2), np.full((1, 2, 1, 2), np.nan, np.float32)
    got = reference("image.grid_sample", GridSampleAttrs(method="nearest"), x, grid)
    np.testing.assert_array_equal(got, np.zeros((1, 1, 1, 2), np.float32))


def test_ill_typed_grids() -> None:
    infer, x = OPERATORS_BY_NAME["image.grid_sample"].infer, TensorType((1, 2, 3, 4))
    assert error_code(infer, GridSampleAttrs(), [x, TensorType((1, 3, 2, 2))]) == "grid.axes"
    assert error_code(infer, GridSampleAttrs(), [x, TensorType((2, 2, 2, 2))]) == "grid.batch"
    assert error_code(infer, GridSampleAttrs(), [x, TensorType((1, 2, 2))]) == "grid.rank"
    assert error_code(infer, GridSampleAttrs(method="cubic"), [x, TensorType((1, 2, 2, 2))]) == "grid.method"
