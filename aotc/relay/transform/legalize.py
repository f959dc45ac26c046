# SPDX-License-Identifier: Apache-2.0
"""Legalize: calls as functions of the user's own want them, see `aotc.relay.op.op.register_legalize`.

@register_legalize("nn.relu")
def legalize(attrs, inputs, types): return relay.maximum(inputs[0], relay.const(0.0))

nn.relu(%x)   =>   maximum(%x, 0f)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from aotc.ir import AotcError, Op, span_scope
from aotc.ir.op import is_attached
from aotc.relay.expr import Call, Expr, Function, Node, type_of
from aotc.relay.infer import infer_expr
from aotc.relay.op.op import LEGALIZE
from aotc.relay.transform.base import FunctionPass, rewrite_nodes
from aotc.relay.unify import merge_types


def asked(function: Function, key: str, ask: Callable[[Any, Call], Any]) -> Function:
    """`function` with calls replaced by what the functions attached to their operators under `key` make of them.

    ask   calls such a function about a call whose arguments are done

    Raises AotcError (code "callback") for results that are no expressions of the call's type.
    """

    if not is_attached(key):
        return function

    def rewrite(old: Expr, new: Expr) -> Expr:
        if not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        rewritten = new.op.get_attr(key)
        if rewritten is None:
            return new
        with span_scope(new.span):
            made = ask(rewritten, new)
            if made is None:
                return new
            return of_type(made, new, key)

    return rewrite_nodes(function, rewrite)


def of_type(made: Any, call: Call, key: str) -> Expr:
    """What the function attached under `key` made of a call; AotcError (code "callback") if it has another type."""
    what = f"{key} of {call.op}"
    if not isinstance(made, Node):
        raise AotcError("callback", f"{what} gave no expression, but {type(made).__name__}", span=call.span)
    expr = cast("Expr", made)
    found = expr if expr.checked_type is not None else infer_expr(expr)
    if merge_types(type_of(found), type_of(call)) is None:
        text = f"{what} gave {type_of(found)} for {type_of(call)}"
        raise AotcError("callback", text, span=call.span, hint="return None to leave the call as it is")
    return found


@dataclass(frozen=True, repr=False)
class Legalize(FunctionPass):
    """Calls of operators as functions that were registered for them want them; without such a function nothing.

    legalize_map_attr_name   the key under which these functions are attached to operators
    """

    opt_level = 1

    legalize_map_attr_name: str = LEGALIZE

    def rewritten(self, function: Function) -> Function:
        def ask(rewrite: Any, call: Call) -> Any:
            return rewrite(call.attrs, list(call.args), [*map(type_of, call.args), type_of(call)])

        return asked(function, self.legalize_map_attr_name, ask)
