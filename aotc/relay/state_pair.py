# SPDX-License-Identifier: Apache-2.0
"""Pairs of an input and an output of a model that are state: each run's output is the next run's
input.

StatePair("h", "h_out")             # zeros before the first run
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Array, TensorType, frozen

#: Module attribute with the (input name, output name) pairs that are state.
STATE_PAIRS_ATTRIBUTE: Final = "state_pairs"


@frozen(eq=False)
class StatePair:
    """Input of a model that receives an output of the run before.

    past, present    names of the input and of the output
    initial          contents of the input in the first run, in its shape; None for zeros
    """

    past: str
    present: str
    initial: Array | None = None

    def contents_of_first_run(self, ty: TensorType) -> Array:
        """Return the contents of the input in the first run; `ty` is the static type of the input."""
        if self.initial is None:
            return np.zeros(ty.static_shape, ty.dtype.numpy)
        contents: Array = np.asarray(self.initial, ty.dtype.numpy).reshape(ty.static_shape)
        return contents
