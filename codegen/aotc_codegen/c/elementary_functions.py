# SPDX-License-Identifier: Apache-2.0
"""Print the elementary functions of `aotc.tir.functions` (exp, log, ...) as C functions of scalars
or vectors.

value(scope, call("exp", Load(x, i, 8)))      # "aotc_exp_f32x8(...)"
define(scope)                                 # adds its definition to the helpers
"""

from __future__ import annotations

from typing import Final

from aotc.ir import DType
from aotc.tir import Block, Declare, Var, vectorized
from aotc.tir.functions.function_definition import Function
from aotc.tir.functions.function_table import definition
from aotc_codegen.c.c_identifiers import Names
from aotc_codegen.c.expressions import assigned, register_type, value
from aotc_codegen.c.float16_conversions import with_hardware
from aotc_codegen.c.index_arithmetic import Indices
from aotc_codegen.c.printing_scope import Scope

HALF: Final = DType("float16")


def define(scope: Scope) -> None:
    """Add the definitions of the functions that are called in the expressions printed so far."""
    for name, dtype, lanes, fused in list(scope.functions):
        _define(scope, name, dtype, lanes, fused)


def _define(scope: Scope, name: str, dtype: DType, lanes: int, fused: bool = False) -> str:
    """Emit the C definition of an elementary function unless it is already defined; return its C
    name.
    """
    called = scope.program(name, dtype, lanes, fused)
    if called not in scope.helpers.definitions:
        function = definition(name, dtype, fused)
        assert function is not None
        text = text_of(scope, called, _of_lanes(function, lanes))
        if lanes > 1:
            text = scope.helpers.instructed(name, text, dtype, lanes)
        scope.helpers.definitions[called] = _half(scope, name, lanes, text) if dtype == HALF else text
    return called


def _of_lanes(function: Function, lanes: int) -> Function:
    if lanes == 1:
        return function
    params = tuple(Var(p.name, p.dtype, lanes) for p in function.params)
    result = Declare(Var("result", function.result.dtype), function.result)
    whole = Block((*function.body, result))
    vectors = vectorized(whole, Var("lane"), lanes, dict(zip(function.params, params, strict=True)))
    assert isinstance(vectors, Block), f"{function.name} has no vector form"
    *body, last = (stmt for stmt in vectors.stmts if isinstance(stmt, Declare))
    return Function(function.name, params, tuple(body), last.value)


def _half(scope: Scope, name: str, lanes: int, program: str) -> str:
    """Return the definition of a float16 conversion by instructions if the C compiler has them,
    else by `program`.
    """
    words = {"inline": scope.dialect.inline, "name": scope.program(name, HALF, lanes)}
    if lanes > 1:
        words["bits"] = scope.vector(DType("uint16"), lanes)
        words["single"] = scope.vector(HALF, lanes)
    if name == "round":
        words["to_single"] = _define(scope, "load", HALF, lanes)
        words["to_bits"] = _define(scope, "store", HALF, lanes)
    return with_hardware(name, lanes, program, **words)


def text_of(outer: Scope, called: str, function: Function) -> str:
    """Return the C definition of a function under the name `called`; define the functions that it
    calls first.
    """
    scope = Scope(outer.helpers, Indices(), Names(outer.dialect.reserved))
    parameters = ", ".join(f"{register_type(scope, p)} {scope.name(p)}" for p in function.params)
    lines = []
    for stmt in function.body:
        made = assigned(scope, stmt.var, stmt.value)
        lines.append(f"  const {register_type(scope, stmt.var)} {scope.name(stmt.var)} = {made};\n")
    result = value(scope, function.result)
    result_type = register_type(scope, Var("result", function.result.dtype, function.result.lanes))
    head = f"{outer.dialect.inline} {result_type} {called}({parameters})"
    # the functions that it calls are defined first
    define(scope)
    outer.vectors.update(scope.vectors)
    return f"{head} {{\n{''.join(lines)}  return {result};\n}}\n"
