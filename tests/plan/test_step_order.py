# SPDX-License-Identifier: Apache-2.0
"""The order of steps with the least peak memory, compared with all orders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from aotc.ir import DType
from aotc.tir.expr import Buffer
from aotc.tir.plan import arena_packing
from aotc.tir.plan import step_order as orders
from aotc.tir.plan.memory_plan import lifetimes_of_memory_owners
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.step_order import reorder_steps_for_least_peak
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Block, Kernel

I8 = DType("int8")


def step(inputs: list[Storage], output: Storage) -> Step:
    """A call that reads and writes whole tensors; what it computes does not matter."""
    sources = tuple(Buffer(f"x{k}", I8, s.size) for k, s in enumerate(inputs))
    kernel = Kernel(name="k", inputs=sources, outputs=(Buffer("y", I8, output.size),), body=Block(()))
    return Step(kernel, tuple(View(s) for s in (*inputs, output)))


def drawn(seed: int, count: int) -> Program:
    """Steps over one or two of the tensors before, of random sizes."""
    rng = np.random.default_rng(seed)
    made = [Storage(name="x", dtype=I8, shape=(8,), kind="input")]
    steps = []
    for k in range(count):
        out = Storage(name=f"t{k}", dtype=I8, shape=(8 * int(rng.integers(1, 100)),))
        taken = rng.choice(len(made), min(len(made), int(rng.integers(1, 3))), replace=False)
        steps.append(step([made[n] for n in taken], out))
        made.append(out)
    output = Storage(name="y", dtype=I8, shape=(8,), kind="output")
    read = {v.storage for s in steps for v in s.inputs}
    steps.append(step([s for s in made[1:] if s not in read], output))
    return Program(name="p", inputs=(made[0],), outputs=(output,), body=tuple(steps))


def bound(program: Program, steps: tuple[Step, ...] | None = None) -> int:
    made = program if steps is None else Program(**{**vars_of(program), "body": steps})
    return arena_packing.arena_size_lower_bound(
        [
            arena_packing.LiveBlock(s.nbytes, life.first_step, life.last_step)
            for s, life in lifetimes_of_memory_owners(made).items()
        ],
        1,
    )


def vars_of(program: Program) -> dict[str, object]:
    return {name: getattr(program, name) for name in ("name", "inputs", "outputs")}


def is_sound(steps: tuple[Step, ...]) -> bool:
    """Whether every tensor is written before it is read."""
    known: set[Storage] = set()
    for one in steps:
        if any(v.storage.kind == "temp" and v.storage not in known for v in one.inputs):
            return False
        known |= {v.storage for v in one.outputs}
    return True


@pytest.mark.parametrize("seed", range(25))
def test_no_order_needs_less(seed: int) -> None:
    program = drawn(seed, 5)
    least = min(bound(program, steps) for steps in permutations(program.steps) if is_sound(steps))
    made = reorder_steps_for_least_peak(program)
    assert is_sound(made.steps) and sorted(map(id, made.steps)) == sorted(map(id, program.steps))
    assert bound(made) == least
    assert reorder_steps_for_least_peak(program).steps == made.steps


def test_many_steps_are_ordered_greedily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MAX_VISITED_STEP_SETS", 50)
    better = 0
    for seed in range(10):
        program = drawn(seed, 40)
        made = reorder_steps_for_least_peak(program)
        assert is_sound(made.steps) and bound(made) <= bound(program)
        better += bound(made) < bound(program)
    assert better


def test_the_models_own_order_is_kept_where_none_is_better() -> None:
    x, y = (Storage(name=n, dtype=I8, shape=(8,), kind=kind) for n, kind in (("x", "input"), ("y", "output")))
    a = Storage(name="a", dtype=I8, shape=(8,))
    program = Program(name="p", inputs=(x,), outputs=(y,), body=(step([x], a), step([a], y)))
    assert reorder_steps_for_least_peak(program) is program
