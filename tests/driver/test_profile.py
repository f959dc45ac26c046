# SPDX-License-Identifier: Apache-2.0
"""Profiles contain the time of every step of the schedule, and name what they cannot measure."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import aotc
from aotc.driver.compile_sources import build_project_library
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.measuring.machine_peak import Probe
from aotc.measuring.profile import profile_library, undisturbed_run_mask
from aotc.runtime.abi import ffi
from aotc.tir.target import C
from tests.cli.invoke import DIGITS, call, refused


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile") / "digits"
    assert call("compile", DIGITS, "-o", folder, "--cflags=-O1").code == 0
    return folder


def test_steps_are_those_of_the_schedule(project: Path) -> None:
    result = profile_library(project, repeat=5)
    steps = json.loads((project / "metadata.json").read_text())["steps"]
    assert [(s["kernel"], s["macs"], s["nodes"]) for s in result["steps"]] == [
        (s["kernel"], s["macs"], s["nodes"]) for s in steps
    ]
    assert all(s["milliseconds"] > 0 and s["bytes"] > 0 for s in result["steps"])
    peak = result["machine"]["peak_gflops"]
    for row in [*result["steps"], *result["kernels"]]:
        assert row["gflops"] == pytest.approx(2e-6 * row["macs"] / row["milliseconds"])
        assert row["of_peak"] == pytest.approx(row["gflops"] / peak) and row["of_roofline"] >= row["of_peak"]
    assert sum(k["calls"] for k in result["kernels"]) == len(steps)
    for key in ("milliseconds", "macs", "bytes"):
        assert sum(k[key] for k in result["kernels"]) == pytest.approx(sum(s[key] for s in result["steps"]))
    assert {n for k in result["kernels"] for n in k["nodes"]} == {n for s in steps for n in s["nodes"]}


def test_command(project: Path, tmp_path: Path) -> None:
    text = call("run", project, "--profile", "--repeat", "3").out
    steps = json.loads((project / "metadata.json").read_text())["steps"]
    folded = "".join(text.split())
    assert all(step["kernel"].removeprefix("digits_") in folded for step in steps)
    assert "GFLOP/s" in text and "3 runs" in text
    assert json.loads(call("run", project / "lib" / "libdigits.so", "--profile", "--json").out)["repeat"] == 20
    call("run", project, "--profile", "--repeat", "3", "--report", tmp_path / "roofline.html")
    assert "<h2>Roofline</h2>" in (tmp_path / "roofline.html").read_text(encoding="utf-8")
    assert "cannot write" in refused("run", project, "--profile", "--repeat", "1", "--report", tmp_path)
    assert "--profile" in refused("run", project, "--report", tmp_path / "roofline.html")
    np.savez(tmp_path / "in.npz", other=np.zeros(1))
    assert "image" in refused("run", project, "--profile", "--inputs", tmp_path / "in.npz")
    assert "exclude" in refused("run", project, "--profile", "--output", tmp_path / "o.npz")


def test_library_without_its_project(project: Path, tmp_path: Path) -> None:
    shutil.copy(project / "lib" / "libdigits.so", tmp_path)
    assert "metadata.json" in refused("run", tmp_path / "libdigits.so", "--profile")


def test_library_without_steps(tmp_path: Path) -> None:
    assert call("compile", DIGITS, "-o", tmp_path / "d", "--cflags=-O1 -DAOTC_NO_STEPS").code == 0
    assert "AOTC_NO_STEPS" in refused("run", tmp_path / "d", "--profile")
    assert call("run", tmp_path / "d").code == 0


def test_steps_are_called_in_order_with_right_results(project: Path) -> None:
    session = aotc.load(project)
    x = {"image": np.random.default_rng(0).random((1, 1, 8, 8), np.float32)}
    binding = session.bind(x)
    seen: list[int] = []

    @ffi.callback("void(void *, int32_t)")  # type: ignore[untyped-decorator]
    def on_step(context: object, step: int) -> None:
        assert int(ffi.cast("uintptr_t", context)) == 42
        seen.append(step)

    binding.run_with_step_callback(int(ffi.cast("uintptr_t", on_step)), 42)
    count = len(json.loads((project / "metadata.json").read_text())["steps"])
    assert seen == list(range(count + 1))
    np.testing.assert_array_equal(binding.outputs["scores"], session.run(None, x)[0])


def test_options_of_an_older_caller(project: Path) -> None:
    """The fields that the size does not cover are not read."""
    session = aotc.load(project)
    binding = session.bind({"image": np.zeros((1, 1, 8, 8), np.float32)})
    options = ffi.new("aotc_run_options *", [ffi.sizeof("size_t"), ffi.cast("aotc_step_fn", 1), ffi.NULL])
    binding._run_with_options(options)
    binding._run_with_options(ffi.new("aotc_run_options *", [ffi.sizeof("aotc_run_options"), ffi.NULL, ffi.NULL]))


@pytest.mark.parametrize("target", ["host", C])
def test_probe(target: object) -> None:
    probe = Probe(resolve_target(target), find_toolchain())  # type: ignore[arg-type]
    assert probe.peak_flops_per_second() > 1e7 and probe.peak_read_bytes_per_second(1) > 1e6


def test_the_probe_is_compiled_as_kernels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the target's instruction set, the peak would be that of the oldest processor."""
    flags: list[str] = []

    def built(*arguments: Any, **options: Any) -> Path:
        flags.extend(arguments[2].cflags)
        return build_project_library(*arguments, **options)

    monkeypatch.setattr("aotc.measuring.machine_peak.build_project_library", built)
    target = resolve_target("host")
    Probe(target, find_toolchain())
    assert set(target.cflags) < set(flags)


