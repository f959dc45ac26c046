# SPDX-License-Identifier: Apache-2.0
"""The static memory plan of a program: which temporaries share bytes of the one arena.

In: a Program whose temporaries have no place yet.  Out: one whose kernels work in place where an input dies that they
may overwrite; then one with `plan` filled in.

    program = plan_memory(work_in_place(program))
    program.plan.peak, program.plan.lower_bound, program.plan.gap
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from aotc.tir import Buffer, Expr, Kernel, Load, Stmt, map_exprs, operands, remembered_kernel, with_operands
from aotc.tir.launch import counters
from aotc.tir.plan.arena import Block, place
from aotc.tir.plan.program import MemoryPlan, Program, Step, Storage


@dataclass(slots=True)
class Life:
    """The steps from the first write to the last read of a temporary."""

    first: int
    last: int


def lifetimes(program: Program) -> dict[Storage, Life]:
    """When each temporary lives, in steps; what counts blocks does all the time: it is zero between runs, too."""
    lives: dict[Storage, Life] = {}
    counts: set[Storage] = set()
    for k, step in enumerate(program.steps):
        for view in step.args:
            if view.storage.kind == "temp":
                lives.setdefault(view.storage, Life(k, k)).last = k
        kept = counters(step.kernel)
        counts |= {v.storage for b, v in zip(step.kernel.params, step.args, strict=True) if b in kept}
    return {s: Life(0, len(program.steps) - 1) if s in counts else life for s, life in lives.items()}


def _inplace_pairs(step: Step, k: int, lives: dict[Storage, Life]) -> list[tuple[int, int]]:
    """(output, input) pairs of a step that can be one buffer: the input dies here, the sizes are equal."""
    pairs: list[tuple[int, int]] = []
    for out_index, in_index in step.kernel.inplace:
        out, source = step.outputs[out_index], step.inputs[in_index]
        if any(out_index == o or in_index == i for o, i in pairs):
            continue
        whole = out.offset == 0 and source.offset == 0 and out.storage.nbytes == source.storage.nbytes
        both_temp = out.storage.kind == source.storage.kind == "temp"
        once = sum(view.storage is source.storage for view in step.args) == 1
        if both_temp and whole and once and lives[source.storage].last == k == lives[out.storage].first:
            pairs.append((out_index, in_index))
    return pairs


def _replace_buffers(expr: Expr, mapping: dict[Buffer, Buffer]) -> Expr:
    fresh = with_operands(expr, tuple(_replace_buffers(o, mapping) for o in operands(expr)))
    if isinstance(fresh, Load) and fresh.buffer in mapping:
        return Load(mapping[fresh.buffer], fresh.index, fresh.lanes, fresh.stride)
    return fresh


def merged_kernel(kernel: Kernel, pairs: tuple[tuple[int, int], ...]) -> Kernel:
    """The kernel with each (output, input) pair merged into the one output parameter."""

    def merged() -> Kernel:
        mapping = {kernel.inputs[i]: kernel.outputs[o] for o, i in pairs}
        body: Stmt = map_exprs(kernel.body, lambda e: _replace_buffers(e, mapping))
        inputs = tuple(b for b in kernel.inputs if b not in mapping)
        return replace(kernel, inputs=inputs, body=body, inplace=())

    return remembered_kernel(f"in place {pairs}", kernel, kernel.span, merged)


def work_in_place(program: Program) -> Program:
    """The program whose kernels write results over inputs that nobody needs any more, where they may."""
    lives = lifetimes(program)
    homes: dict[Storage, Storage] = {}
    merged = cache(merged_kernel)
    steps: list[Step] = []
    for k, step in enumerate(program.steps):
        pairs = tuple(_inplace_pairs(step, k, lives))
        if pairs:
            homes.update({step.outputs[o].storage: step.inputs[i].storage for o, i in pairs})
            gone = {i for _, i in pairs}
            inputs = tuple(view for i, view in enumerate(step.inputs) if i not in gone)
            args = (*inputs, *step.outputs, *step.workspace)
            step = replace(step, kernel=merged(step.kernel, pairs), args=args)
        steps.append(step)
    return replace(program, steps=tuple(steps), homes=homes)


def groups(program: Program) -> dict[Storage, Life]:
    """The temporaries that have bytes of their own, and when these are taken, also by what is computed in place."""
    found: dict[Storage, Life] = {}
    for storage, life in lifetimes(program).items():
        group = found.setdefault(root(program, storage), Life(life.first, life.last))
        group.first, group.last = min(group.first, life.first), max(group.last, life.last)
    return found


def root(program: Program, storage: Storage) -> Storage:
    """Whose bytes a temporary takes over, itself if nobody's."""
    while storage in program.homes:
        storage = program.homes[storage]
    return storage


def plan_memory(program: Program, align: int = 64) -> Program:
    """The program with its temporaries placed; raises nothing: every program has a plan.

    align   bytes that every temporary is aligned to: a cache line, and the widest vector
    """
    taken = groups(program)
    found = place([Block(s.nbytes, life.first, life.last) for s, life in taken.items()], align)
    offset_of = dict(zip(taken, found.offsets, strict=True))
    offsets = MappingProxyType({storage: offset_of[root(program, storage)] for storage in lifetimes(program)})
    return replace(program, plan=MemoryPlan(offsets, found.peak, found.lower_bound, align))


def check_plan(program: Program) -> None:
    """Raise AssertionError unless temporaries that live together lie apart (in-place pairs excepted).

    An in-place step writes its output where its input was: there the two lives meet in that step alone,
    and the kernel no longer mentions the input.
    """
    lives = lifetimes(program)
    plan = program.plan
    items = sorted(lives, key=lambda s: lives[s].first)
    for index, a in enumerate(items):
        assert plan.offsets[a] % plan.align == 0
        assert plan.offsets[a] + a.nbytes <= plan.peak
        for b in items[index + 1 :]:
            if lives[b].first > lives[a].last:
                break
            low, high = sorted((a, b), key=lambda s: plan.offsets[s])
            apart = plan.offsets[low] + low.nbytes <= plan.offsets[high] or 0 in (a.nbytes, b.nbytes)
            assert apart, f"{a.name} and {b.name} overlap in the arena"
