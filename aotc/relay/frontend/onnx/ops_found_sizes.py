# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of operators whose results have a size that the elements of their operands decide: Compress,
NonMaxSuppression, NonZero and Unique.

Results of constants have shapes that are known; others have sizes that a run finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from aotc.ir import interval_of_dim, minimum_of_dims, require, same_dim
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.found_sizes import distinct_slices, elements_at_nonzero, found_rows, nonzero_positions
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.graph_api import compile_time_elements, tensor_type_of


def _non_zero(x: Expr) -> Expr:
    known = compile_time_elements(x)
    if known is not None:
        return g.constant(np.stack(np.nonzero(np.atleast_1d(known))), "int64")
    return g.transpose(nonzero_positions(g.reshape(x, (1,)) if g.rank(x) == 0 else x), (1, 0))


def _compress(x: Expr, condition: Expr, *, axis: int | None = None) -> Expr:
    """Convert Compress: gather the elements where the condition is true; what is behind the end of the condition is
    left out.
    """
    place = 0 if axis is None else g.normalize_axis(axis, g.rank(x))
    x = g.flatten(x) if axis is None else x
    known = compile_time_elements(condition)
    if known is not None:
        return gather_slices(x, g.constant(np.flatnonzero(known.reshape(-1)), "int64"), place)
    flags, extent = g.flatten(condition), g.dims(x)[place]
    (count,) = g.dims(flags)
    if not same_dim(count, extent) and not interval_of_dim(count)[1] <= interval_of_dim(extent)[0]:
        flags = g.strided_slice(flags, [0], [minimum_of_dims((count, extent))], [0])
    return elements_at_nonzero(x, flags, place)


def _non_max_suppression(
    boxes: Expr,
    scores: Expr,
    most: OptionalExpr = None,
    overlap: OptionalExpr = None,
    least: OptionalExpr = None,
    *,
    center_point_box: int = 0,
) -> Expr:
    """Convert NonMaxSuppression: rows of image, class and box, of which a run finds the number."""
    dtype = g.dtype(boxes)
    for name, data in (("boxes", boxes), ("scores", scores)):
        ty = tensor_type_of(data)
        text = f"`{name}` of NonMaxSuppression must be a floating-point tensor of rank 3, but it is {ty}"
        require("onnx-rank", len(ty.shape) == 3 and ty.dtype.is_float, text)
    if center_point_box:
        center, size = g.split(boxes, [2, 2], 2)
        half = g.mul(size, 0.5)
        boxes = g.concat([g.sub(center, half), g.add(center, half)], 2)
    limits = [
        g.constant([0], "int64") if most is None else most,
        g.constant([0], dtype) if overlap is None else g.cast(overlap, dtype),
        g.constant([-np.inf], dtype) if least is None else g.cast(least, dtype),
    ]
    known = compile_time_elements(limits[0])
    room = -1 if known is None else max(int(known.reshape(-1)[0]), 0)
    found = g.call_op("vision.select_boxes", boxes, scores, *limits, most=room)
    return found_rows(g.field(found, 1), g.field(found, 0))[0]


def _unique(x: Expr, *, axis: int | None = None, sorted: int = 1) -> Sequence[Expr]:
    """Convert Unique: the distinct elements or slices, the first position of each, the index of each element's value
    among them, and the number of occurrences.
    """
    if axis is None:
        return distinct_slices(g.flatten(x), 0, is_sorted=bool(sorted))
    return distinct_slices(x, g.normalize_axis(axis, g.rank(x)), is_sorted=bool(sorted))


#: Converters by ONNX operator.
OPS: Final = {"Compress": _compress, "NonMaxSuppression": _non_max_suppression, "NonZero": _non_zero, "Unique": _unique}
