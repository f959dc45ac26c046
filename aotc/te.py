# SPDX-License-Identifier: Apache-2.0
"""Dimensions that are not known, under the names of TVM's tensor expressions.

n = aotc.te.size_var("n")
x = relay.var("x", shape=(n, 3))       # equal names are equal dimensions
"""

from aotc.ir import SymDim as _SymDim
from aotc.ir.immediates import const as const


def var(name: str = "tindex", dtype: str = "int32") -> _SymDim:
    """A dimension that is not known, called `name`."""
    return _SymDim(name)


size_var = var
