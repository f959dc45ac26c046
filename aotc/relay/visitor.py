# SPDX-License-Identifier: Apache-2.0
"""Iterative traversal and rewriting of graph expressions; chains of any length work, shared nodes
are visited once.

for node in post_order(f): ...                   # children before users
class Rename(Mutator):                           # bottom-up rebuild, unchanged nodes stay the same object
    def rewrite_call(self, old, new): ...
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from aotc.ir import Op, frozen
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, as_function
from aotc.relay.graph_api import Clause, RefCreate, RefRead, RefWrite, Tuple, TupleGetItem, Var, pattern_vars, with_vars

T = TypeVar("T")


@frozen
class Kind:
    """A kind of expression node: its name, and functions for reading and replacing its children.

    name    suffix of the visitor methods for the kind, as in `visit_call` and `rewrite_call`
    parts   returns the direct subexpressions of a node in evaluation order
    over    (node, new subexpressions) -> a copy of the node, with its type and span
    """

    name: str
    parts: Callable[[Any], tuple[Expr, ...]] = lambda node: ()
    over: Callable[[Any, tuple[Any, ...]], Expr] = lambda node, new: node


#: All kinds of nodes by class; operators are of one kind, whatever their class.
KINDS: Final[Mapping[type[Expr], Kind]] = MappingProxyType(
    {
        Var: Kind("var"),
        GlobalVar: Kind("global_var"),
        Constant: Kind("constant"),
        Op: Kind("op"),
        Call: Kind(
            "call",
            lambda n: (n.op, *n.args),
            lambda n, new: Call(new[0], new[1:], n.attrs, None, n.span, n.checked_type),
        ),
        Tuple: Kind("tuple", lambda n: n.fields, lambda n, new: Tuple(new, n.span, n.checked_type)),
        TupleGetItem: Kind(
            "tuple_getitem",
            lambda n: (n.tuple_value,),
            lambda n, new: TupleGetItem(new[0], n.index, n.span, n.checked_type),
        ),
        Let: Kind(
            "let",
            lambda n: (n.var, n.value, n.body),
            lambda n, new: Let(_as_var(new[0]), new[1], new[2], n.span, n.checked_type),
        ),
        If: Kind(
            "if",
            lambda n: (n.cond, n.true_branch, n.false_branch),
            lambda n, new: If(new[0], new[1], new[2], n.span, n.checked_type),
        ),
        Function: Kind(
            "function",
            lambda n: (*n.params, n.body),
            lambda n, new: Function(map(_as_var, new[:-1]), new[-1], n.ret_type, n.type_params, n.attrs, n.span),
        ),
        RefCreate: Kind("ref_create", lambda n: (n.value,), lambda n, new: replace(n, value=new[0])),
        RefRead: Kind("ref_read", lambda n: (n.ref,), lambda n, new: replace(n, ref=new[0])),
        RefWrite: Kind("ref_write", lambda n: (n.ref, n.value), lambda n, new: replace(n, ref=new[0], value=new[1])),
        Constructor: Kind("constructor"),
        Match: Kind(
            "match", lambda n: (n.data, *bound_by(n), *(c.rhs for c in n.clauses)), lambda n, new: _rematched(n, new)
        ),
    }
)


def kind_of(expr: Expr) -> Kind:
    """Return the kind of an expression node; raise KeyError for an object that is not a node."""
    return KINDS[Op if isinstance(expr, Op) else type(expr)]


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct subexpressions in evaluation order (a call's operator first, a function's
    parameters first).
    """
    return kind_of(expr).parts(expr)


