# SPDX-License-Identifier: Apache-2.0
"""SimplifyExpr: drop what does nothing and shorten chains.

add(reshape(reshape(%x, (6,)), (2, 3)), 0f)
%x                                               # where %x: Tensor[(2, 3), float32]
"""

from __future__ import annotations

from typing import Final

from aotc.relay.transform import simplify_expr_arith, simplify_expr_shape
from aotc.relay.transform.base import RulePass

RULES: Final = (*simplify_expr_arith.RULES, *simplify_expr_shape.RULES)


class SimplifyExpr(RulePass):
    """All rules, to a fixpoint."""

    rules = RULES
