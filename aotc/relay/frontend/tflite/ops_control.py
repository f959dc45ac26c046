# SPDX-License-Identifier: Apache-2.0
"""TFLite converters of operators that run subgraphs, and of resource variables.

A resource is the number of a variable, an int32 constant, which subgraphs receive like other values.
What a variable holds is an expression in `ResourceVariables`: a read returns it, and an assignment replaces
it. A variable that runs of the model change is state: a parameter of @main with its contents before
a run, and an output with those after it.

OPS["WHILE"](i, x, cond_subgraph_index=1, body_subgraph_index=2, node=node)     # last values of i and x
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from aotc.ir import AotcError, require, tensor_types
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend.tail_recursion import (
    MAX_UNROLLED_ITERATIONS,
    LoopParameter,
    check_carried_types,
    tail_recursive_loop,
)
from aotc.relay.frontend.tflite.node import KnownInts, Table, TfliteNode
from aotc.relay.frontend.tflite.resource_variables import container_and_name
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

# --- resource variables


def _convert_call_once_node(*, init_subgraph_index: int, node: TfliteNode) -> list[Expr]:
    node.control.initialize_variables(init_subgraph_index)
    return []


def _convert_var_handle_node(*, node: TfliteNode) -> Expr:
    return g.constant(node.control.variables.number(*container_and_name(node.op)), "int32")


def _variable_number(node: TfliteNode, resource: Sequence[int]) -> int:
    declaration = node.input_declaration(0)
    known = declaration.resource and len(resource) == 1 and 0 <= resource[0] < node.control.variables.count
    require("tflite-variable", known, f"{node.op.name} needs a resource variable as input 0")
    return resource[0]


def _convert_read_variable_node(resource: KnownInts, *, node: TfliteNode) -> Expr:
    return node.control.variables.read(_variable_number(node, resource))


def _convert_assign_variable_node(resource: KnownInts, value: Expr, *, node: TfliteNode) -> list[Expr]:
    node.control.variables.assign(_variable_number(node, resource), value)
    return []


# --- branches


def _convert_if_node(
    condition: Expr, *inputs: Expr, then_subgraph_index: int, else_subgraph_index: int, node: TfliteNode
) -> list[Expr]:
    """Convert IF: the chosen subgraph if the condition is constant, otherwise an If of the graph IR
    whose results are the outputs and the contents of the variables that the subgraphs assign.
    """
    control = node.control
    require("graph-shape", g.shape(condition) in ((), (1,)), f"the condition of IF has the shape {g.shape(condition)}")
    if isinstance(condition, Constant):
        chosen = then_subgraph_index if condition.data.any() else else_subgraph_index
        return control.convert_subgraph(chosen, inputs)
    before, readable = control.variables.contents(), control.variables.types()
    yes = control.convert_subgraph(then_subgraph_index, inputs)
    after_yes = control.variables.exchange_contents(before)
    no = control.convert_subgraph(else_subgraph_index, inputs)
    after_no = control.variables.exchange_contents(before)
    text = f"the subgraphs of IF have {len(yes)} and {len(no)} outputs"
    require("tflite-subgraph", len(yes) == len(no), text)
    changed = [
        k
        for k in sorted(after_yes.keys() | after_no.keys())
        if after_yes.get(k) is not after_no.get(k) and (k in readable or (k in after_yes and k in after_no))
    ]
    both = [
        [*values, *(after[k] if k in after else control.variables.read(k) for k in changed)]
        for values, after in ((yes, after_yes), (no, after_no))
    ]
    differ = [f"{type_of(a)} and {type_of(b)}" for a, b in zip(*both, strict=True) if type_of(a) != type_of(b)]
    text = f"the subgraphs of IF have outputs of different types: {'; '.join(differ)}"
    require("tflite-subgraph", not differ, text)
    results = _branch_results(g.reshape(condition, ()), *both)
    # what both subgraphs assign may be one value, an input of theirs
    same = {k: x for k, x in after_yes.items() if after_no.get(k) is x}
    control.variables.exchange_contents(before | same | dict(zip(changed, results[len(yes) :], strict=True)))
    return results[: len(yes)]


def _branch_results(condition: Expr, yes: Sequence[Expr], no: Sequence[Expr]) -> list[Expr]:
    if len(yes) <= 1:
        return [If(condition, a, b) for a, b in zip(yes, no, strict=True)]
    both = If(condition, Tuple(yes), Tuple(no))
    return [TupleGetItem(both, k) for k in range(len(yes))]


# --- loops


def convert_while_node(
    *inputs: Expr, cond_subgraph_index: int, body_subgraph_index: int, node: TfliteNode
) -> list[Expr]:
    """Convert WHILE; return the last values of the loop.

    A loop of few iterations, whose condition is known when the model is compiled, is unrolled, and
    so is one that cannot be expressed otherwise. Any other becomes a function that is recursive in
    its results.
    """
    subgraphs, before = (cond_subgraph_index, body_subgraph_index), node.control.variables.contents()
    limit = MAX_UNROLLED_ITERATIONS if node.control.has_loops else None
    if (unrolled := _unroll_loop(node, subgraphs, inputs, limit)) is not None:
        return unrolled
    node.control.variables.exchange_contents(before)
    try:
        return _loop_as_function(node, subgraphs, inputs)
    except AotcError:
        # what needs the iteration number as a constant, or changes the shapes of the values
        node.control.variables.exchange_contents(before)
        unrolled = _unroll_loop(node, subgraphs, inputs, None) if limit is not None else None
        if unrolled is None:
            raise
        return unrolled


def _unroll_loop(
    node: TfliteNode, subgraphs: tuple[int, int], values: Sequence[Expr], limit: int | None
) -> list[Expr] | None:
    """Convert WHILE by unrolling; return None if there are more than `limit` iterations, or if the
    condition depends on run-time values.
    """
    condition, body = subgraphs
    for count in itertools.count():
        going = compile_time_elements(_loop_condition(node, condition, values))
        if going is None or (going.any() and count == limit):
            return None
        if not going.any():
            return list(values)
        g.check_unroll_count(count + 1, "a loop")
        values = _next_loop_values(node, body, values)
    raise AssertionError("the budget bounds the iterations")


def _loop_condition(node: TfliteNode, subgraph: int, values: Sequence[Expr]) -> Expr:
    variables = node.control.variables
    before = variables.contents()
    outputs = node.control.convert_subgraph(subgraph, values)
    fits = len(outputs) == 1 and g.dtype(outputs[0]).is_bool and g.shape(outputs[0]) in ((), (1,))
    require("tflite-subgraph", fits, f"subgraph {subgraph}, the condition of WHILE, must compute one bool")
    unchanged = variables.contents() == before
    require("tflite-variable", unchanged, f"subgraph {subgraph}, the condition of WHILE, assigns a variable")
    return outputs[0]


def _next_loop_values(node: TfliteNode, subgraph: int, values: Sequence[Expr]) -> list[Expr]:
    new = node.control.convert_subgraph(subgraph, values)
    text = f"subgraph {subgraph}, the body of WHILE, has {len(new)} outputs for {len(values)} values"
    require("tflite-subgraph", len(new) == len(values), text)
    return new


def _loop_as_function(node: TfliteNode, subgraphs: tuple[int, int], inputs: Sequence[Expr]) -> list[Expr]:
    """Convert WHILE to a function that is recursive in its results, whose parameters are the values
    of the loop and the contents of variables. Constants that no iteration changes stay constants.
    """
    (condition, body), variables = subgraphs, node.control.variables
    kept = node.control.unchanged_values(body)
    changing = [k for k, x in enumerate(inputs) if k not in kept or not isinstance(x, Constant)]
    varying = {k: Var(f"x{k}", type_of(inputs[k])) for k in changing}
    values = [varying.get(k, x) for k, x in enumerate(inputs)]
    inside = {k: Var(f"v{k}", ty) for k, ty in variables.types().items()}
    outside = variables.exchange_contents(inside)
    try:
        goes_on = g.reshape(_loop_condition(node, condition, values), ())
        new = _next_loop_values(node, body, values)
        after = {k: variables.read(k) for k in inside}
    finally:
        variables.exchange_contents(outside)
    parameters = [LoopParameter(v, inputs[k], new[k]) for k, v in varying.items()]
    check_carried_types(parameters, "tflite-subgraph")
    assigned = [k for k, v in inside.items() if after[k] is not v]
    carried = [*(LoopParameter(inside[k], variables.read(k), after[k]) for k in assigned), *parameters]
    used = set(post_order(Tuple([goes_on, *(p.later for p in carried)])))
    read = [LoopParameter(v, variables.read(k), v) for k, v in inside.items() if v in used and k not in assigned]
    _require_static_shapes(used)
    name = f"loop_{len(node.control.functions)}"
    require("tflite-subgraph", bool(carried), "a WHILE without values computes nothing")
    function, results = tail_recursive_loop(name, goes_on, [*read, *carried], len(carried))
    node.control.functions[name] = function
    for k, result in zip(assigned, results, strict=False):
        variables.assign(k, result)
    last = dict(zip(varying, results[len(assigned) :], strict=True))
    return [last.get(k, x) for k, x in enumerate(inputs)]


def _require_static_shapes(nodes: Iterable[Expr]) -> None:
    shapes = [t for n in nodes if n.checked_type is not None for t in tensor_types(n.checked_type)]
    text = "shapes in the body of the loop are known at run time only"
    require("tflite-runtime-shape", all(t.is_static for t in shapes), text)


def _convert_call_node(*inputs: Expr, subgraph: int, node: TfliteNode) -> list[Expr]:
    return node.control.convert_subgraph(subgraph, inputs)


OPS: Final[Table] = {
    "CALL": _convert_call_node,
    "ASSIGN_VARIABLE": _convert_assign_variable_node,
    "CALL_ONCE": _convert_call_once_node,
    "IF": _convert_if_node,
    "READ_VARIABLE": _convert_read_variable_node,
    "VAR_HANDLE": _convert_var_handle_node,
    "WHILE": convert_while_node,
}
INTEGERS: Final[frozenset[str]] = frozenset({"CALL", "CALL_ONCE", "IF", "VAR_HANDLE", "WHILE"})
#: Operators that keep or return quantized integers unchanged.
MOVES: Final[frozenset[str]] = frozenset({"ASSIGN_VARIABLE", "READ_VARIABLE"})
