# SPDX-License-Identifier: Apache-2.0
"""Compare models whose products are in bfloat16 with the same models in float32, and with OpenVINO
under the same precision hint, and print the table of docs/performance.md.

    python -m benchmarks.reduced_precision --threads 1,2 --rounds 40

The contestants of a network run alternately, one run of each in a round. Times are minima in
milliseconds; ratios are medians over the rounds. *error* is the largest difference from aotc's
float32 outputs, relative to their standard deviation.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import onnx

import aotc
from aotc.checking.input_generation import Arrays, draw_random_inputs, session_input_types
from aotc.ir import Array
from aotc.ir.option_value_text import parse_thread_counts
from benchmarks.networks import gpt2_small, gpt2_step, minilm, resnet50, vit_small

NETWORKS: Final[Mapping[str, Callable[[], onnx.ModelProto]]] = {
    "minilm": minilm,
    "vit_small": vit_small,
    "gpt2_small": gpt2_small,
    "gpt2_step": gpt2_step,
    "resnet50": resnet50,
}
PRECISIONS: Final = ("float32", "bfloat16")
#: OpenVINO's names of these precisions.
OPENVINO_HINTS: Final = {"float32": "f32", "bfloat16": "bf16"}
HEADER: Final = (
    "network", "threads", "aotc float32", "aotc bfloat16", "faster", "openvino float32", "openvino bfloat16",
    "of openvino", "error", "openvino's error",
)  # fmt: skip

#: A function that runs a model once and returns its outputs.
Runner = Callable[[], Sequence[Array]]


def aotc_runners(model: onnx.ModelProto, folder: Path, threads: int) -> tuple[dict[str, Runner], Arrays]:
    """Compile a model in each precision, unless it was before; return functions that run it, and the
    seeded inputs.
    """
    sessions = {}
    for precision in PRECISIONS:
        path = folder / f"aotc_{precision}"
        if not path.exists():
            aotc.compile(model, precision=precision, output=path, name="net")
        sessions[f"aotc {precision}"] = aotc.load(path, threads=threads)
    inputs = draw_random_inputs(session_input_types(sessions[f"aotc {PRECISIONS[0]}"]), 0)
    return {name: partial(session.run, None, inputs) for name, session in sessions.items()}, inputs


def openvino_runners(path: Path, inputs: Arrays, threads: int) -> dict[str, Runner]:
    """Return functions that run a model in OpenVINO with each precision hint; none if it is not
    installed.
    """
    if importlib.util.find_spec("openvino") is None:
        return {}
    openvino: Any = importlib.import_module("openvino")
    runners: dict[str, Runner] = {}
    for precision, hint in OPENVINO_HINTS.items():
        config = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        config |= {"PERFORMANCE_HINT": "LATENCY"}
        core = openvino.Core()
        request = core.compile_model(core.read_model(path), "CPU", config).create_infer_request()
        for k, array in enumerate(inputs.values()):
            request.set_input_tensor(k, openvino.Tensor(array, shared_memory=True))

        def infer(request: Any = request) -> Sequence[Array]:
            request.infer()
            return [np.array(tensor.data) for tensor in request.output_tensors]

        runners[f"openvino {precision}"] = infer
    return runners


def measure_rounds(runners: Mapping[str, Runner], rounds: int) -> dict[str, Array]:
    """Return the milliseconds of each runner in each round; all of them run once in a round."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: np.array(values) for name, values in times.items()}


def relative_error(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the largest difference of outputs from a reference, relative to the standard deviation
    of each output.
    """
    return max(float(np.abs(a.reshape(r.shape) - r).max() / r.std()) for a, r in zip(outputs, reference, strict=True))


def result_row(name: str, threads: int, runners: Mapping[str, Runner], rounds: int) -> str:
    """Run the contestants of a network, and return their row of the table."""
    outputs = {contestant: run() for contestant, run in runners.items()}
    reference = outputs["aotc float32"]
    errors = {contestant: relative_error(result, reference) for contestant, result in outputs.items()}
    times = measure_rounds(runners, rounds)
    ours = times["aotc bfloat16"]
    faster = np.median(times["aotc float32"] / ours)
    cells = [name, str(threads), f"{times['aotc float32'].min():.2f}", f"{ours.min():.2f}", f"{faster:.2f}"]
    rival = times.get("openvino bfloat16")
    if rival is None:
        cells += ["-", "-", "-", f"{errors['aotc bfloat16']:.3f}", "-"]
    else:
        cells += [f"{times['openvino float32'].min():.2f}", f"{rival.min():.2f}", f"{np.median(ours / rival):.2f}"]
        cells += [f"{errors['aotc bfloat16']:.3f}", f"{errors['openvino bfloat16']:.3f}"]
    return f"| {' | '.join(cells)} |"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(NETWORKS)))
@click.option("--threads", default="1,2", help="Numbers of threads, separated by commas.")
@click.option("--rounds", default=40, help="Runs of each contestant.")
def print_reduced_precision_table(names: Sequence[str], threads: str, rounds: int) -> None:
    """Print the table of docs/performance.md for some networks, by default for all."""
    click.echo(f"| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|")
    for name in names or NETWORKS:
        model = NETWORKS[name]()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            onnx.save(model, path)
            for count in parse_thread_counts(threads):
                runners, inputs = aotc_runners(model, Path(folder), count)
                click.echo(result_row(name, count, runners | openvino_runners(path, inputs, count), rounds))


if __name__ == "__main__":
    print_reduced_precision_table()
