# SPDX-License-Identifier: Apache-2.0
"""Converters of recurrent layers.  What the operators lack is unrolled, with one product for
the inputs of all steps.

OPS["LSTM"](node)                       # [Y, Y_h, Y_c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.activations import softplus, softsign
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.recurrent import Activation, State, Unrolled, Weights, whole_layer
from aotc.relay.frontend.shapes import element


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation by its (case-insensitive) name; `alpha` and `beta` default to its ONNX defaults."""

    def a(default: float) -> float:
        return default if alpha is None else alpha

    def b(default: float) -> float:
        return default if beta is None else beta

    table: dict[str, Activation] = {
        "relu": lambda x: g.op("nn.relu", x),
        "tanh": g.tanh,
        "sigmoid": g.sigmoid,
        "affine": lambda x: g.add(g.mul(x, a(1.0)), b(0.0)),
        "leakyrelu": lambda x: g.op("nn.leaky_relu", x, alpha=a(0.01)),
        "thresholdedrelu": lambda x: g.where(g.less(x, a(1.0)), 0.0, x),
        "scaledtanh": lambda x: g.mul(g.tanh(g.mul(x, b(1.0))), a(1.0)),
        "hardsigmoid": lambda x: g.clip(g.add(g.mul(x, a(0.2)), b(0.5)), 0.0, 1.0),
        "elu": lambda x: g.where(g.less(x, 0.0), g.mul(g.sub(g.exp(x), 1.0), a(1.0)), x),
        "softsign": softsign,
        "softplus": softplus,
    }
    if name.lower() not in table:
        raise AotcError("onnx-recurrent", f"the activation {name!r} is not known")
    return table[name.lower()]


@dataclass(frozen=True, slots=True)
class _Activations:
    """Those of one direction, by (lower-case) names and as functions."""

    names: tuple[str, ...]
    functions: list[Activation]


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[_Activations]:
    """The activations of each direction."""
    names = list(node.attrs.get("activations") or [*defaults] * directions)
    if names == ["Tanh", "Tanh"] and len(defaults) == 1:  # the definition's default of RNN is for two directions
        names = names[:directions]
    if len(names) != len(defaults) * directions:
        raise AotcError("onnx-recurrent", f"{len(names)} activations do not fit {directions} directions")
    alphas, betas = list(node.attrs.get("activation_alpha", ())), list(node.attrs.get("activation_beta", ()))
    found = [
        _activation(name, alphas[k] if k < len(alphas) else None, betas[k] if k < len(betas) else None)
        for k, name in enumerate(names)
    ]
    step = len(defaults)
    return [
        _Activations(tuple(n.lower() for n in names[k : k + step]), found[k : k + step])
        for k in range(0, len(found), step)
    ]


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


def _initial(node: Node, kind: _Kind, direction: int, shape: tuple[int, int], swap: bool) -> State:
    states: State = []
    for k in range(kind.states):
        given = node.optional(5 + k)
        if given is None:
            states.append(g.filled(0, shape, g.dtype(node[0])))
        else:
            states.append(element(g.transpose(given, (1, 0, 2)) if swap else given, 0, direction))
    return states


def _is_plain(node: Node, kind: _Kind, names: tuple[str, ...], lengths: Expr | None) -> bool:
    """Whether an operator computes a direction of the layer."""
    usual = names == tuple(n.lower() for n in kind.activations) or (node.op_type == "RNN" and names == ("relu",))
    reset = node.op_type != "GRU" or node.flag("linear_before_reset")
    other = "clip" in node.attrs or node.flag("input_forget") or node.optional(7) is not None
    return usual and reset and not other and lengths is None


def _unrolled(node: Node, kind: _Kind, direction: int, weights: Weights, act: Sequence[Activation]) -> Unrolled:
    peephole = node.optional(7) if node.op_type == "LSTM" else None
    hidden = g.shape(weights.r)[1]
    return Unrolled(
        node.op_type.lower(),
        weights,
        act,
        kind.order,
        node.number("clip") if "clip" in node.attrs else None,
        g.split(element(peephole, 0, direction), [hidden] * 3, 0) if peephole is not None else (),
        node.flag("input_forget"),
        node.flag("linear_before_reset"),
    )


def _recurrent(node: Node) -> list[Expr | None]:
    kind, swap = _KINDS[node.op_type], node.flag("layout")
    x = g.transpose(node[0], (1, 0, 2)) if swap else node[0]
    length, batch, _ = g.shape(x)
    if length == 0:
        raise AotcError("onnx-recurrent", "a sequence of no steps is not supported")
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(
        node.text("direction", "forward").lower()
    )
    if directions is None:
        raise AotcError("onnx-recurrent", f"direction {node.text('direction')!r} is not known")
    given = node.optional(4)
    lengths = None if given is None else _lengths(given, length, batch)
    acts = _activations(node, kind.activations, len(directions))
    outputs: list[Expr] = []
    finals: list[State] = []
    for k, (act, backwards) in enumerate(zip(acts, directions, strict=True)):
        weights = _weights(node, kind, k)
        state = _initial(node, kind, k, (batch, g.shape(weights.r)[1]), swap)
        if _is_plain(node, kind, act.names, lengths):
            activation = {"activation": act.names[0]} if node.op_type == "RNN" else {}
            ordered = weights.reordered(kind.order)
            y, last = whole_layer(node.op_type.lower(), x, ordered, state, reverse=backwards, **activation)
        else:
            y, last = _unrolled(node, kind, k, weights, act.functions).run(x, state, lengths, backwards)
        outputs.append(y)
        finals.append(last)
    return _collected(outputs, finals, swap)


def _lengths(given: Expr, length: int, batch: int) -> Expr | None:
    """Sequence lengths as a column; None where all sequences are whole."""
    if isinstance(given, Constant) and bool((given.data == length).all()):
        return None
    return g.reshape(g.cast(given, "int32"), (batch, 1))


def _collected(outputs: list[Expr], finals: list[State], swap: bool) -> list[Expr | None]:
    """Y (steps, directions, batch, hidden), then the last states (directions, batch, hidden)."""
    y = g.stack(outputs, 1)
    last = [g.stack(states, 0) for states in zip(*finals, strict=True)]
    if swap:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(s, (1, 0, 2)) for s in last)]
    return [y, *last]


OPS: Table = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