def depth_first(roots: Iterable[T], below: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield every node of a graph once, after the nodes that `below` returns for it."""
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
    """Yield every node of an expression once, children before users.

    The children of nodes for which `enter` returns False are skipped.
    """
    return depth_first([root], children if enter is None else lambda node: children(node) if enter(node) else ())


# --- variables


def _rematched(node: Match, new: tuple[Expr, ...]) -> Match:
    variables, values = map(_as_var, new[1:]), new[len(new) - len(node.clauses) :]
    clauses = [Clause(with_vars(c.lhs, variables), value) for c, value in zip(node.clauses, values, strict=True)]
    return replace(node, data=new[0], clauses=tuple(clauses))


def bound_by(node: Expr) -> tuple[Var, ...]:
    """Return the variables that a node itself binds: parameters of a function, the variable of a
    let, those of patterns.
    """
    match node:
        case Match():
            return tuple(v for c in node.clauses for v in pattern_vars(c.lhs))
        case Function():
            return node.params
        case Let():
            return (node.var,)
        case _:
            return ()


def binders(root: Expr) -> list[Var]:
    """Return the variables bound below `root`, once per binding, in post order of their binders."""
    return [var for node in post_order(root) for var in bound_by(node)]


def bound_vars(expr: Expr) -> list[Var]:
    """Return the variables bound inside `expr`, each once, in post order."""
    bound = set(binders(expr))
    return [v for v in all_vars(expr) if v in bound]


def all_vars(expr: Expr) -> list[Var]:
    """Return all variables of an expression in post order."""
    return [node for node in post_order(expr) if isinstance(node, Var)]


def free_vars(expr: Expr) -> list[Var]:
    """Return the variables that nothing inside `expr` binds, in post order. Every variable must be
    bound at most once.
    """
    bound = set(binders(expr))
    return [v for v in all_vars(expr) if v not in bound]


# --- rebuilding


def rebuild(node: Expr, new: Callable[[Expr], Expr]) -> Expr:
    """Return `node` with each child c replaced by new(c); the same object if no child changed.

    A changed node keeps its span and its checked type: a rewrite that changes types must run type
    inference.
    """
    old = children(node)
    fresh = tuple(new(c) for c in old)
    return node if fresh == old else with_children(node, fresh)


def with_children(node: Expr, fresh: tuple[Expr, ...]) -> Expr:
    """Return a copy of `node` with new children (as many as `children(node)` returns) and unchanged
    type and span.
    """
    return kind_of(node).over(node, fresh)


def _as_var(expr: Expr) -> Var:
    if not isinstance(expr, Var):
        raise TypeError(f"a bound variable was rewritten to {type(expr).__name__}")
    return expr


def mutated(
    root: Expr,
    rewrite: Callable[[Expr, Expr], Expr],
    enter: Callable[[Expr], bool] | None = None,
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """Return `root` rewritten from the bottom up, each node once.

    rewrite   (original node, the node rebuilt over rewritten children) -> the replacement
    enter     returns False for nodes whose children are not rewritten (e.g. a fused function)
    memo      known replacements; new ones are added to it
    """
    done: dict[Expr, Expr] = {} if memo is None else memo
    for node in post_order(root, enter):
        if node not in done:
            entered = enter is None or enter(node)
            done[node] = rewrite(node, rebuild(node, done.__getitem__) if entered else node)
    return done[root]


@dataclass(eq=False)
class Mutator:
    """Bottom-up rewriter with a cache of replacements; see `mutated`.

    A subclass defines `rewrite(old, new)`, or a method for each kind of node that it changes:
    `rewrite_call(old, new)`, `rewrite_var` and so on, by the names in `KINDS`.
    """

    memo: dict[Expr, Expr] = field(default_factory=dict, init=False)

    def enter(self, node: Expr) -> bool:
        """Return True if the rewriter should rewrite the children of `node`."""
        return True

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        """Return the replacement of an expression node; the node itself if its kind has no rewrite
        method.
        """
        method = getattr(self, f"rewrite_{kind_of(new).name}", None)
        replaced: Expr = new if method is None else method(old, new)
        return replaced

    def visit(self, root: Expr) -> Expr:
        """Return the expression `root` rewritten from the bottom up."""
        return mutated(root, self.rewrite, self.enter, self.memo)

    def visit_function(self, function: Function) -> Function:
        """Return a function rewritten from the bottom up; raise TypeError if the result is not a
        function.
        """
        return as_function(self.visit(function))


def substitute(expr: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Return `expr` with variables replaced (by identity); variables that `expr` binds may be
    replaced by variables only.
    """
    if not mapping:
        return expr
    return mutated(expr, lambda _, new: mapping.get(new, new) if isinstance(new, Var) else new)
