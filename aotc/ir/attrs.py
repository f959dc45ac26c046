# SPDX-License-Identifier: Apache-2.0
"""Typed operator attributes: frozen dataclasses, printable and comparable.

class SoftmaxAttrs(Attrs):
    axis: int = -1

SoftmaxAttrs(axis=1).changed()         # {"axis": 1}: what the text form prints
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final, TypeAlias, TypeVar

from aotc.ir.diagnostics import AotcError
from aotc.ir.frozen_dataclass import dataclass_transform, frozen

T = TypeVar("T")
#: The default of a parameter that has none.
REQUIRED: Final = Parameter.empty
#: (what a parameter was given, all that was given) -> what is stored.
Takes: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]


@frozen
class Param:
    """How an attribute is given to the operator's function, where that is not just the attribute.

    type    what it accepts, as text, where that does not follow from the attribute's type
    given   the parameter's default: `...` for the attribute's, `REQUIRED` for none
    takes   what makes the attribute of other values than it holds itself, such as one number for a pair
    """

    type: str = ""
    given: Any = ...
    takes: Takes | None = None


def param(*, default: Any = dataclasses.MISSING, type: str = "", given: Any = ..., takes: Takes | None = None) -> Any:
    """A field of an attribute record whose parameter differs from it; see `Param`."""
    return dataclasses.field(default=default, metadata={"param": Param(type, given, takes)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(param,))
@dataclass(frozen=True, kw_only=True)
class Attrs:
    """Base of all attribute records: each class that derives from it is a frozen, keyword-only dataclass.

    Field order and defaults are the text form's (Relay's).
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

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


def variant(base: type[T], name: str, **fields: Any) -> type[T]:
    """A subclass of an attribute record whose fields have other defaults (or are other `param`s)."""
    types = {f.name: f.type for f in dataclasses.fields(base)}  # type: ignore[arg-type]
    return _made(name, base, {field: types[field] for field in fields}, fields)


def record(name: str, fields: Sequence[dataclasses.Field[Any]]) -> type[Attrs]:
    """An attribute record of fields that other records have."""
    values = {f.name: dataclasses.field(default=f.default, metadata=f.metadata) for f in fields}
    return _made(name, Attrs, {f.name: f.type for f in fields}, values)


def _made(name: str, base: type[T], types: Mapping[str, Any], values: Mapping[str, Any]) -> type[T]:
    return type(name, (base,), {"__annotations__": types, "__module__": base.__module__, **values})


class DictAttrs(Attrs):
    """Attributes under names of any kind, of calls of functions and of functions; `type_key` is Relay's name for it."""

    type_key: str
    values: Mapping[str, Any]

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self.values.items())

    def changed(self) -> dict[str, Any]:
        return dict(self.values)

    def __getattr__(self, name: str) -> Any:
        values = vars(self).get("values", {})
        if name not in values:
            raise AttributeError(f"there is no attribute {name!r}")
        return values[name]


def make_node(type_key: str, **fields: Any) -> DictAttrs:
    """Attributes as Relay makes them, by the name of their type and the values of their fields.

    Raises AotcError (code "attribute") for attributes of operators, which the functions of the operators make, and
    for other nodes, which have classes of their own.
    """
    if type_key != "DictAttrs" and not type_key.startswith("attrs."):
        hint = "functions such as relay.nn.conv2d make calls with attributes, and nodes have classes"
        raise AotcError("attribute", f"make_node cannot create a node of type {type_key!r}", hint=hint)
    return DictAttrs(type_key=type_key, values=fields)


class NoAttrs(Attrs):
    """The attributes of operators that have none."""


NO_ATTRS = NoAttrs()
