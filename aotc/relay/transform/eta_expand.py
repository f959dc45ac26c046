# SPDX-License-Identifier: Apache-2.0
"""EtaExpand: a global function that is used as a value becomes a function literal that calls it.

@map(@double, %x)
@map(fn (%a) { @double(%a) }, %x)
"""

from __future__ import annotations

from dataclasses import dataclass

from aotc.ir import FuncType, PassContext
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Var
from aotc.relay.module import IRModule
from aotc.relay.transform.base import FunctionPass
from aotc.relay.visitor import children, post_order, with_children


def _expanded(name: GlobalVar, module: IRModule) -> Expr:
    ty = module[name].checked_type
    if not isinstance(ty, FuncType):
        return name
    params = tuple(Var(p.name, p.checked_type, p.span) for p in module[name].params)
    return Function(params, Call(name, params, span=name.span, checked_type=ty.ret_type), ty.ret_type, span=name.span)


@dataclass(frozen=True, repr=False)
class EtaExpand(FunctionPass):
    """Expand the names of functions that are not called where they stand.

    expand_constructor    for constructors of data types, of which the language has none
    expand_global_var     for global functions
    """

    expand_constructor: bool = False
    expand_global_var: bool = False

    opt_level = 1
    required = ()

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        if not self.expand_global_var:
            return function
        memo: dict[Expr, Expr] = {}
        for node in post_order(function):
            old = children(node)
            fresh = [_expanded(c, module) if isinstance(c, GlobalVar) else memo[c] for c in old]
            if isinstance(node, Call):
                fresh[0] = node.op if isinstance(node.op, GlobalVar) else memo[node.op]
            same = all(a is b for a, b in zip(old, fresh, strict=True))
            memo[node] = node if same else with_children(node, tuple(fresh))
        result = memo[function]
        assert isinstance(result, Function)
        return result
