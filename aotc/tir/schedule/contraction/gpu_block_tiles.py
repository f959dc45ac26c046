# SPDX-License-Identifier: Apache-2.0
"""GPU schedule of a contraction: each thread block computes a tile of the output, with operand
tiles in shared memory.

    for b in 0..98 block: for t in 0..256 thread:                    # 64 x 64 elements, 4 x 4 of each thread
        acc[4 x 4] = 0
        even[16 x 64 + 16 x 64] = async the first pieces of data and weights
        for pair in 0..18:
            wait; sync; odd = async the next ones; acc += products of even
            wait; sync; even = async the next ones, if any; acc += products of odd
        y = what is inside of acc

The rows of the product are the axes of the data alone, the columns those of the weights alone; axes
of both are distributed over blocks. Shared memory is double-buffered: the next pieces of the
operands are copied asynchronously while the current ones are multiplied. Out-of-range elements are
zeros in shared memory, so all threads run all steps.

If there are few tiles, tiles are smaller, and several groups of threads compute one tile: each
multiplies its part of a piece, and their sums, which reuse the shared memory of the pieces, are
added in the order of the groups. If there are still too few blocks, several blocks compute one tile
(split-K): each reduces a part, and the last block to finish adds their sums, which are in global
memory, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Declare, Expr, For, Gpu, Load, Ranges, Target, Var, by_last, linear, substituted, te
from aotc.tir.expr import Binary, Const, all_of, call, const, substitute, walk
from aotc.tir.schedule.contraction.gpu_dp4a import in_words, words
from aotc.tir.schedule.contraction.gpu_split_reduction import LEAST, Half, by_slices
from aotc.tir.schedule.contraction.index_space import (
    Analysis,
    Irregular,
    analyze,
    apart,
    digits,
    finite_weights,
    points,
    used,
)
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn, products
from aotc.tir.schedule.contraction.shared_memory_copies import SECTOR, Piece, Place, Side, Steps
from aotc.tir.stmt import Assign, If, Stmt, Store, Sync, Wait, loops

#: Adjacent accumulators of a thread, whose operands are loaded by one instruction.
_QUAD: Final = 4
#: Padding elements between rows in shared memory, which reduces bank conflicts when threads store
#: down a column.
_GAP: Final = 4
#: Multiply-adds that a multiprocessor starts per cycle.
_RATE: Final = 128
#: Least number of cycles between two barriers: the latency of global memory.
_LATENCY: Final = 700
#: Cycles until a block knows that it is the last one, and can read the sums of the other blocks.
_ARRIVAL: Final = 3 * _LATENCY
#: Largest number of blocks that compute one tile.
_SPLITS: Final = 8


@frozen(eq=False)
class Used:
    """Buffers of a GPU thread's multiplication.

    shared     the current piece in shared memory
    operands   registers of both operands
    acc        accumulators
    """

    shared: Buffer
    operands: tuple[Buffer, Buffer]
    acc: Buffer


@frozen
class Tile:
    """Shape of the tile of a thread block.

    rows, columns   threads of a group along rows and columns of the product
    high, wide      accumulators of each thread along rows and columns
    groups          groups of threads that split the steps of a piece
    depth           reduction steps of a piece
    quad, gap       adjacent accumulators, and padding elements of rows in shared memory
    splits          blocks that compute one tile
    staged          True if sums go through shared memory even with a single group
    """

    rows: int
    columns: int
    high: int
    wide: int
    groups: int = 1
    depth: int = 16
    quad: int = _QUAD
    gap: int = _GAP
    splits: int = 1
    staged: bool = False

    @property
    def rowwise(self) -> bool:
        """True if operands in shared memory may have the reduction steps as their contiguous axis."""
        return False

    @property
    def group(self) -> int:
        """Threads of a group."""
        return self.rows * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.groups * self.group

    @property
    def height(self) -> int:
        """Rows of the output tile of a thread block."""
        return self.rows * self.high

    @property
    def width(self) -> int:
        """Columns of the output tile of a thread block."""
        return self.columns * self.wide

    @property
    def size(self) -> int:
        """Elements of the output tile of a thread block."""
        return self.height * self.width

    def split(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> list[Tile]:
        """Return this tile shape with one thread block per tile and, if that leaves multiprocessors
        idle, with several.
        """
        blocks, count = self.blocks(rows, columns, batch), -(-steps // self.depth)
        most = min(gpu.processors // blocks, count // 2, _SPLITS)
        return [self, *(replace(self, splits=n) for n in range(2, most + 1) if count % n == 0)]

    def blocks(self, rows: int, columns: int, batch: int) -> int:
        """Return the number of tiles that cover `batch` output matrices of some rows and columns."""
        return batch * -(-rows // self.height) * -(-columns // self.width)

    def pitches(self, left: bool, right: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return, for both operands in shared memory, the distance between rows and the total size,
        in elements.

        `left` and `right` are True if the contiguous axis of the operand is that of the reduction
        steps.
        """
        sides = ((self.height, left), (self.width, right))
        pairs = [(self.depth, size) if deep else (size, self.depth) for size, deep in sides]
        (a, b), (c, d) = pairs
        return (a + self.gap, (a + self.gap) * b), (c + self.gap, (c + self.gap) * d)

    @property
    def sums(self) -> int:
        """Elements of shared memory for the sums of the thread groups."""
        return self.size * self.groups if self.groups > 1 or self.staged else 0

    def fits(self, dtype: DType, gpu: Gpu) -> bool:
        """Return True if operand pieces and sums of a tile fit in shared memory; `dtype` is the
        type of the sums.
        """
        operands = self.of(dtype)
        (_, left), (_, right) = self.pitches(True, True)
        (_, high), (_, wide) = self.pitches(False, False)
        pieces = (max(left, high) + max(right, wide)) * operands.itemsize
        sums = self.sums * dtype.itemsize
        return (max(pieces, sums) if operands == dtype else pieces + sums) + pieces <= gpu.shared_bytes

    def of(self, dtype: DType) -> DType:
        """Return the element type of the operands in shared memory, for sums of type `dtype`."""
        return dtype

    def own(self, thread: Expr, along: bool) -> tuple[Place, Place]:
        """Return functions from (quad, index in it) to a thread's row and column of the tile.

        Neighboring threads have neighboring columns if `along`, else neighboring rows.
        """
        quick, slow = thread % self.rows, thread // self.rows
        if along:
            quick, slow = thread // self.columns, thread % self.columns
        return (
            lambda quad, one: quad * (self.quad * self.rows) + quick * self.quad + one,
            lambda quad, one: quad * (self.quad * self.columns) + slow * self.quad + one,
        )

    def accumulator(self, down: Expr, i: Expr, across: Expr, j: Expr) -> Expr:
        """Return the index of a GPU thread's accumulator for row `i` of its row group `down` and
        column `j` of group `across`.
        """
        return (down * self.quad + i) * self.wide + across * self.quad + j

    def registers(self, acc: Buffer) -> tuple[Buffer, Buffer]:
        """Return register arrays for a thread's elements of both operands."""
        a, b = (Buffer(name, acc.dtype, n, "stack", 16) for name, n in (("a", self.high), ("b", self.wide)))
        return a, b

    def product(self, at: Used, left: Side, right: Side, thread: Expr, group: Expr) -> Stmt:
        """Return the multiplication of operand pieces in shared memory by one thread: load
        registers, multiply all pairs.
        """
        depth, stmts, acc, found = Var("depth"), list[Stmt](), at.acc, at.operands
        for side, to in zip((left, right), found, strict=True):
            quad, one = Var("quad"), Var("one")
            value = Load(at.shared, side.at(group * (self.depth // self.groups) + depth, side.own(quad, one)))
            copy = Store(to, quad * self.quad + one, value)
            stmts.append(loops([(quad, side.count // self.quad), (one, self.quad)], copy, "independent"))
        i, j = Var("i"), Var("j")
        place = i * right.count + j
        total = left.whole.multiplied(Load(acc, place), Load(found[0], i), Load(found[1], j), right.whole)
        update = Store(acc, place, total)
        stmts.append(loops([(i, left.count), (j, right.count)], update, "independent"))
        return For(depth, self.depth // self.groups, Block(stmts))

    @property
    def work(self) -> float:
        """Cost of multiplying one piece for the threads of a group: products, and loads from shared
        memory.
        """
        return self.group * self.depth * (self.high * self.wide + 1.5 * (self.high + self.wide))

    def cost(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> float:
        """Estimate the cycles of a GPU multiprocessor for a contraction with this tile.

        Counts the work of its threads, copies to shared memory, and adding the sums of groups and
        blocks.
        """
        share = -(-self.blocks(rows, columns, batch) * self.splits // gpu.processors)
        brought = 4 * self.depth * (self.height + self.width)
        work = share * (self.work + brought) / _RATE
        summed = self.sums + (self.splits + 1) * self.size * (self.splits > 1)
        last = share * summed / 16 + _ARRIVAL * (self.splits > 1)
        return -(-steps // self.depth) / self.splits * max(work, _LATENCY) + last


TILES: Final = (
    *(Tile(16, 16, 8, 8, depth=8), Tile(16, 16, 4, 8), Tile(16, 16, 8, 4), Tile(16, 16, 4, 4)),
    *(Tile(8, 8, 8, 4, 4, 32), Tile(8, 8, 4, 8, 4, 32), Tile(8, 8, 4, 4, 4, 64)),
    *(Tile(4, 8, 4, 4, 8, 96), Tile(4, 4, 4, 4, 16, 128)),
)


def by_blocks(
    c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target, tiles: Sequence[Tile] = ()
) -> ContractionNest | None:
    """Return the GPU loop nest that computes `c`, a whole kernel; None if the contraction does not
    fit this schedule.

    c, a, b, store, target   as for `build_contraction`
    tiles                    tile shapes, of which the cheapest is chosen; by default `TILES`, for
                             scalar arithmetic
    """
    gpu = target.gpu
    if gpu is None or target.ordered or 0 in (c.size, *(n for _, n in c.reduce_axes)):
        return None
    whole, (c, places) = c, _without_quotients(c)
    try:
        grouped = in_words(c)
        analysis = grouped[0] if grouped is not None else analyze(c, False)
    except Irregular:
        return None
    # padding would yield NaN where zero meets an infinity
    dims = analysis.b if finite_weights(c) else (*analysis.a, *analysis.b)
    staged = c.dtype.is_float and not all(dim.inside for dim in dims)
    store = _finished(whole, a, b, store) if staged else store
    store = _inside(whole, store) if points(c.axes) > c.size else store
    c = analysis.c
    columns = [axis for axis in analysis.channel if axis[0] not in used(analysis.a)]
    down, across = points(analysis.pixel), points(columns)
    if not c.reduce_axes:
        return None
    sides = Half(a, analysis.a, analysis.pixel, c.fill), Half(b, analysis.b, columns)
    if grouped is not None:
        left, right = (words(side, analysis.ranges, grouped[1]) for side in sides)
        sides = left, right
    if min(down, across) < LEAST:
        return by_slices(analysis, sides, places, store, gpu)
    batch, steps = points(c.axes) // (down * across), points(c.reduce_axes)
    sizes = down, across, batch, steps, gpu
    fit = [one for tile in tiles or TILES if (one := replace(tile, staged=staged)).fits(c.dtype, gpu)]
    if not fit:
        return None
    ways = (way for tile in fit for way in tile.split(*sizes))
    tile = min(ways, key=lambda one: one.cost(*sizes))
    return _nest(analysis, sides, places, store, tile)


def _without_quotients(c: te.Contraction) -> tuple[te.Contraction, Sequence[Expr]]:
    """Split axes o that the data's indices use as (o + 3) // 8 into two axes.

    Return the contraction with the new axes, and its former axes as expressions of them. The new
    axes together may exceed the extent of the former axis.
    """
    axes: list[te.Axis] = []
    places: dict[Var, Expr] = {}
    for var, extent in c.axes:
        nodes = (n for e in c.a_index for n in walk(e) if isinstance(n, Binary) and n.op == "floordiv")
        quotients = ((n.b, linear(n.a, {})) for n in nodes)
        sizes = (int(b.value) for b, form in quotients if form.terms == {var: 1} and isinstance(b, Const))
        size = next((one for one in sizes if one > 1), 1)
        group, one = Var(var.name), Var(var.name)
        axes += [(group, -(-extent // size)), (one, size)] if size > 1 else [(var, extent)]
        places[var] = group * size + one if size > 1 else var
    a_index, b_index = (tuple(substitute(e, places) for e in found) for found in (c.a_index, c.b_index))
    return replace(c, axes=tuple(axes), a_index=a_index, b_index=b_index), tuple(places.values())


def _inside(c: te.Contraction, store: StoreFn) -> StoreFn:
    """Return a store function that skips elements outside of the output."""

    def inside(place: tuple[Expr, ...], value: Expr) -> Stmt:
        own = tuple(Var(var.name) for var, _ in c.axes)
        tests = (var < extent for var, (_, extent) in zip(own, c.axes, strict=True))
        return Block((*map(Declare, own, place), If(all_of(*tests), store(own, value))))

    return inside


def _finished(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> StoreFn:
    """Return a store function that recomputes NaN elements without the padding, as NaN may stem
    from infinity times zero.
    """

    def finished(place: tuple[Expr, ...], value: Expr) -> Stmt:
        total = Var("exact", c.dtype)
        names = {var: at for (var, _), at in zip(c.axes, place, strict=True)}
        again = substituted(products(c, a, b, total), names)
        again = Block((Assign(total, const(0, c.dtype)), again))
        return Block((Declare(total, value), If(call("isnan", total), again), store(place, total)))

    return finished


def _nest(
    analysis: Analysis, sides: tuple[Half, Half], places: Sequence[Expr], store: StoreFn, tile: Tile
) -> ContractionNest:
    """Return the loop nest of a contraction for one tile shape.

    sides    operands of rows and of columns
    places   the output indices as expressions of the contraction's axes
    """
    c, block, (a, b) = analysis.c, Var("b"), sides
    own, place = Var("number"), Var("part")
    number, part = (own, place) if tile.splits > 1 else (block, const(0))
    outer = [axis for axis in c.axes if axis not in (*a.axes, *b.axes)]
    down, across = -(-a.size // tile.height), -(-b.size // tile.width)
    names = digits(outer, number // (down * across))
    steps = Steps.of(c, tile.depth, tile.threads, names, apart(b.dims, b.axes) == 1)
    thread, along = steps.thread, c.axes[-1] in b.axes and c.axes[-1][1] >= SECTOR
    group, one = (const(0), thread) if tile.groups == 1 else (thread // tile.group, thread % tile.group)
    left, right, size = _sides(analysis, sides, tile, steps, one, along, (number // across % down, number % across))
    dtype = left.held.dtype
    over = tile.sums if dtype == c.dtype else 0
    pieces = Buffer("even", dtype, max(size, over), "shared", 16), Buffer("odd", dtype, size, "shared", 16)
    sums = pieces[0] if over else Buffer("sums", c.dtype, tile.sums, "shared", 16)
    acc = Buffer("acc", c.dtype, tile.high * tile.wide, "stack", 16)
    operands = tile.registers(acc)

    def element(m: Expr, n: Expr, value: Expr) -> Stmt:
        """Return the statement that stores an element of a tile, if it is inside the output."""
        row, column = Var("row"), Var("column")
        names = {**steps.names, **digits(a.axes, row), **digits(b.axes, column)}
        body = store(tuple(substitute(place, names) for place in places), value)
        tests = [*a.inside(row, left.size), *b.inside(column, right.size)]
        registers = (Declare(row, left.tile * left.size + m), Declare(column, right.tile * right.size + n))
        return Block((*registers, If(all_of(*tests), body) if tests else body))

    def product(shared: Buffer) -> Stmt:
        return tile.product(Used(shared, operands, acc), left, right, one, group)

    share = steps.count // tile.splits
    walked = _Walk((left, right), pieces, product, steps, part * share, share)
    grid = points(outer) * down * across
    parts = Buffer("parts", c.dtype, grid * tile.splits * tile.size, "workspace", 64)
    partial = _Parts(tile, along, thread, parts)
    done = element if number is block else partial.kept(block)
    settled: list[Stmt] = [Wait(0), Sync()] if over and share != 2 else []  # the sums reuse the memory of the pieces
    body: list[Stmt] = [
        loops([(clear := Var("i"), acc.size)], Store(acc, clear, const(0, c.dtype)), "independent"),
        *walked.stmts(),
        *settled,
        _summed(acc, sums, left, right, along, tile, thread, done),
    ]
    counts = Buffer("counts", DType("int32"), grid, "workspace", 64)
    if tile.splits > 1:
        rest = partial.added(number * tile.splits, tile.splits, element)
        registers = Declare(own, block // tile.splits), Declare(place, block % tile.splits)
        body = [*registers, *body, *by_last(counts, number, tile.splits, rest)]
    stmt = For(block, grid * tile.splits, For(thread, tile.threads, Block(body), kind="thread"), kind="block")
    shared = (*pieces[: min(share, 2)], *([sums] if tile.sums and not over else []))
    held = (side.held for side in (left, right) if not side.copied)
    return ContractionNest(stmt, (acc, *held, *operands), (parts, counts) if tile.splits > 1 else (), shared)


def _sides(
    analysis: Analysis,
    halves: tuple[Half, Half],
    tile: Tile,
    steps: Steps,
    one: Expr,
    along: bool,
    tiles: tuple[Expr, Expr],
) -> tuple[Side, Side, int]:
    """Return both operands of a GPU tile, and the number of elements of both in shared memory.

    one     index of the thread in its group
    along   True if neighboring threads have neighboring columns
    tiles   index of the block's tile along rows and along columns
    """
    dtype, (a, b), sizes = tile.of(analysis.c.dtype), halves, (tile.height, tile.width)
    held = [size * tile.depth // tile.threads for size in sizes]
    found = [
        _piece(half, steps, analysis.ranges, tile, analysis.c.dtype, n) for half, n in zip(halves, held, strict=True)
    ]
    (high, left), (wide, right) = tile.pitches(found[0][1], found[1][1])
    x, w = (Buffer(name, dtype, size, "stack", 16) for name, size in zip("xw", held, strict=True))
    rows, cols = tile.own(one, along)
    sides = (
        Side(a, 0, x, tile.high, tile.rows, rows, high, tiles[0], *found[0]),
        Side(b, left, w, tile.wide, tile.columns, cols, wide, tiles[1], *found[1]),
    )
    return *sides, left + right


def _piece(half: Half, steps: Steps, ranges: Ranges, tile: Tile, dtype: DType, held: int) -> tuple[Piece | None, bool]:
    """Return the vector copy that an operand permits (None for single elements) and the layout of
    the operand.

    The layout is True if the contiguous axis is that of the reduction steps.
    """
    ways = [(half.axes, False)]
    if tile.rowwise:
        ways.append((steps.axes[-1:] if steps.whole else steps.axes, True))
    for axes, deep in ways:
        piece = Piece.of(half, axes, ranges, tile.of(dtype))
        if piece is not None and (held % piece.lanes == 0 or not deep):
            return piece, deep
    return None, False


@frozen(eq=False)
class _Walk:
    """The software pipeline of a thread block: copy the next operand pieces to shared memory while
    multiplying the current.

    sides          both operands
    pieces         two buffers in shared memory
    product        returns the multiplication of the pieces in a buffer
    steps          order of the reduction
    first, count   first piece, and number of pieces
    """

    sides: tuple[Side, Side]
    pieces: tuple[Buffer, Buffer]
    product: Callable[[Buffer], Stmt]
    steps: Steps
    first: Expr
    count: int

    def stmts(self) -> list[Stmt]:
        """Return the statements for all operand pieces; the loop processes two at a time, one in
        each buffer.
        """
        (even, odd), pair = self.pieces, Var("pair")
        found = [self.begun(even, self.first), self.ended(even)]
        if self.count > 1:
            more = pair < self.count // 2 - 1 if self.count % 2 == 0 else None
            both = (*self.step(pair * 2, even, odd), *self.step(pair * 2 + 1, odd, even, more))
            found.append(For(pair, self.count // 2, Block(both)))
        return found + (self.step(const(self.count - 1), even) if self.count % 2 else [])

    def step(self, number: Expr, here: Buffer, there: Buffer | None = None, more: Expr | None = None) -> list[Stmt]:
        """Return the statements that multiply operand piece `number` in buffer `here`, and copy the
        next one to `there`.

        `more` is the condition under which there is a next piece; None for always.
        """
        waits = [Wait(0)] if any(side.copied for side in self.sides) else []
        stmts = [*waits, Sync(), self.product(here)]
        if there is not None:
            begun, ended = self.begun(there, self.first + number + 1), self.ended(there)
            begun, ended = (begun, ended) if more is None else (If(more, begun), If(more, ended))
            stmts = [*waits, Sync(), begun, self.product(here), ended]
        return stmts

    def begun(self, shared: Buffer, step: Expr) -> Stmt:
        """Return the statements that start the copies of both operands' pieces to shared memory."""
        return Block(side.begun(shared, step, self.steps) for side in self.sides)

    def ended(self, shared: Buffer) -> Stmt:
        """Return the statements that store pieces of both operands to shared memory, if they go
        through registers.
        """
        return Block(side.ended(shared, self.steps) for side in self.sides)


#: Function (row, column, value) that returns the statement for an element, with row and column
#: relative to its tile.
_Element = Callable[[Expr, Expr, Expr], Stmt]


def _each(acc: Buffer, left: Side, right: Side, tile: Tile, element: _Element) -> Stmt:
    """Return loops that apply `element(row, column, value)` to each accumulator of a thread."""
    down, i, across, j = (Var(name) for name in ("down", "i", "across", "j"))
    made = element(left.own(down, i), right.own(across, j), Load(acc, tile.accumulator(down, i, across, j)))
    body = loops([(across, tile.wide // tile.quad), (j, tile.quad)], made)
    return loops([(down, tile.high // tile.quad), (i, tile.quad)], body)


def _summed(
    acc: Buffer, sums: Buffer, left: Side, right: Side, wide: bool, tile: Tile, thread: Var, element: _Element
) -> Stmt:
    """Return the statements that add the sums of all thread groups, through shared memory if
    needed, and finish the elements.
    """
    if not sums.size:
        return _each(acc, left, right, tile, element)
    parts = _Parts(tile, wide, thread, sums)
    keep = parts.kept(thread // tile.group)
    rest = parts.added(const(0), tile.groups, element)
    return Block((_each(acc, left, right, tile, keep), Sync(), rest))


@frozen(eq=False)
class _Parts:
    """Partial sums of tiles in memory, tile after tile; stored row by row if `wide`, else column by
    column.
    """

    tile: Tile
    wide: bool
    thread: Expr
    sums: Buffer

    @property
    def quick(self) -> int:
        """The extent of the contiguous axis of a tile's partial sums."""
        return self.tile.width if self.wide else self.tile.height

    def kept(self, number: Expr) -> _Element:
        """Return a function (row, column, value) that stores an element of partial sum `number` of
        a tile.
        """

        def kept(m: Expr, n: Expr, value: Expr) -> Stmt:
            place = m * self.quick + n if self.wide else n * self.quick + m
            return Store(self.sums, number * self.tile.size + place, value)

        return kept

    def added(self, first: Expr, count: int, element: _Element) -> Stmt:
        """Return a loop that adds `count` partial sums of a tile from number `first` on, in order,
        and finishes the elements.
        """
        turn, other, total = Var("turn"), Var("group"), Var("total", self.sums.dtype)
        size, threads = self.tile.size, self.tile.threads
        place = turn * threads + self.thread
        m, n = place // self.quick, place % self.quick
        m, n = (m, n) if self.wide else (n, m)
        add = Assign(total, total + Load(self.sums, (first + other) * size + place))
        others = [For(other, count, add, begin=1)] if count > 1 else []
        stmts = (Declare(total, Load(self.sums, first * size + place)), *others, element(m, n, total))
        return For(turn, size // threads, Block(stmts))
