# SPDX-License-Identifier: Apache-2.0
"""Base classes of graph passes: the function pass, and a rewriter driven by rules.

@function_pass(opt_level=1)
def tidy(function, module, ctx): return function

RULE = Rule("x + 0 => x", ("add",), drop_zero)          # drop_zero(call) -> Expr, WhyNot or None
function = Rewriter([RULE]).rewrite(function)             # to a fixpoint
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import numpy as np

from aotc.ir import Op, Pass, PassContext, PassInfo, decorated, frozen, merge_spans, setting, span_scope
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, as_function, call, op_of
from aotc.relay.graph_api import IRModule, Mutator, children, infer_module, merge_types, mutated
from aotc.relay.transform.effect_order import with_effects_named

T = TypeVar("T")

# --- function passes


def is_left_alone(function: Function) -> bool:
    """Return True if passes must not change a global function: it is for another compiler, or has
    SkipOptimization set.
    """
    return bool(function.attrs.get("Compiler") or function.attrs.get("SkipOptimization"))


def typed(module: IRModule) -> IRModule:
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

    A subclass overrides `rewritten`, or `transform` if it needs the module or the context.
    """

    kind = "Function"
    required: ClassVar[tuple[str, ...]] = ("InferType",)

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        """Return the function as transformed by the pass; the same object if nothing changes."""
        return self.rewritten(function)

    def rewritten(self, function: Function) -> Function:
        """Return the function as transformed by the pass; overridden by passes that need neither
        module nor context.
        """
        raise NotImplementedError(type(self).__name__)

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = with_effects_named(typed(module))
        updates = {
            name: function if is_left_alone(function) else self.transform(function, start, ctx)
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
    return decorated(_BodyPass, "transform_function", pass_func, opt_level, name, required)


# --- walking and matching


def outside_kernels(node: Expr) -> bool:
    """Return True if passes visit the children of a node; the bodies of fused functions are
    skipped.
    """
    return not (isinstance(node, Function) and node.is_primitive)


def settled(change: Callable[[T], T], value: T) -> T:
    """Apply `change` to a value repeatedly until it returns its argument; return the last value."""
    while (changed := change(value)) is not value:
        value = changed
    return value


def rewrite_nodes(function: Function, rewrite: Callable[[Expr, Expr], Expr]) -> Function:
    """Replace each node by rewrite(old node, node with rewritten operands); fused functions are not
    changed.
    """
    return as_function(mutated(function, rewrite, outside_kernels))


class GraphMutator(Mutator):
    """Mutator that does not change fused functions."""

    def enter(self, node: Expr) -> bool:
        return outside_kernels(node)


def is_call(expr: Expr, *ops: Op | str) -> bool:
    """Return True if `expr` is an operator call, of one of `ops` (operators or names) if any are
    given.
    """
    return isinstance(expr, Call) and isinstance(expr.op, Op) and (not ops or expr.op in ops or expr.op.name in ops)


def op_call(expr: Expr, *ops: Op | str) -> Call | None:
    """Return `expr` if it is a call of one of the operators, or of any operator if none are given;
    else None.
    """
    return expr if isinstance(expr, Call) and is_call(expr, *ops) else None


def uniform_value(expr: Expr) -> Any:
    """Return the value of a constant whose elements are known to be equal (one element, or a
    splat); else None.
    """
    if isinstance(expr, Constant) and (expr.data.size == 1 or expr.is_splat):
        return expr.data.flat[0]
    return None


def is_uniform(expr: Expr, value: float) -> bool:
    """Return True if `expr` is a constant with all elements equal to `value`; -0.0 and 0.0 differ."""
    found = uniform_value(expr)
    return found is not None and (found, np.signbit(found)) == (value, np.signbit(value))


def is_finite(expr: Expr) -> bool:
    """Return True if `expr` is a constant without infinities and NaN."""
    return isinstance(expr, Constant) and bool(np.isfinite(expr.data).all())


def recall(node: Call, args: Sequence[Expr], **changes: Any) -> Call:
    """Return a typed call of the operator of `node` with new arguments and some attributes changed."""
    return call(op_of(node), args, node.attrs.replace(**changes) if changes else node.attrs)


# --- rewrite rules


@frozen
class WhyNot:
    """The reason why a rewrite is not applied although its pattern matched: it would be wrong or
    useless.
    """

    reason: str


Outcome: TypeAlias = "Expr | WhyNot | None"
Rewrite: TypeAlias = Callable[[Call], Outcome]


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

    def add(self, outcome: Outcome, seconds: float) -> None:
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
    return setting(_REPORT, {})


def record(name: str, outcome: Outcome, seconds: float) -> None:
    """Add the outcome of a rule to the current rewrite report, if there is one."""
    report = _REPORT.get()
    if report is not None:
        report.setdefault(name, RuleStats()).add(outcome, seconds)


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

    def rewrite(self, function: Function) -> Function:
        """Return the function with all rules applied; the same object if none applied. Raise
        RuntimeError without a fixpoint.
        """
        for _ in range(_MAX_SWEEPS):
            result = rewrite_nodes(function, self._step)
            if result is function:
                return result
            function = result
        active = sorted(name for name, s in self.stats.items() if s.hits)
        raise RuntimeError(f"rewrite rules do not come to an end: {'; '.join(active)}")

    def _step(self, old: Expr, new: Expr) -> Expr:
        match new:
            case TupleGetItem(tuple_value=Tuple(fields=fields)):
                return fields[new.index]
            case _:
                return self.apply(new)

    def apply(self, node: Expr) -> Expr:
        """Return the result of applying the rewrite rules to one node whose operands are already
        rewritten.
        """
        current = node
        for _ in range(_MAX_SWEEPS):
            replacement = self._first(current)
            if replacement is None:
                return current
            current = replacement
        return current

    def _first(self, node: Expr) -> Expr | None:
        call = op_call(node)
        if call is None:
            return None
        tried = (self._try(rule, call) for rule in self.by_op.get(op_of(call).name, ()))
        return next((made for made in tried if made is not None), None)

    def _try(self, rule: Rule, node: Call) -> Expr | None:
        """Return the replacement of a call by one rule, or None; update the rule's statistics."""
        start = time.perf_counter()
        with span_scope(node.span):
            outcome = rule.rewrite(node)
        made = None if outcome is None or isinstance(outcome, WhyNot) else _checked(rule, node, outcome)
        seconds = time.perf_counter() - start
        self.stats.setdefault(rule.name, RuleStats()).add(outcome, seconds)
        record(rule.name, outcome, seconds)
        return made


def _checked(rule: Rule, old: Call, new: Expr) -> Expr:
    """Return a rule's replacement with a span that covers all replaced nodes.

    Raise RuntimeError if the rule changed the type.
    """
    before, after = old.checked_type, new.checked_type
    if before is not None and (after is None or merge_types(before, after) is None):
        raise RuntimeError(f"rule `{rule.name}` made {after} of {before}")
    if not isinstance(new, Call) or new.span is not old.span:
        return new  # an existing expression
    # calls of the old pattern that the new expression does not use
    replaced = _near(old, frozenset(_near(new)))
    span = merge_spans([old.span, *(n.span for n in replaced)])
    return new if span == new.span else Call(new.op, new.args, new.attrs, None, span, new.checked_type)


def _near(root: Expr, stop: frozenset[Expr] = frozenset()) -> list[Expr]:
    """Return the nodes in the first four levels below and including `root`, without descending into
    the nodes `stop`.
    """
    found: list[Expr] = []
    layer: list[Expr] = [root]
    for _ in range(4):
        found += layer
        layer = [c for n in layer for c in children(n) if c not in stop and isinstance(c, (Call, TupleGetItem))]
    return found


class RulePass(FunctionPass):
    """Base of passes that apply rewrite rules to a fixpoint."""

    rules: ClassVar[Sequence[Rule]] = ()

    def rewritten(self, function: Function) -> Function:
        return Rewriter(self.rules).rewrite(function)
