# SPDX-License-Identifier: Apache-2.0
"""The nodes of a program's schedule: calls of kernels, branches, loops, definitions of sizes and tiers.

Step(kernel, (View(x), View(w), View(y)))

Calls run in the order of a sequence of nodes. A `Branch` is a choice at run time between two such sequences, and a
`Loop` repeats one; both may contain further branches and loops. A `TierChoice` is a choice among whole schedules by
the sizes of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias

from aotc.ir import Dim, DimRange, Span, SymDim, frozen
from aotc.tir import Const, Kernel
from aotc.tir.plan.size_checks import SizeCheck
from aotc.tir.plan.storage import Storage, View

#: Value of a number of a kernel: a constant, or a formula over the sizes of a run.
NumberValue: TypeAlias = "Const | SymDim"


@frozen
class RowPiece:
    """Part of each row of a result: `length` consecutive elements of the corresponding row of an
    input, from element `begin` on; rows of the input have `stride` elements. A length that depends on
    sizes of the run is a formula over them.
    """

    input: int
    begin: int
    length: Dim
    stride: Dim


@frozen
class RowPieces:
    """Rows of a result that a kernel only copies from its inputs: the pieces of each row, in order."""

    rows: int
    pieces: tuple[RowPiece, ...]


@frozen(eq=False)
class Step:
    """Kernel call; `args` are in the order of `kernel.params` (inputs, outputs, workspace).

    numbers  values of `kernel.numbers`, in their order; a formula over the sizes of a run for a value that
             depends on them
    shapes   shapes of the results if they differ from the storage's: a result may be a reshaped
             storage
    origin   graph function that the kernel was made from
    row_pieces   where the elements of the result come from, if the kernel only copies rows; None if
                 it does more, or if that is not known
    """

    kernel: Kernel
    args: tuple[View, ...]
    span: Span | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    origin: object = None
    row_pieces: RowPieces | None = None
    numbers: tuple[NumberValue, ...] = ()

    @property
    def inputs(self) -> tuple[View, ...]:
        return self.args[: len(self.kernel.inputs)]

    @property
    def outputs(self) -> tuple[View, ...]:
        first = len(self.kernel.inputs)
        return self.args[first : first + len(self.kernel.outputs)]

    @property
    def output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each result of the kernel call."""
        return self.shapes or tuple(view.storage.shape for view in self.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        return self.args[len(self.kernel.inputs) + len(self.kernel.outputs) :]


@frozen(eq=False)
class Branch:
    """Choice at run time between two sequences of calls.

    condition   view of one element of type bool
    arms        what runs where the condition holds, and what runs where it does not
    results     storages that both arms write, and that calls after the branch may read
    """

    condition: View
    arms: tuple[tuple[ProgramNode, ...], tuple[ProgramNode, ...]]
    results: tuple[Storage, ...] = ()
    span: Span | None = None

    @property
    def inputs(self) -> tuple[View, ...]:
        """Condition, and everything that calls in the arms read."""
        return (self.condition, *(view for arm in self.arms for node in arm for view in node.inputs))

    @property
    def outputs(self) -> tuple[View, ...]:
        """Everything that calls in the arms write, except their workspaces."""
        return tuple(view for step in steps_in(self.arms[0] + self.arms[1]) for view in step.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        """Workspaces of all calls in the arms."""
        return tuple(view for step in steps_in(self.arms[0] + self.arms[1]) for view in step.workspace)


@frozen(eq=False)
class Loop:
    """Calls that are repeated until a `Leave` is reached.

    body      what an iteration runs
    carried   storages that hold values from one iteration to the next one; written before the loop
    held      storages that hold new values while those that they were made from change
    results   storages that are written before each `Leave`, and that calls after the loop may read
    """

    body: tuple[ProgramNode, ...]
    carried: tuple[Storage, ...] = ()
    held: tuple[Storage, ...] = ()
    results: tuple[Storage, ...] = ()
    span: Span | None = None

    @property
    def inputs(self) -> tuple[View, ...]:
        """Conditions in the loop, and everything that its calls read."""
        return tuple(view for node in self.body for view in node.inputs)

    @property
    def outputs(self) -> tuple[View, ...]:
        """Everything that calls in the loop write, except their workspaces."""
        return tuple(view for step in steps_in(self.body) for view in step.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        """Workspaces of all calls in the loop."""
        return tuple(view for step in steps_in(self.body) for view in step.workspace)


@frozen(eq=False)
class Define:
    """Point of the schedule where a value that the calls before have computed is checked, and from which on it is
    a size, in the sequence of nodes that the point belongs to.

    size           name of the size, which formulas in the calls that follow may contain; "" for a value that is
                   only checked
    value          view of one element of an integer type or bool: the value
    most           largest value, which the memory of tensors is planned for
    checks         conditions on this size and on those that were known before: a run ends if one of them, or the
                   range from `least` to `most`, is violated
    least          smallest value
    requirement    what a value that is only checked must be, as text
    """

    size: str
    value: View
    most: int
    checks: tuple[SizeCheck, ...] = ()
    span: Span | None = None
    least: int = 0
    requirement: str = ""
    outputs: ClassVar[tuple[View, ...]] = ()
    workspace: ClassVar[tuple[View, ...]] = ()

    @property
    def inputs(self) -> tuple[View, ...]:
        return (self.value,)


@frozen(eq=False)
class Leave:
    """End of the innermost loop; the last node of an arm."""

    inputs: ClassVar[tuple[View, ...]] = ()
    outputs: ClassVar[tuple[View, ...]] = ()
    workspace: ClassVar[tuple[View, ...]] = ()
    span: ClassVar[Span | None] = None


@frozen(eq=False)
class Tier:
    """Calls for a part of the sizes of a program.

    sizes              range of each size of the program, by name
    body               what runs with these sizes
    checks             conditions on them, beside their ranges
    workspace_bytes    size of the arena that the calls need
    """

    sizes: Mapping[str, DimRange]
    body: tuple[ProgramNode, ...]
    checks: tuple[SizeCheck, ...] = ()
    workspace_bytes: int = 0

    def has_sizes(self, sizes: Mapping[str, int]) -> bool:
        """Return True if sizes are in the ranges."""
        return all(sizes[name] in allowed for name, allowed in self.sizes.items())


@frozen(eq=False)
class TierChoice:
    """Choice among sequences of calls by the sizes of a run: the first tier in whose ranges they are runs. It is
    the only node of the body of its program.
    """

    tiers: tuple[Tier, ...]
    span: ClassVar[Span | None] = None

    @property
    def inputs(self) -> tuple[View, ...]:
        """Everything that calls of all tiers read."""
        return tuple(view for tier in self.tiers for node in tier.body for view in node.inputs)

    @property
    def outputs(self) -> tuple[View, ...]:
        """Everything that calls of all tiers write, except their workspaces."""
        return tuple(view for tier in self.tiers for step in steps_in(tier.body) for view in step.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        """Workspaces of all calls."""
        return tuple(view for tier in self.tiers for step in steps_in(tier.body) for view in step.workspace)


#: Part of the schedule.
ProgramNode: TypeAlias = "Step | Branch | Loop | Define | Leave | TierChoice"


def sequences_in(node: ProgramNode) -> tuple[tuple[ProgramNode, ...], ...]:
    """Return the arms of a branch, the body of a loop, or those of the tiers of a choice; nothing for other nodes."""
    if isinstance(node, Branch):
        return node.arms
    if isinstance(node, TierChoice):
        return tuple(tier.body for tier in node.tiers)
    return (node.body,) if isinstance(node, Loop) else ()


def steps_in(nodes: Iterable[ProgramNode]) -> Iterator[Step]:
    """Yield the calls of a sequence and of its branches, in the order of the text."""
    for node in nodes:
        if isinstance(node, Step):
            yield node
        else:
            for sequence in sequences_in(node):
                yield from steps_in(sequence)


def definitions_in(nodes: Iterable[ProgramNode]) -> Iterator[Define]:
    """Yield the definitions of a sequence and of its branches and loops, in the order of the text."""
    for node in nodes:
        if isinstance(node, Define):
            yield node
        for sequence in sequences_in(node):
            yield from definitions_in(sequence)


def views_in(nodes: Iterable[ProgramNode]) -> Iterator[View]:
    """Yield the arguments of calls, the conditions of branches and the values of sizes, in the order of the text."""
    for node in nodes:
        if isinstance(node, Step):
            yield from node.args
        elif isinstance(node, Branch):
            yield node.condition
        elif isinstance(node, Define):
            yield node.value
        for sequence in sequences_in(node):
            yield from views_in(sequence)


def may_leave_loop(nodes: Iterable[ProgramNode]) -> bool:
    """Return True if a sequence may leave the loop around it."""
    return any(
        isinstance(node, Leave) or (isinstance(node, Branch) and any(map(may_leave_loop, node.arms))) for node in nodes
    )


def has_team_steps(nodes: Iterable[ProgramNode]) -> bool:
    """Return True if all threads of a team run one of the calls together."""
    return any(step.kernel.team for step in steps_in(nodes))


def nodes_with_step_numbers(
    nodes: Iterable[ProgramNode], first: int = 0
) -> Iterator[tuple[Branch | Loop | Define | TierChoice, range]]:
    """Yield each branch, loop and choice in a sequence, outer ones first, with the numbers of the calls in it; and each
    definition of a size, with the empty range before the call that follows.

    first    number of the first call of the sequence
    """
    for node in nodes:
        if not isinstance(node, (Branch, Loop, Define, TierChoice)):
            first += isinstance(node, Step)
            continue
        begin = first
        inner: list[tuple[Branch | Loop | Define | TierChoice, range]] = []
        for sequence in sequences_in(node):
            inner += nodes_with_step_numbers(sequence, first)
            first += sum(1 for _ in steps_in(sequence))
        yield node, range(begin, first)
        yield from inner


def map_nodes(
    nodes: Iterable[ProgramNode],
    new_steps: Callable[[Step], Sequence[Step]],
    new_view: Callable[[View], View] = lambda view: view,
) -> tuple[ProgramNode, ...]:
    """Return a sequence with each call replaced by calls, in the order of the text.

    new_view   function of the views and of the storages that branches and loops have of themselves
    """

    def new_storages(storages: Iterable[Storage]) -> tuple[Storage, ...]:
        return tuple(new_view(View(storage)).storage for storage in storages)

    mapped: list[ProgramNode] = []
    for node in nodes:
        if isinstance(node, Step):
            mapped += new_steps(node)
        elif isinstance(node, Branch):
            condition = new_view(node.condition)
            yes, no = (map_nodes(arm, new_steps, new_view) for arm in node.arms)
            mapped.append(replace(node, condition=condition, arms=(yes, no), results=new_storages(node.results)))
        elif isinstance(node, Loop):
            body = map_nodes(node.body, new_steps, new_view)
            carried, held, results = map(new_storages, (node.carried, node.held, node.results))
            mapped.append(replace(node, body=body, carried=carried, held=held, results=results))
        elif isinstance(node, Define):
            mapped.append(replace(node, value=new_view(node.value)))
        elif isinstance(node, TierChoice):
            tiers = (replace(tier, body=map_nodes(tier.body, new_steps, new_view)) for tier in node.tiers)
            mapped.append(replace(node, tiers=tuple(tiers)))
        else:
            mapped.append(node)
    return tuple(mapped)
