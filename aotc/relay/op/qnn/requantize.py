# SPDX-License-Identifier: Apache-2.0
"""qnn.quantize (real to integer), qnn.dequantize (integer to real), qnn.requantize (change of scale
and zero point).

quantize(x, 0.1, 3)                            # int8: clip(round_even(x / 0.1) + 3)
requantize(q, 0.1, 3, 0.4, 0, rounding="TONEAREST", out_dtype="uint8")
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from aotc.ir import (
    AotcError,
    Attrs,
    AxisMap,
    DType,
    OpPattern,
    TensorType,
    Type,
    Types,
    attribute_field,
    declare_arguments,
    require,
    temporarily_set_context_variable,
)
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import binary_elementwise
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact_sample, random_array
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn import target_independent_rounding
from aotc.relay.op.qnn.fixed_point import FIXED_POINT_ROUNDING_MODES, fixed_point_factors_of_scales
from aotc.relay.op.type_rules import normalize_axis, require_float_tensor, require_known_name, require_tensor_type


def quantized_elementwise_axis_map(attrs: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise operator whose scales and zero points may be vectors
    along `attrs.axis`.
    """
    rank = require_tensor_type(types[0]).rank
    axis = normalize_axis(attrs.axis, rank) if rank else 0

    def axis_map_row_of_param(ty: Type) -> tuple[int | None, ...]:
        several = require_tensor_type(ty).rank == 1 and require_tensor_type(ty).shape != (1,)
        return tuple(0 if several and k == axis else None for k in range(rank))

    return AxisMap((tuple(range(rank)), *map(axis_map_row_of_param, types[1:])))


# --- quantize


class QuantizeAttrs(Attrs):
    """clip(round_even(data / output_scale) + output_zero_point), computed in the scale's type.

    Scale and zero point are one value, or one for each element along `axis`.
    """

    out_dtype: str = "int8"
    axis: int = -1


def _infer_quantize_type(a: QuantizeAttrs, types: Types) -> Type:
    data = require_float_tensor(types[0])
    q.check_quant_param_types(types[1:], data, a.axis, *q.OUTPUT_PARAMETER_NAMES)
    return q.quantized_result_type(data, a.out_dtype)


