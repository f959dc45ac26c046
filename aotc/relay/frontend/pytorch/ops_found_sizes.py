# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators whose results have a size that the elements of their operands decide."""

from __future__ import annotations

from typing import Final

from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.found_sizes import distinct_slices, elements_at_nonzero, nonzero_positions
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table
from aotc.relay.graph_api import Expr
from aotc.relay.op.type_rules import broadcast_two_shapes


def _nonzero_numpy(x: Expr) -> list[Expr]:
    """Convert nonzero with as_tuple: the indices along each axis."""
    rows = nonzero_positions(x)
    return [g.squeeze(g.strided_slice(rows, [axis], [axis + 1], [1]), [1]) for axis in range(g.rank(x))]


def _masked_select(x: Expr, mask: Expr) -> Expr:
    shape = broadcast_two_shapes(tv.static_dims(x), tv.static_dims(mask))
    return elements_at_nonzero(g.flatten(g.broadcast_to(x, shape)), g.flatten(g.broadcast_to(mask, shape)), 0)


def _unique2(x: Expr, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> list[Expr]:
    """Convert unique without an axis; PyTorch sorts the values in any case."""
    values, _, inverse, counts = distinct_slices(g.flatten(x), 0, is_sorted=True)
    return [values, g.reshape(inverse, tv.static_dims(x)), counts]


def _unique_dim(
    x: Expr, dim: Axis, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> list[Expr]:
    values, _, inverse, counts = distinct_slices(x, tv.normalize_axis(dim, x), is_sorted=True)
    return [values, inverse, counts]


#: Converters by PyTorch operator.
OPS: Final[Table] = {
    **dict.fromkeys(("nonzero", "argwhere"), nonzero_positions),
    **tv.converter_table_by_function_name(_masked_select, _nonzero_numpy, _unique2, _unique_dim),
}
