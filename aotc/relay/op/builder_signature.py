# SPDX-License-Identifier: Apache-2.0
"""Derive the Python function that builds calls of an operator from the operator's arguments and
attributes.

    call = build(SOFTMAX, (x,), {"axis": 1})       # equals SOFTMAX(x, axis=1) and relay.nn.softmax(x, axis=1)
    signature_of(SOFTMAX)                          # (data: 'Expr', axis: 'int' = -1) -> 'Call'

The parameter of an attribute accepts values of the attribute's type and some conversions: one
number for a tuple, None for the default. Exceptions of single operators are declared at the
attribute's field (`aotc.ir.attrs.param`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from operator import index
from typing import Any, Final

import numpy as np

from aotc.ir import REQUIRED, AotcError, AotcTypeError, Dim, Op, Param, SymDim, Takes, frozen, nearest
from aotc.relay.graph_api import Call, call, const, infer_expr, operand


def ints(value: Any, _: Any = None) -> tuple[int, ...]:
    """Convert one integer or a sequence of integers to a tuple of ints."""
    try:
        return (index(value),)
    except TypeError:
        return tuple(map(index, value))


def number(dtype: Callable[[Mapping[str, Any]], Any]) -> Takes:
    """Return a converter that turns a number into a constant of type `dtype(all parameters)`;
    expressions are unchanged.
    """

    def takes(value: Any, given: Mapping[str, Any]) -> Any:
        if not isinstance(value, (int, float)):
            return value
        return const(value, str(dtype(given)))

    return takes


def number_like(name: str) -> Takes:
    """Return a converter that turns a number into a constant with the dtype of the parameter called
    `name`.

    The type of that tensor is inferred if it is not known yet.
    """

    def dtype(given: Mapping[str, Any]) -> str:
        data = operand(given[name])
        return getattr(data.checked_type or infer_expr(data).checked_type, "dtype", "float32")

    return number(dtype)


def _pairs(value: Any, _: Any) -> tuple[tuple[int, int], ...]:
    return tuple((index(before), index(after)) for before, after in value)


def _whole(value: Any, _: Any) -> int:
    return index(value)


def _extent(value: Any, _: Any) -> Dim:
    return value if isinstance(value, SymDim) else index(value)


def _real(value: Any, _: Any = None) -> float:
    """Convert a value to a number; raise TypeError for text."""
    if isinstance(value, str):
        raise TypeError
    return value if isinstance(value, (int, float)) else float(value)


def _truth(value: Any, _: Any) -> bool:
    if value not in (0, 1):
        raise TypeError
    return bool(value)


def _text(value: Any, _: Any) -> str:
    """Convert a string or a numpy data type to a string; raise TypeError for other values."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (np.dtype, type)):
        raise TypeError
    return str(np.dtype(value).name)


#: For each attribute type: the annotation of the parameter, the converter to the attribute, and an
#: example.
_KINDS: Final[Mapping[str, tuple[str, Takes, str]]] = {
    "bool": ("bool", _truth, "True"),
    "int": ("int", _whole, "1"),
    "int | SymDim": ("int | SymDim", _extent, "1"),
    "float": ("float", _real, "0.5"),
    "str": ("str", _text, '"a text"'),
    "tuple[int, ...]": ("int | Sequence[int]", ints, "(1, 2)"),
    "tuple[float, ...]": ("Sequence[float]", lambda value, _: tuple(map(_real, value)), "(0.5, 1.0)"),
    "int | float": ("int | float", _real, "0.5"),
    "int | tuple[int, ...]": (
        "int | Sequence[int]",
        lambda value, _: value if isinstance(value, int) else ints(value),
        "(1, 2)",
    ),
    "tuple[tuple[int, int], ...]": ("Sequence[Sequence[int]]", _pairs, "((0, 0), (1, 1))"),
}


