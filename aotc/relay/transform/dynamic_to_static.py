# SPDX-License-Identifier: Apache-2.0
"""DynamicToStatic: operators whose shapes are arguments, where these are known after all.

dyn.reshape(%y, shape_of(%x))                    # %x: Tensor[(2, 3), float32]
reshape(%y, newshape=[2, 3])

In: typed functions.  Out: functions with `dyn.` operators replaced where what they need is constant, which may be so
because others have been replaced; constants are folded on the way.  Variables of lets keep their types, which hides
shapes: ToGraphNormalForm belongs before.
"""

from __future__ import annotations

from aotc.ir import AotcError, Op, PassContext, span_scope
from aotc.relay.evaluate import MAX_BYTES
from aotc.relay.expr import Call, Expr, Function, Tuple, TupleGetItem
from aotc.relay.expr import call as node_of
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.base import FunctionPass
from aotc.relay.transform.fold_constant import Fold
from aotc.relay.visitor import post_order


class DynamicToStatic(FunctionPass):
    """Static shapes where constants say so, to a fixpoint; functions without such operators stay as they are.

    Raises AotcError where a constant is no shape for its operator.
    """

    opt_level = 2

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        result = super().run(module, ctx)
        while result is not module:  # types that became known tell of shapes behind branches
            module, result = result, super().run(result, ctx)
        return result

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        if not any(isinstance(node, Call) and _is_dynamic(node) for node in post_order(function)):
            return function
        return _ToStatic(ctx.get_config("relay.FoldConstant.max_bytes", MAX_BYTES)).visit_function(function)


def _is_dynamic(node: Call) -> bool:
    return isinstance(node.op, OpDef) and node.op.static is not None


class _ToStatic(Fold):
    """One sweep, arguments first: types are renewed on the way, so that shapes that depend on others are found too."""

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        with span_scope(new.span):
            return super().rewrite(old, _static(new if new is old else _retyped(new)))


def _static(node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, OpDef) or node.op.static is None:
        return node
    try:
        found = node.op.static(node.attrs, node.args)
    except AotcError as error:
        raise error.at(node.span) from error
    return node if found is None else found


def _retyped(node: Expr) -> Expr:
    """A node over other arguments, typed anew."""
    match node:
        case Call(op=Op() as op):
            return node_of(op, node.args, node.attrs, node.span)
        case Tuple():
            return Tuple(node.fields, node.span)
        case TupleGetItem():
            return TupleGetItem(node.tuple_value, node.index, node.span)
        case _:
            return node