def test_disturbed_runs_are_left_out() -> None:
    assert undisturbed_run_mask(np.array([10.0, 12.4, 12.6, 100.0, 9.99])).tolist() == [True, True, False, False, True]
    assert undisturbed_run_mask(np.zeros(2)).all() and undisturbed_run_mask(np.array([3.0])).all()


def test_shares_add_up_and_disturbed_runs_are_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = iter([1000, 1100, 5000] * 2)

    def step_times(binding: object, probe: object, steps: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full(steps, next(totals) * 1000), np.ones(steps, int)

    monkeypatch.setattr("aotc.measuring.profile._measure_step_nanoseconds_and_calls", step_times)
    monkeypatch.setattr(Probe, "clock_overhead_nanoseconds", lambda self: 0)
    result = profile_library(project, repeat=3)
    assert result["disturbed"] == 1
    assert all(step["milliseconds"] == pytest.approx(1.05) for step in result["steps"])
    shares = [row["milliseconds"] / result["milliseconds"]["watched"] for row in result["kernels"]]
    assert sum(shares) == pytest.approx(1)
    assert "1 of 3 runs took more than 1.25 times" in call("run", project, "--profile", "--repeat", "3").out


def test_a_library_of_more_steps_than_its_metadata_tell(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "net"
    shutil.copytree(project, copy)
    metadata = json.loads((copy / "metadata.json").read_text())
    for steps in (metadata["steps"][:1], metadata["steps"] * 2):
        versions = [v | {"steps": [s["kernel"] for s in steps]} for v in metadata.get("isas", [])]
        (copy / "metadata.json").write_text(json.dumps(metadata | {"steps": steps, "isas": versions}))
        assert "steps" in refused("run", copy, "--profile", "--repeat", "2")


def test_counts_are_those_of_the_sizes_that_run(tmp_path: Path) -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    infos = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 6), ("y", 5))
    ]
    weights = onnx.numpy_helper.from_array(np.ones((6, 5), np.float32), "w")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos[:1], infos[1:], [weights]))
    aotc.compile(model, dims={"batch": "4..64:4"}, output=str(tmp_path / "net"), target="c", cflags=["-O0"])
    (step,) = json.loads((tmp_path / "net" / "metadata.json").read_text())["steps"]
    assert step["macs"] == 64 * 6 * 5 and step["bytes_written"] == 4 * 64 * 5
    for batch in (4, 64):
        np.savez(tmp_path / "in.npz", x=np.ones((batch, 6), np.float32))
        (step,) = profile_library(tmp_path / "net", inputs=tmp_path / "in.npz", repeat=1)["steps"]
        assert step["macs"] == batch * 6 * 5
        assert 0 <= step["bytes"] - 4 * batch * (6 + 5) - 4 * 6 * 5 <= 1024  # weights may be padded


def test_steps_of_other_tiers_are_left_out(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Exp", ["x"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 6]) for n in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", infos[:1], infos[1:]))
    aotc.compile(model, dims={"batch": [1, 40]}, output=str(tmp_path / "net"), target="c", cflags=["-O0"])
    for number, batch in enumerate((1, 40)):
        np.savez(tmp_path / "in.npz", x=np.ones((batch, 6), np.float32))
        result = profile_library(tmp_path / "net", inputs=tmp_path / "in.npz", repeat=1)
        (step,), (kernel,) = result["steps"], result["kernels"]
        assert (step["step"], step["calls"], step["bytes"]) == (number, 1, 2 * 4 * 6 * batch)
        assert kernel["kernel"] == step["kernel"] and kernel["calls"] == 1
