# SPDX-License-Identifier: Apache-2.0
"""Sizes and ranges for which random models had faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import aotc

ort = pytest.importorskip("onnxruntime")
STRICT = ("-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror")
HEAD = '<ir_version: 9, opset_import: ["": 18]> net '


def compare(text: str, dims: dict[str, str], shapes: list[tuple[int, ...]], target: str, folder: Path) -> None:
    """The library of all sizes, compiled without warnings, has the results of ONNX Runtime, on two threads too."""
    model = onnx.parser.parse_model(HEAD + text)
    compiled = aotc.compile(model, dims=dims, target=target, output=folder / "net", cflags=STRICT, cache=False)
    alone, team = compiled.session(), compiled.session(**({} if target == "c" else {"threads": 2}))
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed, shape in enumerate(shapes):
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        (expected,), (result,) = reference.run(None, {"x": x}), alone.run(None, {"x": x})
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(team.run(None, {"x": x})[0], result)


@pytest.mark.always
@pytest.mark.parametrize("batch", ["1..5~1", "1..5~4", "1,2..5~2"])
def test_a_typical_size_of_one_iteration(batch: str, tmp_path: Path) -> None:
    """A loop of one iteration at the typical sizes has no variable whose range threads could divide."""
    text = "(float[b, s, 4] x) => (float[b, t, 4] y) { n = Neg(x) y = Concat<axis=1>(x, n) }"
    shapes = [(1, 3, 4), (5, 400, 4), (2, 17, 4), (4, 33, 4)]
    compare(text, {"b": batch, "s": "3..400"}, shapes, "x86-64", tmp_path)


@pytest.mark.always
def test_positions_along_an_axis_of_which_one_element_is_read(tmp_path: Path) -> None:
    """The resized axis is one element, expanded, so that nothing reads the positions of its neighbors."""
    text = """(float[b, b, 1] x) => (float[p, q, r] y)
    <int64[1] first = {0}, int64[1] one = {1}, float[3] factors = {1, 1, 1}> {
      b = Shape<start = 0, end = 1>(x) sum = ReduceSum<keepdims = 1>(x, first) shape = Concat<axis = 0>(b, one, one)
      v = Expand(sum, shape) y = Resize<mode = "linear">(v, , factors)
    }"""
    compare(text, {"b": "1..5"}, [(1, 1, 1), (5, 5, 1), (3, 3, 1)], "c", tmp_path)
