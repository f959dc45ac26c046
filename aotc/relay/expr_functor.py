# SPDX-License-Identifier: Apache-2.0
"""ExprFunctor, ExprVisitor, ExprMutator: user-defined visitors of expressions, with one method per
kind of node.

class CountCalls(ExprVisitor):
    count = 0
    def visit_call(self, call):
        self.count += 1
        super().visit_call(call)

A method visits the children that it needs, in the order of its calls. When the recursion becomes
deep, it continues in a new thread with an own stack and the current context, so that programs of
any depth work.
"""

import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from aotc.relay.graph_api import Expr, children, map_children, node_kind

#: Depth of nested visits on one stack; with a few Python calls for each, well below Python's limit
#: of 1000.
MAX_VISIT_DEPTH_PER_STACK: Final = 64


def _call_on_new_stack(function: Callable[[], Any]) -> Any:
    """Call `function` in another thread, in this thread's context, and return or raise its outcome."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="aotc-visit") as pool:
        return pool.submit(contextvars.copy_context().run, function).result()


class ExprFunctor:
    """A function of expressions, defined by a method for each kind of node.

    `visit(expr)` returns the result of the node's method, cached from the first visit. Raise
    NotImplementedError for a kind of node without a method.
    """

    def __init__(self) -> None:
        self.memo_map: dict[Expr, Any] = {}
        self._depth = 0

    def visit(self, expr: Expr) -> Any:
        """Return the visitor's result for an expression node, computed once and cached."""
        if expr not in self.memo_map:
            self._depth += 1
            try:
                full = self._depth % MAX_VISIT_DEPTH_PER_STACK == 0
                result = (
                    _call_on_new_stack(lambda: self._call_visit_method_of_kind(expr))
                    if full
                    else self._call_visit_method_of_kind(expr)
                )
                self.memo_map[expr] = result
            finally:
                self._depth -= 1
        return self.memo_map[expr]

    def _call_visit_method_of_kind(self, expr: Expr) -> Any:
        return getattr(self, f"visit_{node_kind(expr).name}")(expr)

    def visit_default(self, expr: Expr) -> Any:
        """Return the visitor's result for a node whose kind has no method of its own; raises
        NotImplementedError here.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with a {type(expr).__name__}")

    def _call_visit_default(self, expr: Any) -> Any:
        return self.visit_default(expr)

    visit_function = visit_call = visit_let = visit_if = visit_tuple = visit_tuple_getitem = _call_visit_default
    visit_ref_create = visit_ref_read = visit_ref_write = visit_constructor = visit_match = _call_visit_default
    visit_var = visit_global_var = visit_constant = visit_op = _call_visit_default


class ExprVisitor(ExprFunctor):
    """Visits every node once; a method that does not call the overridden one skips the node's
    children.
    """

    def visit_default(self, expr: Expr) -> Any:
        for child in children(expr):
            self.visit(child)


class ExprMutator(ExprFunctor):
    """Rebuilds an expression from rewritten children; an expression without changes stays the same
    object.

    A changed node keeps its span and its checked type; run InferType after a rewrite that changes
    types.
    """

    def visit_default(self, expr: Expr) -> Any:
        return map_children(expr, self.visit)
