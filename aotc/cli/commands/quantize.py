# SPDX-License-Identifier: Apache-2.0
"""`aotc quantize`: quantize an ONNX model, and measure what that costs and gains."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from aotc.cli import compile_options
from aotc.cli import options as options_of
from aotc.cli.command_definition import define_command
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_flag, declare_option
from aotc.quantizing.onnxruntime_quantizer import ORT_CALIBRATION_METHODS, ORT_WEIGHT_TYPES
from aotc.quantizing.quantize import quantize
from aotc.reporting.text_tables import format_with_unit_prefix, make_borderless_table


@define_command(
    "quantize",
    options_of.MODEL_ARGUMENT,
    declare_option("-o --output", "The quantized model.", PATH_TYPE, required=True, metavar="FILE.onnx"),
    declare_option(
        "--calibration", "Inputs: an .npz file, or a folder of .npz files.",
        PATH_TYPE, required=True, metavar="DIR|FILE.npz",
    ),
    declare_flag("--per-channel", "A scale for each output channel of weights."),
    declare_option(
        "--method", "Range of activations: all values, or all but the most extreme ones.",
        click.Choice(tuple(ORT_CALIBRATION_METHODS)), "minmax",
    ),
    declare_option("--weights", "What weights become.", click.Choice(tuple(ORT_WEIGHT_TYPES)), "int8"),
    declare_option("--exclude", "Leave a node in float.", multiple=True, metavar="NODE"),
    declare_option("--seconds", "To measure, at most.", click.FloatRange(0), 5.0),
    declare_flag(
        "--no-build build", "Compile and measure nothing; needs no C compiler.", flag_value=False, default=True
    ),
    compile_options.COMPILATION_OPTIONS,
    compile_options.declare_compile_options("io_dtype"),
)  # fmt: skip
def quantize_command(out: Reporter, model: Path, **options: Any) -> None:
    """Quantize MODEL (.onnx) with ONNX Runtime, and tell what it costs and gains.

    The errors of layers are what each adds if it alone is quantized.
    """
    report = quantize(model, progress=out.report_stage, **options)
    out.print_result(report, render_quantization_report)


#: Number of layers that the report of a quantized model shows.
MAX_LAYERS_SHOWN = 10


def _format_decibels_or_exact(decibels: float | None) -> str:
    return "exact" if decibels is None else f"{decibels:.1f} dB"


def render_quantization_report(report: JsonObject) -> RenderedParts:
    """Format the report of `aotc quantize`: errors of layers, sizes and times of both models."""
    worst = [
        (row["node"], row["operator"], _format_decibels_or_exact(row["snr_db"]))
        for row in report["layers"][:MAX_LAYERS_SHOWN]
    ]
    yield make_borderless_table(
        "worst layers", "operator", "signal to noise", rows=worst, numeric_columns=slice(2, None)
    )
    hidden_count = len(report["layers"]) - len(worst)
    if hidden_count > 0:
        yield f"and {hidden_count} more layers"
    if names := report["suggested_exclusions"]:
        yield f"suggested    {shlex.join(word for name in names for word in ('--exclude', name))}"
    for row in report.get("outputs", ()):
        figures = []
        if row["max_abs"] is not None:
            figures.append(f"{_format_decibels_or_exact(row['snr_db'])}, largest error {row['max_abs']:.2e}")
        if count := row["sets_of_other_shape"]:
            sets = f"{count} of {report['compared_sets']} sets of data"
            figures.append(f"another shape than in the float model for {sets}")
        yield f"output       {row['name']}: {'; '.join(figures)}"
    if "ratio" in report:
        rows = [_time_and_size_row(variant, report[variant]) for variant in ("float32", "quantized")]
        yield make_borderless_table(
            "model", "min us", "median", "weights", "library", "arena", rows=rows, numeric_columns=slice(1, None)
        )
        yield f"the quantized model takes {report['ratio']:.2f} of the time of the float one"
    elif "float32" in report:
        rows = [_ram_and_flash_row(variant, report[variant]) for variant in ("float32", "quantized")]
        yield make_borderless_table("model", "RAM", "flash", rows=rows, numeric_columns=slice(1, None))
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
