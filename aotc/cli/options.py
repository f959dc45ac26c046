# SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and how their text is read.

--input-shape x:1,3,224,224   --dim batch=1
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LARGEST_DIM = (1 << 31) - 1
MOST_THREADS = 1024


def _dimension(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= LARGEST_DIM:
        raise click.BadParameter(f"{text!r} in {where!r} is not a dimension")
    return value


def read_shapes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """NAME:1,3,224,224 (the name may hold colons; nothing after the last colon means a scalar)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values:
        name, colon, dims = value.rpartition(":")
        if not colon or not name:
            raise click.BadParameter(f"{value!r} is not of the form NAME:1,3,224,224")
        shapes[name] = tuple(_dimension(d, value) for d in dims.split(",") if d.strip())
    return shapes


def read_dims(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """SYMBOL=8"""
    dims: dict[str, int] = {}
    for value in values:
        name, equals, number = value.rpartition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not of the form SYMBOL=8")
        dims[name] = _dimension(number, value)
    return dims


def read_config(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, bool | int | float | str]:
    """KEY=VALUE: true and false, numbers, else text."""
    config: dict[str, bool | int | float | str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
        try:
            config[key] = json.loads(text)
        except ValueError:
            config[key] = text
    return config


def read_flags(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Compiler flags, several in one text, quoted as in a shell."""
    try:
        return tuple(flag for value in values for flag in shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(f"{values[-1]!r} cannot be split into flags: {error}") from error


def read_names(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    """NAME,NAME,..."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def read_counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """1,2,4: whole numbers from 1 to 1024."""
    counts = [int(text) if text.strip().isdecimal() else 0 for text in value.split(",")]
    if not all(1 <= count <= MOST_THREADS for count in counts):
        raise click.BadParameter(f"{value!r} is not a list of numbers from 1 to {MOST_THREADS}")
    return tuple(dict.fromkeys(counts))


def read_seconds(_: click.Context, __: click.Parameter, value: str) -> float:
    """30, 30s, 5m or 1h as seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (value[:-1], units[value[-1]]) if value[-1:] in units else (value, 1)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise click.BadParameter(f"{value!r} is not a time such as 30s, 5m or 1h")
    return seconds


def read_timeout(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """As `read_seconds`, but more than none."""
    seconds = read_seconds(context, option, value) if value is not None else None
    if seconds == 0:
        raise click.BadParameter("nothing can be done in no time")
    return seconds


def _all(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


shape_options = _all(
    click.option(
        "--input-shape", "input_shapes", multiple=True, callback=read_shapes, metavar="NAME:D,D,...",
        help="Shape of an input with dynamic dimensions.",
    ),
    click.option(
        "--dim", "dims", multiple=True, callback=read_dims, metavar="SYMBOL=N", help="Value of a symbolic dimension."
    ),
)  # fmt: skip

target_options = _all(
    click.option("--target", default="host", show_default=True, help="Machine to generate code for."),
    click.option(
        "-O", "opt_level", type=click.IntRange(0, 3), default=3, show_default=True, help="Graph optimisation level."
    ),
    click.option(
        "--accuracy",
        type=click.Choice(["fast", "strict"]),
        default="fast",
        show_default=True,
        help="strict: no algorithm that rounds more than an operator's definition (Winograd).",
    ),
    click.option(
        "--config",
        multiple=True,
        metavar="KEY=VALUE",
        callback=read_config,
        help="Set an option of a pass, or a limit of the compiler, by its key.",
    ),
)

compiler_options = _all(
    click.option("--cc", default=None, help="C compiler [default: $CC; cc, gcc, clang or the cross compiler]."),
    click.option("--cflags", multiple=True, callback=read_flags, metavar="FLAGS", help="Flags after the default ones."),
    click.option(
        "--cc-timeout", callback=read_timeout, metavar="TIME",
        help="A run of the C compiler that takes longer is ended (30s, 5m, 1h) [default: 30m].",
    ),
    click.option("--no-cache", "cache", is_flag=True, flag_value=False, default=True, help="Compile all C anew."),
)  # fmt: skip

tuning_option = click.option(
    "--no-tuning", "tuning", is_flag=True, flag_value=False, default=None, help="Leave records of `aotc tune` alone."
)

quiet_options = _all(
    click.option("--quiet", "-q", is_flag=True, help="Print errors only."),
    click.option("--verbose", "-v", count=True, help="Log what happens (twice: debugging)."),
)

output_options = _all(quiet_options, click.option("--json", "as_json", is_flag=True, help="Print one JSON object."))
