# SPDX-License-Identifier: Apache-2.0
"""Declarations of command line options, and options shared by several commands.

@define_command("verify", declare_option("--seeds", "Random input sets to try.", click.IntRange(1), 3))
def verify_command(out, seeds): ...

The options of a compilation are in `aotc.cli.compile_options`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from aotc.ir.option_value_text import OptionTextError, format_input_range, parse_input_ranges

CommandFunction: TypeAlias = Callable[..., Any]
#: Decorator that adds an option or an argument to a command.
OptionDecorator: TypeAlias = Callable[[CommandFunction], CommandFunction]
PATH_TYPE: Final = click.Path(path_type=Path)


class WritableOption(click.Option):
    """An option of which messages can show values.

    write              function that formats a value, or one of several values, as text that the option accepts
    deprecated_names   former names of the option, which a `RenamingCommand` accepts
    """

    write: Callable[[Any], str]
    deprecated_names: tuple[str, ...]

    def __init__(
        self, *arguments: Any, write: Callable[[Any], str] = str, deprecated_names: tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.write = write
        self.deprecated_names = deprecated_names


def declare_option(
    names: str,
    help_text: str,
    kind: Any = None,
    default: Any = None,
    *,
    read: Callable[[Any], Any] | None = None,
    write: Callable[[Any], str] = str,
    suggestions: Callable[[], Iterable[str]] | None = None,
    **click_arguments: Any,
) -> OptionDecorator:
    """Declare an option by its names and help text, which shows the default, if there is one.

    read              function that parses the value; may raise OptionTextError
    write             its inverse for messages, see `WritableOption`
    suggestions       function that returns the texts that shells suggest for the value
    click_arguments   further arguments of `click.option`
    """
    if read is not None:
        click_arguments["callback"] = _callback_of_parser(read)
    if suggestions is not None:
        click_arguments["shell_complete"] = lambda context, parameter, text: [
            suggestion for suggestion in suggestions() if suggestion.startswith(text)
        ]
    default_arguments = {"show_default": True, "default": default} if default is not None else {}
    return click.option(
        *names.split(),
        cls=WritableOption,
        type=kind,
        help=help_text,
        write=write,
        **default_arguments,
        **click_arguments,
    )


def _callback_of_parser(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback of click that parses the value of an option."""

    def parse_or_reject(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except OptionTextError as error:
            raise click.BadParameter(str(error)) from error

    return parse_or_reject


def declare_flag(names: str, help_text: str, **click_arguments: Any) -> OptionDecorator:
    """Declare a command line option without a value (a flag)."""
    return click.option(*names.split(), is_flag=True, help=help_text, **click_arguments)


def declare_flag_pair(names: str, help_text: str) -> OptionDecorator:
    """Declare a pair of flags, such as "--threads/--no-threads", for True and False; None is the default."""
    return click.option(*names.split(), default=None, help=help_text)


def combine_option_declarations(*declarations: OptionDecorator) -> OptionDecorator:
    """Combine declarations of options, listed in this order in the help text."""

    def apply_option_declarations(command: CommandFunction) -> CommandFunction:
        for declaration in reversed(declarations):
            command = declaration(command)
        return command

    return apply_option_declarations


class RenamingCommand(click.Command):
    """A command that accepts deprecated names of its options, with a warning on standard error.

    renamed    current names by deprecated names, besides the deprecated names of its options; an entry
               "--json FILE" applies only if the value of the option ends in .json
    """

    renamed: Mapping[str, str]

    def __init__(self, *arguments: Any, renamed: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        options = [parameter for parameter in self.params if isinstance(parameter, WritableOption)]
        self.renamed = {
            **{name: max(option.opts, key=len) for option in options for name in option.deprecated_names},
            **renamed,
        }

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after replacing deprecated names of options."""
        return super().parse_args(context, [self._replace_deprecated_option_name(k, args) for k in range(len(args))])

    def _replace_deprecated_option_name(self, index: int, args: Sequence[str]) -> str:
        name, equals, value = args[index].partition("=")
        given = value if equals else args[index + 1] if index + 1 < len(args) else ""
        form = f"{name} FILE" if given.endswith(".json") else ""
        former = form if form in self.renamed else name
        if "--" in args[:index] or former not in self.renamed:
            return args[index]
        click.echo(f"warning: {former} is deprecated: write {self.renamed[former]}", err=True)
        return self.renamed[former] + equals + value


MODEL_ARGUMENT: Final = click.argument("model", type=PATH_TYPE)
INPUT_OPTIONS: Final = combine_option_declarations(
    declare_option("--inputs", "Inputs by name [default: random].", PATH_TYPE, metavar="FILE.npz"),
    declare_option(
        "--input-range input_ranges", "Range of a random input [default: by what the model does with it].",
        multiple=True, read=parse_input_ranges, write=format_input_range, metavar="NAME=LEAST:MOST",
    ),
)  # fmt: skip
VERBOSITY_OPTIONS: Final = combine_option_declarations(
    declare_flag("--quiet -q", "Print errors only."),
    click.option("--verbose", "-v", count=True, help="Log what happens (twice: debugging)."),
)
COMMON_OUTPUT_OPTIONS: Final = combine_option_declarations(
    VERBOSITY_OPTIONS, declare_flag("--json as_json", "Print one JSON object.")
)
