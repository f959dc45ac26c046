# SPDX-License-Identifier: Apache-2.0
"""Write names, numbers, types and attribute values as Relay text that parses back to the identical
value.

local_variable_name_text("x")               # %x
local_variable_name_text("/layer1/Conv:0")  # %"/layer1/Conv:0"
scalar_literal_or_none(np.float32(1 / 3))  # 0.33333334f: six digits where they suffice, else the shortest
type_text(TensorType((1, SymDim("batch size")), "int8"))      # Tensor[(1, "batch size"), int8]

Constants that are not written as numbers are stored in the metadata section, as JSON with base64
data. The arrays have the binary format of Relay's parameter files. A constant whose elements are
all equal is stored as one element and its shape.

meta[relay.Constant][0]                # refers to the first constant of the metadata section
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    Dim,
    DType,
    ParameterFileReader,
    Span,
    SymDim,
    Type,
    serialize_array,
    text_with_bounds,
    types,
)

#: The version of the text format.
TEXT_FORMAT_VERSION: Final = "0.0.5"

#: Regex of a name that needs no quotes: identifiers joined by dots or double colons.
UNQUOTED_NAME_PATTERN: Final = r"[A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*"

#: For each data type of scalars that are written as numbers, the suffix of the literal.
LITERAL_SUFFIX_BY_DTYPE: Final = {
    "int16": "i16",
    "int32": "",
    "int64": "i64",
    "float16": "f16",
    "float32": "f",
    "float64": "f64",
}

_UNQUOTED_NAME_REGEX: Final = re.compile(UNQUOTED_NAME_PATTERN, re.ASCII)
_WORD_REGEX: Final = re.compile(r"\w*", re.ASCII)
_UNQUOTED_DIM_REGEX: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def quote_string(text: str) -> str:
    """Return `text` as a string literal on one line, with JSON's escape sequences."""
    return json.dumps(text)


def variable_name_with_v_before_nonletter(name: str) -> str:
    """Return a variable's name by Relay's rule: `v` is put before an unquoted name that does not
    begin with a letter.
    """
    if _WORD_REGEX.fullmatch(name) and not name[:1].isalpha():
        return f"v{name}"
    return name


def _quote_name_if_needed(name: str) -> str:
    return name if _UNQUOTED_NAME_REGEX.fullmatch(name) else quote_string(name)


def local_variable_name_text(name: str) -> str:
    """Return a variable's name as text: %name, quoted if it is not made of identifiers, dots and
    double colons.
    """
    return f"%{_quote_name_if_needed(name)}"


def global_function_name_text(name: str) -> str:
    """Return a global function's name as text: @name, quoted by the rule for variables."""
    return f"@{_quote_name_if_needed(name)}"


def _shortest_float_text(value: float, dtype: np.dtype[Any]) -> str:
    """Return the shortest decimal text, but at least six digits (C's %g), that parses to the
    identical `dtype` value.
    """
    exact = dtype.type(value)
    for digits in range(6, 18):
        text = f"{float(value):.{digits}g}"
        if np.isnan(exact) or dtype.type(float(text)) == exact:
            return text
    raise AssertionError(f"17 digits do not give {value!r}")


def scalar_literal_or_none(value: np.ndarray[Any, Any] | np.generic) -> str | None:
    """Return a 0-d array as a numeric literal; None if it must be stored in the metadata section.

    The metadata section holds NaNs with a payload and data types without a literal suffix.
    """
    array = np.asarray(value)
    name = array.dtype.name
    if name == "bool":
        return str(bool(array))
    if name not in LITERAL_SUFFIX_BY_DTYPE:
        return None
    if name.startswith("int"):
        return f"{int(array)}{LITERAL_SUFFIX_BY_DTYPE[name]}"
    if np.isnan(array) and array.tobytes() != np.asarray(np.nan, array.dtype).tobytes():
        return None
    return _shortest_float_text(float(array), array.dtype) + LITERAL_SUFFIX_BY_DTYPE[name]


