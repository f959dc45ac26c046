# SPDX-License-Identifier: Apache-2.0
"""Depths of OneHot that are computed in floats of an input: what cannot be stated as a size is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import aotc
from aotc.ir import AotcError


def model(cast_to: int) -> onnx.ModelProto:
    """A OneHot whose depth is a float64 input that is cast to another type."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.INT64, [4]),
        helper.make_tensor_value_info("depth", TensorProto.DOUBLE, []),
    ]
    nodes = [
        helper.make_node("Cast", ["depth"], ["narrow"], to=cast_to),
        helper.make_node("OneHot", ["x", "narrow", "values"], ["y"]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [0.0, 1.0])
    graph = helper.make_graph(nodes, "depths", inputs, [result], [values])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_depth_that_is_truncated_is_compiled(tmp_path: Path) -> None:
    feeds = {"x": np.array([0, 2, -1, 5]), "depth": np.array(2.9999999999)}
    expected = onnxruntime.InferenceSession(model(TensorProto.INT64).SerializeToString()).run(None, feeds)[0]
    session = aotc.compile(
        model(TensorProto.INT64), output=tmp_path / "depths", dims={"[*]": (0, 8)}, target="c"
    ).session()
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_depth_that_is_rounded_first_is_refused(tmp_path: Path) -> None:
    """2.9999999999 is truncated to 2, but is 3 as a float32."""
    with pytest.raises(AotcError, match="depth"):
        aotc.compile(model(TensorProto.FLOAT), output=tmp_path / "depths", dims={"[*]": (0, 8)}, target="c")
