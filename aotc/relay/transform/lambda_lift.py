# SPDX-License-Identifier: Apache-2.0
"""LambdaLift: function literals become global functions; what they capture becomes a parameter.

def @main(%x, %w) { let %f = fn (%a) { add(%a, %w) }; %f(%x) }
def @main(%x, %w) { let %f = @main_lifted(%w); %f(%x) }
def @main_lifted(%w1) { fn (%a, ...) { add(%a, %w1) } }                       with the attribute Closure=1
"""

from __future__ import annotations

from collections.abc import Collection

from aotc.ir import Pass, PassContext
from aotc.relay.analysis import bound_vars, free_vars
from aotc.relay.blocks import left_alone
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Let, Var
from aotc.relay.infer import infer_module
from aotc.relay.module import IRModule
from aotc.relay.transform.base import typed
from aotc.relay.visitor import Mutator, substitute


def fresh_name(wanted: str, taken: Collection[str]) -> str:
    """`wanted`, with a number after it if it is taken."""
    number, name = 0, wanted
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


class _Lifter(Mutator):
    """Lifts the literals below one global function, inner ones first."""

    def __init__(self, name: str, root: Function, taken: Collection[str]) -> None:
        super().__init__()
        self.name = name
        self.root = root
        self.taken = set(taken)
        self.lifted: dict[str, Function] = {}
        self.let_of: dict[Expr, Var] = {}
        self.bound: set[Var] = set()  # by the bodies of the functions made so far

    def enter(self, node: Expr) -> bool:
        if isinstance(node, Let) and isinstance(node.value, Function):
            self.let_of[node.value] = node.var
        return not (left_alone(node))

    def rewrite_function(self, old: Expr, new: Function) -> Expr:
        if left_alone(new):
            return new
        mapping: dict[Var, Expr] = self._renamed(new)
        if old is self.root:
            return substitute(new, mapping) if mapping else new
        name = fresh_name(f"{self.name}_lifted", self.taken)
        self.taken.add(name)
        own = self.let_of.get(old)  # a recursive function mentions its variable
        captured = [v for v in free_vars(new) if v is not own]
        inside = {v: Var(v.name, v.checked_type, v.span) for v in captured}
        mapping.update(inside)
        if own is not None:
            mapping[own] = _closure(name, list(inside.values()), new)
        body = substitute(new.body, mapping)
        function = Function(new.params, body, new.ret_type, new.attrs, new.span)
        if captured:
            function = Function(inside.values(), function, new.checked_type, {"Closure": 1}, new.span)
        self.lifted[name] = function
        return _closure(name, captured, new)

    def _renamed(self, function: Function) -> dict[Var, Expr]:
        """New variables for those that another function binds, too: a let may be part of several literals."""
        own = bound_vars(function.body)
        again: dict[Var, Expr] = {v: Var(v.name, v.annotation, v.span) for v in own if v in self.bound}
        self.bound.update(own)
        return again


def _closure(name: str, captured: list[Var], function: Function) -> Expr:
    """The function value: the global function, applied to what it captures if that is anything."""
    target = GlobalVar(name, function.span)
    return Call(target, captured, span=function.span) if captured else target


class LambdaLift(Pass[IRModule]):
    """Make a global function of every function literal but the fused ones.

    A function that captures variables becomes one that takes these and returns the function; it carries the
    attribute `Closure=1`.
    """

    opt_level = 1

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        start = typed(module)
        functions = dict(start.functions)
        for name, function in start.functions.items():
            if not left_alone(function) and not function.attrs.get("Closure"):
                lifter = _Lifter(name, function, functions)
                functions[name] = lifter.visit_function(function)
                functions.update(lifter.lifted)
        result = start.with_functions(functions)
        return module if result is start else infer_module(result)
