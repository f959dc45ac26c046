# SPDX-License-Identifier: Apache-2.0
"""DeadCodeElimination: drop variables that nothing uses.

let %a = nn.relu(%x); let %b = exp(%x); %b
let %b = exp(%x); %b
"""

from __future__ import annotations

from aotc.relay.expr import Expr, Function, Let, Var
from aotc.relay.transform.base import FunctionPass, GraphMutator
from aotc.relay.visitor import children


def live_vars(root: Function) -> set[Var]:
    """The variables that the result needs: a let's value is looked at once its variable is used."""
    values: dict[Var, Expr] = {}
    live: set[Var] = set()
    seen: set[int] = set()
    stack: list[Expr] = [root.body]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Var):
            live.add(node)
            stack.extend([values[node]] if node in values else [])
        elif isinstance(node, Let):
            values[node.var] = node.value
            stack.extend([node.body, node.value] if node.var in live else [node.body])
        else:
            stack.extend(children(node)[len(node.params) :] if isinstance(node, Function) else children(node))
    return live


class _Drop(GraphMutator):
    def __init__(self, live: set[Var]) -> None:
        super().__init__()
        self.live = live

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        return new.body if isinstance(new, Let) and new.var not in self.live else new


class DeadCodeElimination(FunctionPass):
    """Remove lets whose variables do not matter to the result, chains of them too."""

    opt_level = 1

    def rewritten(self, function: Function) -> Function:
        return _Drop(live_vars(function)).visit_function(function)
