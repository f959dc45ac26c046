# SPDX-License-Identifier: Apache-2.0
"""A contraction on a device: a tile of the output for each block of threads, which share pieces of both operands.

    for b in 0..98 block: for t in 0..256 thread:                    # 64 x 64 elements, 4 x 4 of each thread
        acc[4 x 4] = 0
        even[16 x 64 + 16 x 64] = async the first pieces of data and weights
        for pair in 0..18:
            wait; sync; odd = async the next ones; acc += products of even
            wait; sync; even = async the next ones, if any; acc += products of odd
        y = what is inside of acc

Rows of the product are the axes of the data alone, columns those of the weights alone; the axes of both are walked by
the blocks.  Pieces are brought to one half of shared memory (`fetching`) while those in the other half are used.  Where
an operand ends, and outside the data, zeros are shared; so every thread takes every step.

Where there are few tiles, they are smaller, and groups of threads have the same tile: each multiplies its own share of
a piece, and their sums, which lie over the pieces, are added in the order of the groups.  Where even so few blocks
would be busy, several have one tile, each a part of the reduction; the last one to arrive adds their sums, which lie in
memory, in their order.
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

#: Neighboring accumulators of a thread: their operands are loaded together.
_QUAD: Final = 4
#: Elements between rows in shared memory, so that threads that store down a column meet in fewer of its banks.
_GAP: Final = 4
#: Multiply-adds that a processor begins in a cycle.
_RATE: Final = 128
#: Cycles from one barrier to the next at least: what is loaded from memory comes that late.
_LATENCY: Final = 700
#: Cycles until a block knows that it is the last one, and has what others have written.
_ARRIVAL: Final = 3 * _LATENCY
#: Blocks of one tile at most.
_SPLITS: Final = 8


@frozen(eq=False)
class Used:
    """What a thread multiplies: a piece in shared memory, the registers of its operands, and its sums."""

    shared: Buffer
    operands: tuple[Buffer, Buffer]
    acc: Buffer


@frozen
class Tile:
    """Threads of a group, rows by columns; accumulators of each thread; groups; how deep the pieces of a step are.

    splits   blocks of one tile
    staged   whether sums pass through shared memory, even those of one group
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
        """Whether the rows of operands in shared memory may lie along the steps."""
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
        """Rows of the product."""
        return self.rows * self.high

    @property
    def width(self) -> int:
        """Columns of the product."""
        return self.columns * self.wide

    @property
    def size(self) -> int:
        """Elements of the product."""
        return self.height * self.width

    def split(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> list[Tile]:
        """The ways to have it: by one block each, or, where that leaves processors idle, by several."""
        blocks, count = self.blocks(rows, columns, batch), -(-steps // self.depth)
        most = min(gpu.processors // blocks, count // 2, _SPLITS)
        return [self, *(replace(self, splits=n) for n in range(2, most + 1) if count % n == 0)]

    def blocks(self, rows: int, columns: int, batch: int) -> int:
        """How many there are for one block each."""
        return batch * -(-rows // self.height) * -(-columns // self.width)

    def pitches(self, left: bool, right: bool) -> tuple[tuple[int, int], tuple[int, int]]:
        """For both sides: elements of shared memory from one to the next, and of a piece; `deep` ones or not."""
        sides = ((self.height, left), (self.width, right))
        pairs = [(self.depth, size) if deep else (size, self.depth) for size, deep in sides]
        (a, b), (c, d) = pairs
        return (a + self.gap, (a + self.gap) * b), (c + self.gap, (c + self.gap) * d)

    @property
    def sums(self) -> int:
        """Sums of the groups in shared memory."""
        return self.size * self.groups if self.groups > 1 or self.staged else 0

    def fits(self, dtype: DType, gpu: Gpu) -> bool:
        """Whether there is enough shared memory, for sums of a type."""
        operands = self.of(dtype)
        (_, left), (_, right) = self.pitches(True, True)
        (_, high), (_, wide) = self.pitches(False, False)
        pieces = (max(left, high) + max(right, wide)) * operands.itemsize
        sums = self.sums * dtype.itemsize
        return (max(pieces, sums) if operands == dtype else pieces + sums) + pieces <= gpu.shared_bytes

    def of(self, dtype: DType) -> DType:
        """The type of operands in shared memory, for sums of a type."""
        return dtype

    def own(self, thread: Expr, along: bool) -> tuple[Place, Place]:
        """Which rows and columns of a tile are a thread's own; neighbors have neighboring rows, or columns."""
        quick, slow = thread % self.rows, thread // self.rows
        if along:
            quick, slow = thread // self.columns, thread % self.columns
        return (
            lambda quad, one: quad * (self.quad * self.rows) + quick * self.quad + one,
            lambda quad, one: quad * (self.quad * self.columns) + slow * self.quad + one,
        )

    def accumulator(self, down: Expr, i: Expr, across: Expr, j: Expr) -> Expr:
        """The number of a thread's accumulator: `i` of its rows `down`, `j` of its columns `across`."""
        return (down * self.quad + i) * self.wide + across * self.quad + j

    def registers(self, acc: Buffer) -> tuple[Buffer, Buffer]:
        """The registers of both operands."""
        a, b = (Buffer(name, acc.dtype, n, "stack", 16) for name, n in (("a", self.high), ("b", self.wide)))
        return a, b

    def product(self, at: Used, left: Side, right: Side, thread: Expr, group: Expr) -> Stmt:
        """A group's steps that are in shared memory: operands in registers, and all products of them."""
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
        """Of the threads in a step: products, and operands that come from shared memory."""
        return self.group * self.depth * (self.high * self.wide + 1.5 * (self.high + self.wide))

    def cost(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> float:
        """Cycles of a processor: what its threads do, what they bring to shared memory, the sums of groups."""
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
    """The nest that computes `c`, as `build_contraction` does, on blocks of threads; None where that does not fit.

    tiles   of which the cheapest is taken, if others than those of plain numbers

    It is a whole kernel: `aotc.tir.gpu_launch.launch_of` finds it.
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
    # zeros beside infinities
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
    """The contraction with an axis o that the data is read by as (o + 3) // 8 in two, and its former axes by these.

    Together they may go on beyond its end.
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
    """What finishes an element that is inside of the output: registers number its place there."""

    def inside(place: tuple[Expr, ...], value: Expr) -> Stmt:
        own = tuple(Var(var.name) for var, _ in c.axes)
        tests = (var < extent for var, (_, extent) in zip(own, c.axes, strict=True))
        return Block((*map(Declare, own, place), If(all_of(*tests), store(own, value))))

    return inside


def _finished(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn) -> StoreFn:
    """What finishes an element.  NaN may be infinity times zero: it is summed again of the products that there are."""

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
        """What finishes an element of a tile, if it is inside the output."""
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
    settled: list[Stmt] = [Wait(0), Sync()] if over and share != 2 else []  # sums lie over pieces
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
    """Both operands of a tile, and how many elements of them are shared at a time.

    one     the thread, in its group
    along   whether neighboring threads have neighboring columns
    tiles   which tile of rows, and of columns, a block has
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
    """What is copied at once of an operand, if there is anything, and whether it lies along the steps."""
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
    """The steps of a block from `first` on: a piece is brought to one half of shared memory, the other one is used."""

    sides: tuple[Side, Side]
    pieces: tuple[Buffer, Buffer]
    product: Callable[[Buffer], Stmt]
    steps: Steps
    first: Expr
    count: int

    def stmts(self) -> list[Stmt]:
        """From the first to the last; the loop takes two at a time."""
        (even, odd), pair = self.pieces, Var("pair")
        found = [self.begun(even, self.first), self.ended(even)]
        if self.count > 1:
            more = pair < self.count // 2 - 1 if self.count % 2 == 0 else None
            both = (*self.step(pair * 2, even, odd), *self.step(pair * 2 + 1, odd, even, more))
            found.append(For(pair, self.count // 2, Block(both)))
        return found + (self.step(const(self.count - 1), even) if self.count % 2 else [])

    def step(self, number: Expr, here: Buffer, there: Buffer | None = None, more: Expr | None = None) -> list[Stmt]:
        """What is done with a piece, while the next one, if there is one, is brought."""
        waits = [Wait(0)] if any(side.copied for side in self.sides) else []
        stmts = [*waits, Sync(), self.product(here)]
        if there is not None:
            begun, ended = self.begun(there, self.first + number + 1), self.ended(there)
            begun, ended = (begun, ended) if more is None else (If(more, begun), If(more, ended))
            stmts = [*waits, Sync(), begun, self.product(here), ended]
        return stmts

    def begun(self, shared: Buffer, step: Expr) -> Stmt:
        return Block(side.begun(shared, step, self.steps) for side in self.sides)

    def ended(self, shared: Buffer) -> Stmt:
        return Block(side.ended(shared, self.steps) for side in self.sides)


#: The statement for a value at a row and a column, which are counted in its tile.
_Element = Callable[[Expr, Expr, Expr], Stmt]


def _each(acc: Buffer, left: Side, right: Side, tile: Tile, element: _Element) -> Stmt:
    """`element(row, column, value)` for each accumulator, rows and columns counted in its tile."""
    down, i, across, j = (Var(name) for name in ("down", "i", "across", "j"))
    made = element(left.own(down, i), right.own(across, j), Load(acc, tile.accumulator(down, i, across, j)))
    body = loops([(across, tile.wide // tile.quad), (j, tile.quad)], made)
    return loops([(down, tile.high // tile.quad), (i, tile.quad)], body)


def _summed(
    acc: Buffer, sums: Buffer, left: Side, right: Side, wide: bool, tile: Tile, thread: Var, element: _Element
) -> Stmt:
    """What becomes of the sums of all groups, in shared memory, if any; neighboring threads finish neighbors."""
    if not sums.size:
        return _each(acc, left, right, tile, element)
    parts = _Parts(tile, wide, thread, sums)
    keep = parts.kept(thread // tile.group)
    rest = parts.added(const(0), tile.groups, element)
    return Block((_each(acc, left, right, tile, keep), Sync(), rest))


@frozen(eq=False)
class _Parts:
    """Sums of a tile's elements, tile after tile; along rows if it is `wide`."""

    tile: Tile
    wide: bool
    thread: Expr
    sums: Buffer

    @property
    def quick(self) -> int:
        return self.tile.width if self.wide else self.tile.height

    def kept(self, number: Expr) -> _Element:
        """What stores those of one of several."""

        def kept(m: Expr, n: Expr, value: Expr) -> Stmt:
            place = m * self.quick + n if self.wide else n * self.quick + m
            return Store(self.sums, number * self.tile.size + place, value)

        return kept

    def added(self, first: Expr, count: int, element: _Element) -> Stmt:
        """What becomes of the sums of so many, from a number on."""
        turn, other, total = Var("turn"), Var("group"), Var("total", self.sums.dtype)
        size, threads = self.tile.size, self.tile.threads
        place = turn * threads + self.thread
        m, n = place // self.quick, place % self.quick
        m, n = (m, n) if self.wide else (n, m)
        add = Assign(total, total + Load(self.sums, (first + other) * size + place))
        others = [For(other, count, add, begin=1)] if count > 1 else []
        stmts = (Declare(total, Load(self.sums, first * size + place)), *others, element(m, n, total))
        return For(turn, size // threads, Block(stmts))
