# SPDX-License-Identifier: Apache-2.0
"""Types of graph expressions: tensors, tuples, functions.

TensorType((1, 3), "float32")                              # Tensor[(1, 3), float32]
TupleType((TensorType((), "int64"),))                      # (int64,)
FuncType((TensorType((2,), "bool"),), TensorType((), "int32"))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, Final, TypeAlias, TypeVar

from aotc.ir.diagnostics import AotcError, assert_never
from aotc.ir.dims import Dim, Shape, is_static, numel, static_shape
from aotc.ir.dtype import DType
from aotc.ir.records import frozen

T = TypeVar("T")

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


@frozen(init=False)
class TensorType(_Printed):
    """A dense tensor: `shape` (row major, each dimension an int or a SymDim) and element type.

    Raises AotcError for a negative dimension, for more than MAX_RANK of them, and for more than MOST_ELEMENTS elements.
    """

    shape: Shape
    dtype: DType

    def __init__(self, shape: Iterable[Dim], dtype: str = "float32") -> None:
        dims = tuple(d if not hasattr(d, "__index__") else d.__index__() for d in shape)
        check_rank(len(dims))
        if any(isinstance(d, int) and d < 0 for d in dims):
            raise AotcError("shape", f"a dimension is negative: ({', '.join(map(str, dims))})")
        if math.prod(d for d in dims if isinstance(d, int) and d) > MOST_ELEMENTS:
            raise AotcError("shape", f"a tensor would be larger than any memory: ({', '.join(map(str, dims))})")
        object.__setattr__(self, "shape", dims)
        object.__setattr__(self, "dtype", DType(dtype))

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
class TupleType(_Printed):
    """A tuple of types, nested `depth` deep.  Raises AotcError beyond MOST_NESTED."""

    fields: tuple[Type, ...]
    depth: int = field(compare=False, repr=False)

    def __init__(self, fields: Iterable[Type]) -> None:
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "depth", _depth(self.fields))


@frozen(init=False)
class FuncType(_Printed):
    """The type of a function value.  `depth` as of TupleType."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    depth: int = field(compare=False, repr=False)

    def __init__(self, arg_types: Iterable[Type], ret_type: Type) -> None:
        object.__setattr__(self, "arg_types", tuple(arg_types))
        object.__setattr__(self, "ret_type", ret_type)
        object.__setattr__(self, "depth", _depth((*self.arg_types, ret_type)))


Type: TypeAlias = "TensorType | TupleType | FuncType"


def type_text(ty: Type, dim_text: Callable[[Dim], str] = str) -> str:
    """A type as Relay writes it, with its dimensions as `dim_text` says."""

    def inner(types: Iterable[Type]) -> str:
        return ", ".join(type_text(t, dim_text) for t in types)

    match ty:
        case TensorType():
            return f"Tensor[({', '.join(map(dim_text, ty.shape))}), {ty.dtype}]" if ty.shape else str(ty.dtype)
        case TupleType():
            return f"({inner(ty.fields)},)" if len(ty.fields) == 1 else f"({inner(ty.fields)})"
        case FuncType():
            return f"fn ({inner(ty.arg_types)}) -> {type_text(ty.ret_type, dim_text)}"
        case _:
            assert_never(ty)


def _depth(parts: tuple[Type, ...]) -> int:
    """The depth of a type of these parts; AotcError if it is more than types may have."""
    depth = 1 + max((1 if isinstance(t, TensorType) else t.depth for t in parts), default=0)
    if depth > MOST_NESTED:
        raise AotcError("type-depth", f"a type is nested more than {MOST_NESTED} deep")
    return depth


def tensor_types(ty: Type) -> tuple[TensorType, ...]:
    """The tensors of a type, tuples flattened in order."""
    match ty:
        case TensorType():
            return (ty,)
        case TupleType():
            return tuple(t for field in ty.fields for t in tensor_types(field))
        case FuncType():
            raise TypeError("a function type holds no tensors")


def leaves(value: Any) -> list[Any]:
    """What a (nested) tuple holds, in order; a value that is no tuple alone."""
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, tuple) else [value]


def nested(ty: Type, values: Iterator[T]) -> T | tuple[Any, ...]:
    """Values, one for each tensor of a type, in the type's structure of tuples."""
    return tuple(nested(field, values) for field in ty.fields) if isinstance(ty, TupleType) else next(values)
