# SPDX-License-Identifier: Apache-2.0
"""Instrument that verifies every pass: its output must be well formed and typed, its input
unchanged.

with PassContext(instruments=[Verifier()]):
    module = optimize(module, target)            # AotcError naming the first pass that broke something
"""

from collections.abc import Generator, Iterator
from graphlib import CycleError, TopologicalSorter

from aotc.ir import AotcError, Diagnostic, PassInfo, PassObserver
from aotc.relay.graph_api import (
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Var,
    children,
    post_order,
    reinfer_module,
    variables_bound_by_node,
)


def _has_cycle(root: Expr) -> bool:
    """Return True if some node is its own descendant."""
    try:
        TopologicalSorter({node: children(node) for node in post_order(root)}).prepare()
    except CycleError:
        return True
    return False


def _diagnose_bindings_and_unknown_functions(
    name: str, function: Function, module: IRModule, binders: dict[Var, Expr]
) -> Iterator[Diagnostic]:
    bound: set[Var] = set()
    for var, binder in ((var, node) for node in post_order(function) for var in variables_bound_by_node(node)):
        if var in bound or binders.setdefault(var, binder) is not binder:
            yield Diagnostic("bound-twice", f"@{name}: %{var.name} is bound more than once", var.span)
        bound.add(var)
    for node in post_order(function):
        if isinstance(node, Var) and node not in bound:
            yield Diagnostic("free-var", f"@{name}: %{node.name} is not bound", node.span)
        elif isinstance(node, GlobalVar) and node.name not in module:
            yield Diagnostic("unknown-function", f"@{name}: no function @{node.name}", node.span)


def _diagnose_stale_types(module: IRModule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each function with a type that inference would not find; types may be
    missing.
    """
    try:
        inferred = reinfer_module(module)
    except AotcError as error:
        yield from error.diagnostics
        return
    for name, function in module.functions.items():
        # inference preserves the structure, so both are walked in equal order
        for old, new in zip(post_order(function), post_order(inferred[name]), strict=True):
            if old.checked_type is not None and old.checked_type != new.checked_type:
                message = f"@{name}: the type {old.checked_type} should be {new.checked_type}"
                yield Diagnostic("stale-type", message, old.span)
                break


def diagnose_malformed_module(module: IRModule) -> list[Diagnostic]:
    """Return diagnostics for a module: cycles, variables bound twice or not at all, unknown
    functions, wrong types.
    """
    cyclic = [name for name, function in module.functions.items() if _has_cycle(function)]
    if cyclic:
        return [Diagnostic("cycle", f"@{name} has an expression that is part of itself") for name in cyclic]
    binders: dict[Var, Expr] = {}
    problems = [
        d
        for name, f in module.functions.items()
        for d in _diagnose_bindings_and_unknown_functions(name, f, module, binders)
    ]
    return problems or list(_diagnose_stale_types(module))


class Verifier(PassObserver):
    """Instrument that checks modules before the first pass and after every pass: see
    `diagnose_malformed_module`.

    Raise AotcError (code "verify") that names the pass and lists the problems as notes.
    """

    def observe_pass(self, module: IRModule, info: PassInfo) -> Generator[None, IRModule, None]:
        if not self.running:
            self._raise_if_problems(f"the module given to {info.name} is malformed", diagnose_malformed_module(module))
        functions = dict(module.functions)
        new_module = yield
        if dict(module.functions) != functions:
            raise AotcError("verify", f"{info.name} changed the module that it was given")
        if new_module is not module:  # an unchanged module has been checked
            self._raise_if_problems(f"{info.name} made a malformed module", diagnose_malformed_module(new_module))

    @staticmethod
    def _raise_if_problems(message: str, problems: list[Diagnostic]) -> None:
        if problems:
            raise AotcError("verify", message, span=problems[0].span, notes=[str(d) for d in problems])
