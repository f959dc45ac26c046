# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the options of a compilation: one record for each option, from which the command
line, the documentation of Python keywords, configuration keys and messages are generated.

@dataclass(frozen=True)
class CompileOptions:
    dims: Mapping[str, int] | None = option_field(
        None, "Value of a symbolic dimension.", python="A mapping from names to sizes.",
        command="--dim", metavar="SYMBOL=N", multiple=True,
        parse=parse_symbolic_dims, format_value=format_symbolic_dim,
    )

described_options(CompileOptions)["dims"].python_documentation_text  # "Value of a symbolic dimension.  A mapping ..."

The annotation of the field is the type of the option.  The records of options that are also
configuration keys (`OPTIONS_WITH_CONFIG_KEY`) are here, because this layer validates configurations.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from types import MappingProxyType
from typing import Any, Final, TypeVar

from aotc.ir.frozen_dataclass import frozen
from aotc.ir.option_mentions_in_messages import OptionText, option_text
from aotc.ir.option_value_text import format_io_dtype, parse_io_dtypes

T = TypeVar("T")
#: Key of the metadata of a dataclass field under which its description is stored.
_METADATA_KEY: Final = "option"
_KEYWORD_COLUMN_WIDTH: Final = 15
_DOCUMENTATION_WIDTH: Final = 100


@frozen(kw_only=True)
class OptionDescription:
    """Meaning, default, values and spellings of one option.

    help           meaning in one sentence, for the command line and Python
    default        value of Python's keyword if it is not given
    default_text   effective default as text, if `default` is None
    python         further text for Python's callers, who can give values of more types
    choices        accepted texts; empty: not restricted by the command line
    bounds         smallest and largest accepted integer
    command        names on the command line, separated by spaces; empty: for Python only.  "--no-X"
                   is a flag that gives False, "--X/--no-X" a pair of flags
    command_help   text instead of `help` if the option of the command has the opposite sense
    metavar        placeholder of the value in the help text of the command
    multiple       True if the option of the command can be given several times
    parse          function from the text on the command line (texts if `multiple`) to the value
    format_value   its inverse, for messages, of one item if `multiple`
    deprecated_commands   former names on the command line, which still work and warn
    config_key     configuration key of the same meaning, "" if there is none
    config_type    type of the values of this key
    config_default default of this key as text, if it is not that of the option
    suggestions    function that returns texts that shells suggest for the value, besides `choices`
    """

    help: str
    default: Any = None
    default_text: str = ""
    python: str = ""
    choices: tuple[str, ...] = ()
    bounds: tuple[int, int] | None = None
    command: str = ""
    command_help: str = ""
    metavar: str | None = None
    multiple: bool = False
    parse: Callable[[Any], Any] | None = None
    format_value: Callable[[Any], str] = str
    deprecated_commands: tuple[str, ...] = ()
    config_key: str = ""
    config_type: type = str
    config_default: str = ""
    suggestions: Callable[[], Iterable[str]] | None = None

    @property
    def is_negated_flag(self) -> bool:
        """True if the option of the command is a flag that gives False."""
        return self.command.startswith("--no-")

    @property
    def command_line_help_text(self) -> str:
        """The help text on the command line, without a default that the command line itself shows."""
        text = self.command_help or self.help
        return f"{text.removesuffix('.')} [default: {self.default_text}]." if self.default_text else text

    @property
    def python_documentation_text(self) -> str:
        """The documentation of the keyword: meaning, choices, the meaning of None, configuration key."""
        parts = [self.help, self.python]
        if self.choices:
            parts.append(f"One of {', '.join(map(_double_quoted, self.choices))}.")
        if self.default_text:
            parts.append(f"None: {self.default_text}.")
        if self.config_key:
            parts.append(f"Also the configuration key `{self.config_key}`.")
        return " ".join(filter(None, parts))


def _double_quoted(text: str) -> str:
    return f'"{text}"'


def option_field(default: T, help_text: str, **description: Any) -> T:
    """Return a dataclass field with the description of an option; the default value is shared by
    all instances.

    description   further fields of `OptionDescription`
    """
    option: T = described_field(OptionDescription(help=help_text, default=default, **description))
    return option


def described_field(description: OptionDescription) -> Any:
    """Return a dataclass field with a description of an option and its default."""
    return field(default=description.default, metadata={_METADATA_KEY: description})


def described_options(options_class: Any) -> dict[str, OptionDescription]:
    """Return the descriptions of the options that a dataclass has as fields, by keyword, in the
    order of the fields.
    """
    return {f.name: f.metadata[_METADATA_KEY] for f in fields(options_class) if _METADATA_KEY in f.metadata}


