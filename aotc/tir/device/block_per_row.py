# SPDX-License-Identifier: Apache-2.0
"""Map outer iterations (rows) to thread blocks, or parts of blocks, and the loops inside them to
the threads.

for i in 0..9 independent {                                            # 9 blocks of 256 threads
    for l in 0..256 independent { part[l] = x[i * 256 + l] * 2.0 }     # one by each thread; `part` is shared memory
    s = part[0] + part[1]                                              # by every thread, after a barrier
    for k in 0..999 independent { y[i * 999 + k] = z[k] / s }          # by thread t: t, t + 256 and so on
}

Loops run in program order, with a barrier where one loop reads memory that another loop wrote. No operator is
treated specially: softmax, normalizations and split reductions all have this form. Values that
every thread needs are computed by every thread.
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

#: Threads per row of an inner nest of rows.
_GROUP: Final = 32
#: Numbers of threads per row that are tried.
_COUNTS: Final = tuple(2**k for k in range(1, 11))
#: Cost of a barrier, in statements, and the number of threads that adds another statement to it.
_BARRIER: Final = 4
_SLOWER: Final = 64
#: Factor by which uncoalesced loads are slower.
_SCATTERED: Final = 8
#: Largest number of elements of scratch that each thread fills for itself instead of sharing it;
#: assumed number of iterations of a loop of unknown length.
_FEW: Final = 64
_ROUNDS: Final = 128


@frozen(eq=False)
class Row:
    """One iteration (row) of a loop nest, to be executed by several threads of a GPU block.

    nest     the loops around the row; no loops for a single row
    own      scratch that each iteration fills anew
    common   the part of that scratch through which threads pass values to each other
    across   True if accesses are contiguous along the rows rather than within a row
    widest   iterations of the longest loop that threads share
    """

    nest: Nest
    own: tuple[Buffer, ...]
    common: frozenset[Buffer]
    across: bool
    widest: int

    @staticmethod
    def of(nest: Nest, own: Sequence[Buffer]) -> Row | None:
        """Return the rows of a loop nest with the scratch buffers `own`; None if a row contains no
        loop that threads can share.
        """
        leaves = _leaves(nest.body)
        kept = {*own} - (common := _common(leaves, own))
        alone = [s for s in leaves if not is_shared_out(s) and not written(s) <= kept]  # executed by one thread
        if not any(map(is_shared_out, leaves)) or any(True for s in alone for _ in outer_assigns(s)):
            return None
        across = bool(nest.loops) and _lies_across(nest.loops[-1].var, leaves)
        widest = max(numbered(Part((), (s,)))[0].size for s in leaves if is_shared_out(s))
        return Row(nest, (*own,), common, across, widest)

    def cost(self, threads: int) -> int:
        """Estimate the statements that one of `threads` threads executes for a row (the body of one
        outer iteration).
        """
        return _cost(self.nest.body, threads, {})


def _leaves(body: Stmt) -> list[Stmt]:
    """Return the loops whose iterations the threads of a block share, and the statements between
    them, in program order.
    """
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
    """Return the scratch buffers through which the threads of a GPU block pass values to each
    other, in shared memory.
    """
    uses = [(is_shared_out(s), written(s), written(s) | read(s)) for s in leaves]
    several = {b for b in own if sum(b in used for _, _, used in uses) > 1}
    found, size = {b for b in several if b.size > _FEW}, -1
    while size != len(found):
        size = len(found)
        found |= {b for out, w, _ in uses if out or w & found or not w <= {*own} for b in w & several}
    return frozenset(found)


def _lies_across(outer: Var, leaves: Sequence[Stmt]) -> bool:
    """Return True if most accesses to parameters are contiguous along the variable `outer` rather
    than the inner loops.
    """
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
    """Return True if all threads run the iterations of a loop together, because it contains loops
    that they share.
    """
    if not isinstance(stmt, For) or is_shared_out(stmt) or not counted(stmt):
        return False
    return any(is_shared_out(s) for s in stmts_of(stmt.body)) or any(map(_is_around, stmts_of(stmt.body)))


def _cost(stmt: Stmt, threads: int, ranges: Ranges) -> int:
    """Return the number of statements that one of several threads executes; shared loops are
    divided by `threads`.
    """
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
    """Return the number of statements that a thread executes, with no loop shared between threads."""
    return _cost(stmt, 1, ranges)


def _has_rows(nest: Nest, threads: int) -> bool:
    """Return True if a loop has so few iterations that a group of `_GROUP` threads, not a single
    one, should execute each.
    """
    few = len(nest.loops) == 1 and nest.size * _GROUP <= threads * _ROUNDS and nest.size < threads
    return few and threads > _GROUP and any(map(is_shared_out, _leaves(nest.body)))


@frozen(eq=False)
class Rows:
    """Assignment of rows (iterations of outer loops) to GPU thread blocks.

    row      the row
    rows     number of rows per block
    each     number of threads per row
    across   True if neighboring threads belong to different rows
    """

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
        """The number of thread blocks of the launch; each block processes `rows` consecutive rows."""
        *outer, last = (extent_of(loop) for loop in self.row.nest.loops) if self.row.nest.loops else (1,)
        return math.prod(outer) * -(-last // self.rows)

    def size(self, buffer: Buffer) -> int:
        """Return the elements of shared memory of a scratch buffer for one row: odd if rows would
        conflict in memory banks.
        """
        return buffer.size | self.across

    def array(self, buffer: Buffer) -> Buffer:
        """Return the shared-memory array that holds a scratch buffer for all rows of a thread
        block.
        """
        return replace(buffer, size=self.size(buffer) * self.rows, scope="shared", private=False)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a thread block needs."""
        return shared_bytes(map(self.array, self.row.common))

    def time(self, gpu: Gpu) -> float:
        """Estimate the time of all rows on the GPU, in statements executed sequentially."""
        return self.row.cost(self.each) * max(1.0, self.row.nest.size * self.each / gpu.busy)

    def share(self, block: Expr, thread: Var, gpu: Gpu, stack_bytes: int, *, nested: bool = True) -> Share | None:
        """Return the statements of the GPU threads that process rows; None if their scratch memory
        is too large for the device.

        block, thread   indices of block and thread
        gpu             the device
        stack_bytes     bytes of arrays that a thread may have on its stack
        nested          treat loops with few iterations around other loops as rows inside this row,
                        if they fit
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
        """Return the scratch buffers in `own` that belong to inner rows: iterations that groups of
        threads of the block share.
        """
        leaves = [s for s in _leaves(self.row.nest.body) if is_shared_out(s)]
        found = [s for s in leaves if _has_rows(numbered(Part((), (s,)))[0], self.each)]
        return [b for b in own if any(b in written(s) for s in found)]

    def taken(self, block: Expr, row: Var, number: Var, body: Block) -> Block:
        """Return the loop body of a thread block that processes `rows` consecutive iterations of
        the outer loops.

        block    index of the thread block
        row      index of a row (outer iteration) within its block
        number   variable for the index of the row along the innermost outer loop
        body     the body of one row
        """
        nest = replace(self.row.nest, body=body)
        if self.rows == 1:
            return nest.iteration(block) if nest.loops else body
        *outer, last = nest.loops
        part = For(Var("part"), -(-extent_of(last) // self.rows), body)
        declares = Declare(number, part.var * self.rows + row), Declare(last.var, last.begin + number * last.step)
        return Nest((*outer, part), Block((*declares, body))).iteration(block)


@dataclass(slots=True)
class _Writer:
    """Emits the statements of one thread of a row (an outer iteration executed by several threads).

    lane             index of the thread within its row
    threads          number of threads of the row
    own              scratch of the thread itself
    ok               conditions under which the row exists
    inside           scratch of inner rows, which is allocated in `stack` and `shared`
    gpu              the device, with the shared memory that is left
    failed           True if shared memory did not suffice
    stored, loaded   buffers that the threads accessed since the last barrier
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
        """Return the statements of one thread, with barriers where a statement reads or overwrites
        memory that another thread of the block accessed.
        """
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
                self.met()  # there is a barrier at its end
                continue
            made.append(self.stmt(stmt, shares=bool(w)))
            self.stored |= w
            self.loaded |= r
        return made

    def met(self) -> Stmt:
        """Return a barrier (Sync), and clear the record of accesses since the last barrier."""
        self.stored, self.loaded = set(), set()
        return Sync()

    def inner(self, stmt: Stmt) -> Stmt | None:
        """Return a loop each of whose iterations is executed by a group of threads of the block;
        None if shared memory is too small.
        """
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
        """Return a statement as one thread of the row executes it.

        shares   the statement writes memory that other threads read: then a single thread executes
                 it
        """
        if isinstance(stmt, For) and is_shared_out(stmt):
            return self.dealt(stmt)
        if shares:  # other threads read the result: one thread suffices
            return If(all_of(self.lane < 1, *self.ok), stmt)
        if not self.ok or not any(load.buffer.scope == "param" for s in walk_stmts(stmt) for load in loads(s)):
            return stmt
        if isinstance(stmt, Declare):
            return Declare(stmt.var, Select(all_of(*self.ok), stmt.value, const(0, stmt.value.dtype)))
        return If(all_of(*self.ok), stmt)

    def dealt(self, stmt: For) -> Stmt:
        """Return a loop restricted to the iterations of one thread: lane, lane + threads and so on."""
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
    """Return the fastest mapping of outer iterations to GPU blocks and of inner loops to their
    threads.

    Return None if one thread per outer iteration is faster.
    """
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
    """Return the mapping of rows to GPU blocks with `each` threads per row; None if a block had too
    many or too few threads.
    """
    most = gpu.threads // each or int(each <= MOST_THREADS)
    size, across = row.nest.size, row.across
    last = extent_of(row.nest.loops[-1]) if row.nest.loops else 1
    if across:
        most = min(most, gpu.warp)
    elif each < min(gpu.warp, row.widest):  # else the threads of a row could not load contiguously
        return None
    else:
        while most > 1 and -(-size // most) < gpu.processors:
            most //= 2
    way = Rows(row, min(most, 1 << (last - 1).bit_length()), each, across)
    while way.rows > 1 and way.shared_bytes > gpu.shared_bytes:
        way = replace(way, rows=way.rows // 2)
    return way if way.threads >= gpu.warp else None


def joined(kernel: Kernel, gpu: Gpu) -> Kernel:
    """Return a kernel in which groups of short statements are wrapped in a loop of one iteration,
    for one GPU block to execute.

    Used where a block executes a group faster than a launch per loop would start.
    """
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
