# SPDX-License-Identifier: Apache-2.0
"""Operators that change only the shape, permute axes, broadcast, or return the shape.

reshape(x, (0, -1))                    # 0 copies a dimension, -1 is inferred from the remaining elements
transpose(x, (0, 2, 3, 1))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import (
    Attrs,
    Dim,
    DType,
    NoAttrs,
    Shape,
    SymDim,
    TensorType,
    Type,
    assume_equal_dims,
    attribute_field,
    exact_quotient_or_none,
    indexdiv,
    interval_of_dim,
    may_be_equal_dims,
    product_of_dims,
    require_static_shape,
)
from aotc.ir.op import AxisMap, OpPattern, PrecisionTreatment, Types, require
from aotc.relay.op.opdef import Index, OpDef, Samples, Scalar, compute_from_element_function
from aotc.relay.op.operator_definition import (
    element_of_broadcast_tensor,
    exact_samples_from_rows,
    normalize_axis,
    require_tensor_type,
    select_constant_at_index,
    shape_text,
)
from aotc.tir import Tensor, as_expr, const, te


def _shape_changing_op(
    name: str,
    attrs_class: type[Attrs],
    result_shape: Callable[[Any, Shape], Shape],
    axis_map: Callable[[Any, Types], AxisMap | None] | None,
    samples: Callable[[], Samples],
    pattern: OpPattern = OpPattern.INJECTIVE,
    **facets: Any,
) -> OpDef:
    """Return the OpDef of an operator that preserves the elements and their order; `result_shape`
    computes the shape.
    """

    def infer_view_type(attrs: Any, types: Types) -> Type:
        data = require_tensor_type(types[0])
        return TensorType(result_shape(attrs, data.shape), data.dtype)

    def static_result_shape(attrs: Any, shape: Shape) -> tuple[int, ...]:
        return require_static_shape(result_shape(attrs, shape))

    return OpDef(
        name=name,
        attrs=attrs_class,
        infer=infer_view_type,
        reference=lambda a, x: x.reshape(static_result_shape(a, x.shape)),
        pattern=pattern,
        axes=axis_map,
        compute=lambda a, x: te.view(x, result_shape(a, x.shape)),
        samples=samples,
        view=True,
        **facets,
    )


# --- reshape


class ReshapeAttrs(Attrs):
    """The data's elements, in unchanged order, with another shape.

    In `newshape`, 0 copies a dimension (unless `allowzero`), -1 is inferred from the number of
    elements, -2 copies all remaining dimensions, -3 merges two dimensions, -4 splits one into the
    two values that follow.
    """

    newshape: tuple[int | SymDim, ...]
    allowzero: bool = False


def multiply_dim(extent: Dim, factor: int) -> Dim:
    """Return a dimension multiplied by a factor; the dimension itself for a factor of 1."""
    return extent if factor == 1 else product_of_dims((extent, factor))


def exact_quotient_of_dims(dims: Sequence[Dim], divisors: Sequence[Dim]) -> Dim:
    """Return the product of `dims` divided by the product of `divisors`; a new symbol if it is not
    known.

    Raise AotcError (code "reshape.size") if the division is known to have a remainder.
    """
    whole, divisor = product_of_dims(dims), product_of_dims(divisors)
    require("reshape.size", divisor != 0, "a dimension of -1 next to a dimension of 0 is ambiguous")
    if not isinstance(divisor, int) or not isinstance(whole, int):
        return _symbolic_quotient(whole, divisor)
    require("reshape.size", whole % divisor == 0, f"{whole} elements do not fill rows of {divisor}")
    return whole // divisor


def _symbolic_quotient(whole: Dim, divisor: Dim) -> Dim:
    """Return the quotient of dimensions that are known at run time only, assuming that there is no
    remainder; a new symbol if a dimension has no name, or if the divisor may be 0.
    """
    quotient = exact_quotient_or_none(whole, divisor)
    if quotient is not None:
        return quotient
    named = all(isinstance(d, int) or bool(d.name) for d in (whole, divisor))
    if not named or interval_of_dim(divisor)[0] < 1:
        return SymDim()
    quotient = indexdiv(whole, divisor)
    assume_equal_dims(product_of_dims((quotient, divisor)), whole)
    return quotient


def _split_dim_in_two(whole: Dim, parts: Sequence[int]) -> list[Dim]:
    """Return the two dimensions into which -4, a, b in a new shape split a dimension; one of them
    may be -1.
    """
    require("reshape.value", parts.count(-1) <= 1, "-4 may be followed by one -1 only")
    rest = exact_quotient_of_dims((whole,), [p for p in parts if p != -1])
    fits = -1 in parts or rest == 1 or isinstance(rest, SymDim)
    require("reshape.size", fits, lambda: f"dimension {whole} is not {parts[0]} x {parts[1]}")
    return [rest if p == -1 else p for p in parts]


def infer_reshape_shape(a: ReshapeAttrs, shape: Shape) -> Shape:
    """Return the shape described by `newshape`, whose special values refer to the data's dimensions
    in order.
    """
    values: list[Any] = list(a.newshape)
    source = list(shape)
    dims: list[Dim | None] = []

    def pop_next_source_dim() -> Dim:
        require("reshape.rank", len(source) > 0, f"{a.newshape} copies more dimensions than the data has")
        return source.pop(0)

    while values:
        match values.pop(0):
            case 0 if not a.allowzero:
                dims.append(pop_next_source_dim())
            case -2:
                dims.extend(source)
                source.clear()
            case -3:
                dims.append(product_of_dims((pop_next_source_dim(), pop_next_source_dim())))
            case -4:
                require("reshape.value", len(values) >= 2, "-4 must be followed by two values")
                dims.extend(_split_dim_in_two(pop_next_source_dim(), (values.pop(0), values.pop(0))))
            case value:
                fits = isinstance(value, SymDim) or value >= -1
                require("reshape.value", fits, f"{value} in {a.newshape} is not a valid dimension")
                dims.append(None if value == -1 else value)
                del source[:1]
    require("reshape.one-unknown", dims.count(None) <= 1, f"more than one -1 in {a.newshape}")
    known = [d for d in dims if d is not None]
    if None in dims:
        return tuple(exact_quotient_of_dims(shape, known) if d is None else d for d in dims)
    fits = may_be_equal_dims(product_of_dims(known), product_of_dims(shape))
    hint = "the product of the extents stays; -1 stands for what is left"
    require("reshape.size", fits, lambda: f"{shape_text(shape)} cannot become {shape_text(tuple(known))}", hint)
    return tuple(known)


def _reshape_axis_map(a: ReshapeAttrs, types: Types) -> AxisMap | None:
    """Return the axis map of a reshape: leading dimensions that 0 copies are mapped to the data's
    dimensions.
    """
    rank = len(infer_reshape_shape(a, require_tensor_type(types[0]).shape))
    copied_count = 0
    while copied_count < len(a.newshape) and a.newshape[copied_count] == 0 and not a.allowzero:
        copied_count += 1
    if copied_count < len(a.newshape) and a.newshape[copied_count] == -2:
        return AxisMap((tuple(range(rank)),))
    return AxisMap((tuple(k if k < copied_count else None for k in range(rank)),))


reshape = _shape_changing_op("reshape", ReshapeAttrs, infer_reshape_shape, _reshape_axis_map, exact_samples_from_rows(
    ReshapeAttrs, "newshape allowzero", (
    ((2, 3, 4), (4, 6)), ((2, 3, 4), (0, -1)), ((2, 3, 4), (-1,)), ((2, 3, 4), (-3, 0)), ((2, 3, 4), (-2, 1)),
    ((2, 6, 4), (0, -4, 2, -1, 0)), ((2, 3, 4), (-4, 1, 2, -2)), ((), (1, 1)), ((1, 1), ()), ((0, 3), (-1,)),
    ((0, 3), (-2, 1)), ((0, 3), (3, 0), True),
)))  # fmt: skip


class ReverseReshapeAttrs(Attrs):
    """The data's elements, in unchanged order, with another shape; special values are matched from
    the right.

    In `newshape`, 0 copies the dimension at this position counted from the end, -1 is inferred from
    the number of elements, -2 copies all remaining dimensions to the left, -3 merges two
    dimensions.
    """

    newshape: tuple[int, ...]


def _infer_reverse_reshape_shape(a: ReverseReshapeAttrs, shape: Shape) -> Shape:
    require("reshape.value", -4 not in a.newshape, f"-4 in {a.newshape} is not allowed with reverse reshaping")
    return infer_reshape_shape(ReshapeAttrs(newshape=a.newshape[::-1]), shape[::-1])[::-1]


reverse_reshape = _shape_changing_op(
    "reverse_reshape",
    ReverseReshapeAttrs,
    _infer_reverse_reshape_shape,
    lambda a, types: AxisMap(((None,) * len(_infer_reverse_reshape_shape(a, require_tensor_type(types[0]).shape)),)),
    exact_samples_from_rows(
        ReverseReshapeAttrs,
        "newshape",
        (((2, 3, 4), (4, 0, 2)), ((10, 5, 4), (-1, 0)), ((2, 3, 4), (1, -2)), ((2, 3, 4), (0, -3)), ((0, 3), (-1,))),
        ("float32", "int8"),
    ),
)


# --- squeeze, expand_dims, batch_flatten


def _shape_and_axis_map_functions_from_axes(
    source_axes: Callable[[Any, Shape], Sequence[int | None]],
) -> tuple[Any, Any]:
    """Return shape function and axis map of a view whose axes are data axes or new axes of extent 1
    (None).
    """
    return (
        lambda a, shape: tuple(1 if k is None else shape[k] for k in source_axes(a, shape)),
        lambda a, types: AxisMap((tuple(source_axes(a, require_tensor_type(types[0]).shape)),)),
    )


class SqueezeAttrs(Attrs):
    """The data without the listed axes, which must have extent 1; None removes all axes of extent
    1.
    """

    axis: tuple[int, ...] | None = None


def _axes_kept_by_squeeze(a: SqueezeAttrs, shape: Shape) -> tuple[int, ...]:
    rank = len(shape)
    axes = {k for k, d in enumerate(shape) if d == 1} if a.axis is None else {normalize_axis(k, rank) for k in a.axis}
    wrong = [k for k in axes if isinstance(shape[k], int) and shape[k] != 1]
    require("squeeze.axis", not wrong, lambda: f"axis {wrong[0]} of {shape_text(shape)} is not 1")
    return tuple(k for k in range(rank) if k not in axes)


def _squeeze_attrs_after_permutation(a: SqueezeAttrs, types: Types, new_axis_of: Callable[[int], int]) -> Attrs:
    shape = require_tensor_type(types[0]).shape
    remaining_axes = _axes_kept_by_squeeze(a, shape)
    return a.replace(axis=tuple(sorted(new_axis_of(k) for k in range(len(shape)) if k not in remaining_axes)))


squeeze = _shape_changing_op(
    "squeeze",
    SqueezeAttrs,
    *_shape_and_axis_map_functions_from_axes(_axes_kept_by_squeeze),
    exact_samples_from_rows(
        SqueezeAttrs,
        "axis",
        (((1, 3, 1), None), ((1, 3, 1), (0,)), ((1, 3, 1), (-1, 0)), ((1,), (0,)), ((2, 3), None), ((0, 1), (1,))),
    ),
    moved=_squeeze_attrs_after_permutation,
)


class ExpandDimsAttrs(Attrs):
    """The data with `num_newaxis` new axes of extent 1 before `axis`; -1 appends them after the
    last axis.
    """

    axis: int
    num_newaxis: int = 1


def _axes_with_new_axes_as_none(a: ExpandDimsAttrs, shape: Shape) -> tuple[int | None, ...]:
    require("expand_dims.count", a.num_newaxis >= 0, f"num_newaxis must not be negative, got {a.num_newaxis}")
    axis = normalize_axis(a.axis, len(shape) + 1)
    return (*range(axis), *(None,) * a.num_newaxis, *range(axis, len(shape)))


expand_dims = _shape_changing_op(
    "expand_dims",
    ExpandDimsAttrs,
    *_shape_and_axis_map_functions_from_axes(_axes_with_new_axes_as_none),
    exact_samples_from_rows(
        ExpandDimsAttrs,
        "axis num_newaxis",
        (((2, 3), 0), ((2, 3), -1), ((2, 3), 1, 2), ((), 0), ((0,), 1), ((2,), 0, 0)),
    ),
    pattern=OpPattern.BROADCAST,
)


def _batch_flatten_shape(_: Any, shape: Shape) -> Shape:
    require("batch_flatten.rank", len(shape) > 0, "the data has no batch dimension")
    return (shape[0], product_of_dims(shape[1:]))


batch_flatten = _shape_changing_op(
    "nn.batch_flatten",
    NoAttrs,
    _batch_flatten_shape,
    lambda _, types: AxisMap(((0, None),)),
    exact_samples_from_rows(NoAttrs, "", (((2, 3, 4),), ((2,),), ((1, 3),), ((0, 2, 2),))),
    doc="(d0, d1, d2, ...) as (d0, d1 * d2 * ...).",
)


# --- transpose


class TransposeAttrs(Attrs):
    """The data with permuted axes: axis k of the result is axis axes[k] of the data; None reverses
    the axes.
    """

    axes: tuple[int, ...] | None = attribute_field(parameter_default=None)


def transpose_permutation(a: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """Return for each axis of the result the axis of the data; raise AotcError for an invalid
    permutation.
    """
    if a.axes is None:
        return tuple(reversed(range(rank)))
    axes = tuple(normalize_axis(k, rank) for k in a.axes)
    complete = sorted(axes) == list(range(rank))
    require("transpose.axes", complete, f"axes {a.axes} are not a permutation of {rank} axes")
    return axes


def _infer_transpose_type(a: TransposeAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    return TensorType((data.shape[k] for k in transpose_permutation(a, data.rank)), data.dtype)


def _transpose_element(a: TransposeAttrs, i: Index, data: Tensor) -> Scalar:
    at = dict(zip(transpose_permutation(a, data.rank), i, strict=True))
    return data[tuple(at[k] for k in range(data.rank))]


transpose = OpDef(
    name="transpose",
    attrs=TransposeAttrs,
    infer=_infer_transpose_type,
    reference=lambda a, x: x.transpose(transpose_permutation(a, x.ndim)),
    pattern=OpPattern.INJECTIVE,
    axes=lambda a, types: AxisMap((transpose_permutation(a, require_tensor_type(types[0]).rank),)),
    moved=lambda a, types, now: a.replace(
        axes=tuple(map(now, transpose_permutation(a, require_tensor_type(types[0]).rank)))
    ),
    element=_transpose_element,
    samples=exact_samples_from_rows(TransposeAttrs, "axes", (
        ((2, 3, 4), (2, 0, 1)), ((2, 3), None), ((1, 2, 3, 4), (0, -2, -1, 1)), ((), None), ((3,), (0,)),
        ((0, 2), None),
    )),
)  # fmt: skip


# --- broadcast_to


class InitAttrs(Attrs):
    """Shape and type of a new tensor; an empty `dtype` means the argument's."""

    shape: tuple[int | SymDim, ...]
    dtype: str = ""


