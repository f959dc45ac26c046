# SPDX-License-Identifier: Apache-2.0
"""Distribute tensors or parameters over several memories; the fastest memory gets the most accesses
per byte.

Input: blocks with lifetimes, the number of accesses to each block, and the size of each memory,
fastest first. Output: offsets in a single address range that is split into consecutive parts, one
for each memory; no block crosses parts.

    element_accesses_per_buffer(kernel)[buffer]   # estimated number of elements that a call reads and writes
    # the first block in the fast memory, the second in the slow memory
    spread_blocks_over_memories(blocks, [900, 20], [64, 4096], 8)

Blocks are tried by decreasing number of accesses per byte, and a memory gets every block that fits
in addition to its earlier blocks. If some blocks fit nowhere, blocks are tried by decreasing size,
which wastes less space.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from aotc.ir import frozen
from aotc.tir import ArenaPart, Buffer, Execute, For, Kernel, Program, Stmt, Storage, Store, direct_child_stmts
from aotc.tir.loops.loop_dependence import Ranges, direct_accesses, direct_loads, loop_var_interval
from aotc.tir.plan.arena_packing import (
    AllowedOverlaps,
    Arrangement,
    LiveBlock,
    arena_size_lower_bound,
    place_blocks_in_arena,
)

#: Assumed number of iterations of a loop whose bounds are unknown.
_ASSUMED_TRIP_COUNT: Final = 1


def element_accesses_per_buffer(kernel: Kernel) -> dict[Buffer, int]:
    """Return the estimated number of elements of each buffer that a call reads and writes.

    All branches are counted as executed; caches are ignored.
    """
    counts = {buffer: buffer.size for buffer in kernel.params if kernel.source is not None}
    # (statement, number of executions, ranges of the enclosing loop variables)
    left: list[tuple[Stmt, int, Ranges]] = [(kernel.body, 1, {})] if kernel.source is None else []
    while left:
        stmt, times, ranges = left.pop()
        accesses = [(load.buffer, load.lanes) for load in direct_loads(stmt)]
        if isinstance(stmt, Execute):
            accesses = [(buffer, elements) for buffer, _, elements in direct_accesses(stmt)]
        elif isinstance(stmt, Store):
            accesses.append((stmt.buffer, stmt.value.lanes))
        for buffer, lanes in accesses:
            counts[buffer] = counts.get(buffer, 0) + times * lanes
        if isinstance(stmt, For):
            low, high = loop_var_interval(stmt, ranges)
            times *= max(0, int(high - low) // stmt.step + 1) if math.isfinite(high - low) else _ASSUMED_TRIP_COUNT
            ranges = {**ranges, stmt.var: (low, high)}
        left += [(child, times, ranges) for child in direct_child_stmts(stmt)]
    return counts


def element_accesses_per_storage(program: Program) -> dict[Storage, int]:
    """Return the estimated number of elements of each tensor and parameter that a run reads and
    writes.
    """
    by_kernel = {kernel: element_accesses_per_buffer(kernel) for kernel in program.distinct_kernels}
    counts: dict[Storage, int] = {}
    for step in program.steps:
        for buffer, view in zip(step.kernel.params, step.args, strict=True):
            counts[view.storage] = counts.get(view.storage, 0) + by_kernel[step.kernel].get(buffer, 0)
    return counts


@frozen
class MultiMemoryArrangement:
    """Arrangement of blocks in consecutive memories, and the number of bytes used in each memory."""

    arrangement: Arrangement
    sizes: tuple[int, ...]


def indices_by_weight_per_byte(weights: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the indices of `sizes` by decreasing weight per byte."""
    return sorted(range(len(sizes)), key=lambda k: (-weights[k] / max(1, sizes[k]), k))


