# SPDX-License-Identifier: Apache-2.0
"""Sums, differences and products of quantised tensors, which are broadcast: qnn.add, qnn.subtract, qnn.mul.

add(x, y, 0.1, 3, 0.2, 0, 0.3, -5)             # int8 of scale 0.3 around -5

The arithmetic is that of ONNX Runtime's kernels, down to the roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, Layout, OpPattern, TensorType, Type, Types, args
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op.define import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import numbers as q
from aotc.relay.op.qnn import rounded
from aotc.relay.op.qnn.scale import scale_array, zero_array
from aotc.relay.op.rules import broadcast_shape, pointwise, require_same_dtype, tensor

_LEFT = ("lhs_scale", "lhs_zero_point")
_RIGHT = ("rhs_scale", "rhs_zero_point")
_NAMES = (*_LEFT, *_RIGHT, *q.ONTO)


class SumAttrs(Attrs):
    """The sum of the numbers that two tensors stand for, as integers of the output's scale and of their type.

    round_even(lhs * p + (rhs * q + c)) saturated, in float32, p = lhs_scale / output_scale, q = rhs_scale /
    output_scale, c = output_zero - (p * lhs_zero + q * rhs_zero); each product is rounded together with its sum.  An
    operand that has one element along the last axis of several is taken for the right one, as ONNX Runtime does.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


class DifferenceAttrs(Attrs):
    """The difference of the numbers that two tensors stand for, as integers of the output's scale and of their type.

    round_even(((lhs - lhs_zero) * lhs_scale - (rhs - rhs_zero) * rhs_scale) / output_scale) + output_zero saturated,
    in float32, each operation rounded: what dequantising, subtracting and quantising give.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


class ProductAttrs(Attrs):
    """The product of the numbers that two tensors stand for, as integers of the output's scale and of their type.

    round_even((lhs - lhs_zero) * (rhs - rhs_zero) * (lhs_scale * rhs_scale / output_scale) + output_zero) saturated, in
    float32, the products in the first parentheses in integers.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


def _infer(a: Any, types: Types) -> Type:
    x, y = q.quantised(types[0], "lhs"), q.quantised(types[1], "rhs")
    require_same_dtype(x, y)
    q.check_pairs(types[2:4], x, a.lhs_axis, *_LEFT)
    q.check_pairs(types[4:6], y, a.rhs_axis, *_RIGHT)
    q.check_pairs(types[6:8], x, None, *q.ONTO)
    return TensorType(broadcast_shape(x.shape, y.shape), x.dtype)


def _axes(a: Any, types: Types) -> AxisMap:
    """That of the tensors; where there are scales for an axis, it is not mapped."""
    found = pointwise(a, types[:2])
    rank = len(found.inputs[0])
    several = [k for k in (2, 3, 4, 5) if tensor(types[k]).shape not in ((), (1,))]
    fixed = {(a.lhs_axis if k < 4 else a.rhs_axis) % rank for k in several}
    rows = [tuple(None if k in fixed else v for k, v in enumerate(row)) for row in found.inputs]
    return AxisMap(tuple(rows))


def _ended(y: Expr, dtype: DType) -> Expr:
    """Real numbers around a zero point, rounded and saturated."""
    return q.nearest(y, q.constant(0, "int32"), None, dtype)


def _turned(lhs: Sequence[Any], rhs: Sequence[Any]) -> bool:
    """Whether the left operand alone has one element along the last axis where there are several."""
    pairs = zip_longest(reversed(lhs), reversed(rhs), fillvalue=1)
    return next((left == 1 for left, right in pairs if left != 1 or right != 1), False)


