# SPDX-License-Identifier: Apache-2.0
"""Declarations of command line options, options shared by several commands, and parsers of option
values.

--input-shape x:1,3,224,224   --dim batch=1

@click.command()
@option("--seeds", "Random input sets to try.", click.IntRange(1), 3)
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

Command: TypeAlias = Callable[..., Any]
#: Decorator that adds an option or an argument to a command.
Declaration: TypeAlias = Callable[[Command], Command]
PATH: Final = click.Path(path_type=Path)
LARGEST_DIM = (1 << 31) - 1
MOST_THREADS = 1024


# --- parsers of option values


def _dimension(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= LARGEST_DIM:
        raise click.BadParameter(f"{text!r} in {where!r} is not a dimension")
    return value


def _pairs(values: tuple[str, ...], form: str, *, first: bool = False) -> Iterator[tuple[str, str, str]]:
    """Split each text at its last separator, or at its first one; yield the text and both parts.

    form    example of the format, which contains the separator (":" or "=") once

    Raises click.BadParameter if the separator or the first part is missing.
    """
    (separator,) = (mark for mark in ":=" if mark in form)
    for value in values:
        name, found, text = value.partition(separator) if first else value.rpartition(separator)
        if not found or not name:
            raise click.BadParameter(f"{value!r} is not of the form {form}")
        yield value, name, text


def read_shapes(values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse shapes NAME:1,3,224,224; the name may contain colons, and nothing after the last colon
    means a scalar.
    """
    return {
        name: tuple(_dimension(d, value) for d in dims.split(",") if d.strip())
        for value, name, dims in _pairs(values, "NAME:1,3,224,224")
    }


def read_dims(values: tuple[str, ...]) -> dict[str, int]:
    """Parse values of symbolic dimensions in the form SYMBOL=8; return integers by symbol."""
    return {name: _dimension(number, value) for value, name, number in _pairs(values, "SYMBOL=8")}


