# SPDX-License-Identifier: Apache-2.0
"""Loop nest of a te.Winograd convolution of images with the channels last, whose height and width may be
known at run time only.

    for image: for strip of tiles:
        for tile, vector of channels: V[6*6][tile][channel] = B^T d B
        M[6*6][tile][output channel] = V * U               # the contraction generator's
        for tile, vector of output channels: A^T M A, to the stack, then each element to `store`

A strip is a number of consecutive tiles of the image in row-major order. Patches that reach beyond the
image are copied first, with zeros around them.
"""

import math
from collections.abc import Callable

from aotc.ir import largest_size
from aotc.tir import Block, Buffer, Expr, Load, Target, Var, all_of, as_expr, const, minimum, te
from aotc.tir.expr import new_private_scratch_buffer
from aotc.tir.schedule.algorithms.winograd import (
    TransformEmitter,
    round_up_to_odd_cache_line_count,
    strip_bytes_in_cache,
)
from aotc.tir.schedule.contraction import build_contraction_nest_of_parts
from aotc.tir.schedule.contraction.tile_segments import MAX_RUN_TIME_TILE_POSITIONS
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import Declare, If, Stmt, Store, forall, loop_nest
from aotc.tir.winograd_matrices import winograd_matrices_at_g_bt


def build_winograd_channels_last(
    winograd: te.Winograd, data: Buffer, weights: Buffer, store: StoreFn, target: Target
) -> ContractionNest:
    """Return the loop nest that computes a Winograd convolution of data (N, H, W, C), with all channels in one
    group, from the buffers of its operands.

    `store(indices, value)` returns the statement that finishes an output element, as in
    `build_contraction_nest`.
    """
    return _ChannelsLastBuilder(winograd, data, weights, store, target).build_loop_nest()


