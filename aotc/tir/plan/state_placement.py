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
from aotc.tir.plan.in_place_updates import nodes_updating_in_place
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
    in_place = nodes_updating_in_place(steps, past, present, memory)
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
