# SPDX-License-Identifier: Apache-2.0
"""Outline vector expressions that a kernel repeats with different operands into inline functions,
to shorten the text.

    y[0] = max(acc0 + b[0], 0); y[8] = max(acc1 + b[8], 0); ...
=>
    static inline ... aotc_step_1f3a90(a, b) { return max(a + b, 0); }
    y[0] = aotc_step_1f3a90(acc0, b[0]); y[8] = aotc_step_1f3a90(acc1, b[8]); ...

outline = ExpressionOutliner(kernel.body)
outline.print_call_of_outlined_function(scope, store.value)  # a call, or None to print the expression in place
outline.define_called_outlined_functions(scope)  # adds the called functions to the helpers' definitions
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from aotc.ir import DType, frozen
from aotc.tir import INDEX, Assign, Const, Declare, Expr, Load, Stmt, Store, Var, operands, walk_stmts, with_operands
from aotc.tir.functions.function_from_formula import ElementaryFunction
from aotc_codegen.c.elementary_functions import print_c_function_and_define_callees
from aotc_codegen.c.expression_printer import print_value
from aotc_codegen.c.printing_scope import PrintingScope

#: Smallest number of operations of an expression, and of its occurrences, for which it is outlined.
MIN_OUTLINED_OPERATIONS: Final = 4
MIN_OUTLINED_REPEATS: Final = 3
#: Number of parameters up to which any expression with enough operations is outlined. An expression
#: with more parameters is outlined if it has at least as many operations as parameters: otherwise
#: the call is no shorter than the expression.
MAX_PARAMETERS_OF_SHORT_CALL: Final = 8


@frozen(eq=False)
class ParameterizedExpression:
    """Expression in which loads and variables are replaced by parameters.

    key         equal for expressions that one function can compute
    arguments   the replaced loads and variables, in the order of the parameters
    """

    key: str
    body: Expr
    params: tuple[Var, ...]
    arguments: tuple[Expr, ...]


class ExpressionOutliner:
    """Vector expressions that occur several times in a statement, and the functions that compute
    them.
    """

    def __init__(self, body: Stmt) -> None:
        self._shapes: dict[int, ParameterizedExpression | None] = {}
        self._statements_with_values = [s for s in walk_stmts(body) if isinstance(s, (Assign, Declare, Store))]
        self._counts = Counter(shape.key for shape in self._parameterized_values_of_kept_stmts() if shape is not None)
        self._called: dict[str, ElementaryFunction] = {}

    def _parameterized_values_of_kept_stmts(self) -> Iterator[ParameterizedExpression | None]:
        for stmt in self._statements_with_values:
            yield self._shapes.setdefault(id(stmt.value), parameterize_long_vector_expression(stmt.value))

    def print_call_of_outlined_function(self, scope: PrintingScope, expr: Expr) -> str | None:
        """Return the call of an outlined function that computes an expression; None if it is to be
        printed in place.
        """
        shape = self._shapes.get(id(expr))
        if shape is None or self._counts[shape.key] < MIN_OUTLINED_REPEATS or scope.dialect.vectors is None:
            return None
        if shape.key not in self._called:
            mark = hashlib.sha256(shape.key.encode()).hexdigest()[:8]
            self._called[shape.key] = ElementaryFunction(f"aotc_step_{mark}", shape.params, (), shape.body)
        arguments = ", ".join(print_value(scope, argument) for argument in shape.arguments)
        return f"{self._called[shape.key].name}({arguments})"

    def define_called_outlined_functions(self, scope: PrintingScope) -> None:
        """Add the definitions of the called functions to the helpers, with an attribute that forces
        inlining.
        """
        for function in self._called.values():
            text = print_c_function_and_define_callees(scope, function.name, function)
            scope.helpers.definitions[function.name] = f"__attribute__((__always_inline__)) {text}"


def parameterize_long_vector_expression(expr: Expr) -> ParameterizedExpression | None:
    """Return a vector expression with parameters for its loads and variables; None if a call would
    be no shorter than the expression, or if one of its dtypes has several C forms.
    """
    if expr.lanes == 1:
        return None
    param_of_leaf: dict[Expr, Var] = {}
    operations = 0

    def replace_leaves_by_parameters(node: Expr) -> Expr:
        nonlocal operations
        if isinstance(node, Const):
            return node
        if isinstance(node, (Load, Var)):
            return param_of_leaf.setdefault(node, Var(f"a{len(param_of_leaf)}", node.dtype, node.lanes))
        operations += 1
        return with_operands(node, tuple(map(replace_leaves_by_parameters, operands(node))))

    body = replace_leaves_by_parameters(expr)
    max_parameters = max(MAX_PARAMETERS_OF_SHORT_CALL, operations)
    is_short = operations < MIN_OUTLINED_OPERATIONS or len(param_of_leaf) > max_parameters
    if is_short or any(map(_has_several_c_forms, (expr.dtype, *(node.dtype for node in param_of_leaf)))):
        return None
    params = tuple(param_of_leaf.values())
    return ParameterizedExpression(f"{params}: {body!r}", body, params, tuple(param_of_leaf))


def _has_several_c_forms(dtype: DType) -> bool:
    """Return True if the C type of values of a dtype depends on the context of an expression: for
    bool, narrow floats and indices.
    """
    return dtype.is_bool or dtype.is_narrow_float or dtype == INDEX
