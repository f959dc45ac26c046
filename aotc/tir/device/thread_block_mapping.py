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

from aotc.ir import AotcError, frozen
from aotc.tir import (
    Block,
    Buffer,
    Declare,
    Expr,
    For,
    Gpu,
    If,
    Var,
    aligned_shared_memory_bytes,
    all_of,
    as_expr,
    linear_form,
)
from aotc.tir.device.kernel_fission import (
    KernelPart,
    ParallelNest,
    executed_statement_count,
    is_thread_parallel_loop,
    replace_buffers_with_offsets,
)
from aotc.tir.device.shared_memory_transpose import MIN_TILED_AXIS_EXTENT, TransposingLoads
from aotc.tir.device.thread_coarsening import Coarsening, iterations_per_wide_store
from aotc.tir.kernel_verifier import verify
from aotc.tir.loops.loop_dependence import assigns_to_outer_registers, direct_loads, known_trip_count, written_buffers
from aotc.tir.stmt import Assign, Kernel, Stmt, block_stmts_or_self, destination_of_stmt, walk_stmts


def candidate_nests_best_first(part: KernelPart, gpu: Gpu) -> list[ParallelNest]:
    """Return ways to map a part's loop iterations to GPU threads, the best first; none if a single
    thread executes the part.
    """
    nests = parallel_nests_by_depth(part)
    if part.iteration_scratch:
        return nests
    variants = [variant for nest in nests for variant in (*_coalesced_nests_for_transposing_loads(nest, gpu), nest)]
    return [candidate for variant in variants for candidate in (*_coarsened_nests(variant, gpu), variant)]


def _coarsened_nests(nest: ParallelNest, gpu: Gpu) -> list[ParallelNest]:
    """Return a loop nest with neighboring iterations merged into one thread, where enough threads
    remain for the GPU.
    """
    if nest.thread is not None:
        return []
    lanes = iterations_per_wide_store(nest.loops[-1], nest.body)
    rows = math.gcd(known_trip_count(nest.loops[-1]), lanes)
    tried = [(nest, rows)]
    if rows < lanes:
        flat = _fuse_contiguous_inner_loops(nest, accepts_row_constant_loads=rows == 1)
        alone = len(flat.loops) == 1  # one thread executes the remaining iterations
        tried.insert(0, (flat, lanes if alone else math.gcd(known_trip_count(flat.loops[-1]), lanes)))
    coarse_nests = (
        Coarsening.coarsen_last_loop(candidate.loops, candidate.body, size, gpu) for candidate, size in tried
    )
    return [
        candidate
        for candidate in coarse_nests
        if candidate is not None and candidate.iteration_count >= gpu.processors * gpu.warp
    ]


def _fuse_contiguous_inner_loops(nest: ParallelNest, accepts_row_constant_loads: bool) -> ParallelNest:
    """Fuse the last loops of a nest if stores and loads are contiguous across them.

    accepts_row_constant_loads    also accept loads that are constant along one of two fused loops
    """
    last, first, span = nest.loops[-1], len(nest.loops) - 1, known_trip_count(nest.loops[-1])
    stmts = list(walk_stmts(nest.body))
    written = (to for s in stmts if (to := destination_of_stmt(s)) is not None)
    stored = [linear_form(to.index, {}) for to in written if to.buffer.scope == "param"]
    loaded = [linear_form(load.index, {}) for s in stmts for load in direct_loads(s)]
    while first and all(loop.begin == as_expr(0) and loop.step == 1 for loop in nest.loops[first - 1 :]):
        outer = nest.loops[first - 1].var
        follow = all((f.coefficient(last.var), f.coefficient(outer)) == (1, span) for f in stored)
        steps = [(f.coefficient(last.var), f.coefficient(outer)) for f in loaded]
        if not follow or not all(
            step in ((1, span), (0, 0)) or (accepts_row_constant_loads and 0 in step) for step in steps
        ):
            break
        first, span = first - 1, span * known_trip_count(nest.loops[first - 1])
    if first == len(nest.loops) - 1:
        return nest
    n = Var("n")
    body = replace(nest, loops=nest.loops[first:]).body_of_iteration(n)
    return ParallelNest((*nest.loops[:first], For(n, span, body, kind=last.kind)), body, nest.stack)


