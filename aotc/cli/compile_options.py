# SPDX-License-Identifier: Apache-2.0
"""Options of commands that compile a model, generated from the fields of `CompileOptionFields`.

@define_command("tune", MODEL_ARGUMENT, declare_compile_options("dims"), TARGET_OPTIONS)
def tune_command(out, model, dims, target, opt_level, ...): ...

The function of a command receives the value of an option under the keyword of `aotc.compile`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args

import click

from aotc.cli.options import (
    PATH_TYPE,
    OptionDecorator,
    combine_option_declarations,
    declare_flag,
    declare_flag_pair,
    declare_option,
)
from aotc.driver.check_option_value_types import option_annotations
from aotc.driver.compile_option_fields import CompileOptionFields
from aotc.ir.option_description import OptionDescription, described_options


def _click_type(keyword: str, description: OptionDescription) -> Any:
    """Return the click type of the texts of an option; None for any text."""
    if description.choices:
        return click.Choice(description.choices)
    if description.bounds is not None:
        return click.IntRange(*description.bounds)
    return PATH_TYPE if Path in get_args(option_annotations(CompileOptionFields)[keyword]) else None


def _declare_compile_option(keyword: str, description: OptionDescription) -> OptionDecorator:
    """Return the declaration of the command's option that gives a keyword of `aotc.compile`."""
    names = f"{description.command} {keyword}"
    if "/" in names:
        return declare_flag_pair(names, description.command_line_help_text)
    if description.is_negated_flag:
        return declare_flag(names, description.command_line_help_text, flag_value=False, default=description.default)
    if option_annotations(CompileOptionFields)[keyword] is bool:
        return declare_flag(names, description.command_line_help_text)
    return declare_option(
        names,
        description.command_line_help_text,
        _click_type(keyword, description),
        description.default or None,
        read=description.parse,
        write=description.format_value,
        suggestions=description.suggestions,
        multiple=description.multiple,
        metavar=description.metavar,
        deprecated_names=description.deprecated_commands,
    )


def declare_compile_options(*keywords: str) -> OptionDecorator:
    """Return the declarations of options of a compilation, by their keywords, in this order."""
    descriptions = described_options(CompileOptionFields)
    return combine_option_declarations(*(_declare_compile_option(k, descriptions[k]) for k in keywords))


def make_click_option(keyword: str) -> click.Option | None:
    """Return the option of the command that gives a keyword of `aotc.compile`; None if there is none."""
    description = described_options(CompileOptionFields).get(keyword)
    if description is None or not description.command:
        return None
    command = click.command()(_declare_compile_option(keyword, description)(lambda: None))
    (option,) = command.params
    return option if isinstance(option, click.Option) else None


SHAPE_OPTIONS: Final = declare_compile_options("input_shapes", "dims")
STATE_OPTION: Final = declare_compile_options("state")
CUT_OPTIONS: Final = declare_compile_options("signature", "cut_before", "cut_after")
TARGET_OPTIONS: Final = declare_compile_options(
    "target", "opt_level", "size", "accuracy", "precision", "float32_layers", "round_data", "config"
)
CUDA_ARCH_OPTION: Final = declare_compile_options("cuda_arch")
COMPILER_OPTIONS: Final = declare_compile_options("cc", "cflags", "cc_timeout", "cache")
BOARD_OPTIONS: Final = declare_compile_options("environment", "memories", "float_abi", "portable")
#: Options of all commands that compile a model and run it.
COMPILATION_OPTIONS: Final = combine_option_declarations(
    SHAPE_OPTIONS,
    CUT_OPTIONS,
    TARGET_OPTIONS,
    CUDA_ARCH_OPTION,
    declare_compile_options("rounding", "seed"),
    COMPILER_OPTIONS,
    declare_compile_options("tuning"),
)
