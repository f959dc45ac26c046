# SPDX-License-Identifier: Apache-2.0
"""A contraction on a device: a tile of the output for each block of threads, which share pieces of both operands.

    for b in 0..98 block: for t in 0..256 thread:                    # 64 x 64 elements, 4 x 4 of each thread
        acc[4 x 4] = 0
        x, w = the first pieces of data and weights
        for step in 0..36: xs[16 x 64] = x; ws[16 x 64] = w; sync; x, w = the next ones; acc += xs * ws; sync
        y = what is inside of acc

Rows of the product are the axes of the data alone, columns those of the weights alone; the axes of both are walked by
the blocks.  Neighbouring threads load neighbouring elements, into registers while the piece before is used.  Where an
operand ends, and outside the data, zeros are shared; so every thread takes every step.

Where there are few tiles, they are smaller, and groups of threads have the same tile: each multiplies its own share of
a piece, and their sums are added in the order of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Declare, Expr, For, Gpu, If, Load, Stmt, Store, Sync, Target, Var, te
from aotc.tir.expr import Binary, Const, all_of, const, minimum, substitute, walk
from aotc.tir.schedule.contraction.by_slices import LEAST, Half, by_slices
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.space import (
    Analysis,
    Irregular,
    analyse,
    apart,
    digits,
    finite_weights,
    points,
    used,
)
from aotc.tir.stmt import Assign, loops

#: Neighbouring accumulators of a thread: their operands are loaded together.
_QUAD: Final = 4
#: Elements between rows in shared memory, so that threads that store down a column meet in fewer of its banks.
_GAP: Final = 4
#: Neighbours in memory that are fetched at once even where others follow far away: 32 bytes.
_SECTOR: Final = 8
#: Multiply-adds that a processor begins in a cycle.
_RATE: Final = 128
#: Cycles from one barrier to the next at least: what is loaded from memory comes that late.
_LATENCY: Final = 700


#: Of a group of a thread's rows or columns, and the number of one in it.
Place = Callable[[Expr, Expr], Expr]


@frozen
class Tile:
    """Threads of a group, rows by columns; accumulators of each thread; groups; how deep the pieces of a step are."""

    rows: int
    columns: int
    high: int
    wide: int
    groups: int = 1
    depth: int = 16
    quad: int = _QUAD
    gap: int = _GAP

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

    def elements(self) -> tuple[int, int, int]:
        """Of shared memory: those of both pieces, and the sums of the groups."""
        left, right = (self.depth * (size + self.gap) for size in (self.height, self.width))
        return left, right, self.height * self.width * self.groups if self.groups > 1 else 0

    def of(self, dtype: DType) -> DType:
        """The type of operands in shared memory, for sums of a type."""
        return dtype

    def own(self, thread: Expr, along: bool) -> tuple[Place, Place]:
        """Which rows and columns of a tile are a thread's own; neighbours have neighbouring rows, or columns."""
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

    def product(self, acc: Buffer, left: Side, right: Side, thread: Expr, group: Expr) -> tuple[Stmt, Sequence[Buffer]]:
        """A group's steps that are in shared memory: operands in registers, and all products of them."""
        depth, stmts, found = Var("depth"), list[Stmt](), list[Buffer]()
        for side in (left, right):
            quad, one = Var("quad"), Var("one")
            found.append(Buffer(side.local.name[0], acc.dtype, side.count, "stack", 16))
            value = Load(side.local, (group * (self.depth // self.groups) + depth) * side.pitch + side.own(quad, one))
            copy = Store(found[-1], quad * self.quad + one, value)
            stmts.append(loops([(quad, side.count // self.quad), (one, self.quad)], copy, "independent"))
        i, j = Var("i"), Var("j")
        at = i * right.count + j
        update = Store(acc, at, Load(acc, at) + Load(found[0], i) * Load(found[1], j))
        stmts.append(loops([(i, left.count), (j, right.count)], update, "independent"))
        return For(depth, self.depth // self.groups, Block(stmts)), found

    @property
    def work(self) -> float:
        """Of the threads in a step: products, and operands that come from shared memory."""
        return self.group * self.depth * (self.high * self.wide + 1.5 * (self.high + self.wide))

    def cost(self, rows: int, columns: int, batch: int, steps: int, gpu: Gpu) -> float:
        """Cycles of a processor: what its threads do, what they bring to shared memory, the sums of groups."""
        blocks = batch * -(-rows // self.height) * -(-columns // self.width)
        share = -(-blocks // gpu.processors)
        brought = 4 * self.depth * (self.height + self.width)
        work = share * (self.work + brought) / _RATE
        return -(-steps // self.depth) * max(work, _LATENCY) + share * self.elements()[2] / 16


_TILES: Final = (
    *(Tile(16, 16, 8, 8), Tile(16, 16, 4, 8), Tile(16, 16, 8, 4), Tile(16, 16, 4, 4)),
    *(Tile(8, 8, 8, 4, 4, 32), Tile(8, 8, 4, 8, 4, 32), Tile(8, 8, 4, 4, 4, 64)),
    *(Tile(4, 8, 4, 4, 8, 128), Tile(4, 4, 4, 4, 16, 128)),
)


@frozen(eq=False)
class _Steps:
    """How the reduction is walked: pieces of `depth` by so many threads, the values of other axes in `names`.

    Where the last axis is made of whole pieces, the number of a step tells all others: no thread computes quotients.
    """

    axes: Sequence[te.Axis]
    depth: int
    thread: Var
    threads: int
    names: Mapping[Var, Expr]

    @staticmethod
    def of(c: te.Contraction, tile: Tile, names: Mapping[Var, Expr], any_order: bool) -> _Steps:
        """An axis of whole pieces becomes the last one, if any order will do."""
        axes = [axis for axis in c.reduce_axes if axis[1] > 1] or c.reduce_axes[:1]
        last = next((axis for axis in reversed(axes) if axis[1] % tile.depth == 0), axes[-1])
        if any_order:
            axes = [*(axis for axis in axes if axis is not last), last]
        none = {var: const(0) for var, _ in c.reduce_axes}
        return _Steps(axes, tile.depth, Var("t"), tile.threads, {**names, **none})

    @property
    def count(self) -> int:
        return -(-points(self.axes) // self.depth)

    def at(self, step: Expr, place: Expr, k: Var) -> tuple[dict[Var, Expr], list[Expr]]:
        """The values of the axes at a place of a step, by the register k, which numbers it, and whether it is one."""
        *outer, (inner, extent) = self.axes
        if extent % self.depth == 0:
            found = digits([*outer, (inner, extent // self.depth)], step)
            return {**found, inner: found[inner] * self.depth + place}, []
        size = points(self.axes)
        return digits(self.axes, k), [k < size] if size % self.depth else []


@frozen(eq=False)
class Side:
    """One operand of the product: rows of the data, or columns of the weights.

    whole     the operand with the axes of these rows or columns
    local     where shared memory holds what a tile needs of them
    held      the elements that a thread brings there
    count     how many of them each thread has accumulators for
    threads   how many threads of a group lie along them
    own       which one of a tile is one of a thread's own
    pitch     elements of shared memory from one step to the next
    tile      which tile a block has
    """

    whole: Half
    local: Buffer
    held: Buffer
    count: int
    threads: int
    own: Place
    pitch: int
    tile: Expr

    @property
    def size(self) -> int:
        """How many of them a tile has."""
        return self.count * self.threads

    def place(self, turn: Var, steps: _Steps) -> tuple[Expr, Expr]:
        """What a thread brings in one of its turns: how deep in the piece it is, and of which row or column."""
        thread, threads, dims = steps.thread, steps.threads, self.whole.dims
        if apart(dims, self.whole.axes) == 1 or apart(dims, steps.axes) != 1:
            return turn * (threads // self.size) + thread // self.size, thread % self.size
        sectors = steps.depth // _SECTOR
        number = turn * (threads // _SECTOR) + thread // _SECTOR
        return number % sectors * _SECTOR + thread % _SECTOR, number // sectors

    def fetched(self, step: Expr, steps: _Steps) -> Stmt:
        """The elements of a step that a thread brings, in its registers."""
        turn, number, k = Var("turn"), Var("number"), Var("k")
        depth, within = self.place(turn, steps)
        values, tests = steps.at(step, depth, k)
        names = {**steps.names, **digits(self.whole.axes, number), **values}
        value = self.whole.load(names, self.local.dtype, tests)
        one = self.tile * self.size + within
        if self.whole.inside(number, self.size):  # beyond the end, what is loaded is not used: any element will do
            one = minimum(one, self.whole.size - 1)
        registers = Declare(number, one), Declare(k, step * steps.depth + depth)
        return For(turn, self.held.size, Block((*registers, Store(self.held, turn, value))))

    def shared(self, steps: _Steps) -> Stmt:
        """These elements in shared memory."""
        turn = Var("turn")
        depth, within = self.place(turn, steps)
        store = Store(self.local, depth * self.pitch + within, Load(self.held, turn))
        return For(turn, self.held.size, store)


def by_blocks(
    c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target, tiles: Sequence[Tile] = ()
) -> ContractionNest | None:
    """The nest that computes `c`, as `build_contraction` does, on blocks of threads; None where that does not fit.

    tiles   of which the cheapest is taken, if others than those of plain numbers

    It is a whole kernel: `aotc.tir.launch.launch_of` finds it.
    """
    gpu = target.gpu
    if gpu is None or target.ordered or 0 in (c.size, *(n for _, n in c.reduce_axes)):
        return None
    c, places = _without_groups(c)
    try:
        analysis = analyse(c)
    except Irregular:
        return None
    if not finite_weights(c) and not all(dim.inside for dim in analysis.a):
        return None  # zero times infinity is no zero
    columns = [axis for axis in analysis.channel if axis[0] not in used(analysis.a)]
    down, across = points(analysis.pixel), points(columns)
    if not c.reduce_axes:
        return None
    sides = Half(a, analysis.a, analysis.pixel, c.fill), Half(b, analysis.b, columns)
    if min(down, across) < LEAST:
        return by_slices(analysis, sides, places, store, gpu)
    batch, steps = c.size // (down * across), points(c.reduce_axes)
    fit = [tile for tile in tiles or _TILES if sum(tile.elements()) * c.dtype.itemsize <= gpu.shared_bytes]
    if not fit:
        return None
    tile = min(fit, key=lambda one: one.cost(down, across, batch, steps, gpu))
    return _nest(analysis, sides, places, store, tile)


def _without_groups(c: te.Contraction) -> tuple[te.Contraction, Sequence[Expr]]:
    """The contraction with an axis o that the data is read by as o // 8 in two, and what its former axes are then."""
    axes: list[te.Axis] = []
    places: dict[Var, Expr] = {}
    for var, extent in c.axes:
        nodes = (n for e in c.a_index for n in walk(e) if isinstance(n, Binary) and n.op == "floordiv")
        sizes = (int(n.b.value) for n in nodes if n.a is var and isinstance(n.b, Const))
        size = next((one for one in sizes if extent % one == 0), 1)
        group, one = Var(var.name), Var(var.name)
        axes += [(group, extent // size), (one, size)] if size > 1 else [(var, extent)]
        places[var] = group * size + one if size > 1 else var
    a_index, b_index = (tuple(substitute(e, places) for e in found) for found in (c.a_index, c.b_index))
    return replace(c, axes=tuple(axes), a_index=a_index, b_index=b_index), tuple(places.values())


def _nest(
    analysis: Analysis, sides: tuple[Half, Half], places: Sequence[Expr], store: StoreFn, tile: Tile
) -> ContractionNest:
    c, block, step, (a, b) = analysis.c, Var("b"), Var("step"), sides
    outer = [axis for axis in c.axes if axis not in (*a.axes, *b.axes)]
    down, across = -(-a.size // tile.height), -(-b.size // tile.width)
    names = digits(outer, block // (down * across))
    steps = _Steps.of(c, tile, names, apart(b.dims, b.axes) == 1)
    thread, along = steps.thread, c.axes[-1] in b.axes
    group, one = (const(0), thread) if tile.groups == 1 else (thread // tile.group, thread % tile.group)
    high, wide, summed = tile.elements()
    dtype, depth = tile.of(c.dtype), tile.depth
    xs = Buffer("xs", dtype, high, "shared", 16)
    ws = Buffer("ws", dtype, wide, "shared", 16)
    sums = Buffer("sums", c.dtype, summed, "shared", 16)
    x = Buffer("x", dtype, tile.height * depth // tile.threads, "stack", 16)
    w = Buffer("w", dtype, tile.width * depth // tile.threads, "stack", 16)
    rows, cols = tile.own(one, along)  # neighbours write next to each other
    pitches = tile.height + tile.gap, tile.width + tile.gap
    numbers = block // across % down, block % across
    left = Side(a, xs, x, tile.high, tile.rows, rows, pitches[0], numbers[0])
    right = Side(b, ws, w, tile.wide, tile.columns, cols, pitches[1], numbers[1])
    acc = Buffer("acc", c.dtype, tile.high * tile.wide, "stack", 16)
    product, operands = tile.product(acc, left, right, one, group)

    def fetched(step: Expr) -> Stmt:
        return Block(side.fetched(step, steps) for side in (left, right))

    def element(m: Expr, n: Expr, value: Expr) -> Stmt:
        """What finishes an element of a tile, if it is inside the output."""
        row, column = Var("row"), Var("column")
        names = {**steps.names, **digits(a.axes, row), **digits(b.axes, column)}
        body = store(tuple(substitute(place, names) for place in places), value)
        tests = [*a.inside(row, left.size), *b.inside(column, right.size)]
        registers = (Declare(row, left.tile * left.size + m), Declare(column, right.tile * right.size + n))
        return Block((*registers, If(all_of(*tests), body) if tests else body))

    shares = (side.shared(steps) for side in (left, right))
    following = If(step < steps.count - 1, fetched(step + 1)) if steps.count > 1 else Block(())
    others = [Sync()] if steps.count > 1 else []  # the pieces are brought to one place
    body = (
        loops([(clear := Var("i"), acc.size)], Store(acc, clear, const(0, c.dtype)), "independent"),
        fetched(const(0)),
        For(step, steps.count, Block((*shares, Sync(), following, product, *others))),
        _summed(acc, sums, left, right, along, tile, thread, element)
        if sums.size
        else _each(acc, left, right, tile, element),
    )
    grid = points(outer) * down * across
    stmt = For(block, grid, For(thread, tile.threads, Block(body), kind="thread"), kind="block")
    return ContractionNest(stmt, (acc, x, w, *operands), shared=(xs, ws, sums) if sums.size else (xs, ws))


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
    """What becomes of the sums of all groups, in shared memory; neighbouring threads finish neighbours."""
    size, quick = tile.height * tile.width, tile.width if wide else tile.height
    first = thread // tile.group * size

    def kept(m: Expr, n: Expr, value: Expr) -> Stmt:
        return Store(sums, first + (m * quick + n if wide else n * quick + m), value)

    turn, other, total = Var("turn"), Var("group"), Var("total", acc.dtype)
    place = turn * tile.threads + thread
    m, n = (place // quick, place % quick) if wide else (place % quick, place // quick)
    add = For(other, tile.groups, Assign(total, total + Load(sums, other * size + place)), begin=1)
    done = Block((Declare(total, Load(sums, place)), add, element(m, n, total)))
    return Block((_each(acc, left, right, tile, kept), Sync(), For(turn, size // tile.threads, done)))