def _coalesced_nests_for_transposing_loads(nest: ParallelNest, gpu: Gpu) -> list[ParallelNest]:
    """Return a loop nest with coalesced loads, if its loads run along another axis than its stores;
    else nothing.

    A short axis becomes a serial loop of each thread, a long one goes through tiles in shared
    memory.
    """
    transposing_loads = TransposingLoads.find_transposing_loads(nest.loops, nest.body)
    if transposing_loads is None:
        return []
    if known_trip_count(transposing_loads.loop) < MIN_TILED_AXIS_EXTENT:
        serial_loop = replace(transposing_loads.loop, body=nest.body, kind="serial")
        new_nest = ParallelNest(
            tuple(loop for loop in nest.loops if loop is not transposing_loads.loop), Block([serial_loop])
        )
        return [new_nest] if new_nest.iteration_count >= gpu.processors * gpu.warp else []
    if known_trip_count(transposing_loads.innermost_loop) < MIN_TILED_AXIS_EXTENT:
        return []
    outer = (loop for loop in nest.loops if loop not in (transposing_loads.loop, transposing_loads.innermost_loop))
    new_nest = transposing_loads.nest_with_shared_memory_tiles(outer, nest.body, gpu.threads)
    fits = aligned_shared_memory_bytes(new_nest.shared) <= gpu.shared_bytes
    return [new_nest] if fits and new_nest.iteration_count >= gpu.processors // 2 else []


def parallel_nests_by_depth(part: KernelPart) -> list[ParallelNest]:
    """Return ways to number a part's loop iterations, one for each number of nested loops that can
    be parallel.
    """
    if part.parallel_loop_or_none is None:
        return []
    loops: list[For] = []
    before: list[Stmt] = []
    rest: tuple[Stmt, ...] = part.stmts
    nests: list[ParallelNest] = []
    while (loop := _parallel_loop_after_recomputable_stmts(rest, part.iteration_scratch)) is not None:
        before += rest[:-1]
        loops, rest = [*loops, loop], tuple(s for s in block_stmts_or_self(loop.body))
        body = Block((*part.before, *before, *rest))
        ordered = tuple(sorted(loops, key=lambda candidate: candidate is _loop_with_closest_stores(loops, body)))
        nests[:0] = (
            [ParallelNest(ordered, body)]
            if ordered == (*loops,)
            else [ParallelNest(ordered, body), ParallelNest((*loops,), body)]
        )
    return nests


def _parallel_loop_after_recomputable_stmts(stmts: Sequence[Stmt], scratch: Sequence[Buffer]) -> For | None:
    """Return the parallel loop at the end of `stmts` if each iteration can recompute the statements
    before it; else None.

    These may declare registers, and fill private scratch with little work compared to an iteration.
    """
    *before, last = stmts or [Block(())]
    if not isinstance(last, For) or not is_thread_parallel_loop(last):
        return None
    changing = written_buffers(last) | {s.var for s in walk_stmts(last) if isinstance(s, Assign)}
    filled = Block(s for s in before if not isinstance(s, Declare))
    again = all(s.var not in changing for s in before if isinstance(s, Declare)) and not any(
        assigns_to_outer_registers(filled)
    )
    little = not filled.stmts or 2 * executed_statement_count(filled) <= executed_statement_count(last.body)
    if not again or not little or not written_buffers(filled) <= {b for b in scratch if b.private} - changing:
        return None
    if any(load.buffer in changing for s in before for n in walk_stmts(s) for load in direct_loads(n)):
        return None
    return last


