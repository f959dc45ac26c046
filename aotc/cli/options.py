# SPDX-License-Identifier: Apache-2.0
"""Declarations of command line options, options shared by several commands, and parsers of option
values.

--input-shape x:1,3,224,224   --dim batch=1

@click.command()
@declare_option("--seeds", "Random input sets to try.", click.IntRange(1), 3)
@TARGET
def verify(seeds, target, opt_level, accuracy, config): ...
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

CommandFunction: TypeAlias = Callable[..., Any]
#: Decorator that adds an option or an argument to a command.
OptionDecorator: TypeAlias = Callable[[CommandFunction], CommandFunction]
PATH_TYPE: Final = click.Path(path_type=Path)
MAX_DIMENSION = (1 << 31) - 1
MAX_THREADS = 1024


# --- parsers of option values


def _parse_dimension(text: str, option_text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_DIMENSION:
        raise click.BadParameter(f"{text!r} in {option_text!r} is not a dimension")
    return value


def _split_option_texts_at_separator(
    values: tuple[str, ...], example: str, *, first: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Split each text at its last separator, or at its first one; yield the text and both parts.

    example    example of the format, which contains the separator (":" or "=") once

    Raises click.BadParameter if the separator or the first part is missing.
    """
    (separator,) = (mark for mark in ":=" if mark in example)
    for value in values:
        name, delimiter, text = value.partition(separator) if first else value.rpartition(separator)
        if not delimiter or not name:
            raise click.BadParameter(f"{value!r} is not of the form {example}")
        yield value, name, text


