# SPDX-License-Identifier: Apache-2.0
"""GPU schedule of thin contractions, such as matrix-vector products: the threads of a block split
the reduction.

    for b in 0..125 block: for t in 0..256 thread:                   # 4 columns, 64 threads for each
        acc[1] = 0
        for turn in 0..8: acc += x[64 * turn + t % 64] * w[4 * b + t // 64, 64 * turn + t % 64]
        sum = acc of all threads of the warp; parts[t % 64 // 32, t // 64] = sum; sync
        y[4 * b + t] = parts of t added in their order               # by the first 4 threads

The operand of the long side is read once, with coalesced loads: along the reduction, or along its
own axis if elements are contiguous there. Each thread multiplies its elements with all of the thin
side. If the long side alone has work for all threads, such as the pixels of an image, each thread
runs the whole reduction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Buffer, Expr, Gpu, Load, Select, Store, Sync, Var, all_of, call, cast, const, substitute, te
from aotc.tir.schedule.contraction.index_space import Analysis, Dimension, apart, digits, flat, points
from aotc.tir.schedule.contraction.naive import ContractionNest, StoreFn
from aotc.tir.stmt import Assign, Declare, For, If, Stmt, loops

#: Extent of a side of the product below which it is thin.
LEAST: Final = 16
#: Least number of reduction steps that are split among threads.
_STEPS: Final = 64
#: Threads of a block.
_THREADS: Final = 256
#: Blocks per multiprocessor that have enough loads in flight.
_BLOCKS: Final = 2


@frozen(eq=False)
class Half:
    """One operand of a contraction, with the output axes that only it depends on.

    buffer, dims   the operand
    axes           the output axes
    fill           value outside of the operand
    """

    buffer: Buffer
    dims: Sequence[Dimension]
    axes: Sequence[te.Axis]
    fill: int = 0

    @property
    def size(self) -> int:
        """Number of points of the output axes that only this operand depends on."""
        return points(self.axes)

    def inside(self, number: Expr, step: int) -> list[Expr]:
        """Return the condition that an element exists; none if `step`, the size of a tile, divides
        the number of elements.
        """
        return [number < self.size] if self.size % step else []

    def load(self, names: Mapping[Var, Expr], dtype: DType, tests: Sequence[Expr] = ()) -> Expr:
        """Return an element of the operand for given values of variables.

        It is `fill` outside of the operand, and where one of `tests` is false.
        """
        value = cast(Load(self.buffer, substitute(flat(self.dims).expr(), names)), dtype)
        places = ((substitute(dim.index.expr(), names), dim.extent) for dim in self.dims if not dim.inside)
        tests = [*tests, *(test for index, end in places for test in (index >= 0, index < end))]
        return Select(all_of(*tests), value, const(self.fill, dtype)) if tests else value

    def multiplied(self, total: Expr, a: Expr, b: Expr, other: Half) -> Expr:
        """Return `total` plus the product of an element `a` of this operand and `b` of the other
        operand.
        """
        return total + a * b


@frozen(eq=False)
class _Slices:
    """The work of one GPU block on a thin contraction, whose threads split the reduction.

    c, sides, thin, long   the contraction and its operands
    names                  values of the axes that are distributed over blocks
    wide, deep             columns (of the long side) of a block, and threads for each of them
    spread                 distances of the threads of a warp that split one sum
    first                  the first column of the block
    acc                    accumulators of a thread
    parts                  sums of warps, in shared memory
    """

    c: te.Contraction
    sides: tuple[Half, Half]
    thin: Half
    long: Half
    names: Mapping[Var, Expr]
    wide: int
    deep: int
    spread: Sequence[int]
    first: Expr
    acc: Buffer
    parts: Buffer

    @property
    def warp(self) -> int:
        """Number of threads of a warp that split one sum."""
        return 1 << len(self.spread)

    def products(self, depth: Expr, across: Expr) -> Stmt:
        """Return the loops in which a thread accumulates its part of a split reduction."""
        c, thin, long, acc = self.c, self.thin, self.long, self.acc
        turn, k, column, row = (Var(name) for name in ("turn", "k", "column", "row"))
        steps, value = points(c.reduce_axes), Var("value", c.dtype)
        names = {**self.names, **digits(long.axes, column), **digits(c.reduce_axes, k)}
        other = thin.load({**names, **digits(thin.axes, row)}, c.dtype)
        a, b = (other, value) if thin is self.sides[0] else (value, other)
        add = Store(acc, row, self.sides[0].multiplied(Load(acc, row), a, b, self.sides[1]))
        every = loops([(row, thin.size)], add, "independent")
        body: Stmt = Block((Declare(value, long.load(names, c.dtype)), every))
        tests = [*long.inside(column, self.wide), *([k < steps] if steps % self.deep else [])]
        body = If(all_of(*tests), body) if tests else body
        body = Block((Declare(k, turn * self.deep + depth), body))
        turns = For(turn, -(-steps // self.deep), body)
        return Block((Declare(column, self.first + across), turns))

    def shared(self, depth: Expr, across: Expr) -> Stmt:
        """Return the statements that add the partial sums of a warp by shuffles, and store them to
        shared memory.
        """
        row, total = Var("row"), Var("sum", self.c.dtype)
        stmts: list[Stmt] = [Declare(total, Load(self.acc, row))]
        for distance in self.spread:
            far = Var("far", self.c.dtype)
            stmts.append(Declare(far, call("shuffle_xor", total, const(distance, "int32"))))
            stmts.append(Assign(total, total + far))
        place = (depth // self.warp * self.thin.size + row) * self.wide + across
        keep = Store(self.parts, place, total)
        stmts.append(If((depth % self.warp).equal(0), keep) if self.spread else keep)
        return loops([(row, self.thin.size)], Block(stmts))

    def finished(self, thread: Var, places: Sequence[Expr], store: StoreFn) -> Stmt:
        """Return the loop that adds the partial sums of all warps, and finishes and stores the
        elements.
        """
        turn, element, other, row, column = (Var(name) for name in ("turn", "element", "other", "row", "column"))
        total, results = Var("total", self.c.dtype), self.thin.size * self.wide
        add = Assign(total, total + Load(self.parts, other * results + element))
        names = {**self.names, **digits(self.thin.axes, row), **digits(self.long.axes, column)}
        place = tuple(substitute(place, names) for place in places)
        sums = Declare(total, Load(self.parts, element))
        others = For(other, self.deep // self.warp, add, begin=1)
        tests = [*self.long.inside(column, self.wide), *([element < results] if results % _THREADS else [])]
        done: Stmt = Block((sums, others, store(place, total)))
        done = If(all_of(*tests), done) if tests else done
        numbered = Declare(element, turn * _THREADS + thread)
        here = Declare(row, element // self.wide), Declare(column, self.first + element % self.wide)
        return For(turn, -(-results // _THREADS), Block((numbered, *here, done)))


def by_slices(
    analysis: Analysis, sides: tuple[Half, Half], places: Sequence[Expr], store: StoreFn, gpu: Gpu
) -> ContractionNest | None:
    """Return the GPU loop nest of a contraction with a thin side; None if one thread per element is
    good enough.

    sides    data and weights
    places   the output indices as expressions of the contraction's axes
    store    function that returns the statement to store an element
    """
    c = analysis.c
    thin, long = sorted(sides, key=lambda side: side.size)
    along = apart(long.dims, long.axes) != 1 and apart(long.dims, c.reduce_axes) == 1
    outer = [axis for axis in c.axes if axis not in (*thin.axes, *long.axes)]
    widths = (8, 4) if along else [one for one in (_THREADS, 64, 32, 16) if one <= long.size] + [8]
    blocks = {wide: points(outer) * -(-long.size // wide) for wide in widths}
    wide = next((one for one in widths if blocks[one] >= _BLOCKS * gpu.processors), widths[-1])
    deep, tiles = _THREADS // wide, -(-long.size // wide)
    if (thin.size == 1) if deep == 1 else (points(c.reduce_axes) < _STEPS):
        return None
    block, thread, row = Var("b"), Var("t"), Var("row")
    depth, across = (thread % deep, thread // deep) if along else (thread // wide, thread % wide)
    spread = [distance for distance in (16, 8, 4, 2, 1) if along or distance >= wide]
    acc = Buffer("acc", c.dtype, thin.size, "stack", 16)
    parts = Buffer("parts", c.dtype, (deep >> len(spread)) * wide * thin.size, "shared", 16)
    if parts.nbytes > gpu.shared_bytes:
        return None
    names, first = digits(outer, block // tiles), block % tiles * wide
    made = _Slices(c, sides, thin, long, names, wide, deep, spread, first, acc, parts)
    stmts = (
        loops([(row, thin.size)], Store(acc, row, const(0, c.dtype)), "independent"),
        made.products(depth, across),
        made.shared(depth, across),
        Sync(),
        made.finished(thread, places, store),
    )
    over = For(thread, _THREADS, Block(stmts), kind="thread")
    return ContractionNest(For(block, blocks[wide], over, kind="block"), (acc,), shared=(parts,))
