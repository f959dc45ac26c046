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

from aotc.ir import Attrs, AxisMap, DType, LayoutTreatment, OpPattern, TensorType, Type, Types, declare_arguments
from aotc.relay.expr import Expr
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import target_independent_rounding
from aotc.relay.op.qnn.requantize import float32_scale_array, int32_zero_point_array
from aotc.relay.op.type_rules import broadcast_two_shapes, elementwise_axis_map, require_same_dtype, require_tensor_type

_LHS_PARAMETER_NAMES = ("lhs_scale", "lhs_zero_point")
_RHS_PARAMETER_NAMES = ("rhs_scale", "rhs_zero_point")
_QUANT_PARAMETER_NAMES = (*_LHS_PARAMETER_NAMES, *_RHS_PARAMETER_NAMES, *q.OUTPUT_PARAMETER_NAMES)


class SumAttrs(Attrs):
    """Sum of two quantized tensors, requantized to the output's scale and zero point, with the type
    of the inputs.

    round_even((lhs - lhs_zero) * p + (rhs - rhs_zero) * q) + output_zero, saturated, where p =
    lhs_scale / output_scale and q = rhs_scale / output_scale. Each operation is rounded to float32;
    to float64 if p or q is known at compile time and exceeds `max_quant_scale_ratio_for_float32`, since
    float32 would lose whole steps where the two products cancel.
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


def max_quant_scale_ratio_for_float32(dtype: DType) -> float:
    """Return the largest ratio input_scale / output_scale for which qnn.add is computed in float32.

    Up to this ratio, the rounding errors of both products and of their sum add up to less than 0.05
    output steps.
    """
    return 2.0 ** (18 - dtype.bits)


def _infer_quantized_binary_type(attrs: Any, types: Types) -> Type:
    x, y = q.require_integer_type_up_to_bits(types[0], "lhs"), q.require_integer_type_up_to_bits(types[1], "rhs")
    require_same_dtype(x, y)
    q.check_quant_param_types(types[2:4], x, attrs.lhs_axis, *_LHS_PARAMETER_NAMES)
    q.check_quant_param_types(types[4:6], y, attrs.rhs_axis, *_RHS_PARAMETER_NAMES)
    q.check_quant_param_types(types[6:8], x, None, *q.OUTPUT_PARAMETER_NAMES)
    return TensorType(broadcast_two_shapes(x.shape, y.shape), x.dtype)


def _quantized_binary_axis_map(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of the broadcast tensors, without axes along which scales differ by
    element.
    """
    axis_map = elementwise_axis_map(attrs, types[:2])
    rank = len(axis_map.inputs[0])
    several = [k for k in (2, 3, 4, 5) if require_tensor_type(types[k]).shape not in ((), (1,))]
    fixed = {(attrs.lhs_axis if k < 4 else attrs.rhs_axis) % rank for k in several}
    rows = [tuple(None if k in fixed else v for k, v in enumerate(row)) for row in axis_map.inputs]
    return AxisMap(tuple(rows))


def _sum_dtype_for_quant_scale_ratios(
    dtype: DType, input_scales: Sequence[Array | None], output_scale: Array | None
) -> str:
    """Return the type in which sums are computed: float64 if a scale ratio is known and above
    `max_quant_scale_ratio_for_float32`, else float32.
    """
    if output_scale is None:
        return "float32"
    ratios = [
        (v.astype(np.float64) / output_scale.astype(np.float64)).max(initial=0) for v in input_scales if v is not None
    ]
    return "float64" if max(ratios, default=0) > max_quant_scale_ratio_for_float32(dtype) else "float32"


