# SPDX-License-Identifier: Apache-2.0
"""Small files in the formats of shared libraries: headers, and the bytes to which they refer.

IMAGES["pe"]            # bytes; whole, and cut short at any length
damaged(data, 100)      # copies with other bytes in their headers, seeded
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

PART = b"x" * 300


def elf(*, wide: bool, order: str) -> bytes:
    """Two segments, an empty one and a section, for a processor that nobody has: dynamic linkers read no further."""
    start, row, section = (64, 56, 64) if wide else (52, 32, 40)
    first, last = start + 3 * row, start + 3 * row + 2 * len(PART)
    head = b"\x7fELF" + bytes([2 if wide else 1, 1 if order == "<" else 2, 1]) + bytes(9)
    numbers = 3, 0xFFF0, 1, 0, start, last, 0, start, row, 3, section, 1, 0
    head += struct.pack(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"), *numbers)
    for at, size in (first, len(PART)), (first + len(PART), len(PART)), (1 << 20, 0):
        if wide:
            head += struct.pack(order + "IIQQQQQQ", 1, 4, at, at, at, size, 64, 4096)
        else:
            head += struct.pack(order + "IIIIIIII", 1, at, at, at, size, 64, 4, 4096)
    return head + 2 * PART + bytes(section)


def pe() -> bytes:
    """Two sections and an empty one behind an optional header."""
    start, optional = 128, 240
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", start)
    head = head.ljust(start, b"\0") + b"PE\0\0" + struct.pack("<HHIIIHH", 0xFFF0, 3, 0, 0, 0, optional, 0x2000)
    first = start + 24 + optional + 3 * 40
    head += bytes(optional)
    for at, size in (first, len(PART)), (first + len(PART), len(PART)), (1 << 20, 0):
        head += b".part".ljust(8, b"\0") + struct.pack("<IIII", 64, at, size, at) + bytes(16)
    return head + 2 * PART


def mach(*, wide: bool, order: str) -> bytes:
    """A command of another kind, two segments and an empty one."""
    start, row = (32, 72) if wide else (28, 56)
    commands = struct.pack(order + "IIQ", 0x1B, 16, 0)
    first = start + len(commands) + 3 * row
    for at, size in (first, len(PART)), (first + len(PART), len(PART)), (1 << 20, 0):
        numbers = 0x19 if wide else 1, row, b"part", at, 64, at, size, 7, 5, 0, 0
        commands += struct.pack(order + ("II16sQQQQIIII" if wide else "II16sIIIIIIII"), *numbers)
    head = struct.pack(order + "IIIIIII", 0xFEEDFACF if wide else 0xFEEDFACE, 0xFFF0, 0, 6, 4, len(commands), 0)
    return head.ljust(start, b"\0") + commands + 2 * PART


def fat(*slices: bytes, wide: bool) -> bytes:
    """Libraries in one file."""
    row = 32 if wide else 20
    at = 8 + row * len(slices)
    head, body = struct.pack(">II", 0xCAFEBABF if wide else 0xCAFEBABE, len(slices)), b""
    for data in slices:
        numbers = 1, 0, at + len(body), len(data), 0
        head += struct.pack(">IIQQII" if wide else ">IIIII", *numbers, *([0] if wide else []))
        body += data
    return head + body


IMAGES = {
    **{f"elf{64 if w else 32}{o}": elf(wide=w, order=o) for w in (False, True) for o in "<>"},
    **{f"mach{64 if w else 32}{o}": mach(wide=w, order=o) for w in (False, True) for o in "<>"},
    **{f"fat{w:d}": fat(mach(wide=True, order="<"), mach(wide=False, order=">"), wide=w) for w in (False, True)},
    "pe": pe(),
}


def damaged(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Copies with up to four numbers in their headers replaced, most of them large; some are cut, too."""
    rng = random.Random(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            number = rng.choice([b"\xff", b"\xff" * 4, b"\xff" * 8, b"\0" * 4, b"\x7f" + b"\xff" * 3, rng.randbytes(2)])
            at = rng.randrange(4, 400)
            made[at : at + len(number)] = number
        yield bytes(made[: rng.choice([len(made), rng.randrange(len(made))])])
