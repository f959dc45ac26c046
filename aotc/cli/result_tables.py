# SPDX-License-Identifier: Apache-2.0
"""Format the results of commands as text and tables for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.json import JSON
from rich.table import Table
from rich.text import Text

from aotc.checking.input_generation import OTHER_INPUTS
from aotc.cli.console import Data, Shown
from aotc.measuring.profile import QUIET
from aotc.reporting.inspect import LARGEST
from aotc.reporting.text_tables import grid, spilled, unit


def arena(memory: Data) -> str:
    """Format the size of the memory arena of a run, and the lower bound of the memory plan."""
    return f"{unit(memory['peak'], 'B')} (lower bound {unit(memory['lower_bound'], 'B')})"


def footprint(taken: Data) -> str:
    """Format the RAM, flash and stack that a model needs on a microcontroller."""
    code = "measured" if taken["code_measured"] else "estimated"
    ram, flash = taken["arena"] + taken["io"], taken["code"] + taken["parameters"]
    return f"RAM {ram} bytes with inputs and outputs, flash {flash} ({code}), stack at most {taken['stack']}"


def sizes(found: Data | None) -> Shown:
    """Yield lines on the size of a project's weights by cause; nothing if the metadata lack them."""
    if found is None:
        return
    added = {"for Winograd convolutions": "winograd", "of padding": "padding"}
    causes = [f"{unit(found[key], 'B')} {what}" for what, key in added.items() if found[key]]
    model = f"{unit(found['model'] + found['other'], 'B')} of the model"
    yield f"weights      {unit(found['weights'], 'B')}: {', '.join((model, *causes))}"
    if library := found.get("library"):
        yield f"code         {unit(library - found['weights'], 'B')} of the library, with its tables"
    times = f"about {found['time_ratio']:.2g} times"
    if found["winograd"]:
        less = unit(found["winograd"], "B")
        yield f"smaller      --size leaves {less} out, and a run takes {times} as long (estimated)"
    elif found["small"] and found["time_ratio"] > 1:
        yield f"small        a run takes {times} as long as without --size (estimated)"


def show_compiled(data: Data) -> Shown:
    """Format the result of `compile`, with the times of stages and passes if present."""
    if passes := data.get("timing"):
        yield passes.rstrip()
    yield f"project      {data['path']}"
    if library := data["library"]:
        yield f"library      {library} ({unit(Path(library).stat().st_size, 'B')})"
    yield from sizes(data["metadata"].get("sizes"))
    yield f"arena        {arena(data['metadata']['memory'])}"
    if data["metadata"]["library"].endswith(".a"):
        yield f"footprint    {footprint(data['metadata']['footprint'])}"
        yield from _language(data["metadata"])
    yield f"numerics     {data['metadata']['numerics']}"
    if slow := spilled(data["metadata"]):
        yield f"warning      kernels that spill into memory: {slow}"


def _language(metadata: Data) -> Shown:
    """Yield lines on the C language and float ABI that a bare-metal project requires."""
    extended = "C99; inline assembly, as gcc and clang take it (--portable: none)"
    yield f"language     {extended if metadata['inline_assembly'] else 'C99'}"
    if abi := metadata["float_abi"]:
        yield f"float ABI    {abi} (without -mfloat-abi among the flags of the application)"


def show_project(data: Data) -> Shown:
    """Format the metadata of a project, as JSON if another version of aotc wrote them in another
    form.
    """
    try:
        parts = [*(_on_device if "device" in data else _project)(data)]
    except (LookupError, TypeError, ValueError, AttributeError):
        parts = [JSON.from_data(data)]
    yield from parts


def _project(data: Data) -> Shown:
    yield f"{data['name']} for {data['target']}, by aotc {data['version']}"
    yield _tensors(data)
    yield from _sizes(data, unit(data["weights_bytes"], "B"), len(data["steps"]), data["memory"])
    yield from sizes(data.get("sizes"))
    if data["library"].endswith(".a"):
        yield f"footprint    {footprint(data['footprint'])}"
    yield f"numerics     {data['numerics']}"
    yield _largest(sorted(data["steps"], key=lambda step: -step["macs"])[:LARGEST])


