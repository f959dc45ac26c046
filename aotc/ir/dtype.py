# SPDX-License-Identifier: Apache-2.0
"""Data types: every numeric element type of ONNX, as a string subclass with properties such as its
width.

A `DType` *is* its name, so it compares with and hashes like a plain string:

    DType("float32") == "float32"          # True
    DType("float32").bits                  # 32
    DType.from_numpy(np.zeros(3, np.int8))  # DType("int8")
"""

from __future__ import annotations

import math
import re
from operator import attrgetter
from typing import Any, Final

import ml_dtypes
import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.frozen_dataclass import frozen


@frozen
class _DTypeProperties:
    kind: str  # "float", "int", "uint" or "bool"
    bits: int
    numpy: np.dtype[Any]
    min: int | float
    max: int | float
    digits: int = 1
    has_infinity: bool = False


def _dtype_properties(name: str) -> _DTypeProperties:
    numpy = np.dtype(getattr(ml_dtypes, name, name))
    match = re.match(r"b?(float|uint|int)(\d+)", name)
    if match is None:
        return _DTypeProperties("bool", 1, numpy, 0, 1)
    kind, bits = match[1], int(match[2])
    if kind == "float":
        limits = ml_dtypes.finfo(numpy)
        # types without infinity convert it to NaN or to their largest value
        infinite = bool(np.isinf(np.array(np.inf, np.float32).astype(numpy)))
        return _DTypeProperties(kind, bits, numpy, float(limits.min), float(limits.max), limits.nmant + 1, infinite)
    least, greatest = int(ml_dtypes.iinfo(numpy).min), int(ml_dtypes.iinfo(numpy).max)
    return _DTypeProperties(kind, bits, numpy, least, greatest, greatest.bit_length())


_DTYPE_NAMES: Final = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int4 uint4 int2 uint2
"""
_PROPERTIES_BY_DTYPE_NAME: Final = {name: _dtype_properties(name) for name in _DTYPE_NAMES.split()}
_NAME_BY_NUMPY_DTYPE: Final = {facts.numpy: name for name, facts in _PROPERTIES_BY_DTYPE_NAME.items()}


def _dtype_table_property(attribute_path: str) -> Any:
    """Return a property of DType that looks up a fact, such as its width, in the table of data
    types.
    """
    getter = attrgetter(attribute_path)
    return property(lambda self: getter(_PROPERTIES_BY_DTYPE_NAME[self]))


#: Names that TVM accepts for types without a width, and for bool.
_TVM_DTYPE_ALIASES: Final = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}


class DType(str):
    """Name of an element type, validated at construction; TVM's "int", "uint", "float" and "uint1"
    are accepted.

    Raises AotcError (code "dtype") for a name that is not a numeric type of ONNX.
    """

    __slots__ = ()

    #: The numpy dtype of one unpacked element.
    numpy: np.dtype[Any] = _dtype_table_property("numpy")
    #: Width of one element in bits (1 for bool, 4 for int4).
    bits: int = _dtype_table_property("bits")
    #: Bytes of one element in memory; sub-byte types take a byte each.
    itemsize: int = _dtype_table_property("numpy.itemsize")
    #: Significant bits of a number, the leading one of a float included.
    digits: int = _dtype_table_property("digits")
    #: The least finite value.
    min: int | float = _dtype_table_property("min")
    #: The greatest finite value.
    max: int | float = _dtype_table_property("max")

    def __new__(cls, name: str) -> DType:
        if isinstance(name, cls):
            return name
        name = _TVM_DTYPE_ALIASES.get(name, name)
        if name not in _PROPERTIES_BY_DTYPE_NAME:
            raise AotcError(
                "dtype", f"unknown data type {name!r}", hint="known: " + ", ".join(_PROPERTIES_BY_DTYPE_NAME)
            )
        return super().__new__(cls, name)

    @classmethod
    def from_numpy(cls, array_or_dtype: np.ndarray[Any, Any] | np.dtype[Any] | type) -> DType:
        """Return the element type of a numpy array, dtype or scalar type; AotcError (code "dtype")
        for others.
        """
        dtype = array_or_dtype.dtype if isinstance(array_or_dtype, np.ndarray) else np.dtype(array_or_dtype)
        name = _NAME_BY_NUMPY_DTYPE.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
        if name is None:
            raise AotcError("dtype", f"numpy type {dtype} has no tensor data type")
        return cls(name)

    @property
    def is_float(self) -> bool:
        return _PROPERTIES_BY_DTYPE_NAME[self].kind == "float"

    @property
    def is_bool(self) -> bool:
        return self == "bool"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, False for bool."""
        return _PROPERTIES_BY_DTYPE_NAME[self].kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return _PROPERTIES_BY_DTYPE_NAME[self].kind in ("int", "float")

    @property
    def is_narrow_float(self) -> bool:
        """True for float types narrower than float32: C has no arithmetic for them, so kernels
        compute in float32.
        """
        return self.is_float and self.bits < 32

    @property
    def can_represent_zero(self) -> bool:
        """True if the type can represent 0: float8_e8m0fnu has positive powers of two only."""
        return self != "float8_e8m0fnu"

    @property
    def smallest_value(self) -> int | float:
        """The smallest value of the data type: minus infinity if it has infinities, else `min`."""
        return -math.inf if _PROPERTIES_BY_DTYPE_NAME[self].has_infinity else self.min

    @property
    def largest_value(self) -> int | float:
        """The largest value of the data type: infinity if it has infinities, else `max`."""
        return math.inf if _PROPERTIES_BY_DTYPE_NAME[self].has_infinity else self.max


#: All data types, in the order of the table.
DTYPES: Final = tuple(DType(name) for name in _PROPERTIES_BY_DTYPE_NAME)
