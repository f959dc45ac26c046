# SPDX-License-Identifier: Apache-2.0
"""`aotc tune`: measure tilings of contractions on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aotc.cli import compile_options
from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import declare_flag, declare_option
from aotc.ir.option_value_text import parse_seconds
from aotc.measuring.tuning import make_dask_cluster_runner, measure_jobs_in_this_process, tune_contractions
from aotc.reporting.text_tables import make_borderless_table


@define_command(
    "tune",
    options_of.MODEL_ARGUMENT,
    declare_option("--trials", "Tilings of each contraction.", click.IntRange(1), 8),
    declare_option("--time seconds", "The measurement under way then is the last.", None, "5m", read=parse_seconds),
    declare_flag("--again", "Measure contractions again that have a record."),
    declare_option("--scheduler", "Measure on the workers of a Dask cluster.", metavar="ADDRESS"),
    compile_options.SHAPE_OPTIONS,
    compile_options.TARGET_OPTIONS,
    compile_options.COMPILER_OPTIONS,
)
def tune_command(out: Reporter, model: Path, scheduler: str | None, **options: Any) -> None:
    """Measure tilings of MODEL's contractions on this machine; later compiles take the fastest."""
    with out.progress_bar("measuring contractions") as advance:
        runner = make_dask_cluster_runner(scheduler) if scheduler is not None else measure_jobs_in_this_process
        report = tune_contractions(model, runner=runner, advance=advance, **options)
        out.print_result(report, render_tuning_result)


def render_tuning_result(report: JsonObject) -> RenderedParts:
    """Format the result of `aotc tune`: a table of contractions with their fastest tilings, or with those
    of the fewest estimated cycles.
    """
    if report["store"] is None:
        yield from _render_ranked_tilings(report)
        return
    rows = [
        (row["contraction"], row["candidate"], f"{row['microseconds']:.1f} us", f"{row['speedup']:.2f}")
        for row in report["rows"]
    ]
    if rows:
        yield make_borderless_table(
            "contraction", "fastest tiling", "time", "gain", rows=rows, numeric_columns=slice(2, None)
        )
    known = {key: report[key] for key in ("measured", "known", "failed")}
    known["left"] = report["contractions"] - sum(known.values())
    listed_keys = [key for key in ("measured", "known", "left", "failed") if known[key] or key == "measured"]
    text = ", ".join(f"{known[key]} {key}" for key in listed_keys)
    yield f"{report['contractions']} contractions: {text}; records in {report['store']}"


def _render_ranked_tilings(report: JsonObject) -> RenderedParts:
    """Format the result for a GPU, whose tilings are not measured: the two best of each contraction."""
    rows = []
    for row in report["rows"]:
        (best, cycles), *rest = row["estimated_cycles"].items()
        second = f"{rest[0][0]} ({rest[0][1] / cycles:.2f})" if rest else ""
        rows.append((row["contraction"], best, f"{cycles:.0f}", second))
    if rows:
        names = ("contraction", "tiling with the fewest cycles", "cycles", "second (relative)")
        yield make_borderless_table(*names, rows=rows, numeric_columns=slice(2, 3))
    yield f"{report['contractions']} contractions, ranked by estimated cycles: nothing was measured or recorded"
