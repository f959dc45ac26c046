# SPDX-License-Identifier: Apache-2.0
"""Join the programs of the tiers of a model, each for some of its sizes, to one program that chooses in each run.

    joined = join_tiers(sizes, (TierProgram({"batch": DimRange(1, 1)}, one), ...), shapes_of_inputs)
    joined.body             # (TierChoice((Tier({"batch": 1}, ...), ...)),)

Each tier keeps its kernels, its schedule and its memory plan. The arena is that of the tier that needs most; all
tiers begin at its beginning, as only one of them runs. Constants are joined where they are stored: equal ones once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

from aotc.ir import (
    AotcError,
    Dim,
    DimRange,
    Shape,
    SymDim,
    bound_dim,
    frozen,
    is_static,
    option_text,
    symbol_of_multiples,
)
from aotc.tir.plan.arena_packing import align_up
from aotc.tir.plan.memory_plan import storages_of_block_counters
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Step, Tier, TierChoice, steps_in
from aotc.tir.plan.storage import ArenaPart, MemoryPlan, Storage, View
from aotc.tir.plan.tier_extents import TierExtent, extent_in_all_tiers, is_extent_of_tier


@frozen
class TierProgram:
    """Program of a tier: for some of the sizes of a model.

    sizes    range of each size of the model, by name; a size that the program does not depend on has one value
    """

    sizes: Mapping[str, DimRange]
    program: Program


def join_tiers(
    sizes: Mapping[str, DimRange],
    tiers: Sequence[TierProgram],
    inputs: Sequence[Shape],
    outputs: Sequence[Shape] | None = None,
) -> Program:
    """Return a program that runs the first of several programs in whose ranges the sizes of a run are.

    sizes      ranges of the sizes of all tiers, by name
    inputs     shapes of the inputs, as formulas over these sizes
    outputs    shapes of the outputs for the whole range of sizes, which are taken where they are those of the tiers;
               None if they are not known

    Raise AotcError (code "dims") if a program has what tiers cannot have, or inputs or outputs of other types or
    shapes.
    """
    for tier in tiers:
        _require_program_can_be_tier(tier.program)
    _require_equal_types(tiers)
    joined_inputs = _joined_storages([tier.program.inputs for tier in tiers], inputs)
    _require_declared_inputs(sizes, tiers, joined_inputs)
    shapes = _output_shapes(sizes, tiers, outputs)
    joined_outputs = _joined_storages([tier.program.outputs for tier in tiers], shapes)
    plan = _plan_with_own_counters([tier.program for tier in tiers])
    homes = {storage: home for tier in tiers for storage, home in tier.program.homes.items()}
    choice = TierChoice(tuple(_tier_with_storages(tier, joined_inputs, joined_outputs) for tier in tiers))
    return Program(
        name=tiers[0].program.name,
        inputs=joined_inputs,
        outputs=joined_outputs,
        body=(choice,),
        homes=homes,
        plan=plan,
        sizes=sizes,
    )


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


def _require_program_can_be_tier(program: Program) -> None:
    """Raise AotcError (code "dims") for a program with state, sizes in values, sizes that formulas define, or tensors
    in the arena of callers.
    """
    defined = [d.name for d in program.definitions]
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


def _require_equal_types(tiers: Sequence[TierProgram]) -> None:
    """Raise AotcError (code "dims") if the inputs or outputs of tiers differ in more than their extents."""
    first = tiers[0]
    for tier in tiers[1:]:
        for side in ("inputs", "outputs"):
            for one, other in zip(getattr(first.program, side), getattr(tier.program, side), strict=True):
                types = [(s.name, s.dtype, s.quantization, s.is_string, len(s.shape)) for s in (one, other)]
                if types[0] != types[1]:
                    raise _different_interfaces_error([(first, one), (tier, other)])


def _different_interfaces_error(storages: Iterable[tuple[TierProgram, Storage]]) -> AotcError:
    """Return the error for an input or output of tiers, given in some of them."""
    texts = [
        f"{s.name!r} is {s.dtype}[{', '.join(s.dim_texts)}] for "
        + ", ".join(f"{name} {r.description}" for name, r in tier.sizes.items())
        for tier, s in storages
    ]
    hint = "give one size or one range: " + option_text("dims", {"NAME": (1, 8)})
    return AotcError("dims", f"the tiers of a model need equal interfaces: {', and '.join(texts)}", hint=hint)


def _require_declared_inputs(
    sizes: Mapping[str, DimRange], tiers: Sequence[TierProgram], inputs: Sequence[Storage]
) -> None:
    """Raise AotcError (code "dims") unless each tier has inputs of the declared shapes."""
    for number, joined in enumerate(inputs):
        for axis, dim in enumerate(joined.run_time_shape):
            for tier in tiers:
                storage = tier.program.inputs[number]
                if not is_extent_of_tier(dim, TierExtent(tier.sizes, storage.run_time_shape[axis])):
                    raise _different_interfaces_error([(tier, storage), (TierProgram(sizes, tier.program), joined)])


def _output_shapes(
    sizes: Mapping[str, DimRange], tiers: Sequence[TierProgram], derived: Sequence[Shape] | None
) -> list[Shape]:
    """Return the shapes of the outputs as formulas over the sizes of all tiers.

    derived    the shapes for the whole range of sizes, if they are known
    """
    intervals = {n: (r.least, r.most) for n, r in sizes.items()}
    intervals |= {symbol_of_multiples(n, r.step): (r.least // r.step, r.most // r.step) for n, r in sizes.items()}
    shapes: list[Shape] = []
    for number, first in enumerate(tiers[0].program.outputs):
        of_tiers = [tier.program.outputs[number] for tier in tiers]
        known = () if derived is None else derived[number]
        candidates = known if len(known) == len(first.shape) else [None] * len(first.shape)
        dims: list[Dim] = []
        for axis, candidate in enumerate(candidates):
            extents = [TierExtent(t.sizes, s.run_time_shape[axis]) for t, s in zip(tiers, of_tiers, strict=True)]
            dim = extent_in_all_tiers(extents, candidate)
            if dim is None:
                raise _different_interfaces_error(zip(tiers, of_tiers, strict=True))
            dims.append(bound_dim(dim, intervals) if isinstance(dim, SymDim) else dim)
        shapes.append(tuple(dims))
    return shapes


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
