# SPDX-License-Identifier: Apache-2.0
"""`aotc bench`: measure a compiled model beside other implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from aotc.checking.input_generation import OTHER_INPUTS_HINT
from aotc.checking.verify import EXIT_CODE_BY_VERDICT
from aotc.cli import compile_options
from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_option
from aotc.cli.result_tables import format_or_blank, output_comparison_warning_lines
from aotc.ir.atomic_write import require_not_an_input_file
from aotc.ir.option_value_text import parse_comma_separated_names, parse_thread_counts
from aotc.measuring.bench import benchmark_model
from aotc.measuring.competitors import RIVAL_LOADERS
from aotc.measuring.timing import format_thread_count
from aotc.reporting.text_tables import make_borderless_table


@define_command(
    "bench",
    options_of.MODEL_ARGUMENT,
    declare_option(
        "--against", "Implementations to measure beside, where they are installed.",
        default=",".join(RIVAL_LOADERS), read=parse_comma_separated_names, metavar="NAME,...",
    ),
    declare_option("--threads", "Numbers of threads.", default="1", read=parse_thread_counts, metavar="N,..."),
    declare_option("--repeat", "Turns of each, at most.", click.IntRange(1), 100),
    declare_option("--seconds", "For each number of threads, at most.", click.FloatRange(0), 20.0),
    options_of.INPUT_OPTIONS,
    declare_option("-o --output", "File that all figures are written to.", PATH_TYPE, metavar="FILE.json"),
    compile_options.COMPILATION_OPTIONS,
    compile_options.STATE_OPTION,
    renamed={"--json FILE": "--output"},
)  # fmt: skip
def bench_command(out: Reporter, model: Path, output: Path | None, **options: Any) -> None:
    """Measure the compiled MODEL beside other implementations, in turns, and compare the outputs.

    Milliseconds: the minimum and the median of all runs, the first run, and the time until the
    model was loaded.  MB is by how much memory the process grew for both of these.  The ratio is
    our minimum over the rival's.

    The exit code is 1 if an output of ours differs, 3 if the comparison is inconclusive, since an
    output is NaN, infinite or empty throughout.
    """
    if output is not None:
        require_not_an_input_file(output, "output", [model, options["inputs"]])
    result = benchmark_model(model, progress=out.report_stage, **options)
    if output is not None:
        out.write_json_file(output, result)
    out.print_result(result, render_bench_result)
    if code := EXIT_CODE_BY_VERDICT[result["verdict"]]:
        raise SystemExit(code)


def _bench_table_row(row: JsonObject, threads: int) -> list[str | Text]:
    times, memory = row["milliseconds"], row["memory"]
    name = row["name"]
    if row["threads"] != threads:
        name += f" ({format_thread_count(row['threads'])})"
    figures = [f"{times[key]:.3f}" for key in ("min", "median", "first")]
    figures += [
        f"{times['load']:.1f}",
        format_or_blank(memory and memory / 1e6, ".1f"),
        format_or_blank(row["ratio"], ".2f"),
    ]
    error = format_or_blank(row["relative"], ".1e") if row["agrees"] else Text("differs", "red")
    return [name, row["version"].split()[0], *figures, error]


def render_bench_result(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc bench`: a table of implementations for each number of threads."""
    machine = result["machine"]
    where = f"{machine['cpu']}, {machine['processors']} processors, target {result['target']}"
    yield f"{result['model']} on {where}"
    for turn in result["rounds"]:
        yield ""
        head = (
            format_thread_count(turn["threads"]),
            "version",
            "min ms",
            "median",
            "first",
            "load",
            "MB",
            "ratio",
            "error",
        )
        rows = [_bench_table_row(row, turn["threads"]) for row in turn["contestants"]]
        # nine columns in 80 characters
        narrow = (0, 1, 0, 0)
        yield make_borderless_table(*head, rows=rows, numeric_columns=slice(2, None), padding=narrow)
        for row in turn["contestants"]:
            if not row["agrees"]:
                yield f"differs: {row['name']}: {row['reason']}"
        for rival in turn["skipped"]:
            yield f"left out: {rival['name']}: {rival['reason']}"
        if turn["ratio"] is not None:
            yield f"aotc takes {turn['ratio']:.2f} of the time of the fastest rival, {turn['fastest_rival']}"
    yield from output_comparison_warning_lines(result)
    if result["verdict"] == "inconclusive":
        yield f"compared with {result['reference']}: INCONCLUSIVE, outputs have nothing to compare"
        yield "hint: " + OTHER_INPUTS_HINT
