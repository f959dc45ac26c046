# SPDX-License-Identifier: Apache-2.0
"""Type rules and axis maps that many operators share.

infer=same_type, axes=pointwise        # nn.relu
infer=broadcast_rule()                 # add
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aotc.ir import AxisMap, Dim, DType, Infer, Shape, SymDim, TensorType, TupleType, Type, Types, require, same_dim
from aotc.relay.graph_api import Constant, Expr, Tuple, evaluate, tensor_type_of
from aotc.relay.op.opdef import pointwise as pointwise
from aotc.relay.op.operator_definition import Array, may_equal


def tensor(ty: Type, what: str = "argument") -> TensorType:
    """`ty` as a tensor type; AotcError (code "expected-tensor") otherwise."""
    hint = "take one of its fields: .0" if isinstance(ty, TupleType) else ""
    require("expected-tensor", isinstance(ty, TensorType), lambda: f"{what} must be a tensor, got {ty}", hint)
    assert isinstance(ty, TensorType)
    return ty


def ranked(code: str, ty: Type, rank: int, what: str = "data") -> TensorType:
    """`ty` as a tensor type with that many axes; AotcError (`code`) otherwise."""
    found = tensor(ty, what)
    require(code, found.rank == rank, lambda: f"{what} must have rank {rank}, got {found}")
    return found


def scalar(code: str, ty: Type, what: str) -> TensorType:
    """`ty` as the type of a tensor without axes; AotcError (`code`) otherwise."""
    found = tensor(ty, what)
    require(code, found.rank == 0, lambda: f"the {what} must be a scalar, got {found}")
    return found


def require_known(code: str, what: str, value: str, known: Iterable[str]) -> None:
    """Raises AotcError (`code`) unless `value` is one of the names of `what` that are known."""
    require(code, value in known, lambda: f"unknown {what} {value!r}; known: {', '.join(filter(None, known))}")


def tensor_fields(ty: Type, what: str = "argument") -> tuple[TensorType, ...]:
    """The fields of a tuple type, each a tensor."""
    require("expected-tuple", isinstance(ty, TupleType), lambda: f"{what} must be a tuple of tensors, got {ty}")
    assert isinstance(ty, TupleType)
    return tuple(tensor(field, what) for field in ty.fields)


def axis_of(axis: int, rank: int) -> int:
    """A possibly negative axis as an index from 0; AotcError (code "axis") if it is out of range."""
    hint = f"axes are {-rank} to {rank - 1}" if rank else "a scalar has no axes: expand_dims gives it one"
    require("axis", -rank <= axis < rank, f"axis {axis} is outside rank {rank}", hint)
    return axis % rank


def axes_of(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Axes as ascending indices from 0, all of them for None; AotcError for duplicates."""
    if axes is None:
        return tuple(range(rank))
    items = [axis_of(a, rank) for a in ([axes] if isinstance(axes, int) else axes)]
    require("axis-twice", len(set(items)) == len(items), lambda: f"an axis occurs twice in {list(items)}")
    return tuple(sorted(items))


def broadcast_dim(a: Dim, b: Dim) -> Dim | None:
    """The dimension that both broadcast to; None if they do not."""
    if same_dim(a, b) or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, SymDim) or isinstance(b, SymDim):
        # must be equal at run time: keep what is known
        return a if isinstance(b, SymDim) else b
    return None


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """The numpy broadcast of two shapes; AotcError (code "broadcast") if there is none."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    dims = [broadcast_dim(x, y) for x, y in zip(left, right, strict=True)]
    hint = "extents are equal or 1, counted from the last; reshape or expand_dims one of the two"
    text = "shapes {} and {} do not broadcast"
    require("broadcast", None not in dims, lambda: text.format(shape_text(a), shape_text(b)), hint)
    return tuple(d for d in dims if d is not None)


def shape_text(shape: Shape) -> str:
    """(1, 3, n)"""
    return f"({', '.join(map(str, shape))})"


def extent_of(d: Dim, of: Callable[[int], int], unchanged: bool = False) -> Dim:
    """`of` an extent; where that is not known a new symbol, of the bound, or itself if it is `unchanged`."""
    if isinstance(d, int):
        return of(d)
    return d if unchanged else SymDim(upper=d.upper and of(d.upper))


def of_expansion(expand: Callable[..., Expr]) -> Callable[..., Any]:
    """The reference of an operator that is made of others: what theirs give one after the other."""

    def given(value: Any) -> Expr:
        return Tuple(map(given, value)) if isinstance(value, tuple) else Constant(value)

    return lambda attributes, *values: evaluate(expand(attributes, *map(given, values)))


def static_shape_of(x: Expr) -> tuple[int, ...]:
    """The shape of an argument; AotcError (code "dynamic-shape") where a dimension is not known."""
    ty = tensor_type_of(x)
    require("dynamic-shape", ty.is_static, lambda: f"the shape must be known at compile time, got {ty}")
    return ty.static_shape


def float_tensor(ty: Type) -> TensorType:
    """The data's type; AotcError (code "dtype") where its elements are not floats."""
    data = tensor(ty, "data")
    require("dtype", data.dtype.is_float, lambda: f"data type {data.dtype} is not a float type")
    return data


