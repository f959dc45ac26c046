# SPDX-License-Identifier: Apache-2.0
"""Format the results of commands as text and tables for the terminal."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence

from rich.json import JSON
from rich.table import Table
from rich.text import Text

from aotc.checking.input_generation import OTHER_INPUTS_HINT
from aotc.checking.model_reference_runs import ONNX_EVALUATOR_NAME
from aotc.cli.console import JsonObject, RenderedParts
from aotc.measuring.profile import MAX_QUIET_RUN_RATIO
from aotc.reporting.model_inspection import MAX_LARGEST_KERNELS
from aotc.reporting.text_tables import describe_register_spills, format_with_unit_prefix, make_borderless_table


def format_arena_size(memory: JsonObject) -> str:
    """Format the size of the memory arena of a run, and the lower bound of the memory plan."""
    return (
        f"{format_with_unit_prefix(memory['peak'], 'B')} (lower bound "
        f"{format_with_unit_prefix(memory['lower_bound'], 'B')})"
    )


def format_microcontroller_footprint(footprint: JsonObject) -> str:
    """Format the RAM, flash and stack that a model needs on a microcontroller."""
    code = "measured" if footprint["code_measured"] else "estimated"
    ram, flash = footprint["arena"] + footprint["io"], footprint["code"] + footprint["parameters"]
    return f"RAM {ram} bytes with inputs and outputs, flash {flash} ({code}), stack at most {footprint['stack']}"


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


def render_compile_result(data: JsonObject) -> RenderedParts:
    """Format the result of `compile`, with the times of stages and passes if present."""
    if passes := data.get("timing"):
        yield passes.rstrip()
    yield f"project      {data['path']}"
    if library := data["library"]:
        yield f"library      {library} ({format_with_unit_prefix(data['library_bytes'], 'B')})"
    yield from weight_size_lines(data["metadata"].get("sizes"))
    yield f"arena        {format_arena_size(data['metadata']['memory'])}"
    if data["metadata"]["library"].endswith(".a"):
        yield f"footprint    {format_microcontroller_footprint(data['metadata']['footprint'])}"
        yield from _c_language_and_float_abi_lines(data["metadata"])
    yield f"numerics     {data['metadata']['numerics']}"
    if slow := describe_register_spills(data["metadata"]):
        yield f"warning      kernels that spill into memory: {slow}"


def _c_language_and_float_abi_lines(metadata: JsonObject) -> RenderedParts:
    """Yield lines on the C language and float ABI that a bare-metal project requires."""
    extended = "C99; inline assembly, as gcc and clang take it (--portable: none)"
    yield f"language     {extended if metadata['inline_assembly'] else 'C99'}"
    if abi := metadata["float_abi"]:
        yield f"float ABI    {abi} (without -mfloat-abi among the flags of the application)"


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
    yield from weight_size_lines(data.get("sizes"))
    if data["library"].endswith(".a"):
        yield f"footprint    {format_microcontroller_footprint(data['footprint'])}"
    yield f"numerics     {data['numerics']}"
    yield _largest_kernels_table(sorted(data["steps"], key=lambda step: -step["macs"])[:MAX_LARGEST_KERNELS])


def _input_output_table(data: JsonObject) -> Table:
    """Return a table of a model's inputs and outputs with their types."""
    rows = []
    for kind in ("input", "output"):
        for tensor in data[f"{kind}s"]:
            shape = "x".join(map(str, tensor["shape"])) or "scalar"
            rows.append((kind, str(tensor["name"]), f"{tensor['dtype']} {shape}"))
    return make_borderless_table("", "name", "type", rows=rows)


def _parameter_mac_and_arena_lines(
    data: JsonObject, parameters: str, step_count: int, memory: JsonObject
) -> RenderedParts:
    yield f"parameters   {parameters}"
    yield f"MACs         {format_with_unit_prefix(data['macs'])} in {step_count} steps, {data['kernels']} kernels"
    yield f"arena        {format_arena_size(memory)}"
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
        yield make_borderless_table(*head, rows=rows, figures=slice(1, None), padding=(0, 1, 0, 0))
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
    occupancy_cells = _format_or_blank(kernel["resident_blocks"], "d"), _format_or_blank(kernel["occupancy"], ".0%")
    return [name.removeprefix(f"{project['name']}_"), *map(str, figures), *occupancy_cells, str(kernel["code_bytes"])]


