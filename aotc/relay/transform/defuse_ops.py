# SPDX-License-Identifier: Apache-2.0
"""DefuseOps: the inverse of FuseOps.

fn (%p0, Primitive=1) { nn.relu(exp(%p0)) }(%x)    =>    nn.relu(exp(%x))

In: typed functions.  Out: their primitive functions written out where they are called.
"""

from __future__ import annotations

from aotc.relay.expr import Call, Expr, Function
from aotc.relay.transform.base import FunctionPass
from aotc.relay.visitor import Mutator, substitute


class DefuseOps(FunctionPass):
    """Writes fused functions out; functions that are no kernels stay."""

    opt_level = 3

    def rewritten(self, function: Function) -> Function:
        return _Defuse().visit_function(function)


class _Defuse(Mutator):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Function) or not new.op.is_primitive:
            return new
        return substitute(new.op.body, dict(zip(new.op.params, new.args, strict=True)))
