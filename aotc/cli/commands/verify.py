# SPDX-License-Identifier: Apache-2.0
"""`aotc verify`: compare a compiled model with another implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from aotc.checking.input_generation import OTHER_INPUTS_HINT
from aotc.checking.verify import EXIT_CODE_BY_VERDICT, verify
from aotc.cli import compile_options
from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_flag, declare_flag_pair, declare_option
from aotc.cli.result_tables import output_comparison_warning_lines
from aotc.ir.option_value_text import format_byte_count_option, parse_byte_count
from aotc.reporting.text_tables import make_borderless_table


@define_command(
    "verify",
    options_of.MODEL_ARGUMENT,
    options_of.INPUT_OPTIONS,
    declare_option("--seeds", "Random input sets to try.", click.IntRange(1), 3),
    declare_flag(
        "--bisect", "Name the first node and kernel that differ, and whether compiler or schedule is to blame."
    ),
    declare_flag_pair(
        "--check-compiler/--no-check-compiler",
        "Build kernels at -O0, too, and compare [default, but for --bisect, which does more], or not.",
    ),
    declare_option(
        "--project", "Compile nothing: run the library of MODEL in a project that is built.", PATH_TYPE, metavar="DIR"
    ),
    declare_option(
        "--memory", "What a result in double precision, which judges doubtful outputs, may take.",
        default="2G", read=parse_byte_count, write=format_byte_count_option, metavar="SIZE",
    ),
    compile_options.COMPILATION_OPTIONS,
    compile_options.STATE_OPTION,
    compile_options.declare_compile_options("io_dtype"),
)  # fmt: skip
def verify_command(out: Reporter, model: Path, **options: Any) -> None:
    """Compare the compiled MODEL with another implementation.

    An .onnx model with ONNX Runtime (or onnx's reference evaluator), an exported program of PyTorch
    (.pt2) with torch, a TFLite model (.tflite) with the interpreter whose integers are asked for
    (tflite-micro, ai-edge-litert), Relay text (.relay) with the numpy interpreter.

    The exit code is 0 if all outputs agree, 1 if one differs, 3 if the run is inconclusive, since
    an output is NaN, infinite or empty throughout.
    """
    report = verify(model, progress=out.report_stage, **options)
    out.print_result(report.as_dict(), render_verify_report)
    if not report.ok:
        raise SystemExit(EXIT_CODE_BY_VERDICT[report.verdict])


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


def render_verify_report(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc verify`: a table of output errors, and the verdict."""
    rows = [_output_comparison_row(case["source"], output) for case in report["cases"] for output in case["outputs"]]
    yield make_borderless_table("inputs", "output", "max abs", "relative", "ULP", "", rows=rows)
    if report["device"]:
        yield f"run on {report['device']}"
    yield from output_comparison_warning_lines(report)
    yield f"compared with {report['reference']}: {_overall_verify_verdict_text(report)}"
    if report["reference_note"]:
        yield f"note: {report['reference_note']}"
    off = dict.fromkeys(o["name"] for case in report["cases"] for o in case["outputs"] if o["reference_is_off"])
    if off:
        yield f"{report['reference']} is off where float64 agrees with the compiled model: {', '.join(off)}"
    if report["inconclusive"]:
        yield "hint: " + OTHER_INPUTS_HINT
    if report["first_difference"]:
        yield f"first difference: {report['first_difference']}"
    if report["blame"]:
        yield f"to blame is {report['blame']}: {report['wrong_kernel']}"
