# SPDX-License-Identifier: Apache-2.0
"""Write the values that a loop carries in place: without copies at the end of an iteration.

    loop { t0 = add(p0); t1 = scatter(p1, p0, row); p0 = copy(t0); p1 = copy(t1) }
    ->  loop { p1[p0] = row; p0 = add(p0) }

A value is written in place if all reads of the old one come before the write, or if the kernel that
writes may compute in place. A result that is the last contents of a carried value has one memory with
it, so that leaving the loop copies nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from aotc.tir.plan.copy_elimination import have_equal_sizes, is_copy_kernel
from aotc.tir.plan.in_place_updates import has_storage, nodes_updating_in_place
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import (
    Branch,
    Loop,
    ProgramNode,
    Step,
    map_nodes,
    nodes_with_step_numbers,
    steps_in,
    views_in,
)
from aotc.tir.plan.state_window import replace_storages
from aotc.tir.plan.storage import Storage, View


def carry_values_in_place(program: Program) -> Program:
    """Return the program with the copies removed that its loops need not make of carried values."""
    if not any(isinstance(node, Loop) for node, _ in nodes_with_step_numbers(program.body)):
        return program
    uses = Counter(view.storage for view in views_in(program.body))
    return replace(program, body=_with_results_in_carried_memory(_with_loops_in_place(program.body, uses)))


def _with_loops_in_place(nodes: tuple[ProgramNode, ...], uses: Counter[Storage]) -> tuple[ProgramNode, ...]:
    """Return a sequence whose loops, and those in them, write carried values in place.

    uses   number of arguments of calls and conditions in the program that are views of a storage
    """
    changed: list[ProgramNode] = []
    for node in nodes:
        if isinstance(node, Branch):
            yes, no = (_with_loops_in_place(arm, uses) for arm in node.arms)
            node = replace(node, arms=(yes, no))
        elif isinstance(node, Loop):
            carried = frozenset(node.carried)
            body = _with_values_written_in_place(_with_loops_in_place(node.body, uses), carried, uses)
            used = {view.storage for view in views_in(body)}
            node = replace(node, body=body, held=tuple(s for s in node.held if s in used))
        changed.append(node)
    return tuple(changed)


def _with_values_written_in_place(
    nodes: tuple[ProgramNode, ...], carried: frozenset[Storage], uses: Counter[Storage]
) -> tuple[ProgramNode, ...]:
    """Return a sequence at whose end an iteration ends, without copies of what may be written in
    place.
    """
    if not nodes:
        return nodes
    last = nodes[-1]
    if isinstance(last, Branch):
        yes, no = (_with_values_written_in_place(arm, carried, uses) for arm in last.arms)
        nodes = (*nodes[:-1], replace(last, arms=(yes, no)))
    for copy in [node for node in nodes if isinstance(node, Step) and _copies_to(node, carried)]:
        nodes = _without_copy(nodes, copy, carried, uses) or nodes
    return nodes


def _copies_to(step: Step, targets: frozenset[Storage]) -> bool:
    """Return True if a step copies a whole temporary to one of `targets`."""
    if not is_copy_kernel(step.kernel):
        return False
    source, target = step.args
    is_whole = source.storage.kind == "temp" and source == View(source.storage) and target == View(target.storage)
    return is_whole and target.storage in targets and have_equal_sizes(source.storage, target.storage)


def _without_copy(
    nodes: tuple[ProgramNode, ...], copy: Step, carried: frozenset[Storage], uses: Counter[Storage]
) -> tuple[ProgramNode, ...] | None:
    """Return a sequence that writes the source of a copy to its target in place; None if that is not
    possible.
    """
    new, old = (view.storage for view in copy.args)
    rest = tuple(node for node in nodes if node is not copy)
    used_here = sum(view.storage is new for view in views_in(nodes))
    writers = [node for node in rest if has_storage(node.outputs, new)]
    if new in carried or used_here != uses[new] or len(writers) != 1:
        return None
    if any(has_storage(node.outputs, old) or has_storage(node.workspace, new) for node in rest):
        return None
    return nodes_updating_in_place(rest, old, new, old)


# --- results


def _with_results_in_carried_memory(nodes: tuple[ProgramNode, ...]) -> tuple[ProgramNode, ...]:
    """Return the body of a program whose loops have results and carried values in one memory, where
    a result is the last contents of a carried value.
    """
    loops = [node for node, _ in nodes_with_step_numbers(nodes) if isinstance(node, Loop)]
    for result in [result for loop in loops for result in loop.results]:
        nodes = _with_result_in_carried_memory(nodes, result)
    return nodes


def _with_result_in_carried_memory(nodes: tuple[ProgramNode, ...], result: Storage) -> tuple[ProgramNode, ...]:
    """Return a sequence in which the loop that computes `result` has it in the memory of a carried
    value; the sequence as it is where that is not possible.
    """
    changed: list[ProgramNode] = []
    for position, node in enumerate(nodes):
        if isinstance(node, Loop) and result in node.results:
            value = _carried_value_copied_to(node, result)
            if value is not None and _is_unused_before_loop(nodes[:position], node, value, result):
                shared = replace_storages(nodes, {value: result})
                return _without_copies_to_itself(shared)
        if isinstance(node, Branch):
            yes, no = (_with_result_in_carried_memory(arm, result) for arm in node.arms)
            node = replace(node, arms=(yes, no))
        elif isinstance(node, Loop):
            node = replace(node, body=_with_result_in_carried_memory(node.body, result))
        changed.append(node)
    return tuple(changed)


def _carried_value_copied_to(loop: Loop, result: Storage) -> Storage | None:
    """Return the carried value whose copy is a result of a loop wherever it is left; None if there is
    none.
    """
    writers = [step for step in steps_in(loop.body) if has_storage((*step.outputs, *step.workspace), result)]
    values = {step.args[0].storage for step in writers}
    if len(values) != 1 or has_storage(loop.inputs, result) or result in loop.carried:
        return None
    (value,) = values
    is_copied = all(_copies_to(step, frozenset({result})) for step in writers)
    return value if is_copied and value in loop.carried else None


def _is_unused_before_loop(before: Sequence[ProgramNode], loop: Loop, value: Storage, result: Storage) -> bool:
    """Return True if nothing reads the old contents of a result from the step on that gives a carried
    value its first contents, except this step if it copies them.
    """
    first = next((k for k, node in enumerate(before) if has_storage(node.outputs, value)), None)
    if first is None:
        return False
    begin, between = before[first], before[first + 1 :]
    is_free = not any(has_storage((*node.inputs, *node.outputs, *node.workspace), result) for node in between)
    copies_result = isinstance(begin, Step) and is_copy_kernel(begin.kernel) and begin.args[0] == View(result)
    return is_free and (copies_result or not has_storage(begin.inputs, result))


def _without_copies_to_itself(nodes: Sequence[ProgramNode]) -> tuple[ProgramNode, ...]:
    """Return a sequence without the copies of a storage to itself."""
    return map_nodes(
        nodes, lambda step: () if is_copy_kernel(step.kernel) and step.args[0] == step.args[1] else (step,)
    )
