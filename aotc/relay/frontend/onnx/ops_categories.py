# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of the operators of ai.onnx.ml that map categories and labels, numbers or strings.

For repeated keys and NaN as a key, the results are those of ONNX Runtime, which the standard contradicts in part.

    OPS["LabelEncoder"](x, node=node)        # keys_strings=["cat", "dog"], values_int64s=[0, 1]
    OPS["OneHotEncoder"](x, node=node)       # cats_strings=["cat", "dog"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import Array, require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.constant_lookup import positions_in_sorted
from aotc.relay.frontend.onnx.load import decode_string_tensor
from aotc.relay.frontend.onnx.node import Converted, OnnxNode, Strings, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_classical_ml import require_attribute
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.frontend.string_slots import find_strings, select_strings

#: Keys and values of encoders by the suffix of the attributes that hold them.
_DTYPES_BY_SUFFIX: Final[dict[str, Any]] = {"int64s": np.int64, "floats": np.float32, "strings": object}

#: First version of LabelEncoder in which a key that is NaN is the key of each NaN; before, it is that of no number.
_FIRST_VERSION_WITH_NAN_KEYS: Final = 4


def _is_string_input(node: OnnxNode) -> bool:
    return 0 in node.string_inputs


def _type_name(values: Array) -> str:
    return "string" if values.dtype == object else str(values.dtype)


def _require_input_type(x: Expr, keys: Array, node: OnnxNode, attribute: str) -> None:
    given = "string" if _is_string_input(node) else str(g.dtype(x))
    text = f"is of type {_type_name(keys)}, the input of {given}"
    require_attribute(given == _type_name(keys), node, attribute, text)


def _tensor_attribute(node: OnnxNode, name: str) -> Array:
    """Return the value of a tensor attribute, with str objects for strings."""
    tensor = node.attrs[name]
    # the element types of strings are not those of numbers
    return decode_string_tensor(tensor) if tensor.data_type == tensor.STRING else node.tensor(tensor)


def _label_array(node: OnnxNode, kind: str) -> Array:
    """Return the keys or the values of a LabelEncoder (`kind`: "keys" or "values"). Raises AotcError if
    they are missing or given twice.
    """
    names = {f"{kind}_{suffix}": dtype for suffix, dtype in _DTYPES_BY_SUFFIX.items()}
    found = [np.asarray(node.attrs[name], dtype) for name, dtype in names.items() if node.attrs.get(name)]
    if f"{kind}_tensor" in node.attrs:
        found.append(_tensor_attribute(node, f"{kind}_tensor"))
    known = ", ".join(names)
    text = f"{node.op_type} needs exactly one of the attributes {known} and {kind}_tensor"
    require("onnx-attribute", len(found) == 1, text)
    require_attribute(found[0].ndim == 1, node, f"{kind}_tensor", f"must be a vector, got shape {found[0].shape}")
    return found[0]


def _default_label(node: OnnxNode, values: Array) -> Array:
    if "default_tensor" in node.attrs:
        default = _tensor_attribute(node, "default_tensor")
        fits = default.size == 1 and default.dtype == values.dtype
        text = f"must be one value of {_type_name(values)}, as the values are, got {default.size} of "
        require_attribute(fits, node, "default_tensor", text + _type_name(default))
        return default.reshape(())
    names = {"f": "default_float", "O": "default_string"}
    return np.asarray(node.attrs[names.get(values.dtype.kind, "default_int64")], values.dtype)


def _select_values(values: Array, positions: Expr) -> Converted:
    """Return the values, numbers or strings, at positions."""
    if values.dtype == object:
        return Strings(select_strings(values, positions))
    return gather_slices(g.constant(values), positions, 0)


def _map_strings(x: Expr, keys: Array, values: Array, default: Array) -> Converted:
    """Return the value of each string of `x`; of equal keys, the first one counts."""
    places = {key: k for k, key in reversed(list(enumerate(keys.tolist())))}
    distinct = sorted(places)
    table = np.append(values[[places[key] for key in distinct]], default)
    return _select_values(table, find_strings(x, distinct))


