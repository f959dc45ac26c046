# SPDX-License-Identifier: Apache-2.0
"""One library of a trained model gives the outputs of ONNX Runtime at each of five sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import aotc
from aotc.checking.input_generation import draw_random_inputs
from aotc.ir import TensorType
from aotc.runtime.session import Session
from benchmarks.onnx_graph_builder import resnet18
from benchmarks.run_time_sizes import MODELS

#: Integers of inputs number rows of tables; the smallest table has 100 rows.
LARGEST_NUMBER = 99


def inputs_of_sizes(session: Session, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random inputs of the shapes that a model has at some sizes."""
    types = {
        i.name: TensorType([d if isinstance(d, int) else sizes[d] for d in i.shape], i.dtype)
        for i in session.get_inputs()
    }
    inputs = draw_random_inputs(types, 0)
    return {name: x % (LARGEST_NUMBER + 1) if x.dtype.kind in "iu" else x for name, x in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_five_sizes_by_one_library(models: Path, name: str) -> None:
    build, (ranges, cases) = MODELS[name]
    model = build()
    session = aotc.compile(model, dims=ranges, threads=False, tuning=False).session()
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert len(cases) == 5
    for sizes in cases:
        inputs = inputs_of_sizes(session, sizes)
        wanted = reference.run(None, inputs)
        for found, expected in zip(session.run(None, inputs), wanted, strict=True):
            assert found.shape == expected.shape and found.dtype == expected.dtype
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale, err_msg=f"{name} {sizes}")


@pytest.mark.slow
def test_resnet_18_of_any_batch_height_and_width(tmp_path: Path) -> None:
    """At both ends of all ranges, and at sizes that are no multiples of the tiles of convolutions."""
    model = resnet18()
    for axis, name in ((0, "batch"), (2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    # the arguments of the last softmax, whose results are all small
    scores = next(node.output[0] for node in model.graph.node if node.op_type == "Gemm")
    model.graph.output.append(onnx.helper.make_tensor_value_info(scores, onnx.TensorProto.FLOAT, ["batch", 1000]))
    dims = {"batch": (1, 5), "height": (1, 130), "width": "32..144~96"}
    compiled = aotc.compile(model, dims=dims, tuning=False, output=tmp_path / "net")
    alone, team = compiled.session(), compiled.session(threads=2)
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = [
        (1, 32, 32),
        (5, 130, 144),
        (1, 1, 144),
        (2, 130, 32),
        (3, 97, 65),
        (4, 33, 127),
        (5, 64, 96),
        (1, 17, 131),
    ]
    for seed, (batch, height, width) in enumerate(sizes):
        data = np.random.default_rng(seed).standard_normal((batch, 3, height, width)).astype(np.float32)
        wanted = reference.run(None, {"data": data})
        results = alone.run(None, {"data": data})
        for found, expected in zip(results, wanted, strict=True):
            assert found.shape == expected.shape
            atol = 1e-4 * float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=f"{data.shape}")
        for found, same in zip(team.run(None, {"data": data}), results, strict=True):
            np.testing.assert_array_equal(found, same)
