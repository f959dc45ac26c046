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
from aotc.ir.dimensions import Dim, Shape, SymDim, is_static, numel, require_static_shape
from aotc.ir.dtype import DType
from aotc.ir.frozen_dataclass import frozen, set_frozen_fields
from aotc.ir.type_relation_by_name import EnvFunc

T = typing.TypeVar("T")

#: Largest nesting depth of types: the size of their text grows with the square of the depth.
MAX_TYPE_DEPTH: Final = 100


#: Largest number of elements of a tensor; extents of 0 count as 1, which also bounds the strides.
MAX_TENSOR_ELEMENTS: Final = 1 << 40


#: Largest rank of a tensor: the limit of numpy, in which constants are evaluated.
MAX_RANK: Final = 32


def check_rank(rank: int, description: str = "a tensor") -> None:
    """Raise AotcError (code "rank") if `rank` exceeds MAX_RANK; `description` names the tensor in
    the message.
    """
    if rank > MAX_RANK:
        raise AotcError("rank", f"{description} would have {rank} dimensions; at most {MAX_RANK} are supported")


class _Printed:
    """Mixin of graph types whose str() is Relay's text format."""

    __slots__ = ()

    def __str__(self) -> str:
        return type_text(self)  # type: ignore[arg-type]


def _require_dimension(value: Any) -> Dim:
    try:
        return value if isinstance(value, SymDim) else index(value)
    except TypeError:
        hint = 'dimensions are whole numbers, and relay.Any() or te.var("n") where they are not known'
        raise AotcTypeError("shape", f"{value!r} is no dimension", hint=hint) from None


@frozen(init=False)
class TensorType(_Printed):
    """Type of a dense, row-major tensor: `shape` (each dimension an int or a SymDim) and element
    type.

    Raises AotcError for a negative dimension, for more than MAX_RANK of them, and for more than
    MOST_ELEMENTS elements.
    """

    shape: Shape
    dtype: DType

    def __init__(self, shape: Iterable[Dim], dtype: str = "float32") -> None:
        try:
            given = iter(shape)
        except TypeError:
            hint = "a shape is a tuple: (3,), or () of a scalar"
            raise AotcTypeError("shape", f"{shape!r} is no shape", hint=hint) from None
        dims = tuple(map(_require_dimension, given))
        check_rank(len(dims))
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise AotcError("shape", f"a shape has a negative dimension: ({', '.join(map(str, dims))})")
        if math.prod(d for d in dims if isinstance(d, int) and d) > MAX_TENSOR_ELEMENTS:
            raise AotcError(
                "shape", f"a tensor of this shape would exceed the address space: ({', '.join(map(str, dims))})"
            )
        set_frozen_fields(self, shape=dims, dtype=DType(dtype))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        return require_static_shape(self.shape)

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
class _CompositeType(_Printed):
    """Base of types composed of other types; raises AotcError if nested more than MAX_TYPE_DEPTH
    deep (`depth`).
    """

    depth: int = field(compare=False, repr=False)

    def _set_fields_and_check_depth(self, **fields: Any) -> None:
        set_frozen_fields(self, **fields)
        depth = 1 + max((getattr(t, "depth", 1) for t in component_types(self)), default=0)  # type: ignore[arg-type]
        if depth > MAX_TYPE_DEPTH:
            raise AotcError("type-depth", f"a type is nested more than {MAX_TYPE_DEPTH} deep")
        set_frozen_fields(self, depth=depth)


@frozen(init=False)
class TupleType(_CompositeType):
    """The type of a tuple of values, given by the types of its fields."""

    fields: tuple[Type, ...]

    def __init__(self, fields: Iterable[Type]) -> None:
        self._set_fields_and_check_depth(fields=tuple(fields))


@frozen(init=False)
class FuncType(_CompositeType):
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
        self._set_fields_and_check_depth(
            arg_types=args, ret_type=ret_type, type_params=params, type_constraints=constraints
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FuncType) or self.type_param_kinds != other.type_param_kinds:
            return False
        common = [TypeVar(v.name, v.kind) for v in self.type_params]
        mine, theirs = (dict(zip(f.type_params, common, strict=True)) for f in (self, other))
        pairs = zip(component_types(self), component_types(other), strict=False)
        alike = len(self.arg_types) == len(other.arg_types) and len(component_types(self)) == len(
            component_types(other)
        )
        return alike and all(substitute_type_vars(a, mine) == substitute_type_vars(b, theirs) for a, b in pairs)

    def __hash__(self) -> int:
        return hash(
            (len(self.arg_types), self.type_param_kinds) if self.type_param_kinds else (self.arg_types, self.ret_type)
        )

    @property
    def type_param_kinds(self) -> tuple[TypeKind, ...]:
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
        set_frozen_fields(self, kind=TypeKind(self.kind))

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
class TypeCall(_CompositeType):
    """An algebraic data type of Relay applied to type arguments, such as List[int32]."""

    func: GlobalTypeVar
    args: tuple[Type, ...]

    def __init__(self, func: GlobalTypeVar, args: Iterable[Type]) -> None:
        self._set_fields_and_check_depth(func=func, args=tuple(args))


