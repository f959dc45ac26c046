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

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, Load, Target, Var, as_expr, graph, optimized, substitute, substituted, te
from aotc.tir.schedule.contraction import build_contraction
from aotc.tir.schedule.contraction.index_space import variables
from aotc.tir.schedule.contraction.tiling_cost import computed_lanes, pack_block
from aotc.tir.schedule.stages.kernel_builder import KernelBuilder
from aotc.tir.schedule.stages.scalar_expressions import Body, Slot
from aotc.tir.schedule.stages.stage_grouping import Group, Stage
from aotc.tir.schedule.stages.storage_plan import Plan
from aotc.tir.simplify import Ranges, bounds, linear, simplify, simplify_stmt
from aotc.tir.stmt import Block, Intrinsic, Stmt, Store, forall, loops

#: A strip fills this fraction (1 / SHARE) of the second-level cache.
SHARE: Final = 8
#: Least number of rows of a strip.
LEAST: Final = 16


@frozen(eq=False)
class Product:
    """A contraction that is a matrix product per head: (rows, depth) by (depth, columns).

    stage, c             the stage and the contraction
    batch                axes of the heads
    row, column, inner   axes of rows, columns and depth
    """

    stage: Stage
    c: te.Contraction
    batch: tuple[te.Axis, ...]
    row: te.Axis
    column: te.Axis
    inner: te.Axis

    @property
    def heads(self) -> int:
        """Number of attention heads: the product of the batch extents."""
        return math.prod(n for _, n in self.batch)


@frozen(eq=False)
class Moved:
    """A permutation: the elements of `source` in another order in `tensor`.

    place   address in `tensor` of an element, as an expression of the source's axes
    """

    tensor: te.Compute
    source: te.Compute | te.Contraction
    place: Expr

    def at(self, indices: Sequence[Expr]) -> Expr:
        """Return the address in the permuted tensor of an element of the source, given by its
        indices.
        """
        return substitute(self.place, graph.bind(self.source.axes, indices))


@frozen(eq=False)
class Chain:
    """Two matrix products and the computation between them, which makes the second one's data from
    the first one's result.

    first, middle, second   the products and the group of stages between them
    scores                  the tensor of the first product's stage that the group reads
    weights                 the tensor of the group that the second product reads
    moved                   a permutation of the second product's results, in which they are stored;
                            None for none
    absorbed                groups that the nest replaces, in addition to that of the second product
    """

    first: Product
    middle: Group
    second: Product
    scores: te.Tensor
    weights: te.Tensor
    moved: Moved | None
    absorbed: tuple[Group, ...]

    @property
    def roots(self) -> set[te.Tensor]:
        """The tensors that the attention nest holds in strips, so that they need no memory of their
        own.
        """
        others = (g.tensors for g in self.absorbed if g is not self.middle)
        found = {self.weights}.union(*others)
        return found if self.moved is None else found - {self.moved.tensor} | {self.moved.source}


def find_chains(plan: Plan, groups: Sequence[Group], outputs: Sequence[te.Tensor]) -> dict[Group, Chain]:
    """Return the attention-like chains of a kernel (product, computation along rows, product), by
    the group of the second product.
    """
    finder = _Finder(plan, groups, frozenset(graph.base(t) for t in outputs))
    found = {group: finder.chain(group) for group in groups}
    return {group: chain for group, chain in found.items() if chain is not None}


