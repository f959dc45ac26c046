# SPDX-License-Identifier: Apache-2.0
"""Compare the values of options with the annotations of the class that holds them.

require_option_types(options)     # AotcTypeError: cflags must be a list of strings, not '-O2'
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, TypeGuard, Union, get_args, get_origin, get_type_hints

import numpy as np

from aotc.ir import AotcTypeError, python_expression

#: Description of the values of a type, and function that recognizes them.
_Check = tuple[str, Callable[[object], bool]]


def is_collection_but_not_str_or_mapping(value: object) -> TypeGuard[Collection[Any]]:
    """Return True for a collection of values, such as a list or an array; False for strings and
    mappings.
    """
    # an array without dimensions cannot be iterated over
    is_scalar = isinstance(value, np.ndarray) and value.ndim == 0
    return isinstance(value, Collection) and not is_scalar and not isinstance(value, (str, bytes, Mapping))


def is_collection_of_strings(value: object) -> TypeGuard[Collection[str]]:
    """Return True for a collection of strings; False for one string and for mappings."""
    return is_collection_but_not_str_or_mapping(value) and all(isinstance(item, str) for item in value)


def _is_mapping_of_strings(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for item in value.items() for text in item)


_CHECKS: Final[Mapping[object, _Check]] = {
    type(None): ("None", lambda value: value is None),
    bool: ("True, False", lambda value: isinstance(value, (bool, np.bool_))),
    int: ("an integer", lambda value: isinstance(value, Integral) and not isinstance(value, bool)),
    float: ("a number", lambda value: isinstance(value, Real) and not isinstance(value, bool)),
    str: ("a string", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, Path)),
    Mapping: ("a mapping from names to values", lambda value: isinstance(value, Mapping)),
    Mapping[str, str]: ("a mapping from names to strings", _is_mapping_of_strings),
    Sequence: ("a list", is_collection_but_not_str_or_mapping),
    Sequence[str]: ("a list of strings", is_collection_of_strings),
    Iterable: ("a list", lambda value: isinstance(value, Iterable)),
    Callable: ("a function", callable),
}


def require_option_types(options: Any) -> None:
    """Raise AotcTypeError (code "option-type") unless the fields of a dataclass that its constructor
    takes have values of the types that they are annotated with.
    """
    options_class: Any = type(options)
    annotations = option_annotations(options_class)
    for field in fields(options):
        if field.init:
            _require_option_type(field.name, getattr(options, field.name), annotations[field.name])


@cache
def option_annotations(options_class: type) -> dict[str, Any]:
    """Return the types with which the fields of a dataclass of options are annotated, by keyword."""
    # the alias Array is a string that names np
    return get_type_hints(options_class, localns={"np": np})


def _require_option_type(keyword: str, value: object, annotation: object) -> None:
    checks = list(_checks_of_annotation(annotation))
    if any(is_valid(value) for _, is_valid in checks):
        return
    *others, last = ", ".join(description for description, _ in checks).split(", ")
    expected = f"{', '.join(others)} or {last}" if others else last
    listed = isinstance(value, str) and annotation == Sequence[str]
    hint = f"write {keyword}={python_expression([value])}" if listed else ""
    text = f"{keyword} must be {expected}, not {_describe_value(value)}"
    raise AotcTypeError("option-type", text, hint=hint)


def _describe_value(value: object) -> str:
    if isinstance(value, (str, bool, int, float)) or value is None:
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _checks_of_annotation(annotation: Any) -> Iterator[_Check]:
    """Yield a check for each alternative of an annotation."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for alternative in get_args(annotation):
            yield from _checks_of_annotation(alternative)
    elif (found := _CHECKS.get(annotation) or _CHECKS.get(origin)) is not None:
        yield found
    else:
        yield f"a {annotation.__name__}", lambda value: isinstance(value, annotation)
