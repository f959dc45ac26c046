# SPDX-License-Identifier: Apache-2.0
"""Which iterations of a part each thread of each block takes.

for i in 0..6: for j in 0..100: y[j * 6 + i] = ...           # independent; 600 iterations

->  for b in 0..3 block: for t in 0..256 thread:
        n = b * 256 + t                                      # neighbours write next to each other
        if n < 600: j = n // 6; i = n % 6; y[j * 6 + i] = ...

Where there are more iterations than threads, each thread takes one after the other, as many apart as there are threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from aotc.ir import frozen
from aotc.tir import (
    Block,
    Buffer,
    Declare,
    Expr,
    For,
    Gpu,
    If,
    Intrinsic,
    Stmt,
    Var,
    all_of,
    as_expr,
    linear,
    walk_stmts,
)
from aotc.tir.device.parts import Part, elsewhere, is_shared_out
from aotc.tir.loops.dependence import extent_of, loads, written
from aotc.tir.stmt import Assign, Store, stmts_of

#: Threads take several iterations where a processor would be given more blocks than so many times what it can hold.
_WAVES: Final = 8


@frozen(eq=False)
class Nest:
    """Loops of independent iterations, one in the other, the one that counts fastest last, and what they repeat."""

    loops: tuple[For, ...]
    body: Block

    @property
    def size(self) -> int:
        """Iterations in all."""
        return math.prod(map(extent_of, self.loops))

    def iteration(self, n: Expr) -> Block:
        """What is done for the iteration number `n`."""
        digits: list[Expr] = []
        for loop in reversed(self.loops[1:]):
            digits.append(n % extent_of(loop))
            n = n // extent_of(loop)
        counted = zip(self.loops, [n, *reversed(digits)], strict=True)
        return Block((*(Declare(loop.var, loop.begin + digit * loop.step) for loop, digit in counted), self.body))


def nests(part: Part) -> list[Nest]:
    """Ways to number the iterations of a part, the best first: of all of its loops, of fewer; none for one thread."""
    if part.loop is None:
        return []
    loops: list[For] = []
    before: list[Stmt] = []
    rest: tuple[Stmt, ...] = part.stmts
    found: list[Nest] = []
    while (loop := _last(rest)) is not None:
        before += rest[:-1]
        loops, rest = [*loops, loop], tuple(s for s in stmts_of(loop.body))
        body = Block((*part.before, *before, *rest))
        ordered = tuple(sorted(loops, key=lambda one: one is _fastest(loops, body)))
        found[:0] = [Nest(ordered, body)] if ordered == (*loops,) else [Nest(ordered, body), Nest((*loops,), body)]
    return found


def _last(stmts: Sequence[Stmt]) -> For | None:
    """The loop behind registers that each of its iterations can compute by itself; None if there is something else."""
    *before, last = stmts or [Block(())]
    if not isinstance(last, For) or not is_shared_out(last):
        return None
    changing = written(last) | {s.var for s in walk_stmts(last) if isinstance(s, Assign)}
    again = all(isinstance(s, Declare) and s.var not in changing for s in before)
    return last if again and not any(load.buffer in changing for s in before for load in loads(s)) else None


def _fastest(loops: Sequence[For], body: Stmt) -> For:
    """The loop whose successive iterations write closest to each other; the innermost one of several."""
    forms = [linear(s.index, {}) for s in walk_stmts(body) if isinstance(s, (Store, Intrinsic))]

    def distance(loop: For) -> int:
        steps = [abs(form.coefficient(loop.var) or 0) * loop.step for form in forms]
        return min((step for step in steps if step), default=1 << 62)

    return min(reversed(loops), key=distance)


def threads_for(size: int, gpu: Gpu) -> int:
    """The threads of a block for so many iterations: fewer where that keeps more processors busy."""
    threads = gpu.threads
    while threads > gpu.warp and -(-size // threads) < gpu.processors:
        threads //= 2
    return threads


@frozen(eq=False)
class Share:
    """What the threads of some blocks do.

    blocks             how many
    workspace, stack   their scratch; that of all threads, and what each thread has
    """

    blocks: int
    body: Stmt
    workspace: tuple[Buffer, ...] = ()
    stack: tuple[Buffer, ...] = ()


def alone(part: Part) -> Share:
    """One thread does everything; others of its block have nothing to do."""
    return Share(1, part.body, stack=tuple(b for b in part.own if b.scope == "stack"))


def shared_out(part: Part, nest: Nest, block: Expr, thread: Var, threads: int, gpu: Gpu, stack_bytes: int) -> Share:
    """The iterations of a nest as the share of a thread in blocks that are numbered by `block`."""
    stack, copied = _placed(part.own, stack_bytes)
    blocks = -(-nest.size // threads)
    most = gpu.processors * max(1, gpu.resident // threads)
    least = max(1, gpu.scratch_bytes // max(1, threads * sum(b.nbytes for b in copied)))
    taken = min(blocks, least if copied else _WAVES * most)
    rounds = -(-blocks // taken)
    number = block * threads + thread
    copies = {b: replace(b, size=b.size * taken * threads, scope="workspace", private=False) for b in copied}
    places = {b: (local, as_expr(0)) for b, local in stack.items() if b is not local}
    places |= {b: (copy, number * b.size) for b, copy in copies.items()}
    body = Block([elsewhere(nest.body, places)])
    n, again = Var("n"), Var("again")
    made: Stmt = Nest(nest.loops, body).iteration(n)
    if rounds * taken * threads > nest.size:
        made = If(all_of(n < nest.size), made)
    if rounds > 1:
        made = For(again, rounds, Block((Declare(n, again * (taken * threads) + number), made)))
    else:
        made = Block((Declare(n, number), made))
    return Share(taken, made, tuple(copies.values()), tuple(stack.values()))


def _placed(own: Iterable[Buffer], room: int) -> tuple[dict[Buffer, Buffer], list[Buffer]]:
    """Scratch that a thread has on its stack, the smallest first, and what does not fit there."""
    stack: dict[Buffer, Buffer] = {}
    copied: list[Buffer] = []
    for buffer in sorted(own, key=lambda b: b.nbytes):
        room -= buffer.nbytes
        if room >= 0:
            stack[buffer] = buffer if buffer.scope == "stack" else replace(buffer, scope="stack")
        else:
            copied.append(buffer)
    return stack, copied
