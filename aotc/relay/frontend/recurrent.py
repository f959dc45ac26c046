# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: calls of nn.lstm, nn.gru and nn.rnn, and steps
of arithmetic for what these cannot do.

In: data (steps, batch, inputs) and weights of one direction.  Out:
outputs (steps, batch, hidden) and the last states.

    weights = Weights(w, r, wb, rb)                     # w (gates * hidden, inputs)
    y, (h,) = whole_layer("gru", x, weights, [h])
    y, (h, c) = Unrolled("lstm", weights, acts, clip=3.0).run(x, [h, c])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from aotc.ir import AotcError, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Maybe
from aotc.relay.op.recurrent import DTYPES

#: Longer unrolled sequences are refused: each step becomes code of its own.
MAX_STEPS: Final = 1024

State: TypeAlias = list[Expr]
Activation: TypeAlias = Callable[[Expr], Expr]


@frozen
class Weights:
    """The weights of one direction of a layer: of the inputs (gates
    * hidden, inputs), of the recurrence, and their biases.

    The gates are in the order of the operators: input, forget,
    cell, output; reset, update, new.
    """

    w: Expr
    r: Expr
    wb: Maybe
    rb: Maybe

    def reordered(self, order: Sequence[int]) -> Weights:
        """Weights whose gates stand in another order: `order` says
        where each is taken from.
        """
        if len(order) == 1:
            return self
        hidden = g.shape(self.r)[1]

        def gates(v: Expr) -> Expr:
            parts = g.split(v, [hidden] * len(order), 0)
            return g.concat([parts[k] for k in order], 0)

        biases = (None if b is None else gates(b) for b in (self.wb, self.rb))
        return Weights(gates(self.w), gates(self.r), *biases)


def whole_layer(
    kind: str, x: Expr, weights: Weights, states: Sequence[Expr], *, reverse: bool = False, **attributes: Any
) -> tuple[Expr, State]:
    """One direction of a layer ("lstm", "gru", "rnn") over x
    (steps, batch, inputs): outputs, and the last states.

    Numbers narrower than float32 are computed as such.
    """
    dtype = g.dtype(x)
    carrier = str(dtype) if dtype in DTYPES else "float32"
    rows, hidden = g.shape(weights.r)
    zeros = g.filled(0, (rows,), dtype)
    wb, rb = (zeros if bias is None else bias for bias in (weights.wb, weights.rb))
    extras: list[Expr] = []
    # the reset gate scales the last part of the recurrence with its bias
    if kind == "gru":
        extras = [g.cut(rb, [2 * hidden], [rows], [0])]
        rb = g.concat([g.cut(rb, [0], [2 * hidden], [0]), g.filled(0, (hidden,), dtype)], 0)
    columns = [g.transpose(m, (1, 0)) for m in (weights.w, weights.r)]
    args = [g.cast(a, carrier) for a in (x, *columns, g.add(wb, rb), *states, *extras)]
    result = g.op(f"nn.{kind}", *args, reverse=reverse, **attributes)
    y, *last = (g.cast(g.field(result, k), dtype) for k in range(1 + len(states)))
    return y, last


# --- layers, step by step


def linear(x: Expr, weight: Expr, bias: Maybe) -> Expr:
    """x (batch, inputs) times a weight (units, inputs), and a bias."""
    y = g.op("nn.dense", x, weight, units=g.shape(weight)[0])
    return y if bias is None else g.op("nn.bias_add", y, bias, axis=-1)


