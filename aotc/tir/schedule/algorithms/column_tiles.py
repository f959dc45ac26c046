# SPDX-License-Identifier: Apache-2.0
"""Products of rows and a weight matrix that is stored in tiles of adjacent columns: the loops over tiles, the registers
of a few rows and columns, and the stores, in common for weights of few bits as floats and as integers.

class _ProductBuilder(ColumnTileBuilder):
    def rows_of_tile(self, tile, columns):          # loops over rows, which end with store_register_tile
        ...
_ProductBuilder(product, lanes, buffers).build_loop_nest()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from aotc.ir import Dim, DType, frozen
from aotc.tir import Block, Scratch, Stmt, Store, forall
from aotc.tir.expr import Broadcast, Buffer, Expr, Load, Operand, Var, as_expr

_FLOAT32 = DType("float32")


class ColumnTiledProduct(Protocol):
    """Sizes of a product.

    columns   columns of the weight matrix and of the result
    tile      columns of a tile
    """

    @property
    def columns(self) -> int: ...

    @property
    def tile(self) -> int: ...


def scratch_of_partial_vector(columns: int, lanes: int) -> tuple[Scratch, ...]:
    """Return the scratch buffer from which the last columns are stored if they do not fill a vector."""
    return (Scratch(_FLOAT32, lanes, private=True),) if columns % lanes else ()


@frozen
class RowGroups:
    """`count` groups of `height` adjacent rows, the first of which begins at the row `begin`."""

    height: int
    count: Expr
    begin: Expr

    def loop(self, statements_of_rows: Callable[[Expr, int], Stmt]) -> Stmt:
        """Return the loop over the groups; `statements_of_rows` gets the first row and the number of rows of one."""
        group = Var("row")
        return forall(group, self.count, statements_of_rows(self.begin + group * self.height, self.height))


def groups_of_rows(rows: Dim, height: int) -> Iterator[RowGroups]:
    """Yield groups of `height` rows, and the rows that are left: as one group, or in groups of half the height, of half
    of that and so on if their number is known at run time only.
    """
    if isinstance(rows, int):
        count, last = divmod(rows, height)
        yield RowGroups(height, as_expr(count), as_expr(0))
        if last:
            yield RowGroups(last, as_expr(1), as_expr(count * height))
        return
    begin, left = as_expr(0), as_expr(rows)
    while height:
        groups = left // height
        yield RowGroups(height, groups, begin)
        begin, left, height = begin + groups * height, left - groups * height, height // 2


class ColumnTileBuilder:
    """Builds the statements of a product over its buffers. A subclass gives `rows_of_tile`.

    y       the result, float32 (rows, columns)
    edge    the buffer of `scratch_of_partial_vector`, if there is one
    lanes   columns of a vector, a divisor of the columns of a tile
    """

    def __init__(self, product: ColumnTiledProduct, lanes: int, y: Buffer, edge: Sequence[Buffer]) -> None:
        self.lanes, self.y, self.edge = lanes, y, edge
        self.columns, self.columns_of_tile = product.columns, product.tile

    def build_loop_nest(self) -> Stmt:
        """Return the loop over all tiles of columns; the last one may have fewer columns."""
        whole, left = divmod(self.columns, self.columns_of_tile)
        tile = Var("tile")
        stmts = [forall(tile, whole, Block(self.rows_of_tile(tile, self.columns_of_tile)))] if whole else []
        return Block([*stmts, *(self.rows_of_tile(as_expr(whole), left) if left else ())])

    def rows_of_tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of the first `columns` columns of a tile."""
        raise NotImplementedError

    def store_register_tile(self, register_tile: RegisterTile, width: int) -> Iterator[Stmt]:
        """Yield the stores of the sums of `width` columns; of a partial last vector, only those of columns that
        exist.
        """
        for r, row in enumerate(register_tile.acc):
            start = (register_tile.row + r) * self.columns + register_tile.tile * self.columns_of_tile
            for v, acc in enumerate(row):
                place, left = start + register_tile.firsts[v], width - v * self.lanes
                if left >= self.lanes:
                    yield Store(self.y, place, acc)
                    continue
                lane = Var("lane")
                yield Store(self.edge[0], as_expr(0), acc)
                yield forall(lane, left, Store(self.y, place + lane, Load(self.edge[0], lane)))


class RegisterTile:
    """A few rows of a few vectors of columns.

    acc      sums of the product, float32
    part     sums of the current block, of the dtype `part_dtype`
    firsts   the first column of each vector, relative to the tile
    row      the first row
    """

    def __init__(
        self,
        builder: ColumnTileBuilder,
        tile: Expr,
        firsts: Sequence[Operand],
        row: Expr,
        height: int,
        part_dtype: DType,
    ) -> None:
        self.lanes, self.tile, self.firsts, self.row = builder.lanes, tile, firsts, row
        self._columns_of_tile = builder.columns_of_tile
        self.acc, self.part = (
            [[Var(f"{name}{r}_{v}", dtype, self.lanes) for v in range(len(firsts))] for r in range(height)]
            for name, dtype in (("acc", _FLOAT32), ("part", part_dtype))
        )

    def address_in_tiles(self, rows_per_tile: int, row: Expr, first_column: Operand) -> Expr:
        """Return the address of a row of the tile in an array (tiles, rows_per_tile, columns of a tile)."""
        return (self.tile * rows_per_tile + row) * self._columns_of_tile + first_column

    def broadcast_to_lanes(self, value: Expr) -> Expr:
        """Return a scalar in all lanes of a vector."""
        return Broadcast(value, self.lanes) if self.lanes > 1 else value
