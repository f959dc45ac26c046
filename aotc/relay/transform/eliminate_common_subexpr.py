# SPDX-License-Identifier: Apache-2.0
"""EliminateCommonSubexpr: compute equal expressions once.

%0 = nn.relu(%x); %1 = nn.relu(%x); add(%0, %1)
%0 = nn.relu(%x); add(%0, %0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aotc.ir import Op
from aotc.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from aotc.relay.transform.base import FunctionPass, GraphMutator


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
