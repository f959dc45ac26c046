# SPDX-License-Identifier: Apache-2.0
"""Measure a model with sizes that are known at run time only against compilations of single sizes, in
turns in one process on one thread.

    python -m benchmarks.run_time_sizes minilm --seconds 5

Times are minima in milliseconds; ratios are medians over rounds in which each library ran once. The last
line has the processor seconds of compilations without a cache, those of the C compiler included.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from statistics import geometric_mean, median
from typing import Final

import click
import numpy as np
import onnx

import aotc
from aotc.checking.input_generation import draw_random_inputs
from aotc.ir.types import TensorType
from aotc.runtime.session import Session
from benchmarks.networks import minilm
from benchmarks.onnx_graph_builder import resnet18

#: The sizes of a model: ranges for one library, and the sizes that are measured.
Sizes = tuple[dict[str, str], list[dict[str, int]]]


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
            [{"height": h, "width": w} for h, w in ((32, 64), (160, 160), (192, 256), (224, 224), (250, 190))],
        ),
    ),
}


def _compile(model: onnx.ModelProto, dims: Mapping[str, str | int]) -> tuple[Session, float]:
    """Return a session of a model that is compiled without a cache, and the processor seconds of the compilation."""

    def processor_seconds() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    begin = processor_seconds()
    session = aotc.compile(model, dims=dims, threads=False, tuning=False, cache=False).session()
    return session, processor_seconds() - begin


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--seconds", default=5.0, help="Of each size.")
def print_rows(names: tuple[str, ...], seconds: float) -> None:
    """Print a row of the table of docs/performance.md for each size of each model."""
    for name in names or MODELS:
        build, (ranges, cases) = MODELS[name]
        model = build()
        _compile(model, cases[0])  # imports what compilations need
        varying, seconds_of_range = _compile(model, ranges)
        ratios: list[float] = []
        seconds_of_size: list[float] = []
        for sizes in cases:
            fixed, spent = _compile(model, sizes)
            seconds_of_size.append(spent)
            types = {i.name: TensorType([int(d) for d in i.shape], i.dtype) for i in fixed.get_inputs()}
            inputs = draw_random_inputs(types, 0)
            for result, expected in zip(varying.run(None, inputs), fixed.run(None, inputs), strict=True):
                np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
            bindings = [session.bind(inputs) for session in (varying, fixed)]
            rounds: list[list[float]] = []
            end = time.perf_counter() + seconds
            while len(rounds) < 5 or time.perf_counter() < end:
                row = []
                for binding in bindings:
                    begin = time.perf_counter()
                    binding.run()
                    row.append(1e3 * (time.perf_counter() - begin))
                rounds.append(row)
            least = np.min(rounds, axis=0)
            ratios.append(median(a / b for a, b in rounds))
            text = ", ".join(f"{key} {value}" for key, value in sizes.items())
            print(f"| {name} | {text} | {least[0]:.2f} | {least[1]:.2f} | {ratios[-1]:.2f} |", flush=True)
        print(f"{name}: geometric mean of the ratios {geometric_mean(ratios):.3f}", flush=True)
        fixed_seconds = median(seconds_of_size)
        ratio = seconds_of_range / fixed_seconds
        print(f"{name}: compiled in {seconds_of_range:.1f} s, fixed sizes in {fixed_seconds:.1f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    print_rows()
