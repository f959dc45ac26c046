# SPDX-License-Identifier: Apache-2.0
"""Activation functions: compositions of elementwise operators, which fuse into one kernel.

gelu(x)                                 # x * 0.5 * (erf(x * sqrt(0.5)) + 1)
"""

from __future__ import annotations

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), written so that it neither overflows nor loses small values."""
    return g.add(g.maximum(x, 0.0), g.op("log1p", g.op("exp", g.op("negative", g.op("abs", x)))))
