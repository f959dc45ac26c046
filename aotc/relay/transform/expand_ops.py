# SPDX-License-Identifier: Apache-2.0
"""ExpandOps: replace operators that are defined by others with their definition.

hard_swish(%x)
multiply(%x, clip(add(...)))                     # whatever OpDef.expand says
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aotc.ir.span import span_scope
from aotc.ir.transform import PassContext
from aotc.relay.expr import Call, Expr, Function
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.base import FunctionPass
from aotc.relay.visitor import Mutator


class _Expand(Mutator):
    """One level of expansion: what the definitions are made of is looked at in the next round."""

    def enter(self, node: Expr) -> bool:
        return not (isinstance(node, Function) and node.is_primitive)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, OpDef) or new.op.expand is None:
            return new
        with span_scope(new.span):
            return new.op.expand(new.attrs, new.args)


@dataclass(frozen=True, repr=False)
class ExpandOps(FunctionPass):
    """Expand until only operators are left that have a tensor program of their own."""

    name: ClassVar[str] = "ExpandOps"

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        expanded = _Expand().visit_function(function)
        while expanded is not function:
            function, expanded = expanded, _Expand().visit_function(expanded)
        return function