def _map_numbers(x: Expr, keys: Array, values: Array, default: Array) -> Expr:
    """Return the value of each number of `x`: binary search in the sorted keys; of equal keys, the first
    one counts.
    """
    number_by_key = {keys[k].item(): k for k in reversed(range(len(keys))) if keys[k] == keys[k]}
    nan_numbers = np.flatnonzero(keys != keys)
    result: Expr = g.broadcast_to(g.constant(default), g.shape(x))
    if number_by_key:
        order = [number_by_key[key] for key in sorted(number_by_key)]
        table = g.constant(np.append(values[order], default))
        result = gather_slices(table, positions_in_sorted(x, keys[order]), 0)
    if nan_numbers.size:
        result = g.where(g.call_op("isnan", x), g.constant(values[nan_numbers[0]]), result)
    return result


def _map_labels(x: Expr, keys: Array, values: Array, default: Array, node: OnnxNode) -> Converted:
    if _is_string_input(node):
        return _map_strings(x, keys, values, default)
    if values.dtype != object:
        return _map_numbers(x, keys, values, default)
    count = len(values)
    positions = _map_numbers(x, keys, np.arange(count, dtype=np.int32), np.asarray(count, np.int32))
    return Strings(select_strings(np.append(values, default), positions))


def _label_encoder(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert LabelEncoder. In version 1, the labels of strings are their positions."""
    if node.since == 1:
        texts = np.asarray(node.attrs.get("classes_strings", ()), object)
        require_attribute(texts.size > 0, node, "classes_strings", "is missing: LabelEncoder needs labels")
        # of equal labels, the last one counts, contrary to later versions
        keys, values = texts[::-1], np.arange(len(texts))[::-1]
        if not _is_string_input(node):
            keys, values = values, keys
        _require_input_type(x, keys, node, "classes_strings")
    else:
        keys, values = _label_array(node, "keys"), _label_array(node, "values")
        require_attribute(len(keys) == len(values), node, "values_*", f"has {len(values)} values for {len(keys)} keys")
        _require_input_type(x, keys, node, "keys_*")
        if node.since < _FIRST_VERSION_WITH_NAN_KEYS:
            is_number = keys == keys
            keys, values = keys[is_number], values[is_number]
    return _map_labels(x, keys, values, _default_label(node, values), node)


def _category_mapper(x: Expr, *, node: OnnxNode) -> Converted:
    """Convert CategoryMapper, which maps strings to integers or integers to strings."""
    texts = np.asarray(node.attrs.get("cats_strings", ()), object)
    numbers = np.asarray(node.attrs.get("cats_int64s", ()), np.int64)
    text = f"has {texts.size} strings for {numbers.size} integers; equal numbers are needed, at least 1"
    require_attribute(0 < texts.size == numbers.size, node, "cats_strings", text)
    keys, values = (texts, numbers) if _is_string_input(node) else (numbers, texts)
    _require_input_type(x, keys, node, "cats_*")
    # of equal keys, the last one counts, contrary to later versions of LabelEncoder
    keys, values = keys[::-1], values[::-1]
    return _map_labels(x, keys, values, _default_label(node, values), node)


def _distinct_categories(node: OnnxNode, attribute: str) -> Sequence[Any]:
    """Return the categories of a OneHotEncoder. Raises AotcError if they are missing or repeated."""
    categories = list(node.attrs.get(attribute) or ())
    kind = "strings" if _is_string_input(node) else "numbers"
    text = f"is missing: OneHotEncoder of {kind} needs categories that are {kind}"
    require_attribute(len(categories) > 0, node, attribute, text)
    is_distinct = len(set(categories)) == len(categories)
    require_attribute(is_distinct, node, attribute, f"repeats a category: {categories[:8]}")
    return categories


def _one_hot_encoder(x: Expr, *, node: OnnxNode) -> Expr:
    """Convert OneHotEncoder. A value that is no category gives zeros, also with zeros=0, where ONNX Runtime fails."""
    if _is_string_input(node):
        categories = _distinct_categories(node, "cats_strings")
        positions = find_strings(x, categories)
        known: Expr = g.iota(len(categories), "int32")
    else:
        positions = g.cast(x, "int64")
        known = g.constant(np.asarray(_distinct_categories(node, "cats_int64s"), np.int64))
    return g.cast(g.equal(g.unsqueeze(positions, (g.rank(positions),)), known), "float32")


OPS: Table = table_by_function_name(_category_mapper, _label_encoder, _one_hot_encoder)
