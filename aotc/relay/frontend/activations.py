# SPDX-License-Identifier: Apache-2.0
"""Graph builders for activation functions: compositions of elementwise operators, which are later
fused into one kernel.

Input: a tensor and numbers. Output: a tensor with the shape and data type of the input.

    gelu(x)                                 # x * 0.5 * (erf(x * sqrt(0.5)) + 1)
    relu6(y)                                # clip(y, 0, 6), which some formats fuse into a layer
"""

import math

from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g


def softplus(x: Expr) -> Expr:
    """Compute log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses
    precision for small values.
    """
    return g.add(g.maximum(x, 0.0), g.call_op("log1p", g.exp(g.negative(g.absolute(x)))))


def gelu(x: Expr, *, approximate: str = "none") -> Expr:
    """Compute x times the normal distribution function of x exactly (with erf), or with the tanh
    approximation if `approximate` is "tanh".
    """
    if approximate == "tanh":
        cubic = g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715))
        inner = g.tanh(g.mul(cubic, math.sqrt(2.0 / math.pi)))
    else:
        inner = g.call_op("erf", g.mul(x, math.sqrt(0.5)))
    return g.mul(g.mul(x, 0.5), g.add(inner, 1.0))


def mish(x: Expr) -> Expr:
    """Compute x * tanh(softplus(x))."""
    return g.mul(x, g.tanh(softplus(x)))


def softsign(x: Expr) -> Expr:
    """Compute x / (1 + |x|)."""
    return g.div(x, g.add(g.absolute(x), 1.0))


def swish(x: Expr, *, alpha: float = 1.0) -> Expr:
    """Compute x * sigmoid(alpha * x)."""
    return g.mul(x, g.sigmoid(x if alpha == 1.0 else g.mul(x, alpha)))


def scaled_expm1(x: Expr, alpha: float) -> Expr:
    """Compute (exp(x) - 1) * alpha."""
    return g.mul(g.sub(g.exp(x), 1.0), alpha)


def elu(x: Expr, *, alpha: float = 1.0) -> Expr:
    """Compute x for x >= 0 and (exp(x) - 1) * alpha for x < 0."""
    return g.where(g.less(x, 0.0), scaled_expm1(x, alpha), x)


def hard_sigmoid(x: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """Compute x * alpha + beta, clipped to the range from 0 to 1."""
    return g.clip(g.add(g.mul(x, alpha), beta), 0.0, 1.0)


def leaky_relu(x: Expr, *, alpha: float = 0.01) -> Expr:
    """Compute x for x >= 0 and x * alpha for x < 0."""
    return g.call_op("nn.leaky_relu", x, alpha=alpha)


def prelu(x: Expr, slope: Expr, /) -> Expr:
    """Compute x for x >= 0 and x * slope for x < 0; the slope is a tensor that broadcasts."""
    return g.where(g.less(x, 0), g.mul(x, slope), x)


def relu6(x: Expr) -> Expr:
    """Compute min(max(x, 0), 6)."""
    return g.clip(x, 0.0, 6.0)
