# SPDX-License-Identifier: Apache-2.0
"""Typed operator attributes: frozen dataclasses, printable and comparable.

@attrs
class SoftmaxAttrs(Attrs):
    axis: int = -1

SoftmaxAttrs(axis=1).changed()         # {"axis": 1}: what the text form prints
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # typing.dataclass_transform is Python 3.11

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=True)
def attrs(cls: type[T]) -> type[T]:
    """Class decorator for attribute records: a frozen, keyword-only, slotted dataclass."""
    make: Callable[[type[T]], type[T]] = dataclass(frozen=True, kw_only=True, slots=True)
    return make(cls)


@attrs
class Attrs:
    """Base of all attribute records.  Field order and defaults are the text form's (Relay's)."""

    def items(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of every field, in declaration order."""
        return ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))

    def keys(self) -> list[str]:
        """The names of the fields, in declaration order."""
        return [name for name, _ in self.items()]

    def __getitem__(self, name: str) -> Any:
        """The value of a field; KeyError for a name that is none."""
        return dict(self.items())[name]

    def changed(self) -> dict[str, Any]:
        """The fields that have no default or differ from it, in declaration order."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        }

    def replace(self: T, **changes: Any) -> T:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@attrs
class NoAttrs(Attrs):
    """For operators without attributes."""


NO_ATTRS = NoAttrs()
