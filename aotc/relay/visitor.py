# SPDX-License-Identifier: Apache-2.0
"""Iterative walks over graph expressions: a chain of any length works, shared nodes are visited once.

for node in post_order(f): ...                   # children before users
class Rename(Mutator):                           # bottom-up rebuild, unchanged nodes stay the same object
    def rewrite_call(self, old, new): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from aotc.ir import Op, assert_never
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, Var

T = TypeVar("T")


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions in evaluation order (a call's operator first, a function's parameters first)."""
    match expr:
        case Var() | GlobalVar() | Constant() | Op():
            return ()
        case Call():
            return (expr.op, *expr.args)
        case Tuple():
            return expr.fields
        case TupleGetItem():
            return (expr.tuple_value,)
        case Let():
            return (expr.var, expr.value, expr.body)
        case If():
            return (expr.cond, expr.true_branch, expr.false_branch)
        case Function():
            return (*expr.params, expr.body)
        case _:
            assert_never(expr)


def depth_first(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Every node of a graph once, after those below it."""
    seen: set[T] = set()
    stack = [(root, False) for root in reversed([*roots])]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child in reversed([*below(node)]) if child not in seen)


def post_order(root: Expr, enter: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Every node once, children before users.  `enter(node)` False keeps the walk out of a node's children."""
    return depth_first([root], children if enter is None else lambda node: children(node) if enter(node) else ())


# --- variables


def bound_by(node: Expr) -> tuple[Var, ...]:
    """The variables that a node itself binds: a function's parameters, a let's variable."""
    match node:
        case Function():
            return node.params
        case Let():
            return (node.var,)
        case _:
            return ()


def binders(root: Expr) -> list[Var]:
    """The variables bound below `root`, each as often as it is bound, in post order of their binders."""
    return [var for node in post_order(root) for var in bound_by(node)]


def bound_vars(expr: Expr) -> list[Var]:
    """Variables bound by a function or a let inside `expr`, each once, in post order of their binders."""
    return list(dict.fromkeys(binders(expr)))


def all_vars(expr: Expr) -> list[Var]:
    """Every variable, in post order."""
    return [node for node in post_order(expr) if isinstance(node, Var)]


def free_vars(expr: Expr) -> list[Var]:
    """Variables that nothing inside `expr` binds, in post order.  Every variable is bound at most once."""
    bound = set(binders(expr))
    return [v for v in all_vars(expr) if v not in bound]


# --- rebuilding


def rebuild(node: Expr, new: Callable[[Expr], Expr]) -> Expr:
    """`node` with each child c replaced by new(c): the same object if no child changed, else untyped copies.

    A changed node keeps its span and its checked type: a rewrite that changes types runs type inference.
    """
    old = children(node)
    fresh = tuple(new(c) for c in old)
    if all(a is b for a, b in zip(old, fresh, strict=True)):
        return node
    return with_children(node, fresh)


def with_children(node: Expr, fresh: tuple[Expr, ...]) -> Expr:
    """A copy of `node` over other children (as many as `children(node)` gives); type and span are kept."""
    match node:
        case Var() | GlobalVar() | Constant() | Op():
            return node
        case Call():
            return Call(fresh[0], fresh[1:], node.attrs, node.span, node.checked_type)  # type: ignore[arg-type]
        case Tuple():
            return Tuple(fresh, node.span, node.checked_type)
        case TupleGetItem():
            return TupleGetItem(fresh[0], node.index, node.span, node.checked_type)
        case Let():
            return Let(_as_var(fresh[0]), fresh[1], fresh[2], node.span, node.checked_type)
        case If():
            return If(fresh[0], fresh[1], fresh[2], node.span, node.checked_type)
        case Function():
            params = tuple(_as_var(p) for p in fresh[:-1])
            return Function(params, fresh[-1], node.ret_type, node.attrs, node.span)
        case _:
            assert_never(node)


def _as_var(expr: Expr) -> Var:
    if not isinstance(expr, Var):
        raise TypeError(f"a bound variable was rewritten to {type(expr).__name__}")
    return expr


class Mutator:
    """Bottom-up rewriting with a memo.  Override `rewrite`, or one of the `rewrite_*` it calls.

    `rewrite(old, new)` gets the original node and the node rebuilt over rewritten children, and returns
    the replacement.  `enter(node)` False leaves a subtree alone (a fused function, say).
    """

    def __init__(self) -> None:
        self.memo: dict[int, Expr] = {}
        self._keep: list[Expr] = []  # nodes whose ids are keys of the memo must stay alive

    def enter(self, node: Expr) -> bool:
        """Whether to rewrite below `node`."""
        return True

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        match new:
            case Call():
                assert isinstance(old, Call)
                return self.rewrite_call(old, new)
            case TupleGetItem():
                return self.rewrite_tuple_get_item(old, new)
            case Var():
                return self.rewrite_var(new)
            case Constant():
                return self.rewrite_constant(new)
            case Function():
                return self.rewrite_function(old, new)
            case _:
                return new

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        return new

    def rewrite_tuple_get_item(self, old: Expr, new: TupleGetItem) -> Expr:
        return new

    def rewrite_var(self, new: Var) -> Expr:
        return new

    def rewrite_constant(self, new: Constant) -> Expr:
        return new

    def rewrite_function(self, old: Expr, new: Function) -> Expr:
        return new

    def visit(self, root: Expr) -> Expr:
        """The rewritten `root`."""
        for node in post_order(root, self.enter):
            if id(node) not in self.memo:
                entered = self.enter(node)
                new = rebuild(node, lambda c: self.memo[id(c)]) if entered else node
                self.memo[id(node)] = self.rewrite(node, new)
                self._keep.append(node)
        return self.memo[id(root)]

    def visit_function(self, function: Function) -> Function:
        """The rewritten function, which must still be one."""
        result = self.visit(function)
        assert isinstance(result, Function)
        return result


class _Substitute(Mutator):
    def __init__(self, mapping: dict[Var, Expr]) -> None:
        super().__init__()
        self.mapping = mapping

    def rewrite_var(self, new: Var) -> Expr:
        return self.mapping.get(new, new)


def substitute(expr: Expr, mapping: dict[Var, Expr]) -> Expr:
    """`expr` with variables replaced (by identity): those that it binds, by variables only."""
    return _Substitute(mapping).visit(expr) if mapping else expr