def parse_input_shapes(values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse shapes NAME:1,3,224,224; the name may contain colons, and nothing after the last colon
    means a scalar.
    """
    return {
        name: tuple(_parse_dimension(d, value) for d in dims.split(",") if d.strip())
        for value, name, dims in _split_option_texts_at_separator(values, "NAME:1,3,224,224")
    }


def parse_symbolic_dims(values: tuple[str, ...]) -> dict[str, int]:
    """Parse values of symbolic dimensions in the form SYMBOL=8; return integers by symbol."""
    return {
        name: _parse_dimension(number, value)
        for value, name, number in _split_option_texts_at_separator(values, "SYMBOL=8")
    }


def parse_input_ranges(values: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Parse ranges NAME=-1:1; the name may contain equals signs.  The ranges are not compared with
    the model here.
    """
    form = "NAME=LEAST:MOST, such as x=-1:1"
    ranges: dict[str, tuple[float, float]] = {}
    for value in values:
        name, _, ends = value.rpartition("=")
        least, colon, most = ends.partition(":")
        if not (name and colon):
            raise click.BadParameter(f"{value!r} is not of the form {form}")
        try:
            ranges[name] = float(least), float(most)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not of the form {form}: both ends are numbers") from error
    return ranges


def parse_io_dtypes(values: tuple[str, ...]) -> dict[str, str]:
    """Parse dtypes of inputs and outputs, int8 or NAME:int8 (the name may contain colons).

    The key "" of the result stands for all names not given.
    """
    parts = (value.rpartition(":") for value in values)
    return {name: dtype for name, _, dtype in parts}


def parse_config_entries(values: tuple[str, ...]) -> dict[str, bool | int | float | str]:
    """Parse configuration entries KEY=VALUE; a value is JSON (true, false, a number) if it parses
    as such, else text.
    """
    config: dict[str, bool | int | float | str] = {}
    for _, key, text in _split_option_texts_at_separator(values, "KEY=VALUE", first=True):
        try:
            config[key] = json.loads(text)
        except ValueError:
            config[key] = text
    return config


def split_compiler_flags(values: tuple[str, ...]) -> tuple[str, ...]:
    """Parse compiler flags, each text holding one or several, quoted as in a shell."""
    try:
        return tuple(flag for value in values for flag in shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{values[-1]!r} cannot be split into flags: {error}") from error


def parse_comma_separated_names(value: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names; return a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def parse_thread_counts(value: str) -> tuple[int, ...]:
    """Parse a list of integers from 1 to 1024, such as 1,2,4, without duplicates."""
    counts = [int(text) if text.strip().isdecimal() else 0 for text in value.split(",")]
    if not all(1 <= count <= MAX_THREADS for count in counts):
        raise click.BadParameter(f"{value!r} is not a list of numbers from 1 to {MAX_THREADS}")
    return tuple(dict.fromkeys(counts))


def parse_cuda_architectures(value: str | None) -> tuple[int, ...] | None:
    """Parse a list of CUDA compute capabilities, such as 80,90 for 8.0 and 9.0; None for None."""
    return parse_thread_counts(value) if value is not None else None


def parse_seconds(value: str) -> float:
    """Parse a time such as 30, 30s, 5m or 1h; return seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise click.BadParameter(f"{value!r} is not a time such as 30s, 5m or 1h")
    return seconds


_BYTES_PER_UNIT: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_byte_count(value: str | None) -> int | None:
    """Parse an amount of memory; return bytes, None for None.

    65536, 64K, 64KB and 64KiB are the same amount: every unit (K, M, G) is a power of 1,024, in
    either case.
    """
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]+) ?(?:([kmg])i?)?b?", value.strip(), re.IGNORECASE | re.ASCII)
    if match is None or not int(match[1]):
        raise click.BadParameter(f"{value!r} is not a number of bytes such as 65536, 64K, 64KB or 1MiB")
    return int(match[1]) * _BYTES_PER_UNIT[(match[2] or "").upper()]


def parse_timeout_seconds(value: str | None) -> float | None:
    """Parse a time limit as `parse_seconds` does; return seconds, None for None.  Zero is an error."""
    seconds = parse_seconds(value) if value is not None else None
    if seconds == 0:
        raise click.BadParameter(f"{value!r} is no time limit: it must be greater than zero")
    return seconds


# --- formatters of option values, for messages: each returns a text that the parser above accepts


def format_input_shape(item: tuple[str, Sequence[int]]) -> str:
    """Return a shape of an input as NAME:1,3,224,224."""
    name, shape = item
    return f"{name}:{','.join(map(str, shape))}"


def format_symbolic_dim(item: tuple[str, int]) -> str:
    """Return the value of a symbolic dimension as SYMBOL=8."""
    symbol, size = item
    return f"{symbol}={size}"


def format_input_range(item: tuple[str, tuple[float, float]]) -> str:
    """Return the range of a random input as NAME=-1:1."""
    name, (least, most) = item
    return f"{name}={least}:{most}"


def format_io_dtype(item: str | tuple[str, str]) -> str:
    """Return a dtype of all inputs and outputs as int8, that of one as NAME:int8."""
    return item if isinstance(item, str) else ":".join(item).removeprefix(":")


def format_config_entry(item: tuple[str, bool | int | float | str]) -> str:
    """Return a configuration entry as KEY=VALUE."""
    key, value = item
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def format_comma_separated(values: Sequence[object]) -> str:
    """Return a list of numbers or names as 80,90."""
    return ",".join(map(str, values))


def format_byte_count_option(byte_count: int) -> str:
    """Return a number of bytes with the largest unit that divides it, such as 4G."""
    units = [(unit, size) for unit, size in _BYTES_PER_UNIT.items() if byte_count % size == 0]
    unit, size = max(units, key=lambda item: item[1])
    return f"{byte_count // size}{unit}"


# --- declarations of options


class WritableOption(click.Option):
    """An option of which messages can show values.

    write    function that formats a value, or one of several values, as text that the option accepts
    """

    write: Callable[[Any], str]

    def __init__(self, *arguments: Any, write: Callable[[Any], str] = str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.write = write


def declare_option(
    names: str,
    help_text: str,
    kind: Any = None,
    default: Any = None,
    *,
    read: Callable[[Any], Any] | None = None,
    write: Callable[[Any], str] = str,
    **click_arguments: Any,
) -> OptionDecorator:
    """Declare an option by its names and help text, which shows the default, if there is one.

    read              function that parses the value
    write             its inverse for messages, see `WritableOption`
    click_arguments   further arguments of `click.option`
    """
    if read is not None:
        click_arguments["callback"] = lambda context, parameter, value: read(value)
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


def declare_flag(names: str, help_text: str, **click_arguments: Any) -> OptionDecorator:
    """Declare a command line option without a value (a flag)."""
    return click.option(*names.split(), is_flag=True, help=help_text, **click_arguments)


def combine_option_declarations(*declarations: OptionDecorator) -> OptionDecorator:
    """Combine declarations of options, listed in this order in the help text."""

    def apply_option_declarations(command: CommandFunction) -> CommandFunction:
        for declaration in reversed(declarations):
            command = declaration(command)
        return command

    return apply_option_declarations


class RenamingCommand(click.Command):
    """A command that accepts deprecated names of its options, with a warning on standard error.

    renamed    current names by deprecated names; an entry "--json FILE" applies only if the value of the
               option ends in .json
    """

    renamed: Mapping[str, str]

    def __init__(self, *arguments: Any, renamed: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.renamed = renamed

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
SHAPE_OPTIONS: Final = combine_option_declarations(
    declare_option(
        "--input-shape input_shapes", "Shape of an input with dynamic dimensions.",
        multiple=True, read=parse_input_shapes, write=format_input_shape, metavar="NAME:D,D,...",
    ),
    declare_option(
        "--dim dims", "Value of a symbolic dimension.",
        multiple=True, read=parse_symbolic_dims, write=format_symbolic_dim, metavar="SYMBOL=N",
    ),
)  # fmt: skip
CUT_OPTIONS: Final = combine_option_declarations(
    declare_option(
        "--cut-before", "Tensor of an ONNX or TFLite model that becomes an input: leave out what computes it.",
        multiple=True, metavar="NAME",
    ),
    declare_option(
        "--cut-after", "Tensor that becomes an output, in place of the model's: leave out what comes after it.",
        multiple=True, metavar="NAME",
    ),
)  # fmt: skip
TARGET_OPTIONS: Final = combine_option_declarations(
    declare_option("--target", "Machine to generate code for; `aotc targets` lists them.", default="host"),
    declare_option("-O opt_level", "Graph optimization level.", click.IntRange(0, 3), 3),
    declare_flag("--size", "Prefer small: no weights that are larger for the sake of time, such as Winograd's."),
    declare_option(
        "--accuracy", "strict: no algorithm that rounds more than an operator's definition (Winograd);"
        " reproducible: strict, and equal bits on all targets. [default: fast]",
        click.Choice(("fast", "strict", "reproducible")),
    ),
    declare_option(
        "--config", "Set an option of a pass, or a limit of the compiler, by its key; `aotc config` lists the keys.",
        multiple=True, read=parse_config_entries, write=format_config_entry, metavar="KEY=VALUE",
    ),
)  # fmt: skip
COMPILER_OPTIONS: Final = combine_option_declarations(
    declare_option("--cc", "C compiler [default: $CC; cc, gcc, clang or the cross compiler]."),
    declare_option(
        "--cflags", "Flags after the default ones, in emitted build files, too.",
        multiple=True, read=split_compiler_flags, metavar="FLAGS",
    ),
    declare_option(
        "--cc-timeout", "A run of the C compiler that takes longer is ended (30s, 5m, 1h) [default: 30m].",
        read=parse_timeout_seconds, metavar="TIME",
    ),
    declare_flag("--no-cache cache", "Compile all C anew.", flag_value=False, default=True),
)  # fmt: skip
CUDA_ARCH_OPTION: Final = declare_option(
    "--cuda-arch", "Compute capabilities of GPUs to make code for [default: 80,90,100,120].",
    read=parse_cuda_architectures, write=format_comma_separated, metavar="NN,...",
)  # fmt: skip
BOARD_OPTIONS: Final = combine_option_declarations(
    declare_option(
        "--environment", "bare: a static library for programs without an operating system, as on microcontrollers.",
        metavar="hosted|bare",
    ),
    declare_option("--memories", "Memories of the board, the fastest first.", PATH_TYPE, metavar="FILE.toml"),
    declare_option(
        "--float-abi", "Calling convention of floats on Arm microcontrollers; soft uses no FPU"
        " [default: that of the target].", click.Choice(("soft", "softfp", "hard")),
    ),
    declare_flag("--portable", "C99 without inline assembly and extensions of compilers."),
)  # fmt: skip
WORKSPACE_IO_FLAG: Final = declare_flag(
    "--workspace-io", "Give inputs and outputs places in the arena, where callers may keep them."
)
FIRMWARE_OPTIONS: Final = combine_option_declarations(
    BOARD_OPTIONS,
    declare_flag("--selftest", "Without an operating system: a function that runs the model on known values."),
    declare_flag("--single-file", "Without an operating system: one source and one header."),
)
THREADS_OPTION: Final = click.option(
    "--threads/--no-threads",
    default=None,
    help="Make kernels that threads can share [default, where a target runs several], or not.",
)
TUNING_FLAG: Final = declare_flag(
    "--no-tuning tuning", "Leave records of `aotc tune` alone.", flag_value=False, default=None
)
ROUNDING_OPTION: Final = declare_option(
    "--rounding", "Whose integers a quantized .tflite model gives, bit by bit: TFLite Micro's or LiteRT's"
    " [default: tflm].", click.Choice(("tflm", "litert")),
)  # fmt: skip
#: Options of how a model is compiled, as in `CompileOptions`.
COMPILATION_OPTIONS: Final = combine_option_declarations(
    SHAPE_OPTIONS, CUT_OPTIONS, TARGET_OPTIONS, CUDA_ARCH_OPTION, ROUNDING_OPTION, COMPILER_OPTIONS, TUNING_FLAG
)
IO_DTYPE_OPTION: Final = declare_option(
    "--io-dtype", "int8 or uint8: take and give integers where the model quantizes its inputs and dequantizes its"
    " outputs; or by name (float32 leaves one as it is).", multiple=True,
    read=parse_io_dtypes, write=format_io_dtype, metavar="[NAME:]TYPE",
)  # fmt: skip
BUDGET_OPTIONS: Final = combine_option_declarations(
    declare_option(
        "--ram",
        "Memory of a run, with inputs and outputs: fail if it takes more.",
        read=parse_byte_count,
        write=format_byte_count_option,
        metavar="64K",
    ),
    declare_option(
        "--flash",
        "Code and parameters: fail if they take more.",
        read=parse_byte_count,
        write=format_byte_count_option,
        metavar="256K",
    ),
    declare_option(
        "--stack",
        "Stack of a run: fail if it may take more.",
        read=parse_byte_count,
        write=format_byte_count_option,
        metavar="2K",
    ),
)
VERBOSITY_OPTIONS: Final = combine_option_declarations(
    declare_flag("--quiet -q", "Print errors only."),
    click.option("--verbose", "-v", count=True, help="Log what happens (twice: debugging)."),
)
COMMON_OUTPUT_OPTIONS: Final = combine_option_declarations(
    VERBOSITY_OPTIONS, declare_flag("--json as_json", "Print one JSON object.")
)