def _infer_broadcast_to_type(a: InitAttrs, types: Types) -> Type:
    data = require_tensor_type(types[0])
    fits = data.rank <= len(a.shape)
    for d, target_dim in zip(reversed(data.shape), reversed(a.shape), strict=False):
        fits = fits and (d == 1 or may_be_equal_dims(d, target_dim))
    require("broadcast", fits, lambda: f"{shape_text(data.shape)} does not broadcast to {shape_text(a.shape)}")
    return TensorType(a.shape, data.dtype)


def axis_map_without_mapped_axes(a: InitAttrs, _: Types) -> AxisMap:
    """Return the axis map of a result with a fixed shape, in which no axis is mapped to an axis of
    the data.
    """
    return AxisMap(((None,) * len(a.shape),))


broadcast_to = OpDef(
    name="broadcast_to",
    doc="`data` repeated to `shape`, as numpy broadcasts.",
    attrs=InitAttrs,
    order="data shape",
    infer=_infer_broadcast_to_type,
    reference=lambda a, x: np.broadcast_to(x, a.shape),
    pattern=OpPattern.BROADCAST,
    axes=axis_map_without_mapped_axes,
    element=lambda _, i, x: element_of_broadcast_tensor(x, i),
    samples=exact_samples_from_rows(
        InitAttrs, "shape", (((2, 1), (3, 2, 4)), ((), (2, 2)), ((), ()), ((3,), (3,)), ((1,), (0,)), ((1, 3), (2, 3)))
    ),
)


