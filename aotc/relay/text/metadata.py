# SPDX-License-Identifier: Apache-2.0
"""The metadata section: constants that are not written as numbers, as JSON with base64 data.

In: constants in the order of their indices.  Out: JSON text, and back.  The arrays are blobs in the format
of Relay's parameter files; a constant of one repeated value is stored as that value and its shape.

meta[relay.Constant][0]                # the first entry of the list that the map node names
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotc.ir.diagnostics import AotcError
from aotc.ir.dtype import DType
from aotc.ir.span import Span

KEY: Final = "relay.Constant"

_MAGIC: Final = 0xDD5E40F096B4A13F
_HEADER: Final = struct.Struct("<QQiiiBBH")  # magic, reserved, device type and id, ndim, dtype code, bits, lanes
_CPU: Final = 1
_CODES: Final = {"i": 0, "u": 1, "b": 1, "f": 2}
_NATIVE: Final = {
    (code, 8 * np.dtype(kind).itemsize): np.dtype(kind)
    for code, kinds in ((0, "bhiq"), (1, "BHIQ"), (2, "efd"))
    for kind in kinds
} | {(1, 1): np.dtype(bool)}


def save_array(array: np.ndarray[Any, Any]) -> bytes:
    """One array as a blob.  Data types that the format does not know are stored as unsigned integers."""
    stored = np.ascontiguousarray(array).reshape(array.shape)
    if stored.dtype.kind not in _CODES or _NATIVE.get(_code(stored.dtype)) != stored.dtype:
        stored = stored.view(f"u{stored.dtype.itemsize}")
    code, bits = _code(stored.dtype)
    little = stored.astype(stored.dtype.newbyteorder("<"), copy=False)
    shape = struct.pack(f"<{stored.ndim}q", *stored.shape)
    header = _HEADER.pack(_MAGIC, 0, _CPU, 0, stored.ndim, code, bits, 1)
    return b"".join((header, shape, struct.pack("<q", little.nbytes), little.tobytes()))


def _code(dtype: np.dtype[Any]) -> tuple[int, int]:
    return _CODES[dtype.kind], 1 if dtype.kind == "b" else 8 * dtype.itemsize


def load_array(blob: bytes) -> np.ndarray[Any, Any]:
    """The array of a blob; ValueError if it is not one."""
    if len(blob) < _HEADER.size:
        raise ValueError("the data is too short")
    magic, _, _, _, ndim, code, bits, lanes = _HEADER.unpack_from(blob)
    dtype = _NATIVE.get((code, bits))
    if magic != _MAGIC or lanes != 1 or dtype is None or not 0 <= ndim <= 64:
        raise ValueError("the data has no array header")
    start = _HEADER.size + 8 * (ndim + 1)
    if len(blob) < start:
        raise ValueError("the data is too short")
    *shape, nbytes = struct.unpack_from(f"<{ndim + 1}q", blob, _HEADER.size)
    size = math.prod(shape)
    if min(shape, default=0) < 0 or nbytes != size * dtype.itemsize or len(blob) != start + nbytes:
        raise ValueError("the data does not have the size that its header states")
    little = np.frombuffer(blob, dtype.newbyteorder("<"), size, start)
    return little.astype(dtype, copy=False).reshape(shape)


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
    array = load_array(base64.b64decode(blobs[int(attrs["data"])], validate=True))
    if "dtype" in attrs:
        dtype = DType(attrs["dtype"]).numpy
        if dtype.itemsize != array.dtype.itemsize:
            raise ValueError(f"{array.dtype} data cannot hold {attrs['dtype']} elements")
        array = array.view(dtype)
    return np.broadcast_to(array, tuple(json.loads(attrs["splat"]))) if "splat" in attrs else array
