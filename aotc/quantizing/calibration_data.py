# SPDX-License-Identifier: Apache-2.0
"""Load and validate calibration data: sets of inputs for a model, from files or from arrays.

Input: the types of the model's inputs, and an .npz file, a folder of .npz files (or .npy files, for
models with one input), or sets of arrays.  Output: sets of inputs of exactly these types.

    load_calibration_sets("images.npz", {"x": TensorType((1, 3, 32, 32))})

An array in a file has the type of the input, or holds several inputs along the first axis: for an
input of shape (1, 3, 32, 32), arrays of shape (1, 3, 32, 32), (200, 3, 32, 32) or (200, 1, 3, 32,
32) are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.checking.input_generation import Arrays
from aotc.ir import (
    AotcError,
    AotcTypeError,
    Array,
    Diagnostic,
    TensorType,
    did_you_mean_hint,
    open_regular_file,
    translate_os_errors,
)

#: Code of diagnostics about calibration data.
DIAGNOSTIC_CODE: Final = "calibration"
CalibrationData: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"


def load_calibration_sets(data: CalibrationData, types: Mapping[str, TensorType]) -> list[Arrays]:
    """Return all sets of inputs, in the order of files and rows.

    data    a path, or sets of arrays by input name

    Raises AotcError (code "calibration") with a diagnostic for each problem, and if there is no
    set.
    """
    problems: list[Diagnostic] = []
    sets: list[Arrays] = []
    for source, arrays in _calibration_arrays_by_source(data, types, problems):
        sets += _split_arrays_into_input_sets(source, arrays, types, problems)
    if problems:
        raise AotcError.collect(problems)
    if not sets:
        hint = "save arrays with the names of the inputs by numpy.savez"
        raise AotcError(
            DIAGNOSTIC_CODE, "no calibration data was given: at least one set of inputs is needed", hint=hint
        )
    return sets


def _calibration_arrays_by_source(
    data: CalibrationData, types: Mapping[str, TensorType], problems: list[Diagnostic]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the arrays by name from each file or set, with a description of their source; add
    errors to `problems`.
    """
    if not isinstance(data, (str, Path, Iterable)) or isinstance(data, Mapping):
        text = f"calibration data is a path or a list of mappings from names to arrays, not {type(data).__name__}"
        raise AotcTypeError(DIAGNOSTIC_CODE, text)
    if not isinstance(data, (str, Path)):
        yield from ((f"set {k}", arrays) for k, arrays in enumerate(data))
        return
    path = Path(data)
    for file in _calibration_files_in_folder(path, types) if path.is_dir() else [path]:
        try:
            yield str(file), _load_arrays_by_input_name(file, types)
        except AotcError as error:
            problems += error.diagnostics


def _calibration_files_in_folder(folder: Path, types: Mapping[str, TensorType]) -> list[Path]:
    """Return the data files in a folder, sorted by name; AotcError if there are none."""
    endings = (".npz", ".npy") if len(types) == 1 else (".npz",)
    with translate_os_errors(DIAGNOSTIC_CODE, f"read {folder}"):
        files = sorted(p for p in folder.iterdir() if p.suffix in endings)
    if not files:
        text = f"there is no calibration data in {folder}: it holds no file *{' or *'.join(endings)}"
        raise AotcError(
            DIAGNOSTIC_CODE, text, hint="save each set of inputs with numpy.savez, under the names of the inputs"
        )
    return files


def _load_arrays_by_input_name(path: Path, types: Mapping[str, TensorType]) -> dict[str, Array]:
    """Load the arrays in a file; the array of an .npy file is the model's only input."""
    with open_regular_file(path, DIAGNOSTIC_CODE) as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                return {name: loaded[name] for name in loaded.files}
        except Exception as error:
            # numpy and zipfile raise various exceptions for damaged files
            text = f"cannot read {path}: it is damaged, or no file of arrays"
            raise AotcError(DIAGNOSTIC_CODE, text, hint="numpy.savez writes one") from error
    if len(types) != 1:
        text = f"{path} holds a single array without a name, but the model has {len(types)} inputs"
        raise AotcError(DIAGNOSTIC_CODE, text, hint="save the inputs under their names with numpy.savez")
    return dict.fromkeys(types, loaded)


def _split_arrays_into_input_sets(
    source: str, arrays: Mapping[str, Any], types: Mapping[str, TensorType], problems: list[Diagnostic]
) -> list[Arrays]:
    """Split arrays from one source into sets of inputs; add errors to `problems` and return [] if
    there are any.
    """
    before = len(problems)
    columns: dict[str, Array] = {}
    for name in arrays:
        if name not in types:
            hint = did_you_mean_hint(name, types) or f"inputs: {', '.join(types)}"
            problems.append(Diagnostic(DIAGNOSTIC_CODE, f"{source}: the model has no input {name!r}", hint=hint))
    for name, ty in types.items():
        if name not in arrays:
            problems.append(Diagnostic(DIAGNOSTIC_CODE, f"{source}: there is no array for input {name!r} ({ty})"))
            continue
        array = np.asarray(arrays[name])
        problem = _dtype_problem(array, ty) or _nonfinite_value_problem(array)
        tensors = _split_into_tensors_of_type(array, ty)
        if tensors is None:
            of = "x".join(map(str, array.shape)) or "scalar"
            problem = problem or f"has the shape {of}, which holds no {ty}, and no number of them along its first axis"
        if problem or tensors is None:
            problems.append(Diagnostic(DIAGNOSTIC_CODE, f"{source}: the array for input {name!r} {problem}"))
            continue
        columns[name] = tensors
    lengths = {name: len(column) for name, column in columns.items()}
    if len(problems) == before and len(set(lengths.values())) > 1:
        counts = ", ".join(f"{n} of {name!r}" for name, n in lengths.items())
        problems.append(Diagnostic(DIAGNOSTIC_CODE, f"{source}: the inputs are not as many of each: {counts}"))
    if len(problems) > before:
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _dtype_problem(array: Array, ty: TensorType) -> str:
    if array.dtype.newbyteorder("=") == ty.dtype.numpy:
        return ""
    return f"is {array.dtype.name}, expected {ty.dtype}"


def _nonfinite_value_problem(array: Array) -> str:
    """Describe NaN and infinite values, for which no quantization range exists; "" if there are
    none.
    """
    if array.dtype.kind not in "fV":
        return ""
    values = array.astype(np.float64)
    bad = {"NaN": np.isnan(values), "infinite": np.isinf(values)}
    problems = [f"{int(where.sum())} of {array.size} values are {label}" for label, where in bad.items() if where.any()]
    return f"cannot be used: {', '.join(problems)}" if problems else ""


def _split_into_tensors_of_type(array: Array, ty: TensorType) -> Array | None:
    """Split an array into tensors of a type along a new first axis; None if its shape does not
    allow that.
    """
    shape = ty.static_shape
    if array.shape == shape:
        return array[None]
    if array.shape[1:] == shape:
        return array
    same = array.ndim == len(shape) and array.shape[1:] == shape[1:]
    if same and shape[0] and array.shape[0] % shape[0] == 0:
        return array.reshape(-1, *shape)
    return None
