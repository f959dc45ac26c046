# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of simple recurrent layers, and of SVDF, a layer of filters of rank 1 over the newest inputs. Runs
keep the state of SVDF and RNN.

OPS["SVDF"](x, feature_weights, time_weights, bias, state, rank=1, node=node)
OPS["UNIDIRECTIONAL_SEQUENCE_RNN"](x, weights, recurrent_weights, bias, state, time_major=True, node=node)

A filter of SVDF has weights for an input and weights for the newest steps in time. The state of a filter holds the
products of its feature weights with the inputs of these steps; a run removes the oldest one and adds a new one. A unit
is the sum of `rank` filters. Integers are those of the kernels of TFLite Micro and LiteRT.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.recurrent import RecurrentWeights, call_recurrent_op
from aotc.relay.frontend.tflite.dynamic_quantization import quantize_dynamically, quantize_symmetrically
from aotc.relay.frontend.tflite.float_lstm import input_of_direction
from aotc.relay.frontend.tflite.interpreter_integer_arithmetic import requantize_rounding_twice, unit_quantization
from aotc.relay.frontend.tflite.load import TfliteTensor
from aotc.relay.frontend.tflite.node import Table, TfliteNode

_STATE: Final = 4
#: Activations of layers over whole sequences, by their codes in the schema.
_SEQUENCE_ACTIVATIONS: Final = {1: "relu", 4: "tanh"}
_RELU_CODE: Final = 1


# --- simple recurrent layers


def _require_real_recurrent_layer(node: TfliteNode) -> None:
    quantized = any(tensor is not None and tensor.is_quantized for tensor in (*node.inputs, *node.results))
    require("tflite-quant", not quantized, f"{node.op.name} with quantized tensors is not supported")
    require("tflite-input", node.input_declaration(_STATE).variable, "the state of a layer must be a variable tensor")


def _convert_rnn_node(x: Expr, weights: Expr, recurrent: Expr, bias: Expr, state: Expr, *, node: TfliteNode) -> Expr:
    """Convert RNN, one step of a layer."""
    _require_real_recurrent_layer(node)
    before = g.reshape(node.kept_tensor(_STATE), g.shape(state))
    units = g.dim(weights, 0)
    sums = g.add(g.call_op("nn.dense", x, weights, units=units), g.call_op("nn.dense", before, recurrent, units=units))
    after = node.apply_fused_activation(g.add(sums, bias))
    node.replace_kept_tensor(_STATE, after)
    return after


def _convert_sequence_rnn_node(
    x: Expr,
    weights: Expr,
    recurrent: Expr,
    bias: Expr,
    state: Expr,
    *,
    time_major: bool = False,
    fused_activation_function: int = 0,
    node: TfliteNode,
) -> Expr:
    """Convert UNIDIRECTIONAL_SEQUENCE_RNN, whose state is zero at the beginning of each run."""
    _require_real_recurrent_layer(node)
    activation = _SEQUENCE_ACTIVATIONS.get(fused_activation_function, "")
    require("tflite-options", bool(activation), f"{node.op.name} needs the activation TANH or RELU")
    require("graph-rank", g.rank(x) == 3, f"data of rank {g.rank(x)} is not supported (3 is)")
    steps = x if time_major else g.transpose(x, (1, 0, 2))
    y, _ = call_recurrent_op(
        "rnn", steps, RecurrentWeights(weights, recurrent, bias, None), [state], activation=activation
    )
    return y if time_major else g.transpose(y, (1, 0, 2))


def _convert_bidirectional_rnn_node(
    *, time_major: bool = False, merge_outputs: bool = False, fused_activation_function: int = 0, node: TfliteNode
) -> list[Expr]:
    """Convert BIDIRECTIONAL_SEQUENCE_RNN, whose states are zero at the beginning of each run."""
    quantized = any(tensor is not None and tensor.is_quantized for tensor in (*node.inputs, *node.results))
    require("tflite-quant", not quantized, f"{node.op.name} with quantized tensors is not supported")
    activation = _SEQUENCE_ACTIVATIONS.get(fused_activation_function, "")
    require("tflite-options", bool(activation), f"{node.op.name} needs the activation TANH or RELU")
    outputs = []
    for backward, (first, second) in enumerate(((1, 10), (5, 11))):
        weights, recurrent, bias, state = (node[k] for k in range(first, first + 4))
        text = "the state of a layer must be a variable tensor"
        require("tflite-input", node.input_declaration(first + 3).variable, text)
        extra = node.optional_input(second)
        weights = weights if extra is None else g.concat([weights, extra], 1)
        x = input_of_direction(node[0], node.optional_input(9), extra is not None, bool(backward), time_major)
        both = RecurrentWeights(weights, recurrent, bias, None)
        y, _ = call_recurrent_op("rnn", x, both, [state], reverse=bool(backward), activation=activation)
        outputs.append(y if time_major else g.transpose(y, (1, 0, 2)))
    return [g.concat(outputs, 2)] if merge_outputs else outputs


