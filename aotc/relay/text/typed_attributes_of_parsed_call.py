# SPDX-License-Identifier: Apache-2.0
"""Convert the name=value attributes of a parsed call to the operator's typed attribute record.

Unknown names, missing required attributes and values of the wrong type raise AotcError.

make_typed_attrs(get_op("nn.softmax"), {"axis": 1})    # SoftmaxAttrs(axis=1)
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aotc.ir import AotcError, Attrs, Op, SymDim, did_you_mean_hint, dim_in_attribute

#: For each type of an attribute, a description of its text syntax for hints; None is described by
#: itself.
_SYNTAX_DESCRIPTION_BY_TYPE: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "True or False",
    "dimension": 'a dimension (n, ?, "2*n")',
    "tuple[int, ...]": "whole numbers in brackets ([1, 2])",
    "tuple[float, ...]": "numbers in brackets ([0.5, 1.0])",
    "tuple[tuple[int, int], ...]": "pairs of whole numbers in brackets ([[0, 0], [1, 1]])",
}


def make_typed_attrs(op: Op, values: Mapping[str, object]) -> Attrs:
    """Return the attribute record of a call of `op` from parsed attribute values.

    Raise AotcError (code "attribute") for an unknown name, a missing name that has no default, and
    a value of the wrong type.
    """
    known = {f.name: f for f in dataclasses.fields(op.attrs)}
    for name in values:
        if name not in known:
            possible = f"possible attributes: {', '.join(known)}" if known else "it has none"
            message = f"operator {op.name} has no attribute `{name}`"
            raise AotcError("attribute", message, hint=did_you_mean_hint(name, known) or possible)
    for name, f in known.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise AotcError("attribute", f"operator {op.name} needs the attribute `{name}`", hint=f"add {name}=...")
    hints = typing.get_type_hints(op.attrs) if values else {}
    return op.attrs(
        **{name: _convert_attribute_or_raise(op, name, value, hints[name]) for name, value in values.items()}
    )


def accepts_symbolic_dimension(callee: object, attribute: str) -> bool:
    """Return True if attribute `attribute` of a call of `callee` accepts a symbolic dimension."""
    known = {f.name: str(f.type) for f in dataclasses.fields(callee.attrs)} if isinstance(callee, Op) else {}
    return "SymDim" in known.get(attribute, "")


def _convert_attribute_or_raise(op: Op, name: str, value: object, annotation: Any) -> object:
    try:
        return _convert_value_to_annotated_type(value, annotation)
    except TypeError:
        kind = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        kind = kind.replace("aotc.ir.dimensions.SymDim", "dimension")
        # tuples of numbers may have dimensions in them, which are rare
        kind = kind.replace("int | dimension,", "int,").replace("int | dimension]", "int]")
        written = " or ".join(_SYNTAX_DESCRIPTION_BY_TYPE.get(part, part) for part in kind.split(" | "))
        text = f"attribute `{name}` of {op.name} must be {kind}, got {value!r}"
        raise AotcError("attribute", text, hint=f"write {written}") from None


def _convert_value_to_annotated_type(value: object, annotation: Any) -> object:
    """Convert `value` to the type given by the annotation `annotation`; raise TypeError if that is
    impossible.
    """
    origin, hints = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        for possible in hints:
            with suppress(TypeError):
                return _convert_value_to_annotated_type(value, possible)
        raise TypeError
    if origin is tuple and isinstance(value, tuple):
        items = hints[:1] * len(value) if hints[1:] == (Ellipsis,) else hints
        if len(items) != len(value):
            raise TypeError
        return tuple(map(_convert_value_to_annotated_type, value, items))
    if annotation is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if annotation is int and isinstance(value, bool):
        raise TypeError
    if annotation is SymDim and isinstance(value, str):
        return dim_in_attribute(value)
    if isinstance(annotation, type) and issubclass(annotation, str) and isinstance(value, str):
        return annotation(value)
    if annotation is Any or (isinstance(annotation, type) and isinstance(value, annotation)):
        return value
    raise TypeError
