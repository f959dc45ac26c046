# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Loop and Scan.

A loop of few iterations is unrolled. Any other becomes a function that is recursive in its results,
whose parameters are the iteration number, what the body reads of enclosing graphs, the state, and one
tensor for each scan output, of which an iteration writes one row.

    OPS["Loop"](trip_count, condition, x, body=body, node=node)     # final state, scan outputs
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto

from aotc.ir import (
    AotcError,
    Dim,
    SymDim,
    TensorType,
    are_bounded,
    maximum_of_dims,
    require,
    require_static_shape,
    same_dim,
    tensor_types,
)
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import found_rows_within_bound
from aotc.relay.frontend.onnx.node import OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.size_operands import OperandBounds, operand_bounds, without_size_operands
from aotc.relay.frontend.size_values import size_values
from aotc.relay.frontend.slice_pad_depth_to_space import select_element
from aotc.relay.frontend.tail_recursion import (
    MAX_UNROLLED_ITERATIONS,
    LoopParameter,
    check_carried_types,
    parameter_of_rows,
    row_of,
    tail_recursive_loop,
)
from aotc.relay.graph_api import Constant, Expr, Tuple, Var, compile_time_elements, post_order, type_of


def _loop(
    trip_count: Expr | None = None, condition: Expr | None = None, *state: Expr, body: GraphProto, node: OnnxNode
) -> list[Expr]:
    """Convert Loop; return the final state, then the stacked scan outputs.

    A loop of few iterations whose number is known, and one that cannot be expressed otherwise, is
    unrolled: the iteration number is a constant in each copy of the body. Any other loop becomes a
    function that is recursive in its results.

    Raises AotcError (code "onnx-loop") for a loop that can be converted in neither way.
    """
    has_scan_outputs = len(body.output) > 1 + len(state)
    known = all(x is None or compile_time_elements(x) is not None for x in (trip_count, condition))
    endless = trip_count is None and condition is None
    if has_scan_outputs and endless:
        raise AotcError("onnx-loop", "a Loop with scan outputs must have a trip count or a condition")
    if known:
        limit = None if endless or not node.has_loops else MAX_UNROLLED_ITERATIONS
        if (unrolled := _unroll_loop(trip_count, condition, state, body, node, limit)) is not None:
            return unrolled
    try:
        return _loop_as_function(trip_count, condition, state, body, node, must_be_sized=known)
    except AotcError:
        # what needs the iteration number as a constant, or changes the shapes of the state
        unrolled = _unroll_loop(trip_count, condition, state, body, node, None) if known else None
        if unrolled is None:
            raise
        return unrolled


def _unroll_loop(
    trip_count: Expr | None,
    condition: Expr | None,
    state: Sequence[Expr],
    body: GraphProto,
    node: OnnxNode,
    limit: int | None,
) -> list[Expr] | None:
    """Convert Loop by unrolling, with a trip count and a condition that are known at compile time;
    return None if there are more than `limit` iterations, or if the condition after an iteration
    depends on run-time values.
    """
    trips = _known_element(trip_count, "the trip count of Loop")
    start = _known_element(condition, "the condition of Loop")
    if trips is not None and condition is None and limit is not None and trips > limit:
        return None
    going = start is None or bool(start)
    rows: list[list[Expr]] = []
    while going and (trips is None or len(rows) < trips):
        if len(rows) == limit:
            return None
        g.check_unroll_count(len(rows) + 1 if trips is None or condition is not None else int(trips), "a loop")
        given = [g.constant(len(rows), "int64"), g.constant(True), *state]
        flag, *values = _convert_loop_body(node, body, given, 1 + len(state))
        rows.append(values[len(state) :])
        state = values[: len(state)]
        if condition is None:
            continue
        if (elements := compile_time_elements(flag)) is None:
            return None
        going = bool(g.require_single_element(elements, "the condition of Loop"))
    count = len(body.output) - 1 - len(state)
    if count and not rows:
        _check_body_output_count(node, len(body.output), 1 + len(state))
        given = [Var("i", TensorType((), "int64")), g.constant(True)]
        return [*state, *_rows_of_no_iteration(node, body, [*given, *_variables_like(state)], 1 + len(state))]
    return [*state, *(g.stack([row[k] for row in rows], 0) for k in range(count))]


def _variables_like(values: Sequence[Expr]) -> list[Var]:
    return [Var(f"x{k}", type_of(value)) for k, value in enumerate(values)]


def _rows_of_no_iteration(node: OnnxNode, body: GraphProto, inputs: Sequence[Expr], first: int) -> list[Expr]:
    """Return the scan outputs of a loop that has no iteration: tensors without rows, whose types the
    body determines.

    inputs   values of the types of the inputs of the body
    first    number of the outputs of the body before its scan outputs
    """
    rows = node.closed_subgraph(body, inputs).outputs[first:]
    return [g.full(0, (0, *g.shape(row)), str(g.dtype(row))) for row in rows]


