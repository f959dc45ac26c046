# SPDX-License-Identifier: Apache-2.0
"""ToGraphNormalForm: sharing of nodes instead of variables.

let %a = nn.relu(%x); let %b = exp(%a); add(%a, %b)
%0 = nn.relu(%x); add(%0, exp(%0))
"""

from __future__ import annotations

from aotc.relay.analysis import free_vars
from aotc.relay.expr import Expr, Function, Let, Var
from aotc.relay.transform.base import FunctionPass
from aotc.relay.visitor import post_order, rebuild


def _enter(node: Expr) -> bool:
    return not (isinstance(node, Function) and node.is_primitive)


def is_recursive(let: Let) -> bool:
    """Whether the value of a let mentions its variable: a recursive function."""
    return isinstance(let.value, Function) and let.var in free_vars(let.value)


def to_graph_normal_form(function: Function) -> Function:
    """`function` without lets, but for those that define recursive functions."""
    values: dict[Expr, Expr] = {}
    memo: dict[Expr, Expr] = {}

    def new(node: Expr) -> Expr:
        while node in values:
            node = values[node]
        return memo[node]

    order = list(post_order(function, _enter))
    values.update((n.var, n.value) for n in order if isinstance(n, Let) and not is_recursive(n))
    for node in order:
        if isinstance(node, Let) and node.var in values:
            memo[node] = new(node.body)
        elif isinstance(node, Var):
            memo[node] = node
        else:
            memo[node] = rebuild(node, new) if _enter(node) else node
    result = memo[function]
    assert isinstance(result, Function)
    return result


class ToGraphNormalForm(FunctionPass):
    """Put the value of each let where its variable is used.  Lets of recursive functions stay."""

    opt_level = 1
    required = ()

    def rewritten(self, function: Function) -> Function:
        return to_graph_normal_form(function)
