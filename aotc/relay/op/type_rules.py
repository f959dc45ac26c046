# SPDX-License-Identifier: Apache-2.0
"""Type rules, shape checks and axis maps shared by operator definitions.

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
    """Return `ty` as a tensor type; raise AotcError (code "expected-tensor") if it is not one."""
    hint = "take one of its fields: .0" if isinstance(ty, TupleType) else ""
    require("expected-tensor", isinstance(ty, TensorType), lambda: f"{what} must be a tensor, got {ty}", hint)
    assert isinstance(ty, TensorType)
    return ty


def ranked(code: str, ty: Type, rank: int, what: str = "data") -> TensorType:
    """Return `ty` as a tensor type with `rank` axes; raise AotcError (`code`) if it has another
    rank.
    """
    found = tensor(ty, what)
    require(code, found.rank == rank, lambda: f"{what} must have rank {rank}, got {found}")
    return found


def scalar(code: str, ty: Type, what: str) -> TensorType:
    """Return `ty` as the type of a 0-d tensor; raise AotcError (`code`) if it has axes."""
    found = tensor(ty, what)
    require(code, found.rank == 0, lambda: f"the {what} must be a scalar, got {found}")
    return found


def require_known(code: str, what: str, value: str, known: Iterable[str]) -> None:
    """Raise AotcError (`code`) unless `value` is one of the names in `known`; `what` describes them
    in the message.
    """
    require(code, value in known, lambda: f"unknown {what} {value!r}; known: {', '.join(filter(None, known))}")


def tensor_fields(ty: Type, what: str = "argument") -> tuple[TensorType, ...]:
    """Return the fields of a tuple type; raise AotcError unless `ty` is a tuple of tensors."""
    require("expected-tuple", isinstance(ty, TupleType), lambda: f"{what} must be a tuple of tensors, got {ty}")
    assert isinstance(ty, TupleType)
    return tuple(tensor(field, what) for field in ty.fields)


def axis_of(axis: int, rank: int) -> int:
    """Return a possibly negative axis as an index from 0; raise AotcError (code "axis") if it is
    out of range.
    """
    hint = f"axes are {-rank} to {rank - 1}" if rank else "a scalar has no axes: expand_dims gives it one"
    require("axis", -rank <= axis < rank, f"axis {axis} is outside rank {rank}", hint)
    return axis % rank


def axes_of(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Return axes as ascending indices from 0, None meaning all axes; raise AotcError for
    duplicates.
    """
    if axes is None:
        return tuple(range(rank))
    items = [axis_of(a, rank) for a in ([axes] if isinstance(axes, int) else axes)]
    require("axis-twice", len(set(items)) == len(items), lambda: f"an axis occurs twice in {list(items)}")
    return tuple(sorted(items))


def broadcast_dim(a: Dim, b: Dim) -> Dim | None:
    """Return the dimension to which two dimensions broadcast; None if they do not broadcast."""
    if same_dim(a, b) or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, SymDim) or isinstance(b, SymDim):
        # they must be equal at run time: return the static one
        return a if isinstance(b, SymDim) else b
    return None


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    """Return the shape to which two shapes broadcast by numpy's rules; raise AotcError (code
    "broadcast") if there is none.
    """
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    dims = [broadcast_dim(x, y) for x, y in zip(left, right, strict=True)]
    hint = "extents are equal or 1, counted from the last; reshape or expand_dims one of the two"
    text = "shapes {} and {} do not broadcast"
    require("broadcast", None not in dims, lambda: text.format(shape_text(a), shape_text(b)), hint)
    return tuple(d for d in dims if d is not None)


def shape_text(shape: Shape) -> str:
    """Return a shape as text, such as (1, 3, n)."""
    return f"({', '.join(map(str, shape))})"


def extent_of(d: Dim, of: Callable[[int], int], unchanged: bool = False) -> Dim:
    """Return `of(d)` for a static extent d, else a new symbolic dimension whose bound is `of` the
    bound of d.

    If `unchanged` is True, a symbolic dimension is returned as it is.
    """
    if isinstance(d, int):
        return of(d)
    return d if unchanged else SymDim(upper=d.upper and of(d.upper))


def of_expansion(expand: Callable[..., Expr]) -> Callable[..., Any]:
    """Return a numpy reference that evaluates the expression `expand(attributes, *arguments)` by
    its operators' references.
    """

    def given(value: Any) -> Expr:
        return Tuple(map(given, value)) if isinstance(value, tuple) else Constant(value)

    return lambda attributes, *values: evaluate(expand(attributes, *map(given, values)))


