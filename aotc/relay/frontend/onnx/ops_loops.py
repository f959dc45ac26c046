# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of Loop.

A loop of few iterations is unrolled. Any other becomes a function that is recursive in its results,
whose parameters are the iteration number, what the body reads of enclosing graphs, the state, and one
tensor for each scan output, of which an iteration writes one row.

    OPS["Loop"](trip_count, condition, x, body=body, node=node)     # final state, scan outputs
"""

from __future__ import annotations

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
    TupleType,
    are_bounded,
    largest_size,
    maximum_of_dims,
    require,
    tensor_types,
)
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.found_sizes import found_rows_within_bound, with_required_range
from aotc.relay.frontend.onnx.loop_bodies import LoopBody, find_stable_body, scan_row
from aotc.relay.frontend.onnx.node import ClosedSubgraph, OnnxNode, Table, table_by_function_name
from aotc.relay.frontend.size_operands import OperandBounds, operand_bounds, without_size_operands
from aotc.relay.frontend.size_values import loop_counter, size_values
from aotc.relay.frontend.tail_recursion import (
    MAX_UNROLLED_ITERATIONS,
    LoopParameter,
    check_carried_types,
    parameter_of_rows,
    tail_recursive_loop,
)
from aotc.relay.graph_api import Expr, Tuple, TupleGetItem, Var, compile_time_elements, post_order, type_of


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
    if not known:
        return _loop_as_function(trip_count, condition, state, body, node, must_be_sized=False)
    try:
        return _loop_as_function(trip_count, condition, state, body, node, must_be_sized=True)
    except AotcError:
        # what needs the iteration number as a constant, or changes the shapes of the state
        unrolled = _unroll_loop(trip_count, condition, state, body, node, None)
        if unrolled is None:
            return _loop_as_function(trip_count, condition, state, body, node, must_be_sized=False)
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
        flag, *values = convert_loop_body(node, body, given, 1 + len(state))
        rows.append(values[len(state) :])
        state = values[: len(state)]
        if condition is None:
            continue
        if (elements := compile_time_elements(flag)) is None:
            return None
        going = bool(g.require_single_element(elements, "the condition of Loop"))
    count = len(body.output) - 1 - len(state)
    if count and not rows:
        check_body_output_count(node, len(body.output), 1 + len(state))
        given = [Var("i", TensorType((), "int64")), g.constant(True)]
        return [*state, *rows_of_no_iteration(node, body, [*given, *variables_like(state)], 1 + len(state))]
    return [*state, *(g.stack([row[k] for row in rows], 0) for k in range(count))]


def variables_like(values: Sequence[Expr]) -> list[Var]:
    return [Var(f"x{k}", type_of(value)) for k, value in enumerate(values)]


def rows_of_no_iteration(node: OnnxNode, body: GraphProto, inputs: Sequence[Expr], first: int) -> list[Expr]:
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
    check_body_output_count(node, len(body.output), 1 + len(state))
    number = Var("i", TensorType((), "int64"))

    def convert(values: Sequence[Expr]) -> ClosedSubgraph:
        with loop_counter(number):
            return node.closed_subgraph(body, [number, g.constant(True), *values])

    stable = find_stable_body(convert, state, node.sequences)
    require("onnx-loop", stable.known is not None or not must_be_sized, "the shapes of carried values change")
    counter = LoopParameter(number, g.constant(0, "int64"), g.add(number, 1))
    first = stable.known if stable.known is not None else stable.body(0)
    known_flag = _known_element(first.flag, "the condition of Loop")
    stays_true = condition is None or bool(known_flag and _known_element(condition, "the condition of Loop"))
    row_count = None
    if stays_true and trip_count is not None:
        needs_count = first.rows or stable.is_growing
        row_count = _row_count(trip_count) if needs_count else None

    def control(loop_body: LoopBody) -> _LoopControl:
        keep: LoopParameter | None = None
        if not stays_true or trip_count is None:
            assert condition is not None
            variable = Var("keep", TensorType((), "bool"))
            later = variable if known_flag is not None and known_flag else g.reshape(loop_body.flag, ())
            keep = LoopParameter(variable, g.reshape(condition, ()), later)
        limit = _limit_parameter(trip_count)
        return _LoopControl(node, counter, limit, keep, loop_body, state, must_be_sized)

    if not first.rows and not stable.is_growing:
        return control(first).add_loop(None)
    if row_count is None:
        most = None if trip_count is None else _largest_trip_count(trip_count)
        return _loop_of_found_trip_count(lambda room: control(stable.body(room)), most)
    return control(stable.body(largest_size(row_count))).add_loop(row_count)


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
    """A Loop that becomes a function, and what decides how many iterations it has.

    counter        the iteration number
    limit          the trip count; None if there is none
    keep           the condition; None if it stays true
    body           the converted body
    state          the values that the loop begins with
    must_be_sized  see `_loop_as_function`
    """

    node: OnnxNode
    counter: LoopParameter
    limit: LoopParameter | None
    keep: LoopParameter | None
    body: LoopBody
    state: Sequence[Expr]
    must_be_sized: bool

    def _tests(self) -> list[Expr]:
        """Return the conditions on which there is another iteration, expressions of the variables."""
        tests = [] if self.limit is None else [g.less(self.counter.var, self.limit.var)]
        return [*tests, *([] if self.keep is None else [self.keep.var])]

    def add_loop(self, row_count: Dim | None) -> list[Expr]:
        """Add the function of the loop to the module; return the final state and the scan outputs.

        row_count    number of rows of scan outputs; None if there are none
        """
        parts = (self.counter, self.limit, self.keep)
        parameters = [p for p in parts if p is not None and isinstance(p.var, Var)]
        _, last, rows = self._added(parameters, [], g.logical_and(*self._tests()), row_count)
        return [*self.body.values(last, self.state, self.node.sequences), *rows]

    def add_loop_within(self, room: int) -> tuple[Expr, list[Expr]]:
        """Add the function of a loop with at most `room` iterations to the module; return the number of iterations, or
        a larger number than `room` if there are to be more, and the final state and the scan outputs.
        """
        parameters = [self.limit] if self.limit is not None and isinstance(self.limit.var, Var) else []
        returned = [self.counter, *([] if self.keep is None else [self.keep])]
        goes_on = g.logical_and(*self._tests(), g.less(self.counter.var, room))
        (count, *flags), last, values = self._added(parameters, returned, goes_on, room)
        tests = [] if self.limit is None else [g.less(count, self.limit.given)]
        number = g.where(g.logical_and(*tests, *flags), g.constant(room + 1, "int64"), count)
        text = f"a loop has at most {room} iterations"
        checked = [_with_required_range(x, number, room, text) for x in last]
        return number, [*self.body.values(checked, self.state, self.node.sequences), *values]

    def _added(
        self, parameters: Sequence[LoopParameter], returned: Sequence[LoopParameter], goes_on: Expr, count: Dim | None
    ) -> tuple[list[Expr], list[Expr], list[Expr]]:
        """Add the function of the loop; return the last values of `returned`, the tensors of the final state, and the
        scan outputs.
        """
        body, sequences, number = self.body, self.node.sequences, self.counter.var
        state = body.parameters(self.state, sequences)
        found = [scan_row(row, number, k) for k, row in enumerate(body.rows)]
        rows = [row if f is None else f.padded for row, f in zip(body.rows, found, strict=True)]
        room: Dim = 0 if count is None else count
        tensors = [parameter_of_rows(f"y{k}", row, number, room) for k, row in enumerate(rows)]
        extents = [f.extents for f in found if f is not None]
        carried = [*returned, *state, *extents, *tensors]
        results = add_loop(self.node, goes_on, parameters, carried, body.captured, self.must_be_sized)
        ends = np.cumsum([len(returned), len(state), len(extents)])
        first, last, sizes, outputs = (list(x) for x in np.split(np.array(results, object), ends))
        scanned = [y if f is None else f.output(y, sizes.pop(0)) for y, f in zip(outputs, found, strict=True)]
        return first, last, scanned


def _loop_of_found_trip_count(control: Callable[[int], _LoopControl], most: int | None) -> list[Expr]:
    """Add the function of a loop whose number of iterations is a size that the run finds; return the final state and
    the scan outputs.

    control    function that returns the loop with room for a largest number of iterations
    most       largest number of iterations; None if the caller of the compiler must state it. A run ends if there
               are more.
    """
    final: list[Expr] = []

    def add(room: int) -> tuple[Expr, Sequence[Expr]]:
        loop = control(room)
        count, values = loop.add_loop_within(room)
        final.extend(values[: len(loop.state)])
        # without scan outputs, the numbers of the iterations stand for their rows
        return g.reshape(count, (1,)), values[len(loop.state) :] or [g.iota(room)]

    outputs = found_rows_within_bound(most, add)
    return [*final, *outputs]


def _with_required_range(value: Expr, number: Expr, most: int, text: str) -> Expr:
    """Return a tensor, or a tuple of tensors, in a run in which a number is from 0 to `most`."""
    if isinstance(ty := type_of(value), TupleType):
        fields = (TupleGetItem(value, k) for k in range(len(ty.fields)))
        return Tuple([_with_required_range(x, number, most, text) for x in fields])
    return with_required_range(value, number, 0, most, text)


def _row_count(trip_count: Expr | None) -> Dim | None:
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


def add_loop(
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


def convert_loop_body(node: OnnxNode, body: GraphProto, inputs: Sequence[Expr], min_outputs: int) -> list[Expr]:
    """Convert the body of an ONNX Loop or Scan with given inputs and return its outputs. Raises
    AotcError (code "onnx-loop") if there are fewer than `min_outputs`.
    """
    outputs = node.subgraph(body, inputs)
    check_body_output_count(node, len(outputs), min_outputs)
    return outputs


def check_body_output_count(node: OnnxNode, count: int, least: int) -> None:
    text = f"the body of {node.op_type} gives {count} outputs, not {least} or more"
    require("onnx-loop", count >= least, text)


OPS: Table = table_by_function_name(_loop)
