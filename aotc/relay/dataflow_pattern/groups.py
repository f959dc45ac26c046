# SPDX-License-Identifier: Apache-2.0
"""Where a pattern matches in a graph: a pattern and an expression in, groups of nodes that do not overlap out.

Matches nearer to the result win.  Nothing outside a group uses a node of it but its root.

for root, group in find_groups(pattern, expr).items():
    group.node_map[x], group.inputs

Partitioning: matches of a pattern become calls of functions of their own.

before   nn.relu(add(nn.conv2d(%x, %w), %b))
after    fn (%FunctionVar_0_0, ..., PartitionedFromPattern="nn.conv2d_add_nn.relu_") { ... }(%x, %w, %b)

is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()) + wildcard()).partition(expr)
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from aotc.ir import Op, frozen, merge_spans
from aotc.relay.analysis import free_vars, users
from aotc.relay.dataflow_pattern import patterns
from aotc.relay.dataflow_pattern.matcher import Matcher, NodeMap
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, If, Let, Match, Tuple, TupleGetItem, Var
from aotc.relay.graph_api import Mutator, bound_by, children, infer_expr, post_order, rebuild

#: The attribute of the functions that partitioning makes: the operators inside, in order.
PARTITIONED: Final = "PartitionedFromPattern"


@frozen
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
        case Let() | Function() | Match():
            roots = (node,)
        case _:
            return []
    return [n for root in roots for n in post_order(root)]


def find_groups(pattern: DFPattern, expr: Expr, check: Callable[[Expr], bool] = lambda _: True) -> dict[Expr, Group]:
    """The matches of `pattern` in `expr` by their roots, results first; `check(root)` False drops a match.

    Functions that were partitioned earlier are not looked into.
    """
    return _Search(pattern, expr).run(check)


# --- partitioning


class _Partition(Mutator):
    def __init__(self, groups: dict[Expr, Group], attrs: Mapping[str, Any]) -> None:
        super().__init__()
        self.groups = groups
        self.numbers = {root: k for k, root in enumerate(groups)}
        self.attrs = attrs

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        group = self.groups.get(old)
        if group is None:
            return new
        function = self._function(group)
        span = merge_spans(m.span for m in group.members)
        return Call(function, [self.memo[arg] for arg in group.inputs], span=span, checked_type=old.checked_type)

    def _function(self, group: Group) -> Function:
        number = self.numbers[group.root]
        params = [Var(f"FunctionVar_{number}_{k}", arg.checked_type) for k, arg in enumerate(group.inputs)]
        body: dict[Expr, Expr] = dict(zip(group.inputs, params, strict=True))
        for member in group.members:
            if member not in body:
                body[member] = rebuild(member, lambda c: body[c] if c in body else self.memo[c])
        name = "".join(map(_name, group.members))
        return Function(params, body[group.root], attrs={**self.attrs, PARTITIONED: name}, span=group.root.span)


def _name(node: Expr) -> str:
    match node:
        case Call(op=Op(name=name)):
            return f"{name}_"
        case TupleGetItem(index=index):
            return f"TupleGetItem{index}_"
        case Call() | Tuple() | If() | Let():
            return f"{type(node).__name__}_"
        case Function():
            return "Function"
        case _:
            return ""


def partition(
    pattern: DFPattern,
    expr: Expr,
    attrs: Mapping[str, Any] | None = None,
    check: Callable[[Expr], bool] = lambda _: True,
) -> Expr:
    """`expr` with every match of `pattern` as a call of a function of its own.

    pattern  what goes into one function; what its wildcards match becomes the arguments, in their order.
             Constants stay inside where the pattern asks for a constant, and are arguments elsewhere
    attrs    attributes of the functions, beside PartitionedFromPattern
    check    called with the root of a match; False leaves it alone

    Matches nearer to the result win; a match is left alone if anything outside it uses a node within.  Types are
    inferred first where the pattern asks for them.
    """
    typed = infer_expr(expr) if patterns.needs_types(pattern) else expr
    groups = find_groups(pattern, typed, lambda node: not is_free(node) and check(node))
    found = {root: group for root, group in groups.items() if root in group.members}
    return _Partition(found, attrs or {}).visit(typed) if found else expr
