# SPDX-License-Identifier: Apache-2.0
"""Dimensions that are not known and the limits of data types, under the names of TVM's tensor
expressions.

n = aotc.te.size_var("n")
x = relay.var("x", shape=(n, 3))       # equal names are equal dimensions
"""

from aotc.ir import SymDim as _SymDim
from aotc.ir.dtype import DType as _DType
from aotc.ir.immediates import FloatImm as _FloatImm
from aotc.ir.immediates import IntImm as _IntImm
from aotc.ir.immediates import const as const


def var(name: str = "tindex", dtype: str = "int32") -> _SymDim:
    """A dimension that is not known, called `name`."""
    return _SymDim(name)


size_var = var


def min_value(dtype: str) -> _IntImm | _FloatImm:
    """The least finite number of a dtype."""
    return const(_DType(dtype).min, dtype)


def max_value(dtype: str) -> _IntImm | _FloatImm:
    """The greatest finite number of a dtype."""
    return const(_DType(dtype).max, dtype)
