# SPDX-License-Identifier: Apache-2.0
"""Inline: put the bodies of functions in the place of their calls.

def @main(%x) { @f(@f(%x)) }; def @f(%y, Inline=1) { exp(%y) }
def @main(%x) { exp(exp(%x)) }; def @f(%y, Inline=1) { exp(%y) }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from aotc.ir import Pass, PassContext, span_scope, spending
from aotc.ir.budget import budget
from aotc.relay.analysis import global_uses
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Var
from aotc.relay.infer import infer_module
from aotc.relay.module import IRModule
from aotc.relay.transform.remove_unused_functions import reachable
from aotc.relay.visitor import Mutator, binders, post_order, rebuild


def _opaque(function: Function) -> bool:
    return function.is_primitive or "Compiler" in function.attrs or "SkipOptimization" in function.attrs


def applied(function: Function, args: Sequence[Expr]) -> Expr:
    """The body of `function` with `args` for its parameters; the variables that it binds itself are new ones.

    Nodes that do not depend on parameters stay shared between applications.  AotcError (code "budget") where calls
    upon calls would become more nodes than one compilation may have.
    """
    new: dict[Expr, Expr] = dict(zip(function.params, args, strict=True))
    new.update((v, Var(v.name, v.annotation, v.span)) for v in binders(function.body))
    memo: dict[Expr, Expr] = {}
    nodes = list(post_order(function.body))
    budget().spend("compile.max_nodes", len(nodes), "the module, calls replaced by what they call,")
    for node in nodes:
        memo[node] = new[node] if node in new else rebuild(node, memo.__getitem__)
    return memo[function.body]


class _Inliner(Mutator):
    """Applies functions where they are called: the global ones that `wanted` names, literal ones if `literal`."""

    def __init__(self, wanted: Callable[[str], Function | None], literal: bool) -> None:
        super().__init__()
        self.wanted = wanted
        self.literal = literal

    def enter(self, node: Expr) -> bool:
        return not (isinstance(node, Function) and _opaque(node))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        match new.op:
            case GlobalVar(name=name):
                function = self.wanted(name)
            case Function() as function if self.literal and not _opaque(function):
                pass
            case _:
                function = None
        if function is None or len(function.params) != len(new.args):
            return new
        with span_scope(new.span):
            return applied(function, new.args)


def _order(module: IRModule) -> list[str]:
    """The functions that do not reach themselves, callees before callers."""
    functions = module.functions
    simple = {n for n, f in functions.items() if n not in reachable(functions, global_uses(f))}
    done: dict[str, None] = {}
    stack = list(functions)
    while stack:
        name = stack[-1]
        waiting = [n for n in global_uses(functions[name]) if n in simple and n not in done] if name in simple else []
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        if name in simple:
            done[name] = None
    return list(done)


def _beta_reduced(function: Function) -> Function:
    """Calls of literal functions applied, until none is left: an application may make new ones."""
    while True:
        result = _Inliner(lambda _: None, literal=True).visit_function(function)
        if result is function:
            return result
        function = result


@dataclass(frozen=True, repr=False)
class Inline(Pass[IRModule]):
    """Inline the global functions that carry the attribute `Inline=1`; recursive ones stay calls.

    everything    inline every global function, and every function literal where it is called

    Fused functions and those for other compilers are never inlined by `everything`.
    """

    everything: bool = False

    name: ClassVar[str] = "InlineGlobals"
    opt_level = 1

    def _wanted(self, function: Function) -> bool:
        if "Compiler" in function.attrs:
            return False  # Relay marks these with Inline too
        return bool(function.attrs.get("Inline")) or (self.everything and not _opaque(function))

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        with spending(ctx.config):
            return self._inlined(module)

    def _inlined(self, module: IRModule) -> IRModule:
        functions = dict(module.functions)
        order = _order(module)
        inlined = {name for name in order if self._wanted(functions[name])}

        def wanted(name: str) -> Function | None:
            return functions[name] if name in inlined else None

        for name in [*order, *(n for n in functions if n not in set(order))]:
            if not _opaque(functions[name]):
                functions[name] = _Inliner(wanted, self.everything).visit_function(functions[name])
                if self.everything:
                    functions[name] = _beta_reduced(functions[name])
        result = module.with_functions(functions)
        return result if result is module else infer_module(result)
