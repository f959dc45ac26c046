# SPDX-License-Identifier: Apache-2.0
"""Serialize arrays in the format of TVM's parameter files.

blob = serialize_array(np.ones((2, 3), "float32"))
ParameterFileReader(blob).read_array()               # the array; ValueError where the bytes are damaged

Layout (little endian): u64 magic, u64 0, i32 device type (1), i32 device (0), i32 rank, u8 type
code (0 int, 1 uint, 2 float, 4 bfloat), u8 bits, u16 lanes, the shape as i64, i64 bytes, and the
data.
"""

import math
import struct
from typing import Any, Final

import numpy as np

from aotc.ir.dtype import DType

_MAGIC: Final = 0xDD5E40F096B4A13F
_HEADER_STRUCT_FORMAT: Final = "<QQiiiBBH"
_DTYPE_BY_TYPE_CODE: Final = {
    **{(0, 8 * n): f"int{8 * n}" for n in (1, 2, 4, 8)},
    **{(1, 8 * n): f"uint{8 * n}" for n in (1, 2, 4, 8)},
    **{(2, 8 * n): f"float{8 * n}" for n in (2, 4, 8)},
    (1, 1): "bool",
    (4, 16): "bfloat16",
}
_TYPE_CODE_BY_DTYPE: Final = {name: code for code, name in _DTYPE_BY_TYPE_CODE.items()}
_MAX_RANK: Final = 64


def serialize_array(array: np.ndarray[Any, Any]) -> bytes:
    """Serialize an array; dtypes unknown to the format are stored as unsigned integers of equal
    width.
    """
    dtype = DType.from_numpy(array)
    code, bits = _TYPE_CODE_BY_DTYPE.get(dtype, (1, 8 * array.dtype.itemsize))
    data = array.astype(dtype.numpy, copy=False).tobytes()
    header = struct.pack(_HEADER_STRUCT_FORMAT, _MAGIC, 0, 1, 0, array.ndim, code, bits, 1)
    return b"".join((header, struct.pack(f"<{array.ndim + 1}q", *array.shape, len(data)), data))


class ParameterFileReader:
    """Reader of serialized arrays and numbers; its methods raise ValueError for truncated or
    invalid data.
    """

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self._at = 0

    @property
    def remaining_bytes(self) -> int:
        """The number of bytes that the reader has not read yet."""
        return len(self._blob) - self._at

    def read_bytes(self, byte_count: int) -> bytes:
        """Return the next `byte_count` bytes of the input; raise ValueError if fewer are left."""
        part = self._blob[self._at : self._at + byte_count]
        if byte_count < 0 or len(part) != byte_count:
            raise ValueError("the data ends too early, perhaps it was cut off")
        self._at += byte_count
        return part

    def read_struct(self, struct_format: str) -> tuple[int, ...]:
        """Read the next numbers of the input, in a format of Python's `struct` module."""
        return struct.unpack(struct_format, self.read_bytes(struct.calcsize(struct_format)))

    def read_array(self) -> np.ndarray[Any, Any]:
        """Deserialize the next array of a parameter file; raise ValueError if it is damaged."""
        magic, _, _, _, rank, code, bits, lanes = self.read_struct(_HEADER_STRUCT_FORMAT)
        name = _DTYPE_BY_TYPE_CODE.get((code, bits))
        if magic != _MAGIC or name is None or lanes != 1 or not 0 <= rank <= _MAX_RANK:
            raise ValueError("the header of an array is damaged")
        *shape, size = self.read_struct(f"<{rank + 1}q")
        dtype = DType(name).numpy
        if min(shape, default=0) < 0 or size != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"an array has {size} bytes for shape {shape}")
        return np.frombuffer(self.read_bytes(size), dtype).reshape(shape)
