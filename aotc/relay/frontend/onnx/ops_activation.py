# SPDX-License-Identifier: Apache-2.0
"""Converters of activation functions: compositions of elementwise operators, which fuse into one kernel.

OPS["HardSwish"](node)                  # x * clip(x / 6 + 0.5, 0, 1)
"""

from __future__ import annotations

import math

from aotc.relay.expr import Expr
from aotc.relay.frontend.onnx.build import (
    add,
    axis_index,
    binary,
    cast,
    constant,
    dim_of,
    div,
    dtype_of,
    emit,
    greater,
    iota,
    less,
    maximum,
    minimum,
    mul,
    rank_of,
    reshape,
    shape_of,
    sub,
    where,
)
from aotc.relay.frontend.onnx.node import Converter, Node, Table


def _clip01(x: Expr) -> Expr:
    return emit("clip", x, a_min=0.0, a_max=1.0)


def _expm1(x: Expr) -> Expr:
    return sub(emit("exp", x), 1.0)


def _celu(node: Node) -> Expr:
    x, alpha = node.input(0), node.number("alpha")
    return add(maximum(x, 0.0), minimum(mul(_expm1(div(x, alpha)), alpha), 0.0))


def _elu(node: Node) -> Expr:
    x = node.input(0)
    return where(less(x, 0.0), mul(_expm1(x), node.number("alpha")), x)


def _gelu(node: Node) -> Expr:
    x = node.input(0)
    if node.text("approximate", "none") == "tanh":
        cubic = add(x, mul(mul(mul(x, x), x), 0.044715))
        inner = emit("tanh", mul(cubic, math.sqrt(2.0 / math.pi)))
    else:
        inner = emit("erf", mul(x, math.sqrt(0.5)))
    return mul(mul(x, 0.5), add(inner, 1.0))


def _hard_sigmoid(node: Node) -> Expr:
    return _clip01(add(mul(node.input(0), node.number("alpha")), node.number("beta")))


def _hard_swish(node: Node) -> Expr:
    x = node.input(0)
    return mul(x, _clip01(add(mul(x, 1.0 / 6.0), 0.5)))


def _leaky_relu(node: Node) -> Expr:
    return emit("nn.leaky_relu", node.input(0), alpha=node.number("alpha"))


def _prelu(node: Node) -> Expr:
    x, slope = node.input(0), node.input(1)
    if node.since < 7 and rank_of(slope) == 1 and dim_of(slope, 0) != 1:
        slope = reshape(slope, (-1, *(1,) * (rank_of(x) - 2)))  # one value per channel
    return where(less(x, 0), mul(x, slope), x)


def _selu(node: Node) -> Expr:
    x, alpha, gamma = node.input(0), node.number("alpha"), node.number("gamma")
    return mul(where(greater(x, 0.0), x, mul(_expm1(x), alpha)), gamma)


def _shrink(node: Node) -> Expr:
    x, bias, bound = node.input(0), node.number("bias"), node.number("lambd")
    if not dtype_of(x).is_float:
        bias, bound = int(bias), int(bound)
    inner = where(less(x, -bound), add(x, bias), constant(0, dtype_of(x)))
    return where(greater(x, bound), sub(x, bias), inner)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), written so that it neither overflows nor loses small values."""
    return add(maximum(x, 0.0), emit("log1p", emit("exp", emit("negative", emit("abs", x)))))


def _mish(node: Node) -> Expr:
    x = node.input(0)
    return mul(x, emit("tanh", softplus(x)))


def _softsign(node: Node) -> Expr:
    x = node.input(0)
    return div(x, add(emit("abs", x), 1.0))


def _swish(node: Node) -> Expr:
    x, alpha = node.input(0), node.number("alpha", 1.0)
    return mul(x, emit("sigmoid", x if alpha == 1.0 else mul(x, alpha)))


def _thresholded_relu(node: Node) -> Expr:
    x = node.input(0)
    return where(greater(x, node.number("alpha")), x, 0.0)


# --- softmax and its kin


def _along(node: Node, apply: Converter) -> Expr:
    """Apply along `axis`; up to version 12 the axes from `axis` on count as one."""
    x = node.input(0)
    rank = rank_of(x)
    axis = axis_index(node.integer("axis"), rank)
    if node.since >= 13 or axis == rank - 1:
        node.attrs = {**node.attrs, "axis": axis}
        return _one(apply(node))
    shape = shape_of(x)
    node.inputs[0] = reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
    node.attrs = {**node.attrs, "axis": 1}
    return reshape(_one(apply(node)), shape)


def _one(converted: object) -> Expr:
    assert not isinstance(converted, (list, tuple))
    return converted  # type: ignore[return-value]


def _softmax(node: Node) -> Expr:
    return _along(node, lambda n: emit("nn.softmax", n.input(0), axis=n.integer("axis")))


def _log_softmax(node: Node) -> Expr:
    return _along(node, lambda n: emit("nn.log_softmax", n.input(0), axis=n.integer("axis")))


def _hardmax(node: Node) -> Expr:
    def apply(inner: Node) -> Expr:
        x, axis = inner.input(0), inner.integer("axis")
        best = cast(emit("argmax", x, axis=(axis,), keepdims=True), "int64")
        positions = reshape(iota(dim_of(x, axis)), (-1, *(1,) * (rank_of(x) - 1 - axis)))
        return cast(binary("equal", positions, best), dtype_of(x))

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
