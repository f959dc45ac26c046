# SPDX-License-Identifier: Apache-2.0
"""Arena packing: placements are valid, never below the lower bound, and optimal where all orders are searched."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.tir.plan.arena_packing import (
    Arrangement,
    LiveBlock,
    _ArenaPacker,
    _place_blocks_by_first_step,
    align_up,
    arena_size_lower_bound,
    place_blocks_in_arena,
)
from tests.call_counts import doubles


def blocks(most: int, largest: int = 500) -> st.SearchStrategy[list[LiveBlock]]:
    one = st.tuples(st.integers(0, largest), st.integers(0, 12), st.integers(0, 6))
    return st.lists(one.map(lambda t: LiveBlock(t[0], t[1], t[1] + t[2])), max_size=most)


def assert_valid(items: list[LiveBlock], result: Arrangement, align: int) -> None:
    for (a, at), (b, bt) in itertools.combinations(zip(items, result.offsets, strict=True), 2):
        together = a.first_step <= b.last_step and b.first_step <= a.last_step
        assert not together or at + a.size <= bt or bt + b.size <= at
    assert all(offset % align == 0 for offset in result.offsets)
    ends = [align_up(offset + b.size, align) for b, offset in zip(items, result.offsets, strict=True)]
    assert result.peak == max(ends, default=0) >= result.lower_bound


@given(blocks(60), st.sampled_from([1, 16, 64]))
@settings(max_examples=60, deadline=None)
def test_blocks_that_live_together_lie_apart(items: list[LiveBlock], align: int) -> None:
    assert_valid(items, place_blocks_in_arena(items, align), align)


@given(blocks(6, largest=9))
@settings(max_examples=60, deadline=None)
def test_few_blocks_are_placed_optimally(items: list[LiveBlock]) -> None:
    packer = _ArenaPacker(items, 1)
    peaks = [
        packed[1]
        for order in itertools.permutations(range(len(items)))
        if (packed := packer.place_blocks_in_order(order))
    ]
    assert place_blocks_in_arena(items, 1).peak == min(peaks, default=0)


def test_a_gap_between_live_blocks_is_filled() -> None:
    # first fit in order of birth would put the last block on top
    items = [LiveBlock(100, 0, 4), LiveBlock(50, 0, 1), LiveBlock(100, 0, 4), LiveBlock(50, 2, 4)]
    assert place_blocks_in_arena(items, 1).peak == 250


def test_a_chain_needs_two_blocks_only() -> None:
    items = [LiveBlock(1000, k, k + 1) for k in range(500)]
    assert place_blocks_in_arena(items).peak == 2 * 1024


def test_the_plan_is_deterministic() -> None:
    items = [LiveBlock((k * 7919) % 1000 + 1, k % 17, k % 17 + k % 5) for k in range(80)]
    assert place_blocks_in_arena(items) == place_blocks_in_arena(items)


@given(blocks(60), st.sampled_from([1, 16, 64]))
@settings(max_examples=30, deadline=None)
def test_blocks_that_are_swept_lie_apart(items: list[LiveBlock], align: int) -> None:
    offsets, peak = _place_blocks_by_first_step(items, align)
    assert_valid(items, Arrangement(tuple(offsets), peak, arena_size_lower_bound(items, align)), align)


def test_thousands_that_live_together_are_placed_at_once() -> None:
    def placing(count: int) -> Callable[[], object]:
        items = [LiveBlock(100 + k % 7, k, 2 * count) for k in range(count)]
        return lambda: place_blocks_in_arena(items)

    result = placing(3000)()
    assert isinstance(result, Arrangement) and result.peak == result.lower_bound
    assert doubles(placing, 1500)
