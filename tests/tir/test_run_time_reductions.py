# SPDX-License-Identifier: Apache-2.0
"""Reductions whose number or length is known at run time only: with rows of accumulators in turn, and in squares."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from onnx import ModelProto, helper

import aotc
from aotc.driver.pass_observers import ProgramVerifier
from tests.frontend.evaluation import model_of

#: Extents of the axis in the middle: none, fewer than the lanes of a vector, whole vectors, and more.
SIZES: Final = (0, 1, 3, 8, 9, 16, 37)
#: Extents of the last axis: whole vectors, and half a vector more.
WIDTHS: Final = (8, 12, 16, 64)


def reductions() -> ModelProto:
    """Sums of products along the last axis, and sums and maxima along the axis in the middle."""
    make, nodes, inputs, outputs = helper.make_node, [], {}, []
    for width in WIDTHS:
        inputs |= {f"x{width}": (2, "n", width), f"q{width}": (2, 1, width)}
        nodes.append(make("Mul", [f"x{width}", f"q{width}"], [f"m{width}"]))
        nodes.append(make("ReduceSum", [f"m{width}", "last"], [f"scores{width}"], keepdims=0))
        nodes.append(make("ReduceSum", [f"x{width}", "middle"], [f"total{width}"], keepdims=0))
        nodes.append(make("ReduceMax", [f"x{width}", "middle"], [f"most{width}"], keepdims=0))
        outputs += [f"scores{width}", f"total{width}", f"most{width}"]
    return model_of(nodes, inputs, outputs, constants={"last": np.array([2]), "middle": np.array([1])})


def test_reductions_of_all_sizes_are_as_in_numpy(tmp_path: Path) -> None:
    options = {"dims": {"n": (0, 40)}, "target": "host"}
    cflags = ["-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    model = aotc.compile(
        reductions(), output=tmp_path / "net", cflags=cflags, instruments=[ProgramVerifier()], **options
    )
    session = model.session()
    rng = np.random.default_rng(0)
    for n in SIZES:
        inputs = {i.name: np.zeros(0, np.float32) for i in session.get_inputs()}
        for width in WIDTHS:
            inputs[f"x{width}"] = rng.normal(size=(2, n, width)).astype(np.float32)
            inputs[f"q{width}"] = rng.normal(size=(2, 1, width)).astype(np.float32)
        outputs = session.run(None, inputs)
        for k, width in enumerate(WIDTHS):
            x, q = inputs[f"x{width}"], inputs[f"q{width}"]
            np.testing.assert_allclose(outputs[3 * k], (x * q).sum(2), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(outputs[3 * k + 1], x.sum(1), rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(outputs[3 * k + 2], x.max(1, initial=-np.inf))
