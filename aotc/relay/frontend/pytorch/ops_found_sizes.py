# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of operators whose results have a size that the elements of their operands decide."""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import product_of_dims, require, same_dim
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.found_sizes import distinct_slices, elements_at_nonzero, found_rows, nonzero_positions
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table
from aotc.relay.graph_api import Expr
from aotc.relay.op.type_rules import broadcast_two_shapes


def _nonzero_numpy(x: Expr) -> list[Expr]:
    """Convert nonzero with as_tuple: the indices along each axis."""
    rows = nonzero_positions(x)
    return [g.squeeze(g.strided_slice(rows, [axis], [axis + 1], [1]), [1]) for axis in range(g.rank(x))]


def elements_at_mask(x: Expr, mask: Expr, axis: int) -> Expr:
    """Return the elements or slices of `x` where a mask of the axes from `axis` on is true, along one axis."""
    sizes, end = g.dims(x), axis + g.rank(mask)
    masked, given = sizes[axis:end], g.dims(mask)
    fits = len(masked) == len(given) and all(map(same_dim, masked, given))
    require("torch-index", fits, "a mask has another shape than what it masks")
    merged = g.reshape(x, (*sizes[:axis], product_of_dims(masked), *sizes[end:]))
    return elements_at_nonzero(merged, g.flatten(mask), axis)


def _masked_select(x: Expr, mask: Expr) -> Expr:
    shape = broadcast_two_shapes(g.dims(x), g.dims(mask))
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


def _nms(boxes: Expr, scores: Expr, iou_threshold: float) -> Expr:
    """Convert torchvision's nms: the positions of the boxes that remain, best first."""
    count, dtype = g.dim(boxes, 0), g.dtype(boxes)
    # scores must exceed the least number to be selected
    least = g.constant(-np.inf, dtype)
    above = g.maximum(scores, g.constant(np.finfo(dtype.numpy).min, dtype))
    # PyTorch compares with a double: the largest number of the type that is not above it
    threshold = np.asarray(iou_threshold).astype(dtype.numpy)
    if float(threshold) > iou_threshold:
        threshold = np.nextafter(threshold, -np.inf, dtype=dtype.numpy)
    limits = (g.constant([count], "int64"), g.constant(threshold, dtype), least)
    rows = (g.reshape(boxes, (1, count, 4)), g.reshape(above, (1, 1, count)))
    found = g.call_op("vision.select_boxes", *rows, *limits, most=count)
    return g.squeeze(g.strided_slice(found_rows(g.field(found, 1), g.field(found, 0))[0], [2], [3], [1]), [1])


#: Converters by PyTorch operator.
OPS: Final[Table] = {
    **dict.fromkeys(("nonzero", "argwhere"), nonzero_positions),
    **tv.converter_table_by_function_name(_masked_select, _nonzero_numpy, _unique2, _unique_dim),
    "torchvision::nms": _nms,
}