def static_shape_of(x: Expr) -> tuple[int, ...]:
    """Return the shape of an argument; raise AotcError (code "dynamic-shape") if a dimension is
    symbolic.
    """
    ty = tensor_type_of(x)
    require("dynamic-shape", ty.is_static, lambda: f"the shape must be known at compile time, got {ty}")
    return ty.static_shape


def float_tensor(ty: Type) -> TensorType:
    """Return `ty` as a tensor type; raise AotcError (code "dtype") if its elements are not floats."""
    data = tensor(ty, "data")
    require("dtype", data.dtype.is_float, lambda: f"data type {data.dtype} is not a float type")
    return data


def float_along_axis(a: Any, types: Types) -> TensorType:
    """Type rule of float operators along `a.axis` (one axis, several, or None for all): return the
    type of the data.
    """
    data = float_tensor(types[0])
    axes_of(a.axis, data.rank)
    return data


def require_same_dtype(a: TensorType, b: TensorType) -> None:
    """Raise AotcError (code "dtype-mismatch") if two tensors have different data types."""
    hint = f'cast one of them: cast(..., dtype="{a.dtype}")'
    require("dtype-mismatch", a.dtype == b.dtype, lambda: f"data types {a.dtype} and {b.dtype} do not match", hint)


def require_dtype(dtype: DType, supported: bool) -> None:
    """Raise AotcError (code "dtype") unless a data type is `supported`."""
    require("dtype", supported, lambda: f"data type {dtype} is not supported")


def same_type(_: Any, types: Types) -> Type:
    """Type rule: return the type of the first argument."""
    return tensor(types[0])


def broadcast_rule(result: str | None = None, accept: Callable[[TensorType], bool] | None = None) -> Infer:
    """Return the type rule of a broadcasting operator whose arguments have equal dtypes.

    result  dtype of the result if it differs from the arguments' dtype (comparisons)
    accept  predicate of supported types of the first argument; AotcError for others
    """

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
    """Return the axis-map row of an argument with the result's rank, which maps every axis except
    `axes`.
    """
    return tuple(None if k in axes else k for k in range(rank))


def all_but_axis(a: Any, types: Types) -> AxisMap:
    """Return the axis map (from result axes to argument axes) of an operator that works along
    `a.axis`.

    `a.axis` is one axis, several, or None for all; it is not mapped. The first argument is a tensor
    or a tuple of tensors with the rank of the result; other arguments are not mapped.
    """
    first = types[0].fields[0] if isinstance(types[0], TupleType) else types[0]
    rank = tensor(first).rank
    return AxisMap((row_but(axes_of(a.axis, rank), rank),))


def all_but_axis_or_flat(a: Any, types: Types) -> AxisMap:
    """Return the axis map of an operator that works along `a.axis`, or on the flattened argument if
    `a.axis` is None.
    """
    return AxisMap(((None,),)) if a.axis is None else all_but_axis(a, types)


# --- data and vectors along one of its axes: nn.bias_add, nn.prelu, normalizations


def check_vectors(code: str, a: Any, data: TensorType, vectors: Types, what: str) -> None:
    """Raise AotcError (`code`) unless each of `vectors` has the data's dtype and one element per
    index of `a.axis`.
    """
    axis = axis_of(a.axis, data.rank)
    for given in vectors:
        vector = tensor(given, what)
        fits = vector.rank == 1 and may_equal(vector.shape[0], data.shape[axis])
        require(code, fits, f"{what} {shape_text(vector.shape)} does not fit axis {axis} of {data}")
        require_same_dtype(data, vector)


def vectors_along_axis(a: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
    """Return the argument types with unknown ones inferred: every argument after the first is a
    vector along `a.axis`.
    """
    data, *vectors = types
    if not isinstance(data, TensorType):
        return types
    vector = TensorType((data.shape[axis_of(a.axis, data.rank)],), data.dtype)
    return [data, *(vector if ty is None else ty for ty in vectors)]


def elements_and_vectors(a: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise operator on data and on vectors along `a.axis` of the
    data.
    """
    rank = tensor(types[0]).rank
    axis = axis_of(a.axis, rank)
    row = tuple(0 if k == axis else None for k in range(rank))
    return AxisMap((tuple(range(rank)), *(row for _ in types[1:])))


def broadcast_along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector reshaped to broadcast along `axis` of an array with `rank` axes."""
    return vector.reshape([-1 if k == axis % rank else 1 for k in range(rank)])