@frozen(init=False)
class RefType(_CompositeType):
    """The type of a mutable reference (Relay's Ref) to a value."""

    value: Type

    def __init__(self, value: Type) -> None:
        self._set_fields_and_check_depth(value=value)


@frozen(init=False)
class TypeRelation(_CompositeType):
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
        self._set_fields_and_check_depth(func=func, args=tuple(args), num_inputs=num_inputs, attrs=attrs)


@frozen(eq=False)
class IncompleteType(_Printed):
    """Placeholder for a type that type inference has to find; equal only to itself."""

    kind: TypeKind = TypeKind.Type


Type: TypeAlias = (
    TensorType | TupleType | FuncType | TypeVar | GlobalTypeVar | TypeCall | RefType | TypeRelation | IncompleteType
)


def type_text(ty: Type, format_dim: Callable[[Dim], str] = str) -> str:
    """Return a type in Relay's text format, with dimensions formatted by `format_dim`."""

    def comma_separated_types(types: Iterable[Type]) -> str:
        return ", ".join(type_text(t, format_dim) for t in types)

    match ty:
        case TensorType():
            if ty.shape:
                return f"Tensor[({', '.join(map(format_dim, ty.shape))}), {ty.dtype}]"
            return str(ty.dtype)
        case TupleType():
            return (
                f"({comma_separated_types(ty.fields)},)"
                if len(ty.fields) == 1
                else f"({comma_separated_types(ty.fields)})"
            )
        case FuncType():
            quantified = f"[{comma_separated_types(ty.type_params)}]" if ty.type_params else ""
            return f"fn {quantified}({comma_separated_types(ty.arg_types)}) -> {type_text(ty.ret_type, format_dim)}"
        case TypeVar() | GlobalTypeVar():
            return ty.name
        case TypeCall():
            return f"{ty.func.name}[{comma_separated_types(ty.args)}]" if ty.args else ty.func.name
        case RefType():
            return f"ref({type_text(ty.value, format_dim)})"
        case TypeRelation():
            return f"{'?' if ty.func is None else ty.func.relation_name}({comma_separated_types(ty.args)})"
        case IncompleteType():
            return "?"
        case _:
            assert_never(ty)


def component_types(ty: Type) -> tuple[Type, ...]:
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


def walk_nested_types(*types: Type) -> Iterator[Type]:
    """Yield types and all their components recursively, each before its components."""
    for ty in types:
        yield ty
        yield from walk_nested_types(*component_types(ty))


def is_fully_inferred(ty: Type) -> bool:
    """Return True if type inference has resolved a type: it contains no IncompleteType."""
    return not any(isinstance(part, IncompleteType) for part in walk_nested_types(ty))


def replace_component_types(ty: Type, components: tuple[Type, ...]) -> Any:
    """Return a composite type with its component types replaced by `components`, in the order of
    `component_types`.
    """
    if components == component_types(ty):
        return ty
    match ty:
        case FuncType():
            count = len(ty.arg_types)
            return FuncType(components[:count], components[count], ty.type_params, components[count + 1 :])
        case TypeCall():
            return TypeCall(ty.func, components)
        case RefType():
            return RefType(components[0])
        case TypeRelation():
            return TypeRelation(ty.func, components, ty.num_inputs, ty.attrs)
        case _:
            return TupleType(components)


def substitute_type_vars(ty: Type, mapping: Mapping[TypeVar, Type]) -> Any:
    """Substitute type variables in a type by the types that `mapping` gives for them."""
    if not mapping:
        return ty
    if isinstance(ty, TypeVar):
        return mapping.get(ty, ty)
    return replace_component_types(ty, tuple(substitute_type_vars(t, mapping) for t in component_types(ty)))


def type_vars(ty: Type) -> list[TypeVar]:
    """Return the type variables in a type without duplicates, in order; a function's own type
    parameters come first.
    """
    type_lists = (t.type_params if isinstance(t, FuncType) else [t] for t in walk_nested_types(ty))
    return list(dict.fromkeys(v for type_list in type_lists for v in type_list if isinstance(v, TypeVar)))


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


def flatten_nested_tuple(value: Any) -> list[Any]:
    """Flatten a nested tuple of values to a list; any other value becomes a list of one element."""
    return [leaf for item in value for leaf in flatten_nested_tuple(item)] if isinstance(value, tuple) else [value]


def nest_values_like_type(ty: Type, values: Iterator[T]) -> T | tuple[Any, ...]:
    """Arrange a flat sequence of values, one for each tensor of a type, in the nested tuples of the
    type.
    """
    if isinstance(ty, TupleType):
        return tuple(nest_values_like_type(field, values) for field in ty.fields)
    return next(values)
