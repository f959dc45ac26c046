# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Scan.

A scan of few iterations is unrolled, as a Loop is; any other becomes a function that is recursive in its results
(`ops_loops`).

    OPS["Scan"](num_scan_inputs=1, body=body, node=node)     # final state, scan outputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from aotc.ir import AotcError, Dim, TensorType, require, require_static_shape, same_dim
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.onnx.ops_loops import (
    add_loop,
    check_body_output_count,
    convert_loop_body,
    rows_of_no_iteration,
    variables_like,
)
from aotc.relay.frontend.slice_pad_depth_to_space import select_element
from aotc.relay.frontend.tail_recursion import MAX_UNROLLED_ITERATIONS, LoopParameter, parameter_of_rows, row_of
from aotc.relay.graph_api import Constant, Expr, Var, compile_time_elements, type_of


def _scan(*, num_scan_inputs: int = 0, body: GraphProto, node: OnnxNode) -> list[Expr]:
    """Convert Scan; return the final state, then the stacked scan outputs. Its trip count is the
    extent of the scanned axes.
    """
    if node.since < 9:
        return _scan_of_batch(num_scan_inputs, body, node)
    inputs = [node[k] for k in range(len(node.inputs))]
    fits = 1 <= num_scan_inputs <= len(inputs)
    text = f"num_scan_inputs of Scan is {num_scan_inputs}, it has {len(inputs)} inputs"
    require("onnx-attribute", fits, text)
    state, sources = inputs[:-num_scan_inputs], inputs[-num_scan_inputs:]
    check_body_output_count(node, len(body.output), len(state))
    given = _integer_list_attribute_or_zeros(node, "scan_input_axes", num_scan_inputs)
    require("onnx-rank", all(map(g.rank, sources)), "Scan takes rows of its last inputs, but one of them is a scalar")
    axes = [g.normalize_axis(a, g.rank(x)) for a, x in zip(given, sources, strict=True)]
    backwards = _integer_list_attribute_or_zeros(node, "scan_input_directions", num_scan_inputs)
    sizes = [g.dims(x)[axis] for x, axis in zip(sources, axes, strict=True)]
    trips = sizes[0]
    fits = all(same_dim(trips, size) for size in sizes)
    text = f"the scanned axes of Scan have different extents: [{', '.join(map(str, sizes))}]"
    require("onnx-loop", fits, text)
    count = len(body.output) - len(state)
    places = _integer_list_attribute_or_zeros(node, "scan_output_axes", count)
    prepend = _integer_list_attribute_or_zeros(node, "scan_output_directions", count)

    def unrolled() -> list[Expr]:
        (count,) = require_static_shape((trips,))
        g.check_unroll_count(count, "a scan")
        orders = [_iteration_order(count, back) for back in backwards]
        last, rows = _unroll_scan(node, body, state, sources, axes, orders)
        outputs = (
            g.stack(parts[::-1] if back else parts, g.normalize_axis(place, g.rank(parts[0]) + 1))
            for parts, place, back in zip(zip(*rows, strict=True), places, prepend, strict=True)
        )
        return [*last, *outputs]

    def as_function() -> list[Expr]:
        scan = _ScanOfRows(node, body, sources, axes, backwards, prepend)
        results = scan.add_loop(state, g.extent(sources[0], axes[0]), trips)
        return [*results[: len(state)], *map(_move_first_axis, results[len(state) :], places)]

    if trips == 0:
        rows = [
            Var(f"s{k}", _type_without_axis(x, axis)) for k, (x, axis) in enumerate(zip(sources, axes, strict=True))
        ]
        outputs = rows_of_no_iteration(node, body, [*variables_like(state), *rows], len(state))
        return [*state, *map(_move_first_axis, outputs, places)]

    return _unrolled_or_as_function(node, trips, unrolled, as_function)


def _type_without_axis(x: Expr, axis: int) -> TensorType:
    shape = g.dims(x)
    return TensorType((*shape[:axis], *shape[axis + 1 :]), g.dtype(x))


def _unrolled_or_as_function(
    node: OnnxNode, trips: Dim, unrolled: Callable[[], list[Expr]], as_function: Callable[[], list[Expr]]
) -> list[Expr]:
    """Return the results of a scan of `trips` iterations, converted in one of two ways: unrolled if
    there are few or if it cannot be a function.
    """
    if not isinstance(trips, int):
        return as_function()
    if trips <= MAX_UNROLLED_ITERATIONS or not node.has_loops:
        return unrolled()
    try:
        return as_function()
    except AotcError:
        return unrolled()


