# SPDX-License-Identifier: Apache-2.0
"""Helpers of quantized operators: type rules and checks of scales and zero points, quantization of
arrays.

quantize_array(x, scale, zero, DType("int8"))  # numpy: clip(round_even(x / scale) + zero)
call_or_fold_constants(multiply, x, y)         # a call, or its value if x and y are constants
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import numpy as np

from aotc.ir import AotcError, Arg, Attrs, DType, OpPattern, PrecisionTreatment, TensorType, Type, Types, require
from aotc.relay.graph_api import Call, Constant, Expr, evaluate_constant_call, tensor_type_of, typed_op_call
from aotc.relay.op import binary_elementwise, cast_clip_prelu, elementwise_unary, shape
from aotc.relay.op.operator_definition import (
    Accuracy,
    Array,
    OpDef,
    Sample,
    may_be_equal_dims,
    number_to_constant_converter,
)
from aotc.relay.op.qnn import target_independent_rounding
from aotc.relay.op.type_rules import (
    normalize_axis,
    require_dtype,
    require_tensor_type,
    reshape_to_broadcast_along,
    shape_text,
)

#: Converters of a scale or zero point argument: numbers become constants, expressions are
#: unchanged.
SCALE_CONVERTER: Final = number_to_constant_converter(lambda _: "float32")
ZERO_POINT_CONVERTER: Final = number_to_constant_converter(lambda _: "int32")
_SCALE_DTYPES: Final = frozenset({"float16", "float32", "float64"})
#: Argument names of the scale and zero point of the input (FROM) and of the output (OUTPUT_PARAMETER_NAMES).
INPUT_PARAMETER_NAMES: Final = ("input_scale", "input_zero_point")
OUTPUT_PARAMETER_NAMES: Final = ("output_scale", "output_zero_point")
#: Largest depth of nested calls through which `constant_value_or_none` searches for constants.
_MAX_CONSTANT_SEARCH_DEPTH: Final = 16


def quant_param_arguments(*names: str) -> tuple[Arg, ...]:
    """Return argument definitions for scales and zero points; a name ends with "scale" or
    "zero_point".
    """
    types = {"scale": ("Expr | float", SCALE_CONVERTER), "point": ("Expr | int", ZERO_POINT_CONVERTER)}
    kinds = (types[name.rpartition("_")[2]] for name in names)
    return tuple(Arg(name, type=kind, takes=converter) for name, (kind, converter) in zip(names, kinds, strict=True))


# --- type rules


def require_integer_type_up_to_bits(ty: Type, tensor_name: str = "data", max_bits: int = 16) -> TensorType:
    """Return `ty` as a tensor type; raise AotcError (code "dtype") unless it has integers of at
    most `max_bits` bits.

    tensor_name    name of the tensor in the message
    """
    tensor_type = require_tensor_type(ty, tensor_name)
    fits = tensor_type.dtype.is_integer and tensor_type.dtype.bits <= max_bits
    require("dtype", fits, lambda: f"{tensor_name} must be integers of at most {max_bits} bits, got {tensor_type}")
    return tensor_type


def _check_quant_param_extent(param_type: TensorType, data: TensorType, axis: int | None, param_name: str) -> None:
    if param_type.rank == 0 or param_type.shape == (1,):
        return
    if axis is None or param_type.rank != 1:
        raise AotcError("qnn.axis", f"{param_name} must be one value, got {shape_text(param_type.shape)}")
    extent = data.shape[normalize_axis(axis, data.rank)]
    fits = may_be_equal_dims(param_type.shape[0], extent)
    require("qnn.axis", fits, f"{param_name} has {param_type.shape[0]} values, but axis {axis} of {data} has {extent}")


def check_quant_param_types(param_types: Types, data: TensorType, axis: int | None, *names: str) -> None:
    """Raise AotcError unless `param_types` are valid types of scales and zero points with the given
    names.

    Scales must be floats, zero points integers. Each must be one value or, if `axis` is given, a
    vector with one value for each element along that axis of `data`.
    """
    for ty, name in zip(param_types, names, strict=True):
        param_type = require_tensor_type(ty, name)
        kind, fits = "an integer", param_type.dtype.is_integer and param_type.dtype.bits <= 32
        if name.endswith("scale"):
            kind, fits = "a float", param_type.dtype in _SCALE_DTYPES
        require("qnn.dtype", fits, f"{name} must be {kind}, got {param_type}")
        _check_quant_param_extent(param_type, data, axis, name)


def quantized_result_type(data: TensorType, dtype: str) -> TensorType:
    """Return the type of integers `dtype` with the shape of `data`.

    Raise AotcError (code "dtype") unless `dtype` is an integer type of at most 32 bits.
    """
    result_dtype = DType(dtype)
    require_dtype(result_dtype, result_dtype.is_integer and result_dtype.bits <= 32)
    return TensorType(data.shape, result_dtype)


# --- constants


def constant_value_or_none(expr: Expr, max_depth: int = _MAX_CONSTANT_SEARCH_DEPTH) -> Array | None:
    """Return the value of an expression that consists of constants and calls; None if it depends on
    a variable.
    """
    if isinstance(expr, Constant):
        return expr.data
    if not isinstance(expr, Call) or not isinstance(expr.op, OpDef) or max_depth == 0:
        return None
    args = [constant_value_or_none(a, max_depth - 1) for a in expr.args]
    constants = [Constant(a) for a in args if a is not None]
    if not args or len(constants) != len(args):
        return None
    value = evaluate_constant_call(typed_op_call(expr.op, constants, expr.attrs))
    return value.data if isinstance(value, Constant) else None


def fold_to_constant_if_known(expr: Expr) -> Expr:
    """Return an expression folded to one constant if its value is known, else the expression
    itself.
    """
    value = constant_value_or_none(expr)
    return expr if value is None or isinstance(expr, Constant) else Constant(value)


def call_or_fold_constants(op: OpDef, *args: Any, **attributes: Any) -> Expr:
    """Return a call of `op`, folded to a constant if all arguments are constants."""
    node = op(*args, **attributes)
    value = evaluate_constant_call(node) if all(isinstance(a, Constant) for a in node.args) else None
    return node if value is None else value


def check_scales_positive_if_constant(named_scales: Iterable[tuple[str, Expr]]) -> None:
    """Raise AotcError (code "qnn.scale") if a constant scale is not positive and finite.

    named_scales    pairs of the scale's name and its expression
    """
    for name, expr in named_scales:
        value = constant_value_or_none(expr)
        if value is None:
            continue
        wide = value.astype(np.float64).reshape(-1)
        wrong = ~(np.isfinite(wide) & (wide > 0))
        if wrong.any():
            where = f"[{int(wrong.argmax())}]" if wide.size > 1 else ""
            raise AotcError("qnn.scale", f"{name}{where} is {wide[wrong][0]:g}: not positive and finite")


def check_zero_point_range_if_constant(name: str, expr: Expr, dtype: DType) -> None:
    """Raise AotcError (code "qnn.zero-point") if a constant zero point is outside of the range of
    `dtype`.
    """
    value = constant_value_or_none(expr)
    if value is None:
        return
    wide = value.astype(np.int64).reshape(-1)
    wrong = (wide < int(dtype.min)) | (wide > int(dtype.max))
    text = f"{name} is outside of {dtype}, which holds {int(dtype.min)} to {int(dtype.max)}"
    require("qnn.zero-point", not wrong.any(), lambda: f"{text}: {wide[wrong][0]}")


def check_quant_params_if_constant(dtype: DType, names: Iterable[str], *quant_params: Expr) -> None:
    """Raise AotcError for constant scales or zero points, listed by name, that are invalid for
    integers of `dtype`.
    """
    for name, value in zip(names, quant_params, strict=True):
        if name.endswith("scale"):
            check_scales_positive_if_constant([(name, value)])
        else:
            check_zero_point_range_if_constant(name, value, dtype)


def is_constant_zero(expr: Expr) -> bool:
    """Return True if a zero point is a constant that is 0 in all elements."""
    value = constant_value_or_none(expr)
    return value is not None and not value.any()


def integer_range_exact_in(dtype: DType, work_dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest integer of `dtype` that the type `work_dtype` represents
    exactly.
    """
    low, high = int(dtype.min), int(dtype.max)
    digits = {16: 11, 32: 24, 64: 53}[work_dtype.bits] if work_dtype.is_float else 64
    spare = max(high.bit_length() - digits, 0)
    return low, high >> spare << spare


