# SPDX-License-Identifier: Apache-2.0
"""Map the iterations of a parallel loop nest to the threads of blocks.

for i in 0..6: for j in 0..100: y[j * 6 + i] = ...           # independent; 600 iterations

->  for b in 0..3 block: for t in 0..256 thread:
        n = b * 256 + t                                      # neighbors write next to each other
        if n < 600: j = n // 6; i = n % 6; y[j * 6 + i] = ...

If there are more iterations than threads, a thread executes several iterations, the number of
threads apart.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from aotc.ir import AotcError, frozen
from aotc.tir import Block, Buffer, Declare, Expr, For, Gpu, If, Intrinsic, Var, all_of, as_expr, linear, shared_bytes
from aotc.tir.device.kernel_fission import Nest, Part, elsewhere, is_shared_out, work
from aotc.tir.device.shared_memory_transpose import LEAST, Across
from aotc.tir.device.thread_coarsening import Coarsening, lanes_of
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_dependence import extent_of, loads, outer_assigns, written
from aotc.tir.stmt import Assign, Kernel, Stmt, Store, stmts_of, walk_stmts

#: Threads execute several iterations if there are more blocks than this many times the number that
#: fits on the device.
_WAVES: Final = 8


def nests(part: Part, gpu: Gpu) -> list[Nest]:
    """Return ways to map a part's loop iterations to GPU threads, the best first; none if a single
    thread executes the part.
    """
    found = numbered(part)
    if part.own:
        return found
    turned = [one for nest in found for one in (*_turned(nest, gpu), nest)]
    return [made for one in turned for made in (*_in_pieces(one, gpu), one)]


def _in_pieces(nest: Nest, gpu: Gpu) -> list[Nest]:
    """Return a loop nest with neighboring iterations merged into one thread, where enough threads
    remain for the GPU.
    """
    if nest.thread is not None:
        return []
    lanes = lanes_of(nest.loops[-1], nest.body)
    rows = math.gcd(extent_of(nest.loops[-1]), lanes)
    tried = [(nest, rows)]
    if rows < lanes:
        flat = _flat(nest, by_rows=rows == 1)
        alone = len(flat.loops) == 1  # one thread executes the remaining iterations
        tried.insert(0, (flat, lanes if alone else math.gcd(extent_of(flat.loops[-1]), lanes)))
    found = (Coarsening.of(one.loops, one.body, size) for one, size in tried)
    return [one for one in found if one is not None and one.size >= gpu.processors * gpu.warp]


def _flat(nest: Nest, by_rows: bool) -> Nest:
    """Fuse the last loops of a nest if stores and loads are contiguous across them.

    by_rows   also accept loads that are constant along one of two fused loops
    """
    last, first, span = nest.loops[-1], len(nest.loops) - 1, extent_of(nest.loops[-1])
    stmts = list(walk_stmts(nest.body))
    stored = [linear(s.index, {}) for s in stmts if isinstance(s, (Store, Intrinsic)) and s.buffer.scope == "param"]
    loaded = [linear(load.index, {}) for s in stmts for load in loads(s)]
    while first and all(loop.begin == as_expr(0) and loop.step == 1 for loop in nest.loops[first - 1 :]):
        outer = nest.loops[first - 1].var
        follow = all((f.coefficient(last.var), f.coefficient(outer)) == (1, span) for f in stored)
        steps = [(f.coefficient(last.var), f.coefficient(outer)) for f in loaded]
        if not follow or not all(step in ((1, span), (0, 0)) or (by_rows and 0 in step) for step in steps):
            break
        first, span = first - 1, span * extent_of(nest.loops[first - 1])
    if first == len(nest.loops) - 1:
        return nest
    n = Var("n")
    body = replace(nest, loops=nest.loops[first:]).iteration(n)
    return Nest((*nest.loops[:first], For(n, span, body, kind=last.kind)), body, nest.stack)


def _turned(nest: Nest, gpu: Gpu) -> list[Nest]:
    """Return a loop nest with coalesced loads, if its loads run along another axis than its stores;
    else nothing.

    A short axis becomes a serial loop of each thread, a long one goes through tiles in shared
    memory.
    """
    found = Across.of(nest.loops, nest.body)
    if found is None:
        return []
    if extent_of(found.loop) < LEAST:
        one = replace(found.loop, body=nest.body, kind="serial")
        made = Nest(tuple(loop for loop in nest.loops if loop is not found.loop), Block([one]))
        return [made] if made.size >= gpu.processors * gpu.warp else []
    if extent_of(found.last) < LEAST:
        return []
    outer = (loop for loop in nest.loops if loop not in (found.loop, found.last))
    made = found.by_tiles(outer, nest.body, gpu.threads)
    fits = shared_bytes(made.shared) <= gpu.shared_bytes
    return [made] if fits and made.size >= gpu.processors // 2 else []


def numbered(part: Part) -> list[Nest]:
    """Return ways to number a part's loop iterations, one for each number of nested loops that can
    be parallel.
    """
    if part.loop is None:
        return []
    loops: list[For] = []
    before: list[Stmt] = []
    rest: tuple[Stmt, ...] = part.stmts
    found: list[Nest] = []
    while (loop := _last(rest, part.own)) is not None:
        before += rest[:-1]
        loops, rest = [*loops, loop], tuple(s for s in stmts_of(loop.body))
        body = Block((*part.before, *before, *rest))
        ordered = tuple(sorted(loops, key=lambda one: one is _fastest(loops, body)))
        found[:0] = [Nest(ordered, body)] if ordered == (*loops,) else [Nest(ordered, body), Nest((*loops,), body)]
    return found


def _last(stmts: Sequence[Stmt], own: Sequence[Buffer]) -> For | None:
    """Return the parallel loop at the end of `stmts` if each iteration can recompute the statements
    before it; else None.

    These may declare registers, and fill private scratch with little work compared to an iteration.
    """
    *before, last = stmts or [Block(())]
    if not isinstance(last, For) or not is_shared_out(last):
        return None
    changing = written(last) | {s.var for s in walk_stmts(last) if isinstance(s, Assign)}
    filled = Block(s for s in before if not isinstance(s, Declare))
    again = all(s.var not in changing for s in before if isinstance(s, Declare)) and not any(outer_assigns(filled))
    little = not filled.stmts or 2 * work(filled) <= work(last.body)
    if not again or not little or not written(filled) <= {b for b in own if b.private} - changing:
        return None
    if any(load.buffer in changing for s in before for n in walk_stmts(s) for load in loads(n)):
        return None
    return last


def _fastest(loops: Sequence[For], body: Stmt) -> For:
    """Return the loop whose consecutive iterations store closest to each other; the innermost of
    several equal ones.
    """
    forms = [linear(s.index, {}) for s in walk_stmts(body) if isinstance(s, (Store, Intrinsic))]

    def distance(loop: For) -> int:
        steps = [abs(form.coefficient(loop.var) or 0) * loop.step for form in forms]
        return min((step for step in steps if step), default=1 << 62)

    return min(reversed(loops), key=distance)


@frozen(eq=False)
class Share:
    """The statements of the threads of some GPU blocks.

    blocks          number of blocks
    body            the statements of a thread
    workspace       scratch memory of all threads together
    stack, shared   scratch arrays of each thread, and of each block
    """

    blocks: int
    body: Stmt
    workspace: tuple[Buffer, ...] = ()
    stack: tuple[Buffer, ...] = ()
    shared: tuple[Buffer, ...] = ()


def alone(part: Part) -> Share:
    """Return the work of a kernel part as that of a single GPU thread."""
    return Share(1, part.body, stack=tuple(b for b in part.own if b.scope == "stack"))


def shared_out(part: Part, nest: Nest, block: Expr, thread: Var, threads: int, gpu: Gpu, stack_bytes: int) -> Share:
    """Return the statements of a GPU thread for its iterations of a loop nest.

    part                     the part of a kernel that the nest belongs to
    block, thread, threads   index of the block, index of the thread, threads per block
    stack_bytes              bytes of scratch that a thread may have on its stack; larger scratch
                             goes to the workspace
    """
    if nest.thread is not None:
        own = Block((Declare(nest.thread, thread), nest.iteration(block)))
        return Share(nest.size, own, (), nest.stack, nest.shared)
    stack, copied = placed(part.own, stack_bytes)
    blocks = -(-nest.size // threads)
    most = gpu.processors * max(1, gpu.resident // threads)
    least = max(1, gpu.scratch_bytes // max(1, threads * sum(b.nbytes for b in copied)))
    taken = min(blocks, least if copied else _WAVES * most)
    rounds = -(-blocks // taken)
    number = block * threads + thread
    copies = {b: replace(b, size=b.size * taken * threads, scope="workspace") for b in copied}
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
    return Share(taken, made, tuple(copies.values()), (*stack.values(), *nest.stack))


def placed(own: Iterable[Buffer], room: int) -> tuple[dict[Buffer, Buffer], list[Buffer]]:
    """Divide scratch buffers into buffers that fit on the stack of a thread (`room` bytes),
    smallest first, and all others.
    """
    stack: dict[Buffer, Buffer] = {}
    copied: list[Buffer] = []
    for buffer in sorted(own, key=lambda b: b.nbytes):
        room -= buffer.nbytes
        if room >= 0:
            stack[buffer] = buffer if buffer.scope == "stack" else replace(buffer, scope="stack")
        else:
            copied.append(buffer)
    return stack, copied


def is_sound(kernel: Kernel) -> bool:
    """Return True if the verifier proves that the blocks and threads of a kernel do not race."""
    with suppress(AotcError):
        verify(kernel)
        return True
    return False
