# SPDX-License-Identifier: Apache-2.0
"""Calls in the layouts that functions of the user's own choose, and what lies between them brought along.

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
    """`function` with calls as the functions that `register_alter_op_layout` attached to their operators want them.

    A call of the same operator on the same arguments with other layouts passes these on to the operators behind it, as
    far as they have a rule for them.  Raises AotcError (code "callback") for other results that are no expressions of
    the call's type.
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
    """What a function makes of a call, and the arguments that it made it of.

    Those in the layout that it chooses may not be of the type that the call then wants: it is given some without one.
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
    """The plan of a call in other layouts; None for other expressions."""
    op = op_of(node)
    if not isinstance(made, Call) or made.op is not op:
        return None
    if (*made.args,) != (*args,) or not any(op.named_layouts):
        return None
    return plan_attrs(node, made.attrs)