def _tensors(data: Data) -> Table:
    """Return a table of a model's inputs and outputs with their types."""
    rows = []
    for kind in ("input", "output"):
        for tensor in data[f"{kind}s"]:
            shape = "x".join(map(str, tensor["shape"])) or "scalar"
            rows.append((kind, str(tensor["name"]), f"{tensor['dtype']} {shape}"))
    return grid("", "name", "type", rows=rows)


def _sizes(data: Data, parameters: str, steps: int, memory: Data) -> Shown:
    yield f"parameters   {parameters}"
    yield f"MACs         {unit(data['macs'])} in {steps} steps, {data['kernels']} kernels"
    yield f"arena        {arena(memory)}"
    yield f"accuracy     {data.get('accuracy', 'not known')}"


def _largest(steps: Sequence[Data]) -> Table:
    """Return a table of the steps with the most multiply-accumulates."""
    rows = [(step["kernel"], unit(step["macs"]), ", ".join(step["nodes"][:4])) for step in steps]
    return grid("largest kernels", "MACs", "nodes", rows=rows)


def _on_device(data: Data) -> Shown:
    """Format the resource use of a project's GPU kernels for each architecture."""
    device = data["device"]
    for arch, kernels in device["kernels"].items():
        rows = [_kernel_row(data, name, row) for name, row in kernels.items()]
        head = (arch, "blocks", "threads", "registers", "shared", "local", "held", "occupancy", "code")
        yield grid(*head, rows=rows, figures=slice(1, None), padding=(0, 1, 0, 0))
        yield ""
    code = ", ".join(f"{name} {unit(size, 'B')}" for name, size in device["code_bytes"].items())
    yield f"code         {code}"
    yield f"driver       for CUDA {device['least_driver']} or newer"
    yield from _sizes(data, unit(data["weights_bytes"], "B"), len(data["steps"]), data["memory"])
    if slow := spilled(data):
        yield f"warning      kernels that spill into memory: {slow}"


def _kernel_row(project: Data, name: str, row: Data) -> list[str | Text]:
    """Return a table row of a GPU kernel: blocks of all launches, threads, registers, memory and
    occupancy.
    """
    launches = [step for step in project["steps"] if step["kernel"] == name]
    sizes = [row[key] for key in ("registers", "shared_bytes", "local_bytes")]
    figures = [sum(one["grid"] for one in launches), launches[0]["block"], *sizes]
    held = _known(row["resident_blocks"], "d"), _known(row["occupancy"], ".0%")
    return [name.removeprefix(f"{project['name']}_"), *map(str, figures), *held, str(row["code_bytes"])]


def show_cache(data: Data) -> Shown:
    """Format the contents of the object cache, or the number of entries removed."""
    amount = f"{data['entries']} objects, {unit(data['bytes'], 'B')}"
    more = f"removed {amount}" if data["cleared"] else f"{amount} of at most {unit(data['limit'], 'B')}"
    yield f"{data['folder']}: {more}"


def _open_model(report: Data) -> Shown:
    """Format the report of `aotc inspect` on a model with unknown dimensions, and the options that
    fix them.
    """
    yield _tensors({**report, "outputs": []})
    ranked = sorted(report["operators"].items(), key=lambda r: -r[1])
    yield f"operators    {', '.join(f'{name} {n}' for name, n in ranked)}"
    yield "dimensions that are not known have to be pinned (1 stands for any size):"
    for pin in report["pins"]:
        yield f"  {pin}"


def show_model(report: Data) -> Shown:
    """Format the report of `aotc inspect` on a model file: sizes, operators, largest kernels."""
    if report["unsupported"]:
        yield f"{report['model']} cannot be compiled:"
        for problem in report["unsupported"]:
            yield f"  {problem}"
        return
    if report["pins"]:
        yield from _open_model(report)
        return
    yield _tensors(report)
    parameters = f"{unit(report['parameters'])} ({unit(report['parameter_bytes'], 'B')})"
    yield from _sizes(report, parameters, report["steps"], report["arena"])
    if taken := report["footprint"]:
        yield f"footprint    {footprint(taken)}"
    yield f"numerics     {report['numerics']}"
    ranked = sorted(report["operators"].items(), key=lambda r: -r[1])
    operators = ", ".join(f"{name} {n}" for name, n in ranked)
    yield f"operators    {operators}"
    yield _largest(report["largest"])
    if report["left_real"]:
        real = [(row["operator"], row["reason"], ", ".join(row["nodes"][:2])) for row in report["left_real"]]
        yield grid("not on integers", "because", "nodes", rows=real)
    if report["scalar_loops"]:
        scalar = [
            (row["kernel"], row["loop"], row["reason"], ", ".join(row["nodes"][:1])) for row in report["scalar_loops"]
        ]
        yield grid("scalar loops", "of", "because of", "first node", rows=scalar)


