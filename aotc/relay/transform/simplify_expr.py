# SPDX-License-Identifier: Apache-2.0
"""SimplifyExpr: drop what does nothing and shorten chains.

add(reshape(reshape(%x, (6,)), (2, 3)), 0f)
%x                                               # where %x: Tensor[(2, 3), float32]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from aotc.ir.transform import PassContext
from aotc.relay.expr import Function
from aotc.relay.module import IRModule
from aotc.relay.transform import simplify_expr_arith, simplify_expr_shape
from aotc.relay.transform.base import FunctionPass, Rewriter

RULES: Final = (*simplify_expr_arith.RULES, *simplify_expr_shape.RULES)


@dataclass(frozen=True, repr=False)
class SimplifyExpr(FunctionPass):
    """All rules, to a fixpoint."""

    name: ClassVar[str] = "SimplifyExpr"

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        return Rewriter(RULES).rewrite(function)
