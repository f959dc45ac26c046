# SPDX-License-Identifier: Apache-2.0
"""Write the parameters of a model as one file that programs pass to runs by its address.

params = separate_parameter_layout([program], align=64)
weights = SeparateWeights([program], params)
weights.contents                     # of the file: a header, and the parameters
weights.compared_bytes               # lines of a C initializer: the bytes that a run compares

The header has 32 bytes, all numbers little-endian:

    0   "AOTCWTS" and the number of the format
    8   identifier of the code that the parameters are for (`structure_fingerprint`)
    16  size of the file in bytes
    24  CRC-32 of what follows the header and its padding
    28  zeros

A run compares the first 24 bytes with those that its code expects, so that the parameters of a model
of another structure never give a result.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

from aotc.tir import Program, Storage, align_up
from aotc.tir.plan.numerics_fingerprint import structure_fingerprint
from aotc_codegen.c.c_identifiers import UniqueIdentifiers
from aotc_codegen.c.parameter_files import ParameterLayout, constant_properties_text
from aotc_codegen.c.schedule_calls import model_input_and_output_tensors
from aotc_codegen.c.size_code import size_template_values

_MAGIC_AND_FORMAT: Final = b"AOTCWTS\x01"
_HEADER_FORMAT: Final = struct.Struct("<8s8sQI4x")
#: Number of bytes at the beginning of the file that a run compares; the CRC-32 follows them.
_COMPARED_BYTES: Final = 24
_BYTES_PER_LINE: Final = 8


def weights_file_name(model: str) -> str:
    """Return the path of the file of parameters in the project of a model."""
    return f"{model}_weights.bin"


def _member_of_inputs(program: Program, programs: Sequence[Program]) -> str:
    """Return the name of the member of a model's inputs that points to the file of parameters."""
    inputs, _ = model_input_and_output_tensors(program)
    members = size_template_values(program, programs)["size_members"]
    taken = [*(tensor.ident for tensor in inputs), *(member.ident for member in members), "state"]
    return UniqueIdentifiers(taken, any_case=True).unique_identifier("weights")


def separate_parameter_layout(programs: Sequence[Program], align: int) -> ParameterLayout:
    """Return the layout of the parameters of a model's programs, one for each instruction set, in a file that
    runs get by its address.
    """
    member = _member_of_inputs(programs[0], programs)
    header_bytes = align_up(_HEADER_FORMAT.size, align)
    address = f"((const unsigned char *)inputs->{member} + {header_bytes})"
    constants = [storage for program in programs for storage in program.constants]
    return ParameterLayout(programs[0].name, constants, 0, align, address=address)


class SeparateWeights:
    """File of a model's parameters, and the template values of the code that checks it.

    member        member of the model's inputs that points to the file
    alignment     alignment of the file in memory, in bytes
    header_bytes  size of the header with its padding, in bytes
    byte_count    size of the file, in bytes
    structure     16 hexadecimal digits: the identifier of the code that the parameters are for
    crc           CRC-32 of what follows the header
    contents      the file as consecutive pieces of memory
    """

    def __init__(self, programs: Sequence[Program], params: ParameterLayout) -> None:
        def properties(storage: Storage) -> str:
            return constant_properties_text(storage, params.byte_offset_in_file(storage))

        self.name = programs[0].name
        self.member = _member_of_inputs(programs[0], programs)
        self.alignment = params.align
        self.header_bytes = align_up(_HEADER_FORMAT.size, params.align)
        self.byte_count = self.header_bytes + params.bytes
        structures = [structure_fingerprint(program, properties) for program in programs]
        self.structure = hashlib.sha256("\n".join(structures).encode()).hexdigest()[:16]
        pieces = params.bytes_of_binary_parameter_file()
        self.crc = 0
        for piece in pieces:
            self.crc = zlib.crc32(piece, self.crc)
        header = _HEADER_FORMAT.pack(_MAGIC_AND_FORMAT, bytes.fromhex(self.structure), self.byte_count, self.crc)
        self._compared = header[:_COMPARED_BYTES]
        self.contents: list[bytes | memoryview] = [header.ljust(self.header_bytes, b"\0"), *pieces]

    @property
    def file(self) -> str:
        """Path of the file in the project."""
        return weights_file_name(self.name)

    @property
    def compared_bytes(self) -> list[str]:
        """Lines of a C initializer: the first bytes of a file that the code runs with."""
        data = self._compared
        lines = (data[at : at + _BYTES_PER_LINE] for at in range(0, len(data), _BYTES_PER_LINE))
        return [", ".join(f"0x{byte:02x}" for byte in line) for line in lines]

    @property
    def crc_offset(self) -> int:
        """Offset of the CRC-32 in the file, in bytes."""
        return _COMPARED_BYTES

    @property
    def declarations(self) -> list[str]:
        """Lines of the internal header."""
        return [
            "/* AOTC_OK for parameters that this code runs with, by the header of their file. */",
            f"int {self.name}_weights_status(const void *weights);",
        ]

    @property
    def metadata_entry(self) -> dict[str, Any]:
        """Entry of the file in the metadata."""
        return {
            "file": self.file,
            "bytes": self.byte_count,
            "alignment": self.alignment,
            "structure": self.structure,
            "crc32": f"{self.crc:08x}",
            "pieces": [],
        }
