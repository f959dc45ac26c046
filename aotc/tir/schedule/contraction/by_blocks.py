# SPDX-License-Identifier: Apache-2.0
"""A contraction on a device: a tile of the output for each block of threads, which share pieces of both operands.

    for b in 0..98 block: for t in 0..256 thread:                    # 64 x 64 elements, 4 x 4 of each thread
        acc[4 x 4] = 0
        for step in 0..36: xs[16 x 64] = data; ws[16 x 64] = weights; sync; acc += xs * ws; sync
        y = what is inside of acc

Rows of the product are the axes of the data alone, columns those of the weights alone; the axes of both are walked by
the blocks, and all reduction axes are one.  Neighbouring threads load neighbouring elements.  Where an operand ends,
and outside the data, zeros are shared; so every thread takes every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import Block, Buffer, Declare, Expr, For, Gpu, If, Load, Stmt, Store, Sync, Target, Var, te
from aotc.tir.expr import Binary, Const, Select, all_of, cast, const, substitute, walk
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.schedule.contraction.space import Analysis, Dimension, Irregular, analyse, finite_weights, flat, used
from aotc.tir.stmt import loops

#: Steps of the reduction whose operands are in shared memory at a time.
_DEPTH: Final = 16
#: Neighbouring accumulators of a thread: their operands are loaded together.
_QUAD: Final = 4
#: Elements between rows in shared memory, so that threads that store down a column meet in fewer of its banks.
_GAP: Final = 4
#: Sides below which a tile would be filled by little.
_LEAST: Final = 16


@frozen
class Tile:
    """Threads of a block, rows by columns, and accumulators of each thread."""

    rows: int
    columns: int
    high: int
    wide: int

    @property
    def threads(self) -> int:
        return self.rows * self.columns

    @property
    def height(self) -> int:
        """Rows of the product."""
        return self.rows * self.high

    @property
    def width(self) -> int:
        """Columns of the product."""
        return self.columns * self.wide

    def cost(self, rows: int, columns: int, batch: int, gpu: Gpu) -> float:
        """What the threads of a processor do in all: products, and operands that they load from shared memory."""
        blocks = batch * -(-rows // self.height) * -(-columns // self.width)
        threads = -(-blocks // gpu.processors) * self.threads
        return threads * (self.high * self.wide + 2 * (self.high + self.wide))


_TILES: Final = (Tile(16, 16, 8, 8), Tile(16, 16, 4, 8), Tile(16, 16, 8, 4), Tile(16, 16, 4, 4), Tile(8, 8, 4, 4))


@frozen(eq=False)
class _Side:
    """One operand of the product: rows of the data, or columns of the weights.

    axes      of these rows or columns
    local     where shared memory holds what a tile needs of them
    count     how many of them each thread has accumulators for
    threads   how many threads of a block lie along them, and `mine`, which of these a thread is
    tile      which tile a block has
    """

    buffer: Buffer
    dims: Sequence[Dimension]
    axes: Sequence[te.Axis]
    local: Buffer
    count: int
    threads: int
    mine: Expr
    tile: Expr

    @property
    def size(self) -> int:
        """How many of them a tile has."""
        return self.count * self.threads

    def inside(self, number: Expr) -> list[Expr]:
        """The conditions on the number of one, if a tile may reach across the end."""
        extent = _extent(self.axes)
        return [number < extent] if extent % self.size else []

    def own(self, quad: Var, one: Var) -> Expr:
        """Which one of a tile is one of a thread's own."""
        return quad * (_QUAD * self.threads) + self.mine * _QUAD + one

    def filled(self, step: Expr, thread: Var, threads: int, known: _Known) -> Stmt:
        """The piece of a step in shared memory, a few elements by each thread."""
        turn, number, k = Var("turn"), Var("number"), Var("k")
        own, steps = (flat(self.dims).coefficient(axes[-1][0]) for axes in (self.axes, known.reduce))
        along = own != 1 and steps == 1
        across = _DEPTH if along else self.size
        fast, slow = thread % across, turn * (threads // across) + thread // across
        depth, within = (fast, slow) if along else (slow, fast)
        names = {**known.names, **digits(self.axes, number), **digits(known.reduce, k)}
        place = substitute(flat(self.dims).expr(), names)
        tests = self.inside(number) + ([k < known.steps] if known.steps % _DEPTH else [])
        for dim in self.dims:
            index = substitute(dim.index.expr(), names)
            tests += [] if dim.inside else [index >= 0, index < dim.extent]
        dtype = self.local.dtype
        value, condition = cast(Load(self.buffer, place), dtype), all_of(*tests)
        value = Select(condition, value, const(0, dtype)) if tests else value
        registers = Declare(number, self.tile * self.size + within), Declare(k, step * _DEPTH + depth)
        store = Store(self.local, depth * (self.size + _GAP) + within, value)
        return For(turn, self.size * _DEPTH // threads, Block((*registers, store)))


@frozen(eq=False)
class _Known:
    """What both sides share: the reduction axes, the product of their extents, and the values of other axes."""

    reduce: Sequence[te.Axis]
    names: Mapping[Var, Expr]

    @property
    def steps(self) -> int:
        return _extent(self.reduce)


def _extent(axes: Sequence[te.Axis]) -> int:
    return math.prod(n for _, n in axes)


def digits(axes: Sequence[te.Axis], number: Expr) -> dict[Var, Expr]:
    """The values of axes at a row-major number."""
    found: dict[Var, Expr] = {}
    inner = _extent(axes)
    for place, (var, extent) in enumerate(axes):
        inner //= extent
        found[var] = number // inner if place == 0 else number // inner % extent
    return found


def by_blocks(c: te.Contraction, a: Buffer, b: Buffer, store: StoreFn, target: Target) -> ContractionNest | None:
    """The nest that computes `c`, as `build_contraction` does, on blocks of threads; None where that does not fit.

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
    down, across = _extent(analysis.pixel), _extent(columns)
    if min(down, across) < _LEAST or not c.reduce_axes:
        return None
    tile = min(_TILES, key=lambda one: one.cost(down, across, c.size // (down * across), gpu))
    return _nest(analysis, a, b, columns, places, store, tile)


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
    analysis: Analysis,
    a: Buffer,
    b: Buffer,
    columns: Sequence[te.Axis],
    places: Sequence[Expr],
    store: StoreFn,
    tile: Tile,
) -> ContractionNest:
    c, block, thread, step = analysis.c, Var("b"), Var("t"), Var("step")
    taken = {var for var, _ in (*analysis.pixel, *columns)}
    outer = [axis for axis in c.axes if axis[0] not in taken]
    down, across = -(-_extent(analysis.pixel) // tile.height), -(-_extent(columns) // tile.width)
    known = _Known(c.reduce_axes, digits(outer, block // (down * across)))
    quick, slow = thread % tile.rows, thread // tile.rows
    if c.axes[-1] in columns:  # neighbours write next to each other
        quick, slow = thread // tile.columns, thread % tile.columns
    xs, ws = (
        Buffer(name, c.dtype, _DEPTH * (size + _GAP), "shared", 16)
        for name, size in (("xs", tile.height), ("ws", tile.width))
    )
    left = _Side(a, analysis.a, analysis.pixel, xs, tile.high, tile.rows, quick, block // across % down)
    right = _Side(b, analysis.b, columns, ws, tile.wide, tile.columns, slow, block % across)
    acc = Buffer("acc", c.dtype, tile.high * tile.wide, "stack", 16)
    product, operands = _product(acc, left, right)
    fills = (side.filled(step, thread, tile.threads, known) for side in (left, right))
    body = (
        loops([(clear := Var("i"), acc.size)], Store(acc, clear, const(0, c.dtype)), "independent"),
        For(step, -(-known.steps // _DEPTH), Block((*fills, Sync(), product, Sync()))),
        _finished(acc, left, right, lambda found: _placed(places, {**known.names, **found}), store),
    )
    grid = _extent(outer) * down * across
    stmt = For(block, grid, For(thread, tile.threads, Block(body), kind="thread"), kind="block")
    return ContractionNest(stmt, (acc, *operands), shared=(xs, ws))


def _placed(places: Sequence[Expr], values: Mapping[Var, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(place, values) for place in places)


def _product(acc: Buffer, left: _Side, right: _Side) -> tuple[Stmt, Sequence[Buffer]]:
    """The steps that are in shared memory: operands in registers, and all products of them."""
    depth, stmts, found = Var("depth"), list[Stmt](), list[Buffer]()
    for side in (left, right):
        quad, one = Var("quad"), Var("one")
        found.append(Buffer(side.local.name[0], acc.dtype, side.count, "stack", 16))
        value = Load(side.local, depth * (side.size + _GAP) + side.own(quad, one))
        copy = Store(found[-1], quad * _QUAD + one, value)
        stmts.append(loops([(quad, side.count // _QUAD), (one, _QUAD)], copy, "independent"))
    i, j = Var("i"), Var("j")
    at = i * right.count + j
    update = Store(acc, at, Load(acc, at) + Load(found[0], i) * Load(found[1], j))
    stmts.append(loops([(i, left.count), (j, right.count)], update, "independent"))
    return For(depth, _DEPTH, Block(stmts)), found


def _finished(
    acc: Buffer, left: _Side, right: _Side, place: Callable[[Mapping[Var, Expr]], tuple[Expr, ...]], store: StoreFn
) -> Stmt:
    """What becomes of the accumulators that are inside the output."""
    m, n = Var("row"), Var("column")
    down, i, across, j = (Var(name) for name in ("down", "i", "across", "j"))
    value = Load(acc, (down * _QUAD + i) * right.count + across * _QUAD + j)
    body = store(place({**digits(left.axes, m), **digits(right.axes, n)}), value)
    tests = [*left.inside(m), *right.inside(n)]
    body = If(all_of(*tests), body) if tests else body
    rows, columns = ((side.tile * side.size) for side in (left, right))
    body = Block((Declare(n, columns + right.own(across, j)), body))
    body = loops([(across, right.count // _QUAD), (j, _QUAD)], body)
    body = Block((Declare(m, rows + left.own(down, i)), body))
    return loops([(down, left.count // _QUAD), (i, _QUAD)], body)
