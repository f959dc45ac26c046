# SPDX-License-Identifier: Apache-2.0
"""Static memory plan of a program: in-place computation, and offsets of temporaries that share one
arena.

Input: a Program whose temporaries have no addresses yet. Output of `work_in_place`: a Program whose
kernels overwrite dying inputs where possible; output of `plan_memory`: a Program with `plan` filled
in.

    program = plan_memory(work_in_place(program))
    program.plan.peak, program.plan.lower_bound, program.plan.gap
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from aotc.tir import Buffer, Expr, Load, Stmt, copy_step, counters, in_sequence, least_distance, operands, with_operands
from aotc.tir.plan.arena_packing import Block, align_up, common, place
from aotc.tir.plan.memory_spaces import accessed, in_rooms, spread
from aotc.tir.plan.program import MemoryPlan, Part, Program, Step, Storage, View
from aotc.tir.stmt import Kernel, map_exprs, remembered_kernel


@dataclass(slots=True)
class Life:
    """Lifetime of a temporary: the steps from its first write to its last read."""

    first: int
    last: int


def lifetimes(program: Program) -> dict[Storage, Life]:
    """Return the lifetime of each temporary, in steps.

    Counters of last-block reductions are live in all steps, as they must stay zero between runs.
    """
    lives: dict[Storage, Life] = {}
    counts: set[Storage] = set()
    for k, step in enumerate(program.steps):
        for view in step.args:
            if view.storage.kind == "temp":
                lives.setdefault(view.storage, Life(k, k)).last = k
        kept = counters(step.kernel)
        counts |= {v.storage for b, v in zip(step.kernel.params, step.args, strict=True) if b in kept}
    last = len(program.steps) - 1
    for storage, place_of in program.resident.items():
        # callers fill all inputs before a run, and read all outputs after it
        lives[place_of] = (
            Life(0, lives[place_of].last) if storage.kind == "input" else Life(lives[place_of].first, last)
        )
    return {s: Life(0, last) if s in counts else life for s, life in lives.items()}


def _inplace_pairs(step: Step, k: int, lives: dict[Storage, Life]) -> list[tuple[int, int]]:
    """Return (output, input) pairs that can share a buffer: the input dies in the step and the sizes are equal."""
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
    """Return the kernel with each (output, input) pair merged into one output parameter."""

    def merged() -> Kernel:
        mapping = {kernel.inputs[i]: kernel.outputs[o] for o, i in pairs}
        body: Stmt = map_exprs(kernel.body, lambda e: _replace_buffers(e, mapping))
        inputs = tuple(b for b in kernel.inputs if b not in mapping)
        return replace(kernel, inputs=inputs, body=body, inplace=())

    return remembered_kernel(f"in place {pairs}", kernel, kernel.span, merged)


def work_in_place(program: Program) -> Program:
    """Let kernels write outputs over dying inputs where the kernel allows it; return the new program."""
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


def with_io(program: Program) -> Program:
    """Place inputs and outputs in the arena; steps at the beginning and end copy the caller's arrays."""
    resident = {
        storage: Storage(name=storage.name, dtype=storage.dtype, shape=storage.shape)
        for storage in dict.fromkeys((*program.inputs, *program.outputs))
        if storage.size and any(v.storage is storage for step in program.steps for v in step.args)
    }

    def moved(step: Step) -> Step:
        return replace(step, args=tuple(View(resident.get(v.storage, v.storage), v.offset) for v in step.args))

    entries = [copy_step(View(s), View(resident[s])) for s in program.inputs if s in resident]
    exits = [copy_step(View(resident[s]), View(s)) for s in program.outputs if s in resident]
    return replace(program, steps=(*entries, *map(moved, program.steps), *exits), resident=resident)


def overlapping(program: Program) -> dict[tuple[Storage, Storage], int]:
    """Return, for each (output, dying input) pair of a step that may overlap, the least distance
    between their starts.

    The distance is the number of bytes by which the output must start before the input where both
    overlap.
    """
    taken = groups(program)
    distances = cache(least_distance)
    found: dict[tuple[Storage, Storage], int] = {}
    for k, step in enumerate(program.steps):
        for output, source in ((o, i) for o in range(len(step.outputs)) for i in range(len(step.inputs))):
            if _may_overlap(program, step, taken, k, output, source):
                kernel = step.kernel
                distance = distances(kernel, kernel.outputs[output], kernel.inputs[source])
                out, early = step.outputs[output].storage, step.inputs[source].storage
                if distance is not None and distance < early.nbytes:
                    found[out, root(program, early)] = distance
    return found


def savings(program: Program, over: bool, align: int) -> dict[tuple[Storage, Storage], int]:
    """Return, for each (output, dying input) pair of a step, the number of bytes that can be shared.

    over    True if outputs may overlap inputs
    align   bytes that every temporary is aligned to
    """
    distances = cache(least_distance)
    found: dict[tuple[Storage, Storage], int] = {}
    for step in program.steps:
        for output, out in enumerate(step.outputs):
            for source, early in enumerate(step.inputs):
                size, other = out.storage.nbytes, early.storage.nbytes
                if (output, source) in step.kernel.inplace and size == other:
                    found[out.storage, early.storage] = align_up(size, align)
                elif over and out.storage.kind == early.storage.kind == "temp":
                    least = distances(step.kernel, step.kernel.outputs[output], step.kernel.inputs[source])
                    if least is not None and least < other:
                        found[out.storage, early.storage] = common(size, other, least, align)
    return found


