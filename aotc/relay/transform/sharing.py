# SPDX-License-Identifier: Apache-2.0
"""Sharing of equal expressions: EliminateCommonSubexpr makes it, CanonicalizeCast undoes it for casts.

EliminateCommonSubexpr: compute equal expressions once.

%0 = nn.relu(%x); %1 = nn.relu(%x); add(%0, %1)
%0 = nn.relu(%x); add(%0, %0)

CanonicalizeCast: a widening cast of its own for each elementwise user, so that it fuses into every one.

%0 = cast(%x, dtype="int32");  add(%0, %a);  multiply(%0, %b)
=>  add(cast(%x, dtype="int32"), %a);  multiply(cast(%x, dtype="int32"), %b)

In: typed functions.  Out: the same values; what is stored between kernels is the narrow tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aotc.ir import Op, OpPattern
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, tensor_type_of
from aotc.relay.transform.base import FunctionPass, GraphMutator, is_call


class _Share(GraphMutator):
    def __init__(self, skip: Callable[[Expr], bool] | None) -> None:
        super().__init__()
        self.skip = skip
        self.first: dict[Any, Expr] = {}

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        key = self._key(new)
        if key is None or (self.skip is not None and self.skip(new)):
            return new
        return self.first.setdefault(key, new)

    def _key(self, node: Expr) -> Any:
        match node:
            case Call() if isinstance(node.op, Op):
                # the attributes as text: equal numbers of different types, or zeros of different signs, differ
                return ("call", node.op.name, repr(node.attrs), *map(id, node.args))
            case TupleGetItem():
                return ("field", id(node.tuple_value), node.index)
            case Tuple():
                return ("tuple", *map(id, node.fields))
            case Constant() if node.data.ndim == 0:
                return ("scalar", node.checked_type, node.data.tobytes())
            case _:
                return None


@dataclass(frozen=True, repr=False)
class EliminateCommonSubexpr(FunctionPass):
    """Share calls with the same operator, attributes and arguments.  Scalars are compared by value, larger
    constants by identity: equal parameters stay separate parameters.

    fskip    calls for which it says True are left alone
    """

    fskip: Callable[[Expr], bool] | None = None

    opt_level = 3

    def rewritten(self, function: Function) -> Function:
        return _Share(self.fskip).visit_function(function)


# --- casts


class CanonicalizeCast(FunctionPass):
    """Copies widening casts that several elementwise or broadcasting operators share; the first keeps the cast.

    EliminateCommonSubexpr would share them again: it belongs before this pass.
    """

    opt_level = 3

    def rewritten(self, function: Function) -> Function:
        return _Copy().visit_function(function)


class _Copy(GraphMutator):
    def __init__(self) -> None:
        super().__init__()
        self.users: Counter[Expr] = Counter()

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if not isinstance(new.op, Op) or new.op.pattern > OpPattern.BROADCAST:
            return new
        copies: dict[Expr, Expr] = {}
        for was, arg in zip(old.args, new.args, strict=True):
            if was not in copies and _widens(was):
                self.users[was] += 1
                copies[was] = _copy(arg) if self.users[was] > 1 else arg
        args = tuple(copies.get(was, arg) for was, arg in zip(old.args, new.args, strict=True))
        return new if args == new.args else Call(new.op, args, new.attrs, new.span, new.checked_type)


def _widens(expr: Expr) -> bool:
    if not isinstance(expr, Call) or not is_call(expr, "cast"):
        return False
    return tensor_type_of(expr.args[0]).dtype.bits < tensor_type_of(expr).dtype.bits


def _copy(expr: Expr) -> Expr:
    assert isinstance(expr, Call)
    return Call(expr.op, expr.args, expr.attrs, expr.span, expr.checked_type)
