# SPDX-License-Identifier: Apache-2.0
"""Relay's helpers that build expressions, and its functions by operator name.

x = var("x", shape=(1, 3))
op_functions()["add"](x, const(1.0))
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from types import MappingProxyType, ModuleType

import numpy as np

from aotc.driver.wiring import install
from aotc.ir.diagnostics import AotcError
from aotc.ir.dims import SymDim
from aotc.ir.dtype import DType
from aotc.ir.ndarray import NDArray
from aotc.ir.span import Span
from aotc.ir.types import TensorType, Type
from aotc.relay import op as operators
from aotc.relay.expr import Call, Constant, If, Let, TupleGetItem, Var
from aotc.relay.module import IRModule
from aotc.relay.op.opdef import OpDef
from aotc.relay.op.signature import function_of
from aotc.relay.text.parser import parse

install()

_NODES: typing.Final = (Call, Constant, If, Let, TupleGetItem, Var)
"""What a tensor may be given as."""


def var(
    name_hint: str,
    type_annotation: Type | str | None = None,
    shape: Sequence[typing.Any] | None = None,
    dtype: str = "float32",
    span: Span | None = None,
) -> Var:
    """A variable: of a type (a dtype's name is a scalar), of a shape and dtype, or of a type to be inferred.

    Raises AotcError if both a type and a shape are given.
    """
    if type_annotation is not None and shape is not None:
        raise AotcError("var", f"variable {name_hint!r}: give a type or a shape, not both")
    if isinstance(type_annotation, str):
        return Var(name_hint, TensorType((), type_annotation), span)
    return Var(name_hint, TensorType(shape, dtype) if shape is not None else type_annotation, span)


def const(value: typing.Any, dtype: str | None = None, span: Span | None = None) -> Constant:
    """A constant.  Python's numbers, and lists of them, are int32, float32 or bool; arrays keep their dtype.

    dtype   the dtype wanted instead

    Raises AotcError where a value does not fit the dtype.
    """
    array = np.asarray(value)
    wanted = DType(dtype).numpy if dtype is not None else array.dtype
    if dtype is None and not isinstance(value, (np.ndarray, np.generic, NDArray)):
        wanted = np.dtype({"i": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    DType.of(array)
    with np.errstate(all="ignore"):
        result = array.astype(wanted)
    exact = array.dtype.kind in "iub" and np.issubdtype(wanted, np.integer)
    if exact and not np.array_equal(result, array):
        raise AotcError("const", f"{value!r} does not fit {DType.of(result)}", hint="give a wider dtype")
    return Constant(result, span)


def Any() -> SymDim:
    """A dimension that is not known, different from every other one."""
    return SymDim()


def scalar_type(dtype: str) -> TensorType:
    """The type of one value."""
    return TensorType((), dtype)


def fromtext(text: str, source_name: str = "from_string") -> IRModule:
    """The module that Relay text describes; see `aotc.relay.text.parser.parse`."""
    return parse(text, source_name)


@cache
def op_functions() -> Mapping[str, Callable[..., typing.Any]]:
    """The functions that build calls of operators, by the operator's name ("add", "nn.conv2d")."""
    families = [m for m in vars(operators).values() if isinstance(m, ModuleType) and hasattr(m, "OPS")]
    named = {op.name: vars(m).get(op.name.rpartition(".")[2]) for m in families for op in m.OPS}
    built = {name: function_of(f) if isinstance(f, OpDef) else f for name, f in named.items()}
    found = {name: function for name, function in built.items() if callable(function)}
    dynamic = {name.removeprefix("dyn."): function for name, function in found.items() if name.startswith("dyn.")}
    return MappingProxyType(found | {name: _either(found[name], function) for name, function in dynamic.items()})


def _either(static: Callable[..., Call], dynamic: Callable[..., Call]) -> Callable[..., Call]:
    """`static`, or `dynamic` where an argument that is a shape is an expression, unless that is constant.

    Raises AotcError for arguments that the dynamic operator does not have.
    """
    signature, wanted = inspect.signature(static), inspect.signature(dynamic).parameters
    shapes = [p for p in wanted if "Expr" in str(wanted[p].annotation) and not _takes_expr(signature, p)]

    @wraps(static)
    def build(*args: typing.Any, **kwargs: typing.Any) -> Call:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return static(*args, **kwargs)  # which says it with the function's name
        if not any(isinstance(given.get(p), _NODES) for p in shapes):
            return static(*args, **kwargs)
        for name in given:
            if name not in wanted:
                raise AotcError("dynamic-shape", f"{static.__name__}: `{name}` is not for shapes that are expressions")
        result = dynamic(**{k: _vector(k, v) if k in shapes else v for k, v in given.items()})
        assert isinstance(result.op, OpDef) and result.op.static is not None
        known = result.op.static(result.attrs, result.args)
        return known if isinstance(known, Call) else result

    return build


def _takes_expr(signature: inspect.Signature, parameter: str) -> bool:
    return "Expr" in str(signature.parameters[parameter].annotation)


def _vector(name: str, value: typing.Any) -> typing.Any:
    """A shape, or a part of one, as an expression."""
    real = name in ("roi", "scale_h", "scale_w")
    return value if isinstance(value, _NODES) else Constant(np.asarray(value, np.float32 if real else np.int64))


def op_namespace(prefix: str) -> Mapping[str, Callable[..., typing.Any]]:
    """The functions of the operators called PREFIX.name, by that name; those without a prefix for ""."""
    split = ((name.rpartition("."), function) for name, function in op_functions().items())
    return {last: function for (first, _, last), function in split if first == prefix}
