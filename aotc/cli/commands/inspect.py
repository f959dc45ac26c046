# SPDX-License-Identifier: Apache-2.0
"""`aotc inspect`: show what a model needs, or what a compiled project or library does."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.json import JSON
from rich.table import Table
from rich.text import Text

from aotc.cli import compile_options
from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_flag, declare_option
from aotc.cli.options_in_messages import spell_option_references_for_command
from aotc.cli.result_tables import (
    format_arena_size,
    format_microcontroller_footprint,
    format_or_blank,
    weight_size_lines,
)
from aotc.ir.dimension_ranges import DimRange, dim_size_range_or_tiers, dim_text_in_sizes
from aotc.ir.dimensions import SymDim, dim_of_text
from aotc.ir.option_value_text import format_state_pair
from aotc.ir.terminal_safe_text import PreformattedText
from aotc.reporting.memory_map import describe_memory_map, input_files_of_memory_map
from aotc.reporting.memory_map_picture import require_memory_map_file, write_memory_map
from aotc.reporting.misra_report import describe_misra_deviations, require_misra_report_file, write_misra_report
from aotc.reporting.model_inspection import MAX_LARGEST_KERNELS, SHARED_LIBRARY_SUFFIXES, inspect_model, inspect_project
from aotc.reporting.text_tables import describe_register_spills, format_with_unit_prefix, make_borderless_table


@define_command(
    "inspect",
    options_of.MODEL_ARGUMENT,
    declare_flag("--memory", "Show the arena over the steps of the schedule."),
    declare_option(
        "--memory-map",
        "Write what a compiled project takes of flash and RAM to a file, .json or .svg; repeatable.",
        PATH_TYPE,
        multiple=True,
        metavar="FILE",
    ),
    declare_option("--elf", "Linked program for --memory-map; default: the plan and the library.", PATH_TYPE),
    declare_option(
        "--misra",
        "Write the deviations of a bare-metal project's code from MISRA C:2012, by rule, to a file, .md or .json;"
        " needs cppcheck.",
        PATH_TYPE,
        metavar="FILE",
    ),
    compile_options.SHAPE_OPTIONS,
    compile_options.STATE_OPTION,
    compile_options.CUT_OPTIONS,
    compile_options.TARGET_OPTIONS,
    compile_options.declare_compile_options("threads"),
    compile_options.BOARD_OPTIONS,
    compile_options.declare_compile_options("workspace_io", "io_dtype"),
)
def inspect_command(
    out: Reporter,
    model: Path,
    memory: bool,
    memory_map: Sequence[Path],
    elf: Path | None,
    misra: Path | None,
    **options: Any,
) -> None:
    """Show what MODEL (.onnx, .pt2, .tflite, .relay) needs, or what a compiled project or library
    does.

    Parts of a model that cannot be compiled are listed, and the exit code is 0. --json prints the
    metadata of a project.
    """
    if misra is not None:
        if memory_map or elf is not None:
            raise click.UsageError("--misra and --memory-map exclude each other")
        _write_misra_report(out, model, misra)
        return
    if memory_map or elf is not None:
        _write_memory_maps(out, model, memory_map, elf)
        return
    if model.is_dir() or model.suffix in SHARED_LIBRARY_SUFFIXES:
        out.print_result(inspect_project(model), render_project_metadata)
        return
    out.report_stage("inspecting the model")
    inspection = inspect_model(model, **options)
    # these texts are safe for terminals, and have their hints on lines of their own
    problems = map(spell_option_references_for_command, inspection["unsupported"])
    inspection["unsupported"] = [PreformattedText(text) for text in problems]
    out.print_result(
        inspection, render_memory_per_step if memory and "moments" in inspection else render_model_inspection
    )


def _write_memory_maps(out: Reporter, project: Path, files: Sequence[Path], elf: Path | None) -> None:
    """Print the memory map of a project as a table, or as JSON, and write it to files; to none of them if one has
    another extension or must not be overwritten.
    """
    result = describe_memory_map(project, elf)
    inputs = input_files_of_memory_map(project, elf)
    for file in files:
        require_memory_map_file(file, inputs)
    for file in files:
        write_memory_map(result, file, inputs)
    out.print_result(result, render_memory_map)


def _write_misra_report(out: Reporter, project: Path, file: Path) -> None:
    """Print the deviations of a project's code from MISRA C by rule, and write them to a file."""
    require_misra_report_file(file, project)
    out.report_stage("checking the C code")
    result = describe_misra_deviations(project)
    write_misra_report(result, file)
    out.print_result(result, render_misra_report)


def render_misra_report(data: JsonObject) -> RenderedParts:
    """Format the deviations from MISRA C: the number and the reason, by rule."""
    yield f"{data['count']} deviations in {len(data['sources'])} sources, by {data['checker']}"
    rows = [(row["rule"], str(row["count"]), row["reason"]) for row in data["rules"]]
    yield make_borderless_table("rule", "number", "reason", rows=rows)
    yield data["caveat"]


