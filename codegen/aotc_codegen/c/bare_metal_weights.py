# SPDX-License-Identifier: Apache-2.0
"""Lay out the parameter file of a bare-metal program across the target's memories.

Input: a program with its memory plan, and the memories of a target. Output: the memory of each
parameter, and the contents of the file.

    params = assign_params_to_memories(program, get_target("cortex-m4"))
    ParameterFile(params, None).contents           # of the file

If the parameters do not fit the first memory, they are spread over several: the parameters with the
most reads per byte in a run go to the first.
"""

import struct
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from functools import partial
from textwrap import TextWrapper
from typing import Any, Final

from aotc.tir import (
    ArenaPart,
    Program,
    Storage,
    Target,
    arrange_in_first_memory_or_spread,
    element_accesses_per_storage,
    spread_blocks_over_memories,
)
from aotc.tir.plan.arena_packing import Arrangement, LiveBlock, align_up
from aotc.tir.plan.numerics_fingerprint import structure_fingerprint
from aotc_codegen.c.c_identifiers import UniqueIdentifiers, escape_for_c_comment
from aotc_codegen.c.host_project import guarded_aligned_attribute_lines
from aotc_codegen.c.parameter_files import ParameterFilePiece, ParameterLayout, constant_properties_text
from aotc_codegen.c.selftest import SelftestData

_UINT32_FORMAT: Final = struct.Struct("<I")
_ARRAY_TEXT_WRAPPER: Final = TextWrapper(112, "  ", "  ", break_on_hyphens=False)


def _aligned_selftest_array_bytes(golden: SelftestData | None, align: int) -> list[bytes]:
    """Return the padded example values of the self-test, which follow the parameters in the file."""
    known = golden.bytes_of_each_array if golden is not None else ()
    return [piece + bytes(-len(piece) % align) for piece in known]


def assign_params_to_memories(program: Program, target: Target, golden: SelftestData | None = None) -> ParameterLayout:
    """Return the program's parameters assigned to memories, with space after them for the self-test
    and checksum.

    Raise AotcError (code "memory") if the parameters do not fit the target's memories.
    """
    spaces = target.memory_spaces_for_role("parameters")
    align = max(space.align for space in spaces)
    trailing_bytes = sum(map(len, _aligned_selftest_array_bytes(golden, align))) + 2 * _UINT32_FORMAT.size
    params = ParameterLayout(program.name, program.constants, 0, align, behind=trailing_bytes)
    used_bytes = Counter({part.memory: part.bytes for part in program.plan.parts})
    rooms = {s.name: s.bytes and s.bytes - used_bytes[s.name] for s in spaces}
    full = [s.name for s in spaces if s.bytes and rooms[s.name] <= 0]
    rooms = {name: room for name, room in rooms.items() if name not in full}
    part_numbers, parts = _place_params_in_fewest_memories(program, params, rooms)
    if not parts:
        # there are no parameters, or there is no space for them
        params.pieces = [
            ParameterFilePiece(
                memory=target.choose_memory_spaces({"parameters": params.bytes + trailing_bytes}, used_bytes)[
                    "parameters"
                ].name
            )
        ]
        return params
    names = UniqueIdentifiers(["params"], any_case=True)
    suffixes = ["", *(f"_{names.unique_identifier(p.memory)}" for p in parts[1:])]
    pieces = [ParameterFilePiece(part.begin, part.memory, suffix) for part, suffix in zip(parts, suffixes, strict=True)]
    order = sorted(program.constants, key=lambda s: part_numbers[params.stored_equal_constant(s)])
    return ParameterLayout(program.name, order, 0, align, pieces, trailing_bytes)


def _place_params_in_fewest_memories(
    program: Program, params: ParameterLayout, free_bytes_by_memory: Mapping[str, int]
) -> tuple[dict[Storage, int], tuple[ArenaPart, ...]]:
    """Return the number of the memory part that holds each parameter, and the parts; use as few
    memories as possible.

    The data that follow the parameters go into the last part, which may hold nothing else. Both
    results are empty if the memories are too small.
    """
    times = Counter[Storage]()
    for storage, count in element_accesses_per_storage(program).items():
        if storage.kind == "constant":
            times[params.stored_equal_constant(storage)] += count
    storages = list(params.offsets)
    weights = [times[storage] for storage in storages]
    blocks = [LiveBlock(align_up(s.nbytes, params.align), 0, 0) for s in storages]
    offsets = tuple(params.offsets.values())
    whole = Arrangement(offsets, params.bytes, params.bytes)
    several = partial(spread_blocks_over_memories, blocks, weights, align=params.align)
    earlier: dict[str, int] = {}
    for last, room in free_bytes_by_memory.items():
        left = room and room - params.trailing_bytes
        parts: tuple[ArenaPart, ...] = ()
        if not room or left > 0:
            arrangement, parts = arrange_in_first_memory_or_spread(whole, earlier | {last: left}, several)
        if parts:
            begins = [part.begin for part in parts]
            numbers = (bisect_right(begins, at) for at in arrangement.offsets)
            if parts[-1].memory != last:
                parts = (*parts, ArenaPart(last, arrangement.peak, 0))
            return dict(zip(storages, numbers, strict=True)), parts
        earlier[last] = room
    return {}, ()


