# SPDX-License-Identifier: Apache-2.0
"""Graph builders for recurrent layers: calls of nn.lstm, nn.gru and nn.rnn, and layers unrolled
into arithmetic for variants that these operators do not support.

Input: data (steps, batch, inputs) and the weights of one direction. Output: outputs (steps, batch,
hidden) and the final states.

    weights = RecurrentWeights(w, r, wb, rb)            # w (gates * hidden, inputs)
    y, (h,) = call_recurrent_op("gru", x, weights, [h])
    y, (h, c) = UnrolledLayer("lstm", weights, acts, clip=3.0).unroll_over_steps(x, [h, c])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, TypeAlias

from aotc.ir import TensorType, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.tail_recursion import LoopParameter, parameter_of_rows, row_of, tail_recursive_loop
from aotc.relay.graph_api import Function, Var, type_of
from aotc.relay.op.recurrent import RECURRENT_DTYPES

#: Largest number of steps of an unrolled sequence: the code of each step is emitted separately.
MAX_UNROLLED_STEPS: Final = 1024

RecurrentState: TypeAlias = list[Expr]
Activation: TypeAlias = Callable[[Expr], Expr]


@frozen
class RecurrentWeights:
    """The weights of one direction of a recurrent layer: input weights `w` (gates * hidden,
    inputs), recurrent weights `r` (gates * hidden, hidden), and their biases `wb` and `rb`, None
    for zero.

    The order of the gates is that of the operators: input, forget, cell, output for nn.lstm; reset,
    update, new for nn.gru.
    """

    w: Expr
    r: Expr
    wb: OptionalExpr
    rb: OptionalExpr

    def with_gate_order(self, order: Sequence[int]) -> RecurrentWeights:
        """Return the weights with their gates permuted: gate k of the result is gate `order[k]` of
        these weights.
        """
        if len(order) == 1:
            return self
        hidden = g.shape(self.r)[1]

        def reorder_gates(v: Expr) -> Expr:
            parts = g.split(v, [hidden] * len(order), 0)
            return g.concat([parts[k] for k in order], 0)

        biases = (None if b is None else reorder_gates(b) for b in (self.wb, self.rb))
        return RecurrentWeights(reorder_gates(self.w), reorder_gates(self.r), *biases)


def call_recurrent_op(
    kind: str, x: Expr, weights: RecurrentWeights, states: Sequence[Expr], *, reverse: bool = False, **attributes: Any
) -> tuple[Expr, RecurrentState]:
    """Call nn.lstm, nn.gru or nn.rnn (`kind` without "nn.") for one direction of a layer over x
    (steps, batch, inputs); return the outputs and the final states.

    Data types that these operators do not support, such as float16, are computed in float32.
    """
    dtype = g.dtype(x)
    carrier = str(dtype) if dtype in RECURRENT_DTYPES else "float32"
    rows, hidden = g.shape(weights.r)
    zeros = g.full(0, (rows,), dtype)
    wb, rb = (zeros if bias is None else bias for bias in (weights.wb, weights.rb))
    extras: list[Expr] = []
    # the reset gate also scales the recurrent bias of the candidate state, which is passed separately
    if kind == "gru":
        extras = [g.strided_slice(rb, [2 * hidden], [rows], [0])]
        rb = g.concat([g.strided_slice(rb, [0], [2 * hidden], [0]), g.full(0, (hidden,), dtype)], 0)
    columns = [g.transpose(m, (1, 0)) for m in (weights.w, weights.r)]
    args = [g.cast(a, carrier) for a in (x, *columns, g.add(wb, rb), *states, *extras)]
    result = g.call_op(f"nn.{kind}", *args, reverse=reverse, **attributes)
    y, *last = (g.cast(g.field(result, k), dtype) for k in range(1 + len(states)))
    return y, last


# --- unrolled layers


def dense_with_bias(x: Expr, weight: Expr, bias: OptionalExpr) -> Expr:
    """Multiply x (batch, inputs) by a weight (units, inputs) with nn.dense, and add a bias if there
    is one.
    """
    y = g.call_op("nn.dense", x, weight, units=g.shape(weight)[0])
    return y if bias is None else g.call_op("nn.bias_add", y, bias, axis=-1)


def _reverse_sequences(x: Expr, lengths: Expr) -> Expr:
    """Reverse the first steps of each sequence of x (steps, batch, ...), as many as `lengths` (batch, 1) says."""
    return g.call_op("reverse_sequence", x, g.reshape(lengths, (-1,)), seq_axis=0, batch_axis=1)


@frozen
class UnrolledLayer:
    """One direction of a recurrent layer unrolled into arithmetic per step, with one matrix product
    for the inputs of all steps.

    act           activations of the gates, of the candidate state, and of the output of an LSTM
    order         positions in the weights of the gates that the step functions expect
    clip          absolute bound to which the inputs of activations are clamped
    peepholes     weights by which the cell state of an LSTM enters its input, output and forget
                  gates
    coupled       True if the forget gate of an LSTM is 1 - the input gate
    reset_after   True if the reset gate of a GRU scales the product of the previous state, not the
                  state itself
    products      for an LSTM, functions in place of the products with `w` and `r`; biases are added to their sum
    """

    kind: str
    weights: RecurrentWeights
    act: Sequence[Activation]
    order: Sequence[int] = (0, 1, 2, 3)
    clip: float | None = None
    peepholes: Sequence[Expr] = ()
    coupled: bool = False
    reset_after: bool = False
    products: tuple[Activation, Activation] | None = None

    def unroll_over_steps(
        self, x: Expr, state: RecurrentState, lengths: OptionalExpr = None, reverse: bool = False
    ) -> tuple[Expr, RecurrentState]:
        """Build all steps over x (steps, batch, inputs) from an initial state; return the outputs
        and the final state.

        `lengths` (batch, 1) are the numbers of steps of the sequences of the batch: beyond its
        length a sequence leaves its state unchanged and outputs zeros. The final state of a
        sequence of length 0 is zero, as in ONNX Runtime; the specification of ONNX does not define
        it. A reversed sequence starts at the last step of its length.

        Raises AotcError (code "graph-recurrent") for more than MAX_UNROLLED_STEPS steps.
        """
        length = g.shape(x)[0]
        text = f"this kind of layer over a sequence of {length} steps is not supported (1 to {MAX_UNROLLED_STEPS} are)"
        require("graph-recurrent", length <= MAX_UNROLLED_STEPS, text)
        if reverse and lengths is not None:
            y, last = self.unroll_over_steps(_reverse_sequences(x, lengths), state, lengths)
            return _reverse_sequences(y, lengths), last
        steps = list(enumerate(self._input_products_per_step(x)))
        outputs: list[Expr] = []
        output = state[0]
        for t, part in reversed(steps) if reverse else steps:
            # what products round has one range, to which a sequence that has ended adds zeros
            before = state if self.products is None else [output, *state[1:]]
            new = self.unrolled_step(part, before)
            output = new[0]
            if lengths is not None:
                running = g.greater(lengths, t)
                output = g.where(running, output, 0.0)
                new = [g.where(running, n, old if t else 0.0) for n, old in zip(new, state, strict=True)]
            outputs.append(g.unsqueeze(output, [0]))
            state = new
        return g.concat(outputs[::-1] if reverse else outputs, 0), state

    def loop_over_steps(
        self, x: Expr, state: RecurrentState, functions: dict[str, Function], reverse: bool = False
    ) -> tuple[Expr, RecurrentState]:
        """Build a loop over the steps of x (steps, batch, inputs) from an initial state, as a function that is added to
        `functions`; return the outputs and the final state.
        """
        steps, batch, _ = g.shape(x)
        products = self._input_products(x)
        parts = g.reshape(products, (steps, batch, g.dim(products, 1)))
        number, rows = Var("i", TensorType((), "int64")), Var("parts", type_of(parts))
        position = g.sub(g.constant(steps - 1, "int64"), number) if reverse else number
        before = [Var(f"s{k}", type_of(v)) for k, v in enumerate(state)]
        after = self.unrolled_step(row_of(rows, position, 0), list(before))
        parameters = [
            LoopParameter(number, g.constant(0, "int64"), g.add(number, 1)),
            LoopParameter(rows, parts, rows),
            *map(LoopParameter, before, state, after),
            parameter_of_rows("y", after[0], position, steps),
        ]
        name = f"loop_{len(functions)}"
        function, (*last, y) = tail_recursive_loop(name, g.less(number, steps), parameters, len(state) + 1)
        functions[name] = function
        return y, last

    def _input_products(self, x: Expr) -> Expr:
        """Multiply x (steps, batch, inputs) by the input weights; return (steps * batch, gates * hidden)."""
        steps, batch, features = g.shape(x)
        rows = g.reshape(x, (steps * batch, features))
        if self.products is not None:
            return self.products[0](rows)
        return dense_with_bias(rows, self.weights.w, self.weights.wb)

    def _input_products_per_step(self, x: Expr) -> list[Expr]:
        """Multiply x (steps, batch, inputs) by the input weights in one product, and split the
        result by steps.
        """
        steps, batch, _ = g.shape(x)
        return g.split(self._input_products(x), [batch] * steps, 0)

    def unrolled_step(self, input_products: Expr, state: RecurrentState) -> RecurrentState:
        """Return the states after one step, computed from the states before it and from the
        products `input_products` (batch, gates * hidden) of its inputs with the weights.
        """
        if self.kind == "gru":
            return self._gru_step(input_products, state[0])
        if self.products is not None:
            sums = g.add(input_products, self.products[1](state[0]))
            biases = [b for b in (self.weights.wb, self.weights.rb) if b is not None]
            return self._lstm_step(g.add(sums, reduce(g.add, biases)) if biases else sums, state[1])
        sums = g.add(input_products, dense_with_bias(state[0], self.weights.r, self.weights.rb))
        return [self._apply_activation_to_clipped(0, sums)] if self.kind == "rnn" else self._lstm_step(sums, state[1])

    def _apply_activation_to_clipped(self, activation_index: int, x: Expr) -> Expr:
        return self.act[activation_index](x if self.clip is None else g.clip(x, -self.clip, self.clip))

    def _split_gates(self, x: Expr, order: Sequence[int]) -> list[Expr]:
        parts = g.split(x, [g.shape(self.weights.r)[1]] * len(order), 1)
        return [parts[k] for k in order]

    def _lstm_step(self, sums: Expr, c: Expr) -> RecurrentState:
        i, f, new, o = self._split_gates(sums, self.order)
        if self.peepholes:
            i, f = g.add(i, g.mul(self.peepholes[0], c)), g.add(f, g.mul(self.peepholes[2], c))
        i, new = self._apply_activation_to_clipped(0, i), self._apply_activation_to_clipped(1, new)
        f = g.sub(1.0, i) if self.coupled else self._apply_activation_to_clipped(0, f)
        c = g.add(g.mul(f, c), g.mul(i, new))
        if self.peepholes:
            o = g.add(o, g.mul(self.peepholes[1], c))
        return [g.mul(self._apply_activation_to_clipped(0, o), self.act[2](c)), c]

    def _gru_step(self, input_products: Expr, h: Expr) -> RecurrentState:
        weight, bias, gates = self.weights.r, self.weights.rb, self._split_gates(input_products, self.order)
        if self.reset_after:
            *recurrence, last = self._split_gates(dense_with_bias(h, weight, bias), self.order)
        else:  # the candidate state needs the reset gate first: a separate product
            assert bias is not None
            hidden = g.shape(weight)[1]
            (first, rest), (first_bias, rest_bias) = (g.split(v, [2 * hidden, hidden], 0) for v in (weight, bias))
            recurrence = self._split_gates(dense_with_bias(h, first, first_bias), self.order[:2])
        r, z = (self._apply_activation_to_clipped(0, g.add(*sums)) for sums in zip(gates, recurrence, strict=False))
        inner = g.mul(r, last) if self.reset_after else dense_with_bias(g.mul(r, h), rest, rest_bias)
        candidate = self._apply_activation_to_clipped(1, g.add(gates[2], inner))
        return [g.add(g.mul(g.sub(1.0, z), candidate), g.mul(z, h))]