def render_memory_map(data: JsonObject) -> RenderedParts:
    """Format a memory map: the regions, and the largest items of each."""
    for region in data["regions"]:
        yield f"{region['name']}  {format_with_unit_prefix(region['bytes'], 'B')}"
        largest = sorted(region["items"], key=lambda item: (-item["bytes"], item["name"]))[:MAX_LARGEST_KERNELS]
        rows = [(str(i["bytes"]), i["kind"], i["name"], ", ".join(i.get("nodes", ())[:3])) for i in largest]
        yield make_borderless_table("bytes", "", "name", "nodes", rows=rows, numeric_columns=slice(1))


def render_project_metadata(data: JsonObject) -> RenderedParts:
    """Format the metadata of a project, as JSON if another version of aotc wrote them in another
    form.
    """
    try:
        parts = [*(_gpu_project_tables if "device" in data else _cpu_project_lines)(data)]
    except (LookupError, TypeError, ValueError, AttributeError):
        parts = [JSON.from_data(data)]
    yield from parts


def _cpu_project_lines(data: JsonObject) -> RenderedParts:
    yield f"{data['name']} for {data['target']}, by aotc {data['version']}"
    yield _input_output_table(data)
    yield from _parameter_mac_and_arena_lines(
        data, format_with_unit_prefix(data["weights_bytes"], "B"), len(data["steps"]), data["memory"]
    )
    if state := data.get("state"):
        names = ", ".join(tensor["name"] for tensor in state["tensors"])
        yield f"state        {format_with_unit_prefix(state['bytes'], 'B')}: {names}"
    yield from weight_size_lines(data.get("sizes"))
    if data["library"].endswith(".a"):
        yield f"footprint    {format_microcontroller_footprint(data['footprint'])}"
    yield f"numerics     {data['numerics']}"
    yield _largest_kernels_table(sorted(data["steps"], key=lambda step: -step["macs"])[:MAX_LARGEST_KERNELS])


def _input_output_table(data: JsonObject) -> Table:
    """Return a table of a model's inputs and outputs with their types."""
    rows = []
    ranges = {
        name: r
        for name, text in data.get("dims", {}).items()
        if isinstance(r := dim_size_range_or_tiers(text), DimRange)
    }
    for kind in ("input", "output"):
        for tensor in data[f"{kind}s"]:
            dims = map(dim_of_text, tensor["dims"]) if ranges and "dims" in tensor else tensor["shape"]
            texts = (dim_text_in_sizes(d, ranges) if isinstance(d, SymDim) else str(d) for d in dims)
            shape = "x".join(texts) or "scalar"
            rows.append((kind, str(tensor["name"]), f"{tensor['dtype']} {shape}"))
    return make_borderless_table("", "name", "type", rows=rows)


def _parameter_mac_and_arena_lines(
    data: JsonObject, parameters: str, step_count: int, memory: JsonObject
) -> RenderedParts:
    yield f"parameters   {parameters}"
    yield f"MACs         {format_with_unit_prefix(data['macs'])} in {step_count} steps, {data['kernels']} kernels"
    yield f"arena        {format_arena_size(memory)}"
    for tier in data.get("tiers", ()):
        sizes = ", ".join(f"{name} {sizes}" for name, sizes in tier["dims"].items())
        steps = tier["end_step"] - tier["first_step"]
        yield f"tier         {sizes}: arena {format_with_unit_prefix(tier['arena'], 'B')}, {steps} steps"
    yield f"accuracy     {data.get('accuracy', 'not known')}"


def _largest_kernels_table(steps: Sequence[JsonObject]) -> Table:
    """Return a table of the steps with the most multiply-accumulates."""
    rows = [(step["kernel"], format_with_unit_prefix(step["macs"]), ", ".join(step["nodes"][:4])) for step in steps]
    return make_borderless_table("largest kernels", "MACs", "nodes", rows=rows)


def _gpu_project_tables(data: JsonObject) -> RenderedParts:
    """Format the resource use of a project's GPU kernels for each architecture."""
    device = data["device"]
    for arch, kernels in device["kernels"].items():
        rows = [_gpu_kernel_row(data, name, row) for name, row in kernels.items()]
        head = (arch, "blocks", "threads", "registers", "shared", "local", "held", "occupancy", "code")
        yield make_borderless_table(*head, rows=rows, numeric_columns=slice(1, None), padding=(0, 1, 0, 0))
        yield ""
    code = ", ".join(f"{name} {format_with_unit_prefix(size, 'B')}" for name, size in device["code_bytes"].items())
    yield f"code         {code}"
    yield f"driver       for CUDA {device['least_driver']} or newer"
    yield from _parameter_mac_and_arena_lines(
        data, format_with_unit_prefix(data["weights_bytes"], "B"), len(data["steps"]), data["memory"]
    )
    if slow := describe_register_spills(data):
        yield f"warning      kernels that spill into memory: {slow}"


