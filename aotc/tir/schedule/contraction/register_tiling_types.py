# SPDX-License-Identifier: Apache-2.0
"""Data structures of a register-tiled contraction, from which loop nest, inner kernel and epilogue
are generated.

Tiling
    levels      the output axes split into tiles, outermost loop first
    product     the operation of one step: acc += x * y
    reduction   which reduction axes are loops, which are unrolled, where the data has borders
    output      how finished elements are stored
    copies      statements that fill scratch before a tile reads it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import product
from typing import Any

from aotc.ir import DType, frozen
from aotc.tir import Assign, Broadcast, Const, Expr, Load, Stmt, Var, call, cast, repeat_byte_in_int32, substitute, te
from aotc.tir.expr import bitcast
from aotc.tir.micro_kernels import MULTIPLY_ADD, MicroKernel
from aotc.tir.schedule.contraction.contraction_index_analysis import AddressedOperand, OperandDimension
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_loops import operand_var_values_at_start
from aotc.tir.schedule.contraction.tile_segments import TileAxis, TileSegment
from aotc.tir.schedule.contraction.untiled_contraction import StoreFn
from aotc.tir.simplify import simplify


@frozen(eq=False)
class MultiplyAddStep:
    """The operation of one reduction step, on `lanes` accumulators at a time: acc += x * y.

    All code that depends on the instruction is here and in the cost model: for a dot product that
    adds neighboring products to one accumulator, this class makes its loads and its update.

    x        operand that is read as vectors
    y        operand of which one element at a time is broadcast; with `along` it is read as vectors
             along the axis of `x`
    dtype    the type of the accumulators; operands are converted to it when they are loaded, except
             bytes in groups
    lanes    elements of a vector
    along    see `y`
    fill     value of `y` outside of the data; if 0, products there are left out
    kernel   the micro-kernel, which adds `kernel.group` products to each accumulator
    wide     a micro-kernel that uses several adjacent groups of `y` in one step, which are the last
             unrolled axis; None if steps have one group
    """

    x: AddressedOperand
    y: AddressedOperand
    dtype: DType
    lanes: int
    along: bool = False
    fill: int = 0
    kernel: MicroKernel = MULTIPLY_ADD
    wide: MicroKernel | None = None

    @property
    def groups_per_step(self) -> int:
        """The number of groups of `kernel.group` products of each accumulator in one step."""
        return 1 if self.wide is None else self.wide.groups

    @property
    def padding_value_vector(self) -> Expr:
        """The value of operand `y` outside of the data (padding)."""
        if self.kernel.group == 1:
            return Const(self.fill, self.dtype, self.lanes)
        # data of 16 bits is padded with zeros only
        return Const(repeat_byte_in_int32(self.fill), DType("int32"), self.lanes)

    @property
    def initial_zero_of_accumulator(self) -> Expr:
        """Zeros, with which the accumulators of a sum of products begin."""
        return Const(0.0 if self.dtype.is_float else 0, self.dtype, self.lanes)

    def load_operand(self, operand: AddressedOperand, values_of_vars: Mapping[Var, Expr], lanes: int) -> Expr:
        """Return the load of `lanes` elements of an operand, with values for its variables in
        `values_of_vars`.
        """
        index = simplify(substitute(operand.flat, dict(values_of_vars)), {})
        if self.kernel.group > 1:
            values = Load(operand.buffer, index, lanes * self.kernel.group)
            return bitcast(values, "uint16") if values.dtype.is_float else values
        return cast(Load(operand.buffer, index, lanes), self.dtype)

    def load_and_broadcast_data_operand(self, values_of_vars: Mapping[Var, Expr]) -> Expr:
        """Return an element of operand `y` broadcast to all lanes of a vector."""
        value = self.load_operand(self.y, values_of_vars, 1)
        if self.kernel.group > 1:
            value = call(self.kernel.broadcast_name(value.dtype), value)
        return value if self.lanes == 1 else Broadcast(value, self.lanes)

    def multiply_add(self, accumulator: Var, x: Expr, y: Expr) -> Stmt:
        """Return the multiply-add (or dot product) that adds x * y to `accumulator`."""
        if self.kernel.group == 1:
            return Assign(accumulator, accumulator + x * y)
        name = self.kernel.multiply_name(self.y.buffer.dtype, x.dtype, self.lanes)
        return Assign(accumulator, call(name, accumulator, y, x))


@frozen(eq=False)
class ReductionLoops:
    """The order in which a tile runs through the reduction axes.

    looped     axes that stay loops, outermost first
    unrolled   axes that are unrolled in the body
    taps       axes on which the borders depend (offsets in the convolution kernel): outer loops, or
               unrolled
    borders    dimensions of `y` that may be out of range, depending on positions in a tile and on
               taps
    guards     dimensions of `y` that may be out of range, depending on loops
    splits     partial sums of each element, so that a multiply-add need not wait for the previous
               one
    ordered    the summation keeps the order of taps, loops and unrolled axes
    """

    looped: Sequence[te.Axis]
    unrolled: Sequence[te.Axis]
    taps: Sequence[te.Axis] = ()
    borders: Sequence[OperandDimension] = ()
    guards: Sequence[OperandDimension] = ()
    splits: int = 1
    ordered: bool = False

    @property
    def products_per_output(self) -> int:
        """The number of products of one output element."""
        return math.prod(n for _, n in (*self.looped, *self.taps, *self.unrolled))


@frozen(eq=False)
class OutputStores:
    """The destination of finished elements.

    axes     the axes of the output
    store    function that returns the statement to store an element
    unfuse   the output axes as expressions of those of the tiling, if the tiling fuses some of them
    """

    axes: Sequence[te.Axis]
    store: StoreFn
    unfuse: Mapping[Var, Expr]

    def output_axis_index_of_tile_axis(self, axis: TileAxis) -> int:
        """Return the index of the output axis that an axis of the tiling corresponds to."""
        return [var for var, _ in self.axes].index(axis.var)

    def store_element(self, positions: dict[Var, Expr], value: Expr) -> Stmt:
        """Return the statement that stores an element; `positions` are its positions along the axes
        of the tiling.
        """
        return self.store(tuple(substitute(self.unfuse.get(var, var), positions) for var, _ in self.axes), value)


@frozen(eq=False)
class RegisterTiling:
    """A contraction split into register tiles.

    levels                       the output axes, outermost loop first
    product, reduction, output   the operation of a step, the order of the reduction, and the stores
    copies                       statements inside the loop over an axis's tiles (None: before all
                                 loops) that copy operands to scratch
    accumulate                   function that emits the products of a tile, if they are not emitted
                                 step by step
    """

    levels: Sequence[TileAxis]
    product: MultiplyAddStep
    reduction: ReductionLoops
    output: OutputStores
    copies: Mapping[TileAxis | None, CopyFn] = field(default_factory=dict)
    accumulate: Callable[[RegisterTile, Any], Sequence[Stmt]] | None = None

    @property
    def register_tile_axes(self) -> list[TileAxis]:
        """The axes of a register tile, with the vector axis last."""
        axes = [axis for axis in self.levels if axis.role != "outer"]
        return sorted(axes, key=lambda axis: axis is self.vector_axis)

    @property
    def vector_axis(self) -> TileAxis:
        """The output axis along which the vectors of a register tile run."""
        return max((axis for axis in reversed(self.levels) if axis.role == "x"), key=lambda axis: axis.lanes)


@frozen(eq=False)
class RegisterTile:
    """One tile of a tiling.

    bases      its first position along each axis
    segments   the segment of each axis that the tile belongs to
    origin     the values of the operands' variables at its first position
    xs, ys     the offsets of its vectors of `x`, and of its elements of `y`
    """

    tiling: RegisterTiling
    bases: Mapping[TileAxis, Expr]
    segments: Mapping[TileAxis, TileSegment]
    origin: Mapping[Var, Expr]
    xs: Sequence[Mapping[TileAxis, int]]
    ys: Sequence[Mapping[TileAxis, int]]

    @staticmethod
    def make_register_tile(
        tiling: RegisterTiling, start_positions: Mapping[TileAxis, Expr], segments: Mapping[TileAxis, TileSegment]
    ) -> RegisterTile:
        """Return the register tile of a tiling that begins at `start_positions`."""

        def tile_offsets_for_role(role: str) -> list[dict[TileAxis, int]]:
            axes = [axis for axis in tiling.levels if axis.role == role]
            return [dict(zip(axes, at, strict=True)) for at in product(*(segments[axis].starts for axis in axes))]

        return RegisterTile(
            tiling,
            start_positions,
            segments,
            operand_var_values_at_start(start_positions),
            tile_offsets_for_role("x"),
            tile_offsets_for_role("y"),
        )

    def operand_var_values(self, *offsets: Mapping[TileAxis, int]) -> dict[Var, Expr]:
        """Return the values of the operands' variables at a position, given by offsets from the
        first position of the tile.
        """
        names = dict(self.origin)
        for axis, offset in ((axis, at) for axis_offsets in offsets for axis, at in axis_offsets.items()):
            names.update(axis.operand_var_values(self.bases[axis], offset))
        return names