def float_along_axis(a: Any, types: Types) -> TensorType:
    """Type rule of operators of floats along `a.axis` (one axis, several, None for all)."""
    data = float_tensor(types[0])
    axes_of(a.axis, data.rank)
    return data


def require_same_dtype(a: TensorType, b: TensorType) -> None:
    """Raises AotcError (code "dtype-mismatch") for tensors of different data types."""
    hint = f'cast one of them: cast(..., dtype="{a.dtype}")'
    require("dtype-mismatch", a.dtype == b.dtype, lambda: f"data types {a.dtype} and {b.dtype} do not match", hint)


def require_dtype(dtype: DType, supported: bool) -> None:
    """Raises AotcError (code "dtype") unless a data type is `supported`."""
    require("dtype", supported, lambda: f"data type {dtype} is not supported")


def same_type(_: Any, types: Types) -> Type:
    """Type rule: the result is what the first argument is."""
    return tensor(types[0])


def broadcast_rule(result: str | None = None, accept: Callable[[TensorType], bool] | None = None) -> Infer:
    """Type rule of a broadcasting operator: equal dtypes; `result` is the dtype if it differs (comparisons)."""

    def infer(_: Any, types: Types) -> Type:
        first, *rest = [tensor(t) for t in types]
        shape = first.shape
        for other in rest:
            require_same_dtype(first, other)
            shape = broadcast_shape(shape, other.shape)
        if accept is not None:
            require_dtype(first.dtype, accept(first))
        return TensorType(shape, result or first.dtype)

    return infer


def row_but(axes: Sequence[int], rank: int) -> tuple[int | None, ...]:
    """Every axis of an argument of the result's rank but `axes`."""
    return tuple(None if k in axes else k for k in range(rank))


def all_but_axis(a: Any, types: Types) -> AxisMap:
    """Axis map of operators along `a.axis` (one axis, several, None for all) of the first argument only.

    That is one tensor, or a tuple of tensors, of the result's rank.
    """
    first = types[0].fields[0] if isinstance(types[0], TupleType) else types[0]
    rank = tensor(first).rank
    return AxisMap((row_but(axes_of(a.axis, rank), rank),))


def all_but_axis_or_flat(a: Any, types: Types) -> AxisMap:
    """Axis map of operators along `a.axis`, which flatten their argument where that is None."""
    return AxisMap(((None,),)) if a.axis is None else all_but_axis(a, types)


# --- data and vectors along one of its axes: nn.bias_add, nn.prelu, normalizations


def check_vectors(code: str, a: Any, data: TensorType, vectors: Types, what: str) -> None:
    """Raises AotcError (`code`) unless each of `vectors` has an element of the data's type for each along `a.axis`."""
    axis = axis_of(a.axis, data.rank)
    for given in vectors:
        vector = tensor(given, what)
        fits = vector.rank == 1 and may_equal(vector.shape[0], data.shape[axis])
        require(code, fits, f"{what} {shape_text(vector.shape)} does not fit axis {axis} of {data}")
        require_same_dtype(data, vector)


def vectors_along_axis(a: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
    """The argument types, unknown ones solved: behind the first, each is a vector along `a.axis` of the first."""
    data, *vectors = types
    if not isinstance(data, TensorType):
        return types
    vector = TensorType((data.shape[axis_of(a.axis, data.rank)],), data.dtype)
    return [data, *(vector if ty is None else ty for ty in vectors)]


def elements_and_vectors(a: Any, types: Types) -> AxisMap:
    """Axis map of elementwise operators of data and of vectors along `a.axis`."""
    rank = tensor(types[0]).rank
    axis = axis_of(a.axis, rank)
    row = tuple(0 if k == axis else None for k in range(rank))
    return AxisMap((tuple(range(rank)), *(row for _ in types[1:])))


def broadcast_along(vector: Array, axis: int, rank: int) -> Array:
    """A vector as an array that broadcasts along `axis` of one of `rank`."""
    return vector.reshape([-1 if k == axis % rank else 1 for k in range(rank)])
