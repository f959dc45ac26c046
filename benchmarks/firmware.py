# SPDX-License-Identifier: Apache-2.0
"""Measure quantized models on a microcontroller: memory, flash, stack, and executed instructions of
a run.

Each model is built as firmware for a Cortex-M4 and run once in QEMU on seeded random inputs. The
arena includes inputs, outputs and scratch; flash is the linked code of the kernels, and parameters;
the stack is the observed usage of a run; instructions, which are not cycles, are those of the
model's functions and of functions they call. For comparison, the table shows the arena of TFLite
Micro on this machine, whose pointers have 64 bits. All figures are deterministic.

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
from aotc.driver.memory_budgets import measure_code_bytes
from aotc.driver.operator_and_pass_registration import install_operators_and_passes
from aotc.driver.toolchain import find_toolchain
from benchmarks.instruction_counts import instructions_by_function
from tests.targets.firmware import board, program_of

FIRMWARE_TARGET = "cortex-m4"
TABLE_HEADER = ("model", "arena", "TFLM's arena", "code", "parameters", "stack", "instructions")
_ARENA_SIZE_PATTERN = re.compile(r"Arena allocation total (\d+) bytes")
_TFLM_ARENA_SCRIPT = """
import sys
from tflite_micro.python.tflite_micro import runtime
data = open(sys.argv[1], "rb").read()
runtime.Interpreter.from_bytes(data, arena_size=1 << 20).print_allocations()
"""


def tflite_micro_arena_bytes(model: Path) -> int:
    """Return the number of bytes that TFLite Micro allocates in its arena for a model."""
    command = [sys.executable, "-c", _TFLM_ARENA_SCRIPT, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size_match = _ARENA_SIZE_PATTERN.search(done.stdout + done.stderr)
    assert size_match is not None, done.stderr
    return int(size_match[1])


def measure_model_as_firmware(
    path: Path, folder: Path, *flags: str, config: Mapping[str, Any] | None = None
) -> list[int]:
    """Compile, link and run a model as firmware with additional C compiler flags; return the
    figures of its table row.
    """
    here, output = board(FIRMWARE_TARGET), folder / "net"
    model = compile(
        path, output=output, name="net", target=FIRMWARE_TARGET, build=False, workspace_io=True, config=config
    )
    inputs = [
        np.random.default_rng(k).integers(-128, 128, i["shape"]).astype(i["dtype"])
        for k, i in enumerate(model.metadata["inputs"])
    ]
    library = here.make(model.path, *flags)
    program = here.link(library, program_of(model, inputs), folder)
    stack = int(here.start(program).split()[-1])
    instructions = instructions_by_function(model, FIRMWARE_TARGET, folder, flags).total()
    code = measure_code_bytes(library, find_toolchain(here.cc[0], target=here.target))
    facts = model.metadata["footprint"]
    arena = facts["arena"] + facts["io"]
    return [arena, tflite_micro_arena_bytes(path), code or 0, model.metadata["weights_bytes"], stack, instructions]


def arena_size_cells_aotc_and_tflite_micro(path: Path, folder: Path) -> list[str]:
    """Return the arena sizes in aotc and in TFLite Micro as texts; a dash if TFLite Micro cannot
    run the model.
    """
    model = compile(path, output=folder / "net", name="net", target=FIRMWARE_TARGET, build=False, workspace_io=True)
    facts = model.metadata["footprint"]
    theirs = "-"
    if path.suffix == ".tflite":
        with suppress(subprocess.CalledProcessError):
            theirs = f"{tflite_micro_arena_bytes(path):,}"
    return [f"{facts['arena'] + facts['io']:,}", theirs]


@click.command(help=__doc__)
@click.argument("models", nargs=-1, type=click.Path(path_type=Path))
@click.option("--cflags", multiple=True, help="Flags for all C code.")
@click.option("--config", multiple=True, help="Options of the compiler, KEY=NUMBER.")
@click.option("--arena", is_flag=True, help="Compare memory alone.")
def measure_models_as_firmware(
    models: Sequence[Path], cflags: Sequence[str], config: Sequence[str], arena: bool
) -> None:
    install_operators_and_passes()
    if arena:
        click.echo(f"| {' | '.join(TABLE_HEADER[:3])} |\n{'|---' * 3}|")
        for path in models:
            with tempfile.TemporaryDirectory() as folder:
                click.echo(
                    f"| {path.stem} | {' | '.join(arena_size_cells_aotc_and_tflite_micro(path, Path(folder)))} |"
                )
        return
    options = {key: int(value) for key, value in (option.split("=") for option in config)}
    click.echo(f"| {' | '.join(TABLE_HEADER)} |\n|{'---|' * len(TABLE_HEADER)}")
    for path in models:
        with tempfile.TemporaryDirectory() as folder:
            figures = measure_model_as_firmware(path, Path(folder), *cflags, config=options)
        click.echo(f"| {path.stem} | {' | '.join(f'{n:,}' for n in figures)} |")


if __name__ == "__main__":
    measure_models_as_firmware()
