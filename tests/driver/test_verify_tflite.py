# SPDX-License-Identifier: Apache-2.0
"""Verification of TFLite files with any installed interpreter, and Relay's `from_tflite`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")
pytest.importorskip("tflite_micro")

import tflite

import aotc
from aotc import relay, transform
from aotc.checking import reference_tflite
from aotc.checking.verify import verify
from aotc.ir.diagnostics import AotcError
from tests.cli.invoke import call
from tests.frontend.evaluation import run_model
from tests.frontend_tflite.model_builder import Builder, litert, tflm

FAST = {"cflags": ("-O0",), "seeds": 1}
NAMES = {"tflm": "tflite-micro", "litert": "ai-edge-litert"}


def rescaled(path: Path) -> tuple[Path, Any]:
    """A tensor of another scale, for which the two interpreters take numbers of 31 and of 8 bits."""
    model = Builder()
    x, y = model.tensor((1, 256), "int8", scale=0.03, name="x"), model.tensor((1, 256), "int8", scale=0.05)
    model.op("QUANTIZE", [x], [y])
    path.write_bytes(model.data([x], [y]))
    return path, np.arange(-128, 128).astype(np.int8)[None]


def real(path: Path) -> Path:
    model, w = Builder(), np.random.default_rng(0).standard_normal((3, 8))
    x, y = model.tensor((2, 8)), model.tensor((2, 3))
    model.op("FULLY_CONNECTED", [x, model.tensor((3, 8), "float32", w)], [y], "FullyConnectedOptions")
    path.write_bytes(model.data([x], [y]))
    return path


@pytest.mark.parametrize("rounding", NAMES)
def test_the_interpreter_of_the_rounding(rounding: str, tmp_path: Path) -> None:
    path, _ = rescaled(tmp_path / "net.tflite")
    report = verify(path, rounding=rounding, **FAST)
    assert report.ok and report.reference == NAMES[rounding]
    assert all(output.max_abs == 0 for case in report.cases for output in case.outputs)


@pytest.mark.parametrize("only", ["litert", ""])
def test_whichever_is_installed(only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its integers are then those that are compiled."""
    path, _ = rescaled(tmp_path / "net.tflite")
    monkeypatch.setattr(reference_tflite, "_is_interpreter_installed", lambda name: name == only)
    if only:
        report = verify(path, **FAST)
        assert report.ok and report.reference == NAMES[only]
        return
    with pytest.raises(AotcError, match="tflite-micro or ai-edge-litert, which is not installed"):
        verify(path, **FAST)
    with pytest.raises(AotcError, match="with ai-edge-litert, which is not installed"):
        verify(path, rounding="litert", **FAST)


def test_from_the_command_line(tmp_path: Path) -> None:
    path = real(tmp_path / "net.tflite")
    done = call("verify", path, "--seeds", "1", "--cflags", "-O0")
    assert done.code == 0 and "compared with tflite-micro: all outputs agree" in done.out
    done = call("verify", path, "--seeds", "1", "--cflags", "-O0", "--rounding", "litert")
    assert done.code == 0 and "compared with ai-edge-litert: all outputs agree" in done.out


def change_outputs(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """TFLite Micro gives other results."""
    start = reference_tflite._INTERPRETER_BY_ROUNDING["tflm"]

    def with_changed_outputs(data: bytes, inputs: list[Any]) -> Any:
        run = start(data, inputs)
        return lambda given: [change(v) for v in run(given)]

    monkeypatch.setitem(reference_tflite._INTERPRETER_BY_ROUNDING, "tflm", with_changed_outputs)


def test_other_integers_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is too much."""
    path, _ = rescaled(tmp_path / "net.tflite")
    change_outputs(monkeypatch, lambda v: v ^ 1)
    assert not verify(path, **FAST).ok


def test_neighboring_inputs_excuse_no_other_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For inputs a few units in the last place apart, the interpreter's own integers differ by one step."""
    model, path = Builder(), tmp_path / "net.tflite"
    x, q, y = model.tensor((1, 60_000)), model.tensor((1, 60_000), "int8", scale=0.03), model.tensor((1, 60_000))
    model.op("QUANTIZE", [x], [q])
    model.op("DEQUANTIZE", [q], [y])
    path.write_bytes(model.data([x], [y]))
    assert verify(path, **FAST).ok
    change_outputs(monkeypatch, lambda v: v + np.float32(0.03))
    assert not any(case.ok for case in verify(path, **FAST).cases)


# --- Relay's entry


def test_relay_takes_what_the_schema_reads(tmp_path: Path) -> None:
    """A `tflite.Model`, bytes, or a path; the configuration says whose integers."""
    path, x = rescaled(tmp_path / "net.tflite")
    data = path.read_bytes()
    expected = {"tflm": tflm(data, [x])[0], "litert": litert(data, [x])[0]}
    assert (expected["tflm"] != expected["litert"]).any()
    for model in (tflite.Model.GetRootAsModel(data, 0), data, str(path), path):
        module, params = relay.frontend.from_tflite(model, {"x": (1, 256)}, {"x": "int8"})
        assert not params
        np.testing.assert_array_equal(run_model(module, {"x": x})[0], expected["tflm"])
    with transform.PassContext(config={"tflite.rounding": "litert"}):
        module, _ = relay.frontend.from_tflite(data)
    np.testing.assert_array_equal(run_model(module, {"x": x})[0], expected["litert"])
    made = aotc.compile(path, config={"tflite.rounding": "litert"}).session()
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected["litert"])


def test_relay_refuses() -> None:
    model = Builder()
    x, y = model.tensor((1, 4), name="x"), model.tensor((1, 4))
    model.op("ABS", [x], [y])
    data = model.data([x], [y])
    for arguments, text in (
        (({}, {"x": "int8"}), "input 'x' is said to be int8, the model has float32"),
        (({}, {"z": "int8"}), "the model has no such input"),
        (({"z": (1, 4)}, {}), "the model has no input 'z'"),
        (({}, {}, {"ABS": abs}), "custom converters are not supported"),
    ):
        with pytest.raises(AotcError, match=text):
            relay.frontend.from_tflite(data, *arguments)
    with transform.PassContext(config={"tflite.rounding": "up"}), pytest.raises(AotcError, match="up"):
        relay.frontend.from_tflite(data)
