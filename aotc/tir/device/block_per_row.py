# SPDX-License-Identifier: Apache-2.0
"""Iterations for blocks, or parts of blocks, whose threads share out the loops that are inside.

for i in 0..9 independent {                                            # 9 blocks of 256 threads
    for l in 0..256 independent { part[l] = x[i * 256 + l] * 2.0 }     # one by each thread; `part` is shared memory
    s = part[0] + part[1]                                              # by every thread, after a barrier
    for k in 0..999 independent { y[i * 999 + k] = z[k] / s }          # by thread t: t, t + 256 and so on
}

Loops are followed in their order, with barriers where one needs what another one wrote.  Nothing is known of operators:
softmax, norms and reductions in pieces are rows.  What each thread needs for itself it computes for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from aotc.ir import frozen
from aotc.tir import Buffer, Expr, For, Gpu, Select, Var, all_of, as_expr, const, linear, refreshed, walk_stmts, written
from aotc.tir.device.kernel_fission import FEW, Nest, Part, elsewhere, is_shared_out
from aotc.tir.device.thread_block_mapping import Share, numbered, placed
from aotc.tir.gpu_launch import MOST_THREADS, shared_bytes
from aotc.tir.loops.loop_dependence import (
    Ranges,
    counted,
    extent_of,
    inside,
    loads,
    outer_assigns,
    range_of,
    read,
    touched,
)
from aotc.tir.stmt import Block, Declare, If, Kernel, Stmt, Sync, changed, forall, nodes, stmt_children, stmts_of

#: Threads of a row inside of another one.
_GROUP: Final = 32
#: Threads of a row.
_COUNTS: Final = tuple(2**k for k in range(1, 11))
#: What a barrier costs, in statements, and how many more threads make it one more.
_BARRIER: Final = 4
_SLOWER: Final = 64
#: How much slower threads load that do not load next to each other.
_SCATTERED: Final = 8
#: Elements of scratch that each thread fills for itself, rather than sharing them; rounds of a loop of unknown length.
_FEW: Final = 64
_ROUNDS: Final = 128


@frozen(eq=False)
class Row:
    """What an iteration of a nest does.

    nest     the loops around; none for a single row
    own      scratch that is filled anew in each iteration
    common   what of it threads fill for each other
    across   whether neighboring iterations use elements that lie next to each other, unlike one of them by itself
    widest   iterations of the longest loop that threads share out
    """

    nest: Nest
    own: tuple[Buffer, ...]
    common: frozenset[Buffer]
    across: bool
    widest: int

    @staticmethod
    def of(nest: Nest, own: Sequence[Buffer]) -> Row | None:
        """An iteration with such scratch; None where there is nothing that threads could share."""
        leaves = _leaves(nest.body)
        kept = {*own} - (common := _common(leaves, own))
        alone = [s for s in leaves if not is_shared_out(s) and not written(s) <= kept]  # what one thread does
        if not any(map(is_shared_out, leaves)) or any(True for s in alone for _ in outer_assigns(s)):
            return None
        across = bool(nest.loops) and _lies_across(nest.loops[-1].var, leaves)
        widest = max(numbered(Part((), (s,)))[0].size for s in leaves if is_shared_out(s))
        return Row(nest, (*own,), common, across, widest)

    def cost(self, threads: int) -> int:
        """What a thread of so many does, in statements."""
        return _cost(self.nest.body, threads, {})


def _leaves(body: Stmt) -> list[Stmt]:
    """Loops that threads share out, and what is between."""
    found: list[Stmt] = []
    pending = [*reversed(stmts_of(body))]
    while pending:
        stmt = pending.pop()
        if _is_around(stmt):
            pending += reversed(stmts_of(stmt.body))
        else:
            found.append(stmt)
    return found


def _common(leaves: Sequence[Stmt], own: Sequence[Buffer]) -> frozenset[Buffer]:
    """Scratch that one thread fills for others."""
    uses = [(is_shared_out(s), written(s), written(s) | read(s)) for s in leaves]
    several = {b for b in own if sum(b in used for _, _, used in uses) > 1}
    found, size = {b for b in several if b.size > _FEW}, -1
    while size != len(found):
        size = len(found)
        found |= {b for out, w, _ in uses if out or w & found or not w <= {*own} for b in w & several}
    return frozenset(found)


def _lies_across(outer: Var, leaves: Sequence[Stmt]) -> bool:
    votes = 0
    for leaf in filter(is_shared_out, leaves):
        inner = {s.var for s in walk_stmts(leaf) if isinstance(s, (For, Declare))}
        for buffer, index, _ in (place for s in walk_stmts(leaf) for place in touched(s)):
            form = linear(index, {})
            near = min((abs(c) for a, c in form.terms.items() if a in inner), default=0)
            beside = abs(form.coefficient(outer) or 0) == 1
            votes += (near != 1 and beside) - (near == 1) if buffer.scope == "param" else 0
    return votes > 0


def _is_around(stmt: Stmt) -> TypeGuard[For]:
    """Whether threads go through a loop together: others are inside that they share out."""
    if not isinstance(stmt, For) or is_shared_out(stmt) or not counted(stmt):
        return False
    return any(is_shared_out(s) for s in stmts_of(stmt.body)) or any(map(_is_around, stmts_of(stmt.body)))


def _cost(stmt: Stmt, threads: int, ranges: Ranges) -> int:
    """Statements that one of the threads runs; all iterations of every loop for one thread."""
    match stmt:
        case For():
            low, high = range_of(stmt, ranges)
            rounds = int(high - low) // stmt.step + 1 if high - low < math.inf else _ROUNDS
            if threads > 1 and is_shared_out(stmt):
                nest = numbered(Part((), (stmt,)))[0]
                known = inside(nest.loops, ranges)
                if _has_rows(nest, threads):
                    return -(-nest.size * _GROUP // threads) * (_cost(nest.body, _GROUP, known) + _BARRIER)
                return -(-nest.size // threads) * _cost(nest.body, 1, known) + _BARRIER + threads // _SLOWER
            return max(0, rounds) * _cost(stmt.body, threads, inside([stmt], ranges))
        case _ if inner := stmt_children(stmt):
            return sum(_cost(s, threads, ranges) for s in inner)
    return 1


def statements(stmt: Stmt, ranges: Ranges) -> int:
    """Statements that a thread runs, in whose loops nothing is for others."""
    return _cost(stmt, 1, ranges)


def _has_rows(nest: Nest, threads: int) -> bool:
    """Whether iterations of a loop that threads share are for several of them each, as there are too few."""
    few = len(nest.loops) == 1 and nest.size * _GROUP <= threads * _ROUNDS and nest.size < threads
    return few and threads > _GROUP and any(map(is_shared_out, _leaves(nest.body)))


@frozen(eq=False)
class Rows:
    """Rows of a block, threads of each row, and whether neighboring threads are of different rows."""

    row: Row
    rows: int
    each: int
    across: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows * self.each

    @property
    def blocks(self) -> int:
        """Rows that lie next to each other are of one block."""
        *outer, last = (extent_of(loop) for loop in self.row.nest.loops) if self.row.nest.loops else (1,)
        return math.prod(outer) * -(-last // self.rows)

    def size(self, buffer: Buffer) -> int:
        """What a row has of shared memory: an odd number where different rows would meet in its banks."""
        return buffer.size | self.across

    def array(self, buffer: Buffer) -> Buffer:
        """What all rows of a block have of shared memory."""
        return replace(buffer, size=self.size(buffer) * self.rows, scope="shared", private=False)

    @property
    def shared_bytes(self) -> int:
        return shared_bytes(map(self.array, self.row.common))

    def time(self, gpu: Gpu) -> float:
        """About what all rows take, in statements one after the other."""
        return self.row.cost(self.each) * max(1.0, self.row.nest.size * self.each / gpu.busy)

    def share(self, block: Expr, thread: Var, gpu: Gpu, stack_bytes: int, *, nested: bool = True) -> Share | None:
        """What the threads of all blocks do; None where scratch is too large.

        nested   loops with few iterations around others are rows inside of this one, if that fits
        """
        blocks, room = self.blocks, gpu.shared_bytes
        lane, row, number = thread, Var("row"), Var("n")
        declares: list[Stmt] = []
        if self.rows > 1:
            lane = Var("lane")
            digits = thread // self.each, thread % self.each
            if self.across:
                digits = thread % self.rows, thread // self.rows
            declares = [Declare(var, e) for var, e in zip((row, lane), digits, strict=True)]
        places: dict[Buffer, tuple[Buffer, Expr]] = {}
        for b in sorted(filter(self.row.common.__contains__, self.row.own), key=self.size):
            first = row * self.size(b) if self.rows > 1 else as_expr(0)
            made, taken = self.array(b), shared_bytes([self.array(b)])
            if taken > room:
                first = block * made.size + first
                made, taken = replace(made, size=made.size * blocks, scope="workspace"), 0
            room -= taken
            places[b] = made, first
        rest = [b for b in self.row.own if b not in places]
        inner = self.inside(rest) if nested and self.rows == 1 else []
        stack, large = placed((b for b in rest if b not in inner), stack_bytes)
        places |= {b: (local, as_expr(0)) for b, local in stack.items()}
        for b in large:
            whole = replace(b, size=b.size * blocks * self.threads, scope="workspace", private=False)
            places[b] = whole, (block * self.threads + thread) * b.size
        shared, copied = ([b for b, _ in places.values() if b.scope == s] for s in ("shared", "workspace"))
        if sum(b.nbytes for b in copied) > gpu.scratch_bytes:
            return None
        extent = extent_of(self.row.nest.loops[-1]) if self.row.nest.loops else 1
        own = {*inner, *(places[b][0] for b in (*stack, *large))}
        left = replace(gpu, shared_bytes=room, scratch_bytes=0)
        writer = _Writer(lane, self.each, own, [number < extent] if extent % self.rows else [], inner, left)
        body = Block(writer.stmts(stmts_of(elsewhere(self.row.nest.body, places))))
        if writer.failed:
            return self.share(block, thread, gpu, stack_bytes, nested=False)
        over = Block((*declares, self.taken(block, row, number, body)))
        return Share(blocks, over, (*copied,), (*stack.values(), *writer.stack), (*shared, *writer.shared))

    def inside(self, own: Sequence[Buffer]) -> list[Buffer]:
        """Scratch of rows inside."""
        leaves = [s for s in _leaves(self.row.nest.body) if is_shared_out(s)]
        found = [s for s in leaves if _has_rows(numbered(Part((), (s,)))[0], self.each)]
        return [b for b in own if any(b in written(s) for s in found)]

    def taken(self, block: Expr, row: Var, number: Var, body: Block) -> Block:
        """A body for the rows that a block takes; `number` is that of a row among those next to each other."""
        nest = replace(self.row.nest, body=body)
        if self.rows == 1:
            return nest.iteration(block) if nest.loops else body
        *outer, last = nest.loops
        part = For(Var("part"), -(-extent_of(last) // self.rows), body)
        declares = Declare(number, part.var * self.rows + row), Declare(last.var, last.begin + number * last.step)
        return Nest((*outer, part), Block((*declares, body))).iteration(block)


@dataclass(slots=True)
class _Writer:
    """Writes what a thread of a row does; `lane` is its number, of so many.

    own             scratch of the thread itself
    ok              conditions under which there is such a row
    inside          scratch of rows inside, of which `stack` and `shared` are made
    gpu             with the shared memory that is left for it
    failed          whether there is too little
    stored, loaded  what the threads have touched since they met
    """

    lane: Var
    threads: int
    own: set[Buffer]
    ok: list[Expr]
    inside: list[Buffer]
    gpu: Gpu
    stack: list[Buffer] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)
    failed: bool = False
    stored: set[Buffer] = field(default_factory=set)
    loaded: set[Buffer] = field(default_factory=set)

    def stmts(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        made: list[Stmt] = []
        for stmt in stmts:
            w, r = written(stmt) - self.own, read(stmt) - self.own
            if w & (self.stored | self.loaded) or r & self.stored:
                made.append(self.met())
            if _is_around(stmt):
                made.append(replace(stmt, body=Block((*self.stmts(stmts_of(stmt.body)), self.met()))))
                continue
            if not (r | written(stmt)).isdisjoint(self.inside) and (found := self.inner(stmt)):
                made.append(found)
                self.met()  # at its end
                continue
            made.append(self.stmt(stmt, shares=bool(w)))
            self.stored |= w
            self.loaded |= r
        return made

    def met(self) -> Stmt:
        """A barrier."""
        self.stored, self.loaded = set(), set()
        return Sync()

    def inner(self, stmt: Stmt) -> Stmt | None:
        """A loop whose iterations are rows for some of the threads each; None if that does not fit."""
        nest = numbered(Part((), (refreshed(stmt),)))[0]
        row = Row.of(nest, [b for b in self.inside if b in written(stmt) | read(stmt)])
        rows = None if row is None else Rows(row, self.threads // _GROUP, _GROUP, across=False)
        while rows is not None and rows.rows > 1 and rows.shared_bytes > self.gpu.shared_bytes:
            rows = replace(rows, rows=rows.rows // 2, each=2 * rows.each)
        turn = Var("turn")
        share = None if rows is None else rows.share(turn, self.lane, self.gpu, _FEW * 4, nested=False)
        if share is None:
            self.failed = True
            return None
        self.stack += share.stack
        self.shared += share.shared
        self.gpu = replace(self.gpu, shared_bytes=self.gpu.shared_bytes - shared_bytes(share.shared))
        return For(turn, share.blocks, Block((share.body, Sync())))

    def stmt(self, stmt: Stmt, *, shares: bool) -> Stmt:
        if isinstance(stmt, For) and is_shared_out(stmt):
            return self.dealt(stmt)
        if shares:  # others see it: one thread is enough
            return If(all_of(self.lane < 1, *self.ok), stmt)
        if not self.ok or not any(load.buffer.scope == "param" for s in walk_stmts(stmt) for load in loads(s)):
            return stmt
        if isinstance(stmt, Declare):
            return Declare(stmt.var, Select(all_of(*self.ok), stmt.value, const(0, stmt.value.dtype)))
        return If(all_of(*self.ok), stmt)

    def dealt(self, stmt: For) -> Stmt:
        """The iterations of a loop that are the thread's."""
        nest = numbered(Part((), (refreshed(stmt),)))[0]
        number, body, kind = Var("n"), nest.body, "serial"
        if len(nest.loops) == 1 and counted(stmt) == range(nest.size):
            number, kind = nest.loops[0].var, stmt.kind
        else:
            body = nest.iteration(number)
        limits = [*self.ok, *([self.lane < nest.size] if nest.size < self.threads else [])]
        made: Stmt = Block((Declare(number, self.lane), body))
        if nest.size > self.threads:
            made = For(number, nest.size, body, begin=self.lane, step=self.threads, kind=kind)
        return If(all_of(*limits), made) if limits else made


