# SPDX-License-Identifier: Apache-2.0
"""Emit a model's parameters as typed C arrays if they are small, else as a binary file that the
assembler includes.

In both forms a kernel call refers to a parameter by an equal symbol.

    params = ParameterLayout("net", constants, array_bytes=64 << 10)
    params.c_symbol_of_constant(storage)   # "net_const0"
"""

from collections.abc import Sequence
from textwrap import TextWrapper
from typing import Any, Final

import numpy as np

from aotc.ir import DType, frozen
from aotc.tir.plan.storage import Storage
from aotc_codegen.c.c_identifiers import UniqueIdentifiers
from aotc_codegen.c.c_types import c_literal, c_memory_type

PARAMETER_ALIGNMENT_BYTES: Final = 64
_ARRAY_TEXT_WRAPPER: Final = TextWrapper(112, "  ", "  ", break_on_hyphens=False)
#: Number of leading bytes that are compared first when equal constants are looked for.
_COMPARED_PREFIX_BYTES: Final = 4096


def little_endian_constant_data(storage: Storage) -> np.ndarray[Any, Any]:
    """Return the data of a constant as a contiguous array in little-endian byte order."""
    assert storage.data is not None
    data = np.ascontiguousarray(storage.data)
    return data.astype(data.dtype.newbyteorder("<")) if data.dtype.byteorder == ">" else data


@frozen
class ParameterFilePiece:
    """Part of the parameter file that is stored in one memory; it starts at byte `begin` of the
    file.

    suffix   suffix of the C array's and the linker section's names
    """

    begin: int = 0
    memory: str = ""
    suffix: str = ""


class ParameterLayout:
    """Layout of a program's constants; if their total is below `array_bytes`, they are
    `stores_parameters_as_c_arrays`: emitted as C arrays.

    Equal constants are stored once.

    pieces   parts of the parameter file, in file order, each in one memory
    trailing_bytes   number of bytes that follow the parameters in the last piece
    homes    for each constant, the first constant that equals it and is stored for both
    address  C expression of the address of the parameters, where a run gets it; "" for arrays of the program
    """

    def __init__(
        self,
        model: str,
        constants: Sequence[Storage],
        array_bytes: int,
        align: int = PARAMETER_ALIGNMENT_BYTES,
        pieces: Sequence[ParameterFilePiece] = (ParameterFilePiece(),),
        behind: int = 0,
        address: str = "",
    ) -> None:
        self.model, self.align, self.pieces, self.trailing_bytes = model, align, pieces, behind
        self.array_bytes, self.address = array_bytes, address
        self.offsets: dict[Storage, int] = {}
        self._pieces: dict[Storage, tuple[memoryview, bytes]] = {}
        self.homes: dict[Storage, Storage] = {}
        self._names: dict[Storage, str] = {}
        self.bytes = 0
        names = UniqueIdentifiers()
        alike: dict[tuple[str, bytes, int], list[Storage]] = {}
        for storage in constants:
            raw = little_endian_constant_data(storage).reshape(-1).view(np.uint8)
            candidates = alike.setdefault((str(storage.dtype), raw[:_COMPARED_PREFIX_BYTES].tobytes(), raw.size), [])
            home = next((s for s in candidates if self._pieces[s][0] == raw.data), storage)
            # equal constants are stored once
            self.homes[storage] = home
            if home is storage:
                candidates.append(storage)
                # constants of several tiers may have one name
                self._names[storage] = names.unique_identifier(storage.name)
                self._pieces[storage] = raw.data, bytes(-storage.nbytes % align)
                self.offsets[storage] = self.bytes
                self.bytes += sum(map(len, self._pieces[storage]))

    @property
    def stores_parameters_as_c_arrays(self) -> bool:
        return self.bytes < self.array_bytes

    def c_symbol_of_constant(self, storage: Storage) -> str:
        """Return the C name of a constant's first element."""
        return f"{self.model}_{self._names[self.stored_equal_constant(storage)]}"

    def stored_equal_constant(self, storage: Storage) -> Storage:
        """Return the stored constant that equals `storage`: the first of all equal constants."""
        return self.homes[storage]

    def byte_offset_in_file(self, storage: Storage) -> int:
        """Return the byte offset of a constant in the binary file."""
        return self.offsets[self.homes[storage]]

    def c_declarations_of_parameters(self) -> list[str]:
        """Return the declarations of the parameters for the internal header: arrays, or macros that
        point into the file.
        """
        if self.stores_parameters_as_c_arrays:
            return [f"extern {self._c_array_declarator(s)};" for s in self.offsets]
        rows = [f"extern const unsigned char {self.c_array_name(piece)}[];" for piece in self.pieces]
        if self.address:
            rows = [f"#define {self.c_array_name(piece)} {self.address}" for piece in self.pieces]
        for s, offset in self.offsets.items():
            address = f"(const void *)({self.c_address_of_byte(offset)})"
            rows.append(f"#define {self.c_symbol_of_constant(s)} ((const {c_memory_type(s.dtype)} *){address})")
        return rows

    def c_array_name(self, piece: ParameterFilePiece) -> str:
        """Return the C name of the array that holds a piece of the parameter file."""
        return f"{self.model}_params{piece.suffix}"

    def c_address_of_byte(self, offset: int) -> str:
        """Return a C expression for the address of the byte at `offset` of the parameter file."""
        piece = next(p for p in reversed(self.pieces) if p.begin <= offset)
        return f"{self.c_array_name(piece)} + {offset - piece.begin}"

    def c_array_definitions(self) -> list[str]:
        """Return the definitions of all stored constants as C arrays."""
        return [self._c_array_definition(s) for s in self.offsets]

    def _c_array_declarator(self, storage: Storage) -> str:
        return f"const {c_memory_type(storage.dtype)} {self.c_symbol_of_constant(storage)}[{max(1, storage.size)}]"

    def _c_array_definition(self, storage: Storage) -> str:
        texts = c_element_literals_or_float_bits(little_endian_constant_data(storage).reshape(-1), storage.dtype) or [
            "0"
        ]
        values = _ARRAY_TEXT_WRAPPER.fill(" ".join(f"{text}," for text in texts))
        return f"{self._c_array_declarator(storage)} AOTC_ALIGNED(64) = {{\n{values}\n}};"

    def bytes_of_binary_parameter_file(self) -> list[memoryview | bytes]:
        """Return the bytes to write to the project's binary parameter file, as consecutive pieces."""
        return [piece for pieces in self._pieces.values() for piece in pieces]


def constant_properties_text(storage: Storage, offset: int) -> str:
    """Return a text with all properties of a constant that the generated code relies on: dtype,
    shape, offset, and the number that unpacking of 4-bit values adds.
    """
    least = "" if storage.least is None else f" {storage.least}"
    return f"{storage.dtype}{list(storage.shape)} {offset}{least}"


def c_element_literals_or_float_bits(array: np.ndarray[Any, Any], dtype: DType) -> list[str]:
    """Return each element of an array as a C literal; float16 and bfloat16 elements become the
    integers of their bits.
    """
    if dtype.is_narrow_float:
        bits = array.view(np.dtype(f"u{dtype.itemsize}"))
        return [f"{int(b)}u" for b in bits]
    return [c_literal(item, dtype) for item in array.tolist()]
