# SPDX-License-Identifier: Apache-2.0
"""Pack memory blocks with lifetimes into one arena: offline dynamic storage allocation.

Input: blocks (bytes, first and last step of their lifetimes). Output: an offset for each block,
such that blocks with overlapping lifetimes do not overlap in the arena, and the arena is as small
as the search can make it.

    # offsets (0, 64, 0), peak 128
    place_blocks_in_arena([LiveBlock(64, 0, 1), LiveBlock(64, 1, 2), LiveBlock(64, 2, 3)], align=64)
    place_blocks_in_arena([LiveBlock(64, 0, 1), LiveBlock(64, 1, 2)], 8, {(1, 0): 8})  # offsets (8, 0), peak 72

The problem is NP-hard (Garey and Johnson, SR2). Every arrangement that cannot be compacted
downwards results from placing the blocks in *some* order, each at the lowest offset that is free
for its whole lifetime, so the search is over orders: several greedy orders, then all orders for few
blocks (branch and bound), else a seeded local search that moves the block at the top of the arena
forward in the order. The search ends early when the lower bound, the largest sum of bytes live at
one step, is reached. Placing an order compares each block with all blocks of overlapping lifetimes.
If hundreds of blocks live at a step, blocks are first placed in one sweep over the steps, each in
the lowest gap; this placement is final if it reaches the lower bound, or if comparisons would take
too long.
"""

import heapq
import math
import random
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from aotc.ir import frozen

#: Largest number of blocks for which all orders are searched.
MAX_EXACT_SEARCH_BLOCKS: Final = 9
#: Bound on block comparisons of the local search: a fraction of a second to a few seconds.
MAX_LOCAL_SEARCH_COMPARISONS: Final = 4_000_000

#: Number of pairs of blocks with overlapping lifetimes from which on a sweep is tried first ...
MIN_PAIRS_FOR_SWEEP: Final = 1 << 15
#: ... and number of pairs from which on the sweep is the only method.
MIN_PAIRS_FOR_SWEEP_ONLY: Final = 1 << 20


@frozen
class LiveBlock:
    """Block of `size` bytes that is live from step `first_step` to step `last_step`, both included."""

    size: int
    first_step: int
    last_step: int


@frozen
class Arrangement:
    """Placement of blocks: an offset for each block, the total size in bytes, and a lower bound on
    that size.
    """

    offsets: tuple[int, ...]
    peak: int
    lower_bound: int


