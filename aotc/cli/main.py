# SPDX-License-Identifier: Apache-2.0
"""The `aotc` command: a group of commands, each of which is imported when it runs.

The modules of `aotc.cli.commands` define the commands.  Importing all of them takes a second, which
`aotc --help` and the smaller commands need not wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from aotc import __version__
from aotc.cli.standard_streams import exit_if_output_cannot_be_written

#: Module below `aotc.cli.commands` and summary of each command; the summary is the first sentence of its help text.
_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "bench": ("bench", "Measure the compiled MODEL beside other implementations, in turns, and compare the outputs."),
    "cache": ("cache", "Look at, or empty, the cache of compiled kernels."),
    "compile": ("compile", "Compile MODEL (.onnx, .pt2, .tflite, .relay) to a C project and a library in DIR."),
    "completion": ("completion", "Print a script that makes a shell complete `aotc`: bash, fish or zsh."),
    "config": ("ops_targets_config", "List the keys that --config can set, with type, default and meaning."),
    "demo": ("demo", "Compile a network that recognizes handwritten digits, run it, and compare the results."),
    "doctor": ("doctor", "Say which compilers, emulators and packages are there, and how to install what is missing."),
    "inspect": (
        "inspect",
        "Show what MODEL (.onnx, .pt2, .tflite, .relay) needs, or what a compiled project or library does.",
    ),
    "ops": ("ops_targets_config", "List the operators, and those of ONNX and TFLite that use them."),
    "package": ("package", "Make a package of PROJECT for an ecosystem: an Arduino library, a Meson project, ..."),
    "quantize": ("quantize", "Quantize MODEL (.onnx) with ONNX Runtime, and tell what it costs and gains."),
    "replay": ("replay", "Run the failed pass or kernel in FILE again, and print the program after it."),
    "run": ("run", "Run a compiled library (a project directory or the library file)."),
    "targets": (
        "ops_targets_config",
        "List the machines that --target can name, and which of them this machine runs code for.",
    ),
    "tune": ("tune", "Measure tilings of MODEL's contractions on this machine; later compiles take the fastest."),
    "verify": ("verify", "Compare the compiled MODEL with another implementation."),
}


class _LazyGroup(click.Group):
    """The click group of the `aotc` command: imports a command when it is looked up, and handles
    failing output streams.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in alphabetical order."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is none of this name."""
        return import_command(cmd_name) if cmd_name in _COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from their summaries, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Suggest commands and options, without importing the commands."""
        commands = [CompletionItem(name, help=summary) for name, (_, summary) in sorted(_COMMANDS.items())]
        # the method of `click.Group` would import every command
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(item for item in commands if item.value.startswith(incomplete)), *options]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with exit_if_output_cannot_be_written():
            return super().main(*args, **kwargs)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def main() -> None:
    """Compile neural networks ahead of time to self-contained C."""


def import_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    module_name, _ = _COMMANDS[name]
    command: click.Command = getattr(import_module(f"aotc.cli.commands.{module_name}"), f"{name}_command")
    return command


def import_all_commands() -> dict[str, click.Command]:
    """Import all commands; return them by name, in alphabetical order."""
    return {name: import_command(name) for name in sorted(_COMMANDS)}
