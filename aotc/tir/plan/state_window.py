# SPDX-License-Identifier: Apache-2.0
"""Keep a sliding window of a streaming model in one memory, in which each run moves it down.

Input: steps that join the old window with new rows, and cut the new window from the result:

    all = concatenate(window, x); y = conv(all); window_out = all[1:]

Output: steps that write the new rows behind the window, in the block of state, and move the window
after their last use; the join is no copy any more:

    window[3:] = x; y = conv(window); window[0:3] = window[1:4]

Windows along any axis are handled as rows of memory: along the second axis of a (16, 3) tensor there
are 16 rows of 3 elements.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from aotc.ir import Array, DType, SymDim, frozen
from aotc.tir.expr import Buffer, Load, Operand, Var
from aotc.tir.plan.copy_elimination import is_copy_kernel
from aotc.tir.plan.program_nodes import ProgramNode, RowPiece, Step, map_nodes
from aotc.tir.plan.storage import StateTensor, Storage, View
from aotc.tir.stmt import Block, For, Kernel, Stmt, Store, forall

#: Steps and branches of a program, and the state tensor that they use.
StepsAndState = tuple[tuple[ProgramNode, ...], StateTensor]


def make_append_kernel(dtype: DType, rows: int, row_length: int, begin: int, length: int) -> Kernel:
    """Return a kernel that copies rows of `length` elements into longer rows, to element `begin`."""
    source, target = Buffer("source", dtype, rows * length), Buffer("window", dtype, rows * row_length)
    row, i = Var("row"), Var("i")
    store = Store(target, row * row_length + (i + begin), Load(source, row * length + i))
    return Kernel(
        name="append_to_window", inputs=(source,), outputs=(target,), body=forall(row, rows, forall(i, length, store))
    )


def make_shift_kernel(dtype: DType, rows: int, row_length: int, length: int, distance: int) -> Kernel:
    """Return a kernel that moves the first `length` elements of each row down by `distance`, in
    place: element k becomes what element k + distance was.

    Blocks of `distance` elements follow one another; the elements of one block do not depend on
    each other.
    """
    window = Buffer("window", dtype, rows * row_length)
    row, block, i = Var("row"), Var("block"), Var("i")
    blocks, rest = divmod(length, distance)

    def move_elements(begin: Operand, count: int) -> Stmt:
        at = row * row_length + begin + i
        return forall(i, count, Store(window, at, Load(window, at + distance)))

    moves: list[Stmt] = [For(block, blocks, move_elements(block * distance, distance))] if blocks else []
    moves += [move_elements(blocks * distance, rest)] if rest else []
    return Kernel(name="shift_window", inputs=(), outputs=(window,), body=forall(row, rows, Block(moves)))


@frozen
class _JoinedRows:
    """Rows in which a step joins the old window, or a part of it, with new elements.

    window     elements of the window in each row, from element `begin` of the window's rows on
    new        new elements behind them
    source     view of the new elements
    """

    rows: int
    begin: int
    window: int
    new: int
    source: View


def place_window(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, placed_in_arena: Container[Storage] = ()
) -> StepsAndState | None:
    """Return steps that move a window within the block of state, and the window; None if the steps
    do not have this form.

    placed_in_arena    temporaries that callers access in the arena, which stay there
    """
    readers = [k for k, step in enumerate(steps) if any(v.storage is tensor.past for v in step.inputs)]
    writers = [k for k, step in enumerate(steps) if any(v.storage is tensor.present for v in step.outputs)]
    if not readers or len(writers) != 1:
        return None
    if readers[-1] == writers[0]:
        return _shift_then_append(steps, tensor, writers[0])
    if len(readers) != 1 or any(view.storage in placed_in_arena for view in steps[readers[0]].outputs):
        return None
    return _append_then_shift(steps, tensor, readers[0], writers[0])


def _rows_joined_by_step(step: ProgramNode, past: Storage) -> _JoinedRows | None:
    """Return the rows that a step joins; None if it does more or other things."""
    if (
        not isinstance(step, Step)
        or step.row_pieces is None
        or len(step.row_pieces.pieces) != 2
        or len(step.inputs) != 2
    ):
        return None
    first, second = step.row_pieces.pieces
    if isinstance(first.length, SymDim) or isinstance(first.stride, SymDim) or isinstance(second.length, SymDim):
        return None
    rows, views = step.row_pieces.rows, (step.inputs[first.input], step.inputs[second.input])
    is_joined = first.input != second.input and views[0] == View(past) and views[1].storage is not past
    has_whole_source = second == RowPiece(second.input, 0, second.length, second.length)
    is_end_of_window = first.stride == first.begin + first.length and first.stride * rows == past.size
    if not (is_joined and has_whole_source and is_end_of_window):
        return None
    return _JoinedRows(rows, first.begin, first.length, second.length, views[1])


def _shift_then_append(steps: tuple[ProgramNode, ...], tensor: StateTensor, write: int) -> StepsAndState | None:
    """Return steps with a kernel that makes the new window, window_out = concatenate(window[1:], x),
    replaced by a move and a copy of the new elements.
    """
    step = steps[write]
    joined = _rows_joined_by_step(step, tensor.past)
    if joined is None or joined.begin != joined.new or step.outputs != (View(tensor.present),):
        return None
    memory = replace(tensor.past, kind="state", quantization=None)
    dtype, row_length = memory.dtype, joined.window + joined.new
    shift = make_shift_kernel(dtype, joined.rows, row_length, joined.window, joined.new)
    append = make_append_kernel(dtype, joined.rows, row_length, joined.window, joined.new)
    new_steps = (Step(shift, (View(memory),), step.span), Step(append, (joined.source, View(memory)), step.span))
    names = {tensor.past: memory, tensor.present: memory}
    placed = replace_storages((*steps[:write], *new_steps, *steps[write + 1 :]), names)
    return placed, StateTensor(past=memory, present=memory, initial=tensor.initial)


def _append_then_shift(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, join: int, write: int
) -> StepsAndState | None:
    """Return steps with the joined window in the block of state, where new elements are appended to
    the window, which moves down after the last step that reads it.
    """
    step = steps[join]
    joined = _rows_joined_by_step(step, tensor.past)
    if joined is None or joined.begin or len(step.outputs) != 1 or step.outputs[0].storage.kind != "temp":
        return None
    whole = step.outputs[0].storage
    row_length = joined.window + joined.new
    distance = _distance_of_new_window(steps[write], whole, joined, row_length)
    is_read_later = any(v.storage is tensor.present for s in steps for v in s.inputs)
    writers = sum(any(v.storage is whole for v in (*s.outputs, *s.workspace)) for s in steps)
    if distance is None or is_read_later or writers != 1 or whole.size != joined.rows * row_length:
        return None
    memory = Storage(name=tensor.past.name, dtype=whole.dtype, shape=whole.shape, kind="state")
    append = make_append_kernel(whole.dtype, joined.rows, row_length, joined.window, joined.new)
    shift = make_shift_kernel(whole.dtype, joined.rows, row_length, joined.window, distance)
    last = max(
        k for k, s in enumerate(steps) if k == join or (k != write and any(v.storage is whole for v in s.inputs))
    )
    placed: list[ProgramNode] = []
    for k, old in enumerate(steps):
        if k == join:
            placed.append(Step(append, (joined.source, View(memory)), old.span))
        elif k != write:
            placed += replace_storages((old,), {whole: memory})
        if k == last:
            placed.append(Step(shift, (View(memory),), steps[write].span))
    initial = _initial_window_rows(tensor, joined, row_length)
    return tuple(placed), StateTensor(past=memory, present=memory, initial=initial)


def _distance_of_new_window(step: ProgramNode, whole: Storage, joined: _JoinedRows, row_length: int) -> int | None:
    """Return the element of each row at which a step cuts the new window; None if it does not."""
    if (
        not isinstance(step, Step)
        or len(step.inputs) != 1
        or step.inputs[0].storage is not whole
        or len(step.outputs) != 1
    ):
        return None
    if is_copy_kernel(step.kernel):
        rows, piece = 1, RowPiece(0, step.inputs[0].offset, step.kernel.inputs[0].size, row_length)
    elif step.row_pieces is not None and len(step.row_pieces.pieces) == 1 and not step.inputs[0].offset:
        rows, piece = step.row_pieces.rows, step.row_pieces.pieces[0]
    else:
        return None
    is_window = rows == joined.rows and piece.length == joined.window and (rows == 1 or piece.stride == row_length)
    return piece.begin if is_window and 0 < piece.begin <= joined.new else None


def _initial_window_rows(tensor: StateTensor, joined: _JoinedRows, row_length: int) -> Array | None:
    """Return the contents of the rows before the first run: those of the window, and zeros."""
    if tensor.initial is None:
        return None
    rows = np.zeros((joined.rows, row_length), tensor.initial.dtype)
    rows[:, : joined.window] = tensor.initial.reshape(joined.rows, joined.window)
    return rows


def replace_storages(nodes: tuple[ProgramNode, ...], storages: dict[Storage, Storage]) -> tuple[ProgramNode, ...]:
    """Return steps and branches with storages in their arguments replaced."""

    def new_view(view: View) -> View:
        return View(storages.get(view.storage, view.storage), view.offset)

    def new_step(step: Step) -> tuple[Step]:
        if not any(view.storage in storages for view in step.args):
            return (step,)
        return (replace(step, args=tuple(map(new_view, step.args))),)

    return map_nodes(nodes, new_step, new_view)
