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

from aotc.ir import AotcError, Op, is_any_op_attr_registered
from aotc.relay.expr import Call, Expr, Function, Var, require_op_of_call, type_of
from aotc.relay.op.op import ALTER_OP_LAYOUT
from aotc.relay.transform.convert_layout import LayoutConverter, ReorderedTensor, ReorderedValue
from aotc.relay.transform.convert_layout_rules import CONVERTIBLE, LayoutPlan, plan_with_attrs
from aotc.relay.transform.legalize import check_replacement_type


def apply_registered_layouts(function: Function) -> Function:
    """Return `function` with calls replaced by the functions that `register_alter_op_layout`
    attached to their operators.

    If the replacement is a call of the operator on unchanged arguments with other layouts, these
    layouts are propagated to the operators that follow, as far as they have layout rules. Raise
    AotcError (code "callback") for a result that is not an expression of the call's type.
    """
    if not is_any_op_attr_registered(ALTER_OP_LAYOUT):
        return function
    return _Alterer({}, warned=set(CONVERTIBLE)).convert_function(function)


class _Alterer(LayoutConverter):
    merges: ClassVar[bool] = False

    def convert_call(self, node: Call) -> ReorderedValue:
        alter = node.op.get_attr(ALTER_OP_LAYOUT) if isinstance(node.op, Op) else None
        if alter is None:
            return super().convert_call(node)
        args = [self.value_in_original_axis_order(a) for a in node.args]
        replacement, given = _call_layout_function(alter, node, args)
        if replacement is None:
            return super().convert_call(node)
        plan = _plan_from_replacement(node, replacement, given)
        if plan is not None:
            values = [self.values[a] for a in node.args]
            planned = self.apply_layout_plan_to_call(node, values, plan)
            return planned or super().convert_call(node)
        return ReorderedTensor(check_replacement_type(replacement, node, ALTER_OP_LAYOUT))


def _call_layout_function(alter: Callable[..., Any], node: Call, args: list[Expr]) -> tuple[Any, list[Expr]]:
    """Call a user's layout function for an operator call, and return its result with the arguments
    that it was given.

    Arguments of the old layout may not fit the layout that it chooses; it is then called again with
    untyped arguments.
    """
    types = [type_of(a) for a in node.args]
    try:
        return alter(node.attrs, args, types, type_of(node)), args
    except AotcError:
        if not any(require_op_of_call(node).default_data_and_kernel_layouts):
            raise
        unknown: list[Expr] = [Var(f"arg{k}") for k in range(len(args))]
        return alter(node.attrs, unknown, types, type_of(node)), unknown


def _plan_from_replacement(node: Call, replacement: Any, args: list[Expr]) -> LayoutPlan | None:
    """Return the layout plan of a user's replacement call, if it is the original call with other
    layouts; else None.
    """
    op = require_op_of_call(node)
    if not isinstance(replacement, Call) or replacement.op is not op:
        return None
    if (*replacement.args,) != (*args,) or not any(op.default_data_and_kernel_layouts):
        return None
    return plan_with_attrs(node, replacement.attrs)
