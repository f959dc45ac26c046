# SPDX-License-Identifier: Apache-2.0
"""FoldConstant: evaluate at compile time what depends on constants only.

add(%x, multiply(2f, 3f))
add(%x, 6f)

A result larger than `relay.FoldConstant.max_bytes` (64 MiB) and larger than its arguments together is left
to run time, and so is what the budget of the compilation (`aotc.ir.budget`) does not suffice for; one value repeated
takes the memory of one element, whatever its shape.
"""

from __future__ import annotations

from aotc.ir import PassContext, spending
from aotc.relay.evaluate import MAX_BYTES, evaluate_call
from aotc.relay.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem
from aotc.relay.module import IRModule
from aotc.relay.transform.base import FunctionPass, GraphMutator


class Fold(GraphMutator):
    """Folding as a rewrite: results larger than `max_bytes`, and than their arguments, are left alone."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes = max_bytes

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        match new:
            case Call():
                value = evaluate_call(new, self.max_bytes)
                return new if value is None else value
            case TupleGetItem() if isinstance(new.tuple_value, Tuple):
                return new.tuple_value.fields[new.index]
            case If() if isinstance(new.cond, Constant):
                return new.true_branch if bool(new.cond.data) else new.false_branch
            case _:
                return new


class FoldConstant(FunctionPass):
    """Fold calls on constants, fields of written tuples, and choices by constants; not inside fused functions."""

    opt_level = 2
    required = ()

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        with spending(ctx.config):
            return Fold(ctx.get_config("relay.FoldConstant.max_bytes", MAX_BYTES)).visit_function(function)
