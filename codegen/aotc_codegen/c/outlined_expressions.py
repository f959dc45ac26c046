# SPDX-License-Identifier: Apache-2.0
"""Outline vector expressions that a kernel repeats with different operands into inline functions,
to shorten the text.

    y[0] = max(acc0 + b[0], 0); y[8] = max(acc1 + b[8], 0); ...
=>
    static inline ... aotc_step_1f3a90(a, b) { return max(a + b, 0); }
    y[0] = aotc_step_1f3a90(acc0, b[0]); y[8] = aotc_step_1f3a90(acc1, b[8]); ...

outline = Outline(kernel.body)
outline.printed(scope, store.value)        # a call, or None to print the expression in place
outline.define(scope)                      # adds the called functions to the helpers' definitions
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import INDEX, Assign, Const, Declare, Expr, Load, Stmt, Store, Var, operands, walk_stmts, with_operands
from aotc.tir.functions.function_definition import Function
from aotc_codegen.c.elementary_functions import text_of
from aotc_codegen.c.expressions import value
from aotc_codegen.c.printing_scope import Scope

#: Smallest number of operations of an expression, and of its occurrences, for which it is outlined.
LEAST_OPERATIONS: Final = 4
LEAST_REPEATS: Final = 3
#: Largest number of parameters; with more, a call is no shorter than the expression.
MOST_PARAMETERS: Final = 8


@frozen(eq=False)
class Shape:
    """Expression in which loads and variables are replaced by parameters.

    key         equal for expressions that one function can compute
    arguments   the replaced loads and variables, in the order of the parameters
    """

    key: str
    body: Expr
    params: tuple[Var, ...]
    arguments: tuple[Expr, ...]


class Outline:
    """Vector expressions that occur several times in a statement, and the functions that compute
    them.
    """

    def __init__(self, body: Stmt) -> None:
        self._shapes: dict[int, Shape | None] = {}
        self._kept = [s for s in walk_stmts(body) if isinstance(s, (Assign, Declare, Store))]
        self._counts = Counter(shape.key for shape in self._all() if shape is not None)
        self._called: dict[str, Function] = {}

    def _all(self) -> Iterator[Shape | None]:
        for stmt in self._kept:
            yield self._shapes.setdefault(id(stmt.value), shape_of(stmt.value))

    def printed(self, scope: Scope, expr: Expr) -> str | None:
        """Return the call of an outlined function that computes an expression; None if it is to be
        printed in place.
        """
        shape = self._shapes.get(id(expr))
        if shape is None or self._counts[shape.key] < LEAST_REPEATS or scope.dialect.vectors is None:
            return None
        if shape.key not in self._called:
            mark = hashlib.sha256(shape.key.encode()).hexdigest()[:8]
            self._called[shape.key] = Function(f"aotc_step_{mark}", shape.params, (), shape.body)
        arguments = ", ".join(value(scope, argument) for argument in shape.arguments)
        return f"{self._called[shape.key].name}({arguments})"

    def define(self, scope: Scope) -> None:
        """Add the definitions of the called functions to the helpers, with an attribute that forces
        inlining.
        """
        for function in self._called.values():
            text = text_of(scope, function.name, function)
            scope.helpers.definitions[function.name] = f"__attribute__((__always_inline__)) {text}"


def shape_of(expr: Expr) -> Shape | None:
    """Return the shape of a vector expression; None for short ones and for dtypes that are printed
    in several ways.
    """
    if expr.lanes == 1:
        return None
    found: dict[Expr, Var] = {}
    operations = 0

    def shaped(node: Expr) -> Expr:
        nonlocal operations
        if isinstance(node, Const):
            return node
        if isinstance(node, (Load, Var)):
            return found.setdefault(node, Var(f"a{len(found)}", node.dtype, node.lanes))
        operations += 1
        return with_operands(node, tuple(map(shaped, operands(node))))

    body = shaped(expr)
    few = operations < LEAST_OPERATIONS or len(found) > MOST_PARAMETERS
    if few or any(map(_is_special, (expr.dtype, *(node.dtype for node in found)))):
        return None
    params = tuple(found.values())
    return Shape(f"{params}: {body!r}", body, params, tuple(found))


def _is_special(dtype: DType) -> bool:
    """Return True if the printed form of a dtype's values depends on the context."""
    return dtype.is_bool or dtype.is_narrow_float or dtype == INDEX
