# SPDX-License-Identifier: Apache-2.0
"""Text of option values on the command line: parsers, and formatters that are their inverses.

parse_symbolic_dims(("batch=1", "n=1..8"))  # {"batch": 1, "n": "1..8"}
format_symbolic_dim(("batch", 1))           # "batch=1"

Parsers raise `OptionTextError`, whose text names the value and the expected form.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from aotc.ir.dimension_ranges import TieredDimSpecification, dim_size_range_or_tiers

T = TypeVar("T")

MAX_DIMENSION: Final = (1 << 31) - 1
MAX_THREADS: Final = 1024


class OptionTextError(ValueError):
    """Raised for text that is not a value of an option."""


# --- parsers of option values


def _parse_dimension(text: str, option_text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_DIMENSION:
        raise OptionTextError(f"{text!r} in {option_text!r} is not a dimension: a whole number")
    return value


def _parse_dimension_or_range(text: str, option_text: str) -> int | str:
    if ".." not in text and "," not in text:
        return _parse_dimension(text, option_text)
    try:
        found = dim_size_range_or_tiers(text)
        return found if isinstance(found, int) else str(found)
    except ValueError as error:
        raise OptionTextError(f"{option_text!r}: {error}") from error


def _split_option_texts_at_separator(
    values: tuple[str, ...], example: str, *, first: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Split each text at its last separator, or at its first one; yield the text and both parts.

    example    example of the format, which contains the separator (":" or "=") once

    Raises OptionTextError if the separator or the first part is missing.
    """
    (separator,) = (mark for mark in ":=" if mark in example)
    for value in values:
        name, delimiter, text = value.partition(separator) if first else value.rpartition(separator)
        if not delimiter or not name:
            raise OptionTextError(f"{value!r} is not of the form {example}")
        yield value, name, text


