# SPDX-License-Identifier: Apache-2.0
"""Count the instructions per multiply-add of int8 convolutions on foreign processors under QEMU.

Each shape is a model of one int8 convolution with constant weights, whose sums `qnn.requantize`
converts to int8; with --float32, of one float32 operator with bias and ReLU. A QEMU plugin
(tests/targets/icount.c) counts the instructions of all kernels of one run, including kernels that
convert the layout of operands. Instructions are not cycles.

    python -m benchmarks.instruction_counts                     # a table of docs/performance.md
    python -m benchmarks.instruction_counts --target aarch64-i8mm
    python -m benchmarks.instruction_counts --float32 --target riscv64 --target riscv64-v256
    python -m benchmarks.instruction_counts --boards            # microcontrollers, requantized as TFLite Micro does
    python -m benchmarks.instruction_counts --boards --cflags=-Os
    python -m benchmarks.instruction_counts --model kws_int8.tflite --target cortex-m4     # by kernel
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from aotc import relay
from aotc.driver.compile import compile
from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.driver.pipeline import CompiledModel
from aotc.relay.module import IRModule
from benchmarks.single_operators import (
    OperatorShape,
    dense_bias_relu_case,
    float32_conv_bias_relu_case,
    int8_conv_bias_requantize_case,
    module_of_operator_shape,
)
from tests.e2e.projects import run, write_raw
from tests.targets.firmware import MACHINES, board, program_of
from tests.targets.icount import by_function, count
from tests.targets.machines import machine

DEFAULT_TARGETS = ("aarch64", "aarch64-dotprod", "aarch64-i8mm")
CONVOLUTION_SHAPES = (
    int8_conv_bias_requantize_case("3x3", 64, 64, 28, 3, dtype="int8"),
    int8_conv_bias_requantize_case("3x3", 128, 128, 14, 3, dtype="int8"),
    int8_conv_bias_requantize_case("3x3 s2", 64, 128, 28, 3, 2, dtype="int8"),
    int8_conv_bias_requantize_case("1x1", 64, 64, 28, 1, dtype="int8"),
    int8_conv_bias_requantize_case("1x1", 256, 128, 14, 1, dtype="int8"),
)

FLOAT32_SHAPES = (
    float32_conv_bias_relu_case("3x3", 64, 64, 28, 3),
    float32_conv_bias_relu_case("3x3 s2", 64, 128, 28, 3, 2),
    float32_conv_bias_relu_case("7x7 s2", 3, 64, 112, 7, 2),
    float32_conv_bias_relu_case("1x1", 128, 128, 14, 1),
    float32_conv_bias_relu_case("3x3 depthwise", 96, 96, 28, 3, groups=96),
    float32_conv_bias_relu_case("3x3 s2 depthwise", 96, 96, 28, 3, 2, groups=96),
    dense_bias_relu_case(128, 384, 384),
    dense_bias_relu_case(1, 512, 1000),
)


def instructions_per_multiply_add(shape: OperatorShape, target: str, folder: Path) -> float:
    """Return the number of kernel instructions per multiply-add of a shape on a target."""
    here = machine(target)
    folder.mkdir()
    model = compile(module_of_operator_shape(shape), output=folder / "shape", target=target, name="shape", build=False)
    program = model.path / "build/shape_example"
    run(["make", "-s", f"CC={here.cc}", "LDFLAGS=-static", "STATIC=1", program.relative_to(model.path)], model.path)
    rng = np.random.default_rng(1)
    inputs = [
        rng.integers(-128, 128, s).astype(shape.dtype) if shape.dtype != "float32" else rng.random(s, np.float32)
        for s in shape.inputs
    ]
    files = [write_raw(folder, f"input{k}", x) for k, x in enumerate(inputs)]
    counts = by_function(count([*here.emulator, program, *files], folder), program, here.cc)
    return sum(times for name, times in counts.items() if name.startswith(("shape_", "aotc_"))) / shape.macs


@dataclass(frozen=True)
class Layer:
    """Benchmark case: an int8 convolution in NHWC layout, requantized with TFLite's two roundings."""

    name: str
    size: tuple[int, int]
    channels: int
    outputs: int
    kernel: int
    depthwise: bool = False

    @property
    def multiply_accumulates_of_layer(self) -> int:
        inner = 1 if self.depthwise else self.channels
        return self.size[0] * self.size[1] * self.outputs * inner * self.kernel**2

    def build_relay_module(self) -> IRModule:
        rng = np.random.default_rng(0)
        x = relay.var("x", shape=(1, *self.size, self.channels), dtype="int8")
        inner = (self.channels, 1) if self.depthwise else (self.channels, self.outputs)
        weights = relay.const(rng.integers(-127, 128, (self.kernel, self.kernel, *inner)).astype(np.int8))
        unit_scale, scales = (
            relay.const(np.float32(1)),
            relay.const(rng.uniform(0.5, 1, self.outputs).astype(np.float32)),
        )
        layout = {"data_layout": "NHWC", "kernel_layout": "HWOI" if self.depthwise else "HWIO"}
        how = {"kernel_size": (self.kernel, self.kernel), "channels": self.outputs, "padding": (self.kernel // 2,) * 4}
        groups = self.channels if self.depthwise else 1
        sums = relay.qnn.op.conv2d(x, weights, -7, 0, unit_scale, unit_scale, groups=groups, **how, **layout)
        sums = relay.add(sums, relay.const(rng.integers(-999, 999, self.outputs).astype(np.int32)))
        result = relay.qnn.op.requantize(sums, scales, 0, 999.0, 3, rounding="TFLITE", out_dtype="int8")
        return IRModule.from_expr(relay.Function([x], result))


BENCHMARK_LAYERS = (
    Layer("1x1 64->64, 25x5", (25, 5), 64, 64, 1),
    Layer("3x3 16->16, 32x32", (32, 32), 16, 16, 3),
    Layer("3x3 depthwise 64, 25x5", (25, 5), 64, 64, 3, depthwise=True),
)


def instructions_by_function(
    model: CompiledModel, target: str, folder: Path, flags: Sequence[str] = ()
) -> Counter[str]:
    """Return the number of instructions of a firmware run by function: the count for two runs minus
    the count for one.
    """
    here, rng = board(target), np.random.default_rng(1)
    inputs = [rng.integers(-128, 128, i["shape"]).astype(i["dtype"]) for i in model.metadata["inputs"]]
    library, counts = here.make(model.path, *flags), list[Counter[str]]()
    for runs in (1, 2):
        program = here.link(library, program_of(model, inputs, runs), folder)
        counts.append(by_function(count(here.command(program), folder), program, here.cc[0]))
    return Counter(
        {k: n - counts[0][k] for k, n in counts[1].items() if k != "main" and "stack" not in k and n > counts[0][k]}
    )


def compile_without_building_library(source: IRModule | str, target: str, folder: Path) -> CompiledModel:
    return compile(source, output=folder / "net", target=target, name="net", build=False)


def print_instructions_per_layer(targets: Sequence[str], flags: Sequence[str]) -> None:
    """Print the instructions per multiply-add of single layers."""
    click.echo(f"| layer | {' | '.join(targets)} |\n|---|{'---|' * len(targets)}")
    for layer in BENCHMARK_LAYERS:
        cells = []
        for target in targets:
            with tempfile.TemporaryDirectory() as folder:
                model = compile_without_building_library(layer.build_relay_module(), target, Path(folder))
                total = instructions_by_function(model, target, Path(folder), flags).total()
            cells.append(f"{total / layer.multiply_accumulates_of_layer:.2f}")
        click.echo(f"| {layer.name} | {' | '.join(cells)} |")


def print_instructions_by_kernel(path: str, target: str, flags: Sequence[str]) -> None:
    """Print the instructions of one run of a model by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        counts = instructions_by_function(
            compile_without_building_library(path, target, Path(folder)), target, Path(folder), flags
        )
    click.echo(f"| {counts.total():,} | instructions on {target} |\n|---|---|")
    for name, times in counts.most_common():
        click.echo(f"| {times:,} | `{name}` |")


@click.command(help=__doc__)
@click.option("--target", "targets", multiple=True)
@click.option("--float32", is_flag=True)
@click.option("--boards", is_flag=True)
@click.option("--model", "path")
@click.option("--cflags", default="")
@click.argument("words", nargs=-1)
def count_instructions_under_qemu(
    targets: Sequence[str], float32: bool, boards: bool, path: str | None, cflags: str, words: Sequence[str]
) -> None:
    install_operators_and_passes()
    if path:
        return print_instructions_by_kernel(path, targets[0] if targets else "cortex-m4", cflags.split())
    if boards:
        return print_instructions_per_layer(targets or tuple(MACHINES), cflags.split())
    targets = targets or DEFAULT_TARGETS
    click.echo(f"| shape | {' | '.join(targets)} |\n|---|{'---|' * len(targets)}")
    for shape in FLOAT32_SHAPES if float32 else CONVOLUTION_SHAPES:
        if words and not any(word in shape.name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = [f"{instructions_per_multiply_add(shape, target, Path(folder) / target):.3f}" for target in targets]
        click.echo(f"| {shape.name.removeprefix('bytes ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    count_instructions_under_qemu()
