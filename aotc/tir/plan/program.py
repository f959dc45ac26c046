# SPDX-License-Identifier: Apache-2.0
"""The program that code generation prints: storage, kernels and the static schedule of calls.

Program(name="net", inputs=(x,), outputs=(y,), body=(Step(kernel, (View(x), View(w), View(y))),))

Calls run in the order of `body`. A `Branch` is a choice at run time between two such sequences, and a
`Loop` repeats one; both may contain further branches and loops. A `TierChoice` is a choice among whole
schedules by the sizes of a run. `Program.steps` are all calls in the order of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, TypeAlias

from aotc.ir import Dim, DimRange, Span, SymDim, frozen, symbol_of_multiples
from aotc.ir.size_operands import SizeDefinition, SizeOperand
from aotc.tir import Const, Kernel, to_text
from aotc.tir.plan.size_checks import GrowingState, SizeCheck, value_of_dim
from aotc.tir.plan.storage import MemoryPlan, StateTensor, Storage, View

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
    sizes             sizes that a caller states for a run, by name, with their ranges; some are elements of
                      inputs
    operands          for each size that is an element of an input: where it is
    definitions       sizes that formulas define, each after those that it depends on
    checks            conditions on them, beside their ranges, that hold in each run
    growing           length of the state tensors that grow; None if there are none
    steps             all kernel calls of `body` in the order of the text; the number of a call is its
                      position here
    defined           all points of `body` where values are checked or become sizes, in the order of the text
    found             the sizes among them that all calls which follow may depend on, and outputs: those that are
                      defined in no branch or loop
    """

    name: str
    inputs: tuple[Storage, ...]
    outputs: tuple[Storage, ...]
    body: tuple[ProgramNode, ...]
    homes: Mapping[Storage, Storage] = field(default_factory=dict)
    resident: Mapping[Storage, Storage] = field(default_factory=dict)
    state: tuple[StateTensor, ...] = ()
    plan: MemoryPlan = field(default_factory=MemoryPlan)
    sizes: Mapping[str, DimRange] = field(default_factory=dict)
    operands: Mapping[str, SizeOperand] = field(default_factory=dict)
    definitions: tuple[SizeDefinition, ...] = ()
    checks: tuple[SizeCheck, ...] = ()
    growing: GrowingState | None = None
    steps: tuple[Step, ...] = field(init=False)
    defined: tuple[Define, ...] = field(init=False)
    found: tuple[Define, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(steps_in(self.body)))
        object.__setattr__(self, "defined", tuple(definitions_in(self.body)))
        found = tuple(node for node in self.body if isinstance(node, Define) and node.size)
        object.__setattr__(self, "found", found)

    def __str__(self) -> str:
        """Return the program as text: its storage, the calls in order, and the text of each kernel."""
        views = [view.storage for view in views_in(self.body)]
        lines = [f"program {json.dumps(self.name)} {{"]
        lines += [f"  size {json.dumps(name)}: {sizes}" for name, sizes in self.sizes.items()]
        lines += [f"  size {json.dumps(d.name)} = {d}" for d in self.definitions]
        lines += [f"  check {check}" for check in self.checks]
        if self.growing is not None:
            lines.append(f"  grows {self.growing.size} by {self.growing.added} up to {self.growing.capacity}")
        kept = (storage for tensor in self.state for storage in (tensor.past, tensor.present))
        for storage in dict.fromkeys((*self.inputs, *views, *self.outputs, *kept)):
            at = f" at {self.plan.offsets[storage]}" if storage in self.plan.offsets else ""
            lines.append(f"  {storage.kind} {json.dumps(storage.name)}: {storage.dtype}{_text_of_shape(storage)}{at}")
        lines += [*_lines_of_nodes(self.body, "  "), "}"]
        return "\n\n".join(("\n".join(lines), *map(to_text, self.distinct_kernels)))

    @property
    def has_control_flow(self) -> bool:
        """Return True if values at run time decide which calls run, or with which sizes."""
        return any(not isinstance(node, Step) for node in self.body)

    @property
    def has_team_steps(self) -> bool:
        """Return True if all threads of a team run one of the calls together."""
        return has_team_steps(self.body)

    @property
    def symbol_intervals(self) -> dict[str, tuple[int, int]]:
        """The least and the greatest value of each symbol in formulas of the program."""
        steps = [(name, r, step) for name, r in self.sizes.items() for step in r.steps]
        stated = {symbol_of_multiples(name, step): (r.least // step, r.most // step) for name, r, step in steps}
        found = {d.size: (d.least, d.most) for d in self.defined if d.size}
        return stated | {d.name: (d.least, d.most) for d in self.definitions} | found

    @property
    def typical_sizes(self) -> dict[str, int]:
        """The sizes of a typical run, by name."""
        return {name: r.most if r.typical is None else r.typical for name, r in self.sizes.items()}

    def typical_shape(self, storage: Storage) -> tuple[int, ...]:
        """Return the shape of a tensor in a typical run; the largest one if values of inputs that are not
        known decide it.
        """
        if self.operands:
            return storage.shape
        symbols = self.symbols_of_sizes(self.typical_sizes)
        return tuple(value_of_dim(dim, symbols) for dim in storage.run_time_shape)

    def symbols_of_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the values of the symbols in formulas of the program for sizes in their ranges. Sizes that calls
        find have their largest values.
        """
        steps = [(name, step) for name, r in self.sizes.items() for step in r.steps]
        symbols = {symbol_of_multiples(name, step): sizes[name] // step for name, step in steps}
        for definition in self.definitions:
            # outside of its range for sizes that a run refuses
            symbols[definition.name] = min(max(definition.value(symbols) or 0, definition.least), definition.most)
        return symbols | {d.size: d.most for d in self.defined if d.size}

    def are_accepted(self, symbols: Mapping[str, int]) -> bool:
        """Return True if a run accepts sizes in their ranges, for the values of all symbols."""
        defined = all(d.value(symbols) == symbols[d.name] for d in self.definitions)
        if not self.tiers:
            return defined and all(check.holds(symbols) for check in self.checks)
        tier = self.tier_of_symbols(symbols)
        return defined and tier is not None and all(check.holds(symbols) for check in tier.checks)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The sequences of calls among which the sizes of a run choose; () for a program without tiers."""
        return self.body[0].tiers if len(self.body) == 1 and isinstance(self.body[0], TierChoice) else ()

    @property
    def typical_steps(self) -> tuple[Step, ...]:
        """The calls in the order of the text; those of the tier that runs with the typical sizes if there are tiers."""
        tier = self.tier_of_symbols(self.symbols_of_sizes(self.typical_sizes)) if self.tiers else None
        return self.steps if tier is None else tuple(steps_in(tier.body))

    def tier_of_symbols(self, symbols: Mapping[str, int]) -> Tier | None:
        """Return the tier that runs for values of all symbols; None if there is none."""
        sizes = {name: symbols[symbol_of_multiples(name, r.step)] * r.step for name, r in self.sizes.items()}
        return next((tier for tier in self.tiers if tier.has_sizes(sizes)), None)

    def symbol_values(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the values of the symbols in formulas of the program for sizes by name, such as 2 for
        `height/32` if `height` is 64.

        Raise ValueError if a size is missing, unknown or outside of its range, or if they violate a
        condition of the program.
        """
        if sizes.keys() != self.sizes.keys():
            raise ValueError(f"the sizes of {self.name} are {', '.join(self.sizes)}, got {', '.join(sizes)}")
        for name, allowed in self.sizes.items():
            if sizes[name] not in allowed:
                raise ValueError(f"{name} is {sizes[name]}, which is not in its range {allowed}")
        values = self.symbols_of_sizes(sizes)
        for check in self.checks:
            if not check.holds(values):
                raise ValueError(f"{check} does not hold")
        if not self.are_accepted(values):
            raise ValueError("sizes violate a condition, or a size that others define is out of its range")
        return values

    def map_steps(
        self, new_steps: Callable[[Step], Sequence[Step]], new_view: Callable[[View], View] = lambda view: view
    ) -> Program:
        """Return the program with each call replaced by calls, in the order of the text.

        new_view   function of the views and of the results that branches and loops have of themselves
        """
        return replace(self, body=map_nodes(self.body, new_steps, new_view))

    def storages_of_kind(self, kind: str) -> tuple[Storage, ...]:
        """Return the tensors' storage of a kind ("temp", "constant", ...) that calls and branches use,
        in order of first use.
        """
        storages = (view.storage for view in views_in(self.body))
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


def _text_of_shape(storage: Storage) -> str:
    return f"[{', '.join(storage.dim_texts)}]" + ("" if storage.dims is None else f" in {[*storage.shape]}")


def _text_of_number(number: NumberValue) -> str:
    return number.name if isinstance(number, SymDim) else repr(number.value)


def _text_of_view(view: View) -> str:
    return json.dumps(view.storage.name) + (f" + {view.offset}" if view.offset else "")


def _lines_of_nodes(nodes: Iterable[ProgramNode], indent: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Step):
            team = "team " if node.kernel.team else ""
            args = [*map(_text_of_view, node.args), *map(_text_of_number, node.numbers)]
            yield f"{indent}{team}call {json.dumps(node.kernel.name)} ({', '.join(args)})"
            continue
        if isinstance(node, Leave):
            yield f"{indent}leave"
            continue
        if isinstance(node, Define):
            if node.size:
                yield f"{indent}size {json.dumps(node.size)} = {_text_of_view(node.value)}, at most {node.most}"
            else:
                yield f"{indent}require {_text_of_view(node.value)} from {node.least} to {node.most}"
            yield from (f"{indent}check {check}" for check in node.checks)
            continue
        if isinstance(node, TierChoice):
            for tier in node.tiers:
                sizes = ", ".join(f"{json.dumps(name)} {r.description}" for name, r in tier.sizes.items())
                checks = (f"{indent}  check {check}" for check in tier.checks)
                yield from (
                    f"{indent}tier {sizes} {{",
                    *checks,
                    *_lines_of_nodes(tier.body, indent + "  "),
                    f"{indent}}}",
                )
            continue
        yield f"{indent}if {_text_of_view(node.condition)} {{" if isinstance(node, Branch) else f"{indent}loop {{"
        for number, sequence in enumerate(sequences_in(node)):
            if number:
                yield f"{indent}}} else {{"
            yield from _lines_of_nodes(sequence, indent + "  ")
        yield f"{indent}}}"
