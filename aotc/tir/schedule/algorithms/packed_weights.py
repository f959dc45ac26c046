# SPDX-License-Identifier: Apache-2.0
"""Product of float rows and a weight matrix quantized to few bits, whose integers are converted to
float in registers.

Input: the sizes of a product. Output: a program for a target:

    for tile of columns: for rows:
        for block of the depth:
            part = 0
            for word: for field: part += (float(field) - zero) * x        # in all columns of the tile
            acc += part * scale

or, if each integer is multiplied by its scale first, as the definition says:

            for word: for field: acc += (float(field) - zero) * scale * x

Consecutive integers of a column are packed in 32-bit words, the first in the lowest bits; the words
of a tile's columns are adjacent. Shifting a field of b bits to the highest bits of the mantissa of
2.0 ** b gives the float 2 ** b + field. Zero points have 2 ** b added as well, so that the
difference is exact and no integer conversion is needed. For 4 bits with a single zero point, a
vector of 16 elements is a table of these differences, indexed by the fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from aotc.ir import DType, frozen
from aotc.tir import Assign, Block, Declare, ExternProgram, For, Scratch, Stmt, Store, Target, forall, kept
from aotc.tir.expr import Broadcast, Buffer, Const, Expr, Load, Operand, Pack, Var, as_expr, bitcast, call, const
from aotc.tir.int4_unpacking import COUNT, PICKED

FLOAT: Final = DType("float32")
WORD: Final = DType("uint32")
#: Vectors of columns in a tile for a single row, which is also the layout of the weights; then the
#: number for several rows.
VECTORS: Final = 4
_BESIDE_ROWS: Final = 2
#: Registers for constants and temporaries.
_HELD: Final = 6
#: Bits of the mantissa of float32, and bias of its exponent.
_MANTISSA: Final = 23
_BIAS: Final = 127
#: Accumulators for each row and vector of columns.
_Sums: TypeAlias = Sequence[Sequence[Var]]


def column_tile(columns: int, target: Target) -> int:
    """Return the number of columns of a tile of packed low-bit weights, which is part of their
    layout.
    """
    lanes = target.lanes(FLOAT)
    return lanes * min(VECTORS, -(-columns // lanes))


@frozen
class PackedProduct:
    """y (rows, columns) = x (rows, depth) times the transpose of (columns, depth) integers of
    `bits` bits.

    The program's arguments are x, words (tiles, words of a column, tile), scales (tiles, blocks,
    tile), and zero points of the shape of the scales, or a single one.

    rows, depth, columns, bits   sizes of the product
    block                        consecutive integers of a column with a common scale; whole words,
                                 or the whole depth
    tile                         columns of a tile
    scale_first                  multiply each integer by its scale instead of the sum of a block,
                                 which might overflow
    """

    rows: int
    depth: int
    columns: int
    bits: int
    block: int
    tile: int
    scale_first: bool = False

    @property
    def fields(self) -> int:
        """Integers in a word."""
        return WORD.bits // self.bits

    @property
    def words(self) -> int:
        """Words of a column."""
        return -(-self.depth // self.fields)

    @property
    def blocks(self) -> int:
        """Scales of a column."""
        return -(-self.depth // self.block)

    @property
    def macs(self) -> int:
        """Number of multiply-adds of the product."""
        return self.rows * self.depth * self.columns


def packed_product(product: PackedProduct, target: Target) -> ExternProgram:
    """Return the program that multiplies float rows by a packed low-bit weight matrix on a target."""
    lanes = math.gcd(target.lanes(FLOAT), product.tile)
    edge = (Scratch(FLOAT, lanes, private=True),) if product.columns % lanes else ()
    return ExternProgram(lambda i, o, s: _Builder(product, target, lanes, (*i, *o, *s)).statement(), edge)


class _Builder:
    """Builds the statements of a product of float rows and packed low-bit weights over its buffers."""

    def __init__(self, product: PackedProduct, target: Target, lanes: int, buffers: Sequence[Buffer]) -> None:
        self.product, self.lanes = product, lanes
        self.x, self.packed, self.scale, self.zero, self.y, *self.edge = buffers
        most = product.tile // lanes
        self.vectors = most if product.rows == 1 else min(_BESIDE_ROWS, most)
        room = max(1, (target.registers - _HELD) // (2 * self.vectors))
        self.height = -(-product.rows // -(-product.rows // room))

    def statement(self) -> Stmt:
        """Return the loop over all tiles of columns of the product."""
        whole, left = divmod(self.product.columns, self.product.tile)
        tile = Var("tile")
        stmts = [forall(tile, whole, Block(self._tile(tile, self.product.tile)))] if whole else []
        return Block([*stmts, *(self._tile(as_expr(whole), left) if left else ())])

    def _tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of a tile (or of the narrower last tile), a few rows and
        vectors at a time.
        """
        size = self.vectors * self.lanes
        for first in range(0, columns, size):
            width = min(size, columns - first)
            count, left = divmod(self.product.rows, self.height)
            row = Var("row")
            yield forall(row, count, self._piece(tile, first, width, row * self.height, self.height))
            if left:
                yield self._piece(tile, first, width, as_expr(count * self.height), left)

    def _piece(self, tile: Expr, first: int, width: int, row: Expr, height: int) -> Stmt:
        """Return the statements that compute and store `height` rows and `width` columns of the
        product.
        """
        piece = _Piece(self, tile, [first + v for v in range(0, width, self.lanes)], row, height)
        return Block((*piece.sums(), *self._stores(piece, width)))

    def _stores(self, piece: _Piece, width: int) -> Iterator[Stmt]:
        """Yield the stores of a register tile's sums; of a partial last vector, only the columns
        that exist.
        """
        for r, row in enumerate(piece.acc):
            start = (piece.row + r) * self.product.columns + piece.tile * self.product.tile
            for v, acc in enumerate(row):
                place, left = start + piece.firsts[v], width - v * self.lanes
                if left >= self.lanes:
                    yield Store(self.y, place, acc)
                    continue
                lane = Var("lane")
                yield Store(self.edge[0], as_expr(0), acc)
                yield forall(lane, left, Store(self.y, place + lane, Load(self.edge[0], lane)))


