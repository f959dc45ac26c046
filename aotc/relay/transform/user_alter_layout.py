# SPDX-License-Identifier: Apache-2.0
"""AlterOpLayout for functions registered by the user: they choose layouts, which are propagated
between operators.

@register_alter_op_layout("nn.conv2d")
def alter(attrs, inputs, types, result):
    return relay.nn.conv2d(*inputs, **{**attrs, "data_layout": "NCHW16c"})

nn.max_pool2d(nn.conv2d(%x, %w))   =>   layout_transform(nn.max_pool2d(nn.conv2d(layout_transform(%x, "NCHW",
                                        "NCHW16c"), %w, data_layout="NCHW16c"), layout="NCHW16c"), "NCHW16c", "NCHW")
"""

from collections.abc import Callable
from typing import Any, ClassVar

from aotc.ir import AotcError, Op, is_attached
from aotc.relay.expr import Call, Expr, Function, Var, op_of, type_of
from aotc.relay.op.op import ALTER_OP_LAYOUT
from aotc.relay.transform.convert_layout import Converter, Laid, Value
from aotc.relay.transform.convert_layout_rules import CONVERTIBLE, Plan, plan_attrs
from aotc.relay.transform.legalize import of_type


def altered(function: Function) -> Function:
    """Return `function` with calls replaced by the functions that `register_alter_op_layout`
    attached to their operators.

    If the replacement is a call of the operator on unchanged arguments with other layouts, these
    layouts are propagated to the operators that follow, as far as they have layout rules. Raise
    AotcError (code "callback") for a result that is not an expression of the call's type.
    """
    if not is_attached(ALTER_OP_LAYOUT):
        return function
    return _Alterer({}, warned=set(CONVERTIBLE)).convert_function(function)


class _Alterer(Converter):
    merges: ClassVar[bool] = False

    def call(self, node: Call) -> Value:
        alter = node.op.get_attr(ALTER_OP_LAYOUT) if isinstance(node.op, Op) else None
        if alter is None:
            return super().call(node)
        args = [self.restored(a) for a in node.args]
        made, given = _asked(alter, node, args)
        if made is None:
            return super().call(node)
        plan = _plan(node, made, given)
        if plan is not None:
            values = [self.values[a] for a in node.args]
            planned = self.planned(node, values, plan)
            return planned or super().call(node)
        return Laid(of_type(made, node, ALTER_OP_LAYOUT))


def _asked(alter: Callable[..., Any], node: Call, args: list[Expr]) -> tuple[Any, list[Expr]]:
    """Call a user's layout function for an operator call, and return its result with the arguments
    that it was given.

    Arguments of the old layout may not fit the layout that it chooses; it is then called again with
    untyped arguments.
    """
    types = [type_of(a) for a in node.args]
    try:
        return alter(node.attrs, args, types, type_of(node)), args
    except AotcError:
        if not any(op_of(node).named_layouts):
            raise
        unknown: list[Expr] = [Var(f"arg{k}") for k in range(len(args))]
        return alter(node.attrs, unknown, types, type_of(node)), unknown


def _plan(node: Call, made: Any, args: list[Expr]) -> Plan | None:
    """Return the layout plan of a user's replacement call, if it is the original call with other
    layouts; else None.
    """
    op = op_of(node)
    if not isinstance(made, Call) or made.op is not op:
        return None
    if (*made.args,) != (*args,) or not any(op.named_layouts):
        return None
    return plan_attrs(node, made.attrs)