class ParameterFile:
    """Contents of the parameter file: the parameters, the self-test's example values, a checksum of
    the code that the parameters are for and of the layout that it expects, and the CRC-32 of all preceding bytes.

    program    the program, whose code is part of the checksum; None for a checksum of the layout alone

    contents   the file as consecutive pieces of memory
    offsets    byte offsets of the example values
    rows       template values for the part of the file in each memory
    file       path of the file in the project
    """

    def __init__(self, params: ParameterLayout, golden: SelftestData | None, program: Program | None = None) -> None:
        self.contents: list[bytes | memoryview] = list(params.bytes_of_binary_parameter_file())
        self.offsets: list[int] = []
        self.align, self.file = params.align, f"src/{params.model}_params.bin"
        for known in _aligned_selftest_array_bytes(golden, self.align):
            self.offsets.append(self.byte_count)
            self.contents.append(known)

        def properties(storage: Storage) -> str:
            return constant_properties_text(storage, params.byte_offset_in_file(storage))

        rows = [properties(storage) for storage in params.homes]
        rows += map(str, self.offsets)
        rows += [] if program is None else [structure_fingerprint(program, properties)]
        self.layout = zlib.crc32("\n".join(rows).encode())
        self.contents.append(_UINT32_FORMAT.pack(self.layout))
        self.crc = 0
        for part in self.contents:
            self.crc = zlib.crc32(part, self.crc)
        self.contents.append(_UINT32_FORMAT.pack(self.crc))
        begins = [piece.begin for piece in params.pieces]
        self.rows = [
            self._weights_template_row(params, piece, end - piece.begin)
            for piece, end in zip(params.pieces, [*begins[1:], self.byte_count], strict=True)
        ]

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.contents))

    def _weights_template_row(
        self, params: ParameterLayout, piece: ParameterFilePiece, byte_count: int
    ) -> dict[str, Any]:
        output = f"{params.model}_weights{piece.suffix}"
        macro = f"AOTC_WEIGHTS_SECTION{piece.suffix.upper()}"
        section = f".rodata.{output}"
        rows = [
            f"#ifndef {macro}",
            f"#define {macro} {section}",
            "#endif",
            "#define TEXT(x) #x",
            "#define SECTION(x) section(TEXT(x))",
            *guarded_aligned_attribute_lines(self.align, f"SECTION({macro})"),
        ]
        size_comment = f", {byte_count} bytes for {escape_for_c_comment(piece.memory)}"
        return {
            "array": params.c_array_name(piece),
            "begin": piece.begin,
            "bytes": byte_count,
            "output": output,
            "macro": macro,
            "section": section,
            "memory": piece.memory,
            "said": size_comment if len(params.pieces) > 1 else "",
            "attributes": "\n".join(rows),
            "prologue": "".join(rf"{row}\n" for row in rows),
        }

    @property
    def metadata_entry(self) -> dict[str, Any]:
        """Return the metadata of the parameter file: path, size, CRC-32, and the part in each memory."""
        keys = ("memory", "section", "begin", "bytes")
        pieces = [{key: row[key] for key in keys} for row in self.rows]
        return {"file": self.file, "bytes": self.byte_count, "crc32": f"{self.crc:08x}", "pieces": pieces}

    def c_array_definitions(self) -> str:
        """Return the contents of the parameter file as C array definitions, one for each memory."""
        whole, texts = b"".join(self.contents), list[str]()
        for row in self.rows:
            part = whole[row["begin"] :][: row["bytes"]]
            values = _ARRAY_TEXT_WRAPPER.fill(" ".join(f"{byte}," for byte in part))
            texts.append(row["attributes"])
            texts.append(f"const unsigned char {row['array']}[] = {{\n{values}\n}};")
        return "\n".join((*texts, ""))
