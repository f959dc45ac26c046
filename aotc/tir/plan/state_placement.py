# SPDX-License-Identifier: Apache-2.0
"""Place the tensors that a model keeps between runs in a block of state, which callers own.

Input: a program whose state tensors are an input (what a run reads) and an output (what it writes).
Output: a program in which both are memory of the block of state.

    t0 = gru(x, h); y = dense(t0); h_out = copy(t0)   ->   h = gru(x, h); y = dense(h)

Runs write new contents over old ones if the kernel that writes comes after all that read, or may
compute in place. Otherwise the block has two copies: a run reads one and writes the other one, and
then the copies change roles, so that nothing is copied.
"""

from collections.abc import Container
from dataclasses import replace

from aotc.tir.plan.copy_elimination import is_copy_kernel
from aotc.tir.plan.memory_plan import merge_inplace_params
from aotc.tir.plan.program import Program, ProgramNode, StateTensor, Step, Storage, View
from aotc.tir.plan.state_window import place_window, replace_storages


def place_state(program: Program) -> Program:
    """Return the program with its state tensors in the block of state, no longer among its inputs
    and outputs.
    """
    steps, placed = program.body, list[StateTensor]()
    placed_in_arena = frozenset(program.resident.values())
    for tensor in program.state:
        steps, in_block = _place_state_tensor(steps, tensor, placed_in_arena)
        placed.append(in_block)
    past, present = ({getattr(t, role) for t in program.state} for role in ("past", "present"))
    return replace(
        program,
        inputs=tuple(s for s in program.inputs if s not in past),
        outputs=tuple(s for s in program.outputs if s not in present),
        body=steps,
        state=tuple(placed),
    )


def _place_state_tensor(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, placed_in_arena: Container[Storage]
) -> tuple[tuple[ProgramNode, ...], StateTensor]:
    """Return the steps and branches with the storages of a state tensor replaced by memory of the block.

    placed_in_arena    temporaries that callers access in the arena
    """
    past, present = tensor.past, tensor.present
    if (window := place_window(steps, tensor, placed_in_arena)) is not None:
        return window
    memory = replace(past, kind="state", quantization=None)
    steps = tuple(step for step in steps if not _copies_old_contents_unchanged(step, past, present))
    in_place = _steps_updating_in_place(steps, past, present, memory)
    if in_place is not None:
        return in_place, StateTensor(past=memory, present=memory, initial=tensor.initial)
    other = replace(present, kind="state", quantization=None)
    renamed = replace_storages(steps, {past: memory, present: other})
    return renamed, StateTensor(past=memory, present=other, initial=tensor.initial)


def _copies_old_contents_unchanged(step: ProgramNode, past: Storage, present: Storage) -> bool:
    """Return True if a step copies the old contents to the new ones, which changes nothing."""
    if not isinstance(step, Step) or past.size != present.size:
        return False
    return is_copy_kernel(step.kernel) and step.args == (View(past), View(present))


def _steps_updating_in_place(
    steps: tuple[ProgramNode, ...], past: Storage, present: Storage, memory: Storage
) -> tuple[ProgramNode, ...] | None:
    """Return the steps with new contents written over old ones; None if a step reads the old
    contents after the new ones are written.
    """
    steps = _write_after_last_read(steps, past, present)
    last_read, write = _last_read_and_write(steps, past, present)
    if last_read == write and write >= 0:
        last = steps[write]
        step = _step_computing_in_place(last, past, present) if isinstance(last, Step) else None
        if step is None:
            return None
        steps = (*steps[:write], step, *steps[write + 1 :])
    elif last_read > write >= 0:
        return None
    return replace_storages(steps, {past: memory, present: memory})


def _last_read_and_write(steps: tuple[ProgramNode, ...], past: Storage, present: Storage) -> tuple[int, int]:
    """Return the numbers of the last step that reads the old contents, and of the step that writes
    the new ones; -1 if there is none.
    """
    last_read = max((k for k, step in enumerate(steps) if _has_storage(step.inputs, past)), default=-1)
    write = max((k for k, step in enumerate(steps) if _has_storage(step.outputs, present)), default=-1)
    return last_read, write


def _has_storage(views: tuple[View, ...], storage: Storage) -> bool:
    return any(view.storage is storage for view in views)


def _write_after_last_read(steps: tuple[ProgramNode, ...], past: Storage, present: Storage) -> tuple[ProgramNode, ...]:
    """Return the steps with the one that writes new contents moved behind the last one that reads
    old ones, if no step between depends on it; otherwise the steps as they are.
    """
    last_read, write = _last_read_and_write(steps, past, present)
    if not 0 <= write < last_read:
        return steps
    between = steps[write + 1 : last_read + 1]
    if any(_must_keep_order(steps[write], step) for step in between):
        return steps
    return (*steps[:write], *between, steps[write], *steps[last_read + 1 :])


def _must_keep_order(first: ProgramNode, second: ProgramNode) -> bool:
    """Return True if a step must run after an earlier one, as one of them writes memory that the
    other one accesses.
    """
    written_by_first, written_by_second = (
        {v.storage for v in (*node.outputs, *node.workspace)} for node in (first, second)
    )
    return any(v.storage in written_by_first for v in (*second.inputs, *second.outputs, *second.workspace)) or any(
        v.storage in written_by_second for v in (*first.inputs, *first.outputs, *first.workspace)
    )


def _step_computing_in_place(step: Step, past: Storage, present: Storage) -> Step | None:
    """Return a step that reads old contents and writes new ones to one memory; None if its kernel
    does not permit that.
    """
    reads = [k for k, view in enumerate(step.inputs) if view.storage is past]
    (output,) = (k for k, view in enumerate(step.outputs) if view.storage is present)
    if len(reads) > 1 or step.inputs[reads[0]].offset or past.nbytes != present.nbytes:
        return None
    source, kernel = reads[0], step.kernel
    if (output, source) not in kernel.inplace:
        return None
    args = tuple(view for k, view in enumerate(step.args) if k != source)
    return replace(step, kernel=merge_inplace_params(kernel, ((output, source),)), args=args)
