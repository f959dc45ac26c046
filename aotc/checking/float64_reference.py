# SPDX-License-Identifier: Apache-2.0
"""Float64 evaluation of an ONNX model, to measure the rounding error of float32 results.

In: an ONNX model in float32.  Out: its outputs computed in float64 by onnx's own reference
evaluator, which shares no code with this compiler or with ONNX Runtime.  Convolutions and pools are
computed by `aotc.checking.onnx_evaluator_conv_pool`.

    Float64Evaluator(model, memory=1 << 30).evaluate_model({"x": array})["y"]  # array and result in float64
"""

import copy
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from aotc.checking.evaluation_memory_budget import DEFAULT_MEMORY_BYTES, EVALUATION_BYTES_PER_RESULT_BYTE, MemoryBudget
from aotc.checking.input_generation import Arrays
from aotc.checking.onnx_evaluator_conv_pool import MAX_STRIP_BYTES, WINDOW_OPERATORS
from aotc.checking.onnx_evaluator_operators import EVALUATOR_OPERATORS
from aotc.relay.frontend.onnx.load import message_and_nested_protobuf_messages


def _widen_node_to_float64_in_place(node: onnx.NodeProto) -> None:
    """Change a node in place from float32 to float64: dtype attributes of Cast and EyeLike, and
    float values of Constant.

    Upsample becomes Resize with asymmetric coordinates and rounding down, since onnx's evaluator
    implements only the nearest mode of Upsample.
    """
    if node.op_type == "Upsample":
        # onnx's evaluator implements the nearest mode of Upsample only
        node.op_type, node.input[1:] = "Resize", ["", *node.input[1:]]
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        node.attribute.extend(helper.make_attribute(*item) for item in how.items())
    for attribute in node.attribute:
        to_dtype = node.op_type in ("Cast", "EyeLike") and attribute.name in ("to", "dtype")
        if to_dtype and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            array = np.asarray(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def convert_model_to_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of an ONNX model in which every float32 tensor, type and constant is float64."""
    wide = copy.deepcopy(model)
    for message in list(message_and_nested_protobuf_messages(wide)):
        match message:
            case onnx.NodeProto():
                _widen_node_to_float64_in_place(message)
            case TensorProto(data_type=TensorProto.FLOAT):
                array = numpy_helper.to_array(message).astype(np.float64)
                message.CopyFrom(numpy_helper.from_array(array, message.name))
            case onnx.TypeProto.Tensor(elem_type=TensorProto.FLOAT):
                message.elem_type = TensorProto.DOUBLE
    return wide


class Float64Evaluator:
    """Evaluator of an ONNX model in float64, node by node; each value is freed after its last use.

    memory    largest number of bytes that weights, values and temporary arrays may take at any time
    is_wide   True for float64; False for the model's own dtypes
    """

    def __init__(self, model: onnx.ModelProto, memory: int = DEFAULT_MEMORY_BYTES, is_wide: bool = True) -> None:
        self._memory = memory
        self._outputs = [o.name for o in model.graph.output]
        wide = convert_model_to_float64(model) if is_wide else model
        self._result_bytes = _inferable_value_sizes_in_bytes(wide)
        self._evaluator = ReferenceEvaluator(wide, new_ops=list(EVALUATOR_OPERATORS))
        self._last_uses = _values_to_free_after_each_node(wide.graph)

    def evaluate_model(self, inputs: Arrays) -> Arrays:
        """Return the outputs by name for inputs by name.

        Raise AotcError (code "memory") if the evaluation needs more than the memory budget, and any
        exception of onnx's evaluator.
        """
        evaluator = self._evaluator
        values: dict[str, Any] = {"": None, **evaluator.rt_inits_, **inputs}
        budget = MemoryBudget(self._memory)
        budget.add_buffers_of_held_value(list(values.values()))
        for node, dying in zip(evaluator.rt_nodes_, self._last_uses, strict=True):
            self._require_memory_for_node(node, budget)
            context = {"context": values} if node.need_context() else {}
            results = node.run(*(values[name] for name in node.input), **context)
            for name, value in zip(node.output, results, strict=False):
                values[name] = value
                budget.add_buffers_of_held_value(value)
            for name in dying:
                budget.remove_buffers_of_released_value(values.pop(name, None))
        return {name: np.asarray(values[name]) for name in self._outputs}

    def _require_memory_for_node(self, node: Any, budget: MemoryBudget) -> None:
        """Raise AotcError (code "memory") unless the results and the temporary arrays of a node fit
        in the budget.
        """
        result_bytes = sum(self._result_bytes.get(name, 0) for name in node.output)
        needed_bytes = (
            result_bytes + MAX_STRIP_BYTES
            if isinstance(node, WINDOW_OPERATORS)
            else EVALUATION_BYTES_PER_RESULT_BYTE * result_bytes
        )
        budget.require_bytes_fit_in_memory_budget(f"node {node.onnx_node.name!r} ({node.op_type})", needed_bytes)


def _inferable_value_sizes_in_bytes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the size in bytes of each value of a model whose shape can be inferred, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    sizes = {}
    for value in (*graph.value_info, *graph.output):
        ty = value.type.tensor_type
        if ty.HasField("shape") and ty.elem_type not in (TensorProto.UNDEFINED, TensorProto.STRING):
            size = helper.tensor_dtype_to_np_dtype(ty.elem_type).itemsize
            sizes[value.name] = size * prod(d.dim_value for d in ty.shape.dim)
    return sizes


def _value_names_read_by_node(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the values that a node and its subgraphs read."""
    for message in message_and_nested_protobuf_messages(node):
        if isinstance(message, onnx.NodeProto):
            yield from message.input
        elif isinstance(message, onnx.GraphProto):
            yield from (o.name for o in message.output)


def _values_to_free_after_each_node(graph: onnx.GraphProto) -> list[list[str]]:
    """Return, for each node of a graph, the names of the computed values that can be freed after
    it: no later node reads them and they are no outputs.
    """
    last: dict[str, int] = {}
    for k, node in enumerate(graph.node):
        last |= dict.fromkeys(node.output, k) | dict.fromkeys(_value_names_read_by_node(node), k)
    freeable_names = {name for node in graph.node for name in node.output if name} - {o.name for o in graph.output}
    dying: list[list[str]] = [[] for _ in graph.node]
    for name in freeable_names:
        dying[last[name]].append(name)
    return dying


def evaluate_model_in_float64(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """Return the outputs of an ONNX model by name, computed in float64 with the default memory
    budget; raise any exception of onnx's evaluator.
    """
    return Float64Evaluator(model).evaluate_model(inputs)
