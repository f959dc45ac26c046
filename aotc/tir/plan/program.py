# SPDX-License-Identifier: Apache-2.0
"""The program that code generation prints: storage, kernels and the static schedule of calls.

Program(name="net", inputs=(x,), outputs=(y,), body=(Step(kernel, (View(x), View(w), View(y))),))

Calls run in the order of `body`, whose nodes `program_nodes` defines. `Program.steps` are all calls in the order of
the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from aotc.ir import DimRange, SymDim, frozen, symbol_of_multiples
from aotc.ir.dimension_ranges import dim_text_in_sizes
from aotc.ir.size_operands import SizeDefinition, SizeOperand
from aotc.tir import Kernel, to_text
from aotc.tir.plan.program_nodes import (
    Branch,
    Define,
    Leave,
    NumberValue,
    ProgramNode,
    Step,
    Tier,
    TierChoice,
    definitions_in,
    has_team_steps,
    map_nodes,
    sequences_in,
    steps_in,
    views_in,
)
from aotc.tir.plan.size_checks import GrowingState, SizeCheck, value_of_dim
from aotc.tir.plan.storage import MemoryPlan, StateTensor, Storage, View


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

    def extents_or_formulas(self, storage: Storage) -> list[int | str]:
        """Return the shape of a tensor, with extents that depend on the sizes of a run as formulas over them."""
        return [d if isinstance(d, int) else dim_text_in_sizes(d, self.sizes) for d in storage.run_time_shape]

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
