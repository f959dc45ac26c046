# SPDX-License-Identifier: Apache-2.0
"""GPU launch configurations, read from the two outermost loops of a kernel.

    for b in 0..56 block { for t in 0..128 thread { ... } }    # launch_of: 56 blocks of 128 threads

Everything else is inside these two loops, which count from 0 to literals.  The threads of one block share the memory in
`Kernel.shared` and synchronize at every `Sync`; each has its own `Kernel.stack`.  Loops that distribute iterations,
`for n in 128 * b + t..N step 7168`, are proven to give each value of n to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aotc.ir import frozen
from aotc.tir import BOOL, Buffer, Const, Expr, Gpu, Load, Var, call, const
from aotc.tir.stmt import LAUNCHED, Declare, For, If, Kernel, Stmt, arrival, stmts_of, walk_stmts

#: What one launch may have at most, on every device.
MOST_BLOCKS: Final = 2**31 - 1
MOST_THREADS: Final = 1024
#: Elements that a block has loaded and stored when another launch would begin: 128 KiB, 64 bytes a cycle, 2,000 cycles.
_SOONER: Final = 16 << 10
#: Bytes from whose multiples on arrays lie in shared memory, at most.
_ALIGNED: Final = 16


@frozen
class Launch:
    """A launch configuration: number of blocks, threads per block, and bytes of shared memory per block."""

    grid: int
    block: int
    shared_bytes: int


def launch_of(kernel: Kernel) -> Launch | None:
    """Return the launch configuration of a GPU kernel; None if the kernel is not a loop over blocks and threads."""
    grid, blocks = _counted(kernel.body, "block")
    block, threads = _counted(blocks, "thread")
    fits = 1 <= grid <= MOST_BLOCKS and 1 <= block <= MOST_THREADS
    if not fits or kernel.team or uses_device(threads):
        return None
    return Launch(grid, block, shared_bytes(kernel.shared))


def shared_bytes(buffers: Iterable[Buffer]) -> int:
    """Return the shared memory that arrays take, in bytes, alignment gaps included."""
    return sum(-(-b.nbytes // _ALIGNED) * _ALIGNED for b in buffers)


def loops_of(kernel: Kernel) -> tuple[For, For]:
    """Return the loops over blocks and over threads of a GPU kernel."""
    (blocks,) = stmts_of(kernel.body)
    assert isinstance(blocks, For)
    (threads,) = stmts_of(blocks.body)
    assert isinstance(threads, For)
    return blocks, threads


def counters(kernel: Kernel) -> frozenset[Buffer]:
    """Return the buffers of last-block counters, which are zero before and after every launch."""
    found = (arrival(stmt) for stmt in walk_stmts(kernel.body))
    first = (call.args[0] for call in found if call is not None)
    return frozenset(load.buffer for load in first if isinstance(load, Load))


def by_last(counts: Buffer, group: Expr, size: int, rest: Stmt) -> tuple[Declare, If]:
    """Build the statements that only the last block of a group of `size` blocks executes."""
    last = Var("last", BOOL)
    arrives = call("arrive", Load(counts, group), const(size, "int32"))
    return Declare(last, arrives), If(last, rest)


def uses_device(stmt: Stmt) -> bool:
    """Return True if a statement contains loops over blocks or threads."""
    return any(isinstance(s, For) and s.kind in LAUNCHED for s in walk_stmts(stmt))


def _counted(stmt: Stmt, kind: str) -> tuple[int, Stmt]:
    """Return the constant trip count and the body of a loop of a kind; 0 if the statement is not such a loop."""
    match stmts_of(stmt):
        case (For(begin=Const(value=0), end=Const(value=extent), step=1) as loop,) if loop.kind == kind:
            return int(extent), loop.body
    return 0, stmt


def spreads(gpu: Gpu, rows: int, each: int) -> bool:
    """Return True if a separate launch over all elements is faster than one block per row.

    The estimate is the share of multiprocessors that would have no row.
    """
    return each * (gpu.processors - rows) > _SOONER * gpu.processors
