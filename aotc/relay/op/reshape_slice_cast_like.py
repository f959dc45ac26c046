# SPDX-License-Identifier: Apache-2.0
"""Operators that give data the shape or dtype of another tensor: reshape_like, slice_like,
cast_like etc.

reshape_like(x, y)                     # the elements of x in the shape of y
slice_like(x, y, axes=(2, 3))          # x[:, :, :H, :W], where H and W are extents of y
collapse_sum_like(x, y)                # sum of x over the axes along which y would be broadcast

Only the type of the other tensor is used. Each operator expands to the operator that has the shape
as an attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from aotc.ir import NO_ATTRS, Attrs, DType, NoAttrs, Shape, TensorType, attribute_field, is_static, require_static_shape
from aotc.ir.op import AxisMap, OpPattern, Types, declare_arguments, require
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import cast_clip_prelu, reduce, shape
from aotc.relay.op import slice as slices
from aotc.relay.op.gather import may_be_at_most
from aotc.relay.op.operator_definition import (
    Array,
    OpDef,
    Samples,
    exact_sample,
    may_be_equal_dims,
    random_array,
    random_samples_from_rows,
)
from aotc.relay.op.type_rules import (
    broadcast_two_shapes,
    normalize_axes,
    require_dtype,
    require_tensor_type,
    shape_text,
    static_shape_of,
)
from aotc.tir.numpy_semantics import cast_array_to_dtype

Numbers = tuple[int, ...]


def _op_with_derived_shape(
    name: str,
    attrs_class: type[Attrs],
    argument_names: str,
    result_shape: Callable[..., Shape],
    numpy_fn: Callable[[Array, Numbers], Array],
    expand_to_shape: Callable[[Expr, Numbers], Expr],
    samples: Sequence[Any],
    *,
    accepts: Callable[[DType], bool] = lambda _: True,
    **facets: Any,
) -> OpDef:
    """Return an OpDef whose result has the shape `result_shape(attrs, shape of the first argument,
    shapes of the further arguments...)`.
    """

    def infer_type_of_derived_shape(attrs: Any, types: Types) -> TensorType:
        data, *like_types = map(require_tensor_type, types)
        require_dtype(data.dtype, accepts(data.dtype))
        return TensorType(result_shape(attrs, data.shape, *(t.shape for t in like_types)), data.dtype)

    def expand_to_derived_shape(attrs: Any, data: Expr, *others: Expr) -> Expr:
        return expand_to_shape(data, require_static_shape(result_shape(attrs, *map(static_shape_of, (data, *others)))))

    return OpDef(
        name=name,
        attrs=attrs_class,
        args=declare_arguments(*argument_names.split()),
        infer=infer_type_of_derived_shape,
        reference=lambda a, x, *y: numpy_fn(x, require_static_shape(result_shape(a, x.shape, *(v.shape for v in y)))),
        axes=lambda a, types: AxisMap(((None,) * infer_type_of_derived_shape(a, types).rank,)),
        expand=expand_to_derived_shape,
        samples=random_samples_from_rows(attrs_class, samples),
        **facets,
    )


# --- reshape_like


class ReshapeLikeAttrs(Attrs):
    """`data` with its axes `lhs_begin` to `lhs_end` replaced by axes `rhs_begin` to `rhs_end` of
    `shape_like`.

    The replaced axes must have as many elements as the new ones. Ends are exclusive, negative
    numbers count from the last axis, and an end of None includes all further axes.
    """

    lhs_begin: int = 0
    lhs_end: int | None = None
    rhs_begin: int = 0
    rhs_end: int | None = None


def _checked_axis_range(begin: int, end: int | None, rank: int) -> range:
    first, last = (k + rank if k < 0 else k for k in (begin, rank if end is None else end))
    fits = 0 <= first <= last <= rank
    require("reshape_like.axes", fits, f"axes {begin} to {end} are not a range of axes of a tensor of rank {rank}")
    return range(first, last)


def _infer_reshape_like_shape(a: ReshapeLikeAttrs, data: Shape, like: Shape) -> Shape:
    data_axes = _checked_axis_range(a.lhs_begin, a.lhs_end, len(data))
    other = _checked_axis_range(a.rhs_begin, a.rhs_end, len(like))
    replaced, new = data[data_axes.start : data_axes.stop], like[other.start : other.stop]
    fits = not (is_static(replaced) and is_static(new)) or prod(require_static_shape(replaced)) == prod(
        require_static_shape(new)
    )
    require("reshape.size", fits, lambda: f"{shape_text(replaced)} cannot become {shape_text(new)}")
    return (*data[: data_axes.start], *new, *data[data_axes.stop :])


reshape_like = _op_with_derived_shape(
    "reshape_like",
    ReshapeLikeAttrs,
    "data shape_like",
    _infer_reshape_like_shape,
    lambda x, to: x.reshape(to),
    lambda x, to: shape.reshape(x, to, allowzero=0 in to),
    (
        (((2, 6), (3, 4)), {}),
        (((2, 6, 5), (3, 4)), {"lhs_end": 2}),
        (((5, 2, 3), (7, 6)), {"lhs_begin": 1, "rhs_begin": -1}),
        (((2, 0), (0, 3)), {}),
    ),
    pattern=OpPattern.INJECTIVE,
)


# --- broadcast_to_like, collapse_sum_like, collapse_sum_to


def _require_broadcasts_to_target(source: Shape, target: Shape) -> Shape:
    """Return the larger shape; raise AotcError (code "broadcast") unless the smaller shape
    broadcasts to it.
    """
    broadcast_shape = broadcast_two_shapes(source, target)
    same = len(broadcast_shape) == len(target) and all(map(may_be_equal_dims, broadcast_shape, target))
    require("broadcast", same, lambda: f"{shape_text(source)} does not broadcast to {shape_text(target)}")
    return target


broadcast_to_like = _op_with_derived_shape(
    "broadcast_to_like",
    NoAttrs,
    "data broadcast_type",
    lambda _, data, like: _require_broadcasts_to_target(data, like),
    np.broadcast_to,
    lambda x, to: shape.broadcast_to(x, to),
    ((((2, 1), (3, 2, 4)), {}), (((), (2,)), {}, "int8"), (((1,), (0,)), {})),
    pattern=OpPattern.BROADCAST,
    doc="`data` repeated to the shape of `broadcast_type`, as numpy broadcasts.",
)


class CollapseSumAttrs(Attrs):
    """`data` summed over the axes along which broadcasting `shape` to the data's shape would repeat
    elements.
    """

    shape: tuple[int, ...]


def _infer_collapse_sum_shape(_: Any, data: Shape, like: Shape) -> Shape:
    _require_broadcasts_to_target(like, data)
    return like


def _axes_expanded_by_broadcast(data: Sequence[int], unexpanded: Sequence[int]) -> Numbers:
    """Return the axes that broadcasting shape `unexpanded` to the data's shape adds or repeats."""
    ahead = len(data) - len(unexpanded)
    return tuple(k for k, d in enumerate(data) if k < ahead or unexpanded[k - ahead] != d)


