# SPDX-License-Identifier: Apache-2.0
"""Update memory in place: let a sequence of steps write new contents of a tensor over its old ones.

    new = gru(x, old); y = dense(new)                 ->   old = gru(x, old); y = dense(old)
    new = scatter(old, index, row)                    ->   old[index] = row

This is possible if the step that writes comes after all that read the old contents, or may compute
in place. A kernel that copies the old contents first, and then changes parts of them, only changes
these parts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from aotc.tir.expr import vars_and_buffers_in
from aotc.tir.loops.loop_dependence import read_buffers
from aotc.tir.plan.copy_elimination import is_copy_of_whole_buffer
from aotc.tir.plan.memory_plan import merge_inplace_params
from aotc.tir.plan.program_nodes import ProgramNode, Step
from aotc.tir.plan.state_window import replace_storages
from aotc.tir.plan.storage import Storage, View
from aotc.tir.stmt import Block, Execute, Kernel, Stmt, all_exprs_in_stmt, walk_stmts


def nodes_updating_in_place(
    nodes: tuple[ProgramNode, ...], old: Storage, new: Storage, memory: Storage
) -> tuple[ProgramNode, ...] | None:
    """Return a sequence with new contents written over old ones; None if a node reads the old
    contents after the new ones are written.

    old      storage of the old contents
    new      storage of the new contents, which one node writes
    memory   storage that takes the place of both
    """
    nodes = _write_after_last_read(nodes, old, new)
    last_read, write = _last_read_and_write(nodes, old, new)
    if last_read == write and write >= 0:
        last = nodes[write]
        step = _step_computing_in_place(last, old, new) if isinstance(last, Step) else None
        if step is None:
            return None
        nodes = (*nodes[:write], step, *nodes[write + 1 :])
    elif last_read > write >= 0:
        return None
    return replace_storages(nodes, {old: memory, new: memory})


def _last_read_and_write(nodes: tuple[ProgramNode, ...], old: Storage, new: Storage) -> tuple[int, int]:
    """Return the positions of the last node that reads the old contents, and of the node that writes
    the new ones; -1 if there is none.
    """
    last_read = max((k for k, node in enumerate(nodes) if has_storage(node.inputs, old)), default=-1)
    write = max((k for k, node in enumerate(nodes) if has_storage(node.outputs, new)), default=-1)
    return last_read, write


def has_storage(views: tuple[View, ...], storage: Storage) -> bool:
    """Return True if one of the views is of a storage."""
    return any(view.storage is storage for view in views)


def _write_after_last_read(nodes: tuple[ProgramNode, ...], old: Storage, new: Storage) -> tuple[ProgramNode, ...]:
    """Return the nodes with the one that writes new contents moved behind the last one that reads
    old ones, if no node between depends on it; otherwise the nodes as they are.
    """
    last_read, write = _last_read_and_write(nodes, old, new)
    if not 0 <= write < last_read:
        return nodes
    between = nodes[write + 1 : last_read + 1]
    if any(_must_keep_order(nodes[write], node) for node in between):
        return nodes
    return (*nodes[:write], *between, nodes[write], *nodes[last_read + 1 :])


def _must_keep_order(first: ProgramNode, second: ProgramNode) -> bool:
    """Return True if a node must run after an earlier one, as one of them writes memory that the
    other one accesses.
    """
    written_by_first, written_by_second = (
        {v.storage for v in (*node.outputs, *node.workspace)} for node in (first, second)
    )
    return any(v.storage in written_by_first for v in (*second.inputs, *second.outputs, *second.workspace)) or any(
        v.storage in written_by_second for v in (*first.inputs, *first.outputs, *first.workspace)
    )


def _step_computing_in_place(step: Step, old: Storage, new: Storage) -> Step | None:
    """Return a step that reads old contents and writes new ones to one memory; None if its kernel
    does not permit that.
    """
    reads = [k for k, view in enumerate(step.inputs) if view.storage is old]
    (output,) = (k for k, view in enumerate(step.outputs) if view.storage is new)
    if len(reads) > 1 or step.inputs[reads[0]].offset or old.nbytes != new.nbytes:
        return None
    source, kernel = reads[0], step.kernel
    if (output, source) in kernel.inplace:
        kernel = merge_inplace_params(kernel, ((output, source),))
    elif (updating := _kernel_without_leading_copy(kernel, output, source)) is not None:
        kernel = updating
    else:
        return None
    args = tuple(view for k, view in enumerate(step.args) if k != source)
    names = {number.var.name for number in kernel.numbers}
    rows = zip(step.kernel.numbers, step.numbers, strict=True)
    numbers = tuple(value for number, value in rows if number.var.name in names)
    return replace(step, kernel=kernel, args=args, row_pieces=None, numbers=numbers)


@cache
def _kernel_without_leading_copy(kernel: Kernel, output: int, source: int) -> Kernel | None:
    """Return a kernel that begins with a copy of the whole input `source` to the output `output`
    without this copy and this input; None if it does not begin so, or reads the input later.

    A copy of fewer elements than the buffers have copies all that a call has: nothing defines the others.
    """
    target, whole = kernel.outputs[output], kernel.inputs[source]
    first, *rest = _flat_statements(kernel.body) or [kernel.body]
    has_instructions = any(isinstance(stmt, Execute) for stmt in walk_stmts(kernel.body))
    if not rest or has_instructions or not is_copy_of_whole_buffer(first, whole, target):
        return None
    if any(whole in read_buffers(stmt) for stmt in rest):
        return None
    inputs = tuple(b for b in kernel.inputs if b is not whole)
    body = Block(rest)
    used = {n for expr in all_exprs_in_stmt(body) for n in vars_and_buffers_in(expr)}
    numbers = tuple(number for number in kernel.numbers if number.var in used)
    return replace(kernel, inputs=inputs, body=body, inplace=(), overlaps=(), numbers=numbers)


def _flat_statements(stmt: Stmt) -> list[Stmt]:
    return [inner for part in stmt.stmts for inner in _flat_statements(part)] if isinstance(stmt, Block) else [stmt]
