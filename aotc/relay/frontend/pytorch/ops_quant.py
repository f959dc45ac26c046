# SPDX-License-Identifier: Apache-2.0
"""PyTorch converters of `quantized_decomposed`, the operators of programs that PyTorch's pt2e
quantizer produces.

Real numbers are divided by the scale and rounded once. PyTorch multiplies by the reciprocal of the
scale instead, which can round a value near the middle of two integers differently.

OPS["quantized_decomposed::quantize_per_tensor"](x, 0.1, 3, -128, 127, "int8")  # qnn.quantize(x, 0.1, 3)
"""

from typing import Final

import numpy as np

from aotc.ir import DType
from aotc.relay.expr import Expr
from aotc.relay.frontend import op_calls as g
from aotc.relay.frontend import quantization as q
from aotc.relay.frontend.converter_signatures import OptionalExpr
from aotc.relay.frontend.pytorch import value_conversion_and_promotion as tv
from aotc.relay.frontend.pytorch.value_conversion_and_promotion import Table, TorchValue

#: Namespace of the quantized operators in PyTorch.
QUANTIZED_NAMESPACE: Final = "quantized_decomposed"
_FLOAT: Final = DType("float32")


def _checked_quantization_scale(value: TorchValue) -> Expr:
    return q.checked_scale_with_single_as_scalar(tv.to_tensor_expr_of_dtype(value, _FLOAT))


def _zero_point_as_int32_expr(value: TorchValue) -> Expr:
    return q.zero_point_as_int32(None if value is None else tv.to_tensor_expr_of_dtype(value, "int32"))


def _clip_quantized(x: Expr, quant_min: TorchValue, quant_max: TorchValue) -> Expr:
    """Clip integers to the range from `quant_min` to `quant_max`, unless that contains the whole
    range of their data type.
    """
    dtype = g.dtype(x)
    low, high = (tv.to_python_number(v) for v in (quant_min, quant_max))
    whole = low <= int(dtype.min) and high >= int(dtype.max)
    return x if whole else g.clip(x, low, high)


# --- per tensor and per channel


def _quantize_per_channel(
    x: Expr,
    scales: TorchValue,
    zero_points: TorchValue,
    axis: int,
    quant_min: TorchValue,
    quant_max: TorchValue,
    dtype: str,
) -> Expr:
    numbers = _checked_quantization_scale(scales), _zero_point_as_int32_expr(zero_points)
    y = q.quantize(x, *numbers, DType(dtype), work=_FLOAT, axis=axis)
    return _clip_quantized(y, quant_min, quant_max)


def _dequantize_per_channel(
    x: Expr,
    scales: TorchValue,
    zero_points: TorchValue,
    axis: int,
    quant_min: TorchValue,
    quant_max: TorchValue,
    dtype: str,
    out_dtype: TorchValue = None,
) -> Expr:
    result = DType(tv.dtype_name_of_torch_dtype(out_dtype) or _FLOAT)
    return q.dequantize(
        x, _checked_quantization_scale(scales), _zero_point_as_int32_expr(zero_points), result, axis=axis
    )


def _quantize_per_tensor(
    x: Expr, scale: TorchValue, zero_point: TorchValue, quant_min: TorchValue, quant_max: TorchValue, dtype: str
) -> Expr:
    return _quantize_per_channel(x, scale, zero_point, -1, quant_min, quant_max, dtype)


def _dequantize_per_tensor(
    x: Expr,
    scale: TorchValue,
    zero_point: TorchValue,
    quant_min: TorchValue,
    quant_max: TorchValue,
    dtype: str,
    out_dtype: TorchValue = None,
) -> Expr:
    ends = quant_min, quant_max
    return _dequantize_per_channel(x, scale, zero_point, -1, *ends, dtype, out_dtype)


# --- per token and per channel group


def _reshape_to_one_row_per_scale(x: Expr, scales: Expr) -> Expr:
    """Reshape a tensor so that each scale has one row of elements."""
    return g.reshape(x, (*tv.static_dims(scales), -1))


def _quantize_per_token(x: Expr, scales: Expr, zero_points: Expr, quant_min: int, quant_max: int, dtype: str) -> Expr:
    """Convert quantize_per_token: one scale and zero point per row; the zero point is added before
    rounding.
    """
    work = g.dtype(x)
    y = g.mul(x, g.cast(g.div(1.0, q.checked_scale_with_single_as_scalar(scales)), work))
    y = g.call_op("round", g.add(y, g.cast(zero_points, work)))
    return g.cast(g.clip(y, quant_min, quant_max), dtype)


def _dequantize_per_token(
    x: Expr,
    scales: Expr,
    zero_points: OptionalExpr,
    quant_min: int,
    quant_max: int,
    dtype: str,
    output_dtype: TorchValue = None,
) -> Expr:
    q.require_finite_scales_if_constant(scales)
    y = g.cast(x, g.dtype(scales))
    y = y if zero_points is None else g.sub(y, g.cast(zero_points, g.dtype(scales)))
    return g.cast(g.mul(y, scales), tv.dtype_name_of_torch_dtype(output_dtype) or "float32")


