# SPDX-License-Identifier: Apache-2.0
"""Decorator that makes a function a command of `aotc`.

@define_command("cache", declare_flag("--clear", "Empty it."))
def cache_command(out: Reporter, clear: bool) -> None:
    out.print_result(...)
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click

from aotc.cli import options as options_of
from aotc.cli.console import report_errors_and_exit
from aotc.cli.options import CommandFunction, OptionDecorator, RenamingCommand


def define_command(
    name: str, *declarations: OptionDecorator, renamed: Mapping[str, str] | None = None
) -> Callable[[CommandFunction], click.Command]:
    """Return a decorator that makes a function a command; the function receives a reporter, then
    arguments and options by name.

    declarations    arguments and options of the command, in the order of its help text
    renamed         current names of options by deprecated names, see `RenamingCommand`
    """

    def convert_to_command(function: CommandFunction) -> click.Command:
        @click.command(name, cls=RenamingCommand, renamed=renamed or {})
        @options_of.combine_option_declarations(*declarations, options_of.COMMON_OUTPUT_OPTIONS)
        @wraps(function)
        def run_with_reporter(quiet: bool, verbose: int, as_json: bool, **arguments: Any) -> None:
            with report_errors_and_exit(quiet, as_json, verbose) as out:
                function(out, **arguments)

        return run_with_reporter

    return convert_to_command
