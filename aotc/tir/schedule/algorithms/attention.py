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

from aotc.ir import frozen
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Target,
    Var,
    as_expr,
    optimize_loop_nests,
    substitute,
    substitute_in_stmt,
    te,
    tensor_graph,
)
from aotc.tir.instruction_statements import transpose_square
from aotc.tir.schedule.algorithms.attention_chain import AttentionChain, HeadProduct
from aotc.tir.schedule.contraction import build_contraction_nest
from aotc.tir.schedule.contraction.tiling_cost import accumulator_lanes, weight_packing_block_size
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.tensor_element_lowering import ElementLowering, TensorLocation
from aotc.tir.simplify import Ranges, linear_form, simplify, simplify_stmt
from aotc.tir.stmt import Block, Stmt, Store, forall, loop_nest


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


def build_attention_loop_nest(
    builder: KernelBuilder, chain: AttentionChain, middle_stmts: Callable[[], list[Stmt]]
) -> Stmt:
    """Return the loop nest of a chain of two products; `middle_stmts` returns the statements
    between them for one row.
    """
    return _AttentionNest.allocate_strip_buffers(builder, chain, middle_stmts).build_loop_nest()


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

    @staticmethod
    def allocate_panels(builder: KernelBuilder, product: HeadProduct, name: str) -> _OperandPanels:
        """Return empty panels, in a new scratch buffer, for the second operand of a product."""
        extent, dtype = product.column[1], product.c.dtype
        packed = 0
        if accumulator_lanes(builder.target, dtype) > 1:
            packed = weight_packing_block_size(extent, builder.target, dtype, output_positions=product.row[1])
        block = packed or extent
        size = -(-extent // block) * block * product.inner[1]
        return _OperandPanels(product, builder.allocate_scratch(name, dtype, size, private=True), block, packed > 0)


@frozen(eq=False)
class _RowStrip:
    """A strip: `height` rows from `start` on, and the ranges of the variables in `start`."""

    start: Expr
    height: int
    ranges: Ranges


@frozen(eq=False)
class _AttentionNest:
    """Buffers and loops of an attention nest, which computes two chained products strip by strip.

    builder, chain, middle   see `build_attention_loop_nest`
    head                     variable of the loop over heads
    height, pitch            rows of a strip, and their distance in elements
    keys, values             second operands of the products, in panels
    queries                  the data of the first product
    strip                    its results
    weights                  the result of the middle group, possibly in the buffer `strip`
    """

    builder: KernelBuilder
    chain: AttentionChain
    middle: Callable[[], list[Stmt]]
    head: Var
    height: int
    pitch: int
    keys: _OperandPanels
    values: _OperandPanels
    queries: Buffer
    strip: Buffer
    weights: Buffer

    @staticmethod
    def allocate_strip_buffers(
        builder: KernelBuilder, chain: AttentionChain, middle_stmts: Callable[[], list[Stmt]]
    ) -> _AttentionNest:
        """Return the buffers for a chain of two products, with strips that fit in the target's
        cache.
        """
        first, memory = chain.first, builder.memory
        dtype, (_, rows), (_, columns) = first.c.dtype, first.row, first.column
        height = rows_per_cache_strip(rows, columns, dtype.itemsize, builder.target)
        pitch = cache_friendly_row_pitch(columns, dtype.itemsize, builder.target)
        keys = _OperandPanels.allocate_panels(builder, first, "keys")
        values = _OperandPanels.allocate_panels(builder, chain.second, "values")
        queries = builder.allocate_scratch("queries", dtype, height * first.inner[1], private=True)
        strip = weights = builder.allocate_scratch("strip", dtype, height * pitch, private=True)
        if chain.permutation is not None:
            memory[chain.permutation.source] = TensorLocation(
                memory[chain.permutation.tensor].buffer, place=chain.permutation.permuted_address
            )
        # scores that are read again need a buffer of their own
        if any(read.stage is chain.weights for read in builder.plan.reads[chain.scores]):
            weights = builder.allocate_scratch("weights", dtype, height * pitch, private=True)
        return _AttentionNest(
            builder, chain, middle_stmts, Var("head"), height, pitch, keys, values, queries, strip, weights
        )

    def build_loop_nest(self) -> Stmt:
        """Return the whole attention nest: loops over heads and strips of rows."""
        first, strip = self.chain.first, Var("strip")
        whole, left = divmod(first.row[1], self.height)
        rows = self._attention_stmts_for_row_strip(_RowStrip(strip * self.height, self.height, {strip: (0, whole - 1)}))
        body = [
            self._pack_operand_into_panels(self.keys),
            self._pack_operand_into_panels(self.values),
            forall(strip, whole, rows),
        ]
        if left:
            body.append(self._attention_stmts_for_row_strip(_RowStrip(as_expr(whole * self.height), left, {})))
        return simplify_stmt(forall(self.head, first.head_count, Block(body)), {})

    def _batch_axis_values(self, batch_axes: Sequence[te.Axis]) -> dict[Var, Expr]:
        """Return the values of the batch axes, computed from the number of an attention head."""
        return tensor_graph.substitution_for_axes(
            batch_axes, tensor_graph.indices_from_flat_offset(self.head, [n for _, n in batch_axes])
        )

    def _load_operand_element(
        self,
        product: HeadProduct,
        operand: te.Tensor,
        index: Sequence[Expr],
        axis_values: Mapping[Var, Expr],
        ranges: Ranges,
    ) -> tuple[list[Stmt], Expr]:
        """Return the statements that an element of a matrix product's operand needs, and its value."""
        ranges = {self.head: (0, product.head_count - 1), **ranges}
        mapping = {**self._batch_axis_values(product.batch), **axis_values}
        body = ElementLowering(self.builder.plan, self.builder.memory, ranges)
        value = body.lower_element_read(operand, [simplify(substitute(i, mapping), ranges) for i in index])
        return body.needed_register_declarations, value

    def _pack_operand_into_panels(self, panels: _OperandPanels) -> Stmt:
        """Return the loops that copy the second operand of a product (keys, values), for one head,
        into panels of columns.
        """
        product, block = panels.product, panels.block
        depth = product.inner[1]
        side = accumulator_lanes(self.builder.target, product.c.dtype)
        whole, left = divmod(product.column[1], block)

        def pack_panel(number: Expr, width: int, var_ranges: Ranges) -> Stmt:
            lane, k = Var("lane"), Var("k")
            names = {product.column[0]: number * block + lane, product.inner[0]: k}
            ranges: Ranges = {**var_ranges, lane: (0, width - 1), k: (0, depth - 1)}
            before, value = self._load_operand_element(product, product.c.b, product.c.b_index, names, ranges)
            store = Store(panels.buffer, (number * depth + k) * block + lane, value)
            axes = (k, depth), (lane, width)
            squares = None if before else _transposing_copy_in_register_squares(store, *axes, side)
            return squares or loop_nest(axes, Block((*before, store)), "independent")

        number = Var("panel")
        stmts: list[Stmt] = (
            [forall(number, whole, pack_panel(number, block, {number: (0, whole - 1)}))] if whole else []
        )
        if left:
            stmts.append(pack_panel(as_expr(whole), left, {}))
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
        gathered, depth = self._copy_query_rows(strip), chain.first.inner[1]
        scores = self._multiply_strip_by_panels(self.keys, self.queries, depth, strip)
        rows = self._row_loop_between_products(strip)
        second_product = self._multiply_strip_by_panels(self.values, self.weights, self.pitch, strip)
        return Block((gathered, scores, rows, second_product))

    def _copy_query_rows(self, strip: _RowStrip) -> Stmt:
        """Return the loop that copies the rows of the first product's data to a contiguous buffer."""
        product = self.chain.first
        row, k, depth = Var("row"), Var("k"), product.inner[1]
        names = {product.row[0]: strip.start + row, product.inner[0]: k}
        inner = {**strip.ranges, row: (0, strip.height - 1), k: (0, depth - 1)}
        before, value = self._load_operand_element(product, product.c.a, product.c.a_index, names, inner)
        store = Store(self.queries, row * depth + k, value)
        return optimize_loop_nests(loop_nest([(row, strip.height), (k, depth)], Block((*before, store)), "independent"))

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
        outer = self._batch_axis_values(product.batch)
        finish = builder.function_finishing_and_storing_element(
            product.stage, lambda at: (*outer.values(), strip.start + at[0], at[1])
        )
        return builder.add_buffers_of_nest_and_return_stmt(
            build_contraction_nest(c, data, panels.buffer, finish, builder.target)
        )

    def _row_loop_between_products(self, strip: _RowStrip) -> Stmt:
        """Return the loop over the rows of a strip that applies the computation between both
        products, such as softmax.
        """
        group, row = self.chain.middle, Var("row")
        *batch, last = group.stages[0].anchor_axes[: group.depth]
        body = substitute_in_stmt(Block(self.middle()), {**self._batch_axis_values(batch), last[0]: strip.start + row})
        known: Ranges = {**strip.ranges, self.head: (0, self.chain.first.head_count - 1)}
        return optimize_loop_nests(simplify_stmt(forall(row, strip.height, body), known))


def _transposing_copy_in_register_squares(store: Store, row: te.Axis, lane: te.Axis, square_side: int) -> Stmt | None:
    """Return a transposing copy in which squares of `square_side` elements are transposed in
    registers; None for other copies.
    """
    load = store.value
    squares = {var: extent // square_side for var, extent in (row, lane)}
    if not isinstance(load, Load) or square_side == 1 or not all(squares.values()):
        return None
    (k, depth), (j, width) = row, lane
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
