# SPDX-License-Identifier: Apache-2.0
"""`aotc demo`: compile a small network that comes with aotc, run it, and compare the results."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from aotc.checking.demo_network import DEMO_MODEL_PATH, run_demo_network
from aotc.cli.command_definition import define_command
from aotc.cli.compile_options import declare_compile_options
from aotc.cli.console import JsonObject, RenderedParts, Reporter
from aotc.cli.options import PATH_TYPE, declare_option
from aotc.driver.compile import compile
from aotc.driver.output_folder import require_folder_without_foreign_files
from aotc.ir import listen_to_progress
from aotc.reporting.text_tables import format_with_unit_prefix

_DEFAULT_OUTPUT: Final = Path("build") / "aotc-demo"


@define_command(
    "demo",
    declare_option("-o --output", f"Directory of the project [default: {_DEFAULT_OUTPUT}].", PATH_TYPE, metavar="DIR"),
    declare_compile_options("target", "cc"),
)
def demo_command(out: Reporter, output: Path | None, target: str, cc: str | None) -> None:
    """Compile a network that recognizes handwritten digits, run it, and compare the results.

    The network comes with aotc.  The exit code is 1 if results differ from those of ONNX Runtime, or of the
    evaluator of the package onnx where that is not installed.
    """
    if output is None:
        output = _DEFAULT_OUTPUT
        require_folder_without_foreign_files(output)
    with listen_to_progress(out.show_progress):
        compiled = compile(DEMO_MODEL_PATH, output=output, target=target, cc=cc, progress=out.report_stage)
    out.report_stage("running the network")
    report = {
        "path": str(compiled.path),
        "library": str(compiled.library),
        "target": compiled.metadata["target"],
        "weights_bytes": compiled.metadata["weights_bytes"],
        "arena_bytes": compiled.metadata["memory"]["peak"],
        **run_demo_network(compiled),
    }
    out.print_result(report, render_demo_report)
    if not report["agrees"]:
        raise SystemExit(1)


def render_demo_report(report: JsonObject) -> RenderedParts:
    """Format the result of `aotc demo`."""
    digits, path = report["digits"], report["path"]
    right = sum(row["digit"] == row["recognized"] for row in digits)
    weights, arena = (format_with_unit_prefix(report[key], "B") for key in ("weights_bytes", "arena_bytes"))
    yield from report["image"]
    yield f"recognized   {digits[report['shown']]['recognized']}; {right} of all {len(digits)} images right"
    yield f"project      {path}, for target {report['target']}"
    yield f"library      {report['library']}"
    yield f"memory       weights {weights}, arena {arena}"
    verb = "agree with" if report["agrees"] else "DIFFER from"
    yield f"results      {verb} {report['reference']}, largest error {report['largest_error']:.2e}"
    yield ""
    yield f"from C       make -C {shlex.quote(path)} && {shlex.quote(f'{path}/build/digits_example')}"
    yield f"from Python  import aotc; session = aotc.load({path!r})"
    yield "your model   aotc compile model.onnx"