def align_up(value: int, align: int) -> int:
    """Return the smallest multiple of `align` that is at least `value`."""
    return -(-value // align) * align


#: For (later, earlier) pairs of blocks that may overlap: the least number of bytes by which the
#: later block must start before the earlier one.
AllowedOverlaps: TypeAlias = Mapping[tuple[int, int], int]


def arena_size_lower_bound(blocks: Sequence[LiveBlock], align: int, overlaps: AllowedOverlaps | None = None) -> int:
    """Return a lower bound of the arena: the largest sum of aligned bytes live at one step, less
    allowed overlaps.
    """
    twice: dict[int, int] = {}
    for (late, early), distance in (overlaps or {}).items():
        twice[late] = twice.get(late, 0) + max_overlap_bytes(blocks[late].size, blocks[early].size, distance, align)
    most = live = saved = 0
    step = -1
    for k, over in _blocks_by_start_with_ended_blocks(blocks):
        saved, step = (saved if blocks[k].first_step == step else 0), blocks[k].first_step
        size = align_up(blocks[k].size, align)
        saved += min(twice.get(k, 0), size)
        live += size - sum(align_up(blocks[j].size, align) for j in over)
        most = max(most, live - saved)
    return most


def max_overlap_bytes(late_bytes: int, early_bytes: int, distance_bytes: int, align: int) -> int:
    """Return the largest overlap of two blocks, in bytes, if the later one starts `distance_bytes`
    bytes lower.
    """
    late_bytes, early_bytes = align_up(late_bytes, align), align_up(early_bytes, align)
    return late_bytes + early_bytes - max(late_bytes, early_bytes + align_up(max(distance_bytes, 0), align))


def _blocks_by_start_with_ended_blocks(blocks: Sequence[LiveBlock]) -> Iterator[tuple[int, list[int]]]:
    """Yield block indices in order of their first step, each with the blocks whose lifetimes have
    ended by then.
    """
    live: list[tuple[int, int]] = []  # last step, block
    for k in sorted(range(len(blocks)), key=lambda k: blocks[k].first_step):
        over: list[int] = []
        while live and live[0][0] < blocks[k].first_step:
            over.append(heapq.heappop(live)[1])
        yield k, over
        heapq.heappush(live, (blocks[k].last_step, k))


def _overlapping_lifetime_pair_count(blocks: Sequence[LiveBlock]) -> int:
    """Return the number of pairs of blocks whose lifetimes overlap."""
    over = accumulate(len(over) for _, over in _blocks_by_start_with_ended_blocks(blocks))
    return sum(begun - ended for begun, ended in enumerate(over))


def _place_blocks_by_first_step(blocks: Sequence[LiveBlock], align: int) -> tuple[list[int], int]:
    """Place blocks in order of their first step, each in the lowest free gap; return the offsets
    and the peak.
    """
    offsets, peak = [0] * len(blocks), 0
    gaps: list[tuple[int, int]] = []  # (begin, end), sorted; all memory after `peak` is free
    for k, over in _blocks_by_start_with_ended_blocks(blocks):
        size = align_up(blocks[k].size, align)
        for j in over:
            insort(gaps, (offsets[j], offsets[j] + align_up(blocks[j].size, align)))
        gaps = _merge_adjacent_gaps(gaps) if over else gaps
        fitting = next((n for n, (begin, end) in enumerate(gaps) if end - begin >= size), None)
        if fitting is None:
            last = gaps.pop() if gaps and gaps[-1][1] == peak else (peak, peak)
            offsets[k], peak = last[0], last[0] + size
        else:
            offsets[k], end = gaps.pop(fitting)
            if end - offsets[k] > size:
                gaps.insert(fitting, (offsets[k] + size, end))
    return offsets, peak


def _merge_adjacent_gaps(gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a sorted list of gaps (begin, end) between memory blocks with adjacent gaps merged."""
    merged_gaps: list[tuple[int, int]] = []
    for begin, end in gaps:
        if merged_gaps and merged_gaps[-1][1] == begin:
            begin = merged_gaps.pop()[0]
        merged_gaps.append((begin, end))
    return merged_gaps


class _ArenaPacker:
    """Packer that places memory blocks with lifetimes in a given order, each at the lowest free
    offset.
    """

    def __init__(self, blocks: Sequence[LiveBlock], align: int, overlaps: AllowedOverlaps | None = None) -> None:
        self.blocks, self.align, self.overlaps = blocks, align, overlaps or {}
        self.sizes = [align_up(b.size, align) for b in blocks]
        self.neighbors = self._blocks_with_overlapping_lifetimes()
        self.bound = arena_size_lower_bound(blocks, align, overlaps)

    def _blocks_with_overlapping_lifetimes(self) -> list[list[int]]:
        """Return, for each block, the blocks whose lifetimes overlap its lifetime."""
        result: list[list[int]] = [[] for _ in self.blocks]
        live: set[int] = set()
        for k, over in _blocks_by_start_with_ended_blocks(self.blocks):
            live.difference_update(over)
            for j in live:
                result[j].append(k)
                result[k].append(j)
            live.add(k)
        return result

    def lowest_free_offset(self, block: int, offsets: Sequence[int]) -> int:
        """Return the lowest free offset for block `block` among the blocks already placed (offset
        >= 0).
        """
        offset = 0
        for low, high in sorted(
            self._offset_interval_forbidden_by_block(block, j, offsets[j])
            for j in self.neighbors[block]
            if offsets[j] >= 0
        ):
            if low >= offset:
                break
            offset = max(offset, high)
        return offset

    def _offset_interval_forbidden_by_block(self, block: int, placed_block: int, placed_offset: int) -> tuple[int, int]:
        """Return the interval of arena offsets that the placed block `placed_block` forbids for
        block `block`.
        """
        low, high = placed_offset - self.sizes[block], placed_offset + self.sizes[placed_block]
        if (block, placed_block) in self.overlaps:
            low = max(low, placed_offset - align_up(self.overlaps[block, placed_block], self.align))
        if (placed_block, block) in self.overlaps:
            high = min(high, placed_offset + align_up(self.overlaps[placed_block, block], self.align))
        return low, high

    def place_blocks_in_order(self, order: Sequence[int], peak_limit: float = math.inf) -> tuple[list[int], int] | None:
        """Place the blocks in `order`; return offsets and peak, or None when the peak reaches
        `peak_limit`.
        """
        offsets = [-1] * len(self.blocks)
        peak = 0
        for k in order:
            offsets[k] = self.lowest_free_offset(k, offsets)
            peak = max(peak, offsets[k] + self.sizes[k])
            if peak >= peak_limit:
                return None
        return offsets, peak

    def heuristic_block_placement_orders(self) -> list[list[int]]:
        """Return heuristic orders: by size, by length of lifetime, by occupancy of steps, by first
        step.
        """
        blocks, sizes = self.blocks, self.sizes
        conflict = [sum(sizes[j] for j in near) for near in self.neighbors]
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda k: (-sizes[k], -len(self.neighbors[k]), k),
            lambda k: (-sizes[k] * (blocks[k].last_step - blocks[k].first_step + 1), k),
            lambda k: (-conflict[k] - sizes[k], k),
            lambda k: (blocks[k].first_step, -sizes[k], k),
            lambda k: (-blocks[k].last_step, -sizes[k], k),
            lambda k: (blocks[k].first_step - blocks[k].last_step, -sizes[k], k),
        ]
        return [sorted(range(len(blocks)), key=key) for key in keys]


def _search_all_placement_orders(packer: _ArenaPacker, offsets: list[int], peak: int) -> tuple[list[int], int]:
    """Return the memory placement with the lowest peak over all orders of blocks, by branch and
    bound.
    """
    count = len(packer.blocks)
    best, best_peak = offsets, peak
    stack: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [((), (-1,) * count, 0)]
    while stack and best_peak > packer.bound:
        placed, now, top = stack.pop()
        if len(placed) == count:
            best, best_peak = list(now), top
            continue
        for k in range(count):
            if now[k] < 0:
                offset = packer.lowest_free_offset(k, now)
                new_top = max(top, offset + packer.sizes[k])
                if new_top < best_peak:
                    stack.append(((*placed, k), (*now[:k], offset, *now[k + 1 :]), new_top))
    return best, best_peak


def _improve_order_by_local_search(
    packer: _ArenaPacker, order: list[int], offsets: list[int], peak: int
) -> tuple[list[int], int]:
    """Improve an order by local search: move a block at the top of the arena forward, and accept
    the order if it is no worse.
    """
    rng = random.Random(0)  # fixed seed: the same model gives the same plan
    best, best_peak, current, current_peak = offsets, peak, offsets, peak
    cost = 1 + sum(map(len, packer.neighbors))
    for _ in range(min(2000, MAX_LOCAL_SEARCH_COMPARISONS // cost)):
        if best_peak <= packer.bound:
            break
        tops = [k for k in order if current[k] + packer.sizes[k] == current_peak]
        position = order.index(rng.choice(tops))
        trial = list(order)
        trial.insert(rng.randrange(position + 1), trial.pop(position))
        if rng.random() < 0.3:  # a second, random exchange helps to leave local minima
            i, j = rng.randrange(len(trial)), rng.randrange(len(trial))
            trial[i], trial[j] = trial[j], trial[i]
        packed = packer.place_blocks_in_order(trial, current_peak + 1)
        if packed is not None:
            order, (current, current_peak) = trial, packed
            if current_peak < best_peak:
                best, best_peak = current, current_peak
    return best, best_peak


def place_blocks_in_arena(
    blocks: Sequence[LiveBlock], align: int = 64, overlaps: AllowedOverlaps | None = None, sufficient_bytes: int = 0
) -> Arrangement:
    """Return offsets (multiples of `align`) for `blocks`; the result is deterministic.

    sufficient_bytes    size in bytes at which the search stops after the greedy orders; 0 to search for the
                        smallest size
    """
    if not blocks:
        return Arrangement((), 0, 0)
    if (pairs := _overlapping_lifetime_pair_count(blocks)) > MIN_PAIRS_FOR_SWEEP and not overlaps:
        offsets, peak = _place_blocks_by_first_step(blocks, align)
        bound = arena_size_lower_bound(blocks, align)
        if peak == bound or pairs > MIN_PAIRS_FOR_SWEEP_ONLY:
            return Arrangement(tuple(offsets), peak, bound)
    packer = _ArenaPacker(blocks, align, overlaps)
    best_order, best = list[int](), (list[int](), sum(packer.sizes) + 1)
    for order in packer.heuristic_block_placement_orders():
        if (
            best[1] > max(packer.bound, sufficient_bytes)
            and (packed := packer.place_blocks_in_order(order, best[1])) is not None
        ):
            best_order, best = order, packed
    if not sufficient_bytes and len(blocks) <= MAX_EXACT_SEARCH_BLOCKS:
        best = _search_all_placement_orders(packer, *best)
    elif not sufficient_bytes:
        best = _improve_order_by_local_search(packer, best_order, *best)
    return Arrangement(tuple(best[0]), best[1], packer.bound)
