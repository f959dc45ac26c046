# SPDX-License-Identifier: Apache-2.0
"""Compares the bits of compiled kernels with those of the interpreter; all NaNs count as equal.

same(found, expected)                     # arrays of one type
wrong(kernel, found, expected)            # outputs of a kernel: "" or what differs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.ir.dtype import DType
from aotc.tir.stmt import Kernel

Array = np.ndarray[Any, Any]


def differing(a: Array, b: Array) -> Array:
    """The places where two arrays of one type and size have different bits; NaN is NaN whatever its bits."""
    a, b = (np.ascontiguousarray(x).reshape(-1) for x in (a, b))
    assert a.dtype == b.dtype and a.size == b.size
    unequal = (a.view(np.uint8) != b.view(np.uint8)).reshape(a.size, a.itemsize).any(1)
    return np.flatnonzero(unequal & ~((a != a) & (b != b)) if DType.from_numpy(a).is_float else unequal)


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
