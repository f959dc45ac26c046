# SPDX-License-Identifier: Apache-2.0
"""What kernels take of a device, read from its machine code, and how much of a processor they occupy.

kernels = resources(cubin)              # {"net_conv2d": Resources(registers=96, shared_bytes=8192, ...)}
resident(kernels["net_conv2d"], 256, 80)                 # 2: blocks of 256 threads that a processor holds at a time

Machine code is an ELF file.  Of each kernel it has a symbol with the size of its code, a section .nv.shared.NAME, and
in .nv.info attributes: 4, a number, the size, then a symbol and a value of 32 bits each (nvdisasm calls them EIATTR_*).
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from aotc.ir import frozen

_HEADER: Final = struct.Struct("<18xH20xQ10xHHH")
_SECTION: Final = struct.Struct("<I20xQQI20x")
_SYMBOL: Final = struct.Struct("<I12xQ")
_ATTRIBUTE: Final = struct.Struct("<BBHII")
#: The processor that an ELF file is for, EM_CUDA.
_MACHINE: Final = 190
_SIZED, _REGCOUNT, _FRAME_SIZE = 4, 0x2F, 0x11

#: By architecture what a processor holds at a time: blocks, warps, bytes of shared memory ("Technical Specifications
#: per Compute Capability" of NVIDIA's CUDA C++ Programming Guide).
_HOLDS: Final = {
    75: (16, 32, 64 << 10),
    80: (32, 64, 164 << 10),
    86: (16, 48, 100 << 10),
    87: (16, 48, 164 << 10),
    89: (24, 48, 100 << 10),
    90: (32, 64, 228 << 10),
    100: (32, 64, 228 << 10),
    103: (32, 64, 228 << 10),
    120: (24, 48, 100 << 10),
    121: (24, 48, 100 << 10),
}
#: Each quarter of a processor has so many registers, a warp gets a multiple of so many.
_REGISTERS, _QUARTERS, _UNIT = (64 << 10) // 4, 4, 256
_WARP: Final = 32
#: What the system takes of the shared memory of each block; since sm_90 files count it.
_RESERVED: Final = 1 << 10


@frozen
class Resources:
    """What a kernel takes.

    registers      of a thread
    shared_bytes   of a block, as declared
    local_bytes    of a thread: what spilled from registers, and arrays whose elements are chosen while it runs
    code_bytes     of its instructions
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    code_bytes: int


class _Section(NamedTuple):
    name: int
    offset: int
    size: int
    link: int


def resources(image: bytes) -> dict[str, Resources]:
    """Those of all kernels in machine code, by name; none for what is no machine code of NVIDIA's."""
    if len(image) < _HEADER.size:
        return {}
    machine, start, entry, count, names = _HEADER.unpack_from(image)
    if machine != _MACHINE:
        return {}
    sections = [_Section(*row) for row in _SECTION.iter_unpack(image[start : start + count * entry])]
    by_name = {_text(image, sections[names], section.name): section for section in sections}
    attributes = dict(_attributes(image, by_name[".nv.info"])) if ".nv.info" in by_name else {}
    table = by_name[".symtab"]
    system = _RESERVED if ".nv.shared.reserved.0" in by_name else 0
    found = {}
    for number, (at, size) in enumerate(_SYMBOL.iter_unpack(image[table.offset : table.offset + table.size])):
        if (registers := attributes.get((_REGCOUNT, number))) is not None:
            name = _text(image, sections[table.link], at)
            shared = by_name.get(f".nv.shared.{name}")
            local = attributes.get((_FRAME_SIZE, number), 0)
            found[name] = Resources(registers, shared.size - system if shared is not None else 0, local, size)
    return found


def _text(image: bytes, strings: _Section, at: int) -> str:
    begin = strings.offset + at
    return image[begin : image.index(b"\0", begin)].decode()


def _attributes(image: bytes, section: _Section) -> Iterator[tuple[tuple[int, int], int]]:
    """Those of symbols with one value, which are of this size; of other forms are those of two bytes at most."""
    at, end = section.offset, section.offset + section.size
    while at + _ATTRIBUTE.size <= end:
        form, key, size, symbol, value = _ATTRIBUTE.unpack_from(image, at)
        if form == _SIZED and size == 2 * 4:
            yield (key, symbol), value
        at += 4 + (size if form == _SIZED else 0)


def resident(kernel: Resources, threads: int, arch: int) -> int | None:
    """How many blocks of a kernel a processor holds at a time; None for an unknown architecture.

    Registers are given to warps and lie in quarters of the processor, shared memory is given to blocks, 1 KiB more than
    they ask for ("Multiprocessor Level" in the CUDA C++ Programming Guide; the arithmetic is that of cuda_occupancy.h).
    """
    if arch not in _HOLDS:
        return None
    blocks, warps, shared = _HOLDS[arch]
    own = -(-threads // _WARP)
    unit, system = (128, _RESERVED) if arch >= 80 else (256, 0)
    asked = -(-(kernel.shared_bytes + system) // unit) * unit
    registers = -(-kernel.registers * _WARP // _UNIT) * _UNIT
    by_registers = _REGISTERS // max(registers, 1) * _QUARTERS // own
    return min(blocks, warps // own, by_registers, shared // max(asked, 1))


def occupancy(kernel: Resources, threads: int, arch: int) -> float | None:
    """Warps that a processor holds, as a part of those that it could; None for an unknown architecture."""
    held = resident(kernel, threads, arch)
    return None if held is None else held * -(-threads // _WARP) / _HOLDS[arch][1]
