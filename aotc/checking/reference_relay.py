# SPDX-License-Identifier: Apache-2.0
"""A graph module by its definition: the numpy interpreter on a module, and on that module in double precision.

reference = relay_reference(module, ["output"])
reference.run({"x": array})["output"]; reference.exact({"x": array})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotc.checking.inputs import Arrays
from aotc.checking.reference import Reference
from aotc.ir.attrs import Attrs
from aotc.ir.dtype import DType
from aotc.ir.types import FuncType, TensorType, TupleType, Type
from aotc.relay.expr import Call, Constant, Expr, Function, Var
from aotc.relay.infer import reinfer_module
from aotc.relay.interp import evaluate
from aotc.relay.module import IRModule
from aotc.relay.visitor import Mutator


def relay_reference(module: IRModule, names: Sequence[str]) -> Reference:
    """The interpreter on @main; `names` are those of the outputs, in order."""

    def run(inputs: Arrays) -> Arrays:
        return _evaluated(module, names, inputs)

    def exact(inputs: Arrays) -> Arrays | None:
        wide = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in inputs.items()}
        try:
            return _evaluated(in_double(module), names, wide)
        except Exception:  # whatever it raises: there is no exact result then
            return None

    return Reference("the numpy interpreter", run, exact)


def _evaluated(module: IRModule, names: Sequence[str], inputs: Arrays) -> Arrays:
    with np.errstate(all="ignore"):
        return dict(zip(names, _flat(evaluate(module, params=inputs)), strict=True))


def _flat(value: Any) -> list[np.ndarray[Any, Any]]:
    return [a for item in value for a in _flat(item)] if isinstance(value, tuple) else [np.asarray(value)]


def in_double(module: IRModule) -> IRModule:
    """`module` with every float32 turned into float64; AotcError where that has no types."""
    widen = _Widen()
    wide = {name: widen.visit_function(function) for name, function in module.functions.items()}
    return reinfer_module(module.with_functions(wide))


def _wide_type(ty: Type | None) -> Type | None:
    match ty:
        case TensorType(dtype="float32"):
            return TensorType(ty.shape, "float64")
        case TupleType():
            return TupleType(t for f in ty.fields if (t := _wide_type(f)) is not None)
        case FuncType():
            result = _wide_type(ty.ret_type)
            assert result is not None
            return FuncType([t for a in ty.arg_types if (t := _wide_type(a)) is not None], result)
        case _:
            return ty


def _wide_attrs(attributes: Attrs) -> Attrs:
    return attributes.replace(**{name: type(v)("float64") for name, v in attributes.items() if v == "float32"})


class _Widen(Mutator):
    """Variables, constants and attributes in double precision; the types between them are inferred later."""

    def rewrite_var(self, new: Var) -> Expr:
        return Var(new.name, _wide_type(new.annotation), new.span)

    def rewrite_constant(self, new: Constant) -> Expr:
        return Constant(new.data.astype(np.float64), new.span) if DType.of(new.data) == "float32" else new

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        return Call(new.op, new.args, _wide_attrs(new.attrs), new.span)

    def rewrite_function(self, old: Expr, new: Function) -> Expr:
        return Function(new.params, new.body, _wide_type(new.ret_type), new.attrs, new.span)
