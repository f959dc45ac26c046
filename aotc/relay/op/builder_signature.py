# SPDX-License-Identifier: Apache-2.0
"""Derive the Python function that builds calls of an operator from the operator's arguments and
attributes.

    call = build_operator_call(SOFTMAX, (x,), {"axis": 1})  # equals SOFTMAX(x, axis=1) and relay.nn.softmax(x, axis=1)
    builder_signature_of(SOFTMAX)                  # (data: 'Expr', axis: 'int' = -1) -> 'Call'

The parameter of an attribute accepts values of the attribute's type and some conversions: one
number for a tuple, None for the default. Exceptions of single operators are declared at the
attribute's field (`aotc.ir.attrs.attribute_field`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from operator import index
from typing import Any, Final

import numpy as np

from aotc.ir import REQUIRED, AotcError, AotcTypeError, Dim, Op, Param, SymDim, Takes, did_you_mean_hint, frozen
from aotc.relay.graph_api import Call, const, infer_expr, require_expression, typed_op_call


def to_int_tuple(value: Any, _: Any = None) -> tuple[int, ...]:
    """Convert one integer or a sequence of integers to a tuple of ints."""
    try:
        return (index(value),)
    except TypeError:
        return tuple(map(index, value))


def number_to_constant_converter(dtype_from_arguments: Callable[[Mapping[str, Any]], Any]) -> Takes:
    """Return a converter that turns a number into a constant of type `dtype_from_arguments(all
    parameters)`; expressions are unchanged.
    """

    def convert_number_to_constant(value: Any, arguments: Mapping[str, Any]) -> Any:
        if not isinstance(value, (int, float)):
            return value
        return const(value, str(dtype_from_arguments(arguments)))

    return convert_number_to_constant


def number_converter_with_dtype_of(parameter: str) -> Takes:
    """Return a converter that turns a number into a constant with the dtype of the parameter called
    `parameter`.

    The type of that tensor is inferred if it is not known yet.
    """

    def dtype_of_parameter(arguments: Mapping[str, Any]) -> str:
        data = require_expression(arguments[parameter])
        return getattr(data.checked_type or infer_expr(data).checked_type, "dtype", "float32")

    return number_to_constant_converter(dtype_of_parameter)


def _to_int_pairs(value: Any, _: Any) -> tuple[tuple[int, int], ...]:
    return tuple((index(before), index(after)) for before, after in value)


def _to_dims(value: Any, _: Any = None) -> tuple[Dim, ...]:
    """Convert one integer or dimension, or a sequence of them, to a tuple."""
    try:
        return (_to_dim(value),)
    except TypeError:
        return tuple(map(_to_dim, value))


def _to_dim(value: Any, _: Any = None) -> Dim:
    return value if isinstance(value, SymDim) else index(value)


def _to_dim_pairs(value: Any, _: Any) -> tuple[tuple[Dim, Dim], ...]:
    return tuple((_to_dim(before), _to_dim(after)) for before, after in value)


def _to_int(value: Any, _: Any) -> int:
    return index(value)


def _to_float(value: Any, _: Any = None) -> float:
    """Convert a value to a number; raise TypeError for text."""
    if isinstance(value, str):
        raise TypeError
    return value if isinstance(value, (int, float)) else float(value)


def _to_number_or_dim(value: Any, _: Any = None) -> float | SymDim:
    return value if isinstance(value, SymDim) else _to_float(value)


def _to_bool(value: Any, _: Any) -> bool:
    if value not in (0, 1):
        raise TypeError
    return bool(value)


def _to_string(value: Any, _: Any) -> str:
    """Convert a string or a numpy data type to a string; raise TypeError for other values."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (np.dtype, type)):
        raise TypeError
    return str(np.dtype(value).name)


#: For each attribute type: the annotation of the parameter, the converter to the attribute, and an
#: example.
_CONVERTERS_BY_ATTRIBUTE_TYPE: Final[Mapping[str, tuple[str, Takes, str]]] = {
    "bool": ("bool", _to_bool, "True"),
    "int": ("int", _to_int, "1"),
    "int | SymDim": ("int | SymDim", _to_dim, "1"),
    "float": ("float", _to_float, "0.5"),
    "str": ("str", _to_string, '"a text"'),
    "tuple[int, ...]": ("int | Sequence[int]", to_int_tuple, "(1, 2)"),
    "tuple[int | SymDim, ...]": ("int | Sequence[int]", _to_dims, "(1, 2)"),
    "tuple[float, ...]": ("Sequence[float]", lambda value, _: tuple(map(_to_float, value)), "(0.5, 1.0)"),
    "int | float": ("int | float", _to_float, "0.5"),
    "int | float | SymDim": ("int | float", _to_number_or_dim, "0.5"),
    "int | tuple[int, ...]": (
        "int | Sequence[int]",
        lambda value, _: value if isinstance(value, int) else to_int_tuple(value),
        "(1, 2)",
    ),
    "tuple[tuple[int, int], ...]": ("Sequence[Sequence[int]]", _to_int_pairs, "((0, 0), (1, 1))"),
    "tuple[tuple[int | SymDim, int | SymDim], ...]": ("Sequence[Sequence[int]]", _to_dim_pairs, "((0, 0), (1, 1))"),
}