def _numpy_sum_to_shape(x: Array, target_shape: Numbers) -> Array:
    axes = _axes_expanded_by_broadcast(x.shape, target_shape)
    total = reduce.sum.reference(reduce.ReduceAttrs(axis=axes), x) if axes else x
    return np.reshape(total, target_shape)


def _sum_to_shape(x: Expr, target_shape: Numbers) -> Expr:
    axes = _axes_expanded_by_broadcast(static_shape_of(x), target_shape)
    return shape.reshape(reduce.sum(x, axis=axes) if axes else x, target_shape, allowzero=0 in target_shape)


_COLLAPSE_SUM_FACETS: Any = {"accepts": lambda dtype: not dtype.is_bool, "pattern": OpPattern.COMM_REDUCE}

collapse_sum_like = _op_with_derived_shape(
    "collapse_sum_like",
    NoAttrs,
    "data collapse_type",
    _infer_collapse_sum_shape,
    _numpy_sum_to_shape,
    _sum_to_shape,
    ((((3, 2, 4), (2, 1)), {}), (((2, 3), (2, 3)), {}), (((2, 3), ()), {}, "int8"), (((0, 2), (2,)), {})),
    doc="`data` summed over all that broadcasting `collapse_type` to its shape repeats.",
    **_COLLAPSE_SUM_FACETS,
)
collapse_sum_to = _op_with_derived_shape(
    "collapse_sum_to",
    CollapseSumAttrs,
    "data",
    lambda a, data: _infer_collapse_sum_shape(a, data, a.shape),
    _numpy_sum_to_shape,
    _sum_to_shape,
    ((((3, 2, 4),), {"shape": (2, 1)}), (((3, 4),), {"shape": (1,)}, "float16")),
    **_COLLAPSE_SUM_FACETS,
)


# --- slice_like


class SliceLikeAttrs(Attrs):
    """The leading elements of `data` along `axes`, with the extents that `shape_like` has there.

    Without `axes`, all axes that both tensors have are sliced.
    """

    axes: tuple[int, ...] = attribute_field(default=(), parameter_default=None)


def _infer_slice_like_shape(a: SliceLikeAttrs, data: Shape, like: Shape) -> Shape:
    axes = normalize_axes(a.axes, len(data)) if a.axes else range(min(len(data), len(like)))
    require(
        "axis", all(k < len(like) for k in axes), lambda: f"{shape_text(like)} does not have all of the axes {a.axes}"
    )
    fits = all(may_be_at_most(like[k], data[k]) for k in axes)
    require("slice_like.shape", fits, lambda: f"{shape_text(like)} reaches beyond {shape_text(data)}")
    return tuple(like[k] if k in axes else d for k, d in enumerate(data))


slice_like = _op_with_derived_shape(
    "slice_like",
    SliceLikeAttrs,
    "data shape_like",
    _infer_slice_like_shape,
    lambda x, to: x[tuple(map(slice, to))],
    lambda x, to: slices.strided_slice(x, (0,) * len(to), to),
    ((((3, 4, 5), (1, 2)), {}), (((3, 4, 5), (1, 2, 3)), {"axes": (-1, 0)}), (((2, 3), (0, 3)), {}, "int8")),
    pattern=OpPattern.INJECTIVE,
)


# --- cast_like


def _cast_like_test_samples() -> Samples:
    for source, target in (("float32", "int8"), ("int32", "bfloat16"), ("float16", "float32")):
        yield exact_sample(NO_ATTRS, random_array((2, 3), source), random_array((4,), target))
    beyond = np.array([np.nan, np.inf, -np.inf, 1e10, -1e10], np.float32)
    yield exact_sample(NO_ATTRS, beyond, random_array((4,), "uint32"))


cast_like = OpDef(
    name="cast_like",
    doc="`data` converted to the data type of `dtype_like`.",
    args=declare_arguments("data", "dtype_like"),
    infer=lambda _, types: TensorType(require_tensor_type(types[0]).shape, require_tensor_type(types[1]).dtype),
    reference=lambda _, x, y: cast_array_to_dtype(x, y.dtype),
    pattern=OpPattern.ELEMWISE,
    axes=lambda _, types: AxisMap((tuple(range(require_tensor_type(types[0]).rank)),)),
    expand=lambda _, x, y: cast_clip_prelu.cast(x, str(tensor_type_of(y).dtype)),
    samples=_cast_like_test_samples,
)
