# SPDX-License-Identifier: Apache-2.0
"""Dimensions in operator attributes, such as those of a new shape, that are known at run time only.

dims_in_attrs(attrs)                        # [n]: for newshape=(n, 4)
map_dims_in_attrs(attrs, lambda dim: 3)     # newshape=(3, 4)
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from aotc.ir.attrs import Attrs
from aotc.ir.dimension_formulas import formula_of_name
from aotc.ir.dimensions import Dim, SymDim

T = TypeVar("T", bound=Attrs)


@cache
def _fields_that_may_have_dims(attrs_class: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(attrs_class) if "SymDim" in str(f.type))


def _class_of(attrs: Attrs) -> Any:
    return type(attrs)


def dims_in_attrs(attrs: Attrs) -> list[SymDim]:
    """Return the dimensions in operator attributes that are known at run time only, in order."""
    return [d for name in _fields_that_may_have_dims(_class_of(attrs)) for d in _dims_in_value(getattr(attrs, name))]


def _dims_in_value(value: object) -> Iterator[SymDim]:
    if isinstance(value, SymDim):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _dims_in_value(item)


def map_dims_in_attrs(attrs: T, new_dim: Callable[[SymDim], Dim]) -> T:
    """Return operator attributes with other dimensions in place of those that are known at run time
    only; the same object if there are none.
    """
    if not dims_in_attrs(attrs):
        return attrs

    def mapped(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(mapped, value))
        return new_dim(value) if isinstance(value, SymDim) else value

    return attrs.replace(**{n: mapped(getattr(attrs, n)) for n in _fields_that_may_have_dims(_class_of(attrs))})


def bind_dims_in_attrs(attrs: T, values: Mapping[str, int]) -> T:
    """Return operator attributes with numbers in place of dimensions, for values of all symbols.

    Unlike sizes, numbers in attributes may be negative. Raises ValueError for a formula without a value.
    """

    def number(dim: SymDim) -> int:
        value = formula_of_name(dim.name).evaluate(values) if dim.name else None
        if value is None:
            raise ValueError(f"{dim} has no value for {dict(values)}")
        return value

    return map_dims_in_attrs(attrs, number)
