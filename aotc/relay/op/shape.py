# SPDX-License-Identifier: Apache-2.0
"""Operators that change only the shape, permute axes, broadcast, or return the shape.

reshape(x, (0, -1))                    # 0 copies a dimension, -1 is inferred from the remaining elements
transpose(x, (0, 2, 3, 1))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.ir import Attrs, Dim, DType, NoAttrs, Shape, SymDim, TensorType, Type, is_static, param, product, static_shape
from aotc.ir.op import AxisMap, OpPattern, Precision, Types, require
from aotc.relay.op.opdef import Index, OpDef, Samples, Scalar, each_element
from aotc.relay.op.operator_definition import (
    axis_of,
    broadcast_at,
    broadcast_dim,
    literal,
    samples_of,
    shape_text,
    tensor,
)
from aotc.tir import Tensor, const, te


def _view_op(
    name: str,
    attributes: type[Attrs],
    result: Callable[[Any, Shape], Shape],
    axes: Callable[[Any, Types], AxisMap | None] | None,
    samples: Callable[[], Samples],
    pattern: OpPattern = OpPattern.INJECTIVE,
    **facets: Any,
) -> OpDef:
    """Return the OpDef of an operator that preserves the elements and their order; `result`
    computes the shape.
    """

    def infer(a: Any, types: Types) -> Type:
        data = tensor(types[0])
        return TensorType(result(a, data.shape), data.dtype)

    def known(a: Any, shape: Shape) -> tuple[int, ...]:
        return static_shape(result(a, shape))

    return OpDef(
        name=name,
        attrs=attributes,
        infer=infer,
        reference=lambda a, x: x.reshape(known(a, x.shape)),
        pattern=pattern,
        axes=axes,
        compute=lambda a, x: te.view(x, known(a, x.shape)),
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

    newshape: tuple[int, ...]
    allowzero: bool = False


def times(d: Dim, factor: int) -> Dim:
    """Return a dimension multiplied by a factor; the dimension itself for a factor of 1."""
    return d if factor == 1 else product((d, factor))


def quotient(dims: Sequence[Dim], divisors: Sequence[Dim]) -> Dim:
    """Return the product of `dims` divided by the product of `divisors`; a new symbol if it is not
    known.

    Raise AotcError (code "reshape.size") if the division is known to have a remainder.
    """
    rest, unknown = list(dims), False
    for d in divisors:
        if isinstance(d, SymDim) and d.name and d in rest:
            rest.remove(d)
        else:
            unknown = unknown or isinstance(d, SymDim)
    known = math.prod(d for d in divisors if isinstance(d, int))
    total = math.prod(d for d in rest if isinstance(d, int))
    symbols = [d for d in rest if isinstance(d, SymDim)]
    if unknown or (symbols and (known != total or len(symbols) > 1)):
        return SymDim()
    require("reshape.size", known != 0, "a dimension of -1 next to a dimension of 0 is ambiguous")
    if symbols:
        return symbols[0]
    require("reshape.size", total % known == 0, f"{total} elements do not fill rows of {known}")
    return total // known


def _halves(whole: Dim, parts: Sequence[int]) -> list[Dim]:
    """Return the two dimensions into which -4, a, b in a new shape split a dimension; one of them
    may be -1.
    """
    require("reshape.value", parts.count(-1) <= 1, "-4 may be followed by one -1 only")
    rest = quotient((whole,), [p for p in parts if p != -1])
    fits = -1 in parts or rest == 1 or isinstance(rest, SymDim)
    require("reshape.size", fits, lambda: f"dimension {whole} is not {parts[0]} x {parts[1]}")
    return [rest if p == -1 else p for p in parts]


def reshaped(a: ReshapeAttrs, shape: Shape) -> Shape:
    """Return the shape described by `newshape`, whose special values refer to the data's dimensions
    in order.
    """
    values, source = list(a.newshape), list(shape)
    found: list[Dim | None] = []

    def take() -> Dim:
        require("reshape.rank", len(source) > 0, f"{a.newshape} copies more dimensions than the data has")
        return source.pop(0)

    while values:
        match values.pop(0):
            case 0 if not a.allowzero:
                found.append(take())
            case -2:
                found.extend(source)
                source.clear()
            case -3:
                found.append(product((take(), take())))
            case -4:
                require("reshape.value", len(values) >= 2, "-4 must be followed by two values")
                found.extend(_halves(take(), (values.pop(0), values.pop(0))))
            case value:
                require("reshape.value", value >= -1, f"{value} in {a.newshape} is not a valid dimension")
                found.append(None if value == -1 else value)
                del source[:1]
    require("reshape.one-unknown", found.count(None) <= 1, f"more than one -1 in {a.newshape}")
    known = [d for d in found if d is not None]
    if None in found:
        return tuple(quotient(shape, known) if d is None else d for d in found)
    fits = not (is_static(known) and is_static(shape)) or product(known) == product(shape)
    hint = "the product of the extents stays; -1 stands for what is left"
    require("reshape.size", fits, lambda: f"{shape_text(shape)} cannot become {shape_text(tuple(known))}", hint)
    return tuple(known)


def _reshape_axes(a: ReshapeAttrs, types: Types) -> AxisMap | None:
    """Return the axis map of a reshape: leading dimensions that 0 copies are mapped to the data's
    dimensions.
    """
    rank = len(reshaped(a, tensor(types[0]).shape))
    kept = 0
    while kept < len(a.newshape) and a.newshape[kept] == 0 and not a.allowzero:
        kept += 1
    if kept < len(a.newshape) and a.newshape[kept] == -2:
        return AxisMap((tuple(range(rank)),))
    return AxisMap((tuple(k if k < kept else None for k in range(rank)),))


reshape = _view_op("reshape", ReshapeAttrs, reshaped, _reshape_axes, samples_of(ReshapeAttrs, "newshape allowzero", (
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


def _reverse_reshaped(a: ReverseReshapeAttrs, shape: Shape) -> Shape:
    require("reshape.value", -4 not in a.newshape, f"-4 in {a.newshape} is not allowed with reverse reshaping")
    return reshaped(ReshapeAttrs(newshape=a.newshape[::-1]), shape[::-1])[::-1]


reverse_reshape = _view_op(
    "reverse_reshape",
    ReverseReshapeAttrs,
    _reverse_reshaped,
    lambda a, types: AxisMap(((None,) * len(_reverse_reshaped(a, tensor(types[0]).shape)),)),
    samples_of(
        ReverseReshapeAttrs,
        "newshape",
        (((2, 3, 4), (4, 0, 2)), ((10, 5, 4), (-1, 0)), ((2, 3, 4), (1, -2)), ((2, 3, 4), (0, -3)), ((0, 3), (-1,))),
        ("float32", "int8"),
    ),
)


# --- squeeze, expand_dims, batch_flatten


def _by_axes(row: Callable[[Any, Shape], Sequence[int | None]]) -> tuple[Any, Any]:
    """Return shape function and axis map of a view whose axes are data axes or new axes of extent 1
    (None).
    """
    return (
        lambda a, shape: tuple(1 if k is None else shape[k] for k in row(a, shape)),
        lambda a, types: AxisMap((tuple(row(a, tensor(types[0]).shape)),)),
    )


class SqueezeAttrs(Attrs):
    """The data without the listed axes, which must have extent 1; None removes all axes of extent
    1.
    """

    axis: tuple[int, ...] | None = None


def _kept_axes(a: SqueezeAttrs, shape: Shape) -> tuple[int, ...]:
    rank = len(shape)
    axes = {k for k, d in enumerate(shape) if d == 1} if a.axis is None else {axis_of(k, rank) for k in a.axis}
    wrong = [k for k in axes if isinstance(shape[k], int) and shape[k] != 1]
    require("squeeze.axis", not wrong, lambda: f"axis {wrong[0]} of {shape_text(shape)} is not 1")
    return tuple(k for k in range(rank) if k not in axes)


def _squeeze_moved(a: SqueezeAttrs, types: Types, now: Callable[[int], int]) -> Attrs:
    shape = tensor(types[0]).shape
    kept = _kept_axes(a, shape)
    return a.replace(axis=tuple(sorted(now(k) for k in range(len(shape)) if k not in kept)))


squeeze = _view_op(
    "squeeze",
    SqueezeAttrs,
    *_by_axes(_kept_axes),
    samples_of(
        SqueezeAttrs,
        "axis",
        (((1, 3, 1), None), ((1, 3, 1), (0,)), ((1, 3, 1), (-1, 0)), ((1,), (0,)), ((2, 3), None), ((0, 1), (1,))),
    ),
    moved=_squeeze_moved,
)


class ExpandDimsAttrs(Attrs):
    """The data with `num_newaxis` new axes of extent 1 before `axis`; -1 appends them after the
    last axis.
    """

    axis: int
    num_newaxis: int = 1


def _expanded_axes(a: ExpandDimsAttrs, shape: Shape) -> tuple[int | None, ...]:
    require("expand_dims.count", a.num_newaxis >= 0, f"num_newaxis must not be negative, got {a.num_newaxis}")
    axis = axis_of(a.axis, len(shape) + 1)
    return (*range(axis), *(None,) * a.num_newaxis, *range(axis, len(shape)))


expand_dims = _view_op(
    "expand_dims",
    ExpandDimsAttrs,
    *_by_axes(_expanded_axes),
    samples_of(
        ExpandDimsAttrs,
        "axis num_newaxis",
        (((2, 3), 0), ((2, 3), -1), ((2, 3), 1, 2), ((), 0), ((0,), 1), ((2,), 0, 0)),
    ),
    pattern=OpPattern.BROADCAST,
)


def _flattened(_: Any, shape: Shape) -> Shape:
    require("batch_flatten.rank", len(shape) > 0, "the data has no batch dimension")
    return (shape[0], product(shape[1:]))


batch_flatten = _view_op(
    "nn.batch_flatten",
    NoAttrs,
    _flattened,
    lambda _, types: AxisMap(((0, None),)),
    samples_of(NoAttrs, "", (((2, 3, 4),), ((2,),), ((1, 3),), ((0, 2, 2),))),
    doc="(d0, d1, d2, ...) as (d0, d1 * d2 * ...).",
)


# --- transpose


class TransposeAttrs(Attrs):
    """The data with permuted axes: axis k of the result is axis axes[k] of the data; None reverses
    the axes.
    """

    axes: tuple[int, ...] | None = param(given=None)


def permutation(a: TransposeAttrs, rank: int) -> tuple[int, ...]:
    """Return for each axis of the result the axis of the data; raise AotcError for an invalid
    permutation.
    """
    if a.axes is None:
        return tuple(reversed(range(rank)))
    axes = tuple(axis_of(k, rank) for k in a.axes)
    complete = sorted(axes) == list(range(rank))
    require("transpose.axes", complete, f"axes {a.axes} are not a permutation of {rank} axes")
    return axes


def _transpose_infer(a: TransposeAttrs, types: Types) -> Type:
    data = tensor(types[0])
    return TensorType((data.shape[k] for k in permutation(a, data.rank)), data.dtype)


def _transpose_element(a: TransposeAttrs, i: Index, data: Tensor) -> Scalar:
    at = dict(zip(permutation(a, data.rank), i, strict=True))
    return data[tuple(at[k] for k in range(data.rank))]


transpose = OpDef(
    name="transpose",
    attrs=TransposeAttrs,
    infer=_transpose_infer,
    reference=lambda a, x: x.transpose(permutation(a, x.ndim)),
    pattern=OpPattern.INJECTIVE,
    axes=lambda a, types: AxisMap((permutation(a, tensor(types[0]).rank),)),
    moved=lambda a, types, now: a.replace(axes=tuple(map(now, permutation(a, tensor(types[0]).rank)))),
    element=_transpose_element,
    samples=samples_of(TransposeAttrs, "axes", (
        ((2, 3, 4), (2, 0, 1)), ((2, 3), None), ((1, 2, 3, 4), (0, -2, -1, 1)), ((), None), ((3,), (0,)),
        ((0, 2), None),
    )),
)  # fmt: skip


# --- broadcast_to


class InitAttrs(Attrs):
    """Shape and type of a new tensor; an empty `dtype` means the argument's."""

    shape: tuple[int, ...]
    dtype: str = ""


