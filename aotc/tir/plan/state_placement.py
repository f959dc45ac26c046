# SPDX-License-Identifier: Apache-2.0
"""Place the tensors that a model keeps between runs in a block of state, which callers own.

Input: a program whose state tensors are an input (what a run reads) and an output (what it writes).
Output: a program in which both are memory of the block of state.

    t0 = gru(x, h); y = dense(t0); h_out = copy(t0)   ->   h = gru(x, h); y = dense(h)

A tensor that grows, present = concatenate((past, x)), is one memory in which a run writes x behind the old
contents: concatenate becomes a copy of x.

On a target whose calls have fixed addresses, such as a GPU, each tensor has one copy (`_place_in_one_copy`). Elsewhere
runs write new contents over old ones if the kernel that writes comes after all that read, or may
compute in place, and if no check of a value can end the run after that. Otherwise the block has two copies: a run
reads the first and writes the second, and the next run reads the second and writes the first.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from aotc.ir import AotcError, Dim, Span, SymDim, bound_dim, option_text
from aotc.tir.expr import Buffer, Load, Operand, Var
from aotc.tir.plan.copy_elimination import is_copy_kernel
from aotc.tir.plan.in_place_updates import nodes_updating_in_place
from aotc.tir.plan.program import Program
from aotc.tir.plan.program_nodes import Branch, ProgramNode, Step, definitions_in, steps_in
from aotc.tir.plan.state_window import place_window, replace_storages
from aotc.tir.plan.storage import StateTensor, Storage, View
from aotc.tir.stmt import Kernel, Number, Store, forall


def place_state(program: Program, copies: Callable[[View, View], Sequence[Step]] | None = None) -> Program:
    """Return the program with its state tensors in the block of state, no longer among its inputs
    and outputs.

    copies    function that returns the steps that copy a tensor to another one, for a target whose calls have fixed
              addresses: tensors have one copy in the block, to which such steps copy new contents at the end of a run
    """
    steps, placed = program.body, list[StateTensor]()
    placed_in_arena = frozenset(program.resident.values())
    for tensor in program.state:
        if tensor.grows:
            steps, in_block = _place_growing_tensor(steps, tensor, program.symbol_intervals)
        elif copies is not None:
            steps, in_block = _place_in_one_copy(steps, tensor, copies)
        else:
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


def make_append_step(source: View, memory: View, begin: Dim, count: Dim, span: Span | None) -> Step:
    """Return a step that copies `count` elements of the view `source` to the storage of `memory`, from element
    `begin` on.
    """
    target = Buffer("state", memory.storage.dtype, memory.storage.size)
    added = Buffer("source", target.dtype, source.storage.size - source.offset)
    i, numbers = Var("i"), list[Number]()

    def operand(dim: Dim, name: str) -> Operand:
        if not isinstance(dim, SymDim):
            return dim
        assert dim.upper is not None
        numbers.append(Number(Var(name), max(dim.lower, 0), dim.upper))
        return numbers[-1].var

    at, end = operand(begin, "begin"), operand(count, "count")
    body = forall(i, end, Store(target, i + at, Load(added, i)))
    kernel = Kernel(name="append_to_state", inputs=(added,), outputs=(target,), body=body, numbers=tuple(numbers))
    return Step(kernel, (source, memory), span, numbers=tuple(d for d in (begin, count) if isinstance(d, SymDim)))


def _place_growing_tensor(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, intervals: Mapping[str, tuple[int, int]]
) -> tuple[tuple[ProgramNode, ...], StateTensor]:
    """Return the steps with a tensor in the block of state, to which the step that joins its old contents with
    new elements only appends these elements.

    The old contents do not change, so that steps which read them may run before it and after it.

    intervals    the least and the greatest value of each symbol in formulas
    """
    past, present = tensor.past, tensor.present
    memory = replace(present, name=past.name, kind="state", quantization=None)
    joins = [k for k, node in enumerate(steps) if any(v.storage is present for v in node.outputs)]
    join = steps[joins[0]] if len(joins) == 1 else None
    pieces = join.row_pieces.pieces if isinstance(join, Step) and join.row_pieces is not None else ()
    if not isinstance(join, Step) or len(pieces) != 2 or join.inputs[0] != View(past):
        text = f"the state {past.name!r} grows by what a branch, a loop or a part of a kernel computes"
        hint = "leave it out of " + option_text("state") + ", and pass it as an input and an output"
        raise AotcError("state", text, span=None if join is None else join.span, hint=hint)
    begin, count = (
        bound_dim(piece.length, intervals) if isinstance(piece.length, SymDim) else piece.length for piece in pieces
    )
    append = make_append_step(join.inputs[1], View(memory), begin, count, join.span)
    steps = (*steps[: joins[0]], append, *steps[joins[0] + 1 :])
    placed = replace_storages(steps, {past: memory, present: memory})
    return placed, StateTensor(past=memory, present=memory, grows=True)


def _place_state_tensor(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, placed_in_arena: Container[Storage]
) -> tuple[tuple[ProgramNode, ...], StateTensor]:
    """Return the steps and branches with the storages of a state tensor replaced by memory of the block.

    placed_in_arena    temporaries that callers access in the arena
    """
    past, present = tensor.past, tensor.present
    window = place_window(steps, tensor, placed_in_arena)
    if window is not None and not _may_end_after_writing(window[0], window[1].past):
        return window
    memory = replace(past, kind="state", quantization=None)
    steps = tuple(step for step in steps if not _copies_old_contents_unchanged(step, past, present))
    in_place = nodes_updating_in_place(steps, past, present, memory)
    if in_place is not None and not _may_end_after_writing(in_place, memory):
        return in_place, StateTensor(past=memory, present=memory, initial=tensor.initial)
    other = replace(present, kind="state", quantization=None)
    renamed = replace_storages(steps, {past: memory, present: other})
    return renamed, StateTensor(past=memory, present=other, initial=tensor.initial)


def _place_in_one_copy(
    steps: tuple[ProgramNode, ...], tensor: StateTensor, copies: Callable[[View, View], Sequence[Step]]
) -> tuple[tuple[ProgramNode, ...], StateTensor]:
    """Return the steps with a state tensor in one memory, in which its new contents are computed where the order of
    the steps permits it, and to which they are copied at the end otherwise.
    """
    past, present = tensor.past, tensor.present
    memory = replace(past, kind="state", quantization=None)
    kept = StateTensor(past=memory, present=memory, initial=tensor.initial)
    in_place = nodes_updating_in_place(steps, past, present, memory)
    if in_place is not None:
        return in_place, kept
    new = replace(present, kind="temp", quantization=None)
    renamed = replace_storages(steps, {past: memory, present: new})
    return (*renamed, *copies(View(new), View(memory))), kept


def _may_end_after_writing(nodes: Sequence[ProgramNode], memory: Storage) -> bool:
    """Return True if a run may end, because a value is not allowed, after it has written to a memory: the state of a
    run that ends is that before the run.
    """
    is_written = False
    for node in nodes:
        writes = any(view.storage is memory for step in steps_in([node]) for view in step.outputs)
        has_definitions = any(True for _ in definitions_in([node]))
        if has_definitions and (is_written or (writes and not isinstance(node, Branch))):
            return True
        if isinstance(node, Branch) and any(_may_end_after_writing(arm, memory) for arm in node.arms):
            return True
        is_written |= writes
    return False


def _copies_old_contents_unchanged(step: ProgramNode, past: Storage, present: Storage) -> bool:
    """Return True if a step copies the old contents to the new ones, which changes nothing."""
    if not isinstance(step, Step) or past.size != present.size:
        return False
    return is_copy_kernel(step.kernel) and step.args == (View(past), View(present))
