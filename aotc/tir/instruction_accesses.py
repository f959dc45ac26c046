# SPDX-License-Identifier: Apache-2.0
"""The elements of buffers that an instruction reads and writes, as its row in the instruction table
declares them.

    y[0] = transpose_square(x[4:28], 4, 8, 5)    # reads x[4:4], x[12:4], ...; writes y[0:4], y[5:4], ...
"""

from collections.abc import Iterator

from aotc.tir.expr import Buffer, Expr, loads_in
from aotc.tir.instruction_definition import Extent
from aotc.tir.stmt import Destination, Execute


def accesses_of_instruction(
    stmt: Execute, *, reads: bool = True, stores: bool = True
) -> Iterator[tuple[Buffer, Expr, int]]:
    """Yield the accesses that an instruction makes, row by row: buffer, index of the first element,
    number of consecutive elements.

    A statement whose operands do not fit its row raises an error: it is for verified kernels, and
    for the verifier after `aotc.tir.instruction_operand_check`.
    """
    written, inputs = stmt.extents
    if isinstance(stmt.result, Destination):
        if stores and written is not None:
            yield from _rows_of_extent(stmt.result.buffer, stmt.result.index, written)
        if reads:
            yield from ((load.buffer, *load.lowest_index_and_extent) for load in loads_in(stmt.result.index))
    if not reads:
        return
    for operand, extent in zip(stmt.operands, inputs, strict=True):
        for load in loads_in(operand):
            # a load of one row covers it; so do loads in conditions and indices
            if extent is None or extent.rows == 1:
                yield load.buffer, *load.lowest_index_and_extent
            else:
                yield from _rows_of_extent(load.buffer, load.index, extent)


def _rows_of_extent(buffer: Buffer, index: Expr, extent: Extent) -> Iterator[tuple[Buffer, Expr, int]]:
    """Yield the rows of an extent from `index` on, as (buffer, index, number of elements)."""
    for row in range(extent.rows):
        yield buffer, index + row * extent.pitch, extent.elements
