# SPDX-License-Identifier: Apache-2.0
"""Inputs for a run: seeded random ones, or those in an .npz file.

random_inputs({"x": TensorType((1, 3), "float32")}, seed=0)
random_inputs(input_types(module), 0, input_domains(module))     # values that the model can do something with
"""

import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, TypeAlias

import numpy as np

from aotc.ir import AotcError, Array, TensorType, frozen, nearest, open_regular
from aotc.relay.graph_api import IRModule, type_of
from aotc.relay.value_domains import FREE, Domain, draw, read_domain
from aotc.runtime.library import read_metadata
from aotc.runtime.session import Session
from aotc.runtime.tensor_info import TensorInfo

Arrays: TypeAlias = dict[str, Array]
#: The least and the greatest value of random inputs, by name.
InputRanges: TypeAlias = Mapping[str, tuple[float, float]]
NO_RANGES: Final[InputRanges] = MappingProxyType({})
#: What floats of unknown meaning are multiplied with, one after the other, in sets of inputs beside the normal ones.
INPUT_FACTORS: Final = (0.1, 8.0, 0.01, 1.0)
#: The same for models that quantize: larger inputs would saturate, and much smaller ones are 0.
QUANTIZED_INPUT_FACTORS: Final = (0.1, 1.0)
#: How many such sets there are at most for each usual one, and how many multiplications they take for each.
SCALED_SETS: Final = 24
SCALED_MACS: Final = 300_000_000
#: The seeds of these sets begin here.
FIRST_SCALED_SEED: Final = 1000
#: What to do where a model makes nothing of random inputs.
OTHER_INPUTS: Final = "give inputs that the model takes: --inputs FILE.npz, or --input-range NAME=LEAST:MOST"


@frozen
class InputSet:
    """Inputs of one run.

    source    "seed 0" or the name of a file
    factor    by which random floats are larger than usual
    usual     whether they are those of a file or the first random ones
    within_scales  whether a model that has scales for inputs of the usual size runs on them
    """

    source: str
    arrays: Arrays
    factor: float = 1.0
    usual: bool = True
    within_scales: bool = True


def input_types(module: IRModule) -> dict[str, TensorType]:
    """The types of a module's inputs, by name."""
    return {p.name: ty for p in module.main.params if isinstance(ty := type_of(p), TensorType)}


def ranged(
    types: Mapping[str, TensorType], domains: Mapping[str, Domain], ranges: InputRanges, path: Path | None = None
) -> dict[str, Domain]:
    """The domains of inputs, with the caller's ranges in the place of those found.

    Raises AotcError (code "input-range") for names that no input has, for ranges that hold no value of its dtype, and
    for ranges beside a file of inputs.
    """
    if ranges and path is not None:
        text = f"a range of input {next(iter(ranges))!r} is given as well as a file of inputs"
        raise AotcError(
            "input-range", text, hint="input ranges apply to random inputs only: give either inputs or input ranges"
        )
    found = dict(domains)
    for name, (least, most) in ranges.items():
        if name not in types:
            text = f"there is no input {name!r}; the inputs are {', '.join(types)}"
            raise AotcError("input-range", text, hint=nearest(name, types))
        _require_range(name, types[name], least, most)
        found[name] = Domain(float(least), float(most), firm=True)
    return found


def _require_range(name: str, ty: TensorType, least: float, most: float) -> None:
    """AotcError (code "input-range") for a range without a value that an input of a type can have."""
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


def session_types(session: Session) -> dict[str, TensorType]:
    """The types of a loaded model's inputs, by name."""
    return {i.name: TensorType(i.shape, i.dtype) for i in session.get_inputs()}


def stated_domains(session: Session) -> dict[str, Domain]:
    """What the project of a loaded library says of the values of its inputs, by name; nothing without a project.

    Raises AotcError (code "load") for damaged metadata.
    """
    for project in session.path.absolute().parents[:2]:
        if rows := read_metadata(project).get("inputs"):
            known = [row for row in rows if isinstance(row, dict) and "values" in row] if isinstance(rows, list) else []
            return {str(row.get("name")): read_domain(row["values"]) for row in known}
    return {}


