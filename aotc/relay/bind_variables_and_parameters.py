# SPDX-License-Identifier: Apache-2.0
"""Binding: replace variables by expressions, and named parameters of a function by constants.

bound = bind_params_by_name(mod["main"], {"weight": array})
bind(relay.add(x, y), {y: relay.const(1.0)})                # x + 1
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from aotc.ir import AotcError, AotcTypeError, Diagnostic, Op, TensorType, Type, did_you_mean_hint
from aotc.relay.analysis import bound_vars, free_vars
from aotc.relay.graph_api import Constant, Expr, Function, Node, Var, merge_types, substitute_variables


def bind_params_by_name(function: Function, params: Mapping[str, np.ndarray[Any, Any]]) -> Function:
    """Return `function` with the parameters named in `params` replaced by constants and removed.

    A value of another integer type is converted if the parameter's type holds it exactly.

    Raise AotcError with a diagnostic for every name that is unknown or ambiguous and every value
    whose shape or dtype differs from the parameter's.
    """
    by_name: dict[str, list[Var]] = {}
    for var in function.params:
        by_name.setdefault(var.name, []).append(var)
    problems: list[Diagnostic] = []
    mapping: dict[Var, Expr] = {}
    for name, value in params.items():
        candidates = by_name.get(name, [])
        if len(candidates) != 1:
            unknown_name_hint = did_you_mean_hint(name, by_name) or f"parameters: {', '.join(by_name)}"
            subject, hint = ("several parameters are", "") if candidates else ("no parameter is", unknown_name_hint)
            problems.append(Diagnostic("bind", f"{subject} called {name!r}", hint=hint))
            continue
        constant, mismatches = constant_for_param(candidates[0], value)
        problems += mismatches
        mapping[candidates[0]] = constant
    if problems:
        raise AotcError.collect(problems)
    rest = tuple(p for p in function.params if p not in mapping)
    if len(rest) == len(function.params):
        return function
    return replace(function, params=rest, body=substitute_variables(function.body, mapping))


def constant_for_param(param: Var, value: Any) -> tuple[Constant, list[Diagnostic]]:
    """Return a value of a function's parameter as a constant, and a diagnostic if its shape or dtype
    differs from the parameter's; integers are converted if the parameter's type holds them exactly.
    """
    constant = Constant(_convert_integers_if_exact(np.asarray(value), param.checked_type))
    return constant, _diagnose_type_mismatch(f"parameter {param.name!r}", param, constant)


def _convert_integers_if_exact(value: np.ndarray[Any, Any], ty: Type | None) -> np.ndarray[Any, Any]:
    """Return integers converted to a tensor type if it holds each of them exactly; other values
    unchanged.
    """
    if not isinstance(ty, TensorType) or ty.dtype.is_bool:
        return value
    if value.dtype.kind not in "iu":
        return value
    with np.errstate(all="ignore"):
        cast_value = value.astype(ty.dtype.numpy)
        # compare after the conversion back, and as floats: each detects wrapping that the other
        # misses
        same = cast_value.astype(value.dtype) == value
        floats = cast_value.astype(np.float64), value.astype(np.float64)
        same &= np.equal(*floats)
    return cast_value if same.all() else value


def bind(expr: Expr, binds: Mapping[Var, Expr]) -> Expr:
    """Return `expr` with variables replaced simultaneously: free ones, and the parameters of `expr`
    if it is a function.

    A bound parameter is removed, unless it is bound to another variable, which takes its position.
    Free variables that the values introduce into a function become its last parameters. Variables
    that do not occur in `expr` are ignored.

    Nodes keep their types, as in every rewrite; InferType finds more precise ones.

    Raise AotcTypeError for keys that are not variables and values that are not expressions, and
    AotcError with a diagnostic for every variable that is bound inside `expr` and every value whose
    type does not fit the variable.
    """
    body = expr.body if isinstance(expr, Function) else expr
    _check_bindings(body, binds)
    new = substitute_variables(body, dict(binds))
    if not isinstance(expr, Function):
        return new
    replacements = [binds.get(p, p) for p in expr.params]
    params = dict.fromkeys(p for p in replacements if isinstance(p, Var))
    if new is body and tuple(params) == expr.params:
        return expr
    outer = set(free_vars(expr))
    extra_params = [v for v in free_vars(Function(tuple(params), new)) if v not in outer]
    return replace(expr, params=(*params, *extra_params), body=new)


def _diagnose_type_mismatch(description: str, var: Var, value: Expr) -> list[Diagnostic]:
    """Return a diagnostic if a variable and a value have known types that cannot be merged."""
    var_type, value_type = var.checked_type, value.checked_type
    wrong = var_type is not None and value_type is not None and merge_types(var_type, value_type) is None
    return [Diagnostic("bind", f"{description} is {var_type}, the value is {value_type}", var.span)] if wrong else []


def _check_bindings(body: Expr, binds: Mapping[Var, Expr]) -> None:
    """Raise AotcTypeError or AotcError if variables of expression `body` cannot be replaced by the
    given values.
    """
    for var, value in binds.items():
        if not isinstance(var, Var):
            hint = "bind_params_by_name takes names" if isinstance(var, str) else ""
            raise AotcTypeError("bind", f"a variable is bound, not {var!r}", hint=hint)
        if not isinstance(value, (Node, Op)):
            text = f"%{var.name} is bound to an expression, not to {type(value).__name__}"
            raise AotcTypeError("bind", text, hint="relay.const makes one of a number or an array")
    inner = set(bound_vars(body)) & binds.keys()
    problems = []
    for var in (v for v in binds if v in inner):
        problems.append(Diagnostic("bind", f"%{var.name} is bound inside the expression", var.span))
    problems += [d for v, e in binds.items() for d in _diagnose_type_mismatch(f"%{v.name}", v, e)]
    if problems:
        raise AotcError.collect(problems)
