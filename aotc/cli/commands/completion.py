# SPDX-License-Identifier: Apache-2.0
"""`aotc completion`: print a script that makes a shell complete the command line of `aotc`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from aotc.cli.command_definition import define_command
from aotc.cli.console import Reporter
from aotc.ir import AotcError

#: The shells that have a script, and what to put where, for `--help`.
_SHELLS: Final = ("bash", "fish", "zsh")


@define_command("completion", click.argument("shell", type=click.Choice(_SHELLS)))
def completion_command(out: Reporter, shell: str) -> None:
    """Print a script that makes a shell complete `aotc`: bash, fish or zsh.

    \b
    bash, in ~/.bashrc:  eval "$(aotc completion bash)"
    zsh, in ~/.zshrc:    eval "$(aotc completion zsh)"
    fish:                aotc completion fish > ~/.config/fish/completions/aotc.fish
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise AotcError("completion", f"the installed version of click has no completion for {shell}")
    # the variable that click derives from the name of the command
    script = completion(click.get_current_context().find_root().command, {}, "aotc", "_AOTC_COMPLETE").source()
    out.print_text_or_json({"shell": shell, "script": script}, script)
