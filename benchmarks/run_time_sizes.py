# SPDX-License-Identifier: Apache-2.0
"""Measure models with sizes that are known at run time only against compilations of single sizes, and against
ONNX Runtime, in turns in one process on one thread.

    python -m benchmarks.run_time_sizes                       # all models
    python -m benchmarks.run_time_sizes minilm --seconds 5

Trained models are read from the folder in the environment variable AOTC_MODELS, and left out if it does not have
them. Times are processor times in milliseconds, so that other work on the machine matters less. The ratio of minima and
the median over rounds, in which each library ran once, compare the library of all sizes with that of one size; the last
column, the median ratio of the library of all sizes to ONNX Runtime, whose model has the sizes of a run, too. The last
lines of a model have the geometric mean of the ratios, the ratio of the arena for the largest sizes to that of a
compilation for these sizes, and the processor seconds of compilations without a cache, those of the C compiler
included.
"""

from __future__ import annotations

import importlib.util
import os
import resource
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
from aotc.ir import TensorType
from aotc.runtime.session import Session
from benchmarks.networks import minilm
from benchmarks.onnx_graph_builder import resnet18

REPOSITORY_ROOT: Final = Path(__file__).resolve().parent.parent
#: Least time for which a library runs in a round.
MIN_MILLISECONDS_IN_ROUND: Final = 4.0
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


def _compile(model: onnx.ModelProto, dims: Mapping[str, str | int]) -> tuple[Session, float]:
    """Return a session of a model that is compiled without a cache, and the processor seconds of the compilation."""
    begin = _processor_seconds_of_compilations()
    session = aotc.compile(model, dims=dims, threads=False, tuning=False, cache=False).session()
    return session, _processor_seconds_of_compilations() - begin


def _arena_bytes(model: onnx.ModelProto, dims: Mapping[str, str | int]) -> int:
    """Return the bytes of the arena of a model."""
    compiled = aotc.compile(model, dims=dims, threads=False, tuning=False, build=False)
    return int(compiled.metadata["footprint"]["arena"])


def _onnx_runtime_run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Callable[[], Any] | None:
    """Return a function that runs a model with ONNX Runtime on one thread; None if that is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))


def _measure(runs: list[Callable[[], Any]], seconds: float) -> np.ndarray[Any, Any]:
    """Return the processor times of some runs in milliseconds, a row for each round. Short runs are repeated in each
    round, so that caches have what they need.
    """

    def milliseconds(run: Callable[[], Any], count: int) -> float:
        begin = time.process_time()
        for _ in range(count):
            run()
        return 1e3 * (time.process_time() - begin) / count

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


def _print_rows_of_size(
    name: str, model: onnx.ModelProto, varying: Session, fixed: Session, sizes: Mapping[str, int], seconds: float
) -> float:
    """Print the row of one size; return the median ratio to the library of this size."""
    inputs = _inputs_of_session(fixed)
    for result, expected in zip(varying.run(None, inputs), fixed.run(None, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
    rival = _onnx_runtime_run(model, inputs)
    runs: list[Callable[[], Any]] = [session.bind(inputs).run for session in (varying, fixed)]
    times = _measure(runs if rival is None else [*runs, rival], seconds)
    least, ratio = times.min(0), median(times[:, 0] / times[:, 1])
    text = " x ".join(map(str, sizes.values()))
    beside = "-" if rival is None else f"{median(times[:, 0] / times[:, 2]):.2f}"
    row = f"{least[0]:.3g} | {least[1]:.3g} | {least[0] / least[1]:.2f} | {ratio:.2f} | {beside}"
    print(f"| {name} | {text} | {row} |", flush=True)
    return ratio


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--seconds", default=5.0, help="Of each size.")
def print_rows(names: tuple[str, ...], seconds: float) -> None:
    """Print a row of the table of docs/performance.md for each size of each model."""
    print("| model | sizes | all sizes | one size | ratio of minima | median ratio | median ratio to ONNX Runtime |")
    print("|---|---|---|---|---|---|---|")
    for name in names or MODELS:
        build, (ranges, cases) = MODELS[name]
        try:
            model = build()
        except FileNotFoundError:
            print(f"{name}: the folder in AOTC_MODELS does not have it")
            continue
        given = {key: value for key, value in ranges.items() if isinstance(value, int)}
        _compile(model, {**given, **cases[0]})  # imports what compilations need
        varying, seconds_of_range = _compile(model, ranges)
        ratios: list[float] = []
        seconds_of_size: list[float] = []
        for sizes in cases:
            fixed, spent = _compile(model, {**given, **sizes})
            seconds_of_size.append(spent)
            ratios.append(_print_rows_of_size(name, model, varying, fixed, sizes, seconds))
        largest = {key: int(str(text).rpartition("..")[2].split("~")[0].split(":")[0]) for key, text in ranges.items()}
        arenas = [_arena_bytes(model, dims) for dims in (ranges, largest)]
        print(f"{name}: geometric mean of the ratios {geometric_mean(ratios):.3f}")
        print(f"{name}: arena {arenas[0]} bytes, {arenas[1]} for the largest sizes, ratio {arenas[0] / arenas[1]:.3f}")
        fixed_seconds = median(seconds_of_size)
        ratio = seconds_of_range / fixed_seconds
        print(f"{name}: compiled in {seconds_of_range:.1f} s, fixed sizes in {fixed_seconds:.1f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    print_rows()
