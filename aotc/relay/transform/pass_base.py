# SPDX-License-Identifier: Apache-2.0
"""What graph passes are made of: the function pass, and an engine for rewrite rules.

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
    """Whether passes keep away from a global function: another compiler's, or one that says so."""
    return bool(function.attrs.get("Compiler") or function.attrs.get("SkipOptimization"))


def typed(module: IRModule) -> IRModule:
    """`module` with types; passes may be called on a module that was never inferred."""
    known = ((f.checked_type, f.body.checked_type, f.ret_type) for f in module.functions.values())
    return infer_module(module) if any(None in types for types in known) else module


class InferType(Pass[IRModule]):
    """Type inference over the whole module; see `aotc.relay.type_inference`."""

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        return infer_module(module)


class FunctionPass(Pass[IRModule]):
    """A pass that looks at one function at a time.  Types are inferred afterwards (an InferType of its own).

    A subclass gives `rewritten`, or `transform` if it needs the module or the context.
    """

    kind = "Function"
    required: ClassVar[tuple[str, ...]] = ("InferType",)

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        """The transformed function; the very same object if nothing changes."""
        return self.rewritten(function)

    def rewritten(self, function: Function) -> Function:
        """The transformed function, of passes that look at nothing else."""
        raise NotImplementedError(type(self).__name__)

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = with_effects_named(typed(module))
        updates = {
            name: function if is_left_alone(function) else self.transform(function, start, ctx)
            for name, function in start.functions.items()
        }
        return InferType()(start.with_functions(updates))


class _BodyPass(FunctionPass):
    """A function pass whose body is a function (function, module, ctx) -> function."""

    def __init__(self, body: Callable[[Function, IRModule, PassContext], Function], info: PassInfo) -> None:
        self._body = body
        self._info = info

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        return self._body(function, module, ctx)


def function_pass(
    pass_func: Any = None, opt_level: int | None = None, name: str | None = None, required: Sequence[str] | None = None
) -> Any:
    """Make a pass of a function (function, module, ctx) -> function, or of a class with `transform_function`.

    Used as a decorator with options, or called on the function; the name defaults to the function's.
    """
    return decorated(_BodyPass, "transform_function", pass_func, opt_level, name, required)


# --- walking and matching


def outside_kernels(node: Expr) -> bool:
    """Whether passes look below a node: fused functions stay as they are."""
    return not (isinstance(node, Function) and node.is_primitive)


def settled(change: Callable[[T], T], value: T) -> T:
    """What is left of a value when it has been changed as often as that makes another one of it."""
    while (changed := change(value)) is not value:
        value = changed
    return value


def rewrite_nodes(function: Function, rewrite: Callable[[Expr, Expr], Expr]) -> Function:
    """Replace each node by rewrite(node, node over new operands); fused functions are left alone."""
    return as_function(mutated(function, rewrite, outside_kernels))


class GraphMutator(Mutator):
    """A rewrite that leaves fused functions alone."""

    def enter(self, node: Expr) -> bool:
        return outside_kernels(node)