def options_documentation(options_class: Any) -> str:
    """Return a table of the options of a dataclass for docstrings: keywords, and their
    documentation in lines of at most 100 columns.
    """
    rows = (
        _documentation_row(keyword, d.python_documentation_text)
        for keyword, d in described_options(options_class).items()
    )
    return "\n".join(rows)


def _documentation_row(keyword: str, text: str) -> str:
    return textwrap.fill(
        text,
        _DOCUMENTATION_WIDTH,
        initial_indent=f"    {keyword:<{_KEYWORD_COLUMN_WIDTH - 1}} ",
        subsequent_indent=" " * (4 + _KEYWORD_COLUMN_WIDTH),
        break_long_words=False,
        break_on_hyphens=False,
    )


def config_key_meaning(keyword: str, description: OptionDescription) -> OptionText:
    """Return the meaning of a configuration key that is also an option, which a user of the
    command reads with the option's name on the command line.
    """
    if description.choices:
        *others, last = description.choices
        return f"{', '.join(others)} or {last}, as " + option_text(keyword)
    if description.is_negated_flag:
        return f"{description.help.removesuffix('.')}; false: as " + option_text(keyword, False) + "."
    return f"{description.help.removesuffix('.')}, as " + option_text(keyword) + "."


def config_key_default(description: OptionDescription) -> str:
    """Return the default of a configuration key that is also an option, as `aotc config` shows it."""
    return description.config_default or description.default_text or str(description.default).lower()


ACCURACIES: Final = ("fast", "strict", "reproducible")
#: Precision of a model whose products are not reduced.
FULL_PRECISION: Final = "float32"
PRECISIONS: Final = (FULL_PRECISION, "bfloat16", "float16")
TFLITE_ROUNDINGS: Final = ("tflm", "litert")
#: Descriptions of the options that are configuration keys, too, by keyword.
OPTIONS_WITH_CONFIG_KEY: Final[Mapping[str, OptionDescription]] = MappingProxyType({
    "accuracy": OptionDescription(
        help="strict: no algorithm that rounds more than an operator's definition (Winograd); reproducible: strict,"
        " and equal bits on all targets.",
        python="See docs/accuracy.md.", choices=ACCURACIES, default_text="fast",
        command="--accuracy", config_key="compile.accuracy",
    ),
    "precision": OptionDescription(
        help="Data type of the operands of convolutions and matrix products by weights; sums and all other operators"
        " stay in float32.",
        python="See docs/accuracy.md.", choices=PRECISIONS, default_text=FULL_PRECISION,
        command="--precision", config_key="compile.precision",
    ),
    "float32_layers": OptionDescription(
        help="Layer that stays in float32 with another precision: the name of a node of the model, or a pattern"
        " such as 'encoder/*'.",
        python="A list of names and patterns.", default=(),
        command="--float32-layer", metavar="PATTERN", multiple=True,
        config_key="compile.float32_layers", config_type=object, config_default="none",
    ),
    "round_data": OptionDescription(
        help="Round the data of products by weights that have a scale for each block to int8, in the same blocks.",
        python="Faster and less accurate; see docs/quantization.md.", default=False,
        command="--round-data", config_key="compile.round_data", config_type=bool,
    ),
    "rounding": OptionDescription(
        help="Implementation whose integer results a quantized .tflite model reproduces: TFLite Micro (tflm) or LiteRT"
        " (litert).",
        choices=TFLITE_ROUNDINGS, default_text="tflm",
        command="--rounding", config_key="tflite.rounding",
    ),
    "io_dtype": OptionDescription(
        help="int8 or uint8: change float inputs that are only quantized, and outputs that are dequantized, to"
        " integers; or by name (float32 leaves one as it is).",
        python='A mapping gives types by name of the input or output, where "" stands for all other names.',
        command="--io-dtype", metavar="[NAME:]TYPE", multiple=True,
        parse=parse_io_dtypes, format_value=format_io_dtype,
        config_key="compile.io_dtype", config_type=object,
    ),
    "cache": OptionDescription(
        help="Use kernels and object files from the user's cache, and add new ones.", default=True,
        command="--no-cache", command_help="Do not use cached kernels and object files.",
        config_key="compile.cache", config_type=bool,
    ),
    "tuning": OptionDescription(
        help="Use the tilings recorded by `aotc tune`.",
        python="A path is that of the file of records; None: the user's file; False: no file.",
        command="--no-tuning", command_help="Ignore the records of `aotc tune`.",
        config_key="compile.tuning", config_type=bool, config_default="true",
    ),
    "workspace_io": OptionDescription(
        help="Place inputs and outputs in the arena, at offsets that the header states.", default=False,
        command="--workspace-io", config_key="compile.workspace_io", config_type=bool,
    ),
})  # fmt: skip
