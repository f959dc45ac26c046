# SPDX-License-Identifier: Apache-2.0
"""`aotc completion`: print a script that makes a shell complete the command line of `aotc`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from aotc.cli.command_definition import define_command
from aotc.cli.console import Reporter

#: What click completes a command line with, by the name of the shell.
_SHELLS: Final = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}


@define_command("completion", click.argument("shell", type=click.Choice([*_SHELLS])))
def completion_command(out: Reporter, shell: str) -> None:
    """Print a script that makes a shell complete `aotc`: bash, fish or zsh.

    \b
    bash, in ~/.bashrc:  eval "$(aotc completion bash)"
    zsh, in ~/.zshrc:    eval "$(aotc completion zsh)"
    fish:                aotc completion fish > ~/.config/fish/completions/aotc.fish
    """
    command = click.get_current_context().find_root().command
    # the variable is the one that click derives from the name of the command
    script = _SHELLS[shell](command, {}, "aotc", "_AOTC_COMPLETE").source()
    out.print_text_or_json({"shell": shell, "script": script}, script)