#: Length in characters of the bar of the step with the most memory.
BAR = 16


def show_memory(report: Data) -> Shown:
    """Format the memory use of each step as a table with bars relative to the peak."""
    whole = max((row["bytes"] for row in report["moments"]), default=0)
    rows = []
    for k, row in enumerate(report["moments"]):
        bar = "#" * round(BAR * row["bytes"] / max(whole, 1)) + ("<" if row["bytes"] == whole else "")
        live = ", ".join(f"{t['name']} {t['bytes']}" for t in row["live"][:3])
        live += f" and {len(row['live']) - 3} more" if len(row["live"]) > 3 else ""
        rows.append((str(k), str(row["bytes"]), bar, row["kernel"], live))
    yield grid("step", "bytes", "", "kernel", "live", rows=rows, figures=slice(2))
    memory = report["arena"]
    yield f"arena        {memory['peak']} bytes, lower bound {memory['lower_bound']}, gap {memory['gap']}"
    if len(parts := memory["parts"]) > 1:
        of = [(p["memory"], *(str(p[key]) for key in ("offset", "bytes", "room", "accesses"))) for p in parts]
        yield grid("memory", "from byte", "taken", "of", "accesses", rows=of, figures=slice(1, 5))


def _output_row(source: str, o: Data) -> list[str | Text]:
    """Return a table row that compares an output with the reference, for inputs from `source`."""
    verdict = Text(o["text"], "green" if o["ok"] else "red")
    figures = [f"{o['max_abs']:.2e}", f"{o['relative']:.2e}", str(o["max_ulp"])]
    return [source, o["name"], *figures, verdict]


def _verdict(report: Data) -> str:
    """Return the overall verdict of `aotc verify` as text: agree, differ or inconclusive."""
    if report["verdict"] == "differ":
        return "outputs DIFFER"
    if report["verdict"] == "inconclusive":
        return "INCONCLUSIVE, outputs have nothing to compare"
    differences = [o["max_abs"] for case in report["cases"] for o in case["outputs"]]
    return "all outputs agree" if any(differences) else "all outputs agree, no element differs"


def _remarks(report: Data) -> Shown:
    """Yield the warnings about constant outputs and the remarks on outputs that cannot be compared."""
    for text in report["warnings"]:
        yield Text.assemble(("warning", "yellow"), f": {text}")
    for text in report["inconclusive"]:
        yield Text.assemble(("inconclusive", "bold yellow"), f": {text}")


def show_report(report: Data) -> Shown:
    """Format the report of `aotc verify`: a table of output errors, and the verdict."""
    rows = [_output_row(case["source"], output) for case in report["cases"] for output in case["outputs"]]
    yield grid("inputs", "output", "max abs", "relative", "ULP", "", rows=rows)
    if report["device"]:
        yield f"run on {report['device']}"
    yield from _remarks(report)
    yield f"compared with {report['reference']}: {_verdict(report)}"
    off = dict.fromkeys(o["name"] for case in report["cases"] for o in case["outputs"] if o["reference_is_off"])
    if off:
        yield f"{report['reference']} is off where float64 agrees with the compiled model: {', '.join(off)}"
    if report["inconclusive"]:
        yield f"hint: {OTHER_INPUTS}"
    if report["first_difference"]:
        yield f"first difference: {report['first_difference']}"
    if report["blame"]:
        yield f"to blame is {report['blame']}: {report['wrong_kernel']}"


def show_operators(support: Data) -> Shown:
    """Format the lists of supported graph, ONNX and TFLite operators for `aotc ops`."""
    rows = [(r["name"], r["fusion"], r["compiled"], ", ".join(r["attributes"])) for r in support["operators"]]
    yield grid("operator", "fusion", "compiled", "attributes", rows=rows)
    for domain, names in support["onnx"].items():
        yield f"\n{len(names)} operators of {domain}: {', '.join(names)}"
    yield "\nOthers that ONNX defines by functions, such as HardSwish and Attention, are replaced by these."
    if names := support["tflite"]:
        yield f"\n{len(names)} builtin operators of TFLite: {', '.join(names)}"


