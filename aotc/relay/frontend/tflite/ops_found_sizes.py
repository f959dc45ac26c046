# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of operators whose results have a size that the elements of their operands decide.

OPS["WHERE"](x)                 # Tensor[(found0<=6, 2), int64]: the indices of the elements that are not 0
"""

from __future__ import annotations

from typing import Final

from aotc.ir import require
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import distinct_slices, nonzero_positions
from aotc.relay.frontend.tflite.node import Table, TfliteNode


def _convert_unique_node(x: Expr, *, node: TfliteNode) -> list[Expr]:
    """Convert UNIQUE: the distinct elements of a vector in the order of their first occurrence, and the index of each
    element among them.
    """
    require("graph-shape", g.rank(x) == 1, f"UNIQUE takes a vector, not a tensor of shape {g.shape(x)}")
    values, _, inverse, _ = distinct_slices(x, 0, is_sorted=False)
    return [values, *(g.cast(inverse, str(result.dtype)) for result in node.results[1:])]


OPS: Final[Table] = {"UNIQUE": _convert_unique_node, "WHERE": lambda x: nonzero_positions(x)}
INTEGERS: Final[frozenset[str]] = frozenset()
MOVES: Final[frozenset[str]] = frozenset()