def _items_as_dict_rejecting_conflicts(option_texts: Sequence[str], items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the items by name; raise OptionTextError if two texts have one name and different
    values.
    """
    text_by_name: dict[str, str] = {}
    value_by_name: dict[str, T] = {}
    for option_text, (name, value) in zip(option_texts, items, strict=True):
        if name in value_by_name and value_by_name[name] != value:
            raise OptionTextError(f"{text_by_name[name]!r} and {option_text!r} contradict each other")
        value_by_name[name], text_by_name[name] = value, option_text
    return value_by_name


def parse_input_shapes(values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parse shapes NAME:1,3,224,224; the name may contain colons, and nothing after the last colon
    means a scalar.
    """
    items = (
        (name, tuple(_parse_dimension(d, value) for d in dims.split(",") if d.strip()))
        for value, name, dims in _split_option_texts_at_separator(values, "NAME:1,3,224,224")
    )
    return _items_as_dict_rejecting_conflicts(values, items)


def parse_symbolic_dims(values: tuple[str, ...]) -> dict[str, int | str]:
    """Parse values of symbolic dimensions in the form SYMBOL=8 or SYMBOL=1..8; return integers, and
    texts of ranges, by symbol.
    """
    items = (
        (name, _parse_dimension_or_range(number, value))
        for value, name, number in _split_option_texts_at_separator(values, "SYMBOL=8")
    )
    return _items_as_dict_rejecting_conflicts(values, items)


def parse_state_pairs(values: tuple[str, ...]) -> dict[str, str]:
    """Parse state pairs in the form PAST=PRESENT; return names of outputs by names of inputs."""
    pairs = (
        (past, present)
        for value, past, present in _split_option_texts_at_separator(values, "PAST=PRESENT")
        if _require_output_name(value, present)
    )
    return _items_as_dict_rejecting_conflicts(values, pairs)


def _require_output_name(option_text: str, present: str) -> bool:
    """Return True; raise OptionTextError if a state pair names no output."""
    if not present:
        raise OptionTextError(f"{option_text!r} is not of the form PAST=PRESENT")
    return True


def parse_input_ranges(values: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Parse ranges NAME=-1:1; the name may contain equals signs.  The ranges are not compared with
    the model here.
    """
    form = "NAME=LEAST:MOST, such as x=-1:1"
    ranges: list[tuple[str, tuple[float, float]]] = []
    for value in values:
        name, _, ends = value.rpartition("=")
        least, colon, most = ends.partition(":")
        if not (name and colon):
            raise OptionTextError(f"{value!r} is not of the form {form}")
        try:
            ranges.append((name, (float(least), float(most))))
        except ValueError as error:
            raise OptionTextError(f"{value!r} is not of the form {form}: both ends are numbers") from error
    return _items_as_dict_rejecting_conflicts(values, ranges)


def parse_io_dtypes(values: tuple[str, ...]) -> dict[str, str]:
    """Parse dtypes of inputs and outputs, int8 or NAME:int8 (the name may contain colons).

    The key "" of the result stands for all names not given.
    """
    parts = (value.rpartition(":") for value in values)
    return _items_as_dict_rejecting_conflicts(values, ((name, dtype) for name, _, dtype in parts))


def parse_config_entries(values: tuple[str, ...]) -> dict[str, bool | int | float | str]:
    """Parse configuration entries KEY=VALUE; a value is JSON (true, false, a number) if it parses
    as such, else text.
    """
    entries: list[tuple[str, bool | int | float | str]] = []
    for _, key, text in _split_option_texts_at_separator(values, "KEY=VALUE", first=True):
        try:
            entries.append((key, json.loads(text)))
        except ValueError:
            entries.append((key, text))
    return _items_as_dict_rejecting_conflicts(values, entries)


def split_compiler_flags(values: tuple[str, ...]) -> tuple[str, ...]:
    """Parse compiler flags, each text holding one or several, quoted as in a shell."""
    try:
        return tuple(flag for value in values for flag in shlex.split(value))
    except ValueError as error:
        raise OptionTextError(f"{values[-1]!r} cannot be split into flags: {error}") from error


def parse_comma_separated_names(value: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names; return a tuple."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def parse_thread_counts(value: str) -> tuple[int, ...]:
    """Parse a list of integers from 1 to 1024, such as 1,2,4, without duplicates."""
    counts = [int(text) if text.strip().isdecimal() else 0 for text in value.split(",")]
    if not all(1 <= count <= MAX_THREADS for count in counts):
        raise OptionTextError(f"{value!r} is not a list of numbers from 1 to {MAX_THREADS}")
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
        raise OptionTextError(f"{value!r} is not a time such as 30s, 5m or 1h")
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
        raise OptionTextError(f"{value!r} is not a number of bytes such as 65536, 64K, 64KB or 1MiB")
    return int(match[1]) * _BYTES_PER_UNIT[(match[2] or "").upper()]


def parse_timeout_seconds(value: str | None) -> float | None:
    """Parse a time limit as `parse_seconds` does; return seconds, None for None.  Zero is an error."""
    seconds = parse_seconds(value) if value is not None else None
    if seconds == 0:
        raise OptionTextError(f"{value!r} is no time limit: it must be greater than zero")
    return seconds


# --- formatters of option values, for messages: each returns a text that the parser above accepts


def format_input_shape(item: tuple[str, Sequence[int]]) -> str:
    """Return a shape of an input as NAME:1,3,224,224."""
    name, shape = item
    return f"{name}:{','.join(map(str, shape))}"


def format_symbolic_dim(item: tuple[str, TieredDimSpecification]) -> str:
    """Return the value of a symbolic dimension as SYMBOL=8, its range as SYMBOL=1..8, or its tiers as SYMBOL=1,8."""
    symbol, size = item
    return f"{symbol}={dim_size_range_or_tiers(size)}"


def format_state_pair(item: tuple[str, str]) -> str:
    """Return a state pair as PAST=PRESENT."""
    past, present = item
    return f"{past}={present}"


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
    """Return a number of bytes with the largest unit that divides it, such as 4G; 0 as "0"."""
    if byte_count == 0:
        return "0"
    units = [(unit, size) for unit, size in _BYTES_PER_UNIT.items() if byte_count % size == 0]
    unit, size = max(units, key=lambda item: item[1])
    return f"{byte_count // size}{unit}"