def read_ranges(values: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Parse ranges NAME=-1:1; the name may contain equals signs.  The ranges are not compared with
    the model here.
    """
    form = "NAME=LEAST:MOST, such as x=-1:1"
    ranges: dict[str, tuple[float, float]] = {}
    for value in values:
        name, _, ends = value.rpartition("=")
        least, found, most = ends.partition(":")
        if not (name and found):
            raise click.BadParameter(f"{value!r} is not of the form {form}")
        try:
            ranges[name] = float(least), float(most)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not of the form {form}: both ends are numbers") from error
    return ranges


def read_io_dtypes(values: tuple[str, ...]) -> dict[str, str]:
    """Parse dtypes of inputs and outputs, int8 or NAME:int8 (the name may contain colons).

    The key "" of the result stands for all names not given.
    """
    found = (value.rpartition(":") for value in values)
    return {name: dtype for name, _, dtype in found}


def read_config(values: tuple[str, ...]) -> dict[str, bool | int | float | str]:
    """Parse configuration entries KEY=VALUE; a value is JSON (true, false, a number) if it parses
    as such, else text.
    """
    config: dict[str, bool | int | float | str] = {}
    for _, key, text in _pairs(values, "KEY=VALUE", first=True):
        try:
            config[key] = json.loads(text)
        except ValueError:
            config[key] = text
    return config


def read_flags(values: tuple[str, ...]) -> tuple[str, ...]:
    """Parse compiler flags, each text holding one or several, quoted as in a shell."""
    try:
        return tuple(flag for value in values for flag in shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{values[-1]!r} cannot be split into flags: {error}") from error


def read_names(value: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names; return a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def read_counts(value: str) -> tuple[int, ...]:
    """Parse a list of integers from 1 to 1024, such as 1,2,4, without duplicates."""
    counts = [int(text) if text.strip().isdecimal() else 0 for text in value.split(",")]
    if not all(1 <= count <= MOST_THREADS for count in counts):
        raise click.BadParameter(f"{value!r} is not a list of numbers from 1 to {MOST_THREADS}")
    return tuple(dict.fromkeys(counts))


def read_architectures(value: str | None) -> tuple[int, ...] | None:
    """Parse a list of CUDA compute capabilities, such as 80,90 for 8.0 and 9.0; None for None."""
    return read_counts(value) if value is not None else None


def read_seconds(value: str) -> float:
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


_BYTE_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_bytes(value: str | None) -> int | None:
    """Parse an amount of memory; return bytes, None for None.

    65536, 64K, 64KB and 64KiB are the same amount: every unit (K, M, G) is a power of 1,024, in either case.
    """
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]+) ?(?:([kmg])i?)?b?", value.strip(), re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{value!r} is not a number of bytes such as 65536, 64K, 64KB or 1MiB")
    return int(found[1]) * _BYTE_UNITS[(found[2] or "").upper()]


def read_timeout(value: str | None) -> float | None:
    """Parse a time limit as `read_seconds` does; return seconds, None for None.  Zero is an error."""
    seconds = read_seconds(value) if value is not None else None
    if seconds == 0:
        raise click.BadParameter(f"{value!r} is no time limit: it must be greater than zero")
    return seconds


# --- declarations of options


def option(
    names: str,
    text: str,
    kind: Any = None,
    default: Any = None,
    *,
    read: Callable[[Any], Any] | None = None,
    **more: Any,
) -> Declaration:
    """Declare an option by its names and help text, which shows the default, if there is one.

    read    function that parses the value
    more    further arguments of `click.option`
    """
    if read is not None:
        more["callback"] = lambda context, parameter, value: read(value)
    shown = {"show_default": True, "default": default} if default is not None else {}
    return click.option(*names.split(), type=kind, help=text, **shown, **more)


def flag(names: str, text: str, **more: Any) -> Declaration:
    """Declare a command line option without a value (a flag)."""
    return click.option(*names.split(), is_flag=True, help=text, **more)


def options(*declarations: Declaration) -> Declaration:
    """Combine declarations of options, listed in this order in the help text."""

    def declare(command: Command) -> Command:
        for declaration in reversed(declarations):
            command = declaration(command)
        return command

    return declare


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
        return super().parse_args(context, [self._present(k, args) for k in range(len(args))])

    def _present(self, k: int, args: Sequence[str]) -> str:
        name, equals, value = args[k].partition("=")
        given = value if equals else args[k + 1] if k + 1 < len(args) else ""
        form = f"{name} FILE" if given.endswith(".json") else ""
        former = form if form in self.renamed else name
        if "--" in args[:k] or former not in self.renamed:
            return args[k]
        click.echo(f"warning: {former} is deprecated: write {self.renamed[former]}", err=True)
        return self.renamed[former] + equals + value


MODEL: Final = click.argument("model", type=PATH)
INPUTS: Final = options(
    option("--inputs", "Inputs by name [default: random].", PATH, metavar="FILE.npz"),
    option(
        "--input-range input_ranges", "Range of a random input [default: by what the model does with it].",
        multiple=True, read=read_ranges, metavar="NAME=LEAST:MOST",
    ),
)  # fmt: skip
SHAPES: Final = options(
    option(
        "--input-shape input_shapes", "Shape of an input with dynamic dimensions.",
        multiple=True, read=read_shapes, metavar="NAME:D,D,...",
    ),
    option("--dim dims", "Value of a symbolic dimension.", multiple=True, read=read_dims, metavar="SYMBOL=N"),
)  # fmt: skip
CUT: Final = options(
    option(
        "--cut-before", "Tensor of an ONNX or TFLite model that becomes an input: leave out what computes it.",
        multiple=True, metavar="NAME",
    ),
    option(
        "--cut-after", "Tensor that becomes an output, in place of the model's: leave out what comes after it.",
        multiple=True, metavar="NAME",
    ),
)  # fmt: skip
TARGET: Final = options(
    option("--target", "Machine to generate code for; `aotc targets` lists them.", default="host"),
    option("-O opt_level", "Graph optimization level.", click.IntRange(0, 3), 3),
    flag("--size", "Prefer small: no weights that are larger for the sake of time, such as Winograd's."),
    option(
        "--accuracy", "strict: no algorithm that rounds more than an operator's definition (Winograd);"
        " reproducible: strict, and equal bits on all targets. [default: fast]",
        click.Choice(("fast", "strict", "reproducible")),
    ),
    option(
        "--config", "Set an option of a pass, or a limit of the compiler, by its key; `aotc config` lists the keys.",
        multiple=True, read=read_config, metavar="KEY=VALUE",
    ),
)  # fmt: skip
COMPILER: Final = options(
    option("--cc", "C compiler [default: $CC; cc, gcc, clang or the cross compiler]."),
    option(
        "--cflags", "Flags after the default ones, in emitted build files, too.",
        multiple=True, read=read_flags, metavar="FLAGS",
    ),
    option(
        "--cc-timeout", "A run of the C compiler that takes longer is ended (30s, 5m, 1h) [default: 30m].",
        read=read_timeout, metavar="TIME",
    ),
    flag("--no-cache cache", "Compile all C anew.", flag_value=False, default=True),
)  # fmt: skip
ARCHITECTURES: Final = option(
    "--cuda-arch", "Compute capabilities of GPUs to make code for [default: 80,90,100,120].",
    read=read_architectures, metavar="NN,...",
)  # fmt: skip
BOARD: Final = options(
    option(
        "--environment", "bare: a static library for programs without an operating system, as on microcontrollers.",
        metavar="hosted|bare",
    ),
    option("--memories", "Memories of the board, the fastest first.", PATH, metavar="FILE.toml"),
    option(
        "--float-abi", "Calling convention of floats on Arm microcontrollers; soft uses no FPU"
        " [default: that of the target].", click.Choice(("soft", "softfp", "hard")),
    ),
    flag("--portable", "C99 without inline assembly and extensions of compilers."),
)  # fmt: skip
WORKSPACE_IO: Final = flag(
    "--workspace-io", "Give inputs and outputs places in the arena, where callers may keep them."
)
FIRMWARE: Final = options(
    BOARD,
    flag("--selftest", "Without an operating system: a function that runs the model on known values."),
    flag("--single-file", "Without an operating system: one source and one header."),
)
THREADS: Final = click.option(
    "--threads/--no-threads",
    default=None,
    help="Make kernels that threads can share [default, where a target runs several], or not.",
)
TUNING: Final = flag("--no-tuning tuning", "Leave records of `aotc tune` alone.", flag_value=False, default=None)
ROUNDING: Final = option(
    "--rounding", "Whose integers a quantized .tflite model gives, bit by bit: TFLite Micro's or LiteRT's"
    " [default: tflm].", click.Choice(("tflm", "litert")),
)  # fmt: skip
#: Options of how a model is compiled, as in `CompileOptions`.
COMPILATION: Final = options(SHAPES, CUT, TARGET, ARCHITECTURES, ROUNDING, COMPILER, TUNING)
IO_DTYPE: Final = option(
    "--io-dtype", "int8 or uint8: take and give integers where the model quantizes its inputs and dequantizes its"
    " outputs; or by name (float32 leaves one as it is).", multiple=True, read=read_io_dtypes, metavar="[NAME:]TYPE",
)  # fmt: skip
BUDGETS: Final = options(
    option("--ram", "Memory of a run, with inputs and outputs: fail if it takes more.", read=read_bytes, metavar="64K"),
    option("--flash", "Code and parameters: fail if they take more.", read=read_bytes, metavar="256K"),
    option("--stack", "Stack of a run: fail if it may take more.", read=read_bytes, metavar="2K"),
)
QUIET: Final = options(
    flag("--quiet -q", "Print errors only."),
    click.option("--verbose", "-v", count=True, help="Log what happens (twice: debugging)."),
)
OUTPUT: Final = options(QUIET, flag("--json as_json", "Print one JSON object."))
