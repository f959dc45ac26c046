# SPDX-License-Identifier: Apache-2.0
"""Type rules, shape checks and axis maps shared by operator definitions.

infer=infer_same_type, axes=pointwise        # nn.relu
infer=broadcasting_type_rule()         # add
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aotc.ir import (
    AxisMap,
    Dim,
    DType,
    Infer,
    Shape,
    SymDim,
    TensorType,
    TupleType,
    Type,
    Types,
    assume_equal_dims,
    require,
    same_dim,
)
from aotc.relay.graph_api import Constant, Expr, Tuple, evaluate, tensor_type_of
from aotc.relay.op.opdef import elementwise_axis_map as elementwise_axis_map
from aotc.relay.op.operator_definition import Array, may_be_equal_dims


def require_tensor_type(ty: Type, operand_name: str = "argument") -> TensorType:
    """Return `ty` as a tensor type; raise AotcError (code "expected-tensor") if it is not one."""
    hint = "take one of its fields: .0" if isinstance(ty, TupleType) else ""
    require("expected-tensor", isinstance(ty, TensorType), lambda: f"{operand_name} must be a tensor, got {ty}", hint)
    assert isinstance(ty, TensorType)
    return ty


def require_tensor_of_rank(error_code: str, ty: Type, rank: int, operand_name: str = "data") -> TensorType:
    """Return `ty` as a tensor type with `rank` axes; raise AotcError (`error_code`) if it has
    another rank.
    """
    tensor_type = require_tensor_type(ty, operand_name)
    require(error_code, tensor_type.rank == rank, lambda: f"{operand_name} must have rank {rank}, got {tensor_type}")
    return tensor_type


def require_scalar_tensor_type(error_code: str, ty: Type, operand_name: str) -> TensorType:
    """Return `ty` as the type of a 0-d tensor; raise AotcError (`error_code`) if it has axes."""
    tensor_type = require_tensor_type(ty, operand_name)
    require(error_code, tensor_type.rank == 0, lambda: f"the {operand_name} must be a scalar, got {tensor_type}")
    return tensor_type


def require_known_name(error_code: str, description: str, name: str, known_names: Iterable[str]) -> None:
    """Raise AotcError (`error_code`) unless `name` is one of the names in `known_names`;
    `description` describes them in the message.
    """
    require(
        error_code,
        name in known_names,
        lambda: f"unknown {description} {name!r}; known: {', '.join(filter(None, known_names))}",
    )


def require_tensor_fields(ty: Type, operand_name: str = "argument") -> tuple[TensorType, ...]:
    """Return the fields of a tuple type; raise AotcError unless `ty` is a tuple of tensors."""
    require("expected-tuple", isinstance(ty, TupleType), lambda: f"{operand_name} must be a tuple of tensors, got {ty}")
    assert isinstance(ty, TupleType)
    return tuple(require_tensor_type(field, operand_name) for field in ty.fields)


def normalize_axis(axis: int, rank: int) -> int:
    """Return a possibly negative axis as an index from 0; raise AotcError (code "axis") if it is
    out of range.
    """
    hint = f"axes are {-rank} to {rank - 1}" if rank else "a scalar has no axes: expand_dims gives it one"
    require("axis", -rank <= axis < rank, f"axis {axis} is outside rank {rank}", hint)
    return axis % rank


def normalize_axes(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Return axes as ascending indices from 0, None meaning all axes; raise AotcError for
    duplicates.
    """
    if axes is None:
        return tuple(range(rank))
    items = [normalize_axis(a, rank) for a in ([axes] if isinstance(axes, int) else axes)]
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
        assume_equal_dims(a, b)
        return a if isinstance(b, SymDim) else b
    return None


def broadcast_two_shapes(a: Shape, b: Shape) -> Shape:
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


def reference_from_expansion(expand: Callable[..., Expr]) -> Callable[..., Any]:
    """Return a numpy reference that evaluates the expression `expand(attributes, *arguments)` by
    its operators' references.
    """

    def value_to_constant_expr(value: Any) -> Expr:
        return Tuple(map(value_to_constant_expr, value)) if isinstance(value, tuple) else Constant(value)

    return lambda attributes, *values: evaluate(expand(attributes, *map(value_to_constant_expr, values)))


def static_shape_of(x: Expr) -> tuple[int, ...]:
    """Return the shape of an argument; raise AotcError (code "dynamic-shape") if a dimension is
    symbolic.
    """
    ty = tensor_type_of(x)
    require("dynamic-shape", ty.is_static, lambda: f"the shape must be known at compile time, got {ty}")
    return ty.static_shape


def require_float_tensor(ty: Type) -> TensorType:
    """Return `ty` as a tensor type; raise AotcError (code "dtype") if its elements are not floats."""
    data = require_tensor_type(ty, "data")
    require("dtype", data.dtype.is_float, lambda: f"data type {data.dtype} is not a float type")
    return data


