# SPDX-License-Identifier: Apache-2.0
"""Results whose number of rows depends on computed values, such as the positions of the elements that are not 0.

An operator computes a tensor with room for the largest number of rows, and a tensor with the number of rows that
count. A call of `leading_rows` keeps those. From this call on, the number of rows is a size with a name, such as
found0, which each run finds.

positions, = found_rows(count, positions)               # Tensor[(24, 2), int64] -> Tensor[(found0<=24, 2), int64]
body = with_sizes_found_before_use(body, found)         # what uses the size found0 is computed after it is found
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aotc.ir import AotcError, Op, SymDim, dims_in_attrs, get_op, largest_size, product_of_dims, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.size_operands import find_size
from aotc.relay.frontend.size_values import distances
from aotc.relay.frontend.slice_pad_depth_to_space import gather_slices
from aotc.relay.graph_api import Call, Expr, children, depth_first_post_order, typed_op_call
from aotc.relay.visitor import rewrite_bottom_up


def found_rows(count: Expr, *tensors: Expr) -> list[Expr]:
    """Return the first rows of tensors, as many as the one element of `count` says: a size that a run finds. All
    tensors have the same number of rows, which is the largest value of this size.
    """
    return found_rows_within_bound(largest_size(g.dims(tensors[0])[0]), lambda _: (count, tensors))


def found_rows_within_bound(most: int | None, rows: Callable[[int], tuple[Expr, Sequence[Expr]]]) -> list[Expr]:
    """Return the first rows of tensors that are computed with room for a largest number of rows: a size that a run
    finds.

    most    the largest number of rows; None if the caller of the compiler must state it
    rows    function that returns for the largest number of rows an integer tensor of one element, which says how
            many rows count, and the tensors, which have room for the largest number. A run ends if the element is
            larger.

    Raise AotcError (code "graph-operand-bound") if nothing bounds the number.
    """
    results: list[Expr] = []

    def calls(size: SymDim) -> Expr:
        count, tensors = rows(largest_size(size))
        results.extend(g.call_op("leading_rows", tensor, count, rows=size) for tensor in tensors)
        return results[0]

    find_size(most, calls)
    return results


def with_room(x: Expr, rooms: Mapping[int, int]) -> Expr:
    """Return `x`, padded with zeros at the end of some axes; `x` itself, which may be a tuple, if there are none.

    rooms    the new extent of each of these axes, at least the largest one that `x` may have
    """
    if not rooms:
        return x
    return g.pad(x, [(0, rooms[k] - dim if k in rooms else 0) for k, dim in enumerate(g.dims(x))])


def cut_to_found_sizes(x: Expr, sizes: Mapping[int, Expr]) -> Expr:
    """Return the first elements of `x` along some axes, of which a run finds the number; `x` itself, which may be a
    tuple, if there are none.

    sizes    the number of elements along each of these axes, an integer of one element; at most the extent of `x`
    """
    if not sizes:
        return x
    if 0 in sizes:
        x = found_rows(sizes[0], x)[0]
    counts = list(g.dims(x))
    for axis, count in sizes.items():
        if axis:
            places = g.filled(False, (counts[axis],), "bool")
            (counts[axis],) = g.dims(found_rows(count, places)[0])
    zeros, ones = [0] * len(counts), [1] * len(counts)
    return g.counted_slice(x, zeros, counts, ones) if set(sizes) - {0} else x


def slice_at_computed_positions(x: Expr, starts: Expr, ends: Expr, axes: Sequence[int], steps: Sequence[int]) -> Expr:
    """Return a slice of `x` as numpy takes it, at positions that a run computes: its extents are sizes that the run
    finds. Raises AotcError (code "graph-slice") for a step of 0.

    starts, ends    int64[n] for the n axes
    """
    require("graph-slice", 0 not in steps, f"a step of 0 in {list(steps)}")
    known = distances(starts, ends)
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        first, last = (g.reshape(g.strided_slice(v, [k], [k + 1], [0]), ()) for v in (starts, ends))
        x = _slice_of_axis(x, first, last, axis % g.rank(x), step, known[k])
    return x


def _slice_of_axis(x: Expr, start: Expr, end: Expr, axis: int, step: int, distance: int | None) -> Expr:
    """Return a slice of one axis.

    distance    the number of elements from start to end if they are in the axis; None if a run decides it
    """
    extent = g.dims(x)[axis]
    most = largest_size(extent)
    size = g.reshape(g.size_as_tensor(extent), ())
    # a slice that goes backwards may begin and end before the first element
    low, high = (0, size) if step > 0 else (-1, g.sub(size, 1))

    def clipped(position: Expr) -> Expr:
        from_start = g.where(g.less(position, 0), g.add(position, size), position)
        return g.minimum(g.maximum(from_start, low), high)

    first, span = clipped(start), g.sub(clipped(end), clipped(start))
    room = most if distance is None or step < 0 else min(most, distance)
    room = -(-room // abs(step))
    if room == 0:
        return g.strided_slice(x, [0], [0], [axis])
    way = span if step > 0 else g.negative(span)
    count = g.maximum(g.call_op("floor_divide", g.add(way, abs(step) - 1), g.constant(abs(step), "int64")), 0)
    places = g.add(g.mul(g.iota(room), step), first)
    places = g.maximum(g.minimum(places, g.sub(size, 1)), 0)
    return cut_to_found_sizes(g.call_op("take", x, places, axis=axis), {axis: g.reshape(count, (1,))})


def with_required_range(x: Expr, value: Expr, least: int, most: int, requirement: str) -> Expr:
    """Return `x`, in a run in which a value is in a range; another run ends with a status.

    value          tensor of one bool, int32 or int64
    least, most    the smallest and the largest value
    requirement    what the value must be, for messages: "a position in a sequence of 3 elements is -3 to 2"
    """
    return g.call_op("require_range", x, value, least=least, most=most, requirement=requirement)


def nonzero_positions(x: Expr) -> Expr:
    """Return the indices of the elements of `x` that are not 0, in row-major order: one row for each of them."""
    found = g.call_op("nonzero_positions", x)
    return found_rows(g.field(found, 1), g.field(found, 0))[0]


def elements_at_nonzero(x: Expr, flags: Expr, axis: int) -> Expr:
    """Return the slices of `x` along an axis at the positions of a vector of flags that are not 0."""
    return gather_slices(x, g.squeeze(nonzero_positions(flags), [1]), axis)


def distinct_slices(x: Expr, axis: int, *, is_sorted: bool) -> tuple[Expr, Expr, Expr, Expr]:
    """Return the distinct slices of `x` along an axis, sorted or in the order of first occurrence; the first position
    of each, the index of each slice of `x` among them, and the number of occurrences of each.

    Raises AotcError (code "graph-unique") for an axis without elements.
    """
    order = (axis, *(k for k in range(g.rank(x)) if k != axis))
    moved = g.transpose(x, order)
    count, *rest = g.dims(moved)
    require("graph-unique", count != 0, "the distinct elements of a tensor without elements are not supported")
    if g.rank(x) == 1 and isinstance(count, int):
        found = g.call_op("unique", x, is_sorted=is_sorted, return_counts=True)
        first, inverse, number, counts = (g.cast(g.field(found, k), "int64") for k in (1, 2, 3, 4))
    else:
        rows = g.reshape(moved, (count, product_of_dims(rest)))
        found = g.call_op("unique_rows", rows, is_sorted=is_sorted)
        first, inverse, counts, number = (g.field(found, k) for k in range(4))
    first, counts = found_rows(number, first, counts)
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return g.transpose(gather_slices(moved, first, 0), back), first, inverse, counts


def with_sizes_found_before_use(body: Expr, found: Mapping[str, Expr]) -> Expr:
    """Return an expression in which each call that has a found size in its attributes comes after the call that finds
    this size. A tensor of zeros of the shape (found0, 2), for example, need not have any operand of this shape: it gets
    one by a call of `after`.

    found    the call that finds each size, by name of the size

    Raise AotcError (code "found-size") for a call with a found size and without operands, other than one of arange.
    """
    if not found:
        return body
    available: dict[Expr, frozenset[str]] = {}
    for node in depth_first_post_order([body, *found.values()], children):
        names = frozenset[str]().union(*(available[c] for c in children(node)))
        if isinstance(node, Call) and isinstance(node.op, Op) and node.op.finds is not None:
            names |= {getattr(node.attrs, node.op.finds[0]).name}
        available[node] = names
    memo: dict[Expr, Expr] = {}

    def rewrite(old: Expr, new: Expr) -> Expr:
        if not isinstance(old, Call) or not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        used = {s for dim in dims_in_attrs(old.attrs) for s in dim.symbols}
        missing = sorted((used & found.keys()) - available[old])
        if not missing:
            return new
        call = new if new.args else _part_of_largest_range(new, missing[0])
        first, *others = call.args
        assert isinstance(call.op, Op)
        for name in missing:
            first = g.call_op("after", first, rewrite_bottom_up(found[name], rewrite, memo=memo))
        return typed_op_call(call.op, (first, *others), call.attrs, new.span)

    return rewrite_bottom_up(body, rewrite, memo=memo)


def _part_of_largest_range(call: Call, size: str) -> Call:
    """Return a call of arange as the first elements of a constant, which has those of the largest range: the call
    itself has no operand that can depend on the call which finds the size.

    Raise AotcError (code "found-size") for a call of another operator.

    size    name of the size that a run finds, for the message
    """
    assert isinstance(call.op, Op)
    if call.op is not get_op("arange"):
        text = f"{call.op.name} without operands has the size {size}, which a run finds; this is not supported"
        raise AotcError("found-size", text, span=call.span)
    (count,) = g.dims(call)
    constant = g.iota(largest_size(count), str(g.dtype(call)))
    box = {"begin": (0,), "end": (count,), "strides": (1,), "axes": (0,)}
    return g.call_op_unfolded("strided_slice", constant, **box, slice_mode="count")
