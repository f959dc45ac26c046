# SPDX-License-Identifier: Apache-2.0
"""Input arrays for a model whose shapes depend on the sizes of a run: sets for several sizes.

input_sets_of_sizes(types, domains, program, None, seeds=3)   # InputSet("n 0, seed 0", ...), ...
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from aotc.checking.input_generation import (
    NO_INPUT_RANGES,
    OTHER_INPUTS_HINT,
    Arrays,
    InputRanges,
    InputSet,
    draw_random_inputs,
    read_npz_inputs,
)
from aotc.checking.state_runs import COMPARED_RUNS
from aotc.ir import AotcError, SymDim, TensorType
from aotc.ir.size_operands import arrays_with_operands, element_of_sizes, elements_of_operands
from aotc.relay.valid_input_values_and_random_arrays import ValueDomain
from aotc.tir import GrowingState, Program, Tier, find_accepted_sizes, value_of_dim

#: Largest number of sizes for which inputs are made, and of random ones that are tried.
_MAX_VERIFIED_SIZES: Final = 6
_RANDOM_SIZE_DRAWS: Final = 64
_MAX_VERIFIED_SIZES_OF_TIER: Final = 3
#: Largest number of sizes in whose neighborhood no accepted ones are found.
_MAX_FAILED_SEARCHES: Final = 4


def input_sets_of_sizes(
    types: Mapping[str, TensorType],
    domains: Mapping[str, ValueDomain],
    program: Program,
    path: str | Path | None,
    seeds: int,
    ranges: InputRanges = NO_INPUT_RANGES,
) -> Iterator[InputSet]:
    """Yield sets of inputs of a model whose shapes depend on the sizes of a run: the one set in the file
    `path`, or `seeds` random sets for each of several sizes. These are the least and the largest ones,
    those nearest to 1, the typical ones, and random ones, or others nearby where conditions relate sizes to each
    other. Elements of inputs that are sizes get the values for them, in `ranges` if they name the input. A state
    that grows is empty at first; the sets have the inputs of the runs that follow, too, except that of a file,
    which has one run.

    Raise AotcError (code "input-value") if no sizes are found that the model takes.
    """
    growing = program.growing
    if path is not None:
        later: tuple[Arrays, ...] | None = None if growing is None else ()
        yield InputSet(Path(path).name, read_npz_inputs(path, types), later=later)
        return
    for sizes in _sizes_to_verify(program, ranges):
        runs = [sizes] if growing is None else _sizes_of_consecutive_runs(program, growing, sizes)
        text = ", ".join(f"{name} {value}" for name, value in _named_values(program, sizes))
        for seed in range(seeds):
            first, *rest = (
                arrays_with_operands(
                    draw_random_inputs(_types_of_sizes(types, program, s), seed + k * seeds, domains),
                    program.operands.values(),
                    s,
                )
                for k, s in enumerate(runs)
            )
            yield InputSet(f"{text}, seed {seed}", first, later=None if growing is None else tuple(rest))


def _named_values(program: Program, sizes: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """Yield the sizes by name, and the values of elements of inputs that are sizes."""
    yield from ((name, size) for name, size in sizes.items() if name not in program.operands)
    for (name, element), operands in elements_of_operands(program.operands.values()).items():
        yield f"{name}[{element}]", element_of_sizes(operands, sizes)


def _types_of_sizes(
    types: Mapping[str, TensorType], program: Program, sizes: Mapping[str, int]
) -> dict[str, TensorType]:
    """Return static types for the sizes of a run."""
    symbols = program.symbol_values(sizes)
    return {name: TensorType([value_of_dim(d, symbols) for d in ty.shape], ty.dtype) for name, ty in types.items()}


def _sizes_of_consecutive_runs(
    program: Program, growing: GrowingState, first: Mapping[str, int]
) -> list[dict[str, int]]:
    """Return the sizes of `COMPARED_RUNS` runs, or fewer if the state then has no room, by which it grows."""
    runs = [{**first, growing.size: 0}]
    while len(runs) < COMPARED_RUNS:
        length = value_of_dim(SymDim(growing.size) + growing.added, program.symbols_of_sizes(runs[-1]))
        runs.append({**runs[-1], growing.size: length})
    return [sizes for sizes in runs if _has_room(program, sizes)]


def _has_room(program: Program, sizes: Mapping[str, int]) -> bool:
    """Return True if a run accepts sizes, and a state that grows has room."""
    if not all(size in program.sizes[name] for name, size in sizes.items()):
        return False
    symbols = program.symbols_of_sizes(sizes)
    has_room = program.growing is None or program.growing.check.holds(symbols)
    return has_room and program.are_accepted(symbols)


def _sizes_to_verify(program: Program, limits: InputRanges) -> list[dict[str, int]]:
    """Return sizes of runs that a program accepts, without repetition."""
    if program.tiers:
        return [sizes for tier in program.tiers for sizes in _sizes_of_tier(program, tier, limits)]
    rng = np.random.default_rng(0)
    ranges = program.sizes.items()
    candidates = [
        {name: r.least for name, r in ranges},
        {name: max(r.least, r.step) for name, r in ranges},
        program.typical_sizes,
        {name: r.most for name, r in ranges},
        *(
            {name: int(rng.integers(r.least // r.step, r.most // r.step, endpoint=True)) * r.step for name, r in ranges}
            for _ in range(_RANDOM_SIZE_DRAWS)
        ),
    ]
    fixed = () if program.growing is None else (program.growing.size,)
    accepted: list[dict[str, int]] = []
    failures = 0
    for sizes in candidates:
        sizes |= dict.fromkeys(fixed, 0)
        found = find_accepted_sizes(program, sizes, rng, fixed=fixed, limits=limits)
        failures += found is None
        if found is not None and found not in accepted:
            accepted.append(found)
        if len(accepted) == _MAX_VERIFIED_SIZES or failures > _MAX_FAILED_SEARCHES:
            break
    if not accepted:
        names = ", ".join(dict.fromkeys(o.input for o in program.operands.values())) or ", ".join(program.sizes)
        raise AotcError("input-value", f"no values of {names} are known that the model takes", hint=OTHER_INPUTS_HINT)
    return accepted


def _sizes_of_tier(program: Program, tier: Tier, limits: InputRanges) -> list[dict[str, int]]:
    """Return sizes of runs for which a tier of a program runs: some may be those of earlier tiers, too."""
    alone = replace(program, sizes=tier.sizes, checks=tier.checks, body=tier.body)
    found = _sizes_to_verify(alone, limits)
    own = [s for s in found if program.tier_of_symbols(program.symbols_of_sizes(s)) is tier]
    return own[:_MAX_VERIFIED_SIZES_OF_TIER]
