# SPDX-License-Identifier: Apache-2.0
"""Bound the number of nodes of an ONNX model after expansion of its functions, computed over the
call graph before any function is expanded.

Input: the graph of a model and its functions. Output: nothing, or an AotcError if a function is
recursive or if the number of nodes exceeds the budget: 30 functions that each call the previous one
twice are 2**30 nodes in a file of 2 KB.

    check_recursion_and_expanded_node_count(graph, functions, "net.onnx")
"""

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from onnx import FunctionProto, GraphProto, NodeProto, ValueInfoProto

from aotc.ir import AotcError, Span, span_scope
from aotc.ir.compilation_work_and_memory_limits import current_budget
from aotc.relay.frontend.onnx.load import needed_nodes_in_topological_order, node_subgraphs

#: Identity of a model function: domain, name and overload.
FunctionKey: TypeAlias = tuple[str, str, str]


def called_function_key(node: NodeProto) -> FunctionKey:
    """Return the domain, name and overload of the model function that a node would call."""
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type, getattr(node, "overload", "")


def check_recursion_and_expanded_node_count(
    graph: GraphProto, functions: Mapping[FunctionKey, FunctionProto], source: str
) -> None:
    """Raise AotcError if a function is recursive (code "onnx-depth") or if the expanded model
    exceeds the node budget ("budget").

    The number of nodes is a lower bound: of an If it includes the smaller branch only, of a loop
    one iteration.
    """
    bodies: dict[FunctionKey, list[NodeProto]] = {}
    pending = list(_called_function_keys(_nodes_needed_by_outputs(graph, source), functions))
    while pending:
        key = pending.pop()
        if key not in bodies:
            bodies[key] = _nodes_needed_by_outputs(_graph_of_function(functions[key]), source)
            pending += _called_function_keys(bodies[key], functions)
    sizes: dict[FunctionKey, int] = {}
    with span_scope(Span(source)):
        for key in _callee_first_order_or_raise_recursion(bodies, functions):
            sizes[key] = _expanded_node_count_lower_bound(bodies[key], sizes, source)
        total = _expanded_node_count_lower_bound(_nodes_needed_by_outputs(graph, source), sizes, source)
        current_budget().require_within_compile_time_limit(
            "compile.max_nodes", total, "the model, its functions expanded,"
        )


def _callee_first_order_or_raise_recursion(
    bodies: Mapping[FunctionKey, list[NodeProto]], functions: Mapping[FunctionKey, FunctionProto]
) -> list[FunctionKey]:
    try:
        return list(
            TopologicalSorter(
                {key: set(_called_function_keys(b, functions)) for key, b in bodies.items()}
            ).static_order()
        )
    except CycleError as error:
        names = " -> ".join(key[1] for key in error.args[1][:8])
        raise AotcError("onnx-depth", f"a function of the model calls itself: {names}") from None


def _graph_of_function(function: FunctionProto) -> GraphProto:
    return GraphProto(node=function.node, output=[ValueInfoProto(name=name) for name in function.output])


def _nodes_needed_by_outputs(graph: GraphProto, source: str) -> list[NodeProto]:
    return [node for _, node in needed_nodes_in_topological_order(graph, source)]


def _called_function_keys(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, FunctionProto]
) -> Iterator[FunctionKey]:
    """Yield the keys of the functions that nodes call, including calls in their subgraphs."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        pending += (inner for graph in node_subgraphs(node) for inner in graph.node)
        if (key := called_function_key(node)) in functions:
            yield key


def _expanded_node_count_lower_bound(
    nodes: Iterable[NodeProto], expanded_count_by_function: Mapping[FunctionKey, int], source: str
) -> int:
    """Return a lower bound of the number of nodes into which the given ONNX nodes are expanded,
    with the functions that they call.
    """
    total = 0
    for node in nodes:
        inner = [
            _expanded_node_count_lower_bound(
                _nodes_needed_by_outputs(graph, source), expanded_count_by_function, source
            )
            for graph in node_subgraphs(node)
        ]
        total += (
            1
            + expanded_count_by_function.get(called_function_key(node), 0)
            + (min(inner) if node.op_type == "If" and inner else sum(inner))
        )
    return total
