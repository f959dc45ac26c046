# SPDX-License-Identifier: Apache-2.0
"""Replace the inputs of an ONNX model that are sequences, maps or optional values by tensors.

Input: a model, and the lengths of its sequences. Output: a model with one input for each element, from
which it constructs the sequences:

    (seq(float[N]) xs, optional(float) t) -> (float[N] "xs[0]", float[N] "xs[1]", float t)  with {"xs": 2}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from aotc.ir import AotcError, option_text
from aotc.relay.frontend.onnx.map_inputs import names_of_map_inputs, with_map_inputs_as_tensors


def names_of_inputs_with_length(model: ModelProto) -> list[str]:
    """Return the names of the inputs of a model whose number of elements the caller may have to state: sequences,
    and maps.
    """
    return [*names_of_sequence_inputs(model), *names_of_map_inputs(model)]


def names_of_sequence_inputs(model: ModelProto) -> list[str]:
    """Return the names of the inputs of a model that are sequences, or optional sequences."""
    return [v.name for v in model.graph.input if _present_type(v.type).HasField("sequence_type")]


def element_name(name: str, position: int) -> str:
    """Return the name of the tensor that is an element of a sequence."""
    return f"{name}[{position}]"


def with_tensor_inputs(model: ModelProto, lengths: Mapping[str, int | None]) -> ModelProto:
    """Return a model without inputs that are sequences, maps or optional values; the model itself if it has
    none.

    lengths    number of elements of each sequence or map, and None for each optional value that is absent,
               by input name; optional tensors are present if they are not named

    Raises AotcError (code "onnx-input") for a sequence whose length is not given.
    """
    model = with_map_inputs_as_tensors(model, lengths)
    if all(v.type.HasField("tensor_type") for v in model.graph.input):
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    inputs: list[ValueInfoProto] = []
    nodes: list[NodeProto] = []
    for value in model.graph.input:
        if value.name in lengths and lengths[value.name] is None:
            nodes.append(helper.make_node("Optional", [], [value.name], type=value.type.optional_type.elem_type))
            continue
        present = _present_type(value.type)
        if not present.HasField("sequence_type"):
            inputs.append(helper.make_value_info(value.name, present))
            continue
        count = lengths.get(value.name)
        if count is None:
            hint = "give its number of elements, for example: " + option_text("dims", {value.name: 2})
            raise AotcError("onnx-input", f"the length of the sequence {value.name!r} is not known", hint=hint)
        element = _type_with_sizes_of_its_own(present.sequence_type.elem_type)
        names = [element_name(value.name, k) for k in range(count)]
        inputs += [helper.make_value_info(name, element) for name in names]
        nodes.append(
            helper.make_node("SequenceConstruct", names, [value.name])
            if names
            else helper.make_node("SequenceEmpty", [], [value.name], dtype=element.tensor_type.elem_type)
        )
    changed.graph.ClearField("input")
    changed.graph.input.extend(inputs)
    changed.graph.ClearField("node")
    changed.graph.node.extend([*nodes, *model.graph.node])
    return changed


def _type_with_sizes_of_its_own(type_: TypeProto) -> TypeProto:
    """Return the type of the elements of a sequence without names of dimensions, since these may have
    another size in each element.
    """
    changed = TypeProto()
    changed.CopyFrom(type_)
    for dim in changed.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    return changed


def tensor_type_of_value(type_: Any) -> Any:
    """Return the type of a tensor, of an optional tensor, or of the elements of a sequence."""
    present = _present_type(type_)
    return (present.sequence_type.elem_type if present.HasField("sequence_type") else present).tensor_type


def _present_type(type_: Any) -> Any:
    """Return the type of an optional value if it is present, and any other type itself."""
    return type_.optional_type.elem_type if type_.HasField("optional_type") else type_
