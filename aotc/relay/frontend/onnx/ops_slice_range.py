# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Slice and Range, whose operands may be known at run time only.

OPS["Slice"](x, [1], [3])               # strided_slice(x, begin=(1,), end=(3,), ...)
OPS["Range"](0, n, 2)                   # arange(0, (n + 1) // 2) * 2
"""

import math
from typing import Any

import numpy as np

from aotc.ir import (
    Array,
    Dim,
    DType,
    SymDim,
    is_static,
    largest_size,
    maximum_of_dims,
    product_of_dims,
    require,
    require_static_shape,
)
from aotc.relay.expr import Constant, Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import found_rows_within_bound, slice_at_computed_positions
from aotc.relay.frontend.onnx.node import OnnxNode, SizeInput
from aotc.relay.frontend.onnx.run_time_axes import slices_of_axes
from aotc.relay.frontend.run_time_slices import (
    distance_and_direction,
    has_known_sign,
    largest_of_dims,
    slice_in_known_steps,
)
from aotc.relay.frontend.size_operands import OperandBounds, define_size, operand_bounds
from aotc.relay.frontend.size_values import size_values
from aotc.relay.graph_api import compile_time_elements


def convert_slice(
    x: Expr, starts: SizeInput, ends: SizeInput, axes: SizeInput | None = None, steps: SizeInput | None = None
) -> Expr:
    """Convert Slice; axes and steps that are known at run time only give each axis a slice of its own."""
    dims, rank, count = g.dims(x), g.rank(x), starts.count
    # one more than an extent, and one less than its negative, stand for all that is farther away
    most = largest_of_dims(dims)
    farthest = None if most is None else most + 1
    least = -np.iinfo(np.int64).max if farthest is None else -farthest
    if most is not None and (starts.is_computed(least, farthest) or ends.is_computed(least, farthest)):
        return _slice_of_found_size(x, starts, ends, axes, steps)
    first, last = starts.within(least, farthest, clipped=True), ends.within(least, farthest, clipped=True)
    places: list[Dim] = list(range(count)) if axes is None else axes.within(-rank, rank - 1)
    step: list[Dim] = [1] * count if steps is None else steps.within(least, farthest, clipped=True)
    text = f"starts {first}, ends {last}, axes {places} and steps {step} do not agree"
    require("onnx-slice", len(first) == len(last) == len(places) == len(step), text)
    if is_static(places):
        static_places = [g.normalize_axis(a, rank) for a in require_static_shape(places)]
        require("onnx-slice", len(set(static_places)) == count, text)
        # a position of unknown sign would need a long formula
        is_simple = all(has_known_sign(v) for v in (*first, *last)) or most is None
        if is_static(step) and is_simple:
            return slice_in_known_steps(x, first, last, static_places, list(require_static_shape(step)))
        places = list(static_places)
    return g.counted_slice(x, *zip(*slices_of_axes(first, last, step, places, dims), strict=True))


def _slice_of_found_size(
    x: Expr, starts: SizeInput, ends: SizeInput, axes: SizeInput | None, steps: SizeInput | None
) -> Expr:
    """Convert Slice whose starts or ends a run computes, so that it finds the extents of the result."""
    rank, count = g.rank(x), starts.count
    places = require_static_shape(list(range(count)) if axes is None else axes.within(-rank, rank - 1))
    distance = require_static_shape([1] * count if steps is None else steps.within(None, None))
    text = f"{count} starts, {ends.count} ends, axes {places} and steps {distance} do not agree"
    require("onnx-slice", ends.count == len(places) == len(distance) == count, text)
    return slice_at_computed_positions(x, starts.vector, ends.vector, places, distance)


#: The values of the inputs of Range: the caller of the compiler states how large they are.
_RANGE_BOUNDS = OperandBounds(None, None)


def convert_range(start: Expr, limit: Expr, delta: Expr, *, node: OnnxNode) -> Expr:
    """Convert Range. Of integers that are sizes, the number of elements is a formula; of other numbers that are
    known at run time only, a run finds it.
    """
    inputs = (start, limit, delta)
    known = [compile_time_elements(x) for x in inputs]
    if any(value is None for value in known):
        with operand_bounds(_RANGE_BOUNDS):
            sizes = [size_values(x) for x in inputs]
        if any(value is None for value in sizes):
            return _range_of_found_size(start, limit, delta)
        if any(isinstance(d, SymDim) for value in sizes for d in value.reshape(-1)):  # type: ignore[union-attr]
            return _range_of_sizes(start, limit, delta, node)
    names = ("start", "limit", "delta")
    values = [node.constant_value_of_attribute_or_input(k, name) for k, name in enumerate(names)]
    return _constant_range(*(v for v in values if v is not None))


def _range_of_found_size(start: Expr, limit: Expr, delta: Expr) -> Expr:
    """Return a range whose number of elements a run finds: max(0, ceil((limit - start) / delta)).

    It is computed in float64 or in int64, as that of a constant range. A step of 0, NaN, and more elements than there
    is room for end the run.
    """
    dtype = g.dtype(start)
    for name, value in (("start", start), ("limit", limit), ("delta", delta)):
        text = f"`{name}` of Range must be one value, it has shape {g.shape(value)}"
        require("onnx-range", math.prod(g.shape(value)) == 1, text)
    work = "float64" if dtype.is_float else "int64"
    first, last, step = (g.cast(g.reshape(x, ()), work) for x in (start, limit, delta))
    count = _element_count_of_floats if dtype.is_float else _element_count_of_integers

    def rows(room: int) -> tuple[Expr, list[Expr]]:
        g.check_materialization_cost((room,), dtype, "the result of Range")
        values = g.add(g.mul(g.iota(room, work), step), first)
        is_possible, number = count(first, last, step, room)
        number = g.where(is_possible, number, g.constant(room + 1, work))
        return g.reshape(g.cast(number, "int64"), (1,)), [g.cast(values, dtype)]

    return found_rows_within_bound(None, rows)[0]


def _element_count_of_floats(first: Expr, last: Expr, step: Expr, room: int) -> tuple[Expr, Expr]:
    """Return whether a range of float64 has at most `room` elements, and their number if so."""
    number = g.call_op("ceil", g.div(g.sub(last, first), step))
    is_possible = g.logical_and(
        g.less_equal(number, g.constant(room, "float64")), g.not_equal(step, g.constant(0, "float64"))
    )
    return is_possible, g.maximum(number, g.constant(0, "float64"))


def _element_count_of_integers(first: Expr, last: Expr, step: Expr, room: int) -> tuple[Expr, Expr]:
    """Return whether a range of int64 has at most `room` elements, and their number if so."""
    zero, one = g.constant(0, "int64"), g.constant(1, "int64")
    is_forward = g.less(zero, step)
    # a difference that int64 does not hold has more elements than there is memory for, or steps nearly as large
    span = g.sub(g.cast(last, "float64"), g.cast(first, "float64"))
    is_exact = g.less(g.call_op("abs", span), g.constant(2.0**62, "float64"))
    distance = g.where(is_forward, step, g.sub(zero, step))
    difference = g.where(is_forward, g.sub(last, first), g.sub(first, last))
    parts = g.call_op("floor_divide", g.sub(difference, one), g.maximum(distance, one))
    number = g.where(g.less(zero, difference), g.add(parts, one), zero)
    flags = (is_exact, g.not_equal(step, zero), g.less_equal(number, g.constant(room, "int64")))
    return g.logical_and(*flags), number


def _range_of_sizes(start: Expr, limit: Expr, delta: Expr, node: OnnxNode) -> Expr:
    """Return a range whose number of elements is known at run time only."""
    inputs = (SizeInput(node, k, name) for k, name in enumerate(("start", "limit", "delta")))
    first, last, step = (_single_size(x.within(_RANGE_BOUNDS.least, _RANGE_BOUNDS.most)) for x in inputs)
    distance, is_backward = distance_and_direction(step, "onnx-range", "the step of Range is 0")
    span = product_of_dims((last - first, 1 - 2 * is_backward))
    count = maximum_of_dims(((span + (distance - 1)) // distance, 0))
    if isinstance(step, SymDim):
        count = define_size(count, 0, largest_size(count))
    dtype = g.dtype(start)
    steps = g.cast(g.positions_up_to(count), dtype)
    scaled = steps if step == 1 else g.mul(steps, step if isinstance(step, int) else g.reshape(delta, ()))
    return scaled if first == 0 else g.add(scaled, g.reshape(start, ()))


def _single_size(values: list[Dim]) -> Dim:
    require("onnx-range", len(values) == 1, "each input of Range must be one value")
    return values[0]


def _constant_range(start: Array, limit: Array, delta: Array) -> Expr:
    dtype = DType.from_numpy(start)
    number: Any = float if dtype.is_float else int
    first, last, step = (number(g.require_single_element(v, "each input of Range")) for v in (start, limit, delta))
    require("onnx-range", step != 0, "the step of Range is 0")
    finite = all(map(math.isfinite, (first, last, step)))
    require("onnx-range", finite, f"a range from {first} to {last} with step {step} is not possible")
    span = last - first
    count = max(math.ceil(span / step) if dtype.is_float else -(-span // step), 0)
    g.check_materialization_cost((count,), dtype, "the result of Range")
    work = np.float64 if dtype.is_float else np.int64
    return Constant((first + np.arange(count, dtype=work) * step).astype(dtype.numpy))
