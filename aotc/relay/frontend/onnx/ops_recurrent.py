# SPDX-License-Identifier: Apache-2.0
"""Converters of recurrent layers.  What the operators lack is unrolled, with one product for
the inputs of all steps.

OPS["LSTM"](node=node)                  # [Y, Y_h, Y_c]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aotc.ir import require
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.activations import softplus, softsign
from aotc.relay.frontend.arguments import parameters
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.recurrent import Activation, State, Unrolled, Weights, whole_layer
from aotc.relay.frontend.shapes import element

_FUNCTIONS: Final[Mapping[str, Callable[..., Expr]]] = {
    "relu": lambda x: g.op("nn.relu", x),
    "tanh": g.tanh,
    "sigmoid": g.sigmoid,
    "affine": lambda x, alpha=1.0, beta=0.0: g.add(g.mul(x, alpha), beta),
    "leakyrelu": lambda x, alpha=0.01: g.op("nn.leaky_relu", x, alpha=alpha),
    "thresholdedrelu": lambda x, alpha=1.0: g.where(g.less(x, alpha), 0.0, x),
    "scaledtanh": lambda x, alpha=1.0, beta=1.0: g.mul(g.tanh(g.mul(x, beta)), alpha),
    "hardsigmoid": lambda x, alpha=0.2, beta=0.5: g.clip(g.add(g.mul(x, alpha), beta), 0.0, 1.0),
    "elu": lambda x, alpha=1.0: g.where(g.less(x, 0.0), g.mul(g.sub(g.exp(x), 1.0), alpha), x),
    "softsign": softsign,
    "softplus": softplus,
}
"""Activations by their names in lower case, with ONNX's defaults of their numbers."""


def _activation(name: str, alpha: Sequence[float], beta: Sequence[float]) -> Activation:
    """An activation by its (case-insensitive) name; `alpha` and `beta` hold
    a number or none.
    """
    require("onnx-recurrent", name.lower() in _FUNCTIONS, f"the activation {name!r} is not known")
    function = _FUNCTIONS[name.lower()]
    takes = {p.name for p in parameters(function)}
    return partial(function, **{n: v[0] for n, v in (("alpha", alpha), ("beta", beta)) if v and n in takes})


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[tuple[list[str], list[Activation]]]:
    """The activations of each direction: their names in lower case, and
    functions.
    """
    step = len(defaults)
    names = list(node.attrs.get("activations") or [*defaults] * directions)
    if names == ["Tanh", "Tanh"] and step == 1:  # the definition's default of RNN is for two directions
        names = names[:directions]
    fits = len(names) == step * directions
    require("onnx-recurrent", fits, f"{len(names)} activations do not fit {directions} directions")
    alphas, betas = (node.attrs.get(f"activation_{name}", []) for name in ("alpha", "beta"))
    found = [_activation(name, alphas[k : k + 1], betas[k : k + 1]) for k, name in enumerate(names)]
    low = [name.lower() for name in names]
    return [(low[k : k + step], found[k : k + step]) for k in range(0, len(found), step)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tells the three layers apart.

    order   the gates that the operators expect, as places in those of ONNX
    """

    order: tuple[int, ...]
    states: int
    activations: tuple[str, ...]


_KINDS: Final = {
    "RNN": _Kind((0,), 1, ("Tanh",)),
    "GRU": _Kind((1, 0, 2), 1, ("Sigmoid", "Tanh")),
    "LSTM": _Kind((0, 2, 3, 1), 2, ("Sigmoid", "Tanh", "Tanh")),
}


def _weights(node: Node, kind: _Kind, direction: int) -> Weights:
    w, r = element(node[1], 0, direction), element(node[2], 0, direction)
    bias, rows = node.optional(3), len(kind.order) * g.shape(r)[1]
    both = g.filled(0, (2 * rows,), g.dtype(w)) if bias is None else element(bias, 0, direction)
    return Weights(w, r, *g.split(both, [rows, rows], 0))


def _initial(given: Expr | None, direction: int, shape: tuple[int, int], swap: bool, dtype: str) -> Expr:
    """A state before the first step: zero where it is left out."""
    if given is None:
        return g.filled(0, shape, dtype)
    return element(g.transpose(given, (1, 0, 2)) if swap else given, 0, direction)


def _is_plain(node: Node, kind: _Kind, names: list[str], lengths: Expr | None) -> bool:
    """Whether an operator computes a direction of the layer."""
    usual = names == [n.lower() for n in kind.activations] or (node.op_type == "RNN" and names == ["relu"])
    reset = node.op_type != "GRU" or node.attrs.get("linear_before_reset")
    other = "clip" in node.attrs or node.attrs.get("input_forget") or node.optional(7) is not None
    return bool(usual and reset and not other and lengths is None)


def _unrolled(node: Node, kind: _Kind, direction: int, weights: Weights, act: Sequence[Activation]) -> Unrolled:
    peephole = node.optional(7) if node.op_type == "LSTM" else None
    hidden = g.shape(weights.r)[1]
    return Unrolled(
        node.op_type.lower(),
        weights,
        act,
        kind.order,
        node.attrs.get("clip"),
        g.split(element(peephole, 0, direction), [hidden] * 3, 0) if peephole is not None else (),
        bool(node.attrs.get("input_forget")),
        bool(node.attrs.get("linear_before_reset")),
    )


_DIRECTIONS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _recurrent(*, direction: str = "forward", layout: bool = False, node: Node) -> list[Expr]:
    kind, x = _KINDS[node.op_type], node[0]
    x = g.transpose(x, (1, 0, 2)) if layout else x
    length, batch, _ = g.shape(x)
    require("onnx-recurrent", length > 0, "a sequence of no steps is not supported")
    directions = _DIRECTIONS.get(direction.lower(), ())
    require("onnx-recurrent", bool(directions), f"direction {direction!r} is not known")
    lengths = _lengths(node.optional(4), length, batch)
    acts = _activations(node, kind.activations, len(directions))
    outputs: list[Expr] = []
    finals: list[State] = []
    for k, ((names, functions), backwards) in enumerate(zip(acts, directions, strict=True)):
        weights = _weights(node, kind, k)
        shape = batch, g.shape(weights.r)[1]
        state = [_initial(node.optional(5 + s), k, shape, layout, g.dtype(x)) for s in range(kind.states)]
        if _is_plain(node, kind, names, lengths):
            activation = {"activation": names[0]} if node.op_type == "RNN" else {}
            ordered = weights.reordered(kind.order)
            y, last = whole_layer(node.op_type.lower(), x, ordered, state, reverse=backwards, **activation)
        else:
            y, last = _unrolled(node, kind, k, weights, functions).run(x, state, lengths, backwards)
        outputs.append(y)
        finals.append(last)
    # Y (steps, directions, batch, hidden), then the last states (directions, batch, hidden)
    y, ends = g.stack(outputs, 1), [g.stack(states, 0) for states in zip(*finals, strict=True)]
    if layout:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(s, (1, 0, 2)) for s in ends)]
    return [y, *ends]


def _lengths(given: Expr | None, length: int, batch: int) -> Expr | None:
    """Sequence lengths as a column; None where all sequences are whole."""
    if given is None or (isinstance(given, Constant) and bool((given.data == length).all())):
        return None
    return g.reshape(g.cast(given, "int32"), (batch, 1))


OPS: Table = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
