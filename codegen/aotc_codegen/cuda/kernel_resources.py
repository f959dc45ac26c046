# SPDX-License-Identifier: Apache-2.0
"""Read the resource usage of CUDA kernels from machine code (cubin), and compute their occupancy.

# {"net_conv2d": KernelResources(registers=96, shared_bytes=8192, ...)}
kernels = read_kernel_resources_from_cubin(cubin)
# 2: resident blocks of 256 threads per multiprocessor
resident_blocks_per_multiprocessor(kernels["net_conv2d"], 256, 80)

A cubin is an ELF file. For each kernel it has a symbol with the size of its code, a section
.nv.shared.NAME, and attributes in .nv.info: 4, a number, the size, then a symbol and a value of 32
bits each (nvdisasm calls them EIATTR_*).
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from aotc.ir import frozen

_ELF_HEADER: Final = struct.Struct("<18xH20xQ10xHHH")
_ELF_SECTION_HEADER: Final = struct.Struct("<I20xQQI20x")
_ELF_SYMBOL: Final = struct.Struct("<I12xQ")
_NV_INFO_ATTRIBUTE: Final = struct.Struct("<BBHII")
#: ELF machine number of NVIDIA GPUs, EM_CUDA.
_ELF_MACHINE_CUDA: Final = 190
_SIZED, _REGCOUNT, _FRAME_SIZE = 4, 0x2F, 0x11

#: Limits of a multiprocessor by compute capability: resident blocks, resident warps, bytes of
#: shared memory ("Technical Specifications per Compute Capability" of NVIDIA's CUDA C++ Programming
#: Guide).
_MULTIPROCESSOR_LIMITS: Final = {
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
_WARP_THREADS: Final = 32
#: Bytes of shared memory that the system reserves per block; cubin files count them since sm_90.
_RESERVED_SHARED_BYTES: Final = 1 << 10


@frozen
class KernelResources:
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


def read_kernel_resources_from_cubin(cubin: bytes) -> dict[str, KernelResources]:
    """Return the resources of all kernels in a cubin by name; empty if the data is no NVIDIA
    machine code.
    """
    if len(cubin) < _ELF_HEADER.size:
        return {}
    machine, start, entry, count, names = _ELF_HEADER.unpack_from(cubin)
    if machine != _ELF_MACHINE_CUDA:
        return {}
    sections = [_Section(*row) for row in _ELF_SECTION_HEADER.iter_unpack(cubin[start : start + count * entry])]
    by_name = {_read_elf_string(cubin, sections[names], section.name): section for section in sections}
    attributes = (
        dict(_nv_info_values_by_attribute_and_symbol(cubin, by_name[".nv.info"])) if ".nv.info" in by_name else {}
    )
    table = by_name[".symtab"]
    system = _RESERVED_SHARED_BYTES if ".nv.shared.reserved.0" in by_name else 0
    resources = {}
    for number, (at, size) in enumerate(_ELF_SYMBOL.iter_unpack(cubin[table.offset : table.offset + table.size])):
        if (registers := attributes.get((_REGCOUNT, number))) is not None:
            name = _read_elf_string(cubin, sections[table.link], at)
            shared = by_name.get(f".nv.shared.{name}")
            local = attributes.get((_FRAME_SIZE, number), 0)
            resources[name] = KernelResources(registers, shared.size - system if shared is not None else 0, local, size)
    return resources


def _read_elf_string(cubin: bytes, string_table: _Section, offset: int) -> str:
    begin = string_table.offset + offset
    return cubin[begin : cubin.index(b"\0", begin)].decode()


def _nv_info_values_by_attribute_and_symbol(cubin: bytes, section: _Section) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((attribute, symbol), value) for the attributes that have a symbol and a single 32-bit
    value.
    """
    at, end = section.offset, section.offset + section.size
    while at + _NV_INFO_ATTRIBUTE.size <= end:
        form, key, size, symbol, value = _NV_INFO_ATTRIBUTE.unpack_from(cubin, at)
        if form == _SIZED and size == 2 * 4:
            yield (key, symbol), value
        at += 4 + (size if form == _SIZED else 0)


def resident_blocks_per_multiprocessor(kernel: KernelResources, threads_per_block: int, arch: int) -> int | None:
    """Return the number of resident blocks of a kernel per multiprocessor; None for an unknown
    architecture.

    Registers are allocated per warp from the quarters of the multiprocessor. Shared memory is
    allocated per block, 1 KiB more than requested ("Multiprocessor Level" in the CUDA C++
    Programming Guide; the formulas of cuda_occupancy.h).
    """
    if arch not in _MULTIPROCESSOR_LIMITS:
        return None
    blocks, warps, shared = _MULTIPROCESSOR_LIMITS[arch]
    block_warps = -(-threads_per_block // _WARP_THREADS)
    unit, system = (128, _RESERVED_SHARED_BYTES) if arch >= 80 else (256, 0)
    block_bytes = -(-(kernel.shared_bytes + system) // unit) * unit
    registers = -(-kernel.registers * _WARP_THREADS // _UNIT) * _UNIT
    by_registers = _REGISTERS // max(registers, 1) * _QUARTERS // block_warps
    return min(blocks, warps // block_warps, by_registers, shared // max(block_bytes, 1))


def multiprocessor_warp_occupancy(kernel: KernelResources, threads_per_block: int, arch: int) -> float | None:
    """Return the resident warps as a fraction of the multiprocessor's maximum; None for an unknown
    architecture.
    """
    resident_blocks = resident_blocks_per_multiprocessor(kernel, threads_per_block, arch)
    return (
        None
        if resident_blocks is None
        else resident_blocks * -(-threads_per_block // _WARP_THREADS) / _MULTIPROCESSOR_LIMITS[arch][1]
    )