def _broadcast_infer(a: InitAttrs, types: Types) -> Type:
    data = tensor(types[0])
    fits = data.rank <= len(a.shape)
    for d, wanted in zip(reversed(data.shape), reversed(a.shape), strict=False):
        fits = fits and broadcast_dim(d, wanted) == wanted
    require("broadcast", fits, lambda: f"{shape_text(data.shape)} does not broadcast to {shape_text(a.shape)}")
    return TensorType(a.shape, data.dtype)


def no_axes(a: InitAttrs, _: Types) -> AxisMap:
    """Return the axis map of a result with a fixed shape, in which no axis is mapped to an axis of
    the data.
    """
    return AxisMap(((None,) * len(a.shape),))


broadcast_to = OpDef(
    name="broadcast_to",
    doc="`data` repeated to `shape`, as numpy broadcasts.",
    attrs=InitAttrs,
    order="data shape",
    infer=_broadcast_infer,
    reference=lambda a, x: np.broadcast_to(x, a.shape),
    pattern=OpPattern.BROADCAST,
    axes=no_axes,
    element=lambda _, i, x: broadcast_at(x, i),
    samples=samples_of(
        InitAttrs, "shape", (((2, 1), (3, 2, 4)), ((), (2, 2)), ((), ()), ((3,), (3,)), ((1,), (0,)), ((1, 3), (2, 3)))
    ),
)


