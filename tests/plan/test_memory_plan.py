# SPDX-License-Identifier: Apache-2.0
"""The memory plan of programs: live ranges, sharing, work in place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aotc.ir.dtype import DType
from aotc.tir.expr import Buffer, Expr, Load, Var
from aotc.tir.plan.memory_plan import (
    check_memory_plan,
    lifetimes_of_temporaries,
    plan_memory,
    write_outputs_over_dying_inputs,
)
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import For, Kernel, Stmt, Store

F32 = DType("float32")
SIZE = 256


def storage(name: str, kind: str = "temp", size: int = SIZE) -> Storage:
    return Storage(name=name, dtype=F32, shape=(size,), kind=kind)


def elementwise(inputs: int, *, inplace: bool = True, workspace: int = 0) -> Kernel:
    """y[i] = sum of the inputs at i."""
    sources = tuple(Buffer(f"x{k}", F32, SIZE) for k in range(inputs))
    target = Buffer("y", F32, SIZE)
    scratch = tuple(Buffer(f"w{k}", F32, SIZE, "workspace") for k in range(workspace))
    i = Var("i")
    total: Expr = Load(sources[0], i)
    for source in sources[1:]:
        total = total + Load(source, i)
    body: Stmt = For(i, SIZE, Store(target, i, total))
    pairs = tuple((0, k) for k in range(inputs)) if inplace else ()
    return Kernel(name="add", inputs=sources, outputs=(target,), workspace=scratch, body=body, inplace=pairs)


def program(*steps: tuple[Kernel, list[Storage]]) -> Program:
    made = tuple(Step(kernel, tuple(View(s) for s in args)) for kernel, args in steps)
    outputs = tuple(v.storage for s in made for v in s.outputs if v.storage.kind == "output")
    return Program(name="p", inputs=(), outputs=outputs, body=made)


def in_arena(lowered: Program) -> Program:
    return plan_memory(write_outputs_over_dying_inputs(lowered))


def test_a_chain_in_place_needs_one_buffer() -> None:
    x, y = storage("x", "input"), storage("y", "output")
    a, b, c = storage("a"), storage("b"), storage("c")
    kernel = elementwise(1)
    planned = in_arena(program((kernel, [x, a]), (kernel, [a, b]), (kernel, [b, c]), (kernel, [c, y])))
    check_memory_plan(planned)
    assert planned.plan.peak == SIZE * 4 == planned.plan.lower_bound
    assert [len(s.kernel.inputs) for s in planned.steps] == [1, 0, 0, 1]
    assert len(planned.distinct_kernels) == 2  # the same rewriting is made once


def test_the_merged_kernel_reads_what_it_writes() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b")
    planned = in_arena(program((elementwise(1), [x, a]), (elementwise(2), [a, x, b]), (elementwise(1), [b, y])))
    merged = planned.steps[1].kernel
    assert [b.name for b in merged.params] == ["x1", "y"]
    loop = merged.body
    assert isinstance(loop, For) and isinstance(loop.body, Store)
    value = loop.body.value
    assert value == Load(merged.outputs[0], loop.var) + Load(merged.inputs[0], loop.var)


def test_an_input_that_lives_on_is_kept() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b")
    planned = in_arena(program((elementwise(1), [x, a]), (elementwise(1), [a, b]), (elementwise(2), [a, b, y])))
    check_memory_plan(planned)
    assert planned.plan.peak == 2 * SIZE * 4
    assert len(planned.steps[1].kernel.inputs) == 1


def test_an_input_passed_twice_is_kept() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b")
    planned = in_arena(program((elementwise(1), [x, a]), (elementwise(2), [a, a, b]), (elementwise(1), [b, y])))
    assert len(planned.steps[1].kernel.inputs) == 2
    check_memory_plan(planned)


def test_workspace_lives_for_one_step() -> None:
    x, y = storage("x", "input"), storage("y", "output")
    a, w = storage("a"), storage("w")
    kernel = elementwise(1, inplace=False, workspace=1)
    later = storage("w2")
    planned = in_arena(program((kernel, [x, a, w]), (kernel, [a, y, later])))
    lives = lifetimes_of_temporaries(planned)
    assert (lives[w].first_step, lives[w].last_step) == (0, 0)
    assert planned.plan.peak == 2 * SIZE * 4
    check_memory_plan(planned)


def test_the_check_finds_an_overlap() -> None:
    x, y, a, b = storage("x", "input"), storage("y", "output"), storage("a"), storage("b")
    kernel = elementwise(1, inplace=False)
    planned = in_arena(program((kernel, [x, a]), (kernel, [a, b]), (kernel, [b, y])))
    check_memory_plan(planned)
    broken = {**planned.plan.offsets, b: planned.plan.offsets[a]}
    planned = replace(planned, plan=replace(planned.plan, offsets=broken))
    with pytest.raises(AssertionError, match="overlap"):
        check_memory_plan(planned)