@frozen
class _AttributeParameter:
    """A parameter that sets an attribute; the value None means `default`, unless None is a value of
    the attribute.

    op       name of the operator, for messages
    name     name of the attribute and of the parameter
    type     annotation of the parameter
    given    default value of the parameter
    default  default value of the attribute
    steps    converters that are applied in order to the given value
    example  valid value, for messages
    """

    op: str
    name: str
    type: str
    given: Any
    default: Any
    steps: tuple[Takes, ...]
    example: str

    def convert_given_attribute_value(self, arguments: Mapping[str, Any]) -> Any:
        value = arguments[self.name]
        if value is None and self.default is not REQUIRED:
            return self.default
        result = value
        try:
            for converter in self.steps:
                result = converter(result, arguments)
        except AotcError:
            raise
        except (TypeError, ValueError) as error:
            text = f"{self.op}: {self.name} takes {self.type}, not {value!r}"
            raise AotcTypeError("attribute", text, hint=f"for example {self.name}={self.example}") from error
        return result


def _attribute_parameter(op: Op, field: dataclasses.Field[Any]) -> _AttributeParameter:
    special = field.metadata.get("param", Param())
    annotation = str(field.type)
    plain = annotation.removesuffix(" | None")
    accepted, kind, example = _CONVERTERS_BY_ATTRIBUTE_TYPE[plain]
    field_default = REQUIRED if field.default is dataclasses.MISSING else field.default
    given = field_default if special.given is ... else special.given
    steps: list[Takes | None] = [kind, special.takes]
    if special.takes is not None and special.type:
        # its converter accepts other values than the attribute's type
        steps = [special.takes]
    elif special.given is None and field_default is REQUIRED:
        # its converter computes a value from None
        steps.reverse()
    optional = annotation != plain or given is None
    default = None if annotation != plain else field_default
    return _AttributeParameter(
        op=op.name,
        name=field.name,
        type=special.type or (f"{accepted} | None" if optional else accepted),
        given=given,
        default=default,
        steps=tuple(s for s in steps if s is not None),
        example=example,
    )


@cache
def _attribute_parameters_by_name(op: Op) -> Mapping[str, _AttributeParameter]:
    """Return the attributes of an operator that are parameters of its function, by name."""
    fields = {f.name: _attribute_parameter(op, f) for f in dataclasses.fields(op.attrs)}
    return {n: f for n, f in fields.items() if n in op.order.split()} if op.order else fields


def _builder_parameters(op: Op) -> Iterator[Parameter]:
    declarations = {a.name: (a.type, a.given) for a in op.args} | {
        f.name: (f.type, f.given) for f in _attribute_parameters_by_name(op).values()
    }
    optional = by_name = False
    for name in op.order.split() if op.order else declarations:
        annotation, given = declarations[name]
        # a required parameter after an optional one is keyword-only
        by_name = by_name or (optional and given is REQUIRED)
        optional = optional or given is not REQUIRED
        kind = Parameter.KEYWORD_ONLY if by_name else Parameter.POSITIONAL_OR_KEYWORD
        yield Parameter(name, kind, default=given, annotation=annotation)


@cache
def builder_signature_of(op: Op) -> Signature:
    """Return the signature of the function that builds calls of `op`."""
    return Signature(list(_builder_parameters(op)), return_annotation="Call")


def build_operator_call(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call of `op`, with its type if the types of all arguments are known.

    Raise TypeError for unknown or missing parameters, and AotcError for values that a converter or
    the operator's type rule rejects.
    """
    signature = builder_signature_of(op)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [*signature.parameters]
        strange = next((name for name in kwargs if name not in names), None)
        hint = strange and (did_you_mean_hint(strange, names) or f"it takes {', '.join(names)}")
        text = f"{op.name.rpartition('.')[2]}(): {error}"
        raise TypeError(f"{text}; {hint}" if hint else text) from None
    bound.apply_defaults()
    given = bound.arguments
    attributes = {f.name: f.convert_given_attribute_value(given) for f in _attribute_parameters_by_name(op).values()}
    arguments = [given[a.name] if a.takes is None else a.takes(given.get(a.name), given) for a in op.args]
    return typed_op_call(op, arguments, op.attrs(**attributes))


def builder_function_of(
    op: Op, build_call: Callable[..., Call] | None = None, signature: Signature | None = None
) -> Callable[..., Call]:
    """Return a function that builds calls of `op` (by `build_call`, if given), with its name,
    signature and docstring.
    """

    def build_call_of_operator(*args: Any, **kwargs: Any) -> Call:
        return build_operator_call(op, args, kwargs) if build_call is None else build_call(*args, **kwargs)

    build_call_of_operator.__name__ = build_call_of_operator.__qualname__ = op.name.rpartition(".")[2]
    build_call_of_operator.__doc__ = op.doc
    build_call_of_operator.__signature__ = signature or builder_signature_of(op)  # type: ignore[attr-defined]
    return build_call_of_operator
