# SPDX-License-Identifier: Apache-2.0
"""Attention as one loop nest: two matrix products and the computation between them, strip by strip
(no full score matrix).

Input: the groups of a kernel, of which one contraction's result is, after computations along rows,
the data of another one, as in softmax(q k^T) v. Output: one nest over strips of rows that fit in
the cache:

    for head:
        k, v packed for the register tiles
        for strip of rows:
            strip[rows][columns] = q k^T, scaled and masked        # the contraction generator's
            for row of strip: softmax                              # the group's own loops
            out[rows] = strip v                                    # the contraction generator's

Transposes and repeats of the operands are computed while the operands are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aotc.ir import frozen, is_static, largest_size
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Target,
    Var,
    as_expr,
    const,
    minimum,
    optimize_loop_nests,
    substitute,
    substitute_in_stmt,
    te,
    tensor_graph,
)
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.schedule.algorithms.attention_chain import AttentionChain, HeadProduct
from aotc.tir.schedule.contraction import StoreFn, build_contraction_nest, build_contraction_nest_of_parts
from aotc.tir.schedule.contraction.tile_segments import MAX_RUN_TIME_TILE_POSITIONS
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes, weight_packing_block_size
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.tensor_element_lowering import ElementLowering, TensorLocation
from aotc.tir.simplify import Interval, Ranges, linear_form, simplify
from aotc.tir.simplify_statements import simplify_stmt
from aotc.tir.stmt import Block, If, Stmt, Store, forall, loop_nest


def rows_per_cache_strip(rows: int, columns: int, itemsize: int, target: Target) -> int:
    """Return the number of rows of a strip that fits in its fraction of the second-level cache.

    It is up to half as large if it then divides the rows evenly.
    """
    strip_bytes = target.l2 // target.strips.attention_strips_in_l2
    most = min(rows, max(target.strips.min_attention_rows, strip_bytes // (columns * itemsize)))
    return next((r for r in range(most, most // 2, -1) if rows % r == 0), most)


def cache_friendly_row_pitch(columns: int, itemsize: int, target: Target) -> int:
    """Return the distance of rows in elements: an odd number of cache lines, so that columns use
    different cache sets.
    """
    line = target.line // itemsize
    return columns if columns < line else (-(-columns // line) | 1) * line


def has_tiles_for_products(chain: AttentionChain, target: Target) -> bool:
    """Return True if the products of a chain of run-time sizes have register tiles on a target: it has vectors, and
    rows of both second operands fill a panel.
    """
    if target.is_scalar or target.gpu is not None:
        return False
    products = (chain.first, chain.second)
    return all(_panel_columns(product, target) for product in products)


def _panel_columns(product: HeadProduct, target: Target) -> int:
    """Return the number of columns of a panel of a product's second operand; 0 if it is a single panel, which is not
    read as vectors.
    """
    if accumulator_lanes(target, product.c.dtype) == 1:
        return 0
    columns, rows = largest_size(product.column[1]), largest_size(product.row[1])
    return weight_packing_block_size(columns, target, product.c.dtype, output_positions=rows)


def build_attention_loop_nest(
    builder: KernelBuilder, chain: AttentionChain, middle_stmts: Callable[[], list[Stmt]]
) -> Stmt:
    """Return the loop nest of a chain of two products; `middle_stmts` returns the statements
    between them for one row.
    """
    return _AttentionNest.allocate_strip_buffers(builder, chain, middle_stmts).build_loop_nest()


def _axes_of_heads(chain: AttentionChain) -> tuple[te.Axis, ...]:
    """Return the axes that number the heads: one of them if all sizes are known.

    With sizes that are known at run time only, separate axes of batches and heads show that different heads do not
    access the same elements.
    """
    if is_static([chain.first.head_count, chain.first.row[1], chain.first.column[1]]):
        return ((Var("head"), te.as_extent(chain.first.head_count)),)
    axes = chain.middle.stages[0].anchor_axes[: chain.middle.depth - 1]
    return tuple((Var("head"), extent) for _, extent in axes)


@frozen(eq=False)
class _OperandPanels:
    """The second operand of a product, for one head, in panels of `block` columns.

    product   the product
    buffer    the panels
    block     columns of a panel
    packed    True if panels are blocks of columns for vector loads, False for a single panel
    """

    product: HeadProduct
    buffer: Buffer
    block: int
    packed: bool

    @property
    def stored_columns(self) -> int:
        """The largest number of columns in all panels."""
        return -(-largest_size(self.product.column[1]) // self.block) * self.block

    @staticmethod
    def allocate_panels(builder: KernelBuilder, product: HeadProduct, name: str) -> _OperandPanels:
        """Return empty panels, in a new scratch buffer, for the second operand of a product."""
        extent, depth = (largest_size(n) for _, n in (product.column, product.inner))
        dtype, packed = product.c.dtype, _panel_columns(product, builder.target)
        block = packed or extent
        size = -(-extent // block) * block * depth
        return _OperandPanels(product, builder.allocate_scratch(name, dtype, size, private=True), block, packed > 0)


@frozen(eq=False)
class _RowStrip:
    """A strip of rows.

    start     its first row
    height    the number of rows, the largest one if it is known at run time only
    count     the number of rows in a run
    ranges    the ranges of the variables in `start`
    """

    start: Expr
    height: int
    count: int | Expr
    ranges: Ranges


@frozen(eq=False)
class _AttentionNest:
    """Buffers and loops of an attention nest, which computes two chained products strip by strip.

    builder, chain, middle   see `build_attention_loop_nest`
    heads                    the axes that number the heads, one of them if all sizes are known
    height, pitch            rows of a strip, and their distance in elements
    keys, values             second operands of the products, in panels
    queries                  the data of the first product
    strip                    its results
    weights                  the result of the middle group, possibly in the buffer `strip`
    sums                     the result of the second product before it is finished, if the number of rows or columns
                             is known at run time only; else None
    """

    builder: KernelBuilder
    chain: AttentionChain
    middle: Callable[[], list[Stmt]]
    heads: tuple[te.Axis, ...]
    height: int
    pitch: int
    keys: _OperandPanels
    values: _OperandPanels
    queries: Buffer
    strip: Buffer
    weights: Buffer
    sums: Buffer | None

    @staticmethod
    def allocate_strip_buffers(
        builder: KernelBuilder, chain: AttentionChain, middle_stmts: Callable[[], list[Stmt]]
    ) -> _AttentionNest:
        """Return the buffers for a chain of two products, with strips that fit in the target's
        cache.
        """
        first, memory = chain.first, builder.memory
        dtype, rows, columns = first.c.dtype, largest_size(first.row[1]), largest_size(first.column[1])
        height = rows_per_cache_strip(rows, columns, dtype.itemsize, builder.target)
        has_known_sizes = is_static([first.row[1], first.column[1]])
        if not has_known_sizes:
            # whole register tiles, except in the last strip, and no more memory than with known sizes
            height = min(rows, max(1, height // MAX_RUN_TIME_TILE_POSITIONS) * MAX_RUN_TIME_TILE_POSITIONS)
        keys = _OperandPanels.allocate_panels(builder, first, "keys")
        stored_columns = columns if has_known_sizes else keys.stored_columns
        pitch = cache_friendly_row_pitch(stored_columns, dtype.itemsize, builder.target)
        values = _OperandPanels.allocate_panels(builder, chain.second, "values")
        queries = builder.allocate_scratch("queries", dtype, height * largest_size(first.inner[1]), private=True)
        strip = weights = builder.allocate_scratch("strip", dtype, height * pitch, private=True)
        if chain.permutation is not None:
            memory[chain.permutation.source] = TensorLocation(
                memory[chain.permutation.tensor].buffer, place=chain.permutation.permuted_address
            )
        # scores that are read again need a buffer of their own
        if any(read.stage is chain.weights for read in builder.plan.reads[chain.scores]):
            weights = builder.allocate_scratch("weights", dtype, height * pitch, private=True)
        sums = None
        if not has_known_sizes:
            sums = builder.allocate_scratch("sums", dtype, height * values.stored_columns, private=True)
        heads = _axes_of_heads(chain)
        return _AttentionNest(
            builder, chain, middle_stmts, heads, height, pitch, keys, values, queries, strip, weights, sums
        )

    def build_loop_nest(self) -> Stmt:
        """Return the whole attention nest: loops over heads and strips of rows."""
        packed = (self._pack_operand_into_panels(self.keys), self._pack_operand_into_panels(self.values))
        body = Block((*packed, *self._stmts_for_all_row_strips()))
        axes = [(var, as_expr(extent)) for var, extent in self.heads]
        return simplify_stmt(loop_nest(axes, body, "independent"), self.builder.ranges_of_numbers)

    def _stmts_for_all_row_strips(self) -> list[Stmt]:
        """Return the statements for all rows of a head, strip by strip."""
        rows, height, strip = self.chain.first.row[1], self.height, Var("strip")
        start = strip * height
        if not is_static([rows]):
            count = minimum(height, as_expr(rows) - start)
            strips = {strip: (0, (largest_size(rows) - 1) // height)}
            stmt = self._attention_stmts_for_row_strip(_RowStrip(start, height, count, strips))
            return [forall(strip, (as_expr(rows) + (height - 1)) // height, stmt)]
        whole, left = divmod(rows, height)
        stmt = self._attention_stmts_for_row_strip(_RowStrip(start, height, height, {strip: (0, whole - 1)}))
        stmts: list[Stmt] = [forall(strip, whole, stmt)]
        if left:
            stmts.append(self._attention_stmts_for_row_strip(_RowStrip(as_expr(whole * height), left, left, {})))
        return stmts

    @property
    def _ranges_of_heads(self) -> dict[Var, Interval]:
        """The ranges of the sizes of a run, and of the variables that number the heads."""
        return {**self.builder.ranges_of_numbers, **tensor_graph.inclusive_ranges_of_axes(self.heads)}

    @property
    def _head_number(self) -> Expr:
        """The number of an attention head."""
        return te.flat_index([extent for _, extent in self.heads], [var for var, _ in self.heads])

    def _batch_axis_values(self, batch_axes: Sequence[te.Axis]) -> dict[Var, Expr]:
        """Return the values of the batch axes, computed from the number of an attention head."""
        indices = tensor_graph.indices_from_flat_offset(self._head_number, [n for _, n in batch_axes])
        return tensor_graph.substitution_for_axes(batch_axes, [simplify(i, self._ranges_of_heads) for i in indices])

    def _load_operand_element(
        self,
        product: HeadProduct,
        operand: te.Tensor,
        index: Sequence[Expr],
        axis_values: Mapping[Var, Expr],
        ranges: Ranges,
    ) -> tuple[list[Stmt], Expr]:
        """Return the statements that an element of a matrix product's operand needs, and its value."""
        ranges = {**self._ranges_of_heads, **ranges}
        mapping = {**self._batch_axis_values(product.batch), **axis_values}
        body = ElementLowering(self.builder.plan, self.builder.memory, ranges)
        value = body.lower_element_read(operand, [simplify(substitute(i, mapping), ranges) for i in index])
        return body.needed_register_declarations, value

    def _pack_operand_into_panels(self, panels: _OperandPanels) -> Stmt:
        """Return the loops that copy the second operand of a product (keys, values), for one head,
        into panels of columns.
        """
        product, block = panels.product, panels.block
        depth, columns = product.inner[1], product.column[1]
        side = accumulator_lanes(self.builder.target, product.c.dtype)
        lane, k, number = Var("lane"), Var("k"), Var("panel")

        def copy_element(panel: Expr, width: int, var_ranges: Ranges) -> tuple[list[Stmt], Store]:
            names = {product.column[0]: panel * block + lane, product.inner[0]: k}
            ranges: Ranges = {**var_ranges, lane: (0, width - 1), k: (0, largest_size(depth) - 1)}
            before, value = self._load_operand_element(product, product.c.b, product.c.b_index, names, ranges)
            return before, Store(panels.buffer, (panel * depth + k) * block + lane, value)

        def pack_panel(panel: Expr, width: int, var_ranges: Ranges) -> Stmt:
            before, store = copy_element(panel, width, var_ranges)
            axes = (k, depth), (lane, width)
            squares = None if before else _transposing_copy_in_register_squares(store, *axes, side)
            return squares or loop_nest(axes, Block((*before, store)), "independent")

        zero = Store(panels.buffer, (number * depth + k) * block + lane, const(0, panels.buffer.dtype))
        if not is_static([columns]):
            ranges = {number: (0, (largest_size(columns) - 1) // block)}
            before, store = copy_element(number, block, ranges)
            fills = (forall(k, depth, body) for body in (Block((*before, store)), zero))
            last = forall(lane, block, If(number * block + lane < as_expr(columns), *fills))
            panel = If(number * block + block <= as_expr(columns), pack_panel(number, block, ranges), last)
            count = as_expr((columns + (block - 1)) // block)
            return optimize_loop_nests(forall(number, count, panel), self.builder.target.budget)
        whole, left = divmod(columns, block)
        stmts: list[Stmt] = (
            [forall(number, whole, pack_panel(number, block, {number: (0, whole - 1)}))] if whole else []
        )
        if left:
            stmts.append(pack_panel(as_expr(whole), left, {}))
        if left and self.sums is not None:
            rest = forall(lane, block, substitute_in_stmt(zero, {number: as_expr(whole)}), begin=left)
            stmts.append(forall(k, depth, rest))
        return optimize_loop_nests(Block(stmts), self.builder.target.budget)

    def _attention_stmts_for_row_strip(self, strip: _RowStrip) -> Stmt:
        """Return the statements for one strip of rows of a head: scores, computation along rows,
        second product.
        """
        chain, memory = self.chain, self.builder.memory

        def address_in_strip(indices: Sequence[Expr]) -> Expr:
            *_, row, column = indices
            return (row - strip.start) * self.pitch + column

        memory[chain.scores] = TensorLocation(self.strip, place=address_in_strip)
        memory[chain.weights] = TensorLocation(self.weights, place=address_in_strip)
        gathered, depth = self._copy_query_rows(strip), largest_size(chain.first.inner[1])
        rows = self._row_loop_between_products(strip)
        if self.sums is None:
            scores = self._multiply_strip_by_panels(self.keys, self.queries, depth, strip)
            second_product = self._multiply_strip_by_panels(self.values, self.weights, self.pitch, strip)
        else:
            place = (self.strip, self.pitch)
            scores = self._multiply_strip_by_whole_panels(self.keys, self.queries, depth, strip, *place)
            place = (self.sums, self.values.stored_columns)
            second_product = self._multiply_strip_by_whole_panels(self.values, self.weights, self.pitch, strip, *place)
        return Block((gathered, scores, rows, second_product))

    def _copy_query_rows(self, strip: _RowStrip) -> Stmt:
        """Return the loop that copies the rows of the first product's data to a contiguous buffer."""
        product = self.chain.first
        row, k, depth = Var("row"), Var("k"), product.inner[1]
        names = {product.row[0]: strip.start + row, product.inner[0]: k}
        inner = {**strip.ranges, row: (0, strip.height - 1), k: (0, largest_size(depth) - 1)}
        before, value = self._load_operand_element(product, product.c.a, product.c.a_index, names, inner)
        store = Store(self.queries, row * depth + k, value)
        return optimize_loop_nests(loop_nest([(row, strip.count), (k, depth)], Block((*before, store)), "independent"))

    def _multiply_strip_by_panels(self, panels: _OperandPanels, data: Buffer, pitch: int, strip: _RowStrip) -> Stmt:
        """Return the product of a strip of rows, `pitch` elements apart, and the packed second
        operand of one head.
        """
        builder, product, block, height = self.builder, panels.product, panels.block, strip.height
        extent, depth, dtype = product.column[1], product.inner[1], product.c.dtype
        c = te.contraction(
            (height, extent),
            (depth,),
            te.placeholder((height, pitch), dtype, data.name),
            lambda i, j, k: (i, k),
            te.placeholder((-(-extent // block), depth, block), dtype, panels.buffer.name),
            lambda i, j, k: (j // block, k, j % block),
            dtype=dtype,
            name=product.c.name,
            lane=1,
            block=block if panels.packed else 0,
        )
        finish = self._function_finishing_element(product, strip)
        return builder.add_buffers_of_nest_and_return_stmt(
            build_contraction_nest(c, data, panels.buffer, finish, builder.target)
        )

    def _multiply_strip_by_whole_panels(
        self, panels: _OperandPanels, data: Buffer, pitch: int, strip: _RowStrip, sums: Buffer, sums_pitch: int
    ) -> Stmt:
        """Return what `_multiply_strip_by_panels` returns, for rows or columns whose number is known at run time
        only: the sums of all columns of the panels are stored before those that exist are finished.

        Statements that finish an element are there once, not once for each size of a register tile.

        sums, sums_pitch    the buffer of the sums, and the distance of rows there
        """
        builder, product, block, height = self.builder, panels.product, panels.block, strip.height
        extent, depth, dtype = product.column[1], product.inner[1], product.c.dtype
        count = te.as_extent((extent + (block - 1)) // block)
        c = te.contraction(
            (height, count, block),
            (depth,),
            te.placeholder((height, pitch), dtype, data.name),
            lambda i, panel, lane, k: (i, k),
            te.placeholder((count, depth, block), dtype, panels.buffer.name),
            lambda i, panel, lane, k: (panel, k, lane),
            dtype=dtype,
            name=product.c.name,
            lane=2,
            block=block,
        )

        def store_sum(at: tuple[Expr, ...], value: Expr) -> Stmt:
            return Store(sums, at[0] * sums_pitch + (at[1] * block + at[2]), value)

        parts = {} if isinstance(strip.count, int) else {c.axes[0][0]: (strip.start, strip.start + strip.count)}
        nest = build_contraction_nest_of_parts(
            c, data, panels.buffer, store_sum, builder.target, builder.numbers, parts
        )
        if nest is None:
            raise AssertionError(f"no tiling fits the product {c.name}")
        stmt = builder.add_buffers_of_nest_and_return_stmt(nest)
        if sums is self.strip and product.stage.roots == [product.c]:
            return stmt  # the sums are in their place
        row, column = Var("row"), Var("column")
        finish = self._function_finishing_element(product, strip)
        element = finish((row, column), Load(sums, row * sums_pitch + column))
        axes = (row, as_expr(strip.count)), (column, as_expr(extent))
        finished = optimize_loop_nests(loop_nest(axes, element, "independent"), builder.target.budget)
        return Block((stmt, finished))

    def _function_finishing_element(self, product: HeadProduct, strip: _RowStrip) -> StoreFn:
        """Return the function that finishes and stores an element of a product, given its row in a strip and its
        column.
        """
        outer = self._batch_axis_values(product.batch)
        return self.builder.function_finishing_and_storing_element(
            product.stage, lambda at: (*outer.values(), strip.start + at[0], at[1])
        )

    def _row_loop_between_products(self, strip: _RowStrip) -> Stmt:
        """Return the loop over the rows of a strip that applies the computation between both
        products, such as softmax.
        """
        group, row = self.chain.middle, Var("row")
        *batch, last = group.stages[0].anchor_axes[: group.depth]
        body = substitute_in_stmt(Block(self.middle()), {**self._batch_axis_values(batch), last[0]: strip.start + row})
        known: Ranges = {**strip.ranges, **self._ranges_of_heads}
        return optimize_loop_nests(simplify_stmt(forall(row, strip.count, body), known))


def _transposing_copy_in_register_squares(store: Store, row: te.Axis, lane: te.Axis, square_side: int) -> Stmt | None:
    """Return a transposing copy in which squares of `square_side` elements are transposed in
    registers; None for other copies.
    """
    load = store.value
    (k, depth), (j, width) = row, lane
    if not isinstance(depth, int) or not isinstance(width, int):
        return None
    squares = {k: depth // square_side, j: width // square_side}
    if not isinstance(load, Load) or square_side == 1 or not all(squares.values()):
        return None
    source, panel = linear_form(load.index, {}), linear_form(store.index, {})
    stride, pitch = source.coefficient(j), panel.coefficient(k)
    if (source.coefficient(k), panel.coefficient(j)) != (1, 1) or min(stride or 0, pitch or 0) < square_side:
        return None
    corner: dict[Var, Expr] = {var: var * square_side for var in squares}
    to, first = substitute(store.index, corner), substitute(load.index, corner)
    square = transpose_square(square_side, store.buffer, to, int(pitch or 0), load.buffer, first, int(stride or 0))
    whole = loop_nest([(j, squares[j]), (k, squares[k])], square, "independent")
    right_edge = forall(j, width, store, begin=squares[j] * square_side)
    below = forall(k, depth, loop_nest([lane], store, "independent"), begin=squares[k] * square_side)
    return Block((whole, forall(k, squares[k] * square_side, right_edge), below))
