# SPDX-License-Identifier: Apache-2.0
"""What compiled kernels compute beside what the interpreter does: the same bits, where every NaN counts as one.

same(found, expected)                     # arrays of one type
wrong(kernel, found, expected)            # outputs of a kernel: "" or what differs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir.dtype import DType
from aotc.tir.expr import Call
from aotc.tir.functions.table import definition
from aotc.tir.stmt import Kernel, nodes

Array = np.ndarray[Any, Any]
_NAMES: Final = """
exp exp2 expm1 log log2 log10 log1p cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf tgamma lgamma
pow atan2
"""
LIBRARY: Final = frozenset(_NAMES.split())
"""Functions that the C library computes where they have no program: it decides on the bits."""


def by_library(name: str, dtype: DType) -> bool:
    """Whether a function of values of a type is the C library's, so that its bits are not known."""
    return name in LIBRARY and dtype.is_float and definition(name, dtype) is None


def calls_library(kernel: Kernel) -> bool:
    """Whether a kernel calls such a function."""
    return any(isinstance(n, Call) and by_library(n.name, n.args[0].dtype) for n in nodes(kernel.body))


def differing(a: Array, b: Array) -> Array:
    """The places where two arrays of one type and size have different bits; NaN is NaN whatever its bits."""
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in (a, b))
    assert a.dtype == b.dtype and a.size == b.size
    unequal = (a.view(np.uint8) != b.view(np.uint8)).reshape(a.size, a.itemsize).any(1)
    return np.flatnonzero(unequal & ~((a != a) & (b != b)) if DType.of(a).is_float else unequal)


def same(a: Array, b: Array) -> bool:
    """Whether two arrays have the same bits."""
    return not differing(a, b).size


def wrong(kernel: Kernel, found: Sequence[Array], expected: Sequence[Array]) -> str:
    """The first element of an output that has other bits than expected; "" for none."""
    for buffer, a, b in zip(kernel.outputs, found, expected, strict=True):
        places = differing(a, b)
        if places.size:
            k, (x, y) = places[0], (array.reshape(-1)[places[0]] for array in (a, b))
            return f"{kernel.name}: {buffer.name}[{k}] is {x!r}, not {y!r} ({places.size} of {buffer.size} differ)"
    return ""
