# SPDX-License-Identifier: Apache-2.0
"""Compiled projects that packages are made of: a float, an int8 and a state model, with and without an operating
system."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import aotc
from tests.e2e.projects import DIGITS
from tests.e2e.test_state import recurrent_model

#: Models by name, with the pairs of their state.
MODELS = {
    "digits": (DIGITS, {}),
    "digits_int8": (DIGITS.with_name("digits_int8.onnx"), {}),
    "gru": (None, {"state": "state_out"}),
}
Projects = Callable[..., Path]


def model_of(name: str) -> onnx.ModelProto:
    path, _ = MODELS[name]
    return onnx.load(path) if path is not None else recurrent_model("GRU")


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Projects:
    """The folder of a model's project: `projects("digits", bare=True)`; compiled when it is first asked for."""

    @cache
    def project(name: str, bare: bool = False, target: str = "c", build: bool = False) -> Path:
        folder = tmp_path_factory.mktemp(name) / name
        state = MODELS[name][1]
        options = {"environment": "bare"} if bare else {}
        aotc.compile(model_of(name), name=name, output=folder, target=target, state=state, build=build, **options)
        return folder

    return project


def printed(command: Sequence[str | Path], cwd: Path, **env: str) -> str:
    """What a command printed; fails with its complaint."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **env})
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def output_line(text: str) -> str:
    """The line with the elements of the output in what an example printed."""
    (line,) = {line for line in text.splitlines() if line.startswith(("scores:", "y:"))}
    return line


@pytest.fixture(scope="session")
def expected(projects: Projects, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The line that a model's example prints: from the project's own sources, compiled by gcc without optimization and
    with the flags that keep results, and close to ONNX Runtime's."""

    @cache
    def line(name: str, bare: bool) -> str:
        from aotc.packaging.write_package import package_project

        project, folder = projects(name, bare), tmp_path_factory.mktemp("expected")
        package_project(project, "pkg-config", folder / "package")
        left_out = {"params_to_c.c", f"{name}_entry.c"}
        sources = [
            p for d in ("src", "runtime") for p in sorted((project / d).glob("*.[cS]")) if p.name not in left_out
        ]
        flags = ["-std=c99", "-O0", "-ffp-contract=off", "-Iinclude", "-Isrc", "-Wa,-I."]
        main = folder / "package" / "examples" / "main.c"
        printed(["gcc", *flags, *sources, main, "-lm", "-o", folder / "example"], project)
        found = output_line(printed([folder / "example"], folder))
        assert_close_to_onnx_runtime(name, found)
        return found

    return line


def assert_close_to_onnx_runtime(name: str, line: str) -> None:
    options = ort.SessionOptions()
    # its fused integer kernels saturate 16-bit sums on some processors
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model_of(name).SerializeToString(), options)
    inputs = {}
    for info in session.get_inputs():
        ramp = np.arange(np.prod(info.shape), dtype=np.int64) % 17 * 0.125 - 1.0
        inputs[info.name] = (ramp if info.name != "state" else ramp * 0).astype(np.float32).reshape(info.shape)
    (first, *_) = session.run(None, inputs)
    values = [float(word) for word in line.partition(":")[2].split()]
    np.testing.assert_allclose(values, first.ravel()[: len(values)], atol=0.01 if "int8" in name else 1e-5)
