# SPDX-License-Identifier: Apache-2.0
"""Pairs of an input and an output of a model that are state: each run's output is the next run's
input.

StatePair("h", "h_out")             # zeros before the first run
"""

from __future__ import annotations

from typing import Final

from aotc.ir import Array, frozen

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
