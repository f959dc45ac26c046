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
from aotc.tir import Assign, Block, Declare, ExternProgram, For, Stmt, Target, bind_to_new_register, forall
from aotc.tir.expr import Buffer, Const, Expr, Load, Pack, Var, as_expr, bitcast, call, const
from aotc.tir.int4_unpacking import INT4_VALUE_COUNT, TABLE_LOOKUP_INSTRUCTION
from aotc.tir.schedule.algorithms.column_tiles import ColumnTileBuilder, RegisterTile, scratch_of_partial_vector

FLOAT32: Final = DType("float32")
UINT32: Final = DType("uint32")
#: Bits of the mantissa of float32, and bias of its exponent.
_FLOAT32_MANTISSA_BITS: Final = 23
_FLOAT32_EXPONENT_BIAS: Final = 127
#: Accumulators for each row and vector of columns.
_AccumulatorGrid: TypeAlias = Sequence[Sequence[Var]]


def packed_weight_columns_per_tile(columns: int, target: Target) -> int:
    """Return the number of columns of a tile of packed low-bit weights, which is part of their
    layout.
    """
    lanes = target.lanes(FLOAT32)
    return lanes * min(target.tiles.low_bit_vectors, -(-columns // lanes))


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
    def integers_per_word(self) -> int:
        """Integers in a word."""
        return UINT32.bits // self.bits

    @property
    def words_per_column(self) -> int:
        """Words of a column."""
        return -(-self.depth // self.integers_per_word)

    @property
    def scales_per_column(self) -> int:
        """Scales of a column."""
        return -(-self.depth // self.block)

    @property
    def macs(self) -> int:
        """Number of multiply-adds of the product."""
        return self.rows * self.depth * self.columns


def build_packed_low_bit_weight_matmul(product: PackedProduct, target: Target) -> ExternProgram:
    """Return the program that multiplies float rows by a packed low-bit weight matrix on a target."""
    lanes = math.gcd(target.lanes(FLOAT32), product.tile)
    edge = scratch_of_partial_vector(product.columns, lanes)
    return ExternProgram(
        lambda i, o, s: _PackedProductBuilder(product, target, lanes, (*i, *o, *s)).build_loop_nest(), edge
    )


class _PackedProductBuilder(ColumnTileBuilder):
    """Builds the statements of a product of float rows and packed low-bit weights over its buffers."""

    def __init__(self, product: PackedProduct, target: Target, lanes: int, buffers: Sequence[Buffer]) -> None:
        self.x, self.packed, self.scale, self.zero, y, *edge = buffers
        super().__init__(product, lanes, y, edge)
        self.product = product
        most = product.tile // lanes
        self.vectors = most if product.rows == 1 else min(target.tiles.low_bit_vectors_of_rows, most)
        room = max(1, (target.registers - target.tiles.low_bit_registers) // (2 * self.vectors))
        self.height = -(-product.rows // -(-product.rows // room))

    def rows_of_tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of a tile (or of the narrower last tile), a few rows and
        vectors at a time.
        """
        size = self.vectors * self.lanes
        for first in range(0, columns, size):
            width = min(size, columns - first)
            count, left = divmod(self.product.rows, self.height)
            row = Var("row")
            yield forall(
                row, count, self._compute_and_store_register_tile(tile, first, width, row * self.height, self.height)
            )
            if left:
                yield self._compute_and_store_register_tile(tile, first, width, as_expr(count * self.height), left)

    def _compute_and_store_register_tile(
        self, tile: Expr, first_column: int, width: int, row: Expr, height: int
    ) -> Stmt:
        """Return the statements that compute and store `height` rows and `width` columns of the
        product.
        """
        piece = _RegisterTile(self, tile, [first_column + v for v in range(0, width, self.lanes)], row, height)
        return Block((*piece.accumulate_all_weight_blocks(), *self.store_register_tile(piece, width)))


class _RegisterTile(RegisterTile):
    """A few rows of a few vectors of columns, with float sums.

    table    vector of the floats that fields stand for, minus the zero point, if one vector holds
             them
    """

    table: Var | None = None

    def __init__(
        self, builder: _PackedProductBuilder, tile: Expr, firsts: Sequence[int], row: Expr, height: int
    ) -> None:
        super().__init__(builder, tile, firsts, row, height, FLOAT32)
        self.builder, self.product = builder, builder.product

    def accumulate_all_weight_blocks(self) -> list[Stmt]:
        """Return the statements that accumulate all blocks of the depth; the last block may be
        shorter.
        """
        product, block = self.product, Var("block")
        whole, left = divmod(product.depth, product.block)
        stmts: list[Stmt] = [Declare(acc, self._float_constant_vector(0.0)) for row in self.acc for acc in row]
        if self.lanes == INT4_VALUE_COUNT == 1 << product.bits and self.builder.zero.size == 1:
            values = Pack(tuple(const(INT4_VALUE_COUNT + k, FLOAT32) for k in range(INT4_VALUE_COUNT)))
            self.table = bind_to_new_register(
                "table", values - self._zero_points_of_column_vector(as_expr(0), 0), stmts
            )
        if whole:
            stmts.append(
                For(block, whole, Block(self._accumulate_scaled_weight_block(block, product.block)), kind="reduction")
            )
        return stmts + (self._accumulate_scaled_weight_block(as_expr(whole), left) if left else [])

    def _accumulate_scaled_weight_block(self, block: Expr, depth: int) -> list[Stmt]:
        """Return the statements that add the products of a block of `depth` low-bit weights to the
        accumulators.
        """
        places = [self.address_in_tiles(self.product.scales_per_column, block, first) for first in self.firsts]
        scales = [Load(self.builder.scale, place, self.lanes) for place in places]
        if self.product.scale_first:
            stmts: list[Stmt] = []
            factors = [bind_to_new_register("scale", scale, stmts) for scale in scales]
            return stmts + self._accumulate_weight_block(block, depth, self.acc, factors)
        stmts = [Declare(part, self._float_constant_vector(0.0)) for row in self.part for part in row]
        stmts += self._accumulate_weight_block(block, depth, self.part, ())
        for accs, parts in zip(self.acc, self.part, strict=True):
            for acc, part, scale in zip(accs, parts, scales, strict=True):
                stmts.append(Assign(acc, acc + part * scale))
        return stmts

    def _accumulate_weight_block(
        self, block: Expr, depth: int, sums: _AccumulatorGrid, weight_factors: Sequence[Expr]
    ) -> list[Stmt]:
        """Return the statements that add the products of a block of weights to `sums`,
        each weight times its factor, if factors are given.
        """
        stmts: list[Stmt] = []
        zeros: list[Expr] = [
            bind_to_new_register("zero", self._zero_points_of_column_vector(block, first), stmts)
            if self.table is None
            else self.table
            for first in self.firsts
        ]

        def accumulate_word(word: Expr, count: int) -> list[Stmt]:
            return self._accumulate_products_of_packed_word(word, count, zeros, weight_factors, sums)

        fields, start = self.product.integers_per_word, block * (self.product.block // self.product.integers_per_word)
        words, left = divmod(depth, fields)
        word = Var("word")
        if words:
            step = Block(accumulate_word(start + word, fields))
            stmts.append(For(word, words, step, kind="reduction"))
        return stmts + (accumulate_word(start + words, left) if left else [])

    def _accumulate_products_of_packed_word(
        self, word: Expr, fields: int, zeros: Sequence[Expr], factors: Sequence[Expr], sums: _AccumulatorGrid
    ) -> list[Stmt]:
        """Return the statements that add the products of the weights in one word per column to
        `sums`.
        """
        stmts: list[Stmt] = []
        places = [self.address_in_tiles(self.product.words_per_column, word, first) for first in self.firsts]
        words = [bind_to_new_register("w", Load(self.builder.packed, place, self.lanes), stmts) for place in places]
        for field in range(fields):
            weights = [self._weight_minus_zero_point(w, field, zero) for w, zero in zip(words, zeros, strict=True)]
            if factors:
                weights = [value * factor for value, factor in zip(weights, factors, strict=True)]
            if len(sums) > 1:
                weights = [bind_to_new_register("real", value, stmts) for value in weights]
            for r, row in enumerate(sums):
                at = (self.row + r) * self.product.depth + word * self.product.integers_per_word + field
                x = bind_to_new_register("x", self.broadcast_to_lanes(Load(self.builder.x, at)), stmts)
                stmts += (Assign(acc, acc + value * x) for acc, value in zip(row, weights, strict=True))
        return stmts

    def _weight_minus_zero_point(self, word: Expr, field: int, zero: Expr) -> Expr:
        """Return a low-bit integer in a field of a word minus its zero point, as a float."""
        if self.table is None:
            return self._packed_weight_plus_2_pow_bits_as_float(word, field) - zero
        return call(
            TABLE_LOOKUP_INSTRUCTION,
            self.table,
            word >> self._uint32_constant_vector(field * self.product.bits) if field else word,
        )

    def _packed_weight_plus_2_pow_bits_as_float(self, word: Expr, field: int) -> Expr:
        """Return 2 ** bits plus the low-bit integer in a field of a word, as a float built by bit
        operations.
        """
        bits = self.product.bits
        low = _FLOAT32_MANTISSA_BITS - bits
        shift = low - field * bits
        shifted_word = (
            word << self._uint32_constant_vector(shift)
            if shift > 0
            else word >> self._uint32_constant_vector(-shift)
            if shift
            else word
        )
        mask, power = ((1 << bits) - 1) << low, _FLOAT32_EXPONENT_BIAS + bits << _FLOAT32_MANTISSA_BITS
        return bitcast(shifted_word & self._uint32_constant_vector(mask) | self._uint32_constant_vector(power), FLOAT32)

    def _zero_points_of_column_vector(self, block: Expr, first_column: int) -> Expr:
        """Return the zero points of the columns of a vector, for one block of the depth."""
        zero = self.builder.zero
        if zero.size == 1:
            return self.broadcast_to_lanes(Load(zero, as_expr(0)))
        return Load(zero, self.address_in_tiles(self.product.scales_per_column, block, first_column), self.lanes)

    def _float_constant_vector(self, value: float) -> Expr:
        """Return a vector of floats with a constant in all lanes."""
        return Const(value, FLOAT32, self.lanes)

    def _uint32_constant_vector(self, value: int) -> Expr:
        """Return a vector of 32-bit words with a constant in all lanes."""
        return const(value, UINT32, self.lanes)
