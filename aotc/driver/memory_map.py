# SPDX-License-Identifier: Apache-2.0
"""Read the memory regions of a board from a TOML file.

read_memories(Path("board.toml"))      # (Space(name="dtcm", ...), Space(name="flash", ...))

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

from aotc.ir import AotcError, refusals
from aotc.tir.target import ROLES, Space

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS: Final = ("address", "bytes", "align", "holds")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20}


def _bad(path: Path, text: str) -> AotcError:
    hint = 'a table for each memory, such as [ram] with address = 0x20000000, bytes = "64K", holds = ["arena"]'
    return AotcError("memories", f"{path.name}: {text}", hint=hint)


def _size(value: object) -> int | None:
    """Convert a memory size in a board file, such as 65536, "64K" or "1M", to bytes; None for any
    other value.
    """
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _UNITS:
        return int(value[:-1]) * _UNITS[value[-1]]
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _space(path: Path, name: str, row: Any, least: int) -> tuple[Space, int | None]:
    """Convert a TOML table to a memory region; return it with its address, None if not stated.

    Raise AotcError (code "memories") for unknown keys and invalid values.
    """
    if not isinstance(row, dict):
        raise _bad(path, f"{name} is not a table")
    if unknown := [key for key in row if key not in _KEYS]:
        raise _bad(path, f"{name} has the unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    sizes = {key: size for key in row if (size := _size(row[key])) is not None}
    if wrong := [key for key in row if key not in (*sizes, "holds")]:
        raise _bad(path, f'{name}: {wrong[0]} is {row[wrong[0]]!r}, not a number such as 65536, "64K" or "1M"')
    if not sizes.get("bytes"):
        raise _bad(path, f"{name} has no bytes")
    holds = row.get("holds", list(ROLES))
    if not isinstance(holds, list) or not holds or not all(role in ROLES for role in holds):
        raise _bad(path, f"{name} holds {holds!r}, not some of {', '.join(ROLES)}")
    parts = tuple(part for role in holds for part in ROLES[role])
    align = sizes.get("align", least)
    if align < least:
        raise _bad(path, f"{name} is aligned to {align} bytes, the target needs {least}")
    return Space(name=name, bytes=sizes["bytes"], align=align, holds=parts), sizes.get("address")


def read_memories(path: Path, least: int = 8) -> tuple[Space, ...]:
    """Read the memory regions of a board file.

    least    smallest alignment of a region in bytes

    Raises AotcError (code "memories") for an unreadable or invalid file, overlapping regions, no
    region for the arena, or different alignments among the regions for the arena.
    """
    with refusals("memories", f"read {path}"):
        text = path.read_bytes()
    try:
        rows = tomllib.loads(text.decode("utf-8"))
    except ValueError as error:
        raise _bad(path, f"not TOML: {error}") from error
    found = [_space(path, name, row, least) for name, row in rows.items()]
    placed = [(space, at) for space, at in found if at is not None]
    for (a, first), (b, second) in combinations(placed, 2):
        if first < second + b.bytes and second < first + a.bytes:
            ranges = [f"{s.name} ({at:#x} to {at + s.bytes - 1:#x})" for s, at in ((a, first), (b, second))]
            raise _bad(path, f"{ranges[0]} and {ranges[1]} overlap")
    spaces = tuple(space for space, _ in found)
    if not any("arena" in space.holds for space in spaces):
        raise _bad(path, "no memory space is assigned to the arena")
    if len({space.align for space in spaces if "arena" in space.holds}) > 1:
        raise _bad(path, "memories for the arena are aligned differently, and it may go into any of them")
    return spaces