def _expand_quantize(a: QuantizeAttrs, data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    dtype, rank = DType(a.out_dtype), q.rank_of(data)
    q.check_quant_params_if_constant(dtype, q.OUTPUT_PARAMETER_NAMES, scale, zero_point)
    work = q.tensor_dtype_of(scale)
    quotient = q.div(q.cast_unless_dtype_equal(data, work), q.broadcast_quant_param_along(scale, a.axis, rank))
    return q.round_add_zero_point_saturate(quotient, zero_point, a.axis, dtype, is_nan_free=False)


def float32_scale_array(*values: float) -> Array:
    """Return one scale as a 0-d float32 array, or several scales as a vector."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


def int32_zero_point_array(*values: int) -> Array:
    """Return one zero point as a 0-d int32 array, or several zero points as a vector."""
    return np.array(values if len(values) > 1 else values[0], np.int32)


_PER_CHANNEL_SAMPLE_SCALES = float32_scale_array(0.01, 0.5, 0.03)
_PER_CHANNEL_SAMPLE_ZERO_POINTS = int32_zero_point_array(-3, 0, 7)


def _quantize_test_samples() -> Samples:
    x = random_array((2, 3, 5)) * np.float32(3)
    halves = np.array([0.25, 0.75, -0.25, 1.25, 1e9, -1e9, -0.0, np.nan, np.inf, -np.inf], np.float32)
    for dtype in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        yield exact_sample(QuantizeAttrs(out_dtype=dtype), x, float32_scale_array(0.07), int32_zero_point_array(3))
        yield exact_sample(QuantizeAttrs(out_dtype=dtype), halves, float32_scale_array(0.5), int32_zero_point_array(0))
    yield exact_sample(QuantizeAttrs(axis=1), x, _PER_CHANNEL_SAMPLE_SCALES, _PER_CHANNEL_SAMPLE_ZERO_POINTS)
    yield exact_sample(QuantizeAttrs(), x.astype(np.float16), float32_scale_array(0.02), int32_zero_point_array(-128))
    yield exact_sample(
        QuantizeAttrs(out_dtype="uint8"), random_array(()), float32_scale_array(0.1), int32_zero_point_array(255)
    )
    yield exact_sample(
        QuantizeAttrs(), random_array((0, 3)), _PER_CHANNEL_SAMPLE_SCALES, _PER_CHANNEL_SAMPLE_ZERO_POINTS
    )


quantize = OpDef(
    name="qnn.quantize",
    attrs=QuantizeAttrs,
    args=(*declare_arguments("data"), *q.quant_param_arguments(*q.OUTPUT_PARAMETER_NAMES)),
    infer=_infer_quantize_type,
    reference=lambda a, x, s, z: q.quantize_array(x, s, z, DType(a.out_dtype), a.axis),
    axes=quantized_elementwise_axis_map,
    expand=_expand_quantize,
    samples=_quantize_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.BROADCAST),
)


# --- dequantize


class DequantizeAttrs(Attrs):
    """(data - input_zero_point) * input_scale as `out_dtype`.

    Scale and zero point are one value, or one for each element along `axis`.
    """

    out_dtype: str = "float32"
    axis: int = -1


def _infer_dequantize_type(a: DequantizeAttrs, types: Types) -> Type:
    data = q.require_integer_type_up_to_bits(types[0], max_bits=32)
    q.check_quant_param_types(types[1:], data, a.axis, *q.INPUT_PARAMETER_NAMES)
    result = DType(a.out_dtype)
    require("dtype", result.is_float, f"data type {result} is not a float type")
    return TensorType(data.shape, result)


def _expand_dequantize(a: DequantizeAttrs, data: Expr, scale: Expr, zero_point: Expr) -> Expr:
    ty = tensor_type_of(data)
    q.check_quant_params_if_constant(ty.dtype, q.INPUT_PARAMETER_NAMES, scale, zero_point)
    if q.is_constant_zero(zero_point):
        real = q.cast_unless_dtype_equal(data, a.out_dtype)
    else:
        real = q.cast_unless_dtype_equal(q.subtract_zero_point(data, zero_point, a.axis), a.out_dtype)
    return q.mul(real, q.broadcast_quant_param_along(scale, a.axis, ty.rank, a.out_dtype))


def _dequantize_reference(a: DequantizeAttrs, x: Array, scale: Array, zero_point: Array) -> Array:
    return q.dequantize_array(x, scale, zero_point, a.axis, DType(a.out_dtype).numpy)


def _dequantize_test_samples() -> Samples:
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4"):
        x = (
            random_array((2, 3, 5), dtype)
            if dtype[-1] != "4"
            else (random_array((2, 5)) * 3).astype(DType(dtype).numpy)
        )
        yield exact_sample(
            DequantizeAttrs(), x, float32_scale_array(0.07), int32_zero_point_array(0 if dtype == "int32" else 3)
        )
    yield exact_sample(
        DequantizeAttrs(axis=1),
        random_array((2, 3, 5), "int8"),
        _PER_CHANNEL_SAMPLE_SCALES,
        _PER_CHANNEL_SAMPLE_ZERO_POINTS,
    )
    yield exact_sample(
        DequantizeAttrs(out_dtype="float16"),
        random_array((4,), "int8"),
        float32_scale_array(0.25),
        int32_zero_point_array(-128),
    )
    yield exact_sample(
        DequantizeAttrs(), random_array((), "uint8"), float32_scale_array(0.25), int32_zero_point_array(128)
    )


dequantize = OpDef(
    name="qnn.dequantize",
    attrs=DequantizeAttrs,
    args=(*declare_arguments("data"), *q.quant_param_arguments(*q.INPUT_PARAMETER_NAMES)),
    infer=_infer_dequantize_type,
    reference=_dequantize_reference,
    axes=quantized_elementwise_axis_map,
    expand=_expand_dequantize,
    samples=_dequantize_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.BROADCAST),
)


# --- requantize

_DEFAULT_ROUNDING: Final[ContextVar[str]] = ContextVar("rounding", default="None")


def requantize_config(rounding: str = "UPWARD", compute_dtype: str = "int64") -> AbstractContextManager[str]:
    """Return a context that sets the rounding mode of calls of requantize made inside it without
    one or with "None".

    Raise AotcError for an unknown rounding mode or compute_dtype.
    """
    _check_rounding_mode(rounding, compute_dtype)
    return temporarily_set_context_variable(_DEFAULT_ROUNDING, rounding)


class RequantizeAttrs(Attrs):
    """Integers with one scale and zero point converted to another scale and zero point, saturated.

    Input scales are one value, or one for each element along `axis`.

    rounding  "UPWARD" (also "None") and "TONEAREST" multiply by the ratio of the scales as a 31-bit fixed-point number
              and round once, halves up or away from zero; "TFLITE" rounds twice, as gemmlowp does; "FLOAT_EVEN"
              multiplies by the float32 ratio in float32 and rounds halves to even
    compute_dtype  accepted for compatibility with TVM; the result does not depend on it
    """

    axis: int = -1
    rounding: str = attribute_field(
        default="None", convert=lambda value, _: _DEFAULT_ROUNDING.get() if value == "None" else value
    )
    compute_dtype: str = "None"
    out_dtype: str = "int8"


_REQUANTIZE_ROUNDING_MODES = ("None", *FIXED_POINT_ROUNDING_MODES, "FLOAT_EVEN")


def _infer_requantize_type(a: RequantizeAttrs, types: Types) -> Type:
    data = q.require_integer_type_up_to_bits(types[0], max_bits=32)
    q.check_quant_param_types(types[1:3], data, a.axis, *q.INPUT_PARAMETER_NAMES)
    q.check_quant_param_types(types[3:5], data, a.axis, *q.OUTPUT_PARAMETER_NAMES)
    _check_rounding_mode(a.rounding, a.compute_dtype)
    return q.quantized_result_type(data, a.out_dtype)


def _check_rounding_mode(rounding: str, compute_dtype: str) -> None:
    require_known_name("qnn.rounding", "rounding", rounding, _REQUANTIZE_ROUNDING_MODES)
    works = ("float32",) if rounding == "FLOAT_EVEN" else ("int64", "float32", "float64")
    require_known_name("qnn.compute-dtype", f"compute_dtype of rounding {rounding}", compute_dtype, ("None", *works))


def _rounding_mode_or_default(a: RequantizeAttrs) -> str:
    return "UPWARD" if a.rounding == "None" else a.rounding


def _requantize_reference(
    a: RequantizeAttrs, x: Array, scale: Array, input_zero_point: Array, out_scale: Array, output_zero_point: Array
) -> Array:
    rounding, dtype = _rounding_mode_or_default(a), DType(a.out_dtype)
    if rounding != "FLOAT_EVEN":
        whole = q.subtract_zero_point_from_array(x, input_zero_point, a.axis, np.int64)
        factors = fixed_point_factors_of_scales(scale, out_scale, rounding)
        scaled = factors.multiply_array_by_ratio_rounded(whole, a.axis)
        return q.add_zero_point_saturate_array(scaled, output_zero_point, a.axis, dtype)
    ratio = scale.astype(np.float32) / out_scale.astype(np.float32)
    real = q.subtract_zero_point_from_array(x, input_zero_point, a.axis).astype(np.float32) * q.broadcast_array_along(
        ratio, a.axis, x.ndim, np.float32
    )
    return q.add_zero_point_saturate_array(np.rint(real), output_zero_point, a.axis, dtype)


def _expand_requantize(
    a: RequantizeAttrs, data: Expr, scale: Expr, input_zero_point: Expr, out_scale: Expr, output_zero_point: Expr
) -> Expr:
    rounding, dtype, ty = _rounding_mode_or_default(a), DType(a.out_dtype), tensor_type_of(data)
    q.check_quant_params_if_constant(ty.dtype, q.INPUT_PARAMETER_NAMES, scale, input_zero_point)
    q.check_quant_params_if_constant(dtype, q.OUTPUT_PARAMETER_NAMES, out_scale, output_zero_point)
    if rounding != "FLOAT_EVEN":
        source, result = q.constant_value_or_none(scale), q.constant_value_or_none(out_scale)
        if source is None or result is None:
            hint = 'give constants, or rounding="FLOAT_EVEN"'
            raise AotcError("qnn.scale", f"rounding {rounding} needs constant scales", hint=hint)
        factors = fixed_point_factors_of_scales(source, result, rounding)
        fits = (
            ty.dtype == "int32"
            and q.is_constant_zero(input_zero_point)
            and (dtype.bits < 32 or q.is_constant_zero(output_zero_point))
        )
        words = factors.multiply_by_ratio_in_32_bits_or_none(data, a.axis) if fits else None
        if words is not None and a.out_dtype in target_independent_rounding.SATURATE_OPS_BY_DTYPE:
            zero_point = q.broadcast_quant_param_along(output_zero_point, a.axis, ty.rank, "int32")
            offset_words = words if q.is_constant_zero(output_zero_point) else q.add(words, zero_point)
            return q.call_or_fold_constants(
                target_independent_rounding.SATURATE_OPS_BY_DTYPE[a.out_dtype], offset_words
            )
        scaled = words or factors.multiply_int64_expr_by_ratio(
            _subtract_zero_point_as_int64(data, input_zero_point, a.axis), a.axis
        )
        return q.add_zero_point_and_saturate(scaled, output_zero_point, a.axis, dtype)
    single = (q.cast_unless_dtype_equal(q.fold_to_constant_if_known(s), "float32") for s in (scale, out_scale))
    ratio = q.div(*single)
    real = q.cast_unless_dtype_equal(q.subtract_zero_point(data, input_zero_point, a.axis), "float32")
    real = q.mul(real, q.broadcast_quant_param_along(ratio, a.axis, ty.rank))
    return q.round_add_zero_point_saturate(real, output_zero_point, a.axis, dtype)


def _subtract_zero_point_as_int64(data: Expr, zero_point: Expr, axis: int) -> Expr:
    """Return integers minus their zero point as int64, clamped to the range of int32."""
    ty = tensor_type_of(data)
    wide = q.cast_unless_dtype_equal(data, "int64")
    if q.is_constant_zero(zero_point):
        return wide
    wide = q.sub(wide, q.broadcast_quant_param_along(zero_point, axis, ty.rank, "int64"))
    if ty.dtype.bits < 32:
        return wide
    low, high = (q.constant_of_dtype(v, "int64") for v in (-(1 << 31), (1 << 31) - 1))
    return q.call_or_fold_constants(
        binary_elementwise.minimum, q.call_or_fold_constants(binary_elementwise.maximum, wide, low), high
    )


def _requantize_test_samples() -> Samples:
    sums = random_array((2, 3, 5), "int32") * 37
    ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 5, -5, 15, -15], np.int32)
    for rounding in _REQUANTIZE_ROUNDING_MODES:
        axis_attrs = RequantizeAttrs(rounding=rounding, axis=1)
        plain = (float32_scale_array(0.31), int32_zero_point_array(0))
        yield q.exact_sample_with_constants(
            axis_attrs,
            sums,
            float32_scale_array(0.013),
            int32_zero_point_array(0),
            float32_scale_array(0.31),
            int32_zero_point_array(-5),
        )
        yield q.exact_sample_with_constants(
            axis_attrs, sums, _PER_CHANNEL_SAMPLE_SCALES, int32_zero_point_array(0), *plain
        )
        flat = RequantizeAttrs(rounding=rounding, out_dtype="uint8")
        onto = (float32_scale_array(1.0), int32_zero_point_array(128))
        for small in (0.5, 0.1, 7.0, 1e-6):
            yield q.exact_sample_with_constants(
                flat, ends, float32_scale_array(small), int32_zero_point_array(0), *onto
            )
        narrow = random_array((7,), "uint8")
        onto = (float32_scale_array(0.03), int32_zero_point_array(3))
        yield q.exact_sample_with_constants(flat, narrow, float32_scale_array(0.02), int32_zero_point_array(128), *onto)
    yield exact_sample(
        RequantizeAttrs(rounding="FLOAT_EVEN", axis=1),
        sums,
        _PER_CHANNEL_SAMPLE_SCALES,
        _PER_CHANNEL_SAMPLE_ZERO_POINTS,
        *onto,
    )
    for rounding, zero in itertools.product(FIXED_POINT_ROUNDING_MODES, (-(2**31), 2**31 - 1)):
        onto = (float32_scale_array(1.0), int32_zero_point_array(zero))
        wide = RequantizeAttrs(rounding=rounding, out_dtype="int32")
        yield q.exact_sample_with_constants(wide, ends, float32_scale_array(0.25), int32_zero_point_array(0), *onto)


requantize = OpDef(
    name="qnn.requantize",
    attrs=RequantizeAttrs,
    args=(*declare_arguments("data"), *q.quant_param_arguments(*q.INPUT_PARAMETER_NAMES, *q.OUTPUT_PARAMETER_NAMES)),
    infer=_infer_requantize_type,
    reference=_requantize_reference,
    axes=quantized_elementwise_axis_map,
    expand=_expand_requantize,
    samples=_requantize_test_samples,
    **q.shared_fields_of_quantized_op_def(OpPattern.BROADCAST),
)
