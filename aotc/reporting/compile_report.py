# SPDX-License-Identifier: Apache-2.0
"""Report of a compilation: text tables for the terminal, and one HTML page with charts.

report = PassReport("net.onnx")
report.add_compiled_model(aotc.compile("net.onnx", instruments=[report], progress=report.stage))
print(report.render())
report.save_html("report.html")
"""

import difflib
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import jinja2
from rich.console import Console

from aotc.driver.pipeline import BUILDING, LOWERING, PLANNING, WRITING, CompiledModel
from aotc.driver.temporary_folders import open_output_file
from aotc.ir import ALL_LEVELS
from aotc.ir.terminal_safe_text import escape_and_shorten_unsafe_lines
from aotc.ir.version import VERSION
from aotc.relay.instrument.pass_statistics import PassRecord, PassRecords, ProgramStatistics, RuleFigures
from aotc.relay.transform.pass_base import rewrite_report
from aotc.reporting.graph_drawing import DUMP_AS_TEXT_ADVICE, draw_graphs_before_and_after, nodes_to_draw
from aotc.reporting.svg_charts import Picture, draw_arena_chart, draw_roofline_chart
from aotc.reporting.text_tables import describe_register_spills, format_with_unit_prefix, make_borderless_table
from aotc.tir import Program, Target, scalar_loops

TEMPLATE_FOLDER: Final = Path(__file__).with_name("templates")
#: Largest number of lines of a program that is diffed; for longer ones only the lengths are shown.
MAX_DIFFED_PROGRAM_LINES: Final = 4000
#: Largest number of lines of a diff that are shown.
MAX_DIFF_LINES_SHOWN: Final = 1500


