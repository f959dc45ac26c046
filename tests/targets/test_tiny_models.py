# SPDX-License-Identifier: Apache-2.0
"""The quantized models of MLPerf Tiny on a microcontroller: their memory, and their bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.driver.compile import CompileOptions
from tests.share import share
from tests.targets.firmware import board

#: Bytes of the arena with inputs, outputs and scratch, at most: TFLite Micro's of the same model, less where less is
#: taken (`python -m benchmarks.firmware --arena` measures both).
ARENAS = {"ad_int8": 1_024, "resnet8_int8": 33_500, "kws_int8": 17_200, "vww_int8": 56_500}
ALL_ARENAS = {
    **{f"tflite/{name}": size for name, size in ARENAS.items()},
    "tflite/person_detect_int8": 56_500,
    "tflite/micro_speech_int8": 7_584,
    "tflite/mnist_lstm_int8": 4_208,
    "second/fingerprint_int8": 96_368,
    "second/micro_speech_lstm_int8": 20_000,
}
CORES = ("cortex-m0plus", "cortex-m4", "cortex-m55")


@pytest.mark.parametrize(
    ("core", "name"),
    share([(core, name) for core in CORES for name in ALL_ARENAS], 3, always=[("cortex-m4", n) for n in ALL_ARENAS]),
)
def test_memory(core: str, name: str, models: Path) -> None:
    """Everything that a run needs beside stack and parameters."""
    path = models / f"{name}.tflite"
    if not path.is_file():
        pytest.skip(f"no model {path}")
    options = CompileOptions(target=core, build=False, workspace_io=True)
    (program,) = options.start_compilation(path).scheduled_programs
    assert set(program.resident) == {*program.inputs, *program.outputs}
    assert program.plan.peak <= ALL_ARENAS[name]


@pytest.mark.slow  # a minute of compilation; tests/passes/test_pass_patch_inference.py has small networks
def test_first_layers_in_patches(models: Path, tmp_path: Path) -> None:
    """Half of the memory beside the image, which the caller keeps, and the bytes of the whole."""
    here, path = board("cortex-m4"), models / "tflite" / "vww_int8.tflite"
    options = {"name": "net", "target": "cortex-m4", "build": False}
    whole = aotc.compile(path, output=tmp_path / "whole", **options)
    model = aotc.compile(path, output=tmp_path / "net", config={"compile.patches": 6}, **options)
    assert model.metadata["memory"]["peak"] < whole.metadata["memory"]["peak"] / 2
    (taken,) = whole.metadata["inputs"]
    data = np.random.default_rng(0).integers(-128, 128, taken["shape"]).astype(np.int8)
    results = [here.outputs(m, [data], tmp_path)[0][0] for m in (whole, model)]
    np.testing.assert_array_equal(*results)


#: What has functions of its own for bytes.
TARGETS = ("cortex-m4", "cortex-m55")
SEVERAL = [(target, name) for target in TARGETS for name in ARENAS]


@pytest.mark.parametrize(("target", "name"), share(SEVERAL, 2, always=[(target, "kws_int8") for target in TARGETS]))
def test_bytes_in_little_memory(target: str, name: str, models: Path, tmp_path: Path) -> None:
    """Firmware whose results lie over inputs, and the portable library, where nothing does."""
    here, path = board(target), models / "tflite" / f"{name}.tflite"
    model = aotc.compile(path, output=tmp_path / "net", name="net", target=target, build=False, workspace_io=True)
    session = aotc.compile(path, target="c").session()
    (taken,) = session.get_inputs()
    data = np.random.default_rng(0).integers(-128, 128, taken.shape).astype(np.int8)
    (found,), _ = here.outputs(model, [data], tmp_path)
    np.testing.assert_array_equal(found, session.run(None, {taken.name: data})[0])
