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

from aotc.ir import AotcError, Attrs, AxisMap, DType, OpPattern, TensorType, Type, Types, args, param, require, setting
from aotc.relay.expr import Expr, tensor_type_of
from aotc.relay.op import binary_elementwise
from aotc.relay.op.operator_definition import Array, OpDef, Samples, exact, random_array
from aotc.relay.op.qnn import defined_rounding
from aotc.relay.op.qnn import quant_params as q
from aotc.relay.op.qnn.fixed_point import ROUNDINGS, factors_of
from aotc.relay.op.type_rules import axis_of, float_tensor, require_known, tensor


def along_axis(a: Any, types: Types) -> AxisMap:
    """Return the axis map of an elementwise operator whose scales and zero points may be vectors
    along `a.axis`.
    """
    rank = tensor(types[0]).rank
    axis = axis_of(a.axis, rank) if rank else 0

    def row(ty: Type) -> tuple[int | None, ...]:
        several = tensor(ty).rank == 1 and tensor(ty).shape != (1,)
        return tuple(0 if several and k == axis else None for k in range(rank))

    return AxisMap((tuple(range(rank)), *map(row, types[1:])))


# --- quantize


class QuantizeAttrs(Attrs):
    """clip(round_even(data / output_scale) + output_zero_point), computed in the scale's type.

    Scale and zero point are one value, or one for each element along `axis`.
    """

    out_dtype: str = "int8"
    axis: int = -1


def _quantize_infer(a: QuantizeAttrs, types: Types) -> Type:
    data = float_tensor(types[0])
    q.check_pairs(types[1:], data, a.axis, *q.ONTO)
    return q.result_of(data, a.out_dtype)


def _quantize_expand(a: QuantizeAttrs, data: Expr, scale: Expr, zero: Expr) -> Expr:
    dtype, rank = DType(a.out_dtype), q.rank_of(data)
    q.checked(dtype, q.ONTO, scale, zero)
    work = q.dtype_of(scale)
    quotient = q.div(q.converted(data, work), q.laid(scale, a.axis, rank))
    return q.nearest(quotient, zero, a.axis, dtype, number=False)


def scale_array(*values: float) -> Array:
    """Return one scale as a 0-d float32 array, or several scales as a vector."""
    return np.array(values if len(values) > 1 else values[0], np.float32)


def zero_array(*values: int) -> Array:
    """Return one zero point as a 0-d int32 array, or several zero points as a vector."""
    return np.array(values if len(values) > 1 else values[0], np.int32)


_CHANNELS = scale_array(0.01, 0.5, 0.03)
_ZEROS = zero_array(-3, 0, 7)


def _quantize_samples() -> Samples:
    x = random_array((2, 3, 5)) * np.float32(3)
    halves = np.array([0.25, 0.75, -0.25, 1.25, 1e9, -1e9, -0.0, np.nan, np.inf, -np.inf], np.float32)
    for dtype in ("int8", "uint8", "int16", "uint16", "int4", "uint4"):
        yield exact(QuantizeAttrs(out_dtype=dtype), x, scale_array(0.07), zero_array(3))
        yield exact(QuantizeAttrs(out_dtype=dtype), halves, scale_array(0.5), zero_array(0))
    yield exact(QuantizeAttrs(axis=1), x, _CHANNELS, _ZEROS)
    yield exact(QuantizeAttrs(), x.astype(np.float16), scale_array(0.02), zero_array(-128))
    yield exact(QuantizeAttrs(out_dtype="uint8"), random_array(()), scale_array(0.1), zero_array(255))
    yield exact(QuantizeAttrs(), random_array((0, 3)), _CHANNELS, _ZEROS)


quantize = OpDef(
    name="qnn.quantize",
    attrs=QuantizeAttrs,
    args=(*args("data"), *q.scales(*q.ONTO)),
    infer=_quantize_infer,
    reference=lambda a, x, s, z: q.quantized(x, s, z, DType(a.out_dtype), a.axis),
    axes=along_axis,
    expand=_quantize_expand,
    samples=_quantize_samples,
    **q.facets(OpPattern.BROADCAST),
)


# --- dequantize


class DequantizeAttrs(Attrs):
    """(data - input_zero_point) * input_scale as `out_dtype`.

    Scale and zero point are one value, or one for each element along `axis`.
    """

    out_dtype: str = "float32"
    axis: int = -1


def _dequantize_infer(a: DequantizeAttrs, types: Types) -> Type:
    data = q.quantized_type(types[0], bits=32)
    q.check_pairs(types[1:], data, a.axis, *q.FROM)
    result = DType(a.out_dtype)
    require("dtype", result.is_float, f"data type {result} is not a float type")
    return TensorType(data.shape, result)