def attribute_value_text(value: object) -> str:
    """Return an attribute value as text; raise AotcError (code "text") for a value that has no text
    form.
    """
    match value:
        case None:
            return "None"
        case bool() | np.bool_():
            return str(bool(value))
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating():
            return _shortest_float_text(float(value), np.dtype(np.float64)) + "f"
        case str():
            return quote_string(value)
        case SymDim():
            return dim_text(value)
        case list() | tuple():
            return f"[{', '.join(map(attribute_value_text, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{quote_string(str(k))}: {attribute_value_text(v)}" for k, v in value.items()) + "}"
        case _:
            raise AotcError("text", f"an attribute of type {type(value).__name__} cannot be written as text")


def attribute_texts(attrs: Mapping[str, object]) -> list[str]:
    """Return attributes of a call or function as a list of `name=value` texts."""
    return [f"{_quote_name_if_needed(key)}={attribute_value_text(value)}" for key, value in attrs.items()]


def dim_text(dim: Dim) -> str:
    """Return a dimension as text: 8, n, n<=16, 1<=n<=16, ? or ?<=16; a name that is not an identifier is
    quoted.
    """
    if not isinstance(dim, SymDim):
        return str(dim)
    name = dim.name if _UNQUOTED_DIM_REGEX.fullmatch(dim.name) else quote_string(dim.name) if dim.name else "?"
    return text_with_bounds(name, dim)


def type_text(ty: Type) -> str:
    """Return a type as text that parses back to the identical type; unusual dimension names are
    quoted.
    """
    return types.type_text(ty, dim_text)


# --- constants that are not written as numbers


METADATA_CONSTANT_KEY: Final = "relay.Constant"


def constants_to_metadata_json(constants: Sequence[np.ndarray[Any, Any]]) -> str:
    """Return the metadata section that holds `constants`, as JSON text."""
    first = 3
    nodes: list[dict[str, Any]] = [
        {"type_key": ""},
        {"type_key": "Map", "keys": [METADATA_CONSTANT_KEY], "data": [2]},
        {"type_key": "Array", "data": [first + k for k in range(len(constants))]},
    ]
    blobs = []
    for k, array in enumerate(constants):
        attrs = {"data": str(k), "dtype": str(DType.from_numpy(array))}
        splat = array.size > 1 and not any(array.strides)
        if splat:
            attrs["splat"] = json.dumps(array.shape)
        blobs.append(serialize_array(array.reshape(-1)[0] if splat else array))
        nodes.append({"type_key": METADATA_CONSTANT_KEY, "attrs": attrs})
    encoded = [base64.b64encode(blob).decode("ascii") for blob in blobs]
    return json.dumps({"root": 1, "nodes": nodes, "b64ndarrays": encoded}, indent=2)


def constants_from_metadata_json(text: str, span: Span) -> list[np.ndarray[Any, Any]]:
    """Return the constants of a metadata section; raise AotcError (code "metadata", at `span`) if
    it is damaged.
    """
    try:
        graph = json.loads(text)
        nodes = graph["nodes"]
        table = nodes[graph["root"]]
        lists = dict(zip(table["keys"], table["data"], strict=True))
        indices = nodes[lists[METADATA_CONSTANT_KEY]]["data"] if METADATA_CONSTANT_KEY in lists else []
        return [_decode_metadata_constant(nodes[index]["attrs"], graph["b64ndarrays"]) for index in indices]
    except AotcError as error:
        raise error.with_default_span(span) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        text = "the metadata section cannot be read: it was changed since it was printed"
        raise AotcError("metadata", text, span=span) from error


def _decode_metadata_constant(attrs: dict[str, str], blobs: Sequence[str]) -> np.ndarray[Any, Any]:
    reader = ParameterFileReader(base64.b64decode(blobs[int(attrs["data"])], validate=True))
    array = reader.read_array()
    if reader.remaining_bytes:
        raise ValueError(f"{reader.remaining_bytes} bytes follow an array")
    if "dtype" in attrs:
        dtype = DType(attrs["dtype"]).numpy
        if dtype.itemsize != array.dtype.itemsize:
            raise ValueError(f"{array.dtype} data cannot hold {attrs['dtype']} elements")
        array = array.view(dtype)
    return np.broadcast_to(array, tuple(json.loads(attrs["splat"]))) if "splat" in attrs else array
