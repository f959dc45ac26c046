# SPDX-License-Identifier: Apache-2.0
"""Converters of activation functions: compositions of elementwise operators, which fuse into one kernel.

OPS["HardSwish"](node)                  # x * clip(x / 6 + 0.5, 0, 1)
"""

from __future__ import annotations

import math

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.activations import softplus
from aotc.relay.frontend.onnx.node import Converter, Node, Table


def _clip01(x: Expr) -> Expr:
    return g.op("clip", x, a_min=0.0, a_max=1.0)


def _expm1(x: Expr) -> Expr:
    return g.sub(g.op("exp", x), 1.0)


def _celu(node: Node) -> Expr:
    x, alpha = node.input(0), node.number("alpha")
    return g.add(g.maximum(x, 0.0), g.minimum(g.mul(_expm1(g.div(x, alpha)), alpha), 0.0))


def _elu(node: Node) -> Expr:
    x = node.input(0)
    return g.where(g.less(x, 0.0), g.mul(_expm1(x), node.number("alpha")), x)


def _gelu(node: Node) -> Expr:
    x = node.input(0)
    if node.text("approximate", "none") == "tanh":
        cubic = g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.044715))
        inner = g.op("tanh", g.mul(cubic, math.sqrt(2.0 / math.pi)))
    else:
        inner = g.op("erf", g.mul(x, math.sqrt(0.5)))
    return g.mul(g.mul(x, 0.5), g.add(inner, 1.0))


def _hard_sigmoid(node: Node) -> Expr:
    return _clip01(g.add(g.mul(node.input(0), node.number("alpha")), node.number("beta")))


def _hard_swish(node: Node) -> Expr:
    x = node.input(0)
    return g.mul(x, _clip01(g.add(g.mul(x, 1.0 / 6.0), 0.5)))


def _leaky_relu(node: Node) -> Expr:
    return g.op("nn.leaky_relu", node.input(0), alpha=node.number("alpha"))


def _prelu(node: Node) -> Expr:
    x, slope = node.input(0), node.input(1)
    if node.since < 7 and g.rank(slope) == 1 and g.dim(slope, 0) != 1:
        slope = g.reshape(slope, (-1, *(1,) * (g.rank(x) - 2)))  # one value per channel
    return g.where(g.less(x, 0), g.mul(x, slope), x)


def _selu(node: Node) -> Expr:
    x, alpha, gamma = node.input(0), node.number("alpha"), node.number("gamma")
    return g.mul(g.where(g.greater(x, 0.0), x, g.mul(_expm1(x), alpha)), gamma)


def _shrink(node: Node) -> Expr:
    x, bias, bound = node.input(0), node.number("bias"), node.number("lambd")
    if not g.dtype(x).is_float:
        bias, bound = int(bias), int(bound)
    inner = g.where(g.less(x, -bound), g.add(x, bias), g.constant(0, g.dtype(x)))
    return g.where(g.greater(x, bound), g.sub(x, bias), inner)


def _mish(node: Node) -> Expr:
    x = node.input(0)
    return g.mul(x, g.op("tanh", softplus(x)))


def _softsign(node: Node) -> Expr:
    x = node.input(0)
    return g.div(x, g.add(g.op("abs", x), 1.0))


def _swish(node: Node) -> Expr:
    x, alpha = node.input(0), node.number("alpha", 1.0)
    return g.mul(x, g.op("sigmoid", x if alpha == 1.0 else g.mul(x, alpha)))


def _thresholded_relu(node: Node) -> Expr:
    x = node.input(0)
    return g.where(g.greater(x, node.number("alpha")), x, 0.0)


# --- softmax and its kin


def _along(node: Node, apply: Converter) -> Expr:
    """Apply along `axis`; up to version 12 the axes from `axis` on count as one."""
    x = node.input(0)
    rank = g.rank(x)
    axis = g.axis(node.integer("axis"), rank)
    if node.since >= 13 or axis == rank - 1:
        node.attrs = {**node.attrs, "axis": axis}
        return _one(apply(node))
    shape = g.shape(x)
    node.inputs[0] = g.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    node.attrs = {**node.attrs, "axis": 1}
    return g.reshape(_one(apply(node)), shape)


def _one(converted: object) -> Expr:
    assert not isinstance(converted, (list, tuple))
    return converted  # type: ignore[return-value]


def _softmax(node: Node) -> Expr:
    return _along(node, lambda n: g.op("nn.softmax", n.input(0), axis=n.integer("axis")))


def _log_softmax(node: Node) -> Expr:
    return _along(node, lambda n: g.op("nn.log_softmax", n.input(0), axis=n.integer("axis")))


def _hardmax(node: Node) -> Expr:
    def apply(inner: Node) -> Expr:
        x, axis = inner.input(0), inner.integer("axis")
        best = g.cast(g.op("argmax", x, axis=(axis,), keepdims=True), "int64")
        positions = g.reshape(g.iota(g.dim(x, axis)), (-1, *(1,) * (g.rank(x) - 1 - axis)))
        return g.cast(g.binary("equal", positions, best), g.dtype(x))

    return _along(node, apply)


OPS: Table = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Hardmax": _hardmax,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "Mish": _mish,
    "PRelu": _prelu,
    "Selu": _selu,
    "Shrink": _shrink,
    "Softmax": _softmax,
    "Softplus": lambda node: softplus(node.input(0)),
    "Softsign": _softsign,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