def _loop_with_closest_stores(loops: Sequence[For], body: Stmt) -> For:
    """Return the loop whose consecutive iterations store closest to each other; the innermost of
    several equal ones.
    """
    places = (destination_of_stmt(s) for s in walk_stmts(body))
    forms = [linear_form(to.index, {}) for to in places if to is not None]

    def smallest_store_stride(loop: For) -> int:
        steps = [abs(form.coefficient(loop.var) or 0) * loop.step for form in forms]
        return min((step for step in steps if step), default=1 << 62)

    return min(reversed(loops), key=smallest_store_stride)


@frozen(eq=False)
class BlockWork:
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


def single_thread_work(part: KernelPart) -> BlockWork:
    """Return the work of a kernel part as that of a single GPU thread."""
    return BlockWork(
        1, part.part_statements_as_block, stack=tuple(b for b in part.iteration_scratch if b.scope == "stack")
    )


def distribute_nest_over_threads(
    part: KernelPart, nest: ParallelNest, block: Expr, thread: Var, threads: int, gpu: Gpu, stack_bytes: int
) -> BlockWork:
    """Return the statements of a GPU thread for its iterations of a loop nest.

    part                     the part of a kernel that the nest belongs to
    block, thread, threads   index of the block, index of the thread, threads per block
    stack_bytes              bytes of scratch that a thread may have on its stack; larger scratch
                             goes to the workspace
    """
    if nest.thread is not None:
        nest_body = Block((Declare(nest.thread, thread), nest.body_of_iteration(block)))
        return BlockWork(nest.iteration_count, nest_body, (), nest.stack, nest.shared)
    stack, copied = split_scratch_by_stack_room(part.iteration_scratch, stack_bytes)
    blocks = -(-nest.iteration_count // threads)
    most = gpu.processors * max(1, gpu.resident // threads)
    least = max(1, gpu.scratch_bytes // max(1, threads * sum(b.nbytes for b in copied)))
    grid_blocks = min(blocks, least if copied else gpu.costs.waves * most)
    rounds = -(-blocks // grid_blocks)
    number = block * threads + thread
    copies = {b: replace(b, size=b.size * grid_blocks * threads, scope="workspace") for b in copied}
    places = {b: (local, as_expr(0)) for b, local in stack.items() if b is not local}
    places |= {b: (copy, number * b.size) for b, copy in copies.items()}
    body = Block([replace_buffers_with_offsets(nest.body, places)])
    n, again = Var("n"), Var("again")
    thread_body: Stmt = ParallelNest(nest.loops, body).body_of_iteration(n)
    if rounds * grid_blocks * threads > nest.iteration_count:
        thread_body = If(all_of(n < nest.iteration_count), thread_body)
    if rounds > 1:
        thread_body = For(again, rounds, Block((Declare(n, again * (grid_blocks * threads) + number), thread_body)))
    else:
        thread_body = Block((Declare(n, number), thread_body))
    return BlockWork(grid_blocks, thread_body, tuple(copies.values()), (*stack.values(), *nest.stack))


def split_scratch_by_stack_room(
    scratch: Iterable[Buffer], stack_bytes: int
) -> tuple[dict[Buffer, Buffer], list[Buffer]]:
    """Divide scratch buffers into buffers that fit on the stack of a thread (`stack_bytes` bytes),
    smallest first, and all others.
    """
    stack: dict[Buffer, Buffer] = {}
    copied: list[Buffer] = []
    for buffer in sorted(scratch, key=lambda b: b.nbytes):
        stack_bytes -= buffer.nbytes
        if stack_bytes >= 0:
            stack[buffer] = buffer if buffer.scope == "stack" else replace(buffer, scope="stack")
        else:
            copied.append(buffer)
    return stack, copied


def is_proven_race_free(kernel: Kernel) -> bool:
    """Return True if the verifier proves that the blocks and threads of a kernel do not race."""
    with suppress(AotcError):
        verify(kernel)
        return True
    return False
