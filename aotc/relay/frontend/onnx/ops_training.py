# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of the optimizers in the domain ai.onnx.preview.training: Adagrad, Adam and Momentum.

A node updates any number of tensors: its inputs are the learning rate, the number of updates before,
all tensors, all their gradients, and all tensors of each kind of state; its outputs are the new
tensors and the new states in the same order.

OPS["Momentum"](rate, count, x, gradient, momentum, node=node)      # [new x, new momentum]
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import OnnxNode, Table

DOMAIN: Final = "ai.onnx.preview.training"


class _Update(NamedTuple):
    """The inputs of the update of one tensor, all of one data type except `updates`.

    rate      the learning rate, a scalar
    updates   the number of updates before this one, an int64 scalar
    tensor    the tensor to update
    gradient  its gradient
    states    its states, such as momentum
    """

    rate: Expr
    updates: Expr
    tensor: Expr
    gradient: Expr
    states: tuple[Expr, ...]

    def regularized_gradient(self, attributes: Any) -> Expr:
        """Return the gradient plus `norm_coefficient` times the tensor."""
        return g.add(g.mul(self.tensor, attributes["norm_coefficient"]), self.gradient)

    def is_first(self) -> Expr:
        """Return a boolean scalar that is True if there was no update before."""
        return g.less_equal(self.updates, g.constant(0, g.dtype(self.updates)))


#: A function from the inputs of an update and the attributes of the node to the new tensor and states.
_Optimizer: TypeAlias = Callable[[_Update, Any], Sequence[Expr]]


def _convert_optimizer(optimizer: _Optimizer, state_count: int, *inputs: Expr, node: OnnxNode) -> list[Expr]:
    each = 2 + state_count
    count, rest = divmod(len(inputs) - 2, each)
    text = f"{node.op_type} takes a rate, a count and {each} inputs for each tensor, but {len(inputs)} inputs are given"
    require("onnx-input", count > 0 and not rest, text)
    rate, updates, *tensors = inputs
    columns = [tensors[k * count : (k + 1) * count] for k in range(each)]
    rows = []
    for tensor, gradient, *states in zip(*columns, strict=True):
        dtype = g.dtype(tensor)
        same = all(g.dtype(v) == dtype and g.dims(v) == g.dims(tensor) for v in (gradient, *states))
        require("onnx-input", same, f"a tensor of {node.op_type}, its gradient and its states must be of one type")
        update = _Update(g.cast(g.reshape(rate, ()), dtype), g.reshape(updates, ()), tensor, gradient, tuple(states))
        rows.append(optimizer(update, node.attrs))
    return [row[k] for k in range(1 + state_count) for row in rows]


def _adagrad(update: _Update, attributes: Any) -> Sequence[Expr]:
    gradient = update.regularized_gradient(attributes)
    count = g.cast(update.updates, g.dtype(gradient))
    rate = g.div(update.rate, g.add(g.mul(count, attributes["decay_factor"]), 1.0))
    squares = g.add(update.states[0], g.mul(gradient, gradient))
    step = g.div(g.mul(rate, gradient), g.add(g.sqrt(squares), attributes["epsilon"]))
    return [g.sub(update.tensor, step), squares]


def _adam(update: _Update, attributes: Any) -> Sequence[Expr]:
    alpha, beta, gradient = attributes["alpha"], attributes["beta"], update.regularized_gradient(attributes)
    dtype = g.dtype(gradient)
    mean = g.add(g.mul(update.states[0], alpha), g.mul(gradient, 1.0 - alpha))
    squares = g.add(g.mul(update.states[1], beta), g.mul(g.mul(gradient, gradient), 1.0 - beta))
    count = g.cast(update.updates, dtype)
    powers = (g.sub(1.0, g.call_op("power", g.constant(base, dtype), count)) for base in (alpha, beta))
    alpha_part, beta_part = powers
    corrected = g.div(g.mul(update.rate, g.sqrt(beta_part)), alpha_part)
    rate = g.where(update.is_first(), update.rate, corrected)
    moved = g.sub(update.tensor, g.mul(rate, g.div(mean, g.add(g.sqrt(squares), attributes["epsilon"]))))
    return [g.mul(moved, 1.0 - attributes["norm_coefficient_post"]), mean, squares]


def _momentum(update: _Update, attributes: Any) -> Sequence[Expr]:
    mode = attributes["mode"]
    text = f"mode of Momentum is {mode!r}; known: standard, nesterov"
    require("onnx-attribute", mode in ("standard", "nesterov"), text)
    alpha, gradient = attributes["alpha"], update.regularized_gradient(attributes)
    dtype = g.dtype(gradient)
    factor = g.where(update.is_first(), g.constant(1.0, dtype), g.constant(attributes["beta"], dtype))
    momentum = g.add(g.mul(update.states[0], alpha), g.mul(factor, gradient))
    direction = momentum if mode == "standard" else g.add(gradient, g.mul(momentum, alpha))
    return [g.sub(update.tensor, g.mul(update.rate, direction)), momentum]


OPS: Table = {
    "Adagrad": partial(_convert_optimizer, _adagrad, 1),
    "Adam": partial(_convert_optimizer, _adam, 2),
    "Momentum": partial(_convert_optimizer, _momentum, 1),
}
