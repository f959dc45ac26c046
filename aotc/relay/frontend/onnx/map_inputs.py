# SPDX-License-Identifier: Apache-2.0
"""Replace the inputs of an ONNX model that are maps by tensors of their values.

Two operators read a map: DictVectorizer returns the values of the keys that its attribute string_vocabulary or
int64_vocabulary lists, in this order, and CastMap those of all keys. The input of the compiled model is this row of
values, with 0 for a listed key that the map does not have. For CastMap with the map form DENSE it has the values of
the map by ascending key, and for SPARSE the values of the keys 0 to max_map - 1:

    (map(string, float) x, DictVectorizer with string_vocabulary=["cat", "dog"])  ->  (float[1, 2] x, Identity)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onnx import ModelProto, NodeProto, TensorProto, helper

from aotc.ir import AotcError, option_text, require

ML_DOMAIN: Final = "ai.onnx.ml"
#: Version of the standard operators that a model without an import of them gets.
_OPSET_OF_IDENTITY: Final = 13
_VALUE_TYPES: Final = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64)
_CAST_TYPES: Final = {"TO_FLOAT": TensorProto.FLOAT, "TO_INT64": TensorProto.INT64}


def names_of_map_inputs(model: ModelProto) -> list[str]:
    """Return the names of the inputs of a model that are maps."""
    return [v.name for v in model.graph.input if v.type.HasField("map_type")]


def with_map_inputs_as_tensors(model: ModelProto, lengths: Mapping[str, int | None] | None) -> ModelProto:
    """Return a model with a tensor of values in place of each input that is a map; the model itself if it has none.

    lengths    number of elements of maps that CastMap reads in the map form DENSE, by input name; None if these
               tensors may have any number of elements

    Raises AotcError (code "onnx-input") for a map that other operators read, of values that are no numbers, or of
    unknown length.
    """
    maps = {v.name: v for v in model.graph.input if v.type.HasField("map_type")}
    if not maps:
        return model
    changed = ModelProto()
    changed.CopyFrom(model)
    for value in changed.graph.input:
        if value.name in maps:
            value.CopyFrom(_tensor_input(value, changed, lengths))
    for node in changed.graph.node:
        if maps.keys() & set(node.input):
            node.CopyFrom(_node_on_tensors(node))
    if not any(opset.domain in ("", "ai.onnx") for opset in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", _OPSET_OF_IDENTITY))
    return changed


def _tensor_input(value: Any, model: ModelProto, lengths: Mapping[str, int | None] | None) -> Any:
    """Return the tensor that stands for a map."""
    name, map_type = value.name, value.type.map_type
    element = map_type.value_type.tensor_type.elem_type
    text = f"the values of the map {name!r} are not of type float, double or int64"
    require("onnx-input", element in _VALUE_TYPES, text)
    readers = [node for node in model.graph.node if name in node.input]
    text = f"the map {name!r} must be read by DictVectorizer or CastMap alone"
    known = all(n.domain == ML_DOMAIN and n.op_type in ("DictVectorizer", "CastMap") for n in readers)
    require("onnx-input", bool(readers) and known, text)
    lists_of_keys = {_keys_of_node(node, map_type.key_type, lengths) for node in readers}
    text = f"the operators that read the map {name!r} list different keys"
    require("onnx-input", len(lists_of_keys) == 1, text)
    (keys,) = lists_of_keys
    return helper.make_tensor_value_info(name, element, [1, None if keys is None else len(keys)])


def _keys_of_node(node: NodeProto, key_type: int, lengths: Mapping[str, int | None] | None) -> tuple[Any, ...] | None:
    """Return the keys whose values a node reads from a map, in the order of these values; for CastMap, the numbers from
    0 on, of which only the count matters; None if a map may have any number of keys.
    """
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "DictVectorizer":
        name = "string_vocabulary" if key_type == TensorProto.STRING else "int64_vocabulary"
        keys = tuple(attributes.get(name, ()))
        text = f"attribute {name!r} of DictVectorizer must list distinct keys of the type of keys of the map"
        require("onnx-attribute", bool(keys) and len(set(keys)) == len(keys), text)
        return keys
    length = None if lengths is None else lengths.get(node.input[0])
    if attributes.get("map_form", b"DENSE") == b"SPARSE":
        length = int(attributes.get("max_map", 1))
        require("onnx-attribute", length > 0, f"attribute 'max_map' of CastMap is {length}")
    elif lengths is None:
        return None
    elif length is None:
        hint = "give it, for example: " + option_text("dims", {node.input[0]: 2})
        text = f"the number of elements of the map {node.input[0]!r} is not known"
        raise AotcError("onnx-input", text, hint=hint)
    return tuple(range(length))


def _node_on_tensors(node: NodeProto) -> NodeProto:
    """Return the node that computes the result of a node on maps from the values of a map."""
    if node.op_type == "DictVectorizer":
        return helper.make_node("Identity", node.input, node.output, name=node.name)
    wanted = next((a.s.decode() for a in node.attribute if a.name == "cast_to"), "TO_FLOAT")
    text = f"attribute 'cast_to' of CastMap is {wanted!r}, which is not supported ({', '.join(_CAST_TYPES)} are)"
    require("onnx-attribute", wanted in _CAST_TYPES, text)
    return helper.make_node("Cast", node.input, node.output, name=node.name, to=_CAST_TYPES[wanted])
