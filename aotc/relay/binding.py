# SPDX-License-Identifier: Apache-2.0
"""Binding of parameters: named inputs of a function become constants.

bound = bind_params_by_name(mod["main"], {"weight": array})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aotc.ir.diagnostics import AotcError, Diagnostic, nearest
from aotc.ir.types import TensorType
from aotc.relay.expr import Constant, Expr, Function, Var
from aotc.relay.visitor import substitute


def bind_params_by_name(function: Function, params: Mapping[str, np.ndarray[Any, Any]]) -> Function:
    """`function` without the parameters named in `params`, their values baked in.

    Raises AotcError listing every name that is unknown or ambiguous and every value whose shape or dtype
    is not that of the parameter.
    """
    by_name: dict[str, list[Var]] = {}
    for var in function.params:
        by_name.setdefault(var.name, []).append(var)
    problems: list[Diagnostic] = []
    mapping: dict[Var, Expr] = {}
    for name, value in params.items():
        found = by_name.get(name, [])
        constant = Constant(np.asarray(value))
        if len(found) != 1:
            what, hint = ("several parameters are", "") if found else ("no parameter is", nearest(name, by_name))
            problems.append(Diagnostic("bind", f"{what} called {name!r}", hint=hint))
        elif (problem := _mismatch(found[0], constant)) is not None:
            problems.append(problem)
        else:
            mapping[found[0]] = constant
    if problems:
        raise AotcError.collect(problems)
    rest = tuple(p for p in function.params if p not in mapping)
    if len(rest) == len(function.params):
        return function
    body = substitute(function.body, mapping)
    return Function(rest, body, function.ret_type, function.attrs, function.span)


def _mismatch(var: Var, value: Constant) -> Diagnostic | None:
    declared, given = var.checked_type, value.checked_type
    if declared is None or not isinstance(declared, TensorType) or not isinstance(given, TensorType):
        return None
    fits = len(declared.shape) == len(given.shape) and all(
        not isinstance(d, int) or d == g for d, g in zip(declared.shape, given.shape, strict=True)
    )
    if fits and declared.dtype == given.dtype:
        return None
    return Diagnostic("bind", f"parameter {var.name!r} is {declared}, the value is {given}", var.span)
