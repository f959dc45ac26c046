# SPDX-License-Identifier: Apache-2.0
"""Input arrays for a run of a model: seeded random ones, or those of an .npz file.

draw_random_inputs({"x": TensorType((1, 3), "float32")}, seed=0)
draw_random_inputs(input_types(module), 0, infer_input_domains(module.main))  # values that the model accepts
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Array, TensorType, did_you_mean_hint, frozen, open_regular_file, option_text
from aotc.ir.size_operands import arrays_with_operands
from aotc.relay.graph_api import IRModule, type_of
from aotc.relay.valid_input_values_and_random_arrays import (
    UNCONSTRAINED_DOMAIN,
    ValueDomain,
    random_array_in_domain,
    value_domain_from_json,
)
from aotc.runtime.library import read_project_metadata
from aotc.runtime.session import Session
from aotc.runtime.tensor_info import TensorInfo

Arrays: TypeAlias = dict[str, Array]
#: Smallest and largest value of random inputs, by name of the input.
InputRanges: TypeAlias = Mapping[str, tuple[float, float]]
NO_INPUT_RANGES: Final[InputRanges] = MappingProxyType({})
#: Scale factors of random float inputs without a known domain, used in rotation by the additional
#: sets of inputs.
INPUT_SCALE_FACTORS: Final = (0.1, 8.0, 0.01, 1.0)
#: Scale factors for models that quantize their inputs: larger values would saturate, and much
#: smaller ones quantize to 0.
QUANTIZED_INPUT_SCALE_FACTORS: Final = (0.1, 1.0)
#: Largest number of additional sets of scaled inputs for each ordinary set.
MAX_SCALED_SETS_PER_SEED: Final = 24
#: Largest number of multiply-accumulate operations of the additional sets together, for each
#: ordinary set; one additional set is always allowed.
MAX_SCALED_MACS_PER_SEED: Final = 300_000_000
#: Random seed of the first set of scaled inputs; each further set adds 1.
FIRST_SCALED_SEED: Final = 1000
#: Hint of errors that random inputs cause in a model.
OTHER_INPUTS_HINT: Final = (
    "give inputs that the model takes: "
    + option_text("inputs", "FILE.npz")
    + ", or "
    + option_text("input_ranges", {"NAME": (-1, 1)})
)


@frozen
class InputSet:
    """Inputs of one run of a model.

    source    "seed 0" or the name of a file
    arrays    arrays by name of the input
    factor    scale factor of the random floats
    usual     True for the inputs of a file and for random ones that are neither scaled nor
              additional
    within_scales  True if the values have the range that a quantized model has scales for
    later     arrays of the runs that follow, for a model whose state grows; None: arrays of the same shapes
    """

    source: str
    arrays: Arrays
    factor: float = 1.0
    usual: bool = True
    within_scales: bool = True
    later: tuple[Arrays, ...] | None = None


def input_types(module: IRModule) -> dict[str, TensorType]:
    """Return the tensor types of the inputs of a module's main function, by name."""
    return {p.name: ty for p in module.main.params if isinstance(ty := type_of(p), TensorType)}


def domains_overridden_by_user_ranges(
    types: Mapping[str, TensorType],
    domains: Mapping[str, ValueDomain],
    ranges: InputRanges,
    inputs_file: str | Path | None = None,
) -> dict[str, ValueDomain]:
    """Return the value domains of inputs, where the caller's ranges replace the domains found by
    analysis.

    Raise AotcError (code "input-range") if a range names no input, holds no value of the input's
    dtype, or is given together with a file of inputs (`inputs_file`).
    """
    if ranges and inputs_file is not None:
        text = f"a range of input {next(iter(ranges))!r} is given as well as a file of inputs"
        hint = "input ranges apply to random inputs only: give either "
        raise AotcError("input-range", text, hint=hint + option_text("inputs") + " or " + option_text("input_ranges"))
    result_domains = dict(domains)
    for name, (least, most) in ranges.items():
        if name not in types:
            text = f"there is no input {name!r}; the inputs are {', '.join(types)}"
            raise AotcError("input-range", text, hint=did_you_mean_hint(name, types))
        _require_valid_input_range(name, types[name], least, most)
        result_domains[name] = ValueDomain(float(least), float(most), firm=True)
    return result_domains


def _require_valid_input_range(name: str, ty: TensorType, least: float, most: float) -> None:
    """Raise AotcError (code "input-range") unless the range from `least` to `most` is finite and
    holds values of an input's dtype.
    """
    written, dtype = f"the range {least:g} to {most:g} of input {name!r}", ty.dtype
    problem = ""
    if not (math.isfinite(least) and math.isfinite(most)):
        problem = "is not finite"
    elif least > most:
        problem = "ends before it begins"
    elif not dtype.is_float:
        low, high = (0, 1) if dtype.is_bool else (int(dtype.min), int(dtype.max))
        if least < low or most > high:
            problem = f"exceeds {dtype}, which holds {low} to {high}"
        elif math.ceil(least) > math.floor(most):
            problem = f"holds no integer, but the input is {dtype}"
    elif max(abs(least), abs(most)) > float(dtype.max):
        problem = f"exceeds {dtype}"
    if problem:
        raise AotcError("input-range", f"{written} {problem}")


