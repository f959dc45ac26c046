# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of frontends as calls of nn.lstm, nn.gru and nn.rnn.

y, states = whole_layer("gru", x, Weights(w, r, wb, rb), [h])     # w (gates * hidden, inputs), y (steps, batch, hidden)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.op.recurrent import DTYPES


@dataclass(frozen=True, slots=True)
class Weights:
    """Those of one direction of a layer: of the inputs (gates * hidden, inputs), of the recurrence, and their biases.

    The gates are in the order of the operators: input, forget, cell, output; reset, update, new.
    """

    w: Expr
    r: Expr
    wb: Expr | None
    rb: Expr | None


def whole_layer(
    kind: str, x: Expr, weights: Weights, states: Sequence[Expr], *, reverse: bool = False, **attributes: Any
) -> tuple[Expr, list[Expr]]:
    """One direction of a layer ("lstm", "gru", "rnn") over x (steps, batch, inputs): outputs, and the last states.

    Numbers narrower than float32 are computed as such.
    """
    dtype = g.dtype(x)
    carrier = str(dtype) if dtype in DTYPES else "float32"

    def wide(value: Expr) -> Expr:
        return value if dtype == carrier else g.cast(value, carrier)

    rows, hidden = g.shape(weights.r)
    zeros = g.filled(0, (rows,), dtype)
    wb, rb = (zeros if bias is None else bias for bias in (weights.wb, weights.rb))
    extras: list[Expr] = []
    if kind == "gru":  # the reset gate scales the last part of the recurrence with its bias
        extras = [g.cut(rb, [2 * hidden], [rows], [0])]
        rb = g.concat([g.cut(rb, [0], [2 * hidden], [0]), g.filled(0, (hidden,), dtype)], 0)
    columns = [g.transpose(m, (1, 0)) for m in (weights.w, weights.r)]
    args = [wide(a) for a in (x, *columns, g.add(wb, rb), *states, *extras)]
    result = g.op(f"nn.{kind}", *args, reverse=reverse, **attributes)
    y, *last = (g.cast(g.field(result, k), dtype) for k in range(1 + len(states)))
    return y, last
