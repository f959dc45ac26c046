# SPDX-License-Identifier: Apache-2.0
"""Find all matches of a dataflow pattern in a graph, and partition the graph by them.

`find_pattern_matches` takes a pattern and an expression and returns groups of nodes that do not
overlap. Of two overlapping matches, the match closer to the result of the expression is chosen.
Only the root of a group is used by nodes outside of the group.

for root, group in find_pattern_matches(pattern, expr).items():
    group.node_map[x], group.inputs

`partition` replaces each match by a call of a new function that contains the matched nodes.

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
from aotc.relay.graph_api import Mutator, children, infer_expr, map_children, post_order, variables_bound_by_node

#: Function attribute, set by `partition`, that lists the operators in the function body in order.
PARTITION_ATTRIBUTE: Final = "PartitionedFromPattern"


@frozen
class Group:
    """One match of a pattern in an expression graph.

    root      the node matched by the whole pattern
    members   the matched nodes in topological order (operands before users), without the nodes that
              leaves of the pattern, like wildcards, matched
    inputs    nodes outside of the group that members use, in the order of the pattern's leaves
    node_map  for each pattern object, the list of nodes that it matched
    """

    root: Expr
    members: tuple[Expr, ...]
    inputs: tuple[Expr, ...]
    node_map: NodeMap


class _GroupSearch:
    """Search for all groups of one pattern in one expression graph."""

    def __init__(self, pattern: DFPattern, expr: Expr) -> None:
        self.pattern = pattern
        self.subpatterns = patterns.subpatterns_in_post_order(pattern)
        self.order = list(post_order(expr, lambda n: not (isinstance(n, Function) and PARTITION_ATTRIBUTE in n.attrs)))
        self.position = {node: k for k, node in enumerate(self.order)}
        self.uses = users(expr)
        self.claimed: set[Expr] = set()

    def find_disjoint_pattern_matches(self, accept_root: Callable[[Expr], bool]) -> dict[Expr, Group]:
        matcher = Matcher(self.uses)
        ops = patterns.possible_root_ops(self.pattern)
        groups_by_root: dict[Expr, Group] = {}
        for node in reversed(self.order):
            if node in self.claimed or (ops is not None and not (isinstance(node, Call) and node.op in ops)):
                continue
            groups = (
                self._create_group_of_pattern_match(node, node_map)
                for node_map in matcher.all_matches(self.pattern, node)
            )
            group = next((g for g in groups if self._is_extractable_group(g)), None)
            if group is not None and accept_root(node):
                groups_by_root[node] = group
                self.claimed.update(m for m in group.members if not is_node_shareable_between_match_groups(m))
                self.claimed.add(node)
        return groups_by_root

    def _create_group_of_pattern_match(self, root: Expr, node_map: NodeMap) -> Group:
        matched_nodes = {m for p in self.subpatterns for m in _group_members_matched_by(p, node_map)}
        for node in list(matched_nodes):
            matched_nodes.update(_nodes_nested_in_if_let_function_match(node))
        members = sorted((m for m in matched_nodes if m in self.position), key=self.position.__getitem__)
        inside = set(members)
        bound = {v for m in members for v in variables_bound_by_node(m)}
        inputs = {
            c: None
            for m in members
            for c in (m, *children(m))
            if c not in bound and _is_input_of_matched_group(c, inside)
        }
        leaves = (n for p in self.subpatterns for n in node_map.get(p, ()) if n in inputs)
        return Group(root, tuple(members), tuple(dict.fromkeys((*leaves, *inputs))), node_map)

    def _is_extractable_group(self, group: Group) -> bool:
        """Return True if the group overlaps no earlier group and only its root has users outside of
        it.
        """
        inside = set(group.members)
        return all(
            member is group.root or all(u in inside for u in self.uses[member])
            for member in group.members
            if not is_node_shareable_between_match_groups(member)
        ) and self.claimed.isdisjoint(inside)


def is_node_shareable_between_match_groups(node: Expr) -> bool:
    """Return True if a node computes nothing (variable, constant, operator), so that groups may
    share it.
    """
    return isinstance(node, (Var, Constant, Op, GlobalVar, Function))


def _is_input_of_matched_group(node: Expr, members: Collection[Expr]) -> bool:
    """Return True if `node`, a member of a group or an operand of a member, becomes a parameter of
    the group's function.

    members    the members of the group
    """
    match node:
        case Op() | GlobalVar():
            return False
        case Var():
            return True
        case Function():
            return node not in members and bool(free_vars(node))
        case _:
            return node not in members


def _group_members_matched_by(pattern: DFPattern, node_map: NodeMap) -> list[Expr]:
    """Return the nodes matched by `pattern` that become members of its group.

    Nodes that a leaf of the pattern matched stay outside of the group, except for constants.
    """
    nodes = node_map.get(pattern, [])
    match pattern:
        case patterns.ConstantPattern() | patterns.ExprPattern(expr=Constant()):
            return nodes
        case patterns.DominatorPattern(parent=parent, path=path) if nodes:
            return [*node_map.get(parent, ()), *node_map.get(path, ())]
        case _:
            return nodes if type(pattern) in patterns.NODE_CLASS_BY_PATTERN_CLASS else []


def _nodes_nested_in_if_let_function_match(node: Expr) -> list[Expr]:
    """Return all nodes nested in an if, let, function or match node; they must stay in the node's
    group.

    Outside of the node they would be evaluated unconditionally or use variables that are out of
    scope.
    """
    match node:
        case If():
            roots: tuple[Expr, ...] = (node.true_branch, node.false_branch)
        case Let() | Function() | Match():
            roots = (node,)
        case _:
            return []
    return [n for root in roots for n in post_order(root)]


def find_pattern_matches(
    pattern: DFPattern, expr: Expr, accept_root: Callable[[Expr], bool] = lambda _: True
) -> dict[Expr, Group]:
    """Return the matches of `pattern` in `expr`, keyed by their roots, users before operands.

    A match is dropped where `accept_root(root)` is False. Functions made by an earlier `partition`
    are not searched.
    """
    return _GroupSearch(pattern, expr).find_disjoint_pattern_matches(accept_root)


# --- partitioning


class _PartitionMutator(Mutator):
    def __init__(self, groups: dict[Expr, Group], attrs: Mapping[str, Any]) -> None:
        super().__init__()
        self.groups = groups
        self.numbers = {root: k for k, root in enumerate(groups)}
        self.attrs = attrs

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        group = self.groups.get(old)
        if group is None:
            return new
        function = self._outline_group_as_function(group)
        span = merge_spans(m.span for m in group.members)
        return Call(function, [self.memo[arg] for arg in group.inputs], span=span, checked_type=old.checked_type)

    def _outline_group_as_function(self, group: Group) -> Function:
        number = self.numbers[group.root]
        params = [Var(f"FunctionVar_{number}_{k}", arg.checked_type) for k, arg in enumerate(group.inputs)]
        body: dict[Expr, Expr] = dict(zip(group.inputs, params, strict=True))
        for member in group.members:
            if member not in body:
                body[member] = map_children(member, lambda c: body[c] if c in body else self.memo[c])
        name = "".join(map(_node_name_in_partition_attribute, group.members))
        return Function(params, body[group.root], attrs={**self.attrs, PARTITION_ATTRIBUTE: name}, span=group.root.span)


def _node_name_in_partition_attribute(node: Expr) -> str:
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
    """Return `expr` with each match of `pattern` replaced by a call of a new function that contains
    it.

    pattern  the nodes to extract into one function.  Expressions matched by its wildcards become the
             arguments, in the order of the wildcards.  A constant stays inside the function where the
             pattern asks for a constant, and is an argument elsewhere
    attrs    attributes of the new functions, in addition to PartitionedFromPattern
    check    predicate of the root node of a match; a match for which it returns False is not extracted

    Of two overlapping matches, the match closer to the result is extracted. A match is left
    unchanged if a node inside it, other than its root, has users outside of it. Types are inferred
    first if the pattern has type, dtype or shape constraints.
    """
    typed = infer_expr(expr) if patterns.needs_inferred_types(pattern) else expr
    groups = find_pattern_matches(
        pattern, typed, lambda node: not is_node_shareable_between_match_groups(node) and check(node)
    )
    rooted_groups = {root: group for root, group in groups.items() if root in group.members}
    return _PartitionMutator(rooted_groups, attrs or {}).visit(typed) if rooted_groups else expr