def _sum_expand(a: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    if _turned(tensor_type_of(x).shape, tensor_type_of(y).shape):
        a = a.replace(lhs_axis=a.rhs_axis, rhs_axis=a.lhs_axis)
        x, sx, zx, y, sy, zy = y, sy, zy, x, sx, zx
    places = ((a.lhs_axis, q.rank_of(x)), (a.rhs_axis, q.rank_of(y)))
    onto = q.converted(q.laid(so, None, 0), "float32")
    left, right = (q.div(q.laid(s, *p, "float32"), onto) for s, p in zip((sx, sy), places, strict=True))
    first, second = (q.laid(z, *p, "float32") for z, p in zip((zx, zy), places, strict=True))
    offset = q.made(rounded.multiply_add, left, first, q.made(rounded.product, right, second))
    base = q.sub(q.laid(zo, None, 0, "float32"), offset)
    wide = [q.converted(t, "float32") for t in (x, y)]
    total = q.made(rounded.multiply_add, wide[1], right, base)
    return _ended(q.made(rounded.multiply_add, wide[0], left, total), q.dtype_of(x))


def _difference_expand(a: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    both = []
    for data, scale, zero, axis in ((x, sx, zx, a.lhs_axis), (y, sy, zy, a.rhs_axis)):
        whole = q.converted(q.centred(data, zero, axis), "float32")
        both.append(q.made(rounded.product, whole, q.laid(scale, axis, q.rank_of(data), "float32")))
    return q.nearest(q.div(q.sub(*both), q.laid(so, None, 0, "float32")), zo, None, q.dtype_of(x))


def _product_expand(a: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    left = q.laid(sx, a.lhs_axis, q.rank_of(x), "float32")
    both = q.made(rounded.product, left, q.laid(sy, a.rhs_axis, q.rank_of(y), "float32"))
    ratio = q.div(both, q.laid(so, None, 0, "float32"))
    whole = q.mul(q.centred(x, zx, a.lhs_axis), q.centred(y, zy, a.rhs_axis))
    real = q.made(rounded.product, q.converted(whole, "float32"), ratio)
    return _ended(q.add(real, q.laid(zo, None, 0, "float32")), q.dtype_of(x))


def _arrays(a: Any, x: Array, y: Array, values: tuple[Array, ...]) -> list[Array]:
    """Scales and zero points as float32, as they broadcast with the tensors."""
    places = [(a.lhs_axis, x.ndim)] * 2 + [(a.rhs_axis, y.ndim)] * 2 + [(None, 0)] * 2
    return [q.spread(v, *place, np.float32) for v, place in zip(values, places, strict=True)]


def _sum_reference(a: Any, x: Array, y: Array, *values: Array) -> Array:
    sx, zx, sy, zy, so, zo = _arrays(a, x, y, values)
    if _turned(x.shape, y.shape):
        x, sx, zx, y, sy, zy = y, sy, zy, x, sx, zx
    left, right = sx / so, sy / so
    fma = partial(rounded.multiply_add.reference, None)
    base = zo - fma(left, zx, right * zy)
    total = fma(x.astype(np.float32), left, fma(y.astype(np.float32), right, base))
    return q.stored(np.rint(total), np.zeros(()), None, DType.of(x))


def _difference_reference(a: Any, x: Array, y: Array, *values: Array) -> Array:
    sx, zx, sy, zy, so, zo = values
    real = q.dequantized(x, sx, zx, a.lhs_axis) - q.dequantized(y, sy, zy, a.rhs_axis)
    return q.quantized(real, so.astype(np.float32), zo, DType.of(x))


def _product_reference(a: Any, x: Array, y: Array, *values: Array) -> Array:
    sx, _, sy, _, so, zo = _arrays(a, x, y, values)
    whole = q.offsets(x, values[1], a.lhs_axis) * q.offsets(y, values[3], a.rhs_axis)
    real = whole.astype(np.float32) * (sx * sy / so) + zo
    return q.stored(np.rint(real), np.zeros(()), None, DType.of(x))


def _samples(attributes: Any) -> Samples:
    onto = (scale_array(0.11), zero_array(5))
    one = (scale_array(0.07), zero_array(-3), scale_array(0.031), zero_array(100), *onto)
    for dtype in ("int8", "uint8", "int16"):
        x, y = random_array((2, 3, 4), dtype), random_array((3, 1), dtype, 1)
        parts = tuple(np.maximum(v, 0) if dtype == "uint8" else v for v in one)
        yield q.with_constants(attributes(), x, y, *parts, given=2)
        yield exact(attributes(), x, random_array((2, 3, 4), dtype, 2), *parts)
    channels = (scale_array(0.01, 0.2, 0.03), zero_array(3, 0, -7))
    many = attributes(lhs_axis=1, rhs_axis=0)
    x, y = random_array((2, 3, 4), "int8"), random_array((3, 1), "int8", 1)
    yield q.with_constants(many, x, y, *channels, *channels, *onto, given=2)


def _operator(name: str, attributes: Any, reference: Any, body: Callable[..., Expr]) -> OpDef:
    def expand(a: Any, *operands: Expr) -> Expr:
        q.checked(q.dtype_of(operands[0]), _NAMES, *operands[2:])
        return body(a, *operands)

    return OpDef(
        name=f"qnn.{name}",
        attrs=attributes,
        args=(*args("lhs", "rhs"), *q.scales(*_NAMES)),
        infer=_infer,
        reference=reference,
        axes=_axes,
        expand=expand,
        samples=partial(_samples, attributes),
        layout=Layout.BARRIER,
        **q.facets(OpPattern.BROADCAST),
    )


add = _operator("add", SumAttrs, _sum_reference, _sum_expand)
subtract = _operator("subtract", DifferenceAttrs, _difference_reference, _difference_expand)
mul = _operator("mul", ProductAttrs, _product_reference, _product_expand)
