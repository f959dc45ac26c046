# SPDX-License-Identifier: Apache-2.0
"""One library of a trained model gives the outputs of ONNX Runtime at each of five sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import aotc
from aotc.checking.input_generation import draw_random_inputs
from aotc.ir import TensorType
from aotc.runtime.session import Session
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
