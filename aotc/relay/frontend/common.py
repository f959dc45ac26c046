# SPDX-License-Identifier: Apache-2.0
"""What front ends for Relay ask about expressions: `infer_type(relay.exp(x)).checked_type`."""

from aotc.relay.graph_api import Expr, Function, IRModule, infer_module


def infer_type(node: Expr, mod: IRModule | None = None) -> Expr:
    """The expression with types; a module, if there is one, says what global functions are."""
    main = IRModule.from_expr(node).main
    typed = infer_module((mod or IRModule()).with_function("main", main)).main
    return typed if isinstance(node, Function) else typed.body
