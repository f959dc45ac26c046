# SPDX-License-Identifier: Apache-2.0
"""Spell options in messages as a user of the command writes them, from the declarations of options,
which for options of compilations are generated from their descriptions.

spell_option_references_for_command("leave " + option_text("build", False) + " out")      # leave --no-build out
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import click

from aotc.ir.option_mentions_in_messages import OptionReference, OptionText, Reference


def spell_option_references_for_command(data: Any) -> Any:
    """Return text, or a structure of mappings, lists and tuples, in which all texts name options as
    the command has them.

    Outside of a run of the command, texts remain as Python's callers read them.
    """
    match data:
        case OptionText():
            return data.text_with_spelled_references(_spell_reference_for_current_command)
        case Mapping():
            return {key: spell_option_references_for_command(value) for key, value in data.items()}
        case list() | tuple():
            return [spell_option_references_for_command(item) for item in data]
        case _:
            return data


def _spell_reference_for_current_command(reference: Reference) -> str:
    context = click.get_current_context(silent=True)
    if context is None:
        return str(reference)
    if not isinstance(reference, OptionReference):
        return reference.command
    spellings = (
        command_line_text_of_option(option, reference.value)
        for option in _command_options_with_keyword(context, reference.keyword)
    )
    return next((text for text in spellings if text), str(reference))


def _command_options_with_keyword(context: click.Context, keyword: str) -> Iterator[click.Option]:
    """Yield the options whose value a function receives as `keyword`: first that of the command
    that runs, then that of a compilation, then those of all commands.

    Commands are imported only when they are asked for.
    """
    # imported here, because commands that do not compile need it in messages only
    from aotc.cli.compile_options import make_click_option

    yield from _options_of_command(context.command, keyword)
    if option := make_click_option(keyword):
        yield option
    root = context.find_root()
    if isinstance(group := root.command, click.Group):
        for name in group.list_commands(root):
            if command := group.get_command(root, name):
                yield from _options_of_command(command, keyword)


def _options_of_command(command: click.Command, keyword: str) -> Iterator[click.Option]:
    """Yield the options of a command whose value its function receives as `keyword`."""
    for parameter in command.params:
        if parameter.name == keyword and isinstance(parameter, click.Option):
            yield parameter


def command_line_text_of_option(option: click.Option, value: Any = None) -> str:
    """Return the text by which a user of the command sets an option to a value: `--dim batch=1`.

    value    as the command's function receives it; None for the option's name alone

    The text is empty if no spelling of the option has this value.
    """
    if value is None:
        return max(option.opts, key=len)
    if option.is_flag or isinstance(value, bool):
        return _command_line_text_of_flag(option, value)
    write = getattr(option, "write", str)
    items = (
        value.items()
        if isinstance(value, Mapping)
        else value
        if option.multiple and _is_list_or_tuple(value)
        else [value]
    )
    return " ".join(_option_name_with_quoted_value(max(option.opts, key=len), write(item)) for item in items)


def _command_line_text_of_flag(option: click.Option, value: Any) -> str:
    if not option.is_flag:
        return ""
    if option.secondary_opts:
        return max(option.opts if value else option.secondary_opts, key=len)
    # the flag_value of an ordinary flag is True or unset, by the version of click
    flag_value = option.flag_value is not False
    return max(option.opts, key=len) if value is flag_value else ""


def _is_list_or_tuple(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _option_name_with_quoted_value(option_name: str, value_text: str) -> str:
    quoted = shlex.quote(value_text)
    return f"{option_name}={quoted}" if value_text.startswith("-") else f"{option_name} {quoted}"
