# SPDX-License-Identifier: Apache-2.0
"""ExpandOps: replace operators that are defined by others with their definition.

hard_swish(%x)
multiply(%x, clip(add(...)))                     # whatever OpDef.expand says
"""

from __future__ import annotations

from aotc.ir import span_scope
from aotc.relay.expr import Call, Expr, Function
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.base import FunctionPass, GraphMutator


class _Expand(GraphMutator):
    """One level of expansion: what the definitions are made of is looked at in the next round."""

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, OpDef) or new.op.expand is None:
            return new
        with span_scope(new.span):
            return new.op.expand(new.attrs, new.args)


class ExpandOps(FunctionPass):
    """Expand until only operators are left that have a tensor program of their own."""

    def rewritten(self, function: Function) -> Function:
        expanded = _Expand().visit_function(function)
        while expanded is not function:
            function, expanded = expanded, _Expand().visit_function(expanded)
        return function