def spread_blocks_over_memories(
    blocks: Sequence[LiveBlock],
    access_counts: Sequence[int],
    memory_bytes: Sequence[int],
    align: int,
    overlaps: AllowedOverlaps | None = None,
) -> MultiMemoryArrangement | None:
    """Return the blocks spread over memories of `memory_bytes` bytes each (0 for unlimited); None
    if they do not all fit.

    access_counts    number of accesses to each block
    """
    sizes = [block.size for block in blocks]
    for order in (
        indices_by_weight_per_byte(access_counts, sizes),
        sorted(range(len(blocks)), key=lambda k: (-sizes[k], k)),
    ):
        if (arrangement := _fill_memories_in_order(blocks, order, memory_bytes, align, overlaps or {})) is not None:
            return arrangement
    return None


def arrange_in_first_memory_or_spread(
    single_memory_arrangement: Arrangement,
    memory_bytes: Mapping[str, int],
    spread_over_sizes: Callable[[Sequence[int]], MultiMemoryArrangement | None],
) -> tuple[Arrangement, tuple[ArenaPart, ...]]:
    """Return the arrangement and its parts: all blocks in the first memory if they fit, else spread
    over all memories.

    Parts are empty if the blocks do not fit; parts of size 0 are omitted.

    single_memory_arrangement    arrangement of the blocks in a single memory
    memory_bytes                 size of each memory in bytes, 0 for unlimited
    spread_over_sizes            function that spreads the blocks over memories of given sizes, or returns
                                 None
    """
    first, room = next(iter(memory_bytes.items()))
    if not room or single_memory_arrangement.peak <= room:
        return single_memory_arrangement, (
            ArenaPart(first, 0, single_memory_arrangement.peak),
        ) if single_memory_arrangement.peak else ()
    if (placement := spread_over_sizes([*memory_bytes.values()])) is None:
        return single_memory_arrangement, ()
    begins = accumulate(placement.sizes, initial=0)
    parts = (
        ArenaPart(name, begin, size) for name, begin, size in zip(memory_bytes, begins, placement.sizes, strict=False)
    )
    return placement.arrangement, tuple(part for part in parts if part.bytes)


def _fill_memories_in_order(
    blocks: Sequence[LiveBlock],
    block_order: Sequence[int],
    memory_bytes: Sequence[int],
    align: int,
    overlaps: AllowedOverlaps,
) -> MultiMemoryArrangement | None:
    offsets, sizes, left = [0] * len(blocks), list[int](), list(block_order)
    for number, room in enumerate(memory_bytes):
        members = (
            left if number == len(memory_bytes) - 1 else _blocks_fitting_together(blocks, left, room, align, overlaps)
        )
        placed = _arrange_blocks_in_one_memory(blocks, members, align, overlaps)
        if room and placed.peak > room:
            return None
        for k, offset in zip(members, placed.offsets, strict=True):
            offsets[k] = sum(sizes) + offset
        sizes.append(placed.peak)
        left = [k for k in left if k not in set(members)]
    bound = arena_size_lower_bound(blocks, align, overlaps)
    return MultiMemoryArrangement(Arrangement(tuple(offsets), sum(sizes), bound), tuple(sizes))


def _blocks_fitting_together(
    blocks: Sequence[LiveBlock], remaining: Sequence[int], memory_bytes: int, align: int, overlaps: AllowedOverlaps
) -> list[int]:
    """Return the indices, in order, of the blocks in `remaining` that fit together into a memory of
    `memory_bytes` bytes.
    """
    members: list[int] = []
    for k in remaining:
        trial = [*members, k]
        if (
            not memory_bytes
            or _arrange_blocks_in_one_memory(blocks, trial, align, overlaps, memory_bytes).peak <= memory_bytes
        ):
            members = trial
    return members


def _arrange_blocks_in_one_memory(
    blocks: Sequence[LiveBlock],
    block_indices: Sequence[int],
    align: int,
    overlaps: Mapping[tuple[int, int], int],
    sufficient_bytes: int = 0,
) -> Arrangement:
    """Return the arrangement in one memory of the blocks with indices `block_indices`."""
    number = {k: n for n, k in enumerate(block_indices)}
    local_overlaps = {(number[a], number[b]): d for (a, b), d in overlaps.items() if a in number and b in number}
    return place_blocks_in_arena([blocks[k] for k in block_indices], align, local_overlaps, sufficient_bytes)
