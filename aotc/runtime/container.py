# SPDX-License-Identifier: Apache-2.0
"""Relay's runtime containers, as aliases of Python's types: tuples and strings.

tuple_object([nd.array(1), nd.array(2)])[1]
"""

from collections.abc import Iterable
from typing import Any

#: Type of results that have a tuple type.
ADT = tuple  # type: ignore[type-arg]
String = str
ShapeTuple = tuple  # type: ignore[type-arg]


def tuple_object(fields: Iterable[Any] | None = None) -> tuple[Any, ...]:
    """Return a tuple of tensors and tuples, as programs that use Relay's interface expect it."""
    return tuple(fields or ())


def convert(value: Any) -> Any:
    """Convert all lists within a nested value of lists and tuples to tuples."""
    return tuple(map(convert, value)) if isinstance(value, list | tuple) else value
