# SPDX-License-Identifier: Apache-2.0
"""FuseAttention: fuse attention (two matrix products with a softmax between them) into one kernel.

%0 = nn.batch_matmul(%q, %k);              %0 = fn (%p0, %p1, %p2, %p3, Primitive=1) {
%1 = add(%0 * 0.125f, %mask);       =>       ... the same operators ... };
%2 = nn.softmax(%1);                       %0(%q, %k, %mask, %v)
nn.batch_matmul(%2, %v)

Input: typed functions. Output: functions in which the operators of each attention are grouped in a
primitive function. The scheduler computes it in strips of rows, so the whole score matrix is never
stored. Operators that only move elements of q, k and v become part of the function. Products of one row
with state, or with sizes that are known at run time only, move such elements themselves, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aotc.ir import Op, OpPattern, PassContext, are_bounded, frozen, product_of_dims, same_dim, typical_size
from aotc.relay.graph_api import (
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    Tuple,
    map_children,
    output_names_or_default,
    post_order,
    require_op_of_call,
    tensor_type_of,
    users,
)
from aotc.relay.op.softmax import SoftmaxAttrs
from aotc.relay.state_pair import STATE_PAIRS_ATTRIBUTE
from aotc.relay.transform import pass_base
from aotc.relay.transform.fuse_ops import FusedSignature, call_new_primitive_function
from aotc.relay.transform.pass_base import FunctionPass, GraphMutator, WhyNot, as_op_call, uniform_value_of_constant
from aotc.relay.transform.single_row_products import fuse_products_of_one_row

RULE: Final = "batch_matmul(softmax(f(batch_matmul(q, k))), v) => one kernel"
#: Largest number of operators between the products, and before each operand.
MAX_CHAIN_OPERATORS: Final = 32
#: Fewest rows of scores: the products of fewer rows do not copy their operands to panels, which strips share.
_MIN_SCORE_ROWS: Final = 16
_PRODUCT: Final = "nn.batch_matmul"
_SOFTMAX: Final = ("nn.softmax", "nn.fast_softmax")


class FuseAttention(FunctionPass):
    """Pass that fuses float32 attention into one kernel, if it has enough rows to make packing of
    the keys worthwhile.
    """

    opt_level = 3

    def transform(self, function: Function, module: IRModule, ctx: PassContext) -> Function:
        finder = _Finder(users(function))
        regions: dict[Expr, list[Call]] = {}
        for node in post_order(function, pass_base.is_not_primitive_function):
            last = as_op_call(node, _PRODUCT)
            if last is not None:
                start = time.perf_counter()
                outcome = finder.attention_operators(last)
                pass_base.record_rule_outcome(
                    RULE, last if isinstance(outcome, list) else outcome, time.perf_counter() - start
                )
                if isinstance(outcome, list):
                    regions[outcome[0]] = outcome
        fused = _Fuse(regions).visit_function(function) if regions else function
        is_main = module.functions.get("main") is function
        return fuse_products_of_one_row(fused, _states_of_main(fused, module) if is_main else ())


def _states_of_main(function: Function, module: IRModule) -> set[Expr]:
    """Return the tensors of @main that the model keeps between runs: their old and their new contents."""
    pairs = module.attrs.get(STATE_PAIRS_ATTRIBUTE, ())
    outputs = list(function.body.fields) if isinstance(function.body, Tuple) else [function.body]
    names = output_names_or_default(module, len(outputs))
    pasts, presents = ({pair[k] for pair in pairs} for k in range(2))
    contents = {output for output, name in zip(outputs, names, strict=False) if name in presents}
    return contents | {param for param in function.params if param.name in pasts}


@frozen
class _Finder:
    """Finds the calls that can become one attention kernel."""

    users: dict[Expr, list[Expr]]

    def attention_operators(self, second_product: Call) -> list[Call] | WhyNot | None:
        """Return the operators of the attention whose second product is `second_product`, the one
        that computes the result first.

        WhyNot if the operators cannot be fused; None if there is no attention.
        """
        chain = self._chain_to_first_product(second_product)
        if chain is None:
            return None
        first = chain[-1]
        operands = (*first.args, second_product.args[1])
        moves = (n for arg in operands for n in self._producers_back_to_first_element_move(arg))
        members = [*self._following_reshapes_and_transposes(second_product), *chain, *moves]
        if not all(are_bounded(tensor_type_of(n).shape) for call in members for n in (call, *call.args)):
            return WhyNot("a dimension has no bound")
        if any(tensor_type_of(n).dtype != "float32" for n in (*first.args, *second_product.args, *chain)):
            return WhyNot("the data type is not float32")
        _, rows, columns = map(typical_size, tensor_type_of(first).shape)
        if rows < _MIN_SCORE_ROWS or columns < 2:
            return WhyNot("the scores have few rows or columns")
        return members

    def _single_use_call(self, expr: Expr) -> Call | None:
        """Return the call if `expr` is an operator call with exactly one user, else None."""
        call = as_op_call(expr)
        return call if call is not None and len(self.users[call]) == 1 else None

    def _single_use_operands(self, node: Call) -> list[Call]:
        return [call for call in map(self._single_use_call, node.args) if call is not None]

    def _following_reshapes_and_transposes(self, second_product: Call) -> list[Call]:
        """Return the reshapes and transposes that follow attention, last one first; the kernel
        stores their result directly.
        """
        chain: list[Call] = []
        node = second_product
        while len(self.users[node]) == 1 and len(chain) < MAX_CHAIN_OPERATORS:
            user = as_op_call(self.users[node][0], "reshape", "transpose")
            if user is None:
                break
            chain.append(user)
            node = user
        while chain and require_op_of_call(chain[-1]).name == "reshape":
            chain.pop()
        return chain[::-1]

    def _chain_to_first_product(self, second_product: Call) -> list[Call] | None:
        """Return the calls from attention's second matrix product back to the first, or None.

        Each must be used once, and exactly one must be a softmax of rows.
        """
        chain = [second_product]
        node = self._single_use_call(second_product.args[0])
        softmax = 0
        while node is not None and len(chain) < MAX_CHAIN_OPERATORS:
            chain.append(node)
            if require_op_of_call(node).name == _PRODUCT:
                return chain if softmax == 1 else None
            softmax += require_op_of_call(node).name in _SOFTMAX
            node = self._operand_toward_first_product(node)
        return None

    def _operand_toward_first_product(self, node: Call) -> Call | None:
        """Return the operand of a call that leads back to the first matrix product of attention, or
        None if it is not unique.
        """
        if isinstance(node.attrs, SoftmaxAttrs):
            last = node.attrs.axis in (-1, tensor_type_of(node).rank - 1)
            return self._single_use_call(node.args[0]) if last and require_op_of_call(node).name in _SOFTMAX else None
        if require_op_of_call(node).pattern > OpPattern.BROADCAST and require_op_of_call(node).name != "reshape":
            return None
        size = product_of_dims(tensor_type_of(node).shape)
        operands = self._single_use_operands(node)
        whole = [c for c in operands if size != 0 and same_dim(product_of_dims(tensor_type_of(c).shape), size)]
        ways = [c for c in whole if len(whole) == 1 or self._has_softmax_or_product_upstream(c)]
        return ways[0] if len(ways) == 1 else None

    def _has_softmax_or_product_upstream(self, start: Call) -> bool:
        """Return True if a softmax or matrix product is found a few operators upstream of `start`.

        Each operator on the way must have exactly one operand that is a call used only once.
        """
        node: Call | None = start
        for _ in range(MAX_CHAIN_OPERATORS):
            if node is None or require_op_of_call(node).name in (_PRODUCT, *_SOFTMAX):
                return node is not None
            below = self._single_use_operands(node)
            node = below[0] if len(below) == 1 else None
        return False

    def _producers_back_to_first_element_move(self, operand: Expr) -> Iterator[Call]:
        """Yield the operators that compute an operand, back to the earliest one that only moves
        elements.

        Packing the operand in the attention kernel evaluates them.
        """
        pending: list[Call] = []
        node = self._single_use_call(operand)
        while node is not None and len(pending) < MAX_CHAIN_OPERATORS:
            scaled = [a for a in node.args if uniform_value_of_constant(a) is None]
            moves = require_op_of_call(node).is_data_movement
            if not moves and (require_op_of_call(node).pattern > OpPattern.BROADCAST or len(scaled) != 1):
                return
            pending.append(node)
            if moves:
                yield from pending
                pending = []
            node = self._single_use_call(scaled[0])


@dataclass(eq=False)
class _Fuse(GraphMutator):
    """Mutator that moves regions, given by their last operators, into primitive functions."""

    regions: dict[Expr, list[Call]]

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if old not in self.regions:
            return new
        members = set(self.regions[old])
        signature = FusedSignature()
        inside: dict[Expr, Expr] = {}

        def operand_inside_fused_function(expr: Expr) -> Expr:
            if expr in inside or isinstance(expr, Op):
                return inside.get(expr, expr)
            if isinstance(expr, Constant) and uniform_value_of_constant(expr) is not None:
                return expr
            return signature.get_or_add_parameter_for_value(self.memo.get(expr, expr), expr)

        for node in post_order(old, lambda n: n in members):
            if node in members:
                inside[node] = map_children(node, operand_inside_fused_function)
                signature.members.append(node)
        return call_new_primitive_function(inside[old], old, signature)
