# SPDX-License-Identifier: Apache-2.0
"""FuseOutputs: compute elementwise functions of a kernel's result in that kernel, as further
results.

%0 = fn (%p0, %p1, %p2, Primitive=1) { add(nn.conv2d(%p0, %p1), %p2) }(%x, %w, %y);       # read again later
%1 = fn (%p0, Primitive=1) { nn.relu(%p0) }(%0)
=>
%0 = fn (%p0, %p1, %p2, Primitive=1) { %0 = add(nn.conv2d(%p0, %p1), %p2); (%0, nn.relu(%0)) }(%x, %w, %y)

The elementwise input of a row normalization is computed in the normalization's kernel, and is not
stored if it has no other reader:

%0 = fn (%p0, Primitive=1) { multiply(%p0, 0.125f) }(%x);
%1 = fn (%p0, Primitive=1) { nn.softmax(%p0) }(%0)
=>
%0 = fn (%p0, Primitive=1) { nn.softmax(multiply(%p0, 0.125f)) }(%x)

Input: typed functions, after FuseOps. Output: equivalent functions with fewer kernels, for targets
on which each kernel launch costs time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aotc.ir import Op, OpPattern, TensorType, flatten_nested_tuple, merge_spans
from aotc.relay.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    require_function,
    require_op_of_call,
    tensor_type_of,
)
from aotc.relay.graph_api import Var, is_not_a_scope, map_children, post_order, substitute_variables, type_of, users
from aotc.relay.op.opdef import OpDef
from aotc.relay.transform.pass_base import FunctionPass, is_not_primitive_function
from aotc.tir import Gpu, is_separate_launch_faster, te, tensor_graph

#: Largest number of results of one kernel.
_MAX_KERNEL_RESULTS: Final = 8
_FINAL_PATTERNS: Final = (OpPattern.ELEMWISE, OpPattern.BROADCAST, OpPattern.OUT_ELEMWISE_FUSABLE)
#: Row normalizations, each computed by a block of threads. After a matrix product they stay a
#: launch of their own, which the product's last thread blocks may take over.
_NORMS: Final = (
    "nn.softmax", "nn.fast_softmax", "nn.log_softmax", "nn.l2_normalize",
    "nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm",
)  # fmt: skip
#: GPU that is assumed if the pass is not given one.
_GPU: Final = Gpu()

#: Calls that become one; the first reads no results of the others.
_CallGroup: TypeAlias = "list[Call]"


@dataclass(frozen=True, repr=False)
class FuseOutputs(FunctionPass):
    """Pass that merges calls of elementwise functions into the call whose result they read, if
    their other inputs are available.

    A call that normalizes rows is merged with elementwise calls, unless a separate launch over all
    elements is faster on the GPU.

    most_args      largest number of kernel arguments: inputs, results, and a buffer for each result
    gpu            the GPU on which the kernels run
    """

    opt_level = 1
    most_args: int = 512
    gpu: Gpu = _GPU

    def rewrite_function_body(self, function: Function) -> Function:
        group_of, read_by = _group_kernel_calls(function, self.most_args, self.gpu), users(function)
        joined = {node: group for node, group in group_of.items() if len(group) > 1}
        new_nodes: dict[Expr, Expr] = {}
        for node in post_order(function, is_not_primitive_function):
            group = joined.get(node)
            if group is None:
                new_nodes[node] = map_children(node, new_nodes.__getitem__) if is_not_primitive_function(node) else node
            elif node is group[0]:
                results = [call for call in group if not set(read_by[call]) <= {*group}]
                whole = _merge_into_one_call(group, results, new_nodes)
                several = len(results) > 1
                new_nodes.update({call: TupleGetItem(whole, k) if several else whole for k, call in enumerate(results)})
        return require_function(new_nodes[function]) if joined else function


def _group_kernel_calls(function: Function, max_args: int, gpu: Gpu) -> dict[Expr, _CallGroup]:
    """Return for each kernel call of a function the group of calls that will become one kernel."""
    group_by_call: dict[Expr, _CallGroup] = {}
    number = {node: k for k, node in enumerate(post_order(function.body, is_not_a_scope))}
    known: set[Expr] = {*function.params, *(node for node in number if isinstance(node, Constant))}
    for node in number:
        if not isinstance(node, Call) or not isinstance(node.op, Function) or not node.op.is_primitive:
            continue
        hosts = [
            group_by_call[arg]
            for arg in node.args
            if arg in group_by_call and _can_join_kernel_group_of_argument(node, arg, group_by_call[arg], gpu)
        ]
        group = max(hosts, key=lambda group: number[group[0]], default=[])
        first = number[group[0]] if group else 0
        early = (a in known or number.get(a, first) < first or group_by_call.get(a) is group for a in node.args)
        fits = len(group) < _MAX_KERNEL_RESULTS and _kernel_argument_count([*group, node]) <= max_args
        group = group if group and fits and all(early) else []
        group.append(node)
        group_by_call[node] = group
    return group_by_call


def _kernel_argument_count(group: Sequence[Call]) -> int:
    """Return the number of arguments of a merged kernel: inputs, results, and a buffer for each
    result.
    """
    return len({arg for call in group for arg in call.args} - {*group}) + 2 * len(group)


def _can_join_kernel_group_of_argument(node: Call, arg: Expr, group: _CallGroup, gpu: Gpu) -> bool:
    """Return True if a kernel call can join the group of its argument's kernel: it maps the
    argument element by element.

    A row normalization can join, too, if the group is elementwise so far.
    """
    assert isinstance(arg, Call)
    ty, other = type_of(node), type_of(arg)
    same = isinstance(ty, TensorType) and isinstance(other, TensorType) and ty.shape == other.shape
    last = require_function(arg.op).body
    ends = isinstance(last, Call) and isinstance(last.op, Op) and last.op.pattern in _FINAL_PATTERNS
    non_elementwise = _nodes_neither_elementwise_nor_broadcast(node)
    rows = (
        len(non_elementwise) == 1
        and _is_block_per_row_norm(non_elementwise[0], gpu)
        and not any(map(_nodes_neither_elementwise_nor_broadcast, group))
    )
    return ends and same and (rows or not non_elementwise)


def _nodes_neither_elementwise_nor_broadcast(call: Call) -> list[Expr]:
    """Return the nodes of a fused function that are not elementwise or broadcasting."""
    inner = (n for n in post_order(require_function(call.op).body) if isinstance(n, (Call, Tuple, TupleGetItem)))
    return [n for n in inner if not isinstance(n, Call) or require_op_of_call(n).pattern > OpPattern.BROADCAST]


def _is_block_per_row_norm(expr: Expr, gpu: Gpu) -> bool:
    """Return True for a row normalization for which the GPU uses one thread block per row, not a
    launch over all elements.
    """
    if not isinstance(expr, Call) or not isinstance(expr.op, OpDef):
        return False
    op = expr.op
    if op.name not in _NORMS or op.compute is None:
        return False
    types = [tensor_type_of(arg) for arg in expr.args]
    if not all(ty.is_static for ty in types):
        return False
    data = (te.placeholder(ty.static_shape, ty.dtype, "x") for ty in types)
    for t in tensor_graph.tensors_in_topological_order(flatten_nested_tuple(op.compute(expr.attrs, *data))):
        each = math.prod(n for _, n in tensor_graph.output_and_reduction_axes(t)) // max(t.size, 1)
        if isinstance(t, te.Reduce) and is_separate_launch_faster(gpu, t.size, each):
            return False
    return True


def _merge_into_one_call(group: Sequence[Call], results: Sequence[Call], replacements: dict[Expr, Expr]) -> Call:
    """Return one kernel call that computes the given results of a group: a single result directly,
    several as a tuple.
    """
    values: dict[Expr, Expr] = {}
    params: dict[Expr, Var] = {}
    for call in group:
        function = require_function(call.op)
        for arg in call.args:
            if arg not in values:
                values[arg] = params[arg] = Var(f"p{len(params)}", type_of(arg))
        inner = dict(zip(function.params, (values[arg] for arg in call.args), strict=True))
        values[call] = substitute_variables(function.body, inner)
    body = values[results[0]] if len(results) == 1 else Tuple(values[call] for call in results)
    span = merge_spans(call.span for call in group)
    function = Function(params.values(), body, type_of(body), None, require_function(group[0].op).attrs, span)
    return Call(function, [replacements.get(arg, arg) for arg in params], span=span, checked_type=type_of(body))
