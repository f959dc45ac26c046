# SPDX-License-Identifier: Apache-2.0
"""What quantized models take on a microcontroller: memory, flash, stack, and instructions of a run.

Each model is firmware for a Cortex-M4 that QEMU runs once on seeded bytes.  The arena has inputs, outputs and scratch;
flash is the code of kernels, as it is linked, and parameters; the stack is what a run was seen to take; instructions,
which are not cycles, are those of the model's functions and of what they call.  Beside it stands the arena of TFLite
Micro on this machine, whose pointers have 64 bits.  All figures are the same from run to run.

    python -m benchmarks.firmware kws_int8.tflite vww_int8.tflite      # the table of docs/performance.md
    python -m benchmarks.firmware --arena ad_int8.tflite net.onnx      # memory alone: needs no C compiler and no QEMU
    python -m benchmarks.firmware --cflags=-Os kws_int8.tflite         # with more flags of the C compiler
    python -m benchmarks.firmware --config compile.patches=4 vww_int8.tflite
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from aotc.driver.compile import compile
from aotc.driver.dependency_injection import install
from aotc.driver.memory_budgets import measured_code
from aotc.driver.toolchain import find_toolchain
from benchmarks.instructions import kernels_of
from tests.targets.firmware import board, program_of

TARGET = "cortex-m4"
HEAD = ("model", "arena", "TFLM's arena", "code", "parameters", "stack", "instructions")
_ARENA = re.compile(r"Arena allocation total (\d+) bytes")
_MICRO = """
import sys
from tflite_micro.python.tflite_micro import runtime
data = open(sys.argv[1], "rb").read()
runtime.Interpreter.from_bytes(data, arena_size=1 << 20).print_allocations()
"""


def arena_of_micro(model: Path) -> int:
    """Bytes that TFLite Micro takes of its arena."""
    command = [sys.executable, "-c", _MICRO, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _ARENA.search(done.stdout + done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def row(path: Path, folder: Path, *flags: str, config: Mapping[str, Any] | None = None) -> list[int]:
    """The figures of a model, by a C compiler with more flags."""
    here, output = board(TARGET), folder / "net"
    made = compile(path, output=output, name="net", target=TARGET, build=False, workspace_io=True, config=config)
    inputs = [
        np.random.default_rng(k).integers(-128, 128, i["shape"]).astype(i["dtype"])
        for k, i in enumerate(made.metadata["inputs"])
    ]
    library = here.make(made.path, *flags)
    program = here.link(library, program_of(made, inputs), folder)
    stack = int(here.start(program).split()[-1])
    instructions = kernels_of(made, TARGET, folder, flags).total()
    code = measured_code(library, find_toolchain(here.cc[0], target=here.target))
    facts = made.metadata["footprint"]
    arena = facts["arena"] + facts["io"]
    return [arena, arena_of_micro(path), code or 0, made.metadata["weights_bytes"], stack, instructions]


def arenas(path: Path, folder: Path) -> list[str]:
    """The arena of a model, and TFLite Micro's; a dash for what that does not run."""
    made = compile(path, output=folder / "net", name="net", target=TARGET, build=False, workspace_io=True)
    facts = made.metadata["footprint"]
    theirs = "-"
    if path.suffix == ".tflite":
        with suppress(subprocess.CalledProcessError):
            theirs = f"{arena_of_micro(path):,}"
    return [f"{facts['arena'] + facts['io']:,}", theirs]


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cflags", multiple=True, help="Flags for all C code.")
@click.option("--config", multiple=True, help="Options of the compiler, KEY=NUMBER.")
@click.option("--arena", is_flag=True, help="Compare memory alone.")
def main(models: Sequence[Path], cflags: Sequence[str], config: Sequence[str], arena: bool) -> None:
    install()
    if arena:
        click.echo(f"| {' | '.join(HEAD[:3])} |\n{'|---' * 3}|")
        for path in models:
            with tempfile.TemporaryDirectory() as folder:
                click.echo(f"| {path.stem} | {' | '.join(arenas(path, Path(folder)))} |")
        return
    options = {key: int(value) for key, value in (one.split("=") for one in config)}
    click.echo(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for path in models:
        with tempfile.TemporaryDirectory() as folder:
            figures = row(path, Path(folder), *cflags, config=options)
        click.echo(f"| {path.stem} | {' | '.join(f'{n:,}' for n in figures)} |")


if __name__ == "__main__":
    main()
