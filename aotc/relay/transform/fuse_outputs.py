# SPDX-License-Identifier: Apache-2.0
"""FuseOutputs: what is made of each element of a result at once becomes a result of that kernel, too.

%0 = fn (%p0, %p1, %p2, Primitive=1) { add(nn.conv2d(%p0, %p1), %p2) }(%x, %w, %y);       # read again later
%1 = fn (%p0, Primitive=1) { nn.relu(%p0) }(%0)
=>
%0 = fn (%p0, %p1, %p2, Primitive=1) { %0 = add(nn.conv2d(%p0, %p1), %p2); (%0, nn.relu(%0)) }(%x, %w, %y)

In: typed functions, after FuseOps.  Out: the same results from fewer kernels, where each of them costs time by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aotc.ir import Op, OpPattern, TensorType, merge_spans
from aotc.relay.blocks import outside_scopes
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, as_function, op_of, type_of
from aotc.relay.transform.base import FunctionPass, outside_kernels
from aotc.relay.visitor import post_order, rebuild, substitute

#: Results of one kernel.
_MOST: Final = 8
_LAST: Final = (OpPattern.ELEMWISE, OpPattern.BROADCAST, OpPattern.OUT_ELEMWISE_FUSABLE)

#: Calls that become one, the first of which reads nothing of the others.
_Group: TypeAlias = "list[Call]"


@dataclass(frozen=True, repr=False)
class FuseOutputs(FunctionPass):
    """Calls of elementwise functions join the one that computes what they read, if all else is known by then.

    most_args      arguments and results of one kernel; a result may need room, which is an argument, too
    """

    opt_level = 1
    most_args: int = 512

    def rewritten(self, function: Function) -> Function:
        group_of = _groups(function, self.most_args)
        joined = {node: group for node, group in group_of.items() if len(group) > 1}
        made: dict[Expr, Expr] = {}
        for node in post_order(function, outside_kernels):
            group = joined.get(node)
            if group is None:
                made[node] = rebuild(node, made.__getitem__) if outside_kernels(node) else node
            elif node is group[0]:
                whole = _together(group, made)
                made.update({call: TupleGetItem(whole, k) for k, call in enumerate(group)})
        return as_function(made[function]) if joined else function


def _groups(function: Function, most: int) -> dict[Expr, _Group]:
    """The group of each call of a fused function."""
    found: dict[Expr, _Group] = {}
    number = {node: k for k, node in enumerate(post_order(function.body, outside_scopes))}
    known: set[Expr] = {*function.params, *(node for node in number if isinstance(node, Constant))}
    for node in number:
        if not isinstance(node, Call) or not isinstance(node.op, Function) or not node.op.is_primitive:
            continue
        hosts = [found[arg] for arg in node.args if arg in found and _follows(node, arg)]
        group = max(hosts, key=lambda group: number[group[0]], default=[])
        first = number[group[0]] if group else 0
        early = (a in known or number.get(a, first) < first or found.get(a) is group for a in node.args)
        fits = len(group) < _MOST and _arguments([*group, node]) <= most
        group = group if group and fits and all(early) else []
        group.append(node)
        found[node] = group
    return found


def _arguments(group: Sequence[Call]) -> int:
    """What a kernel takes: inputs, results, and room for each of these."""
    return len({arg for call in group for arg in call.args} - {*group}) + 2 * len(group)


def _follows(node: Call, arg: Expr) -> bool:
    """Whether each element of a call's result needs that element of an argument, which is made element by element."""
    assert isinstance(node.op, Function) and isinstance(arg, Call) and isinstance(arg.op, Function)
    ty, other = type_of(node), type_of(arg)
    same = isinstance(ty, TensorType) and isinstance(other, TensorType) and ty.shape == other.shape
    last = arg.op.body
    ends = isinstance(last, Call) and isinstance(last.op, Op) and last.op.pattern in _LAST
    calls = (inner for inner in post_order(node.op.body) if isinstance(inner, (Call, Tuple, TupleGetItem)))
    return ends and same and all(isinstance(c, Call) and op_of(c).pattern <= OpPattern.BROADCAST for c in calls)


def _together(group: Sequence[Call], made: dict[Expr, Expr]) -> Call:
    """One call that gives the results of all."""
    values: dict[Expr, Expr] = {}
    params: dict[Expr, Var] = {}
    for call in group:
        function = as_function(call.op)
        for arg in call.args:
            if arg not in values:
                values[arg] = params[arg] = Var(f"p{len(params)}", type_of(arg))
        inner = dict(zip(function.params, (values[arg] for arg in call.args), strict=True))
        values[call] = substitute(function.body, inner)
    body = Tuple(values[call] for call in group)
    span = merge_spans(call.span for call in group)
    function = Function(params.values(), body, type_of(body), None, as_function(group[0].op).attrs, span)
    return Call(function, [made.get(arg, arg) for arg in params], span=span, checked_type=type_of(body))