class PassReport(PassRecords):
    """Instrument that records time, operators, parameter bytes, FLOPs and live memory before and
    after every pass, the hits of its rewrite rules, and the stages of the compilation.

    For tensor passes, the operators are kernel calls.

    title        name of the compiled model
    facts        further (name, value) pairs for the head of the report
    unfinished   word that marks a pass that did not complete
    """

    levels: ClassVar[frozenset[str]] = ALL_LEVELS

    def __init__(self, title: str = "", facts: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(watch_rules=rewrite_report)
        self.title = title
        self.facts = list(facts)
        self.unfinished = "failed"
        self._results: dict[str, str] = {}
        self._target: Target | None = None
        self._program: Program | None = None
        self._pictures: list[tuple[str, Picture]] = []

    def program_statistics_of_module(self, module: Any) -> ProgramStatistics:
        if not isinstance(module, Program):
            return super().program_statistics_of_module(module)
        self._program = module
        calls = Counter("shared call" if step.kernel.team else "call" for step in module.steps)
        parameters = sum(storage.nbytes for storage in module.constants)
        macs = sum(step.kernel.macs for step in module.steps)
        return ProgramStatistics(calls, parameters, 2 * macs, module.plan.lower_bound)

    def program_data_for_diagrams(self, module: Any) -> Any:
        return nodes_to_draw(module)

    def add_compiled_model(self, model: CompiledModel) -> None:
        """Add the results of a compilation to the report: kernels, memory and file sizes.

        The project must still exist on disk.
        """
        metadata, sources = model.metadata, [*model.path.glob("src/*.c"), *model.path.glob("src/*.h")]
        code = sum(p.stat().st_size for p in sources if not p.name.endswith("_params.c"))
        memory, weights = metadata["memory"], format_with_unit_prefix(metadata["weights_bytes"], "B")
        self._target = model.target
        self.facts += [(fact, metadata[fact]) for fact in ("target", "numerics")]
        self.facts.append(("warning: kernels spill", describe_register_spills(metadata)))
        self._results = {
            LOWERING: f"{metadata['kernels']} kernels for {len(metadata['steps'])} calls",
            PLANNING: f"arena of {format_with_unit_prefix(memory['peak'], 'B')} for {len(memory['buffers'])} tensors; "
            f"{format_with_unit_prefix(memory['lower_bound'], 'B')} are live at once",
            WRITING: f"{format_with_unit_prefix(code, 'B')} of C, {weights} of parameters",
        }
        if model.library is not None:
            self._results[BUILDING] = f"library of {format_with_unit_prefix(model.library.stat().st_size, 'B')}"
        self._pictures.append(("Memory", draw_arena_chart(metadata)))

    def add_profile(self, result: Mapping[str, Any]) -> None:
        """Add the times of a run by kernel; `result` is the result of `aotc.measuring.profile`."""
        self.facts.append(("target", result["target"]))
        self._pictures.append(("Roofline", draw_roofline_chart(result)))

    def _header_facts(self) -> list[tuple[str, str]]:
        """Return the facts for the head of the report: target, options and versions, as (name,
        value) pairs.
        """
        facts = dict(self.facts)
        if (context := self.context) is not None:
            facts["level"] = str(context.opt_level)
            facts["accuracy"] = context.get_config("compile.accuracy", "fast")
            facts["required"] = ", ".join(context.required_pass)
            facts["disabled"] = ", ".join(context.disabled_pass)
            facts["config"] = ", ".join(f"{key} = {value}" for key, value in context.config.items())
        whole = sum(r.seconds for r in self.passes if r.depth == 0)
        facts |= {"aotc": VERSION, "Python": platform.python_version()}
        facts["passes"] = f"{len(self.passes)} in {1e3 * whole:.1f} ms" if self.passes else ""
        return [(name, value) for name, value in facts.items() if value]

    def _stage_table_rows(self) -> list[tuple[str, str, str, str]]:
        """Return for each stage its name, milliseconds, result, and time as a percentage of the
        longest stage.
        """
        longest = max((seconds for _, seconds in self.stages), default=0.0)
        return [(n, f"{1e3 * s:.1f}", self._results.get(n, ""), _format_percentage(s, longest)) for n, s in self.stages]

    def _scalar_loop_rows(self) -> list[tuple[str, str, str]]:
        """Return the loop nests without vectorization in the last program: kernel, loop variables
        and reason.
        """
        if self._program is None or self._target is None:
            return []
        kernels = self._program.distinct_kernels
        return [(k.name, s.loop, s.reason) for k in kernels for s in scalar_loops(k, self._target)]

    def render(self, width: int = 140) -> str:
        """Return facts, stages, passes and rewrite rules as plain-text tables of at most `width`
        columns.
        """
        passes, rules = list[tuple[str, ...]](), list[tuple[str, ...]]()
        for record in self.passes:
            operators = ", ".join(f"{op} {count:+d}" for op, count in record.op_call_count_changes.items())
            times = f"{1e3 * record.seconds:.2f}", f"{1e3 * record.own:.2f}"
            figures = (
                format_with_unit_prefix(*figure)
                for figure in _program_statistics_with_units(record.after or record.before)
            )
            unfinished = f" ({self.unfinished})" if record.after is None else ""
            passes.append((f"{'  ' * record.depth}{record.name}{unfinished}", *times, *figures, operators))
            rules += [
                (record.name, row["hits"], row["tried"], row["ms"], row["name"]) for row in _rewrite_rule_rows(record)
            ]
        tables: dict[tuple[str, ...], Sequence[Sequence[str]]] = {
            ("", ""): self._header_facts(),
            ("stage", "ms", "result"): [stage[:3] for stage in self._stage_table_rows()],
            ("pass", "ms", "own", "calls", "parameters", "FLOPs", "live", "operators"): passes,
            ("rules of", "hits", "tried", "ms", "rule"): rules,
            ("scalar loops", "of", "because of"): self._scalar_loop_rows(),
        }
        rich_tables = [
            make_borderless_table(*headers, rows=rows, numeric_columns=slice(1, -1))
            for headers, rows in tables.items()
            if rows
        ]
        console = Console(width=width, color_system=None, legacy_windows=False)
        with console.capture() as text:
            for k, table in enumerate(rich_tables):
                console.print(*([] if k == 0 else [""]), table)
        return text.get()

    def to_html(self) -> str:
        """Return the compilation report as one self-contained HTML page."""
        loader = jinja2.FileSystemLoader(TEMPLATE_FOLDER)
        environment = jinja2.Environment(
            loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_shorten_lines_of_text
        )
        longest = max((r.own for r in self.passes), default=0.0)
        return environment.get_template("report.html.j2").render(
            title=self.title or "compilation",
            facts=self._header_facts(),
            unfinished=self.unfinished,
            stages=self._stage_table_rows(),
            scalar=self._scalar_loop_rows(),
            pictures=self._pictures,
            passes=[_pass_table_row(k, r, longest) for k, r in enumerate(self.passes, 1)],
        )

    def save_html(self, path: str | Path) -> None:
        """Write the HTML page to a file; AotcError (code "report") if that fails."""
        text = self.to_html()
        with open_output_file(Path(path), "report") as file:
            file.write(text.encode("utf-8", "backslashreplace"))


def _shorten_lines_of_text(value: Any) -> Any:
    """Shorten long lines of a text, which may come from a model, on the HTML page; return other values
    unchanged.
    """
    is_markup = hasattr(value, "__html__")
    return escape_and_shorten_unsafe_lines(value) if isinstance(value, str) and not is_markup else value


def _rewrite_rule_rows(record: PassRecord) -> list[dict[str, str]]:
    """Return the rewrite rules tried in a pass with their figures, those with the most hits first."""

    def count_rule_attempts(figures: RuleFigures) -> int:
        return figures.hits + figures.misses + figures.refused.total()

    ranked = sorted(record.rules.items(), key=lambda item: (-item[1].hits, -count_rule_attempts(item[1]), item[0]))
    return [
        {
            "name": name,
            "hits": str(figures.hits),
            "tried": str(count_rule_attempts(figures)),
            "ms": f"{1e3 * figures.seconds:.2f}",
            "refused": "; ".join(f"{reason} ({count})" for reason, count in figures.refused.most_common()),
        }
        for name, figures in ranked
    ]


def _format_percentage(part: float, whole: float) -> str:
    return f"{100 * part / whole if whole else 0:.1f}"


def _program_statistics_with_units(statistics: ProgramStatistics) -> tuple[tuple[int, str], ...]:
    """Return calls, parameters, FLOPs and live memory of a program, each with its unit, for a
    report.
    """
    return (
        (statistics.operators.total(), ""),
        (statistics.parameters, "B"),
        (statistics.flops, ""),
        (statistics.live, "B"),
    )


def _pass_table_row(number: int, record: PassRecord, longest_seconds: float) -> dict[str, Any]:
    """Return the values for one compiler pass in the HTML report: times, figures, changes and
    graphs.
    """
    after = record.after or record.before
    diff = list(_program_diff_lines(record))
    added, removed = (sum(line["kind"] == kind for line in diff) for kind in ("add", "del"))
    return {
        "number": number,
        "name": record.name,
        "indent": 0.6 + 1.2 * record.depth,
        "failed": record.after is None,
        "idle": record.after is not None and record.text_after is None,
        "ms": f"{1e3 * record.seconds:.2f}",
        "own": f"{1e3 * record.own:.2f}",
        "share": _format_percentage(record.own, longest_seconds),
        "cells": [
            _before_after_table_cell(old, *new)
            for (old, _), new in zip(
                _program_statistics_with_units(record.before), _program_statistics_with_units(after), strict=True
            )
        ],
        "operators": [
            {"name": n, "change": f"{c:+d}", "kind": _change_css_class(c)}
            for n, c in record.op_call_count_changes.items()
        ],
        "rules": _rewrite_rule_rows(record),
        "hits": sum(figures.hits for figures in record.rules.values()),
        "diff": diff,
        "graphs": draw_graphs_before_and_after(record.drawn_before, record.drawn_after)
        if record.text_after is not None
        else (),
        "summary": f"+{added} −{removed} lines",
    }


def _change_css_class(change: float) -> str:
    return "more" if change > 0 else "less"


def _before_after_table_cell(before: int, after: int, unit_name: str) -> dict[str, str]:
    change = after - before
    sign = "+" if change > 0 else "−"
    text = f"{sign}{format_with_unit_prefix(abs(change), unit_name)}" if change else ""
    return {"text": format_with_unit_prefix(after, unit_name), "change": text, "kind": _change_css_class(change)}


def _program_diff_lines(record: PassRecord) -> Iterator[dict[str, str]]:
    """Yield the lines of a unified diff of the program before and after a pass, with three lines of
    context.
    """
    if record.text_after is None:
        return
    before, after = record.text_before.splitlines(), record.text_after.splitlines()
    if max(len(before), len(after)) > MAX_DIFFED_PROGRAM_LINES:
        text = f"{len(before)} lines before, {len(after)} after are too long to compare here; {DUMP_AS_TEXT_ADVICE}"
        yield {"kind": "hunk", "text": text}
        return
    lines = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    for line in lines[:MAX_DIFF_LINES_SHOWN]:
        yield {"kind": {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], ""), "text": line}
    if len(lines) > MAX_DIFF_LINES_SHOWN:
        yield {"kind": "hunk", "text": f"{len(lines) - MAX_DIFF_LINES_SHOWN} more lines are left out"}
