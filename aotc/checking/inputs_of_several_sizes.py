# SPDX-License-Identifier: Apache-2.0
"""Input arrays for a model whose shapes depend on the sizes of a run: sets for several sizes.

input_sets_of_sizes(types, domains, program, None, seeds=3)   # InputSet("n 0, seed 0", ...), ...
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from aotc.checking.input_generation import Arrays, InputSet, draw_random_inputs, read_npz_inputs
from aotc.checking.state_runs import COMPARED_RUNS
from aotc.ir import SymDim, TensorType
from aotc.relay.valid_input_values_and_random_arrays import ValueDomain
from aotc.tir import GrowingState, Program, value_of_dim

#: Largest number of sizes for which inputs are made, and of random ones that are tried.
_MAX_VERIFIED_SIZES: Final = 6
_RANDOM_SIZE_DRAWS: Final = 64


def input_sets_of_sizes(
    types: Mapping[str, TensorType],
    domains: Mapping[str, ValueDomain],
    program: Program,
    path: str | Path | None,
    seeds: int,
) -> Iterator[InputSet]:
    """Yield sets of inputs of a model whose shapes depend on the sizes of a run: the one set in the file
    `path`, or `seeds` random sets for each of several sizes. These are the least and the largest ones,
    those nearest to 1, the typical ones, and random ones. A state that grows is empty at first; the sets
    have the inputs of the runs that follow, too, except that of a file, which has one run.
    """
    growing = program.growing
    if path is not None:
        later: tuple[Arrays, ...] | None = None if growing is None else ()
        yield InputSet(Path(path).name, read_npz_inputs(path, types), later=later)
        return
    for sizes in _sizes_to_verify(program):
        runs = [sizes] if growing is None else _sizes_of_consecutive_runs(program, growing, sizes)
        text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        for seed in range(seeds):
            first, *rest = (
                draw_random_inputs(_types_of_sizes(types, program, s), seed + k * seeds, domains)
                for k, s in enumerate(runs)
            )
            yield InputSet(f"{text}, seed {seed}", first, later=None if growing is None else tuple(rest))


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
    """Return True if the sizes of a run are in their ranges, and a state that grows has room."""
    is_allowed = all(size in program.sizes[name] for name, size in sizes.items())
    return is_allowed and (program.growing is None or program.growing.check.holds(program.symbols_of_sizes(sizes)))


def _sizes_to_verify(program: Program) -> list[dict[str, int]]:
    """Return sizes of runs that a program accepts, without repetition."""
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
    accepted: list[dict[str, int]] = []
    for sizes in candidates:
        if program.growing is not None:
            sizes[program.growing.size] = 0
        symbols = program.symbols_of_sizes(sizes)
        holds = program.are_accepted(symbols) and _has_room(program, sizes)
        if sizes not in accepted and holds:
            accepted.append(sizes)
    return accepted[:_MAX_VERIFIED_SIZES]
