# SPDX-License-Identifier: Apache-2.0
"""RemoveUnusedFunctions, Inline, EtaExpand, LambdaLift: passes on the functions of a module.

RemoveUnusedFunctions: remove the global functions that the entry functions do not reach.

def @main(%x) { @f(%x) }; def @f(%x) { exp(%x) }; def @g(%x) { log(%x) }
def @main(%x) { @f(%x) }; def @f(%x) { exp(%x) }

Inline: replace calls of functions by the functions' bodies.

def @main(%x) { @f(@f(%x)) }; def @f(%y, Inline=1) { exp(%y) }
def @main(%x) { exp(exp(%x)) }

EtaExpand: replace a global function that is used as a value by a function literal that calls it.

@map(@double, %x)
@map(fn (%a) { @double(%a) }, %x)

LambdaLift: move function literals to global functions; captured variables become parameters.

def @main(%x, %w) { let %f = fn (%a) { add(%a, %w) }; %f(%x) }
def @main(%x, %w) { let %f = @main_lifted(%w); %f(%x) }
def @main_lifted(%w1) { fn (%a, ...) { add(%a, %w1) } }                       with the attribute Closure=1
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from aotc.ir import FuncType, IncompleteType, Pass, PassContext, TupleType, running_or_new_budget_scope, span_scope
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.analysis import bound_vars, free_type_vars, free_vars, global_uses
from aotc.relay.expr import Call, Constructor, Expr, Function, GlobalVar, Let, Var, require_function
from aotc.relay.graph_api import (
    IRModule,
    infer_module,
    infer_type_arguments,
    is_fused_or_external_function,
    substituted_type_or_none_if_incomplete,
    unused_name,
)
from aotc.relay.transform.effect_order import bind_effects_by_lets, uses_references_or_calls_function
from aotc.relay.transform.pass_base import FunctionPass, apply_to_fixpoint, with_inferred_types
from aotc.relay.visitor import (
    Mutator,
    children,
    depth_first_post_order,
    map_children,
    post_order,
    substitute_variables,
    variables_bound_below,
    with_children,
)


def reachable_functions(functions: Mapping[str, Function], entries: Iterable[str]) -> set[str]:
    """Return the names of the entry functions and of all functions that they use, directly or
    indirectly.
    """
    return set(_functions_callees_first(functions, (name for name in entries if name in functions)))


def _functions_callees_first(functions: Mapping[str, Function], entries: Iterable[str]) -> Iterator[str]:
    """Yield `entries` and the functions that they use, callees before callers."""
    return depth_first_post_order(entries, lambda name: [n for n in global_uses(functions[name]) if n in functions])


@dataclass(frozen=True, repr=False)
class RemoveUnusedFunctions(Pass[IRModule]):
    """Pass that removes all functions that the entry functions do not use.

    entry_functions    names of the functions to start from
    """

    entry_functions: Sequence[str] = ("main",)

    opt_level = 1

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        live_names = reachable_functions(module.functions, self.entry_functions)
        if len(live_names) == len(module):
            return module
        return module.without_functions(module.functions.keys() - live_names)


# --- inlining


def _is_primitive_external_or_unoptimized(function: Function) -> bool:
    return function.is_primitive or "Compiler" in function.attrs or "SkipOptimization" in function.attrs


def inline_function_body(function: Function, args: Sequence[Expr]) -> Expr:
    """Return the body of `function` with its parameters replaced by `args`, and with fresh copies
    of the variables it binds.

    Nodes that do not depend on parameters and have no effects stay shared between applications;
    type parameters are replaced by the types of `args`. Raise AotcError (code "budget") if nested
    inlining would create more nodes than one compilation may have.
    """
    new: dict[Expr, Expr] = dict(zip(function.params, args, strict=True))
    param_types, given = ([a.checked_type or IncompleteType() for a in exprs] for exprs in (function.params, args))
    types = infer_type_arguments(FuncType(param_types, TupleType(()), function.type_params), given)
    new.update(
        (v, Var(v.name, substituted_type_or_none_if_incomplete(v.annotation, types), v.span))
        for v in variables_bound_below(function.body)
    )
    memo: dict[Expr, Expr] = {}
    nodes = list(post_order(function.body))
    current_budget().spend_compile_time_budget(
        "compile.max_nodes", len(nodes), "the module, calls replaced by what they call,"
    )
    for node in nodes:
        new_node = new[node] if node in new else map_children(node, memo.__getitem__)
        if new_node is node and uses_references_or_calls_function(node):
            new_node = with_children(node, children(node))
        if types and isinstance(new_node, Function):
            new_node = replace(new_node, ret_type=substituted_type_or_none_if_incomplete(new_node.ret_type, types))
        memo[node] = new_node
    return memo[function.body]


@dataclass(eq=False)
class _Inliner(Mutator):
    """Mutator that inlines calls of the global functions for which `wanted` returns a function,
    and calls of function literals if `literal` is True.
    """

    wanted: Callable[[str], Function | None]
    literal: bool

    def should_rewrite_children(self, node: Expr) -> bool:
        return not (isinstance(node, Function) and _is_primitive_external_or_unoptimized(node))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        match new.op:
            case GlobalVar(name=name):
                function = self.wanted(name)
            case Function() as function if self.literal and not _is_primitive_external_or_unoptimized(function):
                pass
            case _:
                function = None
        if function is None or len(function.params) != len(new.args):
            return new
        with span_scope(new.span):
            return inline_function_body(function, new.args)


def _nonrecursive_functions_callees_first(module: IRModule) -> list[str]:
    """Return the names of the non-recursive functions, callees before callers."""
    functions = module.functions
    simple = {n: f for n, f in functions.items() if n not in reachable_functions(functions, global_uses(f))}
    return list(_functions_callees_first(simple, simple))


def _inline_calls_of_function_literals(function: Function) -> Function:
    """Return the function with calls of function literals replaced by the literals' bodies."""
    return _Inliner(lambda _: None, literal=True).visit_function(function)


