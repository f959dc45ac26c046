# SPDX-License-Identifier: Apache-2.0
"""Read symbols and segments of linked programs, libraries and archives in the ELF format.

file = read_elf_file(Path("firmware.elf"))
[s.name for s in file.symbols], [segment.is_writable for segment in file.segments]

Source of the layout: System V Application Binary Interface, chapters 4 and 5; the format of archives is that of `ar`.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aotc.ir import AotcError, frozen, translate_os_errors

_ARCHIVE_MAGIC: Final = b"!<arch>\n"
_MEMBER_HEADER_BYTES: Final = 60
_SYMBOL_TABLE, _LOADED, _WRITABLE = 2, 1, 2
_NAMED_KINDS: Final = {1: "object", 2: "function"}
_ARM: Final = 40
#: Field offsets of headers and table rows, for files of 32 and of 64 bits.
_LAYOUTS: Final = {
    1: {
        "header": struct.Struct("<16xHHIIIIIHHHHHH"), "section": struct.Struct("<IIIIIIIIII"),
        "segment": struct.Struct("<IIIIIIII"), "symbol": struct.Struct("<IIIBBH"),
    },
    2: {
        "header": struct.Struct("<16xHHIQQQIHHHHHH"), "section": struct.Struct("<IIQQQQIIQQ"),
        "segment": struct.Struct("<IIQQQQQQ"), "symbol": struct.Struct("<IBBHQQ"),
    },
}  # fmt: skip


@frozen
class ElfSymbol:
    """A function or an object: its address (in an archive the offset in its section) and its size in bytes."""

    name: str
    kind: str
    address: int
    bytes: int


@frozen
class ElfSegment:
    """A part of a linked file that is loaded.

    address        where a program accesses it
    load_address   where its first bytes are stored; another address for variables with initial values in flash
    stored_bytes   bytes that are stored in the file
    bytes          bytes in memory
    """

    address: int
    load_address: int
    stored_bytes: int
    bytes: int
    is_writable: bool


@frozen
class ElfFile:
    """Symbols with a size, sorted by address, and loaded segments; an archive has no segments."""

    symbols: tuple[ElfSymbol, ...]
    segments: tuple[ElfSegment, ...] = ()


def read_elf_file(path: Path) -> ElfFile:
    """Read an ELF file or an archive of ELF files, little-endian.

    Raises AotcError (code "elf") for other and for damaged files.
    """
    with translate_os_errors("elf", f"read {path}"):
        data = path.read_bytes()
    try:
        if data.startswith(_ARCHIVE_MAGIC):
            members = [_parse_elf(member) for member in _archive_members(data) if member[:4] == b"\x7fELF"]
            return ElfFile(tuple(symbol for member in members for symbol in member.symbols))
        return _parse_elf(data)
    except (struct.error, ValueError, LookupError) as error:
        hint = "give the program that the linker wrote, with its symbols (not stripped, not .hex or .bin)"
        raise AotcError("elf", f"{path} is no little-endian ELF file, or a damaged one", hint=hint) from error


def _archive_members(data: bytes) -> Iterator[bytes]:
    at = len(_ARCHIVE_MAGIC)
    while at + _MEMBER_HEADER_BYTES <= len(data):
        size = int(data[at + 48 : at + 58])
        if size < 0:
            raise ValueError("a member of negative size")
        at += _MEMBER_HEADER_BYTES
        yield data[at : at + size]
        at += size + size % 2


def _parse_elf(data: bytes) -> ElfFile:
    if data[:4] != b"\x7fELF" or data[5] != 1:
        raise ValueError("no little-endian ELF file")
    layout = _LAYOUTS[data[4]]
    _, machine, _, _, segments, sections, _, _, segment_bytes, segment_count, section_bytes, section_count, _ = layout[
        "header"
    ].unpack_from(data)
    rows = [layout["section"].unpack_from(data, sections + k * section_bytes) for k in range(section_count)]
    symbols = [
        symbol
        for row in rows
        if row[1] == _SYMBOL_TABLE
        for symbol in _symbols_of_table(data, layout["symbol"], row, rows[row[6]], machine)
    ]
    parts = [layout["segment"].unpack_from(data, segments + k * segment_bytes) for k in range(segment_count)]
    is_wide = data[4] == 2
    loaded = [_segment(row, is_wide=is_wide) for row in parts if row[0] == _LOADED]
    by_address = sorted(symbols, key=lambda s: (s.address, -s.bytes, s.name))
    return ElfFile(tuple(by_address), tuple(segment for segment in loaded if segment.bytes))


def _segment(row: tuple[int, ...], *, is_wide: bool) -> ElfSegment:
    if is_wide:
        _, flags, _, address, load_address, stored, size, _ = row
    else:
        _, _, address, load_address, stored, size, flags, _ = row
    return ElfSegment(address, load_address, stored, size, bool(flags & _WRITABLE))


def _symbols_of_table(
    data: bytes, layout: struct.Struct, table: tuple[int, ...], names: tuple[int, ...], machine: int
) -> Iterator[ElfSymbol]:
    texts = data[names[4] : names[4] + names[5]]
    for row in layout.iter_unpack(data[table[4] : table[4] + table[5]]):
        name, address, size, info, section = (
            (row[0], row[1], row[2], row[3], row[5]) if layout.size == 16 else (row[0], row[4], row[5], row[1], row[3])
        )
        kind = _NAMED_KINDS.get(info & 15)
        if kind is None or not size or not section:
            continue
        # bit 0 of a function's address says that it is Thumb code
        address -= address & 1 if machine == _ARM and kind == "function" else 0
        yield ElfSymbol(texts[name : texts.index(b"\0", name)].decode("utf-8", "replace"), kind, address, size)
