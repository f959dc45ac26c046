# SPDX-License-Identifier: Apache-2.0
"""Instantiate ONNX functions: expand a composite operator into the graph of simpler operators that
defines it.

Input: a node and the function that it calls. Output: a graph in which attribute references are
replaced by the attributes of the node, and inputs and outputs that the node omits are removed.

    body = standard_function_body(schema, proto, inputs, opset)  # ONNX's own definition of the operator
    graph = instantiate_function_body(body, proto, defaults)
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto, helper

from aotc.ir.diagnostics import AotcError
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.frontend.onnx.load import node_subgraphs, onnx_type_of_dtype

_LOG: Final = logging.getLogger(__name__)


def standard_function_body(schema: Any, proto: NodeProto, inputs: Sequence[Expr | None], opset: int) -> FunctionProto:
    """Return the function by which ONNX defines an operator in the operator set of the model.

    Raises AotcError (code "onnx-op") if ONNX defines no function for these inputs and attributes.
    """
    if schema.has_function:
        version = _newest_version_up_to_opset_or_oldest(schema.function_opset_versions, opset)
        data = schema.get_function_with_opset_version(version)
    else:
        version = _newest_version_up_to_opset_or_oldest(schema.context_dependent_function_opset_versions, opset)
        types = [_argument_type_proto(x).SerializeToString() for x in inputs]
        try:
            data = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
        except Exception as error:  # the schema's function builder may raise any exception
            _LOG.debug("%s has no function", proto.op_type, exc_info=True)
            given = ", ".join("none" if x is None else str(x.checked_type) for x in inputs)
            text = f"{proto.op_type} is not defined for these inputs and attributes: ({given})"
            raise AotcError("onnx-op", text) from error
    if not data:
        raise AotcError("onnx-op", f"operator {proto.op_type} is not supported for these inputs and attributes")
    if isinstance(data, FunctionProto):
        return data
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _newest_version_up_to_opset_or_oldest(versions: Sequence[int], opset: int) -> int:
    """Return the newest version of a function body that is not newer than the model's operator set,
    or the oldest version if all are newer.
    """
    fitting = [v for v in versions if v <= opset]
    return max(fitting) if fitting else min(versions)


def _argument_type_proto(x: Expr | None) -> TypeProto:
    """Return the ONNX type (TypeProto) of an argument; an empty one for an omitted argument."""
    if x is None:
        return TypeProto()
    ty = tensor_type_of(x)
    shape = [d if isinstance(d, int) else d.name or None for d in ty.shape]
    return helper.make_tensor_type_proto(onnx_type_of_dtype(ty.dtype), shape)


def instantiate_function_body(function: FunctionProto, proto: NodeProto, defaults: Mapping[str, Any]) -> GraphProto:
    """Return the body of `function` as a graph with the attributes of the node `proto` inserted and
    its omitted inputs and outputs removed.

    `defaults` are the attribute values that apply where the node omits an attribute.
    """
    given = {a.name: a for a in proto.attribute}
    for attribute in function.attribute_proto:
        given.setdefault(attribute.name, attribute)
    for name, value in defaults.items():
        if name not in given and value != []:
            given[name] = helper.make_attribute(name, value)
    absent = set(function.input[len(proto.input) :])
    absent |= {formal for formal, actual in zip(function.input, proto.input, strict=False) if not actual}
    graph = GraphProto(name=function.name)
    graph.node.extend(function.node)
    for formal, actual in zip(function.output, proto.output, strict=False):
        if actual:
            graph.output.add().name = formal
    _substitute_attributes_in_place(graph, given, absent)
    return graph


def _substitute_attributes_in_place(
    graph: GraphProto, given_attributes: Mapping[str, AttributeProto], omitted_inputs: set[str]
) -> None:
    """Replace attribute references in a function body by values and remove omitted inputs, in
    place, in all nodes of a graph and its subgraphs.
    """
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in omitted_inputs:
                node.input[position] = ""
        while node.input and not node.input[-1]:
            del node.input[-1]
        attributes = [_resolve_attribute_reference(a, given_attributes) for a in node.attribute]
        del node.attribute[:]
        node.attribute.extend(a for a in attributes if a is not None)
        for inner in node_subgraphs(node):
            _substitute_attributes_in_place(inner, given_attributes, omitted_inputs)


def _resolve_attribute_reference(
    attribute: AttributeProto, given_attributes: Mapping[str, AttributeProto]
) -> AttributeProto | None:
    """Resolve an attribute of a node in a function body: if it refers to an attribute of the
    function, return a copy of the value of that under its own name, or None if the caller omits it;
    return any other attribute unchanged.
    """
    if not attribute.ref_attr_name:
        return attribute
    value = given_attributes.get(attribute.ref_attr_name)
    if value is None:
        return None
    copy = AttributeProto()
    copy.CopyFrom(value)
    copy.name = attribute.name
    return copy
