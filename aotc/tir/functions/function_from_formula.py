# SPDX-License-Identifier: Apache-2.0
"""Turn formulas (Python functions on expressions) into straight-line tensor-IR functions.

Subexpressions that are used several times are stored in registers:

    double = function_from_formula("double", DType("float32"), lambda x: (x + 1.0) * (x + 1.0))
    double.body             # (let t: float32 = x + 1.0,)
    double.result           # t * t
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import Const, Declare, Expr, Var, operands, with_operands

#: Largest nesting depth of operations within one statement.
MAX_OPERATION_NESTING: Final = 3


@frozen(eq=False)
class ElementaryFunction:
    """Straight-line function: the register declarations in `body` are executed, then `result` is
    computed.
    """

    name: str
    params: tuple[Var, ...]
    body: tuple[Declare, ...]
    result: Expr


def function_from_formula(name: str, dtype: DType, formula: Callable[..., Expr]) -> ElementaryFunction:
    """Return the function of a formula; its parameters have the given dtype and the names of the
    formula's parameters.
    """
    params = tuple(Var(param, dtype) for param in inspect.signature(formula).parameters)
    result = formula(*params)
    order, uses = _postorder_and_use_counts(result)
    body: list[Declare] = []
    value_and_depth: dict[int, tuple[Expr, int]] = {}
    for node in order:
        inner = [value_and_depth[id(o)] for o in operands(node)]
        value = with_operands(node, tuple(e for e, _ in inner))
        depth = 1 + max((d for _, d in inner), default=-1)
        leaf = isinstance(node, (Var, Const))
        if node is not result and not leaf and (uses[id(node)] > 1 or depth > MAX_OPERATION_NESTING):
            register = Var("t", value.dtype)
            body.append(Declare(register, value))
            value, depth = register, 0
        value_and_depth[id(node)] = value, 0 if leaf else depth
    return ElementaryFunction(name, params, tuple(body), value_and_depth[id(result)][0])


def _postorder_and_use_counts(result: Expr) -> tuple[list[Expr], Counter[int]]:
    """Return each node of an expression once, operands before users, and the number of uses of each
    node.
    """
    order: list[Expr] = []
    uses: Counter[int] = Counter()
    visited_ids: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(result, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in visited_ids:
            visited_ids.add(id(node))
            stack.append((node, True))
            uses.update(map(id, operands(node)))
            stack.extend((o, False) for o in reversed(operands(node)))
    return order, uses
