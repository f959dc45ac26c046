# SPDX-License-Identifier: Apache-2.0
"""Measure where the time of a compilation goes, from an .onnx file to a library, and compare two
checkouts of aotc.

Each compilation runs in a process of its own, with an empty cache. The table has one row per stage:

    wall      seconds that pass
    aotc      processor seconds of the compiler itself
    children  processor seconds of its child processes: the C compiler in the stage that runs it, and
              in other stages the processes among which kernels are divided

The values are the minima of the repetitions; with two checkouts, the compilations alternate.

    python -m benchmarks.compile_time resnet18 mobilenet_v2              # this checkout
    python -m benchmarks.compile_time minilm model.onnx --target c --before ../aotc-0.2
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click
import onnx

from benchmarks.networks import NETWORK_BUILD_FUNCTIONS

#: For each stage: wall seconds, processor seconds of the compiler, processor seconds of its children.
StageSeconds: TypeAlias = "dict[str, tuple[float, float, float]]"
ROOT: Final = Path(__file__).parents[1]
#: Program that compiles a model and prints the seconds of each stage; it runs in any checkout.
_MEASURED_PROGRAM: Final = """
import json, resource, sys, time
def now():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), time.process_time(), children.ru_utime + children.ru_stime
stages = [("importing aotc", (time.perf_counter(), 0.0, 0.0))]
import aotc
aotc.compile
stages.append(("preparing", now()))
aotc.compile(sys.argv[1], output=sys.argv[2], target=sys.argv[3], progress=lambda name: stages.append((name, now())))
stages.append(("end", now()))
rows = [(a[0], [y - x for x, y in zip(a[1], b[1])]) for a, b in zip(stages, stages[1:])]
print(json.dumps(rows))
"""


def measure_compilation(checkout: Path, model: Path, target: str) -> StageSeconds:
    """Compile a model with the aotc of a checkout and an empty cache; return the seconds of each
    stage.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(str(checkout / part) for part in (".", "codegen", "runtime_c"))
        environment = {**os.environ, "PYTHONPATH": path, "AOTC_CACHE_DIR": f"{folder}/cache"}
        # compiled Python files are kept, as for an installed package
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", _MEASURED_PROGRAM, str(model), f"{folder}/net", target]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
        return {stage: tuple(seconds) for stage, seconds in json.loads(done.stdout)}


def minimum_of_each_figure(measurements: Sequence[StageSeconds]) -> StageSeconds:
    """Return the minimum of each figure of several measurements, and the minimal totals as the
    stage "all stages".
    """
    totals = [tuple(map(sum, zip(*stages.values(), strict=True))) for stages in measurements]
    rows = [{**stages, "all stages": total} for stages, total in zip(measurements, totals, strict=True)]
    return {stage: tuple(map(min, zip(*(row[stage] for row in rows), strict=True))) for stage in rows[0]}  # type: ignore[misc]


def print_stage_table(title: str, checkouts: Sequence[str], results: Sequence[StageSeconds]) -> None:
    """Print the seconds of each stage, for one checkout or for two side by side with the ratio of
    wall seconds and of processor seconds of the second to the first.
    """
    print(f"\n{title}")
    header = "".join(f"{name:>13}: wall   aotc children" for name in checkouts)
    print(f"{'stage':28}{header}" + ("   wall  processor" if len(results) > 1 else ""))
    for stage in results[-1]:
        figures = [result.get(stage, (0.0, 0.0, 0.0)) for result in results]
        columns = "".join(f"{wall:19.2f} {own:6.2f} {children:8.2f}" for wall, own, children in figures)
        ratios = ""
        if len(figures) > 1:
            (wall, *cpu), (new_wall, *new_cpu) = figures
            ratios = f"{new_wall / max(wall, 1e-9):7.2f} {sum(new_cpu) / max(sum(cpu), 1e-9):10.2f}"
        print(f"{stage:28}{columns}{ratios}")


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option(
    "--target", "targets", multiple=True, default=("host",), show_default=True, help="Targets to compile for."
)
@click.option(
    "--before", type=click.Path(path_type=Path, exists=True), help="Root of another checkout to compare with."
)
@click.option("--repeats", default=3, show_default=True, help="Compilations of each model.")
def main(models: tuple[str, ...], targets: tuple[str, ...], before: Path | None, repeats: int) -> None:
    """Print the seconds of each stage of compiling MODELS: names of benchmark networks, or paths of
    .onnx files.
    """
    checkouts = {"this": ROOT} if before is None else {"before": before.resolve(), "this": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            path = Path(name).resolve()
            if name in NETWORK_BUILD_FUNCTIONS:
                path = Path(folder) / f"{name}.onnx"
                onnx.save(NETWORK_BUILD_FUNCTIONS[name](), path)
            for target in targets:
                runs = [[measure_compilation(c, path, target) for c in checkouts.values()] for _ in range(repeats)]
                results = [minimum_of_each_figure(measurements) for measurements in zip(*runs, strict=True)]
                print_stage_table(f"{path.stem}, {target}", list(checkouts), results)


if __name__ == "__main__":
    main()