def render_object_cache_state(data: JsonObject) -> RenderedParts:
    """Format the contents of the object cache, or the number of entries removed."""
    amount = f"{data['entries']} objects, {format_with_unit_prefix(data['bytes'], 'B')}"
    state_text = (
        f"removed {amount}" if data["cleared"] else f"{amount} of at most {format_with_unit_prefix(data['limit'], 'B')}"
    )
    yield f"{data['folder']}: {state_text}"


def _unknown_dimension_lines(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc inspect` on a model with unknown dimensions, and the options that
    fix them.
    """
    yield _input_output_table({**report, "outputs": []})
    ranked = sorted(report["operators"].items(), key=lambda r: -r[1])
    yield f"operators    {', '.join(f'{name} {n}' for name, n in ranked)}"
    yield "dimensions that are not known have to be pinned (1 stands for any size):"
    for pin in report["pins"]:
        yield f"  {pin}"


def render_model_inspection(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc inspect` on a model file: sizes, operators, largest kernels."""
    if report["unsupported"]:
        yield f"{report['model']} cannot be compiled:"
        for problem in report["unsupported"]:
            yield f"  {problem}"
        return
    if report["pins"]:
        yield from _unknown_dimension_lines(report)
        return
    yield _input_output_table(report)
    parameters = (
        f"{format_with_unit_prefix(report['parameters'])} ({format_with_unit_prefix(report['parameter_bytes'], 'B')})"
    )
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
    yield make_borderless_table("step", "bytes", "", "kernel", "live", rows=rows, figures=slice(2))
    memory = report["arena"]
    yield f"arena        {memory['peak']} bytes, lower bound {memory['lower_bound']}, gap {memory['gap']}"
    if len(parts := memory["parts"]) > 1:
        of = [(p["memory"], *(str(p[key]) for key in ("offset", "bytes", "room", "accesses"))) for p in parts]
        yield make_borderless_table("memory", "from byte", "taken", "of", "accesses", rows=of, figures=slice(1, 5))


def _output_comparison_row(inputs_source: str, comparison: JsonObject) -> list[str | Text]:
    """Return a table row that compares an output with the reference, for inputs from
    `inputs_source`.
    """
    verdict = Text(comparison["text"], "green" if comparison["ok"] else "red")
    figures = [f"{comparison['max_abs']:.2e}", f"{comparison['relative']:.2e}", str(comparison["max_ulp"])]
    return [inputs_source, comparison["name"], *figures, verdict]


def _overall_verify_verdict_text(report: JsonObject) -> str:
    """Return the overall verdict of `aotc verify` as text: agree, differ or inconclusive."""
    if report["verdict"] == "differ":
        return "outputs DIFFER"
    if report["verdict"] == "inconclusive":
        return "INCONCLUSIVE, outputs have nothing to compare"
    differences = [o["max_abs"] for case in report["cases"] for o in case["outputs"]]
    return "all outputs agree" if any(differences) else "all outputs agree, no element differs"


def _output_comparison_warning_lines(report: JsonObject) -> RenderedParts:
    """Yield the warnings about constant outputs and the remarks on outputs that cannot be compared."""
    for text in report["warnings"]:
        yield Text.assemble(("warning", "yellow"), f": {text}")
    for text in report["inconclusive"]:
        yield Text.assemble(("inconclusive", "bold yellow"), f": {text}")


def _why_onnxruntime_is_not_the_reference() -> str:
    """Return a note on why the evaluator of the package onnx took the place of ONNX Runtime."""
    if importlib.util.find_spec("onnxruntime") is None:
        return f"note: {ONNX_EVALUATOR_NAME} was used because ONNX Runtime is not installed (pip install onnxruntime)"
    return f"note: {ONNX_EVALUATOR_NAME} was used because ONNX Runtime cannot load this model"


def render_verify_report(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc verify`: a table of output errors, and the verdict."""
    rows = [_output_comparison_row(case["source"], output) for case in report["cases"] for output in case["outputs"]]
    yield make_borderless_table("inputs", "output", "max abs", "relative", "ULP", "", rows=rows)
    if report["device"]:
        yield f"run on {report['device']}"
    yield from _output_comparison_warning_lines(report)
    yield f"compared with {report['reference']}: {_overall_verify_verdict_text(report)}"
    if report["reference"] == ONNX_EVALUATOR_NAME:
        yield _why_onnxruntime_is_not_the_reference()
    off = dict.fromkeys(o["name"] for case in report["cases"] for o in case["outputs"] if o["reference_is_off"])
    if off:
        yield f"{report['reference']} is off where float64 agrees with the compiled model: {', '.join(off)}"
    if report["inconclusive"]:
        yield "hint: " + OTHER_INPUTS_HINT
    if report["first_difference"]:
        yield f"first difference: {report['first_difference']}"
    if report["blame"]:
        yield f"to blame is {report['blame']}: {report['wrong_kernel']}"


def render_supported_operators(support: JsonObject) -> RenderedParts:
    """Format the lists of supported graph, ONNX and TFLite operators for `aotc ops`."""
    rows = [(r["name"], r["fusion"], r["compiled"], ", ".join(r["attributes"])) for r in support["operators"]]
    yield make_borderless_table("operator", "fusion", "compiled", "attributes", rows=rows)
    for domain, names in support["onnx"].items():
        yield f"\n{len(names)} operators of {domain}: {', '.join(names)}"
    yield "\nOthers that ONNX defines by functions, such as HardSwish and Attention, are replaced by these."
    if names := support["tflite"]:
        yield f"\n{len(names)} builtin operators of TFLite: {', '.join(names)}"


def render_target_list(target_table: JsonObject) -> RenderedParts:
    """Format the list of compilation targets for `aotc targets`."""
    rows = [
        (
            row["name"],
            row["machine"],
            row["environment"],
            str(row["vector_bits"] or "none"),
            "yes" if row["runs_here"] else "no",
            " ".join(row["features"]),
        )
        for row in target_table["targets"]
    ]
    yield make_borderless_table(
        "target", "machine", "environment", "vector bits", "runs here", "instruction sets", rows=rows
    )
    host = target_table["host"]
    yield f"\n--target host stands for {host} on this machine; docs/targets.md says more about each target."


def render_config_keys(key_table: JsonObject) -> RenderedParts:
    """Format the list of configuration keys for `aotc config`."""
    rows = [(row["key"], row["type"], row["default"], row["meaning"]) for row in key_table["keys"]]
    yield make_borderless_table("key", "type", "default", "meaning", rows=rows)


def _format_thread_count(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def _format_or_blank(number: float | None, format_spec: str) -> str:
    """Format a number for a table; return "" if it is None."""
    return "" if number is None else format(number, format_spec)


def _bench_table_row(row: JsonObject, threads: int) -> list[str | Text]:
    times, memory = row["milliseconds"], row["memory"]
    name = row["name"]
    if row["threads"] != threads:
        name += f" ({_format_thread_count(row['threads'])})"
    figures = [f"{times[key]:.3f}" for key in ("min", "median", "first")]
    figures += [
        f"{times['load']:.1f}",
        _format_or_blank(memory and memory / 1e6, ".1f"),
        _format_or_blank(row["ratio"], ".2f"),
    ]
    error = _format_or_blank(row["relative"], ".1e") if row["agrees"] else Text("differs", "red")
    return [name, row["version"].split()[0], *figures, error]


def render_bench_result(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc bench`: a table of implementations for each number of threads."""
    machine = result["machine"]
    where = f"{machine['cpu']}, {machine['processors']} processors, target {result['target']}"
    yield f"{result['model']} on {where}"
    for turn in result["rounds"]:
        yield ""
        head = (
            _format_thread_count(turn["threads"]),
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
        yield make_borderless_table(*head, rows=rows, figures=slice(2, None), padding=narrow)
        for row in turn["contestants"]:
            if not row["agrees"]:
                yield f"differs: {row['name']}: {row['reason']}"
        for rival in turn["skipped"]:
            yield f"left out: {rival['name']}: {rival['reason']}"
        if turn["ratio"] is not None:
            yield f"aotc takes {turn['ratio']:.2f} of the time of the fastest rival, {turn['fastest_rival']}"
    yield from _output_comparison_warning_lines(result)
    if result["verdict"] == "inconclusive":
        yield f"compared with {result['reference']}: INCONCLUSIVE, outputs have nothing to compare"
        yield "hint: " + OTHER_INPUTS_HINT


def format_run_times(result: JsonObject) -> str:
    """Describe how many runs were timed, with their minimum and median time."""
    times = result["milliseconds"]
    return f"{result['repeat']} runs: minimum {times['min']:.3f} ms, median {times['median']:.3f} ms"


def render_run_result(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc run`: a preview of the outputs, and the times."""
    for row in result["outputs"]:
        yield f"{row['name']}  {row['dtype']}{row['shape']}  {row['preview']}"
    yield format_run_times(result)


#: Largest number of model nodes that a row of a profile names.
MAX_NODES_SHOWN = 3


def _kernel_profile_row(row: JsonObject, total_milliseconds: float, model_name: str) -> list[str | Text]:
    """Return a table row of a kernel: time, share of the total time `total_milliseconds`, calls,
    rates, name and nodes.
    """
    hidden_count = len(row["nodes"]) - MAX_NODES_SHOWN
    nodes = ", ".join(row["nodes"][:MAX_NODES_SHOWN])
    if hidden_count > 0:
        nodes += f" and {hidden_count} more"
    milliseconds = row["milliseconds"]
    times = f"{milliseconds:.3f}", f"{milliseconds / max(total_milliseconds, 1e-9):.1%}", str(row["calls"])
    speeds = (f"{row['gflops']:.1f}", f"{row['of_peak']:.0%}") if row["macs"] else ("", "")
    name = Text.assemble((row["kernel"].removeprefix(f"{model_name}_"), "bold"), " ", nodes)
    return [*times, *speeds, f"{row['gbytes_per_s']:.1f}", f"{row['of_roofline']:.0%}", name]


def render_kernel_profile(result: JsonObject) -> RenderedParts:
    """Format the result of `aotc run --profile`: a table of kernels with times and rates."""
    head = ("ms", "share", "calls", "GFLOP/s", "peak", "GB/s", "roof", "kernel and nodes")
    times, machine = result["milliseconds"], result["machine"]
    rows = [_kernel_profile_row(row, times["watched"], result["model"]) for row in result["kernels"]]
    yield make_borderless_table(*head, rows=rows, figures=slice(7))
    yield f"{format_run_times(result)}; sum of the steps {times['watched']:.3f} ms"
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


def render_tuning_result(report: JsonObject) -> RenderedParts:
    """Format the result of `aotc tune`: a table of contractions with their fastest tilings."""
    rows = [
        (row["contraction"], row["candidate"], f"{row['microseconds']:.1f} us", f"{row['speedup']:.2f}")
        for row in report["rows"]
    ]
    if rows:
        yield make_borderless_table("contraction", "fastest tiling", "time", "gain", rows=rows, figures=slice(2, None))
    known = {key: report[key] for key in ("measured", "known", "failed")}
    known["left"] = report["contractions"] - sum(known.values())
    listed_keys = [key for key in ("measured", "known", "left", "failed") if known[key] or key == "measured"]
    text = ", ".join(f"{known[key]} {key}" for key in listed_keys)
    yield f"{report['contractions']} contractions: {text}; records in {report['store']}"


#: Number of layers that the report of a quantized model shows.
MAX_LAYERS_SHOWN = 10


def _format_decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"


def render_quantization_report(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc quantize`: errors of layers, sizes and times of both models."""
    worst = [
        (row["node"], row["operator"], _format_decibels(row["snr_db"])) for row in report["layers"][:MAX_LAYERS_SHOWN]
    ]
    yield make_borderless_table("worst layers", "operator", "signal to noise", rows=worst, figures=slice(2, None))
    hidden_count = len(report["layers"]) - len(worst)
    if hidden_count > 0:
        yield f"and {hidden_count} more layers"
    if names := report["suggested_exclusions"]:
        yield f"suggested    {shlex.join(word for name in names for word in ('--exclude', name))}"
    for row in report.get("outputs", ()):
        yield f"output       {row['name']}: {_format_decibels(row['snr_db'])}, largest error {row['max_abs']:.2e}"
    if "ratio" in report:
        rows = [_time_and_size_row(variant, report[variant]) for variant in ("float32", "quantized")]
        yield make_borderless_table(
            "model", "min us", "median", "weights", "library", "arena", rows=rows, figures=slice(1, None)
        )
        yield f"the quantized model takes {report['ratio']:.2f} of the time of the float one"
    elif "float32" in report:
        rows = [_ram_and_flash_row(variant, report[variant]) for variant in ("float32", "quantized")]
        yield make_borderless_table("model", "RAM", "flash", rows=rows, figures=slice(1, None))
        yield "flash holds code, whose size is estimated, and parameters; times are measured on the board"
    else:
        yield "times        not measured: that takes a C compiler, and no --no-build"
    yield f"written      {report['output']}"


def _ram_and_flash_row(name: str, facts: JsonObject) -> list[str | Text]:
    return [name, *(format_with_unit_prefix(facts[f"{kind}_bytes"], "B") for kind in ("ram", "flash"))]


def _time_and_size_row(name: str, facts: JsonObject) -> list[str | Text]:
    times = (f"{1000 * facts['milliseconds'][key]:.1f}" for key in ("min", "median"))
    sizes = (format_with_unit_prefix(facts[f"{part}_bytes"], "B") for part in ("weights", "library", "arena"))
    return [name, *times, *sizes]
