# SPDX-License-Identifier: Apache-2.0
"""Join the programs of the tiers of a model, each for some of its sizes, to one program that chooses in each run.

    joined = join_tiers("net", sizes, (TierProgram({"batch": DimRange(1, 1)}, one), ...), shapes)
    joined.body             # (TierChoice((Tier({"batch": 1}, ...), ...)),)

Each tier keeps its kernels, its schedule and its memory plan. The arena is that of the tier that needs most; all
tiers begin at its beginning, as only one of them runs. Constants are joined where they are stored: equal ones once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

from aotc.ir import AotcError, DimRange, Shape, SymDim, frozen, is_static, option_text, symbol_of_multiples
from aotc.tir.plan.arena_packing import align_up
from aotc.tir.plan.memory_plan import storages_of_block_counters
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step, Tier, TierChoice, steps_in
from aotc.tir.plan.size_checks import value_of_dim
from aotc.tir.plan.storage import ArenaPart, MemoryPlan, Storage, View


@frozen
class TierProgram:
    """Program of a tier: for some of the sizes of a model.

    sizes    range of each size of the model, by name; a size that the program does not depend on has one value
    """

    sizes: Mapping[str, DimRange]
    program: Program


def join_tiers(
    sizes: Mapping[str, DimRange], tiers: Sequence[TierProgram], shapes: tuple[Sequence[Shape], Sequence[Shape]]
) -> Program:
    """Return a program that runs the first of several programs in whose ranges the sizes of a run are.

    sizes     ranges of the sizes of all tiers, by name
    shapes    shapes of the inputs and of the outputs, as formulas over these sizes

    Raise AotcError (code "dims") if a program has what tiers cannot have, or inputs or outputs of other types or
    shapes.
    """
    first = tiers[0].program
    stated = {symbol_of_multiples(name, step) for name, r in sizes.items() for step in {1, *r.steps}}
    dims = [dim for dim in chain.from_iterable(chain(*shapes)) if isinstance(dim, SymDim)]
    rounded = {symbol for dim in dims for symbol in dim.symbols} - stated
    for tier in tiers:
        _require_program_can_be_tier(tier.program, rounded)
    inputs = _joined_storages([tier.program.inputs for tier in tiers], shapes[0])
    outputs = _joined_storages([tier.program.outputs for tier in tiers], shapes[1])
    for tier in tiers:
        _require_equal_interfaces(tier, inputs, outputs)
    plan = _plan_with_own_counters([tier.program for tier in tiers])
    homes = {storage: home for tier in tiers for storage, home in tier.program.homes.items()}
    choice = TierChoice(tuple(_tier_with_storages(tier, inputs, outputs) for tier in tiers))
    return Program(name=first.name, inputs=inputs, outputs=outputs, body=(choice,), homes=homes, plan=plan, sizes=sizes)


def describe_tiers(program: Program) -> list[dict[str, Any]]:
    """Return for each tier of a program the ranges of sizes by name, the bytes of its arena, and the numbers of its
    first step and of the step behind its last one.
    """
    rows: list[dict[str, Any]] = []
    first = 0
    for tier in program.tiers:
        dims = {name: tier.sizes[name].description for name, r in program.sizes.items() if r.tiers}
        behind = first + sum(1 for _ in steps_in(tier.body))
        rows.append({"dims": dims, "arena": tier.workspace_bytes, "first_step": first, "end_step": behind})
        first = behind
    return rows


def _require_program_can_be_tier(program: Program, rounded: Set[str]) -> None:
    """Raise AotcError (code "dims") for a program with state, sizes in values, sizes that formulas define, or tensors
    in the arena of callers.

    rounded    names of sizes in the shapes of the model that are no sizes of inputs
    """
    defined = sorted({*rounded, *(d.name for d in program.definitions)})
    pairs = [
        (bool(program.state), "keeps state between runs"),
        (bool(program.operands), f"has sizes that are values of inputs: {', '.join(program.operands)}"),
        (bool(program.found), f"has sizes that a run finds: {', '.join(node.size for node in program.found)}"),
        (bool(defined), f"has sizes that are rounded products of others: {', '.join(defined)}"),
        (bool(program.resident), "has inputs or outputs in the workspace"),
    ]
    for is_refused, text in pairs:
        if is_refused:
            hint = "give one size or one range: " + option_text("dims", {"NAME": (1, 8)})
            raise AotcError("dims", f"a model that {text} cannot be compiled in several tiers", hint=hint)


def _joined_storages(sides: Sequence[Sequence[Storage]], shapes: Sequence[Shape]) -> tuple[Storage, ...]:
    """Return the inputs or the outputs of all tiers, with the largest extents of any tier."""
    joined = []
    for shape, *storages in zip(shapes, *sides, strict=True):
        largest = tuple(max(extents) for extents in zip(*(s.shape for s in storages), strict=True))
        joined.append(replace(storages[0], shape=largest, dims=None if is_static(shape) else tuple(shape)))
    return tuple(joined)


def _require_equal_interfaces(tier: TierProgram, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> None:
    """Raise AotcError (code "dims") unless a program has these inputs and outputs for its sizes."""
    for own, joined in zip((*tier.program.inputs, *tier.program.outputs), (*inputs, *outputs), strict=True):
        types = [(s.name, s.dtype, s.quantization, s.is_string, len(s.shape)) for s in (own, joined)]
        ends = list(_sizes_at_ends(tier.sizes))
        if types[0] != types[1] or any(_shape_at(own, at) != _shape_at(joined, at) for at in ends):
            found = ", ".join(f"{name} {r.description}" for name, r in tier.sizes.items())
            text = f"{own.name!r} is {own.dtype}[{', '.join(own.dim_texts)}] for {found}, "
            text += f"and {joined.dtype}[{', '.join(joined.dim_texts)}] for all sizes"
            hint = "give one size or one range: " + option_text("dims", {"NAME": (1, 8)})
            raise AotcError("dims", f"the tiers of a model need equal interfaces: {text}", hint=hint)


def _sizes_at_ends(sizes: Mapping[str, DimRange]) -> Iterator[dict[str, int]]:
    """Yield values of symbols for the least and the largest sizes."""
    for ends in ({n: r.least for n, r in sizes.items()}, {n: r.most for n, r in sizes.items()}):
        yield ends | {symbol_of_multiples(name, r.step): ends[name] // r.step for name, r in sizes.items()}


def _shape_at(storage: Storage, symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(value_of_dim(dim, symbols) for dim in storage.run_time_shape)


def _tier_with_storages(tier: TierProgram, inputs: Sequence[Storage], outputs: Sequence[Storage]) -> Tier:
    """Return the calls of a program, with the memory of inputs and outputs replaced."""
    program = tier.program
    own = (*program.inputs, *program.outputs)
    joined = dict(zip(own, (*inputs, *outputs), strict=True))

    def new_view(view: View) -> View:
        return replace(view, storage=joined[view.storage]) if view.storage in joined else view

    def new_steps(step: Step) -> tuple[Step, ...]:
        return (replace(step, args=tuple(map(new_view, step.args))),)

    body = program.map_steps(new_steps, new_view).body
    return Tier(tier.sizes, body, program.checks, program.plan.peak)


def _plan_with_own_counters(programs: Sequence[Program]) -> MemoryPlan:
    """Return the joined plan, in which no tier uses the memory of counters of another one's last-block reductions:
    they must stay zero between runs.
    """
    plan = _joined_plan([program.plan for program in programs])
    counters = [s for program in programs for s in storages_of_block_counters(program) if s in plan.offsets]
    if not counters:
        return plan
    assert not plan.parts, "targets with several memories have no last-block reductions"
    offsets, peak = dict(plan.offsets), plan.peak
    for storage in counters:
        offsets[storage] = align_up(peak, plan.align)
        peak = offsets[storage] + storage.nbytes
    return replace(plan, offsets=offsets, peak=peak)


def _joined_plan(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """Return a plan in which each part of the arena has the size that the plan needing most of it has."""
    largest = max(plans, key=lambda plan: plan.peak)
    align, bound = max(plan.align for plan in plans), max(plan.lower_bound for plan in plans)
    memories = tuple(dict.fromkeys(part.memory for plan in (largest, *plans) for part in plan.parts))
    if not memories:
        offsets = dict(chain.from_iterable(plan.offsets.items() for plan in plans))
        return MemoryPlan(offsets, largest.peak, bound, align)
    sizes = [max(p.bytes for plan in plans for p in plan.parts if p.memory == memory) for memory in memories]
    rounded = [-(-size // align) * align for size in sizes[:-1]] + sizes[-1:]
    begins = dict(zip(memories, accumulate(rounded, initial=0), strict=False))
    parts = tuple(ArenaPart(m, begins[m], size) for m, size in zip(memories, sizes, strict=True))
    offsets = {}
    for plan in plans:
        for storage in plan.offsets:
            number, at = plan.arena_part_and_offset(storage)
            offsets[storage] = (begins[plan.parts[number].memory] if plan.parts else 0) + at
    return MemoryPlan(offsets, parts[-1].begin + parts[-1].bytes, bound, align, parts)
