# SPDX-License-Identifier: Apache-2.0
"""Serialize parameters (named arrays) to one byte string, in TVM's format.

blob = save_param_dict({"w": np.ones((2, 3), "float32")})
load_param_dict(blob)["w"].shape                     # (2, 3)

Layout (little endian): u64 magic, u64 0, u64 count and (u64 length, bytes) per name, u64 count,
then the arrays (`aotc.ir.parameter_file`).
"""

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, NDArray, ParameterFileReader, serialize_array

_MAGIC: Final = 0xF7E58D4F05049CB7


def save_param_dict(params: Mapping[str, Any]) -> bytearray:
    """Serialize arrays by name; dtypes unknown to the format are stored as unsigned integers of
    equal width.
    """
    names = [name.encode() for name in params]
    head = [struct.pack("<QQQ", _MAGIC, 0, len(names))]
    head += [struct.pack("<Q", len(name)) + name for name in names]
    arrays = [serialize_array(np.asarray(v)) for v in params.values()]
    return bytearray().join([*head, struct.pack("<Q", len(names)), *arrays])


def load_param_dict(blob: bytes) -> dict[str, NDArray]:
    """Deserialize named parameter arrays in TVM's format; AotcError (code "params") if the data is
    damaged or in another format.
    """
    try:
        return _read_param_dict(ParameterFileReader(bytes(blob)))
    except UnicodeDecodeError as error:
        raise AotcError("params", "the name of a parameter is not valid UTF-8") from error
    except ValueError as error:
        raise AotcError("params", f"the parameters are damaged: {error}") from error


def _read_param_dict(reader: ParameterFileReader) -> dict[str, NDArray]:
    magic, _, count = reader.read_struct("<QQQ")
    if magic != _MAGIC:
        raise AotcError("params", "the data is not a file of saved parameters: the magic number is wrong")
    names = [reader.read_bytes(*reader.read_struct("<Q")).decode() for _ in range(count)]
    if reader.read_struct("<Q") != (count,) or len(set(names)) != count:
        raise AotcError(
            "params", "the saved parameters have a different number of names and arrays, or a duplicate name"
        )
    params = {}
    for name in names:
        try:
            params[name] = NDArray(reader.read_array())
        except ValueError as error:
            raise ValueError(f"parameter {name!r}: {error}") from error
    if reader.remaining_bytes:
        raise AotcError("params", f"{reader.remaining_bytes} bytes follow the saved parameters")
    return params
