# SPDX-License-Identifier: Apache-2.0
"""The metadata section: constants that are not written as numbers, as JSON with base64 data.

In: constants in the order of their indices.  Out: JSON text, and back.  The arrays are blobs in the format
of Relay's parameter files; a constant of one repeated value is stored as that value and its shape.

meta[relay.Constant][0]                # the first entry of the list that the map node names
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, DType, Reader, Span, save_array

KEY: Final = "relay.Constant"


def dump(constants: Sequence[np.ndarray[Any, Any]]) -> str:
    """The section that holds `constants`, as JSON text."""
    first = 3
    nodes: list[dict[str, Any]] = [
        {"type_key": ""},
        {"type_key": "Map", "keys": [KEY], "data": [2]},
        {"type_key": "Array", "data": [first + k for k in range(len(constants))]},
    ]
    blobs = []
    for k, array in enumerate(constants):
        attrs = {"data": str(k), "dtype": str(DType.of(array))}
        splat = array.size > 1 and not any(array.strides)
        if splat:
            attrs["splat"] = json.dumps(array.shape)
        blobs.append(save_array(array.reshape(-1)[0] if splat else array))
        nodes.append({"type_key": KEY, "attrs": attrs})
    encoded = [base64.b64encode(blob).decode("ascii") for blob in blobs]
    return json.dumps({"root": 1, "nodes": nodes, "b64ndarrays": encoded}, indent=2)


def load(text: str, span: Span) -> list[np.ndarray[Any, Any]]:
    """The constants of a section; AotcError (code "metadata", at `span`) if it cannot be read."""
    try:
        graph = json.loads(text)
        nodes = graph["nodes"]
        table = nodes[graph["root"]]
        lists = dict(zip(table["keys"], table["data"], strict=True))
        wanted = nodes[lists[KEY]]["data"] if KEY in lists else []
        return [_constant(nodes[index]["attrs"], graph["b64ndarrays"]) for index in wanted]
    except AotcError as error:
        raise error.at(span) from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        text = "the metadata section cannot be read: it was changed since it was printed"
        raise AotcError("metadata", text, span=span) from error


def _constant(attrs: dict[str, str], blobs: Sequence[str]) -> np.ndarray[Any, Any]:
    reader = Reader(base64.b64decode(blobs[int(attrs["data"])], validate=True))
    array = reader.array()
    if reader.left:
        raise ValueError(f"{reader.left} bytes follow an array")
    if "dtype" in attrs:
        dtype = DType(attrs["dtype"]).numpy
        if dtype.itemsize != array.dtype.itemsize:
            raise ValueError(f"{array.dtype} data cannot hold {attrs['dtype']} elements")
        array = array.view(dtype)
    return np.broadcast_to(array, tuple(json.loads(attrs["splat"]))) if "splat" in attrs else array
