# SPDX-License-Identifier: Apache-2.0
"""Decorator for immutable records: frozen dataclasses with slots.

@frozen
class Point:
    x: int
    y: int = 0

@frozen(eq=False)          # compared by identity; other options of `dataclass` are given in the same way
class Node: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:  # typing.dataclass_transform is Python 3.11

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        return lambda cls: cls


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, **options: Any) -> Any:
    """Class decorator: create a frozen dataclass with slots; `options` go to
    `dataclasses.dataclass`.
    """
    return dataclass(cls, frozen=True, slots=True, **options)


def set_frozen_fields(record: object, **fields: Any) -> None:
    """Set fields of a frozen record during its initialization."""
    for name, value in fields.items():
        object.__setattr__(record, name, value)