def _expand_quantized_sum(combine: Callable[[Expr, Expr], Expr], attrs: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    dtype = q.tensor_dtype_of(x)
    work = _sum_dtype_for_quant_scale_ratios(
        dtype, [q.constant_value_or_none(sx), q.constant_value_or_none(sy)], q.constant_value_or_none(so)
    )
    onto = q.broadcast_quant_param_along(so, None, 0, work)
    terms = []
    for data, scale, zero, axis in ((x, sx, zx, attrs.lhs_axis), (y, sy, zy, attrs.rhs_axis)):
        ratio = q.div(q.broadcast_quant_param_along(scale, axis, q.rank_of(data), work), onto)
        terms.append(
            q.call_or_fold_constants(
                target_independent_rounding.product,
                q.cast_unless_dtype_equal(q.subtract_zero_point(data, zero, axis), work),
                ratio,
            )
        )
    return q.round_add_zero_point_saturate(combine(*terms), zo, None, dtype)


def _expand_quantized_product(attrs: Any, *operands: Expr) -> Expr:
    x, y, sx, zx, sy, zy, so, zo = operands
    left = q.broadcast_quant_param_along(sx, attrs.lhs_axis, q.rank_of(x), "float32")
    both = q.call_or_fold_constants(
        target_independent_rounding.product,
        left,
        q.broadcast_quant_param_along(sy, attrs.rhs_axis, q.rank_of(y), "float32"),
    )
    ratio = q.div(both, q.broadcast_quant_param_along(so, None, 0, "float32"))
    lhs, rhs = q.subtract_zero_point(x, zx, attrs.lhs_axis), q.subtract_zero_point(y, zy, attrs.rhs_axis)
    if q.tensor_dtype_of(x).bits > 8:
        # products of 17-bit differences overflow int32
        whole = q.call_or_fold_constants(
            target_independent_rounding.product,
            q.cast_unless_dtype_equal(lhs, "float32"),
            q.cast_unless_dtype_equal(rhs, "float32"),
        )
    else:
        whole = q.cast_unless_dtype_equal(q.mul(lhs, rhs), "float32")
    return q.round_add_zero_point_saturate(
        q.call_or_fold_constants(target_independent_rounding.product, whole, ratio), zo, None, q.tensor_dtype_of(x)
    )


def _broadcastable_quant_params(
    attrs: Any, x: Array, y: Array, quant_params: tuple[Array, ...], dtype: str
) -> list[Array]:
    """Return scales as `dtype` and zero points as int32, reshaped to broadcast with their tensors."""
    places = [(attrs.lhs_axis, x.ndim)] * 2 + [(attrs.rhs_axis, y.ndim)] * 2 + [(None, 0)] * 2
    kinds = (dtype, "int32") * 3
    return [
        q.broadcast_array_along(v, *place, np.dtype(kind))
        for v, place, kind in zip(quant_params, places, kinds, strict=True)
    ]


def _quantized_sum_reference(
    combine: Callable[[Array, Array], Array], attrs: Any, x: Array, y: Array, *quant_params: Array
) -> Array:
    work = _sum_dtype_for_quant_scale_ratios(DType.from_numpy(x), [quant_params[0], quant_params[2]], quant_params[4])
    sx, zx, sy, zy, so, zo = _broadcastable_quant_params(attrs, x, y, quant_params, work)
    left, right = (
        (data.astype(np.int32) - zero).astype(work) * (scale / so) for data, zero, scale in ((x, zx, sx), (y, zy, sy))
    )
    return q.add_zero_point_saturate_array(np.rint(combine(left, right)), zo, None, DType.from_numpy(x))


def _quantized_product_reference(attrs: Any, x: Array, y: Array, *quant_params: Array) -> Array:
    sx, zx, sy, zy, so, zo = _broadcastable_quant_params(attrs, x, y, quant_params, "float32")
    lhs, rhs = ((v.astype(np.int32) - zero).astype(np.float32) for v, zero in ((x, zx), (y, zy)))
    return q.add_zero_point_saturate_array(np.rint(lhs * rhs * (sx * sy / so)), zo, None, DType.from_numpy(x))


def _quantized_binary_test_samples(attrs_class: Any) -> Samples:
    onto = (float32_scale_array(0.11), int32_zero_point_array(5))
    scalar_params = (
        float32_scale_array(0.07),
        int32_zero_point_array(-3),
        float32_scale_array(0.031),
        int32_zero_point_array(100),
        *onto,
    )
    for dtype in ("int8", "uint8", "int16"):
        x, y = random_array((2, 3, 4), dtype), random_array((3, 1), dtype, 1)
        parts = tuple(np.maximum(v, 0) if dtype == "uint8" else v for v in scalar_params)
        yield q.exact_sample_with_constants(attrs_class(), x, y, *parts, variable_argument_count=2)
        yield exact_sample(attrs_class(), x, random_array((2, 3, 4), dtype, 2), *parts)
    channels = (float32_scale_array(0.01, 0.2, 0.03), int32_zero_point_array(3, 0, -7))
    many = attrs_class(lhs_axis=1, rhs_axis=0)
    x, y = random_array((2, 3, 4), "int8"), random_array((3, 1), "int8", 1)
    yield q.exact_sample_with_constants(many, x, y, *channels, *channels, *onto, variable_argument_count=2)


def _quantized_binary_op(name: str, attrs_class: Any, reference: Any, expand_operands: Callable[..., Expr]) -> OpDef:
    def check_params_and_expand(attrs: Any, *operands: Expr) -> Expr:
        q.check_quant_params_if_constant(q.tensor_dtype_of(operands[0]), _QUANT_PARAMETER_NAMES, *operands[2:])
        return expand_operands(attrs, *operands)

    return OpDef(
        name=f"qnn.{name}",
        attrs=attrs_class,
        args=(*declare_arguments("lhs", "rhs"), *q.quant_param_arguments(*_QUANT_PARAMETER_NAMES)),
        infer=_infer_quantized_binary_type,
        reference=reference,
        axes=_quantized_binary_axis_map,
        expand=check_params_and_expand,
        samples=partial(_quantized_binary_test_samples, attrs_class),
        layout=LayoutTreatment.BARRIER,
        **q.shared_fields_of_quantized_op_def(OpPattern.BROADCAST),
    )


add = _quantized_binary_op(
    "add", SumAttrs, partial(_quantized_sum_reference, np.add), partial(_expand_quantized_sum, q.add)
)
subtract = _quantized_binary_op(
    "subtract", DifferenceAttrs, partial(_quantized_sum_reference, np.subtract), partial(_expand_quantized_sum, q.sub)
)
mul = _quantized_binary_op("mul", ProductAttrs, _quantized_product_reference, _expand_quantized_product)
