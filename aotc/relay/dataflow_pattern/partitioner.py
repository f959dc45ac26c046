# SPDX-License-Identifier: Apache-2.0
"""Partitioning: matches of a pattern become calls of functions of their own.

before   nn.relu(add(nn.conv2d(%x, %w), %b))
after    fn (%FunctionVar_0_0, ..., PartitionedFromPattern="nn.conv2d_add_nn.relu_") { ... }(%x, %w, %b)

is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()) + wildcard()).partition(expr)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aotc.ir import Op, merge_spans
from aotc.relay.dataflow_pattern.groups import PARTITIONED, Group, find_groups, is_free
from aotc.relay.dataflow_pattern.patterns import DFPattern, needs_types
from aotc.relay.expr import Call, Expr, Function, If, Let, Tuple, TupleGetItem, Var
from aotc.relay.infer import infer_expr
from aotc.relay.visitor import Mutator, rebuild


class _Partition(Mutator):
    def __init__(self, groups: dict[Expr, Group], attrs: Mapping[str, Any]) -> None:
        super().__init__()
        self.groups = groups
        self.numbers = {root: k for k, root in enumerate(groups)}
        self.attrs = attrs

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        group = self.groups.get(old)
        if group is None:
            return new
        function = self._function(group)
        span = merge_spans(m.span for m in group.members)
        return Call(function, [self.memo[arg] for arg in group.inputs], span=span, checked_type=old.checked_type)

    def _function(self, group: Group) -> Function:
        number = self.numbers[group.root]
        params = [Var(f"FunctionVar_{number}_{k}", arg.checked_type) for k, arg in enumerate(group.inputs)]
        body: dict[Expr, Expr] = dict(zip(group.inputs, params, strict=True))
        for member in group.members:
            if member not in body:
                body[member] = rebuild(member, lambda c: body[c] if c in body else self.memo[c])
        name = "".join(map(_name, group.members))
        return Function(params, body[group.root], attrs={**self.attrs, PARTITIONED: name}, span=group.root.span)


def _name(node: Expr) -> str:
    match node:
        case Call(op=Op(name=name)):
            return f"{name}_"
        case TupleGetItem(index=index):
            return f"TupleGetItem{index}_"
        case Call() | Tuple() | If() | Let():
            return f"{type(node).__name__}_"
        case Function():
            return "Function"
        case _:
            return ""


def partition(
    pattern: DFPattern,
    expr: Expr,
    attrs: Mapping[str, Any] | None = None,
    check: Callable[[Expr], bool] = lambda _: True,
) -> Expr:
    """`expr` with every match of `pattern` as a call of a function of its own.

    pattern  what goes into one function; what its wildcards match becomes the arguments, in their order.
             Constants stay inside where the pattern asks for a constant, and are arguments elsewhere
    attrs    attributes of the functions, beside PartitionedFromPattern
    check    called with the root of a match; False leaves it alone

    Matches nearer to the result win; a match is left alone if anything outside it uses a node within.  Types are
    inferred first where the pattern asks for them.
    """
    typed = infer_expr(expr) if needs_types(pattern) else expr
    groups = find_groups(pattern, typed, lambda node: not is_free(node) and check(node))
    found = {root: group for root, group in groups.items() if root in group.members}
    return _Partition(found, attrs or {}).visit(typed) if found else expr
