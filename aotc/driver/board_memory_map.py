# SPDX-License-Identifier: Apache-2.0
"""Read the memory regions of a board from a TOML file.

read_memory_regions(Path("board.toml"))  # (Space(name="dtcm", ...), Space(name="flash", ...))

The file has one table per region, in the order in which regions are filled:

    [dtcm]
    address = 0x20000000
    bytes = "64K"
    holds = ["arena"]
"""

import sys
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from aotc.ir import AotcError, translate_os_errors
from aotc.tir.target import DATA_KINDS_OF_ROLE, Space

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_REGION_KEYS: Final = ("address", "bytes", "align", "holds")
_BYTES_PER_UNIT: Final = {"K": 1 << 10, "M": 1 << 20}


def _board_file_error(path: Path, text: str) -> AotcError:
    hint = 'a table for each memory, such as [ram] with address = 0x20000000, bytes = "64K", holds = ["arena"]'
    return AotcError("memories", f"{path.name}: {text}", hint=hint)


def _parse_memory_size(value: object) -> int | None:
    """Convert a memory size in a board file, such as 65536, "64K" or "1M", to bytes; None for any
    other value.
    """
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _BYTES_PER_UNIT:
        return int(value[:-1]) * _BYTES_PER_UNIT[value[-1]]
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _parse_memory_region(path: Path, name: str, table: Any, min_alignment: int) -> tuple[Space, int | None]:
    """Convert a TOML table to a memory region; return it with its address, None if not stated.

    Raise AotcError (code "memories") for unknown keys and invalid values.
    """
    if not isinstance(table, dict):
        raise _board_file_error(path, f"{name} is not a table")
    if unknown := [key for key in table if key not in _REGION_KEYS]:
        raise _board_file_error(path, f"{name} has the unknown key {unknown[0]!r}; known: {', '.join(_REGION_KEYS)}")
    sizes = {key: size for key in table if (size := _parse_memory_size(table[key])) is not None}
    if wrong := [key for key in table if key not in (*sizes, "holds")]:
        raise _board_file_error(
            path, f'{name}: {wrong[0]} is {table[wrong[0]]!r}, not a number such as 65536, "64K" or "1M"'
        )
    if not sizes.get("bytes"):
        raise _board_file_error(path, f"{name} has no bytes")
    holds = table.get("holds", list(DATA_KINDS_OF_ROLE))
    if not isinstance(holds, list) or not holds or not all(role in DATA_KINDS_OF_ROLE for role in holds):
        raise _board_file_error(path, f"{name} holds {holds!r}, not some of {', '.join(DATA_KINDS_OF_ROLE)}")
    parts = tuple(part for role in holds for part in DATA_KINDS_OF_ROLE[role])
    align = sizes.get("align", min_alignment)
    if align < min_alignment:
        raise _board_file_error(path, f"{name} is aligned to {align} bytes, the target needs {min_alignment}")
    return Space(name=name, bytes=sizes["bytes"], align=align, holds=parts), sizes.get("address")


def read_memory_regions(path: Path, min_alignment: int = 8) -> tuple[Space, ...]:
    """Read the memory regions of a board file.

    min_alignment    smallest alignment of a region in bytes

    Raises AotcError (code "memories") for an unreadable or invalid file, overlapping regions, no
    region for the arena, or different alignments among the regions for the arena.
    """
    with translate_os_errors("memories", f"read {path}"):
        text = path.read_bytes()
    try:
        rows = tomllib.loads(text.decode("utf-8"))
    except ValueError as error:
        raise _board_file_error(path, f"not TOML: {error}") from error
    regions = [_parse_memory_region(path, name, row, min_alignment) for name, row in rows.items()]
    placed = [(space, at) for space, at in regions if at is not None]
    for (a, first), (b, second) in combinations(placed, 2):
        if first < second + b.bytes and second < first + a.bytes:
            ranges = [f"{s.name} ({at:#x} to {at + s.bytes - 1:#x})" for s, at in ((a, first), (b, second))]
            raise _board_file_error(path, f"{ranges[0]} and {ranges[1]} overlap")
    spaces = tuple(space for space, _ in regions)
    if not any("arena" in space.holds for space in spaces):
        raise _board_file_error(path, "no memory space is assigned to the arena")
    if len({space.align for space in spaces if "arena" in space.holds}) > 1:
        raise _board_file_error(path, "memories for the arena are aligned differently, and it may go into any of them")
    return spaces
