# SPDX-License-Identifier: Apache-2.0
"""EliminateCommonSubexpr shares equal expressions; CanonicalizeCast duplicates shared casts.

EliminateCommonSubexpr: compute equal expressions once.

%0 = nn.relu(%x); %1 = nn.relu(%x); add(%0, %1)
%0 = nn.relu(%x); add(%0, %0)

CanonicalizeCast: give each elementwise user its own copy of a widening cast, so that the cast fuses
into every user.

%0 = cast(%x, dtype="int32");  add(%0, %a);  multiply(%0, %b)
=>  add(cast(%x, dtype="int32"), %a);  multiply(cast(%x, dtype="int32"), %b)

The tensor stored between kernels is then the narrow one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aotc.ir import Op, OpPattern
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, require_op_of_call, tensor_type_of
from aotc.relay.transform.pass_base import FunctionPass, as_op_call, rewrite_nodes
from aotc.relay.visitor import children, map_children, with_children


def _key_equal_for_shareable_nodes(node: Expr) -> Any:
    """Return a key that is equal for nodes that can be shared, or None for a node that must not be."""
    match node:
        case Call(op=Op(name=name)):
            # compare attributes as text: equal numbers of different types, or zeros of different
            # signs, differ
            return ("call", name, repr(node.attrs), *node.args)
        case TupleGetItem():
            return ("field", node.tuple_value, node.index)
        case Tuple():
            return ("tuple", *node.fields)
        case Constant() if node.data.ndim == 0:
            return ("scalar", node.checked_type, node.data.tobytes())
        case _:
            return None


@dataclass(frozen=True, repr=False)
class EliminateCommonSubexpr(FunctionPass):
    """Pass that shares calls with equal operators, attributes and arguments.

    Scalars are compared by value, larger constants by identity: equal parameters stay separate
    parameters.

    fskip    predicate of the calls that are not shared; None for no exceptions
    """

    fskip: Callable[[Expr], bool] | None = None

    opt_level = 3

    def rewrite_function_body(self, function: Function) -> Function:
        first: dict[Any, Expr] = {}

        def share_equal_node(_: Expr, new: Expr) -> Expr:
            key = _key_equal_for_shareable_nodes(new)
            skipped = key is None or (self.fskip is not None and self.fskip(new))
            return new if skipped else first.setdefault(key, new)

        return rewrite_nodes(function, share_equal_node)


# --- casts


class CanonicalizeCast(FunctionPass):
    """Pass that copies widening casts shared by several elementwise or broadcasting operators; the
    first keeps the original.

    EliminateCommonSubexpr would share the copies again, so run it before this pass.
    """

    opt_level = 3

    def rewrite_function_body(self, function: Function) -> Function:
        used_casts: set[Expr] = set()  # casts that an earlier operator uses

        def copy_shared_casts(_: Expr, new: Expr) -> Expr:
            call = as_op_call(new)
            if call is None or require_op_of_call(call).pattern > OpPattern.BROADCAST:
                return new
            casts = {arg for arg in call.args if _is_widening_cast(arg)}
            copies = {arg: with_children(arg, children(arg)) for arg in casts & used_casts}
            used_casts.update(casts)
            return map_children(call, lambda child: copies.get(child, child))

        return rewrite_nodes(function, copy_shared_casts)


def _is_widening_cast(expr: Expr) -> bool:
    call = as_op_call(expr, "cast")
    return call is not None and tensor_type_of(call.args[0]).dtype.bits < tensor_type_of(call).dtype.bits
