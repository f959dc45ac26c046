# SPDX-License-Identifier: Apache-2.0
"""Measure the error that each layer of a quantized model adds on its own.

Input: the float model, the quantized model with pairs of QuantizeLinear and DequantizeLinear, and
sets of inputs.  Output: for each layer the signal-to-noise ratio in dB of its result if it alone is
quantized, relative to the float model.

    measure_error_of_each_layer(prepared, quantized, names, sets)[0]  # Layer("conv1", "Conv", 38.2), the worst first

All ratios are computed by one ONNX model: the float model with a quantized copy of each layer,
which reads the float model's tensors.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from onnx import NodeProto, helper

from aotc.checking.input_generation import Arrays
from aotc.ir import frozen

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
#: Lowest signal-to-noise ratio that is reported, also for a zero signal.
MIN_REPORTED_DB: Final = -100.0
#: Layers below this signal-to-noise ratio are poor ...
MAX_POOR_LAYER_DB: Final = 20.0
#: ... if they are also worse than the median layer by this much.
MIN_DB_BELOW_MEDIAN: Final = 6.0


@frozen
class Layer:
    """A quantized node and the signal-to-noise ratio of its result in dB; None if the result has no
    error.
    """

    node: str
    operator: str
    snr_db: float | None


def power_ratio_decibels(signal_power: float, noise_power: float) -> float | None:
    """Return the ratio of two powers in dB, at least `MIN_REPORTED_DB`; None if the noise is zero."""
    if noise_power == 0:
        return None
    return max(MIN_REPORTED_DB, 10 * math.log10(signal_power / noise_power)) if signal_power > 0 else MIN_REPORTED_DB


def sum_of_squares(tensor: Any) -> float:
    """Return the power of a signal: the sum of squares of a tensor's elements, in float64."""
    return float(np.sum(np.square(np.asarray(tensor, np.float64))))


def measure_error_of_each_layer(
    model: onnx.ModelProto, quantized: onnx.ModelProto, quantized_nodes: Container[str], sets: Sequence[Arrays]
) -> list[Layer]:
    """Return the quantized layers with their errors, the worst first.

    quantized_nodes    names of the quantized nodes; other nodes may process integers, but add no error
    """
    twins = _QuantizedLayerCopyBuilder(model, quantized, quantized_nodes)
    if not twins.layers:
        return []
    sums = _sum_scalar_outputs_over_sets(twins.build_error_power_model(), sets)
    layers = [
        Layer(node.name, node.op_type, power_ratio_decibels(*pair))
        for node, pair in zip(twins.layers, zip(sums[::2], sums[1::2], strict=True), strict=True)
    ]
    return sorted(layers, key=lambda layer: math.inf if layer.snr_db is None else layer.snr_db)


def suggest_layers_to_leave_in_float(layers: Sequence[Layer]) -> list[str]:
    """Return the nodes that should be left in float, the worst first: poor ones, if most layers are
    much better.
    """
    known = [layer.snr_db for layer in layers if layer.snr_db is not None]
    if not known:
        return []
    limit = min(MAX_POOR_LAYER_DB, float(np.median(known)) - MIN_DB_BELOW_MEDIAN)
    return [layer.node for layer in layers if layer.snr_db is not None and layer.snr_db < limit]


