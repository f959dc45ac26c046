# SPDX-License-Identifier: Apache-2.0
"""Cut an ONNX model: extract the nodes between given tensors as a model of its own.

Input: a ModelProto and names of tensors. Output: a ModelProto of the part, whose inputs and outputs
are these tensors with the types that ONNX's shape inference computes.

    part = cut_model(proto, before=[], after=["scores"])     # the nodes that compute "scores", without later ones
"""

from collections.abc import Sequence

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from aotc.ir import AotcError
from aotc.relay.frontend.graph_cut import CUT_ERROR_CODE, NodeTensors, select_nodes_between_tensors
from aotc.relay.frontend.onnx.load import tensor_names_read


def cut_model(model: ModelProto, before: Sequence[str], after: Sequence[str]) -> ModelProto:
    """Return the part of a model that computes the tensors `after`, starting from the tensors
    `before`.

    before    names of tensors that become inputs; inputs of the model that are still needed remain
              inputs
    after     names of tensors that become the outputs; empty for the outputs of the model

    The given model is not changed. Raises AotcError (code "cut") for a name that is not a tensor of
    the model, for a constant in `before`, and for a new input whose type cannot be inferred.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    if fixed := [name for name in before if name in constants]:
        text = f"the tensor {fixed[0]!r} is a constant of the model, not a result of a node"
        raise AotcError(CUT_ERROR_CODE, text, hint="cut before a tensor that a node computes")
    links = [NodeTensors(tuple(sorted(tensor_names_read(node))), tuple(node.output)) for node in graph.node]
    outputs = list(after) or [value.name for value in graph.output]
    inputs = [value.name for value in graph.input if value.name not in constants]
    part = select_nodes_between_tensors(links, [*inputs, *constants], outputs, before)
    types = _tensor_types_by_name(model)
    needed = {name for k in part.nodes for name in links[k].reads} | set(outputs)
    submodel = ModelProto()
    submodel.CopyFrom(model)
    submodel.graph.ClearField("node")
    submodel.graph.node.extend(graph.node[k] for k in part.nodes)
    _replace_repeated_field(
        submodel.graph, "initializer", [tensor for tensor in graph.initializer if tensor.name in needed]
    )
    _replace_repeated_field(
        submodel.graph, "input", [_require_tensor_type(name, types) for name in part.inputs if name not in constants]
    )
    _replace_repeated_field(submodel.graph, "output", [types.get(name, ValueInfoProto(name=name)) for name in outputs])
    _replace_repeated_field(submodel.graph, "value_info", [value for value in graph.value_info if value.name in needed])
    submodel.graph.ClearField("quantization_annotation")
    return submodel


def _replace_repeated_field(graph: GraphProto, field_name: str, values: Sequence[object]) -> None:
    graph.ClearField(field_name)
    getattr(graph, field_name).extend(values)


def _tensor_types_by_name(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Return the declared or inferred type of each tensor of the main graph by name, without
    tensors whose type is unknown.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:
        # shape inference raises its own exceptions, and fails on unknown operators
        graph = model.graph
    values = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: value for value in values if value.type.HasField("tensor_type")}


def _require_tensor_type(name: str, types: dict[str, ValueInfoProto]) -> ValueInfoProto:
    if name not in types:
        text = f"the element type of the tensor {name!r}, a new input, is not known"
        raise AotcError(
            CUT_ERROR_CODE, text, hint="cut at a tensor that the model declares in value_info, or at an earlier one"
        )
    return types[name]
