# SPDX-License-Identifier: Apache-2.0
"""Broadcasting arithmetic on quantized tensors: qnn.add, qnn.subtract and qnn.mul.

add(x, y, 0.1, 3, 0.2, 0, 0.3, -5)             # int8 with scale 0.3 and zero point -5

Input zero points are subtracted in integer arithmetic, and the output zero point is added after
rounding. Ties therefore round to an even multiple of the output scale for all zero points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from aotc.ir import Attrs, AxisMap, DType, Layout, OpPattern, TensorType, Type, Types, args
from aotc.relay.expr import Expr
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import defined_rounding
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn.requantize import scale_array, zero_array
from aotc.relay.op.type_rules import broadcast_shape, pointwise, require_same_dtype, tensor

_LEFT = ("lhs_scale", "lhs_zero_point")
_RIGHT = ("rhs_scale", "rhs_zero_point")
_NAMES = (*_LEFT, *_RIGHT, *q.ONTO)


class SumAttrs(Attrs):
    """Sum of two quantized tensors, requantized to the output's scale and zero point, with the type
    of the inputs.

    round_even((lhs - lhs_zero) * p + (rhs - rhs_zero) * q) + output_zero, saturated, where p =
    lhs_scale / output_scale and q = rhs_scale / output_scale. Each operation is rounded to float32;
    to float64 if p or q is known at compile time and exceeds `ratio_limit`, since float32 would
    lose whole steps where the two products cancel.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


class DifferenceAttrs(Attrs):
    """Difference of two quantized tensors, requantized to the output's scale and zero point, with
    the type of the inputs.

    round_even((lhs - lhs_zero) * p - (rhs - rhs_zero) * q) + output_zero, saturated, where p =
    lhs_scale / output_scale and q = rhs_scale / output_scale, in the floating-point type that
    qnn.add computes in.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


class ProductAttrs(Attrs):
    """Product of two quantized tensors, requantized to the output's scale and zero point, with the
    type of the inputs.

    round_even((lhs - lhs_zero) * (rhs - rhs_zero) * (lhs_scale * rhs_scale / output_scale)) +
    output_zero, saturated, each operation in float32; the first product is exact for integers of 8
    bits.
    """

    lhs_axis: int = -1
    rhs_axis: int = -1


def ratio_limit(dtype: DType) -> float:
    """Return the largest ratio input_scale / output_scale for which qnn.add is computed in float32.

    Up to this ratio, the rounding errors of both products and of their sum add up to less than 0.05
    output steps.
    """
    return 2.0 ** (18 - dtype.bits)


def _infer(a: Any, types: Types) -> Type:
    x, y = q.quantized_type(types[0], "lhs"), q.quantized_type(types[1], "rhs")
    require_same_dtype(x, y)
    q.check_pairs(types[2:4], x, a.lhs_axis, *_LEFT)
    q.check_pairs(types[4:6], y, a.rhs_axis, *_RIGHT)
    q.check_pairs(types[6:8], x, None, *q.ONTO)
    return TensorType(broadcast_shape(x.shape, y.shape), x.dtype)


def _axes(a: Any, types: Types) -> AxisMap:
    """Return the axis map of the broadcast tensors, without axes along which scales differ by
    element.
    """
    found = pointwise(a, types[:2])
    rank = len(found.inputs[0])
    several = [k for k in (2, 3, 4, 5) if tensor(types[k]).shape not in ((), (1,))]
    fixed = {(a.lhs_axis if k < 4 else a.rhs_axis) % rank for k in several}
    rows = [tuple(None if k in fixed else v for k, v in enumerate(row)) for row in found.inputs]
    return AxisMap(tuple(rows))


def _work(dtype: DType, scales: Sequence[Array | None], onto: Array | None) -> str:
    """Return the type in which sums are computed: float64 if a scale ratio is known and above
    `ratio_limit`, else float32.
    """
    if onto is None:
        return "float32"
    ratios = [(v.astype(np.float64) / onto.astype(np.float64)).max(initial=0) for v in scales if v is not None]
    return "float64" if max(ratios, default=0) > ratio_limit(dtype) else "float32"


def _sum_expand(combine: Callable[[Expr, Expr], Expr], a: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    dtype = q.dtype_of(x)
    work = _work(dtype, [q.known(sx), q.known(sy)], q.known(so))
    onto = q.laid(so, None, 0, work)
    terms = []
    for data, scale, zero, axis in ((x, sx, zx, a.lhs_axis), (y, sy, zy, a.rhs_axis)):
        ratio = q.div(q.laid(scale, axis, q.rank_of(data), work), onto)
        terms.append(q.made(defined_rounding.product, q.converted(q.centered(data, zero, axis), work), ratio))
    return q.nearest(combine(*terms), zo, None, dtype)


def _product_expand(a: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    left = q.laid(sx, a.lhs_axis, q.rank_of(x), "float32")
    both = q.made(defined_rounding.product, left, q.laid(sy, a.rhs_axis, q.rank_of(y), "float32"))
    ratio = q.div(both, q.laid(so, None, 0, "float32"))
    lhs, rhs = q.centered(x, zx, a.lhs_axis), q.centered(y, zy, a.rhs_axis)
    if q.dtype_of(x).bits > 8:
        # products of 17-bit differences overflow int32
        whole = q.made(defined_rounding.product, q.converted(lhs, "float32"), q.converted(rhs, "float32"))
    else:
        whole = q.converted(q.mul(lhs, rhs), "float32")
    return q.nearest(q.made(defined_rounding.product, whole, ratio), zo, None, q.dtype_of(x))


def _arrays(a: Any, x: Array, y: Array, values: tuple[Array, ...], dtype: str) -> list[Array]:
    """Return scales as `dtype` and zero points as int32, reshaped to broadcast with their tensors."""
    places = [(a.lhs_axis, x.ndim)] * 2 + [(a.rhs_axis, y.ndim)] * 2 + [(None, 0)] * 2
    kinds = (dtype, "int32") * 3
    return [q.spread(v, *place, np.dtype(kind)) for v, place, kind in zip(values, places, kinds, strict=True)]


def _sum_reference(combine: Callable[[Array, Array], Array], a: Any, x: Array, y: Array, *values: Array) -> Array:
    work = _work(DType.of(x), [values[0], values[2]], values[4])
    sx, zx, sy, zy, so, zo = _arrays(a, x, y, values, work)
    left, right = (
        (data.astype(np.int32) - zero).astype(work) * (scale / so) for data, zero, scale in ((x, zx, sx), (y, zy, sy))
    )
    return q.stored(np.rint(combine(left, right)), zo, None, DType.of(x))


def _product_reference(a: Any, x: Array, y: Array, *values: Array) -> Array:
    sx, zx, sy, zy, so, zo = _arrays(a, x, y, values, "float32")
    lhs, rhs = ((v.astype(np.int32) - zero).astype(np.float32) for v, zero in ((x, zx), (y, zy)))
    return q.stored(np.rint(lhs * rhs * (sx * sy / so)), zo, None, DType.of(x))


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


add = _operator("add", SumAttrs, partial(_sum_reference, np.add), partial(_sum_expand, q.add))
subtract = _operator("subtract", DifferenceAttrs, partial(_sum_reference, np.subtract), partial(_sum_expand, q.sub))
mul = _operator("mul", ProductAttrs, _product_reference, _product_expand)