def _may_overlap(program: Program, step: Step, taken: dict[Storage, Life], k: int, output: int, source: int) -> bool:
    """Return True if an output is created and an input dies in a step, each with its whole buffer."""
    out, early = step.outputs[output], step.inputs[source]
    if not out.storage.kind == early.storage.kind == "temp" or out.offset or early.offset:
        return False
    home = root(program, early.storage)
    if out.storage in program.homes or home is out.storage or home.nbytes != early.storage.nbytes:
        return False
    once = all(sum(v.storage is s for v in step.args) == 1 for s in (out.storage, early.storage))
    return once and taken[home].last == k == taken[out.storage].first


def groups(program: Program) -> dict[Storage, Life]:
    """Return the temporaries that own memory and their lifetimes, extended by in-place results."""
    found: dict[Storage, Life] = {}
    for storage, life in lifetimes(program).items():
        group = found.setdefault(root(program, storage), Life(life.first, life.last))
        group.first, group.last = min(group.first, life.first), max(group.last, life.last)
    return found


def root(program: Program, storage: Storage) -> Storage:
    """Return the temporary that owns the memory of `storage`: itself, or the temporary it
    overwrites in place.
    """
    while storage in program.homes:
        storage = program.homes[storage]
    return storage


def plan_memory(
    program: Program, align: int = 64, over: bool = False, rooms: Mapping[str, int] | None = None
) -> Program:
    """Return the program with addresses for its temporaries; it always succeeds.

    align   alignment of every temporary in bytes: a cache line, and the widest vector
    over    True if outputs may overlap dying inputs as far as the order of accesses permits
    rooms   size in bytes of each memory that may hold the arena, fastest first, 0 for unlimited. If
            the first is too small, temporaries are spread over all memories; if they do not fit,
            the plan assumes a single memory
    """
    taken = groups(program)
    pairs = overlapping(program) if over else {}
    number = {storage: k for k, storage in enumerate(taken)}
    blocks = [Block(s.nbytes, life.first, life.last) for s, life in taken.items()]
    near = {(number[a], number[b]): distance for (a, b), distance in pairs.items()}
    found = place(blocks, align, near)
    parts: tuple[Part, ...] = ()
    if rooms:
        found, parts = in_rooms(found, rooms, lambda room: spread(blocks, _weights(program), room, align, near))
    offset_of = dict(zip(taken, found.offsets, strict=True))
    offsets = MappingProxyType({storage: offset_of[root(program, storage)] for storage in lifetimes(program)})
    planned = replace(program, plan=MemoryPlan(offsets, found.peak, found.lower_bound, align, parts))
    return _marked(planned) if pairs else planned


def _weights(program: Program) -> list[int]:
    """Return the estimated number of element accesses per run for each group of temporaries that
    share memory.
    """
    found = dict.fromkeys(groups(program), 0)
    for storage, times in accessed(program).items():
        if storage.kind == "temp":
            found[root(program, storage)] += times
    return list(found.values())


def _marked(program: Program) -> Program:
    """Return the program with each kernel marked with the outputs that overlap inputs in any of its
    calls.
    """
    met: dict[Kernel, set[tuple[int, int]]] = {}
    for step in program.steps:
        met.setdefault(step.kernel, set()).update(overlaps(program, step))
    return program.with_kernels({kernel: in_sequence(kernel, tuple(pairs)) for kernel, pairs in met.items()})


def overlaps(program: Program, step: Step) -> list[tuple[int, int]]:
    """Return the (output, input) positions of a step whose byte ranges in the arena intersect."""
    at = program.plan.offsets
    outs, sources = (
        [(k, view.storage) for k, view in enumerate(views) if view.storage in at and view.storage.nbytes]
        for views in (step.outputs, step.inputs)
    )
    return [
        (o, i)
        for o, out in outs
        for i, early in sources
        if out is not early and at[out] < at[early] + early.nbytes and at[early] < at[out] + out.nbytes
    ]


def check_plan(program: Program) -> None:
    """Raise AssertionError unless temporaries with overlapping lifetimes have disjoint addresses,
    in-place pairs excepted.

    An in-place step writes its output to the memory of an input: both lifetimes include this step
    only, and the kernel has no separate parameter for the input. If an output partially overlaps a
    dying input, the kernel must be marked for it, and its accesses, which are analyzed again, must
    permit it.
    """
    taken, plan = groups(program), program.plan
    allowed = _allowed(program)
    items = sorted(taken, key=lambda s: taken[s].first)
    for storage in lifetimes(program):
        assert plan.offsets[storage] % plan.align == 0
        assert plan.offsets[storage] + storage.nbytes <= plan.peak
        number, at = plan.place(storage)
        assert not plan.parts or at + storage.nbytes <= plan.parts[number].bytes, f"{storage.name} is in two memories"
    for index, a in enumerate(items):
        for b in items[index + 1 :]:
            if taken[b].first > taken[a].last:
                break
            low, high = sorted((a, b), key=lambda s: plan.offsets[s])
            apart = plan.offsets[low] + low.nbytes <= plan.offsets[high] or 0 in (a.nbytes, b.nbytes)
            assert apart or (b, a) in allowed, f"{a.name} and {b.name} overlap in the arena"


def _allowed(program: Program) -> set[tuple[Storage, Storage]]:
    """Return the (output, dying input) pairs whose overlap is permitted by the order of accesses in
    the kernel.
    """
    found: set[tuple[Storage, Storage]] = set()
    at, taken = program.plan.offsets, groups(program)
    for k, step in enumerate(program.steps):
        for output, source in overlaps(program, step) if step.kernel.overlaps else ():
            kernel, (out, early) = step.kernel, (step.outputs[output].storage, step.inputs[source].storage)
            least = least_distance(kernel, kernel.outputs[output], kernel.inputs[source])
            known = (output, source) in kernel.overlaps and _may_overlap(program, step, taken, k, output, source)
            if known and least is not None and at[early] - at[out] >= least:
                found.add((out, root(program, early)))
    return found
