# SPDX-License-Identifier: Apache-2.0
"""`aotc run --profile`: time every kernel of a compiled library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text

from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.result_tables import format_run_times
from aotc.measuring.profile import MAX_QUIET_RUN_RATIO, profile_library
from aotc.reporting.compile_report import PassReport
from aotc.reporting.text_tables import format_milliseconds, format_with_unit_prefix, make_borderless_table


def profile_and_print(out: Reporter, library: Path, report: Path | None, **options: Any) -> None:
    """Time every kernel of a library, and print the times.

    report     file for an HTML page with the times as a roofline; None: no file
    options    further arguments of `profile_library`
    """
    kernel_profile = profile_library(library, **options)
    if report is not None:
        page = PassReport(str(library))
        page.add_profile(kernel_profile)
        page.save_html(report)
    out.print_result(kernel_profile, render_kernel_profile)


#: Largest number of model nodes that a row of a profile names.
MAX_NODES_SHOWN = 3


#: Largest total time of a run whose kernels are listed in microseconds instead of milliseconds.
MAX_MILLISECONDS_SHOWN_AS_MICROSECONDS = 0.1


def _kernel_profile_row(row: JsonObject, total_milliseconds: float, model_name: str) -> list[str | Text]:
    """Return a table row of a kernel: time, share of the total time `total_milliseconds`, calls,
    rates, name and nodes.

    The time is in milliseconds, or in microseconds if the total time is short.
    """
    hidden_count = len(row["nodes"]) - MAX_NODES_SHOWN
    nodes = ", ".join(row["nodes"][:MAX_NODES_SHOWN])
    if hidden_count > 0:
        nodes += f" and {hidden_count} more"
    milliseconds = row["milliseconds"]
    is_short = total_milliseconds < MAX_MILLISECONDS_SHOWN_AS_MICROSECONDS
    time_text = f"{1e3 * milliseconds:.2f}" if is_short else f"{milliseconds:.3f}"
    times = time_text, f"{milliseconds / max(total_milliseconds, 1e-9):.1%}", str(row["calls"])
    speeds = (f"{row['gflops']:.1f}", f"{row['of_peak']:.0%}") if row["macs"] else ("", "")
    name = Text.assemble((row["kernel"].removeprefix(f"{model_name}_"), "bold"), " ", nodes)
    return [*times, *speeds, f"{row['gbytes_per_s']:.1f}", f"{row['of_roofline']:.0%}", name]


def render_kernel_profile(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc run --profile`: a table of kernels with times and rates."""
    times, machine = result["milliseconds"], result["machine"]
    unit = "us" if times["watched"] < MAX_MILLISECONDS_SHOWN_AS_MICROSECONDS else "ms"
    head = (unit, "share", "calls", "GFLOP/s", "peak", "GB/s", "roof", "kernel and nodes")
    rows = [_kernel_profile_row(row, times["watched"], result["model"]) for row in result["kernels"]]
    yield make_borderless_table(*head, rows=rows, numeric_columns=slice(7))
    yield f"{format_run_times(result)}; sum of the steps {format_milliseconds(times['watched'])}"
    if result["disturbed"]:
        yield (
            f"{result['disturbed']} of {result['repeat']} runs took more than "
            f"{MAX_QUIET_RUN_RATIO} times as long as the fastest and "
            "are left out: other programs use this machine"
        )
    how = "now, on one core" if machine["measured"] else "as the driver states, not measured"
    yield (
        f"{how}: {machine['peak_gflops']:.1f} GFLOP/s, and {machine['bandwidth_gbytes_per_s']:.1f} GB/s "
        f"over the {format_with_unit_prefix(machine['touched_bytes'], 'B')} of a run"
    )
    if any(row["of_roofline"] > 1 for row in result["kernels"]):
        yield (
            "above 100%: Winograd convolutions count the multiplications of the definition, and what the step before "
            "wrote may lie in a nearer cache"
        )
