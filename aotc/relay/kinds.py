# SPDX-License-Identifier: Apache-2.0
"""Kinds of types and the type variables of programs.

check_kind(relay.TupleType([a]))                 # TypeKind.Type; AotcError where a's kind is another one
free_type_vars(relay.FuncType([a], b, [a]))      # [b]
"""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir import (
    AotcError,
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    Type,
    TypeCall,
    TypeKind,
    TypeRelation,
    TypeVar,
    parts,
    type_vars,
    types_in,
)
from aotc.relay.adt import TypeData
from aotc.relay.expr import Expr, Function, Var
from aotc.relay.module import IRModule
from aotc.relay.visitor import post_order


def check_kind(t: Type | TypeData, mod: IRModule | None = None) -> TypeKind:
    """The kind of a type, whose parts have the kinds that they must have.

    mod    says how many types its data types take; without it they are not counted

    Raises AotcError for a part of another kind.
    """
    if isinstance(t, TypeData):
        return TypeKind.TypeData
    if isinstance(t, TypeVar | GlobalTypeVar | IncompleteType):
        return t.kind
    for part in parts(t):
        wanted = TypeKind.Constraint if isinstance(part, TypeRelation) else TypeKind.Type
        if (kind := check_kind(part, mod)) is not wanted:
            raise AotcError("type", f"a part of a {type(t).__name__} is of kind {kind.name}, not Type")
    if isinstance(t, TypeCall):
        if t.func.kind is not TypeKind.AdtHandle:
            raise AotcError("type", f"{t.func} is of kind {t.func.kind.name}, no data type")
        if mod is not None and (count := len(mod[t.func].type_vars)) != len(t.args):
            raise AotcError("type", f"{t.func} takes {count} types, got {len(t.args)}")
    return TypeKind.Constraint if isinstance(t, TypeRelation) else TypeKind.Type


# --- type variables


def _types_in(node: Expr | Type) -> Iterator[Type]:
    if not isinstance(node, Expr):
        yield node
        return
    for inside in post_order(node):
        if isinstance(inside, Var) and inside.annotation is not None:
            yield inside.annotation
        if isinstance(inside, Function):
            yield from (*inside.type_params, *([inside.ret_type] if inside.ret_type is not None else []))


def all_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """The type variables of an expression or type, each once."""
    return list(dict.fromkeys(v for ty in _types_in(expr) for v in type_vars(ty)))


def bound_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Those type variables that functions, or types of functions, have as type parameters."""
    bound: dict[TypeVar, None] = {}
    if isinstance(expr, Expr):
        bound.update((v, None) for f in post_order(expr) if isinstance(f, Function) for v in f.type_params)
    inside = types_in(*_types_in(expr))
    bound.update((v, None) for ty in inside if isinstance(ty, FuncType) for v in ty.type_params)
    return list(bound)


def free_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Those type variables that nothing binds."""
    bound = set(bound_type_vars(expr))
    return [v for v in all_type_vars(expr) if v not in bound]
