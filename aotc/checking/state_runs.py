# SPDX-License-Identifier: Apache-2.0
"""Runs of models that keep state between runs, for comparisons: the compiled model with a state, and
a reference implementation that receives the outputs of its last run as inputs.

stream = ReferenceState.at_first_run(work.state, types)
expected = reference.run(inputs | stream.arrays); stream = stream.after_run(expected)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from aotc.checking.input_generation import Arrays, InputSet, input_types
from aotc.driver.pipeline import Compilation
from aotc.ir import Array, TensorType, frozen
from aotc.ir.dimensions import check_until_symbols_are_known, is_shape_compatible_binding_symbols
from aotc.relay.graph_api import IRModule
from aotc.relay.state_pair import StatePair

#: Number of consecutive runs, from the first contents of the state on, that are compared.
COMPARED_RUNS: Final = 4


@frozen(eq=False)
class ReferenceState:
    """Contents of the state inputs of a model before a run.

    pairs     state pairs of the model
    arrays    contents by name of the input
    """

    pairs: tuple[StatePair, ...]
    arrays: Arrays

    @classmethod
    def at_first_run(cls, pairs: Sequence[StatePair], types: Mapping[str, TensorType]) -> ReferenceState:
        """Return the contents before the first run.

        types    types of the model's inputs by name
        """
        return cls(tuple(pairs), {pair.past: pair.contents_of_first_run(types[pair.past]) for pair in pairs})

    def after_run(self, outputs: Arrays) -> ReferenceState:
        """Return the contents after a run that had these outputs."""
        return replace(self, arrays={pair.past: outputs[pair.present] for pair in self.pairs})

    def without_state(self, outputs: Arrays) -> Arrays:
        """Return the outputs that are not state."""
        kept = {pair.present for pair in self.pairs}
        return {name: array for name, array in outputs.items() if name not in kept}


def inputs_of_consecutive_runs(given: InputSet, pairs: Sequence[StatePair]) -> list[InputSet]:
    """Return the inputs of the runs for one set of inputs: this set alone for a model without
    state, this set and those that it names for a state that grows, otherwise `COMPARED_RUNS` sets with the
    values at other places.
    """
    if not pairs:
        return [given]
    if given.later is not None:
        runs = enumerate((given.arrays, *given.later))
        return [replace(given, source=f"{given.source}, run {k + 1}", arrays=arrays) for k, arrays in runs]
    return [
        replace(
            given,
            source=f"{given.source}, run {k + 1}",
            arrays={n: _rotate_elements(a, k) for n, a in given.arrays.items()},
        )
        for k in range(COMPARED_RUNS)
    ]


def _rotate_elements(array: Array, places: int) -> Array:
    """Return an array with its elements moved by a number of places, in the order of memory."""
    rotated: Array = np.roll(array.reshape(-1), places).reshape(array.shape)
    return rotated


def input_types_of_all_sizes(compilation: Compilation) -> dict[str, TensorType]:
    """Return the types of all inputs of a model by name, with the sizes of all tiers as symbols."""
    tiers = compilation.tiers
    return input_types(compilation.module) if tiers is None else dict(tiers.inputs)


def has_shapes_of_inputs(module: IRModule, inputs: Mapping[str, Array]) -> bool:
    """Return True if arrays have shapes that the inputs of a module can have together."""
    types = input_types(module)
    return check_until_symbols_are_known(
        lambda sizes: all(
            is_shape_compatible_binding_symbols(ty.shape, inputs[name].shape, sizes) for name, ty in types.items()
        )
    )


def types_of_inputs_without_state(compilation: Compilation) -> dict[str, TensorType]:
    """Return the types of the inputs of a model that callers give at each run, by name."""
    kept = {pair.past for pair in compilation.state}
    return {name: ty for name, ty in input_types_of_all_sizes(compilation).items() if name not in kept}
