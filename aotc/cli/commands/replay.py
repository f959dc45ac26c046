# SPDX-License-Identifier: Apache-2.0
"""`aotc replay`: repeat a step of a compilation that failed."""

from __future__ import annotations

import traceback
from pathlib import Path

import click

from aotc.cli.command_definition import define_command
from aotc.cli.console import Reporter
from aotc.cli.options import PATH_TYPE
from aotc.driver.failure_replay import read_failure_report, rerun_failed_pass_or_kernel
from aotc.ir import AotcError


@define_command("replay", click.argument("file", type=PATH_TYPE))
def replay_command(out: Reporter, file: Path) -> None:
    """Run the failed pass or kernel in FILE again, and print the program after it.

    aotc writes FILE when a pass or a kernel fails: to $AOTC_REPLAY_DIR if it is set, else to a
    private folder among the temporary files.  An exception is printed with its traceback to the
    error stream, and the exit code is 1.
    """
    data = read_failure_report(file)
    step = {key: data[key] for key in ("stage", "name")}
    try:
        text = rerun_failed_pass_or_kernel(file)
    except AotcError as error:
        if error.code == "replay":
            raise
        out.print_error(error)
        raise SystemExit(1) from None
    except Exception:
        out.print_to_stderr(traceback.format_exc().rstrip())
        out.print_text_or_json({**step, "fails": True}, "")
        raise SystemExit(1) from None
    out.print_text_or_json({**step, "fails": False, "program": text}, text)
