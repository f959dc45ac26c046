# SPDX-License-Identifier: Apache-2.0
"""Measure models with sizes that are known at run time only against compilations of single sizes, and against
ONNX Runtime and OpenVINO, in turns in one process, on one thread and on two.

    python -m benchmarks.run_time_sizes                       # all models
    python -m benchmarks.run_time_sizes minilm --seconds 5 --threads 1

Trained models are read from the folder in the environment variable AOTC_MODELS, and left out if it does not have
them. Times are in milliseconds: with one thread processor times, so that other work on the machine matters less, with
several threads those of the wall clock. The ratio of minima and the median over rounds, in which each library ran once,
compare the library of all sizes with that of one size. The last columns have the median ratios of the library of all
sizes, and after a slash of the library of one size, to ONNX Runtime and to OpenVINO, whose models have the sizes of a
run, too; a dash stands for one that is not installed or fails. The last lines of a model have the geometric mean of
the ratios for each number of threads, the ratio of the arena for the largest sizes to that of a compilation for them,
and the processor seconds of compilations without a cache, those of the C compiler included.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Final

import click
import numpy as np
import onnx

import aotc
from aotc.checking.input_generation import draw_random_inputs
from aotc.driver.pipeline import CompiledModel
from aotc.ir import AotcError, TensorType
from aotc.measuring.competitors import BenchmarkModel, load_rival
from aotc.runtime.session import Session
from benchmarks.networks import minilm
from benchmarks.onnx_graph_builder import resnet18

REPOSITORY_ROOT: Final = Path(__file__).resolve().parent.parent
#: Least time for which a library runs in a round.
MIN_MILLISECONDS_IN_ROUND: Final = 4.0
#: Other implementations, in the order of their columns.
RIVALS: Final = ("onnxruntime", "openvino")
MODEL_FOLDER: Final = Path(os.environ.get("AOTC_MODELS", REPOSITORY_ROOT.parent / "shared" / "models"))

#: The sizes of a model: ranges for one library, and the sizes that are measured.
Sizes = tuple[dict[str, str | int], list[dict[str, int]]]


def _with_symbolic_dimensions(model: onnx.ModelProto, dims: dict[int, str]) -> onnx.ModelProto:
    """Return a model whose input and output have symbols as some dimensions, and whose reshapes keep the
    first two dimensions of their operands.
    """
    for value in (*model.graph.input, *model.graph.output):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis in dims and (value in model.graph.input or axis < 2):
                dim.dim_param = dims[axis]
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64:
            shape = onnx.numpy_helper.to_array(tensor).copy()
            shape[:2] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(shape, tensor.name))
    return model


def _with_symbolic_images(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one image whose height and width are symbols."""
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    return model


def _trained_model(name: str) -> Callable[[], onnx.ModelProto]:
    """Return a function that reads a trained model."""
    return lambda: onnx.load(MODEL_FOLDER / f"{name}.onnx")