def _sum_scalar_outputs_over_sets(model: onnx.ModelProto, sets: Sequence[Arrays]) -> list[float]:
    """Run an ONNX model with scalar outputs on all sets of inputs; return the sum of each output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rows = [session.run(None, arrays) for arrays in sets]
    return [float(np.sum(column)) for column in zip(*rows, strict=True)]


@dataclass(eq=False)
class _QuantizedLayerCopyBuilder:
    """Builder of an ONNX model that contains the float model and a quantized copy of each layer.

    layers    the quantized layers, in order
    """

    float_model: onnx.ModelProto
    quantized: onnx.ModelProto
    names: Container[str]
    layers: list[NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph, float_graph = self.quantized.graph, self.float_model.graph
        self._constants = {tensor.name for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, NodeProto] = {}
        self._inverses: dict[str, str] = {}
        for node in graph.node:
            if node.op_type == QUANTIZE:
                self._readers.setdefault(node.input[0], node)
            elif node.op_type == DEQUANTIZE:
                self._inverses[node.input[0]] = node.output[0]
        self._float = {name for node in float_graph.node for name in node.output}
        self._float |= {value.name for value in (*float_graph.input, *float_graph.initializer)}
        # longer than any name in the float model, so that no name begins with it
        self._prefix = "q" * (1 + max(map(len, self._float), default=0)) + "/"
        self._nodes: dict[str, NodeProto] = {}
        self._outputs: list[str] = []
        for node in graph.node:
            if node.name in self.names:
                self._add_quantized_layer_copy_if_possible(node)

    def _add_node_copy_unless_output_exists(
        self, node: NodeProto, inputs: Iterable[str], outputs: Iterable[str]
    ) -> None:
        """Add to the model a copy of a node with other inputs and outputs, unless its first output
        exists already.
        """
        copied = NodeProto()
        copied.CopyFrom(node)
        copied.input[:], copied.output[:] = list(inputs), list(outputs)
        copied.name = copied.output[0]
        self._nodes.setdefault(copied.output[0], copied)

    def _prefixed_tensor_name(self, name: str) -> str:
        return name and self._prefix + name

    def _first_name_found_in_float_model(self, *names: str) -> str:
        """Return the first of the given tensor names that exists in the float model; "" if none
        does.
        """
        return next((name for name in names if name in self._float), "")

    def _add_input_of_quantized_layer_copy(self, name: str) -> str:
        """Return the tensor that a quantized layer reads instead of `name`, adding the nodes for
        it; "" if impossible.
        """
        maker = self._makers.get(name)
        copy_name = self._prefixed_tensor_name(name)
        if name in self._constants:
            return copy_name
        if maker is None or maker.op_type != DEQUANTIZE:
            return self._first_name_found_in_float_model(name)
        if maker.input[0] in self._constants:
            self._add_node_copy_unless_output_exists(maker, map(self._prefixed_tensor_name, maker.input), [copy_name])
            return copy_name
        pair = self._makers.get(maker.input[0])
        source = (
            self._first_name_found_in_float_model(pair.input[0], name)
            if pair is not None and pair.op_type == QUANTIZE
            else ""
        )
        if pair is None or not source:
            return ""
        middle = self._prefixed_tensor_name(maker.input[0])
        self._add_node_copy_unless_output_exists(
            pair, [source, *map(self._prefixed_tensor_name, pair.input[1:])], [middle]
        )
        self._add_node_copy_unless_output_exists(
            maker, [middle, *map(self._prefixed_tensor_name, maker.input[1:])], [copy_name]
        )
        return copy_name

    def _add_quantized_layer_copy_if_possible(self, node: NodeProto) -> None:
        """Add a quantized copy of a layer and the comparison of its result, if its tensors exist in
        the float model.
        """
        reader = self._readers.get(node.output[0])
        dequantized = [name for name in node.input if self._is_output_of_dequantize(name)]
        names = node.output[0], self._output_of_following_dequantize(reader) if reader is not None else ""
        expected = self._first_name_found_in_float_model(*names)
        nested = any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute)
        if nested or not expected or (reader is None and not dequantized):
            return
        inputs = [name and self._add_input_of_quantized_layer_copy(name) for name in node.input]
        if any(name and not fed for name, fed in zip(node.input, inputs, strict=True)):
            return
        copy_output = self._prefixed_tensor_name(f"{node.output[0]}/made")
        self._add_node_copy_unless_output_exists(
            node, inputs, [copy_output, *(self._prefixed_tensor_name(f"{name}/made") for name in node.output[1:])]
        )
        self.layers.append(node)
        self._add_signal_and_error_power_outputs(
            expected, copy_output if reader is None else self._add_quantize_dequantize_pair(reader, copy_output)
        )

    def _add_quantize_dequantize_pair(self, quantize_node: NodeProto, result: str) -> str:
        """Add a QuantizeLinear like `quantize_node` and its inverse after a result; return the
        dequantized tensor.
        """
        numbers = [self._prefixed_tensor_name(name) for name in quantize_node.input[1:]]
        stored, read = f"{result}/stored", f"{result}/read"
        self._add_node_copy_unless_output_exists(quantize_node, [result, *numbers], [stored])
        inverse = helper.make_node(DEQUANTIZE, [stored, *numbers], [read], domain=quantize_node.domain)
        inverse.attribute.extend(a for a in quantize_node.attribute if a.name in ("axis", "block_size"))
        self._add_node_copy_unless_output_exists(inverse, inverse.input, inverse.output)
        return read

    def _is_output_of_dequantize(self, name: str) -> bool:
        maker = self._makers.get(name)
        return maker is not None and maker.op_type == DEQUANTIZE

    def _output_of_following_dequantize(self, quantize_node: NodeProto) -> str:
        """Return the output of the DequantizeLinear that follows a QuantizeLinear; "" if there is
        none.
        """
        return self._inverses.get(quantize_node.output[0], "")

    def _add_signal_and_error_power_outputs(self, float_tensor: str, quantized_tensor: str) -> None:
        """Add outputs with the power of a float tensor and of its error after quantization, in
        float64.
        """
        names = [
            f"{quantized_tensor}/{part}" for part in ("float", "quantized", "error", "signal_power", "error_power")
        ]
        wide = {"to": onnx.TensorProto.DOUBLE}
        for node in (
            helper.make_node("Cast", [float_tensor], [names[0]], **wide),
            helper.make_node("Cast", [quantized_tensor], [names[1]], **wide),
            helper.make_node("Sub", names[:2], [names[2]]),
            helper.make_node("ReduceSumSquare", [names[0]], [names[3]], keepdims=0),
            helper.make_node("ReduceSumSquare", [names[2]], [names[4]], keepdims=0),
        ):
            self._add_node_copy_unless_output_exists(node, node.input, node.output)
        self._outputs += names[3:]

    def build_error_power_model(self) -> onnx.ModelProto:
        """Return the model whose outputs are the powers of signal and error of each layer."""
        power_model = onnx.ModelProto()
        power_model.CopyFrom(self.float_model)
        graph = power_model.graph
        power_model.ir_version = max(power_model.ir_version, self.quantized.ir_version)
        del power_model.opset_import[:]
        power_model.opset_import.extend(self.quantized.opset_import)
        for tensor in self.quantized.graph.initializer:
            copied = graph.initializer.add()
            copied.CopyFrom(tensor)
            copied.name = self._prefixed_tensor_name(tensor.name)
        graph.node.extend(self._nodes.values())
        del graph.output[:]
        scalars = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, []) for name in self._outputs]
        graph.output.extend(scalars)
        return power_model