def given_inputs(
    types: Mapping[str, TensorType], domains: Mapping[str, Domain], path: Path | None, seeds: int
) -> Iterator[tuple[str, Arrays]]:
    """Sets of inputs, each with the name of its source: those of an .npz file, for None `seeds` random ones."""
    if path is not None:
        yield path.name, read_inputs(path, types)
        return
    for seed in range(seeds):
        yield f"seed {seed}", random_inputs(types, seed, domains)


def scaled_inputs(
    types: Mapping[str, TensorType], domains: Mapping[str, Domain], sets: int, *, within_scales: bool = False
) -> Iterator[InputSet]:
    """Random inputs whose floats are smaller or larger and, in every other set, shifted along their second axis.

    Where the scores of a classifier are saturated for inputs of one size, others show its weights; a ReLU that is 0 for
    all normal inputs passes shifted ones; a softmax that subtracts a wrong maximum is wrong for large numbers alone.
    Inputs of a known domain stay in it.  Where all inputs have one, the sets are further draws: of the rows of a table,
    for instance, a few sets show a part only.

    within_scales    neither enlarge nor shift: a model that quantizes has scales for inputs of the usual size
    """
    free = [n for n, ty in types.items() if ty.dtype.is_float and domains.get(n, FREE).is_free]
    factors = QUANTIZED_INPUT_FACTORS if within_scales else INPUT_FACTORS
    for index in range(sets):
        seed = index + FIRST_SCALED_SEED
        factor = factors[index % len(factors)] if free else 1.0
        is_shifted = bool(free) and not within_scales and index // len(factors) % 2 == 1
        rng = np.random.default_rng([seed, 1])
        arrays = random_inputs(types, seed, domains)
        for name in free:
            wide = arrays[name].astype(np.float64)
            rows = [n if axis == 1 else 1 for axis, n in enumerate(wide.shape)]
            shift = rng.standard_normal(rows) * is_shifted
            arrays[name] = ((wide + shift) * factor).astype(types[name].dtype.numpy)
        source = f"seed {seed} times {factor:g}" if free else f"seed {seed}"
        yield InputSet(
            source, arrays, factor, usual=False, within_scales=within_scales or (factor == 1.0 and not is_shifted)
        )


def scaled_sets(seeds: int, macs: int) -> int:
    """How many sets of scaled inputs are drawn beside `seeds` usual ones: more of models that take few products."""
    return max(seeds, min(SCALED_SETS * seeds, SCALED_MACS * seeds // max(macs, 1)))


def input_sets(
    types: Mapping[str, TensorType],
    domains: Mapping[str, Domain],
    path: Path | None,
    seeds: int,
    macs: int,
    *,
    within_scales: bool = False,
) -> Iterator[InputSet]:
    """All sets of inputs: those of an .npz file, else random ones, first `seeds` usual ones.

    macs             multiplications of a run of the model
    within_scales    none of them is enlarged or shifted
    """
    yield from (InputSet(*given) for given in given_inputs(types, domains, path, seeds))
    if path is None:
        yield from scaled_inputs(types, domains, scaled_sets(seeds, macs), within_scales=within_scales)


def session_inputs(session: Session, path: Path | None, ranges: InputRanges = NO_RANGES) -> Arrays:
    """The inputs of a loaded model in an .npz file, for None seeded random ones, as its project and `ranges` say."""
    types = session_types(session)
    ((_, arrays),) = given_inputs(types, ranged(types, stated_domains(session), ranges, path), path, 1)
    return arrays


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


def random_inputs(
    types: Mapping[str, TensorType], seed: int, domains: Mapping[str, Domain] = MappingProxyType({})
) -> Arrays:
    """Seeded random inputs.

    domains   the values that an input may have, by name; for others, floats are standard normal, integers of at most
              16 bits uniform over their dtype, wider ones from 0 to 7

    Raises AotcError (code "memory") where memory is short.
    """
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, ty in types.items():
        try:
            arrays[name] = draw(rng, ty, domains.get(name, FREE))
        except MemoryError as error:
            text = f"there is not enough memory for input {name!r}, {ty}: {ty.numel * ty.dtype.itemsize} bytes"
            raise AotcError("memory", text) from error
    return arrays


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
        raise AotcError(
            "inputs-file",
            f"{path} holds a single array without a name",
            hint="save the inputs under their names with numpy.savez",
        )
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
