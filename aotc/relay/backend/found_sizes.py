# SPDX-License-Identifier: Apache-2.0
"""Sizes that calls find, the definitions of these sizes in a program, and the conditions that definitions check.

found_size_of_function(function)            # FoundSize("n", 24, 1) for a function that consists of leading_rows
found_sizes_of_module(module, {})           # {"n": 24}
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aotc.ir import AotcError, Dim, DimRange, Span, SymDim, bound_dim, frozen, get_op, option_text, symbol_of_multiples
from aotc.ir.dimension_formulas import formula_of_name
from aotc.relay.backend.run_time_sizes import RunTimeSizes
from aotc.relay.graph_api import Call, Function, IRModule, post_order
from aotc.relay.op.found_sizes import RequireRangeAttrs
from aotc.relay.op.opdef import OpDef
from aotc.tir import Branch, Define, Loop, ProgramNode, SizeCheck, Step, Storage, Target, View


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
    """Return the size that a fused function finds if it consists of one such call; None for other functions."""
    body = function.body
    if not isinstance(body, Call) or (found := _found_size_of_call(body)) is None:
        return None
    assert tuple(body.args) == tuple(function.params), "an operator that finds a size is fused with others"
    return found


def gives_first_operand(function: Function) -> bool:
    """Return True for a fused function that consists of `after` or `require_range`: its result is its first operand."""
    return isinstance(function.body, Call) and function.body.op in (get_op("after"), get_op("require_range"))


def required_range_of_function(function: Function) -> tuple[RequireRangeAttrs, int] | None:
    """Return what a fused function that consists of `require_range` requires, and the position of the argument that
    holds the value; None for others.
    """
    body = function.body
    if not isinstance(body, Call) or not isinstance(body.attrs, RequireRangeAttrs):
        return None
    data, value = body.args
    assert function.params[0] is data, "an operator that gives its first operand is fused with others"
    return body.attrs, [p is value for p in function.params].index(True)


def found_sizes_of_module(module: IRModule, ranges: Mapping[str, DimRange], target: Target) -> dict[str, int]:
    """Return the largest values of the sizes that calls in a module find.

    ranges    sizes that callers state

    Raise AotcError (code "found-size") for a size that is a formula, that nothing bounds, or that callers
    state as well; code "target" for one in code for a GPU.
    """
    found: dict[str, int] = {}
    intervals = {symbol_of_multiples(n, r.step): (r.least // r.step, r.most // r.step) for n, r in ranges.items()}
    calls = dict.fromkeys(n for function in module.values() for n in post_order(function) if isinstance(n, Call))
    for node in calls:
        size = _found_size_of_call(node)
        if target.gpu is not None and (size is not None or isinstance(node.attrs, RequireRangeAttrs)):
            what = "results whose size depends on data" if size is not None else "checks of values that a run computes"
            text = f"code for {target.name} has no {what}"
            hint = "compile for a processor, for example with " + option_text("target", "host")
            raise AotcError("target", text, span=node.span, hint=hint)
        if size is None:
            continue
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


def with_checks_of_found_sizes(
    nodes: Sequence[ProgramNode], outputs: Iterable[Storage], sizes: RunTimeSizes, main: Function
) -> tuple[tuple[ProgramNode, ...], tuple[SizeCheck, ...]]:
    """Return a schedule whose definitions check the conditions that depend on the sizes which they define, and
    the conditions that are known when a run begins.

    Raise AotcError (code "found-size") if a size that is found in a branch or loop is used outside of it, or if what
    is known when a run begins depends on one.
    """
    for definition in sizes.definitions:
        if definition.symbols & sizes.found.keys():
            text = f"the size {definition} must be known when a run begins"
            raise AotcError("found-size", text, span=main.span)
    symbols = {check: _symbols((check.left, check.right)) & sizes.found.keys() for check in sizes.checks}
    scopes = _ScopesOfFoundSizes(sizes, symbols)
    known: dict[str, View] = {}
    body = scopes.with_checks(nodes, known)
    for storage in outputs:
        scopes.require_known(storage.run_time_shape, known, main.span)
    for check, used in symbols.items():
        if used and check not in scopes.checked:
            scopes.require_known((check.left, check.right), known, check.span or main.span)
    return body, tuple(check for check, used in symbols.items() if not used)


@dataclass
class _ScopesOfFoundSizes:
    """Assignment of conditions to the definitions of a schedule, each of which is known in the sequence of nodes that
    it belongs to.

    symbols    the sizes that a run finds in each condition
    checked    the conditions that definitions check
    """

    sizes: RunTimeSizes
    symbols: Mapping[SizeCheck, frozenset[str]]
    checked: set[SizeCheck] = field(default_factory=set)

    def with_checks(self, part: Sequence[ProgramNode], known: dict[str, View]) -> tuple[ProgramNode, ...]:
        """Return a part of the schedule whose definitions check conditions, without definitions of known sizes.

        known    the values of the sizes that are found before; gets those that the part finds
        """
        body: list[ProgramNode] = []
        for node in part:
            if isinstance(node, Step):
                self.require_known((n for n in node.numbers if isinstance(n, SymDim)), known, node.span)
            elif isinstance(node, Define) and node.size in known:
                if known[node.size] != node.value:
                    text = f"two calls find the size {node.size}, which must have one value in a run"
                    raise AotcError("found-size", text, span=node.span)
                continue
            elif isinstance(node, Define) and node.size:
                known[node.size] = node.value
                checks = tuple(check for check, used in self.symbols.items() if node.size in used <= known.keys())
                self.checked.update(checks)
                node = replace(node, checks=checks)
            elif isinstance(node, Branch):
                yes, no = (self.with_checks(arm, dict(known)) for arm in node.arms)
                node = replace(node, arms=(yes, no))
            elif isinstance(node, Loop):
                node = replace(node, body=self.with_checks(node.body, dict(known)))
            body.append(node)
        return tuple(body)

    def require_known(self, dims: Iterable[Dim], known: Container[str], span: Span | None) -> None:
        """Raise AotcError (code "found-size") for dimensions with a size that a run finds, but not before.

        known   names of the sizes that are found before
        """
        for name in sorted(_symbols(dims) & self.sizes.found.keys()):
            if name not in known:
                text = f"the size {name}, which a run finds in a branch or loop, is used outside of it or earlier"
                hint = "give the results of branches and loops shapes that do not depend on sizes found in them"
                raise AotcError("found-size", text, span=span, hint=hint)


def _symbols(dims: Iterable[Dim]) -> frozenset[str]:
    return frozenset(s for d in dims if isinstance(d, SymDim) for s in d.symbols)
