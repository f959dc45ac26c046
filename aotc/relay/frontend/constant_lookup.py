# SPDX-License-Identifier: Apache-2.0
"""Lookup of values in sorted constants by binary search.

positions_in_sorted(x, np.array([2, 3, 7]))        # 0, 1 or 2 for elements that are 2, 3 or 7; 3 for all others
"""

from __future__ import annotations

from aotc.ir import Array
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices


def positions_in_sorted(values: Expr, known: Array) -> Expr:
    """Return the position of each element of a tensor among constants, int32; the number of the constants for elements
    that are not among them, NaN included.

    known    vector of at least one constant, distinct and in ascending order, of the dtype of `values`
    """
    constants = g.constant(known)
    position = g.call_op("searchsorted", constants, values, right=False, dtype="int32")
    position = g.minimum(position, len(known) - 1)
    return g.where(g.equal(gather_slices(constants, position, 0), values), position, len(known))