@frozen
class _Finder:
    """Finds attention-like chains (product, computation along rows, product) among the groups of
    stages of a kernel.
    """

    plan: Plan
    groups: Sequence[Group]
    outputs: frozenset[te.Tensor]

    def chain(self, last: Group) -> Chain | None:
        """Return the attention-like chain whose second product is computed by a group of stages,
        None if there is none.
        """
        second = _product(last)
        if second is None:
            return None
        weights = graph.base(second.c.a)
        middle = self._home(weights)
        if middle is None or len(middle.stages) < 2:
            return None
        scores = self._scores(middle)
        before = None if scores is None else self._home(scores)
        first = None if before is None else _product(before)
        if scores is None or before is None or first is None:
            return None
        fits = _fits(first, second) and self._by_rows(middle, first, scores, weights)
        if not fits or not self._is_private(before, middle, second):
            return None
        moved = self._moved(second.stage)
        beside = [self._feeding(t) for t in (first.c.a, first.c.b, second.c.b)]
        if moved is not None:
            beside.append(self._home(moved.tensor))
        absorbed = (before, middle, *(g for g in beside if g is not None))
        return Chain(first, middle, second, scores, weights, moved, absorbed)

    def _home(self, tensor: te.Tensor) -> Group | None:
        """Return the group of stages that computes a tensor, None if there is none."""
        return next((g for g in self.groups if tensor in g.tensors), None)

    def _alone(self, tensor: te.Tensor) -> Group | None:
        """Return the group of stages that computes a tensor and no other one, None if there is
        none.
        """
        group = self._home(tensor)
        return None if group is None or group.tensors != {tensor} else group

    def _scores(self, middle: Group) -> te.Tensor | None:
        """Return the single tensor that a group of stages reads from other stages, None if there
        are several or none.
        """
        read = {tensor for own in middle.tensors for tensor, _ in self.plan.needs.get(own, ())}
        outside = read.intersection(self.plan.stored) - middle.tensors
        return outside.pop() if len(outside) == 1 else None

    def _is_private(self, before: Group, middle: Group, second: Product) -> bool:
        """Return True if no other stage reads the tensors between two chained matrix products."""
        own = before.tensors | middle.tensors
        readers = {r.stage for t in own for r in self.plan.reads.get(t, ())}
        takers = {taker for t in own for taker in self.plan.operands.get(t, ())}
        return not own & self.outputs and readers <= own and takers <= {second.c} and second.c.b not in own

    def _by_rows(self, middle: Group, first: Product, scores: te.Tensor, weights: te.Tensor) -> bool:
        """Return True if row i of the tensors between two matrix products depends on row i of the
        first one's result only.
        """
        shared = [n for _, n in middle.stages[0].axes[: middle.depth]]
        rows, columns = first.row[1], first.column[1]
        if shared[-1:] != [rows] or math.prod(shared) != first.heads * rows:
            return False
        if not scores.shape[-2:] == weights.shape[-2:] == (rows, columns):
            return False
        reads = self.plan.reads.get(scores, ())
        places = [(r.stage, te.flat_index(scores.shape, r.indices)) for r in reads]
        return all(_same_row(stage, middle.depth, place, columns) for stage, place in places)

    def _moved(self, stage: Stage) -> Moved | None:
        """Return the permutation that is the only reader of a stage's result, None if there is
        none.
        """
        source = stage.roots[-1]
        reads = self.plan.reads.get(source, ())
        if len(reads) != 1 or source in self.plan.operands:
            return None
        tensor, indices = reads[0].stage, reads[0].indices
        if not self.outputs.isdisjoint(stage.roots) or self._alone(tensor) is None:
            return None
        if not isinstance(tensor, te.Compute) or not isinstance(source, (te.Compute, te.Contraction)):
            return None
        if not _is_move(tensor, source, self.plan):
            return None
        place = _inverse(tensor, indices, source)
        return None if place is None else Moved(tensor, source, place)

    def _feeding(self, tensor: te.Tensor) -> Group | None:
        """Return the group of stages that computes an operand for one product only, None if there
        is none.

        It is computed while the operand is packed.
        """
        base = graph.base(tensor)
        if not isinstance(base, te.Compute) or base in self.outputs:
            return None
        taken = len(self.plan.operands.get(base, ()))
        return self._alone(base) if taken == 1 and not self.plan.reads.get(base) else None


def _is_move(tensor: te.Compute, source: te.Tensor, plan: Plan) -> bool:
    """Return True if every element of a tensor is an unchanged element of another tensor."""
    body = Body(plan, {source: Slot(Buffer("source", source.dtype, source.size))}, graph.axis_ranges(tensor.axes))
    value = body.computed(tensor, [var for var, _ in tensor.axes])
    return isinstance(value, Load) and not body.statements


