# SPDX-License-Identifier: Apache-2.0
"""The program that code generation prints: storage, kernels and the static schedule of calls.

Program(name="net", inputs=(x,), outputs=(y,), body=(Step(kernel, (View(x), View(w), View(y))),))

Calls run in the order of `body`. A `Branch` is a choice at run time between two such sequences, which
may contain further branches. `Program.steps` are all calls in the order of the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import numpy as np

from aotc.ir import DType, Quantization, Span, frozen
from aotc.tir import Const, Kernel, to_text


@frozen(eq=False, kw_only=True)
class Storage:
    """Memory that holds one tensor; compared by identity.

    name           name in the model, from which code generation derives C identifiers
    kind           "input" and "output" (memory of the caller), "constant" (contents in `data`),
                   "temp" (in the arena), "state" (in the caller's block of state)
    quantization   mapping of the integers of an input or output to real numbers, if known
    least          for a constant packed as 4-bit values: the number that unpacking adds; None for
                   all others
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    kind: str = "temp"
    data: np.ndarray[Any, Any] | None = None
    align: int = 64
    quantization: Quantization | None = None
    least: int | None = None

    @property
    def size(self) -> int:
        """Number of elements of the stored tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@frozen(eq=False, kw_only=True)
class StateTensor:
    """Tensor that a model keeps between runs.

    past      storage that a run reads: an input until `aotc.tir.plan.state_placement` places it in
              the block of state
    present   storage that a run writes: an output until then; `past` itself where runs update it
    initial   contents before the first run; None for zeros
    """

    past: Storage
    present: Storage
    initial: np.ndarray[Any, Any] | None = None

    @property
    def has_two_copies(self) -> bool:
        """Return True if runs read one copy and write another one, which then change roles."""
        return self.past is not self.present


@frozen
class View:
    """Contiguous part of a storage from element `offset` on, which a kernel gets as an argument."""

    storage: Storage
    offset: int = 0


@frozen
class RowPiece:
    """Part of each row of a result: `length` consecutive elements of the corresponding row of an
    input, from element `begin` on; rows of the input have `stride` elements.
    """

    input: int
    begin: int
    length: int
    stride: int


@frozen
class RowPieces:
    """Rows of a result that a kernel only copies from its inputs: the pieces of each row, in order."""

    rows: int
    pieces: tuple[RowPiece, ...]


@frozen(eq=False)
class Step:
    """Kernel call; `args` are in the order of `kernel.params` (inputs, outputs, workspace).

    numbers  values of `kernel.numbers`, in their order
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
    numbers: tuple[Const, ...] = ()

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
        return (self.condition, *(view for step in steps_in(self.arms[0] + self.arms[1]) for view in step.inputs))

    @property
    def outputs(self) -> tuple[View, ...]:
        """Everything that calls in the arms write, except their workspaces."""
        return tuple(view for step in steps_in(self.arms[0] + self.arms[1]) for view in step.outputs)

    @property
    def workspace(self) -> tuple[View, ...]:
        """Workspaces of all calls in the arms."""
        return tuple(view for step in steps_in(self.arms[0] + self.arms[1]) for view in step.workspace)


#: Part of the schedule.
ProgramNode: TypeAlias = "Step | Branch"


def steps_in(nodes: Iterable[ProgramNode]) -> Iterator[Step]:
    """Yield the calls of a sequence and of its branches, in the order of the text."""
    for node in nodes:
        if isinstance(node, Step):
            yield node
        else:
            for arm in node.arms:
                yield from steps_in(arm)


def executed_steps(nodes: Iterable[ProgramNode], is_true: Callable[[View], bool]) -> Iterator[Step]:
    """Yield the calls that a run makes, in order.

    is_true   returns the value of a condition, after the calls before it have been made
    """
    for node in nodes:
        if isinstance(node, Step):
            yield node
        else:
            yield from executed_steps(node.arms[0 if is_true(node.condition) else 1], is_true)


def has_team_steps(nodes: Iterable[ProgramNode]) -> bool:
    """Return True if all threads of a team run one of the calls together."""
    return any(step.kernel.team for step in steps_in(nodes))


def branches_with_step_numbers(nodes: Iterable[ProgramNode], first: int = 0) -> Iterator[tuple[Branch, range]]:
    """Yield each branch in a sequence, outer ones first, with the numbers of the calls in its arms.

    first    number of the first call of the sequence
    """
    for node in nodes:
        if isinstance(node, Step):
            first += 1
            continue
        begin = first
        inner: list[tuple[Branch, range]] = []
        for arm in node.arms:
            inner += branches_with_step_numbers(arm, first)
            first += sum(1 for _ in steps_in(arm))
        yield node, range(begin, first)
        yield from inner


def map_nodes(
    nodes: Iterable[ProgramNode],
    new_steps: Callable[[Step], Sequence[Step]],
    new_view: Callable[[View], View] = lambda view: view,
) -> tuple[ProgramNode, ...]:
    """Return a sequence with each call replaced by calls, in the order of the text.

    new_view   function of the views and of the results that branches have of themselves
    """
    mapped: list[ProgramNode] = []
    for node in nodes:
        if isinstance(node, Step):
            mapped += new_steps(node)
            continue
        condition = new_view(node.condition)
        yes, no = (map_nodes(arm, new_steps, new_view) for arm in node.arms)
        results = tuple(new_view(View(storage)).storage for storage in node.results)
        mapped.append(replace(node, condition=condition, arms=(yes, no), results=results))
    return tuple(mapped)


@frozen
class ArenaPart:
    """Part of the arena that lies in one memory: `bytes` bytes from byte `begin` on."""

    memory: str
    begin: int
    bytes: int


@frozen
class MemoryPlan:
    """Offsets of temporaries in the arena, in bytes.

    peak          size of the arena in bytes
    lower_bound   largest sum of bytes live at one step; no plan for this schedule can be smaller
    parts         parts of the arena in memories, in address order, if the target has several; no
                  temporary crosses parts
    """

    offsets: Mapping[Storage, int] = field(default_factory=dict)
    peak: int = 0
    lower_bound: int = 0
    align: int = 64
    parts: tuple[ArenaPart, ...] = ()

    @property
    def bytes_above_lower_bound(self) -> int:
        """Number of bytes by which the planned arena exceeds its lower bound."""
        return self.peak - self.lower_bound

    def arena_part_and_offset(self, storage: Storage) -> tuple[int, int]:
        """Return the number of the part that holds a temporary (0 if there are no parts), and the
        offset in this part.
        """
        at = self.offsets[storage]
        number = max((k for k, part in enumerate(self.parts) if part.begin <= at), default=0)
        return number, at - (self.parts[number].begin if self.parts else 0)


@frozen(eq=False, kw_only=True)
class Program:
    """Compiled model, ready to be printed as C.

    inputs, outputs   tensors of the caller, in the model's order
    body              schedule; the storages of kind "temp" in its arguments are the temporaries
    homes             for each temporary that is computed in place: the temporary whose memory it
                      reuses
    resident          for each input or output that callers may place in the arena: the temporary
                      that holds it there
    state             tensors that are kept between runs
    plan              memory plan, which `aotc.tir.plan.memory_plan` computes
    """

    name: str
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    body: tuple[ProgramNode, ...]
    homes: Mapping[Storage, Storage] = field(default_factory=dict)
    resident: Mapping[Storage, Storage] = field(default_factory=dict)
    state: tuple[StateTensor, ...] = ()
    plan: MemoryPlan = field(default_factory=MemoryPlan)

    def __str__(self) -> str:
        """Return the program as text: its storage, the calls in order, and the text of each kernel."""
        views = [view.storage for step in self.steps for view in step.args]
        lines = [f"program {json.dumps(self.name)} {{"]
        kept = (storage for tensor in self.state for storage in (tensor.past, tensor.present))
        for storage in dict.fromkeys((*self.inputs, *views, *self.outputs, *kept)):
            at = f" at {self.plan.offsets[storage]}" if storage in self.plan.offsets else ""
            lines.append(f"  {storage.kind} {json.dumps(storage.name)}: {storage.dtype}{[*storage.shape]}{at}")
        lines += [*_lines_of_nodes(self.body, "  "), "}"]
        return "\n\n".join(("\n".join(lines), *map(to_text, self.distinct_kernels)))

    @property
    def steps(self) -> tuple[Step, ...]:
        """All kernel calls in the order of the text; the number of a call is its position here."""
        return tuple(steps_in(self.body))

    @property
    def has_control_flow(self) -> bool:
        """Return True if values at run time decide which calls run."""
        return any(not isinstance(node, Step) for node in self.body)

    @property
    def has_team_steps(self) -> bool:
        """Return True if all threads of a team run one of the calls together."""
        return has_team_steps(self.body)

    def map_steps(
        self, new_steps: Callable[[Step], Sequence[Step]], new_view: Callable[[View], View] = lambda view: view
    ) -> Program:
        """Return the program with each call replaced by calls, in the order of the text.

        new_view   function of the views and of the results that branches have of themselves
        """
        return replace(self, body=map_nodes(self.body, new_steps, new_view))

    def storages_of_kind(self, kind: str) -> tuple[Storage, ...]:
        """Return the tensors' storage of a kind ("temp", "constant", ...) that the steps use, in
        order of first use.
        """
        storages = (view.storage for step in self.steps for view in step.args)
        return tuple(dict.fromkeys(s for s in storages if s.kind == kind))

    @property
    def constants(self) -> tuple[Storage, ...]:
        return self.storages_of_kind("constant")

    def replace_kernels(self, replacements: Mapping[Kernel, Kernel]) -> Program:
        """Return the program with kernels replaced by kernels with equal parameters."""

        def with_new_kernel(step: Step) -> tuple[Step]:
            kernel = replacements[step.kernel]
            return (step if step.kernel is kernel else replace(step, kernel=kernel),)

        return self.map_steps(with_new_kernel)

    @property
    def distinct_kernels(self) -> tuple[Kernel, ...]:
        """Distinct kernels of the program in order of their first call."""
        return tuple(dict.fromkeys(step.kernel for step in self.steps))


def _text_of_view(view: View) -> str:
    return json.dumps(view.storage.name) + (f" + {view.offset}" if view.offset else "")


def _lines_of_nodes(nodes: Iterable[ProgramNode], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Step):
            team = "team " if node.kernel.team else ""
            args = [*map(_text_of_view, node.args), *(repr(number.value) for number in node.numbers)]
            yield f"{indent}{team}call {json.dumps(node.kernel.name)} ({', '.join(args)})"
            continue
        yield f"{indent}if {_text_of_view(node.condition)} {{"
        yield from _lines_of_nodes(node.arms[0], indent + "  ")
        yield f"{indent}}} else {{"
        yield from _lines_of_nodes(node.arms[1], indent + "  ")
        yield f"{indent}}}"
