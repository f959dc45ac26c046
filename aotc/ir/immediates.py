# SPDX-License-Identifier: Apache-2.0
"""TVM's immediate values: Python numbers and strings that carry a dtype, and `Any` for an unknown
dimension.

IntImm("int64", 3) + 1                 # 4
IntImm("int64", 3).value               # 3
"""

from __future__ import annotations

from aotc.ir.diagnostics import AotcError
from aotc.ir.dimensions import SymDim
from aotc.ir.dtype import DType


class IntImm(int):
    """TVM's integer immediate: a Python int with a dtype; raises AotcError if the dtype cannot
    represent it.
    """

    dtype: DType

    def __new__(cls, dtype: str, value: int) -> IntImm:
        self, self_dtype = super().__new__(cls, value), DType(dtype)
        if not self_dtype.is_bool and not self_dtype.min <= value <= self_dtype.max:
            raise AotcError("dtype", f"{value} does not fit {dtype}")
        self.dtype = self_dtype
        return self

    @property
    def value(self) -> int:
        """The value of the TVM integer as a plain Python int."""
        return int(self)


class FloatImm(float):
    """TVM's float immediate: a Python float that carries a dtype."""

    dtype: DType

    def __new__(cls, dtype: str, value: float) -> FloatImm:
        self = super().__new__(cls, value)
        self.dtype = DType(dtype)
        return self

    @property
    def value(self) -> float:
        """The value of the TVM float as a plain Python float."""
        return float(self)


class StringImm(str):
    """TVM's string immediate: a str with a property `value`."""

    @property
    def value(self) -> str:
        """The value of the TVM string as a plain Python str."""
        return str(self)


def const(value: bool | int | float, dtype: str | None = None) -> IntImm | FloatImm:
    """Return TVM's immediate for a Python number: of dtype bool, int32 or float32 unless one is
    given.
    """
    usual = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
    result_dtype = DType(dtype or usual)
    return FloatImm(result_dtype, value) if result_dtype.is_float else IntImm(result_dtype, int(value))


def Any() -> SymDim:
    """Return an unknown dimension of a shape (Relay's Any), which is not equal to any other one."""
    return SymDim()
