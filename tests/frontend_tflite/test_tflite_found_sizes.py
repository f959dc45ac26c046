# SPDX-License-Identifier: Apache-2.0
"""TFLite models whose results have sizes that values decide, compiled once, against LiteRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tflite")

import aotc
from tests.frontend_tflite.model_builder import Builder, litert


def selections() -> bytes:
    """Operators on the positions of elements above 0, and the distinct elements of a vector."""
    model = Builder()
    x, numbers = model.tensor((3, 4), name="x"), model.tensor((9,), "int32", name="numbers")
    zero, two = model.tensor((), data=0.0), model.tensor((), data=2.0)
    flags, positions = model.tensor((3, 4), "bool"), model.tensor((1, 2), "int64", name="positions")
    values, doubled = model.tensor((1,)), model.tensor((1,), name="doubled")
    shown, places = model.tensor((1,), "int32", name="distinct"), model.tensor((9,), "int64", name="places")
    real, axis = model.tensor((1, 2)), model.tensor((1,), "int32", data=[0])
    total, mixed = model.tensor((2,), name="total"), model.tensor((4, 1), name="mixed")
    row, column = model.tensor((1, 2)), model.tensor((1, 4))
    order, count = model.tensor((2,), "int32", data=[1, 0]), model.tensor((2,), "int32", name="count")
    model.op("GREATER", [x, zero], [flags], "GreaterOptions")
    model.op("WHERE", [flags], [positions], "WhereOptions")
    model.op("GATHER_ND", [x, positions], [values], "GatherNdOptions")
    model.op("MUL", [values, two], [doubled], "MulOptions", fusedActivationFunction=0)
    model.op("CAST", [positions], [real], "CastOptions", inDataType=4, outDataType=0)
    model.op("SUM", [real, axis], [total], "ReducerOptions", keepDims=False)
    model.op("TANH", [real], [row])
    model.op("CONCATENATION", [real, row], [column], "ConcatenationOptions", axis=1, fusedActivationFunction=0)
    model.op("TRANSPOSE", [column, order], [mixed])
    model.op("SHAPE", [positions], [count], "ShapeOptions", outType=2)
    model.op("UNIQUE", [numbers], [shown, places], "UniqueOptions", idxOutType=4)
    return model.data([x, numbers], [positions, doubled, total, mixed, count, shown, places])


def test_one_library_for_all_numbers_of_elements(tmp_path: Path) -> None:
    data = selections()
    (tmp_path / "net.tflite").write_bytes(data)
    options = {"target": "c", "cflags": ["-O0", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]}
    session = aotc.compile(tmp_path / "net.tflite", output=tmp_path / "net", **options).session()
    assert {o.name: o.shape for o in session.get_outputs()}["positions"] == ["found0", 2]
    rng = np.random.default_rng(2)
    for share in (0.5, 0.9, 0.2):
        x = rng.uniform(0, 1, (3, 4)) - 1 + share
        x[1, 2] = 0.5
        feeds = {"x": x.astype(np.float32), "numbers": rng.integers(0, 9 * share + 1, 9).astype(np.int32)}
        expected = litert(data, list(feeds.values()), xnnpack=False)
        for got, want in zip(session.run(None, feeds), expected, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # LiteRT's interface in Python gives no tensors without elements
    positions, doubled, total, mixed, count, *_ = session.run(None, feeds | {"x": np.zeros((3, 4), np.float32)})
    assert (positions.shape, doubled.shape, mixed.shape) == ((0, 2), (0,), (4, 0))
    assert total.tolist() == [0, 0] and count.tolist() == [0, 2]
