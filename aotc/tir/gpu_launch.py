# SPDX-License-Identifier: Apache-2.0
"""GPU launch configurations, read from the two outermost loops of a kernel.

    for b in 0..56 block { for t in 0..128 thread { ... } }    # launch_of: 56 blocks of 128 threads

Everything else is inside these two loops, which count from 0 to literals.  The threads of one block
share the memory in `Kernel.shared` and synchronize at every barrier; each has its own
`Kernel.stack`.  Loops that distribute iterations, `for n in 128 * b + t..N step 7168`, are proven
to give each value of n to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aotc.ir import frozen
from aotc.tir import BOOL, Buffer, Const, Expr, Gpu, Load, Var, const
from aotc.tir.instruction_statements import execute_to_register
from aotc.tir.stmt import GPU_LOOP_KINDS, Execute, For, If, Kernel, Stmt, block_stmts_or_self, executions_in, walk_stmts

#: What one launch may have at most, on every device.
MAX_BLOCKS_PER_LAUNCH: Final = 2**31 - 1
MAX_THREADS_PER_BLOCK: Final = 1024
#: Bytes from whose multiples on arrays lie in shared memory, at most.
_SHARED_ARRAY_ALIGNMENT_BYTES: Final = 16


@frozen
class Launch:
    """A launch configuration: number of blocks, threads per block, and bytes of shared memory per
    block.
    """

    grid: int
    block: int
    shared_bytes: int


def launch_of(kernel: Kernel) -> Launch | None:
    """Return the launch configuration of a GPU kernel; None if the kernel is not a loop over blocks
    and threads.
    """
    grid, blocks = _trip_count_and_body(kernel.body, "block")
    block, threads = _trip_count_and_body(blocks, "thread")
    fits = 1 <= grid <= MAX_BLOCKS_PER_LAUNCH and 1 <= block <= MAX_THREADS_PER_BLOCK
    if not fits or kernel.team or has_gpu_loops(threads):
        return None
    return Launch(grid, block, aligned_shared_memory_bytes(kernel.shared))


def aligned_shared_memory_bytes(buffers: Iterable[Buffer]) -> int:
    """Return the shared memory that arrays take, in bytes, alignment gaps included."""
    return sum(-(-b.nbytes // _SHARED_ARRAY_ALIGNMENT_BYTES) * _SHARED_ARRAY_ALIGNMENT_BYTES for b in buffers)


def block_and_thread_loops(kernel: Kernel) -> tuple[For, For]:
    """Return the loops over blocks and over threads of a GPU kernel."""
    (blocks,) = block_stmts_or_self(kernel.body)
    assert isinstance(blocks, For)
    (threads,) = block_stmts_or_self(blocks.body)
    assert isinstance(threads, For)
    return blocks, threads


def buffers_of_last_block_counters(kernel: Kernel) -> frozenset[Buffer]:
    """Return the buffers of last-block counters, which are zero before and after every launch."""
    first = (stmt.operands[0] for stmt in executions_in(kernel.body) if stmt.effects.counts_blocks)
    return frozenset(load.buffer for load in first if isinstance(load, Load))


def stmts_run_by_last_gpu_block_of_group(
    counters: Buffer, group: Expr, size: int, final_work: Stmt
) -> tuple[Execute, If]:
    """Build the statements that only the last block of a group of `size` blocks executes."""
    last = Var("last", BOOL)
    arrives = execute_to_register("arrive", last, Load(counters, group), const(size, "int32"))
    return arrives, If(last, final_work)


def has_gpu_loops(stmt: Stmt) -> bool:
    """Return True if a statement contains loops over blocks or threads."""
    return any(isinstance(s, For) and s.kind in GPU_LOOP_KINDS for s in walk_stmts(stmt))


def _trip_count_and_body(stmt: Stmt, kind: str) -> tuple[int, Stmt]:
    """Return the constant trip count and the body of a loop of a kind; 0 if the statement is not
    such a loop.
    """
    match block_stmts_or_self(stmt):
        case (For(begin=Const(value=0), end=Const(value=extent), step=1) as loop,) if loop.kind == kind:
            return int(extent), loop.body
    return 0, stmt


def is_separate_launch_faster(gpu: Gpu, rows: int, elements_per_row: int) -> bool:
    """Return True if a separate launch over all elements is faster than one block per row.

    The estimate is the share of multiprocessors that would have no row.
    """
    return elements_per_row * (gpu.processors - rows) > gpu.costs.launch_elements * gpu.processors
