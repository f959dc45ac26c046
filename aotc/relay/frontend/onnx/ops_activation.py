# SPDX-License-Identifier: Apache-2.0
"""Converters of activation functions: compositions of elementwise operators, which fuse into one kernel.

OPS["HardSwish"](node)                  # x * clip(x / 6 + 0.5, 0, 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aotc.relay.expr import Expr
from aotc.relay.frontend import activations
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.onnx.node import Converter, Node, Table, of_input


def _expm1(x: Expr) -> Expr:
    return g.sub(g.exp(x), 1.0)


def _celu(node: Node) -> Expr:
    x, alpha = node[0], node.number("alpha")
    return g.add(g.maximum(x, 0.0), g.minimum(g.mul(_expm1(g.div(x, alpha)), alpha), 0.0))


def _elu(node: Node) -> Expr:
    x = node[0]
    return g.where(g.less(x, 0.0), g.mul(_expm1(x), node.number("alpha")), x)


def _hard_sigmoid(node: Node) -> Expr:
    return g.clip(g.add(g.mul(node[0], node.number("alpha")), node.number("beta")), 0.0, 1.0)


def _hard_swish(x: Expr) -> Expr:
    return g.mul(x, g.clip(g.add(g.mul(x, 1.0 / 6.0), 0.5), 0.0, 1.0))


def _prelu(node: Node) -> Expr:
    x, slope = node[0], node[1]
    if node.since < 7 and g.rank(slope) == 1 and g.dim(slope, 0) != 1:
        slope = g.along(slope, 1, g.rank(x))
    return activations.prelu(x, slope)


def _selu(node: Node) -> Expr:
    x, alpha, gamma = node[0], node.number("alpha"), node.number("gamma")
    return g.mul(g.where(g.greater(x, 0.0), x, g.mul(_expm1(x), alpha)), gamma)


def _shrink(node: Node) -> Expr:
    x, bias, bound = node[0], node.number("bias"), node.number("lambd")
    if not g.dtype(x).is_float:
        bias, bound = int(bias), int(bound)
    inner = g.where(g.less(x, -bound), g.add(x, bias), 0)
    return g.where(g.greater(x, bound), g.sub(x, bias), inner)


def _thresholded_relu(node: Node) -> Expr:
    x = node[0]
    return g.where(g.greater(x, node.number("alpha")), x, 0.0)


# --- softmax and its kin


def _along(node: Node, apply: Callable[[Expr, int], Expr]) -> Expr:
    """Apply along `axis`; up to version 12 the axes from `axis` on count as one."""
    x = node[0]
    axis = node.axis(x)
    if node.since >= 13 or axis == g.rank(x) - 1:
        return apply(x, axis)
    shape = g.shape(x)
    flat = g.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return g.reshape(apply(flat, 1), shape)


def _softmax(name: str) -> Converter:
    return lambda node: _along(node, lambda x, axis: g.op(name, x, axis=axis))


def _hardmax(node: Node) -> Expr:
    def apply(x: Expr, axis: int) -> Expr:
        best = g.cast(g.op("argmax", x, axis=(axis,), keepdims=True), "int64")
        return g.cast(g.equal(g.along(g.iota(g.dim(x, axis)), axis, g.rank(x)), best), g.dtype(x))

    return _along(node, apply)


OPS: Table = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": lambda node: activations.gelu(node[0], node.text("approximate", "none")),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": of_input(_hard_swish),
    "Hardmax": _hardmax,
    "LeakyRelu": lambda node: g.op("nn.leaky_relu", node[0], alpha=node.number("alpha")),
    "LogSoftmax": _softmax("nn.log_softmax"),
    "Mish": of_input(activations.mish),
    "PRelu": _prelu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Softmax": _softmax("nn.softmax"),
    "Softplus": of_input(activations.softplus),
    "Softsign": of_input(activations.softsign),
    "Swish": lambda node: activations.swish(node[0], node.number("alpha", 1.0)),
    "ThresholdedRelu": _thresholded_relu,
}
