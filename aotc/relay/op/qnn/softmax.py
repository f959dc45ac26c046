# SPDX-License-Identifier: Apache-2.0
"""qnn.softmax: softmax of 8-bit quantized tensors by a table of integer exponentials.

softmax(x, 0.1, 3, 1 / 256, 0, axis=-1)        # uint8

An element differs from the maximum by one of 256 values; the exponentials of these are a table of
integer multiples of 2^-30. Integer sums of table entries are exact in any order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aotc.ir import Attrs, DType, OpPattern, Type, Types
from aotc.relay.expr import Constant, Expr, tensor_type_of
from aotc.relay.op import elementwise_unary, gather, reduce
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array
from aotc.relay.op.qnn import lookup_table, requantize, target_independent_rounding
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.type_rules import (
    axis_map_excluding_axis_attribute,
    normalize_axis,
    require_dtype,
    require_tensor_type,
)


class QuantizedSoftmaxAttrs(Attrs):
    """Softmax of 8-bit quantized numbers along an axis, quantized to the output's scale with the
    type of the input.

    round_even(e * (1 / (total * output_scale))) + output_zero_point, saturated. The integers e are
    round(exp((x - max) * scale) * 2^30), and total is their exact sum; both are rounded to float32,
    and so is each operation on them.
    """

    axis: int = -1


_EXP_TABLE_FRACTION_BITS: Final = 30
"""Number of fractional bits of the table's entries, which are multiples of 2^-30."""
_DIFFERENCES_FROM_MAXIMUM: Final = np.arange(256, dtype=np.float64) - 255


def _infer_quantized_softmax_type(a: QuantizedSoftmaxAttrs, types: Types) -> Type:
    data = require_tensor_type(lookup_table.infer_quantized_elementwise_type(a, types))
    require_dtype(data.dtype, data.dtype.bits == 8)
    normalize_axis(a.axis, data.rank)
    return data


def _q30_exp_table_of_8_bit_differences(scale: Array) -> Array:
    """Return exp(-255 * scale) to exp(0) as integers with 30 fractional bits."""
    step = scale.astype(np.float64).reshape(())
    return np.rint(np.exp(_DIFFERENCES_FROM_MAXIMUM * step) * 2.0**_EXP_TABLE_FRACTION_BITS).astype(np.int32)


def _quantized_softmax_reference(
    a: QuantizedSoftmaxAttrs, x: Array, scale: Array, zero_point: Array, output_scale: Array, output_zero_point: Array
) -> Array:
    wide = x.astype(np.int32)
    terms = _q30_exp_table_of_8_bit_differences(scale)[wide - wide.max(a.axis, keepdims=True, initial=-128) + 255]
    total = terms.sum(a.axis, np.int64, keepdims=True).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / (total * output_scale.astype(np.float32).reshape(()))
    return q.add_zero_point_saturate_array(
        np.rint(terms.astype(np.float32) * inverse), output_zero_point, None, DType.from_numpy(x)
    )


def _q30_exp_table_expr(scale_expr: Expr) -> Expr:
    """Return an expression for `_q30_exp_table_of_8_bit_differences` of a scale that may be known only at run time."""
    scale = q.constant_value_or_none(scale_expr)
    if scale is not None:
        return Constant(_q30_exp_table_of_8_bit_differences(scale))
    powers = q.mul(Constant(_DIFFERENCES_FROM_MAXIMUM), q.broadcast_quant_param_along(scale_expr, None, 0, "float64"))
    scaled = q.mul(
        q.call_or_fold_constants(elementwise_unary.exp, powers),
        q.constant_of_dtype(2.0**_EXP_TABLE_FRACTION_BITS, "float64"),
    )
    return q.cast_unless_dtype_equal(q.call_or_fold_constants(elementwise_unary.round, scaled), "int32")


def _expand_quantized_softmax(
    a: QuantizedSoftmaxAttrs, x: Expr, scale: Expr, zero_point: Expr, output_scale: Expr, output_zero_point: Expr
) -> Expr:
    q.check_quant_params_if_constant(
        q.tensor_dtype_of(x), lookup_table.LOOKUP_PARAMETER_NAMES, scale, zero_point, output_scale, output_zero_point
    )
    ty = tensor_type_of(x)
    axis = normalize_axis(a.axis, ty.rank)
    wide = q.cast_unless_dtype_equal(x, "int32")
    greatest = reduce.max(wide, axis=axis, keepdims=True)
    place = q.sub(wide, q.sub(greatest, q.constant_of_dtype(255, "int32")))
    terms = gather.take(_q30_exp_table_expr(scale), place, axis=0)
    total = reduce.sum(q.cast_unless_dtype_equal(terms, "int64"), axis=axis, keepdims=True)
    steps = q.mul(
        q.cast_unless_dtype_equal(total, "float32"), q.broadcast_quant_param_along(output_scale, None, 0, "float32")
    )
    inverse = q.div(q.constant_of_dtype(1, "float32"), steps)
    return q.round_add_zero_point_saturate(
        q.call_or_fold_constants(
            target_independent_rounding.product, q.cast_unless_dtype_equal(terms, "float32"), inverse
        ),
        output_zero_point,
        None,
        ty.dtype,
    )


def _quantized_softmax_test_samples() -> Samples:
    pair = (
        requantize.float32_scale_array(0.1),
        requantize.int32_zero_point_array(3),
        requantize.float32_scale_array(1 / 256),
    )
    for shape, axis in (((3, 7), -1), ((2, 5, 3), 1), ((1, 40), 1)):
        for dtype, zero in (("uint8", 0), ("int8", -128)):
            a = QuantizedSoftmaxAttrs(axis=axis)
            yield q.exact_sample_with_constants(
                a, random_array(shape, dtype), *pair, requantize.int32_zero_point_array(zero)
            )
    yield exact_sample(
        QuantizedSoftmaxAttrs(), random_array((2, 9), "uint8"), *pair, requantize.int32_zero_point_array(0)
    )
    other = (*pair[:2], requantize.float32_scale_array(0.0039), requantize.int32_zero_point_array(0))
    yield exact_sample(QuantizedSoftmaxAttrs(), random_array((2, 9), "uint8"), *other)


softmax = OpDef(
    name="qnn.softmax",
    attrs=QuantizedSoftmaxAttrs,
    args=lookup_table.LOOKUP_ARGS,
    infer=_infer_quantized_softmax_type,
    reference=_quantized_softmax_reference,
    axes=axis_map_excluding_axis_attribute,
    expand=_expand_quantized_softmax,
    samples=_quantized_softmax_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.OUT_ELEMWISE_FUSABLE),
)
