# SPDX-License-Identifier: Apache-2.0
"""What the printer asks of a language: type names, literals, names of functions, qualifiers, vector types.

dialect = dialect_for(target)
dialect.register(DType("float32"))                # "float"
dialect.literal(0.1, DType("float32"))            # "0.1f"
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.tir.target import Target

_STORAGE: Final[dict[str, str]] = {
    "bool": "uint8_t", "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t",
    **{f"{u}int{b}": f"{u}int{b}_t" for u in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip
_LIMITS: Final = {
    (-(2**31), "int32"): "INT32_MIN",
    (-(2**63), "int64"): "INT64_MIN",
}
VECTOR_TYPES: Final[dict[str, str]] = {
    "float32": "f32", "float64": "f64", **{f"int{b}": f"i{b}" for b in (8, 16, 32, 64)},
    **{f"uint{b}": f"u{b}" for b in (8, 16, 32, 64)}, "bool": "u8",
}  # fmt: skip
"""Element types that vectors may have, and the stems of the names of their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One flavour of the emitted language.

    vectors    GCC vector extensions may be used
    restrict   the macro that says that pointers do not alias
    index      the type of loop variables and addresses
    """

    name: str
    vectors: bool = False
    restrict: str = "AOTC_RESTRICT"
    index: str = "ptrdiff_t"

    def storage(self, dtype: DType) -> str:
        """The C type of an element in memory; floats that C lacks and sub-byte types are bits."""
        return _STORAGE.get(dtype, "uint8_t")

    def register(self, dtype: DType) -> str:
        """The C type in which a value is computed."""
        if dtype.is_bool:
            return "int"
        if dtype.is_narrow_float:
            return "float"
        if dtype.bits < 8:
            return "int8_t" if dtype.is_signed else "uint8_t"
        return _STORAGE[dtype]

    def vector(self, dtype: DType, lanes: int) -> str:
        """The name of a vector type.

        Raises AotcError (code "vector") where the dialect or C compilers have none such.
        """
        if not self.vectors or dtype not in VECTOR_TYPES or lanes & (lanes - 1):
            raise AotcError("vector", f"dialect {self.name} has no vector of {lanes} x {dtype}")
        return f"{VECTOR_TYPES[dtype]}x{lanes}"

    def literal(self, value: int | float | bool, dtype: DType) -> str:
        """A literal of the register type, exact: the shortest digits that read back as the same value."""
        if dtype.is_float:
            return _float_literal(float(value), dtype)
        if dtype.is_bool:
            return "1" if value else "0"
        return _integer_literal(_wrapped(int(value), dtype), dtype)


def _float_literal(value: float, dtype: DType) -> str:
    with np.errstate(over="ignore"):
        rounded = np.asarray(value, np.float64).astype(dtype.numpy)
        wide = np.float64 if dtype == "float64" else np.float32
        item = rounded.astype(wide)[()]
    if math.isnan(item):
        return "NAN"
    if math.isinf(item):
        return "INFINITY" if item > 0 else "-INFINITY"
    text = str(item)
    if "." not in text and "e" not in text:
        text += ".0"
    return text if wide is np.float64 else text + "f"


def _wrapped(value: int, dtype: DType) -> int:
    span = 1 << dtype.bits
    value %= span
    return value - span if dtype.is_signed and value >= span // 2 else value


def _integer_literal(value: int, dtype: DType) -> str:
    if (value, dtype) in _LIMITS:
        return _LIMITS[value, dtype]
    if dtype == "uint64":
        return f"UINT64_C({value})"
    if dtype == "uint32":
        return f"{value}u"
    return str(value) if -(2**31) <= value < 2**31 else f"INT64_C({value})"


C99: Final = Dialect(name="c")
"""Scalar C99, valid as C++17."""
GNU: Final = Dialect(name="gnu", vectors=True)
"""C99 with the vector extensions of gcc and clang."""


def dialect_for(target: Target) -> Dialect:
    """The dialect in which code for a target is printed."""
    return C99 if target.is_scalar else GNU
