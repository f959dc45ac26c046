# SPDX-License-Identifier: Apache-2.0
"""Instrument that verifies every pass: its output must be well formed and typed, its input
unchanged.

with PassContext(instruments=[Verifier()]):
    module = optimize(module, target)            # AotcError naming the first pass that broke something
"""

from collections.abc import Generator, Iterator
from graphlib import CycleError, TopologicalSorter

from aotc.ir import AotcError, Diagnostic, PassInfo, Watch
from aotc.relay.graph_api import (
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Var,
    bound_by,
    children,
    post_order,
    reinfer_module,
)


def _has_cycle(root: Expr) -> bool:
    """Return True if some node is its own descendant."""
    try:
        TopologicalSorter({node: children(node) for node in post_order(root)}).prepare()
    except CycleError:
        return True
    return False


def _check_function(name: str, function: Function, module: IRModule, binders: dict[Var, Expr]) -> Iterator[Diagnostic]:
    bound: set[Var] = set()
    for var, binder in ((var, node) for node in post_order(function) for var in bound_by(node)):
        if var in bound or binders.setdefault(var, binder) is not binder:
            yield Diagnostic("bound-twice", f"@{name}: %{var.name} is bound more than once", var.span)
        bound.add(var)
    for node in post_order(function):
        if isinstance(node, Var) and node not in bound:
            yield Diagnostic("free-var", f"@{name}: %{node.name} is not bound", node.span)
        elif isinstance(node, GlobalVar) and node.name not in module:
            yield Diagnostic("unknown-function", f"@{name}: no function @{node.name}", node.span)


def _check_types(module: IRModule) -> Iterator[Diagnostic]:
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


def check_module(module: IRModule) -> list[Diagnostic]:
    """Return diagnostics for a module: cycles, variables bound twice or not at all, unknown
    functions, wrong types.
    """
    cyclic = [name for name, function in module.functions.items() if _has_cycle(function)]
    if cyclic:
        return [Diagnostic("cycle", f"@{name} has an expression that is part of itself") for name in cyclic]
    binders: dict[Var, Expr] = {}
    problems = [d for name, f in module.functions.items() for d in _check_function(name, f, module, binders)]
    return problems or list(_check_types(module))


class Verifier(Watch):
    """Instrument that checks modules before the first pass and after every pass: see
    `check_module`.

    Raise AotcError (code "verify") that names the pass and lists the problems as notes.
    """

    def watch(self, module: IRModule, info: PassInfo) -> Generator[None, IRModule, None]:
        if not self.running:
            self._complain(f"the module given to {info.name} is malformed", check_module(module))
        functions = dict(module.functions)
        made = yield
        if dict(module.functions) != functions:
            raise AotcError("verify", f"{info.name} changed the module that it was given")
        if made is not module:  # an unchanged module has been checked
            self._complain(f"{info.name} made a malformed module", check_module(made))

    @staticmethod
    def _complain(message: str, problems: list[Diagnostic]) -> None:
        if problems:
            raise AotcError("verify", message, span=problems[0].span, notes=[str(d) for d in problems])
