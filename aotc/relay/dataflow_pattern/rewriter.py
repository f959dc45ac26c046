# SPDX-License-Identifier: Apache-2.0
"""Rewrite expression graphs: replace each match of a pattern by the result of a callback until a
fixpoint.

class Square(DFPatternCallback):
    def __init__(self):
        super().__init__()
        self.x = wildcard()
        self.pattern = self.x * self.x

    def callback(self, pre, post, node_map):
        return relay.power(node_map[self.x][0], relay.const(2.0))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aotc.ir import AotcError, AotcTypeError, Op, merge_spans, span_scope
from aotc.relay.dataflow_pattern.find_matches_and_partition import Group, find_pattern_matches
from aotc.relay.dataflow_pattern.matcher import NodeMap
from aotc.relay.dataflow_pattern.patterns import DFPattern, needs_inferred_types
from aotc.relay.graph_api import Expr, IRModule, Mutator, Node, infer_expr, post_order, structural_equal

_MAX_REWRITE_ROUNDS: Final = 100
#: Largest factor by which rewriting may enlarge a program before `rewrite_rebuilt_node` gives up.
_MAX_GROWTH_FACTOR: Final = 16


class DFPatternCallback:
    """Base class of rewrite rules. A subclass sets `pattern` and defines `callback`.

    require_type  infer types before matching, so that the callback receives typed nodes
    rewrite_once  apply the rule in one round only instead of until nothing changes
    """

    pattern: DFPattern | None

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        self.pattern = None
        self.require_type = require_type
        self.rewrite_once = rewrite_once

    def rewrite(self, expr: Expr) -> Expr:
        """Return `expr` after applying this rule; see
        `aotc.relay.dataflow_pattern.rewriter.rewrite`.
        """
        return rewrite(self, expr)

    def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
        """Return the expression that replaces a match. Subclasses must override this method.

        pre       the root node of the match, before rewriting
        post      the root node of the match with its operands rewritten
        node_map  for each pattern object, the rewritten nodes that it matched
        """
        raise NotImplementedError(f"{type(self).__name__}.callback")


@dataclass(eq=False)
class _SingleRoundMutator(Mutator):
    """Graph mutator that applies one rewrite rule to all of its matches once."""

    rule: DFPatternCallback
    groups: dict[Expr, Group]
    retyped: bool = False

    def rewrite_rebuilt_node(self, old: Expr, new: Expr) -> Expr:
        group = self.groups.get(old)
        if group is None:
            return new
        now = {p: [new if n is old else self.memo[n] for n in nodes] for p, nodes in group.node_map.items()}
        with span_scope(merge_spans(m.span for m in group.members) or old.span):
            result = self.rule.callback(old, new, now)
        if not isinstance(result, (Node, Op)):
            message = f"{type(self.rule).__name__}.callback returned {type(result).__name__}, not an expression"
            raise AotcTypeError("callback", message)
        self.retyped |= result.checked_type != old.checked_type
        return result


def _apply_rule_to_all_matches(rule: DFPatternCallback, expr: Expr, mod: IRModule | None) -> Expr:
    pattern = rule.pattern
    if not isinstance(pattern, DFPattern):
        raise AotcTypeError("pattern", f"{type(rule).__name__} has no pattern", hint="set self.pattern in __init__")
    typed = infer_expr(expr, mod) if rule.require_type or needs_inferred_types(pattern) else expr
    groups = find_pattern_matches(pattern, typed)
    if not groups:
        return typed
    work = _SingleRoundMutator(rule, groups)
    result = work.visit(typed)
    return infer_expr(result, mod) if work.retyped and typed.checked_type is not None else result


def _node_count(expr: Expr) -> int:
    return sum(1 for _ in post_order(expr))


def rewrite(
    callbacks: DFPatternCallback | Sequence[DFPatternCallback], expr: Expr, mod: IRModule | None = None
) -> Expr:
    """Return `expr` after applying the rewrite rules one after another, in rounds, until nothing
    changes.

    callbacks  one rule or a sequence of rules
    mod        the module of the global functions that `expr` calls, for type inference

    A match is left unchanged if a node inside it, other than its root, has users outside of it.
    Types are inferred again where a replacement has another type than the node it replaces. Raise
    AotcError (code "no-fixpoint") if the program still changes after 100 rounds or has grown to
    more than 16 times its size, since growth by a factor in each round would not end.
    """
    rules = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    most = _MAX_GROWTH_FACTOR * (_node_count(expr) + 256)
    for done in range(_MAX_REWRITE_ROUNDS + 1):
        if done == _MAX_REWRITE_ROUNDS or _node_count(expr) > most:
            break
        before = expr
        for rule in rules:
            expr = _apply_rule_to_all_matches(rule, expr, mod)
        rules = [rule for rule in rules if not rule.rewrite_once]
        if not rules or expr is before or structural_equal(expr, before, exact=True):
            return expr
    names = ", ".join(type(rule).__name__ for rule in rules)
    hint = "rules that undo each other, or that match their own result, need rewrite_once"
    raise AotcError("no-fixpoint", f"{names}: the program still changes after {done} rounds", hint=hint)