# --- expressions


add, sub, mul, div = (
    partial(call_or_fold_constants, op)
    for op in (
        binary_elementwise.add,
        binary_elementwise.subtract,
        binary_elementwise.multiply,
        binary_elementwise.divide,
    )
)


def rank_of(x: Expr) -> int:
    """Return the number of axes of a tensor expression."""
    return tensor_type_of(x).rank


def require_static_axis_extent(x: Expr, axis: int) -> int:
    """Return the extent of an axis; raise AotcError (code "qnn.axis") if it is not known at compile
    time.
    """
    ty = tensor_type_of(x)
    size = ty.shape[axis]
    if isinstance(size, int):
        return size
    text = f"axis {normalize_axis(axis, ty.rank)} of {ty} has a size that is not known at compile time"
    raise AotcError("qnn.axis", text, hint="fix the size of that axis: quantized operators compute with it")


def is_per_channel_quant_param(x: Expr) -> bool:
    """Return True if a scale or zero point has one value for each element of an axis instead of one
    value.
    """
    return tensor_type_of(x).shape not in ((), (1,))


def tensor_dtype_of(x: Expr) -> DType:
    """Return the data type of a tensor expression."""
    return tensor_type_of(x).dtype


def constant_of_dtype(value: Any, dtype: str) -> Constant:
    """Return a constant with a value and a data type."""
    return Constant(np.asarray(value).astype(DType(dtype).numpy))


