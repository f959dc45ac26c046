# SPDX-License-Identifier: Apache-2.0
"""Converters of recurrent layers, and of single steps of them.

OPS["lstm.input"](x=a, hx=[h, c], params=[...], ...)    # outputs, last h, last c
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend.pytorch.ops_shape import swap
from aotc.relay.frontend.pytorch.values import Converter, Table, shape
from aotc.relay.frontend.recurrent import State, Weights, gru_step, linear, lstm_step, whole_layer

_Cell = Callable[[Expr, Expr, State], State]
"""The new state for the products of input and last state with their weights, and the last state."""


def _gates(x: Expr, count: int) -> list[Expr]:
    return g.split(x, [shape(x)[1] // count] * count, 1)


def _lstm_cell(x: Expr, h: Expr, state: State) -> State:
    return lstm_step(_gates(g.add(x, h), 4), state[1], (g.sigmoid, g.tanh, g.tanh))


def _gru_cell(x: Expr, h: Expr, state: State) -> State:
    (xr, xz, xn), (hr, hz, hn) = _gates(x, 3), _gates(h, 3)
    act = (g.sigmoid, g.tanh)
    return gru_step(g.add(xr, hr), g.add(xz, hz), lambda r: g.add(xn, g.mul(r, hn)), state[0], act)


def _rnn_cell(activation: str) -> _Cell:
    return lambda x, h, state: [g.op(activation, g.add(x, h))]


def _layers(
    kind: str, attributes: dict[str, str], x: Expr, states: Sequence[Expr], weights: Sequence[Weights], directions: int
) -> tuple[Expr, list[Expr]]:
    """All layers; `states` and the result hold (layers * directions, batch, features)."""
    first = [[g.squeeze(s, [0]) for s in g.split(state, [1] * len(weights), 0)] for state in states]
    finals: list[State] = []
    for layer in range(0, len(weights), directions):
        columns = []
        for k in range(layer, layer + directions):
            start = [state[k] for state in first]
            y, final = whole_layer(kind, x, weights[k], start, reverse=k > layer, **attributes)
            columns.append(y)
            finals.append(final)
        x = g.concat(columns, 2) if directions > 1 else columns[0]
    return x, [g.stack([f[k] for f in finals], 0) for k in range(len(states))]


def _recurrent(kind: str, **attributes: str) -> Converter:
    def convert(
        x: Expr,
        hx: Any,
        params: Sequence[Expr],
        has_biases: bool,
        num_layers: int,
        train: bool,
        dropout: float,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Expr]:
        first = list(hx) if kind == "lstm" else [hx]
        directions = 2 if bidirectional else 1
        per = 4 if has_biases else 2
        if len(params) != per * num_layers * directions:
            raise AotcError("torch-op", "recurrent layers with projections are not supported")
        if train and dropout:
            raise AotcError("torch-training", "a recurrent layer is in training mode", hint="call .eval() first")
        data = swap(x, 0, 1) if batch_first else x
        if shape(data)[0] == 0:
            raise AotcError("torch-op", "a sequence of no steps is not supported")
        biases = [] if has_biases else [None, None]
        weights = [Weights(*params[k : k + per], *biases) for k in range(0, len(params), per)]
        y, last = _layers(kind, attributes, data, first, weights, directions)
        return [swap(y, 0, 1) if batch_first else y, *last]

    return convert


def _cell(cell: _Cell, states: int) -> Converter:
    def convert(
        x: Expr, hx: Any, w_ih: Expr, w_hh: Expr, b_ih: Expr | None = None, b_hh: Expr | None = None
    ) -> list[Expr] | Expr:
        state = list(hx) if states == 2 else [hx]
        new = cell(linear(x, w_ih, b_ih), linear(state[0], w_hh, b_hh), state)
        return new if states == 2 else new[0]

    return convert


OPS: Table = {
    "gru.input": _recurrent("gru"),
    "gru_cell": _cell(_gru_cell, 1),
    "lstm.input": _recurrent("lstm"),
    "lstm_cell": _cell(_lstm_cell, 2),
    "rnn_relu.input": _recurrent("rnn", activation="relu"),
    "rnn_relu_cell": _cell(_rnn_cell("nn.relu"), 1),
    "rnn_tanh.input": _recurrent("rnn", activation="tanh"),
    "rnn_tanh_cell": _cell(_rnn_cell("tanh"), 1),
}
