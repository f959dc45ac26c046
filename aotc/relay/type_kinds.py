# SPDX-License-Identifier: Apache-2.0
"""Kinds of types, and the type variables of programs.

check_kind(relay.TupleType([a]))                 # TypeKind.Type; AotcError where a's kind is another one
free_type_vars(relay.FuncType([a], b, [a]))      # [b]
"""

from collections.abc import Iterator

from aotc.ir import (
    AotcError,
    Diagnostic,
    FuncType,
    GlobalTypeVar,
    Span,
    Type,
    TypeRelation,
    TypeVar,
    component_types,
    walk_nested_types,
)
from aotc.ir.types import IncompleteType, TypeCall, TypeKind, type_vars
from aotc.relay.graph_api import Expr, Function, IRModule, TypeData, Var, post_order


def check_kind(t: Type | TypeData, mod: IRModule | None = None) -> TypeKind:
    """Return the kind of a type; raise AotcError if a part of it does not have the kind that it
    must have.

    mod    defines the data types, so that the numbers of their type arguments are checked; None skips this check
    """
    if isinstance(t, TypeData):
        return TypeKind.TypeData
    if isinstance(t, TypeVar | GlobalTypeVar | IncompleteType):
        return t.kind
    for part in component_types(t):
        expected_kind = TypeKind.Constraint if isinstance(part, TypeRelation) else TypeKind.Type
        if (kind := check_kind(part, mod)) is not expected_kind:
            text = f"a part of a {type(t).__name__} is of kind {kind.name}, not {expected_kind.name}"
            raise AotcError("type", text, hint=f"replace {part} by a type of kind {expected_kind.name}")
    if isinstance(t, TypeCall):
        if t.func.kind is not TypeKind.AdtHandle:
            hint = "make its GlobalTypeVar of kind AdtHandle"
            raise AotcError("type", f"{t.func} is of kind {t.func.kind.name}, not a data type", hint=hint)
        if mod is not None and (wrong := _diagnose_type_argument_count(t, mod[t.func])) is not None:
            raise AotcError.collect([wrong])
    return TypeKind.Constraint if isinstance(t, TypeRelation) else TypeKind.Type


def _diagnose_type_argument_count(ty: TypeCall, data: TypeData, span: Span | None = None) -> Diagnostic | None:
    if (count := len(data.type_vars)) == len(ty.args):
        return None
    hint = f"write {ty.func}[{', '.join(v.name for v in data.type_vars)}], with a type for each"
    return Diagnostic("type", f"{ty.func} takes {count} types, got {len(ty.args)}", span, hint=hint)


def diagnose_type_argument_counts(module: IRModule) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each annotation in which a data type has a wrong number of type
    arguments.
    """
    known = module.type_definitions
    declared = [(t, c.span) for data in known.values() for c in data.constructors for t in c.inputs]
    declared += [entry for f in module.functions.values() for entry in _annotated_types_with_spans(f)] if known else []
    for t, span in ((t, span) for ty, span in declared for t in walk_nested_types(ty)):
        if (
            isinstance(t, TypeCall)
            and t.func in known
            and (wrong := _diagnose_type_argument_count(t, known[t.func], span))
        ):
            yield wrong


# --- type variables


def _annotated_types_with_spans(node: Expr | Type) -> Iterator[tuple[Type, Span | None]]:
    if not isinstance(node, Expr):
        yield node, None
        return
    for inside in post_order(node):
        if isinstance(inside, Var) and inside.annotation is not None:
            yield inside.annotation, inside.span
        if isinstance(inside, Function):
            yield from ((ty, inside.span) for ty in (*inside.type_params, inside.ret_type) if ty is not None)


def all_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the type variables of an expression or type, each once."""
    return list(dict.fromkeys(v for ty, _ in _annotated_types_with_spans(expr) for v in type_vars(ty)))


def bound_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the type variables that functions, or types of functions, have as type parameters."""
    bound: dict[TypeVar, None] = {}
    if isinstance(expr, Expr):
        bound.update((v, None) for f in post_order(expr) if isinstance(f, Function) for v in f.type_params)
    inside = walk_nested_types(*(ty for ty, _ in _annotated_types_with_spans(expr)))
    bound.update((v, None) for ty in inside if isinstance(ty, FuncType) for v in ty.type_params)
    return list(bound)


def free_type_vars(expr: Expr | Type, mod: IRModule | None = None) -> list[TypeVar]:
    """Return the type variables that no function binds as type parameters."""
    bound = set(bound_type_vars(expr))
    return [v for v in all_type_vars(expr) if v not in bound]
