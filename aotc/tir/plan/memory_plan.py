# SPDX-License-Identifier: Apache-2.0
"""Static memory plan of a program: in-place computation, and offsets of temporaries that share one
arena.

Input: a Program whose temporaries have no addresses yet. Output of `write_outputs_over_dying_inputs`: a
Program whose kernels overwrite dying inputs where possible; output of `plan_memory`: a Program with
`plan` filled in.

    program = plan_memory(write_outputs_over_dying_inputs(program))
    program.plan.peak, program.plan.lower_bound, program.plan.bytes_above_lower_bound
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from types import MappingProxyType

from aotc.ir import same_dim
from aotc.tir import (
    Buffer,
    Expr,
    Load,
    Stmt,
    buffers_of_last_block_counters,
    make_copy_step,
    make_loops_serial_for_overlap,
    min_overlap_distance_bytes,
    operands,
    with_operands,
)
from aotc.tir.plan.arena_packing import LiveBlock, align_up, max_overlap_bytes, place_blocks_in_arena
from aotc.tir.plan.memory_space_assignment import (
    arrange_in_first_memory_or_spread,
    element_accesses_per_storage,
    spread_blocks_over_memories,
)
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Branch, Define, Loop, Step, map_nodes, nodes_with_step_numbers
from aotc.tir.plan.storage import ArenaPart, MemoryPlan, Storage, View
from aotc.tir.stmt import Kernel, map_exprs, memoized_kernel


@dataclass(slots=True)
class Lifetime:
    """Lifetime of a temporary: the steps from its first write to its last read."""

    first_step: int
    last_step: int


def lifetimes_of_temporaries(program: Program) -> dict[Storage, Lifetime]:
    """Return the lifetime of each temporary, in steps.

    Counters of last-block reductions are live in all steps, as they must stay zero between runs. The
    condition of a branch is live until the first step in its arms begins, and the value of a size until the next
    step does. What is written before a loop
    and read in it is live until the step after the loop, as the next iteration reads it again.
    """
    lives: dict[Storage, Lifetime] = {}
    for k, step in enumerate(program.steps):
        for view in step.args:
            if view.storage.kind == "temp":
                lives.setdefault(view.storage, Lifetime(k, k)).last_step = k
    _extend_lifetimes_over_control_flow(program, lives)
    last = len(program.steps) - 1
    for storage, place_of in program.resident.items():
        # callers fill all inputs before a run, and read all outputs after it
        lives[place_of] = (
            Lifetime(0, lives[place_of].last_step)
            if storage.kind == "input"
            else Lifetime(lives[place_of].first_step, last)
        )
    counts = storages_of_block_counters(program)
    return {s: Lifetime(0, last) if s in counts else life for s, life in lives.items()}


def storages_of_block_counters(program: Program) -> dict[Storage, None]:
    """Return the temporaries with counters of last-block reductions, in the order of the steps, as keys."""
    found: dict[Storage, None] = {}
    for step in program.steps:
        counters = buffers_of_last_block_counters(step.kernel)
        pairs = zip(step.kernel.params, step.args, strict=True) if counters else ()
        found |= {view.storage: None for buffer, view in pairs if buffer in counters}
    return found


def _extend_lifetimes_over_control_flow(program: Program, lives: dict[Storage, Lifetime]) -> None:
    """Extend the lifetimes of temporaries, found from the arguments of steps, to conditions and loops."""
    nodes = list(nodes_with_step_numbers(program.body))
    conditions = [(node.condition.storage, numbers.start) for node, numbers in nodes if isinstance(node, Branch)]
    conditions += [(node.value.storage, numbers.start) for node, numbers in nodes if isinstance(node, Define)]
    for storage, number in conditions:
        if storage in lives:
            lives[storage].last_step = max(lives[storage].last_step, number)
    loops = [numbers for node, numbers in nodes if isinstance(node, Loop)]
    steps = program.steps if loops else ()
    accesses = [(view.storage, number) for number, step in enumerate(steps) for view in step.args]
    begins = {storage: life.first_step for storage, life in lives.items()}
    for storage, number in accesses + conditions:
        for loop in loops:
            if number in loop and begins.get(storage, loop.start) < loop.start:
                lives[storage].last_step = max(lives[storage].last_step, loop.stop)


def _output_input_pairs_sharable_in_place(
    step: Step, step_number: int, lifetime_of_storage: dict[Storage, Lifetime]
) -> list[tuple[int, int]]:
    """Return (output, input) pairs that can share a buffer: the input dies in the step and the
    sizes are equal.
    """
    pairs: list[tuple[int, int]] = []
    for out_index, in_index in step.kernel.inplace:
        out, source = step.outputs[out_index], step.inputs[in_index]
        if any(out_index == o or in_index == i for o, i in pairs):
            continue
        same = have_equal_bytes(out.storage, source.storage)
        whole = out.offset == 0 and source.offset == 0 and same
        both_temp = out.storage.kind == source.storage.kind == "temp"
        once = sum(view.storage is source.storage for view in step.args) == 1
        if (
            both_temp
            and whole
            and once
            and lifetime_of_storage[source.storage].last_step
            == step_number
            == lifetime_of_storage[out.storage].first_step
        ):
            pairs.append((out_index, in_index))
    return pairs


def have_equal_bytes(first: Storage, second: Storage) -> bool:
    """Return True if two tensors have equally many bytes, at all sizes of a run."""
    if first.dims is None and second.dims is None:
        return first.nbytes == second.nbytes
    counts = (s.element_count * s.dtype.itemsize for s in (first, second))
    return first.nbytes == second.nbytes and same_dim(*counts)


def _replace_buffers_in_loads(expr: Expr, mapping: dict[Buffer, Buffer]) -> Expr:
    fresh = with_operands(expr, tuple(_replace_buffers_in_loads(o, mapping) for o in operands(expr)))
    if isinstance(fresh, Load) and fresh.buffer in mapping:
        return Load(mapping[fresh.buffer], fresh.index, fresh.lanes, fresh.stride)
    return fresh


def merge_inplace_params(kernel: Kernel, output_input_pairs: tuple[tuple[int, int], ...]) -> Kernel:
    """Return the kernel with each (output, input) pair merged into one output parameter."""

    def build_merged_kernel() -> Kernel:
        mapping = {kernel.inputs[i]: kernel.outputs[o] for o, i in output_input_pairs}
        body: Stmt = map_exprs(kernel.body, lambda e: _replace_buffers_in_loads(e, mapping))
        inputs = tuple(b for b in kernel.inputs if b not in mapping)
        return replace(kernel, inputs=inputs, body=body, inplace=())

    return memoized_kernel(f"in place {output_input_pairs}", kernel, kernel.span, build_merged_kernel)


def write_outputs_over_dying_inputs(
    program: Program,
    are_loops_proven_for: Callable[[Kernel, Collection[Buffer]], bool] = lambda kernel, buffers: not kernel.numbers,
) -> Program:
    """Let kernels write outputs over dying inputs where the kernel allows it; return the new
    program.

    are_loops_proven_for    returns True if the loops of a kernel are proven as far as accesses to some buffers
                            count: a kernel whose extents are numbers stays as it is unless its loops are proven in
                            place, too
    """
    lives = lifetimes_of_temporaries(program)
    homes: dict[Storage, Storage] = {}
    merged = cache(merge_inplace_params)

    @cache
    def is_proven_in_place(kernel: Kernel, pairs: tuple[tuple[int, int], ...]) -> bool:
        # the proof may need more than the verifier knows of extents that are numbers
        shared = [kernel.outputs[o] for o, _ in pairs]
        return not kernel.numbers or are_loops_proven_for(merged(kernel, pairs), shared)

    numbers = count()

    def write_in_place(step: Step) -> tuple[Step]:
        pairs = tuple(_output_input_pairs_sharable_in_place(step, next(numbers), lives))
        if pairs and is_proven_in_place(step.kernel, pairs):
            homes.update({step.outputs[o].storage: step.inputs[i].storage for o, i in pairs})
            merged_inputs = {i for _, i in pairs}
            inputs = tuple(view for i, view in enumerate(step.inputs) if i not in merged_inputs)
            args = (*inputs, *step.outputs, *step.workspace)
            step = replace(step, kernel=merged(step.kernel, pairs), args=args)
        return (step,)

    return replace(program.map_steps(write_in_place), homes=homes)


def place_inputs_and_outputs_in_arena(program: Program) -> Program:
    """Place inputs and outputs in the arena; steps at the beginning and end copy the caller's
    arrays.
    """
    kept = {storage for tensor in program.state for storage in (tensor.past, tensor.present)}
    read_at_entry = {operand.input for operand in program.operands.values()}
    resident = {
        storage: Storage(name=storage.name, dtype=storage.dtype, shape=storage.shape, dims=storage.dims)
        for storage in dict.fromkeys((*program.inputs, *program.outputs))
        if storage.size
        and storage not in kept
        and storage.name not in read_at_entry
        and any(v.storage is storage for node in program.body for v in (*node.inputs, *node.outputs))
    }

    def resident_view(view: View) -> View:
        return View(resident.get(view.storage, view.storage), view.offset)

    def use_resident_storages(step: Step) -> tuple[Step]:
        return (replace(step, args=tuple(map(resident_view, step.args))),)

    entries = [make_copy_step(View(s), View(resident[s])) for s in program.inputs if s in resident]
    exits = [make_copy_step(View(resident[s]), View(s)) for s in program.outputs if s in resident]
    body = map_nodes(program.body, use_resident_storages, resident_view)
    return replace(program, body=(*entries, *body, *exits), resident=resident)


def min_start_distances_of_overlap_pairs(program: Program) -> dict[tuple[Storage, Storage], int]:
    """Return, for each (output, dying input) pair of a step that may overlap, the least distance
    between their starts.

    The distance is the number of bytes by which the output must start before the input where both
    overlap.
    """
    lifetimes = lifetimes_of_memory_owners(program)
    distances = cache(min_overlap_distance_bytes)
    min_distances: dict[tuple[Storage, Storage], int] = {}
    for k, step in enumerate(program.steps):
        for output, source in ((o, i) for o in range(len(step.outputs)) for i in range(len(step.inputs))):
            if _is_output_created_where_input_dies(program, step, lifetimes, k, output, source):
                kernel = step.kernel
                distance = distances(kernel, kernel.outputs[output], kernel.inputs[source])
                out, early = step.outputs[output].storage, step.inputs[source].storage
                if distance is not None and distance < early.nbytes:
                    min_distances[out, memory_owner(program, early)] = distance
    return min_distances


def shareable_bytes_of_output_input_pairs(
    program: Program, may_overlap: bool, align: int
) -> dict[tuple[Storage, Storage], int]:
    """Return, for each (output, dying input) pair of a step, the number of bytes that can be
    shared.

    may_overlap    True if outputs may overlap inputs
    align          bytes that every temporary is aligned to
    """
    distances = cache(min_overlap_distance_bytes)
    shareable_bytes: dict[tuple[Storage, Storage], int] = {}
    for step in program.steps:
        for output, out in enumerate(step.outputs):
            for source, early in enumerate(step.inputs):
                size, other = out.storage.nbytes, early.storage.nbytes
                if (output, source) in step.kernel.inplace and have_equal_bytes(out.storage, early.storage):
                    shareable_bytes[out.storage, early.storage] = align_up(size, align)
                elif may_overlap and out.storage.kind == early.storage.kind == "temp":
                    least = distances(step.kernel, step.kernel.outputs[output], step.kernel.inputs[source])
                    if least is not None and least < other:
                        shareable_bytes[out.storage, early.storage] = max_overlap_bytes(size, other, least, align)
    return shareable_bytes


def _is_output_created_where_input_dies(
    program: Program,
    step: Step,
    lifetime_of: dict[Storage, Lifetime],
    step_number: int,
    output_index: int,
    input_index: int,
) -> bool:
    """Return True if an output is created and an input dies in a step, each with its whole buffer."""
    out, early = step.outputs[output_index], step.inputs[input_index]
    if not out.storage.kind == early.storage.kind == "temp" or out.offset or early.offset:
        return False
    home = memory_owner(program, early.storage)
    if out.storage in program.homes or home is out.storage or home.nbytes != early.storage.nbytes:
        return False
    once = all(sum(v.storage is s for v in step.args) == 1 for s in (out.storage, early.storage))
    return once and lifetime_of[home].last_step == step_number == lifetime_of[out.storage].first_step


def lifetimes_of_memory_owners(program: Program) -> dict[Storage, Lifetime]:
    """Return the temporaries that own memory and their lifetimes, extended by in-place results."""
    lifetimes: dict[Storage, Lifetime] = {}
    for storage, life in lifetimes_of_temporaries(program).items():
        group = lifetimes.setdefault(memory_owner(program, storage), Lifetime(life.first_step, life.last_step))
        group.first_step, group.last_step = min(group.first_step, life.first_step), max(group.last_step, life.last_step)
    return lifetimes


def memory_owner(program: Program, storage: Storage) -> Storage:
    """Return the temporary that owns the memory of `storage`: itself, or the temporary it
    overwrites in place.
    """
    while storage in program.homes:
        storage = program.homes[storage]
    return storage


def plan_memory(
    program: Program,
    align: int = 64,
    outputs_may_overlap_inputs: bool = False,
    memory_bytes: Mapping[str, int] | None = None,
) -> Program:
    """Return the program with addresses for its temporaries; it always succeeds.

    align                         alignment of every temporary in bytes: a cache line, and the widest vector
    outputs_may_overlap_inputs    True if outputs may overlap dying inputs as far as the order of accesses
                                  permits
    memory_bytes                  size in bytes of each memory that may hold the arena, fastest first, 0 for
                                  unlimited. If the first is too small, temporaries are spread over all
                                  memories; if they do not fit, the plan assumes a single memory
    """
    lifetimes = lifetimes_of_memory_owners(program)
    pairs = min_start_distances_of_overlap_pairs(program) if outputs_may_overlap_inputs else {}
    number = {storage: k for k, storage in enumerate(lifetimes)}
    blocks = [LiveBlock(s.nbytes, life.first_step, life.last_step) for s, life in lifetimes.items()]
    near = {(number[a], number[b]): distance for (a, b), distance in pairs.items()}
    arrangement = place_blocks_in_arena(blocks, align, near)
    parts: tuple[ArenaPart, ...] = ()
    if memory_bytes:
        arrangement, parts = arrange_in_first_memory_or_spread(
            arrangement,
            memory_bytes,
            lambda room: spread_blocks_over_memories(
                blocks, _access_counts_of_memory_owners(program), room, align, near
            ),
        )
    offset_of = dict(zip(lifetimes, arrangement.offsets, strict=True))
    offsets = MappingProxyType(
        {storage: offset_of[memory_owner(program, storage)] for storage in lifetimes_of_temporaries(program)}
    )
    planned = replace(program, plan=MemoryPlan(offsets, arrangement.peak, arrangement.lower_bound, align, parts))
    return _make_kernels_serial_for_overlaps(planned) if pairs else planned


def _access_counts_of_memory_owners(program: Program) -> list[int]:
    """Return the estimated number of element accesses per run for each group of temporaries that
    share memory.
    """
    counts = dict.fromkeys(lifetimes_of_memory_owners(program), 0)
    for storage, times in element_accesses_per_storage(program).items():
        if storage.kind == "temp":
            counts[memory_owner(program, storage)] += times
    return list(counts.values())


def _make_kernels_serial_for_overlaps(program: Program) -> Program:
    """Return the program with the loops of each kernel made serial if, in any of its calls, an output
    overlaps an input; such kernels record these pairs.
    """
    kernel_overlaps: dict[Kernel, set[tuple[int, int]]] = {}
    for step in program.steps:
        kernel_overlaps.setdefault(step.kernel, set()).update(intersecting_output_input_pairs(program, step))
    return program.replace_kernels(
        {kernel: make_loops_serial_for_overlap(kernel, tuple(pairs)) for kernel, pairs in kernel_overlaps.items()}
    )


def intersecting_output_input_pairs(program: Program, step: Step) -> list[tuple[int, int]]:
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


def check_memory_plan(program: Program) -> None:
    """Raise AssertionError unless temporaries with overlapping lifetimes have disjoint addresses,
    in-place pairs excepted.

    An in-place step writes its output to the memory of an input: both lifetimes include this step
    only, and the kernel has no separate parameter for the input. If an output partially overlaps a
    dying input, the kernel must be marked for it, and its accesses, which are analyzed again, must
    permit it.
    """
    lifetimes, plan = lifetimes_of_memory_owners(program), program.plan
    allowed = _permitted_output_input_overlaps(program)
    items = sorted(lifetimes, key=lambda s: lifetimes[s].first_step)
    for storage in lifetimes_of_temporaries(program):
        assert plan.offsets[storage] % plan.align == 0
        assert plan.offsets[storage] + storage.nbytes <= plan.peak
        number, at = plan.arena_part_and_offset(storage)
        assert not plan.parts or at + storage.nbytes <= plan.parts[number].bytes, f"{storage.name} is in two memories"
    for index, a in enumerate(items):
        for b in items[index + 1 :]:
            if lifetimes[b].first_step > lifetimes[a].last_step:
                break
            low, high = sorted((a, b), key=lambda s: plan.offsets[s])
            disjoint = plan.offsets[low] + low.nbytes <= plan.offsets[high] or 0 in (a.nbytes, b.nbytes)
            assert disjoint or (b, a) in allowed, f"{a.name} and {b.name} overlap in the arena"


def _permitted_output_input_overlaps(program: Program) -> set[tuple[Storage, Storage]]:
    """Return the (output, dying input) pairs whose overlap is permitted by the order of accesses in
    the kernel.
    """
    permitted_pairs: set[tuple[Storage, Storage]] = set()
    at, lifetimes = program.plan.offsets, lifetimes_of_memory_owners(program)
    for k, step in enumerate(program.steps):
        for output, source in intersecting_output_input_pairs(program, step) if step.kernel.overlaps else ():
            kernel, (out, early) = step.kernel, (step.outputs[output].storage, step.inputs[source].storage)
            least = min_overlap_distance_bytes(kernel, kernel.outputs[output], kernel.inputs[source])
            known = (output, source) in kernel.overlaps and _is_output_created_where_input_dies(
                program, step, lifetimes, k, output, source
            )
            if known and least is not None and at[early] - at[out] >= least:
                permitted_pairs.add((out, memory_owner(program, early)))
    return permitted_pairs
