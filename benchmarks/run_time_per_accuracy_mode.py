# SPDX-License-Identifier: Apache-2.0
"""Measure the run time of a model for each accuracy mode of the compiler, alternately on one
thread.

    python -m benchmarks.run_time_per_accuracy_mode net.onnx other.onnx --seconds 2

Times are minima in milliseconds; ratios are medians over rounds in which each mode ran once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np

import aotc
from aotc.checking.input_generation import draw_random_inputs, session_input_types
from aotc.cli.options import PATH_TYPE
from aotc.ir.option_description import ACCURACIES
from benchmarks.run import INPUT_SHAPES_BY_MODEL


@click.command()
@click.argument("models", nargs=-1, type=PATH_TYPE)
@click.option("--seconds", default=2.0, help="Of each model.")
def print_accuracy_cost_rows(models: Sequence[Path], seconds: float) -> None:
    """Print a row of the table of docs/performance.md for each model."""
    for path in models:
        shapes = INPUT_SHAPES_BY_MODEL.get(path.stem, {})
        compiled_models = [
            aotc.compile(path, input_shapes=shapes, accuracy=accuracy, tuning=False) for accuracy in ACCURACIES
        ]
        sessions = [model.session() for model in compiled_models]
        inputs = draw_random_inputs(session_input_types(sessions[0]), 0)
        rounds: list[list[float]] = []
        end = time.perf_counter() + seconds
        while len(rounds) < 5 or time.perf_counter() < end:
            row = []
            for session in sessions:
                begin = time.perf_counter()
                session.run(None, inputs)
                row.append(1e3 * (time.perf_counter() - begin))
            rounds.append(row)
        least = np.min(rounds, axis=0)
        strict, ordered = (median(row[k] / row[0] for row in rounds) for k in (1, 2))
        times = " | ".join(f"{ms:.3f}" for ms in least)
        print(f"| {path.stem} | {times} | {strict:.2f} | {ordered:.2f} | {ordered / strict:.2f} |", flush=True)


if __name__ == "__main__":
    print_accuracy_cost_rows()
