# SPDX-License-Identifier: Apache-2.0
"""The epilogue of a tile: finish its accumulators (bias, activation, requantization) and store them
to the output.

Three ways for accumulators in registers, the first that fits:

    from registers          vectors are contiguous in the output: each is finished and stored as a vector
    through the stack       tile[..] = acc ...; for each element in the output's order: store(tile[..])
    transposed              vectors run across the rows of the output: squares are transposed on the stack first

Three ways for sums in memory, those of the calls of memory micro-kernels (`EpilogueOfSums`):

    by an instruction       one that finishes and stores all sums of a position, selected by its meaning
    as vectors              the sums of the outputs of a position are contiguous
    one by one              for each output, for each position: store(tile[..])
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Final, TypeAlias

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Stmt, Store, Var, all_of, as_expr, minimum, new_private_scratch_buffer
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.loops.statement_vectorization import MAX_OPERATIONS_IN_TILE, vectorize_stmt_or_none
from aotc.tir.schedule.contraction.instruction_selection import RepeatedValues, select_elementwise_instruction
from aotc.tir.schedule.contraction.register_tiling_types import OutputStores, RegisterTile, RegisterTiling
from aotc.tir.schedule.contraction.tile_loops import OutputTile
from aotc.tir.schedule.contraction.tile_segments import TileAxis
from aotc.tir.simplify import simplify
from aotc.tir.stmt import Block, If, forall, loop_nest

#: Rows and columns of the smallest square that is transposed in registers.
MIN_TRANSPOSE_SQUARE_SIDE: Final = 4
#: For each partial sum, the accumulators by (index of the vector of `x`, index of the element of
#: `y`).
Accumulators: TypeAlias = "Sequence[Mapping[tuple[int, int], Var]]"


@frozen(eq=False)
class EpilogueBuffers:
    """Stack buffers through which finished register tiles are stored.

    buffer       buffer for a tile
    transposed   buffer for the transposed tile, None where vectors are contiguous in the output
    positions    vectors of a tile, rounded up to whole squares if they are transposed
    square       rows and columns of the squares that are transposed: the lanes of a vector, or the
                 next power of two of the number of vectors if that is smaller
    """

    buffer: Buffer
    transposed: Buffer | None
    positions: int
    square: int

    @staticmethod
    def allocate_epilogue_buffers(tiling: RegisterTiling) -> EpilogueBuffers:
        """Return the stack buffers that the widest tile of a tiling needs."""
        vector, dtype = tiling.vector_axis, tiling.product.dtype
        other_axes = [axis for axis in tiling.register_tile_axes if axis is not vector]
        place = tiling.output.output_axis_index_of_tile_axis
        positions = math.prod(axis.max_tile_elements for axis in other_axes)
        across = all(axis.role == "y" and place(axis) > place(vector) for axis in other_axes)
        squares = vector.lanes > 1 and vector.max_tile_elements % vector.lanes == 0
        transposes = across and squares and 2 * positions >= vector.lanes
        square = min(vector.lanes, max(MIN_TRANSPOSE_SQUARE_SIDE, 1 << (positions - 1).bit_length()))
        if transposes:
            positions = -(-positions // square) * square
        size = positions * vector.max_tile_elements
        transposed = new_private_scratch_buffer("turned", dtype, size, "stack") if transposes else None
        return EpilogueBuffers(new_private_scratch_buffer("tile", dtype, size, "stack"), transposed, positions, square)


def finish_and_store_tile(tile: RegisterTile, accs: Accumulators, spill: EpilogueBuffers) -> list[Stmt]:
    """Return the statements that finish (bias, activation, requantization) and store each element
    of a tile.
    """
    direct = _store_accumulators_as_vectors(tile, accs)
    if direct is not None:
        return direct
    strides = _tile_buffer_strides(tile)
    stmts: list[Stmt] = []
    for offsets, value in _sum_partial_accumulators(tile, accs):
        place = sum(
            strides[axis] * (offset + tile.segments[axis].elements_overlapping_previous_tile)
            for axis, offset in offsets.items()
        )
        stmts.append(Store(spill.buffer, as_expr(place), value))
    if spill.transposed is None:
        return [*stmts, _loops_storing_stack_tile_to_output(tile, strides, spill.buffer)]
    vector = tile.tiling.vector_axis
    stmts += _store_transposed_tile_to_stack(tile, strides, spill, spill.transposed)
    strides = {axis: stride // vector.max_tile_elements for axis, stride in strides.items()} | {vector: spill.positions}
    return [*stmts, _loops_storing_stack_tile_to_output(tile, strides, spill.transposed)]


def _sum_partial_accumulators(tile: RegisterTile, accs: Accumulators) -> Iterator[tuple[dict[TileAxis, int], Expr]]:
    """Yield, for each accumulator of a register tile, its offsets in the tile and the sum of its
    partial sums.
    """
    for i, j in accs[0]:
        yield {**tile.xs[i], **tile.ys[j]}, reduce(operator.add, (split[i, j] for split in accs))


def _store_accumulators_as_vectors(tile: RegisterTile, accs: Accumulators) -> list[Stmt] | None:
    """Return the statements that store each accumulator as a vector; None if vectors are not
    contiguous in the output.
    """
    tiling, step = tile.tiling, tile.tiling.product
    vector, lane, scalar = tiling.vector_axis, Var("lane"), Var("done", step.dtype)
    segment = tile.segments[vector]
    whole = segment.starts == tuple(range(0, segment.size, step.lanes)) and segment.size % step.lanes == 0
    if step.lanes == 1 or not whole or any(tile.segments[axis].clip for axis in tiling.register_tile_axes):
        return None
    stmts: list[Stmt] = []
    for offsets, value in _sum_partial_accumulators(tile, accs):
        values: dict[Var, Expr] = {axis.var: base + offsets.get(axis, 0) for axis, base in tile.bases.items()}
        values[vector.var] = values[vector.var] + lane
        element = vectorize_stmt_or_none(
            tiling.output.store_element(values, scalar),
            lane,
            step.lanes,
            {scalar: value},
            max_operations=MAX_OPERATIONS_IN_TILE,
        )
        if element is None:
            return None
        stmts.append(element)
    return stmts


def _tile_buffer_strides(tile: RegisterTile) -> dict[TileAxis, int]:
    """Return the distance of neighbors in a tile stored on the stack, for each axis of the tile."""
    tiled = tile.tiling.register_tile_axes
    return {axis: math.prod(inner.max_tile_elements for inner in tiled[k + 1 :]) for k, axis in enumerate(tiled)}


def _store_transposed_tile_to_stack(
    tile: RegisterTile, strides: Mapping[TileAxis, int], spill: EpilogueBuffers, target: Buffer
) -> list[Stmt]:
    """Return the statements that transpose a register tile on the stack square by square.

    Unused rows of the last squares are cleared first.
    """
    step, width, square = tile.tiling.product, tile.tiling.vector_axis.max_tile_elements, spill.square
    used = {sum(strides[axis] * offset for axis, offset in y.items()) // width for y in tile.ys}
    blocks = range(0, max(used) + 1, square)
    unused = (row for row in range(blocks[-1] + square) if row not in used)
    stmts: list[Stmt] = [
        Store(spill.buffer, as_expr(row * width + part), step.initial_zero_of_accumulator)
        for row in unused
        for part in range(0, width, step.lanes)
    ]
    for part, row in product(range(0, width, square), blocks):
        to, source = part * spill.positions + row, row * width + part
        stmts.append(transpose_square(square, target, to, spill.positions, spill.buffer, source, width))
    return stmts


def _loops_storing_stack_tile_to_output(
    tile: RegisterTile, strides: Mapping[TileAxis, int], stack_buffer: Buffer
) -> Stmt:
    """Return loops over a tile, in the order of the output, that finish and store each element of
    `stack_buffer`.
    """
    tiling = tile.tiling
    values: dict[Var, Expr] = {axis.var: base for axis, base in tile.bases.items()}
    index: Expr = as_expr(0)
    nest: list[tuple[Var, Expr]] = []
    for axis in sorted(tiling.register_tile_axes, key=tiling.output.output_axis_index_of_tile_axis):
        segment, base = tile.segments[axis], tile.bases[axis]
        index = index + segment.elements_overlapping_previous_tile * strides[axis]
        if segment.size == 1 and not segment.clip:
            continue
        loop = Var(axis.var.name)
        values[axis.var] = base + loop
        size = as_expr(segment.size)
        nest.append((loop, minimum(size, axis.extent - base) if segment.clip else size))
        index = index + loop * strides[axis]
    return loop_nest(nest, tiling.output.store_element(values, Load(stack_buffer, index)), "independent")


@frozen(eq=False)
class LayoutOfSums:
    """The layout of the accumulated sums of a tile in memory.

    first     index of the first sum
    strides   number of elements between neighboring sums, for the axis of channels and for each axis of
              which the tile has several positions
    """

    first: int
    strides: Mapping[TileAxis, int]


@frozen(eq=False)
class EpilogueOfSums:
    """The epilogue of sums in memory.

    sums           the buffer of the sums
    channel        axis of the outputs
    output         the destination of finished elements
    lanes          elements of a vector; 1 for targets without vectors
    instructions   names of instructions that may finish and store the sums of a position
    repeated       buffers for operands of these instructions
    """

    sums: Buffer
    channel: TileAxis
    output: OutputStores
    lanes: int
    instructions: Sequence[str]
    repeated: RepeatedValues

    def finish_and_store(self, tile: OutputTile, layout: LayoutOfSums) -> Stmt:
        """Return the statements that finish and store the sums of a tile.

        If the sums of the outputs of a position are contiguous, the loops over positions are outside of
        those over outputs, otherwise inside and unrolled.
        """
        values, index = tile.axis_values(), as_expr(layout.first)
        tiled = [axis for axis in layout.strides if axis is not self.channel]
        if layout.strides[self.channel] > 1:
            return self._store_positions_of_each_output(tile, layout, tiled)
        nest: list[tuple[Var, Expr]] = []
        for axis in tiled:
            loop = Var(axis.var.name)
            values[axis.var] = values[axis.var] + loop
            nest.append((loop, tile.count_along(axis)))
            index = index + loop * layout.strides[axis]
        return loop_nest(nest, self._store_outputs_of_position(tile, values, index), "independent")

    def _store_positions_of_each_output(
        self, tile: OutputTile, layout: LayoutOfSums, tiled: Sequence[TileAxis]
    ) -> Stmt:
        """Return a loop over the outputs of a tile that stores the sums of all its positions."""
        number, stored = Var("o"), list[Stmt]()
        for offsets in product(*(range(tile.segments[axis].size) for axis in tiled)):
            values, index, exists = (
                tile.axis_values(),
                layout.first + number * layout.strides[self.channel],
                list[Expr](),
            )
            for axis, offset in zip(tiled, offsets, strict=True):
                values[axis.var] = values[axis.var] + offset
                index = index + offset * layout.strides[axis]
                exists += [values[axis.var] < axis.extent] if offset and tile.segments[axis].clip else []
            values[self.channel.var] = values[self.channel.var] + number
            element = self.output.store_element(values, Load(self.sums, index))
            stored.append(If(all_of(*exists), element) if exists else element)
        stmt = stored[0] if len(stored) == 1 else Block(stored)
        return self._by_instruction(tile, number, stmt) or forall(number, tile.count_along(self.channel), stmt)

    def _store_outputs_of_position(self, tile: OutputTile, values: Mapping[Var, Expr], index: Expr) -> Stmt:
        """Return the statements that store the sums of the outputs of a position, from `index` on."""
        number, first = Var("o"), values[self.channel.var]

        def element(output: Expr, value: Expr) -> Stmt:
            return self.output.store_element({**values, self.channel.var: first + output}, value)

        one = element(number, Load(self.sums, index + number))
        selected = self._by_instruction(tile, number, one)
        if selected is not None:
            return selected
        segment, scalar = tile.segments[self.channel], Var("done", self.sums.dtype)
        vectors: list[Stmt] = []
        for begin in range(0, segment.size - self.lanes + 1, self.lanes) if self.lanes > 1 and not segment.clip else ():
            sums = {scalar: Load(self.sums, index + begin, self.lanes)}
            vector = vectorize_stmt_or_none(
                element(begin + number, scalar), number, self.lanes, sums, max_operations=MAX_OPERATIONS_IN_TILE
            )
            if vector is None:
                break
            vectors.append(vector)
        done = len(vectors) * self.lanes
        if done == segment.size:
            return Block(vectors)
        rest = element(done + number, Load(self.sums, index + done + number))
        return Block((*vectors, forall(number, simplify(tile.count_along(self.channel) - done, {}), rest)))

    def _by_instruction(self, tile: OutputTile, number: Var, stmt: Stmt) -> Stmt | None:
        """Return the instruction that does what `stmt` does for each output of a tile, counted by `number`;
        None if there is none.
        """
        segment = tile.segments[self.channel]
        if segment.clip:
            return None
        return select_elementwise_instruction(stmt, number, segment.size, self.instructions, self.repeated)
