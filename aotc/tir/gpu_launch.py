# SPDX-License-Identifier: Apache-2.0
"""Kernels for devices that run blocks of threads: what their two outermost loops say of a launch.

    for b in 0..56 block { for t in 0..128 thread { ... } }    # launch_of: 56 blocks of 128 threads

Everything else is inside these two loops, which count from 0 to literals.  The threads of one block share the memory in
`Kernel.shared` and meet at every `Sync`; each has a `Kernel.stack` of its own.  Loops that deal out their iterations,
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
    """How many blocks of how many threads run a kernel, and the memory that the threads of each block share."""

    grid: int
    block: int
    shared_bytes: int


def launch_of(kernel: Kernel) -> Launch | None:
    """How a device runs a kernel; None for a kernel that does not have the form for it."""
    grid, blocks = _counted(kernel.body, "block")
    block, threads = _counted(blocks, "thread")
    fits = 1 <= grid <= MOST_BLOCKS and 1 <= block <= MOST_THREADS
    if not fits or kernel.team or uses_device(threads):
        return None
    return Launch(grid, block, shared_bytes(kernel.shared))


def shared_bytes(buffers: Iterable[Buffer]) -> int:
    """What arrays take of the memory that the threads of a block share, with what lies between them."""
    return sum(-(-b.nbytes // _ALIGNED) * _ALIGNED for b in buffers)


def loops_of(kernel: Kernel) -> tuple[For, For]:
    """The loops over blocks and threads of a kernel that has them."""
    (blocks,) = stmts_of(kernel.body)
    assert isinstance(blocks, For)
    (threads,) = stmts_of(blocks.body)
    assert isinstance(threads, For)
    return blocks, threads


def counters(kernel: Kernel) -> frozenset[Buffer]:
    """Scratch that counts blocks as they arrive: every launch finds zeros there, and leaves them."""
    found = (arrival(stmt) for stmt in walk_stmts(kernel.body))
    first = (call.args[0] for call in found if call is not None)
    return frozenset(load.buffer for load in first if isinstance(load, Load))


def by_last(counts: Buffer, group: Expr, size: int, rest: Stmt) -> tuple[Declare, If]:
    """What a block does that is the last one of a group of so many."""
    last = Var("last", BOOL)
    arrives = call("arrive", Load(counts, group), const(size, "int32"))
    return Declare(last, arrives), If(last, rest)


def uses_device(stmt: Stmt) -> bool:
    """Whether there are loops over blocks or threads in a statement."""
    return any(isinstance(s, For) and s.kind in LAUNCHED for s in walk_stmts(stmt))


def _counted(stmt: Stmt, kind: str) -> tuple[int, Stmt]:
    """How often a loop of a kind repeats what; 0 for a statement that is none, counting from 0 to a literal."""
    match stmts_of(stmt):
        case (For(begin=Const(value=0), end=Const(value=extent), step=1) as loop,) if loop.kind == kind:
            return int(extent), loop.body
    return 0, stmt


def spreads(gpu: Gpu, rows: int, each: int) -> bool:
    """Whether elements of so many rows are done sooner by all processors, in another launch, than by a block a row.

    It counts what part of the processors would have no row.
    """
    return each * (gpu.processors - rows) > _SOONER * gpu.processors
