# SPDX-License-Identifier: Apache-2.0
"""Check that the file of a shared library is complete and unchanged.

The dynamic linker crashes the process if it maps a truncated file, so the headers of ELF, PE and
Mach-O files are compared with the file size first.  Changed bytes are detected by a checksum only.

require_complete_library_file(path)       # AotcError (code "load") where the file is shorter than its headers say
require_file_checksum(path, sha256)       # AotcError (code "checksum") where its contents are others
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from aotc.ir import AotcError, frozen, open_regular_file, translate_os_errors

_READ_CHUNK_BYTES: Final = 1 << 20
#: Largest size in bytes of the load commands of a Mach-O file; a larger one is another format.
_MAX_LOAD_COMMANDS_BYTES: Final = 1 << 16
#: Largest number of architectures in a Mach-O file; a larger one is another format.
_MAX_MACHO_ARCHITECTURES: Final = 16


def require_complete_library_file(path: Path) -> None:
    """Raise AotcError (code "load") unless a path is a regular file at least as long as its headers
    state.

    Files of unknown formats are accepted: the dynamic linker rejects them.
    """
    with open_regular_file(path, "load") as file:
        size = os.fstat(file.fileno()).st_size
        with translate_os_errors("load", f"load {path}"):
            stated = _file_size_required_by_headers(_BinaryHeaders(file, size))
    if stated > size:
        text = f"cannot load {path}: it ends after {size} bytes, its headers speak of {stated}"
        raise AotcError("load", text, hint="the file was cut short: copy it again, or compile the model again")


@frozen
class _BinaryHeaders:
    """Reader of the binary headers of a library that begins at offset `base` of a file.

    big     True for big-endian numbers
    width   size of offsets and sizes in bytes
    """

    file: IO[bytes]
    file_bytes: int
    big: bool = True
    width: int = 4
    base: int = 0

    def read_unsigned(self, offset: int, byte_count: int) -> int:
        """Read an unsigned number of `byte_count` bytes at an offset of a library file; 0 beyond
        the end of the file.
        """
        self.file.seek(min(offset, self.file_bytes))
        data = self.file.read(byte_count)
        return int.from_bytes(data, "big" if self.big else "little") if len(data) == byte_count else 0

    def read_stored_offset_or_size(self, offset: int) -> int:
        """Read an offset or size (a number of `width` bytes) stored at an offset of a library file."""
        return self.read_unsigned(offset, self.width)

    def end_of_header_table_and_parts(
        self, start: int, count: int, stride: int, offset_field: int, size_field: int, row_kind: int = 0
    ) -> int:
        """Return the largest end of a header table and of the file parts that its rows describe.

        offset_field, size_field    positions in a row of the offset and the size of a part
        row_kind                    consider only rows that begin with this number; 0: all rows
        """
        end = start + count * stride
        for row in (start + k * stride for k in range(count if end <= self.file_bytes else 0)):
            # an empty part may have any offset
            part = self.read_stored_offset_or_size(row + size_field)
            if part and row_kind in (0, self.read_unsigned(row, 4)):
                end = max(end, self.base + self.read_stored_offset_or_size(row + offset_field) + part)
        return end


def _file_size_required_by_headers(raw: _BinaryHeaders) -> int:
    """Return the smallest file size that is consistent with the headers of a library; 0 for unknown
    formats.
    """
    match raw.read_unsigned(0, 4):
        case 0x7F454C46:
            return _elf_file_end(raw)
        case 0xCAFEBABE:
            return _fat_macho_file_end(raw)
        case 0xCAFEBABF:
            return _fat_macho_file_end(replace(raw, width=8))
        case _:
            return (
                _pe_file_end(replace(raw, big=False)) if raw.read_unsigned(0, 2) == 0x4D5A else _macho_file_end(raw, 0)
            )


def _elf_file_end(raw: _BinaryHeaders) -> int:
    width = 8 if raw.read_unsigned(4, 1) == 2 else 4
    headers = replace(raw, big=raw.read_unsigned(5, 1) == 2, width=width)
    segments = headers.read_stored_offset_or_size(24 + width)
    sections = headers.read_stored_offset_or_size(24 + 2 * width)
    counts = 30 + 3 * width
    stride, count, section_bytes, section_count = (headers.read_unsigned(counts + at, 2) for at in (0, 2, 4, 6))
    loaded = headers.end_of_header_table_and_parts(segments, count, stride, width, 4 * width, row_kind=1)
    return max(counts + 10, sections + section_bytes * section_count, loaded)


def _pe_file_end(headers: _BinaryHeaders) -> int:
    start = headers.read_unsigned(60, 4)
    if headers.read_unsigned(start, 4) != 0x4550:
        return max(64, start + 24)
    first = start + 24 + headers.read_unsigned(start + 20, 2)
    return max(64, headers.end_of_header_table_and_parts(first, headers.read_unsigned(start + 6, 2), 40, 20, 16))


def _fat_macho_file_end(headers: _BinaryHeaders) -> int:
    """Return the end of a Mach-O file with libraries for several architectures."""
    count, width = headers.read_unsigned(4, 4), headers.width
    if count > _MAX_MACHO_ARCHITECTURES:
        return 0
    stride = 8 + 3 * width
    ends = [_macho_file_end(headers, headers.read_stored_offset_or_size(16 + k * stride)) for k in range(count)]
    return max([headers.end_of_header_table_and_parts(8, count, stride, 8, 8 + width), *ends])


def _macho_file_end(raw: _BinaryHeaders, base: int) -> int:
    """Return the end of a Mach-O library that begins at offset `base`."""
    headers = replace(raw, big=raw.read_unsigned(base, 1) == 0xFE, base=base)
    magic = headers.read_unsigned(base, 4)
    length = headers.read_unsigned(base + 20, 4)
    if magic not in (0xFEEDFACE, 0xFEEDFACF) or length > _MAX_LOAD_COMMANDS_BYTES:
        return 0
    width, kind = (8, 0x19) if magic == 0xFEEDFACF else (4, 0x1)
    headers = replace(headers, width=width)
    at, offset = base + 24 + width, 24 + 2 * width
    end = last = at + length
    while at < last and (step := headers.read_unsigned(at + 4, 4)) >= 8:
        end = max(end, headers.end_of_header_table_and_parts(at, 1, 8, offset, offset + width, kind))
        at += step
    return end


def require_file_checksum(path: Path, expected: str) -> None:
    """Raise AotcError (code "checksum") unless the SHA-256 of a file is `expected`, in hexadecimal."""
    digest = sha256_of_file(path)
    if digest != expected.lower():
        text = f"{path} is not what was written: its SHA-256 is {digest}, expected {expected}"
        raise AotcError("checksum", text, hint="copy it again, or compile the model again")


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; AotcError (code "load") if it cannot be read."""
    hasher = hashlib.sha256()
    with translate_os_errors("load", f"read {path}"), path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_CHUNK_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()
