# SPDX-License-Identifier: Apache-2.0
"""Merging and joining of types, and instantiation of polymorphic function types at calls.

merge_types(TensorType((SymDim(), 3)), TensorType((2, 3)))      # Tensor[(2, 3), float32]
instantiate_function_type(FuncType((a,), a, (a,)), [int32])     # fn (int32) -> int32
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from aotc.ir import Dim, IncompleteType, SymDim, is_fully_inferred, same_dim, substitute_type_vars
from aotc.ir.types import (
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
    component_types,
    replace_component_types,
)

T = typing.TypeVar("T")


def merge_types(a: Type, b: Type) -> Type | None:
    """Return the most general type that is both types, with the more precise of each two
    dimensions; None if there is none.
    """
    return _combine_types(a, b, _more_precise_dim)


def join_types(a: Type, b: Type) -> Type | None:
    """Return the most specific type that covers two types: dimensions of which one is symbolic
    become unknown.

    None if dtypes, ranks or static dimensions differ.
    """
    return _combine_types(a, b, _more_general_dim)


def _combine_types(a: Type, b: Type, combine_dims: Callable[[Dim, Dim], Dim | None]) -> Type | None:
    if a == b:
        return a
    types = partial(_combine_types, combine_dims=combine_dims)
    match a, b:
        case TensorType(), TensorType() if a.dtype == b.dtype:
            shape = _combine_pairs_or_none(a.shape, b.shape, combine_dims)
            return None if shape is None else TensorType(shape, a.dtype)
        case IncompleteType(), _:
            return b
        case _, IncompleteType():
            return a
        case FuncType(), FuncType():
            return _replace_components_unless_none(
                a := instantiate_function_type(a),
                _combine_pairs_or_none(component_types(a), component_types(instantiate_function_type(b)), types),
            )
        case TypeCall(), TypeCall() if a.func != b.func:
            return None
        case (TupleType(), TupleType()) | (TypeCall(), TypeCall()) | (RefType(), RefType()):
            return _replace_components_unless_none(
                a, _combine_pairs_or_none(component_types(a), component_types(b), types)
            )
        case _:
            return None


def _replace_components_unless_none(ty: Type, components: list[Type] | None) -> Type | None:
    return None if components is None else replace_component_types(ty, tuple(components))


def instantiate_function_type(ty: FuncType, argument_types: Sequence[Type] = ()) -> FuncType:
    """Return a function type with its type parameters replaced; see `infer_type_arguments`."""
    chosen = infer_type_arguments(ty, argument_types)
    if chosen:
        return FuncType(
            (substitute_type_vars(t, chosen) for t in ty.arg_types), substitute_type_vars(ty.ret_type, chosen)
        )
    return ty


def infer_type_arguments(ty: FuncType, argument_types: Sequence[Type]) -> dict[TypeVar, Type]:
    """Return a type for each type parameter: the one that the argument types imply, or else an
    incomplete type.
    """
    type_by_param: dict[TypeVar, Type] = {v: IncompleteType() for v in ty.type_params}
    pairs: list[tuple[Type, Type]] = [*zip(ty.arg_types, argument_types, strict=False)] if type_by_param else []
    for param_type, have in pairs:  # the list grows in the loop
        given = instantiate_function_type(have) if isinstance(have, FuncType) else have
        if isinstance(param_type, TypeVar) and param_type in type_by_param:
            type_by_param[param_type] = merge_types(type_by_param[param_type], given) or given
        elif type(param_type) is type(given):
            pairs.extend(zip(component_types(param_type), component_types(given), strict=False))
    return type_by_param


def substituted_type_or_none_if_incomplete(ty: Type | None, type_by_variable: Mapping[TypeVar, Type]) -> Type | None:
    """Return a declared type with its type variables replaced; None if it remains incomplete."""
    new_type: Type | None = ty and substitute_type_vars(ty, type_by_variable)
    return new_type if new_type is None or is_fully_inferred(new_type) else None


def _combine_pairs_or_none(a: Sequence[T], b: Sequence[T], combine: Callable[[T, T], T | None]) -> list[T] | None:
    """Return the results of `combine` for each pair; None if the lengths differ or a pair has no
    result.
    """
    results = [c for c in map(combine, a, b) if c is not None]
    return results if len(results) == len(a) == len(b) else None


def _more_precise_dim(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, SymDim):
        return b if not isinstance(b, SymDim) or not a.name else a
    return a if isinstance(b, SymDim) or a == b else None


def _more_general_dim(a: Dim, b: Dim) -> Dim | None:
    if same_dim(a, b):
        return a
    return SymDim() if isinstance(a, SymDim) or isinstance(b, SymDim) else None
