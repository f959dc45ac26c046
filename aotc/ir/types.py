# SPDX-License-Identifier: Apache-2.0
"""Types of graph expressions: tensors, tuples, functions, and the type variables of polymorphic
programs.

TensorType((1, 3), "float32")                              # Tensor[(1, 3), float32]
TupleType((TensorType((), "int64"),))                      # (int64,)
FuncType((TensorType((2,), "bool"),), TensorType((), "int32"))
FuncType((a,), a, (a,))                                    # fn [a](a) -> a, where a = TypeVar("a")
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import IntEnum
from operator import attrgetter, index
from typing import Any, Final, TypeAlias

from aotc.ir.diagnostics import AotcError, AotcTypeError, assert_never
from aotc.ir.dimensions import Dim, Shape, SymDim, is_static, numel, static_shape
from aotc.ir.dtype import DType
from aotc.ir.env_func import EnvFunc
from aotc.ir.frozen_dataclass import fill, frozen

T = typing.TypeVar("T")

#: Largest nesting depth of types: the size of their text grows with the square of the depth.
MOST_NESTED: Final = 100


#: Largest number of elements of a tensor; extents of 0 count as 1, which also bounds the strides.
MOST_ELEMENTS: Final = 1 << 40


#: Largest rank of a tensor: the limit of numpy, in which constants are evaluated.
MAX_RANK: Final = 32


def check_rank(rank: int, what: str = "a tensor") -> None:
    """Raise AotcError (code "rank") if `rank` exceeds MAX_RANK; `what` names the tensor in the
    message.
    """
    if rank > MAX_RANK:
        raise AotcError("rank", f"{what} would have {rank} dimensions; at most {MAX_RANK} are supported")


class _Printed:
    """Mixin of graph types whose str() is Relay's text format."""

    __slots__ = ()

    def __str__(self) -> str:
        return type_text(self)  # type: ignore[arg-type]


def _dim(value: Any) -> Dim:
    try:
        return value if isinstance(value, SymDim) else index(value)
    except TypeError:
        hint = 'dimensions are whole numbers, and relay.Any() or te.var("n") where they are not known'
        raise AotcTypeError("shape", f"{value!r} is no dimension", hint=hint) from None


