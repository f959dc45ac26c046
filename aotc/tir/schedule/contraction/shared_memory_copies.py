# SPDX-License-Identifier: Apache-2.0
"""Copies of operand pieces from global to shared memory by the threads of a GPU block, overlapped
with multiplication.

    xs[16 x 64] = async x[...:4]                             # neighbors: 16 bytes at once, from multiples of them on
    xs[16 x 64] = async inside ? x[...] : 0                  # single numbers of 4 bytes
    held[4] = inside ? cast(x[...]) : fill  ...  xs = held   # what no device copies: through registers

An asynchronous copy is complete when its thread has waited for it. The elements of a 16-byte copy
are adjacent rows or columns of the product or, for tiles that permit it, adjacent steps of the
reduction. Out-of-range elements are zeros.
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

#: Adjacent elements that are loaded together even if the next ones are far away: a sector of 32
#: bytes.
SECTOR: Final = 8
#: Least number of bytes of an asynchronous copy.
_LEAST: Final = 4

#: Function from (group of a thread's rows or columns, index in the group) to the row or column.
Place = Callable[[Expr, Expr], Expr]


@frozen(eq=False)
class Steps:
    """The order in which a thread block runs through the reduction axes, `depth` steps per piece.

    If `depth` divides the extent of the last axis, the number of a piece determines all other axes,
    so that threads compute no quotients.

    axes              the reduction axes
    thread, threads   index of the thread and number of threads
    names             values of the other axes
    """

    axes: Sequence[te.Axis]
    depth: int
    thread: Var
    threads: int
    names: Mapping[Var, Expr]

    @staticmethod
    def of(c: te.Contraction, depth: int, threads: int, names: Mapping[Var, Expr], any_order: bool) -> Steps:
        """Return the reduction order of a contraction; if `any_order`, an axis that `depth` divides
        becomes the last one.
        """
        axes = [axis for axis in c.reduce_axes if axis[1] > 1] or c.reduce_axes[:1]
        last = next((axis for axis in reversed(axes) if axis[1] % depth == 0), axes[-1])
        if any_order:
            axes = [*(axis for axis in axes if axis is not last), last]
        none = {var: const(0) for var, _ in c.reduce_axes}
        return Steps(axes, depth, Var("t"), threads, {**names, **none})

    @property
    def count(self) -> int:
        """The number of pieces that the reduction is divided into."""
        return -(-points(self.axes) // self.depth)

    @property
    def whole(self) -> bool:
        """True if the depth of a piece divides the extent of the last reduction axis."""
        return self.axes[-1][1] % self.depth == 0

    def at(self, step: Expr, place: Expr, k: Var) -> tuple[dict[Var, Expr], list[Expr]]:
        """Return the values of the reduction axes at a position within a piece, and the conditions
        that the position exists.

        step    number of the piece
        place   index within the piece
        k       register that holds the number of the position over all pieces
        """
        *outer, (inner, extent) = self.axes
        if self.whole:
            found = digits([*outer, (inner, extent // self.depth)], step)
            return {**found, inner: found[inner] * self.depth + place}, []
        size = points(self.axes)
        return digits(self.axes, k), [k < size] if size % self.depth else []


@frozen(eq=False)
class Piece:
    """A vector of `lanes` adjacent elements of an operand at the address `index`, a function of its
    `number`.
    """

    number: Var
    index: Expr
    lanes: int

    @staticmethod
    def of(half: Half, axes: Sequence[te.Axis], ranges: Ranges, dtype: DType) -> Piece | None:
        """Return the 16-byte vectors along `axes` of an operand; None if they are not aligned, or
        only partly in range.
        """
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
    """One operand of a thread block's product: rows of the data, or columns of the weights.

    whole     the operand with its axes
    first     offset of the operand in shared memory
    held      registers for the elements that a thread copies
    count     rows or columns for which each thread has accumulators
    threads   threads of a group along the rows or columns
    own       function that returns a row or column of a thread
    pitch     elements of shared memory between consecutive steps or (if `deep`) rows or columns
    tile      index of the block's tile
    piece     vectors that are copied at once; None for single elements
    deep      the contiguous axis, in global and shared memory, is that of the reduction steps
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
        """Rows or columns of the operand's tile."""
        return self.count * self.threads

    @property
    def lanes(self) -> int:
        """Number of elements that one copy instruction moves."""
        return self.piece.lanes if self.piece is not None else 1

    @property
    def copied(self) -> bool:
        """True if this operand can be copied asynchronously: no conversion, zero padding, and at
        least 4 bytes at once.
        """
        half, dtype = self.whole, self.held.dtype
        return half.buffer.dtype == dtype and not half.fill and self.lanes * dtype.itemsize >= _LEAST

    def at(self, depth: Expr, within: Expr) -> Expr:
        """Return the address in shared memory of an operand's row or column `within` at reduction
        step `depth` of a piece.
        """
        slow, quick = (within, depth) if self.deep else (depth, within)
        return slow * self.pitch + quick + self.first

    def place(self, turn: Var, steps: Steps) -> tuple[Expr, Expr]:
        """Return (reduction step in the piece, row or column) of the element that a thread copies
        in iteration `turn`.
        """
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
        """Return the loop in which a thread starts to copy its elements of an operand piece, to
        shared memory or to registers.
        """
        turn, number, k = Var("turn"), Var("number"), Var("k")
        depth, within = self.place(turn, steps)
        values, tests = steps.at(step, depth, k)
        names = {**steps.names, **digits(self.whole.axes, number), **values}
        one = self.tile * self.size + within
        if self.whole.inside(number, self.size):  # beyond the end any element may be loaded, as it is not used
            one = minimum(one, self.whole.size - (1 if self.deep else self.lanes))
        value = self.whole.load(names, self.held.dtype, tests)
        registers = [Declare(number, one), Declare(k, step * steps.depth + depth)]
        if self.piece is not None:
            own = Var("piece")
            registers.append(Declare(own, self.numbered(self.piece, number, k, values, steps)))
            value = _wide(value, self.piece, {**names, self.piece.number: own})
        place = self.at(depth, within)
        store: Stmt = Store(shared, place, value, True) if self.copied else Store(self.held, turn, value)
        if self.held.size % self.lanes:  # not all threads run the last iteration
            store = If(depth < steps.depth, store)
        return For(turn, -(-self.held.size // self.lanes), Block((*registers, store)))

    def numbered(self, piece: Piece, number: Var, k: Var, values: Mapping[Var, Expr], steps: Steps) -> Expr:
        """Return the number of the 16-byte vector that contains an element."""
        if not self.deep:
            return number // piece.lanes
        return values[steps.axes[-1][0]] // piece.lanes if steps.whole else k // piece.lanes

    def ended(self, shared: Buffer, steps: Steps) -> Stmt:
        """Return the loop that stores a thread's elements of an operand piece to shared memory, if
        they are in registers.
        """
        turn = Var("turn")
        store = Store(shared, self.at(*self.place(turn, steps)), Load(self.held, turn))
        return Block(()) if self.copied else For(turn, self.held.size, store)


def _without(expr: Expr, one: Var, lanes: int, ranges: Ranges) -> Expr:
    """Remove `one` from quotients and remainders, given that it counts from a multiple of `lanes`
    to the next one.
    """
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
    """Return a vector load of a piece's elements in place of the load of one element; a guarded
    load stays guarded.
    """
    if isinstance(value, Select):
        zeros = const(0, value.dtype, piece.lanes)
        return Select(value.cond, _wide(value.a, piece, names), zeros)
    assert isinstance(value, Load)
    return Load(value.buffer, substitute(piece.index, names), piece.lanes)
