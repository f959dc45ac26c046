# SPDX-License-Identifier: Apache-2.0
"""Where a pattern matches in a graph: a pattern and an expression in, groups of nodes that do not overlap out.

Matches nearer to the result win.  Nothing outside a group uses a node of it but its root.

for root, group in find_groups(pattern, expr).items():
    group.node_map[x], group.inputs
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from aotc.ir import Op
from aotc.relay.analysis import free_vars, users
from aotc.relay.dataflow_pattern import patterns
from aotc.relay.dataflow_pattern.matcher import Matcher, NodeMap
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Var
from aotc.relay.visitor import bound_by, children, post_order

PARTITIONED: Final = "PartitionedFromPattern"
"""The attribute of the functions that partitioning makes: the operators inside, in order."""


@dataclass(frozen=True, slots=True)
class Group:
    """One match.

    root      the node that matched as a whole
    members   the nodes of the match, operands before users, without those that leaves of the pattern took
    inputs    what the members are computed from, in the order of the pattern's leaves
    node_map  the nodes that each pattern stands for
    """

    root: Expr
    members: tuple[Expr, ...]
    inputs: tuple[Expr, ...]
    node_map: NodeMap


class _Search:
    """All groups of one pattern in one graph."""

    def __init__(self, pattern: DFPattern, expr: Expr) -> None:
        self.pattern = pattern
        self.parts = patterns.pattern_order(pattern)
        self.order = list(post_order(expr, lambda n: not (isinstance(n, Function) and PARTITIONED in n.attrs)))
        self.position = {node: k for k, node in enumerate(self.order)}
        self.uses = users(expr)
        self.claimed: set[Expr] = set()

    def run(self, check: Callable[[Expr], bool]) -> dict[Expr, Group]:
        matcher = Matcher(self.uses)
        ops = patterns.root_ops(self.pattern)
        found: dict[Expr, Group] = {}
        for node in reversed(self.order):
            if node in self.claimed or (ops is not None and not (isinstance(node, Call) and node.op in ops)):
                continue
            groups = (self._group(node, node_map) for node_map in matcher.solutions(self.pattern, node))
            group = next((g for g in groups if self._is_closed(g)), None)
            if group is not None and check(node):
                found[node] = group
                self.claimed.update(m for m in group.members if not is_free(m))
                self.claimed.add(node)
        return found

    def _group(self, root: Expr, node_map: NodeMap) -> Group:
        taken = {m for p in self.parts for m in _taken(p, node_map)}
        for node in list(taken):
            taken.update(_contents(node))
        members = sorted((m for m in taken if m in self.position), key=self.position.__getitem__)
        inside = set(members)
        bound = {v for m in members for v in bound_by(m)}
        inputs = {c: None for m in members for c in (m, *children(m)) if c not in bound and _is_input(c, inside)}
        leaves = (n for p in self.parts for n in node_map.get(p, ()) if n in inputs)
        return Group(root, tuple(members), tuple(dict.fromkeys((*leaves, *inputs))), node_map)

    def _is_closed(self, group: Group) -> bool:
        """Whether the group overlaps no other, and only its root is used outside."""
        inside = set(group.members)
        return all(
            member is group.root or all(u in inside for u in self.uses[member])
            for member in group.members
            if not is_free(member)
        ) and self.claimed.isdisjoint(inside)


def is_free(node: Expr) -> bool:
    """Whether a node is no computation, so that groups may share it."""
    return isinstance(node, (Var, Constant, Op, GlobalVar, Function))


def _is_input(node: Expr, inside: Collection[Expr]) -> bool:
    """Whether a member, or an operand of one, is a parameter of the group's function."""
    match node:
        case Op() | GlobalVar():
            return False
        case Var():
            return True
        case Function():
            return node not in inside and bool(free_vars(node))
        case _:
            return node not in inside


def _taken(pattern: DFPattern, node_map: NodeMap) -> list[Expr]:
    """The nodes that a pattern takes into its group; what leaves match stays outside, but for constants."""
    nodes = node_map.get(pattern, [])
    match pattern:
        case patterns.ConstantPattern() | patterns.ExprPattern(expr=Constant()):
            return nodes
        case patterns.DominatorPattern(parent=parent, path=path) if nodes:
            return [*node_map.get(parent, ()), *node_map.get(path, ())]
        case _:
            return nodes if type(pattern) in patterns.NODES else []


def _contents(node: Expr) -> list[Expr]:
    """What cannot be told from a node without being computed too early, or out of scope."""
    match node:
        case If():
            roots: tuple[Expr, ...] = (node.true_branch, node.false_branch)
        case Let() | Function():
            roots = (node,)
        case _:
            return []
    return [n for root in roots for n in post_order(root)]


def find_groups(pattern: DFPattern, expr: Expr, check: Callable[[Expr], bool] = lambda _: True) -> dict[Expr, Group]:
    """The matches of `pattern` in `expr` by their roots, results first; `check(root)` False drops a match.

    Functions that were partitioned earlier are not looked into.
    """
    return _Search(pattern, expr).run(check)