@frozen
class _Field:
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

    def value(self, given: Mapping[str, Any]) -> Any:
        value = given[self.name]
        if value is None and self.default is not REQUIRED:
            return self.default
        made = value
        try:
            for takes in self.steps:
                made = takes(made, given)
        except AotcError:
            raise
        except (TypeError, ValueError) as error:
            text = f"{self.op}: {self.name} takes {self.type}, not {value!r}"
            raise AotcTypeError("attribute", text, hint=f"for example {self.name}={self.example}") from error
        return made


def _field(op: Op, field: dataclasses.Field[Any]) -> _Field:
    special = field.metadata.get("param", Param())
    annotation = str(field.type)
    plain = annotation.removesuffix(" | None")
    accepted, kind, example = _KINDS[plain]
    own = REQUIRED if field.default is dataclasses.MISSING else field.default
    given = own if special.given is ... else special.given
    steps: list[Takes | None] = [kind, special.takes]
    if special.takes is not None and special.type:
        # its converter accepts other values than the attribute's type
        steps = [special.takes]
    elif special.given is None and own is REQUIRED:
        # its converter computes a value from None
        steps.reverse()
    optional = annotation != plain or given is None
    default = None if annotation != plain else own
    return _Field(
        op=op.name,
        name=field.name,
        type=special.type or (f"{accepted} | None" if optional else accepted),
        given=given,
        default=default,
        steps=tuple(s for s in steps if s is not None),
        example=example,
    )


@cache
def _fields(op: Op) -> Mapping[str, _Field]:
    """Return the attributes of an operator that are parameters of its function, by name."""
    fields = {f.name: _field(op, f) for f in dataclasses.fields(op.attrs)}
    return {n: f for n, f in fields.items() if n in op.order.split()} if op.order else fields


def _parameters(op: Op) -> Iterator[Parameter]:
    found = {a.name: (a.type, a.given) for a in op.args} | {f.name: (f.type, f.given) for f in _fields(op).values()}
    optional = by_name = False
    for name in op.order.split() if op.order else found:
        annotation, given = found[name]
        # a required parameter after an optional one is keyword-only
        by_name = by_name or (optional and given is REQUIRED)
        optional = optional or given is not REQUIRED
        kind = Parameter.KEYWORD_ONLY if by_name else Parameter.POSITIONAL_OR_KEYWORD
        yield Parameter(name, kind, default=given, annotation=annotation)


@cache
def signature_of(op: Op) -> Signature:
    """Return the signature of the function that builds calls of `op`."""
    return Signature(list(_parameters(op)), return_annotation="Call")


def build(op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a call of `op`, with its type if the types of all arguments are known.

    Raise TypeError for unknown or missing parameters, and AotcError for values that a converter or
    the operator's type rule rejects.
    """
    signature = signature_of(op)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [*signature.parameters]
        strange = next((name for name in kwargs if name not in names), None)
        hint = strange and (nearest(strange, names) or f"it takes {', '.join(names)}")
        text = f"{op.name.rpartition('.')[2]}(): {error}"
        raise TypeError(f"{text}; {hint}" if hint else text) from None
    bound.apply_defaults()
    given = bound.arguments
    attributes = {f.name: f.value(given) for f in _fields(op).values()}
    arguments = [given[a.name] if a.takes is None else a.takes(given.get(a.name), given) for a in op.args]
    return call(op, arguments, op.attrs(**attributes))


def function_of(
    op: Op, builds: Callable[..., Call] | None = None, signature: Signature | None = None
) -> Callable[..., Call]:
    """Return a function that builds calls of `op` (by `builds`, if given), with its name, signature
    and docstring.
    """

    def function(*args: Any, **kwargs: Any) -> Call:
        return build(op, args, kwargs) if builds is None else builds(*args, **kwargs)

    function.__name__ = function.__qualname__ = op.name.rpartition(".")[2]
    function.__doc__ = op.doc
    function.__signature__ = signature or signature_of(op)  # type: ignore[attr-defined]
    return function
