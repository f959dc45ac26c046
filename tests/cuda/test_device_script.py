# SPDX-License-Identifier: Apache-2.0
"""The benchmark script for machines with a GPU, from its preparation to its table, on an emulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cuda_device, cuda_prepare
from benchmarks.cuda_device import (
    PreparedCase,
    compare_outputs_or_bisect_samples,
    elements_as_equality_key_integers,
    max_difference_in_standard_deviations,
    read_finished_job_results,
)
from benchmarks.cuda_prepare import compile_and_write_case, network_case, operator_batch_case, single_node_model
from benchmarks.networks import ds_cnn

SANITIZER = '#!/bin/sh\necho "$1 $2 $3 $4" >> tools\nshift 4\nexec "$@"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few operators, of which one has nothing to do, a network with drawn weights and one that has rivals."""
    path: Path = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cuda_prepare", str(path), "nothing", "--emulated"])
        patch.setattr(cuda_prepare, "SAMPLES_PER_LIBRARY", 5)
        assert cuda_prepare.prepare_cases_for_gpu_machine() == 0
        product = partial(single_node_model, "MatMul", (8, 16), (16, 8), out=(8, 8))
        subjects = operator_batch_case(2), network_case("ds_cnn", ds_cnn), network_case("product", product, timed=True)
    for number, subject in enumerate(subjects):
        compile_and_write_case(path / "cases" / f"{subject.program.name}.npz", subject, number, [80], emulated=True)
    (path / "compute-sanitizer").write_text(SANITIZER)
    (path / "compute-sanitizer").chmod(0o755)
    return path


def samples(folder: Path) -> list[str]:
    """The names of the operators' samples that have something to do."""
    names = [sample["name"] for sample in PreparedCase(folder / "cases" / "operators_2.npz").about["samples"]]
    assert len(names) > 1
    return names