def _known_element(value: Expr | None, subject: str) -> Any:
    elements = None if value is None else compile_time_elements(value)
    return None if elements is None else g.require_single_element(elements, subject)


def _loop_as_function(
    trip_count: Expr | None,
    condition: Expr | None,
    state: Sequence[Expr],
    body: GraphProto,
    node: OnnxNode,
    must_be_sized: bool,
) -> list[Expr]:
    """Convert Loop to a function that is recursive in its results, and return the results of a call of
    it: the final state, then the scan outputs.

    The parameters of the function are the iteration number, the trip count, the condition, what the
    body reads of enclosing graphs, the state, and the scan outputs. The number of their rows is a constant, a
    size of a run, or else one that the run finds. If `must_be_sized`, raise
    AotcError (code "onnx-loop") for shapes in the body that do not follow from bounded sizes of a run.
    """
    _check_body_output_count(node, len(body.output), 1 + len(state))
    number = Var("i", TensorType((), "int64"))
    values = _variables_like(state)
    (flag, *new), captured = node.closed_subgraph(body, [number, g.constant(True), *values])
    counter = LoopParameter(number, g.constant(0, "int64"), g.add(number, 1))
    known_flag = _known_element(flag, "the condition of Loop")
    stays_true = condition is None or bool(known_flag and _known_element(condition, "the condition of Loop"))
    keep: LoopParameter | None = None
    if not stays_true or trip_count is None:
        assert condition is not None
        variable = Var("keep", TensorType((), "bool"))
        later = variable if known_flag is not None and known_flag else g.reshape(flag, ())
        keep = LoopParameter(variable, g.reshape(condition, ()), later)
    control = _LoopControl(node, counter, _limit_parameter(trip_count), keep, captured, must_be_sized)
    carried, rows = [*map(LoopParameter, values, state, new)], new[len(values) :]
    if not rows:
        return control.add_loop(carried)
    row_count = _row_count(trip_count) if keep is None else None
    if row_count is None:
        return control.add_loop_of_found_rows(carried, rows, _largest_trip_count(trip_count))
    return control.add_loop([*carried, *(parameter_of_rows(f"y{k}", r, number, row_count) for k, r in enumerate(rows))])


def _limit_parameter(trip_count: Expr | None) -> LoopParameter | None:
    """Return the parameter of a loop that is its trip count, whose variable is a constant if it is known."""
    if trip_count is None:
        return None
    known = _known_element(trip_count, "the trip count of Loop")
    if known is not None:
        limit: Any = g.constant(int(known), "int64")
        return LoopParameter(limit, limit, limit)
    variable = Var("n", TensorType((), "int64"))
    return LoopParameter(variable, g.reshape(trip_count, ()), variable)


@dataclass(frozen=True, slots=True)
class _LoopControl:
    """What decides how many iterations a Loop that becomes a function has.

    counter        the iteration number
    limit          the trip count; None if there is none
    keep           the condition; None if it stays true
    captured       what the body reads of enclosing graphs
    must_be_sized  see `_loop_as_function`
    """

    node: OnnxNode
    counter: LoopParameter
    limit: LoopParameter | None
    keep: LoopParameter | None
    captured: Mapping[Var, Expr]
    must_be_sized: bool

    def _tests(self) -> list[Expr]:
        """Return the conditions on which there is another iteration, expressions of the variables."""
        tests = [] if self.limit is None else [g.less(self.counter.var, self.limit.var)]
        return [*tests, *([] if self.keep is None else [self.keep.var])]

    def add_loop(self, carried: Sequence[LoopParameter]) -> list[Expr]:
        """Add the function of the loop to the module; return the last values of what it carries."""
        parts = (self.counter, self.limit, self.keep)
        parameters = [p for p in parts if p is not None and isinstance(p.var, Var)]
        goes_on = g.logical_and(*self._tests())
        return _add_loop(self.node, goes_on, parameters, carried, self.captured, self.must_be_sized)

    def add_loop_of_found_rows(
        self, carried: Sequence[LoopParameter], rows: Sequence[Expr], most: int | None
    ) -> list[Expr]:
        """Add the function of a loop whose number of iterations is a size that the run finds; return the final
        state and the scan outputs.

        rows    one row of each scan output, expressions of the variables
        most    largest number of iterations; None if the caller of the compiler must state it. A run ends if there
                are more.
        """
        final: list[Expr] = []

        def add(room: int) -> tuple[Expr, Sequence[Expr]]:
            returned = [self.counter, *([] if self.keep is None else [self.keep]), *carried]
            tensors = [parameter_of_rows(f"y{k}", row, self.counter.var, room) for k, row in enumerate(rows)]
            parameters = [self.limit] if self.limit is not None and isinstance(self.limit.var, Var) else []
            goes_on = g.logical_and(*self._tests(), g.less(self.counter.var, room))
            results = _add_loop(
                self.node, goes_on, parameters, [*returned, *tensors], self.captured, self.must_be_sized
            )
            count = results[0]
            tests = [] if self.limit is None else [g.less(count, self.limit.given)]
            tests += [] if self.keep is None else [results[1]]
            final.extend(results[len(returned) - len(carried) : len(returned)])
            found = g.where(g.logical_and(*tests), g.constant(room + 1, "int64"), count)
            return g.reshape(found, (1,)), results[len(returned) :]

        outputs = found_rows_within_bound(most, add)
        return [*final, *outputs]


