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

from aotc.ir import Op, SymDim, dims_in_attrs, frozen
from aotc.relay.expr import Call, Constant, Constructor, Expr, Function, GlobalVar, If, Let, Match, require_function
from aotc.relay.graph_api import (
    Clause,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
    pattern_vars,
    rebind_pattern_vars,
)

T = TypeVar("T")


@frozen
class NodeKind:
    """A kind of expression node: its name, and functions for reading and replacing its children.

    name    suffix of the visitor methods for the kind, as in `visit_call` and `rewrite_call`
    parts   returns the direct subexpressions of a node in evaluation order
    over    (node, new subexpressions) -> a copy of the node, with its type and span
    """

    name: str
    parts: Callable[[Any], tuple[Expr, ...]] = lambda node: ()
    over: Callable[[Any, tuple[Any, ...]], Expr] = lambda node, new: node


#: All kinds of nodes by class; operators are of one kind, whatever their class.
NODE_KIND_BY_CLASS: Final[Mapping[type[Expr], NodeKind]] = MappingProxyType(
    {
        Var: NodeKind("var"),
        GlobalVar: NodeKind("global_var"),
        Constant: NodeKind("constant"),
        Op: NodeKind("op"),
        Call: NodeKind(
            "call",
            lambda n: (n.op, *n.args),
            lambda n, new: Call(new[0], new[1:], n.attrs, None, n.span, n.checked_type),
        ),
        Tuple: NodeKind("tuple", lambda n: n.fields, lambda n, new: Tuple(new, n.span, n.checked_type)),
        TupleGetItem: NodeKind(
            "tuple_getitem",
            lambda n: (n.tuple_value,),
            lambda n, new: TupleGetItem(new[0], n.index, n.span, n.checked_type),
        ),
        Let: NodeKind(
            "let",
            lambda n: (n.var, n.value, n.body),
            lambda n, new: Let(_require_var(new[0]), new[1], new[2], n.span, n.checked_type),
        ),
        If: NodeKind(
            "if",
            lambda n: (n.cond, n.true_branch, n.false_branch),
            lambda n, new: If(new[0], new[1], new[2], n.span, n.checked_type),
        ),
        Function: NodeKind(
            "function",
            lambda n: (*n.params, n.body),
            lambda n, new: Function(map(_require_var, new[:-1]), new[-1], n.ret_type, n.type_params, n.attrs, n.span),
        ),
        RefCreate: NodeKind("ref_create", lambda n: (n.value,), lambda n, new: replace(n, value=new[0])),
        RefRead: NodeKind("ref_read", lambda n: (n.ref,), lambda n, new: replace(n, ref=new[0])),
        RefWrite: NodeKind(
            "ref_write", lambda n: (n.ref, n.value), lambda n, new: replace(n, ref=new[0], value=new[1])
        ),
        Constructor: NodeKind("constructor"),
        Match: NodeKind(
            "match",
            lambda n: (n.data, *variables_bound_by_node(n), *(c.rhs for c in n.clauses)),
            lambda n, new: _match_with_children(n, new),
        ),
    }
)


def node_kind(expr: Expr) -> NodeKind:
    """Return the kind of an expression node; raise KeyError for an object that is not a node."""
    return NODE_KIND_BY_CLASS.get(type(expr)) or NODE_KIND_BY_CLASS[Op if isinstance(expr, Op) else type(expr)]


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct subexpressions in evaluation order (a call's operator first, a function's
    parameters first).
    """
    return node_kind(expr).parts(expr)


#: Mark on the stack of `depth_first_post_order`.
_SUCCESSORS_DONE: Final = object()


def depth_first_post_order(roots: Iterable[T], successors: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """Yield every node of a graph once, after the nodes that `successors` returns for it."""
    visited_nodes: set[T] = set()
    # each node whose successors are above it on the stack is followed by a mark
    stack: list[Any] = [*roots][::-1]
    while stack:
        node = stack.pop()
        if node is _SUCCESSORS_DONE:
            yield stack.pop()
        elif node not in visited_nodes:
            visited_nodes.add(node)
            if new := [successor for successor in successors(node) if successor not in visited_nodes]:
                stack += (node, _SUCCESSORS_DONE, *reversed(new))
            else:
                yield node


def post_order(root: Expr, should_enter: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Yield every node of an expression once, children before users.

    The children of nodes for which `should_enter` returns False are skipped.
    """
    return depth_first_post_order(
        [root], children if should_enter is None else lambda node: children(node) if should_enter(node) else ()
    )


def dims_in_attributes(function: Function) -> list[SymDim]:
    """Return the dimensions in attributes of a function's calls that are known at run time only."""
    calls = (n for n in post_order(function.body) if isinstance(n, Call) and isinstance(n.op, Op))
    return [dim for call in calls for dim in dims_in_attrs(call.attrs)]