def show_targets(found: Data) -> Shown:
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
        for row in found["targets"]
    ]
    yield grid("target", "machine", "environment", "vector bits", "runs here", "instruction sets", rows=rows)
    yield f"\n--target host stands for {found['host']} on this machine; docs/targets.md says more about each target."


def show_config(found: Data) -> Shown:
    """Format the list of configuration keys for `aotc config`."""
    rows = [(row["key"], row["type"], row["default"], row["meaning"]) for row in found["keys"]]
    yield grid("key", "type", "default", "meaning", rows=rows)


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def _known(number: float | None, form: str) -> str:
    """Format a number for a table; return "" if it is None."""
    return "" if number is None else format(number, form)


def _bench_row(row: Data, threads: int) -> list[str | Text]:
    times, memory = row["milliseconds"], row["memory"]
    name = row["name"]
    if row["threads"] != threads:
        name += f" ({_threads(row['threads'])})"
    figures = [f"{times[key]:.3f}" for key in ("min", "median", "first")]
    figures += [f"{times['load']:.1f}", _known(memory and memory / 1e6, ".1f"), _known(row["ratio"], ".2f")]
    error = _known(row["relative"], ".1e") if row["agrees"] else Text("differs", "red")
    return [name, row["version"].split()[0], *figures, error]


def show_bench(result: Data) -> Shown:
    """Format the result of `aotc bench`: a table of implementations for each number of threads."""
    machine = result["machine"]
    where = f"{machine['cpu']}, {machine['processors']} processors, target {result['target']}"
    yield f"{result['model']} on {where}"
    for turn in result["rounds"]:
        yield ""
        head = (_threads(turn["threads"]), "version", "min ms", "median", "first", "load", "MB", "ratio", "error")
        rows = [_bench_row(row, turn["threads"]) for row in turn["contestants"]]
        # nine columns in 80 characters
        narrow = (0, 1, 0, 0)
        yield grid(*head, rows=rows, figures=slice(2, None), padding=narrow)
        for row in turn["contestants"]:
            if not row["agrees"]:
                yield f"differs: {row['name']}: {row['reason']}"
        for rival in turn["skipped"]:
            yield f"left out: {rival['name']}: {rival['reason']}"
        if turn["ratio"] is not None:
            yield f"aotc takes {turn['ratio']:.2f} of the time of the fastest rival, {turn['fastest_rival']}"
    yield from _remarks(result)
    if result["verdict"] == "inconclusive":
        yield f"compared with {result['reference']}: INCONCLUSIVE, outputs have nothing to compare"
        yield f"hint: {OTHER_INPUTS}"


def runs(result: Data) -> str:
    """Describe how many runs were timed, with their minimum and median time."""
    times = result["milliseconds"]
    return f"{result['repeat']} runs: minimum {times['min']:.3f} ms, median {times['median']:.3f} ms"


def show_run(result: Data) -> Shown:
    """Format the result of `aotc run`: a preview of the outputs, and the times."""
    for row in result["outputs"]:
        yield f"{row['name']}  {row['dtype']}{row['shape']}  {row['preview']}"
    yield runs(result)


#: Largest number of model nodes that a row of a profile names.
NODES_SHOWN = 3


def _profile_row(row: Data, whole: float, model: str) -> list[str | Text]:
    """Return a table row of a kernel: time, share of the total time `whole`, calls, rates, name and
    nodes.
    """
    more = len(row["nodes"]) - NODES_SHOWN
    nodes = ", ".join(row["nodes"][:NODES_SHOWN])
    if more > 0:
        nodes += f" and {more} more"
    taken = row["milliseconds"]
    times = f"{taken:.3f}", f"{taken / max(whole, 1e-9):.1%}", str(row["calls"])
    speeds = (f"{row['gflops']:.1f}", f"{row['of_peak']:.0%}") if row["macs"] else ("", "")
    name = Text.assemble((row["kernel"].removeprefix(f"{model}_"), "bold"), " ", nodes)
    return [*times, *speeds, f"{row['gbytes_per_s']:.1f}", f"{row['of_roofline']:.0%}", name]


