# SPDX-License-Identifier: Apache-2.0
"""Type inference of a Relay expression for front ends: `infer_type(relay.exp(x)).checked_type`."""

from aotc.relay.graph_api import Expr, Function, IRModule, infer_module


def infer_type(node: Expr, mod: IRModule | None = None) -> Expr:
    """Infer types and return the typed expression. Global functions that the expression calls are
    looked up in the module `mod`, if it is given.
    """
    main = IRModule.from_expr(node).main
    typed = infer_module((mod or IRModule()).with_function("main", main)).main
    return typed if isinstance(node, Function) else typed.body
