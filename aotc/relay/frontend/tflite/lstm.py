# SPDX-License-Identifier: Apache-2.0
"""UNIDIRECTIONAL_SEQUENCE_LSTM: in real numbers, and in integers of 8
bits with states of 16.

In: the operator, whose inputs the schema orders: data, four weights
of the data, four of the state, three of peepholes, four biases,
projection, states, normalization.  Out: the outputs of all steps.

Gates stand in the order input, forget, cell, output.  Integers are
those of `rounding`: TFLite Micro interpolates in a table of the
logistic function, LiteRT takes gemmlowp's of 16 bits.
"""

from typing import Final

import numpy as np

from aotc.ir import Array, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.recurrent import Weights, whole_layer
from aotc.relay.frontend.tflite.int16x8 import table
from aotc.relay.frontend.tflite.integer_semantics import number, onto_whole, scaled_twice
from aotc.relay.frontend.tflite.load import Tensor
from aotc.relay.frontend.tflite.node import Node, Table
from aotc.relay.op.qnn.fixed_point import factors_of

_PEEPHOLES, _PROJECTION, _NORMALIZATION = range(9, 12), range(16, 18), range(20, 24)
_BIASES, _STATE, _CELL = range(12, 16), 18, 19
_TANH: Final = 4
#: Of the tensors that only carry scales, that of the outputs.
_HIDDEN: Final = 4
#: Digits behind the point: of what goes into activations, and of what comes out.
_BEFORE, _AFTER = 12, 15
#: The operator of each interpreter, and the digits that it takes behind the point of a cell.
_LAYERS: Final = {"tflm": ("qnn.lstm_by_table", range(30)), "litert": ("qnn.lstm_by_series", range(9, 16))}


@frozen(eq=False)
class _Layer:
    """A layer of integers."""

    node: Node

    def weights(self, source: int, first: int) -> tuple[Expr, Array]:
        """The weights of all gates, and for each gate what brings products with them to 12 digits."""
        x, gates = self.node.whole(source), [self.node.whole(first + k) for k in range(4)]
        zeros = all(q.is_zero(w.zero) for w in gates)
        require("tflite-quant", zeros, "the weights of an integer LSTM must have the zero point 0")
        scales = np.array([number(w.scale) for w in gates]).reshape(-1)
        # a product of two scales is float32
        ratios = (number(x.scale) * scales).astype(np.float64) * (1 << _BEFORE)
        return g.concat([w.data for w in gates], 0), ratios

    def products(self, data: Expr) -> Expr:
        """Data times the weights of all gates, with 12 digits behind the point, in 16 bits."""
        x, (w, ratios) = self.node.whole(0), self.weights(0, 1)
        units = g.dim(w, 0)
        one, none = g.constant(1.0, "float32"), g.constant(0, "int32")
        sums = g.op("qnn.dense", data, w, x.zero, none, one, one, units=units)
        bias = g.concat([self.node[k] for k in _BIASES], 0)
        sums = conv_pool.with_bias(sums, bias, 1)
        ratios = np.repeat(ratios, units // 4)
        return scaled_twice(sums, ratios, onto_whole("int16"))

    def hidden(self) -> Tensor:
        """What says how outputs are stored: the state, or the tensor that LiteRT has for it."""
        inner = self.node.inner[_HIDDEN : _HIDDEN + 1]
        found = inner[0] if inner and self.node.rounding.name == "litert" else None
        found = found or self.node.tensor(_STATE)
        require("tflite-quant", found.scale.size == 1, "the outputs of an integer LSTM must share one scale")
        return found

    def run(self, x: Expr, h: Expr, c: Expr) -> Expr:
        """The state after each step of x (steps, batch, inputs)."""
        node, state = self.node, self.node.whole(_STATE)
        name, possible = _LAYERS[node.rounding.name]
        scale = number(node.whole(_CELL).scale)
        digits = int(np.rint(-np.log2(scale)))
        text = f"the scale {scale} of the cell is not 2^-{possible[0]} to 2^-{possible[-1]}"
        require("tflite-quant", scale == 2.0**-digits and digits in possible, text)
        most = int(np.clip((node.op.option("CellClip") or 0.0) / scale, -32768, 32767))
        count, batch, inputs = g.shape(x)
        data = self.products(g.reshape(x, (count * batch, inputs)))
        data = g.reshape(data, (count, batch, g.dim(data, 1)))
        weight, ratios = self.weights(_STATE, 5)
        # the zero point of the state is taken off beforehand
        bias = g.mul(g.reduce("sum", g.cast(weight, "int32"), [1], False), g.negative(state.zero))
        hidden = self.hidden()
        output = 2.0 ** (-2 * _AFTER) / np.float64(hidden.scale[0])
        factors = factors_of(np.append(ratios, output), np.float64(1), "TFLITE")
        shift = factors.left - factors.right
        words = (v.astype(np.int32) for v in (factors.multiplier, shift))
        numbers = map(g.constant, words)
        tables = [g.constant(table())] if name == "qnn.lstm_by_table" else []
        attributes = {"digits": digits, "clip": max(most, 0), "zero_point": int(hidden.zero[0])}
        return g.op(name, data, weight, bias, *numbers, h, c, *tables, **attributes)


def _lstm(*, time_major: bool = False, cell_clip: float = 0.0, fused_activation_function: int = 0, node: Node) -> Expr:
    others = (*_PEEPHOLES, *_PROJECTION, *_NORMALIZATION)
    unusual = [k for k in others if node.optional(k) is not None]
    text = "an LSTM with peepholes, a projection or layer normalization is not supported"
    require("tflite-options", not unusual, text)
    diagonal = node.op.option("DiagonalRecurrentTensors")
    plain = fused_activation_function == _TANH and not diagonal
    require("tflite-options", plain, "an LSTM needs the activation TANH and all weights")
    states = [node.tensor(k).variable for k in (_STATE, _CELL)]
    require("tflite-input", all(states), "the states of an LSTM must be variable tensors")
    x = node[0] if time_major else g.transpose(node[0], (1, 0, 2))
    h, c = (g.reshape(node[k], (g.dim(x, 1), -1)) for k in (_STATE, _CELL))
    if not node.in_integers:
        require("tflite-options", cell_clip == 0, "a float LSTM with a clipped cell state is not supported")
        w, r = (g.concat([node.real(k + j) for j in range(4)], 0) for k in (1, 5))
        bias = g.concat([node[k] for k in _BIASES], 0)
        weights = Weights(w, r, bias, None)
        y, _ = whole_layer("lstm", x, weights, [h, c])
        return y if time_major else g.transpose(y, (1, 0, 2))
    eight = node.tensor(0).dtype == "int8" and node.tensor(_CELL).dtype == "int16"
    require("tflite-quant", eight, "an integer LSTM needs int8 data and an int16 cell state")
    y = _Layer(node).run(x, h, c)
    return y if time_major else g.transpose(y, (1, 0, 2))


OPS: Table = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm}
INTEGERS: Final = frozenset(OPS)
MOVES: Final[frozenset[str]] = frozenset()