def _quantize_per_channel_group(
    x: Expr, scales: Expr, zero_points: Expr, quant_min: int, quant_max: int, dtype: str, group_size: int = 128
) -> Expr:
    scale, zero = (g.unsqueeze(v, [2]) for v in (scales, zero_points))
    rows = _reshape_to_one_row_per_scale(x, scales)
    y = _quantize_per_token(rows, scale, zero, quant_min, quant_max, dtype)
    return g.reshape(y, tv.static_dims(x))


def _dequantize_per_channel_group(
    x: Expr,
    scales: Expr,
    zero_points: OptionalExpr,
    quant_min: int,
    quant_max: int,
    dtype: str,
    group_size: int = 128,
    output_dtype: TorchValue = None,
) -> Expr:
    column = g.unsqueeze(scales, [2])
    zeros = None if zero_points is None else g.unsqueeze(zero_points, [2])
    ends = quant_min, quant_max
    y = _dequantize_per_token(_reshape_to_one_row_per_scale(x, scales), column, zeros, *ends, dtype, output_dtype)
    return g.reshape(y, tv.static_dims(x))


# --- quantization parameters computed at run time


def _range_including_zero(x: Expr, axes: list[int]) -> tuple[Expr, Expr]:
    """Return the minimum and the maximum over axes, each extended to include 0; reduced axes remain
    with extent 1.
    """
    low = g.minimum(g.call_reduction("min", x, axes, True), 0.0)
    return low, g.maximum(g.call_reduction("max", x, axes, True), 0.0)


def _cast_qparams_to_float64_and_int64(scale: Expr, zero: Expr) -> list[Expr]:
    return [g.cast(scale, "float64"), g.cast(zero, "int64")]


def _choose_qparams(x: Expr, quant_min: int, quant_max: int, eps: float, dtype: str) -> list[Expr]:
    low, high = _range_including_zero(g.reshape(g.cast(x, _FLOAT), (-1,)), [0])
    scale = g.maximum(g.div(g.sub(high, low), float(quant_max - quant_min)), eps)
    zero = g.sub(float(quant_min), g.call_op("round", g.div(low, scale)))
    return _cast_qparams_to_float64_and_int64(scale, g.clip(zero, quant_min, quant_max))


def _choose_qparams_symmetric(x: Expr, quant_min: int, quant_max: int, eps: float, dtype: str) -> list[Expr]:
    low, high = _range_including_zero(g.reshape(g.cast(x, _FLOAT), (-1,)), [0])
    steps = float(quant_max - quant_min) / 2
    scale = g.maximum(g.div(g.maximum(g.negative(low), high), steps), eps)
    middle = (quant_min + quant_max + 1) // 2 if dtype == "uint8" else 0
    return _cast_qparams_to_float64_and_int64(scale, g.full(middle, (1,), "int64"))


def _choose_qparams_per_token(x: Expr, dtype: str) -> list[Expr]:
    top = g.call_reduction("max", g.absolute(x), [g.rank(x) - 1], True)
    top = g.cast(top, _FLOAT) if g.dtype(x) == "float16" else top
    scale = g.div(g.maximum(top, 1e-5), 127.0)
    return [scale, g.full(0, g.shape(scale), g.dtype(scale))]


def _choose_qparams_per_token_asymmetric(x: Expr, dtype: str) -> list[Expr]:
    """Return scale and zero point per row for an asymmetric int8 quantization; the zero point is
    computed from the end of the range with the smaller rounding error.
    """
    low, high = _range_including_zero(x, [g.rank(x) - 1])
    least = float(np.finfo(np.float32).eps)
    scale = g.maximum(g.div(g.sub(high, low), 255.0), least)
    below, above = g.div(low, scale), g.div(high, scale)
    return _cast_qparams_to_float64_and_int64(scale, q.int8_zero_point_from_range(below, above))


def _convert_element_type(x: Expr, dtype: str) -> Expr:
    return g.cast(x, dtype)


_CONVERTERS: Final = (
    _choose_qparams,
    _choose_qparams_per_token,
    _choose_qparams_per_token_asymmetric,
    _choose_qparams_symmetric,
    _convert_element_type,
    _dequantize_per_channel,
    _dequantize_per_channel_group,
    _dequantize_per_tensor,
    _dequantize_per_token,
    _quantize_per_channel,
    _quantize_per_channel_group,
    _quantize_per_tensor,
    _quantize_per_token,
)
OPS: Table = {
    f"{QUANTIZED_NAMESPACE}::{name}": c for name, c in tv.converter_table_by_function_name(*_CONVERTERS).items()
}
OPS[f"{QUANTIZED_NAMESPACE}::_choose_qparams_per_token_asymmetric_impl"] = _choose_qparams_per_token_asymmetric
