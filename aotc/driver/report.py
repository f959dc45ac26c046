# SPDX-License-Identifier: Apache-2.0
"""The report of a compilation: a table for the terminal, one page of HTML for the browser.

report = PassReport("net.onnx")
aotc.compile("net.onnx", instruments=[report], progress=report.stage)
print(report.render())
report.save_html("report.html")
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jinja2
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aotc.ir.diagnostics import AotcError
from aotc.relay.instrument.measure import Measure, PassRecord, PassRecords

TEMPLATES: Final = Path(__file__).with_name("templates")
LONGEST: Final = 4000
"""Lines of a program of which a difference is made; of longer ones only the lengths are told."""
SHOWN: Final = 1500
"""Lines of a difference that are shown."""


class PassReport(PassRecords):
    """Time, operators, parameter bytes, FLOPs and live memory before and after every pass, and the stages around them.

    title    what was compiled
    facts    more to tell at the head: (name, value)
    """

    def __init__(self, title: str = "", facts: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self.title = title
        self.facts = list(facts)

    def render(self, width: int = 140) -> str:
        """The passes as a table of plain text, at most so many columns wide."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("pass", no_wrap=True)
        for header in ("ms", "own", "calls", "parameters", "FLOPs", "live"):
            table.add_column(header, justify="right", no_wrap=True)
        table.add_column("operators", overflow="fold")
        for record in self.passes:
            name = "  " * record.depth + record.name + (" (failed)" if record.after is None else "")
            after = record.after or record.before
            operators = ", ".join(f"{op} {count:+d}" for op, count in record.change.items())
            cells = (name, f"{1e3 * record.seconds:.2f}", f"{1e3 * record.own:.2f}", *_figures(after), operators)
            table.add_row(*map(Text, cells))
        console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
        console.print(table)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def to_html(self) -> str:
        """The whole report as one page that needs nothing else."""
        loader = jinja2.FileSystemLoader(TEMPLATES)
        environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
        whole = sum(r.seconds for r in self.passes if r.depth == 0)
        facts = [*self.facts, ("aotc", version("aotc")), ("passes", f"{len(self.passes)} in {1e3 * whole:.1f} ms")]
        longest = max((r.own for r in self.passes), default=0.0)
        stages = max((seconds for _, seconds in self.stages), default=0.0)
        return environment.get_template("report.html.j2").render(
            title=self.title or "compilation",
            facts=facts,
            stages=[{"name": n, "ms": f"{1e3 * s:.1f}", "share": _share(s, stages)} for n, s in self.stages],
            passes=[_row(k, r, longest) for k, r in enumerate(self.passes, 1)],
        )

    def save_html(self, path: str | Path) -> None:
        """Write the page; AotcError (code "report") where that is not possible."""
        text = self.to_html()
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise AotcError("report", f"cannot write {path}: {error.strerror}") from error


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.1f}"


def _unit(number: float, unit: str) -> str:
    """1234567 -> 1.23 M, with three digits."""
    for prefix in ("", "k", "M", "G"):
        if abs(number) < 1000:
            digits = f"{number:.0f}" if not prefix else f"{number:.3g}"
            return f"{digits} {prefix}{unit}".strip()
        number /= 1000
    return f"{number:.3g} T{unit}"


def _figures(m: Measure) -> tuple[str, str, str, str]:
    return str(m.operators.total()), _unit(m.parameters, "B"), _unit(m.flops, ""), _unit(m.live, "B")


def _row(number: int, record: PassRecord, longest: float) -> dict[str, Any]:
    """What the template wants to know of a pass."""
    after = record.after or record.before
    pairs = (
        (record.before.operators.total(), after.operators.total(), ""),
        (record.before.parameters, after.parameters, "B"),
        (record.before.flops, after.flops, ""),
        (record.before.live, after.live, "B"),
    )
    diff = list(_difference(record))
    added, removed = (sum(line["kind"] == kind for line in diff) for kind in ("add", "del"))
    return {
        "number": number,
        "name": record.name,
        "indent": 0.6 + 1.2 * record.depth,
        "failed": record.after is None,
        "idle": record.after is not None and record.text_after is None,
        "ms": f"{1e3 * record.seconds:.2f}",
        "own": f"{1e3 * record.own:.2f}",
        "share": _share(record.own, longest),
        "cells": [_cell(*pair) for pair in pairs],
        "operators": [{"name": n, "change": f"{c:+d}", "kind": _kind(c)} for n, c in record.change.items()],
        "diff": diff,
        "summary": f"+{added} −{removed} lines",
    }


def _kind(change: float) -> str:
    return "more" if change > 0 else "less"


def _cell(before: int, after: int, unit: str) -> dict[str, str]:
    change = after - before
    sign = "+" if change > 0 else "−"
    text = f"{sign}{_unit(abs(change), unit)}" if change else ""
    return {"text": _unit(after, unit), "change": text, "kind": _kind(change)}


def _difference(record: PassRecord) -> Iterator[dict[str, str]]:
    """The lines that a pass changed, with three lines around them."""
    if record.text_after is None:
        return
    before, after = record.text_before.splitlines(), record.text_after.splitlines()
    if max(len(before), len(after)) > LONGEST:
        text = f"{len(before)} lines before, {len(after)} after: too long to compare here; --dump-ir writes both"
        yield {"kind": "hunk", "text": text}
        return
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    for line in lines[:SHOWN]:
        yield {"kind": {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], ""), "text": line}
    if len(lines) > SHOWN:
        yield {"kind": "hunk", "text": f"{len(lines) - SHOWN} more lines are left out"}
