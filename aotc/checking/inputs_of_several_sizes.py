# SPDX-License-Identifier: Apache-2.0
"""Input arrays for a model whose shapes depend on the sizes of a run: sets for several sizes.

input_sets_of_sizes(types, domains, program, None, seeds=3)   # InputSet("n 0, seed 0", ...), ...
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from aotc.checking.input_generation import InputSet, draw_random_inputs, read_npz_inputs
from aotc.ir import TensorType
from aotc.relay.valid_input_values_and_random_arrays import ValueDomain
from aotc.tir import Program, value_of_dim

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
    those nearest to 1, the typical ones, and random ones.
    """
    if path is not None:
        yield InputSet(Path(path).name, read_npz_inputs(path, types))
        return
    for sizes in _sizes_to_verify(program):
        symbols = program.symbol_values(sizes)
        bound = {name: TensorType([value_of_dim(d, symbols) for d in ty.shape], ty.dtype) for name, ty in types.items()}
        text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        for seed in range(seeds):
            yield InputSet(f"{text}, seed {seed}", draw_random_inputs(bound, seed, domains))


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
        symbols = program.symbols_of_sizes(sizes)
        if sizes not in accepted and all(check.holds(symbols) for check in program.checks):
            accepted.append(sizes)
    return accepted[:_MAX_VERIFIED_SIZES]
