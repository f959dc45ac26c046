# SPDX-License-Identifier: Apache-2.0
"""Base classes of graph passes: the function pass, and a rewriter driven by rules.

@function_pass(opt_level=1)
def tidy(function, module, ctx): return function

RULE = Rule("x + 0 => x", ("add",), drop_zero)          # drop_zero(call) -> Expr, WhyNot or None
function = Rewriter([RULE]).rewrite_to_fixpoint(function)  # to a fixpoint
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import numpy as np

from aotc.ir import (
    Op,
    Pass,
    PassContext,
    PassInfo,
    frozen,
    make_pass_decorator,
    merge_spans,
    span_scope,
    temporarily_set_context_variable,
)
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    require_function,
    require_op_of_call,
    typed_op_call,
)
from aotc.relay.graph_api import IRModule, Mutator, children, infer_module, merge_types, rewrite_bottom_up
from aotc.relay.transform.effect_order import bind_effects_by_lets

T = TypeVar("T")

# --- function passes


def is_excluded_from_passes(function: Function) -> bool:
    """Return True if passes must not change a global function: it is for another compiler, or has
    SkipOptimization set.
    """
    return bool(function.attrs.get("Compiler") or function.attrs.get("SkipOptimization"))


def with_inferred_types(module: IRModule) -> IRModule:
    """Return `module` with types inferred; passes may be called on a module that has none."""
    known = ((f.checked_type, f.body.checked_type, f.ret_type) for f in module.functions.values())
    return infer_module(module) if any(None in types for types in known) else module


class InferType(Pass[IRModule]):
    """Pass that infers the types of the whole module; see `aotc.relay.type_inference`."""

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        return infer_module(module)


class FunctionPass(Pass[IRModule]):
    """Base of passes that transform one function at a time; types are inferred afterwards by
    InferType.

    A subclass overrides `rewrite_function_body`, or `transform` if it needs the module or the
    context.
    """

    kind = "Function"
    required: ClassVar[tuple[str, ...]] = ("InferType",)

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        """Return the function as transformed by the pass; the same object if nothing changes."""
        return self.rewrite_function_body(function)

    def rewrite_function_body(self, function: Function) -> Function:
        """Return the function as transformed by the pass; overridden by passes that need neither
        module nor context.
        """
        raise NotImplementedError(type(self).__name__)

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = bind_effects_by_lets(with_inferred_types(module))
        updates = {
            name: function if is_excluded_from_passes(function) else self.transform(function, start, ctx)
            for name, function in start.functions.items()
        }
        return InferType()(start.with_functions(updates))


class _BodyPass(FunctionPass):
    """Function pass whose transformation is a given function (function, module, ctx) -> function."""

    def __init__(self, body: Callable[[Function, IRModule, PassContext], Function], info: PassInfo) -> None:
        self._body = body
        self._info = info

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        return self._body(function, module, ctx)


def function_pass(
    pass_func: Any = None, opt_level: int | None = None, name: str | None = None, required: Sequence[str] | None = None
) -> Any:
    """Make a pass of a function (function, module, ctx) -> function, or of a class with
    `transform_function`.

    Used as a decorator with options, or called on the function; the pass's name defaults to the
    function's.
    """
    return make_pass_decorator(_BodyPass, "transform_function", pass_func, opt_level, name, required)


# --- walking and matching


def is_not_primitive_function(node: Expr) -> bool:
    """Return True if passes visit the children of a node; the bodies of fused functions are
    skipped.
    """
    return not (isinstance(node, Function) and node.is_primitive)


def apply_to_fixpoint(change: Callable[[T], T], value: T) -> T:
    """Apply `change` to a value repeatedly until it returns its argument; return the last value."""
    while (changed := change(value)) is not value:
        value = changed
    return value


def rewrite_nodes(function: Function, rewrite: Callable[[Expr, Expr], Expr]) -> Function:
    """Replace each node by `rewrite(node, copy of the node with rewritten operands)`, in post
    order; fused functions are not changed.
    """
    return require_function(rewrite_bottom_up(function, rewrite, is_not_primitive_function))


class GraphMutator(Mutator):
    """Mutator that does not change fused functions."""

    def should_rewrite_children(self, node: Expr) -> bool:
        return is_not_primitive_function(node)


def is_op_call(expr: Expr, *ops: Op | str) -> bool:
    """Return True if `expr` is an operator call, of one of `ops` (operators or names) if any are
    given.
    """
    return isinstance(expr, Call) and isinstance(expr.op, Op) and (not ops or expr.op in ops or expr.op.name in ops)


def __getattr__(name: str) -> Any:
    if name == "is_call":
        text = f"{__name__}.is_call is now named is_op_call"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return is_op_call
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def as_op_call(expr: Expr, *ops: Op | str) -> Call | None:
    """Return `expr` if it is a call of one of the operators, or of any operator if none are given;
    else None.
    """
    return expr if isinstance(expr, Call) and is_op_call(expr, *ops) else None


def uniform_value_of_constant(expr: Expr) -> Any:
    """Return the value of a constant whose elements are known to be equal (one element, or a
    splat); else None.
    """
    if isinstance(expr, Constant) and (expr.data.size == 1 or expr.is_splat):
        return expr.data.flat[0]
    return None


def is_constant_filled_with(expr: Expr, value: float) -> bool:
    """Return True if `expr` is a constant with all elements equal to `value`; -0.0 and 0.0 differ."""
    element = uniform_value_of_constant(expr)
    return element is not None and (element, np.signbit(element)) == (value, np.signbit(value))


def is_constant_with_finite_elements(expr: Expr) -> bool:
    """Return True if `expr` is a constant without infinities and NaN."""
    return isinstance(expr, Constant) and bool(np.isfinite(expr.data).all())


def rebuild_call(node: Call, args: Sequence[Expr], **changes: Any) -> Call:
    """Return a typed call of the operator of `node` with new arguments and some attributes changed."""
    return typed_op_call(require_op_of_call(node), args, node.attrs.replace(**changes) if changes else node.attrs)


# --- rewrite rules


@frozen
class WhyNot:
    """The reason why a rewrite is not applied although its pattern matched: it would be wrong or
    useless.
    """

    reason: str


RewriteOutcome: TypeAlias = "Expr | WhyNot | None"
Rewrite: TypeAlias = Callable[[Call], RewriteOutcome]


@frozen
class Rule:
    """A rewrite rule for operator calls.

    name       an equation: "conv2d(x, w) * s => conv2d(x, w * s)"
    ops        the operators, or their names, at the root of a match
    rewrite    (call) -> its replacement; None if the pattern does not match, WhyNot if a check forbids it.
               Nodes that it builds get the call's span. The type must not change
    """

    name: str
    ops: tuple[Op | str, ...]
    rewrite: Rewrite


@dataclass(slots=True)
class RuleStats:
    """Statistics of a rewrite rule: rewrites made, matches refused (by reason), calls not matched,
    and seconds spent.
    """

    hits: int = 0
    misses: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add_outcome(self, outcome: RewriteOutcome, seconds: float) -> None:
        self.seconds += seconds
        if outcome is None:
            self.misses += 1
        elif isinstance(outcome, WhyNot):
            self.refused[outcome.reason] += 1
        else:
            self.hits += 1


RewriteReport: TypeAlias = "dict[str, RuleStats]"

_REPORT: ContextVar[RewriteReport | None] = ContextVar("aotc_rewrites", default=None)
_MAX_SWEEPS: Final = 64


def rewrite_report() -> AbstractContextManager[RewriteReport]:
    """Context manager that collects the statistics of all rewrite rules applied inside it, by rule
    name.
    """
    return temporarily_set_context_variable(_REPORT, {})


def record_rule_outcome(name: str, outcome: RewriteOutcome, seconds: float) -> None:
    """Add the outcome of a rule to the current rewrite report, if there is one."""
    report = _REPORT.get()
    if report is not None:
        report.setdefault(name, RuleStats()).add_outcome(outcome, seconds)


class Rewriter:
    """Applies rewrite rules everywhere in a function, operands first, until none applies.

    Fused functions are not changed; a field of a tuple expression is replaced by the tuple's
    element.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.stats: RewriteReport = {}
        self.by_op: dict[str, list[Rule]] = {}
        for rule in rules:
            for op in rule.ops:
                self.by_op.setdefault(str(op), []).append(rule)

    def rewrite_to_fixpoint(self, function: Function) -> Function:
        """Return the function with all rules applied; the same object if none applied. Raise
        RuntimeError without a fixpoint.
        """
        for _ in range(_MAX_SWEEPS):
            result = rewrite_nodes(function, self._rewrite_node)
            if result is function:
                return result
            function = result
        active = sorted(name for name, s in self.stats.items() if s.hits)
        raise RuntimeError(f"rewrite rules do not come to an end: {'; '.join(active)}")

    def _rewrite_node(self, old: Expr, new: Expr) -> Expr:
        match new:
            case TupleGetItem(tuple_value=Tuple(fields=fields)):
                return fields[new.index]
            case _:
                return self.apply_rules_to_node(new)

    def apply_rules_to_node(self, node: Expr) -> Expr:
        """Return the result of applying the rewrite rules to one node whose operands are already
        rewritten.
        """
        current = node
        for _ in range(_MAX_SWEEPS):
            replacement = self._replacement_by_first_matching_rule(current)
            if replacement is None:
                return current
            current = replacement
        return current

    def _replacement_by_first_matching_rule(self, node: Expr) -> Expr | None:
        call = as_op_call(node)
        if call is None:
            return None
        tried = (self._try_rule(rule, call) for rule in self.by_op.get(require_op_of_call(call).name, ()))
        return next((replacement for replacement in tried if replacement is not None), None)

    def _try_rule(self, rule: Rule, node: Call) -> Expr | None:
        """Return the replacement of a call by one rule, or None; update the rule's statistics."""
        start = time.perf_counter()
        with span_scope(node.span):
            outcome = rule.rewrite(node)
        replacement = (
            None if outcome is None or isinstance(outcome, WhyNot) else _check_type_and_merge_span(rule, node, outcome)
        )
        seconds = time.perf_counter() - start
        self.stats.setdefault(rule.name, RuleStats()).add_outcome(outcome, seconds)
        record_rule_outcome(rule.name, outcome, seconds)
        return replacement


