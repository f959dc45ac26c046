# SPDX-License-Identifier: Apache-2.0
"""Convex regions of a graph: which nodes can be one function without making a cycle.

In: the graph below a root, and for each node the external compiler that takes it.  Out: groups of nodes.

labels = marked(function.body)                       # from compiler_begin and compiler_end
groups = convex_groups(function.body, labels)        # {node: number of its region}
"""

from __future__ import annotations

from aotc.ir import Op
from aotc.relay.expr import Constant, Expr, Function, GlobalVar, If, Let, Var
from aotc.relay.op.annotation import CompilerAttrs
from aotc.relay.transform.base import is_call, op_call
from aotc.relay.visitor import children, post_order

_BEGIN = "annotation.compiler_begin"
_END = "annotation.compiler_end"


def is_mark(expr: Expr) -> bool:
    """Whether `expr` is where a region begins or ends."""
    return is_call(expr, _BEGIN, _END)


def unmarked(expr: Expr) -> Expr:
    """What the marks around `expr` stand for."""
    while True:
        call = op_call(expr, _BEGIN, _END)
        if call is None:
            return expr
        expr = call.args[0]


def is_leaf(expr: Expr) -> bool:
    """Whether `expr` is there before anything is computed."""
    return isinstance(expr, (Var, Constant, Op, GlobalVar, Function))


def outside_scopes(expr: Expr) -> bool:
    """Whether regions may lie below `expr`: what branches, lets and closures hold stays where it is."""
    return not isinstance(expr, (Function, If, Let))


def marked(root: Expr) -> dict[Expr, str]:
    """The nodes between ends and begins, with the compiler of their region."""
    labels: dict[Expr, str] = {}
    inside: tuple[Expr, ...]
    for node in reversed(list(post_order(root, outside_scopes))):  # users first
        end = op_call(node, _END)
        if end is not None:
            assert isinstance(end.attrs, CompilerAttrs)
            inside, compiler = (end.args[0],), end.attrs.compiler
        elif node in labels and outside_scopes(node):
            inside, compiler = tuple(children(node)), labels[node]
        else:
            continue
        for child in inside:
            if not is_mark(child) and not is_leaf(child):
                labels.setdefault(child, compiler)
    return labels


class _Groups:
    """Groups of nodes, merged where this leaves the graph of the groups without cycles.

    `direct[g]` are the groups that group g uses, `users[g]` those that use it, `needs[g]` all that it depends on as
    a set of bits.
    """

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.direct: dict[int, set[int]] = {}
        self.users: dict[int, set[int]] = {}
        self.needs: dict[int, int] = {}

    def root(self, group: int) -> int:
        while self.parent[group] != group:
            self.parent[group] = self.parent[self.parent[group]]
            group = self.parent[group]
        return group

    def add(self, uses: set[int]) -> int:
        group = len(self.parent)
        self.parent.append(group)
        self.direct[group] = {self.root(u) for u in uses}
        self.users[group] = set()
        self.needs[group] = 0
        for used in self.direct[group]:
            self.users[used].add(group)
            self.needs[group] |= 1 << used | self.needs[used]
        return group

    def _dependents(self, group: int) -> set[int]:
        found = {group}
        stack = [group]
        while stack:
            new = {self.root(u) for u in self.users[stack.pop()]} - found
            found |= new
            stack.extend(new)
        return found - {group}

    def merge(self, a: int, b: int) -> None:
        """Make one group of two unless a path leads from one to the other through a third."""
        a, b = sorted((self.root(a), self.root(b)))
        if a == b:
            return
        pair = 1 << a | 1 << b
        others = {self.root(g) for g in self.direct[a] | self.direct[b]} - {a, b}
        if any(self.needs[g] & pair for g in others):
            return
        self.parent[b] = a
        self.direct[a] = others
        self.users[a] = {self.root(u) for u in self.users[a] | self.users[b]} - {a}
        self.needs[a] = (self.needs[a] | self.needs[b]) & ~pair
        del self.direct[b], self.users[b], self.needs[b]
        for user in self._dependents(a):
            self.needs[user] |= 1 << a | self.needs[a]


def convex_groups(root: Expr, labels: dict[Expr, str], across: bool = False) -> dict[Expr, int]:
    """The group of each labelled node: as large as they get, going through the graph once, without a cycle.

    across    whether an edge with marks on it joins what it connects, too
    """
    groups = _Groups()
    number: dict[Expr, int] = {}
    for node in post_order(root, lambda n: not isinstance(n, Function)):
        if is_leaf(node) or is_mark(node):
            continue
        below = [(c, unmarked(c)) for c in children(node)]
        edges = [(c, plain) for c, plain in below if plain in number]
        number[node] = groups.add({number[plain] for _, plain in edges})
        for child, plain in edges:
            same = node in labels and labels[node] == labels.get(plain)
            if same and (across or child is plain):
                groups.merge(number[plain], number[node])
    return {node: groups.root(number[node]) for node in labels if node in number}