def _gpu_kernel_row(project: JsonObject, name: str, kernel: JsonObject) -> list[str | Text]:
    """Return a table row of a GPU kernel: blocks of all launches, threads, registers, memory and
    occupancy.
    """
    launches = [step for step in project["steps"] if step["kernel"] == name]
    sizes = [kernel[key] for key in ("registers", "shared_bytes", "local_bytes")]
    figures = [sum(launch["grid"] for launch in launches), launches[0]["block"], *sizes]
    occupancy_cells = format_or_blank(kernel["resident_blocks"], "d"), format_or_blank(kernel["occupancy"], ".0%")
    return [name.removeprefix(f"{project['name']}_"), *map(str, figures), *occupancy_cells, str(kernel["code_bytes"])]


def _unknown_dimension_lines(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc inspect` on a model with unknown dimensions, and the options that
    fix them.
    """
    yield _input_output_table({**report, "outputs": []})
    ranked = sorted(report["operators"].items(), key=lambda r: -r[1])
    yield f"operators    {', '.join(f'{name} {n}' for name, n in ranked)}"
    yield "dynamic dimensions need a value, for example (1 stands for the size that you choose):"
    for pin in report["pins"]:
        yield f"  {pin}"
    if report["proposed_state"]:
        yield "or a compiled model can keep what looks like state between runs (the number is its largest length):"
        yield from _proposed_state_lines(report)


def _proposed_state_lines(report: JsonObject) -> RenderedParts:
    """Format the options that make tensors of a model its state."""
    yield from (f"  --state {shlex.quote(format_state_pair(tuple(pair)))}" for pair in report["proposed_state"])


def render_model_inspection(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc inspect` on a model file: sizes, operators, largest kernels."""
    if report["unsupported"]:
        yield f"{report['model']} cannot be compiled:"
        for problem in report["unsupported"]:
            yield textwrap.indent(problem, "  ")
        return
    if report["pins"]:
        yield from _unknown_dimension_lines(report)
        return
    yield _input_output_table(report)
    parameters = (
        f"{format_with_unit_prefix(report['parameters'])} ({format_with_unit_prefix(report['parameter_bytes'], 'B')})"
    )
    if report["proposed_state"]:
        yield "state        these look like state, which a compiled model can keep between runs:"
        yield from _proposed_state_lines(report)
    yield from _parameter_mac_and_arena_lines(report, parameters, report["steps"], report["arena"])
    if footprint := report["footprint"]:
        yield f"footprint    {format_microcontroller_footprint(footprint)}"
    yield f"numerics     {report['numerics']}"
    ranked = sorted(report["operators"].items(), key=lambda r: -r[1])
    operators = ", ".join(f"{name} {n}" for name, n in ranked)
    yield f"operators    {operators}"
    yield _largest_kernels_table(report["largest"])
    if report["left_real"]:
        real = [(row["operator"], row["reason"], ", ".join(row["nodes"][:2])) for row in report["left_real"]]
        yield make_borderless_table("not on integers", "because", "nodes", rows=real)
    if report["scalar_loops"]:
        scalar = [
            (row["kernel"], row["loop"], row["reason"], ", ".join(row["nodes"][:1])) for row in report["scalar_loops"]
        ]
        yield make_borderless_table("scalar loops", "of", "because of", "first node", rows=scalar)


#: Length in characters of the bar of the step with the most memory.
MAX_BAR_CHARACTERS = 16


def render_memory_per_step(report: JsonObject) -> RenderedParts:
    """Format the memory use of each step as a table with bars relative to the peak."""
    whole = max((row["bytes"] for row in report["moments"]), default=0)
    rows = []
    for k, row in enumerate(report["moments"]):
        bar = "#" * round(MAX_BAR_CHARACTERS * row["bytes"] / max(whole, 1)) + ("<" if row["bytes"] == whole else "")
        live = ", ".join(f"{t['name']} {t['bytes']}" for t in row["live"][:3])
        live += f" and {len(row['live']) - 3} more" if len(row["live"]) > 3 else ""
        rows.append((str(k), str(row["bytes"]), bar, row["kernel"], live))
    yield make_borderless_table("step", "bytes", "", "kernel", "live", rows=rows, numeric_columns=slice(2))
    memory = report["arena"]
    yield f"arena        {memory['peak']} bytes, lower bound {memory['lower_bound']}, gap {memory['gap']}"
    if len(parts := memory["parts"]) > 1:
        of = [(p["memory"], *(str(p[key]) for key in ("offset", "bytes", "room", "accesses"))) for p in parts]
        yield make_borderless_table(
            "memory", "from byte", "taken", "of", "accesses", rows=of, numeric_columns=slice(1, 5)
        )
