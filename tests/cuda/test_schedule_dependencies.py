# SPDX-License-Identifier: Apache-2.0
"""Dependences between the steps of a GPU schedule."""

from __future__ import annotations

import itertools
import random

from aotc_codegen.cuda.launch_schedule import earlier_steps_each_step_waits_for, make_view_locator

from aotc.tir.plan.memory_plan import plan_memory
from aotc.tir.plan.program import Program
from tests.cuda.programs import SIZE, diamond, pointwise, step, storage


def test_steps_wait_for_data_and_for_memory() -> None:
    """The last branch writes where others still read, and what follows from other edges is left out."""
    assert earlier_steps_each_step_waits_for(diamond()) == [(), (0,), (0,), (1, 2), (3,), (4,)]
    x, ys = storage("x", "input"), [storage(f"y{k}", "output") for k in range(2)]
    one, two = storage("one"), storage("two")
    twice = pointwise("twice", "p * 2.0", "p")
    program = plan_memory(
        Program(
            name="net",
            inputs=(x,),
            outputs=tuple(ys),
            body=(step(twice, x, one), step(twice, one, ys[0]), step(twice, x, two), step(twice, two, ys[1])),
        )
    )
    assert program.plan.offsets[one] == program.plan.offsets[two]
    assert earlier_steps_each_step_waits_for(program) == [(), (0,), (1,), (2,)]


def test_long_chains_wait_for_the_step_before() -> None:
    x, y = storage("x", "input"), storage("y", "output")
    between = [storage(f"t{k}") for k in range(3000)]
    twice = pointwise("twice", "p * 2.0", "p")
    places = [x, *between, y]
    steps = tuple(step(twice, a, b) for a, b in itertools.pairwise(places))
    program = plan_memory(Program(name="net", inputs=(x,), outputs=(y,), body=steps))
    assert earlier_steps_each_step_waits_for(program) == [(), *((k,) for k in range(len(steps) - 1))]


def test_every_conflict_is_ordered() -> None:
    """Whatever overlaps with what another step writes is reachable from it, in random schedules."""
    rng = random.Random(7)
    for _ in range(20):
        program = shuffled(rng)
        place = make_view_locator(program)
        reach: list[set[int]] = []
        for own in earlier_steps_each_step_waits_for(program):
            assert list(own) == sorted(own)
            assert not any(a in reach[b] for a in own for b in own), "an edge that follows from others"
            reach.append({*own, *(far for near in own for far in reach[near])})
        for k, late in enumerate(program.steps):
            for j, early in enumerate(program.steps[:k]):
                writes = [place(v) for v in early.outputs], [place(v) for v in late.outputs]
                touches = [place(v) for v in late.args], [place(v) for v in early.args]
                pairs = [(a, b) for w, t in zip(writes, touches, strict=True) for a in w for b in t]
                if any(a[:2] == b[:2] and abs(a[2] - b[2]) < 4 * SIZE for a, b in pairs):
                    assert j in reach[k], (j, k)


def shuffled(rng: random.Random) -> Program:
    x, outputs = storage("x", "input"), [storage(f"y{k}", "output") for k in range(3)]
    made, steps = [x], []
    add = pointwise("add", "p + q", "p", "q")
    for k in range(30):
        made.append(storage(f"t{k}"))
        steps.append(step(add, rng.choice(made[:-1][-6:]), rng.choice(made[:-1][-6:]), made[-1]))
    steps += [step(add, *made[-2:], y) for y in outputs]
    return plan_memory(Program(name="net", inputs=(x,), outputs=tuple(outputs), body=tuple(steps)))
