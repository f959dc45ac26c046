# SPDX-License-Identifier: Apache-2.0
"""Let products of one row read an operand where it lies, such as the caches of a decoder.

%0 = transpose(%k, axes=[1, 2, 0]);        %0 = fn (%p0, %p1, Primitive=1) {
nn.batch_matmul(%q, %0)              =>      %1 = transpose(%p1, axes=[1, 2, 0]);
                                             %2 = sum(multiply(%p0, transpose(%1, axes=[0, 2, 1])), axis=[2]);
                                             expand_dims(%2, axis=1) };
                                           %0(%q, %k)

Input: a typed function. Output: the function with each float32 product whose left operand has one row, and
whose right operand has a size that is known at run time only or is state, as one primitive function with the
operators that only move elements of the right operand. Such a product reads each of these elements
once, so that moving them first would cost as much as the product.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from aotc.ir import Op
from aotc.relay.graph_api import Call, Constant, Expr, Function, map_children, post_order, tensor_type_of, users
from aotc.relay.op.binary_elementwise import multiply
from aotc.relay.op.dense import BatchMatmulAttrs
from aotc.relay.op.reduce import sum as sum_of_elements
from aotc.relay.op.shape import expand_dims, transpose
from aotc.relay.transform import pass_base
from aotc.relay.transform.fuse_ops import FusedSignature, call_new_primitive_function
from aotc.relay.transform.pass_base import GraphMutator, as_op_call

_PRODUCT: Final = "nn.batch_matmul"
_MOVING_OPERATORS: Final = ("transpose", "reshape", "expand_dims", "squeeze", "broadcast_to", "repeat")


def fuse_products_of_one_row(function: Function, states: Collection[Expr] = ()) -> Function:
    """Return a function with products of one row as primitive functions that move the elements of their
    right operand themselves; the function itself if there are none.

    states    tensors that the model keeps between runs: their old and their new contents
    """
    of_node = users(function)
    regions: dict[Expr, list[Call]] = {}
    for node in post_order(function, pass_base.is_not_primitive_function):
        product = as_op_call(node, _PRODUCT)
        if product is not None and _is_of_one_row(product):
            moves = _moves_of_operand(product.args[1], of_node)
            if moves and (not tensor_type_of(product.args[1]).is_static or moves[-1].args[0] in states):
                regions[product] = [product, *moves]
    return _Fuse(regions).visit_function(function) if regions else function


def _is_of_one_row(product: Call) -> bool:
    """Return True for a product of float32 whose left operand has one row."""
    attrs, types = product.attrs, [tensor_type_of(a) for a in product.args]
    assert isinstance(attrs, BatchMatmulAttrs)
    is_float32 = all(t.dtype == "float32" for t in (*types, tensor_type_of(product)))
    return is_float32 and not attrs.transpose_a and types[0].shape[1] == 1


def _moves_of_operand(operand: Expr, of_node: Mapping[Expr, list[Expr]]) -> list[Call]:
    """Return the operators, last one first, that only move elements of an operand, and whose results nothing
    else uses.
    """
    moves: list[Call] = []
    node = as_op_call(operand, *_MOVING_OPERATORS)
    while node is not None and len(of_node[node]) == 1:
        moves.append(node)
        node = as_op_call(node.args[0], *_MOVING_OPERATORS)
    return moves


def _sum_of_products(product: Call, left: Expr, right: Expr) -> Expr:
    """Return a product of (B, 1, K) with (B, K, N), or with (B, N, K) transposed, as a sum along one axis.

    The sum is along the axis that is contiguous in the right operand if its size is known.
    """
    assert isinstance(product.attrs, BatchMatmulAttrs)
    if isinstance(tensor_type_of(product.args[0]).shape[2], int):
        rows = right if product.attrs.transpose_b else transpose(right, (0, 2, 1))
        return expand_dims(sum_of_elements(multiply(left, rows), axis=(2,)), axis=1)
    columns = transpose(right, (0, 2, 1)) if product.attrs.transpose_b else right
    return expand_dims(sum_of_elements(multiply(transpose(left, (0, 2, 1)), columns), axis=(1,)), axis=1)


@dataclass(eq=False)
class _Fuse(GraphMutator):
    """Mutator that moves products, each with the operators that only move elements, into primitive functions."""

    regions: dict[Expr, list[Call]]

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old not in self.regions:
            return new
        members = set(self.regions[old])
        signature = FusedSignature()
        inside: dict[Expr, Expr] = {}

        def operand_inside_fused_function(expr: Expr) -> Expr:
            if expr in inside or isinstance(expr, (Op, Constant)):
                return inside.get(expr, expr)
            return signature.get_or_add_parameter_for_value(self.memo.get(expr, expr), expr)

        left = operand_inside_fused_function(old.args[0])
        for node in post_order(old, lambda n: n in members):
            if node in members and node is not old:
                inside[node] = map_children(node, operand_inside_fused_function)
            if node in members:
                signature.members.append(node)
        return call_new_primitive_function(_sum_of_products(old, left, inside[old.args[1]]), old, signature)