def session_input_types(session: Session) -> dict[str, TensorType]:
    """Return the tensor types of a loaded model's inputs in a typical run, by name."""
    return {i.name: TensorType(i.shape, i.dtype) for i in session.typical_inputs()}


def input_domains_in_project_metadata(session: Session) -> dict[str, ValueDomain]:
    """Return the value domains of inputs in the metadata of the project that a loaded library is
    part of; empty without a project.

    The project is the directory of the library or its parent. Raise AotcError (code "load") for
    damaged metadata.
    """
    for project in session.path.absolute().parents[:2]:
        if rows := read_project_metadata(project).get("inputs"):
            known = [row for row in rows if isinstance(row, dict) and "values" in row] if isinstance(rows, list) else []
            return {str(row.get("name")): value_domain_from_json(row["values"]) for row in known}
    return {}


def read_inputs_or_draw_random_sets(
    types: Mapping[str, TensorType], domains: Mapping[str, ValueDomain], path: str | Path | None, seeds: int
) -> Iterator[tuple[str, Arrays]]:
    """Yield ordinary sets of inputs, each with the name of its source: the one set of the .npz file
    `path`, or `seeds` random sets if `path` is None.
    """
    if path is not None:
        yield Path(path).name, read_npz_inputs(path, types)
        return
    for seed in range(seeds):
        yield f"seed {seed}", draw_random_inputs(types, seed, domains)


def draw_scaled_random_inputs(
    types: Mapping[str, TensorType], domains: Mapping[str, ValueDomain], set_count: int, *, within_scales: bool = False
) -> Iterator[InputSet]:
    """Yield `set_count` sets of random inputs whose floats are scaled, by each of the factors in
    rotation, and shifted along the second axis in every second rotation.

    They reveal errors that standard normal inputs hide: a classifier whose scores saturate shows
    its weights only at other magnitudes, a ReLU that is 0 for all ordinary inputs passes shifted
    ones, and a softmax that subtracts a wrong maximum is wrong for large values only. Inputs with a
    known domain are neither scaled nor shifted. If all inputs have one, the sets are further draws,
    for instance to reach more rows of a table.

    within_scales    True to shift nothing and to use QUANTIZED_INPUT_SCALE_FACTORS, for models that
                     quantize their inputs
    """
    free = [n for n, ty in types.items() if ty.dtype.is_float and domains.get(n, UNCONSTRAINED_DOMAIN).is_unconstrained]
    factors = QUANTIZED_INPUT_SCALE_FACTORS if within_scales else INPUT_SCALE_FACTORS
    for index in range(set_count):
        seed = index + FIRST_SCALED_SEED
        factor = factors[index % len(factors)] if free else 1.0
        is_shifted = bool(free) and not within_scales and index // len(factors) % 2 == 1
        rng = np.random.default_rng([seed, 1])
        arrays = draw_random_inputs(types, seed, domains)
        for name in free:
            wide = arrays[name].astype(np.float64)
            rows = [n if axis == 1 else 1 for axis, n in enumerate(wide.shape)]
            shift = rng.standard_normal(rows) * is_shifted
            arrays[name] = ((wide + shift) * factor).astype(types[name].dtype.numpy)
        source = f"seed {seed} times {factor:g}" if free else f"seed {seed}"
        yield InputSet(
            source, arrays, factor, usual=False, within_scales=within_scales or (factor == 1.0 and not is_shifted)
        )


