# SPDX-License-Identifier: Apache-2.0
"""Hints of type errors: how to make a value fit the expected type.

conversion_hint(TensorType((), "int32"), TensorType((), "float32"))  # cast(..., dtype="float32") makes it one
"""

from aotc.ir.types import TensorType, TupleType, Type, TypeCall
from aotc.relay.adt import Pattern, PatternConstructor, PatternVar


def conversion_hint(actual: Type, expected: Type) -> str:
    """Return a hint how to convert a value of type `actual` to `expected`; if no operator does
    that, name the type that fits.
    """
    match actual, expected:
        case TupleType(), _ if expected in actual.fields:
            return f"take the tuple's field .{actual.fields.index(expected)}, which is {expected}"
        case TensorType(), TensorType() if actual.shape == expected.shape:
            return f'cast(..., dtype="{expected.dtype}") makes it {expected}'
        case TensorType(), TensorType() if actual.dtype == expected.dtype:
            return f"reshape, expand_dims, squeeze or take can make it {expected}"
    return f"a value of type {expected} fits"


def tuple_fields_hint(ty: Type) -> str:
    """Return a hint that lists the fields of a value."""
    if not isinstance(ty, TupleType):
        return "only tuples have fields: use the value itself"
    return f"its fields are .0 to .{len(ty.fields) - 1}" if ty.fields else "the tuple is empty"


def correct_pattern_hint(pattern: Pattern, ty: Type | None = None) -> str:
    """Return a hint for a wrong pattern: the pattern to write instead, for values of type `ty` if
    that is given.
    """
    match pattern, ty:
        case PatternVar(), _ if ty is not None:
            return f"annotate it as {ty}"
        case PatternConstructor(constructor=c), None:
            return f"{c.name_hint}({', '.join('_' for _ in c.inputs)})" if c.inputs else c.name_hint
        case PatternConstructor(constructor=c), TypeCall() if c.belong_to == ty.func:
            return f"write {correct_pattern_hint(pattern)}"
        case _, TypeCall():
            return f"write a constructor of {ty.func}"
        case _, TupleType():
            return f"write ({', '.join('_' * len(ty.fields))})"
    return "write %name or _"
