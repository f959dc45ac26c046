# SPDX-License-Identifier: Apache-2.0
"""Calls of a function in itself that are its results, so that the function is a loop."""

from __future__ import annotations

from aotc.ir import AotcError
from aotc.relay.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple
from aotc.relay.graph_api import post_order


class TailCalls:
    """Calls of a function in itself, all of which are results of the function.

    nodes   these calls, and the choices between them and other results
    """

    def __init__(self, name: str, function: Function) -> None:
        """Find the calls. Raise AotcError (code "first-class-function") if the function calls itself
        elsewhere, or is not recursive.
        """
        self.calls: list[Call] = []
        self.nodes: set[Expr] = set()
        self._params = function.params
        self._add_calls_in_result(name, function.body)
        every = [n for n in post_order(function.body) if isinstance(n, GlobalVar) and n.name == name]
        users = [n for n in post_order(function.body) if name in _names_of_used_functions(n)]
        if not every or set(users) != set(self.calls):
            text = f"@{name}, a function that calls itself or is a value, cannot be compiled"
            hint = "a function that is recursive only in its results becomes a loop"
            raise AotcError("first-class-function", text, span=function.span, hint=hint)

    def _add_calls_in_result(self, name: str, node: Expr) -> bool:
        """Add the calls that are results of a node; return True if there are any."""
        match node:
            case Let():
                found = self._add_calls_in_result(name, node.body)
            case If():
                in_first = self._add_calls_in_result(name, node.true_branch)
                found = self._add_calls_in_result(name, node.false_branch) or in_first
            case Call(op=GlobalVar(name=called)) if called == name:
                self.calls.append(node)
                found = True
            case _:
                return False
        if found:
            self.nodes.add(node)
        return found

    def is_passed_on_unchanged(self, position: int) -> bool:
        """Return True if all calls pass on a parameter of the function."""
        return all(call.args[position] is self._params[position] for call in self.calls)


def _names_of_used_functions(node: Expr) -> set[str]:
    """Return the names of global functions that are operands of a node."""
    operands = (node.op, *node.args) if isinstance(node, Call) else node.fields if isinstance(node, Tuple) else ()
    return {n.name for n in operands if isinstance(n, GlobalVar)}
