# SPDX-License-Identifier: Apache-2.0
"""Converters of PyTorch's operators that take graphs: torch.cond, torch.while_loop and scan.

Input: the graphs of an exported program as functions that convert them for given operands, and the
operands of the node. Output: tensors. A loop becomes a global function that is recursive in its
results; a scan of few iterations is unrolled.

    add_loop = HIGHER_ORDER_CONVERTERS["while_loop"]
    results = add_loop(functions, condition_graph, body_graph, (i, x), (w,))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from aotc.ir import TensorType, require
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import TorchValue
from aotc.relay.frontend.slice_pad_depth_to_space import select_element
from aotc.relay.frontend.tail_recursion import (
    MAX_UNROLLED_ITERATIONS,
    LoopParameter,
    check_carried_types,
    parameter_of_rows,
    row_of,
    tail_recursive_loop,
)
from aotc.relay.graph_api import Constant, Expr, Function, If, Tuple, TupleGetItem, Var, type_of

#: A graph of an exported program: its tensors for given operands.
Graph: TypeAlias = Callable[[Sequence[TorchValue]], list[Expr]]


def _convert_cond(
    _: dict[str, Function],
    condition: TorchValue,
    true_graph: Graph,
    false_graph: Graph,
    operands: Sequence[TorchValue] = (),
) -> list[Expr]:
    """Convert torch.cond: a choice between two graphs, which are called with the same operands; only
    the one that the condition names is converted if the condition is known.
    """
    if not isinstance(condition, Expr):
        return true_graph(operands) if condition else false_graph(operands)
    if isinstance(condition, Constant):
        is_true = bool(g.require_single_element(condition.data, "the condition of cond"))
        return true_graph(operands) if is_true else false_graph(operands)
    yes, no = (graph(operands) for graph in (true_graph, false_graph))
    types = [(type_of(a), type_of(b)) for a, b in zip(yes, no, strict=True)]
    differ = "; ".join(f"{a} and {b}" for a, b in types if a != b)
    require("torch-op", not differ, f"the branches of cond return tensors of different types: {differ}")
    choice = If(g.reshape(g.cast(condition, "bool"), ()), Tuple(yes), Tuple(no))
    return [TupleGetItem(choice, k) for k in range(len(yes))]


def _convert_while_loop(
    functions: dict[str, Function],
    condition_graph: Graph,
    body_graph: Graph,
    carried: Sequence[TorchValue],
    additional: Sequence[TorchValue] = (),
) -> list[Expr]:
    """Convert torch.while_loop; return the values that it carries after its last iteration.

    Raises AotcError if it carries numbers, or if the type of a value changes.
    """
    given = _require_tensors(carried, "while_loop")
    values = [Var(f"x{k}", type_of(x)) for k, x in enumerate(given)]
    inner, unchanged = _closed_operands(additional)
    (condition,) = condition_graph([*values, *inner])
    new = body_graph([*values, *inner])
    parameters = list(map(LoopParameter, values, given, new))
    return _add_loop(functions, g.reshape(g.cast(condition, "bool"), ()), [], parameters, unchanged)


def _convert_scan(
    functions: dict[str, Function],
    body_graph: Graph,
    initial: Sequence[TorchValue],
    scanned: Sequence[TorchValue],
    additional: Sequence[TorchValue] = (),
) -> list[Expr]:
    """Convert scan, which applies a graph to each row (along the first axis) of tensors; return the
    values that it carries after its last iteration, and the stacked tensors that it computes.
    """
    state, sources = _require_tensors(initial, "scan"), _require_tensors(scanned, "scan")
    count = g.dims(sources[0])[0]
    if isinstance(count, int) and count <= MAX_UNROLLED_ITERATIONS:
        rows: list[list[Expr]] = []
        for k in range(count):
            results = body_graph([*state, *(select_element(x, 0, k) for x in sources), *additional])
            state, row = results[: len(state)], results[len(state) :]
            rows.append(row)
        return [*state, *(g.stack(column, 0) for column in zip(*rows, strict=True))]
    number = Var("i", TensorType((), "int64"))
    values = [Var(f"x{k}", type_of(x)) for k, x in enumerate(state)]
    inner, unchanged = _closed_operands([*sources, *additional])
    inner_sources = [x for x in inner[: len(sources)] if isinstance(x, Expr)]
    elements = [row_of(x, number, 0) for x in inner_sources]
    results = body_graph([*values, *elements, *inner[len(sources) :]])
    carried = [
        *map(LoopParameter, values, state, results),
        *(parameter_of_rows(f"y{k}", row, number, count) for k, row in enumerate(results[len(values) :])),
    ]
    counter = LoopParameter(number, g.constant(0, "int64"), g.add(number, 1))
    goes_on = g.less(number, g.extent(inner_sources[0], 0))
    return _add_loop(functions, goes_on, [counter], carried, unchanged)


def _require_tensors(values: Sequence[TorchValue], operator_name: str) -> list[Expr]:
    """Return values, all of which must be tensors. Raises AotcError (code "torch-op") for numbers."""
    for value in values:
        text = f"{operator_name} carries a {type(value).__name__}; only tensors can be carried"
        require("torch-op", isinstance(value, Expr), text)
    return [value for value in values if isinstance(value, Expr)]


def _closed_operands(operands: Sequence[TorchValue]) -> tuple[list[TorchValue], dict[Var, Expr]]:
    """Return operands with a variable instead of each tensor that is not a constant, and the tensors by
    variable.
    """
    given: dict[Var, Expr] = {}
    inner: list[TorchValue] = []
    for k, operand in enumerate(operands):
        if isinstance(operand, Expr) and not isinstance(operand, Constant):
            variable = Var(f"c{k}", type_of(operand))
            given[variable] = operand
            inner.append(variable)
        else:
            inner.append(operand)
    return inner, given


def _add_loop(
    functions: dict[str, Function],
    goes_on: Expr,
    parameters: Sequence[LoopParameter],
    carried: Sequence[LoopParameter],
    unchanged: Mapping[Var, Expr],
) -> list[Expr]:
    """Add the function of a loop to `functions`; return the last values of `carried`."""
    check_carried_types(carried, "torch-op")
    name = f"loop_{len(functions)}"
    every = [*parameters, *(LoopParameter(v, x, v) for v, x in unchanged.items()), *carried]
    function, results = tail_recursive_loop(name, goes_on, every, len(carried))
    functions[name] = function
    return results


#: Converters by the names of operators in `torch.ops.higher_order`. Their first argument is the
#: table of the module's global functions, to which they add loops.
HIGHER_ORDER_CONVERTERS: Final[Mapping[str, Callable[..., list[Expr]]]] = {
    "cond": _convert_cond,
    "while_loop": _convert_while_loop,
    "scan": _convert_scan,
}