# --- SVDF


def _convert_svdf_node(
    x: Expr, feature_weights: Expr, time_weights: Expr, bias: OptionalExpr = None, *, rank: int = 1, node: TfliteNode
) -> Expr:
    """Convert SVDF. Integer kernels support the activation RELU only, which clipping to the output type applies."""
    state = node[_STATE]
    filters, memory = g.shape(time_weights)
    batch, inputs = g.shape(x)
    fits = rank > 0 and filters % rank == 0 and g.shape(feature_weights) == (filters, inputs)
    fits = fits and g.shape(state) == (batch, filters * memory)
    text = f"SVDF of rank {rank} with weights {g.shape(feature_weights)} and {g.shape(time_weights)} and the state "
    require("graph-shape", fits, f"{text}{g.shape(state)} does not fit data of shape {g.shape(x)}")
    kept = g.reshape(node.kept_tensor(_STATE), (batch, filters, memory))
    new = _integer_products(node) if node.has_quantized_output else _real_products(node)
    weights = time_weights if node.has_quantized_output else node.dequantized_or_real_input(2)
    kept = g.concat([g.strided_slice(kept, [1], [memory], [2]), g.reshape(new, (batch, filters, 1))], 2)
    node.replace_kept_tensor(_STATE, g.reshape(kept, (batch, filters * memory)))
    work = "int32" if node.has_quantized_output else str(g.dtype(x))
    weighted = g.mul(g.cast(kept, work), g.cast(weights, work))
    sums = g.call_reduction("sum", g.reshape(weighted, (batch, filters // rank, rank * memory)), [2], False)
    if not node.has_quantized_output:
        return node.apply_fused_activation(sums if bias is None else g.add(sums, bias))
    whole = sums if bias is None else g.add(sums, bias)
    activation = node.op.option_value("FusedActivationFunction")
    text = f"SVDF of integers with the activation {activation} is not supported (RELU is)"
    require("tflite-options", activation == _RELU_CODE, text)
    ratio = _scale_ratio(node, _STATE, 2, node.first_output_declaration)
    return requantize_rounding_twice(whole, ratio, node.output_quantization())


def _scale_ratio(node: TfliteNode, first: int, second: int, result: TfliteTensor) -> float:
    """Return the product of the scales of two inputs, divided by that of a result. LiteRT computes it in float32,
    TFLite Micro in float64.
    """
    work = np.float64 if node.rounding.name == "tflm" else np.float32
    a, b, c = (work(t.scale[0]) for t in (node.input_declaration(first), node.input_declaration(second), result))
    return float(a * b / c)


def _real_products(node: TfliteNode) -> Expr:
    """Return the products of real inputs with the feature weights. For weights of int8 the inputs are quantized, with a
    scale for each row, as in LiteRT.
    """
    x, units = node[0], g.dim(node[1], 0)
    if not node.needs_dynamic_quantization:
        return g.call_op("nn.dense", x, node[1], units=units)
    asymmetric = node.op.option_value("AsymmetricQuantizeInputs")
    d = quantize_dynamically(x, (1,)) if asymmetric else quantize_symmetrically(x, (1,))
    w = node.per_tensor_quantized_input(1)
    sums = g.call_op("qnn.dense", d.data, w.data, *d.qnn_zero_points_and_scales(w), units=units)
    return d.dequantize_sums(sums, w, None, 1)


def _integer_products(node: TfliteNode) -> Expr:
    """Return the products of the inputs with the feature weights, as int16 with the scale of the state."""
    dtypes = [str(node.input_declaration(k).dtype) for k in (0, 1, 2, _STATE)]
    text = f"SVDF of integers takes data and feature weights of int8, time weights and a state of int16, not {dtypes}"
    require("tflite-quant", dtypes == ["int8", "int8", "int16", "int16"], text)
    x, w = node.per_tensor_quantized_input(0), node.per_tensor_quantized_input(1)
    centered = all(not node.input_declaration(k).zero.any() for k in (1, 2, _STATE))
    require("tflite-quant", centered, "weights and state of an integer SVDF must have the zero point 0")
    unit, none = g.constant(1.0, "float32"), g.constant(0, "int32")
    sums = g.call_op("qnn.dense", x.data, w.data, x.zero, none, unit, unit, units=g.dim(w.data, 0))
    ratio = _scale_ratio(node, 0, 1, node.input_declaration(_STATE))
    return requantize_rounding_twice(sums, ratio, unit_quantization("int16"))


OPS: Final[Table] = {
    "BIDIRECTIONAL_SEQUENCE_RNN": _convert_bidirectional_rnn_node,
    "RNN": _convert_rnn_node,
    "SVDF": _convert_svdf_node,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _convert_sequence_rnn_node,
}
INTEGERS: Final = frozenset({"SVDF"})
MOVES: Final[frozenset[str]] = frozenset()
