# SPDX-License-Identifier: Apache-2.0
"""A contraction cut into register tiles, as data: what the nest, the inner kernel and the epilogue are made from.

Tiling
    levels      the output axes, cut into tiles, outermost loop first
    product     what one step multiplies: acc += x * y
    reduction   which reduction axes are loops, which are written out, where the data has borders
    output      where finished elements go
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
    """What one step of the reduction multiplies and adds, `lanes` accumulators at a time.

    Whatever an instruction can do for `acc += x * y` is said here and in the cost model: one that sums `group`
    neighboring products of bytes into an accumulator of int32 has its loads and its update in this class.

    dtype   the type of the accumulators; operands are converted to it when they are loaded, unless they are in groups
    x       read as vectors
    y       broadcast, one element at a time; with `along` read as vectors, along the axis of `x`
    fill    what `y` counts as where it is outside of the data; products there are left out if it is 0
    groups  groups that a step takes, which lie side by side in `y`; they are the last axis that is written out
    rows    elements of `y` that a step takes together (`wide`)
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
        """`y` outside of the data."""
        value = self.fill if self.group == 1 else word_of(self.fill)
        return Const(value, self.dtype, self.lanes)

    @property
    def zero(self) -> Expr:
        """What an accumulator begins with."""
        return Const(0.0 if self.dtype.is_float else 0, self.dtype, self.lanes)

    def load(self, operand: Operand, names: Mapping[Var, Expr], lanes: int) -> Expr:
        """Elements of an operand, its variables given."""
        index = simplify(substitute(operand.flat, dict(names)), {})
        if self.group > 1:
            return Load(operand.buffer, index, lanes * self.group)
        return cast(Load(operand.buffer, index, lanes), self.dtype)

    def broadcast(self, names: Mapping[Var, Expr]) -> Expr:
        """An element of `y` in all lanes."""
        value = self.load(self.y, names, 1)
        if self.group > 1:
            value = call(f"word_{value.dtype}", value)
        return value if self.lanes == 1 else Broadcast(value, self.lanes)

    def update(self, acc: Var, x: Expr, y: Expr) -> Stmt:
        """The multiply-add."""
        if self.group == 1:
            return Assign(acc, acc + x * y)
        return Assign(acc, call(dot_name(self.y.buffer.dtype, x.dtype, self.lanes), acc, y, x))


@frozen(eq=False)
class Reduction:
    """How a tile walks the reduction axes.

    looped     axes that stay loops, outermost first
    unrolled   axes that are written out in the body
    taps       axes that borders depend on: loops around the others, or written out
    borders    dimensions of `y` that may be out of range, depending on positions in a tile and on taps
    guards     dimensions of `y` that may be out of range, depending on loops
    splits     partial sums of each element, so that one multiply-add need not wait for the one before it
    ordered    steps keep the order of taps, loops and what is written out
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
        """Products of one element."""
        return math.prod(n for _, n in (*self.looped, *self.taps, *self.unrolled))


@frozen(eq=False)
class Output:
    """Where finished elements go: the output's axes, and `store`, which makes the statement that takes an element.

    unfuse   the output's axes as expressions of those of the tiling, where several are one there
    """

    axes: Sequence[te.Axis]
    store: StoreFn
    unfuse: Mapping[Var, Expr]

    def place(self, axis: TileAxis) -> int:
        """Which axis of the output it is."""
        return [var for var, _ in self.axes].index(axis.var)

    def finish(self, values: dict[Var, Expr], value: Expr) -> Stmt:
        """The statement that takes an element; `values` are its positions along the axes of the tiling."""
        return self.store(tuple(substitute(self.unfuse.get(var, var), values) for var, _ in self.axes), value)


@frozen(eq=False)
class Tiling:
    """A tiled contraction; `copies` go inside the loop over an axis's tiles (None: before all loops).

    accumulate   how a tile adds up its products, if not one step after the other
    """

    levels: Sequence[TileAxis]
    product: Product
    reduction: Reduction
    output: Output
    copies: Mapping[TileAxis | None, CopyFn] = field(default_factory=dict)
    accumulate: Callable[[Tile, Any], Sequence[Stmt]] | None = None

    @property
    def tiled(self) -> list[TileAxis]:
        """The axes of a tile, the vector axis last."""
        found = [axis for axis in self.levels if axis.role != "outer"]
        return sorted(found, key=lambda axis: axis is self.vector)

    @property
    def vector(self) -> TileAxis:
        """The axis along which vectors lie."""
        return max((axis for axis in reversed(self.levels) if axis.role == "x"), key=lambda axis: axis.lanes)


@frozen(eq=False)
class Tile:
    """One tile of a tiling.

    bases      its first position along each axis
    segments   the segment of each axis that it is of
    origin     what the operands call its first position
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
        """The tile that begins at `bases`."""

        def offsets(role: str) -> list[dict[TileAxis, int]]:
            axes = [axis for axis in tiling.levels if axis.role == role]
            return [dict(zip(axes, at, strict=True)) for at in product(*(segments[axis].starts for axis in axes))]

        return Tile(tiling, bases, segments, operand_names(bases), offsets("x"), offsets("y"))

    def names(self, *offsets: Mapping[TileAxis, int]) -> dict[Var, Expr]:
        """What the operands call a position, by its offsets from the first one."""
        names = dict(self.origin)
        for axis, offset in ((axis, at) for found in offsets for axis, at in found.items()):
            names.update(axis.names(self.bases[axis], offset))
        return names


def operand_names(bases: Mapping[TileAxis, Expr]) -> dict[Var, Expr]:
    """What the operands call the first position of a tile."""
    return {var: value for axis, base in bases.items() for var, value in axis.names(base, 0).items()}
