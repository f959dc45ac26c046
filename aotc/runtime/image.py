# SPDX-License-Identifier: Apache-2.0
"""Whether the file of a shared library is whole.

Mapping a file that was cut short and reading beyond its end kills the process, so its headers are looked at before the
dynamic linker gets it: ELF, PE and Mach-O.  That other bytes are in the file than were written is for a checksum.

require_whole(path)                       # AotcError (code "load") where the file is shorter than its headers say
require_checksum(path, sha256)            # AotcError (code "checksum") where its contents are others
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aotc.ir import AotcError, open_regular

_PIECE: Final = 1 << 20
_ELF_LOAD: Final = 1
_PE: Final = int.from_bytes(b"PE\0\0", "little")
#: The byte order of Mach-O files by how they begin, and whether they are for 64 bits.
_MACH: Final = {
    b"\xfe\xed\xfa\xce": (">", False),
    b"\xfe\xed\xfa\xcf": (">", True),
    b"\xce\xfa\xed\xfe": ("<", False),
    b"\xcf\xfa\xed\xfe": ("<", True),
}
#: More bytes of load commands, and ...
_COMMANDS: Final = 1 << 16
#: ... more architectures than these no Mach-O file has: that is a file of another kind.
_SLICES: Final = 16
#: The bytes from an offset on, so many at most.
Read = Callable[[int, int], bytes]


def require_whole(path: Path) -> None:
    """Raise AotcError (code "load") for what is no plain file, and for one that ends before its headers say it does.

    Files of unknown formats pass: the dynamic linker refuses them.
    """
    with open_regular(path, "load") as file:
        size = os.fstat(file.fileno()).st_size

        def read(at: int, count: int) -> bytes:
            file.seek(min(at, size))
            return file.read(count)

        try:
            stated = _stated_size(read)
        except OSError as error:
            raise AotcError("load", f"cannot load {path}: {error.strerror}") from error
    if stated > size:
        text = f"cannot load {path}: it ends after {size} bytes, its headers speak of {stated}"
        raise AotcError("load", text, hint="the file was cut short: copy it again, or compile the model again")


def _stated_size(read: Read) -> int:
    """How many bytes the headers of a library say that its file has, at least; 0 where they say nothing."""
    match magic := read(0, 4):
        case b"\x7fELF":
            return _elf(read)
        case b"\xca\xfe\xba\xbe" | b"\xca\xfe\xba\xbf":
            return _fat(read, wide=magic[3] == 0xBF)
        case _:
            return _pe(read) if magic[:2] == b"MZ" else _mach(read, 0)


def _rows(read: Read, at: int, layout: str, count: int = 1, stride: int = 0) -> list[tuple[int, ...]]:
    """What each row of a table begins with; none where the file ends before the table.

    stride    bytes from one row to the next; 0 where a row has no more than is looked at
    """
    row = struct.Struct(layout)
    size = count * (stride or row.size)
    data = read(at, size)
    return [row.unpack_from(data, k) for k in range(0, size, stride or row.size)] if len(data) == size else []


def _row(read: Read, at: int, layout: str) -> tuple[int, ...] | None:
    """One row of numbers; None where the file ends before."""
    return next(iter(_rows(read, at, layout)), None)


def _elf(read: Read) -> int:
    wide, order = read(4, 1) == b"\2", ">" if read(5, 1) == b"\2" else "<"
    start, layout, least = (32, "QQ6xHHHH", 64) if wide else (28, "II6xHHHH", 52)
    fields = _row(read, start, order + layout)
    if fields is None:
        return least
    segments, sections, segment_bytes, segment_count, section_bytes, section_count = fields
    ends = [least, segments + segment_bytes * segment_count, sections + section_bytes * section_count]
    if segment_bytes == (56 if wide else 32):  # else the dynamic linker refuses the file
        rows = _rows(read, segments, order + ("I4xQ16xQ" if wide else "II8xI"), segment_count, segment_bytes)
        ends += [offset + size for kind, offset, size in rows if kind == _ELF_LOAD and size]
    return max(ends)


def _pe(read: Read) -> int:
    place = _row(read, 0x3C, "<I")
    if place is None:
        return 64
    (start,) = place
    fields = _row(read, start, "<I2xH12xH")
    if fields is None:
        return start + 24
    magic, count, optional = fields
    if magic != _PE:
        return 0
    table = start + 24 + optional
    rows = _rows(read, table, "<16xII", count, 40)
    return max([table + 40 * count, *(offset + size for size, offset in rows if size)])


def _fat(read: Read, *, wide: bool) -> int:
    """Libraries for several architectures in one file."""
    (count,) = _row(read, 4, ">I") or (1,)
    if count > _SLICES:
        return 0
    stride, layout = (32, ">8xQQ") if wide else (20, ">8xII")
    rows = _rows(read, 8, layout, count, stride)
    inner = [_mach(read, offset) for offset, _ in rows]
    return max([8 + stride * count, *inner, *(offset + size for offset, size in rows if size)])


def _mach(read: Read, base: int) -> int:
    """The end of a library that begins at an offset."""
    if (magic := read(base, 4)) not in _MACH:
        return 0
    order, wide = _MACH[magic]
    start, kind, layout = (32, 0x19, "40xQQ") if wide else (28, 0x1, "32xII")
    (length,) = _row(read, base + 20, order + "I") or (0,)
    if length > _COMMANDS:
        return 0
    at, end = base + start, base + start + length
    ends = [end]
    while at < end and (command := _row(read, at, order + "II")) is not None and command[1] >= 8:
        segment = _row(read, at, order + layout) if command[0] == kind else None
        if segment is not None and segment[1]:
            ends.append(base + sum(segment))
        at += command[1]
    return max(ends)


def require_checksum(path: Path, expected: str) -> None:
    """Raise AotcError (code "checksum") unless the SHA-256 of a file's contents is `expected`, in hexadecimal."""
    found = checksum(path)
    if found != expected.lower():
        text = f"{path} is not what was written: its SHA-256 is {found}, expected {expected}"
        raise AotcError("checksum", text, hint="copy it again, or compile the model again")


def checksum(path: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    found = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise AotcError("load", f"cannot read {path}: {error.strerror}") from error
    return found.hexdigest()
