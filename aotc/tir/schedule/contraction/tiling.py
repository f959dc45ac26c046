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
from aotc.tir import Assign, Broadcast, Const, Expr, Load, Stmt, Var, call, cast, dot_name, substitute, te, word_of
from aotc.tir.schedule.contraction.index_space import Dimension, Operand
from aotc.tir.schedule.contraction.naive import StoreFn
from aotc.tir.schedule.contraction.operand_staging import CopyFn
from aotc.tir.schedule.contraction.tile_segments import Segment, TileAxis
from aotc.tir.simplify import simplify


@frozen(eq=False)
class Product:
    """The operation of one reduction step, on `lanes` accumulators at a time: acc += x * y.

    All instruction-specific code is here and in the cost model: for a dot product that adds `group`
    neighboring products of bytes to an int32 accumulator, this class makes its loads and its
    update.

    x        operand that is read as vectors
    y        operand of which one element at a time is broadcast; with `along` it is read as vectors
             along the axis of `x`
    dtype    the type of the accumulators; operands are converted to it when they are loaded, except
             bytes in groups
    lanes    elements of a vector
    along    see `y`
    fill     value of `y` outside of the data; if 0, products there are left out
    group    products of bytes that one instruction adds to each accumulator; 1 for plain
             multiply-adds
    groups   groups in one step, adjacent in `y`; they are the last unrolled axis
    rows     elements of `y` that a step takes together (matrix instructions)
    """

    x: Operand
    y: Operand
    dtype: DType
    lanes: int
    along: bool = False
    fill: int = 0
    group: int = 1
    groups: int = 1
    rows: int = 1

    @property
    def outside(self) -> Expr:
        """The value of operand `y` outside of the data (padding)."""
        value = self.fill if self.group == 1 else word_of(self.fill)
        return Const(value, self.dtype, self.lanes)

    @property
    def zero(self) -> Expr:
        """The initial value of an accumulator."""
        return Const(0.0 if self.dtype.is_float else 0, self.dtype, self.lanes)

    def load(self, operand: Operand, names: Mapping[Var, Expr], lanes: int) -> Expr:
        """Return the load of `lanes` elements of an operand, with values for its variables in
        `names`.
        """
        index = simplify(substitute(operand.flat, dict(names)), {})
        if self.group > 1:
            return Load(operand.buffer, index, lanes * self.group)
        return cast(Load(operand.buffer, index, lanes), self.dtype)

    def broadcast(self, names: Mapping[Var, Expr]) -> Expr:
        """Return an element of operand `y` broadcast to all lanes of a vector."""
        value = self.load(self.y, names, 1)
        if self.group > 1:
            value = call(f"word_{value.dtype}", value)
        return value if self.lanes == 1 else Broadcast(value, self.lanes)

    def update(self, acc: Var, x: Expr, y: Expr) -> Stmt:
        """Return the multiply-add (or dot product) that adds x * y to `acc`."""
        if self.group == 1:
            return Assign(acc, acc + x * y)
        return Assign(acc, call(dot_name(self.y.buffer.dtype, x.dtype, self.lanes), acc, y, x))


@frozen(eq=False)
class Reduction:
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
    borders: Sequence[Dimension] = ()
    guards: Sequence[Dimension] = ()
    splits: int = 1
    ordered: bool = False

    @property
    def steps(self) -> int:
        """The number of products of one output element."""
        return math.prod(n for _, n in (*self.looped, *self.taps, *self.unrolled))


@frozen(eq=False)
class Output:
    """The destination of finished elements.

    axes     the axes of the output
    store    function that returns the statement to store an element
    unfuse   the output axes as expressions of those of the tiling, if the tiling fuses some of them
    """

    axes: Sequence[te.Axis]
    store: StoreFn
    unfuse: Mapping[Var, Expr]

    def place(self, axis: TileAxis) -> int:
        """Return the index of the output axis that an axis of the tiling corresponds to."""
        return [var for var, _ in self.axes].index(axis.var)

    def finish(self, values: dict[Var, Expr], value: Expr) -> Stmt:
        """Return the statement that stores an element; `values` are its positions along the axes of
        the tiling.
        """
        return self.store(tuple(substitute(self.unfuse.get(var, var), values) for var, _ in self.axes), value)


@frozen(eq=False)
class Tiling:
    """A contraction split into register tiles.

    levels                       the output axes, outermost loop first
    product, reduction, output   the operation of a step, the order of the reduction, and the stores
    copies                       statements inside the loop over an axis's tiles (None: before all
                                 loops) that copy operands to scratch
    accumulate                   function that emits the products of a tile, if they are not emitted
                                 step by step
    """

    levels: Sequence[TileAxis]
    product: Product
    reduction: Reduction
    output: Output
    copies: Mapping[TileAxis | None, CopyFn] = field(default_factory=dict)
    accumulate: Callable[[Tile, Any], Sequence[Stmt]] | None = None

    @property
    def tiled(self) -> list[TileAxis]:
        """The axes of a register tile, with the vector axis last."""
        found = [axis for axis in self.levels if axis.role != "outer"]
        return sorted(found, key=lambda axis: axis is self.vector)

    @property
    def vector(self) -> TileAxis:
        """The output axis along which the vectors of a register tile run."""
        return max((axis for axis in reversed(self.levels) if axis.role == "x"), key=lambda axis: axis.lanes)


@frozen(eq=False)
class Tile:
    """One tile of a tiling.

    bases      its first position along each axis
    segments   the segment of each axis that the tile belongs to
    origin     the values of the operands' variables at its first position
    xs, ys     the offsets of its vectors of `x`, and of its elements of `y`
    """

    tiling: Tiling
    bases: Mapping[TileAxis, Expr]
    segments: Mapping[TileAxis, Segment]
    origin: Mapping[Var, Expr]
    xs: Sequence[Mapping[TileAxis, int]]
    ys: Sequence[Mapping[TileAxis, int]]

    @staticmethod
    def of(tiling: Tiling, bases: Mapping[TileAxis, Expr], segments: Mapping[TileAxis, Segment]) -> Tile:
        """Return the register tile of a tiling that begins at `bases`."""

        def offsets(role: str) -> list[dict[TileAxis, int]]:
            axes = [axis for axis in tiling.levels if axis.role == role]
            return [dict(zip(axes, at, strict=True)) for at in product(*(segments[axis].starts for axis in axes))]

        return Tile(tiling, bases, segments, operand_names(bases), offsets("x"), offsets("y"))

    def names(self, *offsets: Mapping[TileAxis, int]) -> dict[Var, Expr]:
        """Return the values of the operands' variables at a position, given by offsets from the
        first position of the tile.
        """
        names = dict(self.origin)
        for axis, offset in ((axis, at) for found in offsets for axis, at in found.items()):
            names.update(axis.names(self.bases[axis], offset))
        return names


def operand_names(bases: Mapping[TileAxis, Expr]) -> dict[Var, Expr]:
    """Return the values of the operands' variables at the first position of a register tile."""
    return {var: value for axis, base in bases.items() for var, value in axis.names(base, 0).items()}