@dataclass(frozen=True, repr=False)
class Inline(Pass[IRModule]):
    """Pass that inlines the global functions with the attribute `Inline=1`; recursive functions
    stay calls.

    everything    inline every global function, and every function literal that is called

    An inlined function without remaining uses is removed from the module, unless `everything` is
    set. Fused functions and functions for external compilers are never inlined by `everything`.
    """

    everything: bool = False

    name: ClassVar[str] = "InlineGlobals"
    opt_level = 1

    def _is_function_to_be_inlined(self, function: Function) -> bool:
        if "Compiler" in function.attrs:
            return False  # Relay sets Inline for external functions, too
        return bool(function.attrs.get("Inline")) or (
            self.everything and not _is_primitive_external_or_unoptimized(function)
        )

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = bind_effects_by_lets(module)
        functions = dict(start.functions)
        order = _nonrecursive_functions_callees_first(start)
        inlined = {name for name in order if self._is_function_to_be_inlined(functions[name])}

        def function_to_inline(name: str) -> Function | None:
            return functions[name] if name in inlined else None

        with running_or_new_budget_scope(ctx.config):
            for name in [*order, *(n for n in functions if n not in set(order))]:
                if not _is_primitive_external_or_unoptimized(functions[name]):
                    functions[name] = _Inliner(function_to_inline, self.everything).visit_function(functions[name])
                    if self.everything:  # inlining may create new calls of literals
                        functions[name] = apply_to_fixpoint(_inline_calls_of_function_literals, functions[name])
        result = start.with_functions(functions)
        if not self.everything and (dead_names := _functions_no_longer_used(inlined, module, result)):
            result = result.without_functions(dead_names)
        ready = all(f.ret_type is not None for f in module.functions.values())
        return infer_module(result) if result is not module and ready else result


def _functions_no_longer_used(inlined: Collection[str], before: IRModule, after: IRModule) -> set[str]:
    """Return the inlined functions that were used before and no longer are."""
    used = {n for f in before.functions.values() for n in global_uses(f)}
    roots = {n for name, f in after.functions.items() if name not in inlined for n in global_uses(f)}
    return {*inlined} & used - reachable_functions(after.functions, roots)


# --- eta expansion


def _eta_expand(callee: Expr, module: IRModule) -> Expr:
    if isinstance(callee, Constructor):
        fields = tuple(Var(f"x{k}", ty, callee.span) for k, ty in enumerate(callee.inputs))
        data = module[callee.belong_to]
        return Function(
            fields, Call(callee, fields, span=callee.span), data.instance_type, data.type_vars, span=callee.span
        )
    ty = module[callee].checked_type if isinstance(callee, GlobalVar) else None
    if not isinstance(callee, GlobalVar) or not isinstance(ty, FuncType):
        return callee
    params = tuple(Var(p.name, p.checked_type, p.span) for p in module[callee].params)
    call = Call(callee, params, span=callee.span, checked_type=ty.ret_type)
    return Function(params, call, ty.ret_type, span=callee.span)