def _check_type_and_merge_span(rule: Rule, old: Call, new: Expr) -> Expr:
    """Return a rule's replacement with a span that covers all replaced nodes.

    Raise RuntimeError if the rule changed the type.
    """
    before, after = old.checked_type, new.checked_type
    if before is not None and (after is None or merge_types(before, after) is None):
        raise RuntimeError(f"rule `{rule.name}` made {after} of {before}")
    if not isinstance(new, Call) or new.span is not old.span:
        return new  # an existing expression
    # calls of the old pattern that the new expression does not use
    replaced = _nodes_within_four_levels(old, frozenset(_nodes_within_four_levels(new)))
    span = merge_spans([old.span, *(n.span for n in replaced)])
    return new if span == new.span else Call(new.op, new.args, new.attrs, None, span, new.checked_type)


def _nodes_within_four_levels(root: Expr, excluded: frozenset[Expr] = frozenset()) -> list[Expr]:
    """Return the nodes in the first four levels below and including `root`, without descending into
    the nodes `excluded`.
    """
    nodes: list[Expr] = []
    layer: list[Expr] = [root]
    for _ in range(4):
        nodes += layer
        layer = [c for n in layer for c in children(n) if c not in excluded and isinstance(c, (Call, TupleGetItem))]
    return nodes


class RulePass(FunctionPass):
    """Base of passes that apply rewrite rules to a fixpoint."""

    rules: ClassVar[Sequence[Rule]] = ()

    def rewrite_function_body(self, function: Function) -> Function:
        return Rewriter(self.rules).rewrite_to_fixpoint(function)
