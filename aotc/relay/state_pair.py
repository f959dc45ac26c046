# SPDX-License-Identifier: Apache-2.0
"""Pairs of an input and an output of a model that are state: each run's output is the next run's
input.

StatePair("h", "h_out")             # zeros before the first run
StatePair("past", "present", growth=StateGrowth(2, "n", 1, 512))      # empty before the first run
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Array, Dim, TensorType, frozen, require_static_shape

#: Module attribute with the (input name, output name) pairs that are state.
STATE_PAIRS_ATTRIBUTE: Final = "state_pairs"


@frozen
class StateGrowth:
    """How a state becomes longer in each run, such as the cache of a decoder.

    axis        axis along which it grows; all others have a fixed size
    size        name of the size of the run that is the length of the state before the run
    added       elements along the axis that a run appends: a number, or a formula over sizes of the run
    capacity    largest length of the state
    """

    axis: int
    size: str
    added: Dim
    capacity: int


@frozen(eq=False)
class StatePair:
    """Input of a model that receives an output of the run before.

    past, present    names of the input and of the output
    initial          contents of the input in the first run, in its shape; None for zeros, and for a state
                     that grows, which begins empty
    growth           how the state grows; None for a state of a fixed size
    """

    past: str
    present: str
    initial: Array | None = None
    growth: StateGrowth | None = None

    def contents_of_first_run(self, ty: TensorType) -> Array:
        """Return the contents of the input in the first run; `ty` is the type of the input, static but
        for the axis along which the state grows.
        """
        axis = None if self.growth is None else self.growth.axis
        shape = require_static_shape(0 if k == axis else d for k, d in enumerate(ty.shape))
        if self.initial is None:
            return np.zeros(shape, ty.dtype.numpy)
        contents: Array = np.asarray(self.initial, ty.dtype.numpy).reshape(shape)
        return contents
