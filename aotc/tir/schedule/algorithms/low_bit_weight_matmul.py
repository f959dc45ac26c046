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

Many rows reuse the floats: those of a few columns and a part of the depth, which the first-level cache holds, are
written to scratch memory first:

    for tile of columns: y = 0
        for part of the depth:
            for word: for field: panel = (float(field) - zero) * scale
            for rows: y += x * panel

Consecutive integers of a column are packed in 32-bit words, the first in the lowest bits; the words
of a tile's columns are adjacent. Shifting a field of b bits to the highest bits of the mantissa of
2.0 ** b gives the float 2 ** b + field. Zero points have 2 ** b added as well, so that the
difference is exact and no integer conversion is needed. For 4 bits with a single zero point, a
vector of 16 elements is a table of these differences, indexed by the fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from aotc.ir import Dim, DType, frozen, largest_size
from aotc.tir import (
    Assign,
    Block,
    Declare,
    ExternProgram,
    For,
    If,
    Scratch,
    Stmt,
    Store,
    Target,
    bind_to_new_register,
    forall,
)
from aotc.tir.expr import Buffer, Const, Expr, Load, Operand, Pack, Var, as_expr, bitcast, call, const
from aotc.tir.int4_unpacking import INT4_VALUE_COUNT, TABLE_LOOKUP_INSTRUCTION
from aotc.tir.schedule.algorithms.column_tiles import (
    ColumnTileBuilder,
    RegisterTile,
    groups_of_rows,
    scratch_of_partial_vector,
)

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

    rows: Dim
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
        """Number of multiply-adds of the product with the most rows."""
        return largest_size(self.rows) * self.depth * self.columns


