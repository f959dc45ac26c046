# SPDX-License-Identifier: Apache-2.0
"""What two types have in common, and what types of functions become where they are called.

merge_types(TensorType((SymDim(), 3)), TensorType((2, 3)))      # Tensor[(2, 3), float32]
applied_type(FuncType((a,), a, (a,)), [int32])                  # fn (int32) -> int32
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from aotc.ir import (
    Dim,
    FuncType,
    IncompleteType,
    RefType,
    SymDim,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
    parts,
    same_dim,
    with_parts,
    with_types,
)

T = typing.TypeVar("T")


def merge_types(a: Type, b: Type) -> Type | None:
    """The type of what has both types, the more precise dimension each time; None if nothing has."""
    return _combine(a, b, _narrower)


def join_types(a: Type, b: Type) -> Type | None:
    """The type of what has one of the types: dimensions that may differ become unknown; None if they must."""
    return _combine(a, b, _wider)


def _combine(a: Type, b: Type, dims: Callable[[Dim, Dim], Dim | None]) -> Type | None:
    if a == b:
        return a
    types = partial(_combine, dims=dims)
    match a, b:
        case TensorType(), TensorType() if a.dtype == b.dtype:
            shape = _pairwise(a.shape, b.shape, dims)
            return None if shape is None else TensorType(shape, a.dtype)
        case TupleType(), TupleType():
            fields = _pairwise(a.fields, b.fields, types)
            return None if fields is None else TupleType(fields)
        case IncompleteType(), _:
            return b
        case _, IncompleteType():
            return a
        case FuncType(), FuncType() if (a := instance(a)).kinds == (b := instance(b)).kinds:
            return _made_of(a, _pairwise(parts(a), parts(b), types))
        case TypeCall(), TypeCall() if a.func == b.func:
            return _made_of(a, _pairwise(parts(a), parts(b), types))
        case RefType(), RefType():
            return _made_of(a, _pairwise(parts(a), parts(b), types))
        case _:
            return None


def _made_of(ty: Type, new: list[Type] | None) -> Type | None:
    return None if new is None else with_parts(ty, tuple(new))


def instance(ty: FuncType, found: Mapping[TypeVar, Type] = MappingProxyType({})) -> FuncType:
    """A function type with types for its type parameters: those that were found, or else types to be found."""
    if not ty.type_params:
        return ty
    chosen = {v: found.get(v) or IncompleteType() for v in ty.type_params}
    new = [with_types(t, chosen) for t in parts(ty)]
    return FuncType(new[:-1], new[-1])


def applied_type(ty: FuncType, args: Sequence[Type]) -> FuncType:
    """A function type with the types for its type parameters that arguments of these types ask for."""
    found: dict[TypeVar, Type] = {}
    pairs: list[tuple[Type, Type]] = [*zip(ty.arg_types, args, strict=False)]
    for wanted, have in pairs:  # which grows
        given = instance(have) if isinstance(have, FuncType) else have
        if isinstance(wanted, TypeVar) and wanted in ty.type_params:
            found[wanted] = merge_types(found.get(wanted, given), given) or given
        elif type(wanted) is type(given):
            pairs.extend(zip(parts(wanted), parts(given), strict=False))
    return instance(ty, found)


def _pairwise(a: Sequence[T], b: Sequence[T], combine: Callable[[T, T], T | None]) -> list[T] | None:
    """What `combine` makes of each pair; None if there are not as many of both, or one pair has no answer."""
    found = [c for c in map(combine, a, b) if c is not None]
    return found if len(found) == len(a) == len(b) else None


def _narrower(a: Dim, b: Dim) -> Dim | None:
    if isinstance(a, SymDim):
        return b if not isinstance(b, SymDim) or not a.name else a
    return a if isinstance(b, SymDim) or a == b else None


def _wider(a: Dim, b: Dim) -> Dim | None:
    if same_dim(a, b):
        return a
    return SymDim() if isinstance(a, SymDim) or isinstance(b, SymDim) else None
