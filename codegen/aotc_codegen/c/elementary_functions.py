# SPDX-License-Identifier: Apache-2.0
"""Print the elementary functions of `aotc.tir.functions` (exp, log, ...) as C functions of scalars
or vectors.

value(scope, call("exp", Load(x, i, 8)))      # "aotc_exp_f32x8(...)"
define_elementary_functions_used(scope)       # adds its definition to the helpers
"""

from __future__ import annotations

from typing import Final

from aotc.ir import DType
from aotc.tir import Block, Declare, Var, vectorize_stmt_or_none
from aotc.tir.functions.elementary_function_table import elementary_function_definition
from aotc.tir.functions.function_from_formula import ElementaryFunction
from aotc_codegen.c.c_identifiers import UniqueIdentifiers
from aotc_codegen.c.classify_int64_as_index_or_data import IndexVariables
from aotc_codegen.c.expression_printer import c_type_of_register_var, print_assigned_value, print_value
from aotc_codegen.c.float16_conversions import float16_conversion_definition
from aotc_codegen.c.printing_scope import PrintingScope

FLOAT16: Final = DType("float16")


def define_elementary_functions_used(scope: PrintingScope) -> None:
    """Add the definitions of the functions that are called in the expressions printed so far."""
    for name, dtype, lanes, fused in list(scope.functions):
        _define_function_once_and_return_c_name(scope, name, dtype, lanes, fused)


def _define_function_once_and_return_c_name(
    scope: PrintingScope, name: str, dtype: DType, lanes: int, fused: bool = False
) -> str:
    """Emit the C definition of an elementary function unless it is already defined; return its C
    name.
    """
    called = scope.record_function_and_return_c_name(name, dtype, lanes, fused)
    if called not in scope.helpers.definitions:
        function = elementary_function_definition(name, dtype, fused)
        assert function is not None
        text = print_c_function_and_define_callees(scope, called, _vectorize_function(function, lanes))
        if lanes > 1:
            text = scope.helpers.use_compiler_builtin_if_available(name, text, dtype, lanes)
        scope.helpers.definitions[called] = (
            _float16_conversion_text(scope, name, lanes, text) if dtype == FLOAT16 else text
        )
    return called


def _vectorize_function(function: ElementaryFunction, lanes: int) -> ElementaryFunction:
    if lanes == 1:
        return function
    params = tuple(Var(p.name, p.dtype, lanes) for p in function.params)
    result = Declare(Var("result", function.result.dtype), function.result)
    whole = Block((*function.body, result))
    vectors = vectorize_stmt_or_none(whole, Var("lane"), lanes, dict(zip(function.params, params, strict=True)))
    assert isinstance(vectors, Block), f"{function.name} has no vector form"
    *body, last = (stmt for stmt in vectors.stmts if isinstance(stmt, Declare))
    return ElementaryFunction(function.name, params, tuple(body), last.value)


def _float16_conversion_text(scope: PrintingScope, name: str, lanes: int, portable_definition: str) -> str:
    """Return the definition of a float16 conversion by instructions if the C compiler has them,
    else by `portable_definition`.
    """
    words = {"inline": scope.dialect.inline, "name": scope.record_function_and_return_c_name(name, FLOAT16, lanes)}
    if lanes > 1:
        words["bits"] = scope.record_vector_type_and_return_c_name(DType("uint16"), lanes)
        words["single"] = scope.record_vector_type_and_return_c_name(FLOAT16, lanes)
    if name == "round":
        words["to_single"] = _define_function_once_and_return_c_name(scope, "load", FLOAT16, lanes)
        words["to_bits"] = _define_function_once_and_return_c_name(scope, "store", FLOAT16, lanes)
    return float16_conversion_definition(name, lanes, portable_definition, scope.dialect.features, **words)


def print_c_function_and_define_callees(outer_scope: PrintingScope, c_name: str, function: ElementaryFunction) -> str:
    """Return the C definition of a function under the name `c_name`; define the functions that it
    calls first.
    """
    scope = PrintingScope(outer_scope.helpers, IndexVariables(), UniqueIdentifiers(outer_scope.dialect.reserved))
    parameters = ", ".join(f"{c_type_of_register_var(scope, p)} {scope.c_name(p)}" for p in function.params)
    lines = []
    for stmt in function.body:
        value = print_assigned_value(scope, stmt.var, stmt.value)
        lines.append(f"  const {c_type_of_register_var(scope, stmt.var)} {scope.c_name(stmt.var)} = {value};\n")
    result = print_value(scope, function.result)
    result_type = c_type_of_register_var(scope, Var("result", function.result.dtype, function.result.lanes))
    head = f"{outer_scope.dialect.inline} {result_type} {c_name}({parameters})"
    # the functions that it calls are defined first
    define_elementary_functions_used(scope)
    outer_scope.vectors.update(scope.vectors)
    return f"{head} {{\n{''.join(lines)}  return {result};\n}}\n"