def _move_first_axis(x: Expr, place: int) -> Expr:
    """Return `x` with its first axis at the position `place`, counted from the end if negative."""
    axis = g.normalize_axis(place, g.rank(x))
    axes = [*range(1, axis + 1), 0, *range(axis + 1, g.rank(x))]
    return x if axis == 0 else g.transpose(x, axes)


@dataclass(frozen=True, slots=True)
class _ScanOfRows:
    """A Scan that becomes a function.

    sources     tensors that are scanned along `axes`
    backwards   for each of them, 1 if it is scanned from its end
    prepend     for each scan output, 1 if its rows are in the reverse order of the iterations
    """

    node: OnnxNode
    body: GraphProto
    sources: Sequence[Expr]
    axes: Sequence[int]
    backwards: Sequence[int]
    prepend: Sequence[int]

    def add_loop(
        self, state: Sequence[Expr], count: Expr, bound: Dim, captured: dict[Var, Expr] | None = None
    ) -> list[Expr]:
        """Add the function of the loop to the module; return the final state, and the scan outputs
        with their rows along the first axis.

        count      number of iterations, an int64 scalar
        bound      number of rows of the scan outputs, which `count` does not exceed; further rows are
                   zeros
        captured   if it is given, it gets a new variable, with its value, for each tensor that the body
                   reads of enclosing graphs; the results depend on these variables
        """
        number = Var("i", TensorType((), "int64"))
        values = variables_like(state)
        given = [count, *self.sources]
        inner = [x if isinstance(x, Constant) else Var(f"s{k}", type_of(x)) for k, x in enumerate(given)]
        unchanged = {v: x for v, x in zip(inner, given, strict=True) if isinstance(v, Var)}
        limit, *sources = inner
        last = g.sub(g.sub(limit, 1), number)
        rows = [
            row_of(x, last if back else number, axis)
            for x, axis, back in zip(sources, self.axes, self.backwards, strict=True)
        ]
        outputs, outer = self.node.closed_subgraph(self.body, [*values, *rows])
        for variable, value in outer.items():
            unchanged[variable] = value
            if captured is not None:
                unchanged[variable] = renamed = Var(variable.name, type_of(value))
                captured[renamed] = value
        new, results = outputs[: len(values)], outputs[len(values) :]
        carried = [
            *map(LoopParameter, values, state, new),
            *(
                parameter_of_rows(f"y{k}", row, last if back else number, bound)
                for k, (row, back) in enumerate(zip(results, self.prepend, strict=True))
            ),
        ]
        goes_on = g.less(number, limit)
        counter = LoopParameter(number, g.constant(0, "int64"), g.add(number, 1))
        return add_loop(self.node, goes_on, [counter], carried, unchanged, must_be_sized=True)


def _scan_of_batch(num_scan_inputs: int, body: GraphProto, node: OnnxNode) -> list[Expr]:
    """Convert Scan of operator set 8: scan each element of the batch (axis 0) separately along axis
    1 and stack the results.

    The optional first input gives the number of steps of each batch element; outputs of further
    steps are zero.
    """
    fits = 1 <= num_scan_inputs < len(node.inputs)
    require(
        "onnx-attribute",
        fits,
        f"num_scan_inputs of Scan is {num_scan_inputs}, but the node has {len(node.inputs)} inputs",
    )
    values = [node[k] for k in range(1, len(node.inputs))]
    state, sources = values[: len(values) - num_scan_inputs], values[len(values) - num_scan_inputs :]
    check_body_output_count(node, len(body.output), len(state))
    backwards = _integer_list_attribute_or_zeros(node, "directions", num_scan_inputs)
    batch, trips = g.dim(sources[0], 0), g.dim(sources[0], 1)
    steps = node.optional_input(0)
    known = [trips] * batch if steps is None else compile_time_elements(steps)
    lengths = None if known is None else [int(n) for n in np.reshape(known, -1)]
    fits = lengths is None or (len(lengths) == batch and all(1 <= n <= trips for n in lengths))
    text = f"lengths {lengths and lengths[:8]} do not fit {batch} sequences of {trips} steps"
    require("onnx-loop", fits and batch > 0 and trips > 0, text)

    def unrolled() -> list[Expr]:
        if lengths is None:
            raise AotcError("onnx-runtime-shape", "`sequence_lens` of Scan is not known at compile time")
        return _unroll_scan_per_batch_element(node, body, state, sources, lengths, backwards)

    def as_function() -> list[Expr]:
        counts = g.constant(lengths, "int64") if steps is None or lengths is not None else g.cast(steps, "int64")
        return _scan_of_batch_as_function(node, body, state, sources, counts, backwards)

    total = trips * batch if lengths is None else sum(lengths)
    return _unrolled_or_as_function(node, total, unrolled, as_function)


