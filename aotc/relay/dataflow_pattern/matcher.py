# SPDX-License-Identifier: Apache-2.0
"""Backtracking matcher: find all ways in which a dataflow pattern matches an expression.

The search backtracks over alternatives and over the argument order of commutative operators. The
recursion depth depends on the size of the pattern, not on the size of the expression.

for node_map in Matcher(users(root)).all_matches(pattern, expr):
    node_map[x]                                    # the nodes that the pattern object x matched
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from aotc.ir import AotcTypeError, Op, TensorType
from aotc.relay.dataflow_pattern import patterns
from aotc.relay.dataflow_pattern.patterns import DFPattern
from aotc.relay.expr import Call, Constant, Expr, Function, GlobalVar, TupleGetItem, Var
from aotc.relay.graph_api import children, depth_first_post_order, infer_expr, structural_equal, users

NodeMap: TypeAlias = "dict[DFPattern, list[Expr]]"

_COMMUTATIVE: Final = frozenset({"add", "multiply"})


def match(pattern: DFPattern, expr: Expr) -> bool:
    """Return True if the root node of `expr` matches `pattern`.

    Types are inferred first if the pattern has type, dtype or shape constraints and `expr` is
    untyped.
    """
    typed = infer_expr(expr) if expr.checked_type is None and patterns.needs_inferred_types(pattern) else expr
    return any(True for _ in Matcher(users(typed)).all_matches(pattern, typed))


class Matcher:
    """Matcher of patterns in one expression graph; `uses` maps each node of the graph to its users."""

    def __init__(self, uses: Mapping[Expr, Sequence[Expr]]) -> None:
        self._uses = uses
        self._bound: NodeMap = {}
        self._trail: list[DFPattern] = []  # patterns in the order in which they were bound, for undoing
        self._on_path = False  # True while matching the path of a DominatorPattern, which may match many nodes
        # for each DominatorPattern, nodes that no path from child to parent can contain
        self._dead: dict[DFPattern, set[Expr]] = defaultdict(set)

    def all_matches(self, pattern: DFPattern, expr: Expr) -> Iterator[NodeMap]:
        """Yield a map from pattern objects to matched nodes for each way in which `expr` matches
        `pattern`.
        """
        self._undo_bindings_after(0)
        for _ in self._enumerate_matches_and_bind(pattern, expr):
            yield {p: list(nodes) for p, nodes in self._bound.items()}

    def _undo_bindings_after(self, trail_length: int) -> None:
        while len(self._trail) > trail_length:
            pattern = self._trail.pop()
            self._bound[pattern].pop()
            if not self._bound[pattern]:
                del self._bound[pattern]

    def _enumerate_matches_and_bind(self, pattern: DFPattern, expr: Expr) -> Iterator[None]:
        """Yield once for each way in which `expr` matches `pattern`, with the bindings of that way
        in place.

        The bindings are undone when the generator is resumed.
        """
        if pattern in self._bound and not self._on_path:
            if self._bound[pattern][0] is expr:
                yield
            return
        for _ in self._enumerate_matches_by_pattern_class(pattern, expr):
            mark = len(self._trail)
            self._trail.append(pattern)
            self._bound.setdefault(pattern, []).append(expr)
            yield
            self._undo_bindings_after(mark)

    def _bind_first_match(self, pattern: DFPattern, expr: Expr) -> bool:
        """Return True if `expr` matches `pattern`, and keep the bindings of the first way to match."""
        return any(True for _ in self._enumerate_matches_and_bind(pattern, expr))

    def _enumerate_pairwise_matches_and_bind(
        self, patterns: Sequence[DFPattern], nodes: Sequence[Expr]
    ) -> Iterator[None]:
        if not patterns and not nodes:
            yield
        elif len(patterns) == len(nodes):
            for _ in self._enumerate_matches_and_bind(patterns[0], nodes[0]):
                yield from self._enumerate_pairwise_matches_and_bind(patterns[1:], nodes[1:])

    def _enumerate_matches_by_pattern_class(self, pattern: DFPattern, expr: Expr) -> Iterator[None]:
        match pattern:
            case patterns.AltPattern():
                yield from self._enumerate_matches_and_bind(pattern.left, expr)
                yield from self._enumerate_matches_and_bind(pattern.right, expr)
            case patterns.PropertyPattern():
                if _satisfies_leaf_or_property_pattern(pattern, expr):
                    yield from self._enumerate_matches_and_bind(pattern.pattern, expr)
            case patterns.DominatorPattern():
                yield from self._enumerate_dominator_pattern_matches(pattern, expr)
            case _ if type(pattern) in patterns.NODE_CLASS_BY_PATTERN_CLASS:
                yield from self._enumerate_node_and_child_matches(pattern, expr)
            case _:
                if _satisfies_leaf_or_property_pattern(pattern, expr):
                    yield

    def _enumerate_node_and_child_matches(self, pattern: DFPattern, expr: Expr) -> Iterator[None]:
        """Match the sub-patterns of a pattern for a node (call, tuple, function, ...) with the
        node's children.
        """
        if not isinstance(expr, patterns.NODE_CLASS_BY_PATTERN_CLASS[type(pattern)]):
            return
        subpatterns, nodes = list(patterns.direct_subpatterns(pattern)), children(expr)
        match pattern:
            case patterns.TupleGetItemPattern(index=index):
                if isinstance(expr, TupleGetItem) and index not in (patterns.ANY_INDEX, expr.index):
                    return
            case patterns.CallPattern(args=None):
                nodes = nodes[:1]
            case patterns.FunctionPattern(params=None):
                nodes = nodes[-1:]
            case patterns.TuplePattern(fields=None):
                nodes = ()
        yield from self._enumerate_pairwise_matches_and_bind(subpatterns, nodes)
        if isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name in _COMMUTATIVE and len(subpatterns) > 1:
            yield from self._enumerate_pairwise_matches_and_bind((subpatterns[0], *subpatterns[:0:-1]), nodes)

    # --- regions

    def _enumerate_dominator_pattern_matches(self, pattern: patterns.DominatorPattern, expr: Expr) -> Iterator[None]:
        for _ in self._enumerate_matches_and_bind(pattern.child, expr):
            mark = len(self._trail)
            if self._try_to_bind_dominator_region(pattern, expr):
                yield
            self._undo_bindings_after(mark)

    def _try_to_bind_dominator_region(self, pattern: patterns.DominatorPattern, child: Expr) -> bool:
        """Match the region of a DominatorPattern above `child`: bind the parent and all nodes
        between them.

        Return False, possibly with bindings left for the caller to undo, if there is no such
        region.
        """
        inner = (*patterns.subpatterns_in_post_order(pattern.parent), *patterns.subpatterns_in_post_order(pattern.path))
        fresh = not any(p in self._bound for p in inner)
        dead = self._dead[pattern]
        inside = {child}
        visited_nodes = {child}
        stack = _value_operands_reversed(child)
        while stack:
            node = stack.pop()
            if node in visited_nodes:
                continue
            visited_nodes.add(node)
            if self._bind_first_match(pattern.parent, node) or isinstance(node, (Var, Constant)):
                continue
            if node in dead or not self._bind_first_path_pattern_match(pattern.path, node):
                if fresh and pattern.parent not in self._bound:
                    dead |= self._transitive_users_within(node, inside - {child})
                return False
            inside.add(node)
            stack += _value_operands_reversed(node)
        parent = self._bound.get(pattern.parent)
        if parent is None:
            dead |= inside - {child} if fresh else set()
            return False
        return self._is_single_entry_single_exit(inside, parent[0], child)

    def _transitive_users_within(self, node: Expr, region: set[Expr]) -> set[Expr]:
        """Return the nodes of `region` that depend on `node` by a chain of uses inside the set."""
        reached = depth_first_post_order([node], lambda n: region.intersection(self._uses.get(n, ())))
        return {*reached} - {node}

    def _bind_first_path_pattern_match(self, path: DFPattern, node: Expr) -> bool:
        before, self._on_path = self._on_path, True
        is_match = self._bind_first_match(path, node)
        self._on_path = before
        return is_match

    def _is_single_entry_single_exit(self, region: set[Expr], parent: Expr, child: Expr) -> bool:
        """Return True if every chain of uses of `parent` stays in `region` until `child`, and
        reaches all of `region`.
        """
        reached: set[Expr] = set()
        stack = [parent]
        while stack:
            for user in self._uses.get(stack.pop(), ()):
                if user not in region:
                    return False
                if user not in reached:
                    reached.add(user)
                    stack += [user] if user is not child else []
        return reached == region


def _value_operands_reversed(node: Expr) -> list[Expr]:
    """Return the operands of a node that are values, in reverse order: no operators and no
    functions.
    """
    return [c for c in reversed(children(node)) if not isinstance(c, (Op, GlobalVar, Function))]


def _satisfies_leaf_or_property_pattern(pattern: DFPattern, expr: Expr) -> bool:
    """Return True if a node satisfies a leaf pattern, or the property (type, dtype, shape,
    attributes) of a PropertyPattern.
    """
    ty = expr.checked_type
    match pattern:
        case patterns.ExprPattern(expr=constraint):
            return constraint is expr or (type(constraint) is type(expr) and structural_equal(constraint, expr))
        case patterns.VarPattern(name=name):
            return isinstance(expr, Var) and name in ("", expr.name)
        case patterns.ConstantPattern():
            return isinstance(expr, Constant)
        case patterns.WildcardPattern():
            return True
        case patterns.AttrPattern(attrs=constraint):
            have = _matchable_attributes(expr)
            return all(
                name in have and _lists_to_tuples(have[name]) == _lists_to_tuples(value)
                for name, value in constraint.items()
            )
        case patterns.TypePattern():
            return ty == pattern.type
        case patterns.DataTypePattern():
            return isinstance(ty, TensorType) and ty.dtype == pattern.dtype
        case patterns.ShapePattern():
            return isinstance(ty, TensorType) and ty.shape == pattern.shape
        case _:
            raise AotcTypeError("pattern", f"there is no matching for {type(pattern).__name__}")


def _matchable_attributes(expr: Expr) -> Mapping[str, Any]:
    match expr:
        case Op():
            return {"TOpPattern": expr.pattern}
        case Call(op=Op() as op):
            return {"TOpPattern": op.pattern, **dict(expr.attrs.items())}
        case Call():
            return dict(expr.attrs.items())
        case Function():
            return expr.attrs
        case _:
            return {}


def _lists_to_tuples(value: Any) -> Any:
    """Convert lists to tuples recursively, so that attributes written as lists or as tuples compare
    equal.
    """
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, (list, tuple)) else value
