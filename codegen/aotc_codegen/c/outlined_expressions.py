# SPDX-License-Identifier: Apache-2.0
"""Expressions of vectors that a kernel repeats for other operands, as functions: less text for the same code.

    y[0] = max(acc0 + b[0], 0); y[8] = max(acc1 + b[8], 0); ...
=>
    static inline ... aotc_step_1f3a90(a, b) { return max(a + b, 0); }
    y[0] = aotc_step_1f3a90(acc0, b[0]); y[8] = aotc_step_1f3a90(acc1, b[8]); ...

outline = Outline(kernel.body)
outline.printed(scope, store.value)        # a call, or the expression as it stands
outline.define(scope)                      # the functions that were called, among those of the helpers
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

#: Operations of an expression that is worth a function, and how often it must be there.
LEAST_OPERATIONS: Final = 4
LEAST_REPEATS: Final = 3
#: Functions of more parameters are no shorter than what they stand for.
MOST_PARAMETERS: Final = 8


@frozen(eq=False)
class Shape:
    """An expression with parameters in the place of what it reads.

    key          tells shapes apart
    arguments    what it reads, in the order of the parameters
    """

    key: str
    body: Expr
    params: tuple[Var, ...]
    arguments: tuple[Expr, ...]


class Outline:
    """The expressions of vectors that a statement has several times."""

    def __init__(self, body: Stmt) -> None:
        self._shapes: dict[int, Shape | None] = {}
        self._kept = [s for s in walk_stmts(body) if isinstance(s, (Assign, Declare, Store))]
        self._counts = Counter(shape.key for shape in self._all() if shape is not None)
        self._called: dict[str, Function] = {}

    def _all(self) -> Iterator[Shape | None]:
        for stmt in self._kept:
            yield self._shapes.setdefault(id(stmt.value), shape_of(stmt.value))

    def printed(self, scope: Scope, expr: Expr) -> str | None:
        """The call of a function that computes an expression; None for one that is printed as it stands."""
        shape = self._shapes.get(id(expr))
        if shape is None or self._counts[shape.key] < LEAST_REPEATS or scope.dialect.vectors is None:
            return None
        if shape.key not in self._called:
            mark = hashlib.sha256(shape.key.encode()).hexdigest()[:8]
            self._called[shape.key] = Function(f"aotc_step_{mark}", shape.params, (), shape.body)
        arguments = ", ".join(value(scope, argument) for argument in shape.arguments)
        return f"{self._called[shape.key].name}({arguments})"

    def define(self, scope: Scope) -> None:
        """Add the definitions of the functions that were called; compilers must not call them."""
        for function in self._called.values():
            text = text_of(scope, function.name, function)
            scope.helpers.definitions[function.name] = f"__attribute__((__always_inline__)) {text}"


def shape_of(expr: Expr) -> Shape | None:
    """The shape of an expression of vectors; None for short ones, and where a value is spelled otherwise in places."""
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
    """Whether values of a type are printed in several ways."""
    return dtype.is_bool or dtype.is_narrow_float or dtype == INDEX
