# SPDX-License-Identifier: Apache-2.0
"""Convert reductions, reshapes and slices whose axes are known at run time only.

Each axis of the tensor has a size that is 1 if the axis is among those of the operator and 0 if it is not;
shapes of results are formulas of these sizes.

chosen_axes([axis], 3, "onnx-axis")         # [s1, s2, s3], of which s1 is 1 if `axis` is 0 or -3, and else 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotc.ir import Dim, equality_of_dims, is_static, largest_size, product_of_dims, sum_of_dims
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.reductions import Reduction
from aotc.relay.frontend.run_time_slices import counted_slice_of_axis
from aotc.relay.frontend.size_conditions import require_equal_dims
from aotc.relay.frontend.size_operands import define_size


def reduce_axes_known_at_run_time(reduction: Reduction, x: Expr, axes: Sequence[Dim], keepdims: bool) -> Expr:
    """Reduce axes that are known at run time only: permute the axes so that these are the last ones, and
    reduce those.
    """
    dims, rank, count = g.dims(x), g.rank(x), len(axes)
    chosen = chosen_axes(axes, rank, "onnx-axis")
    places, shape = _places_with_axes_last(dims, chosen, count)
    last = g.call_op("permute_axes", x, places=tuple(places), shape=tuple(shape))
    result = reduction(last, tuple(range(rank - count, rank)), False)
    if not keepdims:
        return result
    most = [max(largest_size(d), 1) for d in dims]
    extents = [
        define_size(sum_of_dims((product_of_dims((1 - c, d)), c)), 0, m)
        for c, d, m in zip(chosen, dims, most, strict=True)
    ]
    return g.reshape(result, extents)


def _places_with_axes_last(dims: Sequence[Dim], chosen: Sequence[Dim], count: int) -> tuple[list[Dim], list[Dim]]:
    """Return, for a permutation that moves the `count` axes for which `chosen` is 1 behind the others, the place of
    each axis and the shape of the result.
    """
    rank = len(dims)
    kept = dims_of_kept_axes(dims, chosen, rank - count)
    moved = dims_of_kept_axes(dims, [1 - c for c in chosen], count)
    places: list[Dim] = []
    before: Dim = 0  # number of chosen axes before an axis
    for k, is_chosen in enumerate(chosen):
        # an axis that is kept moves to the front by the chosen ones before it
        place = product_of_dims((is_chosen, before + (rank - count)))
        places.append(define_size(sum_of_dims((place, product_of_dims((1 - is_chosen, k - before)))), 0, rank - 1))
        before = define_size(sum_of_dims((before, is_chosen)), 0, rank)
    return places, [*kept, *moved]


def apply_along_axis_known_at_run_time(function: Callable[[Expr], Expr], x: Expr, axis: Dim, fixed: int) -> Expr:
    """Apply a function to an axis that is known at run time only, none of the last `fixed` ones: permute the axes so
    that it is the last one before these, and undo this after the function, which may change the extents of this axis
    and of the fixed ones.
    """
    rank = g.rank(x)
    movable, last = rank - fixed, list(range(rank - fixed, rank))
    chosen = chosen_axes([axis], rank, "onnx-axis")
    text = f"the axis is one of the last {fixed} axes"
    require_equal_dims("onnx-axis", sum_of_dims(chosen[:movable]), 1, text)
    dims = g.dims(x)
    places, shape = _places_with_axes_last(dims[:movable], chosen[:movable], 1)
    moved = g.call_op("permute_axes", x, places=(*places, *last), shape=(*shape, *dims[movable:]))
    result = function(moved)
    extent, *others = g.dims(result)[movable - 1 :]
    most = max(map(largest_size, (*dims[:movable], extent)))
    extents = [
        define_size(sum_of_dims((product_of_dims((1 - c, d)), product_of_dims((c, extent)))), 0, most)
        for c, d in zip(chosen, dims[:movable], strict=False)
    ]
    back = [
        define_size(
            sum_of_dims([product_of_dims((k, equality_of_dims(p, place))) for k, p in enumerate(places)]), 0, rank
        )
        for place in range(movable)
    ]
    return g.call_op("permute_axes", result, places=(*back, *last), shape=(*extents, *others))


def flat_steps(shape: Sequence[Dim]) -> list[Expr]:
    """Return for each axis of a tensor the distance of neighbors in the flattened tensor, as int64 scalars."""
    steps: list[Expr] = [g.constant(1, "int64")]
    for extent in reversed(shape[1:]):
        steps.append(g.mul(steps[-1], g.size_as_tensor(extent)))
    return steps[::-1]


def flat_indices_in_other_shape(indices: Expr, shape: Sequence[Dim], steps: Sequence[Expr]) -> Expr:
    """Return, for flat indices into a tensor of a shape, the sums of their coordinates times `steps`, one for each
    axis.
    """
    result: Expr | None = None
    for extent, distance, step in zip(shape, flat_steps(shape), steps, strict=True):
        if isinstance(extent, int) and extent == 1:
            continue
        place = g.floor_mod(g.call_op("floor_divide", indices, distance), g.size_as_tensor(extent))
        result = g.mul(place, step) if result is None else g.add(result, g.mul(place, step))
    return g.filled(0, g.dims(indices), "int64") if result is None else result


def chosen_axes(axes: Sequence[Dim], rank: int, code: str) -> list[Dim]:
    """Return for each axis of a tensor 1 if it is among axes that are known at run time only, which may
    count from the end, and 0 if not. An axis that occurs twice is a wrong size.
    """
    places = [define_size((a + rank) % rank, 0, rank - 1) for a in axes]
    chosen = [define_size(sum_of_dims([equality_of_dims(p, k) for p in places]), 0, 1) for k in range(rank)]
    require_equal_dims(code, sum_of_dims(chosen), len(axes), "an axis occurs twice")
    return chosen


def dims_around_new_axes(dims: Sequence[Dim], inserted: Sequence[Dim]) -> list[Dim]:
    """Return a shape with axes of extent 1 where `inserted` is 1."""
    result: list[Dim] = []
    most = max(map(largest_size, (1, *dims)))
    source: Dim = 0  # axis of the data that comes next
    for is_new in inserted:
        extents = [product_of_dims((equality_of_dims(source, k), d)) for k, d in enumerate(dims)]
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
        extents = [product_of_dims((d, 1 - is_chosen, equality_of_dims(p, k))) for d, is_chosen, p in rows]
        result.append(define_size(sum_of_dims(extents), 0, most))
    return result


def values_by_axis(
    axes: Sequence[Dim], values: Sequence[Sequence[Dim]], otherwise: Sequence[Sequence[Dim]]
) -> list[list[Dim]]:
    """Return for each axis of a tensor the values that lists have at the position of this axis in `axes`, which
    may be known at run time only and count from the end.

    values       lists with one value for each of `axes`
    otherwise    for each axis, the values if it is not among `axes`

    An axis that occurs twice is a wrong size.
    """
    rank = len(otherwise)
    if is_static(axes):
        known = list(axes)
        return [[v[known.index(k)] for v in values] if k in known else list(otherwise[k]) for k in range(rank)]
    chosen = chosen_axes(axes, rank, "onnx-axis")
    places = [define_size((a + rank) % rank, 0, rank - 1) for a in axes]
    result: list[list[Dim]] = []
    for k, (is_chosen, defaults) in enumerate(zip(chosen, otherwise, strict=True)):
        at = [equality_of_dims(p, k) for p in places]
        rows = [(*zip(at, items, strict=True), (1 - is_chosen, d)) for items, d in zip(values, defaults, strict=True)]
        result.append([sum_of_dims(map(product_of_dims, row)) for row in rows])
    return result


def slices_of_axes(
    starts: Sequence[Dim], ends: Sequence[Dim], steps: Sequence[Dim], axes: Sequence[Dim], dims: Sequence[Dim]
) -> list[tuple[Dim, Dim, Dim]]:
    """Return for each axis of a tensor the first position of its slice, the number of elements and the step, for
    slices as ONNX's operator Slice takes them: negative starts and ends count from the end of the axis, and those
    that are too far away are clipped. A step of 0 is a wrong size.
    """
    rows = values_by_axis(axes, (starts, ends, steps), [(0, d, 1) for d in dims])
    return [counted_slice_of_axis(start, end, step, d) for (start, end, step), d in zip(rows, dims, strict=True)]
