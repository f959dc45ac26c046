# SPDX-License-Identifier: Apache-2.0
"""Converters of recurrent layers.  What the operators lack is unrolled, with one product for the inputs of all steps.

OPS["LSTM"](node)                       # [Y, Y_h, Y_c]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.activations import softplus
from aotc.relay.frontend.onnx.node import Node, Table
from aotc.relay.frontend.recurrent import Weights, whole_layer

MAX_STEPS: Final = 1024
"""Longer unrolled sequences are refused: each step becomes code of its own."""

_Activation = Callable[[Expr], Expr]


def _activation(name: str, alpha: float | None, beta: float | None) -> _Activation:
    """An activation by its (case-insensitive) name; `alpha` and `beta` default to its ONNX defaults."""

    def a(default: float) -> float:
        return default if alpha is None else alpha

    def b(default: float) -> float:
        return default if beta is None else beta

    table: dict[str, _Activation] = {
        "relu": lambda x: g.op("nn.relu", x),
        "tanh": lambda x: g.op("tanh", x),
        "sigmoid": lambda x: g.op("sigmoid", x),
        "affine": lambda x: g.add(g.mul(x, a(1.0)), b(0.0)),
        "leakyrelu": lambda x: g.op("nn.leaky_relu", x, alpha=a(0.01)),
        "thresholdedrelu": lambda x: g.where(g.less(x, a(1.0)), 0.0, x),
        "scaledtanh": lambda x: g.mul(g.op("tanh", g.mul(x, b(1.0))), a(1.0)),
        "hardsigmoid": lambda x: g.op("clip", g.add(g.mul(x, a(0.2)), b(0.5)), a_min=0.0, a_max=1.0),
        "elu": lambda x: g.where(g.less(x, 0.0), g.mul(g.sub(g.op("exp", x), 1.0), a(1.0)), x),
        "softsign": lambda x: g.binary("divide", x, g.add(g.op("abs", x), 1.0)),
        "softplus": softplus,
    }
    if name.lower() not in table:
        raise AotcError("onnx-recurrent", f"the activation {name!r} is not known")
    return table[name.lower()]


@dataclass(frozen=True, slots=True)
class _Activations:
    """Those of one direction, by (lower-case) names and as functions."""

    names: tuple[str, ...]
    functions: list[_Activation]


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
class _Layer:
    """A layer over one direction: weights (gates * hidden, inputs), biases of inputs and of the recurrence."""

    node: Node
    w: Expr
    r: Expr
    wb: Expr
    rb: Expr
    peepholes: list[Expr]
    act: list[_Activation]
    hidden: int

    def linear(self, x: Expr, weight: Expr, bias: Expr | None) -> Expr:
        y = g.op("nn.dense", x, weight, units=g.shape(weight)[0])
        return y if bias is None else g.op("nn.bias_add", y, bias, axis=1)

    def inputs(self, x: Expr) -> list[Expr]:
        """The products of (steps, batch, features) with the weights, step by step."""
        steps, batch, features = g.shape(x)
        products = self.linear(g.reshape(x, (steps * batch, features)), self.w, self.wb)
        rows = g.shape(self.w)[0]
        return [g.reshape(p, (batch, rows)) for p in g.split(products, [batch] * steps, 0)]

    def clipped(self, x: Expr) -> Expr:
        """The input of an activation, bounded where the node says so."""
        if "clip" not in self.node.attrs:
            return x
        bound = self.node.number("clip")
        return g.op("clip", x, a_min=-bound, a_max=bound)

    def gates(self, x: Expr, count: int) -> list[Expr]:
        return g.split(x, [self.hidden] * count, 1)


_State = list[Expr]
_Result = tuple[Expr, _State]
"""The outputs (steps, batch, hidden) and the last state of a direction."""
_Cell = Callable[[_Layer, Expr, _State], _State]
"""The new state for the product of one step's input with the weights, and the last state."""


def _rnn_cell(layer: _Layer, x: Expr, state: _State) -> _State:
    return [layer.act[0](layer.clipped(g.add(x, layer.linear(state[0], layer.r, layer.rb))))]