class _ChannelsLastBuilder:
    """Builds the loop nest of one Winograd convolution."""

    def __init__(self, w: te.Winograd, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> None:
        self.w, self.a, self.b, self.store, self.target = w, a, b, store, target
        self.at, _, self.bt = winograd_matrices_at_g_bt(w.tile)
        self.alpha, self.channels = w.tile + 2, largest_size(w.a.shape[3])
        self.width = w.b.shape[1] * w.packed_weight_block_size
        vector = accumulator_lanes(target, w.dtype)
        self.input_lanes = min(vector, 1 << (self.channels.bit_length() - 1))
        self.output_lanes = math.gcd(vector, w.packed_weight_block_size)
        self.most = self._tiles_in_strip()
        line = target.line // w.dtype.itemsize
        self.layer = round_up_to_odd_cache_line_count(self.most * self.channels, line)
        self.step = round_up_to_odd_cache_line_count(self.most * self.width, line)
        self.patch = new_private_scratch_buffer("patch", w.dtype, self.alpha**2 * self.channels)
        self.data = new_private_scratch_buffer("data", w.dtype, self.alpha**2 * self.layer)
        self.product = new_private_scratch_buffer("product", w.dtype, self.alpha**2 * self.step)
        self.tile = new_private_scratch_buffer("tile", w.dtype, w.tile**2 * self.output_lanes)
        self.image, self.strip = Var("n"), Var("strip")
        self.down, self.across = ((as_expr(n) + (w.tile - 1)) // w.tile for n in w.shape[1:3])
        total = self.down * self.across
        self.strips = (total + (self.most - 1)) // self.most
        self.first = self.strip * self.most
        self.end = minimum(self.first + self.most, total)

    def _tiles_in_strip(self) -> int:
        """Return the largest number of tiles in a strip: as many as fit in the second-level cache, in whole
        register tiles, and equally many in each strip of the largest image.
        """
        w = self.w
        total = math.prod(-(-largest_size(extent) // w.tile) for extent in w.shape[1:3])
        per_tile = self.alpha**2 * (self.channels + self.width) * w.dtype.itemsize
        room = max(1, strip_bytes_in_cache(w, self.target) // per_tile)
        most = -(-total // -(-total // room))
        rows = MAX_RUN_TIME_TILE_POSITIONS
        return most if most <= rows else min(-(-most // rows) * rows, max(rows, room // rows * rows))

    def build_loop_nest(self) -> ContractionNest:
        """Return the whole loop nest with its scratch buffers."""
        product = self._products()
        stmts = (self._transform_inputs(), product.stmt, self._transform_outputs())
        outer = [(self.image, as_expr(self.w.shape[0])), (self.strip, self.strips)]
        body = loop_nest(outer, Block(stmts), "independent")
        scratch = (self.patch, self.data, self.product, self.tile, *product.workspace)
        return ContractionNest(body, product.stack, scratch)

    # --- forward

    def _transform_inputs(self) -> Stmt:
        """Return the statements that transform the patches of all tiles of a strip."""
        m, number, row, column = self.w.tile, Var("t"), Var("ty"), Var("tx")
        height, width = (as_expr(n) for n in self.w.a.shape[1:3])
        y, x = row * m - self.w.pads[0], column * m - self.w.pads[1]
        inside = all_of(y >= 0, x >= 0, y + self.alpha <= height, x + self.alpha <= width)
        first = (self.image * height + y) * width + x
        direct = self._transform_patch(number, self.a, lambda i, j: (first + i * width + j) * self.channels)
        copied = self._transform_patch(number, self.patch, lambda i, j: as_expr((i * self.alpha + j) * self.channels))
        body = If(inside, direct, Block((self._copy_patch(y, x), copied)))
        places = Declare(row, number // self.across), Declare(column, number % self.across)
        return forall(number, self.end, Block((*places, body)), begin=self.first)

    def _copy_patch(self, y: Expr, x: Expr) -> Stmt:
        """Return the statements that copy the patch at row `y` and column `x`, with zeros outside of the image."""
        i, j, channel, zero = Var("i"), Var("j"), Var("c"), Var("c")
        height, width = (as_expr(n) for n in self.w.a.shape[1:3])
        place = (i * self.alpha + j) * self.channels
        source = ((self.image * height + y + i) * width + x + j) * self.channels
        copy = Store(self.patch, place + channel, Load(self.a, source + channel))
        clear = Store(self.patch, place + zero, const(0, self.w.dtype))
        inside = all_of(y + i >= 0, y + i < height, x + j >= 0, x + j < width)
        body = If(inside, forall(channel, self.channels, copy), forall(zero, self.channels, clear))
        return loop_nest([(i, self.alpha), (j, self.alpha)], body, "independent")

    def _transform_patch(self, number: Var, source: Buffer, address: Callable[[int, int], Expr]) -> Stmt:
        """Return the input transform V = B^T d B of a tile, a vector of channels at a time.

        address    function that returns the address of the first channel of an element of the patch
        """
        vector, out, lanes = Var("v"), TransformEmitter(self.input_lanes, []), self.input_lanes
        # the last vector repeats channels of the one before, if it would extend beyond the channels
        channel = minimum(vector * lanes, self.channels - lanes) if self.channels % lanes else vector * lanes
        place = (number - self.first) * self.channels + channel

        def load_patch_element(i: int, j: int) -> Expr:
            return Load(source, address(i, j) + channel, lanes)

        for i, j, value in out.elements_of_two_sided_matrix_transform("d", self.bt, load_patch_element):
            out.statements.append(Store(self.data, (i * self.alpha + j) * self.layer + place, value))
        kind = "serial" if self.channels % lanes else "independent"
        return loop_nest([(vector, -(-self.channels // lanes))], Block(out.statements), kind)

    # --- products

    def _products(self) -> ContractionNest:
        """Return the nest of M[x] = V[x] U[x] for each of the alpha^2 elements x of a patch."""
        count, block, dtype = self.alpha**2, self.w.packed_weight_block_size, self.w.dtype
        c = te.contraction(
            (count, self.most, self.width),
            (self.channels,),
            te.placeholder((count, self.layer), dtype, "data"),
            lambda x, t, o, k: (x, t * self.channels + k),
            te.placeholder((count, self.width // block, self.channels, block), dtype, "weights"),
            lambda x, t, o, k: (x, o // block, k, o % block),
            dtype=dtype,
            name="product",
            lane=2,
            block=block,
        )

        def store_product_element(indices: tuple[Expr, ...], value: Expr) -> Stmt:
            layer, number, output = indices
            return Store(self.product, layer * self.step + number * self.width + output, value)

        tiles = {c.axes[1][0]: (self.first, self.end)}
        nest = build_contraction_nest_of_parts(c, self.data, self.b, store_product_element, self.target, (), tiles)
        if nest is None:
            raise AssertionError(f"no tiling fits the products of {self.w.name}")
        return nest

    # --- backward

    def _transform_outputs(self) -> Stmt:
        """Return the output transform A^T M A of all tiles of a strip, a vector of channels at a time, each
        followed by the stores of the elements.
        """
        number, row, column = Var("t"), Var("ty"), Var("tx")
        outputs, lanes = largest_size(self.w.shape[3]), self.output_lanes
        vector, last = Var("v"), as_expr(outputs // lanes)
        stmts: list[Stmt] = []
        if outputs >= lanes:
            whole = self._transform_and_store(number, row, column, vector, lanes)
            stmts.append(forall(vector, outputs // lanes, whole))
        if outputs % lanes:
            stmts.append(self._transform_and_store(number, row, column, last, outputs % lanes))
        places = Declare(row, number // self.across), Declare(column, number % self.across)
        return forall(number, self.end, Block((*places, *stmts)), begin=self.first)

    def _transform_and_store(self, number: Var, row: Expr, column: Expr, vector: Expr, count: int) -> Stmt:
        """Return the output transform of one tile and one vector of output channels, of which `count` are
        stored, and the stores of the elements that are in the image.
        """
        m, lanes, out = self.w.tile, self.output_lanes, TransformEmitter(self.output_lanes, [])
        place = (number - self.first) * self.width + vector * lanes

        def load_product_element(i: int, j: int) -> Expr:
            return Load(self.product, (i * self.alpha + j) * self.step + place, lanes)

        for i, j, value in out.elements_of_two_sided_matrix_transform("p", self.at, load_product_element):
            out.statements.append(Store(self.tile, as_expr((i * m + j) * lanes), value))
        y, x, lane = Var("y"), Var("x"), Var("lane")
        value = Load(self.tile, (y * m + x) * lanes + lane)
        index = (self.image, row * m + y, column * m + x, vector * lanes + lane)
        height, width = (as_expr(n) for n in self.w.shape[1:3])
        axes = [(y, minimum(m, height - row * m)), (x, minimum(m, width - column * m)), (lane, as_expr(count))]
        return Block((*out.statements, loop_nest(axes, self.store(index, value), "independent")))
