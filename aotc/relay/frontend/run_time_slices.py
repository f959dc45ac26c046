# SPDX-License-Identifier: Apache-2.0
"""Graph builders for slices whose positions, or the extents of whose axes, are known at run time only.

slice_in_known_steps(x, [0], [n], [1], [2])     # x[:, 0:n:2]
counted_slice_of_axis(-n, 4, 1, m)              # first position, number of elements and step, as sizes
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotc.ir import (
    Dim,
    interval_of_dim,
    largest_size,
    maximum_of_dims,
    minimum_of_dims,
    product_of_dims,
    require,
    same_dim,
    sign_bit_of_dim,
    sum_of_dims,
)
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.size_conditions import require_at_least
from aotc.relay.frontend.size_operands import define_size


def largest_of_dims(dims: Sequence[Dim]) -> int | None:
    """Return the largest size that one of several dimensions can have, at least 1; None if nothing bounds
    one of them.
    """
    sizes = [d if isinstance(d, int) else d.upper for d in dims]
    return None if None in sizes else max((size for size in sizes if size is not None), default=1)


def has_known_sign(value: Dim) -> bool:
    """Return True if a number is negative in every run, or in no run."""
    low, high = interval_of_dim(value)
    return low >= 0 or high < 0


def slice_in_known_steps(
    x: Expr, starts: Sequence[Dim], ends: Sequence[Dim], places: Sequence[int], steps: Sequence[int]
) -> Expr:
    """Return a slice of the axes `places` as numpy takes it. Positions and extents may be known at run time only; the
    sign of a position must be known. Raises AotcError (code "graph-slice") for a step of 0.
    """
    require(
        "graph-slice",
        0 not in steps,
        f"a step of 0 in {steps}",
        hint="use 1 or greater, or a negative step to go backwards",
    )
    box: list[tuple[Dim, Dim, int, int]] = []
    for start, end, axis, step in zip(starts, ends, places, steps, strict=True):
        size = g.dims(x)[axis]
        if not isinstance(size, int) or not isinstance(start, int) or not isinstance(end, int):
            if (start, step) == (0, 1) and isinstance(end, int) and end >= np.iinfo(np.int32).max:
                continue
            if step < 0:  # starts at element 0 at the least
                start = maximum_of_dims((start, 0 - size))
            box.append((start, end, axis, step))
            continue
        first, last = _clip_slice_bounds(start, end, step, size)
        if (first, last, step) != (0, size, 1):
            # a backward slice down to element 0 needs an end that numpy does not count from the end
            box.append((first, last if last >= 0 else -size - 1, axis, step))
    return g.strided_slice(x, *zip(*box, strict=True)) if box else x


def _clip_slice_bounds(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Return the begin and end positions of a slice, clipped to the axis as ONNX defines it; a
    backward slice starts at element 0 at the least, and an empty slice is (0, 0).
    """
    first, last, _ = slice(start, end, step).indices(size)
    first = max(first, min(0, size - 1))
    return (first, last) if range(first, last, step) else (0, 0)


def distance_and_direction(step: Dim, code: str, text: str) -> tuple[Dim, Dim]:
    """Return the absolute value of a step, and 1 if it is negative or 0 if it is not. A run refuses a step of 0.

    code, text    of the diagnostic for a step of 0
    """
    distance = maximum_of_dims((step, 0 - step))
    distance = define_size(distance, 1, max(largest_size(distance), 1))
    require_at_least(code, distance, 1, text)
    return distance, sign_bit_of_dim(step)


def counted_slice_of_axis(start: Dim, end: Dim, step: Dim, extent: Dim) -> tuple[Dim, Dim, Dim]:
    """Return the first position of a slice of an axis, the number of its elements and the step; see `slices_of_axes` of
    the ONNX front end.
    """
    if (start, step) == (0, 1) and same_dim(end, extent):
        return 0, extent, 1
    most = largest_size(extent)
    distance, is_backward = distance_and_direction(step, "graph-slice", "a step of Slice is 0")
    # a backward slice begins at the last element at the latest, and ends before element 0 at the latest
    after = extent - is_backward
    first = define_size(maximum_of_dims((0, minimum_of_dims((_from_start(start, extent), after)))), 0, most)
    before = maximum_of_dims((_from_start(end, extent), 0 - is_backward))
    end_position = define_size(minimum_of_dims((before, after)) + is_backward, 0, most) - is_backward
    span = product_of_dims((end_position - first, 1 - 2 * is_backward))
    count = minimum_of_dims(((maximum_of_dims((span, 0)) + (distance - 1)) // distance, extent))
    return first, define_size(count, 0, most), step


def _from_start(position: Dim, extent: Dim) -> Dim:
    """Return a position in an axis that counts from the end if it is negative, counted from the start."""
    return sum_of_dims((position, product_of_dims((extent, sign_bit_of_dim(position)))))
