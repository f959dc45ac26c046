# SPDX-License-Identifier: Apache-2.0
"""Benchmark compiled models against other inference engines, and print the table of
docs/performance.md.

`aotc.measuring.bench` describes the method. Times are the minimum of a round in milliseconds; a
star marks a competitor whose outputs are wrong, a dash one that is not installed or fails on the
model (the reasons are listed below the table). *ratio* is aotc's minimum divided by that of the
fastest competitor with correct outputs.

    python -m benchmarks.run                         # the networks built here and the trained models that are found
    python -m benchmarks.run --repeat 50 --threads 1,2 --json figures.json path.onnx --dim batch=1
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import onnx

from aotc.cli.compile_options import SHAPE_OPTIONS
from aotc.cli.console import report_errors_and_exit
from aotc.cli.options import PATH_TYPE, declare_option
from aotc.ir.option_value_text import parse_comma_separated_names, parse_thread_counts
from aotc.measuring.bench import benchmark_model
from aotc.measuring.competitors import RIVAL_LOADERS
from benchmarks.networks import NETWORK_BUILD_FUNCTIONS

REPOSITORY_ROOT = Path(__file__).parents[1]
INPUT_SHAPES_BY_MODEL: dict[str, dict[str, list[int]]] = {
    "superres10": {"input": [1, 1, 224, 224]},
    "ppocr_cls": {"x": [1, 3, 48, 192]},
    "magika_v3_3": {"bytes": [1, 2048]},
    "ppocrv3_det": {"x": [1, 3, 320, 320]},
    "silero_vad_16k_op15": {"input": [1, 576], "state": [2, 1, 128]},
    "tinystories260k_prefill": {"tokens": [1, 64]},
    "tinystories260k_decode": {f"past_{kind}{layer}": [1, 4, 63, 8] for kind in "kv" for layer in range(5)},
}
"""Input shapes that the benchmarks use for models with dynamic dimensions."""
TRAINED_MODELS = (
    "mnist8", "superres10", "squeezenet10_fp32", "ppocr_cls", "ultraface_rfb320", "yunet_n_320", "yolox_nano",
    "selfie_seg", "vittrack", "dtln_1", "dtln_2", "kws_fp32", "magika_v3_3", "gtcrn_simple", "ppocrv3_det",
    "silero_vad_16k_op15", "tinystories260k_prefill", "tinystories260k_decode",
)  # fmt: skip


def benchmark_table_header(rivals: Sequence[str]) -> str:
    """Return the header row of the Markdown table of benchmark results, and its separator."""
    last = ("ratio", "difference", "arena MB", "bound MB", ".so MB", "build s")
    cells = ["model", "threads", "aotc min", "median", *rivals, *last]
    return f"| {' | '.join(cells)} |\n{'|---' * len(cells)}|"


def benchmark_table_row(
    name: str, result: Mapping[str, Any], round_result: Mapping[str, Any], against: Sequence[str]
) -> str:
    """Return the Markdown row with the benchmark results of a model for a number of threads."""
    aotc_result, *rivals = round_result["contestants"]
    rival_cells = {r["name"]: f"{r['milliseconds']['min']:.3f}{'' if r['agrees'] else ' *'}" for r in rivals}
    memory, ratio = result["memory"], round_result["ratio"]
    milliseconds = aotc_result["milliseconds"]
    cells = [
        name, str(round_result["threads"]), f"{milliseconds['min']:.3f}", f"{milliseconds['median']:.3f}",
        *(rival_cells.get(n, "-") for n in against), "-" if ratio is None else f"{ratio:.2f}",
        f"{aotc_result['relative']:.1e}{'' if aotc_result['agrees'] else ' WRONG'}", f"{memory['peak'] / 1e6:.2f}",
        f"{memory['lower_bound'] / 1e6:.2f}", f"{result['library_bytes'] / 1e6:.2f}", f"{result['build_seconds']:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def measurement_conditions_text(result: Mapping[str, Any]) -> str:
    """Return the conditions of the measurement: machine, versions, target and date, one line each."""
    machine, versions = result["machine"], result["versions"]
    rivals = {r["name"]: r["version"] for turn in result["rounds"] for r in turn["contestants"]}
    return (
        f"machine   {machine['cpu']}, {machine['processors']} processors, load {machine['load']}\n"
        f"versions  {', '.join(f'{n} {v}' for n, v in rivals.items())}; {versions['compiler']}\n"
        f"how       target {result['target']}, {result['date']}\n"
    )


@click.command()
@click.argument("models", nargs=-1, type=PATH_TYPE)
@declare_option(
    "--against",
    "Implementations.",
    default=",".join(RIVAL_LOADERS),
    read=parse_comma_separated_names,
    metavar="NAME,...",
)
@declare_option("--threads", "Numbers of threads.", default="1", read=parse_thread_counts, metavar="N,...")
@declare_option("--repeat", "Turns of each, at most.", click.IntRange(1), 100)
@declare_option("--seconds", "For each round, at most.", click.FloatRange(0), 20.0)
@declare_option("--json json_file", "Write all figures there.", PATH_TYPE)
@SHAPE_OPTIONS
def benchmark_models_against_rivals(
    models: tuple[Path, ...],
    against: tuple[str, ...],
    threads: tuple[int, ...],
    repeat: int,
    seconds: float,
    json_file: Path | None,
    **pins: Any,
) -> None:
    """Measure MODELS (.onnx), or the networks built here and the trained models at hand, beside the
    rivals.
    """
    folder = Path(os.environ.get("AOTC_MODELS", REPOSITORY_ROOT.parent / "shared" / "models"))
    how: dict[str, Any] = {"against": against, "threads": threads, "repeat": repeat, "seconds": seconds, "cache": False}
    results, notes = [], []
    with tempfile.TemporaryDirectory() as scratch, report_errors_and_exit() as reporter:
        built = (
            {} if models else {Path(scratch) / f"{name}.onnx": make for name, make in NETWORK_BUILD_FUNCTIONS.items()}
        )
        for path, make in built.items():
            onnx.save(make(), path)
        for path in models or (*built, *(p for n in TRAINED_MODELS if (p := folder / f"{n}.onnx").exists())):
            reporter.report_stage(f"measuring {path.stem}")
            result = benchmark_model(
                path, **how, **(pins if models else {"input_shapes": INPUT_SHAPES_BY_MODEL.get(path.stem, {})})
            )
            reporter.stop_progress_display()
            if not results:
                print(measurement_conditions_text(result), benchmark_table_header(against), sep="\n")
            results.append(result)
            for turn in result["rounds"]:
                print(benchmark_table_row(path.stem, result, turn, against), flush=True)
                notes += [f"{path.stem}: {r['name']}: {r['reason']}" for r in turn["skipped"]]
                notes += [f"{path.stem}: {r['name']}: {r['reason']}" for r in turn["contestants"] if not r["agrees"]]
    print("", *dict.fromkeys(notes), sep="\n")
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    benchmark_models_against_rivals()
