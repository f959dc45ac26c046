# SPDX-License-Identifier: Apache-2.0
"""Transposes in vector registers: two loops of a copy that reads along the outer and writes along
the inner loop become transposes of square blocks by shuffles, instead of vectors that are gathered
element by element.

    for i in 0..32: for j in 0..20: y[20 * i + j] = x[32 * j + i]
    ->  for i in 0..2: transpose the 16 x 16 block of x at 16 * i, to y at 320 * i
        for i in 0..32: for j in 16..20: y[20 * i + j] = x[32 * j + i]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aotc.tir import Const, Load, linear_form, rename_declared_vars, substitute_in_stmt, vars_and_buffers_in
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.simplify import simplify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import Block, Execute, For, Store, block_stmts_or_self, loop_nest

#: Number of rows of the smallest and of the largest square that is transposed in registers.
MIN_SQUARE_ROWS: Final = 4
MAX_SQUARE_ROWS: Final = 16


def transpose_squares_in_registers(outer: For, vector_bytes: int, min_element_bytes: int) -> Block | None:
    """Return the two nested loops of a transposing copy as transposes of whole squares in
    registers, followed by loops over the remaining rows and columns; None for other loops, and for
    loops shorter than a square.

    outer          the outer loop, with the inner loop as its body
    vector_bytes   size of a vector register; a square has as many rows as a vector has elements,
                   or fewer if the loops are shorter
    min_element_bytes   bytes of the smallest element that is transposed in registers
    """
    inner = outer.body
    if not isinstance(inner, For) or not all(loop.kind == "independent" and loop.step == 1 for loop in (outer, inner)):
        return None
    if outer.var in vars_and_buffers_in(inner.begin):  # the iterations are a band of the matrix, no rectangle
        return None
    (store, *further_stmts) = block_stmts_or_self(inner.body)
    if further_stmts or not isinstance(store, Store) or not _is_copy_of_one_element(store):
        return None
    element_bytes = store.buffer.dtype.itemsize
    if element_bytes < min_element_bytes:
        return None
    extents = _constant_extent(outer), _constant_extent(inner)
    rows = min(MAX_SQUARE_ROWS, vector_bytes // element_bytes)
    while rows > min(extents):
        rows //= 2
    square = _square_transpose_of_copy(store, outer, inner, rows) if rows >= MIN_SQUARE_ROWS else None
    return None if square is None else _square_and_remainder_loops(outer, inner, square, rows, extents)


def _square_and_remainder_loops(outer: For, inner: For, square: Execute, side: int, extents: tuple[int, int]) -> Block:
    """Return loops over the whole squares, of `side` rows, of two loops of constant extents, and
    loops over the remaining rows and columns.
    """
    rows, columns = (extent // side * side for extent in extents)
    last_row, last_column = outer.begin + rows, inner.begin + columns
    corner = {outer.var: outer.begin + outer.var * side, inner.var: inner.begin + inner.var * side}
    counts = [(outer.var, rows // side), (inner.var, columns // side)]
    whole = simplify_stmt(loop_nest(counts, substitute_in_stmt(square, corner), "independent"), {})
    right = replace(outer, end=last_row, body=replace(inner, begin=last_column, end=inner.begin + extents[1]))
    below = replace(outer, begin=last_row, end=outer.begin + extents[0])
    remainders = [right] * (columns < extents[1]) + [below] * (rows < extents[0])
    return Block(map(rename_declared_vars, (whole, *remainders)))


def _is_copy_of_one_element(store: Store) -> bool:
    """Return True if a store copies one element, between different buffers, without a conversion."""
    load, dtype = store.value, store.buffer.dtype
    if not isinstance(load, Load) or load.lanes > 1 or load.buffer is store.buffer:
        return False
    return load.dtype == dtype


def _constant_extent(loop: For) -> int:
    """Return the number of iterations of a loop of step 1; 0 if it is not constant."""
    extent = simplify(loop.end - loop.begin, {})
    return int(extent.value) if isinstance(extent, Const) else 0


def _square_transpose_of_copy(store: Store, outer: For, inner: For, rows: int) -> Execute | None:
    """Return the transpose of the square of `rows` rows whose first element a store copies; None if
    the two loops around the store do not transpose.
    """
    load = store.value
    assert isinstance(load, Load)
    source, target = linear_form(load.index, {}), linear_form(store.index, {})
    source_pitch, target_pitch = source.coefficient(inner.var), target.coefficient(outer.var)
    if (source.coefficient(outer.var), target.coefficient(inner.var)) != (1, 1):
        return None
    if source_pitch is None or target_pitch is None or min(source_pitch, target_pitch) < rows:
        return None
    return transpose_square(rows, store.buffer, store.index, target_pitch, load.buffer, load.index, source_pitch)
