# SPDX-License-Identifier: Apache-2.0
"""Questions about graph expressions: free variables, users, operator counts.

free_vars(relay.add(x, y))                       # [x, y], in order of first use
list_op_freqs(mod["main"])                       # {"nn.conv2d": 21, ...}
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aotc.ir import AotcError, Op, TensorType
from aotc.relay.blocks import Blocks, is_atom, left_alone
from aotc.relay.expr import Call, Expr, Function, GlobalVar, Let, Var
from aotc.relay.structural import structural_hash
from aotc.relay.visitor import all_vars as all_vars
from aotc.relay.visitor import binders, children, post_order
from aotc.relay.visitor import bound_vars as bound_vars
from aotc.relay.visitor import free_vars as free_vars


def post_order_visit(expr: Expr, visit: Callable[[Expr], object]) -> None:
    """Call `visit` on every node once, children first."""
    for node in post_order(expr):
        visit(node)


def users(root: Expr) -> dict[Expr, list[Expr]]:
    """For every node below `root`, the nodes that use it directly (once per use)."""
    result: dict[Expr, list[Expr]] = defaultdict(list)
    for node in post_order(root):
        for child in children(node):
            result[child].append(node)
    return result


def list_op_freqs(expr: Expr) -> dict[str, int]:
    """How often each operator is called, by name, in order of first call."""
    called = (node.op for node in post_order(expr) if isinstance(node, Call))
    return dict(Counter(op.name for op in called if isinstance(op, Op)))


def global_uses(expr: Expr) -> list[str]:
    """The names of the global functions that `expr` mentions, in order of first use."""
    return list(dict.fromkeys(node.name for node in post_order(expr) if isinstance(node, GlobalVar)))


# --- form


def escaping_vars(root: Expr) -> frozenset[Expr]:
    """The variables that something below `root` binds and that are used outside of their scopes."""
    params = root.params if isinstance(root, Function) else ()
    local = set(binders(root)) - set(params)
    loose: dict[Expr, frozenset[Expr]] = {}
    for node in post_order(root):
        match node:
            case Var():
                loose[node] = frozenset([node]) if node in local else frozenset()
            case Let():
                value = loose[node.value]
                if isinstance(node.value, Function):  # it may be recursive
                    value -= {node.var}
                loose[node] = value | (loose[node.body] - {node.var})
            case Function():
                loose[node] = loose[node.body] - set(node.params)
            case _:
                loose[node] = frozenset().union(*{loose[c] for c in children(node)})
    return loose[root]


def well_formed(expr: Expr | Mapping[str, Function]) -> bool:
    """Whether every variable is bound once at most, and used only in the scope of its binder, if it has one.

    expr    an expression, which may have free variables, or a module
    """
    roots = list(expr.values()) if isinstance(expr, Mapping) else [expr]
    bound = Counter(v for root in roots for v in binders(root))
    return all(n == 1 for n in bound.values()) and not any(map(escaping_vars, roots))


def check_basic_block_normal_form(expr: Expr) -> bool:
    """Whether no two blocks (bodies of functions, branches of ifs) share a node that is not a variable or constant."""
    order = list(post_order(expr, lambda n: not left_alone(n)))
    return all(is_atom(node) for node in Blocks(order).spread)


# --- size


def _layout_size(ty: TensorType, layout: str, axes: str) -> int:
    """The product of the dimensions that a layout gives the letters `axes`."""
    letters = [c for c in layout if c.isalpha()]
    return math.prod(n for n, letter in zip(ty.static_shape, letters, strict=True) if letter in axes)


def _conv_macs(a: Any, data: TensorType, weight: TensorType, out: TensorType) -> int:
    channels = _layout_size(data, a.data_layout, "Cc") // int(a.groups)
    return out.numel * channels * _layout_size(weight, a.kernel_layout, "DHW")


def _macs(call: Call) -> int:
    """Multiplications of one call: the size of the result times the number of products in each sum."""
    if not isinstance(call.op, Op) or not (call.op.is_contraction or call.op.name == _WINOGRAD):
        return 0
    tensors = [ty for node in (*call.args[:2], call) if isinstance(ty := node.checked_type, TensorType)]
    if len(tensors) < 3:
        raise AotcError("untyped", f"{call.op.name} has no type yet", span=call.span, hint="run InferType first")
    data, weight, out = tensors
    if call.op.name == _WINOGRAD:  # as many as the convolution that is meant would need
        return out.numel * data.static_shape[1] * 9
    if call.op.name.startswith("nn.conv"):
        return _conv_macs(call.attrs, data, weight, out)
    transposed = getattr(call.attrs, "transpose_a", False)
    return out.numel * data.static_shape[-2 if transposed else -1]


_WINOGRAD = "nn.contrib_conv2d_winograd_without_weight_transform"


def get_total_mac_number(expr: Expr) -> int:
    """Multiply-accumulate operations of the convolutions and matrix products of a typed expression.

    A transposed convolution counts as Relay counts it: the products for each output element, those with the
    zeros between the inputs too.  Raises AotcError where a type is missing.
    """
    return sum(_macs(node) for node in post_order(expr) if isinstance(node, Call))


def count_layers(expr: Expr, valid_ops: Collection[str]) -> int:
    """The most calls of the operators `valid_ops` on one path through `expr`."""
    values: dict[Expr, Expr] = {n.var: n.value for n in post_order(expr) if isinstance(n, Let)}
    depth: dict[Expr, int] = {}

    def known(node: Expr) -> int:
        while node in values:
            node = values[node]
        return depth.get(node, 0)  # a recursive function counts once

    for node in post_order(expr):
        below = (node.body,) if isinstance(node, Let) else children(node)
        own = isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in valid_ops
        depth[node] = own + max(map(known, below), default=0)
    return known(expr)


def extract_fused_functions(module: Mapping[str, Function]) -> dict[str, Function]:
    """The primitive functions of a module after FuseOps, structurally equal ones once, by their hash in hex."""
    nodes = (n for function in module.values() for n in post_order(function))
    fused = (n for n in nodes if isinstance(n, Function) and n.is_primitive)
    return {f"{structural_hash(f):016x}": f for f in fused}
