# SPDX-License-Identifier: Apache-2.0
"""Algebraic data types: their definitions, and the patterns that take their values apart.

box, a = relay.GlobalTypeVar("Box"), relay.TypeVar("a")
full = relay.Constructor("Full", [a], box)
mod[box] = relay.TypeData(box, [a], [full])            # type Box[a] { Full(a) }
relay.Match(full(x), [relay.Clause(relay.PatternConstructor(full, [relay.PatternVar(v)]), v)])

Nodes of graphs (Constructor, Match) lie beside the others in `aotc.relay.expr`, which this file does not know: fields
that hold variables, expressions and constructors are of type Any here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import field
from importlib import import_module
from typing import Any, TypeAlias

from aotc.ir import GlobalTypeVar, Type, TypeCall, TypeVar, fill, frozen


@frozen(init=False, eq=False)
class TypeData:
    """The definition of a data type: its name, its type variables and the constructors of its values.

    A constructor knows its definition, and its type, from here on.
    """

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...]
    constructors: tuple[Any, ...]

    def __init__(self, header: GlobalTypeVar, type_vars: Iterable[TypeVar], constructors: Iterable[Any]) -> None:
        fill(self, header=header, type_vars=tuple(type_vars), constructors=tuple(constructors))
        for constructor in self.constructors:
            constructor.define(self)

    @property
    def type(self) -> TypeCall:
        """The type of the values, over the type variables of the definition."""
        return TypeCall(self.header, self.type_vars)

    @property
    def parts(self) -> list[Type]:
        """The types that the definition mentions."""
        return [self.header, *self.type_vars, *(ty for c in self.constructors for ty in c.inputs)]

    def tag(self, constructor: object) -> int:
        """A number that stands for a constructor: the same one in every process."""
        return (zlib.crc32(self.header.name.encode()) & 0x7F) << 24 | self.constructors.index(constructor)


def __getattr__(name: str) -> Any:
    """The nodes of graphs that belong here, under Relay's names."""
    if name not in ("Constructor", "Match"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("aotc.relay.expr"), name)


# --- patterns


@frozen(eq=False)
class PatternWildcard:
    """Matches anything: `_`."""


@frozen(eq=False)
class PatternVar:
    """Matches anything and gives it a name."""

    var: Any


@frozen(init=False, eq=False)
class PatternConstructor:
    """Matches values of one constructor whose fields match `patterns`."""

    constructor: Any
    patterns: tuple[Pattern, ...] = field(default=())

    def __init__(self, constructor: Any, patterns: Iterable[Pattern] | None = None) -> None:
        fill(self, constructor=constructor, patterns=tuple(patterns or ()))


@frozen(init=False, eq=False)
class PatternTuple:
    """Matches tuples whose fields match `patterns`."""

    patterns: tuple[Pattern, ...] = field(default=())

    def __init__(self, patterns: Iterable[Pattern] | None = None) -> None:
        fill(self, patterns=tuple(patterns or ()))


Pattern: TypeAlias = PatternWildcard | PatternVar | PatternConstructor | PatternTuple


@frozen(eq=False)
class Clause:
    """What a match gives where a pattern matches."""

    lhs: Pattern
    rhs: Any


def inner(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns that a pattern is made of."""
    return pattern.patterns if isinstance(pattern, PatternConstructor | PatternTuple) else ()


def over(pattern: Pattern, new: Iterable[Pattern]) -> Pattern:
    """A pattern of the same form made of other patterns."""
    if isinstance(pattern, PatternConstructor):
        return PatternConstructor(pattern.constructor, new)
    return PatternTuple(new) if isinstance(pattern, PatternTuple) else pattern


def pattern_vars(pattern: Pattern) -> Iterator[Any]:
    """The variables that a pattern binds, from left to right."""
    if isinstance(pattern, PatternVar):
        yield pattern.var
    for part in inner(pattern):
        yield from pattern_vars(part)


def with_vars(pattern: Pattern, variables: Iterator[Any]) -> Pattern:
    """A pattern that binds other variables, as many as `pattern_vars` gives."""
    if isinstance(pattern, PatternVar):
        return PatternVar(next(variables))
    return over(pattern, [with_vars(part, variables) for part in inner(pattern)])