def _row_count(trip_count: Expr | None) -> "Dim | None":
    """Return the number of iterations of a loop whose condition stays true, as a number or a size of a
    run; None if the trip count follows from neither constants nor sizes.

    Raises AotcError (code "graph-operand-bound") for an input of the model that nothing bounds.
    """
    if trip_count is None:
        return None
    with operand_bounds(OperandBounds(0, None)):
        values = size_values(trip_count)
    if values is None:
        return None
    count = g.require_single_element(values, "the trip count of Loop")
    return maximum_of_dims((count if isinstance(count, SymDim) else int(count), 0))


def _largest_trip_count(trip_count: Expr | None) -> int | None:
    """Return the largest trip count that is known when the model is compiled; None if nothing bounds it.

    An input that is the trip count of a loop with a condition is often a large number, and no size.
    """
    with without_size_operands():
        values = None if trip_count is None else size_values(trip_count)
    if values is None:
        return None
    count = g.require_single_element(values, "the trip count of Loop")
    most = count.upper if isinstance(count, SymDim) else int(count)
    return None if most is None else max(most, 0)


def _add_loop(
    node: OnnxNode,
    goes_on: Expr,
    parameters: Sequence[LoopParameter],
    carried: Sequence[LoopParameter],
    captured: Mapping[Var, Expr],
    must_be_sized: bool,
) -> list[Expr]:
    """Add the function of a loop to the module, and return the last values of `carried`, the results
    of a call of it.

    goes_on          bool scalar, an expression of the variables: True if there is another iteration
    parameters       other values that change
    captured         values that do not change, by variable; those that are not used are left out
    must_be_sized    raise AotcError (code "onnx-loop") for shapes in the body that do not follow from
                     bounded sizes of a run
    """
    check_carried_types(carried, "onnx-loop")
    nodes = list(post_order(Tuple([goes_on, *(p.later for p in (*parameters, *carried))])))
    used = set(nodes)
    unchanged = [LoopParameter(v, value, v) for v, value in captured.items() if v in used]
    shapes = [t for n in nodes if n.checked_type is not None for t in tensor_types(n.checked_type)]
    is_sized = all(are_bounded(t.shape) for t in shapes)
    require("onnx-loop", is_sized or not must_be_sized, "shapes in the body of the loop depend on data")
    name = f"loop_{len(node.functions)}"
    function, results = tail_recursive_loop(name, goes_on, [*parameters, *unchanged, *carried], len(carried))
    node.functions[name] = function
    return results


# --- Scan


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
    _check_body_output_count(node, len(body.output), len(state))
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
        outputs = _rows_of_no_iteration(node, body, [*_variables_like(state), *rows], len(state))
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
        values = _variables_like(state)
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
        return _add_loop(self.node, goes_on, [counter], carried, unchanged, must_be_sized=True)


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
    _check_body_output_count(node, len(body.output), len(state))
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
    return _add_loop(node, goes_on, [counter], carried, unchanged, must_be_sized=True)


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
        values = _convert_loop_body(node, body, [*state, *map(select_element, sources, axes, places)], len(state))
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


def _convert_loop_body(node: OnnxNode, body: GraphProto, inputs: Sequence[Expr], min_outputs: int) -> list[Expr]:
    """Convert the body of an ONNX Loop or Scan with given inputs and return its outputs. Raises
    AotcError (code "onnx-loop") if there are fewer than `min_outputs`.
    """
    outputs = node.subgraph(body, inputs)
    _check_body_output_count(node, len(outputs), min_outputs)
    return outputs


def _check_body_output_count(node: OnnxNode, count: int, least: int) -> None:
    text = f"the body of {node.op_type} gives {count} outputs, not {least} or more"
    require("onnx-loop", count >= least, text)


OPS: Table = table_by_function_name(_loop, _scan)
