# SPDX-License-Identifier: Apache-2.0
"""qnn.dense and qnn.batch_matmul, and the zero-point and overflow handling shared with qnn
convolutions.

dense(x, w, 128, 0, 0.05, 0.01)                # x (..., K), w (N, K) -> int32 (..., N)
batch_matmul(x, y, 0, 0, 0.05, 0.01)           # x (B, M, K), y (B, N, K) -> int32 (B, M, N)

Zero points are subtracted from sums of products of the narrow integers:

sum((x - xz) * (w - wz)) = sum(x * w) - xz * sum(w) - wz * sum(x) + count * xz * wz

The operands therefore keep their narrow types, and terms that depend only on constants are folded
to one constant for each channel. Constant weights whose difference from the zero point fits int8
are stored as that difference. A warning is issued if an int32 sum may overflow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from aotc.ir import Attrs, AxisMap, OpPattern, SymDim, Type, Types, attribute_field, current_span, declare_arguments
from aotc.relay.expr import Constant, Expr
from aotc.relay.op import dense as products
from aotc.relay.op import reduce
from aotc.relay.op import shape as shapes
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array
from aotc.relay.op.qnn import quant_params as q

DataAndWeightZeroPoints: TypeAlias = "tuple[Expr, Expr]"
_INT8_RANGE: Final = np.iinfo(np.int8)
_INT32_MAX: Final = np.iinfo(np.int32).max
#: Names of the arguments after data and weights.
QUANT_PARAMETER_NAMES: Final = ("input_zero_point", "kernel_zero_point", "input_scale", "kernel_scale")


def fold_zero_point_into_constant_weight(weight: Expr, zero_point: Expr, axis: int | None) -> DataAndWeightZeroPoints:
    """Return weights and zero points (per element of `axis`), with the zero point folded into
    constant weights.

    If both are constants and weight - zero fits int8, the result is that difference and a zero
    point of 0.
    """
    values, offset = q.constant_value_or_none(weight), q.constant_value_or_none(zero_point)
    if values is None or offset is None:
        return weight, zero_point
    whole = q.subtract_zero_point_from_array(values, offset, axis, np.int64)
    if whole.size and (whole.min() < _INT8_RANGE.min or whole.max() > _INT8_RANGE.max):
        return q.fold_to_constant_if_known(weight), q.fold_to_constant_if_known(zero_point)
    return Constant(whole.astype(np.int8)), q.constant_of_dtype(0, "int32")


def subtract_zero_point_terms(
    products_sum: Expr,
    data_and_weight_zero_points: DataAndWeightZeroPoints,
    products_per_sum: int,
    sum_weights: Callable[[], Expr],
    sum_data: Callable[[], Expr],
    broadcast_over_channels: Callable[[Expr], Expr],
) -> Expr:
    """Subtract the zero-point terms from int32 dot products of quantized data and weights.

    products_sum               int32 dot products of data and weights from which the zero-point terms are not
                               subtracted yet
    data_and_weight_zero_points                zero points of data and of weights
    products_per_sum           number of products in each sum
    sum_weights                returns the sums of the weights: a vector, or a tensor that broadcasts with the
                               sums
    sum_data                   returns the sums of the data, which broadcast with the sums
    broadcast_over_channels    reshapes a vector over the output channels so that it broadcasts with the sums
    """
    none, flat = map(q.is_constant_zero, data_and_weight_zero_points)
    ours, theirs = map(_zero_points_as_int32, data_and_weight_zero_points)
    if not none:
        total = sum_weights()
        if not flat:
            every = q.mul(q.constant_of_dtype(products_per_sum, "int32"), theirs)
            total = q.sub(total, every)
        products_sum = q.sub(products_sum, broadcast_over_channels(q.mul(ours, total)))
    if flat:
        return products_sum
    return q.sub(products_sum, q.mul(sum_data(), broadcast_over_channels(theirs)))


def _zero_points_as_int32(zero_point: Expr) -> Expr:
    """Return zero points as int32: a scalar, or a vector over the output channels."""
    if q.is_per_channel_quant_param(zero_point):
        return q.cast_unless_dtype_equal(q.fold_to_constant_if_known(zero_point), "int32")
    return q.broadcast_quant_param_along(zero_point, None, 0, "int32")


def warn_if_int32_sum_may_overflow(
    op_name: str,
    data: Expr,
    weight: Expr,
    data_and_weight_zero_points: DataAndWeightZeroPoints,
    zero_point_axis: int | None,
    summed_axes: Sequence[int],
) -> None:
    """Warn if sums of products may overflow int32, from the known ranges of data and weights.

    op_name            name of the operator in the warning
    zero_point_axis    axis of the weights along which their zero points lie
    summed_axes        axes of the weights that are summed
    """
    low, high = _range_minus_zero_point(data, data_and_weight_zero_points[0])
    count = prod(q.require_static_axis_extent(weight, k) for k in summed_axes)
    values, zero = q.constant_value_or_none(weight), q.constant_value_or_none(data_and_weight_zero_points[1])
    if values is not None and zero is not None:
        whole = q.subtract_zero_point_from_array(values, zero, zero_point_axis, np.int64)
        ends = whole * low, whole * high
        least, most = (f(*ends).sum(tuple(summed_axes)) for f in (np.minimum, np.maximum))
        reached = max(int(most.max(initial=0)), -int(least.min(initial=0)))
    else:
        reached = (
            count * max(-low, high) * max(map(abs, _range_minus_zero_point(weight, data_and_weight_zero_points[1])))
        )
    if reached <= _INT32_MAX:
        return
    where = f"{current_span()}: " if current_span() is not None else ""
    text = f"{where}{op_name}: sums of {count} products may reach {reached:,}"
    warnings.warn(f"{text}, int32 holds {_INT32_MAX:,}; they wrap", stacklevel=2)


def _range_minus_zero_point(x: Expr, zero_point: Expr) -> tuple[int, int]:
    """Return the smallest and the largest possible difference of an element and its zero point."""
    dtype, value = q.tensor_dtype_of(x), q.constant_value_or_none(zero_point)
    low, high = int(dtype.min), int(dtype.max)
    if value is None:
        return low - high, high - low
    return low - int(value.max()), high - int(value.min())


def check_quant_params_if_constant(
    data: Expr, weight: Expr, *quant_params: Expr, names: Sequence[str] = QUANT_PARAMETER_NAMES
) -> None:
    """Raise AotcError for a constant zero point outside of its tensor's dtype and for an invalid
    constant scale.
    """
    pairs = list(zip(names, quant_params, strict=True))
    for (name, zero), x in zip(pairs, (data, weight), strict=False):
        q.check_zero_point_range_if_constant(name, zero, q.tensor_dtype_of(x))
    q.check_scales_positive_if_constant(pairs[2:])


def sample_zero_points_and_scales(*zeros: Any) -> tuple[Array, ...]:
    """Return zero points as int32 arrays, followed by two arbitrary scales, which do not affect the
    integer result.
    """
    scales = (np.asarray(np.float32(s)) for s in (0.5, 0.25))
    return (*(np.asarray(z, np.int32) for z in zeros), *scales)


class QuantizedDenseAttrs(Attrs):
    """Sums of (data - input_zero_point) * (weight - kernel_zero_point): data (..., K), weight (N,
    K), int32 (..., N).

    Scales and zero points of the weights are one value, or one for each of the N units.
    """

    units: int | SymDim | None = attribute_field(parameter_default=None)
    out_dtype: str = "int32"


class QuantizedMatmulAttrs(Attrs):
    """Sums of (x - x_zero_point) * (y - y_zero_point): x (B, M, K), y (B, N, K), int32 (B, M, N)."""

    out_dtype: str = "int32"


def _integer_matmul_op_and_attrs(attrs: Any) -> tuple[OpDef, Attrs]:
    """Return the integer operator that corresponds to a qnn attribute record, and that operator's
    attributes.
    """
    if isinstance(attrs, QuantizedDenseAttrs):
        dense_attrs = products.DenseAttrs(units=attrs.units, out_dtype=attrs.out_dtype)
        return products.dense, dense_attrs
    plain = products.BatchMatmulAttrs(out_dtype=attrs.out_dtype, transpose_b=True)
    return products.batch_matmul, plain


def _weight_zero_point_axis(attrs: Any) -> int | None:
    """Return the axis of the second operand along which its zero points lie; None if there is one
    zero point.
    """
    return 0 if isinstance(attrs, QuantizedDenseAttrs) else None


def _infer_quantized_matmul_type(argument_names: Sequence[str], attrs: Any, types: Types) -> Type:
    x, y = (q.require_integer_type_up_to_bits(ty, name) for ty, name in zip(types[:2], argument_names, strict=False))
    op, plain = _integer_matmul_op_and_attrs(attrs)
    result = op.infer(plain, (x, y))
    q.check_quant_param_types(types[2::2], x, None, argument_names[2], argument_names[4])
    q.check_quant_param_types(types[3::2], y, _weight_zero_point_axis(attrs), argument_names[3], argument_names[5])
    return result


def _quantized_matmul_axis_map(attrs: Any, types: Types) -> AxisMap | None:
    op, plain = _integer_matmul_op_and_attrs(attrs)
    assert op.axes is not None
    return op.axes(plain, types)


def _quantized_matmul_reference(attrs: Any, *arguments: Array) -> Array:
    x, y, xz, yz = arguments[:4]
    op, plain = _integer_matmul_op_and_attrs(attrs)
    other = q.subtract_zero_point_from_array(y, yz, _weight_zero_point_axis(attrs))
    return np.asarray(op.reference(plain, q.subtract_zero_point_from_array(x, xz), other))


def _expand_quantized_matmul(op_name: str, argument_names: Sequence[str], attrs: Any, *arguments: Expr) -> Expr:
    check_quant_params_if_constant(*arguments, names=argument_names[2:])
    x, y, xz, yz = arguments[:4]
    axis, count = _weight_zero_point_axis(attrs), q.require_static_axis_extent(y, -1)
    y, yz = fold_zero_point_into_constant_weight(y, yz, axis)
    if attrs.out_dtype == "int32":
        warn_if_int32_sum_may_overflow(op_name, x, y, (xz, yz), axis, [q.rank_of(y) - 1])
    op, plain = _integer_matmul_op_and_attrs(attrs)
    total = q.call_or_fold_constants(op, x, y, **dict(plain.items()))
    rank = q.rank_of(total)

    def sum_along_last_axis(z: Expr, keepdims: bool) -> Expr:
        wide = q.cast_unless_dtype_equal(z, "int32")
        return q.call_or_fold_constants(reduce.sum, wide, axis=[-1], keepdims=keepdims)

    def weight_sums_per_unit() -> Expr:
        weight_sums = sum_along_last_axis(y, False)
        return weight_sums if axis == 0 else q.call_or_fold_constants(shapes.expand_dims, weight_sums, axis=1)

    def broadcast_over_units(v: Expr) -> Expr:
        return q.broadcast_quant_param_along(v, rank - 1, rank) if q.rank_of(v) < 2 else v

    return subtract_zero_point_terms(
        total, (xz, yz), count, weight_sums_per_unit, lambda: sum_along_last_axis(x, True), broadcast_over_units
    )


def _quantized_dense_test_samples() -> Samples:
    for shape, weight in (((3, 17), (5, 17)), ((2, 3, 8), (4, 8)), ((1, 33), (40, 33))):
        a, w = QuantizedDenseAttrs(units=weight[0]), random_array(weight, "int8", 1)
        x, unsigned = random_array(shape, "int8"), random_array(shape, "uint8")
        yield q.exact_sample_with_constants(a, unsigned, w, *sample_zero_points_and_scales(117, 0))
        yield q.exact_sample_with_constants(a, x, w, *sample_zero_points_and_scales(-128, np.arange(weight[0]) - 2))
        yield exact_sample(a, x, random_array(weight, "uint8", 1), *sample_zero_points_and_scales(-7, 128))
        yield exact_sample(QuantizedDenseAttrs(units=None), x, w, *sample_zero_points_and_scales(0, 0))


def _quantized_matmul_test_samples() -> Samples:
    for left, right in (((2, 3, 4), (2, 5, 4)), ((1, 3, 7), (2, 2, 7))):
        x, y = random_array(left, "uint8"), random_array(right, "int8", 1)
        yield exact_sample(QuantizedMatmulAttrs(), x, y, *sample_zero_points_and_scales(3, -9))
        yield q.exact_sample_with_constants(QuantizedMatmulAttrs(), x, y, *sample_zero_points_and_scales(128, 0))


def _quantized_matmul_op(
    attrs_class: type[Attrs], argument_names: Sequence[str], samples: Any, order: str = ""
) -> OpDef:
    dense = attrs_class is QuantizedDenseAttrs
    name = "qnn.dense" if dense else "qnn.batch_matmul"
    return OpDef(
        name=name,
        order=order,
        attrs=attrs_class,
        args=(*declare_arguments(*argument_names[:2]), *q.quant_param_arguments(*argument_names[2:])),
        infer=partial(_infer_quantized_matmul_type, argument_names),
        reference=_quantized_matmul_reference,
        axes=_quantized_matmul_axis_map,
        expand=partial(_expand_quantized_matmul, name, argument_names),
        samples=samples,
        **q.shared_fields_of_quantized_op_def(OpPattern.OUT_ELEMWISE_FUSABLE, sums_products=True),
    )


_DENSE_ARGUMENT_NAMES = ("data", "weight", *QUANT_PARAMETER_NAMES)
_MATMUL_ARGUMENT_NAMES = ("x", "y", "x_zero_point", "y_zero_point", "x_scale", "y_scale")
_DENSE_PARAMETER_ORDER = " ".join((*_DENSE_ARGUMENT_NAMES, "units", "out_dtype"))
dense = _quantized_matmul_op(
    QuantizedDenseAttrs, _DENSE_ARGUMENT_NAMES, _quantized_dense_test_samples, _DENSE_PARAMETER_ORDER
)
batch_matmul = _quantized_matmul_op(QuantizedMatmulAttrs, _MATMUL_ARGUMENT_NAMES, _quantized_matmul_test_samples)
