# SPDX-License-Identifier: Apache-2.0
"""Check that the file of a shared library is complete and unchanged.

The dynamic linker crashes the process if it maps a truncated file, so the headers of ELF, PE and
Mach-O files are compared with the file size first.  Changed bytes are detected by a checksum only.

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
#: Largest size in bytes of the load commands of a Mach-O file; a larger one is another format.
_COMMANDS: Final = 1 << 16
#: Largest number of architectures in a Mach-O file; a larger one is another format.
_SLICES: Final = 16


def require_whole(path: Path) -> None:
    """Raise AotcError (code "load") unless a path is a regular file at least as long as its headers
    state.

    Files of unknown formats are accepted: the dynamic linker rejects them.
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
    """Reader of the binary headers of a library that begins at offset `base` of a file.

    big     True for big-endian numbers
    width   size of offsets and sizes in bytes
    """

    file: IO[bytes]
    file_bytes: int
    big: bool = True
    width: int = 4
    base: int = 0

    def number(self, at: int, size: int) -> int:
        """Read an unsigned number of `size` bytes at an offset of a library file; 0 beyond the end
        of the file.
        """
        self.file.seek(min(at, self.file_bytes))
        data = self.file.read(size)
        return int.from_bytes(data, "big" if self.big else "little") if len(data) == size else 0

    def address(self, at: int) -> int:
        """Read an offset or size (a number of `width` bytes) stored at an offset of a library file."""
        return self.number(at, self.width)

    def table_end(self, start: int, count: int, stride: int, offset: int, size: int, kind: int = 0) -> int:
        """Return the largest end of a header table and of the file parts that its rows describe.

        offset, size    positions in a row of the offset and the size of a part
        kind            consider only rows that begin with this number; 0: all rows
        """
        end = start + count * stride
        for row in (start + k * stride for k in range(count if end <= self.file_bytes else 0)):
            # an empty part may have any offset
            part = self.address(row + size)
            if part and kind in (0, self.number(row, 4)):
                end = max(end, self.base + self.address(row + offset) + part)
        return end


def _stated_size(raw: _Headers) -> int:
    """Return the smallest file size that is consistent with the headers of a library; 0 for unknown
    formats.
    """
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
    """Return the end of a Mach-O file with libraries for several architectures."""
    count, width = headers.number(4, 4), headers.width
    if count > _SLICES:
        return 0
    stride = 8 + 3 * width
    ends = [_mach(headers, headers.address(16 + k * stride)) for k in range(count)]
    return max([headers.table_end(8, count, stride, 8, 8 + width), *ends])


def _mach(raw: _Headers, base: int) -> int:
    """Return the end of a Mach-O library that begins at offset `base`."""
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
    """Raise AotcError (code "checksum") unless the SHA-256 of a file is `expected`, in hexadecimal."""
    found = checksum(path)
    if found != expected.lower():
        text = f"{path} is not what was written: its SHA-256 is {found}, expected {expected}"
        raise AotcError("checksum", text, hint="copy it again, or compile the model again")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; AotcError (code "load") if it cannot be read."""
    found = hashlib.sha256()
    with refusals("load", f"read {path}"), path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()