def cast_unless_dtype_equal(x: Expr, dtype: str) -> Expr:
    """Return `x` cast to `dtype`."""
    return x if tensor_dtype_of(x) == dtype else call_or_fold_constants(cast_clip_prelu.cast, x, dtype=dtype)


def broadcast_quant_param_along(quant_param: Expr, axis: int | None, rank: int, dtype: str = "") -> Expr:
    """Return a scale or zero point as `dtype`, reshaped to broadcast along `axis` of a tensor with
    `rank` axes.
    """
    ty = tensor_type_of(quant_param)
    quant_param = cast_unless_dtype_equal(fold_to_constant_if_known(quant_param), dtype or ty.dtype)
    if ty.rank == 0:
        return quant_param
    if ty.shape == (1,) or axis is None:
        return call_or_fold_constants(shape.reshape, quant_param, newshape=())
    after = rank - axis % rank - 1
    return call_or_fold_constants(shape.expand_dims, quant_param, axis=1, num_newaxis=after) if after else quant_param


def subtract_zero_point(x: Expr, zero_point: Expr, axis: int | None = None) -> Expr:
    """Return integers minus their zero point, as int32."""
    wide = cast_unless_dtype_equal(x, "int32")
    if is_constant_zero(zero_point):
        return wide
    return sub(wide, broadcast_quant_param_along(zero_point, axis, rank_of(x), "int32"))


def add_zero_point_and_saturate(
    integers: Expr, zero_point: Expr, axis: int | None, dtype: DType, is_nan_free: bool = True
) -> Expr:
    """Return whole numbers `integers` plus a zero point, saturated to the range of `dtype` and cast
    to it.

    integers       floats, or integers wide enough for the sum
    is_nan_free    True if no element is NaN; otherwise NaN becomes the smallest value
    """
    work = tensor_type_of(integers)
    low, high = integer_range_exact_in(dtype, work.dtype)
    value = constant_value_or_none(zero_point)
    if not is_nan_free:
        integers = add(integers, broadcast_quant_param_along(zero_point, axis, work.rank, work.dtype))
        least = constant_of_dtype(low, work.dtype)
        integers = call_or_fold_constants(
            binary_elementwise.where,
            call_or_fold_constants(binary_elementwise.greater, integers, least),
            integers,
            least,
        )
        integers = call_or_fold_constants(binary_elementwise.minimum, integers, constant_of_dtype(high, work.dtype))
    elif value is not None and value.size == 1 and work.dtype.is_float:
        offset = float(value.reshape(()))
        integers = call_or_fold_constants(cast_clip_prelu.clip, integers, a_min=low - offset, a_max=high - offset)
        integers = integers if offset == 0 else add(integers, constant_of_dtype(offset, work.dtype))
    else:
        if not is_constant_zero(zero_point):
            integers = add(integers, broadcast_quant_param_along(zero_point, axis, work.rank, work.dtype))
        integers = call_or_fold_constants(cast_clip_prelu.clip, integers, a_min=low, a_max=high)
    return call_or_fold_constants(cast_clip_prelu.cast, integers, dtype=str(dtype))