@frozen(init=False)
class TensorType(_Printed):
    """Type of a dense, row-major tensor: `shape` (each dimension an int or a SymDim) and element
    type.

    Raises AotcError for a negative dimension, for more than MAX_RANK of them, and for more than MOST_ELEMENTS elements.
    """

    shape: Shape
    dtype: DType

    def __init__(self, shape: Iterable[Dim], dtype: str = "float32") -> None:
        try:
            given = iter(shape)
        except TypeError:
            hint = "a shape is a tuple: (3,), or () of a scalar"
            raise AotcTypeError("shape", f"{shape!r} is no shape", hint=hint) from None
        dims = tuple(map(_dim, given))
        check_rank(len(dims))
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise AotcError("shape", f"a shape has a negative dimension: ({', '.join(map(str, dims))})")
        if math.prod(d for d in dims if isinstance(d, int) and d) > MOST_ELEMENTS:
            raise AotcError(
                "shape", f"a tensor of this shape would exceed the address space: ({', '.join(map(str, dims))})"
            )
        fill(self, shape=dims, dtype=DType(dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        return static_shape(self.shape)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The static shape of the tensor type, under Relay's name."""
        return self.static_shape

    @property
    def numel(self) -> int:
        return numel(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes; sub-byte types take one byte per element."""
        return self.numel * self.dtype.itemsize


@frozen(init=False)
class _Compound(_Printed):
    """Base of types composed of other types; raises AotcError if nested more than MOST_NESTED deep
    (`depth`).
    """

    depth: int = field(compare=False, repr=False)

    def _fill(self, **fields: Any) -> None:
        fill(self, **fields)
        depth = 1 + max((getattr(t, "depth", 1) for t in parts(self)), default=0)  # type: ignore[arg-type]
        if depth > MOST_NESTED:
            raise AotcError("type-depth", f"a type is nested more than {MOST_NESTED} deep")
        fill(self, depth=depth)


@frozen(init=False)
class TupleType(_Compound):
    """The type of a tuple of values, given by the types of its fields."""

    fields: tuple[Type, ...]

    def __init__(self, fields: Iterable[Type]) -> None:
        self._fill(fields=tuple(fields))


@frozen(init=False)
class FuncType(_Compound):
    """Type of a function, generic in its `type_params`.

    Types that differ only in the names of their type parameters are equal.
    """

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...]
    type_constraints: tuple[Type, ...]

    def __init__(
        self,
        arg_types: Iterable[Type],
        ret_type: Type,
        type_params: Iterable[TypeVar] | None = (),
        type_constraints: Iterable[Type] | None = (),
    ) -> None:
        args, params = tuple(arg_types), tuple(type_params or ())
        constraints = tuple(type_constraints or ())
        self._fill(arg_types=args, ret_type=ret_type, type_params=params, type_constraints=constraints)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FuncType) or self.kinds != other.kinds:
            return False
        common = [TypeVar(v.name, v.kind) for v in self.type_params]
        mine, theirs = (dict(zip(f.type_params, common, strict=True)) for f in (self, other))
        pairs = zip(parts(self), parts(other), strict=False)
        alike = len(self.arg_types) == len(other.arg_types) and len(parts(self)) == len(parts(other))
        return alike and all(with_types(a, mine) == with_types(b, theirs) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((len(self.arg_types), self.kinds) if self.kinds else (self.arg_types, self.ret_type))

    @property
    def kinds(self) -> tuple[TypeKind, ...]:
        return tuple(v.kind for v in self.type_params)


class TypeKind(IntEnum):
    """Kinds of Relay types (type, shape, constraint, ...), with Relay's numbers."""

    Type = 0
    ShapeVar = 1
    BaseType = 2
    Shape = 3
    Constraint = 4
    AdtHandle = 5
    TypeData = 6


@frozen(eq=False)
class TypeVar(_Printed):
    """A type variable of a generic function or data type; equal only to itself."""

    name: str
    kind: TypeKind = TypeKind.Type

    def __post_init__(self) -> None:
        fill(self, kind=TypeKind(self.kind))

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")


@frozen
class GlobalTypeVar(_Printed):
    """Name of an algebraic data type of a module; calling it with type arguments gives a TypeCall."""

    name: str
    kind: TypeKind = TypeKind.AdtHandle

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")

    def __call__(self, *args: Type) -> TypeCall:
        return TypeCall(self, args)


@frozen(init=False)
class TypeCall(_Compound):
    """An algebraic data type of Relay applied to type arguments, such as List[int32]."""

    func: GlobalTypeVar
    args: tuple[Type, ...]

    def __init__(self, func: GlobalTypeVar, args: Iterable[Type]) -> None:
        self._fill(func=func, args=tuple(args))


@frozen(init=False)
class RefType(_Compound):
    """The type of a mutable reference (Relay's Ref) to a value."""

    value: Type

    def __init__(self, value: Type) -> None:
        self._fill(value=value)


@frozen(init=False)
class TypeRelation(_Compound):
    """A type relation `func` over `args`, of which the first `num_inputs` determine the remaining
    ones.

    Function types may have relations as constraints, which `aotc.relay.type_solver` solves; type
    inference uses the rules of operators instead.  With `func` None, nothing is known about the
    relation.
    """

    func: EnvFunc | None
    args: tuple[Type, ...]
    num_inputs: int
    attrs: Any

    def __init__(self, func: EnvFunc | None, args: Iterable[Type], num_inputs: int, attrs: Any) -> None:
        self._fill(func=func, args=tuple(args), num_inputs=num_inputs, attrs=attrs)


@frozen(eq=False)
class IncompleteType(_Printed):
    """Placeholder for a type that type inference has to find; equal only to itself."""

    kind: TypeKind = TypeKind.Type


Type: TypeAlias = (
    TensorType | TupleType | FuncType | TypeVar | GlobalTypeVar | TypeCall | RefType | TypeRelation | IncompleteType
)


def type_text(ty: Type, dim_text: Callable[[Dim], str] = str) -> str:
    """Return a type in Relay's text format, with dimensions formatted by `dim_text`."""

    def inner(types: Iterable[Type]) -> str:
        return ", ".join(type_text(t, dim_text) for t in types)

    match ty:
        case TensorType():
            if ty.shape:
                return f"Tensor[({', '.join(map(dim_text, ty.shape))}), {ty.dtype}]"
            return str(ty.dtype)
        case TupleType():
            return f"({inner(ty.fields)},)" if len(ty.fields) == 1 else f"({inner(ty.fields)})"
        case FuncType():
            quantified = f"[{inner(ty.type_params)}]" if ty.type_params else ""
            return f"fn {quantified}({inner(ty.arg_types)}) -> {type_text(ty.ret_type, dim_text)}"
        case TypeVar() | GlobalTypeVar():
            return ty.name
        case TypeCall():
            return f"{ty.func.name}[{inner(ty.args)}]" if ty.args else ty.func.name
        case RefType():
            return f"ref({type_text(ty.value, dim_text)})"
        case TypeRelation():
            return f"{'?' if ty.func is None else ty.func.relation}({inner(ty.args)})"
        case IncompleteType():
            return "?"
        case _:
            assert_never(ty)


def parts(ty: Type) -> tuple[Type, ...]:
    """Return the direct component types of a composite type; () for tensor types and variables."""
    match ty:
        case TupleType():
            return ty.fields
        case FuncType():
            return (*ty.arg_types, ty.ret_type, *ty.type_constraints)
        case TypeCall() | TypeRelation():
            return ty.args
        case RefType():
            return (ty.value,)
        case _:
            return ()


def types_in(*types: Type) -> Iterator[Type]:
    """Yield types and all their components recursively, each before its components."""
    for ty in types:
        yield ty
        yield from types_in(*parts(ty))


def is_complete(ty: Type) -> bool:
    """Return True if type inference has resolved a type: it contains no IncompleteType."""
    return not any(isinstance(part, IncompleteType) for part in types_in(ty))


def with_parts(ty: Type, new: tuple[Type, ...]) -> Any:
    """Return a composite type with its component types replaced by `new`, in the order of `parts`."""
    if new == parts(ty):
        return ty
    match ty:
        case FuncType():
            count = len(ty.arg_types)
            return FuncType(new[:count], new[count], ty.type_params, new[count + 1 :])
        case TypeCall():
            return TypeCall(ty.func, new)
        case RefType():
            return RefType(new[0])
        case TypeRelation():
            return TypeRelation(ty.func, new, ty.num_inputs, ty.attrs)
        case _:
            return TupleType(new)


def with_types(ty: Type, mapping: Mapping[TypeVar, Type]) -> Any:
    """Substitute type variables in a type by the types that `mapping` gives for them."""
    if not mapping:
        return ty
    if isinstance(ty, TypeVar):
        return mapping.get(ty, ty)
    return with_parts(ty, tuple(with_types(t, mapping) for t in parts(ty)))


def type_vars(ty: Type) -> list[TypeVar]:
    """Return the type variables in a type without duplicates, in order; a function's own type
    parameters come first.
    """
    found = (t.type_params if isinstance(t, FuncType) else [t] for t in types_in(ty))
    return list(dict.fromkeys(v for own in found for v in own if isinstance(v, TypeVar)))


def tensor_types(ty: Type) -> tuple[TensorType, ...]:
    """Return the tensor types in a type, tuples flattened in order; TypeError if it contains
    others.
    """
    match ty:
        case TensorType():
            return (ty,)
        case TupleType():
            return tuple(t for field in ty.fields for t in tensor_types(field))
        case _:
            raise TypeError(f"{ty} holds no tensors")


def leaves(value: Any) -> list[Any]:
    """Flatten a nested tuple of values to a list; any other value becomes a list of one element."""
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple) else [value]


def nested(ty: Type, values: Iterator[T]) -> T | tuple[Any, ...]:
    """Arrange a flat sequence of values, one for each tensor of a type, in the nested tuples of the
    type.
    """
    if isinstance(ty, TupleType):
        return tuple(nested(field, values) for field in ty.fields)
    return next(values)