def show_profile(result: Data) -> Shown:
    """Format the result of `aotc run --profile`: a table of kernels with times and rates."""
    head = ("ms", "share", "calls", "GFLOP/s", "peak", "GB/s", "roof", "kernel and nodes")
    times, machine = result["milliseconds"], result["machine"]
    rows = [_profile_row(row, times["watched"], result["model"]) for row in result["kernels"]]
    yield grid(*head, rows=rows, figures=slice(7))
    yield f"{runs(result)}; sum of the steps {times['watched']:.3f} ms"
    if result["disturbed"]:
        yield (
            f"{result['disturbed']} of {result['repeat']} runs took more than {QUIET} times as long as the fastest and "
            "are left out: other programs use this machine"
        )
    how = "now, on one core" if machine["measured"] else "as the driver states, not measured"
    yield (
        f"{how}: {machine['peak_gflops']:.1f} GFLOP/s, and {machine['bandwidth_gbytes_per_s']:.1f} GB/s "
        f"over the {unit(machine['touched_bytes'], 'B')} of a run"
    )
    if any(row["of_roofline"] > 1 for row in result["kernels"]):
        yield (
            "above 100%: Winograd convolutions count the multiplications of the definition, and what the step before "
            "wrote may lie in a nearer cache"
        )


def show_tuning(report: Data) -> Shown:
    """Format the result of `aotc tune`: a table of contractions with their fastest tilings."""
    rows = [
        (row["contraction"], row["candidate"], f"{row['microseconds']:.1f} us", f"{row['speedup']:.2f}")
        for row in report["rows"]
    ]
    if rows:
        yield grid("contraction", "fastest tiling", "time", "gain", rows=rows, figures=slice(2, None))
    known = {what: report[what] for what in ("measured", "known", "failed")}
    known["left"] = report["contractions"] - sum(known.values())
    shown = [what for what in ("measured", "known", "left", "failed") if known[what] or what == "measured"]
    text = ", ".join(f"{known[what]} {what}" for what in shown)
    yield f"{report['contractions']} contractions: {text}; records in {report['store']}"


#: Number of layers that the report of a quantized model shows.
WORST_SHOWN = 10


def _decibels(ratio: float | None) -> str:
    return "exact" if ratio is None else f"{ratio:.1f} dB"


def show_quantized(report: Data) -> Shown:
    """Format the report of `aotc quantize`: errors of layers, sizes and times of both models."""
    worst = [(row["node"], row["operator"], _decibels(row["snr_db"])) for row in report["layers"][:WORST_SHOWN]]
    yield grid("worst layers", "operator", "signal to noise", rows=worst, figures=slice(2, None))
    more = len(report["layers"]) - len(worst)
    if more > 0:
        yield f"and {more} more layers"
    if names := report["suggested_exclusions"]:
        yield f"suggested    {shlex.join(word for name in names for word in ('--exclude', name))}"
    for row in report.get("outputs", ()):
        yield f"output       {row['name']}: {_decibels(row['snr_db'])}, largest error {row['max_abs']:.2e}"
    if "ratio" in report:
        rows = [_size_row(what, report[what]) for what in ("float32", "quantized")]
        yield grid("model", "min us", "median", "weights", "library", "arena", rows=rows, figures=slice(1, None))
        yield f"the quantized model takes {report['ratio']:.2f} of the time of the float one"
    elif "float32" in report:
        rows = [_need_row(what, report[what]) for what in ("float32", "quantized")]
        yield grid("model", "RAM", "flash", rows=rows, figures=slice(1, None))
        yield "flash holds code, whose size is estimated, and parameters; times are measured on the board"
    else:
        yield "times        not measured: that takes a C compiler, and no --no-build"
    yield f"written      {report['output']}"


def _need_row(name: str, facts: Data) -> list[str | Text]:
    return [name, *(unit(facts[f"{kind}_bytes"], "B") for kind in ("ram", "flash"))]


def _size_row(name: str, facts: Data) -> list[str | Text]:
    times = (f"{1000 * facts['milliseconds'][key]:.1f}" for key in ("min", "median"))
    sizes = (unit(facts[f"{what}_bytes"], "B") for what in ("weights", "library", "arena"))
    return [name, *times, *sizes]