def round_add_zero_point_saturate(
    floats: Expr, zero_point: Expr, axis: int | None, dtype: DType, is_nan_free: bool = True
) -> Expr:
    """Return floats rounded to nearest even plus a zero point, saturated to `dtype`; `is_nan_free`
    as in `add_zero_point_and_saturate`.
    """
    work = tensor_type_of(floats)
    if dtype in target_independent_rounding.ROUND_NEAREST_OPS_BY_DTYPE and work.dtype == "float32":
        return call_or_fold_constants(
            target_independent_rounding.ROUND_NEAREST_OPS_BY_DTYPE[dtype],
            floats,
            broadcast_quant_param_along(zero_point, axis, work.rank, "float32"),
        )
    return add_zero_point_and_saturate(
        call_or_fold_constants(elementwise_unary.round, floats), zero_point, axis, dtype, is_nan_free
    )


# --- the same on arrays


def broadcast_array_along(quant_param: Array, axis: int | None, rank: int, dtype: Any) -> Array:
    """Return an array with a scale or zero point, reshaped to broadcast along `axis` of an array
    with `rank` axes.
    """
    quant_param = np.asarray(quant_param).astype(dtype)
    single = quant_param.size == 1 or axis is None
    return quant_param.reshape(()) if single else reshape_to_broadcast_along(quant_param, axis or 0, rank)


def subtract_zero_point_from_array(
    x: Array, zero_point: Array, axis: int | None = None, dtype: Any = np.int32
) -> Array:
    """Return an integer array minus its zero point as `dtype`, with wraparound."""
    return np.asarray(x.astype(dtype) - broadcast_array_along(zero_point, axis, x.ndim, dtype))


def add_zero_point_saturate_array(whole_numbers: Array, zero_point: Array, axis: int | None, dtype: DType) -> Array:
    """Return an array of whole numbers plus a zero point, saturated to the range of `dtype` and
    cast to it.
    """
    total = whole_numbers + broadcast_array_along(zero_point, axis, whole_numbers.ndim, whole_numbers.dtype)
    low, high = integer_range_exact_in(dtype, DType.from_numpy(whole_numbers))
    least, most = (whole_numbers.dtype.type(v) for v in (low, high))
    # NaN becomes the least value
    return np.asarray(np.minimum(np.where(total > least, total, least), most).astype(dtype.numpy))


def dequantize_array(
    x: Array, scale: Array, zero_point: Array, axis: int | None = None, dtype: Any = np.float32
) -> Array:
    """Return the real numbers that an integer array represents: (x - zero) * scale."""
    return np.asarray(
        subtract_zero_point_from_array(x, zero_point, axis).astype(dtype)
        * broadcast_array_along(scale, axis, x.ndim, dtype)
    )


def quantize_array(x: Array, scale: Array, zero_point: Array, dtype: DType, axis: int | None = None) -> Array:
    """Return real numbers quantized as `dtype`: x / scale rounded to nearest even, plus the zero
    point, saturated.
    """
    work = scale.dtype
    quotient = x.astype(work) / broadcast_array_along(scale, axis, x.ndim, work)
    return add_zero_point_saturate_array(np.rint(quotient), zero_point, axis, dtype)


def shared_fields_of_quantized_op_def(pattern: OpPattern, sums_products: bool = False) -> dict[str, Any]:
    """Return OpDef fields shared by quantized operators; precision conversions do not affect their
    float32 scales.

    pattern          fusion pattern of the operator
    sums_products    True if the operator sums products
    """
    derived = pattern is OpPattern.OUT_ELEMWISE_FUSABLE and not sums_products
    return {"pattern": pattern, "precision": None if derived else PrecisionTreatment.NEVER}


def exact_sample_with_constants(
    attributes: Attrs, *values: Array | tuple[Array, ...], variable_argument_count: int = 1
) -> Sample:
    """Return a sample with an exact result in which all arguments except the first
    `variable_argument_count` are constants.
    """
    known = tuple(range(variable_argument_count, len(values)))
    return Sample(args=values, attrs=attributes, accuracy=Accuracy.EXACT, known=known)
