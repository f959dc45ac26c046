# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts that say their dtype, as programs for TVM write them: those of Python, with two names more; Any.

IntImm("int64", 3) + 1                 # 4
IntImm("int64", 3).value               # 3
"""

from __future__ import annotations

from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.dtype import DType


class IntImm(int):
    """An integer of a dtype.  Raises AotcError where the dtype cannot hold it."""

    dtype: DType

    def __new__(cls, dtype: str, value: int) -> IntImm:
        self, self_dtype = super().__new__(cls, value), DType(dtype)
        if not self_dtype.is_bool and not self_dtype.min <= value <= self_dtype.max:
            raise AotcError("dtype", f"{value} does not fit {dtype}")
        self.dtype = self_dtype
        return self

    @property
    def value(self) -> int:
        """The plain integer."""
        return int(self)


class FloatImm(float):
    """A floating-point number of a dtype."""

    dtype: DType

    def __new__(cls, dtype: str, value: float) -> FloatImm:
        self = super().__new__(cls, value)
        self.dtype = DType(dtype)
        return self

    @property
    def value(self) -> float:
        """The plain number."""
        return float(self)


class StringImm(str):
    """A text."""

    @property
    def value(self) -> str:
        """The plain text."""
        return str(self)


def const(value: bool | int | float, dtype: str | None = None) -> IntImm | FloatImm:
    """A number of a dtype: by default that of Python's numbers in Relay, bool, int32 or float32."""
    usual = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
    wanted = DType(dtype or usual)
    return FloatImm(wanted, value) if wanted.is_float else IntImm(wanted, int(value))


def Any() -> SymDim:
    """A dimension that is not known, different from every other one."""
    return SymDim()
