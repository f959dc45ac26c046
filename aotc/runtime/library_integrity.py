# SPDX-License-Identifier: Apache-2.0
"""Whether the file of a shared library is whole.

Mapping a file that was cut short and reading beyond its end kills the process, so its headers are looked at before the
dynamic linker gets it: ELF, PE and Mach-O.  That other bytes are in the file than were written is for a checksum.

require_whole(path)                       # AotcError (code "load") where the file is shorter than its headers say
require_checksum(path, sha256)            # AotcError (code "checksum") where its contents are others
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from aotc.ir import AotcError, frozen, open_regular, refusals

_PIECE: Final = 1 << 20
#: More bytes of load commands, and ...
_COMMANDS: Final = 1 << 16
#: ... more architectures than these no Mach-O file has: that is a file of another kind.
_SLICES: Final = 16


def require_whole(path: Path) -> None:
    """Raise AotcError (code "load") for what is no plain file, and for one that ends before its headers say it does.

    Files of unknown formats pass: the dynamic linker refuses them.
    """
    with open_regular(path, "load") as file:
        size = os.fstat(file.fileno()).st_size
        with refusals("load", f"load {path}"):
            stated = _stated_size(_Headers(file, size))
    if stated > size:
        text = f"cannot load {path}: it ends after {size} bytes, its headers speak of {stated}"
        raise AotcError("load", text, hint="the file was cut short: copy it again, or compile the model again")


@frozen
class _Headers:
    """The headers of a library that begins at `base` of a file, and how they write numbers: the highest byte first, or
    the lowest; those of offsets and sizes have `width` bytes.
    """

    file: IO[bytes]
    file_bytes: int
    big: bool = True
    width: int = 4
    base: int = 0

    def number(self, at: int, size: int) -> int:
        """The number at an offset of the file; 0 where the file ends before."""
        self.file.seek(min(at, self.file_bytes))
        data = self.file.read(size)
        return int.from_bytes(data, "big" if self.big else "little") if len(data) == size else 0

    def address(self, at: int) -> int:
        """The offset or size that is stated at an offset of the file."""
        return self.number(at, self.width)

    def table_end(self, start: int, count: int, stride: int, offset: int, size: int, kind: int = 0) -> int:
        """Where a table and the parts of the file that it tells of end.

        offset, size    where a row states those of a part
        kind            what the rows that count begin with; 0 where each does
        """
        end = start + count * stride
        for row in (start + k * stride for k in range(count if end <= self.file_bytes else 0)):
            # an empty one may be said to be anywhere
            part = self.address(row + size)
            if part and kind in (0, self.number(row, 4)):
                end = max(end, self.base + self.address(row + offset) + part)
        return end


def _stated_size(raw: _Headers) -> int:
    """How many bytes the headers of a library say that its file has, at least; 0 where they say nothing."""
    match raw.number(0, 4):
        case 0x7F454C46:
            return _elf(raw)
        case 0xCAFEBABE:
            return _fat(raw)
        case 0xCAFEBABF:
            return _fat(replace(raw, width=8))
        case _:
            return _pe(replace(raw, big=False)) if raw.number(0, 2) == 0x4D5A else _mach(raw, 0)


def _elf(raw: _Headers) -> int:
    width = 8 if raw.number(4, 1) == 2 else 4
    headers = replace(raw, big=raw.number(5, 1) == 2, width=width)
    segments = headers.address(24 + width)
    sections = headers.address(24 + 2 * width)
    counts = 30 + 3 * width
    stride, count, section_bytes, section_count = (headers.number(counts + at, 2) for at in (0, 2, 4, 6))
    loaded = headers.table_end(segments, count, stride, width, 4 * width, kind=1)
    return max(counts + 10, sections + section_bytes * section_count, loaded)


def _pe(headers: _Headers) -> int:
    start = headers.number(60, 4)
    if headers.number(start, 4) != 0x4550:
        return max(64, start + 24)
    first = start + 24 + headers.number(start + 20, 2)
    return max(64, headers.table_end(first, headers.number(start + 6, 2), 40, 20, 16))


def _fat(headers: _Headers) -> int:
    """Libraries for several architectures in one file."""
    count, width = headers.number(4, 4), headers.width
    if count > _SLICES:
        return 0
    stride = 8 + 3 * width
    ends = [_mach(headers, headers.address(16 + k * stride)) for k in range(count)]
    return max([headers.table_end(8, count, stride, 8, 8 + width), *ends])


def _mach(raw: _Headers, base: int) -> int:
    """The end of a library that begins at an offset."""
    headers = replace(raw, big=raw.number(base, 1) == 0xFE, base=base)
    magic = headers.number(base, 4)
    length = headers.number(base + 20, 4)
    if magic not in (0xFEEDFACE, 0xFEEDFACF) or length > _COMMANDS:
        return 0
    width, kind = (8, 0x19) if magic == 0xFEEDFACF else (4, 0x1)
    headers = replace(headers, width=width)
    at, offset = base + 24 + width, 24 + 2 * width
    end = last = at + length
    while at < last and (step := headers.number(at + 4, 4)) >= 8:
        end = max(end, headers.table_end(at, 1, 8, offset, offset + width, kind))
        at += step
    return end


def require_checksum(path: Path, expected: str) -> None:
    """Raise AotcError (code "checksum") unless the SHA-256 of a file's contents is `expected`, in hexadecimal."""
    found = checksum(path)
    if found != expected.lower():
        text = f"{path} is not what was written: its SHA-256 is {found}, expected {expected}"
        raise AotcError("checksum", text, hint="copy it again, or compile the model again")


def checksum(path: Path) -> str:
    """The SHA-256 of a file's contents, in hexadecimal."""
    found = hashlib.sha256()
    with refusals("load", f"read {path}"), path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
