# SPDX-License-Identifier: Apache-2.0
"""Algebraic data types: their definitions, and the patterns that match their values.

box, a = relay.GlobalTypeVar("Box"), relay.TypeVar("a")
full = relay.Constructor("Full", [a], box)
mod[box] = relay.TypeData(box, [a], [full])            # type Box[a] { Full(a) }
relay.Match(full(x), [relay.Clause(relay.PatternConstructor(full, [relay.PatternVar(v)]), v)])

The graph nodes Constructor and Match are defined in `aotc.relay.expr`, which this file does not
import: fields that hold variables, expressions and constructors have type Any here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import field
from importlib import import_module
from typing import Any, TypeAlias

from aotc.ir import GlobalTypeVar, Type, TypeCall, TypeVar, frozen, set_frozen_fields


@frozen(init=False, eq=False)
class TypeData:
    """The definition of a data type: its name, its type variables and the constructors of its
    values.

    Creating it sets the definition, and thereby the type, of each constructor.
    """

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...]
    constructors: tuple[Any, ...]

    def __init__(self, header: GlobalTypeVar, type_vars: Iterable[TypeVar], constructors: Iterable[Any]) -> None:
        set_frozen_fields(self, header=header, type_vars=tuple(type_vars), constructors=tuple(constructors))
        for constructor in self.constructors:
            constructor.set_data_type_definition(self)

    @property
    def instance_type(self) -> TypeCall:
        """The type of the data type's values, applied to its own type variables."""
        return TypeCall(self.header, self.type_vars)

    @property
    def component_types(self) -> list[Type]:
        """All types used in the data type's definition, including its own name and type variables."""
        return [self.header, *self.type_vars, *(ty for c in self.constructors for ty in c.inputs)]

    def tag_of_constructor(self, constructor: object) -> int:
        """Return the tag (a number) of a constructor of the data type; it is equal in every
        process.
        """
        return (zlib.crc32(self.header.name.encode()) & 0x7F) << 24 | self.constructors.index(constructor)


def __getattr__(name: str) -> Any:
    """Return the graph nodes Constructor and Match under Relay's names; raise AttributeError for
    other names.
    """
    if name not in ("Constructor", "Match"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("aotc.relay.expr"), name)


# --- patterns


@frozen(eq=False)
class PatternWildcard:
    """Pattern that matches any value: `_`."""


@frozen(eq=False)
class PatternVar:
    """Pattern that matches any value and binds it to a variable."""

    var: Any


@frozen(init=False, eq=False)
class PatternConstructor:
    """Pattern that matches values of one constructor whose fields match `patterns`."""

    constructor: Any
    patterns: tuple[Pattern, ...] = field(default=())

    def __init__(self, constructor: Any, patterns: Iterable[Pattern] | None = None) -> None:
        set_frozen_fields(self, constructor=constructor, patterns=tuple(patterns or ()))


@frozen(init=False, eq=False)
class PatternTuple:
    """Pattern that matches tuples whose fields match `patterns`."""

    patterns: tuple[Pattern, ...] = field(default=())

    def __init__(self, patterns: Iterable[Pattern] | None = None) -> None:
        set_frozen_fields(self, patterns=tuple(patterns or ()))


Pattern: TypeAlias = PatternWildcard | PatternVar | PatternConstructor | PatternTuple


@frozen(eq=False)
class Clause:
    """One clause of a match: the pattern, and the result for values that match it."""

    lhs: Pattern
    rhs: Any


def subpatterns(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the subpatterns of a match pattern."""
    return pattern.patterns if isinstance(pattern, PatternConstructor | PatternTuple) else ()


def replace_subpatterns(pattern: Pattern, new_subpatterns: Iterable[Pattern]) -> Pattern:
    """Return a copy of a match pattern with new subpatterns."""
    if isinstance(pattern, PatternConstructor):
        return PatternConstructor(pattern.constructor, new_subpatterns)
    return PatternTuple(new_subpatterns) if isinstance(pattern, PatternTuple) else pattern


def pattern_vars(pattern: Pattern) -> Iterator[Any]:
    """Yield the variables that a pattern binds, from left to right."""
    if isinstance(pattern, PatternVar):
        yield pattern.var
    for part in subpatterns(pattern):
        yield from pattern_vars(part)


def rebind_pattern_vars(pattern: Pattern, variables: Iterator[Any]) -> Pattern:
    """Return a copy of a pattern that binds the next variables of an iterator, in the order of
    `pattern_vars`.
    """
    if isinstance(pattern, PatternVar):
        return PatternVar(next(variables))
    return replace_subpatterns(pattern, [rebind_pattern_vars(part, variables) for part in subpatterns(pattern)])