def is_call(expr: Expr, *ops: Op | str) -> bool:
    """Whether `expr` calls an operator, one of `ops` (given as such, or by name) if there are any."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and (not ops or expr.op in ops or expr.op.name in ops)


def op_call(expr: Expr, *ops: Op | str) -> Call | None:
    """`expr` if it calls one of the operators."""
    return expr if isinstance(expr, Call) and is_call(expr, *ops) else None


def uniform_value(expr: Expr) -> Any:
    """The value of a constant that holds one value everywhere it is known to (one element, or a splat); else None."""
    if isinstance(expr, Constant) and (expr.data.size == 1 or expr.is_splat):
        return expr.data.flat[0]
    return None


def is_uniform(expr: Expr, value: float) -> bool:
    """Whether `expr` is a constant of one value, this one; -0.0 is not 0.0."""
    found = uniform_value(expr)
    return found is not None and (found, np.signbit(found)) == (value, np.signbit(value))


def is_finite(expr: Expr) -> bool:
    """Whether `expr` is a constant without infinities and NaN."""
    return isinstance(expr, Constant) and bool(np.isfinite(expr.data).all())


def recall(node: Call, args: Sequence[Expr], **changes: Any) -> Call:
    """A call of the operator of `node` on other arguments, with some attributes changed; typed."""
    return call(op_of(node), args, node.attrs.replace(**changes) if changes else node.attrs)


# --- rewrite rules


@frozen
class WhyNot:
    """A pattern matched, but the rewrite would be wrong or useless: the reason."""

    reason: str


Outcome: TypeAlias = "Expr | WhyNot | None"
Rewrite: TypeAlias = Callable[[Call], Outcome]


@frozen
class Rule:
    """A rewrite.

    name       an equation: "conv2d(x, w) * s => conv2d(x, w * s)"
    ops        the operators, or their names, that a match is rooted at
    rewrite    (call) -> what replaces it; None if the pattern does not match, WhyNot if a check forbids it.
               Nodes that it builds get the call's span.  The type must stay what it is
    """

    name: str
    ops: tuple[Op | str, ...]
    rewrite: Rewrite


@dataclass(slots=True)
class RuleStats:
    """How a rule did: rewrites made, matches refused (by reason), calls tried in vain, and seconds spent."""

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
    """What the rules of all passes that run inside have done, by rule name."""
    return setting(_REPORT, {})


def record(name: str, outcome: Outcome, seconds: float) -> None:
    """Count an outcome of a rule in the report that is being made, if any."""
    report = _REPORT.get()
    if report is not None:
        report.setdefault(name, RuleStats()).add(outcome, seconds)


class Rewriter:
    """Applies rules everywhere in a function, operands first, until none applies.

    Fused functions stay as they are; a field of a tuple that a rule wrote out is taken at once.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.stats: RewriteReport = {}
        self.by_op: dict[str, list[Rule]] = {}
        for rule in rules:
            for op in rule.ops:
                self.by_op.setdefault(str(op), []).append(rule)

    def rewrite(self, function: Function) -> Function:
        """The rewritten function; the same object if no rule applied."""
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
        """What the rules make of one node, its operands being done."""
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
        """What one rule makes of a call."""
        start = time.perf_counter()
        with span_scope(node.span):
            outcome = rule.rewrite(node)
        made = None if outcome is None or isinstance(outcome, WhyNot) else _checked(rule, node, outcome)
        seconds = time.perf_counter() - start
        self.stats.setdefault(rule.name, RuleStats()).add(outcome, seconds)
        record(rule.name, outcome, seconds)
        return made


def _checked(rule: Rule, old: Call, new: Expr) -> Expr:
    """The replacement, its span naming all that it replaces; a RuntimeError if the rule changed the type."""
    before, after = old.checked_type, new.checked_type
    if before is not None and (after is None or merge_types(before, after) is None):
        raise RuntimeError(f"rule `{rule.name}` made {after} of {before}")
    if not isinstance(new, Call) or new.span is not old.span:
        return new  # something that was there before
    # calls that the new expression does without
    replaced = _near(old, frozenset(_near(new)))
    span = merge_spans([old.span, *(n.span for n in replaced)])
    return new if span == new.span else Call(new.op, new.args, new.attrs, None, span, new.checked_type)


def _near(root: Expr, stop: frozenset[Expr] = frozenset()) -> list[Expr]:
    """The calls within a pattern's reach of `root`, not looking below the nodes `stop`."""
    found: list[Expr] = []
    layer: list[Expr] = [root]
    for _ in range(4):
        found += layer
        layer = [c for n in layer for c in children(n) if c not in stop and isinstance(c, (Call, TupleGetItem))]
    return found


class RulePass(FunctionPass):
    """Rewrite rules, to a fixpoint."""

    rules: ClassVar[Sequence[Rule]] = ()

    def rewritten(self, function: Function) -> Function:
        return Rewriter(self.rules).rewrite(function)
