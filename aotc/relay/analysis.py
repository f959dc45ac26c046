# SPDX-License-Identifier: Apache-2.0
"""Questions about graph expressions: free variables, users, operator counts.

free_vars(relay.add(x, y))                       # [x, y], in order of first use
list_op_freqs(mod["main"])                       # {"nn.conv2d": 21, ...}
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

from aotc.ir.op import Op
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Let, Var
from aotc.relay.visitor import children, post_order


def post_order_visit(expr: Expr, visit: Callable[[Expr], object]) -> None:
    """Call `visit` on every node once, children first."""
    for node in post_order(expr):
        visit(node)


def all_vars(expr: Expr) -> list[Var]:
    """Every variable, in post order."""
    return [node for node in post_order(expr) if isinstance(node, Var)]


def bound_vars(expr: Expr) -> list[Var]:
    """Variables bound by a function or a let inside `expr`, in post order of their binders."""
    found: dict[Var, None] = {}
    for node in post_order(expr):
        if isinstance(node, Function):
            found.update(dict.fromkeys(node.params))
        elif isinstance(node, Let):
            found[node.var] = None
    return list(found)


def free_vars(expr: Expr) -> list[Var]:
    """Variables that nothing inside `expr` binds, in post order.  Every variable is bound at most once."""
    bound = set(bound_vars(expr))
    return [v for v in all_vars(expr) if v not in bound]


def users(root: Expr) -> dict[Expr, list[Expr]]:
    """For every node below `root`, the nodes that use it directly (once per use)."""
    result: dict[Expr, list[Expr]] = defaultdict(list)
    for node in post_order(root):
        for child in children(node):
            result[child].append(node)
    return result


def list_op_freqs(expr: Expr) -> dict[str, int]:
    """How often each operator is called, by name, in order of first call."""
    return dict(
        Counter(node.op.name for node in post_order(expr) if isinstance(node, Call) and isinstance(node.op, Op))
    )


def global_uses(expr: Expr) -> list[str]:
    """The names of the global functions that `expr` mentions, in order of first use."""
    return list(dict.fromkeys(node.name for node in post_order(expr) if isinstance(node, GlobalVar)))