def run(folder: Path, *arguments: str) -> str:
    """What the script prints, in a process that sees nothing but the folder."""
    environment = {**os.environ, "PYTHONPATH": "", "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "benchmarks.cuda_device", *arguments]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_bits_are_those_of_the_emulator(folder: Path) -> None:
    assert run(folder, "bits.jsonl", "--emulated", "--only", "bits/").endswith("\n0 left\n")
    found, count = read_finished_job_results(folder / "bits.jsonl"), len(samples(folder))
    assert {name: (row["samples"], row["differ"]) for name, row in found.items()} == {
        "bits/ds_cnn": (1, {}),
        "bits/operators_2": (count, {}),
        "bits/product": (1, {}),
    }
    assert run(folder, "bits.jsonl", "--emulated", "--only", "bits/") == "0 left\n"  # nothing is done again
    case = PreparedCase(folder / "cases" / "ds_cnn.npz")
    assert len(case.about["weights"]) >= 4 and np.isfinite(case.data["out0"].view(np.float32)).all()


def test_what_differs_is_told_and_the_next_case_goes_on(folder: Path, tmp_path: Path) -> None:
    for name in ("benchmarks", "libcuda.so.1"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "cases").mkdir()
    with np.load(folder / "cases" / "operators_2.npz") as file:
        data = dict(file)
    np.savez(tmp_path / "cases" / "b.npz", **data)
    data["out0"][0] ^= 1
    np.savez(tmp_path / "cases" / "a.npz", **data)
    with np.load(folder / "cases" / "ds_cnn.npz") as file:
        data = dict(file)
    np.savez(tmp_path / "cases" / "broken.npz", **data | {"library": data["library"][:10]})
    run(tmp_path, "--emulated", "--only", "bits/")
    rows = read_finished_job_results(tmp_path / "results.jsonl")
    assert "of" in next(iter(rows["bits/a"]["differ"].values())) and rows["bits/b"]["differ"] == {}
    assert "OSError" in rows["bits/broken"]["whole"] and "ds_cnn" in rows["bits/broken"]["failed"]


def test_samples_that_fail_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(arguments: list[Any], seconds: float) -> dict[str, Any]:
        first, end = arguments[2:]
        wrong = not end or first <= 1 < end
        return {"error": "exit code 1"} if wrong else cuda_device.compare_outputs_with_emulator(*arguments[1:])

    monkeypatch.chdir(folder)
    monkeypatch.setenv("AOTC_CUDA_DRIVER", str(folder / "libcuda.so.1"))
    monkeypatch.setattr(cuda_device, "run_job_in_child_process", call)
    found = compare_outputs_or_bisect_samples("operators_2", 10)
    name, others = samples(folder)[1], len(samples(folder)) - 1
    assert (found["samples"], found["differ"], found["failed"]) == (others, {}, {name: "exit code 1"})


def test_samples_that_hang_leave_time_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def call(_: list[Any], seconds: float) -> dict[str, Any]:
        nonlocal clock
        clock += seconds
        return {"error": f"exit code {cuda_device.TIMEOUT_MESSAGE_PREFIX} {seconds:.0f} s"}

    monkeypatch.chdir(folder)
    monkeypatch.setattr(cuda_device, "run_job_in_child_process", call)
    monkeypatch.setattr(cuda_device.time, "monotonic", lambda: clock)
    found = compare_outputs_or_bisect_samples("operators_2", 100)
    assert clock <= 100 and cuda_device.TIMEOUT_MESSAGE_PREFIX in found["whole"] and found["left"]


@pytest.mark.slow
def test_speed_beside_rivals(folder: Path) -> None:
    pytest.importorskip("torch")
    run(folder, "speed.jsonl", "--emulated", "--only", "speed/")
    (row,) = read_finished_job_results(folder / "speed.jsonl").values()
    assert set(row["us"]) == {"aotc", "eager"} and row["close"] < 1e-5
    assert run(folder, "speed.jsonl", "--table").splitlines()[-1].startswith("| product | ")


def test_the_sanitizer_runs_cases(folder: Path) -> None:
    run(folder, "tools.jsonl", "--emulated", "--only", "sanitize/racecheck/ds_cnn")
    assert next(iter(read_finished_job_results(folder / "tools.jsonl").values()))["samples"] == 1
    assert (folder / "tools").read_text() == "--tool racecheck --error-exitcode 9\n"


def test_what_there_was_no_time_for_is_done_the_next_time(folder: Path) -> None:
    assert run(folder, "late.jsonl", "--emulated", "--only", "bits/", "--minutes", "0.001").endswith("3 left\n")
    assert read_finished_job_results(folder / "late.jsonl") == {}


def test_a_line_that_was_cut_short_is_done_again(folder: Path) -> None:
    results = folder / "cut.jsonl"
    results.write_text('\n{"job": "bits/product", "samples": 1}\n\n{"job": "bits/ds_cnn", "sam')
    assert set(read_finished_job_results(results)) == {"bits/product"}
    assert run(folder, results.name, "--emulated", "--only", "bits/ds_cnn").endswith("\n0 left\n")
    assert set(read_finished_job_results(results)) == {"bits/product", "bits/ds_cnn"}


def test_all_nans_count_as_one() -> None:
    found = elements_as_equality_key_integers(np.float16([np.nan, -np.nan, np.inf, -0.0]).view(np.uint8), "float16")
    assert found[0] == found[1] and len(set(found.tolist())) == 3


def test_results_of_tensor_cores_are_close() -> None:
    known = np.float32([1, -1, 3])
    for dtype, shift in (("float32", 0), ("bfloat16", 16)):
        a, b = ((x.view("u4") >> shift).astype("u2" if shift else "u4") for x in (known, known + np.float32([0, 0, 1])))
        assert max_difference_in_standard_deviations(b.view(np.uint8), a.view(np.uint8), dtype) == pytest.approx(
            1 / known.std()
        )
