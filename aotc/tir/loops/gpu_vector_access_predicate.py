# SPDX-License-Identifier: Apache-2.0
"""Test for accesses that a GPU makes with one wide instruction: several elements, aligned to their
total size.

    is_single_instruction_vector_access(x, linear(8 * i + 4), 4)  # x[8 * i + 4 : 4]: True if x is aligned to 16 bytes
"""

from typing import Final

from aotc.tir import Buffer, LinearForm

#: Largest number of bytes of one memory access.
MAX_ACCESS_BYTES: Final = 16


def is_single_instruction_vector_access(buffer: Buffer, first_address: LinearForm, lanes: int) -> bool:
    """Return True if `lanes` elements from the address `first_address` on can be loaded or stored
    by one instruction.

    Their total size must be a power of two of at most `MAX_ACCESS_BYTES` bytes, and the address
    must always be a multiple of it.
    """
    size = lanes * buffer.dtype.itemsize
    fits = size <= MAX_ACCESS_BYTES and not size & (size - 1)
    return (
        fits
        and buffer.align % size == 0
        and not any(n % lanes for n in (first_address.const, *first_address.terms.values()))
    )
