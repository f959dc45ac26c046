# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of LSTM layers, in floating point (see `float_lstm`), and of UNIDIRECTIONAL_SEQUENCE_LSTM with int8
data and int16 cell states, which the rest of this page is about.

Input: an operator with its inputs in the order of the schema: data, four input weights, four
recurrent weights, three peephole weights, four biases, projection, states, layer normalization.
Output: the outputs of all steps.

The order of the gates is input, forget, cell, output. Integer results are those of the interpreter
that `rounding` names: TFLite Micro interpolates in a table of the logistic function, LiteRT uses
gemmlowp's 16-bit fixed-point functions.
"""

from typing import Final

import numpy as np

from aotc.ir import Array, frozen, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import conv_pool
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.tflite.float_lstm import (
    FloatLstm,
    LstmPlaces,
    activation_of_recurrent_layer,
    input_of_direction,
)
from aotc.relay.frontend.tflite.int16x8 import tflite_logistic_table_uint16
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import (
    constant_value,
    requantize_rounding_twice,
    unit_quantization,
)
from aotc.relay.frontend.tflite.load import TfliteTensor
from aotc.relay.frontend.tflite.node import Table, TfliteNode
from aotc.relay.op.qnn.fixed_point import fixed_point_factors_of_scales

_PEEPHOLES, _PROJECTION, _NORMALIZATION = range(9, 12), range(16, 18), range(20, 24)
_BIASES, _STATE, _CELL = range(12, 16), 18, 19
_TANH_CODE: Final = 4
#: Number of the second input of BIDIRECTIONAL_SEQUENCE_LSTM.
_SECOND_INPUT: Final = 39
#: Index of the tensor with the scale of the outputs among the intermediate tensors, which only
#: carry scales.
_HIDDEN_SCALE_INDEX: Final = 4
#: Numbers of fractional bits of the inputs and of the outputs of activations.
_BEFORE, _AFTER = 12, 15
#: For each interpreter, the operator that computes a layer, and the numbers of fractional bits that
#: it supports for the cell state.
_OPERATOR_AND_CELL_BITS: Final = {
    "tflm": ("qnn.lstm_by_table", range(30)),
    "litert": ("qnn.lstm_by_series", range(9, 16)),
}


@frozen(eq=False)
class _Layer:
    """An LSTM layer of one TFLite operator, computed in integers."""

    node: TfliteNode

    def lstm_gate_weights_and_scale_ratios(
        self, data_input_index: int, first_weight_input_index: int
    ) -> tuple[Expr, Array]:
        """Return the concatenated weights of all gates of an integer LSTM from input
        `first_weight_input_index` on, and for each gate the factor that scales products of the tensor
        `data_input_index` with its weights to 12 fractional bits.
        """
        x, gates = (
            self.node.per_tensor_quantized_input(data_input_index),
            [self.node.per_tensor_quantized_input(first_weight_input_index + k) for k in range(4)],
        )
        zeros = all(q.is_omitted_or_zero(w.zero) for w in gates)
        require("tflite-quant", zeros, "the weights of an integer LSTM must have the zero point 0")
        products = [self.node.rounding.product_of_layer_scales(x.scale, w.scale) for w in gates]
        ratios = np.array(products).reshape(-1) * (1 << _BEFORE)
        return g.concat([w.data for w in gates], 0), ratios

    def lstm_gate_sums_of_input_products(self, data: Expr) -> Expr:
        """Multiply the data by the weights of all gates of an integer LSTM and add the biases; the
        sums are int16 with 12 fractional bits.
        """
        x, (w, ratios) = self.node.per_tensor_quantized_input(0), self.lstm_gate_weights_and_scale_ratios(0, 1)
        units = g.dim(w, 0)
        unit_scale, none = g.constant(1.0, "float32"), g.constant(0, "int32")
        sums = g.call_op("qnn.dense", data, w, x.zero, none, unit_scale, unit_scale, units=units)
        bias = g.concat([self.node[k] for k in _BIASES], 0)
        sums = conv_pool.add_optional_bias(sums, bias, 1)
        ratios = np.repeat(ratios, units // 4)
        return requantize_rounding_twice(sums, ratios, unit_quantization("int16"))

    def tensor_declaring_output_quantization(self) -> TfliteTensor:
        """Return the declaration of the tensor whose scale and zero point the outputs of an integer
        LSTM have: the state, or for LiteRT the intermediate tensor of the outputs.
        """
        inner = self.node.inner[_HIDDEN_SCALE_INDEX : _HIDDEN_SCALE_INDEX + 1]
        declaration = inner[0] if inner and self.node.rounding.name == "litert" else None
        declaration = declaration or self.node.input_declaration(_STATE)
        text = f"the output of an integer LSTM must be quantized with exactly one scale, not {declaration.scale.size}"
        require("tflite-quant", declaration.scale.size == 1, text)
        return declaration

    def build_integer_lstm(self, x: Expr, h: Expr, c: Expr) -> Expr:
        """Return the outputs of all steps of an integer LSTM over x (steps, batch, inputs), with
        the initial state h and cell state c.
        """
        node, state = self.node, self.node.per_tensor_quantized_input(_STATE)
        name, possible = _OPERATOR_AND_CELL_BITS[node.rounding.name]
        scale = constant_value(node.per_tensor_quantized_input(_CELL).scale)
        digits = int(np.rint(-np.log2(scale)))
        text = f"the scale {scale} of the cell is not 2^-{possible[0]} to 2^-{possible[-1]}"
        require("tflite-quant", scale == 2.0**-digits and digits in possible, text)
        most = int(np.clip((node.op.option_value("CellClip") or 0.0) / scale, -32768, 32767))
        count, batch, inputs = g.shape(x)
        data = self.lstm_gate_sums_of_input_products(g.reshape(x, (count * batch, inputs)))
        data = g.reshape(data, (count, batch, g.dim(data, 1)))
        weight, ratios = self.lstm_gate_weights_and_scale_ratios(_STATE, 5)
        # subtract the zero point of the state in advance, through the bias
        bias = g.mul(g.call_reduction("sum", g.cast(weight, "int32"), [1], False), g.negative(state.zero))
        hidden = self.tensor_declaring_output_quantization()
        output = 2.0 ** (-2 * _AFTER) / np.float64(hidden.scale[0])
        factors = fixed_point_factors_of_scales(np.append(ratios, output), np.float64(1), "TFLITE")
        shift = factors.left_shift - factors.right_shift
        words = (v.astype(np.int32) for v in (factors.multiplier, shift))
        numbers = map(g.constant, words)
        tables = [g.constant(tflite_logistic_table_uint16())] if name == "qnn.lstm_by_table" else []
        attributes = {"digits": digits, "clip": max(most, 0), "zero_point": int(hidden.zero[0])}
        return g.call_op(name, data, weight, bias, *numbers, h, c, *tables, **attributes)


def _require_variable_states(node: TfliteNode, places: LstmPlaces) -> None:
    states = [node.input_declaration(k).variable for k in (places.state, places.cell)]
    require("tflite-input", all(states), "the states of an LSTM must be variable tensors")


def _float_layer(node: TfliteNode, places: LstmPlaces, code: int, cell_clip: float, proj_clip: float) -> FloatLstm:
    return FloatLstm(node, places, activation_of_recurrent_layer(node, code), cell_clip, proj_clip)


def _convert_sequence_lstm_node(
    *,
    time_major: bool = False,
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    fused_activation_function: int = 0,
    node: TfliteNode,
) -> Expr:
    diagonal = node.op.option_value("DiagonalRecurrentTensors")
    require("tflite-options", not diagonal, "an LSTM with diagonal recurrent weights is not supported")
    places = LstmPlaces.of_one_direction()
    _require_variable_states(node, places)
    require("graph-rank", g.rank(node[0]) == 3, f"data of rank {g.rank(node[0])} is not supported (3 is)")
    x = node[0] if time_major else g.transpose(node[0], (1, 0, 2))
    h, c = (g.reshape(node[k], (g.dim(x, 1), -1)) for k in (_STATE, _CELL))
    if not node.has_quantized_output:
        y, _ = _float_layer(node, places, fused_activation_function, cell_clip, proj_clip).build(x, [h, c])
        return y if time_major else g.transpose(y, (1, 0, 2))
    optional_inputs = (*_PEEPHOLES, *_PROJECTION, *_NORMALIZATION)
    unusual = [k for k in optional_inputs if node.optional_input(k) is not None]
    text = "an LSTM of integers with peepholes, a projection or layer normalization is not supported"
    require("tflite-options", not unusual, text)
    plain = fused_activation_function == _TANH_CODE
    require("tflite-options", plain, "an LSTM of integers needs the activation TANH")
    eight = node.input_declaration(0).dtype == "int8" and node.input_declaration(_CELL).dtype == "int16"
    require("tflite-quant", eight, "an integer LSTM needs int8 data and an int16 cell state")
    y = _Layer(node).build_integer_lstm(x, h, c)
    return y if time_major else g.transpose(y, (1, 0, 2))


def _convert_lstm_node(
    x: Expr,
    *,
    kernel_type: int = 0,
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    fused_activation_function: int = 0,
    node: TfliteNode,
) -> Expr:
    """Convert LSTM, one step of a layer, of which runs keep the states."""
    require(
        "tflite-options", kernel_type == 0, "LSTM of the basic kernel is not supported (that of the full kernel is)"
    )
    places = LstmPlaces.of_one_direction()
    _require_variable_states(node, places)
    require("tflite-quant", not node.has_quantized_output, "LSTM of integers is not supported")
    require("graph-rank", g.rank(x) == 2, f"data of rank {g.rank(x)} is not supported (2 is)")
    shapes = [g.shape(node[k]) for k in (_STATE, _CELL)]
    state = [g.reshape(node.kept_tensor(k), (g.dim(x, 0), -1)) for k in (_STATE, _CELL)]
    layer = _float_layer(node, places, fused_activation_function, cell_clip, proj_clip)
    y, last = layer.build(g.unsqueeze(x, [0]), state)
    for k, value, shape in zip((_STATE, _CELL), last, shapes, strict=True):
        node.replace_kept_tensor(k, g.reshape(value, shape))
    return g.squeeze(y, [0])


def _convert_bidirectional_lstm_node(
    *,
    time_major: bool = True,
    merge_outputs: bool = False,
    cell_clip: float = 0.0,
    proj_clip: float = 0.0,
    fused_activation_function: int = 0,
    node: TfliteNode,
) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_LSTM, whose states are zero at the beginning of each run."""
    require("tflite-quant", not node.has_quantized_output, f"{node.op.name} of integers is not supported")
    second = node.optional_input(_SECOND_INPUT)
    outputs = []
    for backward in (False, True):
        places = LstmPlaces.of_two_directions(backward)
        _require_variable_states(node, places)
        weighed = places.second is not None and node.optional_input(places.second[1]) is not None
        x = input_of_direction(node[0], second, weighed, backward, time_major)
        state = [g.reshape(node[k], (g.dim(x, 1), -1)) for k in (places.state, places.cell)]
        layer = _float_layer(node, places, fused_activation_function, cell_clip, proj_clip)
        y, _ = layer.build(x, state, reverse=backward)
        outputs.append(y if time_major else g.transpose(y, (1, 0, 2)))
    return [g.concat(outputs, 2)] if merge_outputs else outputs


OPS: Table = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _convert_bidirectional_lstm_node,
    "LSTM": _convert_lstm_node,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _convert_sequence_lstm_node,
}
INTEGERS: Final = frozenset(OPS)
MOVES: Final[frozenset[str]] = frozenset()
