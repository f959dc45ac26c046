# SPDX-License-Identifier: Apache-2.0
"""Convert reductions and reshapes whose axes are known at run time only.

Each axis of the tensor has a size that is 1 if the axis is among those of the operator and 0 if it is not;
shapes of results are formulas of these sizes.

chosen_axes([axis], 3, "onnx-axis")         # [s1, s2, s3], of which s1 is 1 if `axis` is 0 or -3, and else 0
"""

from __future__ import annotations

from collections.abc import Sequence

from aotc.ir import Dim, largest_size, product_of_dims, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.reductions import Reduction
from aotc.relay.frontend.size_conditions import require_equal_dims
from aotc.relay.frontend.size_operands import define_size, equality_of_sizes


def reduce_axes_known_at_run_time(reduction: Reduction, x: Expr, axes: Sequence[Dim], keepdims: bool) -> Expr:
    """Reduce axes that are known at run time only: permute the axes so that these are the last ones, and
    reduce those.
    """
    dims, rank, count = g.dims(x), g.rank(x), len(axes)
    chosen = chosen_axes(axes, rank, "onnx-axis")
    kept = dims_of_kept_axes(dims, chosen, rank - count)
    reduced = dims_of_kept_axes(dims, [1 - c for c in chosen], count)
    places: list[Dim] = []
    before: Dim = 0  # number of reduced axes before an axis
    for k, is_reduced in enumerate(chosen):
        # an axis that is kept moves to the front by the reduced ones before it
        moved = product_of_dims((is_reduced, before + (rank - count)))
        places.append(define_size(sum_of_dims((moved, product_of_dims((1 - is_reduced, k - before)))), 0, rank - 1))
        before = define_size(sum_of_dims((before, is_reduced)), 0, rank)
    last = g.call_op("permute_axes", x, places=tuple(places), shape=(*kept, *reduced))
    result = reduction(last, tuple(range(rank - count, rank)), False)
    if not keepdims:
        return result
    most = [max(largest_size(d), 1) for d in dims]
    extents = [
        define_size(sum_of_dims((product_of_dims((1 - c, d)), c)), 0, m)
        for c, d, m in zip(chosen, dims, most, strict=True)
    ]
    return g.reshape(result, extents)


def largest_of_dims(dims: Sequence[Dim]) -> int | None:
    """Return the largest size that one of several dimensions can have, at least 1; None if nothing bounds
    one of them.
    """
    sizes = [d if isinstance(d, int) else d.upper for d in dims]
    return None if None in sizes else max((size for size in sizes if size is not None), default=1)


def chosen_axes(axes: Sequence[Dim], rank: int, code: str) -> list[Dim]:
    """Return for each axis of a tensor 1 if it is among axes that are known at run time only, which may
    count from the end, and 0 if not. An axis that occurs twice is a wrong size.
    """
    places = [define_size((a + rank) % rank, 0, rank - 1) for a in axes]
    chosen = [define_size(sum_of_dims([equality_of_sizes(p, k) for p in places]), 0, 1) for k in range(rank)]
    require_equal_dims(code, sum_of_dims(chosen), len(axes), "an axis occurs twice")
    return chosen


def dims_around_new_axes(dims: Sequence[Dim], inserted: Sequence[Dim]) -> list[Dim]:
    """Return a shape with axes of extent 1 where `inserted` is 1."""
    result: list[Dim] = []
    most = max(map(largest_size, (1, *dims)))
    source: Dim = 0  # axis of the data that comes next
    for is_new in inserted:
        extents = [product_of_dims((equality_of_sizes(source, k), d)) for k, d in enumerate(dims)]
        extent = define_size(sum_of_dims(extents), 0, most)
        result.append(define_size(sum_of_dims((is_new, product_of_dims((1 - is_new, extent)))), 0, most))
        source = define_size(sum_of_dims((source, 1 - is_new)), 0, len(inserted))
    return result


def dims_of_kept_axes(dims: Sequence[Dim], chosen: Sequence[Dim], count: int) -> list[Dim]:
    """Return the `count` extents of the axes for which `chosen` is 0."""
    places: list[Dim] = []
    place: Dim = 0  # position of an axis among the axes that are kept
    for is_chosen in chosen:
        places.append(place)
        place = define_size(sum_of_dims((place, 1 - is_chosen)), 0, len(dims))
    most = max(map(largest_size, dims), default=1)
    result: list[Dim] = []
    for k in range(count):
        rows = zip(dims, chosen, places, strict=True)
        extents = [product_of_dims((d, 1 - is_chosen, equality_of_sizes(p, k))) for d, is_chosen, p in rows]
        result.append(define_size(sum_of_dims(extents), 0, most))
    return result
