# SPDX-License-Identifier: Apache-2.0
"""UNIDIRECTIONAL_SEQUENCE_LSTM: in real numbers, and in integers of 8
bits with states of 16.

In: the operator, whose inputs the schema orders: data, four weights
of the data, four of the state, three of peepholes, four biases,
projection, states, normalisation.  Out: the outputs of all steps.

Gates stand in the order input, forget, cell, output.  Integers are
those of `rounding`: TFLite Micro interpolates in a table of the
logistic function, LiteRT takes gemmlowp's of 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aotc.ir import frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import graph as g
from aotc.relay.frontend import quantisation as q
from aotc.relay.frontend import windows
from aotc.relay.frontend.recurrent import Weights, whole_layer
from aotc.relay.frontend.tflite import fixed_point as fx
from aotc.relay.frontend.tflite.node import Node, Table
from aotc.relay.frontend.tflite.rounding import number, onto_whole, scaled_twice

_PEEPHOLES, _PROJECTION, _NORMALISATION = range(9, 12), range(16, 18), range(20, 24)
_BIASES, _STATE, _CELL = range(12, 16), 18, 19
_TANH: Final = 4
#: Digits behind the point: of what goes into activations, and of what comes out.
_BEFORE, _AFTER = 12, 15
#: The logistic function at multiples of 1/24, times 2^16: rounded, and one more at some places.
_RAISED: Final = (
    4,
    8,
    12,
    14,
    15,
    16,
    17,
    19,
    20,
    21,
    22,
    25,
    27,
    28,
    29,
    30,
    31,
    33,
    34,
    35,
    37,
    39,
    40,
    41,
    43,
    44,
    45,
    46,
    49,
    50,
    54,
    62,
    63,
    64,
    66,
    82,
    86,
    93,
    100,
    103,
    112,
    116,
    135,
    255,
)


def _table() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    exact = 65536 / (1 + np.exp(-np.arange(256) / 24))
    found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.rint(exact).astype(np.int64)
    found[list(_RAISED)] += 1
    return found


def _interpolated(size: Expr, digits: int) -> Expr:
    """Between two values of the table, with `digits` more."""
    table = g.constant(np.append(_table(), 0))
    place = fx.right(size, digits)
    inside = g.cast(g.minimum(place, 254), "int32")
    low, high = (g.op("take", table, g.add(inside, k), axis=0, mode="clip") for k in (0, 1))
    rest = g.op("bitwise_and", size, g.constant((1 << digits) - 1, "int64"))
    y = g.add(g.mul(low, 1 << digits), g.mul(rest, g.sub(high, low)))
    most = (0x7FFF << 10) if digits == 9 else 0xFFFF << 8
    return g.where(g.greater(place, 254), most, y)


def _logistic_of_table(x: Expr) -> Expr:
    x = g.mul(x, 3)
    y = _interpolated(g.absolute(x), 9)
    below = g.sub(g.constant((1 << 25) + (1 << 9) - 1, "int64"), y)
    return fx.right(g.where(g.less(x, 0), below, g.add(y, 1 << 9)), 10)


def _tanh_of_table(x: Expr, shift: int) -> Expr:
    """`shift` brings x to 12 digits, negative to the right."""
    x = g.mul(x, 3 << shift) if shift >= 0 else fx.right(g.add(g.mul(x, 3), 1 << (-shift - 1)), -shift)
    y = _interpolated(g.absolute(x), 8)
    below = g.add(g.negative(y), (1 << 23) + (1 << 7) - 1)
    return fx.right(g.where(g.less(x, 0), below, g.add(y, (1 << 7) - (1 << 23))), 8)


def _in_16_bits(x: Expr) -> Expr:
    return g.minimum(g.maximum(x, -(1 << 15)), (1 << 15) - 1)


@frozen
class _Integers:
    """The arithmetic of one interpreter; numbers are int64 with 16 bits.

    logistic   of 12 digits behind the point, to 15
    tanh       of as many digits as are given
    product    a * b / 2^bits
    gate       the sum of what the data and the state give, which is still of 32 bits
    """

    logistic: Callable[[Expr], Expr]
    tanh: Callable[[Expr, int], Expr]
    product: Callable[[Expr, Expr, int], Expr]
    gate: Callable[[Expr, Expr], Expr]


def _tanh_of_words(x: Expr, digits: int) -> Expr:
    return fx.tanh(x, 15 - digits, 15)


_ARITHMETIC: Final = {
    "tflm": _Integers(
        _logistic_of_table,
        lambda x, digits: _tanh_of_table(x, _BEFORE - digits),
        lambda a, b, bits: fx.wide(scaled_twice(g.cast(g.mul(a, b), "int32"), 2.0**-bits, onto_whole("int16"))),
        lambda x, h: _in_16_bits(g.add(_in_16_bits(x), _in_16_bits(h))),
    ),
    "litert": _Integers(
        lambda x: fx.logistic(x, 15 - _BEFORE, 15),
        _tanh_of_words,
        lambda a, b, bits: _in_16_bits(fx.divided(g.mul(a, b), bits)),
        lambda x, h: _in_16_bits(g.add(_in_16_bits(x), h)),
    ),
}


@frozen(eq=False)
class _Layer:
    """A layer of integers."""

    node: Node

    @property
    def how(self) -> _Integers:
        return _ARITHMETIC[self.node.rounding.name]

    def products(self, data: Expr, source: int, first: int, bias: Expr | None) -> Expr:
        """Data times the weights of all gates, with 12 digits behind the point, in 32 bits."""
        x, gates = self.node.whole(source), [self.node.whole(first + k) for k in range(4)]
        zeros = all(q.is_zero(w.zero) for w in gates)
        require("tflite-quant", zeros, "the weights of an LSTM of integers have the zero point 0")
        w, units = g.concat([w.data for w in gates], 0), [g.dim(w.data, 0) for w in gates]
        scales = np.repeat([number(w.scale) for w in gates], units)
        numbers = x.zero, g.constant(0, "int32"), x.scale, g.constant(scales)
        sums = g.op("qnn.dense", data, w, *numbers, units=sum(units))
        # a product of two scales is float32
        ratio = (number(x.scale) * scales).astype(np.float64) * (1 << _BEFORE)
        return fx.wide(scaled_twice(windows.with_bias(sums, bias, 1), ratio, onto_whole("int32")))

    def run(self, x: Expr, h: Expr, c: Expr) -> list[Expr]:
        """The state after each step of x (steps, batch, inputs)."""
        node, how, outputs = self.node, self.how, []
        scale = number(node.whole(_CELL).scale)
        digits = int(np.rint(-np.log2(scale)))
        require("tflite-quant", scale == 2.0**-digits, f"the scale {scale} of the cell is no power of two")
        most = int(np.clip((node.op.option("CellClip") or 0.0) / scale, -32768, 32767))
        count, batch, inputs = g.shape(x)
        bias = g.concat([node[k] for k in _BIASES], 0)
        from_data = self.products(g.reshape(x, (count * batch, inputs)), 0, 1, bias)
        c = fx.wide(c)
        for part in g.split(from_data, [batch] * count, 0):
            sums = how.gate(part, self.products(h, _STATE, 5, None))
            gates = g.split(sums, [g.dim(sums, 1) // 4] * 4, 1)
            i, f, o = (how.logistic(gates[k]) for k in (0, 1, 3))
            new = how.tanh(gates[2], _BEFORE)
            kept, added = how.product(f, c, _AFTER), how.product(i, new, 2 * _AFTER - digits)
            c = _in_16_bits(g.add(kept, added))
            c = g.minimum(g.maximum(c, -most), most) if most > 0 else c
            h = self.hidden(o, how.tanh(c, digits))
            outputs.append(h)
        return outputs

    def hidden(self, gate: Expr, cell: Expr) -> Expr:
        onto = self.node.whole(_STATE)
        ratio = 2.0 ** (-2 * _AFTER) / np.float64(number(onto.scale))
        result = q.Onto(onto.scale, onto.zero, g.dtype(onto.data))
        return scaled_twice(g.cast(g.mul(gate, cell), "int32"), ratio, result)


def _lstm(*, time_major: bool = False, cell_clip: float = 0.0, fused_activation_function: int = 0, node: Node) -> Expr:
    unusual = [k for k in (*_PEEPHOLES, *_PROJECTION, *_NORMALISATION) if node.optional(k) is not None]
    text = "an LSTM with peepholes, a projection or layer normalisation is not supported"
    require("tflite-options", not unusual, text)
    plain = fused_activation_function == _TANH and not node.op.option("DiagonalRecurrentTensors")
    require("tflite-options", plain, "an LSTM has the activation TANH and full weights")
    states = [node.tensor(k).variable for k in (_STATE, _CELL)]
    require("tflite-input", all(states), "the states of an LSTM must be variables")
    x = node[0] if time_major else g.transpose(node[0], (1, 0, 2))
    h, c = (g.reshape(node[k], (g.dim(x, 1), -1)) for k in (_STATE, _CELL))
    if not node.in_integers:
        require("tflite-options", cell_clip == 0, "an LSTM of real numbers with a clipped cell is not supported")
        w, r = (g.concat([node.real(k + j) for j in range(4)], 0) for k in (1, 5))
        bias = g.concat([node[k] for k in _BIASES], 0)
        weights = Weights(w, r, bias, None)
        y, _ = whole_layer("lstm", x, weights, [h, c])
        return y if time_major else g.transpose(y, (1, 0, 2))
    eight = node.tensor(0).dtype == "int8" and node.tensor(_CELL).dtype == "int16"
    require("tflite-quant", eight, "an LSTM of integers takes int8, and int16 for its cell")
    g.check_unrolled(g.dim(x, 0), "an LSTM of integers")
    return g.stack(_Layer(node).run(x, h, c), 0 if time_major else 1)


OPS: Table = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm}
INTEGERS: Final = frozenset(OPS)
MOVES: Final[frozenset[str]] = frozenset()
