# SPDX-License-Identifier: Apache-2.0
"""LSTM layers of TFLite in floating point, with all that the schema allows: peepholes, coupled gates, projections,
layer normalization, clipped cell states, and second inputs.

    layer = FloatLstm(node, LstmPlaces.of_one_direction(), "tanh", cell_clip=1.0)
    y, (h, c) = layer.build(x, [h, c])          # x (steps, batch, inputs)

The order of the gates is input, forget, cell, output. Without weights of the input gate, it is 1 - the forget gate.
Quantized weights are dequantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Final

from aotc.ir import frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.recurrent import RecurrentState, RecurrentWeights, UnrolledLayer, call_recurrent_op
from aotc.relay.frontend.tail_recursion import MAX_UNROLLED_ITERATIONS
from aotc.relay.frontend.tflite.node import FUSED_ACTIVATIONS, TfliteNode

#: Added to variances of gates before their square root.
_EPSILON: Final = 1e-8
_GATE_COUNT: Final = 4


@frozen
class LstmPlaces:
    """The numbers of the inputs of an LSTM operator that belong to one direction; None for those that it never has.

    Ranges are those of the weights of the gates for the data, for a second input and for the outputs, of peepholes, of
    biases, and of the weights of layer normalization.
    """

    weights: range
    recurrent: range
    peepholes: range
    biases: range
    projection: tuple[int, int]
    state: int
    cell: int
    normalization: range | None = None
    second: range | None = None

    @staticmethod
    def of_one_direction() -> LstmPlaces:
        """Return the numbers for LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM."""
        return LstmPlaces(range(1, 5), range(5, 9), range(9, 12), range(12, 16), (16, 17), 18, 19, range(20, 24))

    @staticmethod
    def of_two_directions(backward: bool) -> LstmPlaces:
        """Return the numbers of one direction of BIDIRECTIONAL_SEQUENCE_LSTM."""
        first, state, second = (18, 37, 44) if backward else (1, 35, 40)
        weights, recurrent, peepholes, biases = (
            range(first + a, first + b) for a, b in ((0, 4), (4, 8), (8, 11), (11, 15))
        )
        more = range(second, second + _GATE_COUNT)
        projection = (first + 15, first + 16)
        return LstmPlaces(weights, recurrent, peepholes, biases, projection, state, state + 1, None, more)


@frozen(eq=False)
class _Step(UnrolledLayer):
    """An LSTM layer whose steps TFLite defines; its biases are added after layer normalization.

    gates            names of the gates that have weights, among "i", "f", "c" and "o"
    biases           a bias for each of them
    normalization    weights of layer normalization for each of them; empty for none
    activation       name of the activation of candidates and outputs
    """

    gates: str = "ifco"
    biases: Sequence[Expr] = ()
    normalization: Sequence[Expr] = ()
    cell_clip: float = 0.0
    projection: RecurrentWeights | None = None
    projection_clip: float = 0.0
    activation: str = "TANH"
    peephole_weights: dict[str, Expr] = field(default_factory=dict)

    def unrolled_step(self, input_products: Expr, state: RecurrentState) -> RecurrentState:
        """Return the states after one step; see `UnrolledLayer`."""
        h, c = state
        sums = g.add(input_products, g.call_op("nn.dense", h, self.weights.r, units=g.dim(self.weights.r, 0)))
        parts = dict(zip(self.gates, g.split(sums, [g.dim(c, 1)] * len(self.gates), 1), strict=True))
        forget = g.call_op("sigmoid", self._gate("f", parts, c))
        new = apply_activation(self.activation, self._gate("c", parts, None))
        entry = g.call_op("sigmoid", self._gate("i", parts, c)) if "i" in parts else g.sub(1.0, forget)
        c = g.add(g.mul(forget, c), g.mul(entry, new))
        c = g.clip(c, -self.cell_clip, self.cell_clip) if self.cell_clip > 0 else c
        y = g.mul(g.call_op("sigmoid", self._gate("o", parts, c)), apply_activation(self.activation, c))
        if self.projection is not None:
            y = g.call_op("nn.dense", y, self.projection.w, units=g.dim(self.projection.w, 0))
            y = y if self.projection.wb is None else g.add(y, self.projection.wb)
            y = g.clip(y, -self.projection_clip, self.projection_clip) if self.projection_clip > 0 else y
        return [y, c]

    def _gate(self, name: str, parts: dict[str, Expr], cell: OptionalExpr) -> Expr:
        sums, place = parts[name], self.gates.index(name)
        if cell is not None and name in self.peephole_weights:
            sums = g.add(sums, g.mul(self.peephole_weights[name], cell))
        if self.normalization:
            sums = g.sub(sums, g.call_reduction("mean", sums, [1], True))
            variance = g.call_reduction("mean", g.mul(sums, sums), [1], True)
            sums = g.mul(g.mul(sums, g.call_op("rsqrt", g.add(variance, _EPSILON))), self.normalization[place])
        return g.add(sums, self.biases[place])


def apply_activation(name: str, x: Expr) -> Expr:
    """Apply an activation of a recurrent layer, by its name in the schema."""
    match name:
        case "NONE":
            return x
        case "TANH":
            return g.tanh(x)
        case "RELU":
            return g.maximum(x, 0.0)
        case _:
            return g.clip(x, 0.0, 6.0)


def activation_of_recurrent_layer(node: TfliteNode, code: int) -> str:
    """Return the name of an activation. Raises AotcError (code "tflite-options") for those that no layer has."""
    name = FUSED_ACTIVATIONS[code] if 0 <= code < len(FUSED_ACTIVATIONS) else str(code)
    fits = name in ("NONE", "TANH", "RELU", "RELU6")
    require("tflite-options", fits, f"{node.op.name} with the activation {name} is not supported")
    return name


def input_of_direction(x: Expr, second: OptionalExpr, weighed: bool, backward: bool, time_major: bool) -> Expr:
    """Return the data (steps, batch, inputs) of one direction of a bidirectional layer.

    second     second input of the operator. With weights (`weighed`), its features follow those of the first input;
               without, it is the input of the backward direction
    """
    for given in (x, *(() if second is None else (second,))):
        require("graph-rank", g.rank(given) == 3, f"data of rank {g.rank(given)} is not supported (3 is)")
    if second is not None and weighed:
        x = g.concat([x, second], 2)
    elif second is not None and backward:
        x = second
    return x if time_major else g.transpose(x, (1, 0, 2))


@frozen(eq=False)
class FloatLstm:
    """One direction of an LSTM operator.

    activation                     name of the activation of candidates and outputs
    cell_clip, projection_clip     bounds of cell states and of projected outputs; 0 for none
    """

    node: TfliteNode
    places: LstmPlaces
    activation: str
    cell_clip: float = 0.0
    projection_clip: float = 0.0

    def _given(self, places: Sequence[int]) -> dict[str, Expr]:
        """Return the inputs that are given, of one per gate, by gate."""
        node = self.node
        return {
            gate: node.dequantized_or_real_input(k)
            for gate, k in zip("ifco", places, strict=True)
            if node.optional_input(k) is not None
        }

    def _weights_by_gate(self) -> tuple[dict[str, Expr], dict[str, Expr], dict[str, Expr]]:
        """Return weights for data (and for a second input, behind them), weights for outputs, and biases. Raises
        AotcError (code "tflite-input") if they are not those of the same gates.
        """
        weights, recurrent, biases = map(self._given, (self.places.weights, self.places.recurrent, self.places.biases))
        kinds = [set(weights), set(recurrent), set(biases)]
        if self.places.second is not None and (second := self._given(self.places.second)):
            kinds.append(set(second))
            weights = {gate: g.concat([w, second[gate]], 1) for gate, w in weights.items() if gate in second}
        fits = all(kind == kinds[0] for kind in kinds) and kinds[0] in ({*"ifco"}, {*"fco"})
        text = f"{self.node.op.name} has {', '.join(''.join(sorted(k)) or 'no' for k in kinds)} gates with weights"
        require(
            "tflite-input",
            fits,
            f"{text}, for data, outputs and biases: all of i, f, c and o, or all but i, are needed",
        )
        return weights, recurrent, biases

    def _peepholes(self) -> dict[str, Expr]:
        """Return the weights by which cell states enter gates, by gate."""
        node = self.node
        return {
            gate: node.dequantized_or_real_input(k)
            for gate, k in zip("ifo", self.places.peepholes, strict=True)
            if node.optional_input(k) is not None
        }

    def _projection(self) -> RecurrentWeights | None:
        weight, bias = (self.node.optional_input(k) for k in self.places.projection)
        if weight is None:
            return None
        weight = self.node.dequantized_or_real_input(self.places.projection[0])
        return RecurrentWeights(weight, weight, bias, None)

    def _check_shapes(self, x: Expr, state: RecurrentState, weights: Sequence[Expr], recurrent: Sequence[Expr]) -> None:
        (batch, outputs), (rows, cells) = g.shape(state[0]), g.shape(state[1])
        shapes = {g.shape(w) for w in weights}, {g.shape(r) for r in recurrent}
        fits = shapes == ({(cells, g.dim(x, 2))}, {(cells, outputs)}) and rows == batch == g.dim(x, 1)
        projection = self._projection()
        fits = fits and (outputs == cells if projection is None else g.shape(projection.w) == (outputs, cells))
        text = f"weights of shapes {sorted(shapes[0] | shapes[1])} do not fit data {g.dims(x)}"
        require("graph-shape", fits, f"{text}, outputs {(batch, outputs)} and cell states {(rows, cells)}")

    def build(self, x: Expr, state: RecurrentState, reverse: bool = False) -> tuple[Expr, RecurrentState]:
        """Return the outputs of all steps over x (steps, batch, inputs), and the last state."""
        by_gate = self._weights_by_gate()
        gates = "".join(by_gate[0])
        weights, recurrent, biases = (list(part.values()) for part in by_gate)
        self._check_shapes(x, state, weights, recurrent)
        peepholes, projection = self._peepholes(), self._projection()
        normalization = self._given(self.places.normalization) if self.places.normalization is not None else {}
        require(
            "tflite-input",
            not normalization or set(normalization) >= set(gates),
            f"{self.node.op.name} has layer normalization for the gates {', '.join(normalization)} only",
        )
        w, r = g.concat(weights, 0), g.concat(recurrent, 0)
        plain = gates == "ifco" and self.activation == "TANH" and self.cell_clip <= 0
        if plain and not (peepholes or projection or normalization):
            return call_recurrent_op(
                "lstm", x, RecurrentWeights(w, r, g.concat(biases, 0), None), state, reverse=reverse
            )
        step = _Step(
            "lstm",
            RecurrentWeights(w, r, None, None),
            (),
            gates=gates,
            biases=biases,
            normalization=[normalization[gate] for gate in gates] if normalization else (),
            cell_clip=self.cell_clip,
            projection=projection,
            projection_clip=self.projection_clip,
            activation=self.activation,
            peephole_weights=peepholes,
        )
        if g.dim(x, 0) > MAX_UNROLLED_ITERATIONS and self.node.control.has_loops:
            return step.loop_over_steps(x, state, self.node.control.functions, reverse)
        return step.unroll_over_steps(x, state, reverse=reverse)
