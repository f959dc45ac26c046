# SPDX-License-Identifier: Apache-2.0
"""Inputs for a run: seeded random ones, or those in an .npz file.

random_inputs({"x": TensorType((1, 3), "float32")}, seed=0)
"""

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np

from aotc.ir import AotcError, Array, TensorType, nearest, open_regular
from aotc.relay.graph import IRModule, type_of
from aotc.runtime.session import Session
from aotc.runtime.tensor import TensorInfo

Arrays: TypeAlias = dict[str, Array]


def input_types(module: IRModule) -> dict[str, TensorType]:
    """The types of a module's inputs, by name."""
    return {p.name: ty for p in module.main.params if isinstance(ty := type_of(p), TensorType)}


def session_types(session: Session) -> dict[str, TensorType]:
    """The types of a loaded model's inputs, by name."""
    return {i.name: TensorType(i.shape, i.dtype) for i in session.get_inputs()}


def session_inputs(session: Session, path: Path | None) -> Arrays:
    """The inputs of a loaded model in an .npz file, for None seeded random ones."""
    types = session_types(session)
    return read_inputs(path, types) if path is not None else random_inputs(types, 0)


def stored_inputs(session: Session, arrays: Arrays) -> Arrays:
    """Inputs as a model takes them: integers where it takes such and
    the arrays are real numbers.
    """
    found = dict(arrays)
    for info in session.get_inputs():
        array, meaning = arrays[info.name], info.quantization
        if meaning is not None and array.dtype != info.dtype.numpy:
            found[info.name] = meaning.quantize(array)
    return found


def real_values(infos: Iterable[TensorInfo], arrays: Arrays) -> Arrays:
    """Tensors of a model, real numbers where integers stand for such."""
    meanings = {i.name: i.quantization for i in infos}
    return {
        name: meaning.dequantize(array) if (meaning := meanings[name]) is not None else array
        for name, array in arrays.items()
    }


def random_inputs(types: Mapping[str, TensorType], seed: int) -> Arrays:
    """Standard normal floats, integers from 0 to 7, fair bools; AotcError where memory is short."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, ty in types.items():
        try:
            arrays[name] = np.asarray(_random(rng, ty)).astype(ty.dtype.numpy)
        except MemoryError as error:
            text = f"there is not enough memory for input {name!r}, {ty}: {ty.numel * ty.dtype.itemsize} bytes"
            raise AotcError("memory", text) from error
    return arrays


def _random(rng: np.random.Generator, ty: TensorType) -> Array:
    if ty.dtype.is_float:
        return np.asarray(rng.standard_normal(ty.static_shape))
    return rng.integers(0, 2 if ty.dtype.is_bool else min(8, int(ty.dtype.max) + 1), ty.static_shape)


def read_inputs(path: Path, types: Mapping[str, TensorType]) -> Arrays:
    """The inputs in an .npz file, by name (or as "in/NAME"); AotcError for missing ones."""
    with open_regular(path, "inputs-file") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            arrays = None if isinstance(loaded, np.ndarray) else {k: loaded[k] for k in loaded.files}
        except Exception as error:
            # numpy and zipfile raise all sorts of things for what is damaged
            text = f"cannot read {path}: it is damaged, or no .npz file"
            raise AotcError("inputs-file", text, hint="numpy.savez writes one") from error
    if arrays is None:
        raise AotcError("inputs-file", f"{path} is a single array", hint="save inputs by name with numpy.savez")
    keys = [(name, key) for name in types for key in (name, f"in/{name}") if key in arrays]
    found = {name: _of_type(arrays[key], types[name]) for name, key in keys}
    if missing := [name for name in types if name not in found]:
        raise AotcError("inputs-file", f"{path} has no input {missing[0]!r}", hint=nearest(missing[0], arrays))
    return found


def _of_type(array: Array, ty: TensorType) -> Array:
    """The array, with the type that is wanted where .npz files know no name for it (bfloat16 and its like)."""
    nameless = array.dtype.kind == "V" and array.dtype.names is None
    if nameless and array.dtype.itemsize == ty.dtype.itemsize:
        return array.view(ty.dtype.numpy)
    return array


def save_arrays(file: IO[bytes], arrays: Arrays) -> None:
    """Write an .npz file; any name is fine, also those that numpy.savez takes for arguments of its own."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
