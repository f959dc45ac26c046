# SPDX-License-Identifier: Apache-2.0
"""Tensors or parameters over several memories: a fast one holds those that are accessed most by the byte.

In: blocks with lifetimes, how often each is accessed, and how much room there is in each memory, the fastest first.
Out: one line of offsets for all, parts of which are the memories; no block lies across two of them.

    accesses(kernel)[buffer]                      # elements that a call reads and writes, about
    spread(blocks, [900, 20], [64, 4096], 8)      # the first block in the fast memory, the second in the other one

Blocks come in the order of accesses by the byte, and a memory takes each that it has room for beside those before.
Where some find no room at the end, large ones come first, which leaves less unused.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from aotc.ir import frozen
from aotc.tir import Buffer, For, Intrinsic, Kernel, Part, Program, Stmt, Storage, Store, stmt_children
from aotc.tir.loops.loop_dependence import Ranges, loads, range_of
from aotc.tir.plan.arena_packing import Arrangement, Block, Overlaps, lower_bound, place

#: Iterations of a loop whose ends are not known.
_UNKNOWN: Final = 1


def accesses(kernel: Kernel) -> dict[Buffer, int]:
    """About how many elements of each buffer a call reads and writes: all branches count, caches do not."""
    found = {buffer: buffer.size for buffer in kernel.params if kernel.source is not None}
    # statements, how often each runs, the ranges of the variables around it
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
    """About how many elements of each tensor and parameter a run reads and writes."""
    by_kernel = {kernel: accesses(kernel) for kernel in program.kernels}
    found: dict[Storage, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            found[view.storage] = found.get(view.storage, 0) + by_kernel[step.kernel].get(buffer, 0)
    return found


@frozen
class Spread:
    """An arrangement of blocks, and the bytes of each memory that it takes: these lie behind each other on its line."""

    arrangement: Arrangement
    sizes: tuple[int, ...]


def densest(weights: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Numbers of what has sizes, those of the greatest weight by the byte first."""
    return sorted(range(len(sizes)), key=lambda k: (-weights[k] / max(1, sizes[k]), k))


def spread(
    blocks: Sequence[Block], weights: Sequence[int], rooms: Sequence[int], align: int, overlaps: Overlaps | None = None
) -> Spread | None:
    """Blocks over memories with so many bytes of room, 0 for any number; None where not all of them find room.

    weights   how often each block is accessed
    """
    sizes = [block.size for block in blocks]
    for order in (densest(weights, sizes), sorted(range(len(blocks)), key=lambda k: (-sizes[k], k))):
        if (found := _filled(blocks, order, rooms, align, overlaps or {})) is not None:
            return found
    return None


def in_rooms(
    whole: Arrangement, rooms: Mapping[str, int], several: Callable[[Sequence[int]], Spread | None]
) -> tuple[Arrangement, tuple[Part, ...]]:
    """All blocks in the first memory, else in several ones; parts of nothing are left out.

    whole     the blocks in one memory
    rooms     bytes of each memory, 0 for any number
    several   spreads them over all
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
    """The blocks, in order, that a memory has room for beside those before."""
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
    """Some of the blocks, by themselves."""
    number = {k: n for n, k in enumerate(members)}
    own = {(number[a], number[b]): d for (a, b), d in overlaps.items() if a in number and b in number}
    return place([blocks[k] for k in members], align, own, enough)
