# SPDX-License-Identifier: Apache-2.0
"""Sizes that calls find: the definitions of a program, and the conditions that are checked there.

found_size_of_function(function)            # FoundSize("n", 24, 1) for a function that consists of leading_rows
found_sizes_of_module(module, {})           # {"n": 24}
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from aotc.ir import AotcError, Dim, DimRange, Span, SymDim, bound_dim, frozen, get_op, symbol_of_multiples
from aotc.ir.dimension_formulas import formula_of_name
from aotc.relay.backend.run_time_sizes import RunTimeSizes
from aotc.relay.graph_api import Call, Function, IRModule, post_order
from aotc.relay.op.opdef import OpDef
from aotc.tir import Define, ProgramNode, SizeCheck, Target
from aotc.tir.plan.program import steps_in


@frozen
class FoundSize:
    """A size that a call finds.

    most        largest value
    position    number of the argument that holds the value
    """

    size: str
    most: int | None
    position: int


def _found_size_of_call(call: Call) -> FoundSize | None:
    """Return the size that a call finds; None for other calls."""
    op = call.op
    if not isinstance(op, OpDef) or op.finds is None:
        return None
    attribute, position = op.finds
    size = getattr(call.attrs, attribute)
    return FoundSize(size.name, size.upper, position) if isinstance(size, SymDim) else None


def found_size_of_function(function: Function) -> FoundSize | None:
    """Return the size that the call which a fused function consists of finds; None for other functions."""
    body = function.body
    if not isinstance(body, Call) or (found := _found_size_of_call(body)) is None:
        return None
    assert tuple(body.args) == tuple(function.params), "an operator that finds a size is fused with others"
    return found


def gives_first_operand(function: Function) -> bool:
    """Return True for a fused function that consists of `after`: its result is its first operand."""
    return isinstance(function.body, Call) and function.body.op is get_op("after")


def found_sizes_of_module(module: IRModule, ranges: Mapping[str, DimRange], target: Target) -> dict[str, int]:
    """Return the largest values of the sizes that calls in a module find.

    ranges    sizes that callers state

    Raise AotcError (code "found-size") for a size that is a formula, that nothing bounds, or that callers
    state as well; code "target" for one in code for a GPU.
    """
    found: dict[str, int] = {}
    intervals = {symbol_of_multiples(n, r.step): (r.least // r.step, r.most // r.step) for n, r in ranges.items()}
    nodes = dict.fromkeys(node for function in module.values() for node in post_order(function))
    for node in nodes:
        if not isinstance(node, Call) or (size := _found_size_of_call(node)) is None:
            continue
        if target.gpu is not None:
            text = f"code for {target.name} has no results whose size depends on data"
            raise AotcError("target", text, span=node.span, hint="compile for a processor")
        if formula_of_name(size.size).symbols != {size.size} or size.size in intervals:
            text = f"a size that a run finds must have a name of its own, which {size.size!r} is not"
            raise AotcError("found-size", text, span=node.span)
        room = _largest_number_of_rows(node, intervals)
        if size.most is None and room is None:
            raise AotcError("found-size", f"nothing bounds the size {size.size}", span=node.span)
        bounds = (size.most, room, found.get(size.size))
        found[size.size] = min(n for n in bounds if n is not None)
    return found


def _largest_number_of_rows(call: Call, intervals: Mapping[str, tuple[int, int]]) -> int | None:
    ty = call.args[0].checked_type
    rows: Dim = ty.shape[0]  # type: ignore[union-attr]
    if isinstance(rows, SymDim):
        return bound_dim(rows, intervals).upper
    return rows


def require_sizes_found_before(
    nodes: Sequence[ProgramNode], sizes: RunTimeSizes, found: Container[str], span: Span | None
) -> None:
    """Raise AotcError (code "found-size") if calls in a loop use a size that no call before the loop finds.

    found    names of the sizes that are found before
    span     location of the loop
    """
    numbers = [number for step in steps_in(nodes) for number in step.numbers if isinstance(number, SymDim)]
    for name in sorted(_symbols(numbers) & sizes.found.keys()):
        if name not in found:
            text = f"a loop uses the size {name}, which a run finds, before it is found"
            raise AotcError("found-size", text, span=span, hint="give the loop a value of this size as an operand")


def with_checks_of_found_sizes(
    nodes: Sequence[ProgramNode], sizes: RunTimeSizes, main: Function
) -> tuple[tuple[ProgramNode, ...], tuple[SizeCheck, ...]]:
    """Return a schedule whose definitions check the conditions that depend on the sizes which they define, and
    the conditions that are known when a run begins.

    Raise AotcError (code "found-size") if a size is found in a branch or loop, or if what is known when a run
    begins depends on one.
    """
    defined = [node.size for node in nodes if isinstance(node, Define)]
    hint = "pad the result to a size that is known, or compute it outside"
    for name in sizes.found:
        if name not in defined:
            text = f"the size {name}, which a run finds, is that of a tensor in a branch or loop"
            raise AotcError("found-size", text, span=main.span, hint=hint)
    for definition in sizes.definitions:
        if definition.symbols & sizes.found.keys():
            text = f"the size {definition} must be known when a run begins"
            raise AotcError("found-size", text, span=main.span)
    at_definition: dict[str, list[SizeCheck]] = {name: [] for name in defined}
    at_entry: list[SizeCheck] = []
    for check in sizes.checks:
        used = _symbols((check.left, check.right)) & sizes.found.keys()
        last = max(used, key=defined.index, default=None)
        (at_entry if last is None else at_definition[last]).append(check)
    body = [replace(n, checks=tuple(at_definition[n.size])) if isinstance(n, Define) else n for n in nodes]
    return tuple(body), tuple(at_entry)


def _symbols(dims: Iterable[Dim]) -> frozenset[str]:
    return frozenset(s for d in dims if isinstance(d, SymDim) for s in d.symbols)
