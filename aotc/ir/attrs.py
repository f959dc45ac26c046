# SPDX-License-Identifier: Apache-2.0
"""Typed operator attributes as frozen dataclasses, which can be printed and compared.

class SoftmaxAttrs(Attrs):
    axis: int = -1

SoftmaxAttrs(axis=1).non_default_fields()  # {"axis": 1}: what the text form prints
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, TypeAlias, TypeVar

from aotc.ir.diagnostics import AotcError
from aotc.ir.frozen_dataclass import dataclass_transform, frozen

T = TypeVar("T")
#: Marks a parameter without a default.
REQUIRED: Final = Parameter.empty
#: (argument of the parameter, all arguments by name) -> value of the attribute.
Takes: TypeAlias = Callable[[Any, Mapping[str, Any]], Any]


@frozen
class Param:
    """Difference between an operator function's parameter and the attribute that it sets.

    type    accepted values as text; "" if it follows from the attribute's type
    given   default of the parameter: `...` for the attribute's default, `REQUIRED` for no default
    takes   conversion of other accepted values to the attribute, such as a number to a pair
    """

    type: str = ""
    given: Any = ...
    takes: Takes | None = None


def attribute_field(
    *, default: Any = dataclasses.MISSING, type: str = "", parameter_default: Any = ..., convert: Takes | None = None
) -> Any:
    """Declare a field of an attribute record whose parameter differs from the attribute; see
    `Param`.
    """
    return dataclasses.field(default=default, metadata={"param": Param(type, parameter_default, convert)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(attribute_field,))
@frozen(kw_only=True, slots=False)
class Attrs:
    """Base class of attribute records: each subclass becomes a frozen, keyword-only dataclass.

    Write a subclass without `@dataclass`: a second decoration raises TypeError.

    The order and defaults of fields are those of Relay's text format.
    """

    def __init_subclass__(cls) -> None:
        frozen(kw_only=True, slots=False)(cls)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return pairs (name, value) of all operator attributes, in declaration order."""
        return ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))

    def keys(self) -> list[str]:
        """Return the names of the operator attributes, in declaration order."""
        return [name for name, _ in self.items()]

    def __getitem__(self, name: str) -> Any:
        """Return the value of an operator attribute by name; raise KeyError for an unknown name."""
        return dict(self.items())[name]

    def non_default_fields(self) -> dict[str, Any]:
        """Return the fields without a default or with a value that differs from it, in declaration
        order.
        """
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.default is dataclasses.MISSING or getattr(self, f.name) != f.default
        }

    def replace(self: T, **changes: Any) -> T:
        """Return a copy of the operator attributes with some of them changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def attrs_class_with_defaults(base: type[T], name: str, **fields: Any) -> type[T]:
    """Return a subclass of an attribute record with new defaults, or new `attribute_field`s, for
    the given fields.
    """
    types = {f.name: f.type for f in dataclasses.fields(base)}  # type: ignore[arg-type]
    return _create_attrs_class(name, base, {field: types[field] for field in fields}, fields, base.__module__)


def attrs_class_from_fields(name: str, fields: Sequence[dataclasses.Field[Any]], module: str) -> type[Attrs]:
    """Return a new class of operator attributes made of attribute fields of other classes.

    module    name of the module that has the classes which the types of the fields name
    """
    values = {f.name: dataclasses.field(default=f.default, metadata=f.metadata) for f in fields}
    return _create_attrs_class(name, Attrs, {f.name: f.type for f in fields}, values, module)


def _create_attrs_class(
    name: str, base: type[T], field_types: Mapping[str, Any], values: Mapping[str, Any], module: str
) -> type[T]:
    return type(name, (base,), {"__annotations__": field_types, "__module__": module, **values})


class DictAttrs(Attrs):
    """Attributes with arbitrary names, of functions and of calls of functions; `type_key` is
    Relay's type name.
    """

    type_key: str
    values: Mapping[str, Any]

    def items(self) -> Iterator[tuple[str, Any]]:
        return iter(self.values.items())

    def non_default_fields(self) -> dict[str, Any]:
        return dict(self.values)

    def __getattr__(self, name: str) -> Any:
        values = vars(self).get("values", {})
        if name not in values:
            raise AttributeError(f"there is no attribute {name!r}")
        return values[name]


def make_node(type_key: str, **fields: Any) -> DictAttrs:
    """Create attributes from Relay's name of their type ("DictAttrs" or "attrs.*") and their
    fields.

    Raises AotcError (code "attribute") for other type names: those nodes have classes of their own.
    """
    if type_key != "DictAttrs" and not type_key.startswith("attrs."):
        hint = "functions such as relay.nn.conv2d make calls with attributes, and nodes have classes"
        raise AotcError("attribute", f"make_node cannot create a node of type {type_key!r}", hint=hint)
    return DictAttrs(type_key=type_key, values=fields)


class NoAttrs(Attrs):
    """The empty attribute record, for operators that have no attributes."""


NO_ATTRS = NoAttrs()
