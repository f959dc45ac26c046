# SPDX-License-Identifier: Apache-2.0
"""`aotc run`: run a compiled library, and show the outputs and the time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_flag, declare_option
from aotc.cli.result_tables import format_run_times
from aotc.ir.atomic_write import require_not_an_input_file
from aotc.measuring.run_library import run_library


@define_command(
    "run",
    click.argument("library", type=PATH_TYPE),
    options_of.INPUT_OPTIONS,
    declare_option("-o --output", "File that the outputs are written to.", PATH_TYPE, metavar="FILE.npz"),
    declare_option("--repeat", "Runs to time [default: 1; 20 with --profile].", click.IntRange(1)),
    declare_flag("--profile profiling", "Tell where the time goes, kernel by kernel; needs the project."),
    declare_option("--report", "Write the profile as a roofline there.", PATH_TYPE, metavar="FILE.html"),
    declare_option("--threads", "Threads of a run.", click.IntRange(1), 1),
    declare_option("--isa", "Instruction set, where the library has several [default: the best].", metavar="NAME"),
    declare_option("--device", "Number of the GPU, for a library compiled for GPUs [default: 0].", click.IntRange(0)),
    declare_option("--weights", "File of the parameters, for a library without them.", PATH_TYPE, metavar="FILE.bin"),
    declare_flag("--check", "Compare the whole library with the checksum in its project first."),
    renamed={"--outputs": "--output"},
)
def run_command(
    out: Reporter,
    library: Path,
    output: Path | None,
    repeat: int | None,
    profiling: bool,
    report: Path | None,
    threads: int,
    **options: Any,
) -> None:
    """Run a compiled library (a project directory or the library file)."""
    if profiling and output is not None:
        raise click.UsageError("--profile and --output exclude each other")
    if profiling and threads > 1:
        raise click.UsageError("--profile tells the times of one thread")
    if report is not None and not profiling:
        raise click.UsageError("--report needs --profile")
    if report is not None:
        require_not_an_input_file(report, "report", [library, options["inputs"]])
    if profiling:
        # imported here: it imports the compiler, which other runs do not need
        from aotc.cli.commands.run_profile import profile_and_print

        profile_and_print(out, library, report, repeat=repeat or 20, **options)
        return
    result = run_library(library, outputs=output, repeat=repeat or 1, threads=threads, **options)
    out.print_result(result, render_run_result)


def render_run_result(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc run`: a preview of the outputs, and the times."""
    for row in result["outputs"]:
        yield f"{row['name']}  {row['dtype']}{row['shape']}  {_format_first_output_elements(row)}"
    if result["random_inputs"]:
        yield "inputs: random values of seed 0 (--inputs FILE.npz: values of your own)"
    yield format_run_times(result)


def _format_first_output_elements(output_row: JsonObject) -> str:
    """Format the first elements of an output: numbers with up to six significant digits, and "..."
    if there are more elements.
    """
    elements = [f"{e:.6g}" if isinstance(e, float) else str(e) for e in output_row["preview"]]
    more = ["..."] if math.prod(output_row["shape"]) > len(elements) else []
    return f"[{', '.join([*elements, *more])}]"