# --- variables


def _match_with_children(node: Match, new_children: tuple[Expr, ...]) -> Match:
    variables, values = map(_require_var, new_children[1:]), new_children[len(new_children) - len(node.clauses) :]
    clauses = [
        Clause(rebind_pattern_vars(c.lhs, variables), value) for c, value in zip(node.clauses, values, strict=True)
    ]
    return replace(node, data=new_children[0], clauses=tuple(clauses))


def variables_bound_by_node(node: Expr) -> tuple[Var, ...]:
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


def variables_bound_below(root: Expr) -> list[Var]:
    """Return the variables bound below `root`, once per binding, in post order of their binders."""
    return [var for node in post_order(root) for var in variables_bound_by_node(node)]


def bound_vars(expr: Expr) -> list[Var]:
    """Return the variables bound inside `expr`, each once, in post order."""
    bound = set(variables_bound_below(expr))
    return [v for v in all_vars(expr) if v in bound]


def all_vars(expr: Expr) -> list[Var]:
    """Return all variables of an expression in post order."""
    return [node for node in post_order(expr) if isinstance(node, Var)]


def free_vars(expr: Expr) -> list[Var]:
    """Return the variables that nothing inside `expr` binds, in post order. Every variable must be
    bound at most once.
    """
    bound = set(variables_bound_below(expr))
    return [v for v in all_vars(expr) if v not in bound]


# --- rebuilding


def map_children(node: Expr, rewrite_child: Callable[[Expr], Expr]) -> Expr:
    """Return `node` with each child replaced by the result of `rewrite_child` for it; return the
    same object if no child changed.

    A changed node keeps its span and its checked type: a rewrite that changes types must run type
    inference.
    """
    old = children(node)
    fresh = tuple(rewrite_child(c) for c in old)
    return node if fresh == old else with_children(node, fresh)


def with_children(node: Expr, new_children: tuple[Expr, ...]) -> Expr:
    """Return a copy of `node` with new children (as many as `children(node)` returns) and unchanged
    type and span.
    """
    return node_kind(node).over(node, new_children)


def _require_var(expr: Expr) -> Var:
    if not isinstance(expr, Var):
        raise TypeError(f"a bound variable was rewritten to {type(expr).__name__}")
    return expr


def rewrite_bottom_up(
    root: Expr,
    rewrite: Callable[[Expr, Expr], Expr],
    should_enter: Callable[[Expr], bool] | None = None,
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """Return `root` rewritten from the bottom up, each node once.

    rewrite         (original node, the node rebuilt over rewritten children) -> the replacement
    should_enter    returns False for nodes whose children are not rewritten (e.g. a fused function)
    memo            known replacements; new ones are added to it
    """
    done: dict[Expr, Expr] = {} if memo is None else memo
    for node in post_order(root, should_enter):
        if node not in done:
            entered = should_enter is None or should_enter(node)
            done[node] = rewrite(node, map_children(node, done.__getitem__) if entered else node)
    return done[root]


@dataclass(eq=False)
class Mutator:
    """Bottom-up rewriter with a cache of replacements; see `rewrite_bottom_up`.

    A subclass defines `rewrite_rebuilt_node(old, new)`, or a method for each kind of node that it
    changes: `rewrite_call(old, new)`, `rewrite_var` and so on, by the names in
    `NODE_KIND_BY_CLASS`.
    """

    memo: dict[Expr, Expr] = field(default_factory=dict, init=False)

    def should_rewrite_children(self, node: Expr) -> bool:
        """Return True if the rewriter should rewrite the children of `node`."""
        return True

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        """Return the replacement of an expression node; the node itself if its kind has no rewrite
        method.
        """
        method = getattr(self, f"rewrite_{node_kind(new).name}", None)
        replaced: Expr = new if method is None else method(old, new)
        return replaced

    def visit(self, root: Expr) -> Expr:
        """Return the expression `root` rewritten from the bottom up."""
        return rewrite_bottom_up(root, self.rewrite_rebuilt_node, self.should_rewrite_children, self.memo)

    def visit_function(self, function: Function) -> Function:
        """Return a function rewritten from the bottom up; raise TypeError if the result is not a
        function.
        """
        return require_function(self.visit(function))


def substitute_variables(expr: Expr, mapping: Mapping[Var, Expr]) -> Expr:
    """Return `expr` with variables replaced (by identity); variables that `expr` binds may be
    replaced by variables only.
    """
    if not mapping:
        return expr
    return rewrite_bottom_up(expr, lambda _, new: mapping.get(new, new) if isinstance(new, Var) else new)
