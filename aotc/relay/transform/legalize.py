# SPDX-License-Identifier: Apache-2.0
"""Legalize: replace calls by the results of functions registered with
`aotc.relay.op.op.register_legalize`.

@register_legalize("nn.relu")
def legalize(attrs, inputs, types): return relay.maximum(inputs[0], relay.const(0.0))

nn.relu(%x)   =>   maximum(%x, 0f)
"""

from dataclasses import dataclass
from typing import Any, cast

from aotc.ir import AotcError, is_any_op_attr_registered, span_scope
from aotc.relay.graph_api import Call, Expr, Function, Node, infer_expr, merge_types, require_op_of_call, type_of
from aotc.relay.op.op import LEGALIZE
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rewrite_nodes


def check_replacement_type(replacement: Any, call: Call, registration_key: str) -> Expr:
    """Check and type the expression that a registered function returned as the replacement of a
    call.

    Raise AotcError (code "callback") if it is not an expression or does not have the call's type.
    `registration_key` names the kind of registration.
    """
    subject = f"{registration_key} of {call.op}"
    if not isinstance(replacement, Node):
        raise AotcError(
            "callback", f"{subject} must return an expression, not {type(replacement).__name__}", span=call.span
        )
    expr = cast("Expr", replacement)
    typed_expr = expr if expr.checked_type is not None else infer_expr(expr)
    if merge_types(type_of(typed_expr), type_of(call)) is None:
        text = f"{subject} gave {type_of(typed_expr)} for {type_of(call)}"
        raise AotcError("callback", text, span=call.span, hint="return None to leave the call as it is")
    return typed_expr


@dataclass(frozen=True, repr=False)
class Legalize(FunctionPass):
    """Pass that replaces operator calls by the results of the functions registered for the
    operators.

    Calls of other operators stay. Raise AotcError (code "callback") for a result that is not an
    expression of the call's type.

    legalize_map_attr_name   the key under which the functions are attached to operators
    """

    opt_level = 1

    legalize_map_attr_name: str = LEGALIZE

    def rewrite_function_body(self, function: Function) -> Function:
        key = self.legalize_map_attr_name

        def legalize_call(_: Expr, new: Expr) -> Expr:
            call = as_op_call(new)
            legalize = None if call is None else require_op_of_call(call).get_attr(key)
            if call is None or legalize is None:
                return new
            with span_scope(call.span):
                replacement = legalize(call.attrs, list(call.args), [*map(type_of, call.args), type_of(call)])
                return call if replacement is None else check_replacement_type(replacement, call, key)

        return rewrite_nodes(function, legalize_call) if is_any_op_attr_registered(key) else function
