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
from aotc.tir import Assign, Const, Expr, Stmt, Var, call, kept, lane_name, matrix_name, words_name
from aotc.tir.schedule.contraction.epilogue import Accumulators
from aotc.tir.schedule.contraction.tile_segments import TileAxis
from aotc.tir.schedule.contraction.tiling import Product, Tile

#: The offsets of the elements of `y` that take part, None for elements outside of the data.
_Present: TypeAlias = "Mapping[int, Mapping[TileAxis, int] | None]"
_Points: TypeAlias = "Sequence[Mapping[Var, Expr]]"


def wide_step(tile: Tile, accs: Mapping[tuple[int, int], Var], present: _Present, points: _Points) -> list[Stmt]:
    """Return the int8 products at consecutive points of the reduction, whose four-byte groups are
    adjacent in memory.
    """
    stmts: list[Stmt] = []
    if present:
        made = tile.tiling.product
        xs = [[made.load(made.x, {**tile.names(x), **at}, made.lanes) for x in tile.xs] for at in points]
        xs = [[kept("x", value, stmts) for value in row] for row in xs]
        step = _Step(tile, accs, present, points, xs, stmts)
        (step.by_lanes if made.rows == 1 else step.by_matrices)()
    return stmts


@frozen(eq=False)
class _Step:
    """State of generating one reduction step of a register tile.

    xs      vectors of weights for each point
    stmts   the statements emitted so far
    """

    tile: Tile
    accs: Mapping[tuple[int, int], Var]
    present: _Present
    points: _Points
    xs: Sequence[Sequence[Expr]]
    stmts: list[Stmt]

    @property
    def made(self) -> Product:
        """The multiply-add or dot product of the tiling."""
        return self.tile.tiling.product

    def by_lanes(self) -> None:
        """Emit, for each output position, the dot products with all four-byte groups of its data
        vector.
        """
        data, count = self.made.y.buffer.dtype, len(self.points)
        for j, y in self.present.items():
            if y is None:
                self.singly(j)
                continue
            words = kept("y", call(words_name(data, count), self.data(y, count)), self.stmts)
            for k, row in enumerate(self.xs):
                for i, x in enumerate(row):
                    self.assign(i, j, lane_name(data, x.dtype, k), words, x)

    def by_matrices(self) -> None:
        """Emit int8 matrix multiplies for two output positions at a time."""
        data, weights = self.made.y.buffer.dtype, self.made.x.buffer.dtype
        paired = len(self.tile.ys) // 2 * 2
        couples = [j for j in range(0, paired, 2) if {j, j + 1} & self.present.keys()]
        turned: list[list[Expr]] = []
        for two in zip(*self.xs, strict=True) if couples else ():
            turned.append([kept("w", call(f"zip{k}_{weights}", *two), self.stmts) for k in range(2)])
        for j in couples:
            rows = kept("y", call(f"pair_{data}", self.row(j), self.row(j + 1)), self.stmts)
            for i, k in product(range(len(turned)), range(2)):
                self.assign(i, j + k, matrix_name(data, weights), rows, turned[i][k])
        for j in self.present.keys() & set(range(paired, len(self.tile.ys))):
            self.singly(j)

    def row(self, j: int) -> Expr:
        """Return the data vector of an output position: padding outside of the data, zeros if the
        position does not take part.
        """
        y = self.present.get(j)
        none = Const(self.made.fill if j in self.present else 0, self.made.y.buffer.dtype, 8)
        return none if y is None else self.data(y, len(self.points))

    def data(self, y: Mapping[TileAxis, int], groups: int) -> Expr:
        """Return the load of the data of an output position."""
        return self.made.load(self.made.y, {**self.tile.names(y), **self.points[0]}, groups)

    def assign(self, i: int, j: int, name: str, *operands: Expr) -> None:
        """Emit the assignment acc[i, j] = name(acc[i, j], *operands)."""
        self.stmts.append(Assign(self.accs[i, j], call(name, self.accs[i, j], *operands)))

    def singly(self, j: int) -> None:
        """Emit the dot products of one output position, group by group."""
        y, made = self.present[j], self.made
        for at, row in zip(self.points, self.xs, strict=True):
            shared = made.outside if y is None else made.broadcast({**self.tile.names(y), **at})
            shared = kept("y", shared, self.stmts)
            self.stmts.extend(made.update(self.accs[i, j], x, shared) for i, x in enumerate(row))


def ordered(tile: Tile, accs: Accumulators) -> Iterator[Stmt]:
    """Yield statements that rearrange 2 x 2 results of matrix multiplies into one vector per
    position.
    """
    if tile.tiling.product.rows == 1:
        return
    for split, i, j in product(accs, range(len(tile.xs)), range(0, len(tile.ys) // 2 * 2, 2)):
        first, second = split[i, j], split[i, j + 1]
        stmts: list[Stmt] = []
        low = kept("low", call("half0", first, second), stmts)
        yield from (*stmts, Assign(second, call("half1", first, second)), Assign(first, low))
