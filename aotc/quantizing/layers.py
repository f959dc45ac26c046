# SPDX-License-Identifier: Apache-2.0
"""How much error each layer of a quantized model adds, by itself.

In: the float model, the same with pairs of QuantizeLinear and DequantizeLinear, sets of inputs.  Out: for each layer
the power of its result in the float model over that of the error which it makes there if it alone is quantized, in dB.

    layer_errors(prepared, quantized, names, sets)[0]           # Layer("conv1", "Conv", 38.2), the worst first

One model computes it: the float model, and beside it each quantized layer, fed with the float model's tensors.
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
#: What is told of a signal with no error, or nothing but that.
LEAST_DB: Final = -100.0
#: Layers below this add an error that counts, ...
POOR_DB: Final = 20.0
#: ... if they are this much worse than half of the layers: else there is no culprit.
WORSE_DB: Final = 6.0


@frozen
class Layer:
    """A node that is quantized; `snr_db` is None where its result has no error."""

    node: str
    operator: str
    snr_db: float | None


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two powers; None without noise."""
    if noise == 0:
        return None
    return max(LEAST_DB, 10 * math.log10(signal / noise)) if signal > 0 else LEAST_DB


def power(tensor: Any) -> float:
    """The sum of squares."""
    return float(np.sum(np.square(np.asarray(tensor, np.float64))))


def layer_errors(
    model: onnx.ModelProto, quantized: onnx.ModelProto, names: Container[str], sets: Sequence[Arrays]
) -> list[Layer]:
    """The layers, the worst first.

    names    of nodes that are quantized: others read and write integers, too, but add no error
    """
    twins = _Twins(model, quantized, names)
    if not twins.layers:
        return []
    sums = _run(twins.model(), sets)
    found = [
        Layer(node.name, node.op_type, decibels(*pair))
        for node, pair in zip(twins.layers, zip(sums[::2], sums[1::2], strict=True), strict=True)
    ]
    return sorted(found, key=lambda layer: math.inf if layer.snr_db is None else layer.snr_db)


def suggested(layers: Sequence[Layer]) -> list[str]:
    """Nodes that had better stay in float, the worst first: poor ones, if others are much better."""
    known = [layer.snr_db for layer in layers if layer.snr_db is not None]
    if not known:
        return []
    limit = min(POOR_DB, float(np.median(known)) - WORSE_DB)
    return [layer.node for layer in layers if layer.snr_db is not None and layer.snr_db < limit]


def _run(model: onnx.ModelProto, sets: Sequence[Arrays]) -> list[float]:
    """The outputs, which are scalars, added up over all sets."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rows = [session.run(None, arrays) for arrays in sets]
    return [float(np.sum(column)) for column in zip(*rows, strict=True)]


@dataclass(eq=False)
class _Twins:
    """The float model with quantized layers beside its own.

    layers    those that are quantized, in order
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
        # no tensor of the float model begins with it
        self._prefix = "q" * (1 + max(map(len, self._float), default=0)) + "/"
        self._nodes: dict[str, NodeProto] = {}
        self._outputs: list[str] = []
        for node in graph.node:
            if node.name in self.names:
                self._add(node)

    def _put(self, node: NodeProto, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """A copy of a node, once."""
        copied = NodeProto()
        copied.CopyFrom(node)
        copied.input[:], copied.output[:] = list(inputs), list(outputs)
        copied.name = copied.output[0]
        self._nodes.setdefault(copied.output[0], copied)

    def _called(self, name: str) -> str:
        return name and self._prefix + name

    def _in_float(self, *names: str) -> str:
        """The first of the names that the float model has; "" for none."""
        return next((name for name in names if name in self._float), "")

    def _fed(self, name: str) -> str:
        """What a quantized layer reads in place of a tensor; "" where that cannot be had."""
        maker = self._makers.get(name)
        own = self._called(name)
        if name in self._constants:
            return own
        if maker is None or maker.op_type != DEQUANTIZE:
            return self._in_float(name)
        if maker.input[0] in self._constants:
            self._put(maker, map(self._called, maker.input), [own])
            return own
        pair = self._makers.get(maker.input[0])
        source = self._in_float(pair.input[0], name) if pair is not None and pair.op_type == QUANTIZE else ""
        if pair is None or not source:
            return ""
        middle = self._called(maker.input[0])
        self._put(pair, [source, *map(self._called, pair.input[1:])], [middle])
        self._put(maker, [middle, *map(self._called, maker.input[1:])], [own])
        return own

    def _add(self, node: NodeProto) -> None:
        """A layer, if it is quantized and what it reads and makes is known in float."""
        reader = self._readers.get(node.output[0])
        dequantized = [name for name in node.input if self._is_dequantized(name)]
        names = node.output[0], self._behind(reader) if reader is not None else ""
        expected = self._in_float(*names)
        nested = any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute)
        if nested or not expected or (reader is None and not dequantized):
            return
        inputs = [name and self._fed(name) for name in node.input]
        if any(name and not fed for name, fed in zip(node.input, inputs, strict=True)):
            return
        made = self._called(f"{node.output[0]}/made")
        self._put(node, inputs, [made, *(self._called(f"{name}/made") for name in node.output[1:])])
        self.layers.append(node)
        self._compare(expected, made if reader is None else self._stored(reader, made))

    def _stored(self, reader: NodeProto, made: str) -> str:
        """A result after a QuantizeLinear and its inverse."""
        numbers = [self._called(name) for name in reader.input[1:]]
        stored, read = f"{made}/stored", f"{made}/read"
        self._put(reader, [made, *numbers], [stored])
        inverse = helper.make_node(DEQUANTIZE, [stored, *numbers], [read], domain=reader.domain)
        inverse.attribute.extend(a for a in reader.attribute if a.name in ("axis", "block_size"))
        self._put(inverse, inverse.input, inverse.output)
        return read

    def _is_dequantized(self, name: str) -> bool:
        maker = self._makers.get(name)
        return maker is not None and maker.op_type == DEQUANTIZE

    def _behind(self, reader: NodeProto) -> str:
        """The tensor behind the pair that begins with a QuantizeLinear."""
        return self._inverses.get(reader.output[0], "")

    def _compare(self, expected: str, made: str) -> None:
        """The powers of a signal and of its error as outputs, in double precision."""
        names = [f"{made}/{part}" for part in ("float", "quantized", "error", "signal_power", "error_power")]
        wide = {"to": onnx.TensorProto.DOUBLE}
        for node in (
            helper.make_node("Cast", [expected], [names[0]], **wide),
            helper.make_node("Cast", [made], [names[1]], **wide),
            helper.make_node("Sub", names[:2], [names[2]]),
            helper.make_node("ReduceSumSquare", [names[0]], [names[3]], keepdims=0),
            helper.make_node("ReduceSumSquare", [names[2]], [names[4]], keepdims=0),
        ):
            self._put(node, node.input, node.output)
        self._outputs += names[3:]

    def model(self) -> onnx.ModelProto:
        """The model that gives for each layer the powers of signal and error."""
        found = onnx.ModelProto()
        found.CopyFrom(self.float_model)
        graph = found.graph
        found.ir_version = max(found.ir_version, self.quantized.ir_version)
        del found.opset_import[:]
        found.opset_import.extend(self.quantized.opset_import)
        for tensor in self.quantized.graph.initializer:
            copied = graph.initializer.add()
            copied.CopyFrom(tensor)
            copied.name = self._called(tensor.name)
        graph.node.extend(self._nodes.values())
        del graph.output[:]
        scalars = [helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, []) for name in self._outputs]
        graph.output.extend(scalars)
        return found
