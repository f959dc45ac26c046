# SPDX-License-Identifier: Apache-2.0
"""Results as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aotc.checking.verify import Report


def size(count: float) -> str:
    """Bytes with a unit: 4.01 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def count(number: float) -> str:
    """A number with a unit: 1.82 G."""
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.0f}" if not unit else f"{number:.2f}{unit}"
        number /= 1000
    return f"{number:.2f} G"


def _grid(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _tensor_rows(table: Table, kind: str, tensors: Sequence[Mapping[str, Any]]) -> None:
    for tensor in tensors:
        shape = "x".join(map(str, tensor["shape"])) or "scalar"
        table.add_row(kind, str(tensor["name"]), f"{tensor['dtype']} {shape}")


def show_model(console: Console, report: Mapping[str, Any]) -> None:
    """The report of `inspect_model`."""
    if report["unsupported"]:
        console.print(f"{report['model']} cannot be compiled:", markup=False)
        for problem in report["unsupported"]:
            console.print(f"  {problem}", markup=False)
        return
    table = _grid("", "name", "type")
    _tensor_rows(table, "input", report["inputs"])
    _tensor_rows(table, "output", report["outputs"])
    console.print(table)
    arena = report["arena"]
    console.print(f"parameters   {count(report['parameters'])} ({size(report['parameter_bytes'])})")
    console.print(f"MACs         {count(report['macs'])} in {report['steps']} steps, {report['kernels']} kernels")
    console.print(f"arena        {size(arena['peak'])} (lower bound {size(arena['lower_bound'])})")
    operators = ", ".join(f"{name} {n}" for name, n in sorted(report["operators"].items(), key=lambda r: -r[1]))
    console.print(f"operators    {operators}", markup=False)
    table = _grid("largest kernels", "MACs", "nodes")
    for row in report["largest"]:
        table.add_row(row["kernel"], count(row["macs"]), ", ".join(row["nodes"][:4]))
    console.print(table)


def show_report(console: Console, report: Report) -> None:
    """The report of `verify`."""
    table = _grid("inputs", "output", "max abs", "relative", "ULP", "")
    for case in report.cases:
        for o in case.outputs:
            verdict = "[green]ok[/]" if o.ok else f"[red]{o.reason}[/]"
            if o.ok and o.exact is not None:
                verdict += f" (from the exact result: {o.exact:.1e}, the reference: {o.reference_exact:.1e})"
            table.add_row(case.source, o.name, f"{o.max_abs:.2e}", f"{o.relative:.2e}", str(o.max_ulp), verdict)
    console.print(table)
    console.print(f"compared with {report.reference}: {'all outputs agree' if report.ok else 'outputs DIFFER'}")
    if report.first_difference:
        console.print(f"first difference: {report.first_difference}", markup=False)
    if report.wrong_kernel:
        console.print(f"wrong code: {report.wrong_kernel}; another compiler or --cflags=-O1 may help", markup=False)


def show_operators(console: Console, support: Mapping[str, Any]) -> None:
    """The support table."""
    table = _grid("operator", "fusion", "compiled", "attributes")
    for row in support["operators"]:
        table.add_row(row["name"], row["fusion"], row["compiled"], ", ".join(row["attributes"]))
    console.print(table)
    for domain, names in support["onnx"].items():
        console.print(f"\n{len(names)} operators of {domain}: {', '.join(names)}", markup=False)


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def _bench_row(row: Mapping[str, Any], threads: int) -> list[str]:
    times = row["milliseconds"]
    name = row["name"] if row["threads"] == threads else f"{row['name']} ({_threads(row['threads'])})"
    return [
        name,
        row["version"].split()[0],
        f"{times['min']:.3f}",
        f"{times['median']:.3f}",
        f"{times['first']:.3f}",
        f"{times['load']:.1f}",
        "" if row["memory"] is None else f"{row['memory'] / 1e6:.1f}",
        "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ("" if row["relative"] is None else f"{row['relative']:.1e}") if row["agrees"] else "[red]differs[/]",
    ]


def show_bench(console: Console, result: Mapping[str, Any]) -> None:
    """The result of `bench`."""
    machine = result["machine"]
    where = f"{machine['cpu']}, {machine['processors']} processors, target {result['target']}"
    console.print(f"{result['model']} on {where}", markup=False)
    for turn in result["rounds"]:
        console.print()
        head = ("version", "min ms", "median", "first", "load", "MB", "ratio", "error")
        table = _grid(_threads(turn["threads"]), *head)
        table.padding = (0, 1, 0, 0)  # nine columns in 80 characters
        for column in table.columns[2:]:
            column.justify = "right"
        for row in turn["contestants"]:
            table.add_row(*_bench_row(row, turn["threads"]))
        console.print(table)
        for row in (row for row in turn["contestants"] if not row["agrees"]):
            console.print(f"differs: {row['name']}: {row['reason']}", markup=False)
        for rival in turn["skipped"]:
            console.print(f"left out: {rival['name']}: {rival['reason']}", markup=False)
        if turn["ratio"] is not None:
            console.print(f"aotc takes {turn['ratio']:.2f} of the time of the fastest rival, {turn['fastest_rival']}")


NODES_SHOWN = 3
"""Nodes of the model that a row of a profile names."""


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - NODES_SHOWN
    return ", ".join(nodes[:NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def show_profile(console: Console, result: Mapping[str, Any]) -> None:
    """The result of `profile`."""
    table = _grid("ms", "share", "calls", "GFLOP/s", "peak", "GB/s", "roof", "kernel and nodes")
    for column in table.columns[:7]:
        column.justify = "right"
        column.no_wrap = True
    times, machine = result["milliseconds"], result["machine"]
    for row in result["kernels"]:
        table.add_row(
            f"{row['milliseconds']:.3f}",
            f"{row['milliseconds'] / max(times['watched'], 1e-9):.1%}",
            str(row["calls"]),
            f"{row['gflops']:.1f}" if row["macs"] else "",
            f"{row['of_peak']:.0%}" if row["macs"] else "",
            f"{row['gbytes_per_s']:.1f}",
            f"{row['of_roofline']:.0%}",
            Text.assemble((row["kernel"].removeprefix(f"{result['model']}_"), "bold"), " ", _named(row["nodes"])),
        )
    console.print(table)
    console.print(
        f"{result['repeat']} runs: minimum {times['min']:.3f} ms, median {times['median']:.3f} ms; with the clock "
        f"between steps {times['watched']:.3f} ms"
    )
    console.print(
        f"now, on one core: {machine['peak_gflops']:.1f} GFLOP/s, and {machine['bandwidth_gbytes_per_s']:.1f} GB/s "
        f"over the {size(machine['touched_bytes'])} of a run"
    )
    if any(row["of_roofline"] > 1 for row in result["kernels"]):
        console.print(
            "above 100%: Winograd convolutions count the multiplications of the definition, and what the step before "
            "wrote may lie in a nearer cache"
        )


def show_tuning(console: Console, report: Mapping[str, Any]) -> None:
    """What was measured, and what came of it."""
    table = Table("contraction", "fastest tiling", box=None)
    table.add_column("time", justify="right")
    table.add_column("gain", justify="right")
    for row in report["rows"]:
        gain = f"{row['speedup']:.2f}"
        table.add_row(row["contraction"], row["candidate"], f"{row['microseconds']:.1f} us", gain)
    if report["rows"]:
        console.print(table)
    left = report["contractions"] - report["known"] - report["measured"] - report["failed"]
    counts = [
        ("measured", report["measured"]),
        ("known", report["known"]),
        ("left", left),
        ("failed", report["failed"]),
    ]
    text = ", ".join(f"{count} {what}" for what, count in counts if count or what == "measured")
    console.print(f"{report['contractions']} contractions: {text}; records in {report['store']}", markup=False)