def _gru_cell(layer: _Layer, x: Expr, state: _State) -> _State:
    (h,), size = state, layer.hidden
    xz, xr, xh = layer.gates(x, 3)
    rz_weight, rh_weight = g.split(layer.r, [2 * size, size], 0)
    rz_bias, rh_bias = g.split(layer.rb, [2 * size, size], 0)
    hz, hr = layer.gates(layer.linear(h, rz_weight, rz_bias), 2)
    z = layer.act[0](layer.clipped(g.add(xz, hz)))
    r = layer.act[0](layer.clipped(g.add(xr, hr)))
    if layer.node.integer("linear_before_reset"):
        inner = g.mul(r, layer.linear(h, rh_weight, rh_bias))
    else:
        inner = layer.linear(g.mul(r, h), rh_weight, rh_bias)
    candidate = layer.act[1](layer.clipped(g.add(xh, inner)))
    return [g.add(g.mul(g.sub(1.0, z), candidate), g.mul(z, h))]


def _lstm_cell(layer: _Layer, x: Expr, state: _State) -> _State:
    h, c = state
    i, o, f, new = layer.gates(g.add(x, layer.linear(h, layer.r, layer.rb)), 4)
    if layer.peepholes:
        i, f = g.add(i, g.mul(layer.peepholes[0], c)), g.add(f, g.mul(layer.peepholes[2], c))
    i, new = layer.act[0](layer.clipped(i)), layer.act[1](layer.clipped(new))
    f = g.sub(1.0, i) if layer.node.integer("input_forget") else layer.act[0](layer.clipped(f))
    c = g.add(g.mul(f, c), g.mul(i, new))
    if layer.peepholes:
        o = g.add(o, g.mul(layer.peepholes[1], c))
    return [g.mul(layer.act[0](layer.clipped(o)), layer.act[2](c)), c]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tells the three layers apart.

    order   the gates that the operators expect, as places in those of ONNX
    """

    order: tuple[int, ...]
    states: int
    activations: tuple[str, ...]
    cell: _Cell

    @property
    def gates(self) -> int:
        return len(self.order)


_KINDS: Final = {
    "RNN": _Kind((0,), 1, ("Tanh",), _rnn_cell),
    "GRU": _Kind((1, 0, 2), 1, ("Sigmoid", "Tanh"), _gru_cell),
    "LSTM": _Kind((0, 2, 3, 1), 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_cell),
}


def _part(x: Expr, direction: int) -> Expr:
    """The slice of one direction, without the axis of directions."""
    shape = g.shape(x)
    return g.reshape(g.cut(x, [direction], [direction + 1], [0]), shape[1:])


def _layer(node: Node, kind: _Kind, direction: int, act: _Activations) -> _Layer:
    w, r = _part(node.input(1), direction), _part(node.input(2), direction)
    hidden = g.shape(r)[1]
    bias = node.optional(3)
    rows = kind.gates * hidden
    both = g.filled(0, (2 * rows,), g.dtype(w)) if bias is None else _part(bias, direction)
    wb, rb = g.split(both, [rows, rows], 0)
    peephole = node.optional(7) if node.op_type == "LSTM" else None
    peepholes = g.split(_part(peephole, direction), [hidden] * 3, 0) if peephole is not None else []
    return _Layer(node, w, r, wb, rb, peepholes, act.functions, hidden)


def _initial(node: Node, kind: _Kind, direction: int, shape: tuple[int, int], swap: bool) -> _State:
    states: _State = []
    for k in range(kind.states):
        given = node.optional(5 + k)
        if given is None:
            states.append(g.filled(0, shape, g.dtype(node.input(0))))
        else:
            states.append(_part(g.transpose(given, (1, 0, 2)) if swap else given, direction))
    return states


def _is_plain(node: Node, kind: _Kind, names: tuple[str, ...], lengths: Expr | None) -> bool:
    """Whether an operator computes a direction of the layer."""
    usual = names == tuple(n.lower() for n in kind.activations) or (node.op_type == "RNN" and names == ("relu",))
    reset = node.op_type != "GRU" or bool(node.integer("linear_before_reset"))
    other = "clip" in node.attrs or bool(node.integer("input_forget")) or node.optional(7) is not None
    return usual and reset and not other and lengths is None


def _whole(layer: _Layer, kind: _Kind, x: Expr, state: _State, names: tuple[str, ...], backwards: bool) -> _Result:
    """The layer as one operator."""

    def ordered(weight: Expr) -> Expr:
        parts = g.split(weight, [layer.hidden] * kind.gates, 0)
        return g.concat([parts[k] for k in kind.order], 0) if kind.gates > 1 else weight

    weights = Weights(*(ordered(w) for w in (layer.w, layer.r, layer.wb, layer.rb)))
    op_type = layer.node.op_type
    activation = {"activation": names[0]} if op_type == "RNN" else {}
    return whole_layer(op_type.lower(), x, weights, state, reverse=backwards, **activation)


def _unrolled(layer: _Layer, kind: _Kind, x: Expr, state: _State, lengths: Expr | None, backwards: bool) -> _Result:
    """Step by step; beyond its length a sequence keeps its state and puts out zeros.

    The state after a sequence of no steps is zero, as in ONNX Runtime; the specification does not say.
    """
    length, batch, _ = g.shape(x)
    if length > MAX_STEPS:
        what = "this kind of layer over"
        raise AotcError(
            "onnx-recurrent", f"{what} a sequence of {length} steps is not supported (1 to {MAX_STEPS} are)"
        )
    if backwards and lengths is not None:
        raise AotcError("onnx-recurrent", "reversed sequences of different lengths are not supported")
    steps = list(enumerate(layer.inputs(x)))
    outputs: list[Expr] = []
    for t, part in reversed(steps) if backwards else steps:
        new = kind.cell(layer, part, state)
        output = new[0]
        if lengths is not None:
            running = g.binary("greater", lengths, g.constant(t, g.dtype(lengths)))
            output = g.where(running, output, 0.0)
            new = [g.where(running, n, old if t else 0.0) for n, old in zip(new, state, strict=True)]
        outputs.append(g.reshape(output, (1, batch, layer.hidden)))
        state = new
    return g.concat(outputs[::-1] if backwards else outputs, 0), state


def _recurrent(node: Node) -> list[Expr | None]:
    kind, swap = _KINDS[node.op_type], bool(node.integer("layout"))
    x = g.transpose(node.input(0), (1, 0, 2)) if swap else node.input(0)
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
    finals: list[_State] = []
    for k, backwards in enumerate(directions):
        layer = _layer(node, kind, k, acts[k])
        state = _initial(node, kind, k, (batch, layer.hidden), swap)
        if _is_plain(node, kind, acts[k].names, lengths):
            y, last = _whole(layer, kind, x, state, acts[k].names, backwards)
        else:
            y, last = _unrolled(layer, kind, x, state, lengths, backwards)
        outputs.append(y)
        finals.append(last)
    return _collected(outputs, finals, swap)


def _lengths(given: Expr, length: int, batch: int) -> Expr | None:
    """Sequence lengths as a column; None where all sequences are whole."""
    if isinstance(given, Constant) and bool((given.data == length).all()):
        return None
    return g.reshape(g.cast(given, "int32"), (batch, 1))


def _collected(outputs: list[Expr], finals: list[_State], swap: bool) -> list[Expr | None]:
    """Y (steps, directions, batch, hidden), then the last states (directions, batch, hidden)."""
    length, batch, hidden = g.shape(outputs[0])
    y = g.concat([g.reshape(o, (length, 1, batch, hidden)) for o in outputs], 1)
    last: list[Expr] = [
        g.concat([g.reshape(final[k], (1, batch, hidden)) for final in finals], 0) for k in range(len(finals[0]))
    ]
    if swap:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(s, (1, 0, 2)) for s in last)]
    return [y, *last]


OPS: Table = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