def rows_of(part: Part, gpu: Gpu) -> Rows | None:
    """The best way to share out what is inside of the loops of a part; None where that does not pay."""
    nest = numbered(part)[0] if part.loop is not None else Nest((), part.body)
    row = Row.of(nest, part.own)
    if row is None:
        return None
    across = row.across
    flat = row.cost(1) * max(1.0, nest.size / gpu.busy) * (1 if across or not nest.loops else _SCATTERED)
    ways = [way for each in _COUNTS if (way := _rows(row, each, gpu))]
    best = min(ways, key=lambda way: way.time(gpu), default=None)
    return best if best is not None and best.time(gpu) < flat else None


def _rows(row: Row, each: int, gpu: Gpu) -> Rows | None:
    """Blocks of rows with so many threads each; None where they are too many or too few."""
    most = gpu.threads // each or int(each <= MOST_THREADS)
    size, across = row.nest.size, row.across
    last = extent_of(row.nest.loops[-1]) if row.nest.loops else 1
    if across:
        most = min(most, gpu.warp)
    elif each < min(gpu.warp, row.widest):  # threads of a row load next to each other
        return None
    else:
        while most > 1 and -(-size // most) < gpu.processors:
            most //= 2
    way = Rows(row, min(most, 1 << (last - 1).bit_length()), each, across)
    while way.rows > 1 and way.shared_bytes > gpu.shared_bytes:
        way = replace(way, rows=way.rows // 2)
    return way if way.threads >= gpu.warp else None


def joined(kernel: Kernel, gpu: Gpu) -> Kernel:
    """The kernel with rows of one iteration around what a block does sooner than launches for each loop would begin."""
    groups: list[list[Stmt]] = []
    room = 0
    for stmt in stmts_of(kernel.body):
        own = FEW * isinstance(stmt, For) - _cost(stmt, gpu.threads, {})
        room += own
        if not groups or room < 0:
            groups.append([])
            room = own
        groups[-1].append(stmt)
    body: list[Stmt] = []
    fresh: dict[Buffer, Buffer] = {}
    for group in groups:
        row = forall(Var("one"), 1, Block(group))
        others = Block(s for other in groups if other is not group for s in other)
        declared = {s.var for s in group if isinstance(s, Declare)}
        alone = declared.isdisjoint({*nodes(others)} | changed(others)) and is_shared_out(row)
        if alone and sum(isinstance(s, For) for s in group) > 1:
            used = written(row) - written(others) - read(others)
            fresh |= {b: replace(b, private=True) for b in kernel.workspace if b in used}
            group = [row]
        body += group
    made = elsewhere(Block(body), {b: (c, as_expr(0)) for b, c in fresh.items()})
    return replace(kernel, body=made, workspace=tuple(fresh.get(b, b) for b in kernel.workspace))