# --- shape_of, ndarray_size


class ShapeOfAttrs(Attrs):
    dtype: str = "int32"


def _shape_or_size_op(name: str, returns_shape: bool, doc: str, test_cases: Sequence[Any]) -> OpDef:
    """Return the OpDef that computes the shape of a tensor (`returns_shape` True) or its number of
    elements (False).
    """

    def infer_shape_or_size_type(a: ShapeOfAttrs, types: Types) -> Type:
        data, dtype = require_tensor_type(types[0]), DType(a.dtype)
        dims = [d for d in data.shape if isinstance(d, int)]
        largest = max(dims, default=0) if returns_shape else data.numel if data.is_static else 0
        require("shape_of.dtype", dtype.is_float or largest <= int(dtype.max), f"{largest} does not fit into {dtype}")
        return TensorType((data.rank,) if returns_shape else (), dtype)

    def extent_or_size_constant(a: ShapeOfAttrs, i: Index, x: Tensor) -> Scalar:
        return (
            select_constant_at_index(x.shape or (0,), i[0], a.dtype)
            if returns_shape
            else as_expr(x.live_size, const(0, a.dtype))
        )

    return OpDef(
        name=name,
        doc=doc,
        attrs=ShapeOfAttrs,
        infer=infer_shape_or_size_type,
        reference=lambda a, x: np.array(x.shape if returns_shape else x.size, DType(a.dtype).numpy),
        axes=lambda *_: AxisMap(((None,) if returns_shape else (),)),
        compute=compute_from_element_function(
            "shape_of" if returns_shape else "size", infer_shape_or_size_type, extent_or_size_constant
        ),
        precision=PrecisionTreatment.FOLLOW,
        samples=exact_samples_from_rows(ShapeOfAttrs, "dtype", test_cases),
    )


_SHAPE_OF_TEST_CASES = (((2, 1, 3), "int32"), ((), "int64"), ((0, 2), "int32"), ((0, 2), "int64"), ((4,), "int64"))

shape_of = _shape_or_size_op("shape_of", True, "The shape as a vector of integers.", _SHAPE_OF_TEST_CASES)
ndarray_size = _shape_or_size_op("ndarray_size", False, "The number of elements, as a scalar.", _SHAPE_OF_TEST_CASES)
