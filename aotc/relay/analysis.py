# SPDX-License-Identifier: Apache-2.0
"""Analyses of graph expressions: free variables, users, operator counts.

free_vars(relay.add(x, y))                       # [x, y], in order of first use
list_op_freqs(mod["main"])                       # {"nn.conv2d": 21, ...}
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, TypeGuard

from aotc.ir import AotcError, Op, PassContext, Sequential, TensorType, installed_passes
from aotc.relay.detect_language_constructs import Feature as Feature
from aotc.relay.detect_language_constructs import detect_feature as detect_feature
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Let, Match, Tuple, TupleGetItem, Var
from aotc.relay.external_compiler_calibration import get_calibration_data as get_calibration_data
from aotc.relay.graph_api import (
    IRModule,
    children,
    new_solver_methods_by_name,
    pattern_vars,
    post_order,
    structural_hash,
    variables_bound_below,
)
from aotc.relay.match_exhaustiveness import unmatched_cases as unmatched_cases
from aotc.relay.node_scopes import BlockAssignment, is_atom, is_fused_or_external_function
from aotc.relay.type_kinds import all_type_vars as all_type_vars
from aotc.relay.type_kinds import bound_type_vars as bound_type_vars
from aotc.relay.type_kinds import check_kind as check_kind
from aotc.relay.type_kinds import free_type_vars as free_type_vars
from aotc.relay.type_solver import TypeSolver as TypeSolver
from aotc.relay.visitor import all_vars as all_vars
from aotc.relay.visitor import bound_vars as bound_vars
from aotc.relay.visitor import free_vars as free_vars

#: Stand-in for the C++ functions that Relay's Python code and tests call.
_ffi_api = SimpleNamespace(_test_type_solver=new_solver_methods_by_name)


def post_order_visit(expr: Expr, visit: Callable[[Expr], object]) -> None:
    """Call `visit` on every node of an expression once, children first."""
    for node in post_order(expr):
        visit(node)


def users(root: Expr) -> dict[Expr, list[Expr]]:
    """Return for every node below `root` the nodes that use it directly, one entry per use."""
    result: dict[Expr, list[Expr]] = defaultdict(list)
    for node in post_order(root):
        for child in children(node):
            result[child].append(node)
    return result


def list_op_freqs(expr: Expr | Mapping[str, Function]) -> dict[str, int]:
    """Return the number of calls of each operator in an expression or module, by name, in order of
    first call.
    """
    roots = list(expr.values()) if isinstance(expr, Mapping) else [expr]
    called = (node.op for root in roots for node in post_order(root) if isinstance(node, Call))
    return dict(Counter(op.name for op in called if isinstance(op, Op)))


def list_fake_quantized_op_freqs(module: Mapping[str, Function]) -> dict[str, int]:
    """Return the number of calls of each operator between qnn.dequantize and qnn.quantize, by name.

    Only calls whose inputs are all quantized values or constants count: FakeQuantizationToInteger
    might compute them on integers.
    """
    region_calls: dict[Call, None] = {}
    for node in (n for function in module.values() for n in post_order(function)):
        if _is_call_of_op(node, "qnn.quantize") and (region := _fake_quantized_region_calls(node.args[0])) is not None:
            region_calls |= dict.fromkeys(region)
    return dict(Counter(call.op.name for call in region_calls if isinstance(call.op, Op)))


def _is_call_of_op(node: Expr, op_name: str) -> TypeGuard[Call]:
    return isinstance(node, Call) and isinstance(node.op, Op) and node.op.name == op_name


def _fake_quantized_region_calls(root: Expr) -> list[Call] | None:
    """Return the calls between `root` and the dequantized tensors from which it is computed.

    None if there are no such tensors, or variables, functions or lets are involved.
    """
    order = list(post_order(root, lambda n: not _is_call_of_op(n, "qnn.dequantize")))
    ends = [n for n in order if _is_call_of_op(n, "qnn.dequantize")]
    if not ends or any(isinstance(n, (Var, GlobalVar, Function, Let)) for n in order):
        return None
    return [n for n in order if isinstance(n, Call) and n not in ends]


def extract_intermdeiate_expr(module: Mapping[str, Function], expr_id: int) -> IRModule:
    """Return a module whose @main is the call, tuple or tuple field of @main with number `expr_id`
    in post order.

    The misspelled name is Relay's. Raise AotcError if the number is out of range.
    """
    kinds = (Call, Tuple, TupleGetItem)
    nodes = [n for n in post_order(module["main"].body) if isinstance(n, kinds)]
    if not 0 <= expr_id < len(nodes):
        raise AotcError("node", f"there is no expression {expr_id}: @main has {len(nodes)}")
    return IRModule.from_expr(nodes[expr_id])


def global_uses(expr: Expr) -> list[str]:
    """Return the names of the global functions that `expr` refers to, in order of first use."""
    return list(dict.fromkeys(node.name for node in post_order(expr) if isinstance(node, GlobalVar)))


# --- form


def escaping_vars(root: Expr) -> frozenset[Expr]:
    """Return the variables that are bound below `root` and used outside of their scopes."""
    params = root.params if isinstance(root, Function) else ()
    local = set(variables_bound_below(root)) - set(params)
    loose: dict[Expr, frozenset[Expr]] = {}
    for node in post_order(root):
        match node:
            case Var():
                loose[node] = frozenset([node]) if node in local else frozenset()
            case Let():
                value = loose[node.value]
                if isinstance(node.value, Function):  # the function may be recursive
                    value -= {node.var}
                loose[node] = value | (loose[node.body] - {node.var})
            case Function():
                loose[node] = loose[node.body] - set(node.params)
            case Match():
                inside = (loose[c.rhs] - set(pattern_vars(c.lhs)) for c in node.clauses)
                loose[node] = loose[node.data].union(*inside)
            case _:
                loose[node] = frozenset().union(*{loose[c] for c in children(node)})
    return loose[root]


def well_formed(expr: Expr | Mapping[str, Function]) -> bool:
    """Return True if every variable is bound at most once, and bound variables are used only in
    their scopes.

    expr    an expression, which may have free variables, or a module
    """
    roots = list(expr.values()) if isinstance(expr, Mapping) else [expr]
    bound = Counter(v for root in roots for v in variables_bound_below(root))
    return all(n == 1 for n in bound.values()) and not any(map(escaping_vars, roots))


def check_basic_block_normal_form(expr: Expr) -> bool:
    """Return True if no two blocks (bodies of functions, branches of ifs) share a node other than a
    variable or constant.
    """
    order = list(post_order(expr, lambda n: not is_fused_or_external_function(n)))
    return all(is_atom(node) for node in BlockAssignment(order).spread)


# --- size


def _extent_product_of_axes(ty: TensorType, layout: str, axes: str) -> int:
    """Return the product of the extents of the axes `axes` in a layout."""
    letters = [c for c in layout if c.isalpha()]
    return math.prod(n for n, letter in zip(ty.static_shape, letters, strict=True) if letter in axes)


def _conv_macs(attrs: Any, data: TensorType, weight: TensorType, out: TensorType) -> int:
    channels = _extent_product_of_axes(data, attrs.data_layout, "Cc") // int(attrs.groups)
    return out.numel * channels * _extent_product_of_axes(weight, attrs.kernel_layout, "DHW")


def _multiply_accumulates_of_call(call: Call) -> int:
    """Return the multiplications of one call: the size of the result times the number of products
    in each sum.

    Raise AotcError if a type is missing.
    """
    if not isinstance(call.op, Op) or not (call.op.is_contraction or call.op.name == _WINOGRAD_OP_NAME):
        return 0
    tensors = [ty for node in (*call.args[:2], call) if isinstance(ty := node.checked_type, TensorType)]
    if len(tensors) < 3:
        raise AotcError("untyped", f"{call.op.name} has no type yet", span=call.span, hint="run InferType first")
    data, weight, out = tensors
    if call.op.name == _WINOGRAD_OP_NAME:  # counted as the 3x3 convolution that it computes
        return out.numel * data.static_shape[1] * 9
    if call.op.name.startswith("nn.conv"):
        return _conv_macs(call.attrs, data, weight, out)
    transposed = getattr(call.attrs, "transpose_a", False)
    return out.numel * data.static_shape[-2 if transposed else -1]


_WINOGRAD_OP_NAME = "nn.contrib_conv2d_winograd_without_weight_transform"


def get_total_mac_number(expr: Expr) -> int:
    """Return the number of multiply-accumulate operations of the convolutions and matrix products
    of a typed expression.

    A transposed convolution is counted as Relay does: all products for each output element,
    including those with the zeros between the inputs. Raise AotcError if a type is missing.
    """
    return sum(_multiply_accumulates_of_call(node) for node in post_order(expr) if isinstance(node, Call))


def count_layers(expr: Expr, valid_ops: Collection[str]) -> int:
    """Return the largest number of calls of the operators `valid_ops` on a path through `expr`."""
    values: dict[Expr, Expr] = {n.var: n.value for n in post_order(expr) if isinstance(n, Let)}
    depth: dict[Expr, int] = {}

    def largest_layer_count_through_lets(node: Expr) -> int:
        while node in values:
            node = values[node]
        return depth.get(node, 0)  # a recursive function counts once

    for node in post_order(expr):
        below = (node.body,) if isinstance(node, Let) else children(node)
        is_counted = isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in valid_ops
        depth[node] = is_counted + max(map(largest_layer_count_through_lets, below), default=0)
    return largest_layer_count_through_lets(expr)


def extract_fused_functions(module: Mapping[str, Function]) -> dict[str, Function]:
    """Return the primitive functions of a module by structural hash in hex; structurally equal
    functions appear once.

    A module without primitive functions is first fused as at optimization level 3.
    """
    if not any(isinstance(n, Function) and n.is_primitive for f in module.values() for n in post_order(f)):
        passes = installed_passes()
        with PassContext(opt_level=3):
            names = ("InferType", "SimplifyInference", "FuseOps")
            module = Sequential([passes[name]() for name in names])(module)
    nodes = (n for function in module.values() for n in post_order(function))
    fused = (n for n in nodes if isinstance(n, Function) and n.is_primitive)
    return {f"{structural_hash(f):016x}": f for f in fused}
