# SPDX-License-Identifier: Apache-2.0
"""Read the resource usage of CUDA kernels from machine code (cubin), and compute their occupancy.

kernels = resources(cubin)              # {"net_conv2d": Resources(registers=96, shared_bytes=8192, ...)}
resident(kernels["net_conv2d"], 256, 80)                 # 2: resident blocks of 256 threads per multiprocessor

A cubin is an ELF file. For each kernel it has a symbol with the size of its code, a section
.nv.shared.NAME, and attributes in .nv.info: 4, a number, the size, then a symbol and a value of 32
bits each (nvdisasm calls them EIATTR_*).
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from aotc.ir import frozen

_HEADER: Final = struct.Struct("<18xH20xQ10xHHH")
_SECTION: Final = struct.Struct("<I20xQQI20x")
_SYMBOL: Final = struct.Struct("<I12xQ")
_ATTRIBUTE: Final = struct.Struct("<BBHII")
#: ELF machine number of NVIDIA GPUs, EM_CUDA.
_MACHINE: Final = 190
_SIZED, _REGCOUNT, _FRAME_SIZE = 4, 0x2F, 0x11

#: Limits of a multiprocessor by compute capability: resident blocks, resident warps, bytes of
#: shared memory ("Technical Specifications per Compute Capability" of NVIDIA's CUDA C++ Programming
#: Guide).
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
#: Registers in each quarter of a multiprocessor, number of quarters, and allocation unit of a
#: warp's registers.
_REGISTERS, _QUARTERS, _UNIT = (64 << 10) // 4, 4, 256
_WARP: Final = 32
#: Bytes of shared memory that the system reserves per block; cubin files count them since sm_90.
_RESERVED: Final = 1 << 10


@frozen
class Resources:
    """Resources that a kernel uses.

    registers      registers per thread
    shared_bytes   declared shared memory per block
    local_bytes    local memory per thread: spilled registers, and arrays that are indexed
                   dynamically
    code_bytes     size of its instructions
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
    """Return the resources of all kernels in a cubin by name; empty if the data is no NVIDIA
    machine code.
    """
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
    """Yield ((attribute, symbol), value) for the attributes that have a symbol and a single 32-bit
    value.
    """
    at, end = section.offset, section.offset + section.size
    while at + _ATTRIBUTE.size <= end:
        form, key, size, symbol, value = _ATTRIBUTE.unpack_from(image, at)
        if form == _SIZED and size == 2 * 4:
            yield (key, symbol), value
        at += 4 + (size if form == _SIZED else 0)


def resident(kernel: Resources, threads: int, arch: int) -> int | None:
    """Return the number of resident blocks of a kernel per multiprocessor; None for an unknown
    architecture.

    Registers are allocated per warp from the quarters of the multiprocessor. Shared memory is
    allocated per block, 1 KiB more than requested ("Multiprocessor Level" in the CUDA C++
    Programming Guide; the formulas of cuda_occupancy.h).
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
    """Return the resident warps as a fraction of the multiprocessor's maximum; None for an unknown
    architecture.
    """
    held = resident(kernel, threads, arch)
    return None if held is None else held * -(-threads // _WARP) / _HOLDS[arch][1]
