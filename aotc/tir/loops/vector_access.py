# SPDX-License-Identifier: Apache-2.0
"""Elements that a device moves at once: a store of a load, both of several lanes, from a multiple of their bytes on.

is_vector_access(x, linear(8 * i + 4), 4)       # whether x[8 * i + 4 : 4] is one access: where x is aligned to 16 bytes
"""

from typing import Final

from aotc.tir import Buffer, Linear

#: Bytes that one access moves at most.
MOST: Final = 16


def is_vector_access(buffer: Buffer, first: Linear, lanes: int) -> bool:
    """Whether some elements are no more than one access moves, and always begin at a multiple of their bytes."""
    size = lanes * buffer.dtype.itemsize
    fits = size <= MOST and not size & (size - 1)
    return fits and buffer.align % size == 0 and not any(n % lanes for n in (first.const, *first.terms.values()))
