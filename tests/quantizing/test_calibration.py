# SPDX-License-Identifier: Apache-2.0
"""Calibration data are read from several file formats, and all their errors are reported at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc.ir import AotcError, TensorType
from aotc.quantizing.calibration_data import load_calibration_sets

ONE = {"x": TensorType((1, 2, 3), "float32")}
TWO = {**ONE, "ids": TensorType((4,), "int64")}


def ramp(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def complaints(data: Any, types: dict[str, TensorType]) -> list[str]:
    with pytest.raises(AotcError) as caught:
        load_calibration_sets(data, types)
    assert all(d.code == "calibration" for d in caught.value.diagnostics)
    return [d.message for d in caught.value.diagnostics]


@pytest.mark.parametrize("shape", [(1, 2, 3), (5, 2, 3), (5, 1, 2, 3)])
def test_several_sets_in_one_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "data.npz", x=ramp(*shape))
    sets = load_calibration_sets(tmp_path / "data.npz", ONE)
    assert len(sets) == ramp(*shape).size // 6
    assert all(s["x"].shape == (1, 2, 3) for s in sets)
    np.testing.assert_array_equal(np.concatenate([s["x"].reshape(-1) for s in sets]), ramp(*shape).reshape(-1))


def test_sets_of_larger_batches() -> None:
    types = {"x": TensorType((2, 3), "float32")}
    assert [s["x"][0, 0] for s in load_calibration_sets([{"x": ramp(6, 3)}], types)] == [0, 6, 12]


def test_scalars() -> None:
    types = {"x": TensorType((), "float32")}
    assert [float(s["x"]) for s in load_calibration_sets([{"x": ramp(3)}, {"x": ramp()}], types)] == [0, 1, 2, 0]


def test_a_folder_of_files(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", ramp(2, 2, 3))
    np.savez(tmp_path / "a.npz", x=ramp(1, 2, 3) + 100)
    (tmp_path / "notes.txt").write_text("not data")
    assert [s["x"][0, 0, 0] for s in load_calibration_sets(str(tmp_path), ONE)] == [100, 0, 6]


def test_several_inputs() -> None:
    data = {"x": ramp(3, 2, 3), "ids": np.arange(12).reshape(3, 4)}
    sets = load_calibration_sets([data], TWO)
    assert [s["ids"].tolist() for s in sets] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    bad = ramp(1, 2, 3)
    bad[0, 0, :2] = np.nan, np.inf
    np.savez(tmp_path / "1.npz", x=bad, ids=np.arange(4))
    np.savez(tmp_path / "2.npz", x=ramp(1, 3, 2), ids=np.arange(4, dtype=np.int32))
    np.savez(tmp_path / "3.npz", y=ramp(1, 2, 3), ids=np.arange(4))
    np.savez(tmp_path / "4.npz", x=ramp(2, 2, 3), ids=np.arange(4))
    (tmp_path / "5.npz").write_bytes(b"nonsense")
    found = [text.replace(f"{tmp_path}/", "") for text in complaints(tmp_path, TWO)]
    assert found == [
        "1.npz: the array for input 'x' cannot be used: 1 of 6 values are NaN, 1 of 6 values are infinite",
        "2.npz: the array for input 'x' has the shape 1x3x2, which holds no Tensor[(1, 2, 3), float32], and no number "
        "of them along its first axis",
        "2.npz: the array for input 'ids' is int32, expected int64",
        "3.npz: the model has no input 'y'",
        "3.npz: there is no array for input 'x' (Tensor[(1, 2, 3), float32])",
        "4.npz: the inputs are not as many of each: 2 of 'x', 1 of 'ids'",
        "cannot read 5.npz: it is damaged, or no file of arrays",
    ]


@pytest.mark.parametrize("types", [ONE, TWO])
def test_an_empty_folder(tmp_path: Path, types: dict[str, TensorType]) -> None:
    (text,) = complaints(tmp_path, types)
    assert text.startswith(f"there is no calibration data in {tmp_path}: it holds no file *.npz")


def test_nothing_at_all(tmp_path: Path) -> None:
    assert complaints([], ONE) == ["no calibration data was given: at least one set of inputs is needed"]
    assert complaints([{"x": ramp(0, 2, 3)}], ONE) == [
        "no calibration data was given: at least one set of inputs is needed"
    ]
    assert "no-such" in complaints(tmp_path / "no-such.npz", ONE)[0]


def test_a_single_array_for_several_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ramp(1, 2, 3))
    assert complaints(tmp_path / "x.npy", TWO) == [
        f"{tmp_path / 'x.npy'} holds a single array without a name, but the model has 2 inputs"
    ]


def test_values_of_narrow_floats_are_looked_at() -> None:
    types = {"x": TensorType((2,), "float16")}
    assert "NaN" in complaints([{"x": np.array([1, np.nan], np.float16)}], types)[0]
