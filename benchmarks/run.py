# SPDX-License-Identifier: Apache-2.0
"""Measure compiled models beside ONNX Runtime, one thread each, and print the table of docs/performance.md.

The contestants take turns, run by run, on the same inputs with bound buffers, so that a busy machine slows
both.  Times are wall clock, minimum and median.  The difference of the two is the largest over the outputs,
relative to the standard deviation; where it is large, the error of each against onnx's reference evaluator in double
precision tells whose it is.

    python -m benchmarks.run                         # the networks built here and the trained models that are at hand
    python -m benchmarks.run --runs 50 path.onnx --dim batch=1
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import click
import onnx
import onnxruntime

import aotc
from aotc.cli.console import reporting
from aotc.cli.options import shape_options
from aotc.driver.compare import compare, exact_error
from aotc.driver.exact import exact_runner
from aotc.driver.inputs import Arrays, random_inputs
from aotc.driver.toolchain import find_toolchain, resolve_target
from aotc.driver.verify import bound_for
from aotc.ir.dtype import DType
from aotc.ir.types import TensorType
from aotc.relay.frontend.onnx import load_model
from benchmarks.networks import NETWORKS

ROOT = Path(__file__).parents[1]
PINS: dict[str, dict[str, list[int]]] = {
    "superres10": {"input": [1, 1, 224, 224]},
    "ppocr_cls": {"x": [1, 3, 48, 192]},
    "magika_v3_3": {"bytes": [1, 2048]},
}
"""Shapes for models with dynamic dimensions."""
TRAINED = (
    "mnist8", "superres10", "squeezenet10_fp32", "ppocr_cls", "ultraface_rfb320", "yunet_n_320", "yolox_nano",
    "selfie_seg", "vittrack", "dtln_2", "kws_fp32", "magika_v3_3",
)  # fmt: skip
HEADER = (
    "| model | aotc min | median | ORT min | median | ratio | difference | aotc error | ORT error "
    "| arena MB | bound MB | .so MB | build s |"
)
MOST_SECONDS = 20.0
"""Spent on one model at most."""


def bound_onnxruntime(path: Path, inputs: Arrays) -> tuple[Callable[[], None], Callable[[], list[Any]]]:
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


def circumstances(runs: int) -> list[str]:
    """What the figures depend on: machine, load, versions, date."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    models = re.findall(r"^model name\s*: (.*)$", text, re.MULTILINE) or [platform.machine()]
    cc = subprocess.run([*find_toolchain().cc, "--version"], capture_output=True, text=True, check=True).stdout
    return [
        f"machine   {models[0]}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}",
        f"versions  aotc {aotc.__version__}, ONNX Runtime {onnxruntime.__version__}, {cc.splitlines()[0]}",
        f"how       target {resolve_target('host').name}, one thread each, up to {runs} runs in turns, {date.today()}",
    ]


def errors(path: Path, inputs: Arrays, mine: Arrays, rival: Arrays, bound: float) -> str:
    """How far the two lie apart, and if that is beyond what `aotc verify` accepts, how far each is from the truth."""
    found = [compare(n, mine[n], rival[n], bound_for(DType.of(rival[n]), bound)) for n in mine]
    apart = max(c.relative for c in found)
    exact = None if all(c.ok for c in found) else exact_runner(load_model(path))(inputs)
    if exact is None:
        return f"{apart:.1e} | - | -"
    far = (max(exact_error(made[n], exact[n]) for n in made) for made in (mine, rival))
    return " | ".join(f"{error:.1e}" for error in (apart, *far))


def measure(path: Path, runs: int, pins: Mapping[str, Any]) -> str:
    """One row of the table."""
    start = time.perf_counter()
    compiled = aotc.compile(path, **pins)
    seconds = time.perf_counter() - start
    session = compiled.session()
    inputs = random_inputs({i.name: TensorType(i.shape, i.dtype) for i in session.get_inputs()}, seed=0)
    ours = session.bind(inputs).run
    theirs, read = bound_onnxruntime(path, inputs)
    theirs()
    names = [o.name for o in session.get_outputs()]
    mine_made, rival_made = (dict(zip(names, made, strict=True)) for made in (session.run(None, inputs), read()))
    apart = errors(path, inputs, mine_made, rival_made, compiled.metadata["error_bound"])
    mine, rival = interleaved(runs, ours, theirs)
    size = compiled.library.stat().st_size if compiled.library else 0
    memory = compiled.metadata["memory"]
    return (
        f"| {path.stem} | {min(mine):.3f} | {statistics.median(mine):.3f} | {min(rival):.3f} "
        f"| {statistics.median(rival):.3f} | {min(mine) / min(rival):.2f} | {apart} "
        f"| {memory['peak'] / 1e6:.2f} | {memory['lower_bound'] / 1e6:.2f} | {size / 1e6:.2f} | {seconds:.1f} |"
    )


@click.command()
@click.argument("models", nargs=-1, type=click.Path(path_type=Path))
@click.option("--runs", type=click.IntRange(1), default=100, show_default=True, help="Runs of each, at most.")
@shape_options
def main(models: tuple[Path, ...], runs: int, **pins: Any) -> None:
    """Measure MODELS (.onnx), or the networks built here and the trained models at hand, beside ONNX Runtime."""
    folder = Path(os.environ.get("AOTC_MODELS", ROOT.parent / "shared" / "models"))
    with tempfile.TemporaryDirectory() as scratch, reporting() as reporter:
        built = {} if models else {Path(scratch) / f"{name}.onnx": make for name, make in NETWORKS.items()}
        for path, make in built.items():
            onnx.save(make(), path)
        paths = models or (*built, *(p for n in TRAINED if (p := folder / f"{n}.onnx").exists()))
        print(*circumstances(runs), "", HEADER, "|---" * HEADER.count(" | ") + "|---|", sep="\n")
        for path in paths:
            reporter.stage(f"measuring {path.stem}")
            row = measure(path, runs, pins if models else {"input_shapes": PINS.get(path.stem, {})})
            reporter.stop()
            print(row, flush=True)


if __name__ == "__main__":
    main()
