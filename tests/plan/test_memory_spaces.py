# SPDX-License-Identifier: Apache-2.0
"""The arena in several memories: buffers with most accesses are in the first, and no buffer crosses a border."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.tir.expr import Load, Var
from aotc.tir.plan.arena_packing import LiveBlock, place_blocks_in_arena
from aotc.tir.plan.memory_plan import check_memory_plan, plan_memory
from aotc.tir.plan.memory_space_assignment import (
    element_accesses_per_buffer,
    element_accesses_per_storage,
    spread_blocks_over_memories,
)
from aotc.tir.plan.program import Program
from aotc.tir.plan.storage import ArenaPart
from aotc.tir.stmt import For, Store
from tests.plan.test_arena_packing import assert_valid, blocks
from tests.plan.test_memory_plan import SIZE, elementwise, program, storage

ROOM = 4 * SIZE


@settings(deadline=None)
@given(blocks(14), st.lists(st.integers(1, 1200), min_size=1, max_size=3), st.sampled_from([1, 16]))
def test_random_blocks_over_random_memories(items: list[LiveBlock], rooms: list[int], align: int) -> None:
    """Each lies in one memory with room for it, whatever they are; the last one takes what is left."""
    weights = [(7 * k + block.size) % 50 for k, block in enumerate(items)]
    assert spread_blocks_over_memories(items, weights, [*rooms, 0], align) is not None
    found = spread_blocks_over_memories(items, weights, rooms, align)
    if found is None:
        assert sum(rooms) < place_blocks_in_arena(items, align).peak or len(rooms) > 1
        return
    begins = list(accumulate(found.sizes, initial=0))
    assert found.arrangement.peak == begins[-1] and all(a <= b for a, b in zip(found.sizes, rooms, strict=True))
    for block, offset in zip(items, found.arrangement.offsets, strict=True):
        assert any(low <= offset <= offset + block.size <= high for low, high in pairwise(begins))
    assert_valid(items, replace(found.arrangement, lower_bound=0), align)


def test_what_is_accessed_most_by_the_byte_is_in_the_first() -> None:
    items = [LiveBlock(64, 0, 3), LiveBlock(64, 0, 3), LiveBlock(8, 0, 3), LiveBlock(64, 0, 3)]
    found = spread_blocks_over_memories(items, [100, 300, 40, 200], [72, 0], 8)
    assert found is not None and found.sizes == (72, 128)
    assert [offset < 72 for offset in found.arrangement.offsets] == [False, True, True, False]


def test_large_blocks_come_first_where_others_leave_no_room() -> None:
    items = [LiveBlock(40, 0, 1), LiveBlock(64, 0, 1)]
    found = spread_blocks_over_memories(items, [1000, 1], [64, 48], 8)
    assert found is not None and found.sizes == (64, 40)
    assert spread_blocks_over_memories(items, [1000, 1], [56, 48], 8) is None


def test_accesses_are_those_of_all_iterations() -> None:
    kernel = elementwise(1, inplace=False)
    assert element_accesses_per_buffer(kernel) == {kernel.inputs[0]: SIZE, kernel.outputs[0]: SIZE}
    i, j = Var("i"), Var("j")
    x, y = kernel.inputs[0], kernel.outputs[0]
    triangle = For(i, 8, For(j, i + 1, Store(y, j, Load(x, i) + Load(x, j)), begin=0, step=2))
    assert element_accesses_per_buffer(replace(kernel, body=triangle)) == {x: 2 * 8 * 4, y: 8 * 4}


def chain() -> Program:
    """x -> a -> b -> c -> y, of which b is read three times."""
    x, y = storage("x", "input"), storage("y", "output")
    a, b, c = storage("a"), storage("b"), storage("c")
    one, many = elementwise(1, inplace=False), elementwise(3, inplace=False)
    return program((one, [x, a]), (one, [a, b]), (many, [b, b, b, c]), (one, [c, y]))


def test_plans_over_two_memories() -> None:
    made = plan_memory(chain(), memory_bytes={"fast": ROOM, "slow": 0})
    check_memory_plan(made)
    assert made.plan.parts == (ArenaPart("fast", 0, ROOM), ArenaPart("slow", ROOM, ROOM))
    at = {s.name: made.plan.arena_part_and_offset(s) for s in made.plan.offsets}
    assert at == {"a": (1, 0), "b": (0, 0), "c": (1, 0)}
    times = {s.name: count for s, count in element_accesses_per_storage(made).items()}
    assert times == {"x": SIZE, "a": 2 * SIZE, "b": 4 * SIZE, "c": 2 * SIZE, "y": SIZE}


def test_one_memory_where_there_is_room() -> None:
    plain = plan_memory(chain()).plan
    made = plan_memory(chain(), memory_bytes={"fast": 2 * ROOM, "slow": 0}).plan
    assert made.parts == (ArenaPart("fast", 0, 2 * ROOM),) and [*made.offsets.values()] == [*plain.offsets.values()]
    assert plan_memory(chain(), memory_bytes={"slow": 0, "fast": 1}).plan.parts == (ArenaPart("slow", 0, 2 * ROOM),)
    small = plan_memory(chain(), memory_bytes={"fast": 8, "slow": 2 * ROOM}).plan
    assert small.parts == (ArenaPart("slow", 0, 2 * ROOM),)
    nowhere = plan_memory(chain(), memory_bytes={"fast": 8, "slow": 8}).plan
    assert nowhere.parts == () and nowhere.peak == plain.peak


def test_a_tensor_in_two_memories_is_found() -> None:
    made = plan_memory(chain(), memory_bytes={"fast": ROOM, "slow": 0})
    parts = (ArenaPart("fast", 0, ROOM - 64), ArenaPart("slow", ROOM - 64, ROOM + 64))
    with pytest.raises(AssertionError, match="two memories"):
        check_memory_plan(replace(made, plan=replace(made.plan, parts=parts)))
