# SPDX-License-Identifier: Apache-2.0
"""FoldConstant evaluates expressions of constants; DynamicToStatic makes shapes static that
constants determine.

FoldConstant: evaluate at compile time every expression that depends on constants only.

add(%x, multiply(2f, 3f))
add(%x, 6f)

A result that is larger than `relay.FoldConstant.max_bytes` (64 MiB) and larger than its arguments
together is computed at run time. So is a result that exceeds the work budget of the compilation
(`aotc.ir.compilation_work_and_memory_limits`). A constant of one repeated value takes the memory of one element,
whatever its shape.

DynamicToStatic: replace operators that take shapes as arguments by static ones, if those arguments
are constants.

dyn.reshape(%y, shape_of(%x))                    # %x: Tensor[(2, 3), float32]
reshape(%y, newshape=[2, 3])

Input: typed functions. Output: functions in which a `dyn.` operator is replaced if its shape
arguments are constant, possibly because others were replaced; constants are folded in the process.
Variables bound by lets keep their types, which hides shapes: run ToGraphNormalForm before.
"""

from dataclasses import dataclass

from aotc.ir import AotcError, Op, PassContext, running_or_new_budget_scope, span_scope
from aotc.relay.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem
from aotc.relay.expr import typed_op_call as node_of
from aotc.relay.graph_api import MAX_FOLDED_CONSTANT_BYTES, IRModule, evaluate_constant_call, post_order
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.pass_base import FunctionPass, apply_to_fixpoint, rewrite_nodes


def _max_constant_bytes(ctx: PassContext) -> int:
    limit: int = ctx.get_config("relay.FoldConstant.max_bytes", MAX_FOLDED_CONSTANT_BYTES)
    return limit


def _fold_node(node: Expr, max_bytes: int) -> Expr:
    """Return the constant value of a node, or the node if it has none or one that is too large.

    The limit is the larger of `max_bytes` and the size of the arguments.
    """
    match node:
        case Call():
            return evaluate_constant_call(node, max_bytes) or node
        case TupleGetItem(tuple_value=Tuple(fields=fields)):
            return fields[node.index]
        case If(cond=Constant(data=data)):
            return node.true_branch if bool(data) else node.false_branch
        case _:
            return node


def _is_qnn_call(node: Expr) -> bool:
    op = node.op if isinstance(node, Call) else None
    return isinstance(op, Op) and op.name.startswith("qnn.")


@dataclass(frozen=True, repr=False)
class FoldConstant(FunctionPass):
    """Pass that folds calls on constants, fields of tuple expressions, and ifs with constant
    conditions.

    The bodies of fused functions are not changed.

    fold_qnn   fold calls of quantized operators, too, which other passes may need to see
    """

    opt_level = 2
    required = ()

    fold_qnn: bool = False

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        limit = _max_constant_bytes(ctx)

        def fold_unless_quantized(_: Expr, new: Expr) -> Expr:
            if not self.fold_qnn and _is_qnn_call(new):
                return new
            return _fold_node(new, limit)

        with running_or_new_budget_scope(ctx.config):
            return rewrite_nodes(function, fold_unless_quantized)


# --- shapes


class DynamicToStatic(FunctionPass):
    """Pass that replaces operators with shape arguments by static ones if the arguments are
    constant, to a fixpoint.

    Functions without such operators are not changed. Raise AotcError if a constant is not a valid
    shape for its operator.
    """

    opt_level = 2

    def run(self, module: IRModule, ctx: PassContext) -> IRModule:
        # types that became known may determine shapes behind branches
        return apply_to_fixpoint(lambda m: FunctionPass.run(self, m, ctx), module)

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        if not any(isinstance(node, Call) and _has_static_counterpart(node) for node in post_order(function)):
            return function
        limit = _max_constant_bytes(ctx)

        def make_static_and_fold(old: Expr, new: Expr) -> Expr:
            """Infer types again during the walk, so that shapes that depend on other shapes are
            found.
            """
            with span_scope(new.span):
                return _fold_node(_replace_by_static_op(new if new is old else _infer_type_again(new)), limit)

        return rewrite_nodes(function, make_static_and_fold)


def _has_static_counterpart(node: Call) -> bool:
    return isinstance(node.op, OpDef) and node.op.static is not None


def _replace_by_static_op(node: Expr) -> Expr:
    if not isinstance(node, Call) or not isinstance(node.op, OpDef) or node.op.static is None:
        return node
    try:
        replacement = node.op.static(node.attrs, node.args)
    except AotcError as error:
        raise error.with_default_span(node.span) from error
    return node if replacement is None else replacement


def _infer_type_again(node: Expr) -> Expr:
    """Return a node with new arguments, its type inferred again."""
    match node:
        case Call(op=Op() as op):
            return node_of(op, node.args, node.attrs, node.span)
        case Tuple():
            return Tuple(node.fields, node.span)
        case TupleGetItem():
            return TupleGetItem(node.tuple_value, node.index, node.span)
        case _:
            return node