def _balanced_height(rows: Dim, most: int) -> int:
    """Return the height of almost equal groups of rows, or the greatest one if the number of rows is not known."""
    return -(-rows // -(-rows // most)) if isinstance(rows, int) else most


@frozen
class _Panel:
    """Weights of a few columns and a part of the depth as floats, in scratch memory.

    vectors   vectors of columns
    words     words of each column in a whole part; parts are almost equal
    depth     integers of each column in a whole part
    height    rows that are multiplied at a time
    """

    vectors: int
    words: int
    depth: int
    height: int


def _panel_of_product(product: PackedProduct, lanes: int, target: Target) -> _Panel | None:
    """Return the panel of a product whose rows may be so many that they are multiplied by floats in memory, else
    None.
    """
    if lanes == 1 or largest_size(product.rows) < target.tiles.min_panel_rows:
        return None
    vectors = min(target.tiles.low_bit_vectors_of_rows, product.tile // lanes)
    row_bytes = vectors * lanes * FLOAT32.itemsize
    most = max(1, int(target.tiles.panel_l1_share * target.l1) // (row_bytes * product.integers_per_word))
    words = -(-product.words_per_column // -(-product.words_per_column // most))
    # besides the sums: the weights of all columns, and an element of the data
    height = max(1, (target.registers - vectors - 2) // vectors)
    return _Panel(vectors, words, words * product.integers_per_word, height)


def build_packed_low_bit_weight_matmul(product: PackedProduct, target: Target) -> ExternProgram:
    """Return the program that multiplies float rows by a packed low-bit weight matrix on a target."""
    lanes = math.gcd(target.lanes(FLOAT32), product.tile)
    panel = _panel_of_product(product, lanes, target)
    scratch = scratch_of_partial_vector(product.columns, lanes)
    if panel is not None:
        scratch = (Scratch(FLOAT32, panel.depth * panel.vectors * lanes, private=True), *scratch)
    return ExternProgram(
        lambda i, o, s: _PackedProductBuilder(product, target, lanes, panel, (*i, *o), s).build_loop_nest(), scratch
    )


class _PackedProductBuilder(ColumnTileBuilder):
    """Builds the statements of a product of float rows and packed low-bit weights over its buffers."""

    def __init__(
        self,
        product: PackedProduct,
        target: Target,
        lanes: int,
        panel: _Panel | None,
        arguments: Sequence[Buffer],
        scratch: Sequence[Buffer],
    ) -> None:
        self.x, self.packed, self.scale, self.zero, y = arguments
        super().__init__(product, lanes, y, scratch if panel is None else scratch[1:])
        self.product, self.panel, self.panel_buffer = product, panel, scratch[0] if panel else None
        self.min_panel_rows = target.tiles.min_panel_rows
        self.most_vectors = product.tile // lanes
        few = min(target.tiles.low_bit_vectors_of_rows, self.most_vectors)
        self.vectors = self.most_vectors if product.rows == 1 else few
        room = max(1, (target.registers - target.tiles.low_bit_registers) // (2 * self.vectors))
        self.height = _balanced_height(product.rows, room)

    def rows_of_tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of a tile (or of the narrower last tile), a few rows and
        vectors at a time.
        """
        # the columns of a partial vector have no places in y from which a later part of the depth continues
        by_panel = 0 if self.panel is None else columns - columns % self.lanes
        if self.panel is not None and by_panel:
            has_many_rows = as_expr(self.product.rows) >= self.min_panel_rows
            multiply = Block(self._multiply_by_panels(self.panel, tile, by_panel))
            yield If(has_many_rows, multiply, Block(self._unpack_in_registers(tile, 0, by_panel)))
        if by_panel < columns:
            yield from self._unpack_in_registers(tile, by_panel, columns)

    def _multiply_by_panels(self, panel: _Panel, tile: Expr, end: int) -> Iterator[Stmt]:
        """Yield the statements of the panels of the first `end` columns of a tile; the last one may have fewer
        columns.
        """
        size = panel.vectors * self.lanes
        for first in range(0, end, size):
            firsts = range(first, min(first + size, end), self.lanes)
            yield from _PanelProduct(self, panel, tile, firsts).multiply_all_rows()

    def _unpack_in_registers(self, tile: Expr, begin: int, end: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of columns of a tile, in which each group of rows unpacks the weights."""
        for group in groups_of_rows(self.product.rows, self.height):
            vectors = self.vectors if isinstance(self.product.rows, int) or group.height > 1 else self.most_vectors
            size = vectors * self.lanes
            for first in range(begin, end, size):
                width = min(size, end - first)
                yield group.loop(partial(self._compute_and_store_register_tile, tile, first, width))

    def _compute_and_store_register_tile(
        self, tile: Expr, first_column: int, width: int, row: Expr, height: int
    ) -> Stmt:
        """Return the statements that compute and store `height` rows and `width` columns of the
        product.
        """
        piece = _RegisterTile(self, tile, [first_column + v for v in range(0, width, self.lanes)], row, height)
        return Block((*piece.accumulate_all_weight_blocks(), *self.store_register_tile(piece, width)))


class _PanelProduct:
    """The product of all rows and a few vectors of columns, whose weights a panel holds part by part."""

    def __init__(self, builder: _PackedProductBuilder, panel: _Panel, tile: Expr, firsts: Sequence[int]) -> None:
        self.builder, self.panel, self.tile, self.firsts = builder, panel, tile, firsts
        self.product, self.lanes, self.width = builder.product, builder.lanes, len(firsts) * builder.lanes
        assert builder.panel_buffer is not None
        self.weights = builder.panel_buffer

    def multiply_all_rows(self) -> Iterator[Stmt]:
        """Yield the statements that store the products of all rows."""
        nothing = Const(0.0, FLOAT32, self.lanes)
        row = Var("row")
        places = [row * self.builder.columns + self.tile * self.product.tile + first for first in self.firsts]
        yield forall(row, as_expr(self.product.rows), Block([Store(self.builder.y, at, nothing) for at in places]))
        words, left = divmod(self.product.depth, self.product.integers_per_word)
        count, words_left = divmod(words, self.panel.words)
        part = Var("part")
        if count:
            yield For(part, count, Block(self._add_part(part * self.panel.words, self.panel.words, 0)))
        if words_left or left:
            yield from self._add_part(as_expr(count * self.panel.words), words_left, left)

    def _add_part(self, first_word: Expr, words: int, fields_of_last_word: int) -> Iterator[Stmt]:
        """Yield the statements that unpack some words of each column, and perhaps some fields of the next one, and
        add their products to the result.
        """
        fields, word = self.product.integers_per_word, Var("word")
        unpacked = _RegisterTile(self.builder, self.tile, self.firsts, as_expr(0), 0)
        yield from unpacked.declare_table()
        if words:
            yield forall(word, words, Block(self._unpack_word(unpacked, first_word + word, word * fields, fields)))
        if fields_of_last_word:
            yield from self._unpack_word(unpacked, first_word + words, as_expr(words * fields), fields_of_last_word)
        depth = words * fields + fields_of_last_word
        for group in groups_of_rows(self.product.rows, _balanced_height(self.product.rows, self.panel.height)):
            yield group.loop(partial(self._add_products_of_rows, first_word * fields, depth))

    def _add_products_of_rows(self, position: Expr, depth: int, row: Expr, height: int) -> Stmt:
        """Return the statements that add the products of the panel and of `depth` elements from `position` on to the
        sums of `height` rows.
        """
        tile, k = _RegisterTile(self.builder, self.tile, self.firsts, row, height), Var("k")
        stmts: list[Stmt] = []
        for r, accs in enumerate(tile.acc):
            start = (row + r) * self.builder.columns + self.tile * self.product.tile
            for acc, first in zip(accs, self.firsts, strict=True):
                stmts.append(Declare(acc, Load(self.builder.y, start + first, self.lanes)))
        step = Block(self._add_products_of_element(tile, position + k, k))
        stmts.append(For(k, depth, step, kind="reduction"))
        return Block((*stmts, *self.builder.store_register_tile(tile, self.width)))

    def _unpack_word(self, unpacked: _RegisterTile, word: Expr, row: Expr, fields: int) -> Iterator[Stmt]:
        """Yield the statements that write the floats of a word of each column to rows of the panel."""
        product = self.product
        block = word * product.integers_per_word // product.block if product.scales_per_column > 1 else as_expr(0)
        for v, first in enumerate(self.firsts):
            stmts: list[Stmt] = []
            at = unpacked.address_in_tiles(product.words_per_column, word, first)
            packed = bind_to_new_register("w", Load(self.builder.packed, at, self.lanes), stmts)
            zero = unpacked.table
            if zero is None:
                zero = bind_to_new_register("zero", unpacked.zero_points_of_column_vector(block, first), stmts)
            scale = bind_to_new_register("scale", unpacked.scales_of_column_vector(block, first), stmts)
            yield from stmts
            for field in range(fields):
                real = unpacked.weight_minus_zero_point(packed, field, zero) * scale
                yield Store(self.weights, (row + field) * self.width + v * self.lanes, real)

    def _add_products_of_element(self, rows: _RegisterTile, position: Expr, row: Expr) -> list[Stmt]:
        """Return the statements that add the products of one element of each row to the sums."""
        stmts: list[Stmt] = []
        places = range(0, self.width, self.lanes)
        reals = [
            bind_to_new_register("real", Load(self.weights, row * self.width + place, self.lanes), stmts)
            for place in places
        ]
        for r, accs in enumerate(rows.acc):
            x = Load(self.builder.x, (rows.row + r) * self.product.depth + position)
            data = bind_to_new_register("x", rows.broadcast_to_lanes(x), stmts)
            stmts += (Assign(acc, acc + real * data) for acc, real in zip(accs, reals, strict=True))
        return stmts


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
        stmts += self.declare_table()
        if whole:
            stmts.append(
                For(block, whole, Block(self._accumulate_scaled_weight_block(block, product.block)), kind="reduction")
            )
        return stmts + (self._accumulate_scaled_weight_block(as_expr(whole), left) if left else [])

    def declare_table(self) -> list[Stmt]:
        """Return the statements that fill the table of the floats that fields stand for, if one vector holds them."""
        stmts: list[Stmt] = []
        if self.lanes == INT4_VALUE_COUNT == 1 << self.product.bits and self.builder.zero.size == 1:
            values = Pack(tuple(const(INT4_VALUE_COUNT + k, FLOAT32) for k in range(INT4_VALUE_COUNT)))
            self.table = bind_to_new_register("table", values - self.zero_points_of_column_vector(as_expr(0), 0), stmts)
        return stmts

    def _accumulate_scaled_weight_block(self, block: Expr, depth: int) -> list[Stmt]:
        """Return the statements that add the products of a block of `depth` low-bit weights to the
        accumulators.
        """
        scales = [self.scales_of_column_vector(block, first) for first in self.firsts]
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
            bind_to_new_register("zero", self.zero_points_of_column_vector(block, first), stmts)
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
            weights = [self.weight_minus_zero_point(w, field, zero) for w, zero in zip(words, zeros, strict=True)]
            if factors:
                weights = [value * factor for value, factor in zip(weights, factors, strict=True)]
            if len(sums) > 1:
                weights = [bind_to_new_register("real", value, stmts) for value in weights]
            for r, row in enumerate(sums):
                at = (self.row + r) * self.product.depth + word * self.product.integers_per_word + field
                x = bind_to_new_register("x", self.broadcast_to_lanes(Load(self.builder.x, at)), stmts)
                stmts += (Assign(acc, acc + value * x) for acc, value in zip(row, weights, strict=True))
        return stmts

    def weight_minus_zero_point(self, word: Expr, field: int, zero: Expr) -> Expr:
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

    def zero_points_of_column_vector(self, block: Expr, first_column: Operand) -> Expr:
        """Return the zero points of the columns of a vector, for one block of the depth."""
        zero = self.builder.zero
        if zero.size == 1:
            return self.broadcast_to_lanes(Load(zero, as_expr(0)))
        return Load(zero, self.address_in_tiles(self.product.scales_per_column, block, first_column), self.lanes)

    def scales_of_column_vector(self, block: Expr, first_column: Operand) -> Expr:
        """Return the scales of the columns of a vector, for one block of the depth."""
        place = self.address_in_tiles(self.product.scales_per_column, block, first_column)
        return Load(self.builder.scale, place, self.lanes)

    def _float_constant_vector(self, value: float) -> Expr:
        """Return a vector of floats with a constant in all lanes."""
        return Const(value, FLOAT32, self.lanes)

    def _uint32_constant_vector(self, value: int) -> Expr:
        """Return a vector of 32-bit words with a constant in all lanes."""
        return const(value, UINT32, self.lanes)