@dataclass(frozen=True, repr=False)
class EtaExpand(FunctionPass):
    """Pass that eta-expands global functions and constructors that are used as values instead of
    being called.

    expand_constructor    expand constructors of data types
    expand_global_var     expand global functions
    """

    expand_constructor: bool = False
    expand_global_var: bool = False

    opt_level = 1
    required = ()

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        kinds = [(GlobalVar, self.expand_global_var), (Constructor, self.expand_constructor)]
        names = tuple(kind for kind, is_enabled in kinds if is_enabled)
        memo: dict[Expr, Expr] = {}
        for node in post_order(function):
            old = children(node)
            fresh = [_eta_expand(c, module) if isinstance(c, names) else memo[c] for c in old]
            if isinstance(node, Call):
                fresh[0] = node.op if isinstance(node.op, names) else memo[node.op]
            memo[node] = node if fresh == [*old] else with_children(node, tuple(fresh))
        return require_function(memo[function])


# --- lambda lifting


class _Lifter(Mutator):
    """Lifts the function literals in one global function to the module, inner literals first."""

    def __init__(self, name: str, root: Function, taken: Collection[str]) -> None:
        super().__init__()
        self.name = name
        self.root = root
        self.used_names = set(taken)
        self.lifted: dict[str, Function] = {}
        self.let_of: dict[Expr, Var] = {}
        self.bound: set[Var] = set()  # variables bound by the functions lifted so far

    def should_rewrite_children(self, node: Expr) -> bool:
        if isinstance(node, Let) and isinstance(node.value, Function):
            self.let_of[node.value] = node.var
        return not (is_fused_or_external_function(node))

    def rewrite_function(self, old: Expr, new: Function) -> Expr:
        if is_fused_or_external_function(new):
            return new
        mapping: dict[Var, Expr] = self._fresh_copies_of_vars_bound_before(new)
        if old is self.root:
            return substitute_variables(new, mapping) if mapping else new
        name = unused_name(f"{self.name}_lifted", self.used_names)
        self.used_names.add(name)
        let_var = self.let_of.get(old)  # a recursive function refers to its own variable
        captured = [v for v in free_vars(new) if v is not let_var]
        inside = {v: Var(v.name, v.checked_type, v.span) for v in captured}
        mapping.update(inside)
        if let_var is not None:
            mapping[let_var] = _lifted_function_as_value(name, list(inside.values()), new)
        function = new.with_body(substitute_variables(new.body, mapping))
        if captured:
            function = Function(inside.values(), function, new.checked_type, None, {"Closure": 1}, new.span)
        self.lifted[name] = replace(function, type_params=(*function.type_params, *free_type_vars(function)))
        return _lifted_function_as_value(name, captured, new)

    def _fresh_copies_of_vars_bound_before(self, function: Function) -> dict[Var, Expr]:
        """Return fresh copies of the variables that both this function and an earlier one bind.

        This happens if one let is part of several function literals.
        """
        body_vars = bound_vars(function.body)
        again: dict[Var, Expr] = {v: Var(v.name, v.annotation, v.span) for v in body_vars if v in self.bound}
        self.bound.update(body_vars)
        return again


def _lifted_function_as_value(name: str, captured: list[Var], function: Function) -> Expr:
    """Return the lifted function as a value: the global function, applied to its captured variables
    if there are any.
    """
    target = GlobalVar(name, function.span)
    return Call(target, captured, span=function.span) if captured else target


class LambdaLift(Pass[IRModule]):
    """Pass that moves every function literal, except fused ones, to a global function.

    A literal that captures variables becomes a function that takes these variables and returns the
    literal; it carries the attribute `Closure=1`.
    """

    opt_level = 1

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = bind_effects_by_lets(with_inferred_types(module))
        functions = dict(start.functions)
        for name, function in start.functions.items():
            if not is_fused_or_external_function(function) and not function.attrs.get("Closure"):
                lifter = _Lifter(name, function, functions)
                functions[name] = lifter.visit_function(function)
                functions.update(lifter.lifted)
        result = start.with_functions(functions)
        return module if result is start else infer_module(result)
