# SPDX-License-Identifier: Apache-2.0
"""Rows of floats times a matrix of integers of few bits, which become floats in registers.

In: the sizes of a product.  Out: a program for a target:

    for tile of columns: for rows:
        for block of the depth:
            part = 0
            for word: for field: part += (float(field) - zero) * x        # in all columns of the tile
            acc += part * scale

or, where each integer has its scale first, as the definition says:

            for word: for field: acc += (float(field) - zero) * scale * x

The integers of a column that follow each other lie in words of 32 bits, the first in the lowest bits; the words of a
tile's columns lie side by side.  A field of b bits that is moved to the highest bits of the mantissa of 2.0 ** b makes
the float 2 ** b + field, so zero points have 2 ** b added, too: the difference is exact, and no integer is converted.
Vectors of 16 hold these differences for 4 bits and one zero point: fields are places in them.
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
#: Vectors of columns in a tile of one row, which also is how weights are laid out; of several rows.
VECTORS: Final = 4
_BESIDE_ROWS: Final = 2
#: Registers for constants and what is on its way.
_HELD: Final = 6
#: Digits of the mantissa, and what is added to exponents.
_MANTISSA: Final = 23
_BIAS: Final = 127
#: Registers for each row, and vector of columns.
_Sums: TypeAlias = Sequence[Sequence[Var]]


def column_tile(columns: int, target: Target) -> int:
    """Columns of a tile of packed weights."""
    lanes = target.lanes(FLOAT)
    return lanes * min(VECTORS, -(-columns // lanes))


@frozen
class PackedProduct:
    """y (rows, columns) = x (rows, depth) times the transpose of (columns, depth) integers of `bits` bits.

    The program takes x, words (tiles, words of a column, tile), scales (tiles, blocks, tile), and zero points like
    these, or one.

    block         neighbors in a column that have one scale; whole words, or the whole depth
    scale_first   each integer is multiplied by its scale, not the sum of a block, which may overflow before
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
        return self.rows * self.depth * self.columns


def packed_product(product: PackedProduct, target: Target) -> ExternProgram:
    """The program of a product for a target."""
    lanes = math.gcd(target.lanes(FLOAT), product.tile)
    edge = (Scratch(FLOAT, lanes, private=True),) if product.columns % lanes else ()
    return ExternProgram(lambda i, o, s: _Builder(product, target, lanes, (*i, *o, *s)).statement(), edge)


class _Builder:
    """The statements of a product over its buffers."""

    def __init__(self, product: PackedProduct, target: Target, lanes: int, buffers: Sequence[Buffer]) -> None:
        self.product, self.lanes = product, lanes
        self.x, self.packed, self.scale, self.zero, self.y, *self.edge = buffers
        most = product.tile // lanes
        self.vectors = most if product.rows == 1 else min(_BESIDE_ROWS, most)
        room = max(1, (target.registers - _HELD) // (2 * self.vectors))
        self.height = -(-product.rows // -(-product.rows // room))

    def statement(self) -> Stmt:
        whole, left = divmod(self.product.columns, self.product.tile)
        tile = Var("tile")
        stmts = [forall(tile, whole, Block(self._tile(tile, self.product.tile)))] if whole else []
        return Block([*stmts, *(self._tile(as_expr(whole), left) if left else ())])

    def _tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """All rows of a tile of columns, or of those of the last one, a few rows and vectors at a time."""
        size = self.vectors * self.lanes
        for first in range(0, columns, size):
            width = min(size, columns - first)
            count, left = divmod(self.product.rows, self.height)
            row = Var("row")
            yield forall(row, count, self._piece(tile, first, width, row * self.height, self.height))
            if left:
                yield self._piece(tile, first, width, as_expr(count * self.height), left)

    def _piece(self, tile: Expr, first: int, width: int, row: Expr, height: int) -> Stmt:
        piece = _Piece(self, tile, [first + v for v in range(0, width, self.lanes)], row, height)
        return Block((*piece.sums(), *self._stores(piece, width)))

    def _stores(self, piece: _Piece, width: int) -> Iterator[Stmt]:
        """The sums in the output; of the last vector what is in it."""
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
    """A few rows of a few vectors of columns: `acc` are their sums, `part` those of a block.

    firsts   the first columns of the vectors, in the tile
    table    the numbers that fields stand for, less the zero point, if one vector holds them
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
        """All blocks, the last one perhaps shorter."""
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
        """What a block adds to sums, each integer times a factor of its column, if there are any."""
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
        """What the integers of a word in each column add to sums."""
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
        """The integer in a field less the zero point."""
        if self.table is None:
            return self._real(word, field) - zero
        return call(PICKED, self.table, word >> self._bits(field * self.product.bits) if field else word)

    def _real(self, word: Expr, field: int) -> Expr:
        """2 ** bits + the integer in a field."""
        bits = self.product.bits
        low = _MANTISSA - bits
        shift = low - field * bits
        moved = word << self._bits(shift) if shift > 0 else word >> self._bits(-shift) if shift else word
        mask, power = ((1 << bits) - 1) << low, _BIAS + bits << _MANTISSA
        return bitcast(moved & self._bits(mask) | self._bits(power), FLOAT)

    def _zero(self, block: Expr, first: int) -> Expr:
        zero = self.builder.zero
        if zero.size == 1:
            return self._wide(Load(zero, as_expr(0)))
        return Load(zero, self._place(self.product.blocks, block, first), self.lanes)

    def _place(self, count: int, row: Expr, first: Operand) -> Expr:
        """Where a row of `count` begins that belong to the columns of a tile."""
        return (self.tile * count + row) * self.product.tile + first

    def _wide(self, value: Expr) -> Expr:
        return Broadcast(value, self.lanes) if self.lanes > 1 else value

    def _all(self, value: float) -> Expr:
        return Const(value, FLOAT, self.lanes)

    def _bits(self, value: int) -> Expr:
        return const(value, WORD, self.lanes)
