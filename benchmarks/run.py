# SPDX-License-Identifier: Apache-2.0
"""Measure compiled models beside ONNX Runtime, one thread each, and print the table of docs/performance.md.

The contestants take turns, run by run, on the same inputs with bound buffers, so that a busy machine slows
both; their outputs must agree.  Times are wall clock, minimum and median.

    python benchmarks/run.py                         # ResNet-18 and the trained models that are at hand
    python benchmarks/run.py --runs 50 path.onnx
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from models import resnet18

import aotc
from aotc.driver.compare import compare
from aotc.driver.compile import import_model
from aotc.driver.inputs import input_types, random_inputs

ROOT = Path(__file__).parents[1]
PINS: dict[str, dict[str, list[int]]] = {"ppocr_cls": {"x": [1, 3, 48, 192]}, "magika_v3_3": {"bytes": [1, 2048]}}
"""Shapes for models with dynamic dimensions."""
TRAINED = (
    "mnist8", "superres10", "squeezenet10_fp32", "ppocr_cls", "ultraface_rfb320", "yunet_n_320", "yolox_nano",
    "selfie_seg", "vittrack", "dtln_2", "kws_fp32", "magika_v3_3",
)  # fmt: skip
MOST_SECONDS = 20.0
"""Spent on one model at most."""


def bound_onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
    """ONNX Runtime on one thread with bound inputs and outputs: (run once, read the outputs)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding), binding.copy_outputs_to_cpu


def interleaved(runs: int, *contestants: Callable[[], object]) -> list[list[float]]:
    """Milliseconds of each run of each contestant, taking turns, after two warm-up rounds."""
    times: list[list[float]] = [[] for _ in contestants]
    begin = time.perf_counter()
    for k in range(runs + 2):
        for run, record in zip(contestants, times, strict=True):
            start = time.perf_counter()
            run()
            if k >= 2:
                record.append(1e3 * (time.perf_counter() - start))
        if k > 4 and time.perf_counter() - begin > MOST_SECONDS:
            break
    return times


def measure(path: Path, runs: int) -> str:
    """One row of the table."""
    shapes = PINS.get(path.stem, {})
    inputs = random_inputs(input_types(import_model(path, input_shapes=shapes)), seed=0)
    start = time.perf_counter()
    compiled = aotc.compile(path, input_shapes=shapes)
    seconds = time.perf_counter() - start
    session = compiled.session()
    outputs = session.run(None, inputs)
    ours = session.bind(inputs).run
    theirs, read = bound_onnxruntime(path, inputs)
    theirs()
    worst = max(compare("", a, b, 1e-4).relative for a, b in zip(outputs, read(), strict=True))
    mine, rival = interleaved(runs, ours, theirs)
    size = compiled.library.stat().st_size if compiled.library else 0
    memory = compiled.metadata["memory"]
    return (
        f"| {path.stem} | {min(mine):.3f} | {statistics.median(mine):.3f} | {min(rival):.3f} "
        f"| {statistics.median(rival):.3f} | {min(mine) / min(rival):.2f} | {worst:.1e} "
        f"| {memory['peak'] / 1e6:.2f} | {memory['lower_bound'] / 1e6:.2f} | {size / 1e6:.2f} | {seconds:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("AOTC_MODELS", ROOT.parent / "shared" / "models"))
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "resnet18.onnx"
        onnx.save(resnet18(), built)
        paths = arguments.models or [built, *(p for n in TRAINED if (p := folder / f"{n}.onnx").exists())]
        print(f"aotc {aotc.__version__}, ONNX Runtime {onnxruntime.__version__}, one thread, {arguments.runs} runs, ms")
        print(
            "| model | aotc min | median | ORT min | median | ratio | error | arena MB | bound MB | .so MB | build s |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for path in paths:
            print(measure(path, arguments.runs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
