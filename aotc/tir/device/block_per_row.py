# SPDX-License-Identifier: Apache-2.0
"""Map outer iterations (rows) to thread blocks, or parts of blocks, and the loops inside them to
the threads.

for i in 0..9 independent {                                            # 9 blocks of 256 threads
    for l in 0..256 independent { part[l] = x[i * 256 + l] * 2.0 }     # one by each thread; `part` is shared memory
    s = part[0] + part[1]                                              # by every thread, after a barrier
    for k in 0..999 independent { y[i * 999 + k] = z[k] / s }          # by thread t: t, t + 256 and so on
}

Loops run in program order, with a barrier where one loop reads memory that another loop wrote. No
operator is treated specially: softmax, normalizations and split reductions all have this form.
Values that every thread needs are computed by every thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from aotc.ir import frozen
from aotc.tir import (
    Buffer,
    Expr,
    For,
    Gpu,
    GpuCosts,
    Select,
    Var,
    all_of,
    as_expr,
    const,
    linear_form,
    rename_declared_vars,
    walk_stmts,
    written_buffers,
)
from aotc.tir.device.kernel_fission import (
    KernelPart,
    ParallelNest,
    is_thread_parallel_loop,
    replace_buffers_with_offsets,
)
from aotc.tir.device.thread_block_mapping import BlockWork, parallel_nests_by_depth, split_scratch_by_stack_room
from aotc.tir.gpu_launch import MAX_THREADS_PER_BLOCK, aligned_shared_memory_bytes
from aotc.tir.instruction_statements import block_barrier
from aotc.tir.loops.loop_dependence import (
    Ranges,
    assigns_to_outer_registers,
    constant_loop_range,
    direct_accesses,
    direct_loads,
    known_trip_count,
    loop_var_interval,
    ranges_inside_loops,
    read_buffers,
)
from aotc.tir.stmt import (
    Block,
    Declare,
    If,
    Kernel,
    Stmt,
    all_exprs_in_stmt,
    block_stmts_or_self,
    declared_registers,
    direct_child_stmts,
    forall,
    modified_vars_and_buffers,
    register_declared_by,
)

#: Threads per row of an inner nest of rows.
_THREADS_PER_INNER_ROW: Final = 32
#: Numbers of threads per row that are tried.
_CANDIDATE_THREADS_PER_ROW: Final = tuple(2**k for k in range(1, 11))
#: Assumed number of iterations of a loop of unknown length.
_ASSUMED_TRIP_COUNT: Final = 128
#: Used where no loop is shared by threads, so that costs of barriers do not matter.
_DEFAULT_COSTS: Final = GpuCosts()


@frozen(eq=False)
class CooperativeRow:
    """One iteration (row) of a loop nest, to be executed by several threads of a GPU block.

    nest                the loops around the row; no loops for a single row
    iteration_scratch   scratch that each iteration fills anew
    common              the part of that scratch through which threads pass values to each other
    across              True if accesses are contiguous along the rows rather than within a row
    widest              iterations of the longest loop that threads share
    """

    nest: ParallelNest
    iteration_scratch: tuple[Buffer, ...]
    common: frozenset[Buffer]
    across: bool
    widest: int

    @staticmethod
    def match_cooperative_row(nest: ParallelNest, scratch: Sequence[Buffer], gpu: Gpu) -> CooperativeRow | None:
        """Describe how the threads of a GPU block share the work of each iteration (row) of a loop
        nest; `scratch` are the buffers that every iteration fills anew.

        Return None if no loop of a row can be shared by threads, or if what one thread does assigns
        registers from outside of the row.
        """
        leaves = _thread_shared_loops_and_stmts(nest.body)
        private_scratch = {*scratch} - (common := _scratch_shared_between_threads(leaves, scratch, gpu))
        # statements that one thread executes
        alone = [s for s in leaves if not is_thread_parallel_loop(s) and not written_buffers(s) <= private_scratch]
        if not any(map(is_thread_parallel_loop, leaves)) or any(
            True for s in alone for _ in assigns_to_outer_registers(s)
        ):
            return None
        across = bool(nest.loops) and _are_accesses_contiguous_along_outer_var(nest.loops[-1].var, leaves)
        widest = max(
            parallel_nests_by_depth(KernelPart((), (s,)))[0].iteration_count
            for s in leaves
            if is_thread_parallel_loop(s)
        )
        return CooperativeRow(nest, (*scratch,), common, across, widest)

    def estimated_statements_per_thread(self, threads_per_row: int, gpu: Gpu) -> int:
        """Estimate the statements that one of `threads_per_row` threads executes for a row (the
        body of one outer iteration).
        """
        return _estimated_statements_per_thread(self.nest.body, threads_per_row, {}, gpu.costs)


def _thread_shared_loops_and_stmts(body: Stmt) -> list[Stmt]:
    """Return the loops whose iterations the threads of a block share, and the statements between
    them, in program order.
    """
    leaves: list[Stmt] = []
    pending = [*reversed(block_stmts_or_self(body))]
    while pending:
        stmt = pending.pop()
        if _is_loop_around_thread_shared_loops(stmt):
            pending += reversed(block_stmts_or_self(stmt.body))
        else:
            leaves.append(stmt)
    return leaves


def _scratch_shared_between_threads(stmts: Sequence[Stmt], scratch: Sequence[Buffer], gpu: Gpu) -> frozenset[Buffer]:
    """Return the scratch buffers through which the threads of a GPU block pass values to each
    other, in shared memory.
    """
    uses = [(is_thread_parallel_loop(s), written_buffers(s), written_buffers(s) | read_buffers(s)) for s in stmts]
    several = {b for b in scratch if sum(b in used for _, _, used in uses) > 1}
    shared_scratch, size = {b for b in several if b.size > gpu.costs.replicated_elements}, -1
    while size != len(shared_scratch):
        size = len(shared_scratch)
        shared_scratch |= {
            b for out, w, _ in uses if out or w & shared_scratch or not w <= {*scratch} for b in w & several
        }
    return frozenset(shared_scratch)


def _are_accesses_contiguous_along_outer_var(outer_var: Var, stmts: Sequence[Stmt]) -> bool:
    """Return True if most accesses to parameters are contiguous along the variable `outer_var`
    rather than the inner loops.
    """
    votes = 0
    for leaf in filter(is_thread_parallel_loop, stmts):
        inner = {s.var for s in walk_stmts(leaf) if isinstance(s, For)} | {*declared_registers(leaf)}
        for buffer, index, _ in (place for s in walk_stmts(leaf) for place in direct_accesses(s)):
            form = linear_form(index, {})
            near = min((abs(c) for a, c in form.terms.items() if a in inner), default=0)
            outer_contiguous = abs(form.coefficient(outer_var) or 0) == 1
            votes += (near != 1 and outer_contiguous) - (near == 1) if buffer.scope == "param" else 0
    return votes > 0


def _is_loop_around_thread_shared_loops(stmt: Stmt) -> TypeGuard[For]:
    """Return True if all threads run the iterations of a loop together, because it contains loops
    that they share.
    """
    if not isinstance(stmt, For) or is_thread_parallel_loop(stmt) or not constant_loop_range(stmt):
        return False
    return any(is_thread_parallel_loop(s) for s in block_stmts_or_self(stmt.body)) or any(
        map(_is_loop_around_thread_shared_loops, block_stmts_or_self(stmt.body))
    )


def _estimated_statements_per_thread(
    stmt: Stmt, threads_per_row: int, ranges: Ranges, costs: GpuCosts = _DEFAULT_COSTS
) -> int:
    """Return the number of statements that one of several threads executes; shared loops are
    divided by `threads_per_row`, and `costs` has the cost of barriers between them.
    """
    match stmt:
        case For():
            low, high = loop_var_interval(stmt, ranges)
            rounds = int(high - low) // stmt.step + 1 if high - low < math.inf else _ASSUMED_TRIP_COUNT
            if threads_per_row > 1 and is_thread_parallel_loop(stmt):
                nest = parallel_nests_by_depth(KernelPart((), (stmt,)))[0]
                known = ranges_inside_loops(nest.loops, ranges)
                if _needs_32_threads_per_iteration(nest, threads_per_row):
                    return -(-nest.iteration_count * _THREADS_PER_INNER_ROW // threads_per_row) * (
                        _estimated_statements_per_thread(nest.body, _THREADS_PER_INNER_ROW, known, costs)
                        + costs.barrier_statements
                    )
                return (
                    -(-nest.iteration_count // threads_per_row)
                    * _estimated_statements_per_thread(nest.body, 1, known, costs)
                    + costs.barrier_statements
                    + threads_per_row // costs.threads_per_barrier_statement
                )
            return max(0, rounds) * _estimated_statements_per_thread(
                stmt.body, threads_per_row, ranges_inside_loops([stmt], ranges), costs
            )
        case _ if inner := direct_child_stmts(stmt):
            return sum(_estimated_statements_per_thread(s, threads_per_row, ranges, costs) for s in inner)
    return 1


def statement_count_of_single_thread(stmt: Stmt, ranges: Ranges) -> int:
    """Return the number of statements that a thread executes, with no loop shared between threads."""
    return _estimated_statements_per_thread(stmt, 1, ranges)


def _needs_32_threads_per_iteration(nest: ParallelNest, threads_per_block: int) -> bool:
    """Return True if a loop has so few iterations that a group of `_THREADS_PER_INNER_ROW` threads,
    not a single one, should execute each.
    """
    few = (
        len(nest.loops) == 1
        and nest.iteration_count * _THREADS_PER_INNER_ROW <= threads_per_block * _ASSUMED_TRIP_COUNT
        and nest.iteration_count < threads_per_block
    )
    return (
        few
        and threads_per_block > _THREADS_PER_INNER_ROW
        and any(map(is_thread_parallel_loop, _thread_shared_loops_and_stmts(nest.body)))
    )


@frozen(eq=False)
class RowMapping:
    """Assignment of rows (iterations of outer loops) to GPU thread blocks.

    row      the row
    rows     number of rows per block
    each     number of threads per row
    across   True if neighboring threads belong to different rows
    """

    row: CooperativeRow
    rows: int
    each: int
    across: bool

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        return self.rows * self.each

    @property
    def block_count(self) -> int:
        """The number of thread blocks of the launch; each block processes `rows` consecutive rows."""
        *outer, last = (known_trip_count(loop) for loop in self.row.nest.loops) if self.row.nest.loops else (1,)
        return math.prod(outer) * -(-last // self.rows)

    def padded_scratch_elements_per_row(self, scratch: Buffer) -> int:
        """Return the elements of shared memory of a scratch buffer for one row: odd if rows would
        conflict in memory banks.
        """
        return scratch.size | self.across

    def shared_array_for_scratch(self, scratch: Buffer) -> Buffer:
        """Return the shared-memory array that holds a scratch buffer for all rows of a thread
        block.
        """
        return replace(
            scratch, size=self.padded_scratch_elements_per_row(scratch) * self.rows, scope="shared", private=False
        )

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that a thread block needs."""
        return aligned_shared_memory_bytes(map(self.shared_array_for_scratch, self.row.common))

    def estimated_gpu_time_in_statements(self, gpu: Gpu) -> float:
        """Estimate the time of all rows on the GPU, in statements executed sequentially."""
        return self.row.estimated_statements_per_thread(self.each, gpu) * max(
            1.0, self.row.nest.iteration_count * self.each / gpu.threads_to_saturate
        )

    def build_block_work(
        self, block: Expr, thread: Var, gpu: Gpu, stack_bytes: int, *, nested: bool = True
    ) -> BlockWork | None:
        """Return the statements of the GPU threads that process rows; None if their scratch memory
        is too large for the device.

        block, thread   indices of block and thread
        gpu             the device
        stack_bytes     bytes of arrays that a thread may have on its stack
        nested          treat loops with few iterations around other loops as rows inside this row,
                        if they fit
        """
        blocks, room = self.block_count, gpu.shared_bytes
        lane, row, number = thread, Var("row"), Var("n")
        declares: list[Stmt] = []
        if self.rows > 1:
            lane = Var("lane")
            digits = thread // self.each, thread % self.each
            if self.across:
                digits = thread % self.rows, thread // self.rows
            declares = [Declare(var, e) for var, e in zip((row, lane), digits, strict=True)]
        places: dict[Buffer, tuple[Buffer, Expr]] = {}
        for b in sorted(
            filter(self.row.common.__contains__, self.row.iteration_scratch), key=self.padded_scratch_elements_per_row
        ):
            first = row * self.padded_scratch_elements_per_row(b) if self.rows > 1 else as_expr(0)
            array, array_bytes = (
                self.shared_array_for_scratch(b),
                aligned_shared_memory_bytes([self.shared_array_for_scratch(b)]),
            )
            if array_bytes > room:
                first = block * array.size + first
                array, array_bytes = replace(array, size=array.size * blocks, scope="workspace"), 0
            room -= array_bytes
            places[b] = array, first
        rest = [b for b in self.row.iteration_scratch if b not in places]
        inner = self.scratch_buffers_of_inner_rows(rest) if nested and self.rows == 1 else []
        stack, large = split_scratch_by_stack_room((b for b in rest if b not in inner), stack_bytes)
        places |= {b: (local, as_expr(0)) for b, local in stack.items()}
        for b in large:
            whole = replace(b, size=b.size * blocks * self.threads_per_block, scope="workspace", private=False)
            places[b] = whole, (block * self.threads_per_block + thread) * b.size
        shared, copied = ([b for b, _ in places.values() if b.scope == s] for s in ("shared", "workspace"))
        if sum(b.nbytes for b in copied) > gpu.scratch_bytes:
            return None
        extent = known_trip_count(self.row.nest.loops[-1]) if self.row.nest.loops else 1
        thread_arrays = {*inner, *(places[b][0] for b in (*stack, *large))}
        left = replace(gpu, shared_bytes=room, scratch_bytes=0)
        writer = _RowThreadWriter(
            lane, self.each, thread_arrays, [number < extent] if extent % self.rows else [], inner, left
        )
        body = Block(
            writer.stmts_of_one_thread_with_barriers(
                block_stmts_or_self(replace_buffers_with_offsets(self.row.nest.body, places))
            )
        )
        if writer.failed:
            return self.build_block_work(block, thread, gpu, stack_bytes, nested=False)
        over = Block((*declares, self.gpu_block_body_over_rows(block, row, number, body)))
        return BlockWork(blocks, over, (*copied,), (*stack.values(), *writer.stack), (*shared, *writer.shared))

    def scratch_buffers_of_inner_rows(self, scratch: Sequence[Buffer]) -> list[Buffer]:
        """Return the scratch buffers in `scratch` that belong to inner rows: iterations that groups
        of threads of the block share.
        """
        leaves = [s for s in _thread_shared_loops_and_stmts(self.row.nest.body) if is_thread_parallel_loop(s)]
        group_loops = [
            s
            for s in leaves
            if _needs_32_threads_per_iteration(parallel_nests_by_depth(KernelPart((), (s,)))[0], self.each)
        ]
        return [b for b in scratch if any(b in written_buffers(s) for s in group_loops)]

    def gpu_block_body_over_rows(self, block: Expr, row_in_block: Var, row_number_var: Var, row_body: Block) -> Block:
        """Return the loop body of a thread block that processes `rows` consecutive iterations of
        the outer loops.

        block             index of the thread block
        row_in_block      index of a row (outer iteration) within its block
        row_number_var    variable for the index of the row along the innermost outer loop
        row_body          the body of one row
        """
        nest = replace(self.row.nest, body=row_body)
        if self.rows == 1:
            return nest.body_of_iteration(block) if nest.loops else row_body
        *outer, last = nest.loops
        part = For(Var("part"), -(-known_trip_count(last) // self.rows), row_body)
        declares = (
            Declare(row_number_var, part.var * self.rows + row_in_block),
            Declare(last.var, last.begin + row_number_var * last.step),
        )
        return ParallelNest((*outer, part), Block((*declares, row_body))).body_of_iteration(block)


@dataclass(slots=True)
class _RowThreadWriter:
    """Emits the statements of one thread of a row (an outer iteration executed by several threads).

    lane             index of the thread within its row
    threads          number of threads of the row
    thread_scratch   scratch of which each thread has its own copy
    ok               conditions under which the row exists
    inside           scratch of inner rows, which is allocated in `stack` and `shared`
    gpu              the device, with the shared memory that is left
    failed           True if shared memory did not suffice
    stored, loaded   buffers that the threads accessed since the last barrier
    """

    lane: Var
    threads: int
    thread_scratch: set[Buffer]
    ok: list[Expr]
    inside: list[Buffer]
    gpu: Gpu
    stack: list[Buffer] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)
    failed: bool = False
    stored: set[Buffer] = field(default_factory=set)
    loaded: set[Buffer] = field(default_factory=set)

    def stmts_of_one_thread_with_barriers(self, stmts: Sequence[Stmt]) -> list[Stmt]:
        """Return the statements of one thread, with barriers where a statement reads or overwrites
        memory that another thread of the block accessed.
        """
        new_stmts: list[Stmt] = []
        for stmt in stmts:
            w, r = written_buffers(stmt) - self.thread_scratch, read_buffers(stmt) - self.thread_scratch
            if w & (self.stored | self.loaded) or r & self.stored:
                new_stmts.append(self.new_barrier_resetting_access_record())
            if _is_loop_around_thread_shared_loops(stmt):
                new_stmts.append(
                    replace(
                        stmt,
                        body=Block(
                            (
                                *self.stmts_of_one_thread_with_barriers(block_stmts_or_self(stmt.body)),
                                self.new_barrier_resetting_access_record(),
                            )
                        ),
                    )
                )
                continue
            if not (r | written_buffers(stmt)).isdisjoint(self.inside) and (
                group_loop := self.loop_over_thread_groups(stmt)
            ):
                new_stmts.append(group_loop)
                self.new_barrier_resetting_access_record()  # there is a barrier at its end
                continue
            new_stmts.append(self.stmt_for_one_thread(stmt, is_read_by_other_threads=bool(w)))
            self.stored |= w
            self.loaded |= r
        return new_stmts

    def new_barrier_resetting_access_record(self) -> Stmt:
        """Return a barrier, and clear the record of accesses since the last barrier."""
        self.stored, self.loaded = set(), set()
        return block_barrier()

    def loop_over_thread_groups(self, stmt: Stmt) -> Stmt | None:
        """Return a loop each of whose iterations is executed by a group of threads of the block;
        None if shared memory is too small.
        """
        nest = parallel_nests_by_depth(KernelPart((), (rename_declared_vars(stmt),)))[0]
        row = CooperativeRow.match_cooperative_row(
            nest, [b for b in self.inside if b in written_buffers(stmt) | read_buffers(stmt)], self.gpu
        )
        rows = (
            None
            if row is None
            else RowMapping(row, self.threads // _THREADS_PER_INNER_ROW, _THREADS_PER_INNER_ROW, across=False)
        )
        while rows is not None and rows.rows > 1 and rows.shared_bytes > self.gpu.shared_bytes:
            rows = replace(rows, rows=rows.rows // 2, each=2 * rows.each)
        turn = Var("turn")
        share = (
            None
            if rows is None
            else rows.build_block_work(turn, self.lane, self.gpu, self.gpu.costs.replicated_elements * 4, nested=False)
        )
        if share is None:
            self.failed = True
            return None
        self.stack += share.stack
        self.shared += share.shared
        self.gpu = replace(self.gpu, shared_bytes=self.gpu.shared_bytes - aligned_shared_memory_bytes(share.shared))
        return For(turn, share.blocks, Block((share.body, block_barrier())))

    def stmt_for_one_thread(self, stmt: Stmt, *, is_read_by_other_threads: bool) -> Stmt:
        """Return a statement as one thread of the row executes it.

        is_read_by_other_threads    the statement writes memory that other threads read: then a single thread
                                    executes it
        """
        if isinstance(stmt, For) and is_thread_parallel_loop(stmt):
            return self.distribute_loop_over_threads(stmt)
        if is_read_by_other_threads:  # other threads read the result: one thread suffices
            return If(all_of(self.lane < 1, *self.ok), stmt)
        if not self.ok or not any(load.buffer.scope == "param" for s in walk_stmts(stmt) for load in direct_loads(s)):
            return stmt
        if isinstance(stmt, Declare):
            return Declare(stmt.var, Select(all_of(*self.ok), stmt.value, const(0, stmt.value.dtype)))
        return If(all_of(*self.ok), stmt)

    def distribute_loop_over_threads(self, stmt: For) -> Stmt:
        """Return a loop restricted to the iterations of one thread: lane, lane + threads and so on."""
        nest = parallel_nests_by_depth(KernelPart((), (rename_declared_vars(stmt),)))[0]
        number, body, kind = Var("n"), nest.body, "serial"
        if len(nest.loops) == 1 and constant_loop_range(stmt) == range(nest.iteration_count):
            number, kind = nest.loops[0].var, stmt.kind
        else:
            body = nest.body_of_iteration(number)
        limits = [*self.ok, *([self.lane < nest.iteration_count] if nest.iteration_count < self.threads else [])]
        new_stmt: Stmt = Block((Declare(number, self.lane), body))
        if nest.iteration_count > self.threads:
            new_stmt = For(number, nest.iteration_count, body, begin=self.lane, step=self.threads, kind=kind)
        return If(all_of(*limits), new_stmt) if limits else new_stmt


def fastest_row_mapping(part: KernelPart, gpu: Gpu) -> RowMapping | None:
    """Return the fastest mapping of outer iterations to GPU blocks and of inner loops to their
    threads.

    Return None if one thread per outer iteration is faster.
    """
    nest = (
        parallel_nests_by_depth(part)[0]
        if part.parallel_loop_or_none is not None
        else ParallelNest((), part.part_statements_as_block)
    )
    row = CooperativeRow.match_cooperative_row(nest, part.iteration_scratch, gpu)
    if row is None:
        return None
    across = row.across
    flat = (
        row.estimated_statements_per_thread(1, gpu)
        * max(1.0, nest.iteration_count / gpu.threads_to_saturate)
        * (1 if across or not nest.loops else gpu.costs.uncoalesced_slowdown)
    )
    ways = [way for each in _CANDIDATE_THREADS_PER_ROW if (way := _row_mapping_with_threads(row, each, gpu))]
    best = min(ways, key=lambda way: way.estimated_gpu_time_in_statements(gpu), default=None)
    return best if best is not None and best.estimated_gpu_time_in_statements(gpu) < flat else None


def _row_mapping_with_threads(row: CooperativeRow, threads_per_row: int, gpu: Gpu) -> RowMapping | None:
    """Return the mapping of rows to GPU blocks with `threads_per_row` threads per row; None if a
    block had too many or too few threads.
    """
    most = gpu.threads // threads_per_row or int(threads_per_row <= MAX_THREADS_PER_BLOCK)
    size, across = row.nest.iteration_count, row.across
    last = known_trip_count(row.nest.loops[-1]) if row.nest.loops else 1
    if across:
        most = min(most, gpu.warp)
    elif threads_per_row < min(gpu.warp, row.widest):  # else the threads of a row could not load contiguously
        return None
    else:
        while most > 1 and -(-size // most) < gpu.processors:
            most //= 2
    way = RowMapping(row, min(most, 1 << (last - 1).bit_length()), threads_per_row, across)
    while way.rows > 1 and way.shared_bytes > gpu.shared_bytes:
        way = replace(way, rows=way.rows // 2)
    return way if way.threads_per_block >= gpu.warp else None


def wrap_short_stmts_for_one_gpu_block(kernel: Kernel, gpu: Gpu) -> Kernel:
    """Return a kernel in which groups of short statements are wrapped in a loop of one iteration,
    for one GPU block to execute.

    Used where a block executes a group faster than a launch per loop would start.
    """
    groups: list[list[Stmt]] = []
    room = 0
    for stmt in block_stmts_or_self(kernel.body):
        slack = gpu.costs.launch_statements * isinstance(stmt, For) - _estimated_statements_per_thread(
            stmt, gpu.threads, {}, gpu.costs
        )
        room += slack
        if not groups or room < 0:
            groups.append([])
            room = slack
        groups[-1].append(stmt)
    body: list[Stmt] = []
    fresh: dict[Buffer, Buffer] = {}
    for group in groups:
        row = forall(Var("one"), 1, Block(group))
        other_stmts = Block(s for other in groups if other is not group for s in other)
        declared = {var for s in group if (var := register_declared_by(s)) is not None}
        alone = declared.isdisjoint(
            {*all_exprs_in_stmt(other_stmts)} | modified_vars_and_buffers(other_stmts)
        ) and is_thread_parallel_loop(row)
        if alone and sum(isinstance(s, For) for s in group) > 1:
            used = written_buffers(row) - written_buffers(other_stmts) - read_buffers(other_stmts)
            fresh |= {b: replace(b, private=True) for b in kernel.workspace if b in used}
            group = [row]
        body += group
    new_body = replace_buffers_with_offsets(Block(body), {b: (c, as_expr(0)) for b, c in fresh.items()})
    return replace(kernel, body=new_body, workspace=tuple(fresh.get(b, b) for b in kernel.workspace))
