# SPDX-License-Identifier: Apache-2.0
"""Product of int8 rows and a weight matrix of 4 or 8 bits, with a scale for each block of both, by dot products of
integers.

Input: the sizes of a product. Output: a program for a target:

    for tile of columns: for rows:
        for block of the depth:
            part = -zero * sum of the data of the block
            for four consecutive elements: part += dot product of four integers       # in all columns of the tile
            acc += float(part) * (scale of the weights * scale of the data)

Four consecutive integers of a column are adjacent bytes, and so are those of the columns of a tile. Weights of 4 bits
share bytes: the lower halves of four bytes are the integers k to k + 3 of a column, the upper halves k + 4 to k + 7.
The data is int8 with a scale and a sum for each block (`build_quantization_in_blocks`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from aotc.ir import Dim, DType, frozen
from aotc.tir import Assign, Block, Declare, ExternProgram, For, Scratch, Stmt, Store, Target, forall
from aotc.tir.expr import Broadcast, Buffer, Const, Expr, Load, Var, as_expr, call, const, maximum, select
from aotc.tir.float_to_int8 import quantize_instruction_name
from aotc.tir.int8_dot_products import (
    BYTES_PER_DOT,
    INT32_VECTOR_LENGTHS,
    SMALL_WEIGHTS,
    dot_instruction_name,
    repeat_byte_in_int32,
)
from aotc.tir.schedule.algorithms.column_tiles import ColumnTileBuilder, RegisterTile, scratch_of_partial_vector

FLOAT32, INT32, INT8, UINT8 = (DType(name) for name in ("float32", "int32", "int8", "uint8"))
#: Largest magnitude of quantized data.
LARGEST_INT8: Final = 127
#: Least scale of data that is not rounded to zeros: the smallest normal float32, whose reciprocal is finite.
SMALLEST_SCALE: Final = 2.0**-126
#: Largest block: sums of its products are exact in float32.
MAX_BLOCK: Final = 256


@frozen
class IntegerProduct:
    """y (rows, columns) = x (rows, depth) times the transpose of (columns, depth) integers of `bits` bits, 4 or 8.

    The program's arguments are x of int8, its scales (float32) and its sums (int32) of the shape (rows, blocks);
    weights (tiles, depth / 4, tile, 4) of uint8, or (tiles, depth / 8, tile, 4) for 4 bits; their scales (tiles,
    blocks, tile) of float32 or float16, and their zero points (uint8) of the same shape, or a single one.

    rows, depth, columns, bits   sizes of the product; the depth is whole blocks
    block                        consecutive integers of a column with a common scale, a multiple of 8
    tile                         columns of a tile
    """

    rows: Dim
    depth: int
    columns: int
    bits: int
    block: int
    tile: int

    @property
    def integers_per_word(self) -> int:
        """Integers of a column in four adjacent bytes."""
        return BYTES_PER_DOT * 8 // self.bits

    @property
    def words_per_column(self) -> int:
        """Groups of four bytes of a column."""
        return self.depth // self.integers_per_word

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return self.depth // self.block


def build_integer_low_bit_matmul(product: IntegerProduct, target: Target) -> ExternProgram:
    """Return the program that multiplies quantized rows by a matrix of weights of few bits on a target."""
    lanes = math.gcd(target.lanes(FLOAT32), product.tile)
    lanes = lanes if lanes in INT32_VECTOR_LENGTHS else 1
    edge = scratch_of_partial_vector(product.columns, lanes)
    return ExternProgram(lambda i, o, s: _ProductBuilder(product, target, lanes, (*i, *o, *s)).build_loop_nest(), edge)


class _ProductBuilder(ColumnTileBuilder):
    """Builds the statements of a product over its buffers."""

    def __init__(self, product: IntegerProduct, target: Target, lanes: int, buffers: Sequence[Buffer]) -> None:
        self.x, self.x_scale, self.x_sum, self.weight, self.scale, self.zero, y, *edge = buffers
        super().__init__(product, lanes, y, edge)
        self.product = product
        self.vectors_of_rows = min(target.tiles.low_bit_vectors_of_rows, product.tile // lanes)
        self.height = 1 if product.rows == 1 else max(1, target.registers // 2 // self.vectors_of_rows)

    def rows_of_tile(self, tile: Expr, columns: int) -> Iterator[Stmt]:
        """Yield the loops over all rows of the first `columns` columns of a tile: several rows of a few vectors, and
        the rows that are left with all vectors.
        """
        rows, row = as_expr(self.product.rows), Var("row")
        whole = rows // self.height if self.height > 1 else as_expr(0)
        done = whole * self.height
        kinds = ((self.vectors_of_rows, self.height, whole, row * self.height), (columns, 1, rows - done, done + row))
        for vectors, height, count, first_row in kinds:
            size = vectors * self.lanes
            for first in range(0, columns, size) if count != as_expr(0) else ():
                yield forall(
                    row, count, self._register_tile(tile, first, min(size, columns - first), first_row, height)
                )

    def _register_tile(self, tile: Expr, first: int, width: int, row: Expr, height: int) -> Stmt:
        """Return the statements that compute and store `height` rows of `width` columns."""
        firsts = [first + v for v in range(0, width, self.lanes)]
        kind = _RegisterTile if self.lanes > 1 else _ScalarRegisterTile
        register_tile = kind(self, tile, firsts, row, height)
        return Block((*register_tile.accumulate(), *self.store_register_tile(register_tile, width)))


class _RegisterTile(RegisterTile):
    """A few rows of a few vectors of columns, whose blocks are added up as integers."""

    def __init__(self, builder: _ProductBuilder, tile: Expr, firsts: Sequence[int], row: Expr, height: int) -> None:
        super().__init__(builder, tile, firsts, row, height, INT32)
        self.builder, self.product = builder, builder.product

    def accumulate(self) -> Iterator[Stmt]:
        """Yield the statements that compute the sums."""
        for row in self.acc:
            yield from (Declare(acc, Const(0.0, FLOAT32, self.lanes)) for acc in row)
        block = Var("block")
        yield For(block, self.product.blocks, Block(self._accumulate_block(block)), kind="reduction")

    def _accumulate_block(self, block: Expr) -> Iterator[Stmt]:
        """Yield the statements that add a block to the sums."""
        p, b = self.product, self.builder
        places = [self.address_in_tiles(p.blocks, block, first) for first in self.firsts]
        at_rows = [(self.row + r) * p.blocks + block for r in range(len(self.acc))]
        for at, parts in zip(at_rows, self.part, strict=True):
            x_sum = Var("sum", INT32)
            yield Declare(x_sum, Load(b.x_sum, at))
            for part, place in zip(parts, places, strict=True):
                yield Declare(
                    part, const(0, "int32", self.lanes) - self._zero_points(place) * self.broadcast_to_lanes(x_sum)
                )
        # C compilers would reorder the sums of an unrolled loop, and keep all products at once
        words, word = p.block // p.integers_per_word, Var("word")
        yield For(word, words, Block(self._add_products_of_word(block * words + word)), kind="reduction")
        scales = [Var("scale", FLOAT32, self.lanes) for _ in places]
        for scale, place in zip(scales, places, strict=True):
            yield Declare(scale, Load(b.scale, place, self.lanes).astype(FLOAT32))
        for at, accs, parts in zip(at_rows, self.acc, self.part, strict=True):
            factor = Var("factor", FLOAT32)
            yield Declare(factor, Load(b.x_scale, at))
            for acc, part, scale in zip(accs, parts, scales, strict=True):
                yield Assign(acc, acc + part.astype(FLOAT32) * (scale * self.broadcast_to_lanes(factor)))

    def _add_products_of_word(self, word: Expr) -> Iterator[Stmt]:
        """Yield the statements that add the products of the weights in four bytes of each column."""
        size = BYTES_PER_DOT * self.lanes
        packed = [Var("bytes", UINT8, size) for _ in self.firsts]
        for value, first in zip(packed, self.firsts, strict=True):
            place = self.address_in_tiles(self.product.words_per_column, word, first) * BYTES_PER_DOT
            yield Declare(value, Load(self.builder.weight, place, size))
        halves: list[list[Expr]] = [list(packed)]
        if self.product.bits == 4:
            halves = [[value & const(15, "uint8", size) for value in packed]]
            halves.append([value >> const(4, "uint8", size) for value in packed])
        for half, values in enumerate(halves):
            weights = [Var("weights", UINT8, size) for _ in values]
            yield from map(Declare, weights, values)
            for r, parts in enumerate(self.part):
                at = (self.row + r) * self.product.depth + word * self.product.integers_per_word
                yield from self._add_dot_products(parts, at + half * BYTES_PER_DOT, weights)

    def _add_dot_products(self, parts: Sequence[Var], at: Expr, weights: Sequence[Var]) -> Iterator[Stmt]:
        """Yield the statements that add the dot products of four elements of the data and of each column."""
        kind = SMALL_WEIGHTS if self.product.bits == 4 else "uint8"
        data = Var("data", INT32)
        yield Declare(data, call("word_int8", Load(self.builder.x, at, BYTES_PER_DOT)))
        for part, weight in zip(parts, weights, strict=True):
            dot = call(dot_instruction_name("int8", kind, self.lanes), part, Broadcast(data, self.lanes), weight)
            yield Assign(part, dot)

    def _zero_points(self, place: Expr) -> Expr:
        """Return the zero points of the columns of a vector as int32."""
        zero = self.builder.zero
        if zero.size == 1:
            return self.broadcast_to_lanes(Load(zero, as_expr(0)).astype(INT32))
        return Load(zero, place, self.lanes).astype(INT32)


class _ScalarRegisterTile(_RegisterTile):
    """A register tile of a target without vectors."""

    def _add_products_of_word(self, word: Expr) -> Iterator[Stmt]:
        """Yield the statements that add the products of the weights in four bytes of each column."""
        product = self.product
        for k in range(BYTES_PER_DOT):
            for v, first in enumerate(self.firsts):
                byte = Var("byte", INT32)
                place = self.address_in_tiles(product.words_per_column, word, first) * BYTES_PER_DOT + k
                yield Declare(byte, Load(self.builder.weight, place).astype(INT32))
                for half in range(product.integers_per_word // BYTES_PER_DOT):
                    weight = byte if product.bits == 8 else byte >> const(4, "int32") if half else byte & 15
                    for r, parts in enumerate(self.part):
                        at = (self.row + r) * product.depth + word * product.integers_per_word
                        x = Load(self.builder.x, at + half * BYTES_PER_DOT + k).astype(INT32)
                        yield Assign(parts[v], parts[v] + weight * x)


def build_quantization_in_blocks(rows: Dim, depth: int, block: int, target: Target) -> ExternProgram:
    """Return the program that rounds the rows of x (rows, depth) to int8: its results are the integers (rows, blocks
    * block), which are followed by zeros, and the scales and sums (rows, blocks).

    A scale is the largest magnitude of a block divided by 127, NaN if that is infinite or NaN. The integers of a block
    whose scale is not a normal number are zeros, or any if it is NaN.
    """
    lanes = math.gcd(target.lanes(FLOAT32), block // BYTES_PER_DOT)
    lanes = lanes if lanes in INT32_VECTOR_LENGTHS and depth >= block else 1
    scratch = (Scratch(FLOAT32, lanes, private=True), Scratch(INT32, lanes, private=True)) if lanes > 1 else ()

    def build(inputs: Sequence[Buffer], outputs: Sequence[Buffer], lane_buffers: Sequence[Buffer]) -> Stmt:
        row, block_of_row, (whole, left) = Var("row"), Var("block"), divmod(depth, block)
        builder = _QuantizationBuilder(depth, block, lanes, (*inputs, *outputs, *lane_buffers))
        body: list[Stmt] = (
            [forall(block_of_row, whole, builder.quantize_block(row, block_of_row, block))] if whole else []
        )
        body += [builder.quantize_block(row, as_expr(whole), left)] if left else []
        return forall(row, rows, Block(body))

    return ExternProgram(build, scratch)


class _QuantizationBuilder:
    """Builds the statements that quantize blocks of rows over the buffers of the program."""

    def __init__(self, depth: int, block: int, lanes: int, buffers: Sequence[Buffer]) -> None:
        self.depth, self.block, self.lanes, self.blocks = depth, block, lanes, -(-depth // block)
        self.x, self.integers, self.scales, self.sums, *self.lane_buffers = buffers

    def quantize_block(self, row: Expr, block: Expr, count: int) -> Stmt:
        """Return the statements that quantize the `count` elements of a block of a row."""
        lanes = self.lanes if count == self.block else 1
        source, at = row * self.depth + block * self.block, row * self.blocks + block
        target, scale, inverse = at * self.block, Var("scale", FLOAT32), Var("inverse", FLOAT32)
        largest, total = Var("largest", FLOAT32), Var("total", INT32)
        stmts: list[Stmt] = [Declare(largest, const(0.0, "float32"))]
        stmts += self._find_largest(largest, source, count, lanes)
        # NaN if the largest magnitude is infinite
        stmts.append(Declare(scale, largest / float(LARGEST_INT8) + (largest - largest)))
        stmts.append(Declare(inverse, select(scale >= SMALLEST_SCALE, const(1.0, "float32") / scale, 0.0)))
        stmts.append(Declare(total, const(0, "int32")))
        stmts += self._round(total, inverse, source, target, count, lanes)
        stmts += [Store(self.scales, at, scale), Store(self.sums, at, total)]
        if count < self.block:
            rest = Var("rest")
            stmts.append(
                forall(rest, self.block - count, Store(self.integers, target + count + rest, const(0, "int8")))
            )
        return Block(stmts)

    def _find_largest(self, largest: Var, source: Expr, count: int, lanes: int) -> Iterator[Stmt]:
        """Yield the statements that compute the largest magnitude of a block."""
        if lanes == 1:
            k = Var("k")
            magnitude = call("abs", Load(self.x, source + k))
            yield For(k, count, Assign(largest, maximum(largest, magnitude)), kind="reduction")
            return
        most = Var("most", FLOAT32, lanes)
        yield Declare(most, call("abs", Load(self.x, source, lanes)))
        for start in range(lanes, count, lanes):
            yield Assign(most, maximum(most, call("abs", Load(self.x, source + start, lanes))))
        yield Store(self.lane_buffers[0], as_expr(0), most)
        for lane in range(lanes):
            yield Assign(largest, maximum(largest, Load(self.lane_buffers[0], as_expr(lane))))

    def _round(self, total: Var, inverse: Expr, source: Expr, target: Expr, count: int, lanes: int) -> Iterator[Stmt]:
        """Yield the statements that store the integers of a block and add them up."""
        if lanes == 1:
            k, number = Var("k"), Var("number", INT8)
            whole = call("quantize_int8", Load(self.x, source + k) * inverse, const(0.0, "float32"))
            store = Block((Declare(number, whole), Store(self.integers, target + k, number)))
            yield For(k, count, Block((store, Assign(total, total + number.astype(INT32)))), kind="reduction")
            return
        sums, size = Var("sums", INT32, lanes), BYTES_PER_DOT * lanes
        yield Declare(sums, const(0, "int32", lanes))
        ones, factor = const(repeat_byte_in_int32(1), "int32", lanes), Broadcast(inverse, lanes)
        for start in range(0, count, size):
            number = Var("number", INT8, size)
            parts = [Load(self.x, source + start + part, lanes) * factor for part in range(0, size, lanes)]
            rounded = call(quantize_instruction_name("int8", lanes), *parts, const(0.0, "float32", lanes))
            yield Declare(number, rounded)
            yield Store(self.integers, target + start, number)
            yield Assign(sums, call(dot_instruction_name("uint8", "int8", lanes), sums, ones, number))
        yield Store(self.lane_buffers[1], as_expr(0), sums)
        for lane in range(lanes):
            yield Assign(total, total + Load(self.lane_buffers[1], as_expr(lane)))
