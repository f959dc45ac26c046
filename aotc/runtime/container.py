# SPDX-License-Identifier: Apache-2.0
"""Relay's containers of values: tuples of Python.

tuple_object([nd.array(1), nd.array(2)])[1]
"""

from collections.abc import Iterable
from typing import Any

#: What results of tuple type are.
ADT = tuple  # type: ignore[type-arg]
String = str
ShapeTuple = tuple  # type: ignore[type-arg]


def tuple_object(fields: Iterable[Any] | None = None) -> tuple[Any, ...]:
    """A tuple of tensors and tuples, as programs take and give it."""
    return tuple(fields or ())


def convert(value: Any) -> Any:
    """A value as nodes hold it: a tuple in the place of a list."""
    return tuple(map(convert, value)) if isinstance(value, list | tuple) else value
