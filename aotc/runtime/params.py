# SPDX-License-Identifier: Apache-2.0
"""Parameters as one blob, in TVM's format: names and arrays with shapes and dtypes.

blob = save_param_dict({"w": np.ones((2, 3), "float32")})
load_param_dict(blob)["w"].shape                     # (2, 3)

Layout (little endian): u64 magic, u64 0, u64 count and (u64 length, bytes) per name, u64 count, then per array
u64 magic, u64 0, i32 device type (1), i32 device (0), i32 rank, u8 type code (0 int, 1 uint, 2 float, 4 bfloat),
u8 bits, u16 lanes, the shape as i64, i64 bytes, and the data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.ndarray import NDArray

_LIST_MAGIC: Final = 0xF7E58D4F05049CB7
_ARRAY_MAGIC: Final = 0xDD5E40F096B4A13F
_HEADER: Final = struct.Struct("<QQiiiBBH")
_DTYPES: Final = {
    **{(0, 8 * n): f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{(1, 8 * n): f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{(2, 8 * n): f"float{8 * n}" for n in (2, 4, 8)},
    (1, 1): "bool",
    (4, 16): "bfloat16",
}
_CODES: Final = {name: code for code, name in _DTYPES.items()}
_MAX_RANK: Final = 64


def save_param_dict(params: Mapping[str, Any]) -> bytes:
    """The blob of arrays by name; dtypes that the format does not know are stored as unsigned integers."""
    names = [name.encode() for name in params]
    head = [struct.pack("<QQQ", _LIST_MAGIC, 0, len(names))]
    head += [struct.pack("<Q", len(name)) + name for name in names]
    return b"".join([*head, struct.pack("<Q", len(names)), *(_saved(np.asarray(v)) for v in params.values())])


def _saved(array: np.ndarray[Any, Any]) -> bytes:
    dtype = DType.of(array)
    code, bits = _CODES.get(dtype, (1, 8 * array.dtype.itemsize))
    data = array.astype(dtype.numpy, copy=False).tobytes()
    header = _HEADER.pack(_ARRAY_MAGIC, 0, 1, 0, array.ndim, code, bits, 1)
    return b"".join((header, struct.pack(f"<{array.ndim + 1}q", *array.shape, len(data)), data))


class _Reader:
    """Walks over a blob; AotcError where it ends too early."""

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.at = 0

    def take(self, size: int) -> bytes:
        part = self.blob[self.at : self.at + size]
        if size < 0 or len(part) != size:
            raise AotcError("params", "the parameters end too early: they were cut off or are damaged")
        self.at += size
        return part

    def unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


def load_param_dict(blob: bytes) -> dict[str, NDArray]:
    """The arrays of a blob by name; AotcError (code "params") if it is damaged or something else."""
    reader = _Reader(bytes(blob))
    magic, _, count = reader.unpack("<QQQ")
    if magic != _LIST_MAGIC:
        raise AotcError("params", "these are no saved parameters: the first bytes are wrong")
    try:
        names = [reader.take(*reader.unpack("<Q")).decode() for _ in range(count)]
    except UnicodeDecodeError as error:
        raise AotcError("params", "the name of a parameter is no UTF-8") from error
    if reader.unpack("<Q") != (count,) or len(set(names)) != count:
        raise AotcError("params", "the saved parameters have other names than arrays, or a name twice")
    params = {name: _loaded(name, reader) for name in names}
    if reader.at != len(reader.blob):
        raise AotcError("params", f"{len(reader.blob) - reader.at} bytes follow the saved parameters")
    return params


def _loaded(name: str, reader: _Reader) -> NDArray:
    magic, _, _, _, rank, code, bits, lanes = reader.unpack(_HEADER.format)
    dtype = _DTYPES.get((code, bits))
    if magic != _ARRAY_MAGIC or dtype is None or lanes != 1 or not 0 <= rank <= _MAX_RANK:
        raise AotcError("params", f"parameter {name!r} has a damaged header")
    *shape, size = reader.unpack(f"<{rank + 1}q")
    try:
        return NDArray(np.frombuffer(reader.take(size), DType(dtype).numpy).reshape(shape))
    except ValueError as error:
        raise AotcError("params", f"parameter {name!r} has {size} bytes for shape {shape}") from error
