# SPDX-License-Identifier: Apache-2.0
"""ONNX converters of control flow (If, Loop, Scan) and of sequence operators.

An If whose condition is constant becomes its chosen branch, any other becomes an If of the graph
IR. A Loop of few iterations is unrolled, any other without scan outputs becomes a function that is
recursive in its results. A Scan is unrolled. A sequence is a tuple of tensors, and positions in it
must be known at compile time.

    OPS["If"](condition, node=node)         # the outputs of one branch
"""

from collections.abc import Sequence
from typing import Any, Final

from onnx import GraphProto

from aotc.ir import AotcError, TensorType, require, tensor_types
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.converter_signatures import Axis
from aotc.relay.frontend.onnx.node import KnownArray, KnownInt, OnnxNode, Table, TensorList, table_by_function_name
from aotc.relay.frontend.slice_pad_depth_to_space import select_element
from aotc.relay.frontend.tail_recursion import LoopParameter, check_carried_types, tail_recursive_loop
from aotc.relay.graph_api import (
    Constant,
    Expr,
    If,
    Tuple,
    TupleGetItem,
    Var,
    compile_time_elements,
    post_order,
    type_of,
)


def _if(condition: Expr, *, then_branch: GraphProto, else_branch: GraphProto, node: OnnxNode) -> Sequence[Expr]:
    if isinstance(condition, Constant):
        is_true = g.require_single_element(condition.data, "the condition of If")
        return node.subgraph(then_branch if is_true else else_branch, [])
    yes, no = (node.subgraph(branch, []) for branch in (then_branch, else_branch))
    require("onnx-if", len(yes) == len(no), f"the branches of If have {len(yes)} and {len(no)} outputs")
    types = [(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    differ = "; ".join(f"{a} and {b}" for a, b in types if a != b)
    require("onnx-if", not differ, f"the branches of If have outputs of different types: {differ}")
    dims = g.dims(condition)
    has_one_value = all(dim == 1 for dim in dims if isinstance(dim, int))
    text = f"the condition of If must be one value, it has shape ({', '.join(map(str, dims))})"
    require("onnx-if", has_one_value, text)
    scalar = g.reshape(condition, ())
    if len(yes) == 1:
        return [If(scalar, yes[0], no[0])]
    both = If(scalar, Tuple(yes), Tuple(no))
    return [TupleGetItem(both, k) for k in range(len(yes))]


def _loop(
    trip_count: Expr | None = None, condition: Expr | None = None, *state: Expr, body: GraphProto, node: OnnxNode
) -> list[Expr]:
    """Convert Loop; return the final state, then the stacked scan outputs.

    A loop of few iterations whose number is known, and one that cannot be expressed otherwise, is
    unrolled: the iteration number is a constant in each copy of the body. Any other loop becomes a
    function that is recursive in its results.

    Raises AotcError (code "onnx-loop") for a loop that can be converted in neither way.
    """
    known = all(x is None or compile_time_elements(x) is not None for x in (trip_count, condition))
    if len(body.output) > 1 + len(state):
        text = "a Loop with scan outputs must have a trip count and a condition that are known at compile time"
        hint = "make them constants, or carry a tensor of fixed size and write a part of it in each iteration"
        unrolled = _unroll_loop(trip_count, condition, state, body, node, None) if known else None
        if unrolled is None:
            raise AotcError("onnx-loop", text, hint=hint)
        return unrolled
    if known:
        endless = trip_count is None and condition is None
        limit = None if endless or not node.has_loops else _MAX_UNROLLED_ITERATIONS
        if (unrolled := _unroll_loop(trip_count, condition, state, body, node, limit)) is not None:
            return unrolled
    try:
        return _loop_as_function(trip_count, condition, state, body, node, must_be_static=known)
    except AotcError:
        # what needs the iteration number as a constant, or changes the shapes of the state
        unrolled = _unroll_loop(trip_count, condition, state, body, node, None) if known else None
        if unrolled is None:
            raise
        return unrolled


#: Largest number of iterations, known at compile time, of a Loop that is unrolled even if it could
#: be a loop of the program.
_MAX_UNROLLED_ITERATIONS: Final = 8


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
    require("onnx-loop", not count or bool(rows), "a loop of 0 iterations has no scan outputs to concatenate")
    return [*state, *(g.stack([row[k] for row in rows], 0) for k in range(count))]


def _known_element(value: Expr | None, subject: str) -> Any:
    elements = None if value is None else compile_time_elements(value)
    return None if elements is None else g.require_single_element(elements, subject)


def _loop_as_function(
    trip_count: Expr | None,
    condition: Expr | None,
    state: Sequence[Expr],
    body: GraphProto,
    node: OnnxNode,
    must_be_static: bool,
) -> list[Expr]:
    """Convert Loop without scan outputs to a function that is recursive in its results, and return
    the results of a call of it.

    The parameters of the function are the iteration number, the trip count, the condition, what the
    body reads of enclosing graphs, and the state. If `must_be_static`, raise AotcError (code
    "onnx-loop") for shapes in the body that are known at run time only.
    """
    _check_body_output_count(node, len(body.output), 1 + len(state))
    number = Var("i", TensorType((), "int64"))
    values = [Var(f"x{k}", type_of(value)) for k, value in enumerate(state)]
    (flag, *new), captured = node.closed_subgraph(body, [number, g.constant(True), *values])
    carried = list(map(LoopParameter, values, state, new))
    check_carried_types(carried, "onnx-loop")
    tests: list[Expr] = []
    parameters = [LoopParameter(number, g.constant(0, "int64"), g.add(number, 1))]
    if trip_count is not None:
        if compile_time_elements(trip_count) is not None:
            count: Expr = g.constant(int(_known_element(trip_count, "the trip count of Loop")), "int64")
        else:
            variable = count = Var("n", number.annotation)
            parameters.append(LoopParameter(variable, g.reshape(trip_count, ()), variable))
        tests.append(g.call_op("less", number, count))
    if condition is not None:
        keep = Var("keep", TensorType((), "bool"))
        known_flag = _known_element(flag, "the condition of Loop")
        later = keep if known_flag is not None and known_flag else g.reshape(flag, ())
        parameters.append(LoopParameter(keep, g.reshape(condition, ()), later))
        tests.append(keep)
    goes_on = tests[0] if len(tests) == 1 else g.call_op("logical_and", *tests)
    nodes = list(post_order(Tuple(new if condition is None else [flag, *new])))
    used = set(nodes)
    parameters += [LoopParameter(v, value, v) for v, value in captured.items() if v in used]
    shapes = [t for n in nodes if n.checked_type is not None for t in tensor_types(n.checked_type)]
    is_static = all(t.is_static for t in shapes)
    require("onnx-loop", is_static or not must_be_static, "shapes in the body of the loop are known at run time only")
    name = f"loop_{len(node.functions)}"
    function, results = tail_recursive_loop(name, goes_on, [*parameters, *carried], len(carried))
    node.functions[name] = function
    return results


def _scan(*, num_scan_inputs: int = 0, body: GraphProto, node: OnnxNode) -> list[Expr]:
    """Convert Scan by unrolling over the extent of the scanned axes; return the final state, then
    the stacked scan outputs.
    """
    if node.since < 9:
        return _unroll_scan_per_batch_element(num_scan_inputs, body, node)
    inputs = [node[k] for k in range(len(node.inputs))]
    fits = 1 <= num_scan_inputs <= len(inputs)
    text = f"num_scan_inputs of Scan is {num_scan_inputs}, it has {len(inputs)} inputs"
    require("onnx-attribute", fits, text)
    state, sources = inputs[:-num_scan_inputs], inputs[-num_scan_inputs:]
    given = _integer_list_attribute_or_zeros(node, "scan_input_axes", num_scan_inputs)
    axes = [g.normalize_axis(a, g.rank(x)) for a, x in zip(given, sources, strict=True)]
    backwards = _integer_list_attribute_or_zeros(node, "scan_input_directions", num_scan_inputs)
    trips = g.dim(sources[0], axes[0])
    require("onnx-loop", trips >= 1, f"a scan of {trips} iterations is not supported")
    g.check_unroll_count(trips, "a scan")
    state, rows = _unroll_scan(node, body, state, sources, axes, [_iteration_order(trips, back) for back in backwards])
    columns = list(zip(*rows, strict=True))
    out_axes = _integer_list_attribute_or_zeros(node, "scan_output_axes", len(columns))
    prepend = _integer_list_attribute_or_zeros(node, "scan_output_directions", len(columns))
    results = (
        g.stack(parts[::-1] if back else parts, g.normalize_axis(place, g.rank(parts[0]) + 1))
        for parts, place, back in zip(columns, out_axes, prepend, strict=True)
    )
    return [*state, *results]


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


def _unroll_scan_per_batch_element(num_scan_inputs: int, body: GraphProto, node: OnnxNode) -> list[Expr]:
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
    backwards = _integer_list_attribute_or_zeros(node, "directions", num_scan_inputs)
    batch, trips = g.dim(sources[0], 0), g.dim(sources[0], 1)
    known = node.constant_value_of_attribute_or_input(0, "sequence_lens")
    lengths = [trips] * batch if known is None else [int(n) for n in known.reshape(-1)]
    fits = len(lengths) == batch and all(1 <= n <= trips for n in lengths)
    require("onnx-loop", fits and batch > 0, f"lengths {lengths[:8]} do not fit {batch} sequences of {trips} steps")
    g.check_unroll_count(sum(lengths), "a scan")
    results: list[list[Expr]] = []
    for b, length in enumerate(lengths):
        element_state, items = ([select_element(x, 0, b) for x in given] for given in (state, sources))
        orders = [_iteration_order(length, back) for back in backwards]
        last, rows = _unroll_scan(node, body, element_state, items, [0] * num_scan_inputs, orders)
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


# --- sequences


def _normalize_sequence_index(index: int, count: int, valid_positions_past_end: int = 0) -> int:
    """Convert a possibly negative position in a sequence of `count` elements to one counted from 0.
    `valid_positions_past_end` is 1 where the position after the last element is valid too. Raises
    AotcError (code "onnx-sequence") if it is out of range.
    """
    fits = -count <= index < count + valid_positions_past_end
    require("onnx-sequence", fits, f"index {index} is out of range for a sequence of {count} elements")
    return index + count if index < 0 else index


def _sequence_at(items: TensorList, position: KnownInt) -> Expr:
    return items[_normalize_sequence_index(position, len(items))]


def _sequence_insert(items: TensorList, item: Expr, position: KnownInt | None = None) -> Expr:
    items.insert(
        len(items) if position is None else _normalize_sequence_index(position, len(items), valid_positions_past_end=1),
        item,
    )
    return Tuple(items)


def _sequence_erase(items: TensorList, position: KnownInt = -1) -> Expr:
    del items[_normalize_sequence_index(position, len(items))]
    return Tuple(items)


def _sequence_length(items: TensorList) -> Expr:
    return g.constant(len(items), "int64")


def _concat_from_sequence(items: TensorList, *, axis: int, new_axis: int = 0) -> Expr:
    require("onnx-sequence", bool(items), "an empty sequence cannot be concatenated")
    if new_axis:
        return g.stack(items, g.normalize_axis(axis, g.rank(items[0]) + 1))
    return g.concat(items, g.normalize_axis(axis, g.rank(items[0])))


def _split_to_sequence(x: Expr, split: KnownArray | None = None, *, axis: Axis = 0, keepdims: int = 1) -> Expr:
    size = g.dim(x, axis)
    if split is None or split.ndim == 0:
        sizes = g.equal_part_sizes(size, 1 if split is None else int(split))
    else:
        g.check_unroll_count(split.size, "a split")
        sizes = [int(v) for v in split.reshape(-1)]
    require("onnx-split", sum(sizes) == size, f"parts {sizes[:16]} do not add up to {size} elements")
    parts = g.split(x, sizes, axis)
    return Tuple([g.squeeze(p, [axis]) for p in parts] if split is None and keepdims != 1 else parts)


OPS: Table = {
    **table_by_function_name(_concat_from_sequence, _if, _loop, _scan, _sequence_at, _sequence_erase, _sequence_insert),
    **table_by_function_name(_sequence_length, _split_to_sequence),
    "OptionalGetElement": lambda x: x,
    "OptionalHasElement": lambda x=None: g.constant(x is not None),
    "SequenceConstruct": lambda *items: Tuple(items),
    "SequenceEmpty": lambda: Tuple(()),
}
