# SPDX-License-Identifier: Apache-2.0
"""Compare seeded random convolutions with ONNX Runtime, one thread each, and list the cases in
which aotc is slower.

A case is a float32 convolution with bias and "same" padding: 1 to 64 groups, images of 1 to 56 rows
and columns, 16 to 2,048 channels, kernels of 1, 3, 5 and 7, strides 1 and 2, dilations 1 to 3.
Cases of more than `MAX_MULTIPLY_ADDS` multiply-adds or `MAX_WEIGHTS` weights are drawn again. Case
N of a seed does not depend on other options.

Both engines run alternately in one process: an untimed run followed by timed runs for a few
milliseconds. Times are CPU times of the calling thread in milliseconds, since wall-clock times
include waiting for the CPU; short runs are timed several at a time. *ratio* is the minimum of
aotc's times divided by the minimum of ONNX Runtime's times; there is one ratio for each repeat.

    taskset -c 1 python -m benchmarks.random_convolutions              # 300 cases, three repeats
    python -m benchmarks.random_convolutions --record found.jsonl      # continues an interrupted call
    python -m benchmarks.random_convolutions --only 17,203 --seconds 2
    python -m benchmarks.random_convolutions --only groups=2
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aotc
from aotc.cli.options import PATH_TYPE
from aotc.measuring.competitors import (
    BenchmarkModel,
    Contestant,
    load_and_time_first_run,
    load_aotc_library,
    load_rival,
)
from aotc.measuring.timing import repeat_for_seconds

#: Limits of random cases in multiply-adds and in weights: about 30 ms at 100 GFLOP/s, and 32 MiB.
MAX_MULTIPLY_ADDS: Final = 1_500_000_000
MAX_WEIGHTS: Final = 8 << 20
#: Milliseconds of timed runs of an engine before the other engine runs: less than a time slice of a
#: busy machine.
TURN_MILLISECONDS: Final = 4.0
#: Shortest interval in milliseconds that one timer reading covers, as reading the clock takes a
#: system call.
MIN_SAMPLE_MILLISECONDS: Final = 0.1
#: Ratio above which a case is listed as slow.
MIN_SLOW_RATIO: Final = 1.05
#: Largest difference from ONNX Runtime's result, relative to the standard deviation, that counts as
#: rounding error.
MAX_ROUNDING_ERROR: Final = 1e-4


@dataclass(frozen=True)
class ConvolutionCase:
    """Convolution to be measured; `inputs` and `outputs` are numbers of channels."""

    inputs: int
    outputs: int
    groups: int
    height: int
    width: int
    kernel: int
    stride: int
    dilation: int

    def __str__(self) -> str:
        text = f"{self.inputs}->{self.outputs} {self.height}x{self.width} kernel={self.kernel} groups={self.groups}"
        text += f" stride={self.stride}" if self.stride > 1 else ""
        return text + (f" dilation={self.dilation}" if self.dilation > 1 else "")

    @property
    def padding_per_side(self) -> int:
        """Padding on each side with which a convolution of stride 1 keeps the size."""
        return self.dilation * (self.kernel // 2)

    @property
    def weight_count(self) -> int:
        return self.outputs * (self.inputs // self.groups) * self.kernel**2

    @property
    def multiply_add_count(self) -> int:
        """Number of multiply-adds, including products with padding."""
        return self.weight_count * math.prod(-(-extent // self.stride) for extent in (self.height, self.width))

    def build_onnx_model(self) -> onnx.ModelProto:
        """Return the ONNX model with the convolution as its only node and seeded random weights."""
        rng = np.random.default_rng(0)
        shape = (self.outputs, self.inputs // self.groups, self.kernel, self.kernel)
        weights = rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(math.prod(shape[1:])))
        constants = {"w": weights, "b": rng.standard_normal(self.outputs, np.float32)}
        how = {"strides": [self.stride] * 2, "dilations": [self.dilation] * 2, "pads": [self.padding_per_side] * 4}
        node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=self.groups, **how)
        size = [1, self.inputs, self.height, self.width]
        out = [1, self.outputs, *(-(-extent // self.stride) for extent in size[2:])]
        x, y = (helper.make_tensor_value_info(*v) for v in (("x", TensorProto.FLOAT, size), ("y", 1, out)))
        weights_of = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph([node], "convolution", [x], [y], weights_of)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def draw_convolution_within_limits(seed: int, case_number: int) -> ConvolutionCase:
    """Return the random convolution with a number for a seed; redraw cases that exceed the size
    limits.
    """
    rng = np.random.default_rng((seed, case_number))
    while True:
        case = _draw_random_convolution(rng)
        if case.multiply_add_count <= MAX_MULTIPLY_ADDS and case.weight_count <= MAX_WEIGHTS:
            return case


def _draw_random_convolution(rng: np.random.Generator) -> ConvolutionCase:
    """Return a random case; channels are multiples of the groups, and mostly of 8 or 16, as in real
    networks.
    """

    def draw_log_uniform_integer(low: float, high: float) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    groups = int(rng.choice([1, 2, 2, 3, 4, 4, 5, 6, 8, 16, 32, 64]))
    step = math.lcm(groups, int(rng.choice([1, 8, 16, 16])))
    inputs, outputs = (
        min(2048 // step, max(1, round(draw_log_uniform_integer(16, 2048) / step))) * step for _ in range(2)
    )
    height = width = draw_log_uniform_integer(1, 56)
    if rng.random() < 0.25:
        width = draw_log_uniform_integer(1, 56)
    kernel, stride = int(rng.choice([1, 3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
    dilation = 1 if kernel == 1 else int(rng.choice([1, 1, 1, 2, 3]))
    return ConvolutionCase(max(16, inputs), max(16, outputs), groups, height, width, kernel, stride, dilation)


def load_in_aotc_and_onnxruntime(case: ConvolutionCase, scratch: Path) -> Iterator[Contestant]:
    """Yield the compiled convolution and the convolution in ONNX Runtime, ready to run."""
    path = scratch / "convolution.onnx"
    onnx.save(case.build_onnx_model(), path)
    x = np.random.default_rng(1).standard_normal((1, case.inputs, case.height, case.width), np.float32)
    library = aotc.compile(path, output=scratch / "project", name="convolution", tuning=False).library
    yield load_and_time_first_run("aotc", 1, lambda: load_aotc_library(Path(str(library)), {"x": x}, 1))
    yield load_rival("onnxruntime", BenchmarkModel(path, {"x": x}, scratch), 1)


def time_case_in_both_engines(case: ConvolutionCase, repeats: int, seconds: float) -> dict[str, Any]:
    """Measure a case with both engines.

    Return {"ratios": [one per repeat], "aotc" and "onnxruntime": {"min", "median"} in milliseconds,
    "error": largest difference relative to the standard deviation}.
    """
    with tempfile.TemporaryDirectory(prefix="aotc-convolution-") as scratch:
        pair = list(load_in_aotc_and_onnxruntime(case, Path(scratch)))
        actual, expected = (np.asarray(contestant.outputs()[0], np.float64) for contestant in pair)
        error = float(np.abs(actual - expected).max() / expected.std())
        rounds = [_time_both_engines_alternately(pair, seconds) for _ in range(repeats)]
    times = {
        contestant.name: [ms for round_times in rounds for ms in round_times[k]] for k, contestant in enumerate(pair)
    }
    figures = {name: {"min": min(all_ms), "median": median(all_ms)} for name, all_ms in times.items()}
    return {"ratios": [min(a) / min(b) for a, b in rounds], "error": error, **figures}


def _time_both_engines_alternately(pair: Sequence[Contestant], seconds: float) -> tuple[list[float], list[float]]:
    """Return the times of both engines in milliseconds, measured alternately."""
    aotc_times: list[float] = []
    rival: list[float] = []
    calls = [max(1, int(MIN_SAMPLE_MILLISECONDS / cpu_milliseconds_per_call(engine.run, 3))) for engine in pair]
    for _ in repeat_for_seconds(5, seconds):
        for contestant, count, times in zip(pair, calls, (aotc_times, rival), strict=True):
            contestant.run()
            times += [
                cpu_milliseconds_per_call(contestant.run, count) for _ in repeat_for_seconds(1, TURN_MILLISECONDS / 1e3)
            ]
    return aotc_times, rival


def cpu_milliseconds_per_call(run: Callable[[], object], calls: int) -> float:
    """Return the CPU time per call in milliseconds, averaged over `calls` consecutive calls."""
    start = time.thread_time_ns()
    for _ in range(calls):
        run()
    return (time.thread_time_ns() - start) / calls / 1e6


def convolution_table_row(case_number: int, case: ConvolutionCase, figures: Mapping[str, Any]) -> str:
    """Return the Markdown row with the times and ratios of a convolution."""
    aotc_figures, rival = figures["aotc"], figures["onnxruntime"]
    ratios = " ".join(f"{ratio:.2f}" for ratio in figures["ratios"])
    times = f"{aotc_figures['min']:.4f} | {aotc_figures['median']:.4f} | {rival['min']:.4f} | {rival['median']:.4f}"
    return f"| {case_number} | {case} | {times} | {ratios} |{' WRONG' if figures['error'] > MAX_ROUNDING_ERROR else ''}"


def is_case_selected(case_number: int, case: ConvolutionCase, selected_numbers_or_words: Sequence[str]) -> bool:
    """Return True if `selected_numbers_or_words` is empty, or contains the number of a case or a word of its
    description.
    """
    parts = str(case).split()
    return not selected_numbers_or_words or any(
        word == str(case_number) if word.isdigit() else word in parts for word in selected_numbers_or_words
    )


def summarize_ratios_and_slow_cases(
    figures_by_case_number: Mapping[int, tuple[ConvolutionCase, Mapping[str, Any]]],
) -> str:
    """Return a text with the distribution of the ratios and the rows of the slow cases."""
    worst = sorted(figures_by_case_number.items(), key=lambda item: -max(item[1][1]["ratios"]))
    medians = sorted(median(f["ratios"]) for _, f in figures_by_case_number.values())
    slow = [item for item in worst if max(item[1][1]["ratios"]) > MIN_SLOW_RATIO]
    largest = max(worst[0][1][1]["ratios"])
    text = f"{len(figures_by_case_number)} cases: median ratio {median(medians):.2f}, largest {largest:.2f}; "
    return (
        text
        + f"{len(slow)} above {MIN_SLOW_RATIO} in any repeat\n"
        + "\n".join(convolution_table_row(n, *pair) for n, pair in slow)
    )


@click.command()
@click.option("--seed", default=0, help="Of the drawing.")
@click.option("--count", default=300, help="Cases.")
@click.option("--only", default="", help="Numbers of cases or parts of descriptions, separated by commas.")
@click.option("--repeats", default=3, help="Ratios of each case.")
@click.option("--seconds", default=0.2, help="Of each repeat.")
@click.option("--record", type=PATH_TYPE, help="File of JSON lines: cases that it holds are not measured again.")
def compare_random_convolutions(
    seed: int, count: int, only: str, repeats: int, seconds: float, record: Path | None
) -> None:
    """Print a row of a table for each case, and the slow ones once more at the end."""
    known: dict[tuple[int, int], dict[str, Any]] = {}
    if record is not None and record.exists():
        known = {(f["seed"], f["number"]): f for f in map(json.loads, record.read_text().splitlines())}
    words = [word for word in only.split(",") if word]
    cases = {n: draw_convolution_within_limits(seed, n) for n in range(count)}
    results: dict[int, tuple[ConvolutionCase, Mapping[str, Any]]] = {}
    heads = ("case", "convolution", "aotc min", "median", "ONNX Runtime min", "median", "ratios")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for number, case in cases.items():
        if not is_case_selected(number, case, words):
            continue
        if (figures := known.get((seed, number))) is None or figures["case"] != asdict(case):
            figures = {
                "seed": seed,
                "number": number,
                "case": asdict(case),
                **time_case_in_both_engines(case, repeats, seconds),
            }
            if record is not None:
                with record.open("a") as file:
                    file.write(json.dumps(figures) + "\n")
        results[number] = case, figures
        print(convolution_table_row(number, case, figures), flush=True)
    if results:
        print("", summarize_ratios_and_slow_cases(results), sep="\n")


if __name__ == "__main__":
    compare_random_convolutions()