def _dequantize_expand(a: DequantizeAttrs, data: Expr, scale: Expr, zero: Expr) -> Expr:
    ty = tensor_type_of(data)
    q.checked(ty.dtype, q.FROM, scale, zero)
    if q.is_zero(zero):
        real = q.converted(data, a.out_dtype)
    else:
        real = q.converted(q.centered(data, zero, a.axis), a.out_dtype)
    return q.mul(real, q.laid(scale, a.axis, ty.rank, a.out_dtype))


def _dequantize_reference(a: DequantizeAttrs, x: Array, scale: Array, zero: Array) -> Array:
    return q.dequantized(x, scale, zero, a.axis, DType(a.out_dtype).numpy)


def _dequantize_samples() -> Samples:
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4"):
        x = (
            random_array((2, 3, 5), dtype)
            if dtype[-1] != "4"
            else (random_array((2, 5)) * 3).astype(DType(dtype).numpy)
        )
        yield exact(DequantizeAttrs(), x, scale_array(0.07), zero_array(0 if dtype == "int32" else 3))
    yield exact(DequantizeAttrs(axis=1), random_array((2, 3, 5), "int8"), _CHANNELS, _ZEROS)
    yield exact(DequantizeAttrs(out_dtype="float16"), random_array((4,), "int8"), scale_array(0.25), zero_array(-128))
    yield exact(DequantizeAttrs(), random_array((), "uint8"), scale_array(0.25), zero_array(128))


dequantize = OpDef(
    name="qnn.dequantize",
    attrs=DequantizeAttrs,
    args=(*args("data"), *q.scales(*q.FROM)),
    infer=_dequantize_infer,
    reference=_dequantize_reference,
    axes=along_axis,
    expand=_dequantize_expand,
    samples=_dequantize_samples,
    **q.facets(OpPattern.BROADCAST),
)


# --- requantize

_DEFAULT: Final[ContextVar[str]] = ContextVar("rounding", default="None")


def requantize_config(rounding: str = "UPWARD", compute_dtype: str = "int64") -> AbstractContextManager[str]:
    """Return a context that sets the rounding mode of calls of requantize made inside it without
    one or with "None".

    Raise AotcError for an unknown rounding mode or compute_dtype.
    """
    _check_rounding(rounding, compute_dtype)
    return setting(_DEFAULT, rounding)


class RequantizeAttrs(Attrs):
    """Integers with one scale and zero point converted to another scale and zero point, saturated.

    Input scales are one value, or one for each element along `axis`.

    rounding  "UPWARD" (also "None") and "TONEAREST" multiply by the ratio of the scales as a 31-bit fixed-point number
              and round once, halves up or away from zero; "TFLITE" rounds twice, as gemmlowp does; "FLOAT_EVEN"
              multiplies by the float32 ratio in float32 and rounds halves to even
    compute_dtype  accepted for compatibility with TVM; the result does not depend on it
    """

    axis: int = -1
    rounding: str = param(default="None", takes=lambda value, _: _DEFAULT.get() if value == "None" else value)
    compute_dtype: str = "None"
    out_dtype: str = "int8"


_ROUNDINGS = ("None", *ROUNDINGS, "FLOAT_EVEN")


def _requantize_infer(a: RequantizeAttrs, types: Types) -> Type:
    data = q.quantized_type(types[0], bits=32)
    q.check_pairs(types[1:3], data, a.axis, *q.FROM)
    q.check_pairs(types[3:5], data, a.axis, *q.ONTO)
    _check_rounding(a.rounding, a.compute_dtype)
    return q.result_of(data, a.out_dtype)


def _check_rounding(rounding: str, compute_dtype: str) -> None:
    require_known("qnn.rounding", "rounding", rounding, _ROUNDINGS)
    works = ("float32",) if rounding == "FLOAT_EVEN" else ("int64", "float32", "float64")
    require_known("qnn.compute-dtype", f"compute_dtype of rounding {rounding}", compute_dtype, ("None", *works))


def _rounding(a: RequantizeAttrs) -> str:
    return "UPWARD" if a.rounding == "None" else a.rounding


def _requantize_reference(
    a: RequantizeAttrs, x: Array, scale: Array, zero: Array, out_scale: Array, out_zero: Array
) -> Array:
    rounding, dtype = _rounding(a), DType(a.out_dtype)
    if rounding != "FLOAT_EVEN":
        whole = q.offsets(x, zero, a.axis, np.int64)
        factors = factors_of(scale, out_scale, rounding)
        scaled = factors.scaled(whole, a.axis)
        return q.stored(scaled, out_zero, a.axis, dtype)
    ratio = scale.astype(np.float32) / out_scale.astype(np.float32)
    real = q.offsets(x, zero, a.axis).astype(np.float32) * q.spread(ratio, a.axis, x.ndim, np.float32)
    return q.stored(np.rint(real), out_zero, a.axis, dtype)


