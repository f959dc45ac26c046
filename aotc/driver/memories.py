# SPDX-License-Identifier: Apache-2.0
"""The memories of a board, from a small TOML file.

read_memories(Path("board.toml"))      # (Space(name="dtcm", ...), Space(name="flash", ...))

A table for each, in the order in which they are filled:

    [dtcm]
    address = 0x20000000
    bytes = "64K"
    holds = ["arena"]
"""

from __future__ import annotations

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
    """65536, "64K" or "1M" as bytes; None for anything else."""
    if isinstance(value, str) and value[:-1].isdecimal() and value[-1:] in _UNITS:
        return int(value[:-1]) * _UNITS[value[-1]]
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _space(path: Path, name: str, row: Any) -> tuple[Space, int | None]:
    """A memory, and its address where that is said."""
    if not isinstance(row, dict) or not row.keys() <= set(_KEYS):
        raise _bad(path, f"{name} is not a table of {', '.join(_KEYS)}")
    size, align = _size(row.get("bytes")), _size(row.get("align", 8))
    address = _size(row["address"]) if "address" in row else None
    if not size or align is None or ("address" in row and address is None):
        raise _bad(path, f"{name} needs bytes, and whole numbers of bytes for all it says")
    holds = row.get("holds", list(ROLES))
    if not isinstance(holds, list) or not holds or not all(role in ROLES for role in holds):
        raise _bad(path, f"{name} holds {holds!r}, not some of {', '.join(ROLES)}")
    parts = tuple(part for role in holds for part in ROLES[role])
    return Space(name=name, bytes=size, align=align, holds=parts), address


def read_memories(path: Path) -> tuple[Space, ...]:
    """The memories that a file tells of; AotcError (code "memories") for what is wrong in it, overlaps included."""
    with refusals("memories", f"read {path}"):
        text = path.read_bytes()
    try:
        rows = tomllib.loads(text.decode("utf-8"))
    except ValueError as error:
        raise _bad(path, f"not TOML: {error}") from error
    found = [_space(path, name, row) for name, row in rows.items()]
    placed = [(space, at) for space, at in found if at is not None]
    for (a, first), (b, second) in combinations(placed, 2):
        if first < second + b.bytes and second < first + a.bytes:
            raise _bad(path, f"{a.name} and {b.name} overlap")
    spaces = tuple(space for space, _ in found)
    if len({space.align for space in spaces if "arena" in space.holds}) > 1:
        raise _bad(path, "memories for the arena are aligned differently, and it may go into any of them")
    return spaces