def _inverse(tensor: te.Compute, read: Sequence[Expr], source: te.Compute | te.Contraction) -> Expr | None:
    """Return the address in `tensor` of an element of `source`, if the tensor permutes its axes;
    else None.

    `read` are the indices at which the tensor reads the source.
    """
    form = linear(te.flat_index(source.shape, read), graph.axis_ranges(tensor.axes))
    long = [(form.coefficient(var) or 0, n) for var, n in tensor.axes if n > 1]
    size = 1
    for stride, n in sorted(long):
        if stride != size:
            return None
        size *= n
    if size != source.size or size != tensor.size or form.const or len(form.terms) != len(long):
        return None
    flat = te.flat_index(source.shape, [var for var, _ in source.axes])
    places = [flat // (form.coefficient(var) or 1) % n if n > 1 else as_expr(0) for var, n in tensor.axes]
    return simplify(te.flat_index(tensor.shape, places), graph.axis_ranges(source.axes))


def _same_row(reader: te.Tensor, depth: int, place: Expr, columns: int) -> bool:
    """Return True if the element at address `place` of a matrix is in the row that the reader's
    first axes count.
    """
    axes = graph.domain(reader)
    ranges = graph.axis_ranges(axes)
    column = linear(place - _row_number(axes[:depth]) * columns, ranges)
    low, high = bounds(column.expr(), ranges)
    return 0 <= low <= high < columns and variables(*column.terms).isdisjoint(v for v, _ in axes[:depth])


def _row_number(axes: Sequence[te.Axis]) -> Expr:
    """Return the row-major number of the point given by the variables of some axes."""
    return te.flat_index([n for _, n in axes], [v for v, _ in axes])


def _product(group: Group) -> Product | None:
    """Return the contraction of a group as a matrix product of floats per head; None if it is
    anything else.
    """
    stage, *others = group.stages
    c = stage.anchor
    if others or not isinstance(c, te.Contraction) or len(c.axes) < 2 or len(c.reduce_axes) != 1 or c.size == 0:
        return None
    if not c.dtype.is_float or {c.a.dtype, c.b.dtype} != {c.dtype}:
        return None
    *batch, row, column = c.axes
    ((k, depth),) = c.reduce_axes
    if column[0] in variables(*c.a_index) or row[0] in variables(*c.b_index) or depth == 0:
        return None
    return Product(stage, c, tuple(batch), row, column, (k, depth))


def _fits(first: Product, second: Product) -> bool:
    """Return True if row i of the second product's data is row i of the first product's result."""
    c, (k, depth) = second.c, second.inner
    made = first.heads, first.row[1], first.column[1]
    if made != (second.heads, second.row[1], depth):
        return False
    ranges = graph.axis_ranges(graph.domain(c))
    wanted = _row_number(c.axes[:-1]) * depth + k
    distance = te.flat_index(c.a.shape, c.a_index) - wanted
    return simplify(distance, ranges) == as_expr(0)


def strip_rows(rows: int, columns: int, itemsize: int, target: Target) -> int:
    """Return the number of rows of a strip that fits in its fraction of the second-level cache.

    It is up to half as large if it then divides the rows evenly.
    """
    most = min(rows, max(LEAST, target.l2 // SHARE // (columns * itemsize)))
    return next((r for r in range(most, most // 2, -1) if rows % r == 0), most)


def padded_pitch(columns: int, itemsize: int, target: Target) -> int:
    """Return the distance of rows in elements: an odd number of cache lines, so that columns use
    different cache sets.
    """
    line = target.line // itemsize
    return columns if columns < line else (-(-columns // line) | 1) * line


def build_chain(builder: KernelBuilder, chain: Chain, middle: Callable[[], list[Stmt]]) -> Stmt:
    """Return the loop nest of a chain of two products; `middle` returns the statements between them
    for one row.
    """
    return _Strips.of(builder, chain, middle).nest()


@frozen(eq=False)
class _Panels:
    """The second operand of a product, for one head, in panels of `block` columns.

    product   the product
    buffer    the panels
    block     columns of a panel
    packed    True if panels are blocks of columns for vector loads, False for a single panel
    """

    product: Product
    buffer: Buffer
    block: int
    packed: bool

    @staticmethod
    def of(builder: KernelBuilder, product: Product, name: str) -> _Panels:
        """Return empty panels, in a new scratch buffer, for the second operand of a product."""
        extent, dtype = product.column[1], product.c.dtype
        packed = 0
        if computed_lanes(builder.target, dtype) > 1:
            packed = pack_block(extent, builder.target, dtype, columns=product.row[1])
        block = packed or extent
        size = -(-extent // block) * block * product.inner[1]
        return _Panels(product, builder.scratch(name, dtype, size, private=True), block, packed > 0)


@frozen(eq=False)
class _Cut:
    """A strip: `height` rows from `start` on, and the ranges of the variables in `start`."""

    start: Expr
    height: int
    ranges: Ranges


@frozen(eq=False)
class _Strips:
    """Buffers and loops of an attention nest, which computes two chained products strip by strip.

    builder, chain, middle   see `build_chain`
    head                     variable of the loop over heads
    height, pitch            rows of a strip, and their distance in elements
    keys, values             second operands of the products, in panels
    queries                  the data of the first product
    strip                    its results
    weights                  the result of the middle group, possibly in the buffer `strip`
    """

    builder: KernelBuilder
    chain: Chain
    middle: Callable[[], list[Stmt]]
    head: Var
    height: int
    pitch: int
    keys: _Panels
    values: _Panels
    queries: Buffer
    strip: Buffer
    weights: Buffer

    @staticmethod
    def of(builder: KernelBuilder, chain: Chain, middle: Callable[[], list[Stmt]]) -> _Strips:
        """Return the buffers for a chain of two products, with strips that fit in the target's
        cache.
        """
        first, memory = chain.first, builder.memory
        dtype, (_, rows), (_, columns) = first.c.dtype, first.row, first.column
        height = strip_rows(rows, columns, dtype.itemsize, builder.target)
        pitch = padded_pitch(columns, dtype.itemsize, builder.target)
        keys = _Panels.of(builder, first, "keys")
        values = _Panels.of(builder, chain.second, "values")
        queries = builder.scratch("queries", dtype, height * first.inner[1], private=True)
        strip = weights = builder.scratch("strip", dtype, height * pitch, private=True)
        if chain.moved is not None:
            memory[chain.moved.source] = Slot(memory[chain.moved.tensor].buffer, place=chain.moved.at)
        # scores that are read again need a buffer of their own
        if any(read.stage is chain.weights for read in builder.plan.reads[chain.scores]):
            weights = builder.scratch("weights", dtype, height * pitch, private=True)
        return _Strips(builder, chain, middle, Var("head"), height, pitch, keys, values, queries, strip, weights)

    def nest(self) -> Stmt:
        """Return the whole attention nest: loops over heads and strips of rows."""
        first, strip = self.chain.first, Var("strip")
        whole, left = divmod(first.row[1], self.height)
        rows = self._strip(_Cut(strip * self.height, self.height, {strip: (0, whole - 1)}))
        body = [self._pack(self.keys), self._pack(self.values), forall(strip, whole, rows)]
        if left:
            body.append(self._strip(_Cut(as_expr(whole * self.height), left, {})))
        return simplify_stmt(forall(self.head, first.heads, Block(body)), {})

    def _batch(self, axes: Sequence[te.Axis]) -> dict[Var, Expr]:
        """Return the values of the batch axes, computed from the number of an attention head."""
        return graph.bind(axes, graph.unflatten(self.head, [n for _, n in axes]))

    def _element(
        self, product: Product, operand: te.Tensor, index: Sequence[Expr], names: Mapping[Var, Expr], ranges: Ranges
    ) -> tuple[list[Stmt], Expr]:
        """Return the statements that an element of a matrix product's operand needs, and its value."""
        ranges = {self.head: (0, product.heads - 1), **ranges}
        mapping = {**self._batch(product.batch), **names}
        body = Body(self.builder.plan, self.builder.memory, ranges)
        value = body.element(operand, [simplify(substitute(i, mapping), ranges) for i in index])
        return body.statements, value

    def _pack(self, panels: _Panels) -> Stmt:
        """Return the loops that copy the second operand of a product (keys, values), for one head,
        into panels of columns.
        """
        product, block = panels.product, panels.block
        depth = product.inner[1]
        side = computed_lanes(self.builder.target, product.c.dtype)
        whole, left = divmod(product.column[1], block)

        def panel(number: Expr, width: int, known: Ranges) -> Stmt:
            lane, k = Var("lane"), Var("k")
            names = {product.column[0]: number * block + lane, product.inner[0]: k}
            ranges: Ranges = {**known, lane: (0, width - 1), k: (0, depth - 1)}
            before, value = self._element(product, product.c.b, product.c.b_index, names, ranges)
            store = Store(panels.buffer, (number * depth + k) * block + lane, value)
            axes = (k, depth), (lane, width)
            squares = None if before else _transposed(store, *axes, side)
            return squares or loops(axes, Block((*before, store)), "independent")

        number = Var("panel")
        stmts: list[Stmt] = [forall(number, whole, panel(number, block, {number: (0, whole - 1)}))] if whole else []
        if left:
            stmts.append(panel(as_expr(whole), left, {}))
        return optimized(Block(stmts), self.builder.target.budget)

    def _strip(self, cut: _Cut) -> Stmt:
        """Return the statements for one strip of rows of a head: scores, computation along rows,
        second product.
        """
        chain, memory = self.chain, self.builder.memory

        def place(indices: Sequence[Expr]) -> Expr:
            *_, row, column = indices
            return (row - cut.start) * self.pitch + column

        memory[chain.scores] = Slot(self.strip, place=place)
        memory[chain.weights] = Slot(self.weights, place=place)
        gathered, depth = self._gather(cut), chain.first.inner[1]
        scores = self._multiply(self.keys, self.queries, depth, cut)
        rows = self._rows(cut)
        made = self._multiply(self.values, self.weights, self.pitch, cut)
        return Block((gathered, scores, rows, made))

    def _gather(self, cut: _Cut) -> Stmt:
        """Return the loop that copies the rows of the first product's data to a contiguous buffer."""
        product = self.chain.first
        row, k, depth = Var("row"), Var("k"), product.inner[1]
        names = {product.row[0]: cut.start + row, product.inner[0]: k}
        inner = {**cut.ranges, row: (0, cut.height - 1), k: (0, depth - 1)}
        before, value = self._element(product, product.c.a, product.c.a_index, names, inner)
        store = Store(self.queries, row * depth + k, value)
        return optimized(loops([(row, cut.height), (k, depth)], Block((*before, store)), "independent"))

    def _multiply(self, panels: _Panels, data: Buffer, pitch: int, cut: _Cut) -> Stmt:
        """Return the product of a strip of rows, `pitch` elements apart, and the packed second
        operand of one head.
        """
        builder, product, block, height = self.builder, panels.product, panels.block, cut.height
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
        outer = self._batch(product.batch)
        finish = builder.finisher(product.stage, lambda at: (*outer.values(), cut.start + at[0], at[1]))
        return builder.placed(build_contraction(c, data, panels.buffer, finish, builder.target))

    def _rows(self, cut: _Cut) -> Stmt:
        """Return the loop over the rows of a strip that applies the computation between both
        products, such as softmax.
        """
        group, row = self.chain.middle, Var("row")
        *batch, last = group.stages[0].axes[: group.depth]
        body = substituted(Block(self.middle()), {**self._batch(batch), last[0]: cut.start + row})
        known: Ranges = {**cut.ranges, self.head: (0, self.chain.first.heads - 1)}
        return optimized(simplify_stmt(forall(row, cut.height, body), known))


def _transposed(store: Store, row: te.Axis, lane: te.Axis, side: int) -> Stmt | None:
    """Return a transposing copy in which squares of `side` elements are transposed in registers;
    None for other copies.
    """
    load = store.value
    squares = {var: extent // side for var, extent in (row, lane)}
    if not isinstance(load, Load) or side == 1 or not all(squares.values()):
        return None
    (k, depth), (j, width) = row, lane
    source, panel = linear(load.index, {}), linear(store.index, {})
    stride, pitch = source.coefficient(j), panel.coefficient(k)
    if (source.coefficient(k), panel.coefficient(j)) != (1, 1) or min(stride or 0, pitch or 0) < side:
        return None
    corner: dict[Var, Expr] = {var: var * side for var in squares}
    first = Load(load.buffer, substitute(load.index, corner), side)
    to = substitute(store.index, corner)
    square = Intrinsic("turn", store.buffer, to, int(pitch or 0), first, int(stride or 0))
    whole = loops([(j, squares[j]), (k, squares[k])], square, "independent")
    beside = forall(j, width, store, begin=squares[j] * side)
    below = forall(k, depth, loops([lane], store, "independent"), begin=squares[k] * side)
    return Block((whole, forall(k, squares[k] * side, beside), below))
