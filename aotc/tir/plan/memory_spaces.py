# SPDX-License-Identifier: Apache-2.0
"""Distribute tensors or parameters over several memories; the fastest memory gets the most accesses
per byte.

Input: blocks with lifetimes, the number of accesses to each block, and the size of each memory,
fastest first. Output: offsets in a single address range that is split into consecutive parts, one
for each memory; no block crosses parts.

    accesses(kernel)[buffer]                      # estimated number of elements that a call reads and writes
    spread(blocks, [900, 20], [64, 4096], 8)      # the first block in the fast memory, the second in the slow memory

Blocks are tried by decreasing number of accesses per byte, and a memory gets every block that fits
in addition to its earlier blocks. If some blocks fit nowhere, blocks are tried by decreasing size,
which wastes less space.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from aotc.ir import frozen
from aotc.tir import Buffer, For, Intrinsic, Kernel, Part, Program, Stmt, Storage, Store, stmt_children
from aotc.tir.loops.loop_dependence import Ranges, loads, range_of
from aotc.tir.plan.arena_packing import Arrangement, Block, Overlaps, lower_bound, place

#: Assumed number of iterations of a loop whose bounds are unknown.
_UNKNOWN: Final = 1


def accesses(kernel: Kernel) -> dict[Buffer, int]:
    """Return the estimated number of elements of each buffer that a call reads and writes.

    All branches are counted as executed; caches are ignored.
    """
    found = {buffer: buffer.size for buffer in kernel.params if kernel.source is not None}
    # (statement, number of executions, ranges of the enclosing loop variables)
    left: list[tuple[Stmt, int, Ranges]] = [(kernel.body, 1, {})] if kernel.source is None else []
    while left:
        stmt, times, ranges = left.pop()
        met = [(load.buffer, load.lanes) for load in loads(stmt)]
        if isinstance(stmt, Store):
            met.append((stmt.buffer, stmt.value.lanes))
        elif isinstance(stmt, Intrinsic):
            met = [(buffer, stmt.size**2) for buffer in (stmt.buffer, stmt.source.buffer)]
        for buffer, lanes in met:
            found[buffer] = found.get(buffer, 0) + times * lanes
        if isinstance(stmt, For):
            low, high = range_of(stmt, ranges)
            times *= max(0, int(high - low) // stmt.step + 1) if math.isfinite(high - low) else _UNKNOWN
            ranges = {**ranges, stmt.var: (low, high)}
        left += [(child, times, ranges) for child in stmt_children(stmt)]
    return found


def accessed(program: Program) -> dict[Storage, int]:
    """Return the estimated number of elements of each tensor and parameter that a run reads and
    writes.
    """
    by_kernel = {kernel: accesses(kernel) for kernel in program.kernels}
    found: dict[Storage, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            found[view.storage] = found.get(view.storage, 0) + by_kernel[step.kernel].get(buffer, 0)
    return found


@frozen
class Spread:
    """Arrangement of blocks in consecutive memories, and the number of bytes used in each memory."""

    arrangement: Arrangement
    sizes: tuple[int, ...]


def densest(weights: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the indices of `sizes` by decreasing weight per byte."""
    return sorted(range(len(sizes)), key=lambda k: (-weights[k] / max(1, sizes[k]), k))


def spread(
    blocks: Sequence[Block], weights: Sequence[int], rooms: Sequence[int], align: int, overlaps: Overlaps | None = None
) -> Spread | None:
    """Return the blocks spread over memories of `rooms` bytes each (0 for unlimited); None if they
    do not all fit.

    weights   number of accesses to each block
    """
    sizes = [block.size for block in blocks]
    for order in (densest(weights, sizes), sorted(range(len(blocks)), key=lambda k: (-sizes[k], k))):
        if (found := _filled(blocks, order, rooms, align, overlaps or {})) is not None:
            return found
    return None


def in_rooms(
    whole: Arrangement, rooms: Mapping[str, int], several: Callable[[Sequence[int]], Spread | None]
) -> tuple[Arrangement, tuple[Part, ...]]:
    """Return the arrangement and its parts: all blocks in the first memory if they fit, else spread
    over all memories.

    Parts are empty if the blocks do not fit; parts of size 0 are omitted.

    whole     arrangement of the blocks in a single memory
    rooms     size of each memory in bytes, 0 for unlimited
    several   function that spreads the blocks over memories of given sizes, or returns None
    """
    first, room = next(iter(rooms.items()))
    if not room or whole.peak <= room:
        return whole, (Part(first, 0, whole.peak),) if whole.peak else ()
    if (found := several([*rooms.values()])) is None:
        return whole, ()
    begins = accumulate(found.sizes, initial=0)
    parts = (Part(name, begin, size) for name, begin, size in zip(rooms, begins, found.sizes, strict=False))
    return found.arrangement, tuple(part for part in parts if part.bytes)


def _filled(
    blocks: Sequence[Block], order: Sequence[int], rooms: Sequence[int], align: int, overlaps: Overlaps
) -> Spread | None:
    offsets, sizes, left = [0] * len(blocks), list[int](), list(order)
    for number, room in enumerate(rooms):
        members = left if number == len(rooms) - 1 else _taken(blocks, left, room, align, overlaps)
        placed = _placed(blocks, members, align, overlaps)
        if room and placed.peak > room:
            return None
        for k, offset in zip(members, placed.offsets, strict=True):
            offsets[k] = sum(sizes) + offset
        sizes.append(placed.peak)
        left = [k for k in left if k not in set(members)]
    bound = lower_bound(blocks, align, overlaps)
    return Spread(Arrangement(tuple(offsets), sum(sizes), bound), tuple(sizes))


def _taken(blocks: Sequence[Block], left: Sequence[int], room: int, align: int, overlaps: Overlaps) -> list[int]:
    """Return the indices, in order, of the blocks in `left` that fit together into a memory of
    `room` bytes.
    """
    members: list[int] = []
    for k in left:
        trial = [*members, k]
        if not room or _placed(blocks, trial, align, overlaps, room).peak <= room:
            members = trial
    return members


def _placed(
    blocks: Sequence[Block],
    members: Sequence[int],
    align: int,
    overlaps: Mapping[tuple[int, int], int],
    enough: int = 0,
) -> Arrangement:
    """Return the arrangement in one memory of the blocks with indices `members`."""
    number = {k: n for n, k in enumerate(members)}
    own = {(number[a], number[b]): d for (a, b), d in overlaps.items() if a in number and b in number}
    return place([blocks[k] for k in members], align, own, enough)
