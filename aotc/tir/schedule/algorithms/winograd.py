# SPDX-License-Identifier: Apache-2.0
"""Loop nest of a te.Winograd convolution: strips of tiles are transformed, multiplied as matrices,
and transformed back.

    for strip of tiles:
        for channel: split its rows by phase; V[6*6][channel][tile] = B^T d B
        M[6*6][tile][output channel] = V * U               # the contraction generator's
        for tile, vector of output channels: A^T M A, to the stack, then each element to `store`

A strip has as many rows of tiles (or as large a part of a row) as V and M fit in the second-level
cache together. The columns are split by their remainder modulo the tile size, which makes element
(i, j) of neighboring tiles adjacent, so that the transforms are vectorized throughout.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import frozen
from aotc.tir import (
    FILTER_EXTENT,
    Matrix,
    Target,
    fill_buffer_loop,
    new_private_scratch_buffer,
    te,
    winograd_matrices_at_g_bt,
)
from aotc.tir.expr import Buffer, Const, Expr, Load, Var, all_of, as_expr, const, maximum, minimum
from aotc.tir.schedule.contraction import build_contraction_nest
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes
from aotc.tir.schedule.contraction.untiled_contraction import ContractionNest, StoreFn
from aotc.tir.stmt import Block, If, Stmt, Store, bind_to_new_register, forall, loop_nest

#: Coefficients that differ by less than this are considered equal.
COEFFICIENT_TOLERANCE: Final = 1e-12


def build_winograd(
    winograd: te.Winograd, data: Buffer, weights: Buffer, store: StoreFn, target: Target
) -> ContractionNest:
    """Return the loop nest that computes a Winograd convolution `winograd` from the buffers of its
    operands.

    `store(indices, value)` returns the statement that finishes an output element,
    as in `build_contraction_nest`.
    """
    return _WinogradBuilder(winograd, data, weights, store, target).build_loop_nest()


@frozen
class TileStrips:
    """Division of the tiles of an image into strips.

    down, rows        number of strips below each other, and rows of tiles in each
    across, columns   number of strips side by side, and columns of tiles in each
    """

    down: int
    rows: int
    across: int
    columns: int


def divide_tiles_into_strips(winograd: te.Winograd, target: Target) -> TileStrips:
    """Return strips with the least padding, then as few as fit in the second-level cache; whole
    rows if one row fits.
    """
    height, width = (-(-extent // winograd.tile) for extent in winograd.shape[2:])
    per_tile = (winograd.tile + 2) ** 2 * (winograd.a.shape[1] + winograd.shape[1]) * winograd.dtype.itemsize
    room = strip_bytes_in_cache(winograd, target) // per_tile
    if room < width:
        across = -(-width // max(1, room))
        return TileStrips(height, 1, across, -(-width // across))
    most = min(height, room // width)
    rows = min(range(1, most + 1), key=lambda r: (-(-height // r) * r, -r))
    return TileStrips(-(-height // rows), rows, 1, width)


def strip_bytes_in_cache(winograd: te.Winograd, target: Target) -> int:
    """Return the bytes that the transformed data and the products of a strip may take: most of the second-level
    cache.

    Weights that exceed the cache are read from memory for every strip: then strips may exceed the
    cache as well.
    """
    fits = winograd.b.capacity * winograd.dtype.itemsize <= target.l2
    return target.l2 * 3 // 4 if fits else target.winograd.strip_l2_caches * target.l2


def estimated_cycles_of_3x3_convolution(
    output_shape: tuple[int, int, int, int], channels: int, winograd_tile: int, target: Target, groups: int = 1
) -> float:
    """Return the cycles of a 3x3 convolution from `channels` channels in each of `groups` groups to
    (N, O, H, W); `winograd_tile` 0 means the direct algorithm.

    The cost is the time of the products, of waiting for weights, and of the transforms of each
    channel of each tile.
    """
    images, outputs, height, width = output_shape
    lanes, cost = target.lanes("float32"), target.winograd
    if winograd_tile == 0:
        taps, transforms = FILTER_EXTENT**2, 0.0
        macs = math.prod(output_shape) * channels * taps
    else:
        taps = (winograd_tile + FILTER_EXTENT - 1) ** 2
        tiles = images * -(-height // winograd_tile) * -(-width // winograd_tile)
        macs = taps * tiles * channels * outputs
        forward = cost.forward * winograd_tile**2 + cost.forward_vector * taps / lanes
        backward = cost.backward * winograd_tile**2 + cost.backward_vector * taps / lanes
        transforms = tiles * (groups * channels * forward + outputs * backward)
    weights = taps * channels * outputs * 4
    return macs / cost.macs + weights / target.memory_rate * cost.waiting + transforms


@frozen
class TransformEmitter:
    """Emits statements that compute linear combinations of vectors, for Winograd transforms, into
    registers.
    """

    lanes: int
    statements: list[Stmt]

    def declare_register(self, name: str, value: Expr) -> Expr:
        """Declare a new register with a value, and return it."""
        return bind_to_new_register(name, value, self.statements)

    def matrix_vector_product_by_mirrored_pairs(self, matrix: Matrix, xs: Sequence[Expr]) -> list[Expr]:
        """Return matrix @ xs, with common terms of mirrored columns (A^T) and mirrored rows (B^T)
        computed once.
        """
        terms: list[tuple[Matrix, Expr]] = []
        for k, *pair in _rows_with_mirrored_pairs(matrix.T):
            if len(pair) == 1:
                terms.append((pair[0], xs[k]))
                continue
            left, right = pair
            terms.append(((left + right) / 2, self.declare_register("even", xs[k] + xs[k + 1])))
            terms.append(((left - right) / 2, self.declare_register("odd", xs[k] - xs[k + 1])))
        columns = np.stack([column for column, _ in terms], axis=1)
        return self._matrix_vector_product_by_rows(columns, [x for _, x in terms])

    def elements_of_two_sided_matrix_transform(
        self, name: str, matrix: Matrix, load: Callable[[int, int], Expr]
    ) -> Iterator[tuple[int, int, Expr]]:
        """Yield the elements of matrix @ X @ matrix^T, row by row; `load(i, j)` returns X[i, j],
        which is put in a register.
        """
        size = range(matrix.shape[1])
        columns = [
            self.matrix_vector_product_by_mirrored_pairs(
                matrix, [self.declare_register(name, load(i, j)) for i in size]
            )
            for j in size
        ]
        for i in range(len(matrix)):
            row = self.matrix_vector_product_by_mirrored_pairs(matrix, [column[i] for column in columns])
            yield from ((i, j, value) for j, value in enumerate(row))

    def _matrix_vector_product_by_rows(self, matrix: Matrix, xs: Sequence[Expr]) -> list[Expr]:
        """Return matrix @ xs, with common terms of mirrored rows computed once."""
        results: list[Expr] = []
        for _, *pair in _rows_with_mirrored_pairs(matrix):
            if len(pair) == 1:
                results.append(self.declare_register("t", self._linear_combination(pair[0], xs)))
                continue
            above, below = pair
            even = self.declare_register("even", self._linear_combination((above + below) / 2, xs))
            odd = self.declare_register("odd", self._linear_combination((above - below) / 2, xs))
            results += [self.declare_register("t", even + odd), self.declare_register("t", even - odd)]
        return results

    def _linear_combination(self, coefficients: Matrix, xs: Sequence[Expr]) -> Expr:
        """Return a linear combination; a term with coefficient 1 comes first, so that the other
        terms are multiply-adds.
        """
        terms = [(float(c), x) for c, x in zip(coefficients, xs, strict=True) if abs(c) > COEFFICIENT_TOLERANCE]
        terms.sort(key=lambda term: (abs(abs(term[0]) - 1.0) > COEFFICIENT_TOLERANCE, term[0] < 0.0))
        total: Expr | None = None
        for c, x in terms:
            alone = abs(abs(c) - 1.0) < COEFFICIENT_TOLERANCE
            term = x if alone else x * Const(c, x.dtype, self.lanes)
            if alone and c < 0:
                total = -term if total is None else total - term
            else:
                total = term if total is None else total + term
        return Const(0.0, xs[0].dtype, self.lanes) if total is None else total


def _rows_with_mirrored_pairs(rows: Matrix) -> Iterator[tuple[Any, ...]]:
    """Yield each row of a matrix after its index; two adjacent rows together if they mirror each
    other.
    """
    k = 0
    while k < len(rows):
        pair = rows[k : k + 2]
        count = 2 if len(pair) == 2 and _do_rows_differ_in_some_signs_only(*pair) else 1
        yield k, *pair[:count]
        k += count


def _do_rows_differ_in_some_signs_only(a: Matrix, b: Matrix) -> bool:
    """Return True if `b` equals `a` except for the signs of some, but not all, nonzero elements."""
    same, negated = np.abs(a - b) < COEFFICIENT_TOLERANCE, np.abs(a + b) < COEFFICIENT_TOLERANCE
    if np.all(same) or np.all(negated):
        return False
    return bool(np.all(same | negated))


class _WinogradBuilder:
    """Builds the loop nest of one Winograd convolution."""

    def __init__(self, w: te.Winograd, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> None:
        self.w, self.a, self.b, self.store, self.target = w, a, b, store, target
        self.image, self.strip = Var("n"), Var("strip")
        self.at, _, self.bt = winograd_matrices_at_g_bt(w.tile)
        self.lanes = math.gcd(accumulator_lanes(target, w.dtype), w.packed_weight_block_size)
        self.strips = divide_tiles_into_strips(w, target)
        self.side: Expr = Var("side") if self.strips.across > 1 else as_expr(0)
        self.rows, self.columns = self.strips.rows, self.strips.columns
        self.alpha = w.tile + 2
        self.pitch = self.columns + 1
        self.places = -(-self.rows * self.pitch // self.lanes) * self.lanes
        self.plane = self.places + self.pitch + 1
        self.channels = w.a.shape[1]
        self.width = w.b.shape[1] * w.packed_weight_block_size
        self.chunk = -(-self.columns // -(-self.columns * w.tile // target.winograd.transformed_columns))
        line = target.line // w.dtype.itemsize
        self.phases = new_private_scratch_buffer("phases", w.dtype, w.tile**2 * self.plane)
        self.layer = round_up_to_odd_cache_line_count(self.channels * self.places, line)
        self.step = round_up_to_odd_cache_line_count(self.rows * self.columns * self.width, line)
        self.data = new_private_scratch_buffer("data", w.dtype, self.alpha**2 * self.layer)
        self.product = new_private_scratch_buffer("product", w.dtype, self.alpha**2 * self.step)
        self.tile = new_private_scratch_buffer("tile", w.dtype, self.chunk * w.tile**2 * self.lanes)

    def build_loop_nest(self) -> ContractionNest:
        """Return the whole loop nest of a Winograd convolution with its scratch buffers."""
        channel, product = Var("c"), self._batched_matrix_product()
        forward = Block((self._copy_channel_into_phase_planes(channel), self._winograd_input_transform(channel)))
        outer_axes = [(self.image, self.w.shape[0]), (self.strip, self.strips.down)]
        if isinstance(self.side, Var):
            outer_axes.append((self.side, self.strips.across))
        stmts = forall(channel, self.channels, forward), product.stmt, self._output_transform_and_stores()
        body = loop_nest(outer_axes, Block(stmts), "independent")
        scratch = (self.phases, self.data, self.product, self.tile, *product.workspace)
        return ContractionNest(Block((fill_buffer_loop(self.phases), body)), product.stack, scratch)

    # --- forward

    def _patch_element_address_in_phase_planes(self, i: int, j: int, position: Expr) -> Expr:
        """Return the address of element (i, j) of a Winograd tile's input patch in the copy of the
        rows split by remainder.
        """
        m = self.w.tile
        return (i % m * m + j % m) * self.plane + position + (i // m * self.pitch + j // m)

    def _copy_channel_into_phase_planes(self, channel: Var) -> Stmt:
        """Return statements that copy a channel's rows for a strip, one plane per pair of
        remainders modulo the tile size.
        """
        m, (_, _, height, width) = self.w.tile, self.w.a.shape
        first = self.side * (self.columns * m) - self.w.pads[1]
        stmts: list[Stmt] = []
        for phase in range(m):
            row = Var("row")
            y = (self.strip * self.rows + row) * m + (phase - self.w.pads[0])
            source = ((self.image * self.channels + channel) * height + y) * width
            copy = self._copy_row_by_phase(phase, row, source, first)
            inside = If(all_of(y >= 0, y < height), copy, self._zero_row_of_phase_planes(phase, row))
            stmts.append(forall(row, self.rows + (phase < 2), inside))
        return Block(stmts)

    def _zero_row_of_phase_planes(self, phase: int, row: Var) -> Stmt:
        """Return statements that store zeros for an input row outside of the image."""
        t, zero = Var("t"), const(0, self.w.dtype)
        places = (
            self._patch_element_address_in_phase_planes(phase, j, row * self.pitch + t) for j in range(self.w.tile)
        )
        return forall(t, self.pitch, Block(Store(self.phases, place, zero) for place in places))

    def _copy_row_by_phase(self, phase: int, row: Var, source: Expr, first_column: Expr) -> Stmt:
        """Return statements that copy an input row from column `first_column` on, split by
        remainder modulo the tile size.

        Columns outside of the image become zeros.
        """
        m, width = self.w.tile, self.w.a.shape[3]
        zero = const(0, self.w.dtype)
        begin = maximum((m - 1 - first_column) // m, 0)
        end = maximum(minimum((width - first_column) // m, self.columns), begin)

        def copy_element_or_zero(column_group: Expr, phase_column: int, checks_bounds: bool) -> Stmt:
            column, place = (
                first_column + column_group * m + phase_column,
                self._patch_element_address_in_phase_planes(phase, phase_column, row * self.pitch + column_group),
            )
            copy = Store(self.phases, place, Load(self.a, source + column))
            inside = all_of(column >= 0, column < width)
            return If(inside, copy, Store(self.phases, place, zero)) if checks_bounds else copy

        stmts: list[Stmt] = []
        # of the groups before `begin`, those up to `end` and those after it, the second ones lie inside of the image
        ranges = ((as_expr(0), begin, True), (begin, end, False), (end, as_expr(self.pitch), True))
        for low, high, checks_bounds in ranges:
            t = Var("t")
            body = Block(copy_element_or_zero(t, j, checks_bounds) for j in range(m))
            stmts.append(forall(t, high, body, begin=low))
        return Block(stmts)

    def _winograd_input_transform(self, channel: Var) -> Stmt:
        """Return the Winograd input transform V = B^T d B of all tiles of a strip and one channel,
        a vector of tiles at a time.
        """
        place, out = Var("place"), TransformEmitter(self.lanes, [])

        def load_patch_element(i: int, j: int) -> Expr:
            return Load(self.phases, self._patch_element_address_in_phase_planes(i, j, place), self.lanes)

        for i, j, value in out.elements_of_two_sided_matrix_transform("d", self.bt, load_patch_element):
            index = (i * self.alpha + j) * self.layer + channel * self.places + place
            out.statements.append(Store(self.data, index, value))
        return forall(place, self.places, Block(out.statements), step=self.lanes)

    # --- products

    def _batched_matrix_product(self) -> ContractionNest:
        """Return the nest of M[x] = V[x]^T U[x] for each of the alpha^2 elements x of a patch and
        each group of channels.
        """
        count, block, dtype, groups = self.alpha**2, self.w.packed_weight_block_size, self.w.dtype, self.w.groups
        channels, width = self.channels // groups, self.width // groups
        data = te.placeholder((count, self.layer), dtype, "data")
        weights = te.placeholder((count, self.width // block, channels, block), dtype, "weights")
        c = te.contraction(
            (count, groups, self.rows, self.columns, width),
            (channels,),
            data,
            lambda x, g, r, t, o, k: (x, (g * channels + k) * self.places + r * self.pitch + t),
            weights,
            lambda x, g, r, t, o, k: (x, g * (width // block) + o // block, k, o % block),
            dtype=dtype,
            name="product",
            lane=4,
            block=block,
        )

        def store_product_element(indices: tuple[Expr, ...], value: Expr) -> Stmt:
            layer, group, row, column, output = indices
            place = te.flat_index((self.rows, self.columns, self.width), (row, column, group * width + output))
            return Store(self.product, layer * self.step + place, value)

        return build_contraction_nest(c, self.data, self.b, store_product_element, self.target)

    # --- backward

    def _output_transform_and_stores(self) -> Stmt:
        """Return the Winograd output transform A^T M A, a vector of channels at a time, followed by
        the stores of the elements.
        """
        row, part, vector = Var("row"), Var("part"), Var("group")
        body = Block(
            (
                self._winograd_output_transform_to_stack(row, part, vector),
                self._finish_and_store_output_tiles(row, part, vector),
            )
        )
        vectors = self.w.groups * self._output_vectors_per_group
        parts = -(-self.columns // self.chunk)
        return loop_nest([(row, self.rows), (part, parts), (vector, vectors)], body, "independent")

    @property
    def _output_vectors_per_group(self) -> int:
        """Number of vectors of output channels in each group of channels."""
        return -(-self.w.shape[1] // self.w.groups // self.lanes)

    def _winograd_output_transform_to_stack(self, row: Var, row_part: Var, channel_vector: Var) -> Stmt:
        """Return the output transform A^T M A of some tiles of a row and a vector of output
        channels, stored on the stack.
        """
        m, tile, out = self.w.tile, Var("t"), TransformEmitter(self.lanes, [])
        place = row * self.columns + row_part * self.chunk + tile
        group, vector = (
            channel_vector // self._output_vectors_per_group,
            channel_vector % self._output_vectors_per_group,
        )
        first_channel = group * (self.width // self.w.groups) + vector * self.lanes

        def load_product_element(i: int, j: int) -> Expr:
            at = place * self.width + first_channel
            return Load(self.product, at + (i * self.alpha + j) * self.step, self.lanes)

        for i, j, value in out.elements_of_two_sided_matrix_transform("p", self.at, load_product_element):
            out.statements.append(Store(self.tile, (i * self.chunk * m + tile * m + j) * self.lanes, value))
        return forall(tile, self._winograd_tile_columns_in_row_part(row_part), Block(out.statements))

    def _winograd_tile_columns_in_row_part(self, row_part: Var) -> Expr:
        """Return the number of columns of Winograd tiles in a part of a row; smaller in the last
        part.
        """
        if self.columns % self.chunk == 0:
            return as_expr(self.chunk)
        return minimum(self.chunk, self.columns - row_part * self.chunk)

    def _finish_and_store_output_tiles(self, row: Var, row_part: Var, channel_vector: Var) -> Stmt:
        """Return loops that apply the epilogue to the tiles after the output transform, and store
        the elements that are in the output.
        """
        m, (_, outputs, height, width) = self.w.tile, self.w.shape
        lane, i, x = Var("lane"), Var("y"), Var("x")
        top, chunk = (self.strip * self.rows + row) * m, self.chunk * m
        left = self.side * (self.columns * m) + row_part * chunk
        value = Load(self.tile, (i * chunk + x) * self.lanes + lane)
        outputs //= self.w.groups
        group, vector = (
            channel_vector // self._output_vectors_per_group,
            channel_vector % self._output_vectors_per_group,
        )
        first_channel = group * outputs + vector * self.lanes
        body = self.store((self.image, first_channel + lane, top + i, left + x), value)
        body = forall(x, minimum(self._winograd_tile_columns_in_row_part(row_part) * m, width - left), body)
        body = forall(i, minimum(m, height - top), body)
        return forall(lane, minimum(self.lanes, outputs - vector * self.lanes), body)


def round_up_to_odd_cache_line_count(elements: int, cache_line_elements: int) -> int:
    """Return a size of at least `elements` elements that is an odd number of cache lines of
    `cache_line_elements` elements.

    A patch has an element in each of 16 or 36 layers: at distances of multiples of 4096 bytes, or
    of smaller powers of two, they would all compete for few sets of the first-level cache.
    """
    return (-(-elements // cache_line_elements) | 1) * cache_line_elements