def count_of_scaled_input_sets(seeds: int, macs: int) -> int:
    """Return how many sets of scaled inputs to draw in addition to `seeds` ordinary ones: at least
    `seeds`, more for models with few multiply-accumulate operations (`macs`).
    """
    return max(seeds, min(MAX_SCALED_SETS_PER_SEED * seeds, MAX_SCALED_MACS_PER_SEED * seeds // max(macs, 1)))


def file_or_random_and_scaled_inputs(
    types: Mapping[str, TensorType],
    domains: Mapping[str, ValueDomain],
    path: str | Path | None,
    seeds: int,
    macs: int,
    *,
    within_scales: bool = False,
) -> Iterator[InputSet]:
    """Yield all sets of inputs for a comparison: those of the .npz file `path`, or `seeds` ordinary
    random sets and then scaled ones.

    macs             multiply-accumulate operations of a run of the model
    within_scales    True for models that quantize their inputs: no set is shifted or enlarged
    """
    yield from (InputSet(*given) for given in read_inputs_or_draw_random_sets(types, domains, path, seeds))
    if path is None:
        yield from draw_scaled_random_inputs(
            types, domains, count_of_scaled_input_sets(seeds, macs), within_scales=within_scales
        )


def read_or_draw_session_inputs(
    session: Session, path: str | Path | None, ranges: InputRanges = NO_INPUT_RANGES
) -> Arrays:
    """Return one set of inputs for a loaded model: those of the .npz file `path`, or random ones of
    seed 0 if it is None.

    Random values lie in the domains that the model's project states, or in `ranges`.
    """
    types = session_input_types(session)
    ((_, arrays),) = read_inputs_or_draw_random_sets(
        types,
        domains_overridden_by_user_ranges(types, input_domains_in_project_metadata(session), ranges, path),
        path,
        1,
    )
    return arrays if path is not None else _with_typical_operands(session, arrays, ranges)


def _with_typical_operands(session: Session, arrays: Arrays, ranges: InputRanges) -> Arrays:
    """Return random inputs in which elements that are sizes have the values of a typical run, but for inputs with a
    range of the caller.
    """
    operands = [o for o in session.size_operands if o.input not in ranges]
    typical = {name: r.most if r.typical is None else r.typical for name, r in session.dims.items()}
    return arrays_with_operands(arrays, operands, typical)


def quantize_real_inputs(session: Session, arrays: Arrays) -> Arrays:
    """Return the inputs as a model stores them: quantize real arrays for inputs whose type is a
    quantized integer.
    """
    model_inputs = dict(arrays)
    for info in session.get_inputs():
        array, meaning = arrays[info.name], info.quantization
        if meaning is not None and array.dtype != info.dtype.numpy:
            model_inputs[info.name] = meaning.quantize(array)
    return model_inputs


def dequantize_tensors(infos: Iterable[TensorInfo], arrays: Arrays) -> Arrays:
    """Return tensors of a model with quantized integers converted to real numbers, by the scales
    and zero points in `infos`.
    """
    meanings = {i.name: i.quantization for i in infos}
    return {
        name: meaning.dequantize(array) if (meaning := meanings[name]) is not None else array
        for name, array in arrays.items()
    }


def draw_random_inputs(
    types: Mapping[str, TensorType], seed: int, domains: Mapping[str, ValueDomain] = MappingProxyType({})
) -> Arrays:
    """Return seeded random inputs by name.

    domains   possible values of an input, by name; for other inputs, floats are standard normal,
              integers of at most 16 bits uniform over their dtype, wider ones uniform from 0 to 7

    Raise AotcError (code "memory") if an array cannot be allocated.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, ty in types.items():
        try:
            arrays[name] = random_array_in_domain(rng, ty, domains.get(name, UNCONSTRAINED_DOMAIN))
        except MemoryError as error:
            text = f"there is not enough memory for input {name!r}, {ty}: {ty.numel * ty.dtype.itemsize} bytes"
            raise AotcError("memory", text) from error
    return arrays


def read_npz_inputs(path: str | Path, types: Mapping[str, TensorType]) -> Arrays:
    """Return the inputs in an .npz file by name; an entry may also be called "in/NAME".

    Raise AotcError (code "inputs-file") if the file cannot be read or lacks an input.
    """
    with open_regular_file(path, "inputs-file") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            arrays = None if isinstance(loaded, np.ndarray) else {k: loaded[k] for k in loaded.files}
        except Exception as error:
            # numpy and zipfile raise many types of exceptions for damaged files
            text = f"cannot read {path}: it is damaged, or no .npz file"
            raise AotcError("inputs-file", text, hint="numpy.savez writes one") from error
    if arrays is None:
        raise AotcError(
            "inputs-file",
            f"{path} holds a single array without a name",
            hint="save the inputs under their names with numpy.savez",
        )
    keys = [(name, key) for name in types for key in (name, f"in/{name}") if key in arrays]
    inputs = {name: _view_raw_elements_as_dtype(arrays[key], types[name]) for name, key in keys}
    if missing := [name for name in types if name not in inputs]:
        raise AotcError(
            "inputs-file", f"{path} has no input {missing[0]!r}", hint=did_you_mean_hint(missing[0], arrays)
        )
    return inputs


def _view_raw_elements_as_dtype(array: Array, ty: TensorType) -> Array:
    """Return an array with the expected dtype if it has raw elements of that size: .npz files store
    bfloat16 and 8-bit floats without a dtype name.
    """
    nameless = array.dtype.kind == "V" and array.dtype.names is None
    if nameless and array.dtype.itemsize == ty.dtype.itemsize:
        return array.view(ty.dtype.numpy)
    return array


def save_arrays_to_npz(file: IO[bytes], arrays: Arrays) -> None:
    """Write arrays to an .npz file under any names, including those that are parameters of
    numpy.savez, such as "file".
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