def _requantize_expand(
    a: RequantizeAttrs, data: Expr, scale: Expr, zero: Expr, out_scale: Expr, out_zero: Expr
) -> Expr:
    rounding, dtype, ty = _rounding(a), DType(a.out_dtype), tensor_type_of(data)
    q.checked(ty.dtype, q.FROM, scale, zero)
    q.checked(dtype, q.ONTO, out_scale, out_zero)
    if rounding != "FLOAT_EVEN":
        source, result = q.known(scale), q.known(out_scale)
        if source is None or result is None:
            hint = 'give constants, or rounding="FLOAT_EVEN"'
            raise AotcError("qnn.scale", f"rounding {rounding} needs constant scales", hint=hint)
        factors = factors_of(source, result, rounding)
        fits = ty.dtype == "int32" and q.is_zero(zero) and (dtype.bits < 32 or q.is_zero(out_zero))
        words = factors.of_words(data, a.axis) if fits else None
        if words is not None and a.out_dtype in defined_rounding.SATURATE:
            zero_point = q.laid(out_zero, a.axis, ty.rank, "int32")
            moved = words if q.is_zero(out_zero) else q.add(words, zero_point)
            return q.made(defined_rounding.SATURATE[a.out_dtype], moved)
        scaled = words or factors.expr(_whole(data, zero, a.axis), a.axis)
        return q.saturated(scaled, out_zero, a.axis, dtype)
    single = (q.converted(q.settled(s), "float32") for s in (scale, out_scale))
    ratio = q.div(*single)
    real = q.converted(q.centered(data, zero, a.axis), "float32")
    real = q.mul(real, q.laid(ratio, a.axis, ty.rank))
    return q.nearest(real, out_zero, a.axis, dtype)


def _whole(data: Expr, zero: Expr, axis: int) -> Expr:
    """Return integers minus their zero point as int64, clamped to the range of int32."""
    ty = tensor_type_of(data)
    wide = q.converted(data, "int64")
    if q.is_zero(zero):
        return wide
    wide = q.sub(wide, q.laid(zero, axis, ty.rank, "int64"))
    if ty.dtype.bits < 32:
        return wide
    low, high = (q.constant(v, "int64") for v in (-(1 << 31), (1 << 31) - 1))
    return q.made(binary_elementwise.minimum, q.made(binary_elementwise.maximum, wide, low), high)


def _requantize_samples() -> Samples:
    sums = random_array((2, 3, 5), "int32") * 37
    ends = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 5, -5, 15, -15], np.int32)
    for rounding in _ROUNDINGS:
        one = RequantizeAttrs(rounding=rounding, axis=1)
        plain = (scale_array(0.31), zero_array(0))
        yield q.with_constants(one, sums, scale_array(0.013), zero_array(0), scale_array(0.31), zero_array(-5))
        yield q.with_constants(one, sums, _CHANNELS, zero_array(0), *plain)
        flat = RequantizeAttrs(rounding=rounding, out_dtype="uint8")
        onto = (scale_array(1.0), zero_array(128))
        for small in (0.5, 0.1, 7.0, 1e-6):
            yield q.with_constants(flat, ends, scale_array(small), zero_array(0), *onto)
        narrow = random_array((7,), "uint8")
        onto = (scale_array(0.03), zero_array(3))
        yield q.with_constants(flat, narrow, scale_array(0.02), zero_array(128), *onto)
    yield exact(RequantizeAttrs(rounding="FLOAT_EVEN", axis=1), sums, _CHANNELS, _ZEROS, *onto)
    for rounding, zero in itertools.product(ROUNDINGS, (-(2**31), 2**31 - 1)):
        onto = (scale_array(1.0), zero_array(zero))
        wide = RequantizeAttrs(rounding=rounding, out_dtype="int32")
        yield q.with_constants(wide, ends, scale_array(0.25), zero_array(0), *onto)


requantize = OpDef(
    name="qnn.requantize",
    attrs=RequantizeAttrs,
    args=(*args("data"), *q.scales(*q.FROM, *q.ONTO)),
    infer=_requantize_infer,
    reference=_requantize_reference,
    axes=along_axis,
    expand=_requantize_expand,
    samples=_requantize_samples,
    **q.facets(OpPattern.BROADCAST),
)
