# SPDX-License-Identifier: Apache-2.0
"""qnn.avg_pool2d: average pooling of quantized tensors.

avg_pool2d(x, 0.1, 3, 0.1, 3, pool_size=(2, 2), strides=(2, 2))

Windows are summed in float32. The sums are exact: 8-bit windows of up to 65,793 elements sum to
less than 2^24.
"""

from typing import Any

import numpy as np

from aotc.ir import DType, LayoutTreatment, OpPattern, Type, Types, attrs_class_with_defaults, declare_arguments
from aotc.relay.expr import Expr
from aotc.relay.op import pool
from aotc.relay.op.operator_definition import Array, OpDef, Samples, random_array
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import requantize, target_independent_rounding

_QUANT_PARAMETER_NAMES = (*q.INPUT_PARAMETER_NAMES, *q.OUTPUT_PARAMETER_NAMES)
QuantizedAvgPoolAttrs: Any = attrs_class_with_defaults(pool.avg_pool2d.attrs, "QuantizedAvgPoolAttrs")
QuantizedAvgPoolAttrs.__doc__ = """The mean over each window of the numbers that integers stand for.

round_even(mean(data - input_zero_point) * (input_scale / output_scale)) + output_zero_point, saturated; the mean,
the ratio and the product are each rounded to float32.
"""


def _infer_quantized_avg_pool_type(attrs: Any, types: Types) -> Type:
    data = q.require_integer_type_up_to_bits(types[0])
    q.check_quant_param_types(types[1:], data, None, *_QUANT_PARAMETER_NAMES)
    return pool.avg_pool2d.infer(attrs, types[:1])


def _quantized_avg_pool_reference(
    attrs: Any, x: Array, scale: Array, zero_point: Array, output_scale: Array, output_zero_point: Array
) -> Array:
    mean = pool.avg_pool2d.reference(attrs, q.subtract_zero_point_from_array(x, zero_point).astype(np.float32))
    ratio = scale.astype(np.float32).reshape(()) / output_scale.astype(np.float32).reshape(())
    return q.add_zero_point_saturate_array(np.rint(mean * ratio), output_zero_point, None, DType.from_numpy(x))


def _expand_quantized_avg_pool(
    attrs: Any, x: Expr, scale: Expr, zero_point: Expr, output_scale: Expr, output_zero_point: Expr
) -> Expr:
    q.check_quant_params_if_constant(
        q.tensor_dtype_of(x), _QUANT_PARAMETER_NAMES, scale, zero_point, output_scale, output_zero_point
    )
    mean = pool.avg_pool2d(
        q.cast_unless_dtype_equal(q.subtract_zero_point(x, zero_point), "float32"), **dict(attrs.items())
    )
    ratio = q.div(
        q.broadcast_quant_param_along(scale, None, 0, "float32"),
        q.broadcast_quant_param_along(output_scale, None, 0, "float32"),
    )
    return q.round_add_zero_point_saturate(
        q.call_or_fold_constants(target_independent_rounding.product, mean, ratio),
        output_zero_point,
        None,
        q.tensor_dtype_of(x),
    )


def _quantized_avg_pool_test_samples() -> Samples:
    onto = (requantize.float32_scale_array(0.013), requantize.int32_zero_point_array(3))
    for dtype in ("int8", "uint8"):
        for given in (
            {"pool_size": (2, 2), "strides": (2, 2)},
            {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "ceil_mode": True},
            {"pool_size": (3, 2), "padding": (1, 0), "layout": "NHWC", "count_include_pad": True},
            {"pool_size": (8, 7)},
        ):
            x = random_array((1, 8, 7, 3) if "layout" in given else (1, 3, 8, 7), dtype)
            pair = (requantize.float32_scale_array(0.0137), requantize.int32_zero_point_array(5))
            yield q.exact_sample_with_constants(QuantizedAvgPoolAttrs(**given), x, *pair, *onto)


avg_pool2d = OpDef(
    name="qnn.avg_pool2d",
    attrs=QuantizedAvgPoolAttrs,
    args=(*declare_arguments("data"), *q.quant_param_arguments(*_QUANT_PARAMETER_NAMES)),
    infer=_infer_quantized_avg_pool_type,
    reference=_quantized_avg_pool_reference,
    axes=pool.avg_pool2d.axes,
    expand=_expand_quantized_avg_pool,
    layout=LayoutTreatment.BARRIER,
    samples=_quantized_avg_pool_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.OUT_ELEMWISE_FUSABLE),
)