# --- shape_of, ndarray_size


class ShapeOfAttrs(Attrs):
    dtype: str = "int32"


def _size_query(name: str, vector: bool, doc: str, rows: Sequence[Any]) -> OpDef:
    """Return the OpDef that computes the shape of a tensor (`vector` True) or its number of
    elements (False).
    """

    def infer(a: ShapeOfAttrs, types: Types) -> Type:
        data, dtype = tensor(types[0]), DType(a.dtype)
        dims = [d for d in data.shape if isinstance(d, int)]
        largest = max(dims, default=0) if vector else data.numel if data.is_static else 0
        require("shape_of.dtype", dtype.is_float or largest <= int(dtype.max), f"{largest} does not fit into {dtype}")
        return TensorType((data.rank,) if vector else (), dtype)

    def element(a: ShapeOfAttrs, i: Index, x: Tensor) -> Scalar:
        return literal(x.shape or (0,), i[0], a.dtype) if vector else const(x.size, a.dtype)

    return OpDef(
        name=name,
        doc=doc,
        attrs=ShapeOfAttrs,
        infer=infer,
        reference=lambda a, x: np.array(x.shape if vector else x.size, DType(a.dtype).numpy),
        axes=lambda *_: AxisMap(((None,) if vector else (),)),
        compute=each_element("shape_of" if vector else "size", infer, element),
        precision=Precision.FOLLOW,
        samples=samples_of(ShapeOfAttrs, "dtype", rows),
    )


_SHAPES = (((2, 1, 3), "int32"), ((), "int64"), ((0, 2), "int32"), ((0, 2), "int64"), ((4,), "int64"))

shape_of = _size_query("shape_of", True, "The shape as a vector of integers.", _SHAPES)
ndarray_size = _size_query("ndarray_size", False, "The number of elements, as a scalar.", _SHAPES)
