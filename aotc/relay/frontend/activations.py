# SPDX-License-Identifier: Apache-2.0
"""Activation functions: compositions of elementwise operators,
which fuse into one kernel.

In: a tensor and numbers.  Out: a tensor of its shape and data type.

    gelu(x)                                 # x * 0.5 * (erf(x * sqrt(0.5)) + 1)
    relu6(y)                                # clip(y, 0, 6), which some formats fuse into a layer
"""

import math

from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), written so that it neither overflows nor
    loses small values.
    """
    return g.add(g.maximum(x, 0.0), g.op("log1p", g.exp(g.negative(g.absolute(x)))))


def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    """x times the normal distribution function of x, or an
    approximation through "tanh".
    """
    if approximate == "tanh":
        cubic = g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715))
        inner = g.tanh(g.mul(cubic, math.sqrt(2.0 / math.pi)))
    else:
        inner = g.op("erf", g.mul(x, math.sqrt(0.5)))
    return g.mul(g.mul(x, 0.5), g.add(inner, 1.0))


def mish(x: Expr) -> Expr:
    """x * tanh(softplus(x))."""
    return g.mul(x, g.tanh(softplus(x)))


def softsign(x: Expr) -> Expr:
    """x / (1 + |x|)."""
    return g.div(x, g.add(g.absolute(x), 1.0))


def swish(x: Expr, *, alpha: float = 1.0) -> Expr:
    """x * sigmoid(alpha * x)."""
    return g.mul(x, g.sigmoid(x if alpha == 1.0 else g.mul(x, alpha)))


def stretched(x: Expr, alpha: float) -> Expr:
    """(exp(x) - 1) * alpha."""
    return g.mul(g.sub(g.exp(x), 1.0), alpha)


def elu(x: Expr, *, alpha: float = 1.0) -> Expr:
    """x, and (exp(x) - 1) * alpha where it is negative."""
    return g.where(g.less(x, 0.0), stretched(x, alpha), x)


def hard_sigmoid(x: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """x * alpha + beta, between 0 and 1."""
    return g.clip(g.add(g.mul(x, alpha), beta), 0.0, 1.0)


def leaky_relu(x: Expr, *, alpha: float = 0.01) -> Expr:
    """x, times a number where it is negative."""
    return g.op("nn.leaky_relu", x, alpha=alpha)


def prelu(x: Expr, slope: Expr, /) -> Expr:
    """x, times a slope that broadcasts where it is negative."""
    return g.where(g.less(x, 0), g.mul(x, slope), x)


def relu6(x: Expr) -> Expr:
    """max(0, x), not beyond 6."""
    return g.clip(x, 0.0, 6.0)
