# SPDX-License-Identifier: Apache-2.0
"""Count the instructions of convolutions of bytes on processors that are not at hand, under QEMU, per multiply-add.

Each shape is a model of one convolution of int8 with constant weights, whose sums `qnn.requantize` brings to int8.
What is counted are all kernels of one run, those that bring operands into another order among them, by a plugin of QEMU
(tests/targets/icount.c).  Instructions are not cycles.

    python -m benchmarks.instructions                     # the table of docs/performance.md
    python -m benchmarks.instructions --target aarch64-i8mm
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from aotc.driver.compile import compile
from aotc.driver.wiring import install
from benchmarks.contraction import Shape, byte_conv, model
from tests.e2e.projects import run, write_raw
from tests.targets.icount import by_function, count
from tests.targets.machines import machine

TARGETS = ("aarch64", "aarch64-dotprod", "aarch64-i8mm")
SHAPES = (
    byte_conv("3x3", 64, 64, 28, 3, dtype="int8"),
    byte_conv("3x3", 128, 128, 14, 3, dtype="int8"),
    byte_conv("3x3 s2", 64, 128, 28, 3, 2, dtype="int8"),
    byte_conv("1x1", 64, 64, 28, 1, dtype="int8"),
    byte_conv("1x1", 256, 128, 14, 1, dtype="int8"),
)


def counted(shape: Shape, target: str, folder: Path) -> float:
    """Instructions of the kernels of a shape for each multiply-add."""
    here = machine(target)
    folder.mkdir()
    made = compile(model(shape), output=folder / "shape", target=target, name="shape", build=False)
    program = made.path / "build/shape_example"
    run(["make", "-s", f"CC={here.cc}", "LDFLAGS=-static", program.relative_to(made.path)], made.path)
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-128, 128, s).astype(shape.dtype) for s in shape.inputs]
    files = [write_raw(folder, f"input{k}", x) for k, x in enumerate(inputs)]
    found = by_function(count([*here.emulator, program, *files], folder), program, here.cc)
    return sum(times for name, times in found.items() if name.startswith(("shape_", "aotc_"))) / shape.macs


@click.command(help=__doc__)
@click.option("--target", "targets", multiple=True, default=TARGETS)
@click.argument("words", nargs=-1)
def main(targets: Sequence[str], words: Sequence[str]) -> None:
    install()
    click.echo(f"| shape | {' | '.join(targets)} |\n|---|{'---|' * len(targets)}")
    for shape in SHAPES:
        if words and not any(word in shape.name for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = [f"{counted(shape, target, Path(folder) / target):.3f}" for target in targets]
        click.echo(f"| {shape.name.removeprefix('bytes ')} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