def infer_float_along_axis_type(attrs: Any, types: Types) -> TensorType:
    """Type rule of float operators along `attrs.axis` (one axis, several, or None for all): return
    the type of the data.
    """
    data = require_float_tensor(types[0])
    normalize_axes(attrs.axis, data.rank)
    return data


def require_same_dtype(first: TensorType, second: TensorType) -> None:
    """Raise AotcError (code "dtype-mismatch") if two tensors have different data types."""
    hint = f'cast one of them: cast(..., dtype="{first.dtype}")'
    require(
        "dtype-mismatch",
        first.dtype == second.dtype,
        lambda: f"data types {first.dtype} and {second.dtype} do not match",
        hint,
    )


def require_dtype(dtype: DType, supported: bool) -> None:
    """Raise AotcError (code "dtype") unless a data type is `supported`."""
    require("dtype", supported, lambda: f"data type {dtype} is not supported")


def infer_type_of_first_argument(_: Any, types: Types) -> Type:
    """Type rule: return the type of the first argument."""
    return require_tensor_type(types[0])


def broadcasting_type_rule(
    result_dtype: str | None = None, accepts: Callable[[TensorType], bool] | None = None
) -> Infer:
    """Return the type rule of a broadcasting operator whose arguments have equal dtypes.

    result_dtype    dtype of the result if it differs from the arguments' dtype (comparisons)
    accepts         predicate of supported types of the first argument; AotcError for others
    """

    def infer_broadcast_type(_: Any, types: Types) -> Type:
        first, *rest = [require_tensor_type(t) for t in types]
        shape = first.shape
        for other in rest:
            require_same_dtype(first, other)
            shape = broadcast_two_shapes(shape, other.shape)
        if accepts is not None:
            require_dtype(first.dtype, accepts(first))
        return TensorType(shape, result_dtype or first.dtype)

    return infer_broadcast_type


def axis_map_row_without_axes(unmapped_axes: Sequence[int], rank: int) -> tuple[int | None, ...]:
    """Return the axis-map row of an argument with the result's rank, which maps every axis except
    `unmapped_axes`.
    """
    return tuple(None if k in unmapped_axes else k for k in range(rank))


def axis_map_excluding_axis_attribute(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map (from result axes to argument axes) of an operator that works along
    `attrs.axis`.

    `attrs.axis` is one axis, several, or None for all; it is not mapped. The first argument is a
    tensor or a tuple of tensors with the rank of the result; other arguments are not mapped.
    """
    first = types[0].fields[0] if isinstance(types[0], TupleType) else types[0]
    rank = require_tensor_type(first).rank
    return AxisMap((axis_map_row_without_axes(normalize_axes(attrs.axis, rank), rank),))


def axis_map_excluding_axis_attribute_or_flat(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of an operator that works along `attrs.axis`, or on the flattened
    argument if `attrs.axis` is None.
    """
    return AxisMap(((None,),)) if attrs.axis is None else axis_map_excluding_axis_attribute(attrs, types)


# --- data and vectors along one of its axes: nn.bias_add, nn.prelu, normalizations


def check_vectors_match_axis(error_code: str, attrs: Any, data: TensorType, vectors: Types, vector_name: str) -> None:
    """Raise AotcError (`error_code`) unless each of `vectors` has the data's dtype and one element
    per index of `attrs.axis`.
    """
    axis = normalize_axis(attrs.axis, data.rank)
    for given in vectors:
        vector = require_tensor_type(given, vector_name)
        fits = vector.rank == 1 and may_be_equal_dims(vector.shape[0], data.shape[axis])
        require(error_code, fits, f"{vector_name} {shape_text(vector.shape)} does not fit axis {axis} of {data}")
        require_same_dtype(data, vector)


def infer_missing_vector_types(attrs: Any, types: Sequence[Type | None]) -> Sequence[Type | None]:
    """Return the argument types with unknown ones inferred: every argument after the first is a
    vector along `attrs.axis`.
    """
    data, *vectors = types
    if not isinstance(data, TensorType):
        return types
    vector = TensorType((data.shape[normalize_axis(attrs.axis, data.rank)],), data.dtype)
    return [data, *(vector if ty is None else ty for ty in vectors)]


def elementwise_with_vectors_axis_map(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise operator on data and on vectors along `attrs.axis` of
    the data.
    """
    rank = require_tensor_type(types[0]).rank
    axis = normalize_axis(attrs.axis, rank)
    row = tuple(0 if k == axis else None for k in range(rank))
    return AxisMap((tuple(range(rank)), *(row for _ in types[1:])))


def reshape_to_broadcast_along(vector: Array, axis: int, rank: int) -> Array:
    """Return a vector reshaped to broadcast along `axis` of an array with `rank` axes."""
    return vector.reshape([-1 if k == axis % rank else 1 for k in range(rank)])
