# SPDX-License-Identifier: Apache-2.0
"""Parts of the results of several commands, formatted as text for the terminal."""

from __future__ import annotations

from rich.text import Text

from aotc.cli.console import JsonObject, RenderedParts
from aotc.reporting.text_tables import format_milliseconds, format_with_unit_prefix


def format_arena_size(memory: JsonObject) -> str:
    """Format the size of the memory arena of a run, and the lower bound of the memory plan."""
    return (
        f"{format_with_unit_prefix(memory['peak'], 'B')} (lower bound "
        f"{format_with_unit_prefix(memory['lower_bound'], 'B')})"
    )


def format_microcontroller_footprint(footprint: JsonObject) -> str:
    """Format the RAM, flash and stack that a model needs on a microcontroller."""
    code = "measured" if footprint["code_measured"] else "estimated"
    state, flash = footprint.get("state", 0), footprint["code"] + footprint["parameters"]
    ram = footprint["arena"] + footprint["io"] + state
    stack = f"stack at most {footprint['stack']} (estimated)"
    with_state = f", {state} of them state" if state else ""
    return f"RAM {ram} bytes with inputs and outputs{with_state}, flash {flash} ({code}), {stack}"


def weight_size_lines(weight_sizes: JsonObject | None) -> RenderedParts:
    """Yield lines on the size of a project's weights by cause; nothing if the metadata lack them."""
    if weight_sizes is None:
        return
    added = {"for Winograd convolutions": "winograd", "of padding": "padding"}
    causes = [
        f"{format_with_unit_prefix(weight_sizes[key], 'B')} {cause}"
        for cause, key in added.items()
        if weight_sizes[key]
    ]
    model = f"{format_with_unit_prefix(weight_sizes['model'] + weight_sizes['other'], 'B')} of the model"
    yield f"weights      {format_with_unit_prefix(weight_sizes['weights'], 'B')}: {', '.join((model, *causes))}"
    if library := weight_sizes.get("library"):
        code = format_with_unit_prefix(library - weight_sizes["weights"], "B")
        yield f"code         {code} of the library, with its tables"
    times = f"about {weight_sizes['time_ratio']:.2g} times"
    if weight_sizes["winograd"]:
        less = format_with_unit_prefix(weight_sizes["winograd"], "B")
        yield f"smaller      --size leaves {less} out, and a run takes {times} as long (estimated)"
    elif weight_sizes["small"] and weight_sizes["time_ratio"] > 1:
        yield f"small        a run takes {times} as long as without --size (estimated)"


def output_comparison_warning_lines(report: JsonObject) -> RenderedParts:
    """Yield the warnings about constant outputs and the remarks on outputs that cannot be compared."""
    for text in report["warnings"]:
        yield Text.assemble(("warning", "yellow"), f": {text}")
    for text in report["inconclusive"]:
        yield Text.assemble(("inconclusive", "bold yellow"), f": {text}")


def format_or_blank(number: float | None, format_spec: str) -> str:
    """Format a number for a table; return "" if it is None."""
    return "" if number is None else format(number, format_spec)


def format_run_times(result: JsonObject) -> str:
    """Describe how many runs were timed, with their minimum and median time."""
    times = result["milliseconds"]
    minimum, median = format_milliseconds(times["min"]), format_milliseconds(times["median"])
    return f"{result['repeat']} run{'' if result['repeat'] == 1 else 's'}: minimum {minimum}, median {median}"