def _scan_of_batch_as_function(
    node: OnnxNode,
    body: GraphProto,
    state: Sequence[Expr],
    sources: Sequence[Expr],
    counts: Expr,
    backwards: Sequence[int],
) -> list[Expr]:
    """Convert Scan of operator set 8 to a loop over the batch, in which another loop scans one
    element; see `_scan_of_batch`.

    counts   int64 vector, the number of steps of each batch element
    """
    batch, trips = g.dim(sources[0], 0), g.dim(sources[0], 1)
    element = Var("b", TensorType((), "int64"))
    unchanged = {Var(f"a{k}", type_of(x)): x for k, x in enumerate((*state, *sources, counts))}
    *rows, count = (row_of(x, element, 0) for x in unchanged)
    prepend = [0] * (len(body.output) - len(state))
    scan = _ScanOfRows(node, body, rows[len(state) :], [0] * len(sources), backwards, prepend)
    results = scan.add_loop(rows[: len(state)], g.minimum(count, trips), trips, unchanged)
    carried = [parameter_of_rows(f"y{k}", value, element, batch) for k, value in enumerate(results)]
    counter = LoopParameter(element, g.constant(0, "int64"), g.add(element, 1))
    goes_on = g.less(element, batch)
    return add_loop(node, goes_on, [counter], carried, unchanged, must_be_sized=True)


def _iteration_order(trip_count: int, backwards: int) -> range:
    return range(trip_count - 1, -1, -1) if backwards else range(trip_count)


def _unroll_scan(
    node: OnnxNode,
    body: GraphProto,
    state: list[Expr],
    sources: Sequence[Expr],
    axes: Sequence[int],
    orders: Sequence[Sequence[int]],
) -> tuple[list[Expr], list[list[Expr]]]:
    """Apply the body of a Scan once per iteration; return the final state, and for each iteration
    the scan outputs of the body. `orders` gives for each scanned input the positions that the
    iterations read.
    """
    rows: list[list[Expr]] = []
    for places in zip(*orders, strict=True):
        values = convert_loop_body(node, body, [*state, *map(select_element, sources, axes, places)], len(state))
        rows.append(values[len(state) :])
        state = values[: len(state)]
    return state, rows


def _unroll_scan_per_batch_element(
    node: OnnxNode,
    body: GraphProto,
    state: Sequence[Expr],
    sources: Sequence[Expr],
    lengths: Sequence[int],
    backwards: Sequence[int],
) -> list[Expr]:
    """Unroll Scan of operator set 8, whose batch elements have `lengths` steps; see `_scan_of_batch`."""
    trips = g.dim(sources[0], 1)
    g.check_unroll_count(sum(lengths), "a scan")
    results: list[list[Expr]] = []
    for b, length in enumerate(lengths):
        element_state, items = ([select_element(x, 0, b) for x in given] for given in (state, sources))
        orders = [_iteration_order(length, back) for back in backwards]
        last, rows = _unroll_scan(node, body, element_state, items, [0] * len(sources), orders)
        columns = [list(column) for column in zip(*rows, strict=True)]
        filled = (c + [g.full(0, g.shape(c[0]), g.dtype(c[0]))] * (trips - length) for c in columns)
        results.append([*last, *(g.stack(column, 0) for column in filled)])
    return [g.stack(parts, 0) for parts in zip(*results, strict=True)]


def _integer_list_attribute_or_zeros(node: OnnxNode, name: str, count: int) -> list[int]:
    """Return an integer list attribute that has one element for each of `count` values, or zeros if
    the node omits it. Raises AotcError (code "onnx-attribute") for another number of elements.
    """
    given: list[int] = node.attrs.get(name) or [0] * count
    fits = len(given) == count
    require("onnx-attribute", fits, f"attribute {name!r} must have {count} elements, not {len(given)}")
    return given


OPS: Table = table_by_function_name(_scan)