@frozen
class Unrolled:
    """One direction of a layer as arithmetic for each step, with one product for the inputs of all steps.

    act           the activations of gates, of what is new, and of the output of an LSTM
    order         where the gates that the steps expect stand in the weights
    clip          bounds the inputs of activations
    peepholes     weights with which the input, output and forget gates of an LSTM see its state
    coupled       the forget gate of an LSTM is 1 - the input gate
    reset_after   the reset gate of a GRU scales the product of the last state, not the state
    """

    kind: str
    weights: Weights
    act: Sequence[Activation]
    order: Sequence[int] = (0, 1, 2, 3)
    clip: float | None = None
    peepholes: Sequence[Expr] = ()
    coupled: bool = False
    reset_after: bool = False

    def run(self, x: Expr, state: State, lengths: Maybe = None, reverse: bool = False) -> tuple[Expr, State]:
        """Beyond its length (batch, 1) a sequence keeps its state
        and puts out zeros.

        The state after a sequence of no steps is zero, as in ONNX
        Runtime; the specification does not say.
        """
        length = g.shape(x)[0]
        text = f"this kind of layer over a sequence of {length} steps is not supported (1 to {MAX_STEPS} are)"
        require("graph-recurrent", length <= MAX_STEPS, text)
        if reverse and lengths is not None:
            raise AotcError("graph-recurrent", "reversed sequences of different lengths are not supported")
        steps = list(enumerate(self._inputs(x)))
        outputs: list[Expr] = []
        for t, part in reversed(steps) if reverse else steps:
            new = self.step(part, state)
            output = new[0]
            if lengths is not None:
                running = g.greater(lengths, t)
                output = g.where(running, output, 0.0)
                new = [g.where(running, n, old if t else 0.0) for n, old in zip(new, state, strict=True)]
            outputs.append(g.unsqueeze(output, [0]))
            state = new
        return g.concat(outputs[::-1] if reverse else outputs, 0), state

    def _inputs(self, x: Expr) -> list[Expr]:
        """The products of (steps, batch, inputs) with the weights,
        step by step.
        """
        steps, batch, features = g.shape(x)
        products = linear(g.reshape(x, (steps * batch, features)), self.weights.w, self.weights.wb)
        return g.split(products, [batch] * steps, 0)

    def step(self, x: Expr, state: State) -> State:
        """The states after a step, from those before it and the products (batch, gates * hidden) of its inputs."""
        if self.kind == "gru":
            return self._gru(x, state[0])
        sums = g.add(x, linear(state[0], self.weights.r, self.weights.rb))
        return [self._act(0, sums)] if self.kind == "rnn" else self._lstm(sums, state[1])

    def _act(self, place: int, x: Expr) -> Expr:
        return self.act[place](x if self.clip is None else g.clip(x, -self.clip, self.clip))

    def _gates(self, x: Expr, order: Sequence[int]) -> list[Expr]:
        parts = g.split(x, [g.shape(self.weights.r)[1]] * len(order), 1)
        return [parts[k] for k in order]

    def _lstm(self, sums: Expr, c: Expr) -> State:
        i, f, new, o = self._gates(sums, self.order)
        if self.peepholes:
            i, f = g.add(i, g.mul(self.peepholes[0], c)), g.add(f, g.mul(self.peepholes[2], c))
        i, new = self._act(0, i), self._act(1, new)
        f = g.sub(1.0, i) if self.coupled else self._act(0, f)
        c = g.add(g.mul(f, c), g.mul(i, new))
        if self.peepholes:
            o = g.add(o, g.mul(self.peepholes[1], c))
        return [g.mul(self._act(0, o), self.act[2](c)), c]

    def _gru(self, x: Expr, h: Expr) -> State:
        weight, bias, gates = self.weights.r, self.weights.rb, self._gates(x, self.order)
        if self.reset_after:
            *recurrence, last = self._gates(linear(h, weight, bias), self.order)
        else:  # what is new waits for the reset gate: a product of its own
            assert bias is not None
            hidden = g.shape(weight)[1]
            (first, rest), (first_bias, rest_bias) = (g.split(v, [2 * hidden, hidden], 0) for v in (weight, bias))
            recurrence = self._gates(linear(h, first, first_bias), self.order[:2])
        r, z = (self._act(0, g.add(*sums)) for sums in zip(gates, recurrence, strict=False))
        inner = g.mul(r, last) if self.reset_after else linear(g.mul(r, h), rest, rest_bias)
        candidate = self._act(1, g.add(gates[2], inner))
        return [g.add(g.mul(g.sub(1.0, z), candidate), g.mul(z, h))]