def _images(names: tuple[str, str], sizes: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    """Return the sizes of images by the names of height and width."""
    return [dict(zip(names, size, strict=True)) for size in sizes]


_PADDLE = tuple(f"p2o.DynamicDimension.{axis}" for axis in range(3))
MODELS: Final[dict[str, tuple[Callable[[], onnx.ModelProto], Sizes]]] = {
    "minilm": (
        lambda: _with_symbolic_dimensions(minilm(), {0: "batch", 1: "seq"}),
        (
            {"batch": "1..4", "seq": "1..256~128"},
            [{"batch": b, "seq": n} for b, n in ((1, 16), (1, 64), (1, 128), (1, 256), (4, 32))],
        ),
    ),
    "resnet18": (
        lambda: _with_symbolic_images(resnet18()),
        (
            {"height": "32..256~224", "width": "32..256~224"},
            _images(("height", "width"), ((32, 64), (160, 160), (192, 256), (224, 224), (250, 190))),
        ),
    ),
    "yunet_n_dynamic": (
        _trained_model("yunet_n_dynamic"),
        (
            {"batch": 1, "height": "32..640:32~320", "width": "32..640:32~320"},
            _images(("height", "width"), ((160, 160), (320, 320), (320, 640), (480, 480), (640, 640))),
        ),
    ),
    "ppocrv3_det": (
        _trained_model("ppocrv3_det"),
        (
            {_PADDLE[0]: 1, _PADDLE[1]: "32..640:32~320", _PADDLE[2]: "32..640:32~320"},
            _images((_PADDLE[1], _PADDLE[2]), ((160, 160), (320, 320), (320, 640), (480, 480), (640, 640))),
        ),
    ),
    "magika_v3_3": (
        _trained_model("magika_v3_3"),
        ({"unk__214": "1..32~8"}, [{"unk__214": n} for n in (1, 4, 8, 16, 32)]),
    ),
    "tinystories260k_prefill": (
        _trained_model("tinystories260k_prefill"),
        ({"S": "1..256~128"}, [{"S": n} for n in (16, 50, 64, 128, 256)]),
    ),
    "tinystories260k_decode": (
        _trained_model("tinystories260k_decode"),
        ({"P": "1..511~255"}, [{"P": n} for n in (16, 63, 128, 255, 511)]),
    ),
}


def _processor_seconds_of_compilations() -> float:
    """Return the processor seconds of this process and of the compilers that it ran."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _compile(model: onnx.ModelProto, dims: Mapping[str, str | int], threads: int) -> tuple[CompiledModel, float]:
    """Return a model that is compiled without a cache, with code for threads if there may be several, and the processor
    seconds of the compilation.
    """
    begin = _processor_seconds_of_compilations()
    compiled = aotc.compile(model, dims=dims, threads=threads > 1, tuning=False, cache=False)
    return compiled, _processor_seconds_of_compilations() - begin


def _arena_bytes(model: onnx.ModelProto, dims: Mapping[str, str | int]) -> int:
    """Return the bytes of the arena of a model."""
    compiled = aotc.compile(model, dims=dims, threads=False, tuning=False, build=False)
    return int(compiled.metadata["footprint"]["arena"])


def _rival_run(name: str, model: Path, inputs: Mapping[str, Any], threads: int) -> Callable[[], Any] | None:
    """Return a function that runs a model with another implementation; None if that is not installed, or fails."""
    try:
        return load_rival(name, BenchmarkModel(model, dict(inputs), model.parent), threads).run
    except AotcError as error:
        click.echo(f"{name}: {error}", err=True)
        return None


def _measure(runs: list[Callable[[], Any]], seconds: float, threads: int) -> np.ndarray[Any, Any]:
    """Return the times of some runs in milliseconds, a row for each round: processor times of one thread, or wall
    clock. Short runs are repeated in each round, so that caches have what they need.
    """
    clock = time.process_time if threads == 1 else time.perf_counter

    def milliseconds(run: Callable[[], Any], count: int) -> float:
        begin = clock()
        for _ in range(count):
            run()
        return 1e3 * (clock() - begin) / count

    count = max(1, int(MIN_MILLISECONDS_IN_ROUND / min(milliseconds(runs[0], 1) for _ in range(3))))
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 5 or time.perf_counter() < end:
        rounds.append([milliseconds(run, count) for run in runs])
    return np.array(rounds)


def _inputs_of_session(session: Session) -> dict[str, Any]:
    """Return random inputs of a library of one size; integers are small, so that they number rows of tables."""
    types = {i.name: TensorType([int(d) for d in i.shape], i.dtype) for i in session.get_inputs()}
    inputs = draw_random_inputs(types, 0)
    return {name: value % 100 if value.dtype.kind in "iu" else value for name, value in inputs.items()}


def _print_row(
    label: str, model: Path, compiled: tuple[CompiledModel, CompiledModel], threads: int, seconds: float
) -> float:
    """Print the row of one size and number of threads; return the median ratio to the library of this size.

    label       the model and the sizes, as the first columns
    model       path of the model
    compiled    the libraries of all sizes and of this one
    """
    varying, fixed = (made.session(threads=threads) for made in compiled)
    inputs = _inputs_of_session(fixed)
    for result, expected in zip(varying.run(None, inputs), fixed.run(None, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
    rivals = {name: _rival_run(name, model, inputs, threads) for name in RIVALS}
    installed = {name: run for name, run in rivals.items() if run is not None}
    runs: list[Callable[[], Any]] = [session.bind(inputs).run for session in (varying, fixed)]
    times = _measure([*runs, *installed.values()], seconds, threads)
    least, ratio = times.min(0), float(median(times[:, 0] / times[:, 1]))
    beside = dict.fromkeys(RIVALS, "-")
    for k, name in enumerate(installed, 2):
        beside[name] = " / ".join(f"{median(times[:, place] / times[:, k]):.2f}" for place in range(2))
    columns = (f"{least[0]:.3g}", f"{least[1]:.3g}", f"{least[0] / least[1]:.2f}", f"{ratio:.2f}", *beside.values())
    print(f"| {label} | {threads} | {' | '.join(columns)} |", flush=True)
    return ratio


def _print_rows_of_model(name: str, model: onnx.ModelProto, threads: tuple[int, ...], seconds: float) -> None:
    """Print the rows of a model, and what they amount to."""
    ranges, cases = MODELS[name][1]
    given = {key: value for key, value in ranges.items() if isinstance(value, int)}
    most = max(threads)
    _compile(model, {**given, **cases[0]}, most)  # imports what compilations need
    varying, seconds_of_range = _compile(model, ranges, most)
    ratios: dict[int, list[float]] = {count: [] for count in threads}
    seconds_of_size: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        for sizes in cases:
            fixed, spent = _compile(model, {**given, **sizes}, most)
            seconds_of_size.append(spent)
            label = f"{name} | {' x '.join(map(str, sizes.values()))}"
            for count, found in ratios.items():
                found.append(_print_row(label, path, (varying, fixed), count, seconds))
    largest = {key: int(str(text).rpartition("..")[2].split("~")[0].split(":")[0]) for key, text in ranges.items()}
    arenas = [_arena_bytes(model, dims) for dims in (ranges, largest)]
    for count, found in ratios.items():
        print(f"{name}: geometric mean of the ratios {geometric_mean(found):.3f}, threads {count}")
    print(f"{name}: arena {arenas[0]} bytes, {arenas[1]} for the largest sizes, ratio {arenas[0] / arenas[1]:.3f}")
    fixed_seconds = median(seconds_of_size)
    ratio = seconds_of_range / fixed_seconds
    print(f"{name}: compiled in {seconds_of_range:.1f} s, fixed sizes in {fixed_seconds:.1f} s, ratio {ratio:.2f}")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--seconds", default=5.0, help="Of each size and number of threads.")
@click.option("--threads", multiple=True, type=click.IntRange(1), default=(1, 2), help="Numbers of threads.")
def print_rows(names: tuple[str, ...], seconds: float, threads: tuple[int, ...]) -> None:
    """Print a row of the table of docs/performance.md for each size of each model and number of threads."""
    print(
        "| model | sizes | threads | all sizes | one size | ratio of minima | median ratio "
        "| to ONNX Runtime, all / one | to OpenVINO, all / one |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names or MODELS:
        try:
            model = MODELS[name][0]()
        except FileNotFoundError:
            print(f"{name}: the folder in AOTC_MODELS does not have it")
            continue
        _print_rows_of_model(name, model, threads, seconds)


if __name__ == "__main__":
    print_rows()
