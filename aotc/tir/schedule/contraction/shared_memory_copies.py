# SPDX-License-Identifier: Apache-2.0
"""How the threads of a block bring pieces of an operand to shared memory, while they multiply the piece before.

    xs[16 x 64] = async x[...:4]                             # neighbors: 16 bytes at once, from multiples of them on
    xs[16 x 64] = async inside ? x[...] : 0                  # single numbers of 4 bytes
    held[4] = inside ? cast(x[...]) : fill  ...  xs = held   # what no device copies: through registers

Asynchronous copies are under way until their thread waits for them.  Neighbors are rows or columns of the product, or
steps of the reduction, if tiles take their rows that way.  Where an operand ends, zeros are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Block, Declare, Expr, For, If, Linear, Load, Ranges, Stmt, Store, Var, linear, mentioned, te
from aotc.tir.expr import Binary, Buffer, Const, Select, binary, const, minimum, operands, substitute, with_operands
from aotc.tir.loops.vector_access import MOST
from aotc.tir.schedule.contraction.gpu_split_reduction import Half
from aotc.tir.schedule.contraction.index_space import apart, digits, flat, points
from aotc.tir.simplify import simplify

#: Neighbors in memory that are fetched at once even where others follow far away: 32 bytes.
SECTOR: Final = 8
#: Bytes of one asynchronous copy at least.
_LEAST: Final = 4

#: Of a group of a thread's rows or columns, and the number of one in it.
Place = Callable[[Expr, Expr], Expr]


@frozen(eq=False)
class Steps:
    """How the reduction is walked: pieces of `depth` by so many threads, the values of other axes in `names`.

    Where the last axis is made of whole pieces, the number of a step tells all others: no thread computes quotients.
    """

    axes: Sequence[te.Axis]
    depth: int
    thread: Var
    threads: int
    names: Mapping[Var, Expr]

    @staticmethod
    def of(c: te.Contraction, depth: int, threads: int, names: Mapping[Var, Expr], any_order: bool) -> Steps:
        """An axis of whole pieces becomes the last one, if any order will do."""
        axes = [axis for axis in c.reduce_axes if axis[1] > 1] or c.reduce_axes[:1]
        last = next((axis for axis in reversed(axes) if axis[1] % depth == 0), axes[-1])
        if any_order:
            axes = [*(axis for axis in axes if axis is not last), last]
        none = {var: const(0) for var, _ in c.reduce_axes}
        return Steps(axes, depth, Var("t"), threads, {**names, **none})

    @property
    def count(self) -> int:
        return -(-points(self.axes) // self.depth)

    @property
    def whole(self) -> bool:
        """Whether the last axis is made of whole pieces."""
        return self.axes[-1][1] % self.depth == 0

    def at(self, step: Expr, place: Expr, k: Var) -> tuple[dict[Var, Expr], list[Expr]]:
        """The values of the axes at a place of a step, by the register k, which numbers it, and whether it is one."""
        *outer, (inner, extent) = self.axes
        if self.whole:
            found = digits([*outer, (inner, extent // self.depth)], step)
            return {**found, inner: found[inner] * self.depth + place}, []
        size = points(self.axes)
        return digits(self.axes, k), [k < size] if size % self.depth else []


@frozen(eq=False)
class Piece:
    """Neighbors along some axes that lie next to each other: from `index`, of their `number`, so many elements on."""

    number: Var
    index: Expr
    lanes: int

    @staticmethod
    def of(half: Half, axes: Sequence[te.Axis], ranges: Ranges, dtype: DType) -> Piece | None:
        """Pieces of 16 bytes that begin at multiples of them, and are inside of the operand or outside; or None."""
        lanes, size = MOST // dtype.itemsize, points(axes)
        if half.buffer.dtype != dtype or half.fill or size % lanes or half.buffer.align % MOST:
            return None
        number, one = Var("piece"), Var("one")
        within = {**ranges, number: (0, size // lanes - 1), one: (0, lanes - 1)}
        names = digits(axes, number * lanes + one)

        def form_of(position: Linear) -> Linear:
            expr = simplify(substitute(position.expr(), names), within)
            return linear(_without(expr, one, lanes, within), within)

        borders = (form_of(dim.index).expr() for dim in half.dims if not dim.inside)
        if any(one in mentioned(border) for border in borders):
            return None
        form = form_of(flat(half.dims))
        others = [*(n for atom, n in form.terms.items() if atom is not one), form.const]
        if form.coefficient(one) != 1 or any(n % lanes for n in others):
            return None
        return Piece(number, substitute(form.expr(), {one: const(0)}), lanes)


@frozen(eq=False)
class Side:
    """One operand of the product: rows of the data, or columns of the weights.

    whole     the operand with the axes of these rows or columns
    first     where they begin in shared memory
    held      the elements that a thread brings there
    count     how many of them each thread has accumulators for
    threads   how many threads of a group lie along them
    own       which one of a tile is one of a thread's own
    pitch     elements of shared memory from one step to the next, or from one row to the next
    tile      which tile a block has
    piece     neighbors that are copied at once; None for single elements
    deep      whether neighbors, here and in shared memory, are steps
    """

    whole: Half
    first: int
    held: Buffer
    count: int
    threads: int
    own: Place
    pitch: int
    tile: Expr
    piece: Piece | None = None
    deep: bool = False

    @property
    def size(self) -> int:
        """How many of them a tile has."""
        return self.count * self.threads

    @property
    def lanes(self) -> int:
        return self.piece.lanes if self.piece is not None else 1

    @property
    def copied(self) -> bool:
        """Whether a device can copy them asynchronously."""
        half, dtype = self.whole, self.held.dtype
        return half.buffer.dtype == dtype and not half.fill and self.lanes * dtype.itemsize >= _LEAST

    def at(self, depth: Expr, within: Expr) -> Expr:
        """The place in shared memory of a row or column at a step of a piece."""
        slow, quick = (within, depth) if self.deep else (depth, within)
        return slow * self.pitch + quick + self.first

    def place(self, turn: Var, steps: Steps) -> tuple[Expr, Expr]:
        """What a thread brings in one of its turns: how deep in the piece it is, and of which row or column."""
        thread, threads, dims, size = steps.thread, steps.threads, self.whole.dims, self.size // self.lanes
        if self.deep:
            size = steps.depth // self.lanes
            return thread % size * self.lanes, turn * (threads // size) + thread // size
        if self.piece or apart(dims, self.whole.axes) == 1 or apart(dims, steps.axes) != 1:
            return turn * (threads // size) + thread // size, thread % size * self.lanes
        sectors = steps.depth // SECTOR
        number = turn * (threads // SECTOR) + thread // SECTOR
        return number % sectors * SECTOR + thread % SECTOR, number // sectors

    def begun(self, shared: Buffer, step: Expr, steps: Steps) -> Stmt:
        """The elements of a step that a thread brings: under way to shared memory, or in its registers."""
        turn, number, k = Var("turn"), Var("number"), Var("k")
        depth, within = self.place(turn, steps)
        values, tests = steps.at(step, depth, k)
        names = {**steps.names, **digits(self.whole.axes, number), **values}
        one = self.tile * self.size + within
        if self.whole.inside(number, self.size):  # beyond the end, what is loaded is not used: any element will do
            one = minimum(one, self.whole.size - (1 if self.deep else self.lanes))
        value = self.whole.load(names, self.held.dtype, tests)
        registers = [Declare(number, one), Declare(k, step * steps.depth + depth)]
        if self.piece is not None:
            own = Var("piece")
            registers.append(Declare(own, self.numbered(self.piece, number, k, values, steps)))
            value = _wide(value, self.piece, {**names, self.piece.number: own})
        place = self.at(depth, within)
        store: Stmt = Store(shared, place, value, True) if self.copied else Store(self.held, turn, value)
        if self.held.size % self.lanes:  # the last turn is that of some threads only
            store = If(depth < steps.depth, store)
        return For(turn, -(-self.held.size // self.lanes), Block((*registers, store)))

    def numbered(self, piece: Piece, number: Var, k: Var, values: Mapping[Var, Expr], steps: Steps) -> Expr:
        """The number of a piece."""
        if not self.deep:
            return number // piece.lanes
        return values[steps.axes[-1][0]] // piece.lanes if steps.whole else k // piece.lanes

    def ended(self, shared: Buffer, steps: Steps) -> Stmt:
        """These elements in shared memory, if they are in registers."""
        turn = Var("turn")
        store = Store(shared, self.at(*self.place(turn, steps)), Load(self.held, turn))
        return Block(()) if self.copied else For(turn, self.held.size, store)


def _without(expr: Expr, one: Var, lanes: int, ranges: Ranges) -> Expr:
    """Quotients and remainders without `one`, which counts from a multiple of `lanes` up to the next one."""
    expr = with_operands(expr, tuple(_without(e, one, lanes, ranges) for e in operands(expr)))
    match expr:
        case Binary(op="floordiv" | "floormod" as op, a=a, b=Const(value=size)) if size and size % lanes == 0:
            form = linear(a, ranges)
            rest = form.plus(Linear({one: 1}), -1)
            if form.coefficient(one) == 1 and not any(n % lanes for n in (rest.const, *rest.terms.values())):
                found = binary(op, rest.expr(), int(size))
                return found + one if op == "floormod" else found
    return expr


def _wide(value: Expr, piece: Piece, names: Mapping[Var, Expr]) -> Expr:
    """A load of several elements in place of one."""
    if isinstance(value, Select):
        zeros = const(0, value.dtype, piece.lanes)
        return Select(value.cond, _wide(value.a, piece, names), zeros)
    assert isinstance(value, Load)
    return Load(value.buffer, substitute(piece.index, names), piece.lanes)
