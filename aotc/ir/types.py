# SPDX-License-Identifier: Apache-2.0
"""Types of graph expressions: tensors, tuples, functions; and those of polymorphic programs.

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

#: How deep types may nest: deeper ones are mistakes, and their text grows with the square of the depth.
MOST_NESTED: Final = 100


#: Elements that a tensor may have; extents of 0 count as 1, so that strides stay below it, too.
MOST_ELEMENTS: Final = 1 << 40


#: Most dimensions of a tensor: numpy, in which constants are evaluated, broadcasts no more.
MAX_RANK: Final = 32


def check_rank(rank: int, what: str = "a tensor") -> None:
    """AotcError (code "rank") for more dimensions than a tensor may have."""
    if rank > MAX_RANK:
        raise AotcError("rank", f"{what} would have {rank} dimensions; at most {MAX_RANK} are supported")


class _Printed:
    """Types print as Relay writes them."""

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
    """A dense tensor: `shape` (row major, each dimension an int or a SymDim) and element type.

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
        """Relay's word for the static shape."""
        return self.static_shape

    @property
    def numel(self) -> int:
        return numel(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in memory, sub-byte types unpacked."""
        return self.numel * self.dtype.itemsize


@frozen(init=False)
class _Compound(_Printed):
    """A type that is made of others, nested `depth` deep.  Raises AotcError beyond MOST_NESTED."""

    depth: int = field(compare=False, repr=False)

    def _fill(self, **fields: Any) -> None:
        fill(self, **fields)
        depth = 1 + max((getattr(t, "depth", 1) for t in parts(self)), default=0)  # type: ignore[arg-type]
        if depth > MOST_NESTED:
            raise AotcError("type-depth", f"a type is nested more than {MOST_NESTED} deep")
        fill(self, depth=depth)


@frozen(init=False)
class TupleType(_Compound):
    """A tuple of types."""

    fields: tuple[Type, ...]

    def __init__(self, fields: Iterable[Type]) -> None:
        self._fill(fields=tuple(fields))


@frozen(init=False)
class FuncType(_Compound):
    """The type of a function value, of any types in the place of `type_params`.

    Types that differ in the names of their type parameters alone are equal.
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
    """What a type may stand for: Relay's names and numbers."""

    Type = 0
    ShapeVar = 1
    BaseType = 2
    Shape = 3
    Constraint = 4
    AdtHandle = 5
    TypeData = 6


@frozen(eq=False)
class TypeVar(_Printed):
    """A type that is not known, of one function or data type: equal to itself alone."""

    name: str
    kind: TypeKind = TypeKind.Type

    def __post_init__(self) -> None:
        fill(self, kind=TypeKind(self.kind))

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")


@frozen
class GlobalTypeVar(_Printed):
    """The name of a data type of the module; calling it gives the type of its values."""

    name: str
    kind: TypeKind = TypeKind.AdtHandle

    name_hint = property(attrgetter("name"), doc="Relay's word for the name.")

    def __call__(self, *args: Type) -> TypeCall:
        return TypeCall(self, args)


@frozen(init=False)
class TypeCall(_Compound):
    """A data type with types in the place of its type variables."""

    func: GlobalTypeVar
    args: tuple[Type, ...]

    def __init__(self, func: GlobalTypeVar, args: Iterable[Type]) -> None:
        self._fill(func=func, args=tuple(args))


@frozen(init=False)
class RefType(_Compound):
    """A place that holds a value of a type."""

    value: Type

    def __init__(self, value: Type) -> None:
        self._fill(value=value)


@frozen(init=False)
class TypeRelation(_Compound):
    """A relation of types that `func` states, the first `num_inputs` of which determine the others.

    Types of functions may have relations as constraints, and `aotc.relay.type_solver` solves them; inference goes
    by the rules of operators.  `func` None is a relation of which nothing is known.
    """

    func: EnvFunc | None
    args: tuple[Type, ...]
    num_inputs: int
    attrs: Any

    def __init__(self, func: EnvFunc | None, args: Iterable[Type], num_inputs: int, attrs: Any) -> None:
        self._fill(func=func, args=tuple(args), num_inputs=num_inputs, attrs=attrs)


@frozen(eq=False)
class IncompleteType(_Printed):
    """A type that inference is to find: equal to itself alone."""

    kind: TypeKind = TypeKind.Type


Type: TypeAlias = (
    TensorType | TupleType | FuncType | TypeVar | GlobalTypeVar | TypeCall | RefType | TypeRelation | IncompleteType
)


def type_text(ty: Type, dim_text: Callable[[Dim], str] = str) -> str:
    """A type as Relay writes it, with its dimensions as `dim_text` says."""

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
    """The types that a type is made of."""
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
    """Types and all that they are made of, each before its parts."""
    for ty in types:
        yield ty
        yield from types_in(*parts(ty))


def is_complete(ty: Type) -> bool:
    """Whether inference has found all of a type."""
    return not any(isinstance(part, IncompleteType) for part in types_in(ty))


def with_parts(ty: Type, new: tuple[Type, ...]) -> Any:
    """A type of the same form made of other types, as many as `parts` gives."""
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
    """`ty` with types in the place of type variables."""
    if not mapping:
        return ty
    if isinstance(ty, TypeVar):
        return mapping.get(ty, ty)
    return with_parts(ty, tuple(with_types(t, mapping) for t in parts(ty)))


def type_vars(ty: Type) -> list[TypeVar]:
    """The type variables of a type, each once, in order; those that it binds itself come first."""
    found = (t.type_params if isinstance(t, FuncType) else [t] for t in types_in(ty))
    return list(dict.fromkeys(v for own in found for v in own if isinstance(v, TypeVar)))


def tensor_types(ty: Type) -> tuple[TensorType, ...]:
    """The tensors of a type, tuples flattened in order."""
    match ty:
        case TensorType():
            return (ty,)
        case TupleType():
            return tuple(t for field in ty.fields for t in tensor_types(field))
        case _:
            raise TypeError(f"{ty} holds no tensors")


def leaves(value: Any) -> list[Any]:
    """What a (nested) tuple holds, in order; a value that is no tuple alone."""
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple) else [value]


def nested(ty: Type, values: Iterator[T]) -> T | tuple[Any, ...]:
    """Values, one for each tensor of a type, in the type's structure of tuples."""
    if isinstance(ty, TupleType):
        return tuple(nested(field, values) for field in ty.fields)
    return next(values)