class _Piece:
    """A register tile: a few rows of a few vectors of columns.

    acc      accumulators
    part     sums of the current block
    firsts   the first column of each vector, relative to the tile
    table    vector of the floats that fields stand for, minus the zero point, if one vector holds
             them
    """

    table: Var | None = None

    def __init__(self, builder: _Builder, tile: Expr, firsts: Sequence[int], row: Expr, height: int) -> None:
        self.builder, self.product, self.lanes = builder, builder.product, builder.lanes
        self.tile, self.firsts, self.row = tile, firsts, row
        self.acc, self.part = (
            [[Var(f"{name}{r}_{v}", FLOAT, self.lanes) for v in range(len(firsts))] for r in range(height)]
            for name in ("acc", "part")
        )

    def sums(self) -> list[Stmt]:
        """Return the statements that accumulate all blocks of the depth; the last block may be
        shorter.
        """
        product, block = self.product, Var("block")
        whole, left = divmod(product.depth, product.block)
        stmts: list[Stmt] = [Declare(acc, self._all(0.0)) for row in self.acc for acc in row]
        if self.lanes == COUNT == 1 << product.bits and self.builder.zero.size == 1:
            values = Pack(tuple(const(COUNT + k, FLOAT) for k in range(COUNT)))
            self.table = kept("table", values - self._zero(as_expr(0), 0), stmts)
        if whole:
            stmts.append(For(block, whole, Block(self._block(block, product.block)), kind="reduction"))
        return stmts + (self._block(as_expr(whole), left) if left else [])

    def _block(self, block: Expr, depth: int) -> list[Stmt]:
        """Return the statements that add the products of a block of `depth` low-bit weights to the
        accumulators.
        """
        places = [self._place(self.product.blocks, block, first) for first in self.firsts]
        scales = [Load(self.builder.scale, place, self.lanes) for place in places]
        if self.product.scale_first:
            stmts: list[Stmt] = []
            factors = [kept("scale", scale, stmts) for scale in scales]
            return stmts + self._sum(block, depth, self.acc, factors)
        stmts = [Declare(part, self._all(0.0)) for row in self.part for part in row]
        stmts += self._sum(block, depth, self.part, ())
        for accs, parts in zip(self.acc, self.part, strict=True):
            for acc, part, scale in zip(accs, parts, scales, strict=True):
                stmts.append(Assign(acc, acc + part * scale))
        return stmts

    def _sum(self, block: Expr, depth: int, sums: _Sums, factors: Sequence[Expr]) -> list[Stmt]:
        """Return the statements that add the products of a block of weights to `sums`, each weight
        times its factor, if given.
        """
        stmts: list[Stmt] = []
        zeros: list[Expr] = [self.table or kept("zero", self._zero(block, first), stmts) for first in self.firsts]

        def added(word: Expr, count: int) -> list[Stmt]:
            return self._word(word, count, zeros, factors, sums)

        fields, start = self.product.fields, block * (self.product.block // self.product.fields)
        words, left = divmod(depth, fields)
        word = Var("word")
        if words:
            step = Block(added(start + word, fields))
            stmts.append(For(word, words, step, kind="reduction"))
        return stmts + (added(start + words, left) if left else [])

    def _word(self, word: Expr, fields: int, zeros: Sequence[Expr], factors: Sequence[Expr], sums: _Sums) -> list[Stmt]:
        """Return the statements that add the products of the weights in one word per column to
        `sums`.
        """
        stmts: list[Stmt] = []
        places = [self._place(self.product.words, word, first) for first in self.firsts]
        words = [kept("w", Load(self.builder.packed, place, self.lanes), stmts) for place in places]
        for field in range(fields):
            found = [self._less(w, field, zero) for w, zero in zip(words, zeros, strict=True)]
            if factors:
                found = [value * factor for value, factor in zip(found, factors, strict=True)]
            if len(sums) > 1:
                found = [kept("real", value, stmts) for value in found]
            for r, row in enumerate(sums):
                at = (self.row + r) * self.product.depth + word * self.product.fields + field
                x = kept("x", self._wide(Load(self.builder.x, at)), stmts)
                stmts += (Assign(acc, acc + value * x) for acc, value in zip(row, found, strict=True))
        return stmts

    def _less(self, word: Expr, field: int, zero: Expr) -> Expr:
        """Return a low-bit integer in a field of a word minus its zero point, as a float."""
        if self.table is None:
            return self._real(word, field) - zero
        return call(PICKED, self.table, word >> self._bits(field * self.product.bits) if field else word)

    def _real(self, word: Expr, field: int) -> Expr:
        """Return 2 ** bits plus the low-bit integer in a field of a word, as a float built by bit
        operations.
        """
        bits = self.product.bits
        low = _MANTISSA - bits
        shift = low - field * bits
        moved = word << self._bits(shift) if shift > 0 else word >> self._bits(-shift) if shift else word
        mask, power = ((1 << bits) - 1) << low, _BIAS + bits << _MANTISSA
        return bitcast(moved & self._bits(mask) | self._bits(power), FLOAT)

    def _zero(self, block: Expr, first: int) -> Expr:
        """Return the zero points of the columns of a vector, for one block of the depth."""
        zero = self.builder.zero
        if zero.size == 1:
            return self._wide(Load(zero, as_expr(0)))
        return Load(zero, self._place(self.product.blocks, block, first), self.lanes)

    def _place(self, count: int, row: Expr, first: Operand) -> Expr:
        """Return the address of a row of a column tile in an array with `count` rows per tile."""
        return (self.tile * count + row) * self.product.tile + first

    def _wide(self, value: Expr) -> Expr:
        """Return a scalar expression broadcast to all lanes."""
        return Broadcast(value, self.lanes) if self.lanes > 1 else value

    def _all(self, value: float) -> Expr:
        """Return a vector of floats with a constant in all lanes."""
        return Const(value, FLOAT, self.lanes)

    def _bits(self, value: int) -> Expr:
        """Return a vector of 32-bit words with a constant in all lanes."""
        return const(value, WORD, self.lanes)
