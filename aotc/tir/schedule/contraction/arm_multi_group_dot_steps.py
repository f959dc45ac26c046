# SPDX-License-Identifier: Apache-2.0
"""Reduction steps that issue several int8 dot products on one vector of data: from a Tile and
reduction points, statements.

With four groups, a vector of data holds the four-byte groups of four steps, and each dot product
selects one of them (as Arm SDOT by element does):

    y = words(data[16 bytes]); for k: for i: acc[i][j] = dot4_lane<k>(acc[i][j], y, w[k][i])

With two groups and two rows, an int8 matrix multiply (as Arm SMMLA) computes two outputs by two
positions:

    y = pair(data of j [8 bytes], data of j + 1); acc[i][j] = mmla(acc[i][j], y, w of outputs 0 and 1), acc[i][j + 1] =
        mmla(acc[i][j + 1], y, w of outputs 2 and 3)

A position without a neighbor is computed as in any other tile.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TypeAlias

from aotc.ir import frozen
from aotc.tir import Assign, Const, Expr, Stmt, Var, bind_to_new_register, call
from aotc.tir.micro_kernels import MicroKernel
from aotc.tir.schedule.contraction.epilogue import Accumulators
from aotc.tir.schedule.contraction.register_tiling_types import MultiplyAddStep, RegisterTile
from aotc.tir.schedule.contraction.tile_segments import TileAxis

#: The offsets of the elements of `offsets` that take part, None for elements outside of the data.
_OffsetsInData: TypeAlias = "Mapping[int, Mapping[TileAxis, int] | None]"
_ReductionPoints: TypeAlias = "Sequence[Mapping[Var, Expr]]"


def multi_group_dot_step(
    tile: RegisterTile,
    accumulators: Mapping[tuple[int, int], Var],
    offsets_in_data: _OffsetsInData,
    points: _ReductionPoints,
) -> list[Stmt]:
    """Return the int8 products at consecutive points of the reduction, whose four-byte groups are
    adjacent in memory.
    """
    stmts: list[Stmt] = []
    if offsets_in_data:
        multiply_add = tile.tiling.product
        xs = [
            [
                multiply_add.load_operand(multiply_add.x, {**tile.operand_var_values(x), **at}, multiply_add.lanes)
                for x in tile.xs
            ]
            for at in points
        ]
        xs = [[bind_to_new_register("x", value, stmts) for value in row] for row in xs]
        step = _DotStepEmitter(tile, accumulators, offsets_in_data, points, xs, stmts)
        (step.emit_dots_by_lane_for_all_positions if step.kernel.positions == 1 else step.emit_matrix_multiplies)()
    return stmts


@frozen(eq=False)
class _DotStepEmitter:
    """State of generating one reduction step of a register tile.

    xs      vectors of weights for each point
    stmts   the statements emitted so far
    """

    tile: RegisterTile
    accs: Mapping[tuple[int, int], Var]
    present: _OffsetsInData
    points: _ReductionPoints
    xs: Sequence[Sequence[Expr]]
    stmts: list[Stmt]

    @property
    def kernel(self) -> MicroKernel:
        """The micro-kernel, which uses several groups of data."""
        kernel = self.tile.tiling.product.wide
        assert kernel is not None
        return kernel

    @property
    def multiply_add_step(self) -> MultiplyAddStep:
        """The multiply-add or dot product of the tiling."""
        return self.tile.tiling.product

    def emit_dots_by_lane_for_all_positions(self) -> None:
        """Emit, for each output position, the dot products with all four-byte groups of its data
        vector.
        """
        data, count = self.multiply_add_step.y.buffer.dtype, len(self.points)
        for j, y in self.present.items():
            if y is None:
                self.emit_dots_point_by_point(j)
                continue
            words = bind_to_new_register(
                "y", call(self.kernel.load_name(data, count), self.load_data_of_four_byte_groups(y, count)), self.stmts
            )
            for k, row in enumerate(self.xs):
                for i, x in enumerate(row):
                    self.emit_accumulating_instruction_call(
                        i, j, self.kernel.multiply_name(data, x.dtype, lane=k), words, x
                    )

    def emit_matrix_multiplies(self) -> None:
        """Emit int8 matrix multiplies for two output positions at a time."""
        data, weights = self.multiply_add_step.y.buffer.dtype, self.multiply_add_step.x.buffer.dtype
        paired = len(self.tile.ys) // 2 * 2
        couples = [j for j in range(0, paired, 2) if {j, j + 1} & self.present.keys()]
        weight_pairs: list[list[Expr]] = []
        for two in zip(*self.xs, strict=True) if couples else ():
            weight_pairs.append(
                [bind_to_new_register("w", call(f"zip{k}_{weights}", *two), self.stmts) for k in range(2)]
            )
        for j in couples:
            rows = bind_to_new_register(
                "y",
                call(f"pair_{data}", self.data_vector_or_padding(j), self.data_vector_or_padding(j + 1)),
                self.stmts,
            )
            for i, k in product(range(len(weight_pairs)), range(2)):
                self.emit_accumulating_instruction_call(
                    i, j + k, self.kernel.multiply_name(data, weights), rows, weight_pairs[i][k]
                )
        for j in self.present.keys() & set(range(paired, len(self.tile.ys))):
            self.emit_dots_point_by_point(j)

    def data_vector_or_padding(self, position: int) -> Expr:
        """Return the data vector of an output position: padding outside of the data, zeros if the
        position does not take part.
        """
        y = self.present.get(position)
        none = Const(
            self.multiply_add_step.fill if position in self.present else 0, self.multiply_add_step.y.buffer.dtype, 8
        )
        return none if y is None else self.load_data_of_four_byte_groups(y, len(self.points))

    def load_data_of_four_byte_groups(self, offsets: Mapping[TileAxis, int], group_count: int) -> Expr:
        """Return the load of the data of an output position."""
        return self.multiply_add_step.load_operand(
            self.multiply_add_step.y, {**self.tile.operand_var_values(offsets), **self.points[0]}, group_count
        )

    def emit_accumulating_instruction_call(self, vector: int, position: int, instruction: str, *operands: Expr) -> None:
        """Emit the assignment acc[i, j] = name(acc[i, j], *operands)."""
        self.stmts.append(
            Assign(self.accs[vector, position], call(instruction, self.accs[vector, position], *operands))
        )

    def emit_dots_point_by_point(self, position: int) -> None:
        """Emit the dot products of one output position, one group of four bytes of the reduction after
        the other.
        """
        y, step = self.present[position], self.multiply_add_step
        for at, row in zip(self.points, self.xs, strict=True):
            shared = (
                step.padding_value_vector
                if y is None
                else step.load_and_broadcast_data_operand({**self.tile.operand_var_values(y), **at})
            )
            shared = bind_to_new_register("y", shared, self.stmts)
            self.stmts.extend(step.multiply_add(self.accs[i, position], x, shared) for i, x in enumerate(row))


def reorder_matrix_multiply_results(tile: RegisterTile, accumulators: Accumulators) -> Iterator[Stmt]:
    """Yield statements that rearrange 2 x 2 results of matrix multiplies into one vector per
    position.
    """
    if tile.tiling.product.wide is None or tile.tiling.product.wide.positions == 1:
        return
    for split, i, j in product(accumulators, range(len(tile.xs)), range(0, len(tile.ys) // 2 * 2, 2)):
        first, second = split[i, j], split[i, j + 1]
        stmts: list[Stmt] = []
        low = bind_to_new_register("low", call("half0", first, second), stmts)
        yield from (*stmts, Assign(second, call("half1", first, second)), Assign(first, low))
